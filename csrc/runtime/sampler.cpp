#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <new>

#include "runtime/candidates.h"
#include "runtime/float_environment.h"

namespace hotloop {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr double kFixedPointOne = 0x1p40;
constexpr double kLn2 = 0.6931471805599453;
constexpr uint32_t kDrawStream = 0, kXtcStream = 1;

using Floats = std::vector<float>;

float clamped_to_f32(double x) {  // positive, finite, normal
  constexpr double smallest = std::numeric_limits<float>::min(), largest = kLargest;
  return static_cast<float>(std::min(std::max(x, smallest), largest));
}

}  // namespace

class Sampler::RowSampler {
 public:
  explicit RowSampler(const KernelTable& kernels) : kernels_(kernels) {}

  void draw(const DrawRow& row, int64_t vocab_size, DrawResult& result) {
    size_ = vocab_size;
    raw_ = logits_ = row.logits;
    block_max_.resize(static_cast<size_t>((vocab_size + kLogitsBlock - 1) / kLogitsBlock));
    kernels_.block_max(logits_, size_, block_max_.data());
    top_ = *std::max_element(block_max_.begin(), block_max_.end());
    if (!(std::fabs(top_) < kInfinity)) {
      result.status = DrawResult::Status::BrokenLogits;
      result.token_id = first_broken();
      return;
    }
    const float raw_top = top_;
    raw_block_max_ = &block_max_;
    if (row.given_id >= 0) {
      result.token_id = row.given_id;
      add_raw_logprobs(row.params->num_logprobs, raw_top, result);
      return;
    }
    if (!row.edits.empty()) {
      unedited_block_max_ = block_max_;
      raw_block_max_ = &unedited_block_max_;
      edit(*row.params, row.edits, true);
      if (top_ == -kInfinity && row.edits.mask != nullptr) edit(*row.params, row.edits, false);
      if (top_ == -kInfinity) {
        result.status = DrawResult::Status::NothingLeft;
        return;
      }
    }
    draw_edited(row, result);
    if (row.params->num_logprobs < 0) return;
    if (row.params->processed_logprobs) {
      add_processed_logprobs(row.params->num_logprobs, result);
    } else {
      add_raw_logprobs(row.params->num_logprobs, raw_top, result);
    }
  }

 private:
  int64_t block_begin(size_t block) const { return static_cast<int64_t>(block) * kLogitsBlock; }
  int64_t block_size(size_t block) const { return std::min<int64_t>(kLogitsBlock, size_ - block_begin(block)); }

  int64_t first_broken() const {
    const float* end = raw_ + size_;
    const float* broken = std::find_if(raw_, end, [](float x) { return std::isnan(x); });
    if (broken == end) broken = std::find(raw_, end, kInfinity);
    return broken == end ? 0 : broken - raw_;
  }

  int64_t first_top() const {
    const auto block = static_cast<size_t>(std::find(block_max_.begin(), block_max_.end(), top_) - block_max_.begin());
    const float* begin = logits_ + block_begin(block);
    return std::find(begin, begin + block_size(block), top_) - logits_;
  }

  // ---- edits ------------------------------------------------------------------------------------------------------

  void edit(const DrawParams& params, const RowEdits& edits, bool bar) {
    block_max_ = unedited_block_max_;
    blocks_.assign(block_max_.size(), BlockState::AsItWas);
    if (edits.mask != nullptr) {
      copy_allowed(edits.mask);
    } else {
      edited_.assign(raw_, raw_ + size_);
    }
    logits_ = edited_.data();
    const auto change = [&](int32_t id) -> float& {
      const auto block = static_cast<size_t>(id / kLogitsBlock);
      if (blocks_[block] == BlockState::NotWritten) fill(block);
      blocks_[block] = BlockState::Changed;
      return edited_[static_cast<size_t>(id)];
    };
    for (int64_t i = 0; i < edits.banned.size; ++i) change(edits.banned.data[i]) = -kInfinity;
    for (int64_t i = 0; bar && i < edits.barred.size; ++i) change(edits.barred.data[i]) = -kInfinity;
    for (int64_t i = 0; i < edits.bias_ids.size; ++i) change(edits.bias_ids.data[i]) += edits.bias[i];
    const float repetition = clamped_to_f32(params.repetition_penalty);
    for (int64_t i = 0; i < edits.seen_ids.size; ++i) {
      float& x = change(edits.seen_ids.data[i]);
      x = x > 0 ? x / repetition : x * repetition;
      if (edits.counts[i] > 0) x -= static_cast<float>(edits.counts[i] * params.frequency_penalty + params.presence_penalty);
      x = std::min(x, kLargest);
    }
    for (int64_t i = 0; i < edits.dry_ids.size; ++i) change(edits.dry_ids.data[i]) -= edits.dry[i];
    for (size_t block = 0; block < blocks_.size(); ++block) {
      if (blocks_[block] != BlockState::Changed) continue;
      kernels_.block_max(logits_ + block_begin(block), block_size(block), &block_max_[block]);
    }
    top_ = *std::max_element(block_max_.begin(), block_max_.end());
  }

