#include "core/save.h"

#include <cstdio>
#include <utility>

#include "base/error.h"
#include "base/guarded.h"
#include "file/checkpoint_options.h"

namespace per {

void Save::start(const per_replay_options& options, const RateLimiter::Counts& counts,
                 std::unique_ptr<ReplaySnapshot> snapshot, HandleLock& lock) {
    options_ = options;
    counts_ = counts;
    snapshot_.reset(std::move(snapshot));
    lock_ = &lock;
    n_bytes_ = snapshot_->n_bytes();
    thread_.start<&Save::write>(*this, "save");
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
    if (snapshot_.get() != nullptr) {  // its destructor changes the buffer, which keeps rows for it
        const std::lock_guard guard(*lock_);
        snapshot_.reset();
    }
    writer_.reset();
    const Guard guard(signals_->mutex);
    status_ = status;
    has_ended_ = true;
    signals_->ended.notify_all();
}

bool Save::wait(const Deadline& deadline) const {
    Guard guard(signals_->mutex);
    return deadline.wait(signals_->ended, guard, [&] { return has_ended_; });
}

void Save::check_success() const {
    if (status_ != PER_OK) throw Error(status_, "%s", message_);
}

}  // namespace per
