// Float operations on rows and heads. The order of every operation is part of the definition: products and sums are
// rounded one by one (no fma) unless the comment says fma, so that numpy can repeat them.

namespace hotloop::HOTLOOP_TARGET {
namespace {

// Sum of squares: lane k mod 16 is one fma chain over ascending k; then the tree. inv = 1 / sqrt(sum / n + eps).
// out = ((x * inv) * gain) + residual.
void rms_norm(const float* x, const float* gain, const float* residual, int64_t n, float eps, float* out) {
  F32x16 squares = broadcast(0.0f);
  map_rows(n, [&](int64_t i, int64_t m) {
    const F32x16 v = load_up_to(x + i, m, 0.0f);
    squares = fma(v, v, squares);
  });
  const float mean = horizontal_sum(squares) / static_cast<float>(n);
  const F32x16 inverse = broadcast(1.0f / scalar_sqrt(mean + eps));
  map_rows(n, [&](int64_t i, int64_t m) {
    F32x16 y = (load_up_to(x + i, m, 0.0f) * inverse) * load_up_to(gain + i, m, 0.0f);
    if (residual != nullptr) y = y + load_up_to(residual + i, m, 0.0f);
    store_up_to(out + i, m, y);
  });
}

// Lane k mod 16 adds x over ascending k, then fma chains of (x - mean)^2; the tree after each.
// inv = 1 / sqrt(sum / n + eps). out = ((x - mean) * inv) * gain + bias.
void layer_norm(const float* x, const float* gain, const float* bias, int64_t n, float eps, float* out) {
  F32x16 sum = broadcast(0.0f), squares = broadcast(0.0f);
  map_rows(n, [&](int64_t i, int64_t m) { sum = sum + load_up_to(x + i, m, 0.0f); });
  const float mean_of_row = horizontal_sum(sum) / static_cast<float>(n);
  const F32x16 mean = broadcast(mean_of_row);
  map_rows(n, [&](int64_t i, int64_t m) {
    const F32x16 d = load_up_to(x + i, m, mean_of_row) - mean;
    squares = fma(d, d, squares);
  });
  const float variance = horizontal_sum(squares) / static_cast<float>(n);
  const F32x16 inverse = broadcast(1.0f / scalar_sqrt(variance + eps));
  map_rows(n, [&](int64_t i, int64_t m) {
    const F32x16 y = ((load_up_to(x + i, m, 0.0f) - mean) * inverse) * load_up_to(gain + i, m, 0.0f);
    store_up_to(out + i, m, y + load_up_to(bias + i, m, 0.0f));
  });
}

// (a, b) -> (a cos - b sin, b cos + a sin), each product rounded.
HOTLOOP_INLINE void rotate(const F32x16& a, const F32x16& b, const F32x16& c, const F32x16& s, F32x16& x, F32x16& y) {
  x = a * c - b * s;
  y = b * c + a * s;
}

void rope(float* head, const float* cos, const float* sin, int64_t rot_dim, RopeStyle style) {
  const int64_t half = rot_dim / 2;
  F32x16 x, y;
  if (style == RopeStyle::HalfSplit) {
    map_rows(half, [&](int64_t i, int64_t m) {
      rotate(load_up_to(head + i, m, 0.0f), load_up_to(head + half + i, m, 0.0f), load_up_to(cos + i, m, 0.0f),
             load_up_to(sin + i, m, 0.0f), x, y);
      store_up_to(head + i, m, x);
      store_up_to(head + half + i, m, y);
    });
    return;
  }
  int64_t i = 0;
  for (; i + 16 <= half; i += 16) {
    F32x16 a, b;
    load_pairs(head + 2 * i, a, b);
    rotate(a, b, load(cos + i), load(sin + i), x, y);
    store_pairs(head + 2 * i, x, y);
  }
  for (; i < half; ++i) {  // the same operations on single elements
    const float a = head[2 * i], b = head[2 * i + 1];
    const float ac = a * cos[i], bs = b * sin[i], bc = b * cos[i], as = a * sin[i];
    head[2 * i] = ac - bs;
    head[2 * i + 1] = bc + as;
  }
}

// bfloat16 is the upper half of the bits, rounded to nearest even; a NaN stays one and becomes quiet.
HOTLOOP_INLINE uint16_t f32_to_bf16(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t is_nan = (u & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? (u >> 16) | 0x40u : rounded);
}
HOTLOOP_INLINE float bf16_to_f32(uint16_t h) {
  const uint32_t u = static_cast<uint32_t>(h) << 16;
  float x;
  __builtin_memcpy(&x, &u, 4);
  return x;
}

void store_kv(const float* src, int64_t n, KvDtype dtype, void* dst) {
  if (dtype == KvDtype::F32) {
    float* out = static_cast<float*>(dst);
    map_rows(n, [&](int64_t i, int64_t m) { store_up_to(out + i, m, load_up_to(src + i, m, 0.0f)); });
    return;
  }
  uint16_t* out = static_cast<uint16_t*>(dst);
  if (dtype == KvDtype::BF16) {
    for (int64_t i = 0; i < n; ++i) out[i] = f32_to_bf16(src[i]);
    return;
  }
  map_rows(n, [&](int64_t i, int64_t m) {
    const F32x16 v = load_up_to(src + i, m, 0.0f);
    if (m == 16) {
      store_f16(out + i, v);
    } else {
      store_f16_partial(out + i, m, v);
    }
  });
}

// What a group of n elements (a multiple of 16) is divided by, given the scale that its largest magnitude asks for.
// A NaN or an infinity makes the scale NaN and the codes 0, so that whatever reads the group is NaN; a group whose
// magnitudes are all below 2^-100 becomes 0.
struct GroupMagnitude {
  float largest;
  bool finite;
};
HOTLOOP_INLINE GroupMagnitude group_magnitude(const float* x, int64_t n) {
  F32x16 largest = broadcast(0.0f), poison = broadcast(0.0f);
  for (int64_t i = 0; i < n; i += 16) {
    const F32x16 v = load(x + i);
    largest = max(absolute(v), largest);
    poison = fma(v, broadcast(0.0f), poison);  // NaN from a NaN or an infinity on
  }
  return {horizontal_max(largest), horizontal_sum(poison) == 0.0f};
}

// codes = x / scale, rounded to integers, ties to even, at most +-127 (a rounded scale may ask for 127.5).
HOTLOOP_INLINE void encode_group(const float* x, int64_t n, float scale, int8_t* codes) {
  if (!(scale > 0.0f)) {
    for (int64_t i = 0; i < n; ++i) codes[i] = 0;
    return;
  }
  const F32x16 inverse = broadcast(1.0f / scale);
  for (int64_t i = 0; i < n; i += 16) {
    const F32x16 v = min(max(load(x + i) * inverse, broadcast(-127.0f)), broadcast(127.0f));
    const F32x16 shifted = v + broadcast(0x1.8p23f);  // leaves the integer in the low mantissa bits
    uint32_t lanes[16];
    store(lanes, bits(shifted));
    for (int j = 0; j < 16; ++j) codes[i + j] = static_cast<int8_t>(lanes[j]);
  }
}

HOTLOOP_INLINE float group_scale(const GroupMagnitude& m) {
  if (!m.finite) return __builtin_nanf("");
  return m.largest < 0x1p-100f ? 0.0f : m.largest / 127.0f;
}

void quantize_kv(const float* src, int64_t n, int64_t group_size, int8_t* codes, uint16_t* scales) {
  for (int64_t i = 0; i < n; i += group_size) {
    const int64_t size = n - i < group_size ? n - i : group_size;
    const uint16_t scale = f32_to_bf16(group_scale(group_magnitude(src + i, size)));
    encode_group(src + i, size, bf16_to_f32(scale), codes + i);
    scales[i / group_size] = scale;
  }
}

HOTLOOP_INLINE F32x16 silu(const F32x16& x) { return x * sigmoid(x); }

// x/2 (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): no cancellation for negative x.
HOTLOOP_INLINE F32x16 gelu_tanh(const F32x16& x) {
  const F32x16 cubic = fma((x * x) * x, broadcast(0.044715f), x);
  return x * sigmoid(cubic * broadcast(1.5957691216057308f));  // 2 sqrt(2/pi)
}

HOTLOOP_INLINE F32x16 apply(ActivationFunction function, const F32x16& x) {
  return function == ActivationFunction::SiLU ? silu(x) : gelu_tanh(x);
}

void gated(const float* gate, const float* up, int64_t n, ActivationFunction function, float* out) {
  map_rows(n, [&](int64_t i, int64_t m) {
    store_up_to(out + i, m, apply(function, load_up_to(gate + i, m, 0.0f)) * load_up_to(up + i, m, 0.0f));
  });
}

void activate(const float* x, const float* bias, int64_t n, ActivationFunction function, float* out) {
  map_rows(n, [&](int64_t i, int64_t m) {
    F32x16 v = load_up_to(x + i, m, 0.0f);
    if (bias != nullptr) v = v + load_up_to(bias + i, m, 0.0f);
    store_up_to(out + i, m, apply(function, v));
  });
}

void add(const float* a, const float* b, int64_t n, float* out) {
  map_rows(n, [&](int64_t i, int64_t m) {
    store_up_to(out + i, m, load_up_to(a + i, m, 0.0f) + load_up_to(b + i, m, 0.0f));
  });
}

void scale(float* x, int64_t n, float factor) {
  map_rows(n, [&](int64_t i, int64_t m) { store_up_to(x + i, m, load_up_to(x + i, m, 0.0f) * broadcast(factor)); });
}

HOTLOOP_INLINE F32x16 softcap(const F32x16& x, float cap) {
  return broadcast(cap) * tanh(x / broadcast(cap));
}
void softcap(float* x, int64_t n, float cap) {
  map_rows(n, [&](int64_t i, int64_t m) { store_up_to(x + i, m, softcap(load_up_to(x + i, m, 0.0f), cap)); });
}

}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
