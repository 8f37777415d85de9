// The integer formats on AVX2: exact dot products of one group, and how they enter the chain.
namespace hotloop::HOTLOOP_TARGET {
namespace {
namespace lin {

// ---- integer dots of one group: sum[r][n] = 8 rows' exact int32 -------------------------------------------------
// maddubs adds pairs in int16 with saturation; the comments show why none occurs.

// 4-bit codes: 8 registers x 2 products x 15 x 127 = 30480 fit int16, so one widening serves the group.
template <int R, int N>
inline void nibble_dot(const uint8_t* const (&nibbles)[R], const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
  __m256i acc[R][N];
  HOTLOOP_UNROLL
  for (int i = 0; i < 4; ++i) {
    __m256i low[R], high[R];
    HOTLOOP_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m256i v = load256(nibbles[r] + 32 * i);
      low[r] = low_nibbles(v);
      high[r] = high_nibbles(v);
    }
    HOTLOOP_UNROLL
    for (int n = 0; n < N; ++n) {
      const __m256i x_low = broadcast4(x.q[n] + g * kGroupSize + 4 * i);
      const __m256i x_high = broadcast4(x.q[n] + g * kGroupSize + 16 + 4 * i);
      HOTLOOP_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m256i p =
            _mm256_add_epi16(_mm256_maddubs_epi16(low[r], x_low), _mm256_maddubs_epi16(high[r], x_high));
        acc[r][n] = i == 0 ? p : _mm256_add_epi16(acc[r][n], p);
      }
    }
  }
  HOTLOOP_UNROLL
  for (int r = 0; r < R; ++r) {
    HOTLOOP_UNROLL
    for (int n = 0; n < N; ++n) sum[r][n] = _mm256_madd_epi16(acc[r][n], _mm256_set1_epi16(1));
  }
}

// sum -= offset * (sum of the tokens' 32 activations)
template <int R, int N, int Offset>
inline void subtract_offset(const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
  HOTLOOP_UNROLL
  for (int n = 0; n < N; ++n) {
    const __m256i shift = _mm256_madd_epi16(broadcast4(x.sum16[n] + 2 * g), _mm256_set1_epi16(-Offset));
    HOTLOOP_UNROLL
    for (int r = 0; r < R; ++r) sum[r][n] = _mm256_add_epi32(sum[r][n], shift);
  }
}

// 5-bit and shorter codes in two stages of four registers: F::code<J> is register J as unsigned bytes, F::kOrder[4S + c]
// the c-th register of stage S. pairs[r][n] = the sum of their products: 4 registers x 2 products x 31 x 127 = 31496
// fits int16. With one token a broadcast of activations serves all row blocks, otherwise a code register all tokens.
template <class F, int S, int R, int N>
inline void stage_dot(const uint8_t* const (&block)[R], const XTile<N>& x, int64_t g, __m256i (&pairs)[R][N]) {
  constexpr int kJ[4] = {F::kOrder[4 * S], F::kOrder[4 * S + 1], F::kOrder[4 * S + 2], F::kOrder[4 * S + 3]};
  if constexpr (N == 1) {
    const int8_t* q = x.q[0] + g * kGroupSize;
    const __m256i x0 = broadcast4(q + 4 * kJ[0]), x1 = broadcast4(q + 4 * kJ[1]);
    HOTLOOP_UNROLL
    for (int r = 0; r < R; ++r) {
      pairs[r][0] = _mm256_add_epi16(_mm256_maddubs_epi16(F::template code<kJ[0]>(block[r], g), x0),
                                     _mm256_maddubs_epi16(F::template code<kJ[1]>(block[r], g), x1));
    }
    const __m256i x2 = broadcast4(q + 4 * kJ[2]), x3 = broadcast4(q + 4 * kJ[3]);
    HOTLOOP_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m256i p = _mm256_add_epi16(_mm256_maddubs_epi16(F::template code<kJ[2]>(block[r], g), x2),
                                         _mm256_maddubs_epi16(F::template code<kJ[3]>(block[r], g), x3));
      pairs[r][0] = _mm256_add_epi16(pairs[r][0], p);
    }
  } else {
    HOTLOOP_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m256i code[4] = {F::template code<kJ[0]>(block[r], g), F::template code<kJ[1]>(block[r], g),
                               F::template code<kJ[2]>(block[r], g), F::template code<kJ[3]>(block[r], g)};
      HOTLOOP_UNROLL
      for (int n = 0; n < N; ++n) {
        const int8_t* q = x.q[n] + g * kGroupSize;
        const __m256i p = _mm256_add_epi16(_mm256_maddubs_epi16(code[0], broadcast4(q + 4 * kJ[0])),
                                           _mm256_maddubs_epi16(code[1], broadcast4(q + 4 * kJ[1])));
        const __m256i s = _mm256_add_epi16(_mm256_maddubs_epi16(code[2], broadcast4(q + 4 * kJ[2])),
                                           _mm256_maddubs_epi16(code[3], broadcast4(q + 4 * kJ[3])));
        pairs[r][n] = _mm256_add_epi16(p, s);
      }
    }
  }
}