  void copy_allowed(const uint32_t* mask) {
    edited_.resize(static_cast<size_t>(size_));
    for (size_t block = 0; block < block_max_.size(); ++block) {
      const int64_t begin = block_begin(block), size = block_size(block);
      uint64_t allowed = mask[2 * block];
      if (size > 32) allowed |= uint64_t{mask[2 * block + 1]} << 32;
      const uint64_t all = ~uint64_t{0} >> (kLogitsBlock - size);
      float* out = edited_.data() + begin;
      if ((allowed & all) == all) {
        std::copy(raw_ + begin, raw_ + begin + size, out);
      } else if ((allowed & all) == 0) {
        block_max_[block] = -kInfinity;
        blocks_[block] = BlockState::NotWritten;
      } else {
        fill(block);
        for (uint64_t left = allowed & all; left != 0; left &= left - 1) {
          const int bit = __builtin_ctzll(left);
          out[bit] = raw_[begin + bit];
        }
        blocks_[block] = BlockState::Changed;
      }
    }
  }

  void fill(size_t block) { std::fill_n(edited_.data() + block_begin(block), block_size(block), -kInfinity); }

  // For what reads a whole row, whatever the maxima of its blocks.
  void fill_not_written() {
    for (size_t block = 0; block < blocks_.size(); ++block) {
      if (blocks_[block] == BlockState::NotWritten) fill(block);
    }
  }

  // ---- filters ----------------------------------------------------------------------------------------------------

  float scaled(float x) const { return (x - top_) / temperature_; }

  void draw_edited(const DrawRow& row, DrawResult& result) {
    const DrawParams& params = *row.params;
    if (params.temperature > 0) {
      temperature_ = clamped_to_f32(params.temperature);
      params.mirostat ? draw_mirostat(row, result) : draw_filtered(row, result);
      return;
    }
    result.token_id = first_top();
    result.mirostat_mu = row.mirostat_mu;
    if (wants_candidates(params)) {
      temperature_ = 1;
      select_all();
    }
  }

  static bool wants_candidates(const DrawParams& params) { return params.processed_logprobs && params.num_logprobs >= 0; }

  void draw_filtered(const DrawRow& row, DrawResult& result) {
    const DrawParams& params = *row.params;
    const int64_t top_k = params.top_k > 0 && params.top_k < size_ ? params.top_k : 0;
    const auto least_mass = static_cast<uint64_t>(params.min_p * kFixedPointOne);
    const bool xtc = xtc_applies(params, row.position);
    if (top_k == 0 && least_mass == 0 && params.top_n_sigma <= 0) {
      if (params.top_p >= 1 && params.typical_p < 1) {
        keep_typical_of_row(params.typical_p);
        finish_filtered(row, xtc, result);
        return;
      }
      if (params.top_p >= 1 || !keep_top_p_of_row(params.top_p)) {
        if (params.typical_p >= 1 && !xtc && !wants_candidates(params)) {
          result.token_id = kernels_.draw_row(logits_, size_, block_max_.data(), top_, temperature_, params.seed, row.position,
                                              params.choice, kDrawStream);
          return;
        }
        select_all();
      }
    } else {
      const float least = std::max(least_of_mass(least_mass), least_of_sigma(params.top_n_sigma));
      top_k > 0 ? select_top_k(top_k, least) : select(least);
      if (top_k > 0 && static_cast<size_t>(top_k) < candidates_.size()) {
        std::nth_element(candidates_.begin(), candidates_.begin() + top_k, candidates_.end(), before);
        candidates_.resize(static_cast<size_t>(top_k));
      }
      weigh();
      if (least_mass > 0) drop_lighter(candidates_, least_mass);
      const uint64_t target = nucleus_mass(params.top_p, mass_of(candidates_));
      if (target > 0) keep_mass(candidates_, target);
    }
    if (params.typical_p < 1) keep_typical(params.typical_p);
    finish_filtered(row, xtc, result);
  }

