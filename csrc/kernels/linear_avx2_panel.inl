// Many tokens on AVX2. What does not depend on the other side is done once per stretch of K and shared: a pair of row
// blocks is expanded to bytes and f32 factors for all tokens, the tokens are copied into panels for all row blocks, both
// small enough for the first-level cache however long a row is. A tile, 2 row blocks x 4 tokens, then only multiplies,
// adds and converts; its fma chains rest in a scratch between stretches. Same operations per output element as
// linear_avx2.inl, so the same bits.
namespace hotloop::HOTLOOP_TARGET {
namespace {
namespace lin {
namespace panel {

constexpr int kStretch = 8;   // groups
constexpr int kRows = 2;      // row blocks of a tile: with 4 tokens, 8 sums and what feeds them fill the 16 registers
constexpr int kTokens = 4;    // tokens of a tile
constexpr int kMaxTokens = 64;
constexpr int kMaxRowBlocks = 16;

// Up to so many tokens the weights are unpacked for every tile: more where that is only a mask, or a shift and a mask.
template <class Format>
constexpr int64_t kPackedTokens = 8;
template <>
constexpr int64_t kPackedTokens<Q4_0> = 12;
template <>
constexpr int64_t kPackedTokens<Q4_1> = 12;
template <>
constexpr int64_t kPackedTokens<Q8_0> = 12;
template <>
constexpr int64_t kPackedTokens<MXFP4> = 4;
constexpr int64_t kMaxPackedTokens = 12;

// A tile needs all registers to itself. And gcc 12 takes one of them for a function without effects and drops its calls:
// nothing may be concluded about them.
#if defined(__clang__)
#define HOTLOOP_APART __attribute__((noinline))
#else
#define HOTLOOP_APART __attribute__((noipa))
#endif

// Without it gcc adds in an order of its own, runs out of registers and spills.
inline void in_order(__m256i& sum) { asm("" : "+x"(sum)); }

inline __m256i even_bytes(__m256i v) { return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8); }
inline __m256i odd_bytes(__m256i v) { return _mm256_srai_epi16(v, 8); }

// ---- activations ------------------------------------------------------------------------------------------------

// A stretch of four tokens, group by group, so that one pointer walks all. What a format does not read is not filled.
struct Panel {
  union {
    alignas(64) int8_t q[kStretch][kTokens][kGroupSize];
    alignas(64) int16_t wide[kStretch][kTokens][2][16];  // even and odd bytes of q
  };
  alignas(16) float scale[kStretch][kTokens];
  alignas(16) float scaled_sum[kStretch][kTokens];
  alignas(16) int32_t sum16[kStretch][kTokens];     // a pair of int16
  alignas(16) int32_t start[kStretch][2][kTokens];  // of each half, or of the group in [0]: a pair of int16 (Whole, Halves)
  alignas(16) int32_t sum[kStretch][kTokens];       // of the group, times kAddBack

  XFactors factors(int64_t g, int t) const {
    return {_mm256_broadcast_ss(&scale[g][t]), _mm256_broadcast_ss(&scaled_sum[g][t]), broadcast4(&sum16[g][t])};
  }
};

// The same stretch where it is: 8 groups of each of four tokens.
struct Source {
  const int8_t* q[kTokens];
  const float* scale[kTokens];
  const float* scaled_sum[kTokens];
  const int16_t* sum16[kTokens];

  // Tokens past the last repeat it; nobody reads what comes of them.
  Source(const QuantizedActivations& a, int64_t token, int64_t last_token, int64_t group) {
    for (int t = 0; t < kTokens; ++t) {
      const int64_t row = token + t < last_token ? token + t : last_token;
      const int64_t at = row * (a.cols / kGroupSize) + group;
      q[t] = a.q + at * kGroupSize;
      scale[t] = a.scale + at;
      scaled_sum[t] = a.scaled_sum + at;
      sum16[t] = a.sum16 + 2 * at;
    }
  }
};

// A shorter stretch, copied to where 8 groups may be read.
struct ShortSource {
  alignas(64) int8_t q[kTokens][kStretch * kGroupSize] = {};
  float scale[kTokens][kStretch] = {}, scaled_sum[kTokens][kStretch] = {};
  int16_t sum16[kTokens][2 * kStretch] = {};

