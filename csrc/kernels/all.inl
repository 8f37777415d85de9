// Every kernel source, compiled once per target. Nothing here may have external linkage or use inline functions of the
// standard library: the linker would keep one copy, compiled for one instruction set, for all.
#include "kernels/kernel_table.h"
#include "kernels/math.inl"
#include "kernels/rows.inl"
#include "kernels/attention.inl"
#include "kernels/linear.inl"
#include "kernels/sampling.inl"
#include "kernels/sampling_draw.inl"
#include "kernels/peak.inl"

namespace hotloop::HOTLOOP_TARGET {
namespace {
constexpr KernelTable kTableValue = {
    HOTLOOP_TARGET_NAME, quantize_row, linear, dequantize_row,
    rms_norm, layer_norm, rope, store_kv, quantize_kv, gated, activate, add, scale, softcap,
    attention, attention_spans, merge_spans, exp_array, log_array, gumbel, log_sum_exp,
    block_max, fixed_point_probs, variance, total_mass, mass_histogram, select_scaled, gumbel_of_ids, draw_row,
    peak_int8, peak_f32,
};
}  // namespace
const KernelTable& kTable = kTableValue;
}  // namespace hotloop::HOTLOOP_TARGET
