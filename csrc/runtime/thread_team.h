// A team of threads that works through a job: a list of ops, each cut into tiles. Threads, the caller among them, claim
// tiles from one word; whoever finishes an op's last tile publishes the next op. So nobody waits for a thread that holds no
// tile: one that lost its core to another process, or still sleeps, delays nothing. Waiting threads spin for a bounded time,
// then sleep: an idle team uses no CPU. Results never depend on which thread does what.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace hotloop {

class Job {
 public:
  virtual ~Job() = default;
  // Goes on to the next op and returns its number of tiles (0: nothing to do); a negative number ends the job. Called by one
  // thread at a time, after all tiles of the op before have run.
  virtual int64_t next_op() = 0;
  virtual void run_tile(int64_t tile, int thread) = 0;
};

class ThreadTeam {
 public:
  static constexpr int kTileBits = 24;
  static constexpr int64_t kMaxTiles = (int64_t{1} << kTileBits) - 1;  // of one op

  // >= 1; starts num_threads - 1 workers with the caller's affinity. Throws std::system_error if one cannot be started.
  explicit ThreadTeam(int num_threads);
  ~ThreadTeam();  // in a process forked since, where there are no workers, it leaves them alone
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return num_threads_; }

  // Works through the job and returns when it has ended. One caller at a time (others wait). Kernels see the default
  // floating-point environment; the caller's is restored.
  void run(Job& job);

 private:
  // sequence (16 bits) | tiles of the op (24) | next tile to claim (24). One word, so that a claim is one compare-exchange.
  // 0 tiles: no job.
  using Word = uint64_t;

  void worker(int thread);
  void stop();
  bool work_once(int thread);                  // claims and runs one tile; false if there is none to claim
  void publish_next_op();
  Word wait_for_change(Word seen);             // spins, then sleeps, until the word is another one than `seen`

  const int num_threads_;
  std::mutex run_mutex_;
  alignas(64) std::atomic<Word> word_{0};
  alignas(64) std::atomic<int64_t> tiles_done_{0};
  alignas(64) std::atomic<bool> stopping_{false};
  Job* job_ = nullptr;  // stable while any of its tiles is claimed and not done
  std::atomic<int> sleepers_{0};
  std::mutex sleep_mutex_;
  std::unique_ptr<std::condition_variable> wake_ = std::make_unique<std::condition_variable>();
  const int process_;
  std::vector<std::thread> workers_;
};

}  // namespace hotloop
