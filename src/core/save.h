// per_save: a checkpoint that is written while its buffer goes on.
#pragma once

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "backend/backend.h"
#include "core/rate_limiter.h"
#include "file/checkpoint_file.h"
#include "per.h"
#include "threads/handle_lock.h"

namespace per {

// A file, the snapshot that goes into it, and the thread that writes it. In a forked child it is never freed, since
// freeing it would remove the file that the parent writes.
class Save {
 public:
    // Begins the file. Throws Error if that cannot be.
    Save(const char* path, int32_t compression);
    ~Save();
    Save(const Save&) = delete;
    Save& operator=(const Save&) = delete;

    // To be called once, with the buffer locked; `lock` is its lock. It must stay, with what the options point to, until
    // the save has ended. Where this throws Error, the object must go before the buffer is unlocked.
    void start(const per_replay_options& options, const RateLimiter::Counts& counts,
               std::unique_ptr<ReplaySnapshot> snapshot, HandleLock& lock);

    bool is_running() const;
    // Waits for the end; timeout_ms is -1 for as long as it takes. Returns false if the save still runs then.
    bool wait(int64_t timeout_ms) const;
    // Throws what the save threw. It must have ended.
    void check_success() const;
    // Waits for the end. In a forked child there is nothing to wait for.
    void finish() const;

    int64_t n_written() const { return n_written_; }
    int64_t n_bytes() const { return n_bytes_; }
    // Throws Error in a forked child.
    void check_usable() const;

 private:
    struct Signals {
        std::mutex mutex;
        std::condition_variable ended;
    };
    using Guard = std::unique_lock<std::mutex>;

    void write();

    const uint64_t process_;  // HandleLock::process() of the process that has the thread
    std::unique_ptr<CheckpointWriter> writer_;
    per_replay_options options_;
    RateLimiter::Counts counts_;
    std::unique_ptr<ReplaySnapshot> snapshot_;
    HandleLock* lock_ = nullptr;
    int64_t n_bytes_ = 0;
    std::atomic<int64_t> n_written_ = 0;

    pthread_t thread_;
    bool has_thread_ = false;
    std::unique_ptr<Signals> signals_;
    bool has_ended_ = false;
    per_status status_ = PER_OK;  // how
    char message_[512] = "";
};

}  // namespace per
