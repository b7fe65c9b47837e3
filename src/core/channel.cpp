#include "core/channel.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>

#include "backend/replay_options.h"
#include "core/checks.h"
#include "rows/arguments.h"
#include "rows/dtype.h"
#include "rows/error.h"
#include "rows/guarded.h"
#include "rules/limits.h"
#include "threads/library_thread.h"

namespace per {
namespace {

// After so long what could not be added is tried again.
constexpr std::chrono::nanoseconds pause_to_try_again = std::chrono::milliseconds(100);
constexpr int64_t max_batch_bytes = 256 << 10;

// Whether it says what is wrong with steps, and not with the memory or device of the buffer.
bool is_refusal(per_status status) {
    return status == PER_ERROR_INVALID_ARGUMENT || status == PER_ERROR_FULL || status == PER_ERROR_UNSUPPORTED;
}

std::vector<int64_t> checked_env_ids(Replay& replay, const per_channel_options& options) {
    check_range("when_full", options.when_full, PER_FULL_WAITS, PER_FULL_DROPS);
    check_range("reserved", options.reserved, 0, 0);
    if (options.slots != 0) check_range("slots", options.slots, min_ring_slots, max_ring_slots);
    const int64_t n_envs = replay.describe().n_envs;
    std::vector<int64_t> env_ids;
    if (options.env_ids == nullptr) {
        for (int64_t env = 0; env < n_envs; ++env) env_ids.push_back(env);
        return env_ids;
    }
    check_range("n_envs", options.n_envs, 1, n_envs);
    check_aligned("env_ids", options.env_ids);
    const per_replay_options buffer = replay.describe();
    StepChecks checks(replay.fields(), buffer);
    const std::span<const int64_t> given = checks.environments(options.n_envs, options.env_ids, false);
    return {given.begin(), given.end()};
}

// Those of a buffer that has the environments of the channel only.
per_replay_options options_of_writer(Replay& replay, int64_t n_envs) {
    per_replay_options options = replay.describe();
    options.capacity = options.capacity / options.n_envs * n_envs;
    options.n_envs = n_envs;
    options.save_compression = 0;    // a ring is not compressed
    options.samples_per_insert = 0;  // and not limited: what is behind it is
    options.samples_tolerance = 0;
    options.min_size_to_sample = 0;
    return options;
}

int64_t slots_at_a_time(const StepRing& ring) {
    const int64_t slot_bytes =
        static_cast<int64_t>(ring.arrays().n_bytes()) / ring.n_slots();  // and a bit of the header's
    return std::clamp<int64_t>(max_batch_bytes / std::max<int64_t>(slot_bytes, 1), 1, ring.n_slots());
}

}  // namespace

Channel::Channel(Replay& replay, const per_channel_options& options)
    : replay_(replay),
      env_ids_(checked_env_ids(replay, options)),
      ring_(options_of_writer(replay, static_cast<int64_t>(env_ids_.size())), replay.fields(), options.slots,
            options.when_full),
      max_batch_(slots_at_a_time(ring_)),
      process_(HandleLock::process()),
      fields_(static_cast<std::size_t>(replay.fields().count())),
      next_fields_(fields_.size()),
      signals_(std::make_unique<Signals>()) {
    cut_env_ids_.reserve(env_ids_.size());
    damage_.reserve(sizeof(Error));
    failure_text_.reserve(sizeof(Error));
    start_thread();
}

Channel::~Channel() {
    if (process_ == HandleLock::process())
        stop();
    else
        static_cast<void>(signals_.release());
}

const char* Channel::path() const {
    check_usable();
    return ring_.path().c_str();
}

int32_t Channel::descriptor() const {
    check_usable();
    return ring_.descriptor();
}

void Channel::flush(int64_t timeout_ms) {
    check_usable();
    replay_.check_not_saved_here();
    constexpr int64_t max_timeout_ms = int64_t{1} << 40;  // what the clock has room for
    const uint64_t written = ring_.header().written;
    // No writer can have stored more.
    const uint64_t end = std::min(written, taken_ + static_cast<uint64_t>(ring_.n_slots()));
    struct Haste {
        std::atomic<int64_t>& n;
        explicit Haste(std::atomic<int64_t>& n) : n(n) { ++n; }
        ~Haste() { --n; }
    };
    const Haste haste(n_in_haste_);
    Guard guard(signals_->mutex);
    const int64_t n_failures = n_failures_;
    ring_.header().written_bell.ring();
    const auto is_over = [&] { return taken_ >= end || !damage_.empty() || n_failures_ != n_failures; };
    if (timeout_ms < 0 || timeout_ms > max_timeout_ms)
        signals_->moved.wait(guard, is_over);
    else if (!signals_->moved.wait_for(guard, std::chrono::milliseconds(timeout_ms), is_over))
        throw Error(PER_ERROR_BUSY, "%" PRIu64 " steps that were written are not in the buffer yet", end - taken_);
    if (!damage_.empty()) throw Error(PER_ERROR_CORRUPT_FILE, "%s", damage_.c_str());
    if (taken_ < end) throw Error(failure_, "%s; what was written is tried again", failure_text_.c_str());
}

per_channel_statistics Channel::statistics() const {
    check_usable();
    const RingHeader& header = ring_.header();
    const auto counter = [](uint64_t n) { return static_cast<int64_t>(n & INT64_MAX); };
    const uint64_t taken = taken_;
    const uint64_t written = header.written;
    per_channel_statistics statistics = default_channel_statistics;
    statistics.slots = ring_.n_slots();
    statistics.waiting = std::clamp<int64_t>(counter(written - taken), 0, ring_.n_slots());
    statistics.added = n_added_;
    statistics.refused = n_refused_;
    statistics.dropped = counter(header.n_dropped);
    statistics.waits = counter(header.n_waits);
    statistics.gaps = n_gaps_;
    statistics.writers = counter(header.n_writers);
    statistics.attached = ring_.locks().is_locked(writer_lock) ? header.process.load() : 0;
    return statistics;
}

void Channel::check_usable() const {
    if (process_ != HandleLock::process())
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "channel was created before a fork: the thread that moves steps is in the parent");
}