  ShortSource(Source& from, int64_t groups) {
    for (int t = 0; t < kTokens; ++t) {
      __builtin_memcpy(q[t], from.q[t], groups * kGroupSize);
      __builtin_memcpy(scale[t], from.scale[t], groups * 4);
      __builtin_memcpy(scaled_sum[t], from.scaled_sum[t], groups * 4);
      __builtin_memcpy(sum16[t], from.sum16[t], groups * 4);
      from.q[t] = q[t], from.scale[t] = scale[t], from.scaled_sum[t] = scaled_sum[t], from.sum16[t] = sum16[t];
    }
  }
};

// Numbers of 4 bytes: lane i of rows[t] to [i][t] of an array with `stride` numbers from one i to the next.
inline void store_transposed(const __m256i (&rows)[kTokens], void* to, int64_t stride) {
  const __m256i a = _mm256_unpacklo_epi32(rows[0], rows[1]), b = _mm256_unpackhi_epi32(rows[0], rows[1]);
  const __m256i c = _mm256_unpacklo_epi32(rows[2], rows[3]), d = _mm256_unpackhi_epi32(rows[2], rows[3]);
  const __m256i columns[4] = {_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c), _mm256_unpacklo_epi64(b, d),
                              _mm256_unpackhi_epi64(b, d)};
  int32_t* out = static_cast<int32_t*>(to);
  HOTLOOP_UNROLL
  for (int i = 0; i < 4; ++i) {
    _mm_store_si128(reinterpret_cast<__m128i*>(out + i * stride), _mm256_castsi256_si128(columns[i]));
    _mm_store_si128(reinterpret_cast<__m128i*>(out + (i + 4) * stride), _mm256_extracti128_si256(columns[i], 1));
  }
}

// 4 groups' sums over k mod 4 in {0, 1} and {2, 3}, a pair of int16: of the first halves in lanes 0..3, of the last in 4..7.
inline __m256i pair_sums(const int8_t* q) {
  __m256i p[4];
  HOTLOOP_UNROLL
  for (int g = 0; g < 4; ++g) p[g] = _mm256_maddubs_epi16(_mm256_set1_epi8(1), load256(q + g * kGroupSize));
  const __m256i a = _mm256_add_epi16(_mm256_unpacklo_epi64(p[0], p[1]), _mm256_unpackhi_epi64(p[0], p[1]));
  const __m256i b = _mm256_add_epi16(_mm256_unpacklo_epi64(p[2], p[3]), _mm256_unpackhi_epi64(p[2], p[3]));
  const __m256 even = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88);
  const __m256 odd = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xdd);
  return _mm256_add_epi16(_mm256_castps_si256(even), _mm256_castps_si256(odd));
}

template <class Dot>
inline void fill_starts(Panel& panel, const Source& from) {
  __m256i first[kTokens], last[kTokens];  // 4 groups each
  const __m256i factor = _mm256_set1_epi16(-Dot::kOffset);
  for (int t = 0; t < kTokens; ++t) {
    first[t] = _mm256_mullo_epi16(pair_sums(from.q[t]), factor);
    last[t] = _mm256_mullo_epi16(pair_sums(from.q[t] + 4 * kGroupSize), factor);
  }
  // The first halves of 8 groups, then the last ones.
  __m256i halves[2][kTokens];
  for (int t = 0; t < kTokens; ++t) {
    halves[0][t] = _mm256_permute2x128_si256(first[t], last[t], 0x20);
    halves[1][t] = _mm256_permute2x128_si256(first[t], last[t], 0x31);
    if constexpr (!Dot::kHalves) halves[0][t] = _mm256_add_epi16(halves[0][t], halves[1][t]);
  }
  store_transposed(halves[0], panel.start[0][0], 2 * kTokens);
  if constexpr (Dot::kHalves) store_transposed(halves[1], panel.start[0][1], 2 * kTokens);
}

