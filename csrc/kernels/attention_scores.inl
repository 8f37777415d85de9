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
                              float (*folded)[64]) {
  constexpr int P = kFoldedPositions<R>;
  int j = begin;
  for (; j + P <= end; j += P) fold_positions<R, P, Element>(q, kv, head_dim, j, folded);
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

// score = 0, then over the groups in order fma(float(dot) * query scale, key scale, score): lanes are the positions of the
// chunk. Lanes no row sees may hold anything.
template <int R>
HOTLOOP_INLINE void code_scores(const QueryCodes* q, const SpanKv& kv, int64_t head_dim, int chunk, F32x16 (&score)[R]) {
  constexpr int kParts = 16 / kCodeLanes;
  constexpr int kChains = R == 1 ? 4 : R == 2 ? 2 : 1;  // sums of integers may be split at will
  const uint8_t* codes = kv.k + kv.code_offset[chunk / 16];
  for (int r = 0; r < R; ++r) score[r] = broadcast(0.0f);
  for (int64_t d = 0, group = 0; d < head_dim; d += kKeyGroup, ++group) {
    alignas(64) int32_t dots[R][16];
    const int64_t quads = (head_dim - d < kKeyGroup ? head_dim - d : kKeyGroup) / 4;
    for (int part = 0; part < kParts; ++part) {
      CodeSum sum[R][kChains];
      for (int r = 0; r < R; ++r) {
        sum[r][0] = broadcast_sum(q[r].start[group]);
        for (int c = 1; c < kChains; ++c) sum[r][c] = broadcast_sum(0);
      }
      for (int64_t quad = 0; quad < quads; quad += kChains) {
        for (int c = 0; c < kChains; ++c) {
          const int64_t at = d / 4 + quad + c;
          const Codes k = load_codes(codes + at * kv.quad_stride + part * kCodeLanes * 4);
          for (int r = 0; r < R; ++r) sum[r][c] = add_dots(sum[r][c], k, q[r].quads + at * kQueryQuadBytes);
        }
      }
      for (int r = 0; r < R; ++r) {
        for (int c = 1; c < kChains; ++c) sum[r][0] = sum[r][0] + sum[r][c];
        store(dots[r] + part * kCodeLanes, sum[r][0]);
      }
    }
    const F32x16 key_scale = load(kv.key_scale + group * kSpan + chunk);
    for (int r = 0; r < R; ++r) {
      score[r] = fma(load_as_float(dots[r]) * broadcast(q[r].scale[group]), key_scale, score[r]);
    }
  }
}

}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
