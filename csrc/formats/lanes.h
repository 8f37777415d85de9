// N floats side by side (4, 8, 16), in the compiler's portable vectors of 16 bytes: IEEE operations, one rounding each, so
// the same bits on every machine. For code that is compiled once; kernels have simd/.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#define HOTLOOP_LANES_INLINE inline __attribute__((always_inline))

namespace hotloop {

using FourFloats = float __attribute__((vector_size(16)));
using FourBits = int32_t __attribute__((vector_size(16)));

template <int N>
struct LaneMask {  // all bits of a lane, or none
  LaneMask<N / 2> low, high;
};
template <>
struct LaneMask<4> {
  FourBits bits;
};

template <int N>
struct Lanes {
  Lanes<N / 2> low, high;
  Lanes() = default;
  Lanes(float x) : low(x), high(x) {}  // NOLINT: a number stands for all lanes
  Lanes(const Lanes<N / 2>& l, const Lanes<N / 2>& h) : low(l), high(h) {}
  float operator[](int lane) const { return lane < N / 2 ? low[lane] : high[lane - N / 2]; }
  void set(int lane, float x) { lane < N / 2 ? low.set(lane, x) : high.set(lane - N / 2, x); }
};
template <>
struct Lanes<4> {
  FourFloats value;
  Lanes() = default;
  Lanes(float x) : value{x, x, x, x} {}  // NOLINT
  Lanes(FourFloats v) : value(v) {}      // NOLINT
  float operator[](int lane) const { return value[lane]; }
  void set(int lane, float x) { value[lane] = x; }
};

HOTLOOP_LANES_INLINE LaneMask<4> operator&(const LaneMask<4>& a, const LaneMask<4>& b) { return {a.bits & b.bits}; }
template <int N>
HOTLOOP_LANES_INLINE LaneMask<N> operator&(const LaneMask<N>& a, const LaneMask<N>& b) {
  return {a.low & b.low, a.high & b.high};
}

#define HOTLOOP_LANES_ARITHMETIC(op)                                                                                     \
  HOTLOOP_LANES_INLINE Lanes<4> operator op(const Lanes<4>& a, const Lanes<4>& b) { return a.value op b.value; }         \
  template <int N>                                                                                                       \
  HOTLOOP_LANES_INLINE Lanes<N> operator op(const Lanes<N>& a, const Lanes<N>& b) {                                      \
    return {a.low op b.low, a.high op b.high};                                                                           \
  }
HOTLOOP_LANES_ARITHMETIC(+)
HOTLOOP_LANES_ARITHMETIC(-)
HOTLOOP_LANES_ARITHMETIC(*)
HOTLOOP_LANES_ARITHMETIC(/)
#undef HOTLOOP_LANES_ARITHMETIC

#define HOTLOOP_LANES_COMPARISON(op)                                                                                     \
  HOTLOOP_LANES_INLINE LaneMask<4> operator op(const Lanes<4>& a, const Lanes<4>& b) { return {a.value op b.value}; }    \
  template <int N>                                                                                                       \
  HOTLOOP_LANES_INLINE LaneMask<N> operator op(const Lanes<N>& a, const Lanes<N>& b) {                                   \
    return {a.low op b.low, a.high op b.high};                                                                           \
  }
HOTLOOP_LANES_COMPARISON(<)
HOTLOOP_LANES_COMPARISON(<=)
#undef HOTLOOP_LANES_COMPARISON

HOTLOOP_LANES_INLINE Lanes<4> select(const LaneMask<4>& mask, const Lanes<4>& yes, const Lanes<4>& no) {
  return reinterpret_cast<FourFloats>((mask.bits & reinterpret_cast<FourBits>(yes.value)) |
                                      (~mask.bits & reinterpret_cast<FourBits>(no.value)));
}
template <int N>
HOTLOOP_LANES_INLINE Lanes<N> select(const LaneMask<N>& mask, const Lanes<N>& yes, const Lanes<N>& no) {
  return {select(mask.low, yes.low, no.low), select(mask.high, yes.high, no.high)};
}

HOTLOOP_LANES_INLINE Lanes<4> abs(const Lanes<4>& a) {
  return reinterpret_cast<FourFloats>(reinterpret_cast<FourBits>(a.value) & 0x7fffffff);
}
template <int N>
HOTLOOP_LANES_INLINE Lanes<N> abs(const Lanes<N>& a) {
  return {abs(a.low), abs(a.high)};
}

HOTLOOP_LANES_INLINE Lanes<4> sqrt(const Lanes<4>& a) {
  return FourFloats{std::sqrt(a[0]), std::sqrt(a[1]), std::sqrt(a[2]), std::sqrt(a[3])};
}
template <int N>
HOTLOOP_LANES_INLINE Lanes<N> sqrt(const Lanes<N>& a) {
  return {sqrt(a.low), sqrt(a.high)};
}

// b where it is the smaller (larger) one, else a.
#if defined(__SSE2__)
HOTLOOP_LANES_INLINE Lanes<4> min(const Lanes<4>& a, const Lanes<4>& b) { return _mm_min_ps(b.value, a.value); }
HOTLOOP_LANES_INLINE Lanes<4> max(const Lanes<4>& a, const Lanes<4>& b) { return _mm_max_ps(b.value, a.value); }
#else
HOTLOOP_LANES_INLINE Lanes<4> min(const Lanes<4>& a, const Lanes<4>& b) { return select(b < a, b, a); }
HOTLOOP_LANES_INLINE Lanes<4> max(const Lanes<4>& a, const Lanes<4>& b) { return select(a < b, b, a); }
#endif
template <int N>
HOTLOOP_LANES_INLINE Lanes<N> min(const Lanes<N>& a, const Lanes<N>& b) {
  return {min(a.low, b.low), min(a.high, b.high)};
}
template <int N>
HOTLOOP_LANES_INLINE Lanes<N> max(const Lanes<N>& a, const Lanes<N>& b) {
  return {max(a.low, b.low), max(a.high, b.high)};
}

// 0 in place of what is infinite or no number.
template <int N>
HOTLOOP_LANES_INLINE Lanes<N> finite(const Lanes<N>& a) {
  return select(abs(a) <= Lanes<N>(std::numeric_limits<float>::max()), a, Lanes<N>(0));
}

// Whole numbers from low to high, half to even. Both ends are far below 2^22.
template <int N>
HOTLOOP_LANES_INLINE Lanes<N> nearest(const Lanes<N>& a, float low, float high) {
  const Lanes<N> round(12582912.0f);
  return (min(max(a, Lanes<N>(low)), Lanes<N>(high)) + round) - round;
}

}  // namespace hotloop