template <class Format>
void fill(Panel& panel, const Source& from) {
  using Dot = typename Format::Dot;
  __m256i scale[kTokens], scaled_sum[kTokens], sum16[kTokens], sum[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    HOTLOOP_UNROLL
    for (int g = 0; g < kStretch; ++g) {
      const __m256i q = load256(from.q[t] + g * kGroupSize);
      if constexpr (__is_same(Dot, Signed)) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(panel.wide[g][t][0]), even_bytes(q));
        _mm256_store_si256(reinterpret_cast<__m256i*>(panel.wide[g][t][1]), odd_bytes(q));
      } else {
        _mm256_store_si256(reinterpret_cast<__m256i*>(panel.q[g][t]), q);
      }
    }
    scale[t] = load256(from.scale[t]);
    scaled_sum[t] = load256(from.scaled_sum[t]);
    sum16[t] = load256(from.sum16[t]);
    sum[t] = _mm256_madd_epi16(sum16[t], _mm256_set1_epi16(Dot::kAddBack));
  }
  store_transposed(scale, panel.scale, kTokens);
  store_transposed(scaled_sum, panel.scaled_sum, kTokens);
  if constexpr (__is_same(Format, Q2_K)) store_transposed(sum16, panel.sum16, kTokens);
  if constexpr (Dot::kAddBack != 0) store_transposed(sum, panel.sum, kTokens);
  if constexpr (Dot::kOffset != 0) fill_starts<Dot>(panel, from);
}

// ---- weights ----------------------------------------------------------------------------------------------------

// A pair of row blocks as a tile reads them: register J of a group's codes, its factors, its halves' scales.

struct Pair {
  const uint8_t* block[kRows];
};

// Each row's scale of a half twice; scales: (s0, s1) of row i in lane i.
template <int Half>
inline __m256i scale_twice(__m256i scales) {
  const __m128i twice_first = _mm_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13);
  return _mm256_shuffle_epi8(scales, _mm256_broadcastsi128_si256(_mm_add_epi8(twice_first, _mm_set1_epi8(2 * Half))));
}

// For one tile of tokens: unpacked on the way.
template <class Format>
struct Packed {
  Pair rows;
  int64_t group;  // where the stretch begins

  template <int J>
  __m256i code(int64_t g, int r) const { return Format::template code<J>(rows.block[r], group + g); }
  template <int J>
  __m256i wide_code(int64_t g, int r) const {
    return J % 2 == 0 ? even_bytes(code<J / 2>(g, r)) : odd_bytes(code<J / 2>(g, r));
  }
  typename Format::Factors factors(int64_t g, int r) const { return Format::factors(rows.block[r], group + g); }
  template <int Half>
  __m256i scale(int64_t g, int r) const { return scale_twice<Half>(Format::half_scales(rows.block[r], group + g)); }
};

// For several: expanded once, in the first-level cache.
template <class Format>
class Expanded {
 public:
  void fill(const Pair& rows, int64_t group, int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      for (int r = 0; r < kRows; ++r) fill_group({rows, group}, g, r);
    }
  }

  template <int J>
  __m256i code(int64_t g, int r) const { return load256(codes_[g][J][r]); }
  template <int J>
  __m256i wide_code(int64_t g, int r) const { return load256(codes_[g][J][r]); }
  const typename Format::Factors& factors(int64_t g, int r) const { return factors_[g][r]; }
  template <int Half>
  __m256i scale(int64_t g, int r) const { return load256(scales_[g][Half][r]); }

 private:
  static constexpr bool kWide = __is_same(typename Format::Dot, Signed);
  alignas(64) uint8_t codes_[kStretch][kWide ? 16 : 8][kRows][32];
  alignas(32) uint8_t scales_[kStretch][2][kRows][32];
  typename Format::Factors factors_[kStretch][kRows];

  static void put(uint8_t (&to)[32], __m256i v) { _mm256_store_si256(reinterpret_cast<__m256i*>(to), v); }

  template <int J>
  void fill_code(const Packed<Format>& from, int64_t g, int r) {
    if constexpr (kWide) {
      put(codes_[g][2 * J][r], from.template wide_code<2 * J>(g, r));
      put(codes_[g][2 * J + 1][r], from.template wide_code<2 * J + 1>(g, r));
    } else {
      put(codes_[g][J][r], from.template code<J>(g, r));
    }
  }

  void fill_group(const Packed<Format>& from, int64_t g, int r) {
    factors_[g][r] = from.factors(g, r);
    if constexpr (Format::Dot::kHalves) {
      put(scales_[g][0][r], from.template scale<0>(g, r));
      put(scales_[g][1][r], from.template scale<1>(g, r));
    }
    fill_code<0>(from, g, r);
    fill_code<1>(from, g, r);
    fill_code<2>(from, g, r);
    fill_code<3>(from, g, r);
    fill_code<4>(from, g, r);
    fill_code<5>(from, g, r);
    fill_code<6>(from, g, r);
    fill_code<7>(from, g, r);
  }
};

// ---- exact integer dots of one group ----------------------------------------------------------------------------

