#include "runtime/self_check.h"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "runtime/aligned.h"
#include "runtime/float_environment.h"
#include "runtime/kv_append.h"

namespace hotloop {
namespace {

constexpr int kCompared = 28, kYardsticks = 2;  // peak_int8 and peak_f32 compute nothing
static_assert(sizeof(KernelTable) == (1 + kCompared + kYardsticks) * sizeof(void*),
              "a kernel came or went: change SelfCheck and broken_copy too");

struct NamedFormat {
  WeightFormat format;
  const char* name;
};
#define HOTLOOP_NAMED(name) {WeightFormat::name, #name},
constexpr NamedFormat kFormats[] = {HOTLOOP_FLOAT_FORMATS(HOTLOOP_NAMED) HOTLOOP_INTEGER_FORMATS(HOTLOOP_NAMED)};
#undef HOTLOOP_NAMED

bool holds_floats(WeightFormat format) {
  return format == WeightFormat::F32 || format == WeightFormat::F16 || format == WeightFormat::BF16;
}

class Random {  // splitmix64
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t word() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  float uniform() { return static_cast<float>(static_cast<int64_t>(word() >> 40) - (1 << 23)) * 0x1p-23f; }  // [-1, 1)
  std::vector<float> uniform(int64_t n, float magnitude = 1.0f) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = magnitude * uniform();
    return x;
  }
  // All kinds of f32: magnitudes from denormal to infinite, zeros of both signs, NaN.
  std::vector<float> any_floats(int64_t n) {
    constexpr float kInfinity = __builtin_inff();
    constexpr float kSpecial[] = {0.0f, -0.0f, 1.0f, -1.0f, 0x1p-149f, -0x1.8p-127f, 0x1p-126f, kInfinity, -kInfinity,
                                  __builtin_nanf(""), 0x1.fffffep127f, 88.7f, -104.0f, 65520.0f, 0x1.002p-14f, 0x1p-25f};
    std::vector<float> x = uniform(n, 4.0f);
    for (size_t i = 0; i < x.size(); ++i) {
      if (i % 3 == 1) x[i] = std::ldexp(x[i], static_cast<int>(word() % 250) - 140);
      if (i % 5 == 2) x[i] = kSpecial[word() % (sizeof kSpecial / sizeof *kSpecial)];
    }
    return x;
  }

 private:
  uint64_t state_;
};

using Floats = std::vector<float>;

bool same(const float* a, const float* b, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (std::memcmp(a + i, b + i, sizeof(float)) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  }
  return true;
}

// One comparison: inputs drawn from `random`, every kernel of the table in turn.
class SelfCheck {
 public:
  SelfCheck(const KernelTable& candidate, const KernelTable& reference, uint64_t seed, const CheckExtents& extents)
      : candidate_(candidate), reference_(reference), random_(seed), extents_(extents) {}

  // FNV-1a over all results of the reference, so that two machines can be compared.
  uint64_t digest() const { return digest_; }

  std::string run() {
    check_quantize_row();
    for (const NamedFormat& format : kFormats) check_format(format);
    check_rows();
    check_rope();
    check_store_kv();
    check_attention();
    check_sampling();
    return differing_;
  }

 private:
  // call(table, out) fills out [n] (which holds the same values for both sets before).
  template <class Call>
  void compare(const std::string& name, const Floats& before, const Call& call) {
    if (!differing_.empty()) return;
    Floats expected = before, actual = before;
    call(reference_, expected.data());
    call(candidate_, actual.data());
    add_to_digest(expected);
    if (!same(expected.data(), actual.data(), before.size())) differing_ = name;
  }
  static Floats zeros(int64_t n) { return Floats(static_cast<size_t>(n)); }

  void add_to_digest(const Floats& values) {
    for (const float v : values) {
      uint32_t bits = 0x7fc00000u;  // every NaN
      if (!std::isnan(v)) std::memcpy(&bits, &v, sizeof bits);
      digest_ = (digest_ ^ bits) * 0x100000001b3u;
    }
  }

  // ---- linear ---------------------------------------------------------------------------------------------------

