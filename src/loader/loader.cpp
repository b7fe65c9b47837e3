#include "loader/loader.h"

#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <utility>

#include "backend/create.h"
#include "backend/replay_options.h"
#include "base/arguments.h"
#include "base/error.h"
#include "base/guarded.h"
#include "core/checks.h"
#include "rules/limits.h"

namespace per {
namespace {

int64_t checked_slots(const per_loader_options& options) {
    check_range("slots", options.slots, 1, max_slots);
    return options.slots;
}

per_sample_options checked_sample(const per_loader_options& options) {
    if (options.sample == nullptr) return default_sample_options;
    require_no_key(*options.sample);
    require_no_hindsight(*options.sample);
    require_no_newest(*options.sample, "in a loader");
    return *options.sample;
}

void check_gather(const Replay& replay, const per_loader_options& options) {
    check_range("gather_on_device", options.gather_on_device, 0, 1);
    check_range("reserved", options.reserved, 0, 0);
    if (options.gather_on_device == 0) return;
    if (replay.device() == PER_CUDA)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "gather_on_device is 1: allowed for the loader of a replay on PER_CPU, as the rows of one on "
                    "PER_CUDA are on the device");
    if (options.device == PER_CPU)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "gather_on_device is 1: device is PER_CPU, and must be PER_CUDA, where the batches are gathered");
    if (replay.memory().allocate != nullptr)
        throw Error(PER_ERROR_UNSUPPORTED,
                    "gather_on_device is 1: the rows lie in memory of the caller's (allocate), which is not pinned");
    if (replay.memory().storage != nullptr)
        throw Error(PER_ERROR_UNSUPPORTED,
                    "gather_on_device is 1: the rows lie in a file (storage), which is not pinned");
    for (const Field& field : replay.fields())
        if (field.is_compressed())
            throw Error(PER_ERROR_UNSUPPORTED,
                        "gather_on_device is 1: field \"%s\" is compressed, and the CPU has to unpack it",
                        field.name.c_str());
}

int32_t checked_device(const Replay& replay, const per_loader_options& options) {
    check_device(options.device, options.device_index);
    if (options.device == PER_CUDA) require_no_ragged(replay.fields(), "a loader on PER_CUDA");
    check_gather(replay, options);
    if (replay.device() == PER_CPU) return options.device;
    const int index = static_cast<int>(replay.device_index());
    if (options.device != replay.device())
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "device is PER_CPU: allowed for the loader of a replay on PER_CUDA %d is that device", index);
    if (options.device_index != replay.device_index())
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "device_index is %d: allowed for the loader of a replay on PER_CUDA %d is %d",
                    static_cast<int>(options.device_index), index, index);
    return options.device;
}

std::unique_ptr<LoaderSlots> create_slots(const Replay& replay, const per_loader_options& options,
                                          const BatchShape& shape, std::size_t n_slots) {
    const Fields& fields = replay.fields();
    if (options.device == PER_CPU) return std::make_unique<HostSlots>(fields, shape, n_slots);
    if (options.gather_on_device != 0)
        return cuda::create_gathered_slots(options.device_index, fields, shape, n_slots, replay.frame_arrays());
    if (replay.device() == PER_CPU) return cuda::create_copied_slots(options.device_index, fields, shape, n_slots);
    return cuda::create_drawn_slots(options.device_index, fields, shape, n_slots);
}

}  // namespace

Loader::Loader(Replay& replay, const per_loader_options& options)
    : Loader(replay, options, [&](const BatchShape& shape, std::size_t n_slots) {
          return create_slots(replay, options, shape, n_slots);
      }) {
    begin();
}

