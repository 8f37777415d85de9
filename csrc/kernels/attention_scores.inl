// Scores of up to kTileRows query rows against one chunk of 16 positions: float K by 16 lanes over head_dim and the tree,
// int8 K by exact integer dots with lanes over positions.

namespace hotloop::HOTLOOP_TARGET {
namespace {

// Query rows that share each load of K and V.
#ifdef HOTLOOP_SHARED_ROWS
constexpr int kTileRows = HOTLOOP_SHARED_ROWS;
#else
constexpr int kTileRows = kAttentionTileRows;
#endif

// Elements of K and V in the cache.
struct Half {
  uint16_t bits;
};
struct Brain {  // bfloat16
  uint16_t bits;
};
HOTLOOP_INLINE F32x16 load_kv(const float* p) { return load(p); }
HOTLOOP_INLINE F32x16 load_kv(const Half* p) { return load_f16(&p->bits); }
HOTLOOP_INLINE F32x16 load_kv(const Brain* p) { return load_bf16(&p->bits); }
HOTLOOP_INLINE F32x16 load_kv(const int8_t* p) { return load_i8(p); }

template <typename Element>
constexpr bool kIsInt8 = sizeof(Element) == 1;

// K and V of one span and KV head.
struct SpanKv {
  const uint8_t* k;
  const uint8_t* v;
  const int64_t* k_offset;     // [256]: bytes from k to a position's row; not for int8
  const int64_t* v_offset;     // [256]: bytes from v to a position's row
  // int8 K:
  const int64_t* code_offset;  // [16]: bytes from k to the codes of a chunk of 16, [head_dim / 4, 16, 4]
  int64_t quad_stride;         // bytes from 4 elements of a position to its next 4
  const float* key_scale;      // [key groups, 256]
  // int8 V:
  const float* value_scale;    // [value groups, 256]
};

// K or V that will be wanted soon: fetched into the second-level cache, chunk by chunk, while other things are computed.
// Blocks lie anywhere, so the processor cannot guess what comes next.
struct Ahead {
  const uint8_t* base = nullptr;  // null: nothing
  const int64_t* offset = nullptr;  // [256] rows, or [16] chunks of int8 K
  int64_t lines = 0;          // of a row (64 bytes each); of a chunk: quads
  int64_t quad_stride = 0;    // of int8 K; 0: rows
  int32_t begin = 0, end = 0;  // positions

};
// What is to be ready in place of positions [j, j + count), which lie in one chunk.
HOTLOOP_INLINE void fetch(const Ahead& a, int j, int count) {
  if (a.base == nullptr) return;
  if (a.quad_stride != 0) {
    if (j >= a.end || (j | 15) < a.begin) return;
    const uint8_t* p = a.base + a.offset[j / 16];
    const int64_t first = (j & 15) * a.lines / 16, last = ((j & 15) + count) * a.lines / 16;
    for (int64_t i = first; i < last; ++i) __builtin_prefetch(p + i * a.quad_stride, 0, 2);
    return;
  }
  const int first = j > a.begin ? j : a.begin, last = j + count < a.end ? j + count : a.end;
  for (int i = first; i < last; ++i) {
    const uint8_t* p = a.base + a.offset[i];
    for (int64_t line = 0; line < a.lines; ++line) __builtin_prefetch(p + 64 * line, 0, 2);
  }
}

// ---- float K --------------------------------------------------------------------------------------------------------

// Dots of R rows with P positions from j on: the 4 partial sums that store_folded makes, at folded[row] + 4 * (j & 15).
template <int R, int P, typename Element>
HOTLOOP_INLINE void fold_positions(const float* const* q, const SpanKv& kv, int64_t head_dim, int j, float (*folded)[64]) {
  const Element* k[P];
  F32x16 sum[R][P];
  for (int i = 0; i < P; ++i) {
    k[i] = reinterpret_cast<const Element*>(kv.k + kv.k_offset[j + i]);
    for (int r = 0; r < R; ++r) sum[r][i] = broadcast(0.0f);
  }
  for (int64_t d = 0; d < head_dim; d += 16) {
    F32x16 x[P];
    for (int i = 0; i < P; ++i) x[i] = load_kv(k[i] + d);
    for (int r = 0; r < R; ++r) {
      const F32x16 y = load(q[r] + d);
      for (int i = 0; i < P; ++i) sum[r][i] = fma(y, x[i], sum[r][i]);
    }
  }
  for (int r = 0; r < R; ++r) store_folded(folded[r] + 4 * (j & 15), sum[r]);
}

// Positions whose sums are made at once: enough chains to hide the latency of fma, as many as there are registers for.
#ifdef HOTLOOP_SIMD_AVX512
template <int R>
constexpr int kFoldedPositions = 4;
#else
template <int R>
constexpr int kFoldedPositions = R <= 2 ? 2 : 1;
#endif

// Positions [begin, end) of one chunk of 16.
template <int R, typename Element>
HOTLOOP_INLINE void fold_dots(const float* const* q, const SpanKv& kv, int64_t head_dim, int begin, int end,
                              const Ahead& ahead, float (*folded)[64]) {
  constexpr int P = kFoldedPositions<R>;
  int j = begin;
  for (; j + P <= end; j += P) {
    fetch(ahead, j, P);
    fold_positions<R, P, Element>(q, kv, head_dim, j, folded);
  }
  if constexpr (P > 1) {
    for (; j < end; ++j) fold_positions<R, 1, Element>(q, kv, head_dim, j, folded);
  }
}

// ---- int8 K ---------------------------------------------------------------------------------------------------------

// A query row in int8, in groups as its keys.
struct QueryCodes {
  const uint8_t* quads;  // [head_dim / 4, kQueryQuadBytes]
  const float* scale;    // [key groups]
  const int32_t* start;  // [key groups]: what a sum of products starts from
};

void encode_query(const float* q, int64_t head_dim, uint8_t* quads, float* scale, int32_t* start) {
  for (int64_t d = 0; d < head_dim; d += kKeyGroup) {
    const int64_t n = head_dim - d < kKeyGroup ? head_dim - d : kKeyGroup;
    int8_t codes[kKeyGroup];
    *scale = group_scale(group_magnitude(q + d, n));
    encode_group(q + d, n, *scale++, codes);
    int32_t sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += codes[i];
    *start++ = code_sum_start(sum);
    for (int64_t i = 0; i < n; i += 4) store_query_quad(quads + (d + i) / 4 * kQueryQuadBytes, codes + i);
  }
}

// One group of a chunk: score = fma(float(dot) * query scale, key scale, score). codes: of the group.
template <int R, int Quads>
HOTLOOP_INLINE void add_group_scores(const QueryCodes* q, const uint8_t* codes, int64_t quad_stride, int64_t group,
                                     const F32x16& key_scale, F32x16 (&score)[R]) {
  constexpr int kParts = 16 / kCodeLanes;
  constexpr int kChains = R == 1 ? 4 : R == 2 ? 2 : 1;  // sums of integers may be split at will
  alignas(64) int32_t dots[R][16];
  const uint8_t* query[R];
  for (int r = 0; r < R; ++r) query[r] = q[r].quads + group * (kKeyGroup / 4) * kQueryQuadBytes;
  for (int part = 0; part < kParts; ++part) {
    CodeSum sum[R][kChains];
    for (int r = 0; r < R; ++r) {
      sum[r][0] = broadcast_sum(q[r].start[group]);
      for (int c = 1; c < kChains; ++c) sum[r][c] = broadcast_sum(0);
    }
    const uint8_t* at = codes + part * kCodeLanes * 4;
    for (int quad = 0; quad < Quads; ++quad, at += quad_stride) {
      const Codes k = load_codes(at);
      for (int r = 0; r < R; ++r) {
        CodeSum& to = sum[r][quad % kChains];
        to = add_dots(to, k, query[r] + quad * kQueryQuadBytes);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int c = 1; c < kChains; ++c) sum[r][0] = sum[r][0] + sum[r][c];
      store(dots[r] + part * kCodeLanes, sum[r][0]);
    }
  }
  for (int r = 0; r < R; ++r) {
    score[r] = fma(load_as_float(dots[r]) * broadcast(q[r].scale[group]), key_scale, score[r]);
  }
}

// Dots of a chunk: 0, then group by group; lanes are the positions. Lanes no row sees may hold anything.
template <int R>
HOTLOOP_INLINE void code_scores(const QueryCodes* q, const SpanKv& kv, int64_t head_dim, int chunk, F32x16 (&score)[R]) {
  const uint8_t* codes = kv.k + kv.code_offset[chunk / 16];
  const float* key_scale = kv.key_scale + chunk;
  for (int r = 0; r < R; ++r) score[r] = broadcast(0.0f);
  constexpr int kQuads = kKeyGroup / 4;
  int64_t group = 0;
  for (; (group + 1) * kKeyGroup <= head_dim; ++group) {
    add_group_scores<R, kQuads>(q, codes, kv.quad_stride, group, load(key_scale + group * kSpan), score);
    codes += kQuads * kv.quad_stride;
  }
  if (head_dim % kKeyGroup != 0) {
    static_assert(kKeyGroup == 32, "head_dim is a multiple of 16: what is left are 4 quads");
    add_group_scores<R, 4>(q, codes, kv.quad_stride, group, load(key_scale + group * kSpan), score);
  }
}

}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
