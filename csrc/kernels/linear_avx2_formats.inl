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

// Codes in stages of Count registers: F::code<J> is register J as unsigned bytes, F::kOrder gives J from First on.
// pairs[r][n] = the sum of their products with the activations, which must fit int16: 4 registers x 2 products x 31 x 127 =
// 31496, 2 x 2 x 63 x 127 = 32004. With one token a broadcast of activations serves all row blocks, otherwise a register of
// codes all tokens.
template <class F, int First, int Count, int R, int N>
inline void stage_dot(const uint8_t* const (&block)[R], const XTile<N>& x, int64_t g, __m256i (&pairs)[R][N]) {
  static_assert(Count == 2 || Count == 4);
  constexpr int kJ[4] = {F::kOrder[First], F::kOrder[First + 1], F::kOrder[(First + 2) % 8], F::kOrder[(First + 3) % 8]};
  if constexpr (N == 1) {
    const int8_t* q = x.q[0] + g * kGroupSize;
    const __m256i x0 = broadcast4(q + 4 * kJ[0]), x1 = broadcast4(q + 4 * kJ[1]);
    HOTLOOP_UNROLL
    for (int r = 0; r < R; ++r) {
      pairs[r][0] = _mm256_add_epi16(_mm256_maddubs_epi16(F::template code<kJ[0]>(block[r], g), x0),
                                     _mm256_maddubs_epi16(F::template code<kJ[1]>(block[r], g), x1));
    }
    if constexpr (Count == 2) return;
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
        pairs[r][n] = _mm256_add_epi16(_mm256_maddubs_epi16(code[0], broadcast4(q + 4 * kJ[0])),
                                       _mm256_maddubs_epi16(code[1], broadcast4(q + 4 * kJ[1])));
        if constexpr (Count == 2) continue;
        const __m256i p = _mm256_add_epi16(_mm256_maddubs_epi16(code[2], broadcast4(q + 4 * kJ[2])),
                                           _mm256_maddubs_epi16(code[3], broadcast4(q + 4 * kJ[3])));
        pairs[r][n] = _mm256_add_epi16(pairs[r][n], p);
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
  stage_dot<F, 0, 4, R, N>(block, x, g, pairs[0]);
  stage_dot<F, 4, 4, R, N>(block, x, g, pairs[1]);
  const __m256i ones = _mm256_set1_epi16(1);
  HOTLOOP_UNROLL
  for (int r = 0; r < R; ++r) {
    HOTLOOP_UNROLL
    for (int n = 0; n < N; ++n) {
      sum[r][n] = _mm256_add_epi32(_mm256_madd_epi16(pairs[0][r][n], ones), _mm256_madd_epi16(pairs[1][r][n], ones));
    }
  }
}

// sum (+)= the stage's products times the integer scale of its half of the group. scales[r] has (s0, s1) of row i as int16
// in lane i.
template <class F, int First, int Count, int R, int N>
inline void scaled_stage(const uint8_t* const (&block)[R], const __m256i (&scales)[R], const XTile<N>& x, int64_t g,
                         __m256i (&sum)[R][N]) {
  const __m128i twice_first = _mm_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13);
  const __m256i twice = _mm256_broadcastsi128_si256(_mm_add_epi8(twice_first, _mm_set1_epi8(First < 4 ? 0 : 2)));
  __m256i pairs[R][N];
  stage_dot<F, First, Count, R, N>(block, x, g, pairs);
  HOTLOOP_UNROLL
  for (int r = 0; r < R; ++r) {
    const __m256i scale = _mm256_shuffle_epi8(scales[r], twice);
    HOTLOOP_UNROLL
    for (int n = 0; n < N; ++n) {
      const __m256i scaled = _mm256_madd_epi16(pairs[r][n], scale);
      sum[r][n] = First == 0 ? scaled : _mm256_add_epi32(sum[r][n], scaled);
    }
  }
}

