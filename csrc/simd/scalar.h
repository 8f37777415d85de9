// Sixteen virtual lanes in plain C++: the definition of F32x16 that every other instruction set equals bit for bit.
// The names are explained in simd/README.md.
#pragma once
#include <cstdint>
#include <cstring>

#define HOTLOOP_TARGET_NAME "scalar"
#define HOTLOOP_SHARED_ROWS 1  // attention: no registers to keep more query rows in, and quick to compile
#define HOTLOOP_INLINE static inline __attribute__((always_inline))

namespace hotloop::HOTLOOP_TARGET {
namespace {

struct F32x16 {
  float lane[16];
};
struct U32x16 {
  uint32_t lane[16];
};
struct Mask16 {
  bool lane[16];
};

#define HOTLOOP_LANES for (int i = 0; i < 16; ++i)

// ---- memory ---------------------------------------------------------------------------------------------------------
HOTLOOP_INLINE F32x16 load(const float* p) {
  F32x16 r;
  HOTLOOP_LANES r.lane[i] = p[i];
  return r;
}
HOTLOOP_INLINE U32x16 load(const uint32_t* p) {
  U32x16 r;
  HOTLOOP_LANES r.lane[i] = p[i];
  return r;
}
HOTLOOP_INLINE void store(float* p, const F32x16& v) { HOTLOOP_LANES p[i] = v.lane[i]; }
HOTLOOP_INLINE void store(uint32_t* p, const U32x16& v) { HOTLOOP_LANES p[i] = v.lane[i]; }
HOTLOOP_INLINE F32x16 broadcast(float x) {
  F32x16 r;
  HOTLOOP_LANES r.lane[i] = x;
  return r;
}
HOTLOOP_INLINE U32x16 broadcast_u32(uint32_t x) {
  U32x16 r;
  HOTLOOP_LANES r.lane[i] = x;
  return r;
}
HOTLOOP_INLINE U32x16 lane_index() {
  U32x16 r;
  HOTLOOP_LANES r.lane[i] = static_cast<uint32_t>(i);
  return r;
}
HOTLOOP_INLINE F32x16 load_partial(const float* p, int64_t n, float fill) {
  F32x16 r;
  HOTLOOP_LANES r.lane[i] = i < n ? p[i] : fill;
  return r;
}
HOTLOOP_INLINE void store_partial(float* p, int64_t n, const F32x16& v) {
  for (int i = 0; i < n; ++i) p[i] = v.lane[i];
}

// ---- IEEE binary16 --------------------------------------------------------------------------------------------------
HOTLOOP_INLINE float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  float value;
  uint32_t out;
  if (magnitude >= 0x7c00u) {  // infinity, or a NaN, which becomes quiet
    out = sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13) | (magnitude > 0x7c00u ? 0x00400000u : 0u);
  } else if (magnitude >= 0x0400u) {
    out = sign | ((magnitude << 13) + (112u << 23));
  } else {  // zero or denormal: an exact multiple of 2^-24
    const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
    std::memcpy(&out, &small, 4);
    out |= sign;
  }
  std::memcpy(&value, &out, 4);
  return value;
}
HOTLOOP_INLINE uint16_t f32_to_f16(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7fffffffu;
  uint32_t out;
  if (magnitude > 0x7f800000u) {
    out = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    out = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // normal: round the 13 dropped bits to nearest even
    out = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  } else {  // denormal: adding 0.5 leaves multiples of 2^-24 in the low bits, rounded to nearest even by the addition
    float m;
    std::memcpy(&m, &magnitude, 4);
    m += 0.5f;
    uint32_t shifted;
    std::memcpy(&shifted, &m, 4);
    out = shifted - 0x3f000000u;
  }
  return static_cast<uint16_t>(sign | out);
}
HOTLOOP_INLINE F32x16 load_f16(const uint16_t* p) {
  F32x16 r;
  HOTLOOP_LANES r.lane[i] = f16_to_f32(p[i]);
  return r;
}
HOTLOOP_INLINE void store_f16(uint16_t* p, const F32x16& v) { HOTLOOP_LANES p[i] = f32_to_f16(v.lane[i]); }
HOTLOOP_INLINE void store_f16_partial(uint16_t* p, int64_t n, const F32x16& v) {
  for (int i = 0; i < n; ++i) p[i] = f32_to_f16(v.lane[i]);
}

