// The integer formats on AVX-512: a group's codes as unsigned bytes, the rows' factors, and how a group enters acc.
namespace hotloop::HOTLOOP_TARGET {
namespace {
namespace lin {
namespace wide {

#define HOTLOOP_UNROLL _Pragma("GCC unroll 16")

// ---- integer dots -----------------------------------------------------------------------------------------------

// code[0 .. Count - 1] times the activations 4j .. 4j + 3 at q, added to sum. With VNNI one instruction does it exactly;
// without, `PerInt16` registers may be added as int16 pairs before widening (docs/weight-layouts.md has the bounds).
template <int Count, int PerInt16>
inline __m512i dot(__m512i sum, const __m512i* code, const int8_t* q) {
#if defined(__AVX512VNNI__)
  HOTLOOP_UNROLL
  for (int j = 0; j < Count; ++j) sum = _mm512_dpbusd_epi32(sum, code[j], broadcast4(q + 4 * j));
#else
  HOTLOOP_UNROLL
  for (int j = 0; j < Count; j += PerInt16) {
    __m512i pairs = _mm512_maddubs_epi16(code[j], broadcast4(q + 4 * j));
    HOTLOOP_UNROLL
    for (int i = j + 1; i < j + PerInt16; ++i) {
      pairs = _mm512_add_epi16(pairs, _mm512_maddubs_epi16(code[i], broadcast4(q + 4 * i)));
    }
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
#endif
  return sum;
}

// -Offset times the sum of a token's 32 activations, of its first 16, of its last 16, in every lane.
template <int Offset>
inline __m512i offset_sum(__m512i sum16) {
  if constexpr (Offset == 0) return _mm512_setzero_si512();
  return _mm512_madd_epi16(sum16, _mm512_set1_epi16(-Offset));
}
template <int Offset>
inline __m512i offset_first(__m512i sum16) {
  if constexpr (Offset == 0) return _mm512_setzero_si512();
  return _mm512_madd_epi16(sum16, _mm512_set1_epi32(-Offset & 0xffff));
}
template <int Offset>
inline __m512i offset_last(__m512i sum16) {
  if constexpr (Offset == 0) return _mm512_setzero_si512();
  return _mm512_madd_epi16(sum16, _mm512_set1_epi32(-Offset * 65536));
}

// ---- how the group g of token n enters acc ----------------------------------------------------------------------

// One dot over the group's 32 codes, which lie `Offset` above their values, and one factor.
template <int Offset, int PerInt16>
struct ScaleOnly {
  struct Factors { __m512 d; };
  template <int N>
  static __m512 add_group(__m512 acc, const __m512i (&code)[8], const Factors& w, const XTile<N>& x, int n, int64_t g) {
    const __m512i start = offset_sum<Offset>(broadcast4(x.sum16[n] + 2 * g));
    const __m512i sum = dot<8, PerInt16>(start, code, x.q[n] + g * kGroupSize);
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(w.d, float_of(x.scale[n] + g)), acc);
  }
};

// The same without an offset, and a second factor for the sum of the activations: m if Sign > 0, -m if Sign < 0.
struct ScaleMinFactors { __m512 d, m; };
template <int Sign, int PerInt16>
struct ScaleAndMin {
  using Factors = ScaleMinFactors;
  template <int N>
  static __m512 add_group(__m512 acc, const __m512i (&code)[8], const Factors& w, const XTile<N>& x, int n, int64_t g) {
    acc = ScaleOnly<0, PerInt16>::add_group(acc, code, {w.d}, x, n, g);
    const __m512 scaled_sum = float_of(x.scaled_sum[n] + g);
    return Sign > 0 ? _mm512_fmadd_ps(w.m, scaled_sum, acc) : _mm512_fnmadd_ps(w.m, scaled_sum, acc);
  }
};

// Integer scales s0, s1 for the halves of the group. s0 idot0 + s1 idot1 is an integer below 2^24, as is every part of it:
// exact in f32. The + 0 keeps a zero positive, as an integer's is.
template <int Offset, int PerInt16>
struct ScaledHalves {
  struct Factors { __m512 d, scale[2]; };
  template <int N>
  static __m512 add_group(__m512 acc, const __m512i (&code)[8], const Factors& w, const XTile<N>& x, int n, int64_t g) {
    const __m512i sum16 = broadcast4(x.sum16[n] + 2 * g);
    const int8_t* q = x.q[n] + g * kGroupSize;
    const __m512i first = dot<4, PerInt16>(offset_first<Offset>(sum16), code, q);
    const __m512i last = dot<4, PerInt16>(offset_last<Offset>(sum16), code + 4, q + 16);
    __m512 idot = _mm512_fmadd_ps(w.scale[0], _mm512_cvtepi32_ps(first), _mm512_setzero_ps());
    idot = _mm512_fmadd_ps(w.scale[1], _mm512_cvtepi32_ps(last), idot);
    return _mm512_fmadd_ps(idot, _mm512_mul_ps(w.d, float_of(x.scale[n] + g)), acc);
  }
};

// ---- unpacking --------------------------------------------------------------------------------------------------

inline __m512i take(__m512i v, int mask) { return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(mask))); }
// Bits `mask` of each byte after a shift; what comes from the neighbouring byte is masked off.
template <int N>
inline __m512i right(__m512i v, int mask) {
  return take(_mm512_srli_epi16(v, N), mask);
}
inline __m512i either(__m512i a, __m512i b) { return _mm512_or_si512(a, b); }

inline void nibble_codes(const uint8_t* low, const uint8_t* high, __m512i (&code)[8]) {
  HOTLOOP_UNROLL
  for (int i = 0; i < 4; ++i) {
    const __m512i v = load32(low + 32 * i, high + 32 * i);
    code[i] = take(v, 15);
    code[i + 4] = right<4>(v, 15);
  }
}

inline void table_codes(__m128i table, const uint8_t* low, const uint8_t* high, __m512i (&code)[8]) {
  nibble_codes(low, high, code);
  HOTLOOP_UNROLL
  for (int j = 0; j < 8; ++j) code[j] = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), code[j]);
}

