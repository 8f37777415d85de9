// AArch64 NEON with dot products (Armv8.2 dotprod: Cortex-A55 and A76, Neoverse, Apple M1 and later).
#define HOTLOOP_TARGET neon
#include "simd/neon.h"
#include "kernels/all.inl"

namespace hotloop {
const KernelTable& neon_kernels() { return neon::kTable; }
}  // namespace hotloop