  void finish_filtered(const DrawRow& row, bool xtc, DrawResult& result) {
    if (xtc) exclude_top_choices(candidates_, row.params->xtc_threshold);
    result.token_id = draw_candidate(*row.params, row.position).id;
  }

  // The most probable tokens whose surprise is at most mu; mu follows the surprise of what is drawn among them.
  void draw_mirostat(const DrawRow& row, DrawResult& result) {
    const DrawParams& params = *row.params;
    const float least = exp(static_cast<float>(std::min(row.mirostat_mu * -kLn2, 0.0)));
    const uint64_t least_mass =
        share_of(least, kernels_.total_mass(logits_, size_, block_max_.data(), top_, temperature_));
    select(least_of_mass(least_mass));
    weigh();
    drop_lighter(candidates_, least_mass);
    if (candidates_.empty()) candidates_.push_back({0, static_cast<uint32_t>(first_top()), uint64_t{1} << 40});
    const Candidate drawn = draw_candidate(params, row.position);
    result.token_id = drawn.id;
    const double probability = static_cast<double>(drawn.mass) / static_cast<double>(mass_of(candidates_));
    const double surprise = -static_cast<double>(log(static_cast<float>(probability))) / kLn2;
    result.mirostat_mu = row.mirostat_mu - params.mirostat_eta * (surprise - params.mirostat_tau);
  }

  float exp(float x) const {
    kernels_.exp(&x, 1, &x);
    return x;
  }

  float log(float x) const {
    kernels_.log(&x, 1, &x);
    return x;
  }

  // The candidates are at least the top_k largest logits.
  void select_top_k(int64_t top_k, float least) {
    const auto blocks = static_cast<int64_t>(block_max_.size());
    // As many logits as there are blocks reach the bound, and with more than one in each usually many more.
    select(std::max(least, scaled(largest_block_max(block_max_, std::min(top_k, blocks)))));
    if (top_k > blocks && static_cast<int64_t>(candidates_.size()) < top_k) select(least);
  }

  // The k-th largest, k >= 1.
  float largest_block_max(const Floats& block_max, int64_t k) {
    sorted_ = block_max;
    const auto kth = sorted_.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(sorted_.begin(), kth, sorted_.end(), std::greater<float>());
    return *kth;
  }

  // A bound (scaled) that every logit of this mass reaches: a little below the logarithm.
  float least_of_mass(uint64_t mass) const {
    if (mass == 0) return -kInfinity;
    return log(static_cast<float>(static_cast<double>(mass) / kFixedPointOne)) - 0.001f;
  }

  // The bound (scaled) that lies top_n_sigma standard deviations of the row below the top.
  float least_of_sigma(double top_n_sigma) {
    if (top_n_sigma <= 0) return -kInfinity;
    if (logits_ != raw_) fill_not_written();
    const double distance = top_n_sigma * double{std::sqrt(kernels_.variance(logits_, size_, top_))};
    return -static_cast<float>(std::min(distance, double{kLargest})) / temperature_;
  }

  // The candidates are the logits that reach `least` (scaled), ids ascending, without those at -inf: they come last in
  // every order, have no mass and are never drawn.
  void select(float least) {
    least = std::max(least, -kLargest);
    ids_.resize(static_cast<size_t>(size_) + 1);
    values_.resize(static_cast<size_t>(size_) + 1);
    const int64_t count = kernels_.select_scaled(logits_, size_, block_max_.data(), top_, temperature_, least, ids_.data(),
                                                 values_.data());
    candidates_.resize(static_cast<size_t>(count));
    for (size_t i = 0; i < candidates_.size(); ++i) candidates_[i] = {values_[i], ids_[i], 0};
  }

