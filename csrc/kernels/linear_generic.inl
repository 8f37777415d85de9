// Integer dot products of every format in plain loops: the definition, which the scalar target runs, and what any other
// target runs for a format it has no kernel of its own for.
namespace hotloop::HOTLOOP_TARGET {
namespace {
namespace lin {
namespace generic {

struct Format {};  // marks the formats of this file

struct XGroup {  // one token's activations of one group
  float scale, scaled_sum;
  const int16_t* sum16;
};

// w = d code: one scale for the group's 32 codes.
template <class V>
struct Scaled : Format {
  using Values = V;
  static float factors(const uint8_t* block, int64_t g, int r) { return V::scale(block, g, 0, r); }
  static float accumulate(float acc, const int32_t (&idot)[2], float d, const XGroup& x) {
    return __builtin_fmaf(static_cast<float>(idot[0] + idot[1]), d * x.scale, acc);
  }
};

// w = d code + m
template <class V>
struct ScaledWithMin : Format {
  using Values = V;
  static values::ScaleMin factors(const uint8_t* block, int64_t g, int r) { return V::scale(block, g, 0, r); }
  static float accumulate(float acc, const int32_t (&idot)[2], values::ScaleMin w, const XGroup& x) {
    acc = __builtin_fmaf(static_cast<float>(idot[0] + idot[1]), w.d * x.scale, acc);
    return __builtin_fmaf(w.m, x.scaled_sum, acc);
  }
};

// w = (d scale) code: an integer scale for each half (16 codes) of the group.
template <class V>
struct HalvesScaled : Format {
  using Values = V;
  struct Factors {
    float d;
    int scale[2];
  };
  static Factors factors(const uint8_t* block, int64_t g, int r) {
    return {V::superblock_scale(block, g, r), {V::half_scale(block, g, 0, r), V::half_scale(block, g, 1, r)}};
  }
  static float accumulate(float acc, const int32_t (&idot)[2], const Factors& w, const XGroup& x) {
    const int scaled = w.scale[0] * idot[0] + w.scale[1] * idot[1];
    return __builtin_fmaf(static_cast<float>(scaled), w.d * x.scale, acc);
  }
};

// w = (d scale) code - dmin min: integers scale and min for each half; the halves' mins weigh the sums of activations.
template <class V>
struct HalvesScaledWithMin : Format {
  using Values = V;
  struct Factors {
    float d, dmin;
    int scale[2], min[2];
  };
  static Factors factors(const uint8_t* block, int64_t g, int r) {
    return {V::superblock_scale(block, g, r),
            V::superblock_min(block, g, r),
            {V::half_scale(block, g, 0, r), V::half_scale(block, g, 1, r)},
            {V::half_min(block, g, 0, r), V::half_min(block, g, 1, r)}};
  }
  static float accumulate(float acc, const int32_t (&idot)[2], const Factors& w, const XGroup& x) {
    const int scaled = w.scale[0] * idot[0] + w.scale[1] * idot[1];
    const int mins = w.min[0] * x.sum16[0] + w.min[1] * x.sum16[1];
    acc = __builtin_fmaf(static_cast<float>(scaled), w.d * x.scale, acc);
    return __builtin_fmaf(-static_cast<float>(mins), w.dmin * x.scale, acc);
  }
};

struct Q4_0 : Scaled<values::Q4_0> {};
struct Q4_1 : ScaledWithMin<values::Q4_1> {};
struct Q5_0 : Scaled<values::Q5_0> {};
struct Q5_1 : ScaledWithMin<values::Q5_1> {};
struct Q8_0 : Scaled<values::Q8_0> {};
struct Q2_K : HalvesScaledWithMin<values::Q2_K> {};
struct Q3_K : HalvesScaled<values::Q3_K> {};
struct Q4_K : ScaledWithMin<values::Q4_K> {};
struct Q5_K : ScaledWithMin<values::Q5_K> {};
struct Q6_K : HalvesScaled<values::Q6_K> {};
struct IQ4_NL : Scaled<values::IQ4_NL> {};
struct IQ4_XS : Scaled<values::IQ4_XS> {};
struct MXFP4 : Scaled<values::MXFP4> {};

// One group of a row block is unpacked at a time, then all tokens pass over it; the chains rest in `out` meanwhile.
template <class F>
void linear_int8(const Matrix& w, const Activations& x, const Range& range) {
  const QuantizedActivations& a = x.quantized;
  const int64_t groups = w.cols / kGroupSize;
  for (int64_t row_block = range.row_block_begin; row_block < range.row_block_end; ++row_block) {
    const uint8_t* block = row_block_data(w, row_block);
    for (int64_t t = range.token_begin; t < range.token_end; ++t) {
      for (int r = 0; r < kRowBlock; ++r) range.at(row_block, t)[r] = 0.0f;
    }
    for (int64_t g = 0; g < groups; ++g) {
      int16_t codes[kRowBlock][kGroupSize];
      decltype(F::factors(block, g, 0)) factors[kRowBlock];
      for (int r = 0; r < kRowBlock; ++r) {
        factors[r] = F::factors(block, g, r);
        for (int k = 0; k < kGroupSize; ++k) {
          codes[r][k] = static_cast<int16_t>(F::Values::code(block, g, r, k));
        }
      }
      for (int64_t t = range.token_begin; t < range.token_end; ++t) {
        const int64_t at = t * groups + g;
        const XGroup xg{a.scale[at], a.scaled_sum[at], a.sum16 + 2 * at};
        int16_t q[kGroupSize];
        for (int k = 0; k < kGroupSize; ++k) q[k] = a.q[at * kGroupSize + k];
        float* acc = range.at(row_block, t);
        for (int r = 0; r < kRowBlock; ++r) {
          int32_t idot[2] = {0, 0};
          for (int k = 0; k < 16; ++k) idot[0] += codes[r][k] * q[k];
          for (int k = 16; k < 32; ++k) idot[1] += codes[r][k] * q[k];
          acc[r] = F::accumulate(acc[r], idot, factors[r], xg);
        }
      }
    }
  }
}

}  // namespace generic
}  // namespace lin
}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
