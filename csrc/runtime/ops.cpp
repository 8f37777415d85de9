#include "runtime/ops.h"

#include <algorithm>
#include <cstring>

#include "runtime/kv_append.h"
#include "runtime/rope_table.h"

namespace hotloop {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t row_blocks_of(const Matrix& matrix) { return ceil_div(matrix.rows, kRowBlock); }

// How a linear op is cut: row blocks x tokens. A few tokens: ranges long enough to stream, short enough that the threads end
// together. Many: a tile's weights and activations stay in the second-level cache.
struct Tiling {
  int64_t row_blocks, token_step, row_tiles, token_tiles;

  Tiling(const Matrix& w, int64_t tokens, int threads) {
    constexpr int64_t kFewTokens = 16, kTokenStep = 64, kRowBlocks = 16, kTileBytes = 192 << 10;
    const int64_t blocks = row_blocks_of(w);
    const int64_t tiles = std::max<int64_t>(threads * 2, blocks * row_block_bytes(w.format, w.cols) / kTileBytes);
    row_blocks = std::max<int64_t>(1, blocks / tiles);
    token_step = std::max<int64_t>(1, tokens);
    if (tokens > kFewTokens) {
      row_blocks = std::min(row_blocks, kRowBlocks);
      token_step = kTokenStep;
    }
    row_tiles = ceil_div(blocks, row_blocks);
    token_tiles = ceil_div(tokens, token_step);
  }
  int64_t tiles() const { return row_tiles * token_tiles; }
};

constexpr int64_t kMaxTileTokens = 64;

}  // namespace

void EmbedOp::run(const Step& step, int64_t t, float* scratch) {
  float* row = step.row(out, t);
  step.kernels.dequantize_row(table->matrix(), step.batch.token_ids[t], row);
  if (scale != 1.0f) step.kernels.scale(row, out.width, scale);
  if (!positions) return;
  step.kernels.dequantize_row(positions->matrix(), step.batch.positions[t], scratch);
  step.kernels.add(row, scratch, out.width, row);
}

void PlanRopeOp::run(const Step& step, int64_t t, float*) {
  const int64_t half = static_cast<int64_t>(inv_freq.size());
  float* row = step.row(out, t);
  rope_cos_sin(step.batch.positions + t, 1, inv_freq.data(), half, attention_factor, row, row + half);
}

void NormOp::run(const Step& step, int64_t i, float* scratch) {
  float* row = out.f32 ? step.row(out.f32, i) : scratch;
  const float* add = residual ? step.row(residual, i) : nullptr;
  step.kernels.rms_norm(step.row(x, i), gain->data(), add, x.width, eps, row);
  if (out.quantized) step.quantize(row, x.width, out.quantized, i, 0);
}

void LayerNormOp::run(const Step& step, int64_t i, float* scratch) {
  float* row = out.f32 ? step.row(out.f32, i) : scratch;
  step.kernels.layer_norm(step.row(x, i), gain->data(), bias->data(), x.width, eps, row);
  if (out.quantized) step.quantize(row, x.width, out.quantized, i, 0);
}

int64_t LinearOp::tiles(const Step& step) const {
  return Tiling(weight->matrix(), step.rows(out.extent), step.threads).tiles();
}

void LinearOp::run(const Step& step, int64_t tile, float*) {
  const Matrix& w = weight->matrix();
  const int64_t tokens = step.rows(out.extent);
  const Tiling tiling(w, tokens, step.threads);
  const int64_t block_begin = tile / tiling.token_tiles * tiling.row_blocks;
  const int64_t block_end = std::min(block_begin + tiling.row_blocks, row_blocks_of(w));
  const int64_t begin = tile % tiling.token_tiles * tiling.token_step;
  const int64_t end = std::min(begin + tiling.token_step, tokens);

  const int64_t col = block_begin * kRowBlock;
  step.kernels.linear(w, step.activations(x), block_begin, block_end, begin, end, step.row(out, begin) + col, out.stride);
  const int64_t n = std::min(block_end * kRowBlock, w.rows) - col;
  if (!bias && !residual && scale == 1.0f) return;
  for (int64_t t = begin; t < end; ++t) {
    float* y = step.row(out, t) + col;
    if (bias) step.kernels.add(y, bias->data() + col, n, y);
    if (scale != 1.0f) step.kernels.scale(y, n, scale);
    if (residual) step.kernels.add(y, step.row(residual, t) + col, n, y);
  }
}

