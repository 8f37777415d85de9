// Attention of some tokens and heads of one request over a paged KV cache (design.md section 3, docs/determinism.md).
//
// Positions are cut into spans of 256. For one query row (a token and a head) and one span:
//   s_j = scale * (q . k_j), the dot being 16 fma chains over head_dim (lane d mod 16) and the tree; softcap;
//   m = max s_j;  p_j = exp(s_j - m);  l = sum of p_j, lane j mod 16 a chain over ascending j, then the tree;
//   o[d] = one fma chain over ascending j from 0: fma(p_j, v_j[d], o[d]).
// Partials merge in ascending order into (M, L, O) = (-inf, 0, 0):
//   M' = max(M, m), a = exp(M - M'), b = exp(m - M');  L = fma(l, b, L a);  O[d] = fma(o[d], b, O[d] a).
// The result is O[d] / L. A span in which the row sees no position is skipped. Slots a row does not see contribute
// nothing: not even a product with zero. Nothing here depends on the tiling below, the block size or the call's extent.

#define HOTLOOP_COMPILER_BARRIER() asm volatile("" ::: "memory")

namespace hotloop::HOTLOOP_TARGET {
namespace {

// Query rows that share each load of K and V.
#ifdef HOTLOOP_SHARED_ROWS
constexpr int kTileRows = HOTLOOP_SHARED_ROWS;
#else
constexpr int kTileRows = kAttentionTileRows;
#endif

// A vector of one register is one chain of operations, one of two registers is two.
#ifdef HOTLOOP_SIMD_AVX512
constexpr int kIndependent = 2;
#else
constexpr int kIndependent = 1;
#endif

struct RowRange {
  int32_t begin, end;  // positions of the span that the row sees, counted from the span's start
};

// Where each position of the span lies: byte offset of its K (and V) from the KV head's place in block 0.
HOTLOOP_INLINE void locate_slots(const AttentionArgs& a, int64_t slot_bytes, int64_t span_begin, int begin, int end,
                                 int64_t* offset) {
  int64_t block = (span_begin + begin) / a.block_size;
  int64_t slot = (span_begin + begin) % a.block_size;
  for (int j = begin; j < end;) {
    const int64_t base = a.block_table[block] * a.block_stride_bytes;
    for (; slot < a.block_size && j < end; ++slot, ++j) offset[j] = base + slot * slot_bytes;
    slot = 0;
    ++block;
  }
}

HOTLOOP_INLINE F32x16 load_kv(const float* p) { return load(p); }
HOTLOOP_INLINE F32x16 load_kv(const uint16_t* p) { return load_f16(p); }

// The 4 partial sums (lanes d mod 4 after the first two levels of the tree) of q . k for R rows and the positions
// [begin, end) of one chunk of 16: folded[row][position & 15][4].
template <int R, typename Element>
HOTLOOP_INLINE void fold_dots(const float* const* q, const uint8_t* k, const int64_t* offset, int64_t head_dim, int begin,
                              int end, float (*folded)[64]) {
  constexpr int kPositions = R <= 2 ? 2 : kIndependent;  // enough chains of fma to hide their latency
  int j = begin;
  for (; j + kPositions <= end; j += kPositions) {
    const Element* rows[kPositions];
    F32x16 sum[R][kPositions];
    for (int i = 0; i < kPositions; ++i) {
      rows[i] = reinterpret_cast<const Element*>(k + offset[j + i]);
      for (int r = 0; r < R; ++r) sum[r][i] = broadcast(0.0f);
    }
    for (int64_t d = 0; d < head_dim; d += 16) {
      F32x16 x[kPositions];
      for (int i = 0; i < kPositions; ++i) x[i] = load_kv(rows[i] + d);
      for (int r = 0; r < R; ++r) {
        const F32x16 y = load(q[r] + d);
        for (int i = 0; i < kPositions; ++i) sum[r][i] = fma(y, x[i], sum[r][i]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int i = 0; i < kPositions; ++i) store_folded(folded[r] + 4 * ((j + i) & 15), sum[r][i]);
    }
  }
  for (; kPositions > 1 && j < end; ++j) {
    const Element* row = reinterpret_cast<const Element*>(k + offset[j]);
    F32x16 sum[R];
    for (int r = 0; r < R; ++r) sum[r] = broadcast(0.0f);
    for (int64_t d = 0; d < head_dim; d += 16) {
      const F32x16 x = load_kv(row + d);
      for (int r = 0; r < R; ++r) sum[r] = fma(load(q[r] + d), x, sum[r]);
    }
    for (int r = 0; r < R; ++r) store_folded(folded[r] + 4 * (j & 15), sum[r]);
  }
}

// o[row][d] = fma(p[row][j], v_j[d], o[row][d]) for j ascending in [begin, end), R rows, C chunks of 16 d at a time.
template <int R, int C, typename Element>
HOTLOOP_INLINE void add_values_chunk(const float* const* p, const uint8_t* v, const int64_t* offset, int64_t d, int begin,
                                     int end, float* const* o) {
  const float* weights[R];
  for (int r = 0; r < R; ++r) weights[r] = p[r];
  F32x16 sum[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) sum[r][c] = load(o[r] + d + 16 * c);
  }
  for (int j = begin; j < end; ++j) {
    const Element* row = reinterpret_cast<const Element*>(v + offset[j]) + d;
    for (int c = 0; c < C; ++c) {
      const F32x16 x = load_kv(row + 16 * c);
      for (int r = 0; r < R; ++r) sum[r][c] = fma(broadcast(weights[r][j]), x, sum[r][c]);
      // Weights are loaded again for the next c: keeping them would spill an accumulator into the chain of fma.
      HOTLOOP_COMPILER_BARRIER();
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) store(o[r] + d + 16 * c, sum[r][c]);
  }
}

template <int R, typename Element>
HOTLOOP_INLINE void add_values(const float* const* p, const uint8_t* v, const int64_t* offset, int64_t head_dim, int begin,
                               int end, float* const* o) {
  constexpr int kStep = 32;  // positions whose V stays in the first-level cache while d advances
  constexpr int kChunks = R == 1 ? 4 : kIndependent * (R <= 3 ? 2 : 1);
  for (int j = begin; j < end; j += kStep) {
    const int stop = j + kStep < end ? j + kStep : end;
    int64_t d = 0;
    for (; d + 16 * kChunks <= head_dim; d += 16 * kChunks) {
      add_values_chunk<R, kChunks, Element>(p, v, offset, d, j, stop, o);
    }
    if (kChunks > 1) {
      for (; d < head_dim; d += 16) add_values_chunk<R, 1, Element>(p, v, offset, d, j, stop, o);
    }
  }
}

// One tile: R query rows in one span. scores: [R][256]; o: [R][head_dim]; range[r] is not empty.
struct Tile {
  const float* q[kTileRows];
  float* scores[kTileRows];
  float* o[kTileRows];
  RowRange range[kTileRows];
  float m[kTileRows], l[kTileRows];
};

// Scores of one chunk of 16 from its folded dots, -inf in lanes the row does not see; returns the new running maximum.
HOTLOOP_INLINE F32x16 finish_scores(const AttentionArgs& a, const float* folded, RowRange range, int chunk, float* scores,
                                    const F32x16& largest) {
  F32x16 s = sum_folded(folded) * broadcast(a.scale);
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

// p_j = exp(s_j - m) in place of the scores, and their sum.
HOTLOOP_INLINE float exponentials(float* scores, RowRange range, float m) {
  F32x16 sum = broadcast(0.0f);
  for (int chunk = range.begin & ~15; chunk < range.end; chunk += 16) {
    const F32x16 p = exp(load(scores + chunk) - broadcast(m));
    store(scores + chunk, p);
    sum = sum + p;  // absent lanes hold exp(-inf) = 0, and x + 0 = x
  }
  return horizontal_sum(sum);
}

template <int R, typename Element>
void attend_tile(const AttentionArgs& a, const uint8_t* k, const uint8_t* v, const int64_t* offset, Tile& tile) {
  // Positions all rows see are computed for R rows at once, the others (a ragged edge) for the rows that see them.
  RowRange all = {0, kSpan}, any = {kSpan, 0};
  for (int r = 0; r < R; ++r) {
    const RowRange range = tile.range[r];
    if (range.begin > all.begin) all.begin = range.begin;
    if (range.end < all.end) all.end = range.end;
    if (range.begin < any.begin) any.begin = range.begin;
    if (range.end > any.end) any.end = range.end;
  }
  if (all.begin >= all.end) all = {any.end, any.end};

  alignas(64) float folded[R][64];
  F32x16 largest[R];
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < 64; ++i) folded[r][i] = 0.0f;
    largest[r] = broadcast(-kInfinity);
  }
  const auto later = [](int x, int y) { return x > y ? x : y; };
  const auto sooner = [](int x, int y) { return x < y ? x : y; };
  for (int chunk = any.begin & ~15; chunk < any.end; chunk += 16) {
    const int begin = later(all.begin, chunk), end = sooner(all.end, chunk + 16);
    if (begin < end) fold_dots<R, Element>(tile.q, k, offset, a.head_dim, begin, end, folded);
    for (int r = 0; r < R; ++r) {
      const RowRange range = tile.range[r];
      if (range.begin >= chunk + 16 || range.end <= chunk) continue;
      if (R > 1) {
        const int before = later(range.begin, chunk), before_end = sooner(sooner(all.begin, range.end), chunk + 16);
        if (before < before_end) fold_dots<1, Element>(&tile.q[r], k, offset, a.head_dim, before, before_end, &folded[r]);
        const int after = later(later(all.end, range.begin), chunk), after_end = sooner(range.end, chunk + 16);
        if (after < after_end) fold_dots<1, Element>(&tile.q[r], k, offset, a.head_dim, after, after_end, &folded[r]);
      }
      largest[r] = finish_scores(a, folded[r], range, chunk, tile.scores[r], largest[r]);
    }
  }

