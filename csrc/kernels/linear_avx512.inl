// AVX-512 (F, BW, VL, DQ), with VNNI where the target has it. A register holds two row blocks, the lower half one and
// the upper half the other, so one broadcast of four activations serves 16 rows. The arithmetic per output element is
// that of linear_avx2.inl. Formats without a specialisation at the end of this file run the AVX2 code, which for float
// weights is as fast: there the joining of two row blocks costs more than wider multiply-adds gain.
#include "kernels/linear_avx2.inl"

namespace hotloop::HOTLOOP_TARGET {
namespace {
namespace lin {
namespace wide {

#define HOTLOOP_UNROLL _Pragma("GCC unroll 16")

// ---- two row blocks side by side --------------------------------------------------------------------------------

struct Pair {  // two row blocks; equal where a range has an odd one, which is then computed twice
  const uint8_t* low;
  const uint8_t* high;
};

inline __m512i join(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }
inline __m512i load32(const void* low, const void* high) { return join(load256(low), load256(high)); }
inline __m512i low_nibbles(__m512i v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
inline __m512i high_nibbles(__m512i v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
inline __m512i broadcast4(const void* p) {  // 4 bytes to all 16 lanes
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}
inline __m512 half16_to_float(const uint16_t* low, const uint16_t* high) {
  return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(load128(low)), load128(high), 1));
}
inline __m512 float_of(const float* p) { return _mm512_set1_ps(*p); }

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

// -offset times the sum of a token's 32 activations, in every lane.
template <int Offset>
inline __m512i offset_sum(const int16_t* sum16) {
  if constexpr (Offset == 0) return _mm512_setzero_si512();
  return _mm512_madd_epi16(broadcast4(sum16), _mm512_set1_epi16(-Offset));
}

// ---- formats ----------------------------------------------------------------------------------------------------
// codes(): a group's 8 registers as unsigned bytes; factors(): what a row's dot is multiplied with; add_group(): how the
// group g of token n enters acc.

// One dot over the group's 32 codes, which lie `Offset` above their values, and one factor.
template <int Offset, int PerInt16>
struct ScaleOnly {
  struct Factors { __m512 d; };
  template <int N>
  static __m512 add_group(__m512 acc, const __m512i (&code)[8], const Factors& w, const XTile<N>& x, int n, int64_t g) {
    const __m512i sum = dot<8, PerInt16>(offset_sum<Offset>(x.sum16[n] + 2 * g), code, x.q[n] + g * kGroupSize);
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(w.d, float_of(x.scale[n] + g)), acc);
  }
};

// The same without an offset, and a second factor for the sum of the activations: m if Sign > 0, -m if Sign < 0.
template <int Sign, int PerInt16>
struct ScaleAndMinimum {
  struct Factors { __m512 d, m; };
  template <int N>
  static __m512 add_group(__m512 acc, const __m512i (&code)[8], const Factors& w, const XTile<N>& x, int n, int64_t g) {
    const __m512i sum = dot<8, PerInt16>(_mm512_setzero_si512(), code, x.q[n] + g * kGroupSize);
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(w.d, float_of(x.scale[n] + g)), acc);
    const __m512 scaled_sum = float_of(x.scaled_sum[n] + g);
    return Sign > 0 ? _mm512_fmadd_ps(w.m, scaled_sum, acc) : _mm512_fnmadd_ps(w.m, scaled_sum, acc);
  }
};

inline void nibble_codes(const uint8_t* low, const uint8_t* high, __m512i (&code)[8]) {
  HOTLOOP_UNROLL
  for (int i = 0; i < 4; ++i) {
    const __m512i v = load32(low + 32 * i, high + 32 * i);
    code[i] = low_nibbles(v);
    code[i + 4] = high_nibbles(v);
  }
}

struct Q4_0 : ScaleOnly<8, 8> {
  using Values = values::Q4_0;
  static void codes(const Pair& w, int64_t g, __m512i (&code)[8]) {
    nibble_codes(Values::group(w.low, g).nibbles, Values::group(w.high, g).nibbles, code);
  }
  static Factors factors(const Pair& w, int64_t g) {
    return {half16_to_float(Values::group(w.low, g).d, Values::group(w.high, g).d)};
  }
};

struct Q4_1 : ScaleAndMinimum<1, 8> {
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

// Bit J of each byte of `high`, moved to bit 4 and added to the code.
template <int J>
inline __m512i with_fifth_bit(__m512i code, __m512i high) {
  if constexpr (J < 4) high = _mm512_slli_epi16(high, 4 - J);
  if constexpr (J > 4) high = _mm512_srli_epi16(high, J - 4);
  return _mm512_or_si512(code, _mm512_and_si512(high, _mm512_set1_epi8(16)));
}
inline void add_fifth_bits(const uint8_t* low, const uint8_t* high, __m512i (&code)[8]) {
  const __m512i bits = load32(low, high);
  code[0] = with_fifth_bit<0>(code[0], bits);
  code[1] = with_fifth_bit<1>(code[1], bits);
  code[2] = with_fifth_bit<2>(code[2], bits);
  code[3] = with_fifth_bit<3>(code[3], bits);
  code[4] = with_fifth_bit<4>(code[4], bits);
  code[5] = with_fifth_bit<5>(code[5], bits);
  code[6] = with_fifth_bit<6>(code[6], bits);
  code[7] = with_fifth_bit<7>(code[7], bits);
}

struct Q5_0 : ScaleOnly<16, 4> {
  using Values = values::Q5_0;
  static void codes(const Pair& w, int64_t g, __m512i (&code)[8]) {
    const layout::Q5_0Group& low = Values::group(w.low, g);
    const layout::Q5_0Group& high = Values::group(w.high, g);
    nibble_codes(low.nibbles, high.nibbles, code);
    add_fifth_bits(low.high, high.high, code);
  }
  static Factors factors(const Pair& w, int64_t g) {
    return {half16_to_float(Values::group(w.low, g).d, Values::group(w.high, g).d)};
  }
};

#if defined(__AVX512VNNI__)
struct Q8_0 : ScaleOnly<128, 1> {  // q + 128, 0..255; without VNNI that would overflow int16, and the AVX2 code runs
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
#endif

struct Q4_K : ScaleAndMinimum<-1, 8> {
  using Values = values::Q4_K;
  static void codes(const Pair& w, int64_t g, __m512i (&code)[8]) {
    nibble_codes(Values::superblock(w.low, g).nibbles[g % 8], Values::superblock(w.high, g).nibbles[g % 8], code);
  }
  static Factors factors(const Pair& w, int64_t g) {
    const layout::Q4KSuperblock& low = Values::superblock(w.low, g);
    const layout::Q4KSuperblock& high = Values::superblock(w.high, g);
    const uint8_t* packed_low = low.scales[g % 8];
    const uint8_t* packed_high = high.scales[g % 8];
    const __m128i rows = _mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(packed_low)),
                                            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(packed_high)));
    const __m512i bytes = _mm512_cvtepu8_epi32(rows);
    const __m512i scale = _mm512_and_si512(bytes, _mm512_set1_epi32(63));
    const __m512i shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const __m512i nibbles = join(lin::broadcast4(packed_low + 8), lin::broadcast4(packed_high + 8));
    const __m512i upper = _mm512_and_si512(_mm512_srlv_epi32(nibbles, shifts), _mm512_set1_epi32(15));
    const __m512i min = _mm512_or_si512(_mm512_slli_epi32(upper, 2), _mm512_srli_epi32(bytes, 6));
    return {_mm512_mul_ps(half16_to_float(low.d, high.d), _mm512_cvtepi32_ps(scale)),
            _mm512_mul_ps(half16_to_float(low.dmin, high.dmin), _mm512_cvtepi32_ps(min))};
  }
};

struct Q6_K {
  using Values = values::Q6_K;
  struct Factors { __m512 d, scale[2]; };

