// The sampler's arithmetic: counter-based noise and the log-softmax denominator.

namespace hotloop::HOTLOOP_TARGET {
namespace {

// Philox4x32-10 on 16 counters at once; words in, words out.
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
HOTLOOP_INLINE void philox4x32_10(U32x16 (&c)[4], uint64_t seed) {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    U32x16 high0, low0, high1, low1;
    multiply_high_low(0xD2511F53u, c[0], high0, low0);
    multiply_high_low(0xCD9E8D57u, c[2], high1, low1);
    c[0] = high1 ^ c[1] ^ broadcast_u32(key0);
    c[1] = low1;
    c[2] = high0 ^ c[3] ^ broadcast_u32(key1);
    c[3] = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

// (w + 0.5) 2^-32, correctly rounded: both halves of w are exact in f32, so that only the fma rounds.
HOTLOOP_INLINE F32x16 uniform(const U32x16& w) {
  const F32x16 high = to_float(shift_right<16>(w));
  const F32x16 low = to_float(w & broadcast_u32(0xffffu)) + broadcast(0.5f);
  return fma(high, broadcast(65536.0f), low) * broadcast(0x1p-32f);
}

// -log(-log1p(-v)), v = (w + 0.5) 2^-32, in [-3.14, 22.88]. Small v enters the logarithm's polynomial itself, where 1 - v
// would lose it; large v enters as 1 - v = (~w + 0.5) 2^-32, which is accurate down to 2^-33. Error <= 2 ulp, or 2^-23
// absolute where the result is near 0.
HOTLOOP_INLINE F32x16 gumbel_of_word(const U32x16& w) {
  const F32x16 v = uniform(w);
  F32x16 f, e;
  split_normal(uniform(w ^ broadcast_u32(0xffffffffu)), f, e);
  const Mask16 small = less(v, broadcast(0.25f));
  const F32x16 log1p = log_from_parts(select(small, negate(v), f), select(small, broadcast(0.0f), e));
  split_normal(negate(log1p), f, e);
  return negate(log_from_parts(f, e));
}

void gumbel(uint64_t seed, uint32_t position, uint32_t choice, uint32_t stream, uint32_t first_id, int64_t n, float* out) {
  float noise[4][16];
  int64_t written = 0;
  uint32_t skip = first_id & 3u;  // ids of the first counter that lie before first_id
  for (uint32_t counter = first_id >> 2; written < n; counter += 16) {
    U32x16 words[4] = {broadcast_u32(counter) + lane_index(), broadcast_u32(position), broadcast_u32(choice),
                       broadcast_u32(stream)};
    philox4x32_10(words, seed);
    for (int word = 0; word < 4; ++word) store(noise[word], gumbel_of_word(words[word]));
    for (uint32_t i = skip; i < 64 && written < n; ++i) out[written++] = noise[i & 3u][i >> 2];
    skip = 0;
  }
}

// max(x), and log(sum exp(x - max)), so that logprob = (x - max) - log_sum: one 16-lane sum, lane i mod 16, in which every 1,024 elements are summed apart
// and added in ascending order (a vocabulary is long; this keeps the error of the sum near 100 half-ulps). NaN if x holds
// a NaN or nothing finite.
void log_sum_exp(const float* x, int64_t n, float* max_out, float* log_sum_out) {
  F32x16 largest = broadcast(-kInfinity);
  map_rows(n, [&](int64_t i, int64_t m) { largest = max(largest, load_up_to(x + i, m, -kInfinity)); });
  const float top = horizontal_max(largest);
  F32x16 total = broadcast(0.0f);
  for (int64_t begin = 0; begin < n; begin += 1024) {
    F32x16 sum = broadcast(0.0f);
    map_rows(n - begin < 1024 ? n - begin : 1024, [&](int64_t i, int64_t m) {
      sum = sum + exp(load_up_to(x + begin + i, m, -kInfinity) - broadcast(top));
    });
    total = total + sum;
  }
  float result[16];
  store(result, log(broadcast(horizontal_sum(total))));
  *max_out = top;
  *log_sum_out = result[0];
}

}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
