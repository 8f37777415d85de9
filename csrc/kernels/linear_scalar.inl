// The definition: plain loops over the repacked layouts, one row block and one token at a time.
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

struct XGroup {  // one token's activations of one group
  const int8_t* q;
  float scale, scaled_sum;
  const int16_t* sum16;

  int sum() const { return sum16[0] + sum16[1]; }
};

// sum[r] = dot of the 4-bit codes of row r with x.
inline void nibble_dot(const uint8_t* nibbles, const int8_t* x, int32_t* sum) {
  for (int r = 0; r < kRowBlock; ++r) sum[r] = 0;
  for (int j = 0; j < 4; ++j) {
    for (int r = 0; r < kRowBlock; ++r) {
      for (int i = 0; i < 4; ++i) {
        const int byte = nibbles[32 * j + 4 * r + i];
        sum[r] += (byte & 15) * x[4 * j + i] + (byte >> 4) * x[16 + 4 * j + i];
      }
    }
  }
}

// Per format: acc[8] takes in group g of a row block.
struct Q4_0 {
  using Values = values::Q4_0;
  static void accumulate(const uint8_t* block, int64_t g, const XGroup& x, float* acc) {
    const layout::Q4_0Group& w = Values::group(block, g);
    int32_t sum[kRowBlock];
    nibble_dot(w.nibbles, x.q, sum);
    for (int r = 0; r < kRowBlock; ++r) {
      acc[r] = __builtin_fmaf(static_cast<float>(sum[r] - 8 * x.sum()), half_to_float(w.d[r]) * x.scale, acc[r]);
    }
  }
};

struct Q4_1 {
  using Values = values::Q4_1;
  static void accumulate(const uint8_t* block, int64_t g, const XGroup& x, float* acc) {
    const layout::Q4_1Group& w = Values::group(block, g);
    int32_t sum[kRowBlock];
    nibble_dot(w.nibbles, x.q, sum);
    for (int r = 0; r < kRowBlock; ++r) {
      acc[r] = __builtin_fmaf(static_cast<float>(sum[r]), half_to_float(w.d[r]) * x.scale, acc[r]);
      acc[r] = __builtin_fmaf(half_to_float(w.m[r]), x.scaled_sum, acc[r]);
    }
  }
};

struct Q5_0 {
  using Values = values::Q5_0;
  static void accumulate(const uint8_t* block, int64_t g, const XGroup& x, float* acc) {
    const layout::Q5_0Group& w = Values::group(block, g);
    int32_t sum[kRowBlock];
    nibble_dot(w.nibbles, x.q, sum);
    for (int r = 0; r < kRowBlock; ++r) {
      int high = 0;
      for (int j = 0; j < 8; ++j) {
        for (int i = 0; i < 4; ++i) high += (w.high[4 * r + i] >> j & 1) * x.q[4 * j + i];
      }
      const int idot = sum[r] + 16 * high - 16 * x.sum();
      acc[r] = __builtin_fmaf(static_cast<float>(idot), half_to_float(w.d[r]) * x.scale, acc[r]);
    }
  }
};

struct Q8_0 {
  using Values = values::Q8_0;
  static void accumulate(const uint8_t* block, int64_t g, const XGroup& x, float* acc) {
    const layout::Q8_0Group& w = Values::group(block, g);
    int32_t sum[kRowBlock] = {};
    for (int j = 0; j < 8; ++j) {
      for (int r = 0; r < kRowBlock; ++r) {
        for (int i = 0; i < 4; ++i) sum[r] += w.q[32 * j + 4 * r + i] * x.q[4 * j + i];
      }
    }
    for (int r = 0; r < kRowBlock; ++r) {
      acc[r] = __builtin_fmaf(static_cast<float>(sum[r]), half_to_float(w.d[r]) * x.scale, acc[r]);
    }
  }
};

struct Q4_K {
  using Values = values::Q4_K;
  static void accumulate(const uint8_t* block, int64_t g, const XGroup& x, float* acc) {
    int32_t sum[kRowBlock];
    nibble_dot(Values::superblock(block, g).nibbles[g % 8], x.q, sum);
    for (int r = 0; r < kRowBlock; ++r) {
      const Values::Scale scale = Values::scale(block, g, 0, r);
      acc[r] = __builtin_fmaf(static_cast<float>(sum[r]), scale.d * x.scale, acc[r]);
      acc[r] = __builtin_fmaf(-scale.m, x.scaled_sum, acc[r]);
    }
  }
};

struct Q6_K {
  using Values = values::Q6_K;
  static void accumulate(const uint8_t* block, int64_t g, const XGroup& x, float* acc) {
    const layout::Q6KSuperblock& superblock = Values::superblock(block, g);
    const layout::Q6KGroup& w = superblock.groups[g % 8];
    int32_t idot[2][kRowBlock] = {};
    for (int j = 0; j < 4; ++j) {
      for (int r = 0; r < kRowBlock; ++r) {
        for (int i = 0; i < 4; ++i) {
          const int byte = w.nibbles[32 * j + 4 * r + i];
          const int high0 = w.high[0][4 * r + i] >> (2 * j) & 3;
          const int high1 = w.high[1][4 * r + i] >> (2 * j) & 3;
          idot[0][r] += ((byte & 15) | high0 << 4) * x.q[4 * j + i];
          idot[1][r] += (byte >> 4 | high1 << 4) * x.q[16 + 4 * j + i];
        }
      }
    }
    for (int r = 0; r < kRowBlock; ++r) {
      const int lower = w.scales[0][r] * (idot[0][r] - 32 * x.sum16[0]);
      const int upper = w.scales[1][r] * (idot[1][r] - 32 * x.sum16[1]);
      acc[r] = __builtin_fmaf(static_cast<float>(lower + upper), half_to_float(superblock.d[r]) * x.scale, acc[r]);
    }
  }
};

template <class Format>
void linear_int8(const Matrix& w, const Activations& x, const Range& range) {
  const QuantizedActivations& a = x.quantized;
  const int64_t groups = w.cols / kGroupSize;
  for (int64_t row_block = range.row_block_begin; row_block < range.row_block_end; ++row_block) {
    const uint8_t* block = row_block_data(w, row_block);
    for (int64_t t = range.token_begin; t < range.token_end; ++t) {
      float acc[kRowBlock] = {};
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t group = t * groups + g;
        const XGroup xg{a.q + group * kGroupSize, a.scale[group], a.scaled_sum[group], a.sum16 + 2 * group};
        Format::accumulate(block, g, xg, acc);
      }
      __builtin_memcpy(range.at(row_block, t), acc, sizeof acc);
    }
  }
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
