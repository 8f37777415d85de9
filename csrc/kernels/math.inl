// exp, log, tanh and sigmoid on 16 lanes: polynomials and explicit fma, so every instruction set computes the same bits.
// Denormal arguments and results are kept (no flush to zero). Coefficients: tools/fit_polynomials.py (minimax).
// Errors are measured over all arguments of each kind in tests/kernels/test_math.py.

namespace hotloop::HOTLOOP_TARGET {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr float kRoundToInteger = 0x1.8p23f;  // adding it leaves the nearest integer in the low mantissa bits
constexpr uint32_t kRoundToIntegerBits = 0x4b400000u;

HOTLOOP_INLINE F32x16 absolute(const F32x16& x) { return from_bits(bits(x) & broadcast_u32(0x7fffffffu)); }
HOTLOOP_INLINE F32x16 negate(const F32x16& x) { return from_bits(bits(x) ^ broadcast_u32(0x80000000u)); }
HOTLOOP_INLINE F32x16 fma(const F32x16& a, const F32x16& b, float c) { return fma(a, b, broadcast(c)); }
HOTLOOP_INLINE F32x16 power_of_two(const U32x16& exponent) {  // exponent: int32 in [-126, 127]
  return from_bits(shift_left<23>(exponent + broadcast_u32(127)));
}

// e^x of N vectors, error <= 1 ulp. x = n ln2 + r, |r| <= ln2 / 2; e^r = 1 + r + r^2 q(r); the scaling by 2^n is done in
// two exact halves, so that only the last product rounds (denormal results included). exp(-inf) = 0, exp(NaN) = NaN.
// It is one long chain: N of them step by step keep the processor busy where N one after the other would not.
template <int N>
HOTLOOP_INLINE void exp(const F32x16 (&argument)[N], F32x16 (&out)[N]) {
  constexpr float kCoefficients[] = {0x1.123a2p-7f, 0x1.5558f4p-5f, 0x1.555492p-3f, 0x1.fffffcp-2f};
  F32x16 x[N], shifted[N], r[N], q[N];
#define HOTLOOP_EACH for (int i = 0; i < N; ++i)
  // NaN is the second operand: it comes through. Past the bounds the result is 0 or infinity anyway.
  HOTLOOP_EACH x[i] = min(broadcast(100.0f), max(broadcast(-150.0f), argument[i]));
  HOTLOOP_EACH shifted[i] = fma(x[i], broadcast(0x1.715476p0f), kRoundToInteger);
  HOTLOOP_EACH r[i] = shifted[i] - broadcast(kRoundToInteger);
  HOTLOOP_EACH x[i] = fma(r[i], broadcast(-0x1.62e4p-1f), x[i]);    // ln2, leading bits: the product is exact
  HOTLOOP_EACH r[i] = fma(r[i], broadcast(-0x1.7f7d1cp-20f), x[i]);  // ln2, the rest
  HOTLOOP_EACH q[i] = broadcast(0x1.6a23c2p-10f);
  for (const float c : kCoefficients) {
    HOTLOOP_EACH q[i] = fma(q[i], r[i], c);
  }
  HOTLOOP_EACH x[i] = r[i] * r[i];
  HOTLOOP_EACH q[i] = fma(q[i], x[i], r[i]) + broadcast(1.0f);
  U32x16 exponent[N], half[N];
  HOTLOOP_EACH exponent[i] = bits(shifted[i]) - broadcast_u32(kRoundToIntegerBits);
  HOTLOOP_EACH half[i] = shift_right_signed<1>(exponent[i]);
  HOTLOOP_EACH q[i] = q[i] * power_of_two(half[i]);
  HOTLOOP_EACH out[i] = q[i] * power_of_two(exponent[i] - half[i]);
#undef HOTLOOP_EACH
}
HOTLOOP_INLINE F32x16 exp(const F32x16& x) {
  const F32x16 argument[1] = {x};
  F32x16 out[1];
  exp(argument, out);
  return out[0];
}

// log(1 + f) + e ln2 for f in [sqrt(1/2) - 1, sqrt(2) - 1]: f - f^2 / 2 + f^3 P(f).
HOTLOOP_INLINE F32x16 log_from_parts(const F32x16& f, const F32x16& e) {
  F32x16 p = broadcast(0.06746631378f);
  p = fma(p, f, -0.116796488f);
  p = fma(p, f, 0.1189030529f);
  p = fma(p, f, -0.1240513488f);
  p = fma(p, f, 0.1421922693f);
  p = fma(p, f, -0.1666800704f);
  p = fma(p, f, 0.2000213347f);
  p = fma(p, f, -0.2500000963f);
  p = fma(p, f, 0.3333331242f);
  const F32x16 f2 = f * f;
  F32x16 small = fma(e, broadcast(0x1.7f7d1cp-20f), (f2 * f) * p);
  small = fma(f2, broadcast(-0.5f), small);
  return fma(e, broadcast(0x1.62e4p-1f), f + small);
}

// x = (1 + f) 2^e with 1 + f in [sqrt(1/2), sqrt(2)); x positive and normal.
HOTLOOP_INLINE void split_normal(const F32x16& x, F32x16& f, F32x16& e) {
  const U32x16 offset = bits(x) - broadcast_u32(0x3f3504f3u);  // sqrt(1/2)
  const U32x16 exponent = shift_right_signed<23>(offset);
  f = from_bits(bits(x) - shift_left<23>(exponent)) - broadcast(1.0f);
  e = to_float(exponent);
}

// Natural logarithm, error <= 1 ulp-ish. log(0) = -inf, log(inf) = inf, log(negative) = log(NaN) = NaN.
HOTLOOP_INLINE F32x16 log(const F32x16& x) {
  const Mask16 denormal = less(x, broadcast(0x1p-126f));
  F32x16 f, e;
  split_normal(select(denormal, x * broadcast(0x1p23f), x), f, e);
  F32x16 y = log_from_parts(f, select(denormal, e - broadcast(23.0f), e));
  y = select(less(x, broadcast(kInfinity)), y, x);                      // inf and NaN
  y = select(less(broadcast(0.0f), x), y, broadcast(-kInfinity) + absolute(x));  // 0; NaN stays by the addition
  return select(less(x, broadcast(0.0f)), broadcast(__builtin_nanf("")), y);
}

// 1 / (1 + e^-x) from e^-|x|, which cannot overflow; error <= 3 ulp.
HOTLOOP_INLINE F32x16 sigmoid(const F32x16& x) {
  const F32x16 e = exp(negate(absolute(x)));
  return select(less(x, broadcast(0.0f)), e, broadcast(1.0f)) / (broadcast(1.0f) + e);
}

// Odd by construction; error <= 2 ulp. x + x^3 P(x^2) near zero, 1 - 2 / (e^2|x| + 1) elsewhere.
HOTLOOP_INLINE F32x16 tanh(const F32x16& x) {
  const F32x16 a = absolute(x);
  const F32x16 z = a * a;
  F32x16 p = broadcast(-0.00570497775f);
  p = fma(p, z, 0.02063907782f);
  p = fma(p, z, -0.0537397117f);
  p = fma(p, z, 0.1333144215f);
  p = fma(p, z, -0.3333328194f);
  const F32x16 near = fma(p * z, a, a);
  const F32x16 far = broadcast(1.0f) - broadcast(2.0f) / (exp(a + a) + broadcast(1.0f));
  const F32x16 magnitude = select(less(a, broadcast(0.625f)), near, far);
  return from_bits(bits(magnitude) | (bits(x) & broadcast_u32(0x80000000u)));
}

// Apply f to all n elements, the last ones in a partial vector.
template <typename F>
HOTLOOP_INLINE void map_rows(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) f(i, int64_t{16});
  if (i < n) f(i, n - i);
}
HOTLOOP_INLINE F32x16 load_up_to(const float* p, int64_t n, float fill) {
  return n == 16 ? load(p) : load_partial(p, n, fill);
}
HOTLOOP_INLINE void store_up_to(float* p, int64_t n, const F32x16& v) {
  if (n == 16) {
    store(p, v);
  } else {
    store_partial(p, n, v);
  }
}

void exp_array(const float* x, int64_t n, float* out) {
  map_rows(n, [&](int64_t i, int64_t m) { store_up_to(out + i, m, exp(load_up_to(x + i, m, 0.0f))); });
}
void log_array(const float* x, int64_t n, float* out) {
  map_rows(n, [&](int64_t i, int64_t m) { store_up_to(out + i, m, log(load_up_to(x + i, m, 1.0f))); });
}

}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
