// Passes over one row of logits that drawing a token needs (runtime/sampler.cpp puts them together). A logit counts as
// scaled = (x - top) / temperature, rounded after each step: 0 for the top one, never above, -inf at the worst. Every
// comparison of the filters is between scaled logits, and x -> scaled keeps the order, so a block of 64 logits whose
// largest one is too small is left out unread.

namespace hotloop::HOTLOOP_TARGET {
namespace {

HOTLOOP_INLINE F32x16 scale_logits(const F32x16& x, const F32x16& top, const F32x16& temperature) {
  return (x - top) / temperature;
}

void block_max(const float* x, int64_t n, float* out) {
  const F32x16 infinity = broadcast(kInfinity);
  for (int64_t begin = 0; begin < n; begin += kLogitsBlock) {
    F32x16 largest = broadcast(-kInfinity);
    map_rows(n - begin < kLogitsBlock ? n - begin : kLogitsBlock, [&](int64_t i, int64_t m) {
      largest = max(largest, min(load_up_to(x + begin + i, m, -kInfinity), infinity));  // a NaN comes out as infinity
    });
    *out++ = horizontal_max(largest);
  }
}

// floor(2^40 e^s) for s <= 0 in two halves of 20 bits; every step is exact but exp, which is monotone there.
HOTLOOP_INLINE void fixed_point(const F32x16& s, U32x16& high, U32x16& low) {
  const F32x16 scaled = exp(s) * broadcast(0x1p20f);
  high = to_int(scaled);
  low = to_int((scaled - to_float(high)) * broadcast(0x1p20f));
}

void fixed_point_probs(const float* scaled, int64_t n, uint64_t* out) {
  map_rows(n, [&](int64_t i, int64_t m) {
    uint32_t high[16], low[16];
    U32x16 h, l;
    fixed_point(load_up_to(scaled + i, m, -kInfinity), h, l);
    store(high, h);
    store(low, l);
    for (int64_t j = 0; j < m; ++j) out[i + j] = uint64_t{high[j]} << 20 | low[j];
  });
}

// The sum of f(x - top) over the finite logits, 1,024 at a time.
template <class F>
HOTLOOP_INLINE float sum_of_finite(const float* x, int64_t n, float top, const F& f) {
  const F32x16 tops = broadcast(top), zero = broadcast(0.0f);
  F32x16 total = zero;
  for (int64_t begin = 0; begin < n; begin += 1024) {
    F32x16 sum = zero;
    map_rows(n - begin < 1024 ? n - begin : 1024, [&](int64_t i, int64_t m) {
      const F32x16 v = load_up_to(x + begin + i, m, -kInfinity);
      sum = sum + select(less(broadcast(-kInfinity), v), f(max(v - tops, broadcast(-1e15f))), zero);
    });
    total = total + sum;
  }
  return horizontal_sum(total);
}

float variance(const float* x, int64_t n, float top) {
  const float count = sum_of_finite(x, n, top, [](const F32x16&) { return broadcast(1.0f); });
  const F32x16 mean = broadcast(sum_of_finite(x, n, top, [](const F32x16& d) { return d; }) / count);
  return sum_of_finite(x, n, top, [&](const F32x16& d) { return (d - mean) * (d - mean); }) / count;
}

// A probability below e^-27.73 = 2^-40 counts as 0: blocks of such logits are left out.
HOTLOOP_INLINE bool has_mass(float block_max, float top, float temperature) {
  return (block_max - top) / temperature > -28.0f;
}

uint64_t total_mass(const float* x, int64_t n, const float* block_max, float top, float temperature) {
  constexpr int64_t kChunk = 1024 * 16;  // 2^20 in each of 1024 terms of a lane: its sum stays below 2^32
  const F32x16 tops = broadcast(top), temperatures = broadcast(temperature);
  uint64_t total = 0;
  for (int64_t chunk = 0; chunk < n; chunk += kChunk) {
    U32x16 high = broadcast_u32(0), low = broadcast_u32(0);
    for (int64_t begin = chunk; begin < n && begin < chunk + kChunk; begin += kLogitsBlock) {
      if (!has_mass(block_max[begin / kLogitsBlock], top, temperature)) continue;
      map_rows(n - begin < kLogitsBlock ? n - begin : kLogitsBlock, [&](int64_t i, int64_t m) {
        U32x16 h, l;
        fixed_point(scale_logits(load_up_to(x + begin + i, m, -kInfinity), tops, temperatures), h, l);
        high = high + h;
        low = low + l;
      });
    }
    uint32_t highs[16], lows[16];
    store(highs, high);
    store(lows, low);
    for (int j = 0; j < 16; ++j) total += (uint64_t{highs[j]} << 20) + lows[j];
  }
  return total;
}

// Logits without mass, and those between, meet in the last bin.
void mass_histogram(const float* x, int64_t n, const float* block_max, float top, float temperature, uint64_t* bins) {
  // Four histograms, added at the end: neighbours often meet in one bin, and an addition to memory has a long latency.
  uint64_t parts[4][kMassBins];
  for (auto& part : parts) {
    for (uint64_t& bin : part) bin = 0;
  }
  const F32x16 tops = broadcast(top), temperatures = broadcast(temperature);
  for (int64_t begin = 0; begin < n; begin += kLogitsBlock) {
    if (!has_mass(block_max[begin / kLogitsBlock], top, temperature)) continue;
    map_rows(n - begin < kLogitsBlock ? n - begin : kLogitsBlock, [&](int64_t i, int64_t m) {
      uint32_t high[16], low[16], bin[16];
      const F32x16 s = scale_logits(load_up_to(x + begin + i, m, -kInfinity), tops, temperatures);
      U32x16 h, l;
      fixed_point(s, h, l);
      store(high, h);
      store(low, l);
      store(bin, to_int(min(s * broadcast(-kMassBinsPerNat), broadcast(kMassBins - 1.0f))));
      for (int j = 0; j < 16; ++j) parts[j & 3][bin[j]] += uint64_t{high[j]} << 20 | low[j];
    });
  }
  for (int b = 0; b < kMassBins; ++b) bins[b] = (parts[0][b] + parts[1][b]) + (parts[2][b] + parts[3][b]);
}

int64_t select_scaled(const float* x, int64_t n, const float* block_max, float top, float temperature, float least,
                      uint32_t* ids, float* scaled) {
  const F32x16 tops = broadcast(top), temperatures = broadcast(temperature);
  int64_t count = 0;
  for (int64_t begin = 0; begin < n; begin += kLogitsBlock) {
    if ((block_max[begin / kLogitsBlock] - top) / temperature < least) continue;
    map_rows(n - begin < kLogitsBlock ? n - begin : kLogitsBlock, [&](int64_t i, int64_t m) {
      float values[16];
      store(values, scale_logits(load_up_to(x + begin + i, m, -kInfinity), tops, temperatures));
      for (int64_t j = 0; j < m; ++j) {  // what is not selected is written over
        ids[count] = static_cast<uint32_t>(begin + i + j);
        scaled[count] = values[j];
        count += values[j] >= least;
      }
    });
  }
  return count;
}

// ---- the draw -------------------------------------------------------------------------------------------------------

void gumbel_of_ids(uint64_t seed, uint32_t position, uint32_t choice, uint32_t stream, const uint32_t* ids, int64_t n,
                   float* out) {
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t m = n - i < 16 ? n - i : 16;
    uint32_t counter[16], word[16], words[4][16];
    for (int64_t j = 0; j < 16; ++j) counter[j] = j < m ? ids[i + j] >> 2 : 0;
    U32x16 c[4] = {load(counter), broadcast_u32(position), broadcast_u32(choice), broadcast_u32(stream)};
    philox4x32_10(c, seed);
    for (int w = 0; w < 4; ++w) store(words[w], c[w]);
    for (int64_t j = 0; j < 16; ++j) word[j] = words[j < m ? ids[i + j] & 3u : 0][j];
    store_up_to(out + i, m, gumbel_of_word(load(word)));
  }
}

struct Best {
  float value;
  uint32_t id;

