// AVX2 + FMA + F16C. A tile is R row blocks x N tokens, walked group by group: the R row blocks stream from distant
// addresses in lockstep (a core reads several far streams faster than one), and one broadcast of four activations
// serves all of them; the N tokens share the unpacked weights. Every tile runs the same operations per output element.
#include <immintrin.h>

namespace hotloop::HOTLOOP_TARGET {
namespace {
namespace lin {

#define HOTLOOP_UNROLL _Pragma("GCC unroll 16")

void quantize_group(const float* x, int8_t* q, float* scale, float* scaled_sum, int16_t* sum16) {
  __m256 v[4];
  __m256i max_bits = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_loadu_ps(x + 8 * i);
    const __m256i bits = _mm256_and_si256(_mm256_castps_si256(v[i]), _mm256_set1_epi32(0x7fffffff));
    max_bits = _mm256_max_epi32(max_bits, bits);
  }
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(max_bits), _mm256_extracti128_si256(max_bits, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  const ActivationScale s = activation_scale(static_cast<uint32_t>(_mm_cvtsi128_si32(m)));
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(s.inverse > 0.0f ? -1 : 0));
  const __m256 factor = _mm256_set1_ps(s.inverse);
  __m256i words[4];
  for (int i = 0; i < 4; ++i) words[i] = _mm256_cvtps_epi32(_mm256_and_ps(_mm256_mul_ps(v[i], factor), mask));
  // packs works per 128-bit half: permute the dwords back to k order.
  __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(words[0], words[1]), _mm256_packs_epi32(words[2], words[3]));
  bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  bytes = _mm256_max_epi8(bytes, _mm256_set1_epi8(-127));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), bytes);
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
  __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));  // 4 consecutive k per lane
  sums = _mm256_hadd_epi32(sums, sums);
  sums = _mm256_hadd_epi32(sums, sums);                           // k 0..15 in the lower half, 16..31 in the upper
  const int lower = _mm256_extract_epi32(sums, 0);
  const int upper = _mm256_extract_epi32(sums, 4);
  *scale = s.scale;
  *scaled_sum = s.scale * static_cast<float>(lower + upper);
  sum16[0] = static_cast<int16_t>(lower);
  sum16[1] = static_cast<int16_t>(upper);
}

// With four tokens or more the arithmetic hides too little of the memory's latency: the processor has fewer loads in flight
// than with one, where software prefetch only harms. So what a pass reads first is fetched this far ahead.
constexpr int64_t kPrefetchGroups = 16;
constexpr int kPrefetchTokens = 4;

inline void prefetch(const uint8_t* p, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p + i), _MM_HINT_T0);
}

inline __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

inline __m256i broadcast4(const void* p) {  // 4 bytes to all 8 lanes
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm256_set1_epi32(v);
}

inline __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

inline __m256 half8_to_float(const uint16_t* p) { return _mm256_cvtph_ps(load128(p)); }

inline __m256i low_nibbles(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
inline __m256i high_nibbles(__m256i v) { return low_nibbles(_mm256_srli_epi16(v, 4)); }

// One token's numbers of a group, in every lane; sum16: (sum of k 0..15, sum of k 16..31) as int16 pairs.
struct XFactors {
  __m256 scale, scaled_sum;
  __m256i sum16;
};

// Activations of N tokens of which this tile computes one group at a time.
template <int N>
struct XTile {
  const int8_t* q[N];
  const float* scale[N];
  const float* scaled_sum[N];
  const int16_t* sum16[N];

  XTile(const QuantizedActivations& a, int64_t token) {
    for (int n = 0; n < N; ++n) {
      q[n] = a.q + (token + n) * a.cols;
      scale[n] = a.scale + (token + n) * (a.cols / 32);
      scaled_sum[n] = a.scaled_sum + (token + n) * (a.cols / 32);
      sum16[n] = a.sum16 + (token + n) * (a.cols / 16);
    }
  }
  XFactors factors(int n, int64_t g) const {
    return {_mm256_broadcast_ss(scale[n] + g), _mm256_broadcast_ss(scaled_sum[n] + g), broadcast4(sum16[n] + 2 * g)};
  }
};

}  // namespace lin
}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET

#include "kernels/linear_avx2_formats.inl"
#include "kernels/linear_avx2_panel.inl"

namespace hotloop::HOTLOOP_TARGET {
namespace {
namespace lin {

// ---- tiles ------------------------------------------------------------------------------------------------------

// Row blocks first, first + step, ... (R of them) x tokens token .. token + N - 1.
template <class Format, int R, int N>
void int8_tile(const Matrix& w, const QuantizedActivations& a, const Range& range, int64_t first, int64_t step,
               int64_t token) {
  const uint8_t* block[R];
  for (int r = 0; r < R; ++r) block[r] = row_block_data(w, first + r * step);
  const XTile<N> x(a, token);
  __m256 acc[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) acc[r][n] = _mm256_setzero_ps();
  }
  const int64_t groups = w.cols / kGroupSize;
  for (int64_t g = 0; g < groups; ++g) {
    __m256i sum[R][N];
    Format::template dot<R, N>(block, x, g, sum);
    HOTLOOP_UNROLL
    for (int r = 0; r < R; ++r) {
      const typename Format::Factors factors = Format::factors(block[r], g);
      HOTLOOP_UNROLL
      for (int n = 0; n < N; ++n) {
        acc[r][n] = Format::accumulate(acc[r][n], _mm256_cvtepi32_ps(sum[r][n]), factors, x.factors(n, g));
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) _mm256_storeu_ps(range.at(first + r * step, token + n), acc[r][n]);
  }
}

// R distant streams in lockstep over the range's row blocks, then what is left one by one; the range has N tokens.
template <class Format, int R, int N>
void int8_streams(const Matrix& w, const QuantizedActivations& a, const Range& range) {
  const int64_t step = (range.row_block_end - range.row_block_begin) / R;
  for (int64_t i = 0; i < step; ++i) {
    int8_tile<Format, R, N>(w, a, range, range.row_block_begin + i, step, range.token_begin);
  }
  for (int64_t b = range.row_block_begin + R * step; b < range.row_block_end; ++b) {
    int8_tile<Format, 1, N>(w, a, range, b, 0, range.token_begin);
  }
}

template <class Format>
void linear_int8(const Matrix& w, const Activations& x, const Range& range) {
  const int64_t tokens = range.token_end - range.token_begin;
  if (tokens == 1) return int8_streams<Format, 4, 1>(w, x.quantized, range);
  if (tokens == 2) return int8_streams<Format, 2, 2>(w, x.quantized, range);
  return panel::linear_int8<Format>(w, x.quantized, range);
}

// ---- f32 activations --------------------------------------------------------------------------------------------

struct F32 {
  static constexpr int64_t kBytes = 4;
  static __m256 load(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
};
struct F16 {
  static constexpr int64_t kBytes = 2;
  static __m256 load(const uint8_t* p) { return half8_to_float(reinterpret_cast<const uint16_t*>(p)); }
};
struct BF16 {
  static constexpr int64_t kBytes = 2;
  static __m256 load(const uint8_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(load128(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
};

// Continue the fma chains in out over cols k: R row blocks w[r][k][8 rows] x N tokens.
template <class Float, int R, int N>
void fma_tile(const uint8_t* const (&block)[R], const float* const (&x)[N], int64_t cols, bool fresh,
              float* const (&out)[R][N]) {
  __m256 acc[R][N];
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) acc[r][n] = fresh ? _mm256_setzero_ps() : _mm256_loadu_ps(out[r][n]);
  }
  for (int64_t k = 0; k < cols; ++k) {
    __m256 w[R];
    HOTLOOP_UNROLL
    for (int r = 0; r < R; ++r) w[r] = Float::load(block[r] + k * kRowBlock * Float::kBytes);
    HOTLOOP_UNROLL
    for (int n = 0; n < N; ++n) {
      const __m256 xk = _mm256_broadcast_ss(x[n] + k);
      HOTLOOP_UNROLL
      for (int r = 0; r < R; ++r) acc[r][n] = _mm256_fmadd_ps(w[r], xk, acc[r][n]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int n = 0; n < N; ++n) _mm256_storeu_ps(out[r][n], acc[r][n]);
  }
}

template <class Float, int R, int N>
void float_tile(const Matrix& w, const Activations& x, const Range& range, int64_t first, int64_t step,
                int64_t token) {
  const uint8_t* block[R];
  const float* xs[N];
  float* out[R][N];
  for (int n = 0; n < N; ++n) xs[n] = x.f32 + (token + n) * x.cols;
  for (int r = 0; r < R; ++r) {
    block[r] = row_block_data(w, first + r * step);
    for (int n = 0; n < N; ++n) out[r][n] = range.at(first + r * step, token + n);
  }
  fma_tile<Float, R, N>(block, xs, w.cols, true, out);
}

template <class Float, int R>
void float_rows(const Matrix& w, const Activations& x, const Range& range, int64_t first, int64_t step) {
  int64_t t = range.token_begin;
  if constexpr (R < 4) {
    for (; t + 4 <= range.token_end; t += 4) float_tile<Float, R, 4>(w, x, range, first, step, t);
    for (; t + 2 <= range.token_end; t += 2) float_tile<Float, R, 2>(w, x, range, first, step, t);
  }
  for (; t < range.token_end; ++t) float_tile<Float, R, 1>(w, x, range, first, step, t);
}

template <class Float, int R>
void float_streams(const Matrix& w, const Activations& x, const Range& range) {
  const int64_t step = (range.row_block_end - range.row_block_begin) / R;
  for (int64_t i = 0; i < step; ++i) float_rows<Float, R>(w, x, range, range.row_block_begin + i, step);
  for (int64_t b = range.row_block_begin + R * step; b < range.row_block_end; ++b) {
    float_rows<Float, 1>(w, x, range, b, 0);
  }
}

// An fma has to wait for the one before it in its chain: 4 x 1 and 3 x 4 chains at a time keep the units busy.
template <class Float>
void linear_floats(const Matrix& w, const Activations& x, const Range& range) {
  const int64_t tokens = range.token_end - range.token_begin;
  if (tokens == 1) return float_streams<Float, 4>(w, x, range);
  return float_streams<Float, 3>(w, x, range);
}

// Test mode: a stretch of one row block is expanded to f32 once, then all tokens pass over it; chains rest in `out`.
template <class Format>
void linear_dequantized(const Matrix& w, const Activations& x, const Range& range) {
  constexpr int64_t kStretch = 8;  // groups
  alignas(32) float expanded[kStretch * kGroupSize * kRowBlock];
  const uint8_t* const block[1] = {reinterpret_cast<const uint8_t*>(expanded)};
  const int64_t groups = w.cols / kGroupSize;
  for (int64_t b = range.row_block_begin; b < range.row_block_end; ++b) {
    for (int64_t g = 0; g < groups; g += kStretch) {
      const int64_t stretch = groups - g < kStretch ? groups - g : kStretch;
      for (int64_t i = 0; i < stretch; ++i) {
        float* group = expanded + i * kGroupSize * kRowBlock;
        for (int r = 0; r < kRowBlock; ++r) {
          dequantize_group<typename Format::Values>(row_block_data(w, b), g + i, r, group + r, kRowBlock);
        }
      }
      const int64_t offset = g * kGroupSize;
      const int64_t cols = stretch * kGroupSize;
      int64_t t = range.token_begin;
      for (; t + 4 <= range.token_end; t += 4) {
        const float* xs[4];
        float* out[1][4];
        for (int n = 0; n < 4; ++n) {
          xs[n] = x.f32 + (t + n) * x.cols + offset;
          out[0][n] = range.at(b, t + n);
        }
        fma_tile<F32, 1, 4>(block, xs, cols, g == 0, out);
      }
      for (; t < range.token_end; ++t) {
        const float* const xs[1] = {x.f32 + t * x.cols + offset};
        float* const out[1][1] = {{range.at(b, t)}};
        fma_tile<F32, 1, 1>(block, xs, cols, g == 0, out);
      }
    }
  }
}

#undef HOTLOOP_UNROLL

}  // namespace lin
}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
