#include "formats/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "formats/gguf_blocks.h"

namespace hotloop {
namespace {

constexpr float kFloatMax = std::numeric_limits<float>::max();
constexpr int kGroup = 32;

bool put_f16(uint8_t* dst, float x) {
  const uint16_t half = to_f16(x);
  dst[0] = static_cast<uint8_t>(half);
  dst[1] = static_cast<uint8_t>(half >> 8);
  return (half & 0x7c00u) != 0x7c00u;
}

// 1 / scale, or 0 where that is infinite: f16 rounds such a scale to 0.
float inverse(float scale) {
  const float r = 1.0f / scale;
  return std::fabs(r) <= kFloatMax ? r : 0.0f;
}

// The element of largest magnitude, the first of equals.
float extreme(const float* x) {
  float largest = 0, found = x[0];
  for (int i = 0; i < kGroup; ++i) {
    if (std::fabs(x[i]) > largest) {
      largest = std::fabs(x[i]);
      found = x[i];
    }
  }
  return found;
}

void put_nibbles(const uint8_t* codes, uint8_t* dst) {
  for (int i = 0; i < 16; ++i) dst[i] = static_cast<uint8_t>((codes[i] & 15) | (codes[i + 16] & 15) << 4);
}

void put_fifth_bits(const uint8_t* codes, uint8_t* dst) {
  for (int b = 0; b < 4; ++b) {
    unsigned bits = 0;
    for (int i = 0; i < 8; ++i) bits |= static_cast<unsigned>(codes[8 * b + i] >> 4) << i;
    dst[b] = static_cast<uint8_t>(bits);
  }
}

uint8_t truncate(float x, int highest) { return static_cast<uint8_t>(std::min(static_cast<int>(x), highest)); }

// Codes around zero: `highest` + 1 of them, the extreme element gets the lowest.
template <int Highest>
bool symmetric_codes(const float* x, uint8_t* d, uint8_t* codes) {
  constexpr int kMiddle = (Highest + 1) / 2;
  const float scale = extreme(x) / static_cast<float>(-kMiddle);
  const float inv = inverse(scale);
  for (int i = 0; i < kGroup; ++i) codes[i] = truncate(x[i] * inv + (static_cast<float>(kMiddle) + 0.5f), Highest);
  return put_f16(d, scale);
}

// Codes 0 to `highest` span minimum to maximum.
template <int Highest>
bool spanning_codes(const float* x, uint8_t* d, uint8_t* m, uint8_t* codes) {
  float low = x[0], high = x[0];
  for (int i = 1; i < kGroup; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  const float scale = (high - low) / static_cast<float>(Highest);
  if (!put_f16(d, scale) || !put_f16(m, low)) return false;
  const float inv = inverse(scale);
  for (int i = 0; i < kGroup; ++i) codes[i] = truncate((x[i] - low) * inv + 0.5f, Highest);
  return true;
}

bool quantize_q4_0(const float* x, uint8_t* dst) {
  uint8_t codes[kGroup];
  if (!symmetric_codes<15>(x, dst, codes)) return false;
  put_nibbles(codes, dst + 2);
  return true;
}

bool quantize_q4_1(const float* x, uint8_t* dst) {
  uint8_t codes[kGroup];
  if (!spanning_codes<15>(x, dst, dst + 2, codes)) return false;
  put_nibbles(codes, dst + 4);
  return true;
}

bool quantize_q5_0(const float* x, uint8_t* dst) {
  uint8_t codes[kGroup];
  if (!symmetric_codes<31>(x, dst, codes)) return false;
  put_fifth_bits(codes, dst + 2);
  put_nibbles(codes, dst + 6);
  return true;
}

bool quantize_q5_1(const float* x, uint8_t* dst) {
  uint8_t codes[kGroup];
  if (!spanning_codes<31>(x, dst, dst + 2, codes)) return false;
  put_fifth_bits(codes, dst + 4);
  put_nibbles(codes, dst + 8);
  return true;
}

bool quantize_q8_0(const float* x, uint8_t* dst) {
  const float scale = std::fabs(extreme(x)) / 127.0f;
  if (!put_f16(dst, scale)) return false;
  const float inv = inverse(scale);
  for (int i = 0; i < kGroup; ++i) {  // halves away from zero
    const float scaled = x[i] * inv;
    const int whole = static_cast<int>(std::fabs(scaled));
    const int magnitude = whole + (std::fabs(scaled) - static_cast<float>(whole) >= 0.5f ? 1 : 0);
    dst[2 + i] = static_cast<uint8_t>(scaled < 0 ? -magnitude : magnitude);
  }
  return true;
}

bool quantize_f16(const float* x, uint8_t* dst) { return put_f16(dst, *x); }

bool quantize_bf16(const float* x, uint8_t* dst) {
  uint32_t bits;
  std::memcpy(&bits, x, 4);
  const uint32_t half = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  dst[0] = static_cast<uint8_t>(half);
  dst[1] = static_cast<uint8_t>(half >> 8);
  return (half & 0x7fffu) < 0x7f80u;
}

bool quantize_f32(const float* x, uint8_t* dst) {
  std::memcpy(dst, x, 4);
  return true;
}

struct Quantizer {
  int64_t elements, bytes;
  bool (*superblock)(const float* x, uint8_t* dst);
};

Quantizer quantizer_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::F32: return {1, 4, quantize_f32};
    case WeightFormat::F16: return {1, 2, quantize_f16};
    case WeightFormat::BF16: return {1, 2, quantize_bf16};
    case WeightFormat::Q4_0: return {kGroup, sizeof(gguf::Q4_0), quantize_q4_0};
    case WeightFormat::Q4_1: return {kGroup, sizeof(gguf::Q4_1), quantize_q4_1};
    case WeightFormat::Q5_0: return {kGroup, sizeof(gguf::Q5_0), quantize_q5_0};
    case WeightFormat::Q5_1: return {kGroup, sizeof(gguf::Q5_1), quantize_q5_1};
    case WeightFormat::Q8_0: return {kGroup, sizeof(gguf::Q8_0), quantize_q8_0};
    case WeightFormat::Q4_K: return {256, sizeof(gguf::Q4_K), quantize_q4_k};
    case WeightFormat::Q5_K: return {256, sizeof(gguf::Q5_K), quantize_q5_k};
    case WeightFormat::Q6_K: return {256, sizeof(gguf::Q6_K), quantize_q6_k};
    default: return {0, 0, nullptr};
  }
}

}  // namespace

