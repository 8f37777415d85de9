// The launches a step program is made of. Each mirrors an op of the protocol (docs/ops.md).
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "runtime/program.h"

namespace hotloop {

using MatrixPtr = std::shared_ptr<WeightMatrix>;
using VectorPtr = std::shared_ptr<WeightVector>;

// An op's result: either form, or both, as its consumers need.
struct Output {
  Buffer f32;
  QuantizedBuffer quantized;
};

struct EmbedOp final : Op {
  MatrixPtr table, positions;  // positions: learned embeddings, a row for every position that can be; null: none
  float scale;
  Buffer out;
  const char* name() const override { return "embed"; }
  int64_t tiles(const Step& step) const override { return step.batch.tokens; }
  void run(const Step& step, int64_t tile, float* scratch) override;
  int64_t scratch_floats() const override { return positions ? out.stride : 0; }
};

// cos and sin [T, rot_dim / 2] each, one after the other in a row of `out`.
struct PlanRopeOp final : Op {
  std::vector<double> inv_freq;
  double attention_factor;
  Buffer out;
  const char* name() const override { return "plan_rope"; }
  int64_t tiles(const Step& step) const override { return step.batch.tokens; }
  void run(const Step& step, int64_t tile, float*) override;
};

// Some query rows of one request, over all they see or over some of the spans. The parts of split rows share `split`.
struct AttentionTile {
  int32_t request;
  AttentionRows rows;
  int64_t span_begin = 0, span_end = 0;
  int32_t split = -1;  // index into AttentionWork::splits; -1: whole
};

// Rows whose spans are shared out among threads: whoever finishes the last part merges all.
struct AttentionSplit {
  int64_t first_span;
  int64_t partials;  // offset, floats
  int32_t parts;
};

struct AttentionWork {
  std::vector<AttentionTile> tiles;
  std::vector<AttentionSplit> splits;
  std::vector<float> partials;
  std::unique_ptr<std::atomic<int32_t>[]> finished;  // [splits], parts done; 0 between ops
  size_t finished_size = 0;
};

struct PlanAttentionOp final : Op {
  int32_t num_heads, num_kv_heads, head_dim, window;
  std::shared_ptr<AttentionWork> work = std::make_shared<AttentionWork>();
  const char* name() const override { return "plan_attention"; }
  int64_t tiles(const Step&) const override { return 1; }
  void run(const Step& step, int64_t, float*) override;
};

struct NormOp final : Op {
  Buffer x, residual;
  VectorPtr gain;
  float eps;
  Output out;
  const char* name() const override { return "norm"; }
  int64_t tiles(const Step& step) const override { return step.rows(x.extent); }
  void run(const Step& step, int64_t tile, float* scratch) override;
  int64_t scratch_floats() const override { return x.stride; }
};

struct LayerNormOp final : Op {
  Buffer x;
  VectorPtr gain, bias;
  float eps;
  Output out;
  const char* name() const override { return "layer_norm"; }
  int64_t tiles(const Step& step) const override { return step.rows(x.extent); }
  void run(const Step& step, int64_t tile, float* scratch) override;
  int64_t scratch_floats() const override { return x.stride; }
};

// ((x W^T + bias) * scale) + residual, each operation rounded.
struct LinearOp final : Op {
  Input x;
  MatrixPtr weight;
  VectorPtr bias;
  float scale;
  Buffer residual, out;
  const char* name() const override { return "linear"; }
  int64_t tiles(const Step& step) const override;
  void run(const Step& step, int64_t tile, float*) override;
};

// One tile is one head of q, k or v for some tokens: project, bias, norm, rope, and append (k, v).
struct QkvOp final : Op {
  Input x;
  MatrixPtr q, k, v;
  VectorPtr q_bias, k_bias, v_bias, q_norm, k_norm;
  float norm_eps;
  Buffer rope;  // of PlanRopeOp; absent: no rotation
  int64_t rot_dim;
  RopeStyle style;
  KvLayer kv;
  Buffer out;    // q
  Buffer k_out;  // where k goes, for QkNormOp to append it; absent: to the cache
  const char* name() const override { return "qkv"; }
  int64_t tiles(const Step& step) const override;
  void run(const Step& step, int64_t tile, float* scratch) override;
  int64_t scratch_floats() const override;
};

// RMS norms over the whole rows of q and of k, then rope, head by head; q stays where it is, k is appended.
struct QkNormOp final : Op {
  Buffer q, k;
  VectorPtr q_norm, k_norm;
  float norm_eps;
  Buffer rope;  // as in QkvOp
  int64_t rot_dim;
  RopeStyle style;
  KvLayer kv;
  const char* name() const override { return "qk_norm"; }
  int64_t tiles(const Step& step) const override { return 2 * step.batch.tokens; }
  void run(const Step& step, int64_t tile, float*) override;
};

struct AttentionOp final : Op {
  Buffer q;
  KvLayer kv;
  std::shared_ptr<AttentionWork> work;  // of PlanAttentionOp
  int32_t num_heads;
  float scale, softcap;
  Output out;
  const char* name() const override { return "attention"; }
  int64_t tiles(const Step&) const override { return static_cast<int64_t>(work->tiles.size()); }
  void run(const Step& step, int64_t tile, float* scratch) override;
  int64_t scratch_floats() const override;
};

struct GateUpOp final : Op {
  Input x;
  MatrixPtr gate, up;
  ActivationFunction activation;
  Output out;
  const char* name() const override { return "gate_up"; }
  int64_t tiles(const Step& step) const override;
  void run(const Step& step, int64_t tile, float* scratch) override;
  int64_t scratch_floats() const override;
};

struct UpOp final : Op {
  Input x;
  MatrixPtr up;
  VectorPtr bias;
  ActivationFunction activation;
  Output out;
  const char* name() const override { return "up"; }
  int64_t tiles(const Step& step) const override;
  void run(const Step& step, int64_t tile, float* scratch) override;
  int64_t scratch_floats() const override;
};

struct QuantizeOp final : Op {
  Buffer x;
  QuantizedBuffer out;
  const char* name() const override { return "quantize"; }
  int64_t tiles(const Step& step) const override { return step.rows(x.extent); }
  void run(const Step& step, int64_t tile, float*) override;
};

struct SelectLogitsRowsOp final : Op {
  Buffer x, out;
  const char* name() const override { return "select_logits_rows"; }
  int64_t tiles(const Step& step) const override { return step.batch.logits; }
  void run(const Step& step, int64_t tile, float*) override;
};

struct SoftcapOp final : Op {
  Buffer x, out;
  float cap;
  const char* name() const override { return "softcap"; }
  int64_t tiles(const Step& step) const override { return step.rows(x.extent); }
  void run(const Step& step, int64_t tile, float*) override;
};

}  // namespace hotloop
