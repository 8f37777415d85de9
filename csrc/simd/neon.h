// Sixteen virtual lanes as four 128-bit registers (AArch64 NEON with dot products). The names are explained in
// simd/README.md. max and min are selects: fmax and fmin treat NaNs and signed zeros another way than the definition.
#pragma once
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#define HOTLOOP_TARGET_NAME "neon"
#define HOTLOOP_SIMD_NEON
#define HOTLOOP_INLINE static inline __attribute__((always_inline))

namespace hotloop::HOTLOOP_TARGET {
namespace {

struct F32x16 {
  float32x4_t part[4];  // lanes 4i .. 4i + 3
};
struct U32x16 {
  uint32x4_t part[4];
};
struct Mask16 {
  uint32x4_t part[4];
};

#define HOTLOOP_PARTS for (int i = 0; i < 4; ++i)

// ---- memory ---------------------------------------------------------------------------------------------------------
HOTLOOP_INLINE F32x16 load(const float* p) {
  F32x16 r;
  HOTLOOP_PARTS r.part[i] = vld1q_f32(p + 4 * i);
  return r;
}
HOTLOOP_INLINE U32x16 load(const uint32_t* p) {
  U32x16 r;
  HOTLOOP_PARTS r.part[i] = vld1q_u32(p + 4 * i);
  return r;
}
HOTLOOP_INLINE void store(float* p, const F32x16& v) { HOTLOOP_PARTS vst1q_f32(p + 4 * i, v.part[i]); }
HOTLOOP_INLINE void store(uint32_t* p, const U32x16& v) { HOTLOOP_PARTS vst1q_u32(p + 4 * i, v.part[i]); }
HOTLOOP_INLINE F32x16 broadcast(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {{v, v, v, v}};
}
HOTLOOP_INLINE U32x16 broadcast_u32(uint32_t x) {
  const uint32x4_t v = vdupq_n_u32(x);
  return {{v, v, v, v}};
}
HOTLOOP_INLINE U32x16 lane_index() {
  const uint32_t first[4] = {0, 1, 2, 3};
  U32x16 r;
  HOTLOOP_PARTS r.part[i] = vaddq_u32(vld1q_u32(first), vdupq_n_u32(static_cast<uint32_t>(4 * i)));
  return r;
}
HOTLOOP_INLINE F32x16 load_partial(const float* p, int64_t n, float fill) {
  float all[16];
  for (int i = 0; i < 16; ++i) all[i] = i < n ? p[i] : fill;
  return load(all);
}
HOTLOOP_INLINE void store_partial(float* p, int64_t n, const F32x16& v) {
  float all[16];
  store(all, v);
  for (int i = 0; i < n; ++i) p[i] = all[i];
}

// ---- IEEE binary16 --------------------------------------------------------------------------------------------------
HOTLOOP_INLINE float f16_to_f32(uint16_t h) {
  __fp16 half;
  std::memcpy(&half, &h, 2);
  return static_cast<float>(half);
}
HOTLOOP_INLINE uint16_t f32_to_f16(float x) {
  const __fp16 half = static_cast<__fp16>(x);
  uint16_t h;
  std::memcpy(&h, &half, 2);
  return h;
}
HOTLOOP_INLINE F32x16 load_f16(const uint16_t* p) {
  F32x16 r;
  HOTLOOP_PARTS r.part[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
  return r;
}
HOTLOOP_INLINE void store_f16(uint16_t* p, const F32x16& v) {
  HOTLOOP_PARTS vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(v.part[i])));
}
HOTLOOP_INLINE void store_f16_partial(uint16_t* p, int64_t n, const F32x16& v) {
  uint16_t all[16];
  store_f16(all, v);
  for (int i = 0; i < n; ++i) p[i] = all[i];
}

// ---- bfloat16, int8 -------------------------------------------------------------------------------------------------
HOTLOOP_INLINE F32x16 load_bf16(const uint16_t* p) {
  F32x16 r;
  HOTLOOP_PARTS r.part[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16));
  return r;
}
HOTLOOP_INLINE F32x16 load_i8(const int8_t* p) {
  const int8x16_t v = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(v)), high = vmovl_s8(vget_high_s8(v));
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}

