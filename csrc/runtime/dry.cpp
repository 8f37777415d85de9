#include "runtime/dry.h"

#include <algorithm>
#include <limits>

namespace hotloop {
namespace {

// By squaring, so that it is the same product everywhere; overflows to infinity.
double power(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1, base *= base) {
    if ((exponent & 1) != 0) result *= base;
  }
  return result;
}

}  // namespace

std::vector<std::pair<int32_t, float>> dry_penalties(const DryParams& params, const int32_t* ids, int64_t n, int64_t max_length) {
  std::vector<std::pair<int32_t, int64_t>> repeats;  // token that went on, length of what it followed
  if (max_length < params.allowed_length) return {};
  // common[k]: how many tokens before the end equal those before the end less k: the Z-function of the reversed context.
  std::vector<int64_t> common(static_cast<size_t>(n));
  const auto at = [ids, n](int64_t i) { return ids[n - 1 - i]; };
  int64_t left = 0, right = 0;
  for (int64_t k = 1; k < n; ++k) {
    int64_t& length = common[static_cast<size_t>(k)];
    if (k < right) length = std::min(right - k, common[static_cast<size_t>(k - left)]);
    while (k + length < n && at(length) == at(k + length)) ++length;
    if (k + length > right) {
      left = k;
      right = k + length;
    }
    if (length >= params.allowed_length) repeats.emplace_back(at(k - 1), std::min(length, max_length));
  }
  std::sort(repeats.begin(), repeats.end());
  std::vector<std::pair<int32_t, float>> penalties;
  for (size_t i = 0; i < repeats.size(); ++i) {
    const auto [id, length] = repeats[i];
    if (i + 1 < repeats.size() && repeats[i + 1].first == id) continue;  // a longer one follows
    const double penalty = params.multiplier * power(params.base, length - params.allowed_length);
    penalties.emplace_back(id, static_cast<float>(std::min(penalty, double{std::numeric_limits<float>::max()})));
  }
  return penalties;
}

}  // namespace hotloop
