// Comparison of a kernel set with the scalar one on this machine: a miscompiled kernel, or an instruction that an emulator
// or a hypervisor gets wrong, is found before it can change a token.
#pragma once
#include <cstdint>
#include <string>

#include "kernels/kernel_table.h"

namespace hotloop {

// Extents of the inputs. The default is what the first use of a set in a process runs: every tile shape once, in well
// under 50 ms. tokens: how many a linear kernel gets at once, in one call each.
struct CheckExtents {
  int64_t row_blocks = 5;         // 4 streams in lockstep and one block that is left
  int64_t cols = 512;             // two superblocks
  int64_t tokens[3] = {1, 2, 15};
  int64_t floats = 1091;          // of the float rows: whole vectors and a rest, and more than 1024 terms of log_sum_exp
  int64_t first_position = 295;   // of the attention rows: two spans
};

// What `candidate` computes differently from `reference` (name of the kernel and of the case), or "". Compares bits, all
// NaNs being alike.
std::string differing_kernel(const KernelTable& candidate, const KernelTable& reference, uint64_t seed = 1,
                             const CheckExtents& extents = {});

// A hash of all that a set computes on such inputs, equal on every machine.
uint64_t digest(const KernelTable& kernels, uint64_t seed = 1, const CheckExtents& extents = {});

// A copy of `table` in which one result of the kernel `name` is wrong in its last bit: for tests of the check.
// Throws std::invalid_argument for a name it does not know.
KernelTable broken_copy(const KernelTable& table, const std::string& name);

}  // namespace hotloop