struct Ascending {
  static constexpr int kOrder[8] = {0, 1, 2, 3, 4, 5, 6, 7};
};
struct NibblesTogether {  // both registers of a loaded vector
  static constexpr int kOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};
};

template <class F, int R, int N>
inline void staged_dot(const uint8_t* const (&block)[R], const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
  __m256i pairs[2][R][N];
  stage_dot<F, 0, R, N>(block, x, g, pairs[0]);
  stage_dot<F, 1, R, N>(block, x, g, pairs[1]);
  const __m256i ones = _mm256_set1_epi16(1);
  HOTLOOP_UNROLL
  for (int r = 0; r < R; ++r) {
    HOTLOOP_UNROLL
    for (int n = 0; n < N; ++n) {
      sum[r][n] = _mm256_add_epi32(_mm256_madd_epi16(pairs[0][r][n], ones), _mm256_madd_epi16(pairs[1][r][n], ones));
    }
  }
}

// The stages' sums times the integer scales of their halves: scales[r] has (s0, s1) of row i as int16 in lane i.
template <class F, int R, int N>
inline void scaled_halves_dot(const uint8_t* const (&block)[R], const __m256i (&scales)[R], const XTile<N>& x, int64_t g,
                              __m256i (&sum)[R][N]) {
  const __m256i twice0 = _mm256_set1_epi32(0x01000100), twice1 = _mm256_set1_epi32(0x03020302);
  const __m256i lanes = _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404, 0x08080808, 0x0c0c0c0c);
  __m256i pairs[2][R][N];
  stage_dot<F, 0, R, N>(block, x, g, pairs[0]);
  stage_dot<F, 1, R, N>(block, x, g, pairs[1]);
  HOTLOOP_UNROLL
  for (int r = 0; r < R; ++r) {
    const __m256i s0 = _mm256_shuffle_epi8(scales[r], _mm256_add_epi8(lanes, twice0));
    const __m256i s1 = _mm256_shuffle_epi8(scales[r], _mm256_add_epi8(lanes, twice1));
    HOTLOOP_UNROLL
    for (int n = 0; n < N; ++n) {
      sum[r][n] = _mm256_add_epi32(_mm256_madd_epi16(pairs[0][r][n], s0), _mm256_madd_epi16(pairs[1][r][n], s1));
    }
  }
}

inline __m256i bytes(int v) { return _mm256_set1_epi8(static_cast<char>(v)); }
inline __m256i take(__m256i v, int mask) { return _mm256_and_si256(v, bytes(mask)); }
// Bits `mask` of each byte after a shift; what comes from the neighbouring byte is masked off.
template <int N>
inline __m256i right(__m256i v, int mask) {
  return take(N > 0 ? _mm256_srli_epi16(v, N) : v, mask);
}

