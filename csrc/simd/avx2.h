// Sixteen virtual lanes as two 256-bit registers (AVX2, FMA, F16C). The names are explained in simd/README.md.
#pragma once
#include <immintrin.h>

#include <cstdint>

#define HOTLOOP_TARGET_NAME "avx2"
#define HOTLOOP_SIMD_AVX2
#define HOTLOOP_INLINE static inline __attribute__((always_inline))

namespace hotloop::HOTLOOP_TARGET {
namespace {

struct F32x16 {
  __m256 lo, hi;  // lanes 0..7, 8..15
};
struct U32x16 {
  __m256i lo, hi;
};
struct Mask16 {
  __m256 lo, hi;
};

// ---- memory ---------------------------------------------------------------------------------------------------------
HOTLOOP_INLINE F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
HOTLOOP_INLINE U32x16 load(const uint32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
HOTLOOP_INLINE void store(float* p, const F32x16& v) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}
HOTLOOP_INLINE void store(uint32_t* p, const U32x16& v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), v.hi);
}
HOTLOOP_INLINE F32x16 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
HOTLOOP_INLINE U32x16 broadcast_u32(uint32_t x) {
  const __m256i v = _mm256_set1_epi32(static_cast<int>(x));
  return {v, v};
}
HOTLOOP_INLINE U32x16 lane_index() {
  return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}
HOTLOOP_INLINE U32x16 first_lanes(int64_t n) {  // all ones in lanes below n
  const __m256i count = _mm256_set1_epi32(static_cast<int>(n));
  const U32x16 index = lane_index();
  return {_mm256_cmpgt_epi32(count, index.lo), _mm256_cmpgt_epi32(count, index.hi)};
}
HOTLOOP_INLINE F32x16 load_partial(const float* p, int64_t n, float fill) {
  const U32x16 m = first_lanes(n);
  const __m256 f = _mm256_set1_ps(fill);
  return {_mm256_blendv_ps(f, _mm256_maskload_ps(p, m.lo), _mm256_castsi256_ps(m.lo)),
          _mm256_blendv_ps(f, _mm256_maskload_ps(p + 8, m.hi), _mm256_castsi256_ps(m.hi))};
}
HOTLOOP_INLINE void store_partial(float* p, int64_t n, const F32x16& v) {
  const U32x16 m = first_lanes(n);
  _mm256_maskstore_ps(p, m.lo, v.lo);
  _mm256_maskstore_ps(p + 8, m.hi, v.hi);
}

// ---- IEEE binary16 --------------------------------------------------------------------------------------------------
HOTLOOP_INLINE float f16_to_f32(uint16_t h) { return _cvtsh_ss(h); }
HOTLOOP_INLINE uint16_t f32_to_f16(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
HOTLOOP_INLINE F32x16 load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
HOTLOOP_INLINE void store_f16(uint16_t* p, const F32x16& v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT));
}
HOTLOOP_INLINE void store_f16_partial(uint16_t* p, int64_t n, const F32x16& v) {
  uint16_t all[16];
  store_f16(all, v);
  for (int i = 0; i < n; ++i) p[i] = all[i];
}

// ---- bfloat16, int8 -------------------------------------------------------------------------------------------------
HOTLOOP_INLINE F32x16 load_bf16(const uint16_t* p) {
  const auto widen = [](const uint16_t* x) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  };
  return {widen(p), widen(p + 8)};
}
HOTLOOP_INLINE F32x16 load_i8(const int8_t* p) {
  const auto widen = [](const int8_t* x) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x))));
  };
  return {widen(p), widen(p + 8)};
}

