#include "threads/worker_threads.h"

namespace per::cpu {

WorkerThreads::WorkerThreads(int64_t n_threads)
    : n_workers_(n_threads - 1),
      workers_(n_threads > 1 ? std::make_unique<Worker[]>(static_cast<std::size_t>(n_threads - 1)) : nullptr) {}

WorkerThreads::~WorkerThreads() {
    for (int64_t i = 0; i < n_workers_; ++i) {
        Worker& worker = workers_[static_cast<std::size_t>(i)];
        if (!worker.thread.is_running()) continue;
        worker.state.store(stopping, std::memory_order_release);
        worker.state.notify_one();
        worker.thread.join();
    }
}

void WorkerThreads::Worker::loop() {
    for (;;) {
        state.wait(idle, std::memory_order_acquire);
        if (state.load(std::memory_order_acquire) == stopping) return;
        work(part, i);
        state.store(idle, std::memory_order_release);
        state.notify_one();
    }
}

void WorkerThreads::run(int64_t n_parts, Work work, const void* part) {
    for (int64_t i = 1; i < n_parts; ++i) {
        Worker& worker = workers_[static_cast<std::size_t>(i - 1)];
        if (!worker.thread.is_running() && worker.thread.try_start<&Worker::loop>(worker) != 0) continue;
        worker.work = work;
        worker.part = part;
        worker.i = i;
        worker.state.store(at_work, std::memory_order_release);
        worker.state.notify_one();
    }
    work(part, 0);
    for (int64_t i = 1; i < n_parts; ++i) {
        Worker& worker = workers_[static_cast<std::size_t>(i - 1)];
        if (worker.thread.is_running())
            worker.state.wait(at_work, std::memory_order_acquire);
        else
            work(part, i);
    }
}

}  // namespace per::cpu
