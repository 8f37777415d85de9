// GGUF rows -> row-interleaved layouts. Runs once at load, a range of row blocks per call, from rows as
// they were read; plain word moves, so it is limited by memory and page faults rather than by arithmetic.
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

void convert(const gguf::Q4_0& src, int r, layout::Q4_0Group& dst) {
  dst.d[r] = load_u16(src.d);
  put_nibbles(src.qs, r, dst.nibbles);
}

void convert(const gguf::Q4_1& src, int r, layout::Q4_1Group& dst) {
  dst.d[r] = load_u16(src.d);
  dst.m[r] = load_u16(src.m);
  put_nibbles(src.qs, r, dst.nibbles);
}

// The low four bits of x to bit 0 of the four bytes.
uint32_t bits_to_bytes(uint32_t x) { return (x & 15u) * 0x00204081u & 0x01010101u; }

// c[j]: the codes of register j, one per byte. The bits above a code's own are zero.
void put_six_bits(const uint32_t (&c)[8], int r, uint8_t (&codes)[6][32]) {
  for (int j = 0; j < 6; ++j) {
    const uint32_t rest = c[6 + j / 3] >> (2 * (j % 3)) & 0x03030303u;
    store_u32(codes[j] + 4 * r, c[j] | rest << 6);
  }
}

void put_five_bits(const uint32_t (&c)[8], int r, uint8_t (&codes)[5][32]) {
  store_u32(codes[0] + 4 * r, c[0] | (c[5] & 0x07070707u) << 5);
  store_u32(codes[1] + 4 * r, c[1] | (c[6] & 0x07070707u) << 5);
  store_u32(codes[2] + 4 * r, c[2] | (c[7] & 0x07070707u) << 5);
  store_u32(codes[3] + 4 * r, c[3] | (c[5] & 0x18181818u) << 2 | (c[6] & 0x10101010u) << 3);
  store_u32(codes[4] + 4 * r, c[4] | (c[6] & 0x08080808u) << 2 | (c[7] & 0x18181818u) << 3);
}

void put_three_bits(const uint32_t (&c)[8], int r, uint8_t (&codes)[3][32]) {
  store_u32(codes[0] + 4 * r, c[0] | c[3] << 3 | (c[6] & 0x03030303u) << 6);
  store_u32(codes[1] + 4 * r, c[1] | c[4] << 3 | (c[7] & 0x03030303u) << 6);
  store_u32(codes[2] + 4 * r, c[2] | c[5] << 3 | (c[6] & 0x04040404u) << 4 | (c[7] & 0x04040404u) << 5);
}

void put_two_bits(const uint32_t (&c)[8], int r, uint8_t (&codes)[2][32]) {
  for (int h = 0; h < 2; ++h) {
    store_u32(codes[h] + 4 * r, c[4 * h] | c[4 * h + 1] << 2 | c[4 * h + 2] << 4 | c[4 * h + 3] << 6);
  }
}

// Number i of a stream of 6-bit numbers; they come in ascending order, and the first bits in a byte reset it.
void put_in_stream(int value, int i, uint8_t* stream) {
  uint8_t* at = stream + 6 * i / 8;
  const int shift = 6 * i % 8;
  at[0] = static_cast<uint8_t>(shift == 0 ? value : at[0] | value << shift);
  if (shift > 2) at[1] = static_cast<uint8_t>(value >> (8 - shift));
}

// Scale and min of row r in the 12 bytes of Q4_K and Q5_K.
void put_scale_min(int scale, int min, int r, uint8_t (&scales)[12]) {
  scales[r] = static_cast<uint8_t>(scale | (min & 3) << 6);
  uint8_t& pair = scales[8 + r / 2];  // rows come in ascending order: the even row resets the byte
  pair = static_cast<uint8_t>((r & 1) ? pair | (min >> 2) << 4 : min >> 2);
}

