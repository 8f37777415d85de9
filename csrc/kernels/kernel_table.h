// The contract between the runtime (program, bindings) and the kernels: plain structs and function pointers.
// One KernelTable per instruction set; every table computes the same bits (docs/determinism.md).
// Kernels know rows, tokens, heads and bytes; they know no layers, no requests' meaning and no Python objects.
#pragma once
#include <cstddef>
#include <cstdint>

namespace hotloop {

constexpr int kGroupSize = 32;   // activations are quantized to int8 in groups of 32 along K
constexpr int kRowBlock = 8;     // repacked matrices interleave 8 rows
constexpr int kSpan = 256;       // attention spans, aligned to absolute positions
constexpr int kLogitsBlock = 64; // logits per entry of block_max
constexpr int kMassBins = 448;   // of mass_histogram: 28 nats below the top
constexpr float kMassBinsPerNat = 16.0f;
constexpr int kLanes = 16;       // virtual width of every float reduction
constexpr int kKeyGroup = 32;    // elements of an int8 K that share a scale
constexpr int kValueGroup = 64;  // elements of an int8 V that share a scale

// The formats with kernels, by their names in GGUF. Everything that goes through all of them is made from these lists.
#define HOTLOOP_FLOAT_FORMATS(X) X(F32) X(F16) X(BF16)
#define HOTLOOP_INTEGER_FORMATS(X) \
  X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL) X(IQ4_XS) X(MXFP4)

#define HOTLOOP_ENUMERATOR(name) name,
enum class WeightFormat : int32_t { HOTLOOP_FLOAT_FORMATS(HOTLOOP_ENUMERATOR) HOTLOOP_INTEGER_FORMATS(HOTLOOP_ENUMERATOR) };
#undef HOTLOOP_ENUMERATOR
enum class KvDtype : int32_t { F32, F16, BF16, INT8 };
enum class ActivationFunction : int32_t { SiLU, GeluTanh };
enum class RopeStyle : int32_t { Interleaved, HalfSplit };  // adjacent pairs (llama GGUF) | x[i], x[i + rot/2] (neox)

// A weight matrix [rows, cols] in its repacked layout: ceil(rows / 8) row blocks, each row_block_bytes(format, cols)
// long; rows past the end are zero, or those that follow in a matrix this one is a part of. cols is a multiple of 32 and
// of the superblock_size; data is aligned as row blocks are.
struct Matrix {
  WeightFormat format;
  int64_t rows;
  int64_t cols;
  const uint8_t* data;
};

// Activations of consecutive tokens [tokens, cols], quantized: see docs in kernels/linear. All arrays are 64-byte aligned
// and token-major. sum16 holds the integer sum of q over 16 consecutive k; scaled_sum = scale * float(sum over the group).
struct QuantizedActivations {
  int8_t* q;           // [tokens, cols]
  float* scale;        // [tokens, cols / 32]
  float* scaled_sum;   // [tokens, cols / 32]
  int16_t* sum16;      // [tokens, cols / 16]
  int64_t cols;
};

// What a linear op multiplies with: the quantized form for integer formats, f32 rows [tokens, cols] for F32/F16/BF16
// weights and, for every format, in the f32-activation test mode (quantized.q == nullptr then).
struct Activations {
  QuantizedActivations quantized;
  const float* f32;
  int64_t cols;
};

struct AttentionArgs {
  const float* q;          // [tokens, num_heads * head_dim], roped
  float* out;              // [tokens, num_heads * head_dim]; does not overlap q
  const uint8_t* k;        // K of block 0, this layer: [num_kv_heads, block_size, head_dim] of k_dtype;
                           // int8: [num_kv_heads, head_dim / 4, block_size, 4]
  const uint8_t* v;        // V of block 0, this layer: [num_kv_heads, block_size, head_dim]
  const uint8_t* k_scale;  // int8: bf16 scales of K of block 0, [num_kv_heads, key_groups(head_dim), block_size]
  const uint8_t* v_scale;  // int8: bf16 scales of V of block 0, [num_kv_heads, value_groups(head_dim), block_size]
  int64_t block_stride_bytes;  // from one block_id to the next
  const int32_t* block_table;  // of this request: position p lives in block_table[p / block_size]
  const int32_t* positions;    // [tokens]: absolute position of each query token
  int32_t block_size, num_heads, num_kv_heads, head_dim;
  int32_t window;          // a token sees the last `window` positions, its own included; 0: all
  KvDtype k_dtype, v_dtype;
  float scale;             // scores = scale * (q . k)
  float softcap;           // 0: none; else cap * tanh(score / cap)
};

