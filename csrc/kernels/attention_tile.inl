// One tile of attention: a few query rows over one span.

#define HOTLOOP_COMPILER_BARRIER() asm volatile("" ::: "memory")

namespace hotloop::HOTLOOP_TARGET {
namespace {

struct RowRange {
  int32_t begin, end;  // positions of the span that the row sees, counted from the span's start
};

// R query rows in one span; range[r] is not empty.
struct Tile {
  const float* q[kTileRows];
  QueryCodes codes[kTileRows];  // int8
  float* scores[kTileRows];     // [256]; then p
  float* weights[kTileRows];    // int8: [value groups, 256], p times the scale of V
  float* o[kTileRows];          // [head_dim]
  RowRange range[kTileRows];
  float m[kTileRows], l[kTileRows];
};

constexpr int kFetchedTogether = 4;  // positions: a few lines at a time, so that the processor need not wait for them

// o[row][d] = fma(p[row][j], v_j[d], o[row][d]) for j ascending in [begin, end), R rows, C chunks of 16 d at a time.
template <int R, int C, typename Element>
HOTLOOP_INLINE void add_values_chunk(const float* const* p, const SpanKv& kv, int64_t d, int begin, int end,
                                     const Ahead& ahead, float* const* o) {
  const float* weights[R];
  for (int r = 0; r < R; ++r) weights[r] = p[r];
  F32x16 sum[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) sum[r][c] = load(o[r] + d + 16 * c);
  }
  const bool fetching = d == 0 && ahead.base != nullptr;
  const auto add_position = [&](int j) __attribute__((always_inline)) {
    const Element* row = reinterpret_cast<const Element*>(kv.v + kv.v_offset[j]) + d;
#ifdef HOTLOOP_SIMD_AVX512
    F32x16 x[C];
    for (int c = 0; c < C; ++c) x[c] = load_kv(row + 16 * c);
    for (int r = 0; r < R; ++r) {
      const F32x16 weight = broadcast(weights[r][j]);
      for (int c = 0; c < C; ++c) sum[r][c] = fma(weight, x[c], sum[r][c]);
    }
#else
    for (int c = 0; c < C; ++c) {
      const F32x16 x = load_kv(row + 16 * c);
      for (int r = 0; r < R; ++r) sum[r][c] = fma(broadcast(weights[r][j]), x, sum[r][c]);
      // Weights are loaded again for the next c: keeping them would spill an accumulator into the chain of fma.
      HOTLOOP_COMPILER_BARRIER();
    }
#endif
  };
  int j = begin;
  for (; j + kFetchedTogether <= end; j += kFetchedTogether) {
    if (fetching) fetch(ahead, j, kFetchedTogether);
#pragma GCC unroll 4
    for (int i = 0; i < kFetchedTogether; ++i) add_position(j + i);
  }
  for (; j < end; ++j) add_position(j);
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) store(o[r] + d + 16 * c, sum[r][c]);
  }
}

#ifdef HOTLOOP_SIMD_AVX512
template <int R>
constexpr int kValueChunks = 4;
#else
template <int R>
constexpr int kValueChunks = R == 1 ? 4 : R <= 3 ? 2 : 1;
#endif

// Positions [begin, end) of the span. p: per row [value groups, 256] for int8, [256] otherwise.
template <int R, typename Element>
HOTLOOP_INLINE void add_values(const float* const* p, const SpanKv& kv, int64_t head_dim, int begin, int end,
                               float* const* o, const Ahead& ahead) {
  constexpr int kStep = 32;  // positions whose V stays in the first-level cache while d advances
  constexpr int kChunks = kValueChunks<R>;
  static_assert(kValueGroup % (16 * kChunks) == 0, "the chunks of one call have one weight");
  for (int j = begin; j < end; j += kStep) {
    const int stop = j + kStep < end ? j + kStep : end;
    int64_t d = 0;
    const float* weights[R];
    const auto of_group = [&] {
      for (int r = 0; r < R; ++r) weights[r] = kIsInt8<Element> ? p[r] + d / kValueGroup * kSpan : p[r];
    };
    for (; d + 16 * kChunks <= head_dim; d += 16 * kChunks) {
      of_group();
      add_values_chunk<R, kChunks, Element>(weights, kv, d, j, stop, ahead, o);
    }
    if constexpr (kChunks > 1) {
      for (; d < head_dim; d += 16) {
        of_group();
        add_values_chunk<R, 1, Element>(weights, kv, d, j, stop, ahead, o);
      }
    }
  }
}

// Scores of one chunk of 16 from its dots, -inf in lanes the row does not see; returns the new running maximum.
HOTLOOP_INLINE F32x16 finish_scores(const AttentionArgs& a, const F32x16& dots, RowRange range, int chunk, float* scores,
                                    const F32x16& largest) {
  F32x16 s = dots * broadcast(a.scale);
  if (a.softcap != 0.0f) s = softcap(s, a.softcap);
  const int first = range.begin - chunk, last = range.end - chunk;
  if (first > 0 || last < 16) {
    const F32x16 lane = to_float(lane_index());
    s = select(less(lane, broadcast(static_cast<float>(last))), s, broadcast(-kInfinity));
    s = select(less(lane, broadcast(static_cast<float>(first))), broadcast(-kInfinity), s);
  }
  store(scores + chunk, s);
  return max(largest, s);
}

