// Thread team, weights and the choice of a kernel set.
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bindings/bindings.h"
#include "runtime/float_environment.h"
#include "runtime/weights.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hotloop {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::shared_ptr<WeightMatrix> make_matrix(WeightFormat format, int64_t rows, int64_t cols, const Bytes& src, ThreadTeam& team) {
  if (rows < 1 || cols < 1 || static_cast<int64_t>(src.size()) != rows * source_row_bytes(format, cols)) {
    throw std::invalid_argument("a weight matrix's bytes do not match its format and shape");
  }
  const uint8_t* data = src.data();
  nb::gil_scoped_release release;
  return std::make_shared<WeightMatrix>(format, rows, cols, data, team);
}

}  // namespace

void bind_runtime(nb::module_& m) {
  nb::enum_<WeightFormat>(m, "WeightFormat")
#define HOTLOOP_VALUE(name) .value(#name, WeightFormat::name)
      HOTLOOP_FLOAT_FORMATS(HOTLOOP_VALUE) HOTLOOP_INTEGER_FORMATS(HOTLOOP_VALUE);
#undef HOTLOOP_VALUE
  nb::enum_<KvDtype>(m, "KvDtype")
      .value("F32", KvDtype::F32).value("F16", KvDtype::F16)
      .value("BF16", KvDtype::BF16).value("INT8", KvDtype::INT8);
  nb::enum_<GatedActivation>(m, "GatedActivation")
      .value("silu", GatedActivation::SiLU).value("gelu_tanh", GatedActivation::GeluTanh);
  nb::enum_<RopeStyle>(m, "RopeStyle")
      .value("interleaved", RopeStyle::Interleaved).value("half_split", RopeStyle::HalfSplit);

  using Environment = std::optional<FloatEnvironment>;
  nb::class_<Environment>(m, "FloatEnvironment", "Between enter and exit this thread has the floating-point environment of kernels.")
      .def(nb::init<>())
      .def("__enter__", [](Environment& self) { self.emplace(); })
      .def("__exit__", [](Environment& self, const nb::args&) { self.reset(); }, nb::sig("def __exit__(self, *args: object) -> None"));

  nb::class_<ThreadTeam>(m, "ThreadTeam")
      .def("__init__", [](ThreadTeam* self, int num_threads) {
        if (num_threads < 1 || num_threads > 1024) throw std::invalid_argument("num_threads must be 1..1024");
        new (self) ThreadTeam(num_threads);
      }, "num_threads"_a)
      .def_prop_ro("size", &ThreadTeam::size);

  nb::class_<WeightMatrix>(m, "WeightMatrix")
      .def(nb::new_(&make_matrix), "format"_a, "rows"_a, "cols"_a, "src"_a, "team"_a)
      .def_prop_ro("rows", [](const WeightMatrix& w) { return w.matrix().rows; })
      .def_prop_ro("cols", [](const WeightMatrix& w) { return w.matrix().cols; })
      .def_prop_ro("format", [](const WeightMatrix& w) { return w.matrix().format; })
      .def_prop_ro("nbytes", &WeightMatrix::nbytes);

  nb::class_<WeightVector>(m, "WeightVector")
      .def(nb::new_([](const Floats& src) {
        return std::make_shared<WeightVector>(src.data(), static_cast<int64_t>(src.size()));
      }), "src"_a)
      .def_prop_ro("size", [](const WeightVector& v) { return v.size; })
      .def_prop_ro("nbytes", [](const WeightVector& v) { return v.memory.size(); });
}

}  // namespace hotloop
