// per_loader: batches drawn ahead of their consumer.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/loader_slots.h"
#include "core/replay.h"
#include "per.h"
#include "threads/deadline.h"
#include "threads/own_thread.h"
#include "threads/process_mark.h"

namespace per {

// The slots, the order in which they are filled and handed out, and the thread that draws.
//
// Requests are numbered. Those from handed_ to drawn_ are drawn and wait for the consumer; those from drawn_ to asked_
// wait for the thread. Each request has a slot from the beginning, so the thread never waits for the consumer, and
// calls that wait for the thread (OrderedLock) wait for draws only. There is one slot more than may be out, or be drawn
// ahead: the consumer holds one while the others are filled.
class Loader {
 public:
    // Creates the memory of n_slots slots.
    using MakeSlots = std::function<std::unique_ptr<LoaderSlots>(const BatchShape&, std::size_t n_slots)>;

    // Throws Error; with BUSY if the buffer has a loader.
    Loader(Replay& replay, const per_loader_options& options);
    // Draws nothing before begin().
    Loader(Replay& replay, const per_loader_options& options, const MakeSlots& make_slots);
    ~Loader();
    Loader(const Loader&) = delete;
    Loader& operator=(const Loader&) = delete;

    Replay& replay() { return replay_; }
    // The per_device that has the batches.
    int32_t device() const { return device_; }

    void begin();
    // Returns the next batch and its slot. Throws Error with BUSY if it is not drawn in time.
    int64_t next(const Deadline& deadline, per_batch& batch_out, void* stream);
    void release(int64_t slot, void* stream);
    void stop();

 private:
    enum class State { idle, asked, drawn, out };

    struct Slot {
        State state = State::idle;
        bool is_in_turn = false;     // it was requested when its turn had come, not ahead
        per_status status = PER_OK;  // of the draw
        char message[512];
    };

    // For threads that wait for a batch; the thread that draws waits on OrderedLock::draw_bell(). A forked child never
    // frees it: destroying a condition waits for its waiters, which are in the parent.
    struct Signals {
        std::mutex mutex;
        std::condition_variable changed;  // a draw was made, a slot came back, or the loader is to stop
    };
    using Guard = std::unique_lock<std::mutex>;

    std::size_t slot_of(uint64_t request) const { return order_[request % order_.size()]; }
    void end();
    void check_usable() const;
    void check_running() const;
    void ask(int64_t slot);
    void ask_ahead(Guard& guard);
    int64_t idle_slot() const;
    void draw_all();
    void draw(std::size_t slot);

    Replay& replay_;
    const int32_t device_;
    const int64_t batch_size_;
    const int64_t max_out_;  // the most batches ahead, and the most batches out
    per_sample_options sample_;
    std::unique_ptr<LoaderSlots> memory_;
    std::vector<Slot> slots_;
    std::vector<std::size_t> order_;  // by request number modulo the number of slots
    uint64_t handed_ = 0;
    uint64_t drawn_ = 0;
    uint64_t asked_ = 0;
    uint64_t refused_ = 0;  // requests below it fail untried, since the rate limiter refused an earlier one
    int64_t n_out_ = 0;
    bool stopping_ = false;
    bool stopped_ = false;  // and the thread has ended
    OfOneProcess<Signals> signals_;
    OwnThread thread_;
};

}  // namespace per
