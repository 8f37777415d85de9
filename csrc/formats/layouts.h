// The repacked weight layouts (docs/weight-layouts.md draws them). Data only: this header is included by translation
// units that are compiled for different instruction sets, so it must not define a function.
//
// A matrix is a sequence of row blocks: 8 rows, interleaved. Along K, a row block is a sequence of groups of 32 k. A
// group has 8 "registers" of 32 bytes: register j holds k = 4j .. 4j+3 of rows 0 .. 7, row r in bytes 4r .. 4r+3. One
// 256-bit multiply-add of bytes thus serves 8 rows, one 32-bit lane per row, with no sum across lanes.
// Every layout has exactly the bytes of the GGUF file (rows padded to a multiple of 8) and loses nothing.
#pragma once
#include <cstdint>

namespace hotloop::layout {

// Byte 32j + 4r + i of `nibbles`, j = 0..3: low nibble = register j, high nibble = register j + 4 (same row r, byte i).
// So its low nibble belongs to k = 4j + i and its high nibble to k = 4j + i + 16.

struct Q4_0Group {            // w = d (q - 8)
  uint16_t d[8];              // f16 scale of each row
  uint8_t nibbles[128];       // q, 0..15
};
static_assert(sizeof(Q4_0Group) == 144);

struct Q4_1Group {            // w = d q + m
  uint16_t d[8];
  uint16_t m[8];              // f16 minimum of each row
  uint8_t nibbles[128];       // q, 0..15
};
static_assert(sizeof(Q4_1Group) == 160);

// 5-bit codes in 5 registers: register j < 5 in the low five bits of codes[j]; the rest in the high three:
// register 5: low three bits above register 0, high two in bits 5, 6 of codes[3]; register 6: low three above register 1,
// then bit 5 of codes[4] and bit 7 of codes[3]; register 7: low three above register 2, high two in bits 6, 7 of codes[4].
struct Q5_0Group {            // w = d (q - 16)
  uint16_t d[8];
  uint8_t codes[5][32];       // q, 0..31
};
static_assert(sizeof(Q5_0Group) == 176);

struct Q5_1Group {            // w = d q + m
  uint16_t d[8];
  uint16_t m[8];
  uint8_t codes[5][32];       // q, 0..31
};
static_assert(sizeof(Q5_1Group) == 192);

struct Q8_0Group {            // w = d q
  uint16_t d[8];
  int8_t q[256];              // register j at 32j; -128..127
};
static_assert(sizeof(Q8_0Group) == 272);

struct Q2KSuperblock {        // 256 k = 8 groups; w = (d scale) q - (dmin min), scale and min per 16 k
  uint16_t d[8];
  uint16_t dmin[8];
  uint8_t scales[8][8][2];    // [group][row][half]: scale | min << 4, 0..15; half 0 is for k 0..15 of the group
  uint8_t codes[8][2][32];    // [group]: bits 2b, 2b + 1 of byte 4r + i of codes[h] = q of register 4h + b, 0..3
};
static_assert(sizeof(Q2KSuperblock) == 672);

// 3-bit codes in 3 registers: registers 0, 1, 2 in bits 0..2 and registers 3, 4, 5 in bits 3..5 of codes[0], [1], [2];
// low two bits of registers 6 and 7 in bits 6, 7 of codes[0] and [1], their third in bits 6 and 7 of codes[2].
struct Q3KSuperblock {        // 256 k = 8 groups; w = (d (scale - 32)) (q - 4), scale per 16 k
  uint16_t d[8];
  uint8_t scales[8][12];      // [group]: bits 6i .. 6i + 5, i = 2 row + half: scale, 0..63
  uint8_t codes[8][3][32];    // [group]: q, 0..7
};
static_assert(sizeof(Q3KSuperblock) == 880);

struct Q4KSuperblock {        // 256 k = 8 groups g; w = (d scale) q - (dmin min)
  uint16_t d[8];
  uint16_t dmin[8];
  uint8_t scales[8][12];      // [g]: byte r = scale_r | (min_r & 3) << 6, nibble r of bytes 8..11 = min_r >> 2; 0..63
  uint8_t nibbles[8][128];    // group g, q 0..15
};
static_assert(sizeof(Q4KSuperblock) == 1152);

struct Q5KSuperblock {        // 256 k = 8 groups; w = (d scale) q - (dmin min)
  uint16_t d[8];
  uint16_t dmin[8];
  uint8_t scales[8][12];      // as in Q4_K
  uint8_t codes[8][5][32];    // [group]: q, 0..31
};
static_assert(sizeof(Q5KSuperblock) == 1408);

// 6-bit codes in 6 registers: register j < 6 in the low six bits of codes[j]; register 6 in bits 6, 7 of codes[0], [1], [2],
// lowest bits first, register 7 in those of codes[3], [4], [5].
struct Q6KGroup {
  int8_t scales[8][2];        // [row][half]: half 0 scales k 0..15, half 1 k 16..31
  uint8_t codes[6][32];       // q, 0..63
};
struct Q6KSuperblock {        // 256 k = 8 groups; w = (d scale) (q - 32)
  uint16_t d[8];
  Q6KGroup groups[8];
};
static_assert(sizeof(Q6KSuperblock) == 1680);

// IQ4_NL is laid out as Q4_0Group: w = d table[q].

struct IQ4XSSuperblock {      // 256 k = 8 groups; w = (d (scale - 32)) table[q]
  uint16_t d[8];
  uint8_t scales[8][6];       // [group]: bits 6r .. 6r + 5: scale of row r, 0..63
  uint8_t nibbles[8][128];
};
static_assert(sizeof(IQ4XSSuperblock) == 1088);

struct MXFP4Group {           // w = 2^(e - 128) table[q]
  uint8_t e[8];
  uint8_t nibbles[128];
};
static_assert(sizeof(MXFP4Group) == 136);

// F32, F16, BF16: w[k][8 rows], no groups.

}  // namespace hotloop::layout