int64_t QkvOp::tiles(const Step& step) const {
  const int64_t rows = q->matrix().rows + k->matrix().rows + v->matrix().rows;
  return rows / kv.head_dim * ceil_div(step.batch.tokens, kMaxTileTokens);
}

int64_t QkvOp::scratch_floats() const { return kMaxTileTokens * kv.head_dim; }

void QkvOp::run(const Step& step, int64_t tile, float* scratch) {
  const int64_t token_tiles = ceil_div(step.batch.tokens, kMaxTileTokens);
  const int64_t begin = tile % token_tiles * kMaxTileTokens;
  const int64_t end = std::min(begin + kMaxTileTokens, step.batch.tokens);
  const int64_t d = kv.head_dim;
  const int64_t num_heads = q->matrix().rows / d;

  int64_t head = tile / token_tiles;
  const WeightMatrix* weight = q.get();
  const WeightVector* bias = q_bias.get();
  const WeightVector* norm = q_norm.get();
  bool is_query = false;
  KvPart part = KvPart::Value;
  bool rotate = static_cast<bool>(rope);
  if (head >= num_heads + kv.num_kv_heads) {
    head -= num_heads + kv.num_kv_heads;
    weight = v.get(), bias = v_bias.get(), norm = nullptr, rotate = false;
  } else if (head >= num_heads) {
    head -= num_heads;
    weight = k.get(), bias = k_bias.get(), norm = k_norm.get(), part = KvPart::Key;
  } else {
    is_query = true;
  }

  const int64_t blocks = d / kRowBlock;
  step.kernels.linear(weight->matrix(), step.activations(x), head * blocks, (head + 1) * blocks, begin, end, scratch, d);
  const int64_t* slots = step.batch.groups[kv.group].slot_mapping;
  for (int64_t t = begin; t < end; ++t) {
    float* y = scratch + (t - begin) * d;
    if (bias) step.kernels.add(y, bias->data() + head * d, d, y);
    if (norm) step.kernels.rms_norm(y, norm->data(), nullptr, d, norm_eps, y);
    if (rotate) {
      const float* cos = step.row(rope, t);
      step.kernels.rope(y, cos, cos + rot_dim / 2, rot_dim, style);
    }
    if (is_query) {
      std::memcpy(step.row(out, t) + head * d, y, d * sizeof(float));
    } else if (part == KvPart::Key && k_out) {
      std::memcpy(step.row(k_out, t) + head * d, y, d * sizeof(float));
    } else {
      append_kv(step.kernels, kv, part, head, slots[t], y);
    }
  }
}

void QkNormOp::run(const Step& step, int64_t tile, float*) {
  const int64_t t = tile / 2, d = kv.head_dim;
  const bool is_query = tile % 2 == 0;
  const Buffer& buffer = is_query ? q : k;
  float* row = step.row(buffer, t);
  step.kernels.rms_norm(row, (is_query ? q_norm : k_norm)->data(), nullptr, buffer.width, norm_eps, row);
  for (int64_t head = 0; head < buffer.width / d; ++head) {
    float* y = row + head * d;
    if (rope) {
      const float* cos = step.row(rope, t);
      step.kernels.rope(y, cos, cos + rot_dim / 2, rot_dim, style);
    }
    if (!is_query) append_kv(step.kernels, kv, KvPart::Key, head, step.batch.groups[kv.group].slot_mapping[t], y);
  }
}

namespace {

// A tile holds whole groups of 32 rows of the intermediate vector, so it can quantize what it made for the next linear op. A
// few tokens: as many rows as still keep every thread busy, because long ranges stream better. Many: what fits the scratch.
struct FeedForwardTiling {
  static constexpr int64_t kFloats = 64 * kMaxTileTokens;  // scratch of one matrix
  int64_t rows, token_step, row_tiles, token_tiles;

