// y = W x for repacked weights: activation quantization, matrix-vector and matrix-matrix products, embedding rows.
//
// The arithmetic, the same for every number of tokens, every tile and every instruction set: an output element is one
// f32 chain, acc = +0.0, over the groups of 32 in K order; `idot` is the exact integer dot product inside the group.
//   Q4_0, Q5_0, Q8_0   acc = fma(idot, d * x_scale, acc)                           idot with signed q
//   Q4_1               acc = fma(idot, d * x_scale, acc); acc = fma(m, scaled_sum, acc)          unsigned q
//   Q4_K               acc = fma(idot, (d scale) * x_scale, acc); acc = fma(-(dmin min), scaled_sum, acc)  unsigned q
//   Q6_K               acc = fma(s0 idot0 + s1 idot1, d * x_scale, acc)             q - 32, integer below 2^24
//   F32, F16, BF16     acc = fma(w[k], x[k], acc) over k
// With f32 activations (test mode) quantized weights are dequantized and take the last form.
#include "formats/layouts.h"
#include "kernels/linear_dequantize.inl"
#include "kernels/linear_generic.inl"
#if defined(__AVX512F__)
#include "kernels/linear_avx512.inl"
#elif defined(__AVX2__)
#include "kernels/linear_avx2.inl"
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
    case WeightFormat::F32: return lin::linear_floats<lin::F32>(w, x, range);
    case WeightFormat::F16: return lin::linear_floats<lin::F16>(w, x, range);
    case WeightFormat::BF16: return lin::linear_floats<lin::BF16>(w, x, range);
    case WeightFormat::Q4_0: return lin::linear_quantized<lin::Q4_0>(w, x, range);
    case WeightFormat::Q4_1: return lin::linear_quantized<lin::Q4_1>(w, x, range);
    case WeightFormat::Q5_0: return lin::linear_quantized<lin::Q5_0>(w, x, range);
    case WeightFormat::Q8_0: return lin::linear_quantized<lin::Q8_0>(w, x, range);
    case WeightFormat::Q4_K: return lin::linear_quantized<lin::Q4_K>(w, x, range);
    case WeightFormat::Q6_K: return lin::linear_quantized<lin::Q6_K>(w, x, range);
  }
}

void dequantize_row(const Matrix& w, int64_t row, float* out) {
  const int64_t row_block = row / kRowBlock;
  const int r = static_cast<int>(row % kRowBlock);
  switch (w.format) {
    case WeightFormat::F32: return lin::dequantize_row_of<lin::values::F32>(w, row_block, r, out);
    case WeightFormat::F16: return lin::dequantize_row_of<lin::values::F16>(w, row_block, r, out);
    case WeightFormat::BF16: return lin::dequantize_row_of<lin::values::BF16>(w, row_block, r, out);
    case WeightFormat::Q4_0: return lin::dequantize_row_of<lin::values::Q4_0>(w, row_block, r, out);
    case WeightFormat::Q4_1: return lin::dequantize_row_of<lin::values::Q4_1>(w, row_block, r, out);
    case WeightFormat::Q5_0: return lin::dequantize_row_of<lin::values::Q5_0>(w, row_block, r, out);
    case WeightFormat::Q8_0: return lin::dequantize_row_of<lin::values::Q8_0>(w, row_block, r, out);
    case WeightFormat::Q4_K: return lin::dequantize_row_of<lin::values::Q4_K>(w, row_block, r, out);
    case WeightFormat::Q6_K: return lin::dequantize_row_of<lin::values::Q6_K>(w, row_block, r, out);
  }
}

}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
