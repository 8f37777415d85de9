// Rows read from a file, a tile at a time into a buffer per thread. Not from a mapping: its pages would count as the
// process's memory, and touching one that a truncated file no longer has would end the process.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "runtime/aligned.h"
#include "runtime/weights.h"

namespace hotloop {

class FileRows final : public RowSource {
 public:
  // fd: open for reading, for as long as this lives. offset: bytes, of the matrix in the file.
  FileRows(int fd, int64_t offset, int num_threads) : fd_(fd), offset_(offset), buffers_(num_threads) {}
  const uint8_t* read(int64_t begin, int64_t size, int thread) override;
  // Throws std::runtime_error if a read failed or met the end of the file.
  void check() const;

 private:
  static constexpr int kEndOfFile = -1;
  static constexpr int kNoMemory = -2;

  const int fd_;
  const int64_t offset_;
  std::vector<AlignedBuffer> buffers_;
  std::atomic<int> error_{0};  // of the last read that failed: errno or one of the above
};

}  // namespace hotloop
