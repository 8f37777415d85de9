// One step's batch header and KV addressing, as the ops of a step program see them (ops/batch.py has the meaning).
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/kernel_table.h"

namespace hotloop {

struct BatchGroup {
  const int32_t* block_tables;  // [R, max_blocks]
  int64_t max_blocks;
  const int64_t* slot_mapping;  // [T]
};

struct Batch {
  int64_t tokens = 0, requests = 0, logits = 0;
  const int32_t* token_ids = nullptr;    // [T]
  const int32_t* positions = nullptr;    // [T]
  const int32_t* query_start = nullptr;  // [R + 1]
  const int32_t* logits_rows = nullptr;  // [L]
  std::vector<BatchGroup> groups;
};

// Where one layer's K and V live: of block b at k + b * block_stride_bytes and so on, laid out as AttentionArgs says.
struct KvLayer {
  uint8_t* k = nullptr;
  uint8_t* v = nullptr;
  uint8_t* k_scale = nullptr;  // int8 only
  uint8_t* v_scale = nullptr;
  int64_t block_stride_bytes = 0;
  int32_t group = 0;
  int32_t block_size = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t window = 0;
  KvDtype k_dtype = KvDtype::F16;
  KvDtype v_dtype = KvDtype::F16;
};

}  // namespace hotloop