inline void five_bit_codes(const uint8_t (&low)[5][32], const uint8_t (&high)[5][32], __m512i (&code)[8]) {
  __m512i v[5];
  HOTLOOP_UNROLL
  for (int j = 0; j < 5; ++j) {
    v[j] = load32(low[j], high[j]);
    code[j] = take(v[j], 31);
  }
  code[5] = either(right<5>(v[0], 7), right<2>(v[3], 0x18));
  code[6] = either(either(right<5>(v[1], 7), right<2>(v[4], 8)), right<3>(v[3], 16));
  code[7] = either(right<5>(v[2], 7), right<3>(v[4], 0x18));
}

inline void six_bit_codes(const uint8_t (&low)[6][32], const uint8_t (&high)[6][32], __m512i (&code)[8]) {
  __m512i v[6];
  HOTLOOP_UNROLL
  for (int j = 0; j < 6; ++j) {
    v[j] = load32(low[j], high[j]);
    code[j] = take(v[j], 63);
  }
  code[6] = either(either(right<6>(v[0], 3), right<4>(v[1], 0x0c)), right<2>(v[2], 0x30));
  code[7] = either(either(right<6>(v[3], 3), right<4>(v[4], 0x0c)), right<2>(v[5], 0x30));
}

// 8 bytes of each row block, one to each 32-bit lane.
inline __m128i rows_of(const uint8_t* low, const uint8_t* high) {
  return _mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(low)),
                            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(high)));
}