// ---- bfloat16, int8 -------------------------------------------------------------------------------------------------
HOTLOOP_INLINE F32x16 load_bf16(const uint16_t* p) {
  F32x16 r;
  HOTLOOP_LANES {
    const uint32_t bits = static_cast<uint32_t>(p[i]) << 16;
    std::memcpy(&r.lane[i], &bits, 4);
  }
  return r;
}
HOTLOOP_INLINE F32x16 load_i8(const int8_t* p) {
  F32x16 r;
  HOTLOOP_LANES r.lane[i] = static_cast<float>(p[i]);
  return r;
}

// ---- integer dots of 4 bytes, exact in any order --------------------------------------------------------------------
struct Codes {
  const int8_t* quads;  // [kCodeLanes][4]
};
struct CodeSum {
  int32_t lane[16];
};
constexpr int kCodeLanes = 16;
constexpr int kQueryQuadBytes = 4;
HOTLOOP_INLINE void store_query_quad(uint8_t* p, const int8_t* q) { std::memcpy(p, q, 4); }
HOTLOOP_INLINE int32_t code_sum_start(int32_t) { return 0; }
HOTLOOP_INLINE CodeSum broadcast_sum(int32_t x) {
  CodeSum r;
  HOTLOOP_LANES r.lane[i] = x;
  return r;
}
HOTLOOP_INLINE Codes load_codes(const uint8_t* p) { return {reinterpret_cast<const int8_t*>(p)}; }
HOTLOOP_INLINE CodeSum add_dots(const CodeSum& sum, const Codes& k, const uint8_t* query_quad) {
  const int8_t* q = reinterpret_cast<const int8_t*>(query_quad);
  CodeSum r;
  HOTLOOP_LANES {
    const int8_t* x = k.quads + 4 * i;
    r.lane[i] = sum.lane[i] + x[0] * q[0] + x[1] * q[1] + x[2] * q[2] + x[3] * q[3];
  }
  return r;
}
HOTLOOP_INLINE CodeSum operator+(const CodeSum& a, const CodeSum& b) {
  CodeSum r;
  HOTLOOP_LANES r.lane[i] = a.lane[i] + b.lane[i];
  return r;
}
HOTLOOP_INLINE void store(int32_t* p, const CodeSum& v) { std::memcpy(p, v.lane, sizeof v.lane); }
HOTLOOP_INLINE F32x16 load_as_float(const int32_t* p) {
  F32x16 r;
  HOTLOOP_LANES r.lane[i] = static_cast<float>(p[i]);
  return r;
}

// ---- f32 arithmetic -------------------------------------------------------------------------------------------------
#define HOTLOOP_BINARY(name, expression)                             \
  HOTLOOP_INLINE F32x16 name(const F32x16& x, const F32x16& y) {     \
    F32x16 r;                                                        \
    HOTLOOP_LANES {                                                  \
      const float a = x.lane[i], b = y.lane[i];                      \
      r.lane[i] = expression;                                        \
    }                                                                \
    return r;                                                        \
  }
HOTLOOP_BINARY(operator+, a + b)
HOTLOOP_BINARY(operator-, a - b)
HOTLOOP_BINARY(operator*, a* b)
HOTLOOP_BINARY(operator/, a / b)
HOTLOOP_BINARY(max, a > b ? a : b)
HOTLOOP_BINARY(min, a < b ? a : b)
#undef HOTLOOP_BINARY

HOTLOOP_INLINE F32x16 fma(const F32x16& a, const F32x16& b, const F32x16& c) {
  F32x16 r;
  HOTLOOP_LANES r.lane[i] = __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]);
  return r;
}
HOTLOOP_INLINE float scalar_sqrt(float x) { return __builtin_sqrtf(x); }

// ---- bits, comparisons, integers ------------------------------------------------------------------------------------
HOTLOOP_INLINE U32x16 bits(const F32x16& v) {
  U32x16 r;
  std::memcpy(r.lane, v.lane, sizeof r);
  return r;
}
HOTLOOP_INLINE F32x16 from_bits(const U32x16& v) {
  F32x16 r;
  std::memcpy(r.lane, v.lane, sizeof r);
  return r;
}
HOTLOOP_INLINE F32x16 to_float(const U32x16& v) {
  F32x16 r;
  HOTLOOP_LANES r.lane[i] = static_cast<float>(static_cast<int32_t>(v.lane[i]));
  return r;
}
HOTLOOP_INLINE U32x16 to_int(const F32x16& v) {
  U32x16 r;
  HOTLOOP_LANES r.lane[i] = static_cast<uint32_t>(static_cast<int32_t>(v.lane[i]));
  return r;
}
#define HOTLOOP_BINARY(name, expression)                             \
  HOTLOOP_INLINE U32x16 name(const U32x16& x, const U32x16& y) {     \
    U32x16 r;                                                        \
    HOTLOOP_LANES {                                                  \
      const uint32_t a = x.lane[i], b = y.lane[i];                   \
      r.lane[i] = expression;                                        \
    }                                                                \
    return r;                                                        \
  }
