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

// What drawing needs to know of a request. Off: top_k <= 0, top_p and typical_p >= 1, all others 0, repetition_penalty 1.
struct DrawParams {
  double temperature = 0;  // 0: greedy
  double top_n_sigma = 0;
  double min_p = 0;
  int64_t top_k = 0;
  double top_p = 1;
  double typical_p = 1;
  double xtc_probability = 0;
  double xtc_threshold = 0.1;
  bool mirostat = false;  // instead of the filters
  double mirostat_tau = 5;
  double mirostat_eta = 0.1;
  double repetition_penalty = 1;
  double presence_penalty = 0;
  double frequency_penalty = 0;
  uint64_t seed = 0;
  uint32_t choice = 0;
  int32_t num_logprobs = -1;  // top logprobs; -1: none at all
  bool processed_logprobs = false;  // of what is left to draw from, not of the row as it came
};

// Changes to a row of logits, in this order: ids that the mask does not allow, banned and barred ids become -inf; biases
// are added; seen ids are penalized; dry is subtracted. Barred ids that would leave nothing of what the mask allows stay.
struct RowEdits {
  template <class T>
  struct Array {
    const T* data = nullptr;
    int64_t size = 0;
  };

  const uint32_t* mask = nullptr;  // [ceil(vocab_size / 32)], bit id % 32 of word id / 32: allowed; null: all are
  Array<int32_t> banned, barred, bias_ids, seen_ids, dry_ids;
  const float* bias = nullptr;      // [bias_ids]
  const int32_t* counts = nullptr;  // [seen_ids]: occurrences in the output
  const float* dry = nullptr;       // [dry_ids]

  bool empty() const {
    return mask == nullptr && banned.size == 0 && barred.size == 0 && bias_ids.size == 0 && seen_ids.size == 0 &&
           dry_ids.size == 0;
  }
};

struct DrawRow {
  const float* logits;  // [vocab_size]
  const DrawParams* params;
  int64_t given_id;  // not drawn: only its raw logprobs are wanted; -1: drawn
  uint32_t position;
  double mirostat_mu;
  RowEdits edits;
};

struct DrawResult {
  enum class Status { Drawn, BrokenLogits, NothingLeft, NoMemory };
  Status status = Status::Drawn;
  int64_t token_id = 0;  // of broken logits: the first NaN, else the first maximum
  double mirostat_mu = 0;  // of the next token
  float logprob = 0;
  int64_t rank = 0;  // 1: the largest logit; of equal ones the lowest id first
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
