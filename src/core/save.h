// per_save: a checkpoint that is written while its buffer goes on.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "backend/backend.h"
#include "core/rate_limiter.h"
#include "file/checkpoint_file.h"
#include "per.h"
#include "threads/deadline.h"
#include "threads/handle_lock.h"
#include "threads/own_thread.h"
#include "threads/process_mark.h"

namespace per {

// A file, the snapshot that goes into it, and the thread that writes it. A forked child leaves them alone: freeing the
// writer would remove the file that the parent writes.
class Save {
 public:
    // Begins the file. Throws Error.
    Save(const char* path, int32_t compression) : writer_(std::make_unique<CheckpointWriter>(path, compression)) {}
    Save(const Save&) = delete;
    Save& operator=(const Save&) = delete;

    // Call once, with the buffer locked by `lock`. The buffer, and what the options point to, must outlive the save. If
    // this throws Error, the object must be destroyed before the buffer is unlocked.
    void start(const per_replay_options& options, const RateLimiter::Counts& counts,
               std::unique_ptr<ReplaySnapshot> snapshot, HandleLock& lock);

    // Forked children see no running save.
    bool is_running() const { return signals_.process().is_here() && !wait(Deadline(0)); }
    // Waits for the end. Returns false if the save is still running at the deadline.
    bool wait(const Deadline& deadline) const;
    // Waits for the end, unless this is a forked child.
    void finish() const {
        if (signals_.process().is_here()) wait(Deadline::never());
    }
    // Throws the error of the save, if there was one. The save must have ended.
    void check_success() const;

    int64_t n_written() const { return n_written_; }
    int64_t n_bytes() const { return n_bytes_; }
    // Throws Error in a forked child.
    void check_usable() const {
        signals_.process().check("save was started before a fork: the thread that writes is in the parent");
    }

 private:
    struct Signals {
        std::mutex mutex;
        std::condition_variable ended;
    };
    using Guard = std::unique_lock<std::mutex>;

    void write();

    OfOneProcess<CheckpointWriter> writer_;
    per_replay_options options_;
    RateLimiter::Counts counts_;
    OfOneProcess<ReplaySnapshot> snapshot_{nullptr};
    HandleLock* lock_ = nullptr;
    int64_t n_bytes_ = 0;
    std::atomic<int64_t> n_written_ = 0;

    OfOneProcess<Signals> signals_;
    bool has_ended_ = false;
    per_status status_ = PER_OK;  // how it ended
    char message_[512] = "";
    OwnThread thread_;
};

}  // namespace per