  void select_all() {
    select(-kInfinity);
    weigh();
  }

  void weigh() {
    const size_t count = candidates_.size();
    values_.resize(std::max(values_.size(), count));
    masses_.resize(std::max(masses_.size(), count));
    for (size_t i = 0; i < count; ++i) values_[i] = candidates_[i].scaled;
    kernels_.fixed_point_probs(values_.data(), static_cast<int64_t>(count), masses_.data());
    for (size_t i = 0; i < count; ++i) candidates_[i].mass = masses_[i];
  }

  // top_p alone. False: the whole row stays.
  bool keep_top_p_of_row(double top_p) {
    const uint64_t total = kernels_.total_mass(logits_, size_, block_max_.data(), top_, temperature_);
    const uint64_t target = nucleus_mass(top_p, total);
    if (target == 0) return false;
    // Only a guess, which the sum of what was selected confirms.
    float least = least_outside(total - target);
    for (float step = 0.5f;; step *= 2) {
      select(least);
      weigh();
      if (mass_of(candidates_) >= target) break;
      least = least - step > -28.0f ? least - step : -kInfinity;
    }
    keep_mass(candidates_, target);
    return true;
  }

  // Adds a sample of the row's masses to `bins` (of mass_histogram); returns one of how many logits is in it.
  int64_t sample_masses(uint64_t (&sampled)[kMassBins]) const {
    constexpr int64_t kPart = 16 * kLogitsBlock;
    const int64_t parts = (size_ + kPart - 1) / kPart;
    const int64_t stride = std::min<int64_t>(std::max<int64_t>(1, parts / 8), 16);  // parts from one sampled to the next
    uint64_t bins[kMassBins];
    for (int64_t part = 0; part < parts; part += stride) {
      const int64_t begin = part * kPart;
      kernels_.mass_histogram(logits_ + begin, std::min(kPart, size_ - begin), block_max_.data() + begin / kLogitsBlock, top_,
                              temperature_, bins);
      for (int b = 0; b < kMassBins; ++b) sampled[b] += bins[b];
    }
    return stride;
  }

  // About the largest bound (scaled) below which no more than `mass` lies.
  float least_outside(uint64_t mass) const {
    uint64_t below[kMassBins] = {};
    const int64_t stride = sample_masses(below);
    const double allowed = 0.9 * static_cast<double>(mass) / static_cast<double>(stride);
    double sum = 0;
    int bin = kMassBins - 1;
    for (; bin > 0 && sum + static_cast<double>(below[bin]) <= allowed; --bin) sum += static_cast<double>(below[bin]);
    return -static_cast<float>(bin + 1) / kMassBinsPerNat;
  }

  // By distance from the mean; what is below the resolution of masses goes.
  void keep_typical(double typical_p) {
    drop_lighter(candidates_, 1);
    const uint64_t target = nucleus_mass(typical_p, mass_of(candidates_));
    if (target == 0) return;
    MeanScaled mean;
    for (const Candidate& c : candidates_) mean.add(c.scaled, c.mass);
    keep_nearest(mean.mean(), target);
  }

  void keep_nearest(float mean, uint64_t target) {
    for (Candidate& c : candidates_) c.scaled = -std::fabs(c.scaled - mean);
    keep_mass(candidates_, target);
    for (Candidate& c : candidates_) c.scaled = scaled(logits_[c.id]);
  }

