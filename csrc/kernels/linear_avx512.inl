// AVX-512 (F, BW, VL, DQ), with VNNI where the target has it. A register holds two row blocks, the lower half one and
// the upper half the other, so one broadcast of four activations serves 16 rows. The arithmetic per output element is
// that of linear_avx2.inl. Formats without a specialisation at the end of this file run the AVX2 code, which for float
// weights is as fast: there the joining of two row blocks costs more than wider multiply-adds gain.
#include "kernels/linear_avx2.inl"

namespace hotloop::HOTLOOP_TARGET {
namespace {
namespace lin {
namespace wide {

// ---- two row blocks side by side --------------------------------------------------------------------------------

struct Pair {  // two row blocks; equal where a range has an odd one, which is then computed twice
  const uint8_t* low;
  const uint8_t* high;
};

inline __m512i join(__m256i low, __m256i high) { return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1); }
inline __m512i load32(const void* low, const void* high) { return join(load256(low), load256(high)); }
inline __m512i broadcast4(const void* p) {  // 4 bytes to all 16 lanes
  int32_t v;
  __builtin_memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}
inline __m512 half16_to_float(const uint16_t* low, const uint16_t* high) {
  return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(load128(low)), load128(high), 1));
}
inline __m512 float_of(const float* p) { return _mm512_set1_ps(*p); }

}  // namespace wide
}  // namespace lin
}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET

#include "kernels/linear_avx512_formats.inl"

namespace hotloop::HOTLOOP_TARGET {
namespace {
namespace lin {
namespace wide {

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
  const int64_t group_bytes = row_block_bytes(w.format, w.cols) / groups;
  const bool first_pass = token == range.token_begin;
  for (int64_t g = 0; g < groups; ++g) {
    if (N >= kPrefetchTokens && first_pass) {
      for (int r = 0; r < R; ++r) {
        prefetch(block[r].low + (g + kPrefetchGroups) * group_bytes, group_bytes);
        prefetch(block[r].high + (g + kPrefetchGroups) * group_bytes, group_bytes);
      }
    }
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
  for (; t + 8 <= range.token_end; t += 8) int8_tile<Format, R, 8>(w, a, range, rows, t);
  for (; t + 4 <= range.token_end; t += 4) int8_tile<Format, R, 4>(w, a, range, rows, t);
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
  if (range.token_end - range.token_begin < 8) {  // four streams; with more tokens they would not fit the registers
    return for_each_rows<2>(range, [&](const auto& rows) { int8_rows<Format>(w, x.quantized, range, rows); });
  }
  for_each_rows<1>(range, [&](const auto& rows) { int8_rows<Format>(w, x.quantized, range, rows); });
}

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
HOTLOOP_WIDE(Q5_1)
HOTLOOP_WIDE(Q2_K)
HOTLOOP_WIDE(Q3_K)
HOTLOOP_WIDE(Q4_K)
HOTLOOP_WIDE(Q5_K)
HOTLOOP_WIDE(Q6_K)
HOTLOOP_WIDE(MXFP4)
#if defined(__AVX512VNNI__)  // codes above 127, which maddubs would saturate
HOTLOOP_WIDE(Q8_0)
HOTLOOP_WIDE(IQ4_NL)
HOTLOOP_WIDE(IQ4_XS)
#endif
#undef HOTLOOP_WIDE
#undef HOTLOOP_UNROLL

}  // namespace lin
}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