#ifdef HOTLOOP_SIMD_AVX512
constexpr int kExpVectors = 4;
#else
constexpr int kExpVectors = 2;
#endif

template <int N>
HOTLOOP_INLINE void exponentials_of(float* scores, const F32x16& m, F32x16& sum) {
  F32x16 x[N], p[N];
  for (int i = 0; i < N; ++i) x[i] = load(scores + 16 * i) - m;
  exp(x, p);
  for (int i = 0; i < N; ++i) {
    store(scores + 16 * i, p[i]);
    sum = sum + p[i];  // absent lanes hold exp(-inf) = 0, and x + 0 = x
  }
}

// p_j = exp(s_j - m) in place of the scores, and their sum.
HOTLOOP_INLINE float exponentials(float* scores, RowRange range, float m) {
  F32x16 sum = broadcast(0.0f);
  const F32x16 largest = broadcast(m);
  int chunk = range.begin & ~15;
  for (; chunk + 16 * kExpVectors <= ((range.end + 15) & ~15); chunk += 16 * kExpVectors) {
    exponentials_of<kExpVectors>(scores + chunk, largest, sum);
  }
  for (; chunk < range.end; chunk += 16) exponentials_of<1>(scores + chunk, largest, sum);
  return horizontal_sum(sum);
}

// weights[group][j] = p_j times the scale of V.
HOTLOOP_INLINE void scale_weights(const float* p, RowRange range, const SpanKv& kv, int64_t head_dim, float* weights) {
  for (int64_t group = 0; group < value_groups(static_cast<int32_t>(head_dim)); ++group) {
    for (int chunk = range.begin & ~15; chunk < range.end; chunk += 16) {
      const int64_t at = group * kSpan + chunk;
      store(weights + at, load(p + chunk) * load(kv.value_scale + at));
    }
  }
}

HOTLOOP_INLINE int later(int x, int y) { return x > y ? x : y; }
HOTLOOP_INLINE int sooner(int x, int y) { return x < y ? x : y; }

// One row, out of line: the ragged edges of a tile are few.
template <typename Element>
__attribute__((noinline)) void fold_row(const float* q, const SpanKv& kv, int64_t head_dim, int begin, int end, float* folded) {
  fold_dots<1, Element>(&q, kv, head_dim, begin, end, Ahead(), reinterpret_cast<float (*)[64]>(folded));
}
template <typename Element>
__attribute__((noinline)) void add_row_values(const float* p, const SpanKv& kv, int64_t head_dim, int begin, int end, float* o) {
  add_values<1, Element>(&p, kv, head_dim, begin, end, &o, Ahead());
}

// What R rows see: all of them, and any of them.
struct SharedRanges {
  RowRange all, any;
};
template <int R>
HOTLOOP_INLINE SharedRanges shared_ranges(const Tile& tile) {
  RowRange all = {0, kSpan}, any = {kSpan, 0};
  for (int r = 0; r < R; ++r) {
    const RowRange range = tile.range[r];
    all = {later(range.begin, all.begin), sooner(range.end, all.end)};
    any = {sooner(range.begin, any.begin), later(range.end, any.end)};
  }
  if (all.begin >= all.end) all = {any.end, any.end};
  return {all, any};
}

// Positions all rows see are computed for R rows at once, the others (a ragged edge) for the rows that see them.
template <int R, typename Element>
HOTLOOP_INLINE void float_scores(const AttentionArgs& a, const SpanKv& kv, const SharedRanges& shared, const Ahead& ahead,
                                 Tile& tile, F32x16 (&largest)[R]) {
  const RowRange all = shared.all, any = shared.any;
  alignas(64) float folded[R][64];
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < 64; i += 16) store(folded[r] + i, broadcast(0.0f));
  }
  for (int chunk = any.begin & ~15; chunk < any.end; chunk += 16) {
    const int begin = later(all.begin, chunk), end = sooner(all.end, chunk + 16);
    if (begin < end) fold_dots<R, Element>(tile.q, kv, a.head_dim, begin, end, ahead, folded);
    for (int r = 0; r < R; ++r) {
      const RowRange range = tile.range[r];
      if (range.begin >= chunk + 16 || range.end <= chunk) continue;
      if constexpr (R > 1) {
        const int before = later(range.begin, chunk), before_end = sooner(sooner(all.begin, range.end), chunk + 16);
        if (before < before_end) fold_row<Element>(tile.q[r], kv, a.head_dim, before, before_end, folded[r]);
        const int after = later(later(all.end, range.begin), chunk), after_end = sooner(range.end, chunk + 16);
        if (after < after_end) fold_row<Element>(tile.q[r], kv, a.head_dim, after, after_end, folded[r]);
      }
      largest[r] = finish_scores(a, sum_folded(folded[r]), range, chunk, tile.scores[r], largest[r]);
    }
  }
}