// Register J times the activations; the first of a sum that starts at nothing replaces it.
template <int J, bool Replace, class Weights, int N>
HOTLOOP_INLINE void add_pairs(const Weights& w, const Panel& x, int64_t g, __m256i (&pairs)[kRows][N]) {
  __m256i code[kRows];
  HOTLOOP_UNROLL
  for (int r = 0; r < kRows; ++r) code[r] = w.template code<J>(g, r);
  HOTLOOP_UNROLL
  for (int t = 0; t < N; ++t) {
    const __m256i xj = broadcast4(x.q[g][t] + 4 * J);
    HOTLOOP_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const __m256i p = _mm256_maddubs_epi16(code[r], xj);
      pairs[r][t] = Replace ? p : _mm256_add_epi16(pairs[r][t], p);
      in_order(pairs[r][t]);
    }
  }
}

template <int N>
HOTLOOP_INLINE void start_pairs(const Panel& x, int64_t g, int half, __m256i (&pairs)[kRows][N]) {
  HOTLOOP_UNROLL
  for (int t = 0; t < N; ++t) {
    HOTLOOP_UNROLL
    for (int r = 0; r < kRows; ++r) pairs[r][t] = broadcast4(&x.start[g][half][t]);
  }
}

// Codes stored Offset above values whose 16 products fit int16. The sum of the stored codes' products may not: it starts
// at -Offset times the activations, so it ends where it fits, and int16 wraps around on the way there and back.
// AddBack: the stored codes are the values of the definition after all.
template <int Offset, int AddBack>
struct Whole {
  static constexpr int kOffset = Offset, kAddBack = AddBack;
  static constexpr bool kHalves = false;

  template <class Weights, int N>
  HOTLOOP_INLINE void sum(const Weights& w, const Panel& x, int64_t g, __m256i (&sums)[kRows][N]) {
    if constexpr (Offset != 0) start_pairs(x, g, 0, sums);
    add_pairs<0, Offset == 0>(w, x, g, sums);
    add_pairs<1, false>(w, x, g, sums);
    add_pairs<2, false>(w, x, g, sums);
    add_pairs<3, false>(w, x, g, sums);
    add_pairs<4, false>(w, x, g, sums);
    add_pairs<5, false>(w, x, g, sums);
    add_pairs<6, false>(w, x, g, sums);
    add_pairs<7, false>(w, x, g, sums);
    HOTLOOP_UNROLL
    for (int t = 0; t < N; ++t) {
      HOTLOOP_UNROLL
      for (int r = 0; r < kRows; ++r) {
        sums[r][t] = _mm256_madd_epi16(sums[r][t], _mm256_set1_epi16(1));
        if constexpr (AddBack != 0) sums[r][t] = _mm256_add_epi32(sums[r][t], broadcast4(&x.sum[g][t]));
      }
    }
  }
};

// The same with an integer scale for each half of the group.
template <int Offset>
struct Halves {
  static constexpr int kOffset = Offset, kAddBack = 0;
  static constexpr bool kHalves = true;

  template <class Weights, int N>
  HOTLOOP_INLINE void sum(const Weights& w, const Panel& x, int64_t g, __m256i (&sums)[kRows][N]) {
    __m256i second[kRows][N];
    half<0>(w, x, g, sums);
    half<1>(w, x, g, second);
    HOTLOOP_UNROLL
    for (int t = 0; t < N; ++t) {
      HOTLOOP_UNROLL
      for (int r = 0; r < kRows; ++r) sums[r][t] = _mm256_add_epi32(sums[r][t], second[r][t]);
    }
  }

 private:
  template <int Half, class Weights, int N>
  HOTLOOP_INLINE void half(const Weights& w, const Panel& x, int64_t g, __m256i (&sums)[kRows][N]) {
    if constexpr (Offset != 0) start_pairs(x, g, Half, sums);
    add_pairs<4 * Half, Offset == 0>(w, x, g, sums);
    add_pairs<4 * Half + 1, false>(w, x, g, sums);
    add_pairs<4 * Half + 2, false>(w, x, g, sums);
    add_pairs<4 * Half + 3, false>(w, x, g, sums);
    HOTLOOP_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const __m256i scale = w.template scale<Half>(g, r);
      HOTLOOP_UNROLL
      for (int t = 0; t < N; ++t) sums[r][t] = _mm256_madd_epi16(sums[r][t], scale);
    }
  }
};

