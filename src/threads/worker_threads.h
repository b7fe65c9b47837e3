// Threads that share the work of one call.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "threads/own_thread.h"

namespace per::cpu {

// Starts threads when they are first needed, and again in a forked child. One call of run() at a time.
class WorkerThreads {
 public:
    // The caller's thread is one of n_threads.
    explicit WorkerThreads(int64_t n_threads);
    ~WorkerThreads();
    WorkerThreads(const WorkerThreads&) = delete;
    WorkerThreads& operator=(const WorkerThreads&) = delete;

    int64_t count() const { return n_workers_ + 1; }

    // Calls part(0) .. part(n_parts - 1), each on a different thread, and returns when all are done; n_parts is at most
    // count(). The caller runs the part of a thread that cannot be started. `part` must not throw.
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
        OwnThread thread;

        void loop();
    };

    void run(int64_t n_parts, Work work, const void* part);

    int64_t n_workers_;
    std::unique_ptr<Worker[]> workers_;
};

}  // namespace per::cpu