template <class Superblock>  // scale and min of Q4_K and Q5_K
inline ScaleMinFactors scale_min_factors(const Superblock& low, const Superblock& high, int64_t g) {
  const uint8_t* packed_low = low.scales[g % 8];
  const uint8_t* packed_high = high.scales[g % 8];
  const __m512i bytes = _mm512_cvtepu8_epi32(rows_of(packed_low, packed_high));
  const __m512i shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  const __m512i nibbles = join(lin::broadcast4(packed_low + 8), lin::broadcast4(packed_high + 8));
  const __m512i upper = _mm512_and_si512(_mm512_srlv_epi32(nibbles, shifts), _mm512_set1_epi32(15));
  const __m512i scale = _mm512_and_si512(bytes, _mm512_set1_epi32(63));
  const __m512i min = either(_mm512_slli_epi32(upper, 2), _mm512_srli_epi32(bytes, 6));
  return {_mm512_mul_ps(half16_to_float(low.d, high.d), _mm512_cvtepi32_ps(scale)),
          _mm512_mul_ps(half16_to_float(low.dmin, high.dmin), _mm512_cvtepi32_ps(min))};
}

// ---- formats ----------------------------------------------------------------------------------------------------

struct Q4_0 : ScaleOnly<8, 8> {
  using Values = values::Q4_0;
  static void codes(const Pair& w, int64_t g, __m512i (&code)[8]) {
    nibble_codes(Values::group(w.low, g).nibbles, Values::group(w.high, g).nibbles, code);
  }
  static Factors factors(const Pair& w, int64_t g) {
    return {half16_to_float(Values::group(w.low, g).d, Values::group(w.high, g).d)};
  }
};

struct Q4_1 : ScaleAndMin<1, 8> {
  using Values = values::Q4_1;
  static void codes(const Pair& w, int64_t g, __m512i (&code)[8]) {
    nibble_codes(Values::group(w.low, g).nibbles, Values::group(w.high, g).nibbles, code);
  }
  static Factors factors(const Pair& w, int64_t g) {
    const layout::Q4_1Group& low = Values::group(w.low, g);
    const layout::Q4_1Group& high = Values::group(w.high, g);
    return {half16_to_float(low.d, high.d), half16_to_float(low.m, high.m)};
  }
};

struct Q5_0 : ScaleOnly<16, 4> {
  using Values = values::Q5_0;
  static void codes(const Pair& w, int64_t g, __m512i (&code)[8]) {
    five_bit_codes(Values::group(w.low, g).codes, Values::group(w.high, g).codes, code);
  }
  static Factors factors(const Pair& w, int64_t g) {
    return {half16_to_float(Values::group(w.low, g).d, Values::group(w.high, g).d)};
  }
};

struct Q5_1 : ScaleAndMin<1, 4> {
  using Values = values::Q5_1;
  static void codes(const Pair& w, int64_t g, __m512i (&code)[8]) {
    five_bit_codes(Values::group(w.low, g).codes, Values::group(w.high, g).codes, code);
  }
  static Factors factors(const Pair& w, int64_t g) {
    const layout::Q5_1Group& low = Values::group(w.low, g);
    const layout::Q5_1Group& high = Values::group(w.high, g);
    return {half16_to_float(low.d, high.d), half16_to_float(low.m, high.m)};
  }
};

struct Q8_0 : ScaleOnly<128, 1> {  // q + 128, 0..255: with VNNI only
  using Values = values::Q8_0;
  static void codes(const Pair& w, int64_t g, __m512i (&code)[8]) {
    HOTLOOP_UNROLL
    for (int j = 0; j < 8; ++j) {
      const __m512i v = load32(Values::group(w.low, g).q + 32 * j, Values::group(w.high, g).q + 32 * j);
      code[j] = _mm512_xor_si512(v, _mm512_set1_epi8(-128));
    }
  }
  static Factors factors(const Pair& w, int64_t g) {
    return {half16_to_float(Values::group(w.low, g).d, Values::group(w.high, g).d)};
  }
};

