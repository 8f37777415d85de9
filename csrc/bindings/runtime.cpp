// Thread team, weights and the choice of a kernel set.
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <optional>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "bindings/bindings.h"
#include "runtime/file_rows.h"
#include "runtime/float_environment.h"
#include "runtime/weights.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hotloop {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check_bytes(const Matrix& matrix, int64_t rows, const Bytes& src) {
  if (static_cast<int64_t>(src.size()) != rows * source_row_bytes(matrix.format, matrix.cols)) {
    throw std::invalid_argument("a weight matrix's bytes do not match its format and shape");
  }
}

std::shared_ptr<WeightMatrix> make_matrix(WeightFormat format, int64_t rows, int64_t cols, const Bytes& src, ThreadTeam& team) {
  check_matrix_shape(format, rows, cols);
  check_bytes(Matrix{format, rows, cols, nullptr}, rows, src);
  MemoryRows source(src.data());
  nb::gil_scoped_release release;
  auto matrix = std::make_shared<WeightMatrix>(format, rows, cols, nullptr);
  matrix->fill(0, rows, source, team);
  return matrix;
}

std::shared_ptr<WeightMatrix> read_matrix(WeightFormat format, int64_t rows, int64_t cols, int fd, int64_t offset,
                                          ThreadTeam& team, std::shared_ptr<WeightMemory> memory) {
  check_matrix_shape(format, rows, cols);
  nb::gil_scoped_release release;
  FileRows source(fd, offset, team.size());
  auto matrix = std::make_shared<WeightMatrix>(format, rows, cols, std::move(memory));
  matrix->fill(0, rows, source, team);
  source.check();
  return matrix;
}

std::shared_ptr<WeightMatrix> empty_matrix(WeightFormat format, int64_t rows, int64_t cols, std::shared_ptr<WeightMemory> memory) {
  check_matrix_shape(format, rows, cols);
  return std::make_shared<WeightMatrix>(format, rows, cols, std::move(memory));
}

void fill_matrix(WeightMatrix& matrix, int64_t first, const Bytes& src, ThreadTeam& team) {
  const int64_t rows = static_cast<int64_t>(src.size()) / source_row_bytes(matrix.matrix().format, matrix.matrix().cols);
  check_bytes(matrix.matrix(), rows, src);
  MemoryRows source(src.data());
  nb::gil_scoped_release release;
  matrix.fill(first, rows, source, team);
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
  nb::enum_<ActivationFunction>(m, "ActivationFunction")
      .value("silu", ActivationFunction::SiLU).value("gelu_tanh", ActivationFunction::GeluTanh);
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

  nb::class_<WeightMemory>(m, "WeightMemory", "One block of memory for many repacked matrices; see matrix_bytes.")
      .def(nb::init<int64_t>(), "nbytes"_a);
  m.def("matrix_bytes", [](WeightFormat format, int64_t rows, int64_t cols) {
    check_matrix_shape(format, rows, cols);
    return matrix_bytes(format, rows, cols);
  }, "format"_a, "rows"_a, "cols"_a, "Bytes that a repacked matrix takes of a WeightMemory.");

  m.def("release_free_memory", [] {
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
  }, "Hand memory that was freed back to the system, where the C library would keep it.");

  nb::class_<WeightMatrix>(m, "WeightMatrix")
      .def(nb::new_(&make_matrix), "format"_a, "rows"_a, "cols"_a, "src"_a, "team"_a)
      .def_static("read", &read_matrix, "format"_a, "rows"_a, "cols"_a, "fd"_a, "offset"_a, "team"_a, "memory"_a,
                  "Repacked from an open file, offset in bytes. Raises RuntimeError if the file cannot be read or ends early.")
      .def_static("empty", &empty_matrix, "format"_a, "rows"_a, "cols"_a, "memory"_a, "To be filled; until then its values are undefined.")
      .def("fill", &fill_matrix, "first"_a, "src"_a, "team"_a,
           "Repack rows from `first` on: whole row blocks (of row_block), or up to the last row.")
      .def_static("row_block", [] { return kRowBlock; }, "Rows that are repacked together.")
      .def_prop_ro("rows", [](const WeightMatrix& w) { return w.matrix().rows; })
      .def_prop_ro("cols", [](const WeightMatrix& w) { return w.matrix().cols; })
      .def_prop_ro("format", [](const WeightMatrix& w) { return w.matrix().format; })
      .def("part", [](const WeightMatrix& w, int64_t begin, int64_t rows) {
        return std::make_shared<WeightMatrix>(w, begin, rows);
      }, "begin"_a, "rows"_a, "Rows [begin, begin + rows) in the same memory; begin: a multiple of 8.")
      .def_prop_ro("nbytes", &WeightMatrix::nbytes);

  nb::class_<WeightVector>(m, "WeightVector")
      .def(nb::new_([](const Floats& src) {
        return std::make_shared<WeightVector>(src.data(), static_cast<int64_t>(src.size()));
      }), "src"_a)
      .def("part", [](const WeightVector& v, int64_t begin, int64_t size) {
        return std::make_shared<WeightVector>(v, begin, size);
      }, "begin"_a, "size"_a, "Elements [begin, begin + size) in the same memory.")
      .def_prop_ro("size", &WeightVector::size)
      .def_prop_ro("nbytes", &WeightVector::nbytes);
}

}  // namespace hotloop
