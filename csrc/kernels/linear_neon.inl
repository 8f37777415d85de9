// AArch64 NEON with dot products. A 32-byte register of the layout is two here: rows 0..3 and rows 4..7. sdot by element
// multiplies 16 codes (4 rows x 4 k) with four activations held in one lane, so activations are never broadcast.
// The arithmetic per output element is that of linear_generic.inl and linear_scalar.inl, which also run what is missing.
#include <arm_neon.h>

#include "kernels/linear_scalar.inl"

namespace hotloop::HOTLOOP_TARGET {
namespace {
namespace lin {
namespace neon_dot {

#define HOTLOOP_UNROLL _Pragma("GCC unroll 16")

template <int N>
struct XTile {  // activations of N tokens
  const int8_t* q[N];
  const float* scale[N];
  const float* scaled_sum[N];
  const int16_t* sum16[N];

  XTile(const QuantizedActivations& a, int64_t token) {
    for (int n = 0; n < N; ++n) {
      q[n] = a.q + (token + n) * a.cols;
      scale[n] = a.scale + (token + n) * (a.cols / 32);
      scaled_sum[n] = a.scaled_sum + (token + n) * (a.cols / 32);
      sum16[n] = a.sum16 + (token + n) * (a.cols / 16);
    }
  }
};

struct XGroup {  // one token's activations of one group
  int8x16_t q[2];  // k 0..15, k 16..31
  float scale, scaled_sum;
  const int16_t* sum16;

  template <int N>
  XGroup(const XTile<N>& x, int n, int64_t g)
      : q{vld1q_s8(x.q[n] + g * kGroupSize), vld1q_s8(x.q[n] + g * kGroupSize + 16)},
        scale(x.scale[n][g]), scaled_sum(x.scaled_sum[n][g]), sum16(x.sum16[n] + 2 * g) {}
};

// Codes of one group: [rows 0..3, rows 4..7][register].
using Codes = int8x16_t[2][8];
struct Rows8 {  // a number per row
  float32x4_t v[2];
};

inline int32x4_t dot_half(int32x4_t sum, const int8x16_t* code, int8x16_t x) {  // 4 registers, 16 k
  sum = vdotq_laneq_s32(sum, code[0], x, 0);
  sum = vdotq_laneq_s32(sum, code[1], x, 1);
  sum = vdotq_laneq_s32(sum, code[2], x, 2);
  return vdotq_laneq_s32(sum, code[3], x, 3);
}

inline Rows8 half_to_float8(const uint16_t* p) {
  const float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(p));
  return {{vcvt_f32_f16(vget_low_f16(h)), vcvt_f32_f16(vget_high_f16(h))}};
}

inline void nibble_codes(const uint8_t* nibbles, Codes& code) {
  HOTLOOP_UNROLL
  for (int j = 0; j < 4; ++j) {
    HOTLOOP_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint8x16_t v = vld1q_u8(nibbles + 32 * j + 16 * h);
      code[h][j] = vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8(15)));
      code[h][j + 4] = vreinterpretq_s8_u8(vshrq_n_u8(v, 4));
    }
  }
}

// ---- formats ----------------------------------------------------------------------------------------------------
// codes(): a group's codes as signed bytes; factors(): what a row's dot is multiplied with; add_group(): how a group
// enters acc.

// One dot over the group's 32 codes, which lie `Offset` above their values, and one factor.
template <int Offset>
struct ScaleOnly {
  using Factors = Rows8;
  static void add_group(Rows8& acc, const Codes& code, const Factors& d, const XGroup& x) {
    const int32x4_t start = vdupq_n_s32(Offset == 0 ? 0 : -Offset * (x.sum16[0] + x.sum16[1]));
    HOTLOOP_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int32x4_t sum = dot_half(dot_half(start, code[h], x.q[0]), code[h] + 4, x.q[1]);
      acc.v[h] = vfmaq_f32(acc.v[h], vcvtq_f32_s32(sum), vmulq_n_f32(d.v[h], x.scale));
    }
  }
};

// The same without an offset, and a second factor for the sum of the activations: m if Sign > 0, -m if Sign < 0.
template <int Sign>
struct ScaleAndMinimum {
  struct Factors { Rows8 d, m; };
  static void add_group(Rows8& acc, const Codes& code, const Factors& w, const XGroup& x) {
    ScaleOnly<0>::add_group(acc, code, w.d, x);
    const float32x4_t scaled_sum = vdupq_n_f32(x.scaled_sum);
    HOTLOOP_UNROLL
    for (int h = 0; h < 2; ++h) {
      acc.v[h] = Sign > 0 ? vfmaq_f32(acc.v[h], w.m.v[h], scaled_sum) : vfmsq_f32(acc.v[h], w.m.v[h], scaled_sum);
    }
  }
};