Loader::Loader(Replay& replay, const per_loader_options& options, const MakeSlots& make_slots)
    : replay_(replay),
      device_(checked_device(replay, options)),
      batch_size_(options.batch_size),
      max_out_(checked_slots(options)),
      sample_(checked_sample(options)),
      order_(static_cast<std::size_t>(max_out_) + 1) {
    const BatchShape shape = replay_.shape_of_draws(sample_, batch_size_);
    if (shape.steps > 0) sample_.n_step = shape.n_step;  // the slots have the shape of this n_step
    memory_ = make_slots(shape, order_.size());
    slots_.resize(order_.size());
    replay_.begin_draws(sample_, batch_size_, memory_->gather());
    try {
        if (memory_->gather() != nullptr) memory_->gather()->begin();
        thread_.start<&Loader::draw_all>(*this, "loader");
    } catch (...) {
        static_cast<void>(guarded([&] { replay_.end_draws(thread_.process().number()); }));
        throw;
    }
}

void Loader::begin() {
    Guard guard(signals_->mutex);
    ask_ahead(guard);
}

Loader::~Loader() {
    if (thread_.process().is_here()) {
        static_cast<void>(guarded([&] { end(); }));
    } else if (memory_->gather() != nullptr) {
        // The child's copy of the buffer must not ask freed slots whether rows may be overwritten.
        static_cast<void>(guarded([&] { replay_.end_draws(thread_.process().number()); }));
    }
}

// ----------------------------------------------------------------------------------------------------- the consumer

int64_t Loader::next(const Deadline& deadline, per_batch& batch_out, void* stream) {
    check_usable();
    Guard guard(signals_->mutex);
    for (;;) {
        check_running();
        const bool is_full = n_out_ == max_out_;
        if (!is_full && handed_ == asked_) {
            const int64_t slot = idle_slot();
            slots_[static_cast<std::size_t>(slot)].is_in_turn = true;
            ask(slot);
            replay_.lock().draw_bell().ring_for_request();
        }
        if (is_full || handed_ == drawn_) {
            if (!is_full) replay_.lock().draw_bell().hurry();
            if (deadline.has_passed())
                throw Error(PER_ERROR_BUSY,
                            is_full ? "as many batches are out as there are slots: %" PRId64
                                    : "the next of %" PRId64 " batches is still being drawn",
                            max_out_);
            deadline.sleep(signals_->changed, guard);
            continue;
        }
        const std::size_t place = slot_of(handed_);
        Slot& slot = slots_[place];
        if (slot.status == PER_OK) {
            const bool by_schedule = std::isnan(sample_.beta);
            const std::unique_lock lock =
                by_schedule ? replay_.try_lock_to_hand_out() : std::unique_lock<ReservedLock>();
            if (by_schedule && replay_.device() != PER_CPU && !lock) {
                if (deadline.has_passed())
                    throw Error(PER_ERROR_BUSY, "the next batch is drawn, but another call on its replay is under way");
                // Calls that do not wait need the mutex meanwhile.
                guard.unlock();
                replay_.wait_for_call(deadline);
                guard.lock();
                continue;
            }
            const per_batch& batch = memory_->hand_out(place, stream);
            if (by_schedule) replay_.hand_out();
            batch_out = batch;
            ++handed_;
            slot.state = State::out;
            slot.is_in_turn = false;
            ++n_out_;
            ask_ahead(guard);
            return static_cast<int64_t>(place);
        }
        ++handed_;
        slot.state = State::idle;
        // The draw has failed. If it was requested ahead, it is repeated. If it was requested in its turn, this call
        // fails with its error.
        if (std::exchange(slot.is_in_turn, false)) throw Error(slot.status, "%s", slot.message);
    }
}

void Loader::release(int64_t slot, void* stream) {
    check_usable();
    Guard guard(signals_->mutex);
    check_running();
    if (slot < 0 || slot > max_out_ || slots_[static_cast<std::size_t>(slot)].state != State::out)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "slot is %" PRId64 ": allowed are those of batches that are out", slot);
    memory_->release(static_cast<std::size_t>(slot), stream);
    slots_[static_cast<std::size_t>(slot)].state = State::idle;
    --n_out_;
    signals_->changed.notify_all();
    ask_ahead(guard);
}

void Loader::stop() {
    check_usable();
    end();
}

