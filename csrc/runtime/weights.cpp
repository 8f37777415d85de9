#include "runtime/weights.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace hotloop {
namespace {

constexpr int64_t kTileBytes = int64_t{256} << 10;  // a tile's rows and their repacked form stay in a core's cache

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

int64_t row_blocks(int64_t rows) { return (rows + kRowBlock - 1) / kRowBlock; }

// One op; a tile is a few row blocks.
class Repacking final : public Job {
 public:
  Repacking(const Matrix& matrix, RowSource& source, uint8_t* dst)
      : matrix_(matrix), source_(source), dst_(dst), row_bytes_(source_row_bytes(matrix.format, matrix.cols)),
        block_bytes_(row_block_bytes(matrix.format, matrix.cols)), blocks_(row_blocks(matrix.rows)),
        step_(std::max(kTileBytes / block_bytes_, blocks_ / ThreadTeam::kMaxTiles + 1)) {}

  int64_t next_op() override {
    if (started_) return -1;
    started_ = true;
    return (blocks_ + step_ - 1) / step_;
  }
  void run_tile(int64_t tile, int thread) override {
    const int64_t begin = tile * step_, end = std::min(begin + step_, blocks_);
    const int64_t first = begin * kRowBlock, rows = std::min(end * kRowBlock, matrix_.rows) - first;
    const uint8_t* src = source_.read(first * row_bytes_, rows * row_bytes_, thread);
    if (src != nullptr) repack(matrix_.format, src, rows, matrix_.cols, 0, end - begin, dst_ + begin * block_bytes_);
  }

 private:
  const Matrix& matrix_;
  RowSource& source_;
  uint8_t* dst_;
  int64_t row_bytes_, block_bytes_, blocks_, step_;
  bool started_ = false;
};

}  // namespace

uint8_t* WeightMemory::take(int64_t bytes) {
  if (bytes > buffer_.size() - used_) throw std::length_error("the weight memory is too small for its matrices");
  uint8_t* at = buffer_.data() + used_;
  used_ = std::min(round_up(used_ + bytes, 64), buffer_.size());
  return at;
}

int64_t matrix_bytes(WeightFormat format, int64_t rows, int64_t cols) {
  return round_up(row_blocks(rows) * row_block_bytes(format, cols), 64);
}

WeightMatrix::WeightMatrix(WeightFormat format, int64_t rows, int64_t cols, std::shared_ptr<WeightMemory> memory)
    : memory_(std::move(memory)), nbytes_(row_blocks(rows) * row_block_bytes(format, cols)) {
  if (memory_ == nullptr) memory_ = std::make_shared<WeightMemory>(nbytes_);
  data_ = memory_->take(nbytes_);
  matrix_ = Matrix{format, rows, cols, data_};
}

void WeightMatrix::fill(int64_t first, int64_t rows, RowSource& source, ThreadTeam& team) {
  if (first < 0 || rows < 0 || first + rows > matrix_.rows || first % kRowBlock != 0 ||
      (rows % kRowBlock != 0 && first + rows != matrix_.rows)) {
    throw std::out_of_range("rows of a weight matrix are filled in whole row blocks");
  }
  uint8_t* dst = data_ + first / kRowBlock * row_block_bytes(matrix_.format, matrix_.cols);
  const Matrix part{matrix_.format, rows, matrix_.cols, dst};
  Repacking job(part, source, dst);
  team.run(job);
}

WeightMatrix::WeightMatrix(const WeightMatrix& whole, int64_t begin, int64_t rows)
    : memory_(whole.memory_), nbytes_(row_blocks(rows) * row_block_bytes(whole.matrix_.format, whole.matrix_.cols)),
      data_(whole.data_), matrix_(whole.matrix_) {
  if (begin < 0 || begin % kRowBlock != 0 || rows < 1 || begin > whole.matrix_.rows - rows) {
    throw std::invalid_argument("a part of a matrix must begin at a multiple of 8 rows and lie inside it");
  }
  data_ += begin / kRowBlock * row_block_bytes(matrix_.format, matrix_.cols);
  matrix_.rows = rows;
  matrix_.data = data_;
}

WeightVector::WeightVector(const float* src, int64_t n)
    : memory_(std::make_shared<AlignedBuffer>(n * 4)), data_(reinterpret_cast<const float*>(memory_->data())), size_(n) {
  std::memcpy(memory_->data(), src, n * 4);
}

WeightVector::WeightVector(const WeightVector& whole, int64_t begin, int64_t n)
    : memory_(whole.memory_), data_(whole.data_), size_(n) {
  if (begin < 0 || n < 1 || begin > whole.size_ - n) throw std::invalid_argument("a part of a vector must lie inside it");
  data_ += begin;
}

}  // namespace hotloop
