// Sixteen virtual lanes as one 512-bit register (AVX-512 F, BW, VL, DQ; FMA, F16C). The names are explained in
// simd/README.md. The target file defines HOTLOOP_TARGET_NAME: with and without VNNI this header is the same.
#pragma once
#include <immintrin.h>

#include <cstdint>

#define HOTLOOP_SIMD_AVX512
#define HOTLOOP_INLINE static inline __attribute__((always_inline))

namespace hotloop::HOTLOOP_TARGET {
namespace {

struct F32x16 {
  __m512 v;
};
struct U32x16 {
  __m512i v;
};
struct Mask16 {
  __mmask16 bits;
};

// ---- memory ---------------------------------------------------------------------------------------------------------
HOTLOOP_INLINE F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
HOTLOOP_INLINE U32x16 load(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
HOTLOOP_INLINE void store(float* p, const F32x16& v) { _mm512_storeu_ps(p, v.v); }
HOTLOOP_INLINE void store(uint32_t* p, const U32x16& v) { _mm512_storeu_si512(p, v.v); }
HOTLOOP_INLINE F32x16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
HOTLOOP_INLINE U32x16 broadcast_u32(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
HOTLOOP_INLINE U32x16 lane_index() {
  return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
}
HOTLOOP_INLINE __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }  // lanes below n < 16
HOTLOOP_INLINE F32x16 load_partial(const float* p, int64_t n, float fill) {
  return {_mm512_mask_loadu_ps(_mm512_set1_ps(fill), first_lanes(n), p)};
}
HOTLOOP_INLINE void store_partial(float* p, int64_t n, const F32x16& v) { _mm512_mask_storeu_ps(p, first_lanes(n), v.v); }

// ---- IEEE binary16 --------------------------------------------------------------------------------------------------
HOTLOOP_INLINE float f16_to_f32(uint16_t h) { return _cvtsh_ss(h); }
HOTLOOP_INLINE uint16_t f32_to_f16(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
HOTLOOP_INLINE F32x16 load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
HOTLOOP_INLINE __m256i to_f16(const F32x16& v) { return _mm512_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT); }
HOTLOOP_INLINE void store_f16(uint16_t* p, const F32x16& v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_f16(v));
}
HOTLOOP_INLINE void store_f16_partial(uint16_t* p, int64_t n, const F32x16& v) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), to_f16(v));
}

// ---- bfloat16, int8 -------------------------------------------------------------------------------------------------
HOTLOOP_INLINE F32x16 load_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
HOTLOOP_INLINE F32x16 load_i8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

