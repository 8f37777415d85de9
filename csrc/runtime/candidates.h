// The logits of a row that are still in the game, and the filters that compare them with each other.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernel_table.h"

namespace hotloop {

struct Candidate {
  float scaled;
  uint32_t id;
  uint64_t mass;  // of fixed_point_probs
};

using Candidates = std::vector<Candidate>;

// The order of every filter: larger logits first, of equal ones the lower id.
inline bool before(const Candidate& a, const Candidate& b) {
  return a.scaled > b.scaled || (a.scaled == b.scaled && a.id < b.id);
}

uint64_t mass_of(const Candidates& candidates);

// fraction * total, rounded up; at least 1.
uint64_t share_of(double fraction, uint64_t total);

// How much of `total` the first candidates must reach; 0 if all must stay.
uint64_t nucleus_mass(double fraction, uint64_t total);

void drop_lighter(Candidates& candidates, uint64_t least_mass);

// The shortest prefix in order whose mass reaches `target`.
void keep_mass(Candidates& candidates, uint64_t target);

// The mean of scaled logits, each weighed by its mass. Sums of integers: units of 2^-20, and the mass in two halves of 20 bits, so
// that 2^18 terms stay below 2^64.
class MeanScaled {
 public:
  void add(float scaled, uint64_t mass) {
    const auto distance = static_cast<uint32_t>(static_cast<int32_t>(std::max(scaled, -64.0f) * -0x1p20f));
    total_ += mass;
    high_ += uint64_t{static_cast<uint32_t>(mass >> 20)} * distance;
    low_ += uint64_t{static_cast<uint32_t>(mass & 0xfffff)} * distance;
  }
  uint64_t total() const { return total_; }
  float mean() const {  // something has a mass
    const double sum = static_cast<double>(high_) * 0x1p20 + static_cast<double>(low_);
    return static_cast<float>(-sum / static_cast<double>(total_) * 0x1p-20);
  }

 private:
  uint64_t total_ = 0, high_ = 0, low_ = 0;
};

// Of those whose share of the mass is at least `threshold` only the last in order stays.
void exclude_top_choices(Candidates& candidates, double threshold);

}  // namespace hotloop
