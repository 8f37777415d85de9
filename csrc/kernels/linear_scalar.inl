// The definition, with the formats of linear_generic.inl: plain loops over the repacked layouts.
namespace hotloop::HOTLOOP_TARGET {
namespace {
namespace lin {

void quantize_group(const float* x, int8_t* q, float* scale, float* scaled_sum, int16_t* sum16) {
  uint32_t max_bits = 0;
  for (int k = 0; k < kGroupSize; ++k) {
    const uint32_t bits = to_bits(x[k]) & 0x7fffffffu;
    max_bits = bits > max_bits ? bits : max_bits;
  }
  const ActivationScale s = activation_scale(max_bits);
  *scale = s.scale;
  int sum[2] = {0, 0};
  for (int k = 0; k < kGroupSize; ++k) {
    const float v = s.inverse > 0.0f ? x[k] * s.inverse : 0.0f;
    // |v| <= 127 (1 + 2^-22), so adding 1.5 * 2^23 rounds it to an integer, ties to even.
    const int rounded = static_cast<int>((v + 0x1.8p23f) - 0x1.8p23f);
    const int clamped = rounded > 127 ? 127 : rounded < -127 ? -127 : rounded;
    q[k] = static_cast<int8_t>(clamped);
    sum[k / 16] += clamped;
  }
  sum16[0] = static_cast<int16_t>(sum[0]);
  sum16[1] = static_cast<int16_t>(sum[1]);
  *scaled_sum = s.scale * static_cast<float>(sum[0] + sum[1]);
}

// f32 activations: one group of 8 rows is dequantized at a time, then one fma chain per row goes over its 32 k. The
// chain rests in `out` between groups, so the weights are expanded once for all tokens.
template <class Values>
void fma_chains(const Matrix& w, const Activations& x, const Range& range) {
  for (int64_t row_block = range.row_block_begin; row_block < range.row_block_end; ++row_block) {
    const uint8_t* block = row_block_data(w, row_block);
    for (int64_t t = range.token_begin; t < range.token_end; ++t) {
      for (int r = 0; r < kRowBlock; ++r) range.at(row_block, t)[r] = 0.0f;
    }
    for (int64_t g = 0; g < w.cols / kGroupSize; ++g) {
      float expanded[kRowBlock][kGroupSize];
      for (int r = 0; r < kRowBlock; ++r) dequantize_group<Values>(block, g, r, expanded[r], 1);
      for (int64_t t = range.token_begin; t < range.token_end; ++t) {
        const float* xg = x.f32 + t * x.cols + g * kGroupSize;
        float* out = range.at(row_block, t);
        for (int r = 0; r < kRowBlock; ++r) {
          float acc = out[r];
          for (int k = 0; k < kGroupSize; ++k) acc = __builtin_fmaf(expanded[r][k], xg[k], acc);
          out[r] = acc;
        }
      }
    }
  }
}

using values::BF16;
using values::F16;
using values::F32;

template <class Values>
void linear_floats(const Matrix& w, const Activations& x, const Range& range) {
  fma_chains<Values>(w, x, range);
}

template <class Format>
void linear_dequantized(const Matrix& w, const Activations& x, const Range& range) {
  fma_chains<typename Format::Values>(w, x, range);
}

}  // namespace lin
}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