// ------------------------------------------------------------------------------------------------------- the thread

void Channel::start_thread() {
    const auto move = [](void* channel) -> void* {
        static_cast<Channel*>(channel)->move_all();
        return nullptr;
    };
    const int error = start_library_thread(thread_, move, this);
    if (error != 0) throw Error(PER_ERROR_OUT_OF_MEMORY, "no thread for the channel: error %d of the system", error);
}

void Channel::stop() {
    RingHeader& header = ring_.header();
    header.is_closed = 1;
    header.taken_bell.ring();
    stopping_ = true;
    header.written_bell.ring();
    replay_.wake_adds();
    pthread_join(thread_, nullptr);
}

// Once it is to stop it moves what is there, as far as that can be.
void Channel::move_all() {
    for (;;) {
        const bool is_last = stopping_;
        const per_status status = guarded([&] {
            if (!is_last) wait_for_steps();
            move(n_written());
        });
        if (status == PER_ERROR_CORRUPT_FILE) return cut_off();
        if (is_last) return;
        if (status != PER_OK) wait_to_try_again(status);
    }
}

void Channel::cut_off() {
    RingHeader& header = ring_.header();
    header.is_closed = 1;
    header.taken_bell.ring();
    const Guard guard(signals_->mutex);
    damage_ = last_error();
    signals_->moved.notify_all();
}

// Calls of flush() hear of it.
void Channel::wait_to_try_again(per_status status) {
    SharedBell& bell = ring_.header().written_bell;
    const uint32_t seen = bell.count;
    Guard guard(signals_->mutex);
    const bool is_in_haste = n_in_haste_ > 0;
    ++n_failures_;
    failure_ = status;
    failure_text_ = last_error();
    signals_->moved.notify_all();
    guard.unlock();
    if (!stopping_ && !is_in_haste) bell.sleep(seen, pause_to_try_again.count());
}

// Sleeps until there is a step, and then a little longer, as moving one costs much the same as moving many. Steps that
// come without a pause wait for the one before, and not for each other.
void Channel::wait_for_steps() {
    sleep_until(taken_ + 1, longest_sleep, false);
    if (n_written() > taken_) sleep_until(taken_ + static_cast<uint64_t>(max_batch_), batch_wait, true);
}

void Channel::sleep_until(uint64_t written, std::chrono::nanoseconds longest, bool ends_in_haste) {
    RingHeader& header = ring_.header();
    const uint64_t half = taken_ + static_cast<uint64_t>((ring_.n_slots() + 1) / 2);
    const uint64_t at = std::min(written, half);
    header.wake_at = at;
    const uint32_t seen = header.written_bell.count;
    const bool is_due = n_written() >= at || stopping_ || (ends_in_haste && n_in_haste_ > 0);
    if (!is_due) header.written_bell.sleep(seen, longest.count());
    header.wake_at = StepRing::never;
}

// Throws Error for a number that no writer can have stored.
uint64_t Channel::n_written() const {
    const uint64_t written = ring_.header().written;
    if (written - taken_ > static_cast<uint64_t>(ring_.n_slots()))
        throw Error(PER_ERROR_CORRUPT_FILE,
                    "the channel's memory is damaged: %" PRIu64 " steps are written, after %" PRIu64
                    " that were taken; its writer was cut off",
                    written, taken_.load());
    return written;
}