// Codes of the 32-value types: low four bits as in Q4_0, and their fifth bits.
void put_five_bits(const uint8_t (&qs)[16], const uint8_t (&qh)[4], int r, uint8_t (&codes)[5][32]) {
  const uint32_t high = load_u32(qh);
  uint32_t c[8];
  for (int j = 0; j < 8; ++j) {
    const uint32_t low = load_u32(qs + 4 * (j % 4)) >> (j < 4 ? 0 : 4) & 0x0f0f0f0fu;
    c[j] = low | bits_to_bytes(high >> (4 * j)) << 4;
  }
  put_five_bits(c, r, codes);
}

void convert(const gguf::Q5_0& src, int r, layout::Q5_0Group& dst) {
  dst.d[r] = load_u16(src.d);
  put_five_bits(src.qs, src.qh, r, dst.codes);
}

void convert(const gguf::Q5_1& src, int r, layout::Q5_1Group& dst) {
  dst.d[r] = load_u16(src.d);
  dst.m[r] = load_u16(src.m);
  put_five_bits(src.qs, src.qh, r, dst.codes);
}

void convert(const gguf::Q8_0& src, int r, layout::Q8_0Group& dst) {
  dst.d[r] = load_u16(src.d);
  uint8_t* q = reinterpret_cast<uint8_t*>(dst.q);
  for (int j = 0; j < 8; ++j) store_u32(q + 32 * j + 4 * r, load_u32(src.qs + 4 * j));
}

// The 6-bit scale and min of group g in the 12 bytes of Q4_K and Q5_K.
struct ScaleMin {
  int scale, min;
};
ScaleMin scale_min(const uint8_t (&b)[12], int g) {
  if (g < 4) return {b[g] & 63, b[g + 4] & 63};
  return {(b[g + 4] & 15) | (b[g - 4] >> 6) << 4, b[g + 4] >> 4 | (b[g] >> 6) << 4};
}

