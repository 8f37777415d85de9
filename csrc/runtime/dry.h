// DRY: a penalty on tokens that would go on repeating what the context ends with (docs/sampling.md).
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace hotloop {

struct DryParams {
  double multiplier = 0, base = 1.75;
  int64_t allowed_length = 2;
};

// The tokens, ascending, that followed earlier occurrences of the context's end, and what is to be subtracted from their
// logits: multiplier * base^(length - allowed_length) for the longest such occurrence, of at most max_length tokens, where
// it has allowed_length or more. ids: [n], the context.
std::vector<std::pair<int32_t, float>> dry_penalties(const DryParams& params, const int32_t* ids, int64_t n, int64_t max_length);

}  // namespace hotloop