// Register J of the packed codes (formats/layouts.h).
template <int J>
inline __m256i five_bits(const uint8_t (&codes)[5][32]) {
  if constexpr (J < 5) return take(load256(codes[J]), 31);
  const __m256i low = right<5>(load256(codes[J < 5 ? 0 : J - 5]), 7);
  if constexpr (J == 5) return _mm256_or_si256(low, right<2>(load256(codes[3]), 0x18));
  if constexpr (J == 7) return _mm256_or_si256(low, right<3>(load256(codes[4]), 0x18));
  return _mm256_or_si256(_mm256_or_si256(low, right<2>(load256(codes[4]), 8)), right<3>(load256(codes[3]), 16));
}

template <int J>
inline __m256i three_bits(const uint8_t (&codes)[3][32]) {
  if constexpr (J < 3) return take(load256(codes[J]), 7);
  if constexpr (J < 6) return right<3>(load256(codes[J % 3]), 7);
  return _mm256_or_si256(right<6>(load256(codes[J % 3]), 3), right<J == 6 ? 4 : 5>(load256(codes[2]), 4));
}

// 6-bit numbers at bits 6i of a stream, each to a 16-bit word: the two bytes around it, a shift to the top by a multiply,
// and a shift to the bottom. Bit 6i is at bit 0, 6, 4, 2 of byte 0, 0, 1, 2 (+ 3 for every four numbers).
inline __m256i six_bit_pairs(const uint8_t* stream) {  // numbers 2r, 2r + 1 to lane r; reads 16 bytes
  const __m256i at = _mm256_setr_epi8(0, 1, 0, 1, 1, 2, 2, 3, 3, 4, 3, 4, 4, 5, 5, 6,  //
                                      6, 7, 6, 7, 7, 8, 8, 9, 9, 10, 9, 10, 10, 11, 11, 12);
  const __m256i up = _mm256_set1_epi64x(0x0100'0040'0010'0400);
  const __m256i both = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load128(stream)), at);
  return _mm256_srli_epi16(_mm256_mullo_epi16(both, up), 10);
}
inline __m256i six_bit_numbers(const uint8_t* stream) {  // number r to lane r; reads 8 bytes
  const __m256i at = _mm256_setr_epi8(0, 1, -1, -1, 0, 1, -1, -1, 1, 2, -1, -1, 2, 3, -1, -1,  //
                                      3, 4, -1, -1, 3, 4, -1, -1, 4, 5, -1, -1, 5, 6, -1, -1);
  const __m256i up = _mm256_setr_epi32(0x400, 0x10, 0x40, 0x100, 0x400, 0x10, 0x40, 0x100);
  int64_t v;
  __builtin_memcpy(&v, stream, 8);
  return _mm256_srli_epi16(_mm256_mullo_epi16(_mm256_shuffle_epi8(_mm256_set1_epi64x(v), at), up), 10);
}

// Signed codes w of a table, the sign trick of Q8_0: 2 x 127 x 127 fit int16. The unsigned factor is |x| or |w|, whichever
// serves more products.
template <bool UnsignedX>
inline __m256i signed_pairs(__m256i w, __m256i w_magnitude, __m256i x, __m256i x_magnitude) {
  if constexpr (UnsignedX) return _mm256_maddubs_epi16(x_magnitude, _mm256_sign_epi8(w, x));
  return _mm256_maddubs_epi16(w_magnitude, _mm256_sign_epi8(x, w));
}