  for (int r = 0; r < R; ++r) {
    tile.m[r] = horizontal_max(largest[r]);
    tile.l[r] = exponentials(tile.scores[r], tile.range[r], tile.m[r]);
    for (int64_t d = 0; d < a.head_dim; d += 16) store(tile.o[r] + d, broadcast(0.0f));
    const int end = sooner(tile.range[r].end, all.begin);
    if (R > 1 && tile.range[r].begin < end) {
      add_values<1, Element>(&tile.scores[r], v, offset, a.head_dim, tile.range[r].begin, end, &tile.o[r]);
    }
  }
  if (all.begin < all.end) add_values<R, Element>(tile.scores, v, offset, a.head_dim, all.begin, all.end, tile.o);
  for (int r = 0; R > 1 && r < R; ++r) {
    const int begin = later(tile.range[r].begin, all.end);
    if (begin < tile.range[r].end) {
      add_values<1, Element>(&tile.scores[r], v, offset, a.head_dim, begin, tile.range[r].end, &tile.o[r]);
    }
  }
}

// attend_tile for a number of rows known at run time, at most R.
template <int R, typename Element>
void attend_rows(const AttentionArgs& a, const uint8_t* k, const uint8_t* v, const int64_t* offset, int rows, Tile& tile) {
  if constexpr (R > 1) {
    if (rows < R) return attend_rows<R - 1, Element>(a, k, v, offset, rows, tile);
  }
  attend_tile<R, Element>(a, k, v, offset, tile);
}

// The running (M, L, O) of one query row; O is the row of the output.
struct RunningRow {
  const float* q;
  float* out;
  int64_t first, last;  // positions seen: [first, last]
  float m, l;
};

HOTLOOP_INLINE void merge(RunningRow& row, float m, float l, const float* o, int64_t head_dim) {
  const float m_new = row.m > m ? row.m : m;
  const F32x16 a = exp(broadcast(row.m - m_new)), b = exp(broadcast(m - m_new));
  float lanes[16];
  store(lanes, fma(broadcast(l), b, broadcast(row.l) * a));
  row.m = m_new;
  row.l = lanes[0];
  for (int64_t d = 0; d < head_dim; d += 16) store(row.out + d, fma(load(o + d), b, load(row.out + d) * a));
}

// Up to kAttentionRows query rows, span by span, so that a span's K and V stay in cache for all of them.
void attend(const AttentionArgs& a, const uint8_t* k, const uint8_t* v, RunningRow* rows, int num_rows, float* scratch) {
  const int64_t item = a.kv_dtype == KvDtype::F32 ? 4 : 2;
  int64_t offset[kSpan];
  Tile tile;
  for (int r = 0; r < kTileRows; ++r) {
    tile.scores[r] = scratch + r * (kSpan + a.head_dim);
    tile.o[r] = tile.scores[r] + kSpan;
  }
  int64_t first = rows[0].first, last = rows[0].last;
  for (int r = 0; r < num_rows; ++r) {
    if (rows[r].first < first) first = rows[r].first;
    if (rows[r].last > last) last = rows[r].last;
    rows[r].m = -kInfinity;
    rows[r].l = 0.0f;
    for (int64_t d = 0; d < a.head_dim; d += 16) store(rows[r].out + d, broadcast(0.0f));
  }

  for (int64_t span = first / kSpan * kSpan; span <= last; span += kSpan) {
    RunningRow* active[kAttentionRows];
    RowRange ranges[kAttentionRows];
    int count = 0, begin = kSpan, end = 0;
    for (int r = 0; r < num_rows; ++r) {
      const int64_t from = rows[r].first > span ? rows[r].first - span : 0;
      const int64_t to = rows[r].last + 1 - span < kSpan ? rows[r].last + 1 - span : kSpan;
      if (from >= to) continue;
      active[count] = &rows[r];
      ranges[count++] = {static_cast<int32_t>(from), static_cast<int32_t>(to)};
      if (from < begin) begin = static_cast<int>(from);
      if (to > end) end = static_cast<int>(to);
    }
    if (count == 0) continue;
    locate_slots(a, a.head_dim * item, span, begin, end, offset);
    const int tiles = (count + kTileRows - 1) / kTileRows;
    for (int t = 0, done = 0; t < tiles; ++t) {
      const int size = (count - done + tiles - t - 1) / (tiles - t);  // as even as possible
      for (int r = 0; r < size; ++r) {
        tile.q[r] = active[done + r]->q;
        tile.range[r] = ranges[done + r];
      }
      if (a.kv_dtype == KvDtype::F32) {
        attend_rows<kTileRows, float>(a, k, v, offset, size, tile);
      } else {
        attend_rows<kTileRows, uint16_t>(a, k, v, offset, size, tile);
      }
      for (int r = 0; r < size; ++r) merge(*active[done + r], tile.m[r], tile.l[r], tile.o[r], a.head_dim);
      done += size;
    }
  }
  for (int r = 0; r < num_rows; ++r) {
    const F32x16 l = broadcast(rows[r].l);
    for (int64_t d = 0; d < a.head_dim; d += 16) store(rows[r].out + d, load(rows[r].out + d) / l);
  }
}

void attention(const AttentionArgs& a, int64_t token_begin, int64_t token_end, int32_t kv_head, int32_t head_begin,
               int32_t head_end, float* scratch) {
  const int64_t item = a.kv_dtype == KvDtype::F32 ? 4 : 2;
  const int64_t head_offset = int64_t{kv_head} * a.block_size * a.head_dim * item;
  RunningRow rows[kAttentionRows];
  int count = 0;
  for (int64_t t = token_begin; t < token_end; ++t) {
    const int64_t position = a.positions[t];
    const int64_t first = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
    for (int64_t h = head_begin; h < head_end; ++h) {
      const int64_t at = (t * a.num_heads + h) * a.head_dim;
      rows[count++] = {a.q + at, a.out + at, first, position, 0.0f, 0.0f};
      if (count == kAttentionRows) {
        attend(a, a.k + head_offset, a.v + head_offset, rows, count, scratch);
        count = 0;
      }
    }
  }
  if (count > 0) attend(a, a.k + head_offset, a.v + head_offset, rows, count, scratch);
}

}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