// ---- integer dots of 4 bytes, exact in any order --------------------------------------------------------------------
struct Codes {
  __m256i even, odd;  // int16: bytes 0 and 2 of each quad, bytes 1 and 3
};
struct CodeSum {
  __m256i v;
};
constexpr int kCodeLanes = 8;
constexpr int kQueryQuadBytes = 8;  // int16: elements 0, 2, 1, 3
HOTLOOP_INLINE void store_query_quad(uint8_t* p, const int8_t* q) {
  int16_t* words = reinterpret_cast<int16_t*>(p);
  words[0] = q[0], words[1] = q[2], words[2] = q[1], words[3] = q[3];
}
HOTLOOP_INLINE int32_t code_sum_start(int32_t) { return 0; }
HOTLOOP_INLINE CodeSum broadcast_sum(int32_t x) { return {_mm256_set1_epi32(x)}; }
HOTLOOP_INLINE Codes load_codes(const uint8_t* p) {
  const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8), _mm256_srai_epi16(v, 8)};
}
HOTLOOP_INLINE CodeSum add_dots(const CodeSum& sum, const Codes& k, const uint8_t* query_quad) {
  const int32_t* q = reinterpret_cast<const int32_t*>(query_quad);
  const __m256i even = _mm256_madd_epi16(k.even, _mm256_set1_epi32(q[0]));
  const __m256i odd = _mm256_madd_epi16(k.odd, _mm256_set1_epi32(q[1]));
  return {_mm256_add_epi32(sum.v, _mm256_add_epi32(even, odd))};
}
HOTLOOP_INLINE CodeSum operator+(const CodeSum& a, const CodeSum& b) {
  return {_mm256_add_epi32(a.v, b.v)};
}
HOTLOOP_INLINE void store(int32_t* p, const CodeSum& v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v.v); }
HOTLOOP_INLINE F32x16 load_as_float(const int32_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))),
          _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8)))};
}

