#include "runtime/rope_table.h"

#include <cstring>

namespace hotloop {
namespace {

// pi / 2 in three parts; the first two have 33 bits, so that n * part is exact for n < 2^20 (Cody and Waite's reduction).
constexpr double kHalfPi1 = 0x1.921fb544p+0;
constexpr double kHalfPi2 = 0x1.0b4611a6p-34;
constexpr double kHalfPi3 = 0x1.3198a2e037073p-69;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
constexpr double kRoundToInteger = 0x1.8p52;  // adding it leaves the nearest integer in the low mantissa bits

// Taylor series on |r| <= pi / 4: the first omitted terms are below 2^-62.
double sin_series(double r) {
  const double z = r * r;
  double p = 1.0 / 355687428096000.0;  // 1 / 17!
  p = 1.0 / -1307674368000.0 + z * p;
  p = 1.0 / 6227020800.0 + z * p;
  p = 1.0 / -39916800.0 + z * p;
  p = 1.0 / 362880.0 + z * p;
  p = 1.0 / -5040.0 + z * p;
  p = 1.0 / 120.0 + z * p;
  p = 1.0 / -6.0 + z * p;
  return r + r * (z * p);
}
double cos_series(double r) {
  const double z = r * r;
  double p = 1.0 / 20922789888000.0;  // 1 / 16!
  p = 1.0 / -87178291200.0 + z * p;
  p = 1.0 / 479001600.0 + z * p;
  p = 1.0 / -3628800.0 + z * p;
  p = 1.0 / 40320.0 + z * p;
  p = 1.0 / -720.0 + z * p;
  p = 1.0 / 24.0 + z * p;
  p = 1.0 / -2.0 + z * p;
  return 1.0 + z * p;
}

struct CosSin {
  double cos, sin;
};

CosSin cos_sin(double x) {
  const double shifted = x * kTwoOverPi + kRoundToInteger;
  const double n = shifted - kRoundToInteger;
  uint64_t quadrant;
  std::memcpy(&quadrant, &shifted, sizeof quadrant);
  const double r = ((x - n * kHalfPi1) - n * kHalfPi2) - n * kHalfPi3;
  const double s = sin_series(r), c = cos_series(r);
  switch (quadrant & 3) {
    case 0: return {c, s};
    case 1: return {-s, c};
    case 2: return {-c, -s};
    default: return {s, -c};
  }
}

}  // namespace

void rope_cos_sin(const int32_t* positions, int64_t n, const double* inv_freq, int64_t half_dim, double attention_factor,
                  float* cos, float* sin) {
  const float factor = static_cast<float>(attention_factor);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < half_dim; ++k) {
      const CosSin value = cos_sin(static_cast<double>(positions[i]) * inv_freq[k]);
      cos[i * half_dim + k] = static_cast<float>(value.cos) * factor;
      sin[i * half_dim + k] = static_cast<float>(value.sin) * factor;
    }
  }
}

}  // namespace hotloop
