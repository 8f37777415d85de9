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
#include "runtime/probe.h"
#include "runtime/rope_table.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hotloop {
namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Result = nb::ndarray<nb::numpy, T>;

void check(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

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
  m.def("rope", [](const std::string& isa, const Floats& head, const Floats& cos, const Floats& sin, RopeStyle style) {
    const KernelTable& kernels = select_kernels(isa);
    check(cos.size() == sin.size() && 2 * cos.size() <= head.size(), "rope: sizes differ");
    auto out = copy_of(head);
    const FloatEnvironment environment;
    kernels.rope(out.data(), cos.data(), sin.data(), 2 * length(cos), style);
    return out;
  }, "isa"_a, "head"_a, "cos"_a, "sin"_a, "style"_a);
  m.def("store_f16", [](const std::string& isa, const Floats& x) {
    const KernelTable& kernels = select_kernels(isa);
    auto out = make_result<uint16_t>({x.size()});
    const FloatEnvironment environment;
    kernels.store_kv(x.data(), length(x), KvDtype::F16, out.data());
    return out;
  }, "isa"_a, "x"_a, "IEEE binary16 bit patterns, as the KV cache stores them.");
  m.def("gated", [](const std::string& isa, const Floats& gate, const Floats& up, GatedActivation activation) {
    const KernelTable& kernels = select_kernels(isa);
    check(gate.size() == up.size(), "gated: sizes differ");
    auto out = make_result<float>({gate.size()});
    const FloatEnvironment environment;
    kernels.gated(gate.data(), up.data(), length(gate), activation, out.data());
    return out;
  }, "isa"_a, "gate"_a, "up"_a, "activation"_a);
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

// One call of the attention kernel; arrays as in AttentionArgs, KV as raw bytes.
void bind_attention(nb::module_& m) {
  using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
  using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  using Int32s = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  m.def("attention", [](const std::string& isa, const Rows& q, const Bytes& k, const Bytes& v, int64_t block_stride_bytes,
                        const Int32s& block_table, const Int32s& positions, int32_t block_size, int32_t num_kv_heads,
                        int32_t head_dim, int32_t window, KvDtype kv_dtype, float scale, float softcap,
                        int64_t tokens_per_call, int32_t heads_per_call) {
    const KernelTable& kernels = select_kernels(isa);
    const int64_t tokens = static_cast<int64_t>(q.shape(0)), width = static_cast<int64_t>(q.shape(1));
    check(head_dim > 0 && head_dim % 16 == 0 && width % head_dim == 0, "attention: head_dim");
    const int32_t num_heads = static_cast<int32_t>(width / head_dim);
    check(num_kv_heads > 0 && num_heads % num_kv_heads == 0, "attention: num_kv_heads");
    check(static_cast<int64_t>(positions.size()) == tokens && block_size > 0 && tokens_per_call > 0 && heads_per_call > 0,
          "attention: extents");
    auto out = make_result<float>({q.shape(0), q.shape(1)});
    const AttentionArgs args = {q.data(), out.data(), k.data(), v.data(), block_stride_bytes, block_table.data(),
                                positions.data(), block_size, num_heads, num_kv_heads, head_dim, window, kv_dtype,
                                scale, softcap};
    std::vector<float> scratch(attention_scratch_floats(head_dim));
    const int32_t group = num_heads / num_kv_heads;
    const FloatEnvironment environment;
    for (int64_t t = 0; t < tokens; t += tokens_per_call) {
      for (int32_t h = 0; h < num_heads; h += group) {
        for (int32_t i = h; i < h + group; i += heads_per_call) {
          kernels.attention(args, t, std::min(t + tokens_per_call, tokens), h / group, i,
                            std::min(i + heads_per_call, h + group), scratch.data());
        }
      }
    }
    return out;
  }, "isa"_a, "q"_a, "k"_a, "v"_a, "block_stride_bytes"_a, "block_table"_a, "positions"_a, "block_size"_a,
     "num_kv_heads"_a, "head_dim"_a, "window"_a, "kv_dtype"_a, "scale"_a, "softcap"_a, "tokens_per_call"_a,
     "heads_per_call"_a);
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
