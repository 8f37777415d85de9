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

inline Rows8 half_to_float8(const uint16_t* p) {
  const float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(p));
  return {{vcvt_f32_f16(vget_low_f16(h)), vcvt_f32_f16(vget_high_f16(h))}};
}

}  // namespace neon_dot
}  // namespace lin
}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET

#include "kernels/linear_neon_formats.inl"

namespace hotloop::HOTLOOP_TARGET {
namespace {
namespace lin {
namespace neon_dot {

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

#define HOTLOOP_USING(name) using neon_dot::name;
HOTLOOP_INTEGER_FORMATS(HOTLOOP_USING)
#undef HOTLOOP_USING

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
