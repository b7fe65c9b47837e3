#include "process/channel.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstring>
#include <span>

#include "backend/replay_options.h"
#include "base/arguments.h"
#include "base/error.h"
#include "base/guarded.h"
#include "core/checks.h"
#include "core/step_checks.h"
#include "rows/dtype.h"
#include "rules/limits.h"

namespace per {
namespace {

// Steps that could not be added are tried again after this time.
constexpr std::chrono::nanoseconds pause_to_try_again = std::chrono::milliseconds(100);
constexpr int64_t max_batch_bytes = 256 << 10;

// True if an add failed because of its steps, not because of the memory or device of the buffer.
bool is_refusal(per_status status) {
    return status == PER_ERROR_INVALID_ARGUMENT || status == PER_ERROR_FULL || status == PER_ERROR_UNSUPPORTED;
}

std::vector<int64_t> checked_env_ids(Replay& replay, const per_channel_options& options) {
    check_range("when_full", options.when_full, PER_FULL_WAITS, PER_FULL_DROPS);
    check_range("moved_by", options.moved_by, PER_MOVED_BY_THREAD, PER_MOVED_BY_CALLS);
    if (options.slots != 0 && (options.slots < min_ring_slots || options.slots > max_ring_slots))
        throw Error(PER_ERROR_INVALID_ARGUMENT, "slots is %" PRId64 ": allowed are 0, and %" PRId64 " .. %" PRId64,
                    options.slots, min_ring_slots, max_ring_slots);
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

// The options of a buffer that has only the environments of the channel.
per_replay_options options_of_writer(Replay& replay, int64_t n_envs) {
    per_replay_options options = replay.describe();
    options.capacity = options.capacity / options.n_envs * n_envs;
    options.n_envs = n_envs;
    options.save_compression = 0;  // a ring is not compressed
    options.rate_limit = {};       // nor limited; the buffer behind it is
    return options;
}

int64_t slots_at_a_time(const StepRing& ring) {
    if (ring.fields().has_ragged()) return 1;  // the rows of adjacent slots are not packed
    const int64_t slot_bytes =
        static_cast<int64_t>(ring.arrays().n_bytes()) / ring.n_slots();  // includes a part of the header
    return std::clamp<int64_t>(max_batch_bytes / std::max<int64_t>(slot_bytes, 1), 1, ring.n_slots());
}

}  // namespace

// With PER_MOVED_BY_CALLS only one call moves steps at a time: its turn lasts as long as this object. Throws Error with
// BUSY if the turns of other calls last beyond the deadline.
class Channel::Turn {
 public:
    Turn(Signals& signals, const Deadline& deadline) : signals_(signals) {
        Guard guard(signals.mutex);
        if (!deadline.wait(signals.turn_ended, guard, [&] { return !signals.is_in_turn; }))
            throw Error(PER_ERROR_BUSY, "another call that moves the steps of the channel has not ended in time");
        signals.is_in_turn = true;
    }
    ~Turn() {
        const Guard guard(signals_.mutex);
        signals_.is_in_turn = false;
        signals_.turn_ended.notify_one();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

 private:
    Signals& signals_;
};

Channel::Channel(Replay& replay, const per_channel_options& options)
    : replay_(replay),
      env_ids_(checked_env_ids(replay, options)),
      ring_(options_of_writer(replay, static_cast<int64_t>(env_ids_.size())), replay.fields(), options.slots,
            options.when_full, options.moved_by),
      has_thread_(options.moved_by == PER_MOVED_BY_THREAD),
      max_batch_(slots_at_a_time(ring_)),
      fields_(static_cast<std::size_t>(replay.fields().count())),
      next_fields_(fields_.size()),
      masks_(static_cast<std::size_t>(max_batch_ * ring_.n_envs())),
      step_sizes_(static_cast<std::size_t>(max_batch_)) {
    cut_env_ids_.reserve(env_ids_.size());
    for (const Field& field : ring_.fields()) {
        std::vector<int64_t>& shape = row_shapes_.emplace_back();
        shape.push_back(ring_.n_envs() * field.max_length);
        shape.insert(shape.end(), field.shape.begin(), field.shape.end());
    }
    damage_.reserve(2 * sizeof(Error));
    failure_text_.reserve(sizeof(Error));
    if (has_thread_) thread_.start<&Channel::move_all>(*this, "channel");
}

Channel::~Channel() {
    if (thread_.process().is_here()) stop();
}

const char* Channel::path() const {
    check_usable();
    return ring_.memory().path().c_str();
}

int32_t Channel::descriptor() const {
    check_usable();
    return ring_.memory().descriptor();
}

void Channel::flush(const Deadline& deadline) {
    check_usable();
    replay_.lock().unordered().check_not_reserved_here();
    has_thread_ ? flush_by_thread(deadline) : flush_by_calls(deadline);
}

int64_t Channel::move(int64_t max_steps) {
    check_usable();
    if (has_thread_)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "channel has a thread that moves its steps: move() is for channels with moved_by "
                    "PER_MOVED_BY_CALLS");
    replay_.lock().unordered().check_not_reserved_here();
    const Turn turn(*signals_, Deadline::never());
    const int64_t before = n_moved_;
    try {
        move_in_call(StepRing::never, max_steps, Deadline::never());
    } catch (const std::exception&) {
        if (n_moved_ == before) throw;  // otherwise the next call fails
    }
    return n_moved_ - before;
}

void Channel::flush_by_thread(const Deadline& deadline) {
    const uint64_t written = ring_.header().written.any();
    // No sound writer stores more, but the memory is untrusted.
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
    if (!deadline.wait(signals_->moved, guard, is_over)) return check_moved(end);
    if (!damage_.empty()) throw Error(PER_ERROR_CORRUPT_FILE, "%s", damage_.c_str());
    if (taken_ < end) throw Error(failure_, "%s; what was written is tried again", failure_text_.c_str());
}

// Waits for the rate limiter between turns, so that other calls can move steps meanwhile.
void Channel::flush_by_calls(const Deadline& deadline) {
    const Deadline locked_by = deadline.with_a_moment();
    const uint64_t end = ring_.header().written.any();
    for (;;) {
        int64_t size_waiting;
        {
            const Turn turn(*signals_, locked_by);
            if (move_in_call(end, INT64_MAX, locked_by)) return;
            size_waiting = size_waiting_;
        }
        if (deadline.has_passed()) return check_moved(end);
        const per_status status = guarded([&] { replay_.wait_to_add(size_waiting, deadline); });
        if (status == PER_ERROR_BUSY) return check_moved(end);
        if (status != PER_OK) throw Error(status, "%s", last_error());
    }
}

// Moves up to max_steps steps that were written before slot `end`. Returns false if the rate limiter needs draws first,
// or if other calls hold the buffer beyond the deadline.
bool Channel::move_in_call(uint64_t end, int64_t max_steps, const Deadline& locked_by) {
    if (!damage_.empty()) throw Error(PER_ERROR_CORRUPT_FILE, "%s", damage_.c_str());
    try {
        move(std::min(end, n_written()), max_steps, locked_by);
    } catch (const Error& error) {
        if (error.status() == PER_ERROR_BUSY) return false;
        if (error.status() != PER_ERROR_CORRUPT_FILE) throw;
        cut_off(error.what());
        throw Error(PER_ERROR_CORRUPT_FILE, "%s", damage_.c_str());
    }
    return true;
}

// Throws Error with BUSY, for a call that ran out of time, unless the slots before `end` have been taken since.
void Channel::check_moved(uint64_t end) const {
    const uint64_t taken = taken_;
    if (taken >= end) return;
    throw Error(PER_ERROR_BUSY, "%" PRIu64 " steps that were written are not in the buffer yet", end - taken);
}

per_channel_statistics Channel::statistics() const {
    check_usable();
    const RingHeader& header = ring_.header();
    const auto counter = [](uint64_t n) { return static_cast<int64_t>(n & INT64_MAX); };
    const uint64_t taken = taken_;
    const uint64_t written = header.written.any();
    per_channel_statistics statistics = default_channel_statistics;
    statistics.slots = ring_.n_slots();
    statistics.waiting = std::clamp<int64_t>(counter(written - taken), 0, ring_.n_slots());
    statistics.added = n_added_;
    statistics.refused = n_refused_;
    statistics.dropped = counter(header.n_dropped.any());
    statistics.waits = counter(header.n_waits.any());
    statistics.gaps = n_gaps_;
    statistics.writers = counter(header.n_writers.any());
    statistics.attached = ring_.memory().locks().is_locked(writer_lock) ? header.process.any() : 0;
    return statistics;
}

void Channel::check_usable() const {
    thread_.process().check("channel was created before a fork: what moves its steps is in the parent");
}

// ------------------------------------------------------------------------------------------------------- the thread

void Channel::stop() {
    RingHeader& header = ring_.header();
    header.is_closed = 1;
    header.taken_bell.ring();
    if (!has_thread_) return;
    stopping_ = true;
    header.written_bell.ring();
    replay_.wake_adds();
    thread_.join();
}

// Moves steps until the channel stops, and then the remaining ones, as far as possible.
void Channel::move_all() {
    for (;;) {
        const bool is_last = stopping_;
        const per_status status = guarded([&] {
            if (!is_last) wait_for_steps();
            move(n_written(), INT64_MAX, Deadline::never());
        });
        if (status == PER_ERROR_CORRUPT_FILE) return cut_off(last_error());
        if (is_last) return;
        if (status != PER_OK) wait_to_try_again(status);
    }
}

void Channel::cut_off(const char* reason) {
    RingHeader& header = ring_.header();
    header.is_closed = 1;
    header.taken_bell.ring();
    const Guard guard(signals_->mutex);
    damage_ = reason;
    damage_ += "; its writer was cut off";
    signals_->moved.notify_all();
}

// Waits before steps are tried again. Calls of flush() fail with the status.
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
    if (!stopping_ && !is_in_haste) bell.sleep(seen, pause_to_try_again);
}

// Sleeps until there is a step, and then a little longer, as moving many costs about as much as moving one. The second
// sleep ends early once many slots are written, or once a flush() waits.
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
    if (!is_due) header.written_bell.sleep(seen, longest);
    header.wake_at = StepRing::never;
}

