// The most multiply-adds a kernel could do if it never loaded or stored: independent chains in registers, of the very
// instructions the GEMM kernels are made of. Only a yardstick; the results mean nothing. Each returns the operations it
// did, a multiply-add being two, and leaves its sums in `sink`.

namespace hotloop::HOTLOOP_TARGET {
namespace {

// Chains to fill two multiply-add units of latency 4, or as many as there are registers for.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kPeakChains = 12;
#elif defined(__AVX2__)
constexpr int kPeakChains = 6;
#else
constexpr int kPeakChains = 1;
#endif

int64_t peak_f32(int64_t rounds, float* sink) {
  const F32x16 factor = broadcast(0.5f), term = broadcast(1.0f);
  F32x16 sums[kPeakChains];
  for (F32x16& sum : sums) sum = term;
  for (int64_t i = 0; i < rounds; ++i) {
    for (F32x16& sum : sums) sum = fma(sum, factor, term);
  }
  F32x16 total = sums[0];
  for (int i = 1; i < kPeakChains; ++i) total = total + sums[i];
  store(sink, total);
  return rounds * kPeakChains * 16 * 2;
}

#if defined(__AVX512VNNI__)
int64_t peak_int8(int64_t rounds, float* sink) {
  constexpr int kChains = 12;
  const __m512i a = _mm512_set1_epi8(1), b = _mm512_set1_epi8(2);
  __m512i sums[kChains];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (int64_t i = 0; i < rounds; ++i) {
    for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, b);
  }
  __m512i total = sums[0];
  for (int i = 1; i < kChains; ++i) total = _mm512_add_epi32(total, sums[i]);
  _mm512_storeu_si512(sink, total);
  return rounds * kChains * 64 * 2;
}
#elif defined(__AVX512BW__) || defined(__AVX2__)
#if defined(__AVX512BW__)
using PeakBytes = __m512i;
HOTLOOP_INLINE PeakBytes peak_bytes(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
HOTLOOP_INLINE PeakBytes peak_step(PeakBytes sum, PeakBytes a, PeakBytes b) {
  return _mm512_add_epi16(sum, _mm512_maddubs_epi16(a, b));
}
#else
using PeakBytes = __m256i;
HOTLOOP_INLINE PeakBytes peak_bytes(int x) { return _mm256_set1_epi8(static_cast<char>(x)); }
HOTLOOP_INLINE PeakBytes peak_step(PeakBytes sum, PeakBytes a, PeakBytes b) {
  return _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b));
}
#endif
int64_t peak_int8(int64_t rounds, float* sink) {
  // Six different products a round; the empty statement makes the compiler believe that they change with every round.
  constexpr int kRight = 3, kChains = 2 * kRight;
  PeakBytes left[2] = {peak_bytes(1), peak_bytes(2)};
  PeakBytes right[kRight], sums[kChains];
  for (int i = 0; i < kRight; ++i) right[i] = peak_bytes(3 + i);
  for (PeakBytes& sum : sums) sum = peak_bytes(0);
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+x"(left[0]), "+x"(left[1]));
    for (int j = 0; j < kChains; ++j) sums[j] = peak_step(sums[j], left[j / kRight], right[j % kRight]);
  }
  PeakBytes total = sums[0];
  for (int i = 1; i < kChains; ++i) total = peak_step(total, sums[i], right[0]);
  __builtin_memcpy(sink, &total, sizeof total);
  return rounds * kChains * static_cast<int64_t>(sizeof(PeakBytes)) * 2;
}
#elif defined(__ARM_FEATURE_DOTPROD)
int64_t peak_int8(int64_t rounds, float* sink) {
  constexpr int kChains = 12;
  const int8x16_t a = vdupq_n_s8(1), b = vdupq_n_s8(2);
  int32x4_t sums[kChains];
  for (int32x4_t& sum : sums) sum = vdupq_n_s32(0);
  for (int64_t i = 0; i < rounds; ++i) {
    for (int32x4_t& sum : sums) sum = vdotq_s32(sum, a, b);
  }
  int32x4_t total = sums[0];
  for (int i = 1; i < kChains; ++i) total = vaddq_s32(total, sums[i]);
  __builtin_memcpy(sink, &total, sizeof total);
  return rounds * kChains * 16 * 2;
}
#else
int64_t peak_int8(int64_t rounds, float* sink) {
  constexpr int kLanes8 = 16;
  int8_t a[kLanes8], b[kLanes8];
  int32_t sums[kLanes8] = {};
  for (int i = 0; i < kLanes8; ++i) a[i] = b[i] = static_cast<int8_t>(i);
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : : "r"(a) : "memory");  // the compiler must believe that the bytes changed
    for (int j = 0; j < kLanes8; ++j) sums[j] += a[j] * b[j];
  }
  __builtin_memcpy(sink, sums, sizeof sums);
  return rounds * kLanes8 * 2;
}
#endif

}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