  // Bits 2B, 2B + 1 of each byte of `high`, moved to bits 4, 5 and added to the code.
  template <int B>
  static __m512i with_high_bits(__m512i code, __m512i high) {
    if constexpr (B < 2) high = _mm512_slli_epi16(high, 4 - 2 * B);
    if constexpr (B > 2) high = _mm512_srli_epi16(high, 2 * B - 4);
    return _mm512_or_si512(code, _mm512_and_si512(high, _mm512_set1_epi8(0x30)));
  }
  static void codes(const Pair& w, int64_t g, __m512i (&code)[8]) {
    const layout::Q6KGroup& low = Values::superblock(w.low, g).groups[g % 8];
    const layout::Q6KGroup& high = Values::superblock(w.high, g).groups[g % 8];
    nibble_codes(low.nibbles, high.nibbles, code);
    HOTLOOP_UNROLL
    for (int half = 0; half < 2; ++half) {
      const __m512i bits = load32(low.high[half], high.high[half]);
      code[4 * half] = with_high_bits<0>(code[4 * half], bits);
      code[4 * half + 1] = with_high_bits<1>(code[4 * half + 1], bits);
      code[4 * half + 2] = with_high_bits<2>(code[4 * half + 2], bits);
      code[4 * half + 3] = with_high_bits<3>(code[4 * half + 3], bits);
    }
  }
  static Factors factors(const Pair& w, int64_t g) {
    const layout::Q6KSuperblock& low = Values::superblock(w.low, g);
    const layout::Q6KSuperblock& high = Values::superblock(w.high, g);
    const __m128i a = load128(low.groups[g % 8].scales), b = load128(high.groups[g % 8].scales);
    return {half16_to_float(low.d, high.d),
            {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_unpacklo_epi64(a, b))),
             _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_unpackhi_epi64(a, b)))}};
  }
  // s0 idot0 + s1 idot1 is an integer below 2^24, as is every part of it: exact in f32. The + 0 keeps a zero positive,
  // as an integer's is.
  template <int N>
  static __m512 add_group(__m512 acc, const __m512i (&code)[8], const Factors& w, const XTile<N>& x, int n, int64_t g) {
    const __m512i sum16 = broadcast4(x.sum16[n] + 2 * g);  // (sum of k 0..15, sum of k 16..31) in every lane
    const int8_t* q = x.q[n] + g * kGroupSize;
    const __m512i first = dot<4, 2>(_mm512_madd_epi16(sum16, _mm512_set1_epi32(0x0000ffe0)), code, q);
    const __m512i second = dot<4, 2>(_mm512_madd_epi16(sum16, _mm512_set1_epi32(-32 * 65536)), code + 4, q + 16);
    __m512 idot = _mm512_fmadd_ps(w.scale[0], _mm512_cvtepi32_ps(first), _mm512_setzero_ps());
    idot = _mm512_fmadd_ps(w.scale[1], _mm512_cvtepi32_ps(second), idot);
    return _mm512_fmadd_ps(idot, _mm512_mul_ps(w.d, float_of(x.scale[n] + g)), acc);
  }
};