constexpr int32_t key_groups(int32_t head_dim) { return (head_dim + kKeyGroup - 1) / kKeyGroup; }
constexpr int32_t value_groups(int32_t head_dim) { return (head_dim + kValueGroup - 1) / kValueGroup; }
// Bytes of an element of K or V.
constexpr int64_t kv_item_bytes(KvDtype dtype) { return dtype == KvDtype::F32 ? 4 : dtype == KvDtype::INT8 ? 1 : 2; }

// Query rows of some tokens of one request: heads [head_begin, head_end) all read KV head kv_head.
struct AttentionRows {
  int64_t token_begin, token_end;
  int32_t kv_head, head_begin, head_end;
  int64_t count() const { return (token_end - token_begin) * (head_end - head_begin); }
};

struct KernelTable {
  const char* name;  // "scalar", "avx2", ...

  // ---- linear (kernels/linear*) ---------------------------------------------------------------------------------
  // One token row x[cols] -> one row of QuantizedActivations (pointers already at that row).
  void (*quantize_row)(const float* x, int64_t cols, int8_t* q, float* scale, float* scaled_sum, int16_t* sum16);
  // out[t * out_stride + (row - row_block_begin * 8)] for rows of blocks [row_block_begin, row_block_end) and tokens
  // [token_begin, token_end) (t counts from token_begin). Writes all 8 rows of a block, padding rows included.
  void (*linear)(const Matrix& w, const Activations& x, int64_t row_block_begin, int64_t row_block_end,
                 int64_t token_begin, int64_t token_end, float* out, int64_t out_stride);
  // Row `row` of w as f32 [cols] (embedding gather).
  void (*dequantize_row)(const Matrix& w, int64_t row, float* out);

  // ---- float rows (kernels/rows*) -------------------------------------------------------------------------------
  // out = x / sqrt(mean(x^2) + eps) * gain (+ residual if not null); x, out, residual: [n]; out may alias x or residual.
  void (*rms_norm)(const float* x, const float* gain, const float* residual, int64_t n, float eps, float* out);
  // out = (x - mean) / sqrt(mean((x - mean)^2) + eps) * gain + bias; all: [n]; out may alias x.
  void (*layer_norm)(const float* x, const float* gain, const float* bias, int64_t n, float eps, float* out);
  // Rotate one head in place: cos, sin [rot_dim / 2] of the token's position; elements past rot_dim stay.
  void (*rope)(float* head, const float* cos, const float* sin, int64_t rot_dim, RopeStyle style);
  // f32 [n] -> f32, f16 or bf16, round to nearest even.
  void (*store_kv)(const float* src, int64_t n, KvDtype dtype, void* dst);
  // f32 [n] -> int8 codes [n] and bf16 scales [ceil(n / group_size)]; n and group_size are multiples of 16. A group's
  // scale is bf16(max |x| / 127), a code x / scale rounded; quant/kv.py has the definition.
  void (*quantize_kv)(const float* src, int64_t n, int64_t group_size, int8_t* codes, uint16_t* scales);
  // out = act(gate) * up, [n]; may alias.
  void (*gated)(const float* gate, const float* up, int64_t n, ActivationFunction act, float* out);
  // out = act(x + bias), [n]; bias null: none; out may alias x.
  void (*activate)(const float* x, const float* bias, int64_t n, ActivationFunction act, float* out);
  void (*add)(const float* a, const float* b, int64_t n, float* out);       // out = a + b, may alias
  void (*scale)(float* x, int64_t n, float factor);                         // in place
  void (*softcap)(float* x, int64_t n, float cap);                          // x = cap * tanh(x / cap), in place

  // ---- attention (kernels/attention*) ---------------------------------------------------------------------------
  // Spans of 256 absolute positions, partials (m, l, o) merged in ascending order. head_dim is a multiple of 16.
  // scratch: attention_scratch_floats().
  void (*attention)(const AttentionArgs& args, const AttentionRows& rows, float* scratch);
  // The same in parts, which may be computed in any order: the partials of spans [span_begin, span_end), then the merge.
  // partials: [span - first_span, row, partial_floats(head_dim)]: o, m, l of the rows that see something of the span.
  // A row is (token - token_begin) * heads + (head - head_begin); first_span is that of all parts.
  void (*attention_spans)(const AttentionArgs& args, const AttentionRows& rows, int64_t first_span, int64_t span_begin,
                          int64_t span_end, float* partials, float* scratch);
  void (*merge_spans)(const AttentionArgs& args, const AttentionRows& rows, int64_t first_span, const float* partials);