template <int R>
HOTLOOP_INLINE void int8_scores(const AttentionArgs& a, const SpanKv& kv, RowRange any, const Ahead& ahead, Tile& tile,
                                F32x16 (&largest)[R]) {
  for (int chunk = any.begin & ~15; chunk < any.end; chunk += 16) {
    fetch(ahead, chunk, 16);
    F32x16 dots[R];
    code_scores<R>(tile.codes, kv, a.head_dim, chunk, dots);
    for (int r = 0; r < R; ++r) {
      const RowRange range = tile.range[r];
      if (range.begin >= chunk + 16 || range.end <= chunk) continue;
      largest[r] = finish_scores(a, dots[r], range, chunk, tile.scores[r], largest[r]);
    }
  }
}

// Scores, then p, m and l of R rows.
template <int R, typename Element>
__attribute__((noinline)) void tile_scores(const AttentionArgs& a, const SpanKv& kv, const Ahead& ahead, Tile& tile) {
  const SharedRanges shared = shared_ranges<R>(tile);
  F32x16 largest[R];
  for (int r = 0; r < R; ++r) largest[r] = broadcast(-kInfinity);
  if constexpr (kIsInt8<Element>) {
    int8_scores<R>(a, kv, shared.any, ahead, tile, largest);
  } else {
    float_scores<R, Element>(a, kv, shared, ahead, tile, largest);
  }
  for (int r = 0; r < R; ++r) {
    tile.m[r] = horizontal_max(largest[r]);
    tile.l[r] = exponentials(tile.scores[r], tile.range[r], tile.m[r]);
  }
}

// o of R rows from their p.
template <int R, typename Element>
__attribute__((noinline)) void tile_values(const AttentionArgs& a, const SpanKv& kv, const Ahead& ahead, Tile& tile) {
  const RowRange all = shared_ranges<R>(tile).all;
  float* const* weights = kIsInt8<Element> ? tile.weights : tile.scores;
  for (int r = 0; r < R; ++r) {
    if constexpr (kIsInt8<Element>) scale_weights(tile.scores[r], tile.range[r], kv, a.head_dim, tile.weights[r]);
    for (int64_t d = 0; d < a.head_dim; d += 16) store(tile.o[r] + d, broadcast(0.0f));
    const int end = sooner(tile.range[r].end, all.begin);
    if (R > 1 && tile.range[r].begin < end) {
      add_row_values<Element>(weights[r], kv, a.head_dim, tile.range[r].begin, end, tile.o[r]);
    }
  }
  if (all.begin < all.end) add_values<R, Element>(weights, kv, a.head_dim, all.begin, all.end, tile.o, ahead);
  for (int r = 0; R > 1 && r < R; ++r) {
    const int begin = later(tile.range[r].begin, all.end);
    if (begin < tile.range[r].end) {
      add_row_values<Element>(weights[r], kv, a.head_dim, begin, tile.range[r].end, tile.o[r]);
    }
  }
}

// Both for a number of rows known at run time, at most R.
template <int R, typename Element>
void scores_of_rows(const AttentionArgs& a, const SpanKv& kv, const Ahead& ahead, int rows, Tile& tile) {
  if constexpr (R > 1) {
    if (rows < R) return scores_of_rows<R - 1, Element>(a, kv, ahead, rows, tile);
  }
  tile_scores<R, Element>(a, kv, ahead, tile);
}
template <int R, typename Element>
void values_of_rows(const AttentionArgs& a, const SpanKv& kv, const Ahead& ahead, int rows, Tile& tile) {
  if constexpr (R > 1) {
    if (rows < R) return values_of_rows<R - 1, Element>(a, kv, ahead, rows, tile);
  }
  tile_values<R, Element>(a, kv, ahead, tile);
}

// values: V of the span, fetched while the scores are computed; next_keys: K of the span after it, fetched while V is added.
void attend_tile(const AttentionArgs& a, const SpanKv& kv, const Ahead& values, const Ahead& next_keys, int rows,
                 Tile& tile) {
  switch (a.k_dtype) {
    case KvDtype::F32: scores_of_rows<kTileRows, float>(a, kv, values, rows, tile); break;
    case KvDtype::F16: scores_of_rows<kTileRows, Half>(a, kv, values, rows, tile); break;
    case KvDtype::BF16: scores_of_rows<kTileRows, Brain>(a, kv, values, rows, tile); break;
    case KvDtype::INT8: scores_of_rows<kTileRows, int8_t>(a, kv, values, rows, tile); break;
  }
  switch (a.v_dtype) {
    case KvDtype::F32: values_of_rows<kTileRows, float>(a, kv, next_keys, rows, tile); break;
    case KvDtype::F16: values_of_rows<kTileRows, Half>(a, kv, next_keys, rows, tile); break;
    case KvDtype::BF16: values_of_rows<kTileRows, Brain>(a, kv, next_keys, rows, tile); break;
    case KvDtype::INT8: values_of_rows<kTileRows, int8_t>(a, kv, next_keys, rows, tile); break;
  }
}

}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