struct Q4_0 : ScaleOnly<8> {
  using Values = values::Q4_0;
  static void codes(const uint8_t* block, int64_t g, Codes& code) { nibble_codes(Values::group(block, g).nibbles, code); }
  static Factors factors(const uint8_t* block, int64_t g) { return half_to_float8(Values::group(block, g).d); }
};

struct Q4_1 : ScaleAndMinimum<1> {
  using Values = values::Q4_1;
  static void codes(const uint8_t* block, int64_t g, Codes& code) { nibble_codes(Values::group(block, g).nibbles, code); }
  static Factors factors(const uint8_t* block, int64_t g) {
    return {half_to_float8(Values::group(block, g).d), half_to_float8(Values::group(block, g).m)};
  }
};

// Bit J of each byte of `high`, moved to bit 4 and added to the code.
template <int J>
inline int8x16_t with_fifth_bit(int8x16_t code, uint8x16_t high) {
  if constexpr (J < 4) high = vshlq_n_u8(high, 4 - J);
  if constexpr (J > 4) high = vshrq_n_u8(high, J - 4);
  return vreinterpretq_s8_u8(vorrq_u8(vreinterpretq_u8_s8(code), vandq_u8(high, vdupq_n_u8(16))));
}
inline void add_fifth_bits(const uint8_t* high, Codes& code) {
  HOTLOOP_UNROLL
  for (int h = 0; h < 2; ++h) {
    const uint8x16_t bits = vld1q_u8(high + 16 * h);
    code[h][0] = with_fifth_bit<0>(code[h][0], bits);
    code[h][1] = with_fifth_bit<1>(code[h][1], bits);
    code[h][2] = with_fifth_bit<2>(code[h][2], bits);
    code[h][3] = with_fifth_bit<3>(code[h][3], bits);
    code[h][4] = with_fifth_bit<4>(code[h][4], bits);
    code[h][5] = with_fifth_bit<5>(code[h][5], bits);
    code[h][6] = with_fifth_bit<6>(code[h][6], bits);
    code[h][7] = with_fifth_bit<7>(code[h][7], bits);
  }
}

struct Q5_0 : ScaleOnly<16> {
  using Values = values::Q5_0;
  static void codes(const uint8_t* block, int64_t g, Codes& code) {
    nibble_codes(Values::group(block, g).nibbles, code);
    add_fifth_bits(Values::group(block, g).high, code);
  }
  static Factors factors(const uint8_t* block, int64_t g) { return half_to_float8(Values::group(block, g).d); }
};

struct Q8_0 : ScaleOnly<0> {
  using Values = values::Q8_0;
  static void codes(const uint8_t* block, int64_t g, Codes& code) {
    HOTLOOP_UNROLL
    for (int j = 0; j < 8; ++j) {
      HOTLOOP_UNROLL
      for (int h = 0; h < 2; ++h) code[h][j] = vld1q_s8(Values::group(block, g).q + 32 * j + 16 * h);
    }
  }
  static Factors factors(const uint8_t* block, int64_t g) { return half_to_float8(Values::group(block, g).d); }
};

inline Rows8 multiply(const Rows8& a, const float* b) {
  return {{vmulq_f32(a.v[0], vld1q_f32(b)), vmulq_f32(a.v[1], vld1q_f32(b + 4))}};
}

struct Q4_K : ScaleAndMinimum<-1> {
  using Values = values::Q4_K;
  static void codes(const uint8_t* block, int64_t g, Codes& code) {
    nibble_codes(Values::superblock(block, g).nibbles[g % 8], code);
  }
  static Factors factors(const uint8_t* block, int64_t g) {
    const layout::Q4KSuperblock& w = Values::superblock(block, g);
    float scale[kRowBlock], min[kRowBlock];
    for (int r = 0; r < kRowBlock; ++r) {
      scale[r] = static_cast<float>(Values::scale_code(w.scales[g % 8], r));
      min[r] = static_cast<float>(Values::min_code(w.scales[g % 8], r));
    }
    return {multiply(half_to_float8(w.d), scale), multiply(half_to_float8(w.dmin), min)};
  }
};

struct Q6_K {
  using Values = values::Q6_K;
  struct Factors {
    Rows8 d;
    int32x4_t scale[2][2];  // [half of the group][rows]
  };

