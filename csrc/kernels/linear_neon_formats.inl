// The integer formats on NEON: a group's codes as signed bytes, the rows' factors, and how a group enters acc.
namespace hotloop::HOTLOOP_TARGET {
namespace {
namespace lin {
namespace neon_dot {

// ---- integer dots -----------------------------------------------------------------------------------------------

inline int32x4_t dot_half(int32x4_t sum, const int8x16_t* code, int8x16_t x) {  // 4 registers, 16 k
  sum = vdotq_laneq_s32(sum, code[0], x, 0);
  sum = vdotq_laneq_s32(sum, code[1], x, 1);
  sum = vdotq_laneq_s32(sum, code[2], x, 2);
  return vdotq_laneq_s32(sum, code[3], x, 3);
}

// ---- how a group enters acc -------------------------------------------------------------------------------------

// One dot over the group's 32 codes, which lie `Offset` above their values, and one factor.
template <int Offset>
struct ScaleOnly {
  using Factors = Rows8;
  static void add_group(Rows8& acc, const Codes& code, const Factors& d, const XGroup& x) {
    const int32x4_t start = vdupq_n_s32(-Offset * (x.sum16[0] + x.sum16[1]));
    HOTLOOP_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int32x4_t sum = dot_half(dot_half(start, code[h], x.q[0]), code[h] + 4, x.q[1]);
      acc.v[h] = vfmaq_f32(acc.v[h], vcvtq_f32_s32(sum), vmulq_n_f32(d.v[h], x.scale));
    }
  }
};

// The same without an offset, and a second factor for the sum of the activations.
struct ScaleMinFactors { Rows8 d, m; };
struct ScaleAndMin {
  using Factors = ScaleMinFactors;
  static void add_group(Rows8& acc, const Codes& code, const Factors& w, const XGroup& x) {
    ScaleOnly<0>::add_group(acc, code, w.d, x);
    const float32x4_t scaled_sum = vdupq_n_f32(x.scaled_sum);
    HOTLOOP_UNROLL
    for (int h = 0; h < 2; ++h) acc.v[h] = vfmaq_f32(acc.v[h], w.m.v[h], scaled_sum);
  }
};

// Integer scales for the halves of the group.
struct ScaledHalvesFactors {
  Rows8 d;
  int32x4_t scale[2][2];  // [half of the group][rows]
};
template <int Offset>
struct ScaledHalves {
  using Factors = ScaledHalvesFactors;
  static void add_group(Rows8& acc, const Codes& code, const Factors& w, const XGroup& x) {
    HOTLOOP_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int32x4_t first = dot_half(vdupq_n_s32(-Offset * x.sum16[0]), code[h], x.q[0]);
      const int32x4_t last = dot_half(vdupq_n_s32(-Offset * x.sum16[1]), code[h] + 4, x.q[1]);
      const int32x4_t idot = vmlaq_s32(vmulq_s32(first, w.scale[0][h]), last, w.scale[1][h]);
      acc.v[h] = vfmaq_f32(acc.v[h], vcvtq_f32_s32(idot), vmulq_n_f32(w.d.v[h], x.scale));
    }
  }
};

// ---- unpacking --------------------------------------------------------------------------------------------------

inline uint8x16_t take(uint8x16_t v, int mask) { return vandq_u8(v, vdupq_n_u8(static_cast<uint8_t>(mask))); }
template <int N>
inline uint8x16_t right(uint8x16_t v, int mask) {
  return take(vshrq_n_u8(v, N), mask);
}
inline int8x16_t as_signed(uint8x16_t v) { return vreinterpretq_s8_u8(v); }

inline void nibble_codes(const uint8_t* nibbles, Codes& code) {
  HOTLOOP_UNROLL
  for (int j = 0; j < 4; ++j) {
    HOTLOOP_UNROLL
    for (int h = 0; h < 2; ++h) {
      const uint8x16_t v = vld1q_u8(nibbles + 32 * j + 16 * h);
      code[h][j] = as_signed(take(v, 15));
      code[h][j + 4] = as_signed(vshrq_n_u8(v, 4));
    }
  }
}

inline void table_codes(const int8_t* table, const uint8_t* nibbles, Codes& code) {
  nibble_codes(nibbles, code);
  const int8x16_t t = vld1q_s8(table);
  HOTLOOP_UNROLL
  for (int h = 0; h < 2; ++h) {
    HOTLOOP_UNROLL
    for (int j = 0; j < 8; ++j) code[h][j] = vqtbl1q_s8(t, vreinterpretq_u8_s8(code[h][j]));
  }
}

inline void five_bit_codes(const uint8_t (&codes)[5][32], Codes& code) {
  HOTLOOP_UNROLL
  for (int h = 0; h < 2; ++h) {
    uint8x16_t v[5];
    HOTLOOP_UNROLL
    for (int j = 0; j < 5; ++j) {
      v[j] = vld1q_u8(codes[j] + 16 * h);
      code[h][j] = as_signed(take(v[j], 31));
    }
    code[h][5] = as_signed(vorrq_u8(right<5>(v[0], 7), right<2>(v[3], 0x18)));
    code[h][6] = as_signed(vorrq_u8(vorrq_u8(right<5>(v[1], 7), right<2>(v[4], 8)), right<3>(v[3], 16)));
    code[h][7] = as_signed(vorrq_u8(right<5>(v[2], 7), right<3>(v[4], 0x18)));
  }
}

inline void six_bit_codes(const uint8_t (&codes)[6][32], Codes& code) {
  HOTLOOP_UNROLL
  for (int h = 0; h < 2; ++h) {
    uint8x16_t v[6];
    HOTLOOP_UNROLL
    for (int j = 0; j < 6; ++j) {
      v[j] = vld1q_u8(codes[j] + 16 * h);
      code[h][j] = as_signed(take(v[j], 63));
    }
    code[h][6] = as_signed(vorrq_u8(vorrq_u8(right<6>(v[0], 3), right<4>(v[1], 0x0c)), right<2>(v[2], 0x30)));
    code[h][7] = as_signed(vorrq_u8(vorrq_u8(right<6>(v[3], 3), right<4>(v[4], 0x0c)), right<2>(v[5], 0x30)));
  }
}

// f(r) of each row.
template <class F>
inline void gather_rows(const F& f, int32x4_t (&rows)[2]) {
  int32_t all[kRowBlock];
  for (int r = 0; r < kRowBlock; ++r) all[r] = f(r);
  rows[0] = vld1q_s32(all);
  rows[1] = vld1q_s32(all + 4);
}
template <class F>
inline Rows8 gather_rows(const F& f) {
  float all[kRowBlock];
  for (int r = 0; r < kRowBlock; ++r) all[r] = f(r);
  return {{vld1q_f32(all), vld1q_f32(all + 4)}};
}

template <class Values>  // scale and min of Q4_K and Q5_K
inline ScaleMinFactors scale_min_factors(const uint8_t* block, int64_t g) {
  return {gather_rows([&](int r) { return Values::scale(block, g, 0, r).d; }),
          gather_rows([&](int r) { return Values::scale(block, g, 0, r).m; })};
}

template <class Values>  // d and the scales of the halves
inline ScaledHalvesFactors scaled_halves_factors(const uint8_t* block, int64_t g) {
  ScaledHalvesFactors f;
  f.d = half_to_float8(Values::superblock(block, g).d);
  for (int half = 0; half < 2; ++half) {
    gather_rows([&](int r) { return Values::half_scale(block, g, half, r); }, f.scale[half]);
  }
  return f;
}

// ---- formats ----------------------------------------------------------------------------------------------------

struct Q4_0 : ScaleOnly<8> {
  using Values = values::Q4_0;
  static void codes(const uint8_t* block, int64_t g, Codes& code) { nibble_codes(Values::group(block, g).nibbles, code); }
  static Factors factors(const uint8_t* block, int64_t g) { return half_to_float8(Values::group(block, g).d); }
};

struct Q4_1 : ScaleAndMin {
  using Values = values::Q4_1;
  static void codes(const uint8_t* block, int64_t g, Codes& code) { nibble_codes(Values::group(block, g).nibbles, code); }
  static Factors factors(const uint8_t* block, int64_t g) {
    return {half_to_float8(Values::group(block, g).d), half_to_float8(Values::group(block, g).m)};
  }
};

struct Q5_0 : ScaleOnly<16> {
  using Values = values::Q5_0;
  static void codes(const uint8_t* block, int64_t g, Codes& code) { five_bit_codes(Values::group(block, g).codes, code); }
  static Factors factors(const uint8_t* block, int64_t g) { return half_to_float8(Values::group(block, g).d); }
};

struct Q5_1 : ScaleAndMin {
  using Values = values::Q5_1;
  static void codes(const uint8_t* block, int64_t g, Codes& code) { five_bit_codes(Values::group(block, g).codes, code); }
  static Factors factors(const uint8_t* block, int64_t g) {
    return {half_to_float8(Values::group(block, g).d), half_to_float8(Values::group(block, g).m)};
  }
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

struct Q2_K {
  using Values = values::Q2_K;
  struct Factors {
    ScaledHalvesFactors halves;
    Rows8 dmin;
    int32x4_t min[2][2];
  };
  static void codes(const uint8_t* block, int64_t g, Codes& code) {
    HOTLOOP_UNROLL
    for (int h = 0; h < 2; ++h) {
      HOTLOOP_UNROLL
      for (int half = 0; half < 2; ++half) {
        const uint8x16_t v = vld1q_u8(Values::superblock(block, g).codes[g % 8][half] + 16 * h);
        int8x16_t* c = code[h] + 4 * half;
        c[0] = as_signed(take(v, 3));
        c[1] = as_signed(right<2>(v, 3));
        c[2] = as_signed(right<4>(v, 3));
        c[3] = as_signed(right<6>(v, 3));
      }
    }
  }
  static Factors factors(const uint8_t* block, int64_t g) {
    Factors f;
    f.halves = scaled_halves_factors<Values>(block, g);
    f.dmin = half_to_float8(Values::superblock(block, g).dmin);
    for (int half = 0; half < 2; ++half) {
      gather_rows([&](int r) { return Values::half_min(block, g, half, r); }, f.min[half]);
    }
    return f;
  }
  static void add_group(Rows8& acc, const Codes& code, const Factors& w, const XGroup& x) {
    ScaledHalves<0>::add_group(acc, code, w.halves, x);
    HOTLOOP_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int32x4_t mins = vmlaq_n_s32(vmulq_n_s32(w.min[0][h], x.sum16[0]), w.min[1][h], x.sum16[1]);
      acc.v[h] = vfmsq_f32(acc.v[h], vcvtq_f32_s32(mins), vmulq_n_f32(w.dmin.v[h], x.scale));
    }
  }
};

struct Q3_K : ScaledHalves<4> {
  using Values = values::Q3_K;
  static void codes(const uint8_t* block, int64_t g, Codes& code) {
    HOTLOOP_UNROLL
    for (int h = 0; h < 2; ++h) {
      uint8x16_t v[3];
      HOTLOOP_UNROLL
      for (int j = 0; j < 3; ++j) {
        v[j] = vld1q_u8(Values::superblock(block, g).codes[g % 8][j] + 16 * h);
        code[h][j] = as_signed(take(v[j], 7));
        code[h][j + 3] = as_signed(right<3>(v[j], 7));
      }
      code[h][6] = as_signed(vorrq_u8(right<6>(v[0], 3), right<4>(v[2], 4)));
      code[h][7] = as_signed(vorrq_u8(right<6>(v[1], 3), right<5>(v[2], 4)));
    }
  }
  static Factors factors(const uint8_t* block, int64_t g) { return scaled_halves_factors<Values>(block, g); }
};

struct Q4_K : ScaleAndMin {
  using Values = values::Q4_K;
  static void codes(const uint8_t* block, int64_t g, Codes& code) {
    nibble_codes(Values::superblock(block, g).nibbles[g % 8], code);
  }
  static Factors factors(const uint8_t* block, int64_t g) { return scale_min_factors<Values>(block, g); }
};

struct Q5_K : ScaleAndMin {
  using Values = values::Q5_K;
  static void codes(const uint8_t* block, int64_t g, Codes& code) {
    five_bit_codes(Values::superblock(block, g).codes[g % 8], code);
  }
  static Factors factors(const uint8_t* block, int64_t g) { return scale_min_factors<Values>(block, g); }
};

struct Q6_K : ScaledHalves<32> {
  using Values = values::Q6_K;
  static void codes(const uint8_t* block, int64_t g, Codes& code) {
    six_bit_codes(Values::superblock(block, g).groups[g % 8].codes, code);
  }
  static Factors factors(const uint8_t* block, int64_t g) { return scaled_halves_factors<Values>(block, g); }
};

struct IQ4_NL : ScaleOnly<0> {
  using Values = values::IQ4_NL;
  static void codes(const uint8_t* block, int64_t g, Codes& code) {
    table_codes(values::kIq4Codebook, Values::group(block, g).nibbles, code);
  }
  static Factors factors(const uint8_t* block, int64_t g) { return half_to_float8(Values::group(block, g).d); }
};

struct IQ4_XS : ScaleOnly<0> {
  using Values = values::IQ4_XS;
  static void codes(const uint8_t* block, int64_t g, Codes& code) {
    table_codes(values::kIq4Codebook, Values::superblock(block, g).nibbles[g % 8], code);
  }
  static Factors factors(const uint8_t* block, int64_t g) {
    return gather_rows([&](int r) { return Values::scale(block, g, 0, r); });
  }
};

struct MXFP4 : ScaleOnly<0> {
  using Values = values::MXFP4;
  static void codes(const uint8_t* block, int64_t g, Codes& code) {
    table_codes(values::kMxfp4Codebook, Values::group(block, g).nibbles, code);
  }
  static Factors factors(const uint8_t* block, int64_t g) {
    return gather_rows([&](int r) { return Values::scale(block, g, 0, r); });
  }
};

}  // namespace neon_dot
}  // namespace lin
}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