// Throws Error if no sound writer can have stored the number.
uint64_t Channel::n_written() const {
    const uint64_t taken = taken_;
    return ring_.memory().read(ring_.header().written, "the number of steps written", taken,
                               taken + static_cast<uint64_t>(ring_.n_slots()));
}

// Moves whole slots before `end`, in order, with at most max_steps steps.
void Channel::move(uint64_t end, int64_t max_steps, const Deadline& locked_by) {
    const int64_t last = n_moved_ + std::min(max_steps, INT64_MAX - n_moved_);
    while (taken_ < end) {
        const int64_t slot = static_cast<int64_t>(taken_ % static_cast<uint64_t>(ring_.n_slots()));
        const uint32_t kind = ring_.memory().read(ring_.kind(slot), "the kind of a step", 0, slot_kinds - 1);
        if (kind & slot_cuts) {
            cut(slot, locked_by);
            take(1);
            continue;
        }
        const int64_t count = read_masks(slot, run_length(taken_, end, kind), kind, last - n_moved_);
        if (count == 0) return;
        add(slot, count, kind, locked_by);
    }
}

// Number of slots from `first` on that are adjacent in the ring and of one kind.
int64_t Channel::run_length(uint64_t first, uint64_t end, uint32_t kind) const {
    const int64_t slot = static_cast<int64_t>(first % static_cast<uint64_t>(ring_.n_slots()));
    const int64_t most = std::min({static_cast<int64_t>(end - first), ring_.n_slots() - slot, max_batch_});
    int64_t n = 1;
    while (n < most && ring_.kind(slot + n).any() == kind) ++n;
    return n;
}

