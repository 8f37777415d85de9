// Python's way to the quantizers.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <new>
#include <string>
#include <tuple>

#include "bindings/bindings.h"
#include "runtime/quantize_weights.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hotloop {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<uint8_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::tuple<std::string, int64_t> quantize_into(WeightFormat format, WeightFormat source_format, const Bytes& src, Output dst,
                                               ThreadTeam& team) {
  check(can_quantize(format), "there is no quantizer for this format");
  check(source_format == WeightFormat::F32 || source_format == WeightFormat::F16 || source_format == WeightFormat::BF16,
        "weights are quantized from F32, F16 or BF16");
  const int64_t source_bytes = superblock_bytes(source_format), elements = superblock_elements(format);
  const int64_t count = static_cast<int64_t>(src.size()) / source_bytes;
  check(static_cast<int64_t>(src.size()) == count * source_bytes && count % elements == 0,
        "the source is not whole superblocks of the format");
  check(static_cast<int64_t>(dst.size()) == count / elements * superblock_bytes(format),
        "the destination has the wrong number of bytes");
  QuantizeFault fault;
  {
    const nb::gil_scoped_release release;
    fault = quantize_weights(format, source_format, src.data(), count, dst.data(), team);
  }
  const char* names[] = {"", "not finite", "too large"};
  return {names[static_cast<int>(fault.error)], fault.element};
}

}  // namespace

void bind_quantize(nb::module_& m) {
  m.def("quantize_weights", &quantize_into, "format"_a, "source_format"_a, "src"_a, "dst"_a.noconvert(), "team"_a,
        "Quantizes src, the bytes of whole superblocks, into dst. Returns what is wrong with the weights (''; 'not finite'; "
        "'too large': no f16 scale holds them) and the first element at fault, or the first of its superblock.");
}

}  // namespace hotloop
