// Attention of some tokens and heads of one request over a paged KV cache (design.md section 3, docs/determinism.md).
//
// Positions are cut into spans of 256. For one query row (a token and a head) and one span:
//   s_j = scale * (q . k_j), softcap. Float K: the dot is 16 fma chains over head_dim (lane d mod 16) and the tree.
//         int8 K: q is quantized as K is, in groups of 32; the dot is the f32 chain over the groups, from 0,
//         fma(float(exact integer dot) * query scale, key scale, dot);
//   m = max s_j;  p_j = exp(s_j - m);  l = sum of p_j, lane j mod 16 a chain over ascending j, then the tree;
//   o[d] = one fma chain over ascending j from 0: fma(p_j, v_j[d], o[d]); int8 V: fma(p_j * value scale, float(code), o[d]).
// Partials merge in ascending order into (M, L, O) = (-inf, 0, 0):
//   M' = max(M, m), a = exp(M - M'), b = exp(m - M');  L = fma(l, b, L a);  O[d] = fma(o[d], b, O[d] a).
// The result is O[d] / L. A span in which the row sees no position is skipped. Slots a row does not see contribute
// nothing: not even a product with zero. Nothing here depends on the tiling below, the block size or the call's extent.

#include "kernels/attention_scores.inl"
#include "kernels/attention_tile.inl"

namespace hotloop::HOTLOOP_TARGET {
namespace {

// ---- where a span's K and V lie -------------------------------------------------------------------------------------

// The runs of positions [begin, end) of a span that lie in one block: call(first position, count, block id, slot).
template <typename Call>
HOTLOOP_INLINE void for_blocks(const AttentionArgs& a, int64_t span_begin, int begin, int end, const Call& call) {
  int64_t block = (span_begin + begin) / a.block_size;
  int64_t slot = (span_begin + begin) % a.block_size;
  for (int j = begin; j < end;) {
    const int count = sooner(static_cast<int>(a.block_size - slot), end - j);
    call(j, count, int64_t{a.block_table[block++]}, slot);
    j += count;
    slot = 0;
  }
}

// Where the positions of a span lie, in bytes from the KV head's place in block 0.
struct Locations {
  RowRange range;  // positions that some row of the call sees
  int64_t k_offset[kSpan];
  int64_t v_offset[kSpan];
  int64_t code_offset[kSpan / 16];  // int8 K, blocks of a multiple of 16: codes of a chunk
};

// The work space of one call: see attention_scratch_floats.
struct Workspace {
  Tile tile;
  QueryCodes codes[kAttentionRows];
  float* key_scale;
  float* value_scale;
  uint8_t* key_codes;  // of a span, gathered: [16 chunks, head_dim / 4, 16, 4]
  int64_t gathered_offset[kSpan / 16];
  Locations locations[2];  // of a span and of the one after it

  Workspace(const AttentionArgs& a, float* scratch) {
    const auto take = [&scratch](int64_t n) {
      float* taken = scratch;
      scratch += n;
      return taken;
    };
    for (int r = 0; r < kTileRows; ++r) {
      tile.scores[r] = take(kSpan);
      tile.weights[r] = take(int64_t{kSpan} * value_groups(a.head_dim));
      tile.o[r] = take(a.head_dim);
    }
    key_scale = take(int64_t{kSpan} * key_groups(a.head_dim));
    value_scale = take(int64_t{kSpan} * value_groups(a.head_dim));
    key_codes = reinterpret_cast<uint8_t*>(take(int64_t{kSpan} * a.head_dim / 4));
    for (int chunk = 0; chunk < kSpan / 16; ++chunk) gathered_offset[chunk] = int64_t{chunk} * a.head_dim * 16;
    query_scratch_ = scratch;
  }

  void encode_queries(const AttentionArgs& a, int row, const float* q) {
    const int64_t groups = key_groups(a.head_dim);
    float* at = query_scratch_ + row * (a.head_dim / 2 + 2 * groups);
    uint8_t* bytes = reinterpret_cast<uint8_t*>(at + 2 * groups);
    static_assert(kQueryQuadBytes <= 8, "attention_scratch_floats has room for so many");
    encode_query(q, a.head_dim, bytes, at, reinterpret_cast<int32_t*>(at + groups));
    codes[row] = {bytes, at, reinterpret_cast<const int32_t*>(at + groups)};
  }

