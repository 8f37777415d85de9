// cos and sin of rotary position embedding, computed by our own double-precision arithmetic: the same bits everywhere.
#pragma once
#include <cstdint>

namespace hotloop {

// cos, sin: f32 [n, half_dim] of the angles double(positions[i]) * inv_freq[k] (radians; one rounding), each rounded to f32
// and then multiplied by float(attention_factor), rounded again. Accurate to half an f32 ulp of 1 for angles below 2^24.
void rope_cos_sin(const int32_t* positions, int64_t n, const double* inv_freq, int64_t half_dim, double attention_factor,
                  float* cos, float* sin);

}  // namespace hotloop