  // Bits 2B, 2B + 1 of each byte of `high`, moved to bits 4, 5 and added to the code.
  template <int B>
  static int8x16_t with_high_bits(int8x16_t code, uint8x16_t high) {
    if constexpr (B < 2) high = vshlq_n_u8(high, 4 - 2 * B);
    if constexpr (B > 2) high = vshrq_n_u8(high, 2 * B - 4);
    return vreinterpretq_s8_u8(vorrq_u8(vreinterpretq_u8_s8(code), vandq_u8(high, vdupq_n_u8(0x30))));
  }
  static void codes(const uint8_t* block, int64_t g, Codes& code) {
    const layout::Q6KGroup& w = Values::superblock(block, g).groups[g % 8];
    nibble_codes(w.nibbles, code);
    HOTLOOP_UNROLL
    for (int h = 0; h < 2; ++h) {
      HOTLOOP_UNROLL
      for (int half = 0; half < 2; ++half) {
        const uint8x16_t bits = vld1q_u8(w.high[half] + 16 * h);
        int8x16_t* c = code[h] + 4 * half;
        c[0] = with_high_bits<0>(c[0], bits);
        c[1] = with_high_bits<1>(c[1], bits);
        c[2] = with_high_bits<2>(c[2], bits);
        c[3] = with_high_bits<3>(c[3], bits);
      }
    }
  }
  static Factors factors(const uint8_t* block, int64_t g) {
    const layout::Q6KSuperblock& w = Values::superblock(block, g);
    Factors f;
    f.d = half_to_float8(w.d);
    for (int half = 0; half < 2; ++half) {
      const int16x8_t wide = vmovl_s8(vld1_s8(w.groups[g % 8].scales[half]));
      f.scale[half][0] = vmovl_s16(vget_low_s16(wide));
      f.scale[half][1] = vmovl_s16(vget_high_s16(wide));
    }
    return f;
  }
  static void add_group(Rows8& acc, const Codes& code, const Factors& w, const XGroup& x) {
    HOTLOOP_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int32x4_t first = dot_half(vdupq_n_s32(-32 * x.sum16[0]), code[h], x.q[0]);
      const int32x4_t second = dot_half(vdupq_n_s32(-32 * x.sum16[1]), code[h] + 4, x.q[1]);
      const int32x4_t idot = vmlaq_s32(vmulq_s32(first, w.scale[0][h]), second, w.scale[1][h]);
      acc.v[h] = vfmaq_f32(acc.v[h], vcvtq_f32_s32(idot), vmulq_n_f32(w.d.v[h], x.scale));
    }
  }
};

// ---- tiles: R row blocks that stream from distant addresses, N tokens that share the unpacked weights -------------

template <class Format, int R, int N>
void int8_tile(const Matrix& w, const QuantizedActivations& a, const Range& range, int64_t first, int64_t step,
               int64_t token) {
  const uint8_t* block[R];
  for (int r = 0; r < R; ++r) block[r] = row_block_data(w, first + r * step);
  const XTile<N> x(a, token);
  Rows8 acc[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) acc[r][n] = {{vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)}};
  }
  const int64_t groups = w.cols / kGroupSize;
  for (int64_t g = 0; g < groups; ++g) {
    HOTLOOP_UNROLL
    for (int r = 0; r < R; ++r) {
      Codes code;
      Format::codes(block[r], g, code);
      const typename Format::Factors factors = Format::factors(block[r], g);
      HOTLOOP_UNROLL
      for (int n = 0; n < N; ++n) Format::add_group(acc[r][n], code, factors, XGroup(x, n, g));
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) {
      float* out = range.at(first + r * step, token + n);
      vst1q_f32(out, acc[r][n].v[0]);
      vst1q_f32(out + 4, acc[r][n].v[1]);
    }
  }
}

template <class Format, int R>
void int8_rows(const Matrix& w, const QuantizedActivations& a, const Range& range, int64_t first, int64_t step) {
  int64_t t = range.token_begin;
  if constexpr (R == 1) {
    for (; t + 4 <= range.token_end; t += 4) int8_tile<Format, R, 4>(w, a, range, first, step, t);
    for (; t + 2 <= range.token_end; t += 2) int8_tile<Format, R, 2>(w, a, range, first, step, t);
  }
  for (; t < range.token_end; ++t) int8_tile<Format, R, 1>(w, a, range, first, step, t);
}

template <class Format, int R>
void int8_streams(const Matrix& w, const QuantizedActivations& a, const Range& range) {
  const int64_t step = (range.row_block_end - range.row_block_begin) / R;
  for (int64_t i = 0; i < step; ++i) int8_rows<Format, R>(w, a, range, range.row_block_begin + i, step);
  for (int64_t b = range.row_block_begin + R * step; b < range.row_block_end; ++b) {
    int8_rows<Format, 1>(w, a, range, b, 0);
  }
}