// ---- integer dots of 4 bytes, exact in any order --------------------------------------------------------------------
struct Codes {
  int8x16_t v;
};
struct CodeSum {
  int32x4_t v;
};
constexpr int kCodeLanes = 4;
constexpr int kQueryQuadBytes = 4;
HOTLOOP_INLINE void store_query_quad(uint8_t* p, const int8_t* q) { std::memcpy(p, q, 4); }
HOTLOOP_INLINE int32_t code_sum_start(int32_t) { return 0; }
HOTLOOP_INLINE CodeSum broadcast_sum(int32_t x) { return {vdupq_n_s32(x)}; }
HOTLOOP_INLINE Codes load_codes(const uint8_t* p) { return {vreinterpretq_s8_u8(vld1q_u8(p))}; }
HOTLOOP_INLINE CodeSum add_dots(const CodeSum& sum, const Codes& k, const uint8_t* query_quad) {
  uint32_t q;
  std::memcpy(&q, query_quad, 4);
  return {vdotq_s32(sum.v, k.v, vreinterpretq_s8_u32(vdupq_n_u32(q)))};
}
HOTLOOP_INLINE CodeSum operator+(const CodeSum& a, const CodeSum& b) {
  return {vaddq_s32(a.v, b.v)};
}
HOTLOOP_INLINE void store(int32_t* p, const CodeSum& v) { vst1q_s32(p, v.v); }
HOTLOOP_INLINE F32x16 load_as_float(const int32_t* p) {
  F32x16 r;
  HOTLOOP_PARTS r.part[i] = vcvtq_f32_s32(vld1q_s32(p + 4 * i));
  return r;
}

// ---- f32 arithmetic -------------------------------------------------------------------------------------------------
#define HOTLOOP_BINARY(type, name, expression)               \
  HOTLOOP_INLINE type name(const type& x, const type& y) {   \
    type r;                                                  \
    HOTLOOP_PARTS {                                          \
      const auto a = x.part[i], b = y.part[i];               \
      r.part[i] = expression;                                \
    }                                                        \
    return r;                                                \
  }
HOTLOOP_BINARY(F32x16, operator+, vaddq_f32(a, b))
HOTLOOP_BINARY(F32x16, operator-, vsubq_f32(a, b))
HOTLOOP_BINARY(F32x16, operator*, vmulq_f32(a, b))
HOTLOOP_BINARY(F32x16, operator/, vdivq_f32(a, b))
HOTLOOP_BINARY(F32x16, max, vbslq_f32(vcgtq_f32(a, b), a, b))
HOTLOOP_BINARY(F32x16, min, vbslq_f32(vcltq_f32(a, b), a, b))
HOTLOOP_BINARY(U32x16, operator+, vaddq_u32(a, b))
HOTLOOP_BINARY(U32x16, operator-, vsubq_u32(a, b))
HOTLOOP_BINARY(U32x16, operator&, vandq_u32(a, b))
HOTLOOP_BINARY(U32x16, operator|, vorrq_u32(a, b))
HOTLOOP_BINARY(U32x16, operator^, veorq_u32(a, b))
#undef HOTLOOP_BINARY

HOTLOOP_INLINE F32x16 fma(const F32x16& a, const F32x16& b, const F32x16& c) {
  F32x16 r;
  HOTLOOP_PARTS r.part[i] = vfmaq_f32(c.part[i], a.part[i], b.part[i]);
  return r;
}
HOTLOOP_INLINE float scalar_sqrt(float x) { return vget_lane_f32(vsqrt_f32(vdup_n_f32(x)), 0); }

// ---- bits, comparisons, integers ------------------------------------------------------------------------------------
#define HOTLOOP_UNARY(result, name, argument, expression)    \
  HOTLOOP_INLINE result name(const argument& x) {            \
    result r;                                                \
    HOTLOOP_PARTS {                                          \
      const auto v = x.part[i];                              \
      r.part[i] = expression;                                \
    }                                                        \
    return r;                                                \
  }