  struct Quantized {  // activations [tokens, cols]
    AlignedBuffer q, scale, scaled_sum, sum16;
    int64_t cols;

    Quantized(int64_t tokens, int64_t cols)
        : q(tokens * cols), scale(tokens * cols / 8), scaled_sum(tokens * cols / 8), sum16(tokens * cols / 8), cols(cols) {}
    QuantizedActivations view(int64_t token = 0) {
      const int64_t groups = token * cols / kGroupSize;
      return {reinterpret_cast<int8_t*>(q.data()) + token * cols, reinterpret_cast<float*>(scale.data()) + groups,
              reinterpret_cast<float*>(scaled_sum.data()) + groups, reinterpret_cast<int16_t*>(sum16.data()) + 2 * groups,
              cols};
    }
  };
  static void quantize(const KernelTable& kernels, const float* x, const QuantizedActivations& to) {
    kernels.quantize_row(x, to.cols, to.q, to.scale, to.scaled_sum, to.sum16);
  }

  // A row of groups: ordinary, zeros, denormals, ties (k + 0.5), one infinity, anything.
  Floats activation_row(int64_t cols) {
    Floats x = random_.uniform(cols, 3.0f);
    const Floats any = random_.any_floats(cols);
    for (int64_t k = 0; k < cols; ++k) {
      const int64_t group = k / kGroupSize, i = k % kGroupSize;
      if (group % 8 == 1) x[k] = 0.0f;
      if (group % 8 == 2) x[k] *= 0x1p-130f;
      if (group % 8 == 3) x[k] = i == 0 ? 127.0f : static_cast<float>(i) - 15.5f;
      if (group % 8 == 4) x[k] *= 0x1p100f;
      if (group % 8 == 5 && i == 7) x[k] = __builtin_inff();
      if (group % 8 == 6) x[k] = any[k];
    }
    return x;
  }

  void check_quantize_row() {
    const int64_t cols = extents_.cols, groups = cols / kGroupSize;
    const Floats x = activation_row(cols);
    compare("quantize_row", zeros(cols + 4 * groups), [&](const KernelTable& kernels, float* out) {
      Quantized rows(1, cols);
      const QuantizedActivations a = rows.view();
      quantize(kernels, x.data(), a);
      for (int64_t k = 0; k < cols; ++k) *out++ = a.q[k];
      for (int64_t g = 0; g < groups; ++g) {
        *out++ = a.scale[g];
        *out++ = a.scaled_sum[g];
        *out++ = a.sum16[2 * g];
        *out++ = a.sum16[2 * g + 1];
      }
    });
  }

  // Random bytes are valid codes and scales of every format. In the first half of the row blocks no f16 is infinite or NaN.
  void fill_weights(uint8_t* data, int64_t bytes) {
    for (int64_t i = 0; i < bytes; ++i) {
      data[i] = static_cast<uint8_t>(random_.word() >> 56);
      if (i % 2 == 1 && i < bytes / 2) data[i] &= 0xbf;
    }
  }

  void check_format(const NamedFormat& f) {
    const int64_t rows = extents_.row_blocks * kRowBlock, cols = extents_.cols;
    int64_t tokens = 0;
    for (const int64_t n : extents_.tokens) tokens = n > tokens ? n : tokens;
    const int64_t bytes = extents_.row_blocks * row_block_bytes(f.format, cols);
    AlignedBuffer weights(bytes);
    fill_weights(weights.data(), bytes);
    const Matrix w{f.format, rows, cols, weights.data()};

    const int64_t row = static_cast<int64_t>(random_.word() % static_cast<uint64_t>(rows));
    compare(std::string("dequantize_row of ") + f.name, zeros(cols),
            [&](const KernelTable& kernels, float* out) { kernels.dequantize_row(w, row, out); });

    const Floats x = random_.uniform(tokens * cols, 2.0f);
    if (!holds_floats(f.format)) {
      Quantized quantized(tokens, cols);
      for (int64_t t = 0; t < tokens; ++t) quantize(reference_, x.data() + t * cols, quantized.view(t));
      check_linear(std::string("linear ") + f.name, w, {quantized.view(), x.data(), cols}, tokens);
    }
    const Activations floats{{nullptr, nullptr, nullptr, nullptr, cols}, x.data(), cols};
    check_linear(std::string("linear ") + f.name + ", f32 activations", w, floats, tokens < 5 ? tokens : 5);  // slow in scalar
  }

