#include "runtime/candidates.h"

#include <numeric>

namespace hotloop {
namespace {

using Iterator = Candidates::iterator;

uint64_t mass_of(Iterator begin, Iterator end) {
  return std::accumulate(begin, end, uint64_t{0}, [](uint64_t mass, const Candidate& c) { return mass + c.mass; });
}

// keep_mass of the candidates from `begin` on. Halves are set apart, not sorted, until few are left.
void keep_mass_from(Candidates& candidates, Iterator begin, uint64_t target) {
  auto end = candidates.end();
  uint64_t mass = 0;  // of what lies before `begin` and stays
  while (end - begin > 32) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, before);
    const uint64_t left = mass_of(begin, middle);
    if (mass + left >= target) {
      end = middle;
    } else {
      mass += left;
      begin = middle;
    }
  }
  std::sort(begin, end, before);
  while (begin != end && mass < target) mass += (begin++)->mass;
  candidates.erase(begin, candidates.end());
}

}  // namespace

uint64_t mass_of(const Candidates& candidates) {
  uint64_t mass = 0;
  for (const Candidate& c : candidates) mass += c.mass;
  return mass;
}

uint64_t share_of(double fraction, uint64_t total) {
  const double wanted = std::ceil(fraction * static_cast<double>(total));
  return wanted < 1 ? 1 : static_cast<uint64_t>(wanted);
}

uint64_t nucleus_mass(double fraction, uint64_t total) {
  const uint64_t target = share_of(fraction, total);
  return fraction >= 1 || target >= total ? 0 : target;
}

void drop_lighter(Candidates& candidates, uint64_t least_mass) {
  const auto light = [least_mass](const Candidate& c) { return c.mass < least_mass; };
  candidates.erase(std::remove_if(candidates.begin(), candidates.end(), light), candidates.end());
}

// A histogram tells the bin in which the mass is reached; above it all stay, and only those of the bin are compared with
// each other.
void keep_mass(Candidates& candidates, uint64_t target) {
  uint64_t bins[kMassBins] = {};
  const auto bin_of = [](const Candidate& c) {
    return static_cast<int>(std::min(-c.scaled * kMassBinsPerNat, kMassBins - 1.0f));
  };
  for (const Candidate& c : candidates) bins[bin_of(c)] += c.mass;
  int last = 0;
  uint64_t above = 0;
  for (; above + bins[last] < target; ++last) above += bins[last];
  const auto end = std::partition(candidates.begin(), candidates.end(), [&](const Candidate& c) { return bin_of(c) <= last; });
  candidates.erase(end, candidates.end());
  const auto inside = std::partition(candidates.begin(), candidates.end(), [&](const Candidate& c) { return bin_of(c) < last; });
  keep_mass_from(candidates, inside, target - above);
}

void exclude_top_choices(Candidates& candidates, double threshold) {
  const uint64_t least = share_of(threshold, mass_of(candidates));
  const auto end = std::partition(candidates.begin(), candidates.end(), [least](const Candidate& c) { return c.mass >= least; });
  if (end - candidates.begin() < 2) return;
  std::iter_swap(std::max_element(candidates.begin(), end, before), end - 1);
  candidates.erase(candidates.begin(), end - 1);
}

}  // namespace hotloop