  // typical_p alone: the mean of the whole row, then only logits so near to it that they hold the mass.
  void keep_typical_of_row(double typical_p) {
    const MeanScaled sums = mean_of_row();
    const float mean = sums.mean();
    const uint64_t target = nucleus_mass(typical_p, sums.total());
    // Only a guess, which the sum of what was selected confirms.
    float distance = target == 0 ? kInfinity : distance_around(mean, target);
    for (;; distance = distance < 30 ? 1.5f * distance : kInfinity) {
      select(mean - distance - 0.001f);
      const auto is_far = [=](const Candidate& c) { return std::fabs(c.scaled - mean) > distance; };
      candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), is_far), candidates_.end());
      weigh();
      if (mass_of(candidates_) >= target) break;
    }
    drop_lighter(candidates_, 1);
    if (target > 0) keep_nearest(mean, target);
  }

  MeanScaled mean_of_row() const {
    MeanScaled sums;
    float values[kLogitsBlock];
    uint64_t masses[kLogitsBlock];
    for (size_t block = 0; block < block_max_.size(); ++block) {
      if (scaled(block_max_[block]) < -28.0f) continue;  // no mass
      const int64_t begin = block_begin(block), size = block_size(block);
      for (int64_t i = 0; i < size; ++i) values[i] = scaled(logits_[begin + i]);
      kernels_.fixed_point_probs(values, size, masses);
      for (int64_t i = 0; i < size; ++i) sums.add(values[i], masses[i]);
    }
    return sums;
  }

  // About the distance (scaled) from `mean` within which `mass` lies.
  float distance_around(float mean, uint64_t mass) const {
    uint64_t bins[kMassBins] = {};
    const int64_t stride = sample_masses(bins);
    const double wanted = 1.1 * static_cast<double>(mass) / static_cast<double>(stride);
    const int center = static_cast<int>(std::min(-mean * kMassBinsPerNat, kMassBins - 1.0f));
    double sum = static_cast<double>(bins[center]);
    int away = 1;
    for (; sum < wanted && away < kMassBins; ++away) {
      if (away <= center) sum += static_cast<double>(bins[center - away]);
      if (center + away < kMassBins) sum += static_cast<double>(bins[center + away]);
    }
    return static_cast<float>(away) / kMassBinsPerNat;
  }

  // Whether this token is one of those, of a share of xtc_probability, whose top choices are excluded: a draw of its own.
  bool xtc_applies(const DrawParams& params, uint32_t position) const {
    const auto probability = static_cast<float>(params.xtc_probability);
    if (probability <= 0 || probability >= 1) return probability > 0;
    float noise[2];
    kernels_.gumbel(params.seed, position, params.choice, kXtcStream, 0, 2, noise);
    return log(probability) + noise[0] > log(1 - probability) + noise[1];
  }

  Candidate draw_candidate(const DrawParams& params, uint32_t position) {
    const size_t count = candidates_.size();
    if (count == 1) return candidates_[0];
    ids_.resize(std::max(ids_.size(), count));
    values_.resize(std::max(values_.size(), count));
    for (size_t i = 0; i < count; ++i) ids_[i] = candidates_[i].id;
    kernels_.gumbel_of_ids(params.seed, position, params.choice, kDrawStream, ids_.data(), static_cast<int64_t>(count),
                           values_.data());
    const auto noisy = [this](size_t i) { return Candidate{candidates_[i].scaled + values_[i], ids_[i], 0}; };
    size_t best = 0;
    for (size_t i = 1; i < count; ++i) {
      if (before(noisy(i), noisy(best))) best = i;
    }
    return candidates_[best];
  }

  // ---- logprobs ---------------------------------------------------------------------------------------------------

  // Of the candidates, among themselves.
  void add_processed_logprobs(int64_t num_top, DrawResult& result) {
    const float log_sum = log(static_cast<float>(static_cast<double>(mass_of(candidates_)) / kFixedPointOne));
    const auto token_id = static_cast<uint32_t>(result.token_id);
    const auto drawn = std::find_if(candidates_.begin(), candidates_.end(), [=](const Candidate& c) { return c.id == token_id; });
    const Candidate own = *drawn;
    result.logprob = own.scaled - log_sum;
    result.rank = 1 + std::count_if(candidates_.begin(), candidates_.end(), [&](const Candidate& c) { return before(c, own); });
    const auto end = candidates_.begin() + std::min(num_top, static_cast<int64_t>(candidates_.size()));
    std::partial_sort(candidates_.begin(), end, candidates_.end(), before);
    for (auto c = candidates_.begin(); c != end; ++c) result.top.emplace_back(c->id, c->scaled - log_sum);
  }

  void add_raw_logprobs(int64_t num_top, float raw_top, DrawResult& result) {
    float top = 0, log_sum = 0;
    kernels_.log_sum_exp(raw_, size_, &top, &log_sum);
    const auto logprob = [&](float x) { return (x - raw_top) - log_sum; };
    const float own = raw_[result.token_id];
    result.logprob = logprob(own);
    result.rank = 1;
    for_blocks_from(own, [&](int64_t id) { result.rank += raw_[id] > own || (raw_[id] == own && id < result.token_id); });
    const auto count = static_cast<size_t>(std::min(num_top, size_));
    if (count == 0) return;
    const bool few = count <= raw_block_max_->size();
    const float least = few ? largest_block_max(*raw_block_max_, static_cast<int64_t>(count)) : -kInfinity;
    candidates_.clear();
    for_blocks_from(least, [&](int64_t id) {
      if (raw_[id] >= least) candidates_.push_back({raw_[id], static_cast<uint32_t>(id), 0});
    });
    const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(count);
    std::partial_sort(candidates_.begin(), end, candidates_.end(), before);
    for (auto c = candidates_.begin(); c != end; ++c) result.top.emplace_back(c->id, logprob(c->scaled));
  }

  // f(id) for all ids of the blocks that hold a raw logit >= least.
  template <class F>
  void for_blocks_from(float least, const F& f) const {
    for (size_t block = 0; block < raw_block_max_->size(); ++block) {
      if ((*raw_block_max_)[block] < least) continue;
      const int64_t begin = block_begin(block), end = begin + block_size(block);
      for (int64_t id = begin; id < end; ++id) f(id);
    }
  }

  const KernelTable& kernels_;
  // The row at hand.
  int64_t size_ = 0;
  const float* raw_ = nullptr;
  const float* logits_ = nullptr;  // raw_, or edited_
  float top_ = 0, temperature_ = 1;
  const Floats* raw_block_max_ = nullptr;
  // Kept from row to row for its memory.
  Floats edited_, block_max_, unedited_block_max_, sorted_, values_;
  // Of the blocks of edited_: a copy, with changes, or all of it -inf (as its maximum is, for which nobody reads it).
  enum class BlockState : uint8_t { AsItWas, Changed, NotWritten };
  std::vector<BlockState> blocks_;
  std::vector<uint32_t> ids_;
  std::vector<uint64_t> masses_;
  Candidates candidates_;
};

