// per_channel: moves steps of another process into a buffer.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/replay.h"
#include "per.h"
#include "process/step_ring.h"
#include "threads/deadline.h"
#include "threads/own_thread.h"
#include "threads/process_mark.h"

namespace per {

// Time that the first step after a pause waits for others, to be moved with them. Tests of the bells change it.
inline std::chrono::nanoseconds batch_wait = std::chrono::milliseconds(1);

// The channel's end of a ring, and the thread that moves steps into the buffer. With PER_MOVED_BY_CALLS there is no
// such thread: calls of flush() and move() do its work, one at a time.
//
// The shared memory is untrusted. The channel checks the number of slots written against its own count of those taken;
// it checks kinds; and values go through per_replay_add(), which safely reads arrays that change meanwhile.
//
// A slot is given back once the buffer has taken or refused its step. If the buffer can do neither, because memory ran
// out, the thread, or the next call, tries again.
class Channel {
 public:
    // Throws Error.
    Channel(Replay& replay, const per_channel_options& options);
    ~Channel();
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;

    Replay& replay() { return replay_; }
    const char* path() const;
    int32_t descriptor() const;
    void flush(const Deadline& deadline);
    // Parameters and errors are those of per_channel_move().
    int64_t move(int64_t max_steps);
    per_channel_statistics statistics() const;

 private:
    // A forked child never frees it: destroying a condition waits for its waiters, which are in the parent.
    struct Signals {
        std::mutex mutex;
        std::condition_variable moved;  // steps were moved, or could not be, or the writer was cut off
        bool is_in_turn = false;        // with PER_MOVED_BY_CALLS: a call is moving steps
        std::condition_variable turn_ended;
    };
    class Turn;
    using Guard = std::unique_lock<std::mutex>;

    void check_usable() const;
    void flush_by_thread(const Deadline& deadline);
    void flush_by_calls(const Deadline& deadline);
    bool move_in_call(uint64_t end, int64_t max_steps, const Deadline& locked_by);
    void check_moved(uint64_t end) const;
    void stop();
    void move_all();
    void wait_for_steps();
    void sleep_until(uint64_t written, std::chrono::nanoseconds longest, bool ends_in_haste);
    void wait_to_try_again(per_status status);
    void cut_off(const char* reason);
    uint64_t n_written() const;
    void move(uint64_t end, int64_t max_steps, const Deadline& locked_by);
    int64_t run_length(uint64_t first, uint64_t end, uint32_t kind) const;
    int64_t read_masks(int64_t slot, int64_t count, uint32_t kind, int64_t max_steps);
    void add(int64_t slot, int64_t count, uint32_t kind, const Deadline& locked_by);
    int64_t try_add(int64_t slot, int64_t first, int64_t count, uint32_t kind, const Deadline& locked_by);
    void cut(int64_t slot, const Deadline& locked_by);
    void cut(const std::vector<int64_t>& env_ids, const Deadline& locked_by);
    void give_back(int64_t first, int64_t count);
    void take(int64_t count);

    Replay& replay_;
    const std::vector<int64_t> env_ids_;
    StepRing ring_;
    const bool has_thread_;
    const int64_t max_batch_;  // slots that are added at a time, while other calls on the buffer wait
    std::atomic<bool> stopping_ = false;
    std::atomic<int64_t> n_in_haste_ = 0;  // calls of flush() that wait

    // Written by the thread, or by the call that moves steps; read by others.
    std::atomic<uint64_t> taken_ = 0;
    std::atomic<int64_t> n_added_ = 0;
    std::atomic<int64_t> n_refused_ = 0;
    std::atomic<int64_t> n_gaps_ = 0;
    int64_t n_moved_ = 0;  // steps of single environments that the buffer has taken
    std::vector<per_array> fields_;
    std::vector<per_array> next_fields_;
    std::vector<std::vector<int64_t>> row_shapes_;  // by field: of the values of a slot with rows of any length
    // The masks of the slots that are moved together, copied from the shared memory once: the steps that are counted
    // must be the steps that are added.
    std::vector<std::byte> masks_;     // [max_batch_, environments]
    std::vector<int64_t> step_sizes_;  // [max_batch_] number of environments in the step of a slot
    int64_t size_waiting_ = 0;         // size of the step that was tried last
    std::vector<int64_t> cut_env_ids_;

    OfOneProcess<Signals> signals_;
    std::string damage_;      // why the writer was cut off
    int64_t n_failures_ = 0;  // number of times that steps could not be moved
    per_status failure_;      // the latest reason
    std::string failure_text_;
    OwnThread thread_;
};

}  // namespace per
