#include "runtime/thread_team.h"

#include <unistd.h>

#include <cassert>

#include "runtime/float_environment.h"

namespace hotloop {
namespace {

// About 50-100 us: longer than a serial gap inside a step, much shorter than anything a user would notice as CPU use.
constexpr int kSpins = 4000;

constexpr int kTileBits = ThreadTeam::kTileBits;
constexpr uint64_t kTileMask = (uint64_t{1} << kTileBits) - 1;

uint64_t next_tile(uint64_t word) { return word & kTileMask; }
uint64_t num_tiles(uint64_t word) { return word >> kTileBits & kTileMask; }

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadTeam::ThreadTeam(int num_threads) : num_threads_(num_threads < 1 ? 1 : num_threads), process_(getpid()) {
  try {
    for (int i = 1; i < num_threads_; ++i) workers_.emplace_back(&ThreadTeam::worker, this, i);
  } catch (...) {  // no more threads here: those that run must end before their team does
    stop();
    throw;
  }
}

ThreadTeam::~ThreadTeam() {
  if (getpid() == process_) {
    stop();
    return;
  }
  for (auto& worker : workers_) worker.detach();
  (void)wake_.release();  // destroying it would wait for the sleepers of the parent
}

void ThreadTeam::stop() {
  stopping_.store(true);
  word_.fetch_add(uint64_t{1} << (2 * kTileBits));
  {
    std::lock_guard<std::mutex> lock(sleep_mutex_);
    wake_->notify_all();
  }
  for (auto& worker : workers_) worker.join();
}

void ThreadTeam::worker(int thread) {
  FloatEnvironment environment;
  for (Word seen = word_.load(); !stopping_.load(std::memory_order_relaxed); seen = wait_for_change(seen)) {
    while (work_once(thread)) {
    }
  }
}

void ThreadTeam::run(Job& job) {
  std::lock_guard<std::mutex> one_caller(run_mutex_);
  FloatEnvironment environment;
  job_ = &job;
  publish_next_op();
  for (Word seen = word_.load(std::memory_order_acquire);; seen = wait_for_change(seen)) {
    while (work_once(0)) {
    }
    if (num_tiles(word_.load(std::memory_order_acquire)) == 0) return;  // no op is published with 0 tiles but the end
  }
}

bool ThreadTeam::work_once(int thread) {
  Word word = word_.load(std::memory_order_acquire);
  do {
    if (next_tile(word) >= num_tiles(word)) return false;
  } while (!word_.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel, std::memory_order_acquire));
  // The claim is of the current op, whichever that is: it cannot end before this tile is counted as done.
  job_->run_tile(static_cast<int64_t>(next_tile(word)), thread);
  if (tiles_done_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<int64_t>(num_tiles(word))) publish_next_op();
  return true;
}

void ThreadTeam::publish_next_op() {
  int64_t tiles;
  while ((tiles = job_->next_op()) == 0) {
  }
  assert(tiles <= kMaxTiles);
  const Word sequence = (word_.load(std::memory_order_relaxed) >> (2 * kTileBits)) + 1;
  tiles_done_.store(0, std::memory_order_relaxed);
  if (tiles < 0) tiles = 0;
  // The last touch of the job: once the caller sees 0 tiles, it may return and start another one.
  word_.store(sequence << (2 * kTileBits) | static_cast<Word>(tiles) << kTileBits, std::memory_order_seq_cst);
  // A sleeper counts itself before it checks the word, so either it sees the new one or we see it here. A single tile is
  // left to those who are awake; the end of the job must reach the caller. In a process forked since there are no sleepers,
  // but perhaps the mutex of one that was about to sleep, locked for ever.
  if ((tiles != 1 || num_threads_ == 1) && sleepers_.load(std::memory_order_seq_cst) > 0 && getpid() == process_) {
    std::lock_guard<std::mutex> lock(sleep_mutex_);
    wake_->notify_all();
  }
}

ThreadTeam::Word ThreadTeam::wait_for_change(Word seen) {
  // Claims change the low bits; what matters to a waiter is a new op.
  const auto changed = [&](Word word) { return word >> kTileBits != seen >> kTileBits; };
  for (int i = 0; i < kSpins; ++i) {
    const Word word = word_.load(std::memory_order_acquire);
    if (changed(word)) return word;
    pause_cpu();
  }
  std::unique_lock<std::mutex> lock(sleep_mutex_);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  wake_->wait(lock, [&] { return changed(word_.load(std::memory_order_seq_cst)); });
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return word_.load(std::memory_order_acquire);
}

}  // namespace hotloop
