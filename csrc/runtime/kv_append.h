// Storing one token's K or V of one head: a pure function of that vector, so that blocks can be copied byte for byte.
#pragma once
#include "kernels/kernel_table.h"
#include "runtime/batch.h"

namespace hotloop {

constexpr int32_t kMaxHeadDim = 1024;

enum class KvPart { Key, Value };

// x: [head_dim]. slot: block id * block_size + offset in the block.
void append_kv(const KernelTable& kernels, const KvLayer& kv, KvPart part, int64_t head, int64_t slot, const float* x);

}  // namespace hotloop
