#include "core/save.h"

#include <chrono>
#include <cstdio>
#include <utility>

#include "base/error.h"
#include "base/guarded.h"
#include "file/checkpoint_options.h"
#include "threads/library_thread.h"

namespace per {

Save::Save(const char* path, int32_t compression)
    : process_(HandleLock::process()),
      writer_(std::make_unique<CheckpointWriter>(path, compression)),
      signals_(std::make_unique<Signals>()) {}

Save::~Save() {
    if (process_ == HandleLock::process()) {
        if (has_thread_) pthread_join(thread_, nullptr);
    } else {
        static_cast<void>(writer_.release());
        static_cast<void>(snapshot_.release());
        static_cast<void>(signals_.release());
    }
}

void Save::start(const per_replay_options& options, const RateLimiter::Counts& counts,
                 std::unique_ptr<ReplaySnapshot> snapshot, HandleLock& lock) {
    options_ = options;
    counts_ = counts;
    snapshot_ = std::move(snapshot);
    lock_ = &lock;
    n_bytes_ = snapshot_->n_bytes();
    const auto write = [](void* save) -> void* {
        static_cast<Save*>(save)->write();
        return nullptr;
    };
    const int error = start_library_thread(thread_, write, this);
    has_thread_ = error == 0;
    if (!has_thread_) throw Error(PER_ERROR_OUT_OF_MEMORY, "no thread for the save: error %d of the system", error);
}

void Save::write() {
    const per_status status = guarded([&] {
        write_options(*writer_, options_);
        snapshot_->write(*writer_, *lock_, &n_written_);
        snapshot_.reset();
        if (RateLimiter::has_limits(options_.rate_limit)) write_rate_limiter(*writer_, counts_);
        writer_->commit();
    });
    if (status != PER_OK) std::snprintf(message_, sizeof message_, "%s", last_error());
    if (snapshot_ != nullptr) {  // its end changes the buffer, which holds rows for it
        const std::lock_guard guard(*lock_);
        snapshot_.reset();
    }
    writer_.reset();
    const Guard guard(signals_->mutex);
    status_ = status;
    has_ended_ = true;
    signals_->ended.notify_all();
}

bool Save::is_running() const {
    if (process_ != HandleLock::process()) return false;
    const Guard guard(signals_->mutex);
    return !has_ended_;
}

bool Save::wait(int64_t timeout_ms) const {
    constexpr int64_t max_timeout_ms = int64_t{1} << 40;  // what the clock has room for
    const auto has_ended = [&] { return has_ended_; };
    Guard guard(signals_->mutex);
    if (timeout_ms >= 0 && timeout_ms <= max_timeout_ms)
        return signals_->ended.wait_for(guard, std::chrono::milliseconds(timeout_ms), has_ended);
    signals_->ended.wait(guard, has_ended);
    return true;
}

void Save::check_success() const {
    if (status_ != PER_OK) throw Error(status_, "%s", message_);
}

void Save::finish() const {
    if (process_ != HandleLock::process()) return;
    Guard guard(signals_->mutex);
    signals_->ended.wait(guard, [&] { return has_ended_; });
}

void Save::check_usable() const {
    if (process_ != HandleLock::process())
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "save was started before a fork: the thread that writes is in the parent");
}

}  // namespace per
