// From float weights to the quantized blocks of GGUF files. quant/codecs.py and quant/k_quants.py are the definition: the
// same bits on every machine, however the work is divided.
#pragma once
#include <cstdint>

#include "kernels/kernel_table.h"

namespace hotloop {

enum class QuantizeError : int32_t { None, NotFinite, TooLarge };  // TooLarge: no scale in f16 holds the weights

// Whether quantize_superblocks knows the format: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, F32, F16, BF16.
bool can_quantize(WeightFormat format);
// Of a GGUF file: elements of a superblock and its bytes. Only for formats that can_quantize.
int64_t superblock_elements(WeightFormat format);
int64_t superblock_bytes(WeightFormat format);

// x: `count` whole superblocks of float32, end to end. dst: as they lie in a file; worthless after an error. Infinite
// elements and NaN are errors in every format.
QuantizeError quantize_superblocks(WeightFormat format, const float* x, int64_t count, uint8_t* dst);

// f16 and bf16 bits, and what they stand for; to nearest even.
uint16_t to_f16(float x);
float from_f16(uint16_t bits);

// One superblock of 256. False if the weights are too large.
bool quantize_q4_k(const float* x, uint8_t* dst);
bool quantize_q5_k(const float* x, uint8_t* dst);
bool quantize_q6_k(const float* x, uint8_t* dst);

}  // namespace hotloop
