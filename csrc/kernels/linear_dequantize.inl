// What the linear kernels of every instruction set share: the range a call covers, f16 and bf16 bits to f32, the scale
// of an activation group, and each format's code and scale at (row, k): the definition of the layouts in code, used
// by the generic kernels, for embedding rows and for the f32-activation test mode.
namespace hotloop::HOTLOOP_TARGET {
namespace {
namespace lin {

struct Range {
  int64_t row_block_begin, row_block_end, token_begin, token_end;
  float* out;
  int64_t out_stride;

  float* at(int64_t row_block, int64_t token) const {
    return out + (token - token_begin) * out_stride + (row_block - row_block_begin) * kRowBlock;
  }
};

inline float from_bits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

inline uint32_t to_bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}

// IEEE binary16 -> binary32, exact; NaNs become quiet, as vcvtph2ps makes them.
inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  if (magnitude > 0x7c00u) return from_bits(sign | 0x7fc00000u | magnitude << 13);
  if (magnitude == 0x7c00u) return from_bits(sign | 0x7f800000u);
  if (magnitude >= 0x0400u) return from_bits(sign | ((magnitude << 13) + 0x38000000u));
  return from_bits(sign | to_bits(static_cast<float>(magnitude) * 0x1p-24f));  // subnormal or zero
}

inline float bfloat_to_float(uint16_t b) { return from_bits(static_cast<uint32_t>(b) << 16); }

// Scale and inverse of a group of activations from the bits of its largest magnitude. As integers, magnitude bits of
// NaN > infinity > finite, so one integer maximum finds them all. quant/activations.py is the definition:
// below 2^-119 the group counts as zeros, a NaN or an infinity makes the scale NaN; both have codes 0 (inverse 0).
struct ActivationScale {
  float scale, inverse;
};
inline ActivationScale activation_scale(uint32_t max_magnitude_bits) {
  if (max_magnitude_bits >= 0x7f800000u) return {from_bits(0x7fc00000u), 0.0f};
  const float amax = from_bits(max_magnitude_bits);
  if (amax < 0x1p-119f) return {0.0f, 0.0f};
  return {amax / 127.0f, 127.0f / amax};
}

// Per format: `code` of row r at k = 0..31 of group g, the `scale` of row r in one half (16 k) of the group, and what
// they stand for. Codes are signed: offsets are already taken off and
// codebooks looked up.
namespace values {

struct Unscaled {};
struct ScaleMin { float d, m; };

inline float value_of(Unscaled, float stored) { return stored; }
inline float value_of(float d, int code) { return d * static_cast<float>(code); }
inline float value_of(ScaleMin s, int code) { return s.d * static_cast<float>(code) + s.m; }

inline int nibble(const uint8_t* nibbles, int r, int k) {
  const int byte = nibbles[32 * (k / 4 % 4) + 4 * r + k % 4];
  return k < 16 ? byte & 15 : byte >> 4;
}

// q of the packed codes (formats/layouts.h).
inline int six_bits(const uint8_t (&codes)[6][32], int r, int k) {
  const int j = k / 4;
  const int at = 4 * r + k % 4;
  if (j < 6) return codes[j][at] & 63;
  const int first = 3 * (j - 6);
  return codes[first][at] >> 6 | (codes[first + 1][at] >> 6) << 2 | (codes[first + 2][at] >> 6) << 4;
}

inline int five_bits(const uint8_t (&codes)[5][32], int r, int k) {
  const int j = k / 4;
  const int at = 4 * r + k % 4;
  if (j < 5) return codes[j][at] & 31;
  const int low = codes[j - 5][at] >> 5;
  if (j == 5) return low | (codes[3][at] >> 5 & 3) << 3;
  if (j == 6) return low | (codes[4][at] >> 5 & 1) << 3 | (codes[3][at] >> 7) << 4;
  return low | (codes[4][at] >> 6) << 3;
}

inline int three_bits(const uint8_t (&codes)[3][32], int r, int k) {
  const int j = k / 4;
  const int at = 4 * r + k % 4;
  if (j < 6) return codes[j % 3][at] >> (j / 3 * 3) & 7;
  return codes[j - 6][at] >> 6 | (codes[2][at] >> j & 1) << 2;
}

inline int two_bits(const uint8_t (&codes)[2][32], int r, int k) {
  return codes[k / 16][4 * r + k % 4] >> (2 * (k / 4 % 4)) & 3;
}

// Number i of a stream of 6-bit numbers.
inline int stream_number(const uint8_t* stream, int i) {
  const uint8_t* at = stream + 6 * i / 8;
  const int shift = 6 * i % 8;
  return (shift > 2 ? at[0] >> shift | at[1] << (8 - shift) : at[0] >> shift) & 63;
}

// 2^(e - 128); the two smallest are subnormal.
inline float half_e8m0(int e) { return from_bits(e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23); }

constexpr int8_t kIq4Codebook[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kMxfp4Codebook[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

template <class T>
const T& group_at(const uint8_t* block, int64_t g) {
  return reinterpret_cast<const T*>(block)[g];
}

struct F32 {
  static Unscaled scale(const uint8_t*, int64_t, int, int) { return {}; }
  static float code(const uint8_t* block, int64_t g, int r, int k) {
    return reinterpret_cast<const float*>(block)[(g * kGroupSize + k) * kRowBlock + r];
  }
};

struct F16 {
  static Unscaled scale(const uint8_t*, int64_t, int, int) { return {}; }
  static float code(const uint8_t* block, int64_t g, int r, int k) {
    return half_to_float(reinterpret_cast<const uint16_t*>(block)[(g * kGroupSize + k) * kRowBlock + r]);
  }
};

struct BF16 {
  static Unscaled scale(const uint8_t*, int64_t, int, int) { return {}; }
  static float code(const uint8_t* block, int64_t g, int r, int k) {
    return bfloat_to_float(reinterpret_cast<const uint16_t*>(block)[(g * kGroupSize + k) * kRowBlock + r]);
  }
};

struct Q4_0 {
  static const layout::Q4_0Group& group(const uint8_t* block, int64_t g) {
    return group_at<layout::Q4_0Group>(block, g);
  }
  static float scale(const uint8_t* block, int64_t g, int, int r) { return half_to_float(group(block, g).d[r]); }
  static int code(const uint8_t* block, int64_t g, int r, int k) { return nibble(group(block, g).nibbles, r, k) - 8; }
};

struct Q4_1 {
  static const layout::Q4_1Group& group(const uint8_t* block, int64_t g) {
    return group_at<layout::Q4_1Group>(block, g);
  }
  static ScaleMin scale(const uint8_t* block, int64_t g, int, int r) {
    return {half_to_float(group(block, g).d[r]), half_to_float(group(block, g).m[r])};
  }
  static int code(const uint8_t* block, int64_t g, int r, int k) { return nibble(group(block, g).nibbles, r, k); }
};

struct Q5_0 {
  static const layout::Q5_0Group& group(const uint8_t* block, int64_t g) {
    return group_at<layout::Q5_0Group>(block, g);
  }
  static float scale(const uint8_t* block, int64_t g, int, int r) { return half_to_float(group(block, g).d[r]); }
  static int code(const uint8_t* block, int64_t g, int r, int k) {
    return five_bits(group(block, g).codes, r, k) - 16;
  }
};

struct Q5_1 {
  static const layout::Q5_1Group& group(const uint8_t* block, int64_t g) {
    return group_at<layout::Q5_1Group>(block, g);
  }
  static ScaleMin scale(const uint8_t* block, int64_t g, int, int r) {
    return {half_to_float(group(block, g).d[r]), half_to_float(group(block, g).m[r])};
  }
  static int code(const uint8_t* block, int64_t g, int r, int k) { return five_bits(group(block, g).codes, r, k); }
};

struct Q8_0 {
  static const layout::Q8_0Group& group(const uint8_t* block, int64_t g) {
    return group_at<layout::Q8_0Group>(block, g);
  }
  static float scale(const uint8_t* block, int64_t g, int, int r) { return half_to_float(group(block, g).d[r]); }
  static int code(const uint8_t* block, int64_t g, int r, int k) {
    return group(block, g).q[32 * (k / 4) + 4 * r + k % 4];
  }
};

struct Q2_K {
  static const layout::Q2KSuperblock& superblock(const uint8_t* block, int64_t g) {
    return group_at<layout::Q2KSuperblock>(block, g / 8);
  }
  static float superblock_scale(const uint8_t* block, int64_t g, int r) {
    return half_to_float(superblock(block, g).d[r]);
  }
  static float superblock_min(const uint8_t* block, int64_t g, int r) {
    return half_to_float(superblock(block, g).dmin[r]);
  }
  static int half_scale(const uint8_t* block, int64_t g, int half, int r) {
    return superblock(block, g).scales[g % 8][r][half] & 15;
  }
  static int half_min(const uint8_t* block, int64_t g, int half, int r) {
    return superblock(block, g).scales[g % 8][r][half] >> 4;
  }
  static ScaleMin scale(const uint8_t* block, int64_t g, int half, int r) {
    return {superblock_scale(block, g, r) * static_cast<float>(half_scale(block, g, half, r)),
            -(superblock_min(block, g, r) * static_cast<float>(half_min(block, g, half, r)))};
  }
  static int code(const uint8_t* block, int64_t g, int r, int k) {
    return two_bits(superblock(block, g).codes[g % 8], r, k);
  }
};

struct Q3_K {
  static const layout::Q3KSuperblock& superblock(const uint8_t* block, int64_t g) {
    return group_at<layout::Q3KSuperblock>(block, g / 8);
  }
  static float superblock_scale(const uint8_t* block, int64_t g, int r) {
    return half_to_float(superblock(block, g).d[r]);
  }
  static int half_scale(const uint8_t* block, int64_t g, int half, int r) {
    return stream_number(superblock(block, g).scales[g % 8], 2 * r + half) - 32;
  }
  static float scale(const uint8_t* block, int64_t g, int half, int r) {
    return superblock_scale(block, g, r) * static_cast<float>(half_scale(block, g, half, r));
  }
  static int code(const uint8_t* block, int64_t g, int r, int k) {
    return three_bits(superblock(block, g).codes[g % 8], r, k) - 4;
  }
};

// Scale and min of Q4_K and Q5_K.
template <class Superblock>
ScaleMin scale_min_of(const Superblock& w, int64_t g, int r) {
  const uint8_t* scales = w.scales[g % 8];
  const int scale = scales[r] & 63;
  const int min = scales[r] >> 6 | (scales[8 + r / 2] >> (4 * (r % 2)) & 15) << 2;
  return {half_to_float(w.d[r]) * static_cast<float>(scale), -(half_to_float(w.dmin[r]) * static_cast<float>(min))};
}

struct Q4_K {
  static const layout::Q4KSuperblock& superblock(const uint8_t* block, int64_t g) {
    return group_at<layout::Q4KSuperblock>(block, g / 8);
  }
  static ScaleMin scale(const uint8_t* block, int64_t g, int, int r) {
    return scale_min_of(superblock(block, g), g, r);
  }
  static int code(const uint8_t* block, int64_t g, int r, int k) {
    return nibble(superblock(block, g).nibbles[g % 8], r, k);
  }
};

struct Q5_K {
  static const layout::Q5KSuperblock& superblock(const uint8_t* block, int64_t g) {
    return group_at<layout::Q5KSuperblock>(block, g / 8);
  }
  static ScaleMin scale(const uint8_t* block, int64_t g, int, int r) {
    return scale_min_of(superblock(block, g), g, r);
  }
  static int code(const uint8_t* block, int64_t g, int r, int k) {
    return five_bits(superblock(block, g).codes[g % 8], r, k);
  }
};

struct Q6_K {
  static const layout::Q6KSuperblock& superblock(const uint8_t* block, int64_t g) {
    return group_at<layout::Q6KSuperblock>(block, g / 8);
  }
  static float superblock_scale(const uint8_t* block, int64_t g, int r) {
    return half_to_float(superblock(block, g).d[r]);
  }
  static int half_scale(const uint8_t* block, int64_t g, int half, int r) {
    return superblock(block, g).groups[g % 8].scales[r][half];
  }
  static float scale(const uint8_t* block, int64_t g, int half, int r) {
    return superblock_scale(block, g, r) * static_cast<float>(half_scale(block, g, half, r));
  }
  static int code(const uint8_t* block, int64_t g, int r, int k) {
    return six_bits(superblock(block, g).groups[g % 8].codes, r, k) - 32;
  }
};

struct IQ4_NL {
  static const layout::Q4_0Group& group(const uint8_t* block, int64_t g) {
    return group_at<layout::Q4_0Group>(block, g);
  }
  static float scale(const uint8_t* block, int64_t g, int, int r) { return half_to_float(group(block, g).d[r]); }
  static int code(const uint8_t* block, int64_t g, int r, int k) {
    return kIq4Codebook[nibble(group(block, g).nibbles, r, k)];
  }
};

struct IQ4_XS {
  static const layout::IQ4XSSuperblock& superblock(const uint8_t* block, int64_t g) {
    return group_at<layout::IQ4XSSuperblock>(block, g / 8);
  }
  static float scale(const uint8_t* block, int64_t g, int, int r) {
    const layout::IQ4XSSuperblock& w = superblock(block, g);
    return half_to_float(w.d[r]) * static_cast<float>(stream_number(w.scales[g % 8], r) - 32);
  }
  static int code(const uint8_t* block, int64_t g, int r, int k) {
    return kIq4Codebook[nibble(superblock(block, g).nibbles[g % 8], r, k)];
  }
};

struct MXFP4 {
  static const layout::MXFP4Group& group(const uint8_t* block, int64_t g) {
    return group_at<layout::MXFP4Group>(block, g);
  }
  static float scale(const uint8_t* block, int64_t g, int, int r) { return half_e8m0(group(block, g).e[r]); }
  static int code(const uint8_t* block, int64_t g, int r, int k) {
    return kMxfp4Codebook[nibble(group(block, g).nibbles, r, k)];
  }
};

}  // namespace values

inline const uint8_t* row_block_data(const Matrix& w, int64_t row_block) {
  return w.data + row_block * row_block_bytes(w.format, w.cols);
}

// 32 values of row r of one row block: group g.
template <class Values>
inline void dequantize_group(const uint8_t* block, int64_t g, int r, float* out, int64_t stride) {
  for (int half = 0; half < 2; ++half) {
    const auto scale = Values::scale(block, g, half, r);
    for (int k = 16 * half; k < 16 * half + 16; ++k) {
      out[k * stride] = values::value_of(scale, Values::code(block, g, r, k));
    }
  }
}

template <class Values>
void dequantize_row_of(const Matrix& w, int64_t row_block, int r, float* out) {
  const uint8_t* block = row_block_data(w, row_block);
  for (int64_t g = 0; g < w.cols / kGroupSize; ++g) dequantize_group<Values>(block, g, r, out + g * kGroupSize, 1);
}

}  // namespace lin
}  // namespace
}  // namespace hotloop::HOTLOOP_TARGET