// ---- f32, f16 and bf16 weights ----------------------------------------------------------------------------------

struct F32 {
  static Rows8 load(const uint8_t* block, int64_t k) {
    const float* p = reinterpret_cast<const float*>(block) + k * kRowBlock;
    return {{vld1q_f32(p), vld1q_f32(p + 4)}};
  }
};
struct F16 {
  static Rows8 load(const uint8_t* block, int64_t k) {
    return half_to_float8(reinterpret_cast<const uint16_t*>(block) + k * kRowBlock);
  }
};
struct BF16 {
  static Rows8 load(const uint8_t* block, int64_t k) {
    const uint16x8_t v = vld1q_u16(reinterpret_cast<const uint16_t*>(block) + k * kRowBlock);
    return {{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(v), 16)),
             vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(v), 16))}};
  }
};

template <class Float, int R, int N>
void float_tile(const Matrix& w, const Activations& x, const Range& range, int64_t first, int64_t step,
                int64_t token) {
  const uint8_t* block[R];
  for (int r = 0; r < R; ++r) block[r] = row_block_data(w, first + r * step);
  const float* xs[N];
  for (int n = 0; n < N; ++n) xs[n] = x.f32 + (token + n) * x.cols;
  Rows8 acc[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) acc[r][n] = {{vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)}};
  }
  for (int64_t k = 0; k < w.cols; ++k) {
    Rows8 weights[R];
    HOTLOOP_UNROLL
    for (int r = 0; r < R; ++r) weights[r] = Float::load(block[r], k);
    HOTLOOP_UNROLL
    for (int n = 0; n < N; ++n) {
      const float32x4_t xk = vdupq_n_f32(xs[n][k]);
      HOTLOOP_UNROLL
      for (int r = 0; r < R; ++r) {
        acc[r][n].v[0] = vfmaq_f32(acc[r][n].v[0], weights[r].v[0], xk);
        acc[r][n].v[1] = vfmaq_f32(acc[r][n].v[1], weights[r].v[1], xk);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) {
      float* out = range.at(first + r * step, token + n);
      vst1q_f32(out, acc[r][n].v[0]);
      vst1q_f32(out + 4, acc[r][n].v[1]);
    }
  }
}

template <class Float, int R>
void float_rows(const Matrix& w, const Activations& x, const Range& range, int64_t first, int64_t step) {
  int64_t t = range.token_begin;
  if constexpr (R < 4) {
    for (; t + 4 <= range.token_end; t += 4) float_tile<Float, R, 4>(w, x, range, first, step, t);
  }
  for (; t < range.token_end; ++t) float_tile<Float, R, 1>(w, x, range, first, step, t);
}

template <class Float, int R>
void float_streams(const Matrix& w, const Activations& x, const Range& range) {
  const int64_t step = (range.row_block_end - range.row_block_begin) / R;
  for (int64_t i = 0; i < step; ++i) float_rows<Float, R>(w, x, range, range.row_block_begin + i, step);
  for (int64_t b = range.row_block_begin + R * step; b < range.row_block_end; ++b) {
    float_rows<Float, 1>(w, x, range, b, 0);
  }
}

#undef HOTLOOP_UNROLL

}  // namespace neon_dot

using neon_dot::Q4_0;
using neon_dot::Q4_1;
using neon_dot::Q4_K;
using neon_dot::Q5_0;
using neon_dot::Q6_K;
using neon_dot::Q8_0;

template <class Format>
void linear_int8(const Matrix& w, const Activations& x, const Range& range) {
  if (range.token_end - range.token_begin == 1) return neon_dot::int8_streams<Format, 4>(w, x.quantized, range);
  neon_dot::int8_streams<Format, 1>(w, x.quantized, range);
}

#define HOTLOOP_FLOATS(Float)                                                                        \
  template <>                                                                                        \
  void linear_floats<values::Float>(const Matrix& w, const Activations& x, const Range& range) {     \
    if (range.token_end - range.token_begin == 1) {                                                  \
      return neon_dot::float_streams<neon_dot::Float, 4>(w, x, range);                               \
    }                                                                                                \
    neon_dot::float_streams<neon_dot::Float, 2>(w, x, range);                                        \
  }
HOTLOOP_FLOATS(F32)
HOTLOOP_FLOATS(F16)
HOTLOOP_FLOATS(BF16)
#undef HOTLOOP_FLOATS

}  // namespace lin
}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
