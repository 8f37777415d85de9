// GGUF rows -> row-interleaved layouts. Runs once at load, a range of row blocks per call, straight from the mapped
// file; plain word moves, so it is limited by memory and page faults rather than by arithmetic.
#include <cstring>

#include "formats/gguf_blocks.h"
#include "formats/layouts.h"
#include "kernels/kernel_table.h"

namespace hotloop {
namespace {

uint32_t load_u32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}
void store_u32(uint8_t* p, uint32_t v) { std::memcpy(p, &v, 4); }
uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

// Row r's 16 nibble bytes go to dwords r, 8 + r, 16 + r, 24 + r: GGUF pairs k with k + 16 in a byte, as we do.
void put_nibbles(const uint8_t* qs, int r, uint8_t* nibbles) {
  for (int j = 0; j < 4; ++j) store_u32(nibbles + 32 * j + 4 * r, load_u32(qs + 4 * j));
}

// Bits 0, 4, 8 .. 28 of x, packed into the low byte.
uint32_t every_fourth_bit(uint32_t x) {
  x &= 0x11111111u;
  x = (x | x >> 3) & 0x03030303u;
  x = (x | x >> 6) & 0x000f000fu;
  return (x | x >> 12) & 0xffu;
}

void convert(const gguf::Q4_0& src, int r, layout::Q4_0Group& dst) {
  dst.d[r] = load_u16(src.d);
  put_nibbles(src.qs, r, dst.nibbles);
}

void convert(const gguf::Q4_1& src, int r, layout::Q4_1Group& dst) {
  dst.d[r] = load_u16(src.d);
  dst.m[r] = load_u16(src.m);
  put_nibbles(src.qs, r, dst.nibbles);
}

void convert(const gguf::Q5_0& src, int r, layout::Q5_0Group& dst) {
  dst.d[r] = load_u16(src.d);
  const uint32_t qh = load_u32(src.qh);
  for (int i = 0; i < 4; ++i) dst.high[4 * r + i] = static_cast<uint8_t>(every_fourth_bit(qh >> i));
  put_nibbles(src.qs, r, dst.nibbles);
}

void convert(const gguf::Q8_0& src, int r, layout::Q8_0Group& dst) {
  dst.d[r] = load_u16(src.d);
  uint8_t* q = reinterpret_cast<uint8_t*>(dst.q);
  for (int j = 0; j < 8; ++j) store_u32(q + 32 * j + 4 * r, load_u32(src.qs + 4 * j));
}

void convert(const gguf::Q4_K& src, int r, layout::Q4KSuperblock& dst) {
  dst.d[r] = load_u16(src.d);
  dst.dmin[r] = load_u16(src.dmin);
  const uint8_t* b = src.scales;
  for (int g = 0; g < 8; ++g) {
    const int scale = g < 4 ? b[g] & 63 : (b[g + 4] & 15) | (b[g - 4] >> 6) << 4;
    const int min = g < 4 ? b[g + 4] & 63 : b[g + 4] >> 4 | (b[g] >> 6) << 4;
    dst.scales[g][r] = static_cast<uint8_t>(scale | (min & 3) << 6);
    uint8_t& pair = dst.scales[g][8 + r / 2];  // rows come in ascending order: the even row resets the byte
    pair = static_cast<uint8_t>((r & 1) ? pair | (min >> 2) << 4 : min >> 2);
  }
  for (int c = 0; c < 4; ++c) {
    for (int j = 0; j < 4; ++j) {
      const uint32_t lower = load_u32(src.qs + 32 * c + 4 * j);        // k 0..15 of groups 2c (low), 2c + 1 (high)
      const uint32_t upper = load_u32(src.qs + 32 * c + 16 + 4 * j);   // k 16..31
      store_u32(dst.nibbles[2 * c] + 32 * j + 4 * r, (lower & 0x0f0f0f0fu) | (upper & 0x0f0f0f0fu) << 4);
      store_u32(dst.nibbles[2 * c + 1] + 32 * j + 4 * r, (lower >> 4 & 0x0f0f0f0fu) | (upper & 0xf0f0f0f0u));
    }
  }
}

void convert(const gguf::Q6_K& src, int r, layout::Q6KSuperblock& dst) {
  dst.d[r] = load_u16(src.d);
  for (int g = 0; g < 8; ++g) {
    const int h = g / 4;
    const int t = g % 4;
    const uint8_t* ql = src.ql + 64 * h + 32 * (t & 1);
    const uint8_t* qh = src.qh + 32 * h;
    const int shift = 4 * (t >> 1);
    layout::Q6KGroup& group = dst.groups[g];
    group.scales[0][r] = src.scales[2 * g];
    group.scales[1][r] = src.scales[2 * g + 1];
    for (int j = 0; j < 4; ++j) {
      const uint32_t lower = load_u32(ql + 4 * j) >> shift & 0x0f0f0f0fu;
      const uint32_t upper = load_u32(ql + 16 + 4 * j) >> shift & 0x0f0f0f0fu;
      store_u32(group.nibbles + 32 * j + 4 * r, lower | upper << 4);
    }
    for (int half = 0; half < 2; ++half) {
      uint32_t packed = 0;
      for (int j = 0; j < 4; ++j) {
        packed |= (load_u32(qh + 16 * half + 4 * j) >> (2 * t) & 0x03030303u) << (2 * j);
      }
      store_u32(group.high[half] + 4 * r, packed);
    }
  }
}

template <class Source, class Target>
void repack_blocks(const uint8_t* src, int64_t rows, int64_t blocks_per_row, int64_t begin, int64_t end, uint8_t* dst) {
  static const Source kZero{};  // stands in for the rows past the end
  Target* target = reinterpret_cast<Target*>(dst);
  for (int64_t row_block = begin; row_block < end; ++row_block) {
    const Source* source[kRowBlock];
    int64_t step[kRowBlock];
    for (int r = 0; r < kRowBlock; ++r) {
      const int64_t row = row_block * kRowBlock + r;
      step[r] = row < rows ? 1 : 0;
      source[r] = row < rows ? reinterpret_cast<const Source*>(src) + row * blocks_per_row : &kZero;
    }
    for (int64_t b = 0; b < blocks_per_row; ++b, ++target) {
      for (int r = 0; r < kRowBlock; ++r) convert(source[r][b * step[r]], r, *target);
    }
  }
}

template <class T>
void repack_floats(const uint8_t* src, int64_t rows, int64_t cols, int64_t begin, int64_t end, uint8_t* dst) {
  constexpr int64_t kSize = sizeof(T);
  for (int64_t row_block = begin; row_block < end; ++row_block, dst += kRowBlock * cols * kSize) {
    const int64_t first = row_block * kRowBlock;
    const int64_t present = rows - first < kRowBlock ? rows - first : kRowBlock;
    if (present < kRowBlock) std::memset(dst, 0, static_cast<size_t>(kRowBlock * cols * kSize));
    const uint8_t* from = src + first * cols * kSize;
    for (int64_t k = 0; k < cols; ++k) {
      for (int64_t r = 0; r < present; ++r) {
        std::memcpy(dst + (k * kRowBlock + r) * kSize, from + (r * cols + k) * kSize, kSize);
      }
    }
  }
}

}  // namespace