template <int R, int N>
inline void table_dot(const uint8_t* const (&nibbles)[R], const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
  constexpr bool kUnsignedX = N < R;
  const __m256i table = _mm256_broadcastsi128_si256(load128(values::kIq4Codebook));
  const __m256i ones = _mm256_set1_epi16(1);
  HOTLOOP_UNROLL
  for (int i = 0; i < 4; ++i) {
    HOTLOOP_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m256i v = load256(nibbles[r] + 32 * i);
      const __m256i low = _mm256_shuffle_epi8(table, low_nibbles(v));
      const __m256i high = _mm256_shuffle_epi8(table, high_nibbles(v));
      const __m256i low_magnitude = _mm256_abs_epi8(low), high_magnitude = _mm256_abs_epi8(high);
      HOTLOOP_UNROLL
      for (int n = 0; n < N; ++n) {
        const int8_t* q = x.q[n] + g * kGroupSize + 4 * i;
        const __m256i x_low = broadcast4(q), x_high = broadcast4(q + 16);
        const __m256i p = signed_pairs<kUnsignedX>(low, low_magnitude, x_low, _mm256_abs_epi8(x_low));
        const __m256i s = signed_pairs<kUnsignedX>(high, high_magnitude, x_high, _mm256_abs_epi8(x_high));
        const __m256i quads = _mm256_add_epi32(_mm256_madd_epi16(p, ones), _mm256_madd_epi16(s, ones));
        sum[r][n] = i == 0 ? quads : _mm256_add_epi32(sum[r][n], quads);
      }
    }
  }
}

// ---- how a group enters acc -------------------------------------------------------------------------------------

struct ScaleOnly {
  struct Factors { __m256 d; };
  static __m256 accumulate(__m256 acc, __m256 idot, const Factors& w, const XFactors& x) {
    return _mm256_fmadd_ps(idot, _mm256_mul_ps(w.d, x.scale), acc);
  }
};

struct ScaleAndMin {
  struct Factors { __m256 d, m; };
  static __m256 accumulate(__m256 acc, __m256 idot, const Factors& w, const XFactors& x) {
    return _mm256_fmadd_ps(w.m, x.scaled_sum, _mm256_fmadd_ps(idot, _mm256_mul_ps(w.d, x.scale), acc));
  }
};

struct ScaleAndMinus {  // m is the min without its sign
  struct Factors { __m256 d, m; };
  static __m256 accumulate(__m256 acc, __m256 idot, const Factors& w, const XFactors& x) {
    return _mm256_fnmadd_ps(w.m, x.scaled_sum, _mm256_fmadd_ps(idot, _mm256_mul_ps(w.d, x.scale), acc));
  }
  // scale and min of Q4_K and Q5_K
  static Factors factors_of(const uint16_t* d, const uint16_t* dmin, const uint8_t (&packed)[12]) {
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(packed)));
    const __m256i scale = _mm256_and_si256(bytes, _mm256_set1_epi32(63));
    const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);  // nibble r of the last four bytes to lane r
    const __m256i nibbles = _mm256_srlv_epi32(broadcast4(packed + 8), shifts);
    const __m256i upper = _mm256_and_si256(nibbles, _mm256_set1_epi32(15));
    const __m256i min = _mm256_or_si256(_mm256_slli_epi32(upper, 2), _mm256_srli_epi32(bytes, 6));
    return {_mm256_mul_ps(half8_to_float(d), _mm256_cvtepi32_ps(scale)),
            _mm256_mul_ps(half8_to_float(dmin), _mm256_cvtepi32_ps(min))};
  }
};

// ---- formats: the rows' factors and `dot` -----------------------------------------------------------------------

struct Q4_0 : ScaleOnly {
  using Values = values::Q4_0;
  static Factors factors(const uint8_t* block, int64_t g) { return {half8_to_float(Values::group(block, g).d)}; }
  template <int R, int N>
  static void dot(const uint8_t* const (&block)[R], const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
    const uint8_t* nibbles[R];
    for (int r = 0; r < R; ++r) nibbles[r] = Values::group(block[r], g).nibbles;
    nibble_dot<R, N>(nibbles, x, g, sum);
    subtract_offset<R, N, 8>(x, g, sum);
  }
};

struct Q4_1 : ScaleAndMin {
  using Values = values::Q4_1;
  static Factors factors(const uint8_t* block, int64_t g) {
    const layout::Q4_1Group& w = Values::group(block, g);
    return {half8_to_float(w.d), half8_to_float(w.m)};
  }
  template <int R, int N>
  static void dot(const uint8_t* const (&block)[R], const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
    const uint8_t* nibbles[R];
    for (int r = 0; r < R; ++r) nibbles[r] = Values::group(block[r], g).nibbles;
    nibble_dot<R, N>(nibbles, x, g, sum);
  }
};

