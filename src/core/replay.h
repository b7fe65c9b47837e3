// per_replay, the part that is the same on every device: the checks, the lock, and the order of calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/batch.h"
#include "backend/loader_slots.h"
#include "backend/relabelling.h"
#include "core/checks.h"
#include "core/epochs.h"
#include "core/ordered_lock.h"
#include "core/rate_limiter.h"
#include "core/save.h"
#include "file/caller_stream.h"
#include "per.h"
#include "rows/fields.h"
#include "threads/deadline.h"

namespace per {

// A backend, its lock, and the checks. Pointers have been checked, and that `count` is not negative.
class Replay {
 public:
    explicit Replay(const per_replay_options& options);
    // Loads a saved buffer to the device and memory of `place`, which has been checked.
    Replay(CheckpointReader& reader, const per_load_options& place);
    // Waits for a save that was started.
    ~Replay();

    int32_t device() const { return options_.device; }
    int32_t device_index() const { return options_.device_index; }

    void add(const per_steps& steps, int64_t* ids_out, void* stream);
    // For a channel, whose arrays lie in host memory and are gone after the call. step_sizes[k] is the number of
    // environments that step k is of, without those that its mask leaves out. Waits until the rate limiter allows the
    // first of these steps, adds as many as it allows, and returns how many; once `ends`, all of them. `ends` is to be
    // followed by wake_adds(). Throws Error with BUSY if none is allowed by `allowed_by`, or other calls hold the
    // buffer until `locked_by`.
    int64_t add_in_turn(per_steps steps, std::span<const int64_t> step_sizes, const Deadline& locked_by,
                        const Deadline& allowed_by, const std::atomic<bool>& ends);
    void wake_adds() noexcept { limiter_.ring_adds(); }
    // A call with a deadline throws Error with BUSY if other calls hold the buffer until then.
    void cut(int64_t count, const int64_t* env_ids, const Deadline& deadline, void* stream);
    void sample(const per_sample_options& options, int64_t batch_size, const per_batch& batch, void* stream);
    template <class Windows>  // WindowIds or WindowUnits
    void get_windows(const per_sample_options& options, const Windows& windows, const per_batch& batch, void* stream);
    void update(const per_priorities& priorities, const Deadline& deadline, void* stream);
    void priorities(int64_t count, const int64_t* ids, float* priorities_out, void* stream);
    void get(int64_t count, const int64_t* ids, const per_batch& batch, void* stream);
    void set(int64_t count, const int64_t* ids, const per_array* fields, void* stream);
    void clear(void* stream);

    void start_epochs(int64_t n_epochs, int64_t batch_size, bool drop_last, Epochs& epochs, void* stream);
    // The next minibatch of epochs that start_epochs() began; 0 rows once the last is over.
    int64_t next_of_epochs(Epochs& epochs, const per_batch& batch, void* stream);
    int64_t bootstraps(int64_t capacity, const per_batch& batch, void* stream);
    void advantages(const ReplayAdvantages& advantages, void* stream);

    // All that are given, or none.
    void change_settings(const per_replay_settings& settings, void* stream);

    // For a loader. It begins with begin_draws(), which throws Error with BUSY if there is one already, and ends with
    // end_draws(), in whatever process. In between the consumer's thread calls ask_for_draw(), rings the draw_bell() and
    // calls hand_out(), and the loader's own thread draw_ahead() and then draw_is_made(), also if the draw failed.
    const Fields& fields() const { return fields_; }
    FrameArrays frame_arrays() const { return backend_->frame_arrays(); }
    bool has_memory_of_caller() const { return options_.memory.allocate != nullptr; }
    bool has_rows_on_disk() const { return options_.memory.storage != nullptr; }
    BatchShape shape_of_draws(const per_sample_options& options, int64_t batch_size);
    void begin_draws(const per_sample_options& options, int64_t batch_size, FrameGather* gather);
    void ask_for_draw() { lock_.ask_for_draw(); }
    RequestBell& draw_bell() { return lock_.draw_bell(); }
    void draw_ahead(const per_sample_options& options, int64_t batch_size, const OpenSlot& slot);
    void draw_is_made() { lock_.draw_is_made(); }
    std::unique_lock<ReservedLock> try_lock_to_hand_out();  // owns nothing on the CPU, or if a call is under way
    void wait_for_call(const Deadline& deadline);
    // Throws Error with BUSY in a function of the caller that writes the buffer to a stream.
    void check_not_saved_here() { lock_.unordered().check_not_reserved_here(); }
    void hand_out() { backend_->hand_out(); }  // needs that lock
    // False if the rate limiter allows no draw: then the bell is rung once it may, until stop_listening(). Where other
    // calls hold the buffer until the deadline, that is not known, and the answer is true.
    bool allows_draw_or_rings(int64_t batch_size, SharedBell& bell, const Deadline& deadline);
    void stop_listening();
    void end_draws(uint64_t process);  // that of begin_draws()

    per_shard_summary summarize(int32_t measured_scale);
    void set_scale(int32_t scale);
    void raise_max_priority(float priority, void* stream);

    per_replay_options describe();
    std::vector<int64_t> live_ids();
    // Wait until the rate limiter allows an add of `count` steps, or a draw of batch_size transitions.
    void wait_to_add(int64_t count, const Deadline& deadline);
    void wait_to_sample(int64_t batch_size, const Deadline& deadline);
    void stop_limiting();

    int64_t live();
    per_replay_statistics statistics();
    void synchronize(void* stream);
    // `compression` and timeout_ms are those of per_save_options, which have been checked.
    void save(const char* path, int32_t compression);
    void save(const WriteFunction& write, int32_t compression);
    // Returns how many bytes were written.
    int64_t checkpoint(const char* directory, int32_t compression, int64_t timeout_ms);
    std::shared_ptr<Save> start_save(const char* path, int32_t compression);

 private:
    // The file that rows lie in, if they do, has still to be made.
    struct WithoutRowFile {};
    Replay(const per_replay_options& options, WithoutRowFile);

    void add_checked(const ReplaySteps& steps, int64_t n_limited, int64_t* ids_out, void* stream);
    int64_t n_unmasked(ReplaySteps& steps);
    void count_drawn(int64_t n);
    void sample_hindsight(std::unique_lock<OrderedLock>& guard, const ReplaySample& sample,
                          const per_hindsight_options& hindsight, void* stream);
    int32_t level_of(int32_t compression) const { return compression < 0 ? options_.save_compression : compression; }
    void write_checkpoint(CheckpointWriter& writer);
    std::unique_ptr<Relabelling> take_relabelling();

    Fields fields_;
    std::string storage_;         // what options_.memory.storage points to
    per_replay_options options_;  // as resolved, and as set since
    StepChecks step_checks_;
    std::unique_ptr<ReplayBackend> backend_;
    OrderedLock lock_;
    RateLimiter limiter_;
    std::vector<uint8_t> mask_;    // of the call under way, where the rate limiter counts it
    int64_t n_changes_ = 0;        // calls so far that may have changed what is drawn
    uint64_t loader_process_ = 0;  // the process in which the buffer has a loader
    std::shared_ptr<Save> save_;   // the latest that was started

    // For calls that ask for rewards, which do not hold the lock meanwhile. There are as many as ever ran together.
    std::vector<std::unique_ptr<Relabelling>> spare_relabellings_;
    size_t n_relabellings_ = 0;  // how many were made; there is room for all of them
};

}  // namespace per
