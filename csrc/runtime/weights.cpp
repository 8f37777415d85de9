#include "runtime/weights.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace hotloop {

WeightMatrix::WeightMatrix(WeightFormat format, int64_t rows, int64_t cols, const uint8_t* src, ThreadTeam& team) {
  const int64_t blocks = (rows + kRowBlock - 1) / kRowBlock;
  const int64_t block_bytes = row_block_bytes(format, cols);
  memory_ = AlignedBuffer(blocks * block_bytes);
  matrix_ = Matrix{format, rows, cols, memory_.data()};

  struct Context {
    WeightFormat format;
    const uint8_t* src;
    int64_t rows, cols, blocks, block_bytes, chunk;
    uint8_t* dst;
    std::atomic<int64_t> next{0};
  } context{format, src, rows, cols, blocks, block_bytes, std::max<int64_t>(1, (1 << 20) / block_bytes), memory_.data()};
  team.run(
      [](void* p, int) {
        auto& c = *static_cast<Context*>(p);
        for (int64_t begin; (begin = c.next.fetch_add(c.chunk)) < c.blocks;) {
          const int64_t end = std::min(begin + c.chunk, c.blocks);
          repack(c.format, c.src, c.rows, c.cols, begin, end, c.dst + begin * c.block_bytes);
        }
      },
      &context);
}

WeightVector::WeightVector(const float* src, int64_t n) : memory(n * 4), size(n) {
  std::memcpy(memory.data(), src, n * 4);
}

}  // namespace hotloop
