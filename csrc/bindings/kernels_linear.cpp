// Python view of the linear kernels, for tests and for the tools that inspect repacked weights.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "bindings/bindings.h"
#include "kernels/kernel_table.h"
#include "runtime/dispatch.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hotloop {

void check_matrix_shape(WeightFormat format, int64_t rows, int64_t cols) {
  if (rows < 1) throw nb::value_error("rows must be positive");
  if (cols < 1 || cols % kGroupSize != 0 || cols % format_info(format).superblock_size != 0) {
    throw nb::value_error("cols must be a positive multiple of 32 and of the format's superblock (256 for K-quants and IQ4_XS)");
  }
}

namespace {

template <class T, int Dims>
using Input = nb::ndarray<const T, nb::numpy, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
template <class T>
using Output = nb::ndarray<T, nb::numpy>;

constexpr size_t kAlignment = 64;

// A 64-byte aligned, zeroed array that numpy owns.
template <class T>
std::pair<T*, Output<T>> make_array(std::initializer_list<size_t> shape) {
  size_t count = 1;
  for (size_t extent : shape) count *= extent;
  const size_t bytes = (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  void* data = std::aligned_alloc(kAlignment, bytes > 0 ? bytes : kAlignment);
  if (data == nullptr) throw std::bad_alloc();
  std::memset(data, 0, bytes);
  nb::capsule owner(data, [](void* p) noexcept { std::free(p); });
  T* typed = static_cast<T*>(data);
  return {typed, Output<T>(typed, shape, owner)};
}

WeightFormat format_of(const std::string& name) {
#define HOTLOOP_MATCH(format) \
  if (name == #format) return WeightFormat::format;
  HOTLOOP_FLOAT_FORMATS(HOTLOOP_MATCH)
  HOTLOOP_INTEGER_FORMATS(HOTLOOP_MATCH)
#undef HOTLOOP_MATCH
  throw nb::value_error(("no kernels for weight format '" + name + "'").c_str());
}

void require(bool condition, const char* message) {
  if (!condition) throw nb::value_error(message);
}

int64_t row_blocks_of(int64_t rows) { return (rows + kRowBlock - 1) / kRowBlock; }

Matrix matrix_of(const std::string& format_name, const Input<uint8_t, 1>& packed, int64_t rows, int64_t cols) {
  const Matrix w{format_of(format_name), rows, cols, packed.data()};
  check_matrix_shape(w.format, rows, cols);
  require(static_cast<int64_t>(packed.size()) == row_blocks_of(rows) * row_block_bytes(w.format, cols),
          "packed has the wrong number of bytes for this format, rows and cols");
  return w;
}

// Quantized rows [tokens, cols] in arrays of their own.
struct QuantizedRows {
  std::pair<int8_t*, Output<int8_t>> q;
  std::pair<float*, Output<float>> scale, scaled_sum;
  std::pair<int16_t*, Output<int16_t>> sum16;
  int64_t cols;

  QuantizedRows(const KernelTable& kernels, const Input<float, 2>& x)
      : q(make_array<int8_t>({x.shape(0), x.shape(1)})),
        scale(make_array<float>({x.shape(0), x.shape(1) / 32})),
        scaled_sum(make_array<float>({x.shape(0), x.shape(1) / 32})),
        sum16(make_array<int16_t>({x.shape(0), x.shape(1) / 16})),
        cols(static_cast<int64_t>(x.shape(1))) {
    for (int64_t t = 0; t < static_cast<int64_t>(x.shape(0)); ++t) {
      kernels.quantize_row(x.data() + t * cols, cols, q.first + t * cols, scale.first + t * (cols / 32),
                           scaled_sum.first + t * (cols / 32), sum16.first + t * (cols / 16));
    }
  }
  QuantizedActivations view() const { return {q.first, scale.first, scaled_sum.first, sum16.first, cols}; }
};

Output<uint8_t> repack_array(const std::string& format_name, const Input<uint8_t, 1>& source, int64_t rows,
                             int64_t cols) {
  const WeightFormat format = format_of(format_name);
  check_matrix_shape(format, rows, cols);
  require(static_cast<int64_t>(source.size()) == rows * source_row_bytes(format, cols),
          "source has the wrong number of bytes for this format, rows and cols");
  const int64_t blocks = row_blocks_of(rows);
  auto [data, array] = make_array<uint8_t>({static_cast<size_t>(blocks * row_block_bytes(format, cols))});
  repack(format, source.data(), rows, cols, 0, blocks, data);
  return array;
}

std::tuple<Output<int8_t>, Output<float>, Output<float>, Output<int16_t>> quantize_rows(const std::string& isa,
                                                                                        const Input<float, 2>& x) {
  require(x.shape(1) % kGroupSize == 0, "the row length must be a multiple of 32");
  const QuantizedRows rows(select_kernels(isa), x);
  return {rows.q.second, rows.scale.second, rows.scaled_sum.second, rows.sum16.second};
}

using Span = std::pair<int64_t, int64_t>;

void check_span(const Span& span, int64_t size, const char* message) {
  require(0 <= span.first && span.first <= span.second && span.second <= size, message);
}

Output<float> linear_array(const std::string& isa, const std::string& format_name, const Input<uint8_t, 1>& packed,
                           int64_t rows, int64_t cols, const Input<float, 2>& x, const std::string& activations,
                           std::optional<Span> row_blocks, std::optional<Span> tokens) {
  const KernelTable& kernels = select_kernels(isa);
  const Matrix w = matrix_of(format_name, packed, rows, cols);
  const int64_t num_tokens = static_cast<int64_t>(x.shape(0));
  const int64_t num_blocks = row_blocks_of(rows);
  require(static_cast<int64_t>(x.shape(1)) == cols, "x must have shape [tokens, cols]");
  require(activations == "int8" || activations == "f32", "activations must be 'int8' or 'f32'");
  const Span blocks = row_blocks.value_or(Span{0, num_blocks});
  const Span range = tokens.value_or(Span{0, num_tokens});
  check_span(blocks, num_blocks, "row_blocks must be a range inside [0, ceil(rows / 8)]");
  check_span(range, num_tokens, "tokens must be a range inside [0, number of rows of x]");
  const int64_t width = (blocks.second - blocks.first) * kRowBlock;
  auto [out, array] = make_array<float>({static_cast<size_t>(range.second - range.first), static_cast<size_t>(width)});
  const bool integer = activations == "int8" && w.format != WeightFormat::F32 && w.format != WeightFormat::F16 &&
                       w.format != WeightFormat::BF16;
  std::optional<QuantizedRows> quantized;
  if (integer) quantized.emplace(kernels, x);
  const QuantizedActivations none{nullptr, nullptr, nullptr, nullptr, cols};
  kernels.linear(w, {quantized ? quantized->view() : none, x.data(), cols}, blocks.first, blocks.second, range.first,
                 range.second, out, width);
  return array;
}

Output<float> dequantize_rows(const std::string& isa, const std::string& format_name, const Input<uint8_t, 1>& packed,
                              int64_t rows, int64_t cols) {
  const KernelTable& kernels = select_kernels(isa);
  const Matrix w = matrix_of(format_name, packed, rows, cols);
  auto [out, array] = make_array<float>({static_cast<size_t>(rows), static_cast<size_t>(cols)});
  for (int64_t row = 0; row < rows; ++row) kernels.dequantize_row(w, row, out + row * cols);
  return array;
}

}  // namespace

void bind_linear_kernels(nb::module_& m) {
  m.def("repack", &repack_array, "format"_a, "source"_a, "rows"_a, "cols"_a,
        "GGUF bytes (uint8 [rows * row_bytes]) of a matrix [rows, cols] -> repacked bytes (docs/weight-layouts.md).");
  m.def("quantize_rows", &quantize_rows, "isa"_a, "x"_a,
        "x: float32 [tokens, cols] -> (codes int8 [tokens, cols], scale float32 [tokens, cols / 32], scaled_sum "
        "float32 [tokens, cols / 32], sum16 int16 [tokens, cols / 16]).");
  m.def("linear", &linear_array, "isa"_a, "format"_a, "packed"_a, "rows"_a, "cols"_a, "x"_a,
        "activations"_a = "int8", "row_blocks"_a = nb::none(), "tokens"_a = nb::none(),
        "x: float32 [tokens, cols] times the repacked matrix -> float32 [tokens, 8 * row blocks], padding rows too. "
        "activations: 'int8' or 'f32'; row_blocks and tokens: half-open ranges, all by default.");
  m.def("dequantize_rows", &dequantize_rows, "isa"_a, "format"_a, "packed"_a, "rows"_a, "cols"_a,
        "The repacked matrix as float32 [rows, cols].");
}

}  // namespace hotloop