// ---- f32 arithmetic -------------------------------------------------------------------------------------------------
HOTLOOP_INLINE F32x16 operator+(const F32x16& a, const F32x16& b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
HOTLOOP_INLINE F32x16 operator-(const F32x16& a, const F32x16& b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
HOTLOOP_INLINE F32x16 operator*(const F32x16& a, const F32x16& b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
HOTLOOP_INLINE F32x16 operator/(const F32x16& a, const F32x16& b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
HOTLOOP_INLINE F32x16 max(const F32x16& a, const F32x16& b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
HOTLOOP_INLINE F32x16 min(const F32x16& a, const F32x16& b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
HOTLOOP_INLINE F32x16 fma(const F32x16& a, const F32x16& b, const F32x16& c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
HOTLOOP_INLINE float scalar_sqrt(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

// ---- bits, comparisons, integers ------------------------------------------------------------------------------------
HOTLOOP_INLINE U32x16 bits(const F32x16& v) { return {_mm256_castps_si256(v.lo), _mm256_castps_si256(v.hi)}; }
HOTLOOP_INLINE F32x16 from_bits(const U32x16& v) { return {_mm256_castsi256_ps(v.lo), _mm256_castsi256_ps(v.hi)}; }
HOTLOOP_INLINE F32x16 to_float(const U32x16& v) { return {_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)}; }
HOTLOOP_INLINE U32x16 to_int(const F32x16& v) { return {_mm256_cvttps_epi32(v.lo), _mm256_cvttps_epi32(v.hi)}; }
HOTLOOP_INLINE U32x16 operator+(const U32x16& a, const U32x16& b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
HOTLOOP_INLINE U32x16 operator-(const U32x16& a, const U32x16& b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
HOTLOOP_INLINE U32x16 operator&(const U32x16& a, const U32x16& b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
HOTLOOP_INLINE U32x16 operator|(const U32x16& a, const U32x16& b) {
  return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
HOTLOOP_INLINE U32x16 operator^(const U32x16& a, const U32x16& b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
template <int N>
HOTLOOP_INLINE U32x16 shift_left(const U32x16& v) {
  return {_mm256_slli_epi32(v.lo, N), _mm256_slli_epi32(v.hi, N)};
}
template <int N>
HOTLOOP_INLINE U32x16 shift_right(const U32x16& v) {
  return {_mm256_srli_epi32(v.lo, N), _mm256_srli_epi32(v.hi, N)};
}
template <int N>
HOTLOOP_INLINE U32x16 shift_right_signed(const U32x16& v) {
  return {_mm256_srai_epi32(v.lo, N), _mm256_srai_epi32(v.hi, N)};
}
HOTLOOP_INLINE void multiply_high_low(__m256i factor, __m256i v, __m256i& high, __m256i& low) {
  const __m256i even = _mm256_mul_epu32(v, factor);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(v, 32), factor);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
HOTLOOP_INLINE void multiply_high_low(uint32_t factor, const U32x16& v, U32x16& high, U32x16& low) {
  const __m256i f = _mm256_set1_epi32(static_cast<int>(factor));
  multiply_high_low(f, v.lo, high.lo, low.lo);
  multiply_high_low(f, v.hi, high.hi, low.hi);
}
HOTLOOP_INLINE Mask16 less(const F32x16& a, const F32x16& b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
HOTLOOP_INLINE F32x16 select(const Mask16& m, const F32x16& a, const F32x16& b) {
  return {_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}

// ---- across lanes ---------------------------------------------------------------------------------------------------
HOTLOOP_INLINE __m128 fold(const F32x16& v) {
  const __m256 eight = _mm256_add_ps(v.lo, v.hi);
  return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}
HOTLOOP_INLINE void store_folded(float* p, const F32x16& v) { _mm_storeu_ps(p, fold(v)); }
template <int N>
HOTLOOP_INLINE void store_folded(float* p, const F32x16 (&v)[N]) {
  int i = 0;
  for (; i + 2 <= N; i += 2) {
    const __m256 a = _mm256_add_ps(v[i].lo, v[i].hi), b = _mm256_add_ps(v[i + 1].lo, v[i + 1].hi);
    _mm256_storeu_ps(p + 4 * i, _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31)));
  }
  if (i < N) store_folded(p + 4 * i, v[i]);
}
HOTLOOP_INLINE __m256 load_quadruples(const float* low, const float* high) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
}
HOTLOOP_INLINE __m256 add_halves(__m256 a, __m256 b) {  // per 128 bits: [a0 + a2, a1 + a3, b0 + b2, b1 + b3]
  const __m256d x = _mm256_castps_pd(a), y = _mm256_castps_pd(b);
  return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
}
HOTLOOP_INLINE __m256 sum_8_folded(const float* p) {
  const __m256 first = add_halves(load_quadruples(p, p + 16), load_quadruples(p + 4, p + 20));
  const __m256 second = add_halves(load_quadruples(p + 8, p + 24), load_quadruples(p + 12, p + 28));
  return _mm256_add_ps(_mm256_shuffle_ps(first, second, 0x88), _mm256_shuffle_ps(first, second, 0xdd));
}
HOTLOOP_INLINE F32x16 sum_folded(const float* p) { return {sum_8_folded(p), sum_8_folded(p + 32)}; }
HOTLOOP_INLINE float horizontal_sum(const F32x16& v) {
  const __m128 four = fold(v);
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
HOTLOOP_INLINE float horizontal_max(const F32x16& v) {
  const __m256 eight = _mm256_max_ps(v.lo, v.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
HOTLOOP_INLINE void load_pairs(const float* p, F32x16& even, F32x16& odd) {
  const auto take = [](__m256 a, __m256 b, bool second) {
    const __m256 mixed = second ? _mm256_shuffle_ps(a, b, 0xdd) : _mm256_shuffle_ps(a, b, 0x88);
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8));
  };
  const F32x16 a = load(p), b = load(p + 16);
  even = {take(a.lo, a.hi, false), take(b.lo, b.hi, false)};
  odd = {take(a.lo, a.hi, true), take(b.lo, b.hi, true)};
}
HOTLOOP_INLINE void store_pairs(float* p, __m256 even, __m256 odd) {
  const __m256 a = _mm256_unpacklo_ps(even, odd), b = _mm256_unpackhi_ps(even, odd);
  _mm256_storeu_ps(p, _mm256_permute2f128_ps(a, b, 0x20));
  _mm256_storeu_ps(p + 8, _mm256_permute2f128_ps(a, b, 0x31));
}
HOTLOOP_INLINE void store_pairs(float* p, const F32x16& even, const F32x16& odd) {
  store_pairs(p, even.lo, odd.lo);
  store_pairs(p + 16, even.hi, odd.hi);
}

}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
