// The one measurement of this machine's read bandwidth: the ceiling every figure of the project is a share of.
#pragma once
#include <cstdint>
#include <vector>

namespace hotloop {

// Bytes per second of the samples taken in about `seconds`, at least 3, by `threads` threads that read disjoint shares of
// `bytes` of memory; a sample reads a quarter of them. Each thread reads `streams` (1, 2, 4 or 8) far streams in lockstep;
// 0: the access patterns 1, 4 and 8 take turns, and the samples of the one with the best median are returned, because
// which one fills the memory bus differs between machines. `bytes` should be many times the last-level cache; the memory
// is released on return. Throws std::bad_alloc where there is not enough.
std::vector<double> measure_read_bandwidth(int threads, int64_t bytes, double seconds, int streams = 0);

}  // namespace hotloop