  void offer(float v, uint32_t i) {
    if (v > value || (v == value && i < id)) *this = {v, i};
  }
};

// One block, whose noise comes from 16 counters: word w of lane l belongs to id 4 l + w of the block.
HOTLOOP_INLINE void draw_block(const float* x, int64_t n, uint32_t first_id, float top, float temperature,
                               const U32x16 (&words)[4], Best& best) {
  float noise[4][16];
  for (int w = 0; w < 4; ++w) store(noise[w], gumbel_of_word(words[w]));
  for (int64_t i = 0; i < n; ++i) {
    best.offer((x[i] - top) / temperature + noise[i & 3][i >> 2], first_id + static_cast<uint32_t>(i));
  }
}

// A block of largest scaled logit s can hold the winner only if s + g >= best for one of its noises g, that is if
// v <= 1 - exp(-exp(s - best)) <= exp(s - best) for the smallest v. All that is rounded on the way, noise and sums
// included, stays below the 2^-10 that are granted; the words are compared by their upper 24 bits.
uint32_t draw_row(const float* x, int64_t n, const float* block_max, float top, float temperature, uint64_t seed,
                  uint32_t position, uint32_t choice, uint32_t stream) {
  constexpr float kLargestNoise = 23.0f;
  const int64_t blocks = (n + kLogitsBlock - 1) / kLogitsBlock;
  Best best = {-kInfinity, 0};
  const auto words_of = [&](int64_t block, U32x16 (&words)[4]) {
    words[0] = broadcast_u32(static_cast<uint32_t>(block * (kLogitsBlock / 4))) + lane_index();
    words[1] = broadcast_u32(position);
    words[2] = broadcast_u32(choice);
    words[3] = broadcast_u32(stream);
    philox4x32_10(words, seed);
  };
  const auto visit = [&](int64_t block, const U32x16 (&words)[4]) {
    const int64_t begin = block * kLogitsBlock;
    draw_block(x + begin, n - begin < kLogitsBlock ? n - begin : kLogitsBlock, static_cast<uint32_t>(begin), top, temperature,
               words, best);
  };
  int64_t first = 0;
  while (block_max[first] != top) ++first;
  U32x16 words[4];
  words_of(first, words);
  visit(first, words);
  for (int64_t begin = 0; begin < blocks; begin += 16) {
    const int64_t m = blocks - begin < 16 ? blocks - begin : 16;
    const F32x16 s = scale_logits(load_up_to(block_max + begin, m, -kInfinity), broadcast(top), broadcast(temperature));
    const F32x16 lead = s - broadcast(best.value - 0x1p-10f);  // of the best when these 16 blocks began
    float leads[16], largest_word[16];
    store(leads, lead);
    // The upper 24 bits of a word that can win are at most 2^24 exp(lead); exp's rounding adds one.
    store(largest_word, fma(exp(min(lead, broadcast(0.0f))), broadcast(0x1p24f), broadcast(2.0f)));
    for (int64_t b = 0; b < m; ++b) {
      if (leads[b] < -kLargestNoise || begin + b == first) continue;
      words_of(begin + b, words);
      F32x16 smallest = to_float(shift_right<8>(words[0]));
      for (int w = 1; w < 4; ++w) smallest = min(smallest, to_float(shift_right<8>(words[w])));
      if (-horizontal_max(negate(smallest)) <= largest_word[b]) visit(begin + b, words);
    }
  }
  return best.id;
}

}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
