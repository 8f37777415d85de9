#include "runtime/kv_append.h"

#include <cstring>

namespace hotloop {
namespace {

void append_int8(const KernelTable& kernels, const KvLayer& kv, KvPart part, int64_t head, int64_t block, int64_t slot,
                 const float* x) {
  const bool is_key = part == KvPart::Key;
  int8_t codes[kMaxHeadDim];
  uint16_t scales[kMaxHeadDim / kKeyGroup];
  kernels.quantize_kv(x, kv.head_dim, is_key ? kKeyGroup : kValueGroup, codes, scales);

  const int64_t offset = block * kv.block_stride_bytes, size = kv.block_size;
  if (is_key) {
    uint8_t* dst = kv.k + offset + (head * (kv.head_dim / 4) * size + slot) * 4;
    for (int64_t quad = 0; quad < kv.head_dim / 4; ++quad) std::memcpy(dst + quad * size * 4, codes + quad * 4, 4);
  } else {
    std::memcpy(kv.v + offset + (head * size + slot) * kv.head_dim, codes, static_cast<size_t>(kv.head_dim));
  }
  const int64_t groups = is_key ? key_groups(kv.head_dim) : value_groups(kv.head_dim);
  uint16_t* scale = reinterpret_cast<uint16_t*>((is_key ? kv.k_scale : kv.v_scale) + offset) + head * groups * size + slot;
  for (int64_t g = 0; g < groups; ++g) scale[g * size] = scales[g];
}

}  // namespace

void append_kv(const KernelTable& kernels, const KvLayer& kv, KvPart part, int64_t head, int64_t slot, const float* x) {
  const int64_t block = slot / kv.block_size;
  slot %= kv.block_size;
  const KvDtype dtype = part == KvPart::Key ? kv.k_dtype : kv.v_dtype;
  if (dtype == KvDtype::INT8) return append_int8(kernels, kv, part, head, block, slot, x);
  uint8_t* base = (part == KvPart::Key ? kv.k : kv.v) + block * kv.block_stride_bytes;
  kernels.store_kv(x, kv.head_dim, dtype, base + (head * kv.block_size + slot) * kv.head_dim * kv_item_bytes(dtype));
}

}  // namespace hotloop