void convert(const gguf::Q4_K& src, int r, layout::Q4KSuperblock& dst) {
  dst.d[r] = load_u16(src.d);
  dst.dmin[r] = load_u16(src.dmin);
  for (int g = 0; g < 8; ++g) {
    const ScaleMin s = scale_min(src.scales, g);
    put_scale_min(s.scale, s.min, r, dst.scales[g]);
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

void convert(const gguf::Q5_K& src, int r, layout::Q5KSuperblock& dst) {
  dst.d[r] = load_u16(src.d);
  dst.dmin[r] = load_u16(src.dmin);
  for (int g = 0; g < 8; ++g) {
    const ScaleMin s = scale_min(src.scales, g);
    put_scale_min(s.scale, s.min, r, dst.scales[g]);
    uint32_t c[8];
    for (int j = 0; j < 8; ++j) {
      const uint32_t low = load_u32(src.qs + 32 * (g / 2) + 4 * j) >> (4 * (g % 2)) & 0x0f0f0f0fu;
      c[j] = low | (load_u32(src.qh + 4 * j) >> g & 0x01010101u) << 4;
    }
    put_five_bits(c, r, dst.codes[g]);
  }
}

void convert(const gguf::Q2_K& src, int r, layout::Q2KSuperblock& dst) {
  dst.d[r] = load_u16(src.d);
  dst.dmin[r] = load_u16(src.dmin);
  for (int g = 0; g < 8; ++g) {
    dst.scales[g][r][0] = src.scales[2 * g];
    dst.scales[g][r][1] = src.scales[2 * g + 1];
    uint32_t c[8];
    for (int j = 0; j < 8; ++j) c[j] = load_u32(src.qs + 32 * (g / 4) + 4 * j) >> (2 * (g % 4)) & 0x03030303u;
    put_two_bits(c, r, dst.codes[g]);
  }
}

void convert(const gguf::Q3_K& src, int r, layout::Q3KSuperblock& dst) {
  dst.d[r] = load_u16(src.d);
  const auto scale = [&](int i) {
    return (src.scales[i % 8] >> (4 * (i / 8)) & 15) | (src.scales[8 + i % 4] >> (2 * (i / 4)) & 3) << 4;
  };
  for (int g = 0; g < 8; ++g) {
    for (int half = 0; half < 2; ++half) put_in_stream(scale(2 * g + half), 2 * r + half, dst.scales[g]);
    uint32_t c[8];
    for (int j = 0; j < 8; ++j) {
      const uint32_t low = load_u32(src.qs + 32 * (g / 4) + 4 * j) >> (2 * (g % 4)) & 0x03030303u;
      c[j] = low | (load_u32(src.hmask + 4 * j) >> g & 0x01010101u) << 2;
    }
    put_three_bits(c, r, dst.codes[g]);
  }
}

void convert(const gguf::IQ4_NL& src, int r, layout::Q4_0Group& dst) {
  dst.d[r] = load_u16(src.d);
  put_nibbles(src.qs, r, dst.nibbles);
}

void convert(const gguf::IQ4_XS& src, int r, layout::IQ4XSSuperblock& dst) {
  dst.d[r] = load_u16(src.d);
  for (int g = 0; g < 8; ++g) {
    const int low = src.scales_l[g / 2] >> (4 * (g % 2)) & 15;
    const int high = src.scales_h[g / 4] >> (2 * (g % 4)) & 3;
    put_in_stream(low | high << 4, r, dst.scales[g]);
    put_nibbles(src.qs + 16 * g, r, dst.nibbles[g]);
  }
}

void convert(const gguf::MXFP4& src, int r, layout::MXFP4Group& dst) {
  dst.e[r] = src.e;
  put_nibbles(src.qs, r, dst.nibbles);
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
    group.scales[r][0] = src.scales[2 * g];
    group.scales[r][1] = src.scales[2 * g + 1];
    uint32_t c[8];
    for (int j = 0; j < 8; ++j) {
      const uint32_t low = load_u32(ql + 4 * j) >> shift & 0x0f0f0f0fu;
      c[j] = low | (load_u32(qh + 4 * j) >> (2 * t) & 0x03030303u) << 4;
    }
    put_six_bits(c, r, group.codes);
  }
}

// format (the superblock in a file has its name), superblock of 8 rows, k in either
#define HOTLOOP_SUPERBLOCKS(X)  \
  X(Q4_0, Q4_0Group, 32)        \
  X(Q4_1, Q4_1Group, 32)        \
  X(Q5_0, Q5_0Group, 32)        \
  X(Q5_1, Q5_1Group, 32)        \
  X(Q8_0, Q8_0Group, 32)        \
  X(Q2_K, Q2KSuperblock, 256)   \
  X(Q3_K, Q3KSuperblock, 256)   \
  X(Q4_K, Q4KSuperblock, 256)   \
  X(Q5_K, Q5KSuperblock, 256)   \
  X(Q6_K, Q6KSuperblock, 256)   \
  X(IQ4_NL, Q4_0Group, 32)      \
  X(IQ4_XS, IQ4XSSuperblock, 256) \
  X(MXFP4, MXFP4Group, 32)

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

FormatInfo format_info(WeightFormat format) {
  switch (format) {
    case WeightFormat::F32: return {"F32", 1, 4};
    case WeightFormat::F16: return {"F16", 1, 2};
    case WeightFormat::BF16: return {"BF16", 1, 2};
#define HOTLOOP_CASE(name, target, k)                                \
  case WeightFormat::name:                                           \
    static_assert(sizeof(layout::target) == 8 * sizeof(gguf::name)); \
    return {#name, k, static_cast<int64_t>(sizeof(gguf::name))};
      HOTLOOP_SUPERBLOCKS(HOTLOOP_CASE)
#undef HOTLOOP_CASE
  }
  return {"", 1, 0};
}

int64_t source_row_bytes(WeightFormat format, int64_t cols) {
  const FormatInfo info = format_info(format);
  return cols / info.superblock_size * info.superblock_bytes;
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
#define HOTLOOP_CASE(name, target, k) \
  case WeightFormat::name: return repack_blocks<gguf::name, layout::target>(src, rows, cols / k, begin, end, dst);
      HOTLOOP_SUPERBLOCKS(HOTLOOP_CASE)
#undef HOTLOOP_CASE
  }
}

}  // namespace hotloop
