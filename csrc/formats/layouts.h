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

struct Q5_0Group {            // w = d (q - 16), q = nibble + 16 high
  uint16_t d[8];
  uint8_t high[32];           // bit j of byte 4r + i = fifth bit of k = 4j + i of row r
  uint8_t nibbles[128];
};
static_assert(sizeof(Q5_0Group) == 176);

struct Q8_0Group {            // w = d q
  uint16_t d[8];
  int8_t q[256];              // register j at 32j; -128..127
};
static_assert(sizeof(Q8_0Group) == 272);

struct Q4KSuperblock {        // 256 k = 8 groups g; w = (d scale) q - (dmin min)
  uint16_t d[8];
  uint16_t dmin[8];
  uint8_t scales[8][12];      // [g]: byte r = scale_r | (min_r & 3) << 6, nibble r of bytes 8..11 = min_r >> 2; 0..63
  uint8_t nibbles[8][128];    // group g, q 0..15
};
static_assert(sizeof(Q4KSuperblock) == 1152);

struct Q6KGroup {
  int8_t scales[2][8];        // [half][row]: half 0 scales k 0..15 (registers 0..3), half 1 k 16..31
  uint8_t nibbles[128];       // low four bits
  uint8_t high[2][32];        // bits 2b, 2b + 1 of byte 4r + i of high[h] = upper two bits of register 4h + b
};
struct Q6KSuperblock {        // 256 k = 8 groups; w = (d scale) (q - 32), q = nibble + 16 high, 0..63
  uint16_t d[8];
  Q6KGroup groups[8];
};
static_assert(sizeof(Q6KSuperblock) == 1680);

// F32, F16, BF16: w[k][8 rows], no groups.

}  // namespace hotloop::layout