// The group's codes, stored `Offset` above their values and scaled by halves.
template <class F, int Count, int Offset, int R, int N>
inline void scaled_halves_dot(const uint8_t* const (&block)[R], const __m256i (&scales)[R], const XTile<N>& x, int64_t g,
                              __m256i (&sum)[R][N]) {
  scaled_stage<F, 0, Count, R, N>(block, scales, x, g, sum);
  if constexpr (Count == 2) scaled_stage<F, 2, Count, R, N>(block, scales, x, g, sum);
  scaled_stage<F, 4, Count, R, N>(block, scales, x, g, sum);
  if constexpr (Count == 2) scaled_stage<F, 6, Count, R, N>(block, scales, x, g, sum);
  if constexpr (Offset == 0) return;
  static_assert(Offset == 0 || Offset == 4 || Offset == 32);
  HOTLOOP_UNROLL
  for (int n = 0; n < N; ++n) {
    // 4 x 16 x 127 fits int16, 32 x 16 x 127 does not.
    const __m256i sum16 = broadcast4(x.sum16[n] + 2 * g);
    const __m256i sums = Offset == 4 ? _mm256_slli_epi16(sum16, 2) : sum16;
    HOTLOOP_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m256i shift = _mm256_madd_epi16(scales[r], sums);
      sum[r][n] = _mm256_sub_epi32(sum[r][n], Offset == 32 ? _mm256_slli_epi32(shift, 5) : shift);
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
inline __m256i six_bits(const uint8_t (&codes)[6][32]) {
  if constexpr (J < 6) return take(load256(codes[J]), 63);
  constexpr int kFirst = J == 7 ? 3 : 0;
  const __m256i low = _mm256_or_si256(right<6>(load256(codes[kFirst]), 3), right<4>(load256(codes[kFirst + 1]), 0x0c));
  return _mm256_or_si256(low, right<2>(load256(codes[kFirst + 2]), 0x30));
}

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

// ---- dots of many tokens (linear_avx2_panel.inl) ----------------------------------------------------------------

namespace panel {
template <int Offset, int AddBack>
struct Whole;
template <int Offset>
struct Halves;
struct Signed;
}  // namespace panel

// Register J of nibbles, of a table's values.
template <int J>
inline __m256i nibbles_of(const uint8_t* nibbles) {
  const __m256i v = load256(nibbles + 32 * (J % 4));
  return J < 4 ? low_nibbles(v) : high_nibbles(v);
}
template <int J>
inline __m256i table_values(const uint8_t* nibbles) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load128(values::kIq4Codebook)), nibbles_of<J>(nibbles));
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
  using Dot = panel::Whole<8, 0>;
  template <int J>
  static __m256i code(const uint8_t* block, int64_t g) {
    return nibbles_of<J>(Values::group(block, g).nibbles);
  }
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
  using Dot = panel::Whole<0, 0>;
  template <int J>
  static __m256i code(const uint8_t* block, int64_t g) {
    return nibbles_of<J>(Values::group(block, g).nibbles);
  }
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

struct Q5_0 : ScaleOnly, Ascending {
  using Values = values::Q5_0;
  using Dot = panel::Whole<16, 0>;
  static Factors factors(const uint8_t* block, int64_t g) { return {half8_to_float(Values::group(block, g).d)}; }
  template <int J>
  static __m256i code(const uint8_t* block, int64_t g) {
    return five_bits<J>(Values::group(block, g).codes);
  }
  template <int R, int N>
  static void dot(const uint8_t* const (&block)[R], const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
    staged_dot<Q5_0, R, N>(block, x, g, sum);
    subtract_offset<R, N, 16>(x, g, sum);
  }
};