void Loader::end() {
    Guard guard(signals_->mutex);
    if (stopping_) {
        signals_->changed.wait(guard, [&] { return stopped_; });
        return;
    }
    stopping_ = true;
    signals_->changed.notify_all();
    guard.unlock();
    replay_.lock().draw_bell().ring_for_request();  // the thread checks stopping_
    replay_.lock().draw_bell().hurry();
    thread_.join();
    FrameGather* const gather = memory_->gather();
    per_status status = gather == nullptr ? PER_OK : guarded([&] { gather->end(); });
    const per_status ended = guarded([&] { replay_.end_draws(thread_.process().number()); });
    if (status == PER_OK) status = ended;
    guard.lock();
    stopped_ = true;
    signals_->changed.notify_all();
    if (status != PER_OK) throw Error(status, "%s", last_error());
}

void Loader::check_usable() const {
    thread_.process().check("loader was created before a fork: the thread that draws is in the parent");
    replay_.lock().unordered().check_not_reserved_here();
}

void Loader::check_running() const {
    if (stopping_) throw Error(PER_ERROR_INVALID_ARGUMENT, "loader was stopped");
}

// --------------------------------------------------------------------------------------------------------- requests

void Loader::ask(int64_t slot) {
    slots_[static_cast<std::size_t>(slot)].state = State::asked;
    order_[asked_ % order_.size()] = static_cast<std::size_t>(slot);
    ++asked_;
    replay_.lock().ask_for_draw();
}

// Unlocks the guard before it wakes the thread, which would otherwise wait for the mutex, perhaps on this core.
void Loader::ask_ahead(Guard& guard) {
    const uint64_t asked_before = asked_;
    while (asked_ - handed_ < static_cast<uint64_t>(max_out_)) {
        const int64_t slot = idle_slot();
        if (slot < 0) break;
        ask(slot);
    }
    const bool has_asked = asked_ != asked_before;
    guard.unlock();
    if (has_asked) replay_.lock().draw_bell().ring_for_request();
}

// Returns an idle slot, or -1.
int64_t Loader::idle_slot() const {
    for (std::size_t i = 0; i < slots_.size(); ++i)
        if (slots_[i].state == State::idle) return static_cast<int64_t>(i);
    return -1;
}

// ------------------------------------------------------------------------------------------------------- the thread

// Draws until the loader stops, and then the batches still requested.
void Loader::draw_all() {
    RequestBell& bell = replay_.lock().draw_bell();
    Guard guard(signals_->mutex);
    for (;;) {
        while (drawn_ == asked_ && !stopping_) {
            const uint32_t seen = bell.count();
            guard.unlock();
            bell.wait(seen);
            guard.lock();
        }
        if (drawn_ == asked_) return;
        const std::size_t place = slot_of(drawn_);
        const uint64_t asked = asked_;
        const bool is_refused = drawn_ < refused_;
        guard.unlock();
        per_status status = PER_ERROR_BUSY;
        if (is_refused) {
            replay_.lock().draw_is_made();
        } else {
            status = guarded([&] {
                draw(place);
                memory_->send(place);
            });
        }
        guard.lock();
        if (status == PER_ERROR_BUSY) refused_ = asked;
        Slot& slot = slots_[place];
        slot.status = status;
        if (status != PER_OK) std::snprintf(slot.message, sizeof slot.message, "%s", last_error());
        slot.state = State::drawn;
        ++drawn_;
        signals_->changed.notify_all();
    }
}

void Loader::draw(std::size_t slot) {
    // Calls on the buffer wait until this draw is over. So draw_is_made() must be called even if the draw fails.
    struct Made {
        Replay& replay;
        ~Made() { replay.lock().draw_is_made(); }
    };
    const Made made{replay_};
    const OpenSlot open = memory_->open(slot);
    for (;;) {
        try {
            return replay_.draw_ahead(sample_, batch_size_, open);
        } catch (const Error& error) {
            if (error.status() != PER_ERROR_FULL || !memory_->make_room(slot)) throw;
        }
    }
}

}  // namespace per
