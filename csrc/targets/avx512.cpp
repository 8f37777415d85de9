// AVX-512 F, BW, VL, DQ without VNNI (Skylake-X and its servers).
#define HOTLOOP_TARGET avx512
#define HOTLOOP_TARGET_NAME "avx512"
#include "simd/avx512.h"
#include "kernels/all.inl"

namespace hotloop {
const KernelTable& avx512_kernels() { return avx512::kTable; }
}  // namespace hotloop
