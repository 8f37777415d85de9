// Draws one token for each of many rows of logits: edits, filters, noise and logprobs as docs/sampling.md defines them and
// src/hotloop/sampling/definition.py computes them with numpy, to the bit. Rows know nothing of each other; they are
// spread over a thread team. No step sorts the vocabulary: a row is read once for the maxima of its blocks, and what a
// filter keeps is found from those.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/kernel_table.h"
#include "runtime/thread_team.h"

namespace hotloop {

// What drawing needs to know of a request. Off: top_k <= 0, top_p >= 1, min_p 0, penalties 0, repetition_penalty 1.
struct DrawParams {
  double temperature = 0;  // 0: greedy
  int64_t top_k = 0;
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  double presence_penalty = 0;
  double frequency_penalty = 0;
  uint64_t seed = 0;
  uint32_t choice = 0;
  int32_t num_logprobs = -1;  // top logprobs; -1: none at all
};

// Changes to a row of logits, in this order: ids that the mask does not allow and barred ids become -inf; biases are added;
// seen ids are penalized. Barred ids that would leave nothing of what the mask allows stay.
struct RowEdits {
  const uint32_t* mask = nullptr;  // [ceil(vocab_size / 32)], bit id % 32 of word id / 32: allowed; null: all are
  const int32_t* barred = nullptr;
  int64_t num_barred = 0;
  const int32_t* bias_ids = nullptr;
  const float* bias = nullptr;
  int64_t num_bias = 0;
  const int32_t* seen_ids = nullptr;
  const int32_t* counts = nullptr;  // occurrences in the output
  int64_t num_seen = 0;

  bool empty() const { return mask == nullptr && num_barred == 0 && num_bias == 0 && num_seen == 0; }
};

struct DrawRow {
  const float* logits;  // [vocab_size]
  const DrawParams* params;
  uint32_t position;
  RowEdits edits;
};

struct DrawResult {
  enum class Status { Drawn, BrokenLogits, NothingLeft, NoMemory };
  Status status = Status::Drawn;
  int64_t token_id = 0;  // of broken logits: the first NaN, else the first maximum
  float logprob = 0;     // raw
  int64_t rank = 0;      // 1: the largest logit; of equal ones the lowest id first
  std::vector<std::pair<int64_t, float>> top;
};

class Sampler {
 public:
  // team: may be null.
  Sampler(const KernelTable& kernels, std::shared_ptr<ThreadTeam> team);
  ~Sampler();

  // One caller at a time (others wait).
  std::vector<DrawResult> draw(const std::vector<DrawRow>& rows, int64_t vocab_size);

 private:
  class RowSampler;  // draws a row with memory of its own

  const KernelTable& kernels_;
  std::shared_ptr<ThreadTeam> team_;
  std::vector<std::unique_ptr<RowSampler>> threads_;
  std::mutex mutex_;
};

}  // namespace hotloop