struct Q5_0 : ScaleOnly {
  using Values = values::Q5_0;
  static Factors factors(const uint8_t* block, int64_t g) { return {half8_to_float(Values::group(block, g).d)}; }

  // Bit j of each byte, moved to bit 4.
  template <int J>
  static __m256i fifth_bit(__m256i high) {
    if constexpr (J < 4) high = _mm256_slli_epi16(high, 4 - J);
    if constexpr (J > 4) high = _mm256_srli_epi16(high, J - 4);
    return _mm256_and_si256(high, _mm256_set1_epi8(16));
  }

  // Registers I, I + 4, I + 1, I + 5: 4 x 2 x 31 x 127 = 31496 fit int16.
  template <int I, int R, int N>
  static void half_dot(const layout::Q5_0Group* const (&w)[R], const XTile<N>& x, int64_t g, __m256i (&acc)[R][N]) {
    __m256i code[R][4];
    HOTLOOP_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m256i high = load256(w[r]->high);
      const __m256i v0 = load256(w[r]->nibbles + 32 * I);
      const __m256i v1 = load256(w[r]->nibbles + 32 * I + 32);
      code[r][0] = _mm256_or_si256(low_nibbles(v0), fifth_bit<I>(high));
      code[r][1] = _mm256_or_si256(high_nibbles(v0), fifth_bit<I + 4>(high));
      code[r][2] = _mm256_or_si256(low_nibbles(v1), fifth_bit<I + 1>(high));
      code[r][3] = _mm256_or_si256(high_nibbles(v1), fifth_bit<I + 5>(high));
    }
    HOTLOOP_UNROLL
    for (int n = 0; n < N; ++n) {
      const int8_t* q = x.q[n] + g * kGroupSize + 4 * I;
      HOTLOOP_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m256i p = _mm256_add_epi16(_mm256_maddubs_epi16(code[r][0], broadcast4(q)),
                                           _mm256_maddubs_epi16(code[r][1], broadcast4(q + 16)));
        const __m256i s = _mm256_add_epi16(_mm256_maddubs_epi16(code[r][2], broadcast4(q + 4)),
                                           _mm256_maddubs_epi16(code[r][3], broadcast4(q + 20)));
        acc[r][n] = _mm256_madd_epi16(_mm256_add_epi16(p, s), _mm256_set1_epi16(1));
      }
    }
  }

  template <int R, int N>
  static void dot(const uint8_t* const (&block)[R], const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
    const layout::Q5_0Group* w[R];
    for (int r = 0; r < R; ++r) w[r] = &Values::group(block[r], g);
    __m256i first[R][N], second[R][N];
    half_dot<0, R, N>(w, x, g, first);
    half_dot<2, R, N>(w, x, g, second);
    for (int r = 0; r < R; ++r) {
      for (int n = 0; n < N; ++n) sum[r][n] = _mm256_add_epi32(first[r][n], second[r][n]);
    }
    subtract_offset<R, N, 16>(x, g, sum);
  }
};

struct Q8_0 : ScaleOnly {
  using Values = values::Q8_0;
  static Factors factors(const uint8_t* block, int64_t g) { return {half8_to_float(Values::group(block, g).d)}; }
  // |w| unsigned (128 included) times x with w's sign: 2 x 128 x 127 = 32512 fits int16, no second pair does.
  template <int R, int N>
  static void dot(const uint8_t* const (&block)[R], const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
    HOTLOOP_UNROLL
    for (int j = 0; j < 8; ++j) {
      __m256i w[R], magnitude[R];
      HOTLOOP_UNROLL
      for (int r = 0; r < R; ++r) {
        w[r] = load256(Values::group(block[r], g).q + 32 * j);
        magnitude[r] = _mm256_abs_epi8(w[r]);
      }
      HOTLOOP_UNROLL
      for (int n = 0; n < N; ++n) {
        const __m256i xj = broadcast4(x.q[n] + g * kGroupSize + 4 * j);
        HOTLOOP_UNROLL
        for (int r = 0; r < R; ++r) {
          const __m256i pairs = _mm256_maddubs_epi16(magnitude[r], _mm256_sign_epi8(xj, w[r]));
          const __m256i quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
          sum[r][n] = j == 0 ? quads : _mm256_add_epi32(sum[r][n], quads);
        }
      }
    }
  }
};

