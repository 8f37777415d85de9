#include "runtime/thread_team.h"

#include "runtime/float_environment.h"

namespace hotloop {
namespace {

// About 50-100 us: longer than a serial gap inside a step, much shorter than anything a user would notice as CPU use.
constexpr int kSpins = 4000;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void Gate::open() {
  generation_.fetch_add(1, std::memory_order_seq_cst);
  // A sleeper counts itself before it checks the generation, so either it sees the new one or we see it here.
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }
}

void Gate::wait_past(uint32_t generation) {
  for (int i = 0; i < kSpins; ++i) {
    if (generation_.load(std::memory_order_acquire) != generation) return;
    pause_cpu();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  wake_.wait(lock, [&] { return generation_.load(std::memory_order_seq_cst) != generation; });
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

ThreadTeam::ThreadTeam(int num_threads) : num_threads_(num_threads < 1 ? 1 : num_threads) {
  for (int i = 1; i < num_threads_; ++i) workers_.emplace_back(&ThreadTeam::worker, this, i);
}

ThreadTeam::~ThreadTeam() {
  stopping_ = true;
  start_.open();
  for (auto& worker : workers_) worker.join();
}

void ThreadTeam::worker(int thread) {
  FloatEnvironment environment;
  uint32_t seen = 0;
  for (;;) {
    start_.wait_past(seen);
    ++seen;  // run() returns only after every worker has passed its last barrier, so none can miss a generation
    if (stopping_) return;
    task_(context_, thread);
    barrier();
  }
}

void ThreadTeam::run(Task task, void* context) {
  std::lock_guard<std::mutex> one_caller(run_mutex_);
  FloatEnvironment environment;
  task_ = task;
  context_ = context;
  if (num_threads_ > 1) start_.open();
  task(context, 0);
  barrier();
}

void ThreadTeam::barrier() {
  if (num_threads_ == 1) return;
  const uint32_t generation = barrier_gate_.generation();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    barrier_gate_.open();
  } else {
    barrier_gate_.wait_past(generation);
  }
}

}  // namespace hotloop