HOTLOOP_BINARY(operator+, a + b)
HOTLOOP_BINARY(operator-, a - b)
HOTLOOP_BINARY(operator&, a& b)
HOTLOOP_BINARY(operator|, a | b)
HOTLOOP_BINARY(operator^, a ^ b)
#undef HOTLOOP_BINARY

template <int N>
HOTLOOP_INLINE U32x16 shift_left(const U32x16& v) {
  U32x16 r;
  HOTLOOP_LANES r.lane[i] = v.lane[i] << N;
  return r;
}
template <int N>
HOTLOOP_INLINE U32x16 shift_right(const U32x16& v) {
  U32x16 r;
  HOTLOOP_LANES r.lane[i] = v.lane[i] >> N;
  return r;
}
template <int N>
HOTLOOP_INLINE U32x16 shift_right_signed(const U32x16& v) {
  U32x16 r;
  HOTLOOP_LANES r.lane[i] = static_cast<uint32_t>(static_cast<int32_t>(v.lane[i]) >> N);
  return r;
}
HOTLOOP_INLINE void multiply_high_low(uint32_t factor, const U32x16& v, U32x16& high, U32x16& low) {
  HOTLOOP_LANES {
    const uint64_t product = static_cast<uint64_t>(factor) * v.lane[i];
    high.lane[i] = static_cast<uint32_t>(product >> 32);
    low.lane[i] = static_cast<uint32_t>(product);
  }
}
HOTLOOP_INLINE Mask16 less(const F32x16& a, const F32x16& b) {
  Mask16 r;
  HOTLOOP_LANES r.lane[i] = a.lane[i] < b.lane[i];
  return r;
}
HOTLOOP_INLINE F32x16 select(const Mask16& m, const F32x16& a, const F32x16& b) {
  F32x16 r;
  HOTLOOP_LANES r.lane[i] = m.lane[i] ? a.lane[i] : b.lane[i];
  return r;
}

// ---- across lanes ---------------------------------------------------------------------------------------------------
HOTLOOP_INLINE void store_folded(float* p, const F32x16& v) {
  float eight[8];
  for (int i = 0; i < 8; ++i) eight[i] = v.lane[i] + v.lane[i + 8];
  for (int i = 0; i < 4; ++i) p[i] = eight[i] + eight[i + 4];
}
template <int N>
HOTLOOP_INLINE void store_folded(float* p, const F32x16 (&v)[N]) {
  for (int i = 0; i < N; ++i) store_folded(p + 4 * i, v[i]);
}
HOTLOOP_INLINE F32x16 sum_folded(const float* p) {
  F32x16 r;
  HOTLOOP_LANES r.lane[i] = (p[4 * i] + p[4 * i + 2]) + (p[4 * i + 1] + p[4 * i + 3]);
  return r;
}
HOTLOOP_INLINE float horizontal_sum(const F32x16& v) {
  float four[4];
  store_folded(four, v);
  return (four[0] + four[2]) + (four[1] + four[3]);
}
HOTLOOP_INLINE float horizontal_max(F32x16 v) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) v.lane[i] = v.lane[i] > v.lane[i + width] ? v.lane[i] : v.lane[i + width];
  }
  return v.lane[0];
}
HOTLOOP_INLINE void load_pairs(const float* p, F32x16& even, F32x16& odd) {
  HOTLOOP_LANES {
    even.lane[i] = p[2 * i];
    odd.lane[i] = p[2 * i + 1];
  }
}
HOTLOOP_INLINE void store_pairs(float* p, const F32x16& even, const F32x16& odd) {
  HOTLOOP_LANES {
    p[2 * i] = even.lane[i];
    p[2 * i + 1] = odd.lane[i];
  }
}
#undef HOTLOOP_LANES

}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
