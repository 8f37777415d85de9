// An uninitialised, 64-byte aligned block of memory; large ones ask the kernel for huge pages.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace hotloop {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t bytes) : size_(bytes) {
    constexpr int64_t kHugePage = int64_t{2} << 20;
    const int64_t alignment = bytes >= kHugePage ? kHugePage : 64;
    const int64_t padded = (bytes + alignment - 1) / alignment * alignment;
    if (posix_memalign(reinterpret_cast<void**>(&data_), alignment, padded ? padded : alignment) != 0) {
      throw std::bad_alloc();
    }
#if defined(__linux__)
    if (bytes >= kHugePage) madvise(data_, padded, MADV_HUGEPAGE);
#endif
  }
  ~AlignedBuffer() { std::free(data_); }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  uint8_t* data() const { return data_; }
  int64_t size() const { return size_; }
  void clear() { if (size_) std::memset(data_, 0, size_); }

 private:
  uint8_t* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace hotloop
