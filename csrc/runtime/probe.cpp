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
constexpr int64_t kMinSamples = 3;

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

// One op is one sample (the first only fills the memory); its tiles read the share of one thread each.
class Probe final : public Job {
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
    team_.run(*this);
    const auto worse = [](const Pattern& a, const Pattern& b) { return median(a.samples) < median(b.samples); };
    return std::max_element(patterns_.begin(), patterns_.end(), worse)->samples;
  }

  int64_t next_op() override {
    const auto now = Clock::now();
    if (sample_ == kFill - 1) {
      begin_ = now;
    } else if (sample_ >= 0) {
      const double bytes = static_cast<double>(lines()) * pattern().streams * kLine * team_.size();
      pattern().samples.push_back(bytes / std::chrono::duration<double>(now - start_).count());
      const bool enough = sample_ + 1 >= kMinSamples * static_cast<int64_t>(patterns_.size());
      if (enough && std::chrono::duration<double>(now - begin_).count() >= seconds_) return -1;
    }
    ++sample_;
    start_ = Clock::now();
    return team_.size();
  }

  void run_tile(int64_t tile, int) override {
    uint8_t* share = memory_.data() + tile * kParts * part_lines_ * kLine;
    if (sample_ == kFill) {
      std::memset(share, 1, kParts * part_lines_ * kLine);  // real pages
    } else {
      sink_ += read_lines(share + (sample_ % kParts) * part_lines_ * kLine, lines(), pattern().streams);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kFill = -1;

  Pattern& pattern() { return patterns_[sample_ % patterns_.size()]; }
  // Streams a power of two apart would meet in the same cache sets and memory banks: an odd number of lines.
  int64_t lines() { return (part_lines_ / pattern().streams - 1) | 1; }

  ThreadTeam team_;
  AlignedBuffer memory_;
  int64_t part_lines_;
  double seconds_;
  std::vector<Pattern> patterns_;
  int64_t sample_ = kFill - 1;
  Clock::time_point begin_, start_;
  std::atomic<uint64_t> sink_{0};
};

class PeakProbe final : private Job {
 public:
  PeakProbe(int64_t (*kernel)(int64_t, float*), int threads, double seconds)
      : team_(threads), kernel_(kernel), seconds_(seconds) {}

  std::vector<double> measure() {
    using Clock = std::chrono::steady_clock;
    const auto seconds_since = [](Clock::time_point start) {
      return std::chrono::duration<double>(Clock::now() - start).count();
    };
    const auto begin = Clock::now();
    std::vector<double> samples;
    while (samples.size() < kMinSamples || seconds_since(begin) < seconds_) {
      started_ = false;
      operations_ = 0;
      const auto start = Clock::now();
      team_.run(*this);
      const double seconds = seconds_since(start);
      if (seconds < kSampleSeconds / 2) {
        rounds_ *= 2;
      } else {
        samples.push_back(static_cast<double>(operations_) / seconds);
      }
    }
    return samples;
  }

 private:
  static constexpr double kSampleSeconds = 1e-3;

  int64_t next_op() override {
    if (started_) return -1;
    started_ = true;
    return team_.size();
  }
  void run_tile(int64_t, int) override {
    float sink[16];
    operations_ += kernel_(rounds_, sink);
  }

  ThreadTeam team_;
  int64_t (*kernel_)(int64_t, float*);
  double seconds_;
  bool started_ = false;
  int64_t rounds_ = 1024;
  std::atomic<int64_t> operations_{0};
};

}  // namespace

std::vector<double> measure_read_bandwidth(int threads, int64_t bytes, double seconds, int streams) {
  return Probe(threads, bytes, seconds, streams).measure();
}

std::vector<double> measure_peak(const KernelTable& kernels, PeakKernel kernel, int threads, double seconds) {
  return PeakProbe(kernels.*kernel, threads, seconds).measure();
}

}  // namespace hotloop
