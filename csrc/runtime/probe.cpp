#include "runtime/probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "runtime/aligned.h"
#include "runtime/thread_team.h"

namespace hotloop {
namespace {

constexpr int64_t kLine = 64;
constexpr int kParts = 4;  // a sample reads one part of every thread's share; the others meanwhile leave the caches
constexpr size_t kMinSamples = 3;

// Sums S streams of `lines` cache lines, one line of each at a time. The sum only keeps the loads alive.
template <int S>
uint64_t read_streams(const uint8_t* data, int64_t lines) {
  constexpr int kWords = kLine / 8;
  uint64_t sum[kWords] = {};
  const uint64_t* words = reinterpret_cast<const uint64_t*>(data);
  for (int64_t line = 0; line < lines; ++line) {
    for (int s = 0; s < S; ++s) {
      const uint64_t* p = words + (s * lines + line) * kWords;
      for (int i = 0; i < kWords; ++i) sum[i] += p[i];
    }
  }
  uint64_t total = 0;
  for (const uint64_t word : sum) total += word;
  return total;
}

uint64_t read_lines(const uint8_t* data, int64_t lines_per_stream, int streams) {
  switch (streams) {
    case 1: return read_streams<1>(data, lines_per_stream);
    case 2: return read_streams<2>(data, lines_per_stream);
    case 4: return read_streams<4>(data, lines_per_stream);
    default: return read_streams<8>(data, lines_per_stream);
  }
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct Pattern {
  int streams;
  std::vector<double> samples;
};

class Probe {
 public:
  Probe(int threads, int64_t bytes, double seconds, int streams)
      : team_(threads), memory_(bytes), part_lines_(bytes / threads / kLine / kParts), seconds_(seconds) {
    if (streams == 0) {
      patterns_ = {{4, {}}, {8, {}}, {1, {}}};
    } else {
      patterns_ = {{streams, {}}};
    }
  }

  std::vector<double> measure() {
    team_.run([](void* self, int thread) { static_cast<Probe*>(self)->run(thread); }, this);
    const auto worse = [](const Pattern& a, const Pattern& b) { return median(a.samples) < median(b.samples); };
    return std::max_element(patterns_.begin(), patterns_.end(), worse)->samples;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void run(int thread) {
    uint8_t* share = memory_.data() + thread * kParts * part_lines_ * kLine;
    std::memset(share, 1, kParts * part_lines_ * kLine);  // real pages, on the reading thread's node
    const auto begin = Clock::now();
    for (size_t i = 0; more_; ++i) {
      Pattern& pattern = patterns_[i % patterns_.size()];
      // Streams a power of two apart would meet in the same cache sets and memory banks: an odd number of lines.
      const int64_t lines = (part_lines_ / pattern.streams - 1) | 1;
      team_.barrier();
      const auto start = Clock::now();
      sink_ += read_lines(share + (i % kParts) * part_lines_ * kLine, lines, pattern.streams);
      team_.barrier();
      if (thread == 0) {
        const auto stop = Clock::now();
        const double bytes = static_cast<double>(lines) * pattern.streams * kLine * team_.size();
        pattern.samples.push_back(bytes / std::chrono::duration<double>(stop - start).count());
        more_ = i + 1 < kMinSamples * patterns_.size() || std::chrono::duration<double>(stop - begin).count() < seconds_;
      }
      team_.barrier();  // everybody sees more_
    }
  }

  ThreadTeam team_;
  AlignedBuffer memory_;
  int64_t part_lines_;
  double seconds_;
  std::vector<Pattern> patterns_;
  bool more_ = true;
  std::atomic<uint64_t> sink_{0};
};

}  // namespace

std::vector<double> measure_read_bandwidth(int threads, int64_t bytes, double seconds, int streams) {
  return Probe(threads, bytes, seconds, streams).measure();
}

}  // namespace hotloop
