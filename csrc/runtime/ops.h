// The launches a step program is made of. Each mirrors an op of the protocol (docs/ops.md).
#pragma once
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
  MatrixPtr table;
  float scale;
  Buffer out;
  const char* name() const override { return "embed"; }
  int64_t tiles(const Step& step) const override { return step.batch.tokens; }
  void run(const Step& step, int64_t tile, float*) override;
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

struct AttentionTile {
  int32_t request;
  int64_t token_begin, token_end;
  int32_t kv_head, head_begin, head_end;
};

struct PlanAttentionOp final : Op {
  int32_t num_heads, num_kv_heads, head_dim;
  std::shared_ptr<std::vector<AttentionTile>> work = std::make_shared<std::vector<AttentionTile>>();
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

struct LinearOp final : Op {
  Input x;
  MatrixPtr weight;
  VectorPtr bias;
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
  Buffer out;  // q
  const char* name() const override { return "qkv"; }
  int64_t tiles(const Step& step) const override;
  void run(const Step& step, int64_t tile, float* scratch) override;
  int64_t scratch_floats() const override;
};

struct AttentionOp final : Op {
  Buffer q;
  KvLayer kv;
  std::shared_ptr<const std::vector<AttentionTile>> work;  // of PlanAttentionOp
  int32_t num_heads;
  float scale, softcap;
  Output out;
  const char* name() const override { return "attention"; }
  int64_t tiles(const Step&) const override { return static_cast<int64_t>(work->size()); }
  void run(const Step& step, int64_t tile, float* scratch) override;
  int64_t scratch_floats() const override;
};

struct GateUpOp final : Op {
  Input x;
  MatrixPtr gate, up;
  GatedActivation activation;
  Output out;
  const char* name() const override { return "gate_up"; }
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
