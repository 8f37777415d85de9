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

// The work space of one call: see attention_scratch_floats.
struct Workspace {
  Tile tile;
  QueryCodes codes[kAttentionRows];
  float* key_scale;
  float* value_scale;
  uint8_t* key_codes;  // of a span, gathered: [16 chunks, head_dim / 4, 16, 4]
  int64_t k_offset[kSpan];
  int64_t v_offset[kSpan];
  int64_t code_offset[kSpan / 16];

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

// int8 K: where the codes of each chunk lie, gathered unless every chunk of 16 positions lies in one block.
HOTLOOP_INLINE void locate_codes(const AttentionArgs& a, int64_t span_begin, int begin, int end, Workspace& work, SpanKv& kv) {
  const bool whole_chunks = a.block_size % 16 == 0;
  for_blocks(a, span_begin, begin, end, [&](int first, int count, int64_t block, int64_t slot) {
    const int64_t codes = block * a.block_stride_bytes + slot * 4;
    if (whole_chunks) {
      for (int j = first & ~15; j < first + count; j += 16) work.code_offset[j / 16] = codes + (j - first) * 4;
      return;
    }
    for (int64_t quad = 0; quad < a.head_dim / 4; ++quad) {
      const uint8_t* src = kv.k + codes + quad * a.block_size * 4;
      for (int j = first; j < first + count; ++j, src += 4) {
        __builtin_memcpy(work.key_codes + ((j / 16 * (a.head_dim / 4) + quad) * 16 + j % 16) * 4, src, 4);
      }
    }
  });
  kv.quad_stride = int64_t{a.block_size} * 4;
  if (!whole_chunks) {
    kv.k = work.key_codes;
    kv.quad_stride = 64;
    for (int chunk = 0; chunk < kSpan / 16; ++chunk) work.code_offset[chunk] = int64_t{chunk} * a.head_dim * 16;
  }
}

// Positions [begin, end) of the span, which some row of the call sees.
HOTLOOP_INLINE SpanKv locate_span(const AttentionArgs& a, int32_t kv_head, int64_t span_begin, int begin, int end,
                                  Workspace& work) {
  const int64_t head_elements = int64_t{kv_head} * a.block_size * a.head_dim;
  SpanKv kv{a.k + head_elements * kv_item_bytes(a.k_dtype), a.v + head_elements * kv_item_bytes(a.v_dtype),
            work.k_offset, work.v_offset, work.code_offset, 0, work.key_scale, work.value_scale};
  locate_rows(a, a.v_dtype, span_begin, begin, end, work.v_offset);
  if (a.v_dtype == KvDtype::INT8) {
    const int64_t groups = value_groups(a.head_dim);
    const uint8_t* scales = a.v_scale + kv_head * groups * a.block_size * 2;
    for_blocks(a, span_begin, begin, end, [&](int first, int count, int64_t block, int64_t slot) {
      gather_scales(a, scales, groups, first, count, block, slot, work.value_scale);
    });
  }
  if (a.k_dtype != KvDtype::INT8) {
    if (a.k_dtype == a.v_dtype) {
      kv.k_offset = work.v_offset;
    } else {
      locate_rows(a, a.k_dtype, span_begin, begin, end, work.k_offset);
    }
    return kv;
  }
  const int64_t groups = key_groups(a.head_dim);
  const uint8_t* scales = a.k_scale + kv_head * groups * a.block_size * 2;
  for_blocks(a, span_begin, begin, end, [&](int first, int count, int64_t block, int64_t slot) {
    gather_scales(a, scales, groups, first, count, block, slot, work.key_scale);
  });
  locate_codes(a, span_begin, begin, end, work, kv);
  return kv;
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
  const F32x16 a = exp(broadcast(row.m - m_new)), b = exp(broadcast(m - m_new));
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

  for (int64_t index = span_begin; index < span_end; ++index) {
    const int64_t span = index * kSpan;
    int active[kAttentionRows];
    RowRange ranges[kAttentionRows];
    int count = 0, begin = kSpan, end = 0;
    for (int r = 0; r < num_rows; ++r) {
      const int64_t from = rows[r].first > span ? rows[r].first - span : 0;
      const int64_t to = rows[r].last + 1 - span < kSpan ? rows[r].last + 1 - span : kSpan;
      if (from >= to) continue;
      active[count] = r;
      ranges[count++] = {static_cast<int32_t>(from), static_cast<int32_t>(to)};
      if (from < begin) begin = static_cast<int>(from);
      if (to > end) end = static_cast<int>(to);
    }
    if (count == 0) continue;
    const SpanKv kv = locate_span(a, kv_head, span, begin, end, work);
    const int tiles = (count + kTileRows - 1) / kTileRows;
    for (int t = 0, done = 0; t < tiles; ++t) {
      const int size = (count - done + tiles - t - 1) / (tiles - t);  // as even as possible
      for (int r = 0; r < size; ++r) {
        const int row = active[done + r];
        tile.q[r] = rows[row].q;
        tile.codes[r] = work.codes[row];
        tile.range[r] = ranges[done + r];
      }
      attend_tile(a, kv, size, tile);
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