struct Q4_K : ScaleAndMinus {
  using Values = values::Q4_K;
  static Factors factors(const uint8_t* block, int64_t g) {
    const layout::Q4KSuperblock& w = Values::superblock(block, g);
    return factors_of(w.d, w.dmin, w.scales[g % 8]);
  }
  template <int R, int N>
  static void dot(const uint8_t* const (&block)[R], const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
    const uint8_t* nibbles[R];
    for (int r = 0; r < R; ++r) nibbles[r] = Values::superblock(block[r], g).nibbles[g % 8];
    nibble_dot<R, N>(nibbles, x, g, sum);
  }
};

struct Q6_K : ScaleOnly {
  using Values = values::Q6_K;
  static Factors factors(const uint8_t* block, int64_t g) { return {half8_to_float(Values::superblock(block, g).d)}; }

  // Bits 2B, 2B + 1 of each byte, moved to bits 4, 5.
  template <int B>
  static __m256i high_bits(__m256i high) {
    if constexpr (B < 2) high = _mm256_slli_epi16(high, 4 - 2 * B);
    if constexpr (B > 2) high = _mm256_srli_epi16(high, 2 * B - 4);
    return _mm256_and_si256(high, _mm256_set1_epi8(0x30));
  }

  // Registers I, I + 1 (scale s0) and I + 4, I + 5 (s1): 2 x 2 x 63 x 127 = 32004 fit int16, and pmaddwd scales them.
  template <int I, int R, int N>
  static void half_dot(const layout::Q6KGroup* const (&w)[R], const __m256i (&s0)[R], const __m256i (&s1)[R],
                       const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
    __m256i code[R][4];
    HOTLOOP_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m256i high0 = load256(w[r]->high[0]);
      const __m256i high1 = load256(w[r]->high[1]);
      const __m256i v0 = load256(w[r]->nibbles + 32 * I);
      const __m256i v1 = load256(w[r]->nibbles + 32 * I + 32);
      code[r][0] = _mm256_or_si256(low_nibbles(v0), high_bits<I>(high0));
      code[r][1] = _mm256_or_si256(low_nibbles(v1), high_bits<I + 1>(high0));
      code[r][2] = _mm256_or_si256(high_nibbles(v0), high_bits<I>(high1));
      code[r][3] = _mm256_or_si256(high_nibbles(v1), high_bits<I + 1>(high1));
    }
    HOTLOOP_UNROLL
    for (int n = 0; n < N; ++n) {
      const int8_t* q = x.q[n] + g * kGroupSize + 4 * I;
      HOTLOOP_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m256i p0 = _mm256_add_epi16(_mm256_maddubs_epi16(code[r][0], broadcast4(q)),
                                            _mm256_maddubs_epi16(code[r][1], broadcast4(q + 4)));
        const __m256i p1 = _mm256_add_epi16(_mm256_maddubs_epi16(code[r][2], broadcast4(q + 16)),
                                            _mm256_maddubs_epi16(code[r][3], broadcast4(q + 20)));
        const __m256i scaled = _mm256_add_epi32(_mm256_madd_epi16(p0, s0[r]), _mm256_madd_epi16(p1, s1[r]));
        sum[r][n] = I == 0 ? scaled : _mm256_add_epi32(sum[r][n], scaled);
      }
    }
  }

  template <int R, int N>
  static void dot(const uint8_t* const (&block)[R], const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
    const layout::Q6KGroup* w[R];
    __m256i s0[R], s1[R];
    HOTLOOP_UNROLL
    for (int r = 0; r < R; ++r) {
      w[r] = &Values::superblock(block[r], g).groups[g % 8];
      // Row r's scales as int16 pairs (s, s) in lane r.
      const __m128i scales = load128(w[r]->scales);
      const __m256i wide0 = _mm256_cvtepi8_epi32(scales);
      const __m256i wide1 = _mm256_cvtepi8_epi32(_mm_srli_si128(scales, 8));
      s0[r] = _mm256_blend_epi16(wide0, _mm256_slli_epi32(wide0, 16), 0xaa);
      s1[r] = _mm256_blend_epi16(wide1, _mm256_slli_epi32(wide1, 16), 0xaa);
    }
    half_dot<0, R, N>(w, s0, s1, x, g, sum);
    half_dot<2, R, N>(w, s0, s1, x, g, sum);
    HOTLOOP_UNROLL
    for (int n = 0; n < N; ++n) {
      const __m256i sum16 = broadcast4(x.sum16[n] + 2 * g);  // (sum of k 0..15, sum of k 16..31) in every lane
      HOTLOOP_UNROLL
      for (int r = 0; r < R; ++r) {
        const __m256i both = _mm256_blend_epi16(s0[r], s1[r], 0xaa);
        sum[r][n] = _mm256_sub_epi32(sum[r][n], _mm256_slli_epi32(_mm256_madd_epi16(both, sum16), 5));
      }
    }
  }
};