  FeedForwardTiling(int64_t all_rows, int64_t tokens, int threads) {
    token_step = std::min(tokens, kMaxTileTokens);
    const int64_t most = kFloats / token_step / kGroupSize * kGroupSize;
    rows = std::min(most, ceil_div(ceil_div(all_rows, threads * 4), kGroupSize) * kGroupSize);
    row_tiles = ceil_div(all_rows, rows);
    token_tiles = ceil_div(tokens, token_step);
  }
  int64_t tiles() const { return row_tiles * token_tiles; }
};

// Tokens [begin, end), rows [row, row + n) and their row blocks.
struct FeedForwardTile {
  int64_t begin, end, row, n, block_begin, block_end;

  FeedForwardTile(const FeedForwardTiling& tiling, int64_t tile, int64_t all_rows, int64_t tokens) {
    begin = tile % tiling.token_tiles * tiling.token_step;
    end = std::min(begin + tiling.token_step, tokens);
    row = tile / tiling.token_tiles * tiling.rows;
    n = std::min(tiling.rows, all_rows - row);
    block_begin = row / kRowBlock;
    block_end = block_begin + ceil_div(n, kRowBlock);
  }
  void write(const Step& step, const float* y, int64_t t, const Output& out) const {
    if (out.f32) std::memcpy(step.row(out.f32, t) + row, y, n * sizeof(float));
    if (out.quantized) step.quantize(y, n, out.quantized, t, row);
  }
};

}  // namespace

int64_t GateUpOp::tiles(const Step& step) const {
  return FeedForwardTiling(gate->matrix().rows, step.batch.tokens, step.threads).tiles();
}

int64_t GateUpOp::scratch_floats() const { return 2 * FeedForwardTiling::kFloats; }

void GateUpOp::run(const Step& step, int64_t index, float* scratch) {
  const FeedForwardTiling tiling(gate->matrix().rows, step.batch.tokens, step.threads);
  const FeedForwardTile tile(tiling, index, gate->matrix().rows, step.batch.tokens);
  float* gates = scratch;
  float* ups = scratch + FeedForwardTiling::kFloats;
  const Activations a = step.activations(x);
  step.kernels.linear(gate->matrix(), a, tile.block_begin, tile.block_end, tile.begin, tile.end, gates, tiling.rows);
  step.kernels.linear(up->matrix(), a, tile.block_begin, tile.block_end, tile.begin, tile.end, ups, tiling.rows);
  for (int64_t t = tile.begin; t < tile.end; ++t) {
    float* g = gates + (t - tile.begin) * tiling.rows;
    step.kernels.gated(g, ups + (t - tile.begin) * tiling.rows, tile.n, activation, g);
    tile.write(step, g, t, out);
  }
}

int64_t UpOp::tiles(const Step& step) const {
  return FeedForwardTiling(up->matrix().rows, step.batch.tokens, step.threads).tiles();
}

int64_t UpOp::scratch_floats() const { return FeedForwardTiling::kFloats; }

void UpOp::run(const Step& step, int64_t index, float* scratch) {
  const FeedForwardTiling tiling(up->matrix().rows, step.batch.tokens, step.threads);
  const FeedForwardTile tile(tiling, index, up->matrix().rows, step.batch.tokens);
  step.kernels.linear(up->matrix(), step.activations(x), tile.block_begin, tile.block_end, tile.begin, tile.end, scratch,
                      tiling.rows);
  for (int64_t t = tile.begin; t < tile.end; ++t) {
    float* y = scratch + (t - tile.begin) * tiling.rows;
    step.kernels.activate(y, bias ? bias->data() + tile.row : nullptr, tile.n, activation, y);
    tile.write(step, y, t, out);
  }
}

void QuantizeOp::run(const Step& step, int64_t i, float*) { step.quantize(step.row(x, i), x.width, out, i, 0); }

void SelectLogitsRowsOp::run(const Step& step, int64_t i, float*) {
  std::memcpy(step.row(out, i), step.row(x, step.batch.logits_rows[i]), x.width * sizeof(float));
}

void SoftcapOp::run(const Step& step, int64_t i, float*) {
  std::memcpy(step.row(out, i), step.row(x, i), x.width * sizeof(float));
  step.kernels.softcap(step.row(out, i), x.width, cap);
}

}  // namespace hotloop
