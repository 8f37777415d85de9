// y = W x for repacked weights: activation quantization, matrix-vector and matrix-matrix products, embedding rows.
//
// The arithmetic, the same for every number of tokens, every tile and every instruction set: an output element is one
// f32 chain, acc = +0.0, over the groups of 32 in K order; `idot` is the exact integer dot product inside the group.
//   Q4_0, Q5_0, Q8_0, IQ4_NL, MXFP4   acc = fma(idot, d * x_scale, acc)                          idot with signed codes
//   IQ4_XS       acc = fma(idot, (d scale) * x_scale, acc)                                       signed scale
//   Q4_1, Q5_1   acc = fma(idot, d * x_scale, acc); acc = fma(m, scaled_sum, acc)                unsigned codes
//   Q4_K, Q5_K   acc = fma(idot, (d scale) * x_scale, acc); acc = fma(-(dmin min), scaled_sum, acc)
//   Q3_K, Q6_K   acc = fma(s0 idot0 + s1 idot1, d * x_scale, acc)     0, 1: the halves of the group, an exact integer
//   Q2_K         the same, unsigned; then acc = fma(-(m0 sum0 + m1 sum1), dmin * x_scale, acc)
// No integer reaches 2^24, so every conversion to f32 is exact (docs/weight-layouts.md).
//   F32, F16, BF16     acc = fma(w[k], x[k], acc) over k
// With f32 activations (test mode) quantized weights are dequantized and take the last form.
#include "formats/layouts.h"
#include "kernels/linear_dequantize.inl"
#include "kernels/linear_generic.inl"
#if defined(HOTLOOP_SIMD_AVX512)
#include "kernels/linear_avx512.inl"
#elif defined(HOTLOOP_SIMD_AVX2)
#include "kernels/linear_avx2.inl"
#elif defined(HOTLOOP_SIMD_NEON)
#include "kernels/linear_neon.inl"
#else
#include "kernels/linear_scalar.inl"
#endif

namespace hotloop::HOTLOOP_TARGET {
namespace {
namespace lin {

// lin::Q4_0 and so on below: a format that the target's file does not declare is the generic one.
using namespace generic;

template <class Format>
void linear_quantized(const Matrix& w, const Activations& x, const Range& range) {
  if (x.quantized.q == nullptr) return linear_dequantized<Format>(w, x, range);
  if constexpr (__is_base_of(generic::Format, Format)) {
    generic::linear_int8<Format>(w, x, range);
  } else {
    lin::linear_int8<Format>(w, x, range);
  }
}

}  // namespace lin

void quantize_row(const float* x, int64_t cols, int8_t* q, float* scale, float* scaled_sum, int16_t* sum16) {
  for (int64_t g = 0; g < cols / kGroupSize; ++g) {
    lin::quantize_group(x + g * kGroupSize, q + g * kGroupSize, scale + g, scaled_sum + g, sum16 + 2 * g);
  }
}

void linear(const Matrix& w, const Activations& x, int64_t row_block_begin, int64_t row_block_end, int64_t token_begin,
            int64_t token_end, float* out, int64_t out_stride) {
  if (row_block_begin >= row_block_end || token_begin >= token_end) return;
  const lin::Range range{row_block_begin, row_block_end, token_begin, token_end, out, out_stride};
  switch (w.format) {
#define HOTLOOP_CASE(name) case WeightFormat::name: return lin::linear_floats<lin::name>(w, x, range);
    HOTLOOP_FLOAT_FORMATS(HOTLOOP_CASE)
#undef HOTLOOP_CASE
#define HOTLOOP_CASE(name) case WeightFormat::name: return lin::linear_quantized<lin::name>(w, x, range);
    HOTLOOP_INTEGER_FORMATS(HOTLOOP_CASE)
#undef HOTLOOP_CASE
  }
}

void dequantize_row(const Matrix& w, int64_t row, float* out) {
  const int64_t row_block = row / kRowBlock;
  const int r = static_cast<int>(row % kRowBlock);
  switch (w.format) {
#define HOTLOOP_CASE(name) case WeightFormat::name: return lin::dequantize_row_of<lin::values::name>(w, row_block, r, out);
    HOTLOOP_FLOAT_FORMATS(HOTLOOP_CASE)
    HOTLOOP_INTEGER_FORMATS(HOTLOOP_CASE)
#undef HOTLOOP_CASE
  }
}

}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