struct Q2_K {
  using Values = values::Q2_K;
  struct Factors {
    __m512 d, dmin, scale[2];
    __m512i mins;  // (m0, m1) as int16
  };
  static void codes(const Pair& w, int64_t g, __m512i (&code)[8]) {
    const auto& low = Values::superblock(w.low, g).codes[g % 8];
    const auto& high = Values::superblock(w.high, g).codes[g % 8];
    HOTLOOP_UNROLL
    for (int half = 0; half < 2; ++half) {
      const __m512i v = load32(low[half], high[half]);
      code[4 * half] = take(v, 3);
      code[4 * half + 1] = right<2>(v, 3);
      code[4 * half + 2] = right<4>(v, 3);
      code[4 * half + 3] = right<6>(v, 3);
    }
  }
  static Factors factors(const Pair& w, int64_t g) {
    const layout::Q2KSuperblock& low = Values::superblock(w.low, g);
    const layout::Q2KSuperblock& high = Values::superblock(w.high, g);
    const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(load128(low.scales[g % 8])),
                                                  load128(high.scales[g % 8]), 1);
    const __m512i pairs = _mm512_cvtepu8_epi16(bytes);  // (s0 | m0 << 4, s1 | m1 << 4) of each row
    const __m512i scales = _mm512_and_si512(pairs, _mm512_set1_epi16(15));
    return {half16_to_float(low.d, high.d), half16_to_float(low.dmin, high.dmin),
            {_mm512_cvtepi32_ps(_mm512_and_si512(scales, _mm512_set1_epi32(15))),
             _mm512_cvtepi32_ps(_mm512_srli_epi32(scales, 16))},
            _mm512_srli_epi16(pairs, 4)};
  }
  template <int N>
  static __m512 add_group(__m512 acc, const __m512i (&code)[8], const Factors& w, const XTile<N>& x, int n, int64_t g) {
    acc = ScaledHalves<0, 4>::add_group(acc, code, {w.d, {w.scale[0], w.scale[1]}}, x, n, g);
    const __m512i mins = _mm512_madd_epi16(w.mins, broadcast4(x.sum16[n] + 2 * g));
    return _mm512_fnmadd_ps(_mm512_cvtepi32_ps(mins), _mm512_mul_ps(w.dmin, float_of(x.scale[n] + g)), acc);
  }
};

struct Q3_K : ScaledHalves<4, 4> {
  using Values = values::Q3_K;
  static void codes(const Pair& w, int64_t g, __m512i (&code)[8]) {
    const auto& low = Values::superblock(w.low, g).codes[g % 8];
    const auto& high = Values::superblock(w.high, g).codes[g % 8];
    __m512i v[3];
    HOTLOOP_UNROLL
    for (int j = 0; j < 3; ++j) {
      v[j] = load32(low[j], high[j]);
      code[j] = take(v[j], 7);
      code[j + 3] = right<3>(v[j], 7);
    }
    code[6] = either(right<6>(v[0], 3), right<4>(v[2], 4));
    code[7] = either(right<6>(v[1], 3), right<5>(v[2], 4));
  }
  static Factors factors(const Pair& w, int64_t g) {
    const layout::Q3KSuperblock& low = Values::superblock(w.low, g);
    const layout::Q3KSuperblock& high = Values::superblock(w.high, g);
    const __m512i pairs = _mm512_sub_epi16(join(six_bit_pairs(low.scales[g % 8]), six_bit_pairs(high.scales[g % 8])),
                                           _mm512_set1_epi16(32));  // (s0, s1) of each row
    return {half16_to_float(low.d, high.d),
            {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 16)),
             _mm512_cvtepi32_ps(_mm512_srai_epi32(pairs, 16))}};
  }
};

struct Q4_K : ScaleAndMin<-1, 8> {
  using Values = values::Q4_K;
  static void codes(const Pair& w, int64_t g, __m512i (&code)[8]) {
    nibble_codes(Values::superblock(w.low, g).nibbles[g % 8], Values::superblock(w.high, g).nibbles[g % 8], code);
  }
  static Factors factors(const Pair& w, int64_t g) {
    return scale_min_factors(Values::superblock(w.low, g), Values::superblock(w.high, g), g);
  }
};

