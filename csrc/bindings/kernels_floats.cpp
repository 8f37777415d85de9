// The float kernels of each instruction set, callable by name on numpy arrays: for tests and for the sampler.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "bindings/bindings.h"
#include "runtime/dispatch.h"
#include "runtime/float_environment.h"
#include "runtime/kv_append.h"
#include "runtime/probe.h"
#include "runtime/rope_table.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hotloop {
namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Result = nb::ndarray<nb::numpy, T>;

template <typename T>
Result<T> make_result(std::vector<size_t> shape) {
  size_t n = 1;
  for (const size_t extent : shape) n *= extent;
  T* data = new T[n];
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return Result<T>(data, shape.size(), shape.data(), owner);
}

int64_t length(const Floats& x) { return static_cast<int64_t>(x.size()); }

Result<float> copy_of(const Floats& x) {
  auto out = make_result<float>({x.size()});
  std::copy(x.data(), x.data() + x.size(), out.data());
  return out;
}

// out[i] = f(x[i]) for a kernel of that form.
template <typename Member>
auto elementwise(Member member) {
  return [member](const std::string& isa, const Floats& x) {
    const KernelTable& kernels = select_kernels(isa);
    auto out = make_result<float>({x.size()});
    const FloatEnvironment environment;
    (kernels.*member)(x.data(), length(x), out.data());
    return out;
  };
}

void bind_rows(nb::module_& m) {
  m.def("rms_norm", [](const std::string& isa, const Floats& x, const Floats& gain, const std::optional<Floats>& residual, float eps) {
    const KernelTable& kernels = select_kernels(isa);
    check(gain.size() == x.size() && (!residual || residual->size() == x.size()), "rms_norm: sizes differ");
    auto out = make_result<float>({x.size()});
    const FloatEnvironment environment;
    kernels.rms_norm(x.data(), gain.data(), residual ? residual->data() : nullptr, length(x), eps, out.data());
    return out;
  }, "isa"_a, "x"_a, "gain"_a, "residual"_a.none(), "eps"_a);
  m.def("layer_norm", [](const std::string& isa, const Floats& x, const Floats& gain, const Floats& bias, float eps) {
    const KernelTable& kernels = select_kernels(isa);
    check(gain.size() == x.size() && bias.size() == x.size(), "layer_norm: sizes differ");
    auto out = make_result<float>({x.size()});
    const FloatEnvironment environment;
    kernels.layer_norm(x.data(), gain.data(), bias.data(), length(x), eps, out.data());
    return out;
  }, "isa"_a, "x"_a, "gain"_a, "bias"_a, "eps"_a);
  m.def("rope", [](const std::string& isa, const Floats& head, const Floats& cos, const Floats& sin, RopeStyle style) {
    const KernelTable& kernels = select_kernels(isa);
    check(cos.size() == sin.size() && 2 * cos.size() <= head.size(), "rope: sizes differ");
    auto out = copy_of(head);
    const FloatEnvironment environment;
    kernels.rope(out.data(), cos.data(), sin.data(), 2 * length(cos), style);
    return out;
  }, "isa"_a, "head"_a, "cos"_a, "sin"_a, "style"_a);
  const auto store_as = [](KvDtype dtype) {
    return [dtype](const std::string& isa, const Floats& x) {
      const KernelTable& kernels = select_kernels(isa);
      auto out = make_result<uint16_t>({x.size()});
      const FloatEnvironment environment;
      kernels.store_kv(x.data(), length(x), dtype, out.data());
      return out;
    };
  };
  m.def("store_f16", store_as(KvDtype::F16), "isa"_a, "x"_a, "IEEE binary16 bit patterns, as the KV cache stores them.");
  m.def("store_bf16", store_as(KvDtype::BF16), "isa"_a, "x"_a, "bfloat16 bit patterns, as the KV cache stores them.");
  m.def("quantize_kv", [](const std::string& isa, const Floats& x, int64_t group_size) {
    const KernelTable& kernels = select_kernels(isa);
    check(x.size() % 16 == 0 && group_size > 0 && group_size % 16 == 0, "quantize_kv: lengths must be multiples of 16");
    auto codes = make_result<int8_t>({x.size()});
    auto scales = make_result<uint16_t>({(x.size() + static_cast<size_t>(group_size) - 1) / static_cast<size_t>(group_size)});
    const FloatEnvironment environment;
    kernels.quantize_kv(x.data(), length(x), group_size, codes.data(), scales.data());
    return std::make_pair(codes, scales);
  }, "isa"_a, "x"_a, "group_size"_a, "int8 codes and bf16 scales, as the KV cache stores them.");
  m.def("gated", [](const std::string& isa, const Floats& gate, const Floats& up, ActivationFunction activation) {
    const KernelTable& kernels = select_kernels(isa);
    check(gate.size() == up.size(), "gated: sizes differ");
    auto out = make_result<float>({gate.size()});
    const FloatEnvironment environment;
    kernels.gated(gate.data(), up.data(), length(gate), activation, out.data());
    return out;
  }, "isa"_a, "gate"_a, "up"_a, "activation"_a);
  m.def("activate", [](const std::string& isa, const Floats& x, const std::optional<Floats>& bias, ActivationFunction activation) {
    const KernelTable& kernels = select_kernels(isa);
    check(!bias || bias->size() == x.size(), "activate: sizes differ");
    auto out = make_result<float>({x.size()});
    const FloatEnvironment environment;
    kernels.activate(x.data(), bias ? bias->data() : nullptr, length(x), activation, out.data());
    return out;
  }, "isa"_a, "x"_a, "bias"_a.none(), "activation"_a);
  m.def("add", [](const std::string& isa, const Floats& a, const Floats& b) {
    const KernelTable& kernels = select_kernels(isa);
    check(a.size() == b.size(), "add: sizes differ");
    auto out = make_result<float>({a.size()});
    kernels.add(a.data(), b.data(), length(a), out.data());
    return out;
  }, "isa"_a, "a"_a, "b"_a);
  m.def("scale", [](const std::string& isa, const Floats& x, float factor) {
    const KernelTable& kernels = select_kernels(isa);
    auto out = copy_of(x);
    kernels.scale(out.data(), length(x), factor);
    return out;
  }, "isa"_a, "x"_a, "factor"_a);
  m.def("softcap", [](const std::string& isa, const Floats& x, float cap) {
    const KernelTable& kernels = select_kernels(isa);
    auto out = copy_of(x);
    const FloatEnvironment environment;
    kernels.softcap(out.data(), length(x), cap);
    return out;
  }, "isa"_a, "x"_a, "cap"_a);
}