// Copies the masks of slots and counts the environments that each selects. Returns how many slots, from the first on,
// have at most max_steps steps of single environments together.
int64_t Channel::read_masks(int64_t slot, int64_t count, uint32_t kind, int64_t max_steps) {
    const auto n_envs = static_cast<std::size_t>(ring_.n_envs());
    const bool has_mask = (kind & slot_has_mask) != 0;
    if (has_mask)
        std::memcpy(masks_.data(), ring_.at(ring_.arrays().mask, slot, 1), static_cast<std::size_t>(count) * n_envs);
    for (int64_t i = 0; i < count; ++i) {
        const std::byte* const mask = masks_.data() + static_cast<std::size_t>(i) * n_envs;
        const int64_t n_left_out = has_mask ? std::count(mask, mask + n_envs, std::byte{0}) : 0;
        step_sizes_[static_cast<std::size_t>(i)] = ring_.n_envs() - n_left_out;
        max_steps -= ring_.n_envs() - n_left_out;
        if (max_steps < 0) return i;
    }
    return count;
}

// Adds steps whose masks have been read, and gives their slots back. If the rate limiter allows fewer, the others are
// tried again later. If the buffer refuses one of several steps, each is tried alone.
void Channel::add(int64_t slot, int64_t count, uint32_t kind, const Deadline& locked_by) {
    const int64_t n_added = try_add(slot, 0, count, kind, locked_by);
    if (n_added > 0) return give_back(0, n_added);
    for (int64_t i = 0; i < count; ++i) {
        if (try_add(slot, i, 1, kind, locked_by) == 1) {
            give_back(i, 1);
        } else {
            cut(env_ids_, locked_by);
            ++n_refused_;
            take(1);
        }
    }
}

