// The floating-point environment of kernels: round to nearest even, no flush to zero, exceptions masked. Set on entry of
// every thread that runs kernels, the caller's included, and restored after, whatever the host program had set.
#pragma once
#include <cstdint>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace hotloop {

class FloatEnvironment {
 public:
  FloatEnvironment() {
#if defined(__SSE2__)
    saved_ = _mm_getcsr();
    _mm_setcsr(0x1F80);
#elif defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(uint64_t{0}));
#endif
  }
  ~FloatEnvironment() {
#if defined(__SSE2__)
    _mm_setcsr(saved_);
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" ::"r"(saved_));
#endif
  }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__aarch64__)
  uint64_t saved_ = 0;
#else
  unsigned saved_ = 0;
#endif
};

}  // namespace hotloop