Sampler::Sampler(const KernelTable& kernels, std::shared_ptr<ThreadTeam> team) : kernels_(kernels), team_(std::move(team)) {
  for (int i = 0; i < (team_ ? team_->size() : 1); ++i) threads_.push_back(std::make_unique<RowSampler>(kernels_));
}

Sampler::~Sampler() = default;

std::vector<DrawResult> Sampler::draw(const std::vector<DrawRow>& rows, int64_t vocab_size) {
  class Rows final : public Job {  // one op, a tile per row
   public:
    Rows(Sampler& sampler, const std::vector<DrawRow>& rows, int64_t vocab_size, std::vector<DrawResult>& results)
        : sampler_(sampler), rows_(rows), vocab_size_(vocab_size), results_(results) {}
    int64_t next_op() override {
      if (begun_) return -1;
      begun_ = true;
      return static_cast<int64_t>(rows_.size());
    }
    void run_tile(int64_t tile, int thread) override {
      const auto i = static_cast<size_t>(tile);
      try {
        sampler_.threads_[static_cast<size_t>(thread)]->draw(rows_[i], vocab_size_, results_[i]);
      } catch (const std::bad_alloc&) {
        results_[i].status = DrawResult::Status::NoMemory;
      }
    }

   private:
    Sampler& sampler_;
    const std::vector<DrawRow>& rows_;
    const int64_t vocab_size_;
    std::vector<DrawResult>& results_;
    bool begun_ = false;
  };

  const std::lock_guard<std::mutex> one_caller(mutex_);
  std::vector<DrawResult> results(rows.size());
  Rows job(*this, rows, vocab_size, results);
  if (team_ && rows.size() > 1) {
    team_->run(job);
  } else {
    const FloatEnvironment environment;
    for (size_t i = 0; i < rows.size(); ++i) job.run_tile(static_cast<int64_t>(i), 0);
  }
  return results;
}

}  // namespace hotloop