// Signed codes of 8 bits: no sum of four products fits int16, whichever way signs and offsets are turned. As int16 they
// multiply pairwise. Wide register 2j has k = 4j and 4j + 2 of row i in lane i, 2j + 1 k = 4j + 1 and 4j + 3.
struct Signed {
  static constexpr int kOffset = 0, kAddBack = 0;
  static constexpr bool kHalves = false;

  template <class Weights, int N>
  HOTLOOP_INLINE void sum(const Weights& w, const Panel& x, int64_t g, __m256i (&sums)[kRows][N]) {
    add_quads<0>(w, x, g, sums);
    add_quads<1>(w, x, g, sums);
    add_quads<2>(w, x, g, sums);
    add_quads<3>(w, x, g, sums);
    add_quads<4>(w, x, g, sums);
    add_quads<5>(w, x, g, sums);
    add_quads<6>(w, x, g, sums);
    add_quads<7>(w, x, g, sums);
  }

 private:
  template <int J, class Weights, int N>
  HOTLOOP_INLINE void add_quads(const Weights& w, const Panel& x, int64_t g, __m256i (&sums)[kRows][N]) {
    add_wide<2 * J>(w, x, g, sums);
    add_wide<2 * J + 1>(w, x, g, sums);
  }
  template <int J, class Weights, int N>
  HOTLOOP_INLINE void add_wide(const Weights& w, const Panel& x, int64_t g, __m256i (&sums)[kRows][N]) {
    __m256i code[kRows];
    HOTLOOP_UNROLL
    for (int r = 0; r < kRows; ++r) {
      code[r] = w.template wide_code<J>(g, r);
      in_order(code[r]);  // or gcc loads it for every product
    }
    HOTLOOP_UNROLL
    for (int t = 0; t < N; ++t) {
      const __m256i xj = broadcast4(x.wide[g][t][J % 2] + J / 2 * 2);
      HOTLOOP_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const __m256i p = _mm256_madd_epi16(code[r], xj);
        sums[r][t] = J == 0 ? p : _mm256_add_epi32(sums[r][t], p);
        in_order(sums[r][t]);
      }
    }
  }
};

// ---- tiles ------------------------------------------------------------------------------------------------------

using Chains = float[kRows][8];  // of one token

template <class Format>
HOTLOOP_INLINE void add_to_chain(float (&chain)[8], __m256i sum, const typename Format::Factors& w, const XFactors& x) {
  _mm256_store_ps(chain, Format::accumulate(_mm256_load_ps(chain), _mm256_cvtepi32_ps(sum), w, x));
}

template <class Format, int N, class Weights>
HOTLOOP_INLINE void add_group(const Weights& w, const Panel& x, int64_t g, Chains* chains) {
  static_assert(kRows == 2);
  __m256i sums[kRows][N];
  Format::Dot::sum(w, x, g, sums);
  const auto& low = w.factors(g, 0);
  const auto& high = w.factors(g, 1);
  HOTLOOP_UNROLL
  for (int t = 0; t < N; ++t) {
    const XFactors factors = x.factors(g, t);
    add_to_chain<Format>(chains[t][0], sums[0][t], low, factors);
    add_to_chain<Format>(chains[t][1], sums[1][t], high, factors);
  }
}

// What the next stretch of weights to be expanded reads, fetched in portions, one with every group of every tile: all at
// once would be more loads than a core can have in flight.
struct Ahead {
  const uint8_t* at[kRows];
  int64_t bytes, portion;

  Ahead(const uint8_t* low, const uint8_t* high, int64_t bytes, int64_t tokens) : at{low, high}, bytes(bytes) {
    const int64_t portions = (tokens + kTokens - 1) / kTokens * kStretch;
    portion = (bytes + portions * 64 - 1) / (portions * 64) * 64;
  }
  void fetch() {
    if (bytes <= 0) return;
    for (int r = 0; r < kRows; ++r) {
      prefetch(at[r], portion);
      at[r] += portion;
    }
    bytes -= portion;
  }
};