  // ---- sampling math (kernels/math*) ----------------------------------------------------------------------------
  void (*exp)(const float* x, int64_t n, float* out);   // our own polynomial, error below 1 ulp, exp(-inf) = 0
  void (*log)(const float* x, int64_t n, float* out);   // x > 0
  // -log(-log1p(-v)), v = (w + 0.5) 2^-32, w = Philox4x32-10(key = seed, counter = (id >> 2, position, choice, stream))
  // word id & 3, for ids [first_id, first_id + n).
  void (*gumbel)(uint64_t seed, uint32_t position, uint32_t choice, uint32_t stream, uint32_t first_id, int64_t n,
                 float* out);
  // max, and log of the sum over i of exp(x[i] - max), a 16-lane sum: logprob = (x - max) - log_sum. x: [n], finite or -inf.
  void (*log_sum_exp)(const float* x, int64_t n, float* max_out, float* log_sum_out);

  // ---- drawing from one row of logits (kernels/sampling_draw*) ---------------------------------------------------
  // x: [n] logits, finite or -inf; block_max: [ceil(n / 64)], theirs; top: the largest logit; temperature: positive, normal.
  // scaled = (x - top) / temperature in f32.
  // The largest of every 64 logits; infinity where there is a NaN.
  void (*block_max)(const float* x, int64_t n, float* out);
  // floor(2^40 exp(scaled[i])), scaled: [n], <= 0.
  void (*fixed_point_probs)(const float* scaled, int64_t n, uint64_t* out);
  // The variance of the finite logits, x - top counting as -1e15 at the least: 16-lane sums in parts, as in log_sum_exp.
  float (*variance)(const float* x, int64_t n, float top);
  // The sum of fixed_point_probs over all logits.
  uint64_t (*total_mass)(const float* x, int64_t n, const float* block_max, float top, float temperature);
  // bins[b], b < kMassBins: the sum of fixed_point_probs over the logits of trunc(-scaled * kMassBinsPerNat) == b (the last
  // bin: or more).
  void (*mass_histogram)(const float* x, int64_t n, const float* block_max, float top, float temperature, uint64_t* bins);
  // The ids, ascending, of scaled >= least, and these scaled logits; returns how many. ids and scaled have room for n + 1.
  int64_t (*select_scaled)(const float* x, int64_t n, const float* block_max, float top, float temperature, float least,
                           uint32_t* ids, float* scaled);
  // gumbel for single ids: [n].
  void (*gumbel_of_ids)(uint64_t seed, uint32_t position, uint32_t choice, uint32_t stream, const uint32_t* ids, int64_t n,
                        float* out);
  // argmax over all ids of scaled + gumbel, the lowest one of equals.
  uint32_t (*draw_row)(const float* x, int64_t n, const float* block_max, float top, float temperature, uint64_t seed,
                       uint32_t position, uint32_t choice, uint32_t stream);

  // ---- yardsticks (kernels/peak.inl) ----------------------------------------------------------------------------
  // `rounds` rounds of multiply-adds in registers; returns the operations done (a multiply-add is two). sink: [16].
  int64_t (*peak_int8)(int64_t rounds, float* sink);
  int64_t (*peak_f32)(int64_t rounds, float* sink);
};

constexpr int kAttentionTileRows = 6;  // query rows (token, head) that share each load of K and V
constexpr int kAttentionRows = 48;     // query rows that walk a span together

constexpr int64_t partial_floats(int32_t head_dim) { return head_dim + kLanes; }

// Of a tile: scores, o, weights of every V group. int8: codes of the queries; scales and K codes of a span.
constexpr int64_t attention_scratch_floats(int32_t head_dim) {
  return int64_t{kAttentionTileRows} * (kSpan + head_dim + kSpan * value_groups(head_dim)) +
         int64_t{kAttentionRows} * (head_dim / 2 + 2 * key_groups(head_dim)) +
         int64_t{kSpan} * (key_groups(head_dim) + value_groups(head_dim) + head_dim / 4);
}

// formats/repack.cpp: instruction-set independent.
struct FormatInfo {
  const char* name;
  int64_t superblock_size;   // cols are a multiple of it
  int64_t superblock_bytes;  // in a GGUF file
};
FormatInfo format_info(WeightFormat format);
int64_t row_block_bytes(WeightFormat format, int64_t cols);     // bytes of 8 interleaved rows
int64_t source_row_bytes(WeightFormat format, int64_t cols);    // bytes of a row in a GGUF file
// Repack GGUF rows [8 * row_block_begin, ...) of w into dst (which points at row block row_block_begin).
void repack(WeightFormat format, const uint8_t* src, int64_t rows, int64_t cols, int64_t row_block_begin,
            int64_t row_block_end, uint8_t* dst);

const KernelTable& scalar_kernels();
#ifdef HOTLOOP_HAVE_AVX2
const KernelTable& avx2_kernels();
#endif
#ifdef HOTLOOP_HAVE_AVX512
const KernelTable& avx512_kernels();
#endif
#ifdef HOTLOOP_HAVE_AVX512VNNI
const KernelTable& avx512vnni_kernels();
#endif
#ifdef HOTLOOP_HAVE_NEON
const KernelTable& neon_kernels();
#endif

}  // namespace hotloop