  // A token's row is the same alone and in any company, so one reference serves every number of tokens.
  void check_linear(const std::string& name, const Matrix& w, const Activations& x, int64_t tokens) {
    if (!differing_.empty()) return;
    const int64_t rows = extents_.row_blocks * kRowBlock;
    Floats expected = zeros(tokens * rows);
    reference_.linear(w, x, 0, extents_.row_blocks, 0, tokens, expected.data(), rows);
    add_to_digest(expected);
    for (const int64_t wanted : extents_.tokens) {
      const int64_t n = wanted < tokens ? wanted : tokens;
      Floats actual = zeros(n * rows);
      candidate_.linear(w, x, 0, extents_.row_blocks, tokens - n, tokens, actual.data(), rows);
      if (!same(expected.data() + (tokens - n) * rows, actual.data(), actual.size())) {
        differing_ = name + ", " + std::to_string(n) + " tokens";
        return;
      }
    }
  }

  // ---- float rows -----------------------------------------------------------------------------------------------

  void check_rows() {
    const int64_t n = extents_.floats;
    const Floats a = random_.any_floats(n), b = random_.any_floats(n);
    const Floats x = random_.uniform(n, 3.0f), gain = random_.uniform(n, 2.0f), residual = random_.uniform(n, 5.0f);
    compare("rms_norm", zeros(n), [&](const KernelTable& kernels, float* out) {
      kernels.rms_norm(x.data(), gain.data(), nullptr, n, 1e-5f, out);
    });
    compare("rms_norm with a residual", zeros(n), [&](const KernelTable& kernels, float* out) {
      kernels.rms_norm(x.data(), gain.data(), residual.data(), n, 1e-6f, out);
    });
    compare("layer_norm", zeros(n), [&](const KernelTable& kernels, float* out) {
      kernels.layer_norm(residual.data(), gain.data(), x.data(), n, 1e-5f, out);
    });
    compare("silu", zeros(n), [&](const KernelTable& kernels, float* out) {
      kernels.gated(a.data(), x.data(), n, ActivationFunction::SiLU, out);
    });
    compare("gelu_tanh", zeros(n), [&](const KernelTable& kernels, float* out) {
      kernels.gated(a.data(), x.data(), n, ActivationFunction::GeluTanh, out);
    });
    compare("activate", zeros(n), [&](const KernelTable& kernels, float* out) {
      kernels.activate(a.data(), nullptr, n, ActivationFunction::SiLU, out);
    });
    compare("activate with a bias", zeros(n), [&](const KernelTable& kernels, float* out) {
      kernels.activate(x.data(), b.data(), n, ActivationFunction::GeluTanh, out);
    });
    compare("add", zeros(n), [&](const KernelTable& kernels, float* out) { kernels.add(a.data(), b.data(), n, out); });
    compare("scale", a, [&](const KernelTable& kernels, float* out) { kernels.scale(out, n, 0.3f); });
    compare("softcap", a, [&](const KernelTable& kernels, float* out) { kernels.softcap(out, n, 30.0f); });
  }

  void check_rope() {
    constexpr int64_t kHeadDim = 96, kRotDim = 76;
    const Floats cos = random_.uniform(kRotDim / 2), sin = random_.uniform(kRotDim / 2), head = random_.uniform(kHeadDim);
    compare("rope of halves", head, [&](const KernelTable& kernels, float* out) {
      kernels.rope(out, cos.data(), sin.data(), kRotDim, RopeStyle::HalfSplit);
    });
    compare("rope of pairs", head, [&](const KernelTable& kernels, float* out) {
      kernels.rope(out, cos.data(), sin.data(), kRotDim, RopeStyle::Interleaved);
    });
  }

