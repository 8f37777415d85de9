// AVX-512 F, BW, VL, DQ with VNNI (Cascade Lake, Ice Lake, Zen 4 and later).
#define HOTLOOP_TARGET avx512vnni
#define HOTLOOP_TARGET_NAME "avx512vnni"
#include "simd/avx512.h"
#include "kernels/all.inl"

namespace hotloop {
const KernelTable& avx512vnni_kernels() { return avx512vnni::kTable; }
}  // namespace hotloop