// Groups [begin, end) of a stretch.
template <class Format, int N>
HOTLOOP_APART void expanded_tile(const Expanded<Format>& w, const Panel& x, int64_t begin, int64_t end, Ahead& ahead,
                                 Chains* chains) {
  for (int64_t g = begin; g < end; ++g) {
    ahead.fetch();
    add_group<Format, N>(w, x, g, chains);
  }
}
template <class Format>
void expanded_tiles(const Expanded<Format>& w, const Panel* x, int64_t begin, int64_t end, int64_t tokens, Ahead ahead,
                    Chains* chains) {
  for (; tokens >= kTokens; tokens -= kTokens, chains += kTokens) {
    expanded_tile<Format, kTokens>(w, *x++, begin, end, ahead, chains);
  }
  if (tokens == 3) expanded_tile<Format, 3>(w, *x, begin, end, ahead, chains);
  if (tokens == 2) expanded_tile<Format, 2>(w, *x, begin, end, ahead, chains);
  if (tokens == 1) expanded_tile<Format, 1>(w, *x, begin, end, ahead, chains);
}

// The stretches of K: 8 groups each, the last one counted from the end, so that it reads nothing past it; what of it was
// done before is left out.
struct Stretch {
  int64_t group, begin, end;  // groups group + begin .. group + end - 1

  Stretch(int64_t done, int64_t groups) {
    group = done + kStretch <= groups ? done : groups > kStretch ? groups - kStretch : 0;
    begin = done - group;
    end = groups - group < kStretch ? groups - group : kStretch;
  }
};

template <class Format>
inline void fill(Panel& panel, const QuantizedActivations& a, int64_t token, int64_t last_token, const Stretch& s) {
  Source from(a, token, last_token, s.group);
  if (s.end == kStretch) return fill<Format>(panel, from);
  const ShortSource copy(from, s.end);
  fill<Format>(panel, from);
}

// At most kMaxRowBlocks x kMaxTokens.
template <class Format>
void expanded_block(const Matrix& w, const QuantizedActivations& a, const Range& range, int64_t first, int64_t end,
                    int64_t token, int64_t tokens) {
  Panel x[kMaxTokens / kTokens];
  Expanded<Format> expanded;
  alignas(64) Chains chains[kMaxRowBlocks / kRows][kMaxTokens];
  const int64_t pairs = (end - first + kRows - 1) / kRows;
  for (int64_t p = 0; p < pairs; ++p) __builtin_memset(chains[p], 0, tokens * sizeof(Chains));
  const int64_t groups = w.cols / kGroupSize;
  const int64_t row_bytes = row_block_bytes(w.format, w.cols), group_bytes = row_bytes / groups;
  for (int64_t done = 0; done < groups; done += kStretch) {
    const Stretch s(done, groups);
    for (int64_t t = 0; t < tokens; t += kTokens) fill<Format>(x[t / kTokens], a, token + t, token + tokens - 1, s);
    for (int64_t p = 0; p < pairs; ++p) {
      const int64_t low = first + kRows * p, high = low + 1 < end ? low + 1 : low;  // an odd one pairs with itself
      expanded.fill({row_block_data(w, low), row_block_data(w, high)}, s.group, s.begin, s.end);
      const bool last = p + 1 == pairs;
      const int64_t next = last ? first : low + kRows, next_high = next + 1 < end ? next + 1 : next;
      const int64_t at = (last ? done + kStretch : done) * group_bytes;
      const int64_t rest = row_bytes - at, bytes = rest < kStretch * group_bytes ? rest : kStretch * group_bytes;
      const Ahead ahead(row_block_data(w, next) + at, row_block_data(w, next_high) + at, bytes, tokens);
      expanded_tiles(expanded, x, s.begin, s.end, tokens, ahead, chains[p]);
    }
  }
  for (int64_t b = first; b < end; ++b) {
    for (int64_t t = 0; t < tokens; ++t) {
      const float* chain = chains[(b - first) / kRows][t][(b - first) % kRows];
      _mm256_storeu_ps(range.at(b, token + t), _mm256_load_ps(chain));
    }
  }
}

template <class Format>
void expanded(const Matrix& w, const QuantizedActivations& a, const Range& range) {
  for (int64_t b = range.row_block_begin; b < range.row_block_end; b += kMaxRowBlocks) {
    const int64_t end = b + kMaxRowBlocks < range.row_block_end ? b + kMaxRowBlocks : range.row_block_end;
    for (int64_t t = range.token_begin; t < range.token_end; t += kMaxTokens) {
      const int64_t tokens = range.token_end - t < kMaxTokens ? range.token_end - t : kMaxTokens;
      expanded_block<Format>(w, a, range, b, end, t, tokens);
    }
  }
}

// ---- few tokens: unpacked on the way ----------------------------------------------------------------------------

constexpr int kPanels = 8;  // stretches that a pair of row blocks passes over at a time