bool can_quantize(WeightFormat format) { return quantizer_of(format).superblock != nullptr; }
int64_t superblock_elements(WeightFormat format) { return quantizer_of(format).elements; }
int64_t superblock_bytes(WeightFormat format) { return quantizer_of(format).bytes; }

QuantizeError quantize_superblocks(WeightFormat format, const float* x, int64_t count, uint8_t* dst) {
  const Quantizer quantizer = quantizer_of(format);
  bool finite = true;
  for (int64_t i = 0; i < count * quantizer.elements; ++i) finite &= std::fabs(x[i]) <= kFloatMax;
  if (!finite) return QuantizeError::NotFinite;
  for (int64_t i = 0; i < count; ++i) {
    if (!quantizer.superblock(x + i * quantizer.elements, dst + i * quantizer.bytes)) return QuantizeError::TooLarge;
  }
  return QuantizeError::None;
}

uint16_t to_f16(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  const uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  uint32_t out;
  if (magnitude > 0x7f800000u) {  // no number
    out = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and more
    out = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {
    out = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  } else {  // subnormal: adding 0.5 rounds to multiples of 2^-24
    const float shifted = std::fabs(x) + 0.5f;
    std::memcpy(&out, &shifted, 4);
    out -= 0x3f000000u;
  }
  return static_cast<uint16_t>(sign | out);
}

float from_f16(uint16_t bits) {
  const float sign = bits & 0x8000u ? -1.0f : 1.0f;
  const int exponent = bits >> 10 & 31, mantissa = bits & 0x3ff;
  if (exponent == 31) return mantissa ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(mantissa | 0x400), exponent - 25);
}

}  // namespace hotloop
