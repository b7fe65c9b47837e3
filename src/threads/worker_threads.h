// Threads that take parts of one call's work.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace per::cpu {

// Threads are started when they are first needed, and wait in between. One call of run() at a time. In a forked child,
// where they do not exist, they are started again.
class WorkerThreads {
 public:
    // The caller's thread is one of n_threads.
    explicit WorkerThreads(int64_t n_threads);
    ~WorkerThreads();
    WorkerThreads(const WorkerThreads&) = delete;
    WorkerThreads& operator=(const WorkerThreads&) = delete;

    int64_t count() const { return n_workers_ + 1; }

    // Calls part(0) .. part(n_parts - 1), each on a thread of its own, and returns when all are done; n_parts is at
    // most count(). Where a thread cannot be started the caller does its part. `part` must not throw.
    template <class Part>
    void run(int64_t n_parts, const Part& part) {
        run(
            n_parts, [](const void* work, int64_t i) { (*static_cast<const Part*>(work))(i); }, &part);
    }

 private:
    using Work = void (*)(const void* part, int64_t i);
    enum State : int { idle, at_work, stopping };

    struct Worker {
        std::atomic<int> state{idle};
        Work work = nullptr;
        const void* part = nullptr;
        int64_t i = 0;
        pthread_t thread = {};
        bool is_running = false;
    };

    void run(int64_t n_parts, Work work, const void* part);
    static bool start(Worker& worker);
    static void* loop(void* worker);

    int64_t n_workers_;
    std::unique_ptr<Worker[]> workers_;
    uint64_t process_;  // HandleLock::process() of the process that has the threads
};

}  // namespace per::cpu