HOTLOOP_UNARY(U32x16, bits, F32x16, vreinterpretq_u32_f32(v))
HOTLOOP_UNARY(F32x16, from_bits, U32x16, vreinterpretq_f32_u32(v))
HOTLOOP_UNARY(U32x16, to_int, F32x16, vreinterpretq_u32_s32(vcvtq_s32_f32(v)))
HOTLOOP_UNARY(F32x16, to_float, U32x16, vcvtq_f32_s32(vreinterpretq_s32_u32(v)))
template <int N>
HOTLOOP_UNARY(U32x16, shift_left, U32x16, vshlq_n_u32(v, N))
template <int N>
HOTLOOP_UNARY(U32x16, shift_right, U32x16, vshrq_n_u32(v, N))
template <int N>
HOTLOOP_UNARY(U32x16, shift_right_signed, U32x16, vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(v), N)))
#undef HOTLOOP_UNARY

HOTLOOP_INLINE void multiply_high_low(uint32_t factor, const U32x16& v, U32x16& high, U32x16& low) {
  HOTLOOP_PARTS {
    const uint64x2_t first = vmull_n_u32(vget_low_u32(v.part[i]), factor);
    const uint64x2_t second = vmull_n_u32(vget_high_u32(v.part[i]), factor);
    high.part[i] = vcombine_u32(vshrn_n_u64(first, 32), vshrn_n_u64(second, 32));
    low.part[i] = vcombine_u32(vmovn_u64(first), vmovn_u64(second));
  }
}
HOTLOOP_INLINE Mask16 less(const F32x16& a, const F32x16& b) {
  Mask16 r;
  HOTLOOP_PARTS r.part[i] = vcltq_f32(a.part[i], b.part[i]);
  return r;
}
HOTLOOP_INLINE F32x16 select(const Mask16& m, const F32x16& a, const F32x16& b) {
  F32x16 r;
  HOTLOOP_PARTS r.part[i] = vbslq_f32(m.part[i], a.part[i], b.part[i]);
  return r;
}

// ---- across lanes ---------------------------------------------------------------------------------------------------
HOTLOOP_INLINE float32x4_t fold(const F32x16& v) {
  return vaddq_f32(vaddq_f32(v.part[0], v.part[2]), vaddq_f32(v.part[1], v.part[3]));
}
HOTLOOP_INLINE void store_folded(float* p, const F32x16& v) { vst1q_f32(p, fold(v)); }
template <int N>
HOTLOOP_INLINE void store_folded(float* p, const F32x16 (&v)[N]) {
  for (int i = 0; i < N; ++i) store_folded(p + 4 * i, v[i]);
}
HOTLOOP_INLINE F32x16 sum_folded(const float* p) {
  F32x16 r;
  HOTLOOP_PARTS {
    const float32x4x4_t q = vld4q_f32(p + 16 * i);  // member j: element j of 4 quadruples
    r.part[i] = vaddq_f32(vaddq_f32(q.val[0], q.val[2]), vaddq_f32(q.val[1], q.val[3]));
  }
  return r;
}
HOTLOOP_INLINE float horizontal_sum(const F32x16& v) {
  const float32x4_t four = fold(v);
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
HOTLOOP_INLINE float horizontal_max(const F32x16& v) {
  const auto larger = [](float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); };
  const float32x4_t four = larger(larger(v.part[0], v.part[2]), larger(v.part[1], v.part[3]));
  const float32x2_t a = vget_low_f32(four), b = vget_high_f32(four);
  const float32x2_t two = vbsl_f32(vcgt_f32(a, b), a, b);
  const float x = vget_lane_f32(two, 0), y = vget_lane_f32(two, 1);
  return x > y ? x : y;
}
HOTLOOP_INLINE void load_pairs(const float* p, F32x16& even, F32x16& odd) {
  HOTLOOP_PARTS {
    const float32x4x2_t pairs = vld2q_f32(p + 8 * i);
    even.part[i] = pairs.val[0];
    odd.part[i] = pairs.val[1];
  }
}
HOTLOOP_INLINE void store_pairs(float* p, const F32x16& even, const F32x16& odd) {
  HOTLOOP_PARTS {
    const float32x4x2_t pairs = {{even.part[i], odd.part[i]}};
    vst2q_f32(p + 8 * i, pairs);
  }
}
#undef HOTLOOP_PARTS

}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