int64_t source_row_bytes(WeightFormat format, int64_t cols) {
  switch (format) {
    case WeightFormat::F32: return cols * 4;
    case WeightFormat::F16:
    case WeightFormat::BF16: return cols * 2;
    case WeightFormat::Q4_0: return cols / 32 * static_cast<int64_t>(sizeof(gguf::Q4_0));
    case WeightFormat::Q4_1: return cols / 32 * static_cast<int64_t>(sizeof(gguf::Q4_1));
    case WeightFormat::Q5_0: return cols / 32 * static_cast<int64_t>(sizeof(gguf::Q5_0));
    case WeightFormat::Q8_0: return cols / 32 * static_cast<int64_t>(sizeof(gguf::Q8_0));
    case WeightFormat::Q4_K: return cols / 256 * static_cast<int64_t>(sizeof(gguf::Q4_K));
    case WeightFormat::Q6_K: return cols / 256 * static_cast<int64_t>(sizeof(gguf::Q6_K));
  }
  return 0;
}

int64_t row_block_bytes(WeightFormat format, int64_t cols) { return kRowBlock * source_row_bytes(format, cols); }

void repack(WeightFormat format, const uint8_t* src, int64_t rows, int64_t cols, int64_t row_block_begin,
            int64_t row_block_end, uint8_t* dst) {
  const int64_t begin = row_block_begin;
  const int64_t end = row_block_end;
  switch (format) {
    case WeightFormat::F32: return repack_floats<uint32_t>(src, rows, cols, begin, end, dst);
    case WeightFormat::F16:
    case WeightFormat::BF16: return repack_floats<uint16_t>(src, rows, cols, begin, end, dst);
    case WeightFormat::Q4_0:
      return repack_blocks<gguf::Q4_0, layout::Q4_0Group>(src, rows, cols / 32, begin, end, dst);
    case WeightFormat::Q4_1:
      return repack_blocks<gguf::Q4_1, layout::Q4_1Group>(src, rows, cols / 32, begin, end, dst);
    case WeightFormat::Q5_0:
      return repack_blocks<gguf::Q5_0, layout::Q5_0Group>(src, rows, cols / 32, begin, end, dst);
    case WeightFormat::Q8_0:
      return repack_blocks<gguf::Q8_0, layout::Q8_0Group>(src, rows, cols / 32, begin, end, dst);
    case WeightFormat::Q4_K:
      return repack_blocks<gguf::Q4_K, layout::Q4KSuperblock>(src, rows, cols / 256, begin, end, dst);
    case WeightFormat::Q6_K:
      return repack_blocks<gguf::Q6_K, layout::Q6KSuperblock>(src, rows, cols / 256, begin, end, dst);
  }
}

}  // namespace hotloop