void bind_sampling(nb::module_& m) {
  m.def("gumbel", [](const std::string& isa, uint64_t seed, uint32_t position, uint32_t choice, uint32_t stream, uint32_t first_id, int64_t n) {
    const KernelTable& kernels = select_kernels(isa);
    check(n >= 0, "gumbel: n must not be negative");
    auto out = make_result<float>({static_cast<size_t>(n)});
    const FloatEnvironment environment;
    kernels.gumbel(seed, position, choice, stream, first_id, n, out.data());
    return out;
  }, "isa"_a, "seed"_a, "position"_a, "choice"_a, "stream"_a, "first_id"_a, "n"_a);
  m.def("log_sum_exp", [](const std::string& isa, const Floats& x) {
    const KernelTable& kernels = select_kernels(isa);
    check(x.size() > 0, "log_sum_exp: x is empty");
    float max = 0, result = 0;
    const FloatEnvironment environment;
    kernels.log_sum_exp(x.data(), length(x), &max, &result);
    return std::make_pair(max, result);
  }, "isa"_a, "x"_a, "(max, log(sum(exp(x - max)))): logprob = (x - max) - log_sum.");
  m.def("variance", [](const std::string& isa, const Floats& x, float top) {
    const KernelTable& kernels = select_kernels(isa);
    const FloatEnvironment environment;
    return kernels.variance(x.data(), length(x), top);
  }, "isa"_a, "x"_a, "top"_a, "Of the finite ones of x; top: the largest.");
}

void bind_rope_table(nb::module_& m) {
  using Positions = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  using Frequencies = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  m.def("rope_cos_sin", [](const Positions& positions, const Frequencies& inv_freq, double attention_factor) {
    auto cos = make_result<float>({positions.size(), inv_freq.size()});
    auto sin = make_result<float>({positions.size(), inv_freq.size()});
    const FloatEnvironment environment;
    rope_cos_sin(positions.data(), static_cast<int64_t>(positions.size()), inv_freq.data(),
                 static_cast<int64_t>(inv_freq.size()), attention_factor, cos.data(), sin.data());
    return std::make_pair(cos, sin);
  }, "positions"_a, "inv_freq"_a, "attention_factor"_a, "cos and sin, float32 [positions, inv_freq].");
}