struct Q5_1 : ScaleAndMin, Ascending {
  using Values = values::Q5_1;
  static Factors factors(const uint8_t* block, int64_t g) {
    const layout::Q5_1Group& w = Values::group(block, g);
    return {half8_to_float(w.d), half8_to_float(w.m)};
  }
  template <int J>
  static __m256i code(const uint8_t* block, int64_t g) {
    return five_bits<J>(Values::group(block, g).codes);
  }
  template <int R, int N>
  static void dot(const uint8_t* const (&block)[R], const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
    staged_dot<Q5_1, R, N>(block, x, g, sum);
  }
};

struct Q5_K : ScaleAndMinus, Ascending {
  using Values = values::Q5_K;
  static Factors factors(const uint8_t* block, int64_t g) {
    const layout::Q5KSuperblock& w = Values::superblock(block, g);
    return factors_of(w.d, w.dmin, w.scales[g % 8]);
  }
  template <int J>
  static __m256i code(const uint8_t* block, int64_t g) {
    return five_bits<J>(Values::superblock(block, g).codes[g % 8]);
  }
  template <int R, int N>
  static void dot(const uint8_t* const (&block)[R], const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
    staged_dot<Q5_K, R, N>(block, x, g, sum);
  }
};

struct Q2_K : Ascending {
  using Values = values::Q2_K;
  struct Factors {
    __m256 d, dmin;
    __m256i mins;  // (m0, m1) as int16
  };
  static __m256i scale_bytes(const uint8_t* block, int64_t g) {
    return _mm256_cvtepu8_epi16(load128(Values::superblock(block, g).scales[g % 8]));
  }
  static Factors factors(const uint8_t* block, int64_t g) {
    const layout::Q2KSuperblock& w = Values::superblock(block, g);
    return {half8_to_float(w.d), half8_to_float(w.dmin), _mm256_srli_epi16(scale_bytes(block, g), 4)};
  }
  template <int J>
  static __m256i code(const uint8_t* block, int64_t g) {
    return right<2 * (J % 4)>(load256(Values::superblock(block, g).codes[g % 8][J / 4]), 3);
  }
  template <int R, int N>
  static void dot(const uint8_t* const (&block)[R], const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
    __m256i scales[R];
    for (int r = 0; r < R; ++r) scales[r] = _mm256_and_si256(scale_bytes(block[r], g), _mm256_set1_epi16(15));
    scaled_halves_dot<Q2_K, R, N>(block, scales, x, g, sum);
  }
  static __m256 accumulate(__m256 acc, __m256 idot, const Factors& w, const XFactors& x) {
    const __m256 mins = _mm256_cvtepi32_ps(_mm256_madd_epi16(w.mins, x.sum16));
    acc = _mm256_fmadd_ps(idot, _mm256_mul_ps(w.d, x.scale), acc);
    return _mm256_fnmadd_ps(mins, _mm256_mul_ps(w.dmin, x.scale), acc);
  }
};

