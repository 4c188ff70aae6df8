// A pool of threads that share the parts of one task.
//
// A task is a function and a number of parts. `run` posts it: it stores the function, then the number of parts and the
// next part (0) in one atomic word. Whoever is free adds 1 to the word and computes the part that it got, until the
// parts are used up; a count of finished parts tells the caller when all results are there. Helpers spin
// between the operations of a step, which follow each other within microseconds, and sleep between steps. After a fork
// the pool is made anew: threads do not survive one.
//
// The caller works too, and waits only for parts that a helper has begun. A helper without a core at that moment (an
// event loop runs beside the engine, often on two cores) therefore delays nothing, as it would at a barrier of OpenMP.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

#include <pthread.h>
#if defined(__x86_64__)
#include <immintrin.h>
inline void relax() { _mm_pause(); }
#else
inline void relax() {}
#endif

class Pool {
  // How many parts the task has (high half) and the next one (low half), in one word: whoever adds 1 learns whether the
  // part is one of this task, even if another task is posted meanwhile.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint32_t> done_{0};
  alignas(64) std::atomic<int> asleep_{0};
  alignas(64) std::atomic<int> wanted_{0};  // Helpers that the task is worth.
  std::atomic<bool> failed_{false};         // A part could not get memory.
  void (*part_)(const void*, uint32_t) = nullptr;
  const void* task_ = nullptr;
  std::mutex busy_, sleep_;
  std::condition_variable wake_;
  int helpers_ = 0;

  static bool open(uint64_t ticket) { return (uint32_t)ticket < ticket >> 32; }

  void take_parts() {
    while (open(ticket_.load(std::memory_order_relaxed))) {
      uint64_t taken = ticket_.fetch_add(1, std::memory_order_acq_rel);
      if (!open(taken)) return;
      try {
        part_(task_, (uint32_t)taken);
      } catch (const std::exception&) {  // Parts throw std::bad_alloc only.
        failed_.store(true, std::memory_order_relaxed);
      }
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  // A process that may have no more threads or memory (a limit of the container) computes with those that it has.
  void start_helpers(int wanted) {
    try {
      for (; helpers_ < wanted; helpers_++) std::thread([this, helper = helpers_] { help(helper); }).detach();
    } catch (const std::exception&) {
    }
  }

  bool called(int helper) { return helper < wanted_.load(std::memory_order_relaxed) && open(ticket_.load()); }

  void help(int helper) {
    constexpr int SPINS = 1000;  // Some 20 us: longer than the pause between two operations, not than one between steps.
    for (int idle = 0;;) {
      if (called(helper)) {
        take_parts();
        idle = 0;
      } else if (++idle < SPINS) {
        relax();
      } else {
        std::unique_lock<std::mutex> lock(sleep_);
        asleep_.fetch_add(1);
        wake_.wait(lock, [&] { return called(helper); });
        asleep_.fetch_sub(1);
        idle = 0;
      }
    }
  }

 public:
  // Call part(i) for all i below `parts`, on up to `threads` threads: as many as get `worth` each of the work. Another
  // caller at the same time works alone. Throws std::bad_alloc if a part could not get memory.
  template <typename Part>
  void run(uint32_t parts, int threads, long work, long worth, const Part& part) {
    threads = work / worth < threads ? work / worth : threads;
    std::unique_lock<std::mutex> mine(busy_, std::defer_lock);
    if (parts < 2 || threads < 2 || !mine.try_lock()) {
      for (uint32_t i = 0; i < parts; i++) part(i);
      return;
    }
    start_helpers(threads - 1);
    part_ = [](const void* task, uint32_t i) { (*(const Part*)task)(i); };
    task_ = &part;
    done_.store(0, std::memory_order_relaxed);
    failed_.store(false, std::memory_order_relaxed);
    wanted_.store(threads - 1, std::memory_order_relaxed);
    ticket_.store((uint64_t)parts << 32);
    if (asleep_.load() > 0) {
      std::lock_guard<std::mutex> lock(sleep_);
      wake_.notify_all();
    }
    take_parts();
    while (done_.load(std::memory_order_acquire) < parts) relax();
    if (failed_.load(std::memory_order_relaxed)) throw std::bad_alloc();
  }
};

inline Pool& pool() {
  alignas(Pool) static unsigned char memory[sizeof(Pool)];
  static Pool* shared = [] {
    // A forked process has no helpers, and a lock that one of them held is never released there: it begins anew.
    pthread_atfork(nullptr, nullptr, [] { new (memory) Pool; });
    return new (memory) Pool;  // Never destroyed: its helpers run until the process ends.
  }();
  return *shared;
}