// The attention kernels of one request over a KV layer, and what fills the layer.
void bind_attention(nb::module_& m) {
  using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
  using Int32s = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  m.def("append_kv", [](const std::string& isa, const KvLayer& kv, bool is_key, const Rows& x, const Int32s& slots) {
    const KernelTable& kernels = select_kernels(isa);
    check(x.shape(0) == slots.size() && static_cast<int64_t>(x.shape(1)) == int64_t{kv.num_kv_heads} * kv.head_dim,
          "append_kv: extents");
    const FloatEnvironment environment;
    for (size_t t = 0; t < slots.size(); ++t) {
      for (int64_t head = 0; head < kv.num_kv_heads; ++head) {
        append_kv(kernels, kv, is_key ? KvPart::Key : KvPart::Value, head, slots.data()[t],
                  x.data() + (t * kv.num_kv_heads + head) * kv.head_dim);
      }
    }
  }, "isa"_a, "kv"_a, "is_key"_a, "x"_a, "slots"_a, "x: float32 [tokens, num_kv_heads * head_dim].");
  m.def("attention", [](const std::string& isa, const Rows& q, const KvLayer& kv, const Int32s& block_table,
                        const Int32s& positions, float scale, float softcap, int64_t tokens_per_call,
                        int32_t heads_per_call, int64_t spans_per_call) {
    const KernelTable& kernels = select_kernels(isa);
    const int64_t tokens = static_cast<int64_t>(q.shape(0)), width = static_cast<int64_t>(q.shape(1));
    check(width % kv.head_dim == 0, "attention: head_dim");
    const int32_t num_heads = static_cast<int32_t>(width / kv.head_dim);
    check(num_heads % kv.num_kv_heads == 0, "attention: num_kv_heads");
    check(static_cast<int64_t>(positions.size()) == tokens && tokens_per_call > 0 && heads_per_call > 0, "attention: extents");
    auto out = make_result<float>({q.shape(0), q.shape(1)});
    const AttentionArgs args = {q.data(), out.data(), kv.k, kv.v, kv.k_scale, kv.v_scale, kv.block_stride_bytes,
                                block_table.data(), positions.data(), kv.block_size, num_heads, kv.num_kv_heads,
                                kv.head_dim, kv.window, kv.k_dtype, kv.v_dtype, scale, softcap};
    std::vector<float> scratch(attention_scratch_floats(kv.head_dim)), partials;
    const auto call = [&](const AttentionRows& rows) {
      if (spans_per_call <= 0) return kernels.attention(args, rows, scratch.data());
      const int64_t spans = positions.data()[rows.token_end - 1] / kSpan + 1;
      partials.assign(static_cast<size_t>(spans * rows.count() * partial_floats(kv.head_dim)), __builtin_nanf(""));
      for (int64_t s = (spans - 1) / spans_per_call * spans_per_call; s >= 0; s -= spans_per_call) {  // the last ones first
        kernels.attention_spans(args, rows, 0, s, s + spans_per_call, partials.data(), scratch.data());
      }
      kernels.merge_spans(args, rows, 0, partials.data());
    };
    const int32_t group = num_heads / kv.num_kv_heads;
    const FloatEnvironment environment;
    for (int64_t t = 0; t < tokens; t += tokens_per_call) {
      for (int32_t h = 0; h < num_heads; h += group) {
        for (int32_t i = h; i < h + group; i += heads_per_call) {
          call({t, std::min(t + tokens_per_call, tokens), h / group, i, std::min(i + heads_per_call, h + group)});
        }
      }
    }
    return out;
  }, "isa"_a, "q"_a, "kv"_a, "block_table"_a, "positions"_a, "scale"_a, "softcap"_a, "tokens_per_call"_a,
     "heads_per_call"_a, "spans_per_call"_a,
     "float32 [tokens, heads * head_dim]. spans_per_call: 0 for whole rows, else partials of so many spans and a merge.");
}

void bind_probe(nb::module_& m) {
  m.def("measure_read_bandwidth", [](int threads, int64_t size_bytes, double seconds, int streams) {
    check(threads >= 1 && threads <= 1024, "measure_read_bandwidth: threads must be 1..1024");
    check(size_bytes >= int64_t{1} << 20, "measure_read_bandwidth: at least 1 MiB");
    check(streams == 0 || streams == 1 || streams == 2 || streams == 4 || streams == 8, "measure_read_bandwidth: 0, 1, 2, 4 or 8 streams");
    nb::gil_scoped_release release;
    return measure_read_bandwidth(threads, size_bytes, seconds, streams);
  }, "threads"_a, "size_bytes"_a, "seconds"_a, "streams"_a = 0, "Samples in bytes per second.");
  m.def("measure_peak", [](const std::string& isa, const std::string& kind, int threads, double seconds) {
    check(threads >= 1 && threads <= 1024, "measure_peak: threads must be 1..1024");
    check(kind == "int8" || kind == "f32", "measure_peak: int8 or f32");
    const KernelTable& kernels = select_kernels(isa);
    nb::gil_scoped_release release;
    return measure_peak(kernels, kind == "int8" ? &KernelTable::peak_int8 : &KernelTable::peak_f32, threads, seconds);
  }, "isa"_a, "kind"_a, "threads"_a, "seconds"_a, "Samples in operations per second; a multiply-add is two.");
}

}  // namespace

void bind_float_kernels(nb::module_& m) {
  m.def("exp", elementwise(&KernelTable::exp), "isa"_a, "x"_a);
  m.def("log", elementwise(&KernelTable::log), "isa"_a, "x"_a);
  bind_rows(m);
  bind_attention(m);
  bind_sampling(m);
  bind_rope_table(m);
  bind_probe(m);
}

}  // namespace hotloop