// Tries to add `count` steps; `first` is the distance of the first one from the slot that read_masks() began with.
// Returns the number of steps added, or 0 if the buffer refused one of them. Throws Error if it could add none for
// other reasons: with BUSY if the rate limiter needs draws first and there is no thread that waits for them.
int64_t Channel::try_add(int64_t slot, int64_t first, int64_t count, uint32_t kind, const Deadline& locked_by) {
    const RingArrays& arrays = ring_.arrays();
    const auto array = [&](std::size_t place, int32_t dtype, int64_t bytes) {
        return per_array{ring_.at(place, slot + first, bytes), nullptr, 0, dtype, nullptr};
    };
    const Fields& fields = ring_.fields();
    for (int64_t i = 0; i < fields.count(); ++i) {
        const Field& field = fields[i];
        const auto at = static_cast<std::size_t>(i);
        // The shape keeps offsets, which are untrusted, within the slot.
        const auto values = [&](std::size_t place, std::size_t offsets) {
            if (!field.is_ragged()) return array(place, field.dtype, field.bytes);
            const std::vector<int64_t>& shape = row_shapes_[at];
            return per_array{ring_.at(place, slot + first, field.max_length * field.bytes), shape.data(),
                             static_cast<int32_t>(shape.size()), field.dtype, ring_.offsets_at(offsets, slot + first)};
        };
        fields_[at] = values(arrays.fields[at], arrays.offsets[at]);
        if (field.is_observation()) next_fields_[at] = values(arrays.next_fields[at], arrays.next_offsets[at]);
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
    if (kind & slot_has_mask) steps.mask = {masks_.data() + first * ring_.n_envs(), nullptr, 0, PER_BOOL, nullptr};
    if (kind & slot_has_next_mask) steps.next_mask = array(arrays.next_mask, PER_BOOL, 1);
    if (kind & slot_has_priorities) steps.priorities = array(arrays.priorities, PER_FLOAT32, sizeof(float));
    const std::span<const int64_t> step_sizes(step_sizes_.data() + first, static_cast<std::size_t>(count));
    size_waiting_ = step_sizes.front();
    try {
        const Deadline allowed_by = has_thread_ ? Deadline::never() : Deadline(0);
        return replay_.add_in_turn(steps, step_sizes, locked_by, allowed_by, stopping_);
    } catch (const Error& error) {
        if (!is_refusal(error.status())) throw;
        return 0;
    }
}

void Channel::cut(int64_t slot, const Deadline& locked_by) {
    const std::byte* const mask = ring_.at(ring_.arrays().mask, slot, 1);
    cut_env_ids_.clear();
    for (std::size_t j = 0; j < env_ids_.size(); ++j)
        if (mask[j] != std::byte{0}) cut_env_ids_.push_back(env_ids_[j]);
    cut(cut_env_ids_, locked_by);
}

void Channel::cut(const std::vector<int64_t>& env_ids, const Deadline& locked_by) {
    replay_.cut(static_cast<int64_t>(env_ids.size()), env_ids.data(), locked_by, nullptr);
    ++n_gaps_;
}

// Counts slots whose steps the buffer has, and gives them back. `first` is that of try_add().
void Channel::give_back(int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) n_moved_ += step_sizes_[static_cast<std::size_t>(first + i)];
    n_added_ += count;
    take(count);
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