  // f16 or bf16; infinity is `infinity` in the dtype's bits, past it all are NaN.
  static void store_halves(const KernelTable& kernels, const Floats& x, KvDtype dtype, float* out) {
    const uint32_t infinity = dtype == KvDtype::F16 ? 0x7c00u : 0x7f80u;
    std::vector<uint16_t> half(x.size());
    kernels.store_kv(x.data(), static_cast<int64_t>(x.size()), dtype, half.data());
    for (const uint16_t h : half) *out++ = (h & 0x7fffu) > infinity ? __builtin_nanf("") : static_cast<float>(h);
  }

  void check_store_kv() {
    const Floats x = random_.any_floats(extents_.floats);
    compare("store_kv f32", zeros(extents_.floats), [&](const KernelTable& kernels, float* out) {
      kernels.store_kv(x.data(), extents_.floats, KvDtype::F32, out);
    });
    for (const KvDtype dtype : {KvDtype::F16, KvDtype::BF16}) {
      compare(dtype == KvDtype::F16 ? "store_kv f16" : "store_kv bf16", zeros(extents_.floats),
              [&](const KernelTable& kernels, float* out) { store_halves(kernels, x, dtype, out); });
    }
    const int64_t n = extents_.floats / 16 * 16;
    const Floats ordinary = activation_row(n);
    compare("quantize_kv", zeros(n + n / kGroupSize + 1), [&](const KernelTable& kernels, float* out) {
      std::vector<int8_t> codes(static_cast<size_t>(n));
      std::vector<uint16_t> scales(static_cast<size_t>(n / kGroupSize + 1));
      kernels.quantize_kv(ordinary.data(), n, kGroupSize, codes.data(), scales.data());
      for (const int8_t code : codes) *out++ = code;
      for (const uint16_t scale : scales) *out++ = (scale & 0x7fffu) > 0x7f80u ? __builtin_nanf("") : static_cast<float>(scale);
    });
  }

  // ---- attention ------------------------------------------------------------------------------------------------

  void check_attention() {
    check_attention("attention f32", KvDtype::F32, KvDtype::F32, 16, 0, 0.0f);
    check_attention("attention f16, window and softcap", KvDtype::F16, KvDtype::F16, 16, 70, 30.0f);
    check_attention("attention bf16 and int8", KvDtype::BF16, KvDtype::INT8, 24, 0, 0.0f);
    check_attention("attention int8", KvDtype::INT8, KvDtype::INT8, 32, 0, 0.0f);
    check_attention("attention int8 and bf16, window, small blocks", KvDtype::INT8, KvDtype::BF16, 8, 70, 0.0f);
  }

  void check_attention(const char* name, KvDtype k_dtype, KvDtype v_dtype, int32_t block_size, int32_t window, float softcap) {
    constexpr int32_t kHeads = 7, kTokens = 3, kHeadDim = 80;
    const int64_t context = extents_.first_position + kTokens;
    const int64_t blocks = (context + block_size - 1) / block_size;
    const int64_t k_bytes = int64_t{block_size} * kHeadDim * kv_item_bytes(k_dtype);
    const int64_t v_bytes = int64_t{block_size} * kHeadDim * kv_item_bytes(v_dtype);
    const int64_t k_scale_bytes = int64_t{block_size} * key_groups(kHeadDim) * 2;
    const int64_t stride = k_bytes + v_bytes + k_scale_bytes + int64_t{block_size} * value_groups(kHeadDim) * 2;

    std::vector<uint8_t> pool(static_cast<size_t>(blocks * stride));
    uint8_t* base = pool.data();
    const KvLayer kv{base, base + k_bytes, base + k_bytes + v_bytes, base + k_bytes + v_bytes + k_scale_bytes, stride, 0,
                     block_size, 1, kHeadDim, window, k_dtype, v_dtype};
    for (int64_t slot = 0; slot < blocks * block_size; ++slot) {
      append_kv(reference_, kv, KvPart::Key, 0, slot, random_.uniform(kHeadDim, 2.0f).data());
      append_kv(reference_, kv, KvPart::Value, 0, slot, random_.uniform(kHeadDim, 2.0f).data());
    }
    std::vector<int32_t> table, positions;
    for (int64_t b = 0; b < blocks; ++b) table.push_back(static_cast<int32_t>(blocks - 1 - b));
    for (int t = 0; t < kTokens; ++t) positions.push_back(static_cast<int32_t>(extents_.first_position) + t);
    const Floats q = random_.uniform(int64_t{kTokens} * kHeads * kHeadDim, 2.0f);
    const AttentionRows rows{0, kTokens, 0, 0, kHeads};
    const auto args_of = [&](float* out) {
      return AttentionArgs{q.data(), out, kv.k, kv.v, kv.k_scale, kv.v_scale, stride, table.data(), positions.data(), block_size,
                           kHeads, 1, kHeadDim, window, k_dtype, v_dtype, 0.11f, softcap};
    };
    const int64_t size = int64_t{kTokens} * kHeads * kHeadDim;
    compare(name, zeros(size), [&](const KernelTable& kernels, float* out) {
      Floats scratch = zeros(attention_scratch_floats(kHeadDim));
      kernels.attention(args_of(out), rows, scratch.data());
    });
    compare(std::string(name) + ", span by span", zeros(size), [&](const KernelTable& kernels, float* out) {
      Floats scratch = zeros(attention_scratch_floats(kHeadDim));
      const int64_t spans = positions.back() / kSpan + 1;
      Floats partials = zeros(spans * rows.count() * partial_floats(kHeadDim));
      for (int64_t s = spans - 1; s >= 0; --s) {
        kernels.attention_spans(args_of(out), rows, 0, s, s + 1, partials.data(), scratch.data());
      }
      kernels.merge_spans(args_of(out), rows, 0, partials.data());
    });
  }

