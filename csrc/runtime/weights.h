// Weights as the engine owns them: matrices repacked once from a file or from memory, vectors as f32.
#pragma once
#include <cstdint>
#include <memory>

#include "kernels/kernel_table.h"
#include "runtime/aligned.h"
#include "runtime/thread_team.h"

namespace hotloop {

// One block that many matrices lie in, end to end: large enough for huge pages to cover small matrices too, and no matrix
// rounded up to whole huge pages.
class WeightMemory {
 public:
  explicit WeightMemory(int64_t bytes) : buffer_(bytes) {}
  // The next bytes, 64-byte aligned. Throws std::length_error when not that many are left.
  uint8_t* take(int64_t bytes);

 private:
  AlignedBuffer buffer_;
  int64_t used_ = 0;
};

// Bytes that a repacked matrix takes of a WeightMemory.
int64_t matrix_bytes(WeightFormat format, int64_t rows, int64_t cols);

// Where rows of a matrix are read from: rows * source_row_bytes(format, cols) bytes. Called by the team's threads.
class RowSource {
 public:
  virtual ~RowSource() = default;
  // bytes [begin, begin + size) of the rows, valid until the thread's next call; nullptr if they cannot be read.
  virtual const uint8_t* read(int64_t begin, int64_t size, int thread) = 0;
};

class WeightMatrix {
 public:
  // Not filled yet. memory: where it lies; nullptr for a block of its own.
  WeightMatrix(WeightFormat format, int64_t rows, int64_t cols, std::shared_ptr<WeightMemory> memory);
  // Repacks the source, which is rows [first, first + rows), in parallel, a tile of rows at a time per thread.
  // Whole row blocks (kRowBlock), or up to the last row. Throws std::out_of_range for others.
  void fill(int64_t first, int64_t rows, RowSource& source, ThreadTeam& team);
  // Rows [begin, begin + rows) of `whole`, in its memory: a part of a fused matrix. begin: a multiple of kRowBlock.
  // Throws std::invalid_argument for any other range.
  WeightMatrix(const WeightMatrix& whole, int64_t begin, int64_t rows);
  const Matrix& matrix() const { return matrix_; }
  int64_t nbytes() const { return nbytes_; }

 private:
  std::shared_ptr<WeightMemory> memory_;
  int64_t nbytes_;
  uint8_t* data_;
  Matrix matrix_;
};

// The rows are in memory.
class MemoryRows final : public RowSource {
 public:
  explicit MemoryRows(const uint8_t* data) : data_(data) {}
  const uint8_t* read(int64_t begin, int64_t, int) override { return data_ + begin; }

 private:
  const uint8_t* data_;
};

class WeightVector {
 public:
  WeightVector(const float* src, int64_t n);
  // Elements [begin, begin + n) of `whole`, in its memory. Throws std::invalid_argument for a range that is not there.
  WeightVector(const WeightVector& whole, int64_t begin, int64_t n);
  const float* data() const { return data_; }
  int64_t size() const { return size_; }
  int64_t nbytes() const { return memory_->size(); }

 private:
  std::shared_ptr<AlignedBuffer> memory_;
  const float* data_;
  int64_t size_;
};

}  // namespace hotloop
