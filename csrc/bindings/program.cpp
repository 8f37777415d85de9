// Step programs: recorded op by op from Python, replayed in one call with the GIL released.
#include "runtime/program.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bindings/bindings.h"
#include "runtime/dispatch.h"
#include "runtime/kv_append.h"
#include "runtime/ops.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hotloop {
namespace {

using Int32s = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Int64s = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Pool = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class OpType>
void add(Program& program, OpType op) {
  program.add(std::make_unique<OpType>(std::move(op)));
}

// The batch header; it points into its arguments.
Batch make_batch(const Int32s& token_ids, const Int32s& positions, const Int32s& query_start, const Int32s& logits_rows,
                 const std::vector<std::pair<Table, Int64s>>& groups) {
  Batch batch;
  batch.tokens = static_cast<int64_t>(token_ids.size());
  batch.requests = static_cast<int64_t>(query_start.size()) - 1;
  batch.logits = static_cast<int64_t>(logits_rows.size());
  check(static_cast<int64_t>(positions.size()) == batch.tokens && batch.requests >= 1 && batch.logits <= batch.tokens,
        "batch header: extents disagree");
  batch.token_ids = token_ids.data();
  batch.positions = positions.data();
  batch.query_start = query_start.data();
  batch.logits_rows = logits_rows.data();
  for (const auto& [table, slots] : groups) {
    check(static_cast<int64_t>(table.shape(0)) == batch.requests && static_cast<int64_t>(slots.size()) == batch.tokens,
          "batch header: a KV group's extents disagree");
    batch.groups.push_back({table.data(), static_cast<int64_t>(table.shape(1)), slots.data()});
  }
  return batch;
}

void replay(Program& program, const Int32s& token_ids, const Int32s& positions, const Int32s& query_start,
            const Int32s& logits_rows, const std::vector<std::pair<Table, Int64s>>& groups) {
  const Batch batch = make_batch(token_ids, positions, query_start, logits_rows, groups);
  nb::gil_scoped_release release;
  program.replay(batch);
}

std::pair<std::vector<double>, std::vector<std::vector<double>>> profile(
    Program& program, const Int32s& token_ids, const Int32s& positions, const Int32s& query_start,
    const Int32s& logits_rows, const std::vector<std::pair<Table, Int64s>>& groups) {
  const Batch batch = make_batch(token_ids, positions, query_start, logits_rows, groups);
  nb::gil_scoped_release release;
  Profile profile = program.profile(batch);
  return {std::move(profile.elapsed_s), std::move(profile.busy_s)};
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::enum_<Extent>(m, "Extent").value("tokens", Extent::Tokens).value("logits", Extent::Logits);

  nb::class_<Buffer>(m, "Buffer")
      .def(nb::init<>())
      .def(nb::init<int64_t, int64_t, int64_t, Extent>(), "offset"_a, "width"_a, "stride"_a, "extent"_a);
  nb::class_<QuantizedBuffer>(m, "QuantizedBuffer")
      .def(nb::init<>())
      .def(nb::init<int64_t, int64_t>(), "offset"_a, "cols"_a);
  nb::class_<Input>(m, "Input").def(nb::init<Buffer, QuantizedBuffer>(), "f32"_a, "quantized"_a);
  nb::class_<Output>(m, "Output").def(nb::init<Buffer, QuantizedBuffer>(), "f32"_a, "quantized"_a);
  m.def("quantized_bytes", &quantized_bytes, "rows"_a, "cols"_a);

  nb::class_<KvLayer>(m, "KvLayer")
      .def("__init__", [](KvLayer* self, Pool pool, int64_t k_offset, int64_t v_offset, int64_t k_scale_offset,
                          int64_t v_scale_offset, int64_t block_stride_bytes, int32_t group, int32_t block_size,
                          int32_t num_kv_heads, int32_t head_dim, int32_t window, KvDtype k_dtype, KvDtype v_dtype) {
        check(block_size >= 1 && num_kv_heads >= 1 && head_dim >= 16 && head_dim % 16 == 0 && head_dim <= kMaxHeadDim,
              "a KV layer's head_dim must be a multiple of 16, at most 1024");
        const int64_t vectors = int64_t{block_size} * num_kv_heads, stride = block_stride_bytes;
        const auto inside = [stride](int64_t offset, int64_t bytes) { return offset >= 0 && offset + bytes <= stride; };
        const auto scales_inside = [&](KvDtype dtype, int64_t offset, int64_t groups) {
          return dtype != KvDtype::INT8 || (inside(offset, vectors * groups * 2) && offset % 2 == 0 && stride % 2 == 0);
        };
        const bool fits = inside(k_offset, vectors * head_dim * kv_item_bytes(k_dtype)) &&
                          inside(v_offset, vectors * head_dim * kv_item_bytes(v_dtype)) &&
                          scales_inside(k_dtype, k_scale_offset, key_groups(head_dim)) &&
                          scales_inside(v_dtype, v_scale_offset, value_groups(head_dim)) &&
                          stride <= static_cast<int64_t>(pool.size());
        check(fits, "a KV layer does not lie inside a block of the pool");
        new (self) KvLayer{pool.data() + k_offset, pool.data() + v_offset, pool.data() + k_scale_offset,
                           pool.data() + v_scale_offset, stride, group, block_size, num_kv_heads, head_dim, window, k_dtype, v_dtype};
      }, "pool"_a, "k_offset"_a, "v_offset"_a, "k_scale_offset"_a, "v_scale_offset"_a, "block_stride_bytes"_a, "group"_a,
         "block_size"_a, "num_kv_heads"_a, "head_dim"_a, "window"_a, "k_dtype"_a, "v_dtype"_a, nb::keep_alive<1, 2>());

  nb::class_<AttentionWork>(m, "AttentionWork");

  nb::class_<Program>(m, "Program")
      .def("__init__", [](Program* self, const std::string& isa, std::shared_ptr<ThreadTeam> team, int64_t max_tokens) {
        new (self) Program(select_kernels(isa), std::move(team), max_tokens);
      }, "isa"_a, "team"_a, "max_tokens"_a)
      .def_prop_ro("isa", [](const Program& p) { return p.kernels().name; })
      .def_prop_ro("arena_bytes", &Program::arena_bytes)
      .def_prop_ro("ops", [](const Program& p) {
        std::vector<std::string> names;
        for (const auto& op : p.ops()) names.emplace_back(op->name());
        return names;
      })
      .def("embed", [](Program& p, MatrixPtr table, float scale, std::optional<MatrixPtr> positions, Buffer out) {
        EmbedOp op; op.table = std::move(table); op.scale = scale; op.positions = positions.value_or(nullptr); op.out = out;
        add(p, std::move(op));
      }, "table"_a, "scale"_a, "positions"_a.none(), "out"_a)
      .def("plan_rope", [](Program& p, const Doubles& inv_freq, double attention_factor, Buffer out) {
        PlanRopeOp op; op.inv_freq.assign(inv_freq.data(), inv_freq.data() + inv_freq.size());
        op.attention_factor = attention_factor; op.out = out;
        add(p, std::move(op));
      }, "inv_freq"_a, "attention_factor"_a, "out"_a)
      .def("plan_attention", [](Program& p, int32_t num_heads, int32_t num_kv_heads, int32_t head_dim, int32_t window) {
        PlanAttentionOp op; op.num_heads = num_heads; op.num_kv_heads = num_kv_heads; op.head_dim = head_dim;
        op.window = window;
        std::shared_ptr<AttentionWork> work = op.work;
        add(p, std::move(op));
        return work;
      }, "num_heads"_a, "num_kv_heads"_a, "head_dim"_a, "window"_a)
      .def("norm", [](Program& p, Buffer x, VectorPtr gain, float eps, Buffer residual, Output out) {
        NormOp op; op.x = x; op.gain = std::move(gain); op.eps = eps; op.residual = residual; op.out = out;
        add(p, std::move(op));
      }, "x"_a, "gain"_a, "eps"_a, "residual"_a, "out"_a)
      .def("layer_norm", [](Program& p, Buffer x, VectorPtr gain, VectorPtr bias, float eps, Output out) {
        LayerNormOp op; op.x = x; op.gain = std::move(gain); op.bias = std::move(bias); op.eps = eps; op.out = out;
        add(p, std::move(op));
      }, "x"_a, "gain"_a, "bias"_a, "eps"_a, "out"_a)
      .def("linear", [](Program& p, Input x, MatrixPtr weight, std::optional<VectorPtr> bias, float scale, Buffer residual, Buffer out) {
        LinearOp op; op.x = x; op.weight = std::move(weight); op.bias = bias.value_or(nullptr); op.scale = scale;
        op.residual = residual; op.out = out;
        add(p, std::move(op));
      }, "x"_a, "weight"_a, "bias"_a.none(), "scale"_a, "residual"_a, "out"_a)
      .def("qkv", [](Program& p, Input x, MatrixPtr q, MatrixPtr k, MatrixPtr v,
                     const std::vector<std::optional<VectorPtr>>& vectors, float norm_eps, Buffer rope, int64_t rot_dim,
                     RopeStyle style, const KvLayer& kv, Buffer out, Buffer k_out) {
        check(vectors.size() == 5, "qkv takes five optional vectors");
        QkvOp op; op.x = x; op.q = std::move(q); op.k = std::move(k); op.v = std::move(v);
        op.q_bias = vectors[0].value_or(nullptr); op.k_bias = vectors[1].value_or(nullptr);
        op.v_bias = vectors[2].value_or(nullptr); op.q_norm = vectors[3].value_or(nullptr);
        op.k_norm = vectors[4].value_or(nullptr);
        op.norm_eps = norm_eps; op.rope = rope; op.rot_dim = rot_dim; op.style = style; op.kv = kv; op.out = out;
        op.k_out = k_out;
        add(p, std::move(op));
      }, "x"_a, "q"_a, "k"_a, "v"_a, "vectors"_a, "norm_eps"_a, "rope"_a, "rot_dim"_a, "style"_a, "kv"_a, "out"_a, "k_out"_a)
      .def("qk_norm", [](Program& p, Buffer q, Buffer k, VectorPtr q_norm, VectorPtr k_norm, float norm_eps, Buffer rope,
                         int64_t rot_dim, RopeStyle style, const KvLayer& kv) {
        check(q_norm->size() == q.width && k_norm->size() == k.width, "qk_norm takes a gain for each element of a row");
        QkNormOp op; op.q = q; op.k = k; op.q_norm = std::move(q_norm); op.k_norm = std::move(k_norm); op.norm_eps = norm_eps;
        op.rope = rope; op.rot_dim = rot_dim; op.style = style; op.kv = kv;
        add(p, std::move(op));
      }, "q"_a, "k"_a, "q_norm"_a, "k_norm"_a, "norm_eps"_a, "rope"_a, "rot_dim"_a, "style"_a, "kv"_a)
      .def("attention", [](Program& p, Buffer q, const KvLayer& kv, std::shared_ptr<AttentionWork> work, int32_t num_heads, float scale,
                           float softcap, Output out) {
        AttentionOp op; op.q = q; op.kv = kv; op.work = std::move(work); op.num_heads = num_heads; op.scale = scale;
        op.softcap = softcap; op.out = out;
        add(p, std::move(op));
      }, "q"_a, "kv"_a, "work"_a, "num_heads"_a, "scale"_a, "softcap"_a, "out"_a)
      .def("gate_up", [](Program& p, Input x, MatrixPtr gate, MatrixPtr up, ActivationFunction activation, Output out) {
        GateUpOp op; op.x = x; op.gate = std::move(gate); op.up = std::move(up); op.activation = activation; op.out = out;
        add(p, std::move(op));
      }, "x"_a, "gate"_a, "up"_a, "activation"_a, "out"_a)
      .def("up", [](Program& p, Input x, MatrixPtr up, std::optional<VectorPtr> bias, ActivationFunction activation, Output out) {
        UpOp op; op.x = x; op.up = std::move(up); op.bias = bias.value_or(nullptr); op.activation = activation; op.out = out;
        add(p, std::move(op));
      }, "x"_a, "up"_a, "bias"_a.none(), "activation"_a, "out"_a)
      .def("quantize", [](Program& p, Buffer x, QuantizedBuffer out) {
        QuantizeOp op; op.x = x; op.out = out;
        add(p, std::move(op));
      }, "x"_a, "out"_a)
      .def("select_logits_rows", [](Program& p, Buffer x, Buffer out) {
        SelectLogitsRowsOp op; op.x = x; op.out = out;
        add(p, std::move(op));
      }, "x"_a, "out"_a)
      .def("softcap", [](Program& p, Buffer x, float cap, Buffer out) {
        SoftcapOp op; op.x = x; op.cap = cap; op.out = out;
        add(p, std::move(op));
      }, "x"_a, "cap"_a, "out"_a)
      .def("finish", &Program::finish, "arena_bytes"_a)
      .def("replay", &replay, "token_ids"_a, "positions"_a, "query_start"_a, "logits_rows"_a, "groups"_a)
      .def("profile", &profile, "token_ids"_a, "positions"_a, "query_start"_a, "logits_rows"_a, "groups"_a,
           "replay with clocks: (elapsed seconds per op, then per thread the seconds per op it ran its tiles).")
      .def("value", [](nb::handle self, const Buffer& buffer, int64_t rows) {
        const Program& p = nb::cast<const Program&>(self);
        check(rows >= 0 && rows <= p.max_tokens() && buffer, "value: rows out of range");
        const size_t shape[2] = {static_cast<size_t>(rows), static_cast<size_t>(buffer.width)};
        const int64_t strides[2] = {buffer.stride, 1};
        return nb::ndarray<nb::numpy, const float>(p.row(buffer, 0), 2, shape, self, strides);
      }, "buffer"_a, "rows"_a, "A read-only view [rows, width] of the arena, valid until the next replay.");
}

}  // namespace hotloop