// ---- integer dots of 4 bytes, exact in any order --------------------------------------------------------------------
struct CodeSum {
  __m512i v;
};
constexpr int kCodeLanes = 16;
HOTLOOP_INLINE CodeSum broadcast_sum(int32_t x) { return {_mm512_set1_epi32(x)}; }
#ifdef __AVX512VNNI__
// vpdpbusd wants unsigned codes: k + 128, so that the sum starts from -128 times that of the query.
struct Codes {
  __m512i v;
};
constexpr int kQueryQuadBytes = 4;
HOTLOOP_INLINE void store_query_quad(uint8_t* p, const int8_t* q) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<uint8_t>(q[i]);
}
HOTLOOP_INLINE int32_t code_sum_start(int32_t query_sum) { return -128 * query_sum; }
HOTLOOP_INLINE Codes load_codes(const uint8_t* p) {
  return {_mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(static_cast<char>(0x80)))};
}
HOTLOOP_INLINE CodeSum add_dots(const CodeSum& sum, const Codes& k, const uint8_t* query_quad) {
  return {_mm512_dpbusd_epi32(sum.v, k.v, _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(query_quad)))};
}
#else
struct Codes {
  __m512i even, odd;  // int16: bytes 0 and 2 of each quad, bytes 1 and 3
};
constexpr int kQueryQuadBytes = 8;  // int16: elements 0, 2, 1, 3
HOTLOOP_INLINE void store_query_quad(uint8_t* p, const int8_t* q) {
  int16_t* words = reinterpret_cast<int16_t*>(p);
  words[0] = q[0], words[1] = q[2], words[2] = q[1], words[3] = q[3];
}
HOTLOOP_INLINE int32_t code_sum_start(int32_t) { return 0; }
HOTLOOP_INLINE Codes load_codes(const uint8_t* p) {
  const __m512i v = _mm512_loadu_si512(p);
  return {_mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8), _mm512_srai_epi16(v, 8)};
}
HOTLOOP_INLINE CodeSum add_dots(const CodeSum& sum, const Codes& k, const uint8_t* query_quad) {
  const int32_t* q = reinterpret_cast<const int32_t*>(query_quad);
  const __m512i even = _mm512_madd_epi16(k.even, _mm512_set1_epi32(q[0]));
  const __m512i odd = _mm512_madd_epi16(k.odd, _mm512_set1_epi32(q[1]));
  return {_mm512_add_epi32(sum.v, _mm512_add_epi32(even, odd))};
}
#endif
HOTLOOP_INLINE CodeSum operator+(const CodeSum& a, const CodeSum& b) {
  return {_mm512_add_epi32(a.v, b.v)};
}
HOTLOOP_INLINE void store(int32_t* p, const CodeSum& v) { _mm512_storeu_si512(p, v.v); }
HOTLOOP_INLINE F32x16 load_as_float(const int32_t* p) { return {_mm512_cvtepi32_ps(_mm512_loadu_si512(p))}; }

// ---- f32 arithmetic -------------------------------------------------------------------------------------------------
HOTLOOP_INLINE F32x16 operator+(const F32x16& a, const F32x16& b) { return {_mm512_add_ps(a.v, b.v)}; }
HOTLOOP_INLINE F32x16 operator-(const F32x16& a, const F32x16& b) { return {_mm512_sub_ps(a.v, b.v)}; }
HOTLOOP_INLINE F32x16 operator*(const F32x16& a, const F32x16& b) { return {_mm512_mul_ps(a.v, b.v)}; }
HOTLOOP_INLINE F32x16 operator/(const F32x16& a, const F32x16& b) { return {_mm512_div_ps(a.v, b.v)}; }
HOTLOOP_INLINE F32x16 max(const F32x16& a, const F32x16& b) { return {_mm512_max_ps(a.v, b.v)}; }
HOTLOOP_INLINE F32x16 min(const F32x16& a, const F32x16& b) { return {_mm512_min_ps(a.v, b.v)}; }
HOTLOOP_INLINE F32x16 fma(const F32x16& a, const F32x16& b, const F32x16& c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
HOTLOOP_INLINE float scalar_sqrt(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

// ---- bits, comparisons, integers ------------------------------------------------------------------------------------
HOTLOOP_INLINE U32x16 bits(const F32x16& v) { return {_mm512_castps_si512(v.v)}; }
HOTLOOP_INLINE F32x16 from_bits(const U32x16& v) { return {_mm512_castsi512_ps(v.v)}; }
HOTLOOP_INLINE F32x16 to_float(const U32x16& v) { return {_mm512_cvtepi32_ps(v.v)}; }
HOTLOOP_INLINE U32x16 to_int(const F32x16& v) { return {_mm512_cvttps_epi32(v.v)}; }
HOTLOOP_INLINE U32x16 operator+(const U32x16& a, const U32x16& b) { return {_mm512_add_epi32(a.v, b.v)}; }
HOTLOOP_INLINE U32x16 operator-(const U32x16& a, const U32x16& b) { return {_mm512_sub_epi32(a.v, b.v)}; }
HOTLOOP_INLINE U32x16 operator&(const U32x16& a, const U32x16& b) { return {_mm512_and_si512(a.v, b.v)}; }
HOTLOOP_INLINE U32x16 operator|(const U32x16& a, const U32x16& b) { return {_mm512_or_si512(a.v, b.v)}; }
HOTLOOP_INLINE U32x16 operator^(const U32x16& a, const U32x16& b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int N>
HOTLOOP_INLINE U32x16 shift_left(const U32x16& v) {
  return {_mm512_slli_epi32(v.v, N)};
}
template <int N>
HOTLOOP_INLINE U32x16 shift_right(const U32x16& v) {
  return {_mm512_srli_epi32(v.v, N)};
}
template <int N>
HOTLOOP_INLINE U32x16 shift_right_signed(const U32x16& v) {
  return {_mm512_srai_epi32(v.v, N)};
}
HOTLOOP_INLINE void multiply_high_low(uint32_t factor, const U32x16& v, U32x16& high, U32x16& low) {
  const __m512i f = _mm512_set1_epi32(static_cast<int>(factor));
  const __m512i even = _mm512_mul_epu32(v.v, f);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(v.v, 32), f);
  high.v = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
  low.v = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}
HOTLOOP_INLINE Mask16 less(const F32x16& a, const F32x16& b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
HOTLOOP_INLINE F32x16 select(const Mask16& m, const F32x16& a, const F32x16& b) {
  return {_mm512_mask_blend_ps(m.bits, b.v, a.v)};
}

// ---- across lanes ---------------------------------------------------------------------------------------------------
HOTLOOP_INLINE __m256 upper_half(const F32x16& v) { return _mm512_extractf32x8_ps(v.v, 1); }
HOTLOOP_INLINE __m128 fold(const F32x16& v) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v.v), upper_half(v));
  return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}