struct Q3_K : ScaleOnly, Ascending {
  using Values = values::Q3_K;
  static Factors factors(const uint8_t* block, int64_t g) { return {half8_to_float(Values::superblock(block, g).d)}; }
  template <int J>
  static __m256i code(const uint8_t* block, int64_t g) {
    return three_bits<J>(Values::superblock(block, g).codes[g % 8]);
  }
  template <int R, int N>
  static void dot(const uint8_t* const (&block)[R], const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
    __m256i scales[R];
    HOTLOOP_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m256i stored = six_bit_pairs(Values::superblock(block[r], g).scales[g % 8]);
      scales[r] = _mm256_sub_epi16(stored, _mm256_set1_epi16(32));
    }
    scaled_halves_dot<Q3_K, R, N>(block, scales, x, g, sum);
    HOTLOOP_UNROLL
    for (int n = 0; n < N; ++n) {
      const __m256i four_sums = _mm256_slli_epi16(broadcast4(x.sum16[n] + 2 * g), 2);  // codes are stored + 4
      HOTLOOP_UNROLL
      for (int r = 0; r < R; ++r) sum[r][n] = _mm256_sub_epi32(sum[r][n], _mm256_madd_epi16(scales[r], four_sums));
    }
  }
};

struct IQ4_NL : ScaleOnly {
  using Values = values::IQ4_NL;
  static Factors factors(const uint8_t* block, int64_t g) { return {half8_to_float(Values::group(block, g).d)}; }
  template <int R, int N>
  static void dot(const uint8_t* const (&block)[R], const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
    const uint8_t* nibbles[R];
    for (int r = 0; r < R; ++r) nibbles[r] = Values::group(block[r], g).nibbles;
    table_dot<R, N>(nibbles, x, g, sum);
  }
};

struct IQ4_XS : ScaleOnly {
  using Values = values::IQ4_XS;
  static Factors factors(const uint8_t* block, int64_t g) {
    const layout::IQ4XSSuperblock& w = Values::superblock(block, g);
    const __m256i scale = _mm256_sub_epi32(six_bit_numbers(w.scales[g % 8]), _mm256_set1_epi32(32));
    return {_mm256_mul_ps(half8_to_float(w.d), _mm256_cvtepi32_ps(scale))};
  }
  template <int R, int N>
  static void dot(const uint8_t* const (&block)[R], const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
    const uint8_t* nibbles[R];
    for (int r = 0; r < R; ++r) nibbles[r] = Values::superblock(block[r], g).nibbles[g % 8];
    table_dot<R, N>(nibbles, x, g, sum);
  }
};

struct MXFP4 : ScaleOnly, NibblesTogether {
  using Values = values::MXFP4;
  static Factors factors(const uint8_t* block, int64_t g) {
    const uint8_t* e = Values::group(block, g).e;
    const __m256i exponent = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(e)));
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(exponent, _mm256_set1_epi32(1)), 23);
    const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), exponent);
    const __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), exponent);
    return {_mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, small))};
  }
  // Table values + 12, so 0..24.
  template <int J>
  static __m256i code(const uint8_t* block, int64_t g) {
    const __m128i table = _mm_add_epi8(load128(values::kMxfp4Codebook), _mm_set1_epi8(12));
    const __m256i v = load256(Values::group(block, g).nibbles + 32 * (J % 4));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), J < 4 ? low_nibbles(v) : high_nibbles(v));
  }
  template <int R, int N>
  static void dot(const uint8_t* const (&block)[R], const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
    staged_dot<MXFP4, R, N>(block, x, g, sum);
    subtract_offset<R, N, 12>(x, g, sum);
  }
};

}  // namespace lin
}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