// ---- tiles ------------------------------------------------------------------------------------------------------

// The row blocks of a tile: R pairs of distant streams, first, first + step, ...
template <int R>
struct Rows {
  int64_t row_block[2 * R];

  Rows(int64_t first, int64_t step) {
    for (int i = 0; i < 2 * R; ++i) row_block[i] = first + i * step;
  }
  Pair pair(const Matrix& w, int r) const {
    return {row_block_data(w, row_block[2 * r]), row_block_data(w, row_block[2 * r + 1])};
  }
  void store(const Range& range, int r, int64_t token, __m512 v) const {
    _mm256_storeu_ps(range.at(row_block[2 * r], token), _mm512_castps512_ps256(v));
    _mm256_storeu_ps(range.at(row_block[2 * r + 1], token), _mm512_extractf32x8_ps(v, 1));
  }
};

template <class Format, int R, int N>
void int8_tile(const Matrix& w, const QuantizedActivations& a, const Range& range, const Rows<R>& rows, int64_t token) {
  Pair block[R];
  for (int r = 0; r < R; ++r) block[r] = rows.pair(w, r);
  const XTile<N> x(a, token);
  __m512 acc[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) acc[r][n] = _mm512_setzero_ps();
  }
  const int64_t groups = w.cols / kGroupSize;
  for (int64_t g = 0; g < groups; ++g) {
    HOTLOOP_UNROLL
    for (int r = 0; r < R; ++r) {
      __m512i code[8];
      Format::codes(block[r], g, code);
      const typename Format::Factors factors = Format::factors(block[r], g);
      HOTLOOP_UNROLL
      for (int n = 0; n < N; ++n) acc[r][n] = Format::template add_group<N>(acc[r][n], code, factors, x, n, g);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) rows.store(range, r, token + n, acc[r][n]);
  }
}