struct Q8_0 : ScaleOnly {
  using Values = values::Q8_0;
  using Dot = panel::Signed;
  template <int J>
  static __m256i code(const uint8_t* block, int64_t g) {
    return load256(Values::group(block, g).q + 32 * J);
  }
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
  using Dot = panel::Whole<0, 0>;
  template <int J>
  static __m256i code(const uint8_t* block, int64_t g) {
    return nibbles_of<J>(Values::superblock(block, g).nibbles[g % 8]);
  }
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

struct Q6_K : ScaleOnly, Ascending {
  using Values = values::Q6_K;
  using Dot = panel::Halves<32>;
  static __m256i half_scales(const uint8_t* block, int64_t g) {
    return _mm256_cvtepi8_epi16(load128(Values::superblock(block, g).groups[g % 8].scales));
  }
  static Factors factors(const uint8_t* block, int64_t g) { return {half8_to_float(Values::superblock(block, g).d)}; }
  template <int J>
  static __m256i code(const uint8_t* block, int64_t g) {
    return six_bits<J>(Values::superblock(block, g).groups[g % 8].codes);
  }
  template <int R, int N>
  static void dot(const uint8_t* const (&block)[R], const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
    __m256i scales[R];
    for (int r = 0; r < R; ++r) scales[r] = half_scales(block[r], g);
    scaled_halves_dot<Q6_K, 2, 32, R, N>(block, scales, x, g, sum);
  }
};

struct Q5_1 : ScaleAndMin, Ascending {
  using Values = values::Q5_1;
  using Dot = panel::Whole<16, 16>;
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
  using Dot = panel::Whole<16, 16>;
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
  using Dot = panel::Halves<0>;
  static __m256i half_scales(const uint8_t* block, int64_t g) {
    return _mm256_and_si256(scale_bytes(block, g), _mm256_set1_epi16(15));
  }
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
    for (int r = 0; r < R; ++r) scales[r] = half_scales(block[r], g);
    scaled_halves_dot<Q2_K, 4, 0, R, N>(block, scales, x, g, sum);
  }
  static __m256 accumulate(__m256 acc, __m256 idot, const Factors& w, const XFactors& x) {
    const __m256 mins = _mm256_cvtepi32_ps(_mm256_madd_epi16(w.mins, x.sum16));
    acc = _mm256_fmadd_ps(idot, _mm256_mul_ps(w.d, x.scale), acc);
    return _mm256_fnmadd_ps(mins, _mm256_mul_ps(w.dmin, x.scale), acc);
  }
};

struct Q3_K : ScaleOnly, Ascending {
  using Values = values::Q3_K;
  using Dot = panel::Halves<4>;
  static __m256i half_scales(const uint8_t* block, int64_t g) {
    return _mm256_sub_epi16(six_bit_pairs(Values::superblock(block, g).scales[g % 8]), _mm256_set1_epi16(32));
  }
  static Factors factors(const uint8_t* block, int64_t g) { return {half8_to_float(Values::superblock(block, g).d)}; }
  template <int J>
  static __m256i code(const uint8_t* block, int64_t g) {
    return three_bits<J>(Values::superblock(block, g).codes[g % 8]);
  }
  template <int R, int N>
  static void dot(const uint8_t* const (&block)[R], const XTile<N>& x, int64_t g, __m256i (&sum)[R][N]) {
    __m256i scales[R];
    HOTLOOP_UNROLL
    for (int r = 0; r < R; ++r) scales[r] = half_scales(block[r], g);
    scaled_halves_dot<Q3_K, 4, 4, R, N>(block, scales, x, g, sum);
  }
};

struct IQ4_NL : ScaleOnly {
  using Values = values::IQ4_NL;
  using Dot = panel::Signed;
  template <int J>
  static __m256i code(const uint8_t* block, int64_t g) {
    return table_values<J>(Values::group(block, g).nibbles);
  }
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
  using Dot = panel::Signed;
  template <int J>
  static __m256i code(const uint8_t* block, int64_t g) {
    return table_values<J>(Values::superblock(block, g).nibbles[g % 8]);
  }
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
  using Dot = panel::Whole<12, 0>;
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
