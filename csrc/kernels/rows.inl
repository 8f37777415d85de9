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

void store_kv(const float* src, int64_t n, KvDtype dtype, void* dst) {
  if (dtype == KvDtype::F32) {
    float* out = static_cast<float*>(dst);
    map_rows(n, [&](int64_t i, int64_t m) { store_up_to(out + i, m, load_up_to(src + i, m, 0.0f)); });
    return;
  }
  uint16_t* out = static_cast<uint16_t*>(dst);
  map_rows(n, [&](int64_t i, int64_t m) {
    const F32x16 v = load_up_to(src + i, m, 0.0f);
    if (m == 16) {
      store_f16(out + i, v);
    } else {
      store_f16_partial(out + i, m, v);
    }
  });
}

HOTLOOP_INLINE F32x16 silu(const F32x16& x) { return x * sigmoid(x); }

// x/2 (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): no cancellation for negative x.
HOTLOOP_INLINE F32x16 gelu_tanh(const F32x16& x) {
  const F32x16 cubic = fma((x * x) * x, broadcast(0.044715f), x);
  return x * sigmoid(cubic * broadcast(1.5957691216057308f));  // 2 sqrt(2/pi)
}

void gated(const float* gate, const float* up, int64_t n, GatedActivation activation, float* out) {
  map_rows(n, [&](int64_t i, int64_t m) {
    const F32x16 g = load_up_to(gate + i, m, 0.0f);
    const F32x16 a = activation == GatedActivation::SiLU ? silu(g) : gelu_tanh(g);
    store_up_to(out + i, m, a * load_up_to(up + i, m, 0.0f));
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