HOTLOOP_INLINE void store_folded(float* p, const F32x16& v) { _mm_storeu_ps(p, fold(v)); }
template <int N>
HOTLOOP_INLINE void store_folded(float* p, const F32x16 (&v)[N]) {
  const auto eight = [](const F32x16& x) { return _mm256_add_ps(_mm512_castps512_ps256(x.v), upper_half(x)); };
  int i = 0;
  for (; i + 2 <= N; i += 2) {
    const __m256 a = eight(v[i]), b = eight(v[i + 1]);
    _mm256_storeu_ps(p + 4 * i, _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31)));
  }
  if (i < N) store_folded(p + 4 * i, v[i]);
}
HOTLOOP_INLINE __m512 add_halves(const float* p) {  // 8 quadruples: [q0 + q2, q1 + q3] of each
  const __m512d a = _mm512_castps_pd(_mm512_loadu_ps(p)), b = _mm512_castps_pd(_mm512_loadu_ps(p + 16));
  const __m512d first = _mm512_permutex2var_pd(a, _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), b);
  const __m512d second = _mm512_permutex2var_pd(a, _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15), b);
  return _mm512_add_ps(_mm512_castpd_ps(first), _mm512_castpd_ps(second));
}
HOTLOOP_INLINE __m512i even_index() {
  return _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
HOTLOOP_INLINE __m512i odd_index() {
  return _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
HOTLOOP_INLINE F32x16 sum_folded(const float* p) {
  const __m512 a = add_halves(p), b = add_halves(p + 32);
  return {_mm512_add_ps(_mm512_permutex2var_ps(a, even_index(), b), _mm512_permutex2var_ps(a, odd_index(), b))};
}
HOTLOOP_INLINE float horizontal_sum(const F32x16& v) {
  const __m128 four = fold(v);
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
HOTLOOP_INLINE float horizontal_max(const F32x16& v) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v.v), upper_half(v));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
HOTLOOP_INLINE void load_pairs(const float* p, F32x16& even, F32x16& odd) {
  const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16);
  even.v = _mm512_permutex2var_ps(a, even_index(), b);
  odd.v = _mm512_permutex2var_ps(a, odd_index(), b);
}
HOTLOOP_INLINE void store_pairs(float* p, const F32x16& even, const F32x16& odd) {
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i second = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  _mm512_storeu_ps(p, _mm512_permutex2var_ps(even.v, first, odd.v));
  _mm512_storeu_ps(p + 16, _mm512_permutex2var_ps(even.v, second, odd.v));
}

}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