 private:
  float* query_scratch_;
};

// scales: bf16 [groups, block_size] of the KV head in block 0. out: [groups, 256].
HOTLOOP_INLINE void gather_scales(const AttentionArgs& a, const uint8_t* scales, int64_t groups, int first, int count,
                                  int64_t block, int64_t slot, float* out) {
  const uint16_t* src = reinterpret_cast<const uint16_t*>(scales + block * a.block_stride_bytes) + slot;
  for (int64_t g = 0; g < groups; ++g, src += a.block_size, out += kSpan) {
    int i = 0;
    for (; i + 16 <= count; i += 16) store(out + first + i, load_bf16(src + i));
    for (; i < count; ++i) out[first + i] = bf16_to_f32(src[i]);
  }
}

// Bytes from the KV head's place in block 0 to the rows of the positions [begin, end).
HOTLOOP_INLINE void locate_rows(const AttentionArgs& a, KvDtype dtype, int64_t span_begin, int begin, int end, int64_t* offset) {
  const int64_t row_bytes = a.head_dim * kv_item_bytes(dtype);
  for_blocks(a, span_begin, begin, end, [&](int first, int count, int64_t block, int64_t slot) {
    const int64_t base = block * a.block_stride_bytes + slot * row_bytes;
    for (int i = 0; i < count; ++i) offset[first + i] = base + i * row_bytes;
  });
}

// int8 K in blocks of a multiple of 16: where the codes of each chunk lie.
HOTLOOP_INLINE void locate_codes(const AttentionArgs& a, int64_t span_begin, int begin, int end, int64_t* code_offset) {
  for_blocks(a, span_begin, begin, end, [&](int first, int count, int64_t block, int64_t slot) {
    for (int j = first & ~15; j < first + count; j += 16) {
      code_offset[j / 16] = block * a.block_stride_bytes + (slot + j - first) * 4;
    }
  });
}

// int8 K in other blocks: the codes of each chunk, together.
HOTLOOP_INLINE void gather_codes(const AttentionArgs& a, const uint8_t* k, int64_t span_begin, RowRange range, uint8_t* codes) {
  for_blocks(a, span_begin, range.begin, range.end, [&](int first, int count, int64_t block, int64_t slot) {
    for (int64_t quad = 0; quad < a.head_dim / 4; ++quad) {
      const uint8_t* src = k + block * a.block_stride_bytes + (quad * a.block_size + slot) * 4;
      for (int j = first; j < first + count; ++j, src += 4) {
        __builtin_memcpy(codes + ((j / 16 * (a.head_dim / 4) + quad) * 16 + j % 16) * 4, src, 4);
      }
    }
  });
}

// One KV head of the call's cache, and what is asked of it.
struct HeadKv {
  const uint8_t *k, *v, *k_scale, *v_scale;  // its place in block 0
  bool int8_keys, int8_values;
  bool whole_chunks;  // every chunk of 16 positions lies in one block