  // ---- sampling -------------------------------------------------------------------------------------------------

  void check_sampling() {
    const int64_t n = extents_.floats;
    const Floats x = random_.any_floats(n);
    Floats positive = x, logits = random_.uniform(n, 20.0f);
    for (float& v : positive) v = std::fabs(v);
    logits[1] = -__builtin_inff();
    const uint64_t seed = random_.word();
    compare("exp", zeros(n), [&](const KernelTable& kernels, float* out) { kernels.exp(x.data(), n, out); });
    compare("log", zeros(n), [&](const KernelTable& kernels, float* out) { kernels.log(positive.data(), n, out); });
    compare("gumbel", zeros(n), [&](const KernelTable& kernels, float* out) { kernels.gumbel(seed, 5, 1, 2, 7, n, out); });
    compare("log_sum_exp", zeros(2), [&](const KernelTable& kernels, float* out) {
      kernels.log_sum_exp(logits.data(), n, out, out + 1);
    });
    check_draw(logits, seed);
  }

  void check_draw(const Floats& logits, uint64_t seed) {
    const int64_t n = extents_.floats, blocks = (n + kLogitsBlock - 1) / kLogitsBlock;
    constexpr float kTemperature = 0.7f;
    Floats holed = logits, maxima = zeros(blocks), scaled;
    holed[static_cast<size_t>(n / 2)] = __builtin_nanf("");
    compare("block_max", zeros(blocks), [&](const KernelTable& kernels, float* out) { kernels.block_max(holed.data(), n, out); });
    reference_.block_max(logits.data(), n, maxima.data());
    float top = maxima[0];
    for (const float m : maxima) top = m > top ? m : top;
    for (const float x : logits) scaled.push_back((x - top) / kTemperature);
    std::vector<uint32_t> ids(static_cast<size_t>(n) + 1);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint32_t>(random_.word() >> 45);

    compare("fixed_point_probs", zeros(2 * n), [&](const KernelTable& kernels, float* out) {
      std::vector<uint64_t> probs(static_cast<size_t>(n));
      kernels.fixed_point_probs(scaled.data(), n, probs.data());
      write_halves(probs, out);
    });
    compare("variance", zeros(1), [&](const KernelTable& kernels, float* out) { *out = kernels.variance(logits.data(), n, top); });
    compare("total_mass", zeros(2), [&](const KernelTable& kernels, float* out) {
      write_halves({kernels.total_mass(logits.data(), n, maxima.data(), top, kTemperature)}, out);
    });
    compare("mass_histogram", zeros(2 * kMassBins), [&](const KernelTable& kernels, float* out) {
      std::vector<uint64_t> bins(kMassBins);
      kernels.mass_histogram(logits.data(), n, maxima.data(), top, kTemperature, bins.data());
      write_halves(bins, out);
    });
    compare("select_scaled", zeros(2 * n + 1), [&](const KernelTable& kernels, float* out) {
      std::vector<uint32_t> selected(static_cast<size_t>(n) + 1);
      Floats values = zeros(n + 1);
      const int64_t count = kernels.select_scaled(logits.data(), n, maxima.data(), top, kTemperature, -13.0f,
                                                  selected.data(), values.data());
      *out++ = static_cast<float>(count);
      for (int64_t i = 0; i < count; ++i) {
        *out++ = static_cast<float>(selected[static_cast<size_t>(i)]);
        *out++ = values[static_cast<size_t>(i)];
      }
    });
    compare("gumbel_of_ids", zeros(n), [&](const KernelTable& kernels, float* out) {
      kernels.gumbel_of_ids(seed, 5, 1, 2, ids.data(), n, out);
    });
    compare("draw_row", zeros(40), [&](const KernelTable& kernels, float* out) {
      for (uint32_t i = 0; i < 40; ++i) {
        const float temperature = i < 20 ? kTemperature : 50.0f;
        out[i] = static_cast<float>(kernels.draw_row(logits.data(), n, maxima.data(), top, temperature, seed, i, 0, 0));
      }
    });
  }
  static void write_halves(const std::vector<uint64_t>& values, float* out) {  // of 20 bits and the rest, exact below 2^44
    for (const uint64_t v : values) {
      *out++ = static_cast<float>(v & 0xfffffu);
      *out++ = static_cast<float>(v >> 20);
    }
  }