struct Q5_K : ScaleAndMin<-1, 4> {
  using Values = values::Q5_K;
  static void codes(const Pair& w, int64_t g, __m512i (&code)[8]) {
    five_bit_codes(Values::superblock(w.low, g).codes[g % 8], Values::superblock(w.high, g).codes[g % 8], code);
  }
  static Factors factors(const Pair& w, int64_t g) {
    return scale_min_factors(Values::superblock(w.low, g), Values::superblock(w.high, g), g);
  }
};

struct Q6_K : ScaledHalves<32, 2> {
  using Values = values::Q6_K;
  static void codes(const Pair& w, int64_t g, __m512i (&code)[8]) {
    const layout::Q6KGroup& low = Values::superblock(w.low, g).groups[g % 8];
    const layout::Q6KGroup& high = Values::superblock(w.high, g).groups[g % 8];
    six_bit_codes(low.codes, high.codes, code);
  }
  static Factors factors(const Pair& w, int64_t g) {
    const layout::Q6KSuperblock& low = Values::superblock(w.low, g);
    const layout::Q6KSuperblock& high = Values::superblock(w.high, g);
    const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(load128(low.groups[g % 8].scales)),
                                                  load128(high.groups[g % 8].scales), 1);
    const __m512i pairs = _mm512_cvtepi8_epi16(bytes);  // (s0, s1) of each row
    return {half16_to_float(low.d, high.d),
            {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 16)),
             _mm512_cvtepi32_ps(_mm512_srai_epi32(pairs, 16))}};
  }
};

// Table values + 128, 1..241: with VNNI only.
inline __m128i iq4_table() { return _mm_xor_si128(load128(values::kIq4Codebook), _mm_set1_epi8(-128)); }

struct IQ4_NL : ScaleOnly<128, 1> {
  using Values = values::IQ4_NL;
  static void codes(const Pair& w, int64_t g, __m512i (&code)[8]) {
    table_codes(iq4_table(), Values::group(w.low, g).nibbles, Values::group(w.high, g).nibbles, code);
  }
  static Factors factors(const Pair& w, int64_t g) {
    return {half16_to_float(Values::group(w.low, g).d, Values::group(w.high, g).d)};
  }
};

struct IQ4_XS : ScaleOnly<128, 1> {
  using Values = values::IQ4_XS;
  static void codes(const Pair& w, int64_t g, __m512i (&code)[8]) {
    table_codes(iq4_table(), Values::superblock(w.low, g).nibbles[g % 8], Values::superblock(w.high, g).nibbles[g % 8],
                code);
  }
  static Factors factors(const Pair& w, int64_t g) {
    const layout::IQ4XSSuperblock& low = Values::superblock(w.low, g);
    const layout::IQ4XSSuperblock& high = Values::superblock(w.high, g);
    const __m512i scale = join(six_bit_numbers(low.scales[g % 8]), six_bit_numbers(high.scales[g % 8]));
    return {_mm512_mul_ps(half16_to_float(low.d, high.d),
                          _mm512_cvtepi32_ps(_mm512_sub_epi32(scale, _mm512_set1_epi32(32))))};
  }
};

struct MXFP4 : ScaleOnly<12, 4> {  // table values + 12, 0..24
  using Values = values::MXFP4;
  static void codes(const Pair& w, int64_t g, __m512i (&code)[8]) {
    const __m128i table = _mm_add_epi8(load128(values::kMxfp4Codebook), _mm_set1_epi8(12));
    table_codes(table, Values::group(w.low, g).nibbles, Values::group(w.high, g).nibbles, code);
  }
  static Factors factors(const Pair& w, int64_t g) {  // 2^(e - 128); the two smallest are subnormal
    const __m512i e = _mm512_cvtepu8_epi32(rows_of(Values::group(w.low, g).e, Values::group(w.high, g).e));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    const __mmask16 small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return {_mm512_castsi512_ps(_mm512_mask_blend_epi32(small, normal, subnormal))};
  }
};

}  // namespace wide
}  // namespace lin
}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
