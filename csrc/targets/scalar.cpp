// The scalar kernel set: the C++ definition every other set must equal bit for bit.
#define HOTLOOP_TARGET scalar
#include "simd/scalar.h"
#include "kernels/all.inl"

namespace hotloop {
const KernelTable& scalar_kernels() { return scalar::kTable; }
}  // namespace hotloop
