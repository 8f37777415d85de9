#include "runtime/weights.h"

#include <algorithm>
#include <cstring>

namespace hotloop {
namespace {

// One op; a tile is about a megabyte of row blocks.
class Repacking final : public Job {
 public:
  Repacking(const Matrix& matrix, const uint8_t* src, int64_t block_bytes, uint8_t* dst)
      : matrix_(matrix), src_(src), dst_(dst), block_bytes_(block_bytes), blocks_((matrix.rows + kRowBlock - 1) / kRowBlock),
        step_(std::max((int64_t{1} << 20) / block_bytes, blocks_ / ThreadTeam::kMaxTiles + 1)) {}

  int64_t next_op() override {
    if (started_) return -1;
    started_ = true;
    return (blocks_ + step_ - 1) / step_;
  }
  void run_tile(int64_t tile, int) override {
    const int64_t begin = tile * step_, end = std::min(begin + step_, blocks_);
    repack(matrix_.format, src_, matrix_.rows, matrix_.cols, begin, end, dst_ + begin * block_bytes_);
  }

 private:
  const Matrix& matrix_;
  const uint8_t* src_;
  uint8_t* dst_;
  int64_t block_bytes_, blocks_, step_;
  bool started_ = false;
};

}  // namespace

WeightMatrix::WeightMatrix(WeightFormat format, int64_t rows, int64_t cols, const uint8_t* src, ThreadTeam& team) {
  const int64_t blocks = (rows + kRowBlock - 1) / kRowBlock;
  const int64_t block_bytes = row_block_bytes(format, cols);
  memory_ = AlignedBuffer(blocks * block_bytes);
  matrix_ = Matrix{format, rows, cols, memory_.data()};

  Repacking job(matrix_, src, block_bytes, memory_.data());
  team.run(job);
}

WeightVector::WeightVector(const float* src, int64_t n) : memory(n * 4), size(n) {
  std::memcpy(memory.data(), src, n * 4);
}

}  // namespace hotloop
