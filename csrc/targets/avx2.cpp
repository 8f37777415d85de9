// AVX2 + FMA + F16C.
#define HOTLOOP_TARGET avx2
#include "simd/avx2.h"
#include "kernels/all.inl"

namespace hotloop {
const KernelTable& avx2_kernels() { return avx2::kTable; }
}  // namespace hotloop
