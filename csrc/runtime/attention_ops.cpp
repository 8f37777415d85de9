// How attention is cut for the team: by requests, tokens and KV heads; and where that makes too few or too unequal tiles, by
// spans of positions or by query heads. None of it changes a bit.
#include <algorithm>

#include "runtime/ops.h"

namespace hotloop {
namespace {

constexpr int64_t kTokenTile = 16;
constexpr int64_t kTilesPerThread = 6;   // so that the threads end together
constexpr int64_t kMaxPartialRows = 256; // of rows whose spans are shared out: more make tiles enough by themselves

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct SpanRange {
  int64_t begin, end;
};

// The spans that tokens [begin, end) see something of.
SpanRange spans_of(const Batch& batch, int64_t begin, int64_t end, int32_t window) {
  const int64_t first = window > 0 ? std::max(0, batch.positions[begin] - window + 1) : 0;
  return {first / kSpan, batch.positions[end - 1] / kSpan + 1};
}

template <class Call>
void for_token_tiles(const Batch& batch, const Call& call) {
  for (int32_t r = 0; r < batch.requests; ++r) {
    for (int64_t t = batch.query_start[r]; t < batch.query_start[r + 1]; t += kTokenTile) {
      call(r, t, std::min<int64_t>(t + kTokenTile, batch.query_start[r + 1]));
    }
  }
}

}  // namespace

void PlanAttentionOp::run(const Step& step, int64_t, float*) {
  const Batch& batch = step.batch;
  const int32_t heads_per_kv = num_heads / num_kv_heads;
  work->tiles.clear();
  work->splits.clear();

  int64_t work_units = 0, tiles = 0;  // a unit: one token, one KV head, one span
  for_token_tiles(batch, [&](int32_t, int64_t begin, int64_t end) {
    const SpanRange spans = spans_of(batch, begin, end, window);
    work_units += (end - begin) * num_kv_heads * (spans.end - spans.begin);
    tiles += num_kv_heads;
  });
  const int64_t most_units = std::max<int64_t>(1, work_units / (step.threads * kTilesPerThread));  // of one tile
  // Where a few tiles of a span or less leave some threads idle at the end, the last KV heads share out their query heads.
  const int64_t first_uneven = tiles < 2 * step.threads ? tiles / step.threads * step.threads : tiles;
  const int32_t piece = static_cast<int32_t>(ceil_div(heads_per_kv, step.threads));
  int64_t index = 0;

  int64_t partials = 0;
  for_token_tiles(batch, [&](int32_t r, int64_t begin, int64_t end) {
    const SpanRange spans = spans_of(batch, begin, end, window);
    const int64_t num_spans = spans.end - spans.begin;
    const int64_t num_rows = (end - begin) * heads_per_kv;
    int64_t parts = std::min(num_spans, ceil_div((end - begin) * num_spans, most_units));
    if (step.threads == 1 || num_rows > kMaxPartialRows) parts = 1;
    for (int32_t kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
      const int32_t first_head = kv_head * heads_per_kv;
      if (parts == 1) {
        const int32_t head_step = index++ >= first_uneven ? piece : heads_per_kv;
        for (int32_t h = 0; h < heads_per_kv; h += head_step) {
          const int32_t last = std::min(h + head_step, heads_per_kv);
          work->tiles.push_back({r, {begin, end, kv_head, first_head + h, first_head + last}});
        }
        continue;
      }
      ++index;
      const int32_t split = static_cast<int32_t>(work->splits.size());
      work->splits.push_back({spans.begin, partials, static_cast<int32_t>(parts)});
      partials += num_rows * num_spans * partial_floats(head_dim);
      for (int64_t part = 0; part < parts; ++part) {
        work->tiles.push_back({r, {begin, end, kv_head, first_head, first_head + heads_per_kv},
                               spans.begin + part * num_spans / parts, spans.begin + (part + 1) * num_spans / parts, split});
      }
    }
  });
  if (static_cast<int64_t>(work->partials.size()) < partials) work->partials.resize(static_cast<size_t>(partials));
  if (work->finished_size < work->splits.size()) {
    work->finished_size = work->splits.size() * 2;
    work->finished = std::make_unique<std::atomic<int32_t>[]>(work->finished_size);
    for (size_t i = 0; i < work->finished_size; ++i) work->finished[i].store(0, std::memory_order_relaxed);
  }
}

int64_t AttentionOp::scratch_floats() const { return attention_scratch_floats(kv.head_dim); }

void AttentionOp::run(const Step& step, int64_t tile_index, float* scratch) {
  const AttentionTile& tile = work->tiles[tile_index];
  const AttentionRows& rows = tile.rows;
  const BatchGroup& group = step.batch.groups[kv.group];
  const AttentionArgs args = {
      step.row(q, 0), step.row(out.f32, 0), kv.k, kv.v, kv.k_scale, kv.v_scale, kv.block_stride_bytes,
      group.block_tables + tile.request * group.max_blocks, step.batch.positions,
      kv.block_size, num_heads, kv.num_kv_heads, kv.head_dim, kv.window, kv.k_dtype, kv.v_dtype, scale, softcap};
  if (tile.split < 0) {
    step.kernels.attention(args, rows, scratch);
  } else {
    const AttentionSplit& split = work->splits[tile.split];
    float* partials = work->partials.data() + split.partials;
    step.kernels.attention_spans(args, rows, split.first_span, tile.span_begin, tile.span_end, partials, scratch);
    std::atomic<int32_t>& finished = work->finished[tile.split];
    if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 < split.parts) return;
    finished.store(0, std::memory_order_relaxed);  // for the next layer
    step.kernels.merge_spans(args, rows, split.first_span, partials);
  }
  if (!out.quantized) return;
  const int64_t col = static_cast<int64_t>(rows.head_begin) * kv.head_dim;
  const int64_t n = static_cast<int64_t>(rows.head_end - rows.head_begin) * kv.head_dim;
  for (int64_t t = rows.token_begin; t < rows.token_end; ++t) {
    step.quantize(step.row(out.f32, t) + col, n, out.quantized, t, col);
  }
}

}  // namespace hotloop