  HeadKv(const AttentionArgs& a, int64_t head)
      : k(a.k + head * a.block_size * a.head_dim * kv_item_bytes(a.k_dtype)),
        v(a.v + head * a.block_size * a.head_dim * kv_item_bytes(a.v_dtype)),
        k_scale(a.k_scale + head * a.block_size * key_groups(a.head_dim) * 2),
        v_scale(a.v_scale + head * a.block_size * value_groups(a.head_dim) * 2),
        int8_keys(a.k_dtype == KvDtype::INT8),
        int8_values(a.v_dtype == KvDtype::INT8),
        whole_chunks(a.block_size % 16 == 0) {}
};

HOTLOOP_INLINE void fetch_scales(const AttentionArgs& a, const uint8_t* scales, int64_t groups, int64_t block) {
  const uint8_t* p = scales + block * a.block_stride_bytes;
  for (int64_t i = 0; i < groups * a.block_size * 2; i += 64) __builtin_prefetch(p + i, 0, 2);
}

// Where the positions of a span lie; its scales are on their way then.
HOTLOOP_INLINE void locate_span(const AttentionArgs& a, const HeadKv& head, int64_t span_begin, RowRange range, Locations& to) {
  to.range = range;
  if (range.begin >= range.end) return;
  locate_rows(a, a.v_dtype, span_begin, range.begin, range.end, to.v_offset);
  if (!head.int8_keys && a.k_dtype != a.v_dtype) locate_rows(a, a.k_dtype, span_begin, range.begin, range.end, to.k_offset);
  if (head.int8_keys && head.whole_chunks) locate_codes(a, span_begin, range.begin, range.end, to.code_offset);
  if (!head.int8_values && !head.int8_keys) return;
  for_blocks(a, span_begin, range.begin, range.end, [&](int, int, int64_t block, int64_t) {
    if (head.int8_values) fetch_scales(a, head.v_scale, value_groups(a.head_dim), block);
    if (head.int8_keys) fetch_scales(a, head.k_scale, key_groups(a.head_dim), block);
  });
}

// A span's K and V as the tiles read them: scales, and codes of small blocks, are gathered into the work space.
HOTLOOP_INLINE SpanKv open_span(const AttentionArgs& a, const HeadKv& head, int64_t span_begin, const Locations& at,
                                Workspace& work) {
  SpanKv kv{head.k, head.v, a.k_dtype == a.v_dtype ? at.v_offset : at.k_offset, at.v_offset, at.code_offset,
            int64_t{a.block_size} * 4, work.key_scale, work.value_scale};
  if (head.int8_values || head.int8_keys) {
    for_blocks(a, span_begin, at.range.begin, at.range.end, [&](int first, int count, int64_t block, int64_t slot) {
      if (head.int8_values) gather_scales(a, head.v_scale, value_groups(a.head_dim), first, count, block, slot, work.value_scale);
      if (head.int8_keys) gather_scales(a, head.k_scale, key_groups(a.head_dim), first, count, block, slot, work.key_scale);
    });
  }
  if (head.int8_keys && !head.whole_chunks) {
    gather_codes(a, head.k, span_begin, at.range, work.key_codes);
    kv.k = work.key_codes;
    kv.quad_stride = 64;
    kv.code_offset = work.gathered_offset;
  }
  return kv;
}

HOTLOOP_INLINE Ahead values_of(const AttentionArgs& a, const HeadKv& head, const Locations& at) {
  return {head.v, at.v_offset, (a.head_dim * kv_item_bytes(a.v_dtype) + 63) / 64, 0, at.range.begin, at.range.end};
}

HOTLOOP_INLINE Ahead keys_of(const AttentionArgs& a, const HeadKv& head, const Locations& at) {
  if (!head.int8_keys) {
    const int64_t* offset = a.k_dtype == a.v_dtype ? at.v_offset : at.k_offset;
    return {head.k, offset, (a.head_dim * kv_item_bytes(a.k_dtype) + 63) / 64, 0, at.range.begin, at.range.end};
  }
  if (!head.whole_chunks) return {};  // gathering reads them in one go
  return {head.k, at.code_offset, a.head_dim / 4, int64_t{a.block_size} * 4, at.range.begin, at.range.end};
}

// ---- the walk over spans --------------------------------------------------------------------------------------------

// The running (M, L, O) of one query row; O is the row of the output.
struct RunningRow {
  const float* q;
  float* out;
  int64_t first, last;  // positions seen: [first, last]
  float m, l;
};

HOTLOOP_INLINE void begin_row(RunningRow& row, int64_t head_dim) {
  row.m = -kInfinity;
  row.l = 0.0f;
  for (int64_t d = 0; d < head_dim; d += 16) store(row.out + d, broadcast(0.0f));
}

HOTLOOP_INLINE void merge(RunningRow& row, float m, float l, const float* o, int64_t head_dim) {
  const float m_new = row.m > m ? row.m : m;
  const F32x16 distance[2] = {broadcast(row.m - m_new), broadcast(m - m_new)};
  F32x16 factor[2];
  exp(distance, factor);
  const F32x16 a = factor[0], b = factor[1];
  float lanes[16];
  store(lanes, fma(broadcast(l), b, broadcast(row.l) * a));
  row.m = m_new;
  row.l = lanes[0];
  for (int64_t d = 0; d < head_dim; d += 16) store(row.out + d, fma(load(o + d), b, load(row.out + d) * a));
}

HOTLOOP_INLINE void end_row(RunningRow& row, int64_t head_dim) {
  const F32x16 l = broadcast(row.l);
  for (int64_t d = 0; d < head_dim; d += 16) store(row.out + d, load(row.out + d) / l);
}

// Up to kAttentionRows query rows, span by span, so that a span's K and V stay in cache for all of them. take(row, span,
// m, l, o) gets every partial, spans ascending.
template <typename Take>
HOTLOOP_INLINE void walk_spans(const AttentionArgs& a, int32_t kv_head, const RunningRow* rows, int num_rows,
                               int64_t span_begin, int64_t span_end, float* scratch, const Take& take) {
  Workspace work(a, scratch);
  Tile& tile = work.tile;
  int64_t first = rows[0].first, last = rows[0].last;
  for (int r = 0; r < num_rows; ++r) {
    if (rows[r].first < first) first = rows[r].first;
    if (rows[r].last > last) last = rows[r].last;
    if (a.k_dtype == KvDtype::INT8) work.encode_queries(a, r, rows[r].q);
  }
  if (span_begin < first / kSpan) span_begin = first / kSpan;
  if (span_end > last / kSpan + 1) span_end = last / kSpan + 1;
  const HeadKv head(a, kv_head);
  const auto seen = [](int64_t begin, int64_t end, int64_t span) {  // positions of [begin, end] in the span
    const int64_t from = begin > span ? begin - span : 0, to = end + 1 - span < kSpan ? end + 1 - span : kSpan;
    return RowRange{static_cast<int32_t>(from), static_cast<int32_t>(to)};
  };

  for (int64_t index = span_begin; index < span_end; ++index) {
    const int64_t span = index * kSpan;
    Locations& here = work.locations[index & 1];
    Locations& next = work.locations[~index & 1];
    if (index == span_begin) {
      locate_span(a, head, span, seen(first, last, span), here);
      const Ahead keys = keys_of(a, head, here);
      for (int chunk = 0; chunk < kSpan; chunk += 16) fetch(keys, chunk, 16);
    }
    const bool has_next = index + 1 < span_end;
    if (has_next) locate_span(a, head, span + kSpan, seen(first, last, span + kSpan), next);
    const Ahead values = values_of(a, head, here), next_keys = has_next ? keys_of(a, head, next) : Ahead();
    const SpanKv kv = open_span(a, head, span, here, work);

    int active[kAttentionRows];
    RowRange ranges[kAttentionRows];
    int count = 0;
    for (int r = 0; r < num_rows; ++r) {
      const RowRange range = seen(rows[r].first, rows[r].last, span);
      if (range.begin >= range.end) continue;
      active[count] = r;
      ranges[count++] = range;
    }
    const int tiles = (count + kTileRows - 1) / kTileRows;
    for (int t = 0, done = 0; t < tiles; ++t) {
      const int size = (count - done + tiles - t - 1) / (tiles - t);  // as even as possible
      for (int r = 0; r < size; ++r) {
        const int row = active[done + r];
        tile.q[r] = rows[row].q;
        tile.codes[r] = work.codes[row];
        tile.range[r] = ranges[done + r];
      }
      attend_tile(a, kv, t == 0 ? values : Ahead(), t == 0 ? next_keys : Ahead(), size, tile);
      for (int r = 0; r < size; ++r) take(active[done + r], index, tile.m[r], tile.l[r], tile.o[r]);
      done += size;
    }
  }
}

// The call's rows, at most kAttentionRows at a time: call(rows, count, index of the first).
template <typename Call>
HOTLOOP_INLINE void for_rows(const AttentionArgs& a, const AttentionRows& all, const Call& call) {
  RunningRow rows[kAttentionRows];
  int count = 0;
  int64_t done = 0;
  for (int64_t t = all.token_begin; t < all.token_end; ++t) {
    const int64_t position = a.positions[t];
    const int64_t first = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
    for (int64_t h = all.head_begin; h < all.head_end; ++h) {
      const int64_t at = (t * a.num_heads + h) * a.head_dim;
      rows[count++] = {a.q + at, a.out + at, first, position, 0.0f, 0.0f};
      if (count == kAttentionRows) {
        call(rows, count, done);
        done += count;
        count = 0;
      }
    }
  }
  if (count > 0) call(rows, count, done);
}

void attention(const AttentionArgs& a, const AttentionRows& all, float* scratch) {
  for_rows(a, all, [&](RunningRow* rows, int count, int64_t) {
    for (int r = 0; r < count; ++r) begin_row(rows[r], a.head_dim);
    constexpr int64_t kAllSpans = int64_t{1} << 40;
    walk_spans(a, all.kv_head, rows, count, 0, kAllSpans, scratch, [&](int row, int64_t, float m, float l, const float* o) {
      merge(rows[row], m, l, o, a.head_dim);
    });
    for (int r = 0; r < count; ++r) end_row(rows[r], a.head_dim);
  });
}

void attention_spans(const AttentionArgs& a, const AttentionRows& all, int64_t first_span, int64_t span_begin,
                     int64_t span_end, float* partials, float* scratch) {
  const int64_t num_rows = all.count(), stride = partial_floats(a.head_dim);
  for_rows(a, all, [&](RunningRow* rows, int count, int64_t done) {
    walk_spans(a, all.kv_head, rows, count, span_begin, span_end, scratch,
               [&](int row, int64_t span, float m, float l, const float* o) {
      float* to = partials + ((span - first_span) * num_rows + done + row) * stride;
      for (int64_t d = 0; d < a.head_dim; d += 16) store(to + d, load(o + d));
      to[a.head_dim] = m;
      to[a.head_dim + 1] = l;
    });
  });
}

void merge_spans(const AttentionArgs& a, const AttentionRows& all, int64_t first_span, const float* partials) {
  const int64_t num_rows = all.count(), stride = partial_floats(a.head_dim);
  for_rows(a, all, [&](RunningRow* rows, int count, int64_t done) {
    for (int r = 0; r < count; ++r) {
      RunningRow& row = rows[r];
      begin_row(row, a.head_dim);
      for (int64_t span = row.first / kSpan; span <= row.last / kSpan; ++span) {
        const float* from = partials + ((span - first_span) * num_rows + done + r) * stride;
        merge(row, from[a.head_dim], from[a.head_dim + 1], from, a.head_dim);
      }
      end_row(row, a.head_dim);
    }
  });
}

}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
