#include "runtime/file_rows.h"

#include <unistd.h>

#include <cerrno>
#include <new>
#include <stdexcept>
#include <system_error>

namespace hotloop {

const uint8_t* FileRows::read(int64_t begin, int64_t size, int thread) {
  AlignedBuffer& buffer = buffers_[thread];
  try {
    if (buffer.size() < size) buffer = AlignedBuffer(size);
  } catch (const std::bad_alloc&) {
    error_.store(kNoMemory, std::memory_order_relaxed);
    return nullptr;
  }
  for (int64_t done = 0; done < size;) {
    const ssize_t n = pread(fd_, buffer.data() + done, static_cast<size_t>(size - done), offset_ + begin + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      error_.store(n == 0 ? kEndOfFile : errno, std::memory_order_relaxed);
      return nullptr;
    }
    done += n;
  }
  return buffer.data();
}

void FileRows::check() const {
  const int error = error_.load();
  if (error == kNoMemory) throw std::bad_alloc();
  if (error == kEndOfFile) throw std::runtime_error("the file ends in it");
  if (error != 0) throw std::runtime_error(std::generic_category().message(error));
}

}  // namespace hotloop
