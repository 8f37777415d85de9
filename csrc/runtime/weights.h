// Weights as the engine owns them: matrices repacked once from a mapped file, vectors as f32.
#pragma once
#include <cstdint>
#include <memory>

#include "kernels/kernel_table.h"
#include "runtime/aligned.h"
#include "runtime/thread_team.h"

namespace hotloop {

class WeightMatrix {
 public:
  // Repacks rows * source_row_bytes(format, cols) bytes at src, in parallel. src is not needed afterwards.
  WeightMatrix(WeightFormat format, int64_t rows, int64_t cols, const uint8_t* src, ThreadTeam& team);
  const Matrix& matrix() const { return matrix_; }
  int64_t nbytes() const { return memory_.size(); }

 private:
  AlignedBuffer memory_;
  Matrix matrix_;
};

struct WeightVector {
  WeightVector(const float* src, int64_t n);
  const float* data() const { return reinterpret_cast<const float*>(memory.data()); }
  AlignedBuffer memory;
  int64_t size;
};

}  // namespace hotloop