  const KernelTable& candidate_;
  const KernelTable& reference_;
  Random random_;
  const CheckExtents extents_;
  std::string differing_;
  uint64_t digest_ = 0xcbf29ce484222325u;
};

// ---- broken kernels, for tests ----------------------------------------------------------------------------------

void flip_last_bit(float* x) {
  uint32_t bits;
  std::memcpy(&bits, x, sizeof bits);
  bits ^= 1u;
  std::memcpy(x, &bits, sizeof bits);
}

void broken_linear(const Matrix& w, const Activations& x, int64_t row_block_begin, int64_t row_block_end,
                   int64_t token_begin, int64_t token_end, float* out, int64_t out_stride) {
  scalar_kernels().linear(w, x, row_block_begin, row_block_end, token_begin, token_end, out, out_stride);
  if (w.format == WeightFormat::Q6_K && token_end - token_begin > 1) flip_last_bit(out + out_stride);
}

void broken_rms_norm(const float* x, const float* gain, const float* residual, int64_t n, float eps, float* out) {
  scalar_kernels().rms_norm(x, gain, residual, n, eps, out);
  flip_last_bit(out + n - 1);
}

void broken_exp(const float* x, int64_t n, float* out) {
  scalar_kernels().exp(x, n, out);
  flip_last_bit(out);
}

}  // namespace

std::string differing_kernel(const KernelTable& candidate, const KernelTable& reference, uint64_t seed,
                             const CheckExtents& extents) {
  const FloatEnvironment environment;
  return SelfCheck(candidate, reference, seed, extents).run();
}

uint64_t digest(const KernelTable& kernels, uint64_t seed, const CheckExtents& extents) {
  const FloatEnvironment environment;
  SelfCheck check(kernels, kernels, seed, extents);
  check.run();
  return check.digest();
}

KernelTable broken_copy(const KernelTable& table, const std::string& name) {
  KernelTable broken = table;
  if (name == "linear") {
    broken.linear = broken_linear;
  } else if (name == "rms_norm") {
    broken.rms_norm = broken_rms_norm;
  } else if (name == "exp") {
    broken.exp = broken_exp;
  } else {
    throw std::invalid_argument("no broken kernel '" + name + "'; there are linear, rms_norm and exp");
  }
  return broken;
}

}  // namespace hotloop