// Stretches from `done` to `end` of a pair of row blocks x N tokens. FirstPass: nobody read these weights just before.
template <class Format, int N, bool FirstPass>
HOTLOOP_APART void packed_tile(Packed<Format> w, const Panel* x, int64_t done, int64_t end, int64_t groups,
                               int64_t group_bytes, Chains* chains) {
  for (; done < end; done += kStretch, ++x) {
    const Stretch s(done, groups);
    w.group = s.group;
    for (int64_t g = s.begin; g < s.end; ++g) {
      if constexpr (FirstPass && N >= kPrefetchTokens) {
        const int64_t ahead = (s.group + g + kPrefetchGroups) * group_bytes;
        for (int r = 0; r < kRows; ++r) prefetch(w.rows.block[r] + ahead, group_bytes);
      }
      add_group<Format, N>(w, *x, g, chains);
    }
  }
}

template <class Format>
void packed_pair(const Packed<Format>& w, const Panel (*x)[kPanels], int64_t done, int64_t end, int64_t groups,
                 int64_t group_bytes, int64_t tokens, Chains* chains) {
  if (tokens >= kTokens) {
    packed_tile<Format, kTokens, true>(w, *x++, done, end, groups, group_bytes, chains);
    tokens -= kTokens, chains += kTokens;
  }
  for (; tokens >= kTokens; tokens -= kTokens, chains += kTokens) {
    packed_tile<Format, kTokens, false>(w, *x++, done, end, groups, group_bytes, chains);
  }
  if (tokens == 3) packed_tile<Format, 3, false>(w, *x, done, end, groups, group_bytes, chains);
  if (tokens == 2) packed_tile<Format, 2, false>(w, *x, done, end, groups, group_bytes, chains);
  if (tokens == 1) packed_tile<Format, 1, false>(w, *x, done, end, groups, group_bytes, chains);
}

// Two distant streams of row blocks pass over kPanels stretches of all tokens; the chains rest in `out`.
template <class Format>
void packed(const Matrix& w, const QuantizedActivations& a, const Range& range) {
  Panel x[kMaxPackedTokens / kTokens][kPanels];
  alignas(64) Chains chains[kMaxPackedTokens] = {};
  const int64_t groups = w.cols / kGroupSize;
  const int64_t group_bytes = row_block_bytes(w.format, w.cols) / groups;
  const int64_t step = (range.row_block_end - range.row_block_begin + kRows - 1) / kRows;
  const int64_t tokens = range.token_end - range.token_begin;
  for (int64_t begin = 0; begin < groups; begin += kPanels * kStretch) {
    const int64_t end = begin + kPanels * kStretch < groups ? begin + kPanels * kStretch : groups;
    for (int64_t t = 0; t < tokens; t += kTokens) {
      for (int64_t done = begin; done < end; done += kStretch) {
        Panel& panel = x[t / kTokens][(done - begin) / kStretch];
        fill<Format>(panel, a, range.token_begin + t, range.token_end - 1, Stretch(done, groups));
      }
    }
    for (int64_t i = 0; i < step; ++i) {
      const int64_t low = range.row_block_begin + i, high = low + step < range.row_block_end ? low + step : low;
      for (int64_t t = 0; t < tokens; ++t) {
        const float *const from[kRows] = {range.at(low, range.token_begin + t), range.at(high, range.token_begin + t)};
        for (int r = 0; r < kRows; ++r) {
          _mm256_store_ps(chains[t][r], begin == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(from[r]));
        }
      }
      const Packed<Format> rows{{row_block_data(w, low), row_block_data(w, high)}, 0};
      packed_pair<Format>(rows, x, begin, end, groups, group_bytes, tokens, chains);
      for (int64_t t = 0; t < tokens; ++t) {
        const int64_t token = range.token_begin + t;
        _mm256_storeu_ps(range.at(low, token), _mm256_load_ps(chains[t][0]));
        _mm256_storeu_ps(range.at(high, token), _mm256_load_ps(chains[t][1]));
      }
    }
  }
}

template <class Format>
void linear_int8(const Matrix& w, const QuantizedActivations& a, const Range& range) {
  static_assert(kPackedTokens<Format> <= kMaxPackedTokens);
  if (range.token_end - range.token_begin <= kPackedTokens<Format>) return packed<Format>(w, a, range);
  expanded<Format>(w, a, range);
}

}  // namespace panel
}  // namespace lin
}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
