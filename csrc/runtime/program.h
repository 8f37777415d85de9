// A step program: a flat list of kernel launches over one arena, recorded once and replayed for every batch.
// Each op splits its work into tiles, which the team's threads claim one by one; an op starts when the one before it is
// done. Tiles split rows, tokens and heads, never a reduction, so no result depends on threads or tile sizes.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernel_table.h"
#include "runtime/aligned.h"
#include "runtime/batch.h"
#include "runtime/thread_team.h"
#include "runtime/weights.h"

namespace hotloop {

enum class Extent : int32_t { Tokens, Logits };

// f32 [extent, width] in the arena, rows `stride` floats apart (a multiple of 16). offset < 0: absent.
struct Buffer {
  int64_t offset = -1;  // bytes
  int64_t width = 0;
  int64_t stride = 0;
  Extent extent = Extent::Tokens;
  explicit operator bool() const { return offset >= 0; }
};

// The int8 form of a value: where its arrays start in the arena. See quantized_bytes().
struct QuantizedBuffer {
  int64_t offset = -1;  // bytes
  int64_t cols = 0;
  explicit operator bool() const { return offset >= 0; }
};

// What a linear op reads: the int8 form when present, else f32.
struct Input {
  Buffer f32;
  QuantizedBuffer quantized;
};

// Bytes of a QuantizedBuffer of `rows` rows.
int64_t quantized_bytes(int64_t rows, int64_t cols);

struct Step {
  const KernelTable& kernels;
  const Batch& batch;
  uint8_t* arena;
  int64_t max_rows;
  int threads;

  int64_t rows(Extent extent) const { return extent == Extent::Tokens ? batch.tokens : batch.logits; }
  float* row(const Buffer& buffer, int64_t i) const {
    return reinterpret_cast<float*>(arena + buffer.offset) + i * buffer.stride;
  }
  QuantizedActivations quantized(const QuantizedBuffer& buffer) const;
  Activations activations(const Input& input) const;
  // Writes columns [col, col + n) of row i in the int8 form.
  void quantize(const float* x, int64_t n, const QuantizedBuffer& out, int64_t i, int64_t col) const;
};

class Op {
 public:
  virtual ~Op() = default;
  virtual const char* name() const = 0;
  virtual int64_t tiles(const Step& step) const = 0;
  virtual void run(const Step& step, int64_t tile, float* scratch) = 0;
  virtual int64_t scratch_floats() const { return 0; }
};

// Where the time of one replay went.
struct Profile {
  std::vector<double> elapsed_s;            // [ops]: from the end of the op before to the op's own
  std::vector<std::vector<double>> busy_s;  // [threads][ops]: a thread's own tiles; what is left of elapsed_s is waiting
};

class Program {
 public:
  Program(const KernelTable& kernels, std::shared_ptr<ThreadTeam> team, int64_t max_tokens)
      : kernels_(kernels), team_(std::move(team)), max_tokens_(max_tokens) {}

  void add(std::unique_ptr<Op> op) { ops_.push_back(std::move(op)); }
  const std::vector<std::unique_ptr<Op>>& ops() const { return ops_; }
  // Allocates arena and scratch; no op may be added afterwards.
  void finish(int64_t arena_bytes);
  void replay(const Batch& batch);
  // A replay that reads a clock around every op and tile.
  Profile profile(const Batch& batch);

  const float* row(const Buffer& buffer, int64_t i) const {
    return reinterpret_cast<const float*>(arena_.data() + buffer.offset) + i * buffer.stride;
  }
  const KernelTable& kernels() const { return kernels_; }
  int64_t max_tokens() const { return max_tokens_; }
  int64_t arena_bytes() const { return arena_.size(); }

 private:
  class Replay : public Job {
   public:
    Replay(Program& program, const Batch& batch)
        : program_(program), step_{program.kernels_, batch, program.arena_.data(), program.max_tokens_, program.team_->size()} {}
    int64_t next_op() override;
    void run_tile(int64_t tile, int thread) override;

   protected:
    Program& program_;
    Step step_;
    int64_t op_ = -1;
  };

  class ProfiledReplay final : public Replay {
   public:
    ProfiledReplay(Program& program, const Batch& batch);
    int64_t next_op() override;
    void run_tile(int64_t tile, int thread) override;

    Profile profile;

   private:
    std::chrono::steady_clock::time_point begin_;
  };

  void check(const Batch& batch) const;

  const KernelTable& kernels_;
  std::shared_ptr<ThreadTeam> team_;
  int64_t max_tokens_;
  std::vector<std::unique_ptr<Op>> ops_;
  AlignedBuffer arena_;
  AlignedBuffer scratch_;
  int64_t scratch_stride_floats_ = 0;
};

}  // namespace hotloop