void Channel::move(uint64_t end) {
    while (taken_ < end) {
        const int64_t slot = static_cast<int64_t>(taken_ % static_cast<uint64_t>(ring_.n_slots()));
        const uint32_t kind = ring_.kind(slot);
        if (kind >= slot_kinds)
            throw Error(PER_ERROR_CORRUPT_FILE,
                        "the channel's memory is damaged: kind %" PRIu32 " of a step; its writer was cut off", kind);
        if (kind & slot_cuts) {
            cut(slot);
            take(1);
        } else {
            add(slot, run_length(taken_, end, kind), kind);
        }
    }
}

// How many slots from there on lie one behind the other, and are of one kind.
int64_t Channel::run_length(uint64_t first, uint64_t end, uint32_t kind) const {
    const int64_t slot = static_cast<int64_t>(first % static_cast<uint64_t>(ring_.n_slots()));
    const int64_t most = std::min({static_cast<int64_t>(end - first), ring_.n_slots() - slot, max_batch_});
    int64_t n = 1;
    while (n < most && ring_.kind(slot + n) == kind) ++n;
    return n;
}

// Adds some of the steps and gives their slots back: fewer where the rate limiter allows no more, and the others are
// tried again. Where the buffer refuses one of several steps, each is tried by itself.
void Channel::add(int64_t slot, int64_t count, uint32_t kind) {
    const int64_t n_added = try_add(slot, count, kind);
    n_added_ += n_added;
    if (n_added > 0) {
        take(n_added);
        return;
    }
    for (int64_t i = 0; i < count; ++i) {
        if (try_add(slot + i, 1, kind) == 1) {
            ++n_added_;
        } else {
            cut(env_ids_);
            ++n_refused_;
        }
        take(1);
    }
}

// Returns how many were added; 0 if the buffer refused one of them. Throws Error where it could not add any.
int64_t Channel::try_add(int64_t slot, int64_t count, uint32_t kind) {
    const RingArrays& arrays = ring_.arrays();
    const auto array = [&](std::size_t place, int32_t dtype, int64_t bytes) {
        return per_array{ring_.at(place, slot, bytes), nullptr, 0, dtype};
    };
    const Fields& fields = ring_.fields();
    for (int64_t i = 0; i < fields.count(); ++i) {
        const auto at = static_cast<std::size_t>(i);
        fields_[at] = array(arrays.fields[at], fields[i].dtype, fields[i].bytes);
        if (fields[i].is_observation())
            next_fields_[at] = array(arrays.next_fields[at], fields[i].dtype, fields[i].bytes);
    }
    per_steps steps = default_steps;
    steps.length = count;
    steps.n_envs = ring_.n_envs();
    steps.env_ids = env_ids_.data();
    steps.fields = fields_.data();
    if (kind & slot_has_next) steps.next_fields = next_fields_.data();
    steps.reward = array(arrays.reward, PER_FLOAT32, sizeof(float));
    steps.terminated = array(arrays.terminated, PER_BOOL, 1);
    steps.truncated = array(arrays.truncated, PER_BOOL, 1);
    if (kind & slot_has_mask) steps.mask = array(arrays.mask, PER_BOOL, 1);
    if (kind & slot_has_next_mask) steps.next_mask = array(arrays.next_mask, PER_BOOL, 1);
    if (kind & slot_has_priorities) steps.priorities = array(arrays.priorities, PER_FLOAT32, sizeof(float));
    int64_t n_added = 0;
    const per_status status = guarded([&] { n_added = replay_.add_in_turn(steps, stopping_); });
    if (status != PER_OK && !is_refusal(status)) throw Error(status, "%s", last_error());
    return n_added;
}

void Channel::cut(int64_t slot) {
    const std::byte* const mask = ring_.at(ring_.arrays().mask, slot, 1);
    cut_env_ids_.clear();
    for (std::size_t j = 0; j < env_ids_.size(); ++j)
        if (mask[j] != std::byte{0}) cut_env_ids_.push_back(env_ids_[j]);
    cut(cut_env_ids_);
}

void Channel::cut(const std::vector<int64_t>& env_ids) {
    replay_.cut(static_cast<int64_t>(env_ids.size()), env_ids.data(), nullptr);
    ++n_gaps_;
}

// Gives slots back to the writer.
void Channel::take(int64_t count) {
    RingHeader& header = ring_.header();
    taken_ += static_cast<uint64_t>(count);
    header.taken = taken_.load();
    wake_at(header.room_at, taken_, header.taken_bell);
    if (n_in_haste_ == 0) return;
    const Guard guard(signals_->mutex);
    signals_->moved.notify_all();
}

}  // namespace per
