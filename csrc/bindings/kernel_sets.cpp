// What Python may know of kernel sets: which are experimental, and whether one computes what scalar computes.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bindings/bindings.h"
#include "runtime/dispatch.h"
#include "runtime/self_check.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hotloop {
namespace {

std::optional<std::string> self_check(const std::string& isa, const std::string& broken, uint64_t seed) {
  const KernelTable& kernels = select_kernels(isa);
  const nb::gil_scoped_release release;
  const std::string differing =
      broken.empty() ? differing_kernel(kernels, scalar_kernels(), seed)
                     : differing_kernel(broken_copy(kernels, broken), scalar_kernels(), seed);
  return differing.empty() ? std::nullopt : std::optional(differing);
}

}  // namespace

void bind_kernel_sets(nb::module_& m) {
  m.def("usable_isas", [] {
    std::vector<std::string> names;
    for (const auto* table : usable_kernels()) names.emplace_back(table->name);
    return names;
  }, "Kernel sets this machine can run, best first.");
  m.def("experimental_isas", &experimental_kernels, "Kernel sets that have run in an emulator only, never on real hardware.");
  m.def("self_check", &self_check, "isa"_a, "broken"_a = "", "seed"_a = 1,
        "What this kernel set computes differently from the scalar one on small inputs, or None; takes well under 50 ms. "
        "broken, for tests of the check: linear, rms_norm or exp is replaced by one that errs in one bit.");
}

}  // namespace hotloop
