#include "runtime/program.h"

#include <algorithm>
#include <stdexcept>

namespace hotloop {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The four arrays of a QuantizedBuffer, one after another, each 64-byte aligned.
struct QuantizedLayout {
  int64_t scale, scaled_sum, sum16, total;
  QuantizedLayout(int64_t rows, int64_t cols) {
    scale = round_up(rows * cols, 64);
    scaled_sum = scale + round_up(rows * (cols / kGroupSize) * 4, 64);
    sum16 = scaled_sum + round_up(rows * (cols / kGroupSize) * 4, 64);
    total = sum16 + round_up(rows * (cols / 16) * 2, 64);
  }
};

}  // namespace

int64_t quantized_bytes(int64_t rows, int64_t cols) { return QuantizedLayout(rows, cols).total; }

QuantizedActivations Step::quantized(const QuantizedBuffer& buffer) const {
  if (!buffer) return {nullptr, nullptr, nullptr, nullptr, 0};
  const QuantizedLayout layout(max_rows, buffer.cols);
  uint8_t* base = arena + buffer.offset;
  return {reinterpret_cast<int8_t*>(base), reinterpret_cast<float*>(base + layout.scale),
          reinterpret_cast<float*>(base + layout.scaled_sum), reinterpret_cast<int16_t*>(base + layout.sum16), buffer.cols};
}

Activations Step::activations(const Input& input) const {
  const float* f32 = input.f32 ? row(input.f32, 0) : nullptr;
  return {quantized(input.quantized), f32, input.quantized ? input.quantized.cols : input.f32.stride};
}

void Step::quantize(const float* x, int64_t n, const QuantizedBuffer& out, int64_t i, int64_t col) const {
  const QuantizedActivations a = quantized(out);
  const int64_t k = i * a.cols + col;
  kernels.quantize_row(x, n, a.q + k, a.scale + k / kGroupSize, a.scaled_sum + k / kGroupSize, a.sum16 + k / 16);
}

void Program::finish(int64_t arena_bytes) {
  arena_ = AlignedBuffer(arena_bytes);
  for (const auto& op : ops_) scratch_stride_floats_ = std::max(scratch_stride_floats_, op->scratch_floats());
  scratch_stride_floats_ = round_up(scratch_stride_floats_, 16);
  scratch_ = AlignedBuffer(scratch_stride_floats_ * 4 * team_->size());
}

void Program::replay(const Batch& batch) {
  check(batch);
  Replay job(*this, batch);
  team_->run(job);
}

Profile Program::profile(const Batch& batch) {
  check(batch);
  ProfiledReplay job(*this, batch);
  team_->run(job);
  return std::move(job.profile);
}

void Program::check(const Batch& batch) const {
  if (batch.tokens < 1 || batch.tokens > max_tokens_) throw std::invalid_argument("batch does not fit the program");
}

int64_t Program::Replay::next_op() {
  if (++op_ == static_cast<int64_t>(program_.ops_.size())) return -1;
  return program_.ops_[op_]->tiles(step_);
}

void Program::Replay::run_tile(int64_t tile, int thread) {
  float* scratch = reinterpret_cast<float*>(program_.scratch_.data()) + thread * program_.scratch_stride_floats_;
  program_.ops_[op_]->run(step_, tile, scratch);
}

Program::ProfiledReplay::ProfiledReplay(Program& program, const Batch& batch) : Replay(program, batch) {
  profile.elapsed_s.assign(program.ops_.size(), 0.0);
  profile.busy_s.assign(static_cast<size_t>(program.team_->size()), profile.elapsed_s);
}

int64_t Program::ProfiledReplay::next_op() {
  const auto now = Clock::now();
  if (op_ >= 0) profile.elapsed_s[op_] = seconds_between(begin_, now);
  begin_ = now;
  return Replay::next_op();
}

void Program::ProfiledReplay::run_tile(int64_t tile, int thread) {
  const auto begin = Clock::now();
  Replay::run_tile(tile, thread);
  profile.busy_s[thread][op_] += seconds_between(begin, Clock::now());
}

}  // namespace hotloop
