// The one measurement of this machine's limits, read bandwidth and arithmetic: every figure of the project is a share of one.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/kernel_table.h"

namespace hotloop {

// Bytes per second of the samples taken in about `seconds`, at least 3, by `threads` threads that read disjoint shares of
// `bytes` of memory; a sample reads a quarter of them. Each thread reads `streams` (1, 2, 4 or 8) far streams in lockstep;
// 0: the access patterns 1, 4 and 8 take turns, and the samples of the one with the best median are returned, because
// which one fills the memory bus differs between machines. `bytes` should be many times the last-level cache; the memory
// is released on return. Throws std::bad_alloc where there is not enough.
std::vector<double> measure_read_bandwidth(int threads, int64_t bytes, double seconds, int streams = 0);

// Operations per second (a multiply-add is two) of samples of about a millisecond taken in `seconds`, at least 3: `threads`
// threads run the kernel set's multiply-add instructions in registers.
using PeakKernel = int64_t (*KernelTable::*)(int64_t rounds, float* sink);
std::vector<double> measure_peak(const KernelTable& kernels, PeakKernel kernel, int threads, double seconds);

}  // namespace hotloop
