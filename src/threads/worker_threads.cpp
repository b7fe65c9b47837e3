#include "threads/worker_threads.h"

#include "threads/handle_lock.h"
#include "threads/library_thread.h"

namespace per::cpu {

WorkerThreads::WorkerThreads(int64_t n_threads)
    : n_workers_(n_threads - 1),
      workers_(n_threads > 1 ? std::make_unique<Worker[]>(static_cast<std::size_t>(n_threads - 1)) : nullptr),
      process_(HandleLock::process()) {}

WorkerThreads::~WorkerThreads() {
    if (n_workers_ == 0 || process_ != HandleLock::process()) return;
    for (int64_t i = 0; i < n_workers_; ++i) {
        Worker& worker = workers_[static_cast<std::size_t>(i)];
        if (!worker.is_running) continue;
        worker.state.store(stopping, std::memory_order_release);
        worker.state.notify_one();
        pthread_join(worker.thread, nullptr);
    }
}

void* WorkerThreads::loop(void* argument) {
    Worker& worker = *static_cast<Worker*>(argument);
    for (;;) {
        worker.state.wait(idle, std::memory_order_acquire);
        if (worker.state.load(std::memory_order_acquire) == stopping) return nullptr;
        worker.work(worker.part, worker.i);
        worker.state.store(idle, std::memory_order_release);
        worker.state.notify_one();
    }
}

bool WorkerThreads::start(Worker& worker) {
    if (!worker.is_running) worker.is_running = start_library_thread(worker.thread, loop, &worker) == 0;
    return worker.is_running;
}

void WorkerThreads::run(int64_t n_parts, Work work, const void* part) {
    if (n_parts > 1 && process_ != HandleLock::process()) {
        for (int64_t i = 0; i < n_workers_; ++i) workers_[static_cast<std::size_t>(i)].is_running = false;
        process_ = HandleLock::process();
    }
    for (int64_t i = 1; i < n_parts; ++i) {
        Worker& worker = workers_[static_cast<std::size_t>(i - 1)];
        if (!start(worker)) continue;
        worker.work = work;
        worker.part = part;
        worker.i = i;
        worker.state.store(at_work, std::memory_order_release);
        worker.state.notify_one();
    }
    work(part, 0);
    for (int64_t i = 1; i < n_parts; ++i) {
        Worker& worker = workers_[static_cast<std::size_t>(i - 1)];
        if (worker.is_running)
            worker.state.wait(at_work, std::memory_order_acquire);
        else
            work(part, i);
    }
}

}  // namespace per::cpu
