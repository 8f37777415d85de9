// A team of threads that runs one function on all of them (SPMD), the caller being thread 0. Between calls workers spin
// for a bounded time, then sleep: an idle team uses no CPU. Results never depend on which thread does what.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace hotloop {

// A generation counter that can be waited for: spin a while, then sleep.
class Gate {
 public:
  uint32_t generation() const { return generation_.load(std::memory_order_acquire); }
  void open();                         // next generation, wakes all sleepers
  void wait_past(uint32_t generation); // returns once generation() != generation

 private:
  std::atomic<uint32_t> generation_{0};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

class ThreadTeam {
 public:
  explicit ThreadTeam(int num_threads);  // >= 1; starts num_threads - 1 workers with the caller's affinity
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return num_threads_; }

  using Task = void (*)(void* context, int thread);
  // Runs task(context, thread) on every thread and returns when all are done. One caller at a time (others wait).
  // Kernels see the default floating-point environment; the caller's is restored.
  void run(Task task, void* context);

  // Inside a task: returns once every thread of the team has arrived. Every thread must call it equally often.
  void barrier();

 private:
  void worker(int thread);

  const int num_threads_;
  std::mutex run_mutex_;
  Gate start_;
  Gate barrier_gate_;
  std::atomic<int> arrived_{0};
  Task task_ = nullptr;
  void* context_ = nullptr;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace hotloop
