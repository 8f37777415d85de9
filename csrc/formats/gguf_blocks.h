// Quantized blocks as GGUF files store them, one row after the other. Bytes only: a block in a file has no alignment.
#pragma once
#include <cstdint>

namespace hotloop::gguf {

// 4-bit types of 32: byte i = q[i] | q[i + 16] << 4. f16 numbers are two bytes, low byte first.
struct Q4_0 { uint8_t d[2]; uint8_t qs[16]; };
struct Q4_1 { uint8_t d[2]; uint8_t m[2]; uint8_t qs[16]; };
struct Q5_0 { uint8_t d[2]; uint8_t qh[4]; uint8_t qs[16]; };  // qh: u32, bit k = fifth bit of q[k]
struct Q5_1 { uint8_t d[2]; uint8_t m[2]; uint8_t qh[4]; uint8_t qs[16]; };
struct Q8_0 { uint8_t d[2]; uint8_t qs[32]; };

// 256 values in 8 groups of 32. qs: 4 chunks of 32 bytes; chunk c, byte i = q[64c + i] | q[64c + 32 + i] << 4.
// scales: 6-bit scale s and min m of group g: g < 4: s = b[g] & 63, m = b[g + 4] & 63;
// g >= 4: s = (b[g + 4] & 15) | b[g - 4] >> 6 << 4, m = b[g + 4] >> 4 | b[g] >> 6 << 4.
struct Q4_K { uint8_t d[2]; uint8_t dmin[2]; uint8_t scales[12]; uint8_t qs[128]; };

// qs and scales as in Q4_K; value k = 32g + l has its fifth bit in bit g of qh[l].
struct Q5_K { uint8_t d[2]; uint8_t dmin[2]; uint8_t scales[12]; uint8_t qh[32]; uint8_t qs[128]; };

// 256 values in two halves h of 128 = 4 groups t; value k = 128h + 32t + l is bits 2t, 2t + 1 of qs[32h + l].
// scales[k / 16]: scale in the low nibble, min in the high one.
struct Q2_K { uint8_t scales[16]; uint8_t qs[64]; uint8_t d[2]; uint8_t dmin[2]; };

// qs as in Q2_K; value k = 32g + l has its third bit in bit g of hmask[l]. 6-bit scale i = k / 16: its low four bits are
// nibble i / 8 of scales[i % 8], its high two are bits 2 (i / 4), 2 (i / 4) + 1 of scales[8 + i % 4].
struct Q3_K { uint8_t hmask[32]; uint8_t qs[64]; uint8_t scales[12]; uint8_t d[2]; };

// 256 values in two halves h of 128 = 4 groups t; value k = 128h + 32t + l has its low four bits in
// ql[64h + 32 (t & 1) + l], nibble t >> 1, and its high two in bits 2t, 2t + 1 of qh[32h + l]. scales[k / 16].
struct Q6_K { uint8_t ql[128]; uint8_t qh[64]; int8_t scales[16]; uint8_t d[2]; };

// 4-bit indices into a table of signed values. IQ4_XS: 256 values in 8 groups of 32, group g as in Q4_0 in qs[16g] and up;
// its 6-bit scale: low four bits in nibble g % 2 of scales_l[g / 2], high two in bits 2g, 2g + 1 of the u16 scales_h.
struct IQ4_NL { uint8_t d[2]; uint8_t qs[16]; };
struct IQ4_XS { uint8_t d[2]; uint8_t scales_h[2]; uint8_t scales_l[4]; uint8_t qs[128]; };
struct MXFP4 { uint8_t e; uint8_t qs[16]; };  // e: exponent of a power of two

static_assert(sizeof(Q4_0) == 18 && sizeof(Q4_1) == 20 && sizeof(Q5_0) == 22 && sizeof(Q5_1) == 24 && sizeof(Q8_0) == 34);
static_assert(sizeof(Q2_K) == 84 && sizeof(Q3_K) == 110 && sizeof(Q4_K) == 144 && sizeof(Q5_K) == 176);
static_assert(sizeof(Q6_K) == 210 && sizeof(IQ4_NL) == 18 && sizeof(IQ4_XS) == 136 && sizeof(MXFP4) == 17);

}  // namespace hotloop::gguf
