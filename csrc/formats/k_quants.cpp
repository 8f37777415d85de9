// quant/k_quants.py in C++, the groups of a superblock side by side. The definition explains the method.
#include <cstring>
#include <initializer_list>

#include "formats/gguf_blocks.h"
#include "formats/lanes.h"
#include "formats/quantize.h"

namespace hotloop {
namespace {

constexpr float kLargest = 63.0f * 65504.0f;

bool fits(const float* x) {
  bool ok = true;
  for (int i = 0; i < 256; ++i) ok &= std::fabs(x[i]) <= kLargest;
  return ok;
}

bool is_infinite(uint16_t half) { return (half & 0x7c00u) == 0x7c00u; }

void put_f16(uint8_t* dst, uint16_t half) {
  dst[0] = static_cast<uint8_t>(half);
  dst[1] = static_cast<uint8_t>(half >> 8);
}

// Element j of every group.
template <int N, int Size>
void transpose(const float* x, Lanes<N>* out) {
  for (int g = 0; g < N; ++g) {
    for (int j = 0; j < Size; ++j) out[j].set(g, x[g * Size + j]);
  }
}

template <int N>
float sum(const Lanes<N>& a) {
  float total = a[0];
  for (int g = 1; g < N; ++g) total = total + a[g];
  return total;
}

// ---- Q4_K and Q5_K ---------------------------------------------------------------------------------------------------

constexpr int kSize = 32;
using Eight = Lanes<8>;

struct Affine {
  Eight scale, minimum;
};

void error_weights(const Eight* x, Eight* w) {
  Eight squares(0);
  for (int j = 0; j < kSize; ++j) squares = squares + x[j] * x[j];
  const Eight rms = sqrt(squares / Eight(kSize));
  for (int j = 0; j < kSize; ++j) w[j] = rms + abs(x[j]);
}

Affine best_affine(const Eight* x, const Eight* w, float top) {
  Eight low(0), high = x[0], sum_w(0), sum_wx(0);
  for (int j = 0; j < kSize; ++j) {
    low = min(low, x[j]);
    high = max(high, x[j]);
    sum_w = sum_w + w[j];
    sum_wx = sum_wx + w[j] * x[j];
  }
  const Eight span = high - low, zero(0);
  Eight best_gain(-std::numeric_limits<float>::infinity());
  Affine best{zero, zero - low};
  for (int grid = 0; grid < 21; ++grid) {
    const Eight inverse = finite(Eight(top + static_cast<float>(grid - 10) * 0.1f) / span);
    Eight sum_q(0), sum_qq(0), sum_qx(0);
    for (int j = 0; j < kSize; ++j) {
      const Eight q = nearest((x[j] - low) * inverse, 0, top);
      const Eight wq = w[j] * q;
      sum_q = sum_q + wq;
      sum_qq = sum_qq + wq * q;
      sum_qx = sum_qx + wq * x[j];
    }
    const Eight determinant = sum_w * sum_qq - sum_q * sum_q;
    const Eight free_scale = (sum_w * sum_qx - sum_wx * sum_q) / determinant;
    const Eight free_offset = (sum_qq * sum_wx - sum_q * sum_qx) / determinant;
    const auto above = zero < free_offset;
    const Eight scale = select(above, sum_qx / sum_qq, free_scale);
    const Eight offset = select(above, zero, free_offset);
    const Eight gain = scale * sum_qx + offset * sum_wx;
    const auto better = (zero < determinant) & (zero < scale) & (scale <= Eight(kLargest)) & (best_gain < gain);
    best_gain = select(better, gain, best_gain);
    best.scale = select(better, scale, best.scale);
    best.minimum = select(better, zero - offset, best.minimum);
  }
  return best;
}

// codes: [32], or nullptr where only the error is wanted.
Eight affine_error(const Eight* x, const Eight* w, float top, const Eight& scale, const Eight& minimum, Eight* codes) {
  const Eight inverse = finite(Eight(1) / scale);
  Eight error(0);
  for (int j = 0; j < kSize; ++j) {
    const Eight q = nearest((x[j] + minimum) * inverse, 0, top);
    const Eight difference = (scale * q - minimum) - x[j];
    error = error + (w[j] * difference) * difference;
    if (codes != nullptr) codes[j] = q;
  }
  return error;
}

Affine best_integers(const Eight* x, const Eight* w, float top, const Affine& wanted, float d, float dmin) {
  const Affine start{nearest(wanted.scale * finite(Eight(1) / Eight(d)), 0, 63),
                     nearest(wanted.minimum * finite(Eight(1) / Eight(dmin)), 0, 63)};
  Affine best = start;
  Eight best_error(std::numeric_limits<float>::infinity());
  for (const float ds : {0.0f, -1.0f, 1.0f}) {
    const Eight scale = min(max(start.scale + Eight(ds), Eight(0)), Eight(63));
    for (const float dm : {0.0f, -1.0f, 1.0f}) {
      const Eight minimum = min(max(start.minimum + Eight(dm), Eight(0)), Eight(63));
      const Eight error = affine_error(x, w, top, Eight(d) * scale, Eight(dmin) * minimum, nullptr);
      const auto better = error < best_error;
      best_error = select(better, error, best_error);
      best.scale = select(better, scale, best.scale);
      best.minimum = select(better, minimum, best.minimum);
    }
  }
  return best;
}

void refit_affine(const Eight* x, const Eight* w, const Affine& integers, const Eight* codes, uint16_t& d, uint16_t& dmin) {
  const Eight& b = integers.minimum;
  Eight aa(0), ab(0), bb(0), ax(0), bx(0);
  for (int j = 0; j < kSize; ++j) {
    const Eight a = integers.scale * codes[j];
    const Eight wa = w[j] * a, wb = w[j] * b;
    aa = aa + wa * a;
    ab = ab + wa * b;
    bb = bb + wb * b;
    ax = ax + wa * x[j];
    bx = bx + wb * x[j];
  }
  const float saa = sum(aa), sab = sum(ab), sbb = sum(bb), sax = sum(ax), sbx = sum(bx);
  const float determinant = saa * sbb - sab * sab;
  float scale = (sbb * sax - sab * sbx) / determinant;
  float minimum = (sab * sax - saa * sbx) / determinant;
  if (sbb == 0) {
    scale = sax / saa;
    minimum = 0;
  }
  const bool good = scale > 0 && minimum >= 0 && scale < 65504 && minimum < 65504;
  d = to_f16(good ? scale : 0);
  dmin = to_f16(good ? minimum : 0);
}

// The header of both formats and the codes, [8][32].
bool with_minimums(const float* values, float top, uint8_t* header, uint8_t* out) {
  if (!fits(values)) return false;
  Eight x[kSize], w[kSize], codes[kSize], new_codes[kSize];
  transpose<8, kSize>(values, x);
  error_weights(x, w);
  const Affine wanted = best_affine(x, w, top);
  float largest_scale = wanted.scale[0], largest_minimum = wanted.minimum[0];
  for (int g = 1; g < 8; ++g) {
    if (wanted.scale[g] > largest_scale) largest_scale = wanted.scale[g];
    if (wanted.minimum[g] > largest_minimum) largest_minimum = wanted.minimum[g];
  }
  uint16_t d = to_f16(largest_scale / 63), dmin = to_f16(largest_minimum / 63);
  if (is_infinite(d) || is_infinite(dmin)) return false;
  const Affine integers = best_integers(x, w, top, wanted, from_f16(d), from_f16(dmin));
  const auto error_of = [&](uint16_t scale, uint16_t minimum, Eight* to) {
    return sum(affine_error(x, w, top, Eight(from_f16(scale)) * integers.scale, Eight(from_f16(minimum)) * integers.minimum, to));
  };
  const float error = error_of(d, dmin, codes);
  uint16_t new_d, new_dmin;
  refit_affine(x, w, integers, codes, new_d, new_dmin);
  const Eight* best = codes;
  if (error_of(new_d, new_dmin, new_codes) < error) {
    d = new_d;
    dmin = new_dmin;
    best = new_codes;
  }
  put_f16(header, d);
  put_f16(header + 2, dmin);
  for (int g = 0; g < 4; ++g) {
    const auto s = [&](int i) { return static_cast<unsigned>(integers.scale[i]); };
    const auto m = [&](int i) { return static_cast<unsigned>(integers.minimum[i]); };
    header[4 + g] = static_cast<uint8_t>(s(g) | s(g + 4) >> 4 << 6);
    header[8 + g] = static_cast<uint8_t>(m(g) | m(g + 4) >> 4 << 6);
    header[12 + g] = static_cast<uint8_t>((s(g + 4) & 15) | (m(g + 4) & 15) << 4);
  }
  for (int g = 0; g < 8; ++g) {
    for (int j = 0; j < kSize; ++j) out[g * kSize + j] = static_cast<uint8_t>(best[j][g]);
  }
  return true;
}

void put_nibbles(const uint8_t* codes, uint8_t* dst) {
  for (int c = 0; c < 4; ++c) {
    for (int i = 0; i < 32; ++i) {
      dst[32 * c + i] = static_cast<uint8_t>((codes[64 * c + i] & 15) | (codes[64 * c + 32 + i] & 15) << 4);
    }
  }
}

// ---- Q6_K ------------------------------------------------------------------------------------------------------------

using Sixteen = Lanes<16>;

Sixteen best_linear(const Sixteen* x) {
  Sixteen largest(0), extreme(0);
  for (int j = 0; j < 16; ++j) {
    const Sixteen magnitude = abs(x[j]);
    extreme = select(largest < magnitude, x[j], extreme);
    largest = max(magnitude, largest);
  }
  Sixteen best_gain(0), best(0);
  for (int grid = 0; grid < 19; ++grid) {
    const Sixteen inverse = finite(Sixteen(-32.0f + static_cast<float>(grid - 9) * 0.1f) / extreme);
    Sixteen sum_qq(0), sum_qx(0);
    for (int j = 0; j < 16; ++j) {
      const Sixteen q = nearest(x[j] * inverse, -32, 31);
      const Sixteen wq = (x[j] * x[j]) * q;
      sum_qq = sum_qq + wq * q;
      sum_qx = sum_qx + wq * x[j];
    }
    const Sixteen scale = finite(sum_qx / sum_qq);
    const Sixteen gain = scale * sum_qx;
    const auto better = best_gain < gain;
    best_gain = select(better, gain, best_gain);
    best = select(better, scale, best);
  }
  return best;
}

Sixteen linear_error(const Sixteen* x, const Sixteen& scale, Sixteen* codes) {
  const Sixteen inverse = finite(Sixteen(1) / scale);
  Sixteen error(0);
  for (int j = 0; j < 16; ++j) {
    codes[j] = nearest(x[j] * inverse, -32, 31);
    const Sixteen difference = scale * codes[j] - x[j];
    error = error + ((x[j] * x[j]) * difference) * difference;
  }
  return error;
}

}  // namespace

bool quantize_q4_k(const float* x, uint8_t* dst) {
  uint8_t codes[256];
  if (!with_minimums(x, 15, dst, codes)) return false;
  put_nibbles(codes, dst + 16);
  return true;
}

bool quantize_q5_k(const float* x, uint8_t* dst) {
  uint8_t codes[256];
  if (!with_minimums(x, 31, dst, codes)) return false;
  for (int i = 0; i < 32; ++i) {
    unsigned fifth = 0;
    for (int g = 0; g < 8; ++g) fifth |= static_cast<unsigned>(codes[32 * g + i] >> 4) << g;
    dst[16 + i] = static_cast<uint8_t>(fifth);
  }
  put_nibbles(codes, dst + 48);
  return true;
}

bool quantize_q6_k(const float* values, uint8_t* dst) {
  if (!fits(values)) return false;
  Sixteen x[16], codes[16], new_codes[16];
  transpose<16, 16>(values, x);
  const Sixteen wanted = best_linear(x);
  float largest = 0, extreme = 0;
  for (int g = 0; g < 16; ++g) {
    if (std::fabs(wanted[g]) > largest) {
      extreme = wanted[g];
      largest = std::fabs(wanted[g]);
    }
  }
  uint16_t d = to_f16(extreme / -128.0f);
  if (is_infinite(d)) return false;
  const Sixteen integers = nearest(wanted * finite(Sixteen(1) / Sixteen(from_f16(d))), -128, 127);
  const float error = sum(linear_error(x, Sixteen(from_f16(d)) * integers, codes));
  Sixteen aa(0), ax(0);
  for (int j = 0; j < 16; ++j) {
    const Sixteen a = integers * codes[j];
    const Sixteen wa = (x[j] * x[j]) * a;
    aa = aa + wa * a;
    ax = ax + wa * x[j];
  }
  const float fit = sum(ax) / sum(aa);
  const uint16_t new_d = to_f16(std::fabs(fit) < 65504 ? fit : 0);
  const Sixteen* best = codes;
  if (sum(linear_error(x, Sixteen(from_f16(new_d)) * integers, new_codes)) < error) {
    d = new_d;
    best = new_codes;
  }
  gguf::Q6_K block;
  const auto code = [&](int k) { return static_cast<unsigned>(static_cast<int>(best[k % 16][k / 16]) + 32); };
  for (int h = 0; h < 2; ++h) {
    for (int l = 0; l < 32; ++l) {
      const unsigned q[4] = {code(128 * h + l), code(128 * h + 32 + l), code(128 * h + 64 + l), code(128 * h + 96 + l)};
      block.ql[64 * h + l] = static_cast<uint8_t>((q[0] & 15) | (q[2] & 15) << 4);
      block.ql[64 * h + 32 + l] = static_cast<uint8_t>((q[1] & 15) | (q[3] & 15) << 4);
      block.qh[32 * h + l] = static_cast<uint8_t>(q[0] >> 4 | q[1] >> 4 << 2 | q[2] >> 4 << 4 | q[3] >> 4 << 6);
    }
  }
  for (int g = 0; g < 16; ++g) block.scales[g] = static_cast<int8_t>(integers[g]);
  put_f16(block.d, d);
  std::memcpy(dst, &block, sizeof block);
  return true;
}

}  // namespace hotloop