// R pairs of row blocks x all tokens of the range: the row blocks stay in cache while the tokens pass over them.
template <class Format, int R>
void int8_rows(const Matrix& w, const QuantizedActivations& a, const Range& range, const Rows<R>& rows) {
  int64_t t = range.token_begin;
  if constexpr (R == 1) {
    for (; t + 8 <= range.token_end; t += 8) int8_tile<Format, R, 8>(w, a, range, rows, t);
    for (; t + 4 <= range.token_end; t += 4) int8_tile<Format, R, 4>(w, a, range, rows, t);
  }
  for (; t + 2 <= range.token_end; t += 2) int8_tile<Format, R, 2>(w, a, range, rows, t);
  if (t < range.token_end) int8_tile<Format, R, 1>(w, a, range, rows, t);
}

// Calls body(Rows<R>) over the range's row blocks, then body(Rows<1>) over what is left; an odd one pairs with itself.
template <int R, class Body>
void for_each_rows(const Range& range, const Body& body) {
  const int64_t step = (range.row_block_end - range.row_block_begin) / (2 * R);
  for (int64_t i = 0; i < step; ++i) body(Rows<R>(range.row_block_begin + i, step));
  for (int64_t b = range.row_block_begin + 2 * R * step; b < range.row_block_end; b += 2) {
    body(Rows<1>(b, b + 1 < range.row_block_end ? 1 : 0));
  }
}

template <class Format>
void linear_int8(const Matrix& w, const Activations& x, const Range& range) {
  if (range.token_end - range.token_begin <= 2) {
    return for_each_rows<2>(range, [&](const auto& rows) { int8_rows<Format>(w, x.quantized, range, rows); });
  }
  for_each_rows<1>(range, [&](const auto& rows) { int8_rows<Format>(w, x.quantized, range, rows); });
}

#undef HOTLOOP_UNROLL

}  // namespace wide

// ---- which formats run here -------------------------------------------------------------------------------------

#define HOTLOOP_WIDE(Format)                                                                 \
  template <>                                                                                \
  void linear_int8<Format>(const Matrix& w, const Activations& x, const Range& range) {      \
    wide::linear_int8<wide::Format>(w, x, range);                                            \
  }
HOTLOOP_WIDE(Q4_0)
HOTLOOP_WIDE(Q4_1)
HOTLOOP_WIDE(Q5_0)
HOTLOOP_WIDE(Q4_K)
HOTLOOP_WIDE(Q6_K)
#if defined(__AVX512VNNI__)
HOTLOOP_WIDE(Q8_0)
#endif
#undef HOTLOOP_WIDE

}  // namespace lin
}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
