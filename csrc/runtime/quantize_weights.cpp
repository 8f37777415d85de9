#include "runtime/quantize_weights.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

namespace hotloop {
namespace {

constexpr int64_t kTileElements = 1 << 14;  // whole superblocks of every format; 64 KB of floats stay in a core's cache
constexpr int64_t kNoFault = std::numeric_limits<int64_t>::max();

int64_t source_bytes(WeightFormat format) { return format == WeightFormat::F32 ? 4 : 2; }

void widen(WeightFormat format, const uint8_t* src, int64_t count, float* dst) {
  if (format == WeightFormat::F32) {
    std::memcpy(dst, src, count * 4);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint16_t half;
    std::memcpy(&half, src + 2 * i, 2);
    if (format == WeightFormat::F16) {
      dst[i] = from_f16(half);
    } else {
      const uint32_t bits = static_cast<uint32_t>(half) << 16;
      std::memcpy(dst + i, &bits, 4);
    }
  }
}

class Quantizing final : public Job {
 public:
  Quantizing(WeightFormat format, WeightFormat source_format, const uint8_t* src, int64_t count, uint8_t* dst, int threads)
      : format_(format), source_format_(source_format), src_(src), count_(count), dst_(dst),
        step_((count / kTileElements / ThreadTeam::kMaxTiles + 1) * kTileElements), floats_(threads) {
    for (auto& floats : floats_) floats.reset(new float[kTileElements]);
  }

  int64_t next_op() override {
    if (started_) return -1;
    started_ = true;
    return (count_ + step_ - 1) / step_;
  }
  void run_tile(int64_t tile, int thread) override {
    const int64_t end = std::min((tile + 1) * step_, count_);
    for (int64_t begin = tile * step_; begin < end; begin += kTileElements) {
      part(begin, std::min(kTileElements, end - begin), floats_[thread].get());
    }
  }
  QuantizeFault fault() const {
    const int64_t fault = fault_.load();
    if (fault == kNoFault) return {};
    return {static_cast<QuantizeError>(fault & 3), fault >> 2};
  }

 private:
  void part(int64_t begin, int64_t count, float* floats) {
    const int64_t elements = superblock_elements(format_), bytes = superblock_bytes(format_);
    widen(source_format_, src_ + begin * source_bytes(source_format_), count, floats);
    uint8_t* dst = dst_ + begin / elements * bytes;
    if (quantize_superblocks(format_, floats, count / elements, dst) == QuantizeError::None) return;
    for (int64_t i = 0; i < count; i += elements) {  // which one it was
      const QuantizeError error = quantize_superblocks(format_, floats + i, 1, dst);
      if (error == QuantizeError::None) continue;
      int64_t at = i;
      if (error == QuantizeError::NotFinite) while (std::isfinite(floats[at])) ++at;
      report((begin + at) << 2 | static_cast<int64_t>(error));
      return;
    }
  }
  void report(int64_t fault) {  // the first element's stays, whoever finds it
    for (int64_t seen = fault_.load(); fault < seen && !fault_.compare_exchange_weak(seen, fault);) {
    }
  }

  const WeightFormat format_, source_format_;
  const uint8_t* src_;
  const int64_t count_;
  uint8_t* dst_;
  const int64_t step_;
  std::vector<std::unique_ptr<float[]>> floats_;
  std::atomic<int64_t> fault_{kNoFault};
  bool started_ = false;
};

}  // namespace

QuantizeFault quantize_weights(WeightFormat format, WeightFormat source_format, const uint8_t* src, int64_t count, uint8_t* dst,
                               ThreadTeam& team) {
  Quantizing job(format, source_format, src, count, dst, team.size());
  team.run(job);
  return job.fault();
}

}  // namespace hotloop
