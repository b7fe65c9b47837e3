// The part of per_replay that is the same on every device: the checks, the lock, and the order of calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/batch.h"
#include "backend/loader_slots.h"
#include "backend/relabelling.h"
#include "core/epochs.h"
#include "core/ordered_lock.h"
#include "core/rate_limiter.h"
#include "core/save.h"
#include "core/step_checks.h"
#include "per.h"
#include "rows/fields.h"
#include "threads/deadline.h"

namespace per {

// The end of a handle that `write` of a save has freed.
struct LateFree {
    void (*free)(void* handle) = nullptr;
    void* handle = nullptr;
    LateFree* next = nullptr;
};

// A backend, its lock, and the checks. Callers must have checked pointers, and that `count` is not negative. A call
// with a deadline throws Error with BUSY if other calls hold the buffer until then.
class Replay {
 public:
    explicit Replay(const per_replay_options& options);
    // Loads a saved buffer to the device and memory of `place`, which must have been checked.
    Replay(CheckpointReader& reader, const per_load_options& place);
    // Waits for a save that was started.
    ~Replay();

    // Runs call(backend) while the buffer is locked. For calls that need no further checks and change no draw.
    template <class Call>
    decltype(auto) locked(const Call& call) {
        const std::unique_lock guard(lock_);
        return call(*backend_);
    }

    int32_t device() const { return options_.device; }
    int32_t device_index() const { return options_.device_index; }

    void add(const per_steps& steps, int64_t* ids_out, void* stream);
    // Adds steps of a channel, whose arrays lie in host memory and are needed only during the call. step_sizes[k] is
    // the number of environments that the mask of step k selects. Waits until the rate limiter allows the first step,
    // then adds as many steps as it allows, and returns their number. Once `ends` is true all steps are added without
    // regard to the limiter; after setting it, call wake_adds(). Throws Error with BUSY if the limiter allows no step
    // before the deadline `allowed_by`, or if other calls hold the buffer until the deadline `locked_by`.
    int64_t add_in_turn(per_steps steps, std::span<const int64_t> step_sizes, const Deadline& locked_by,
                        const Deadline& allowed_by, const std::atomic<bool>& ends);
    void wake_adds() noexcept { limiter_.ring_adds(); }
    void cut(int64_t count, const int64_t* env_ids, const Deadline& deadline, void* stream);
    void sample(const per_sample_options& options, int64_t batch_size, const per_batch& batch, void* stream);
    // rows: RowsOfIds or RowsOfUnits.
    void get_windows(const per_sample_options& options, int64_t count, const BatchRows& rows, const per_batch& batch,
                     void* stream);
    void update(const per_priorities& priorities, const Deadline& deadline, void* stream);
    void get(int64_t count, const int64_t* ids, const per_batch& batch, void* stream);
    void set(int64_t count, const int64_t* ids, const per_array* fields, void* stream);
    void clear(void* stream);

    void start_epochs(int64_t n_epochs, int64_t batch_size, bool drop_last, Epochs& epochs, void* stream);
    // Writes the next minibatch, and returns the number of its rows: 0 once the last epoch is over.
    int64_t next_of_epochs(Epochs& epochs, const per_batch& batch, void* stream);
    int64_t bootstraps(int64_t capacity, const per_batch& batch, void* stream);
    void advantages(const ReplayAdvantages& advantages, void* stream);

    // Changes all settings that are given, or none.
    void change_settings(const per_replay_settings& settings, void* stream);

    // The lock, for threads that draw or add in the background.
    OrderedLock& lock() { return lock_; }
    const OrderedLock& lock() const { return lock_; }
    const Fields& fields() const { return fields_; }
    FrameArrays frame_arrays() const { return backend_->frame_arrays(); }
    const per_memory& memory() const { return options_.memory; }

    // A loader first calls begin_draws(), which throws Error with BUSY if there is a loader already. At its end it
    // calls end_draws(), in whatever process that is. In between, the consumer's thread asks lock() for draws, rings
    // the bell of lock(), and calls hand_out(). The loader's own thread calls draw_ahead(), and then tells lock() that
    // the draw is made, even if it failed.
    BatchShape shape_of_draws(const per_sample_options& options, int64_t batch_size);
    void begin_draws(const per_sample_options& options, int64_t batch_size, FrameGather* gather);
    void draw_ahead(const per_sample_options& options, int64_t batch_size, const OpenSlot& slot);
    // Returns the lock that hand_out() needs. The result owns no lock if another call is under way, nor on the CPU,
    // where hand_out() needs none.
    std::unique_lock<ReservedLock> try_lock_to_hand_out();
    // Waits until no call is under way, or until the deadline. Then it returns, and does not throw Error with BUSY.
    void wait_for_call(const Deadline& deadline);
    void hand_out() { backend_->hand_out(); }  // needs the lock of try_lock_to_hand_out()
    // Like RateLimiter::allows_draw_or_calls(), but also true if other calls hold the buffer until the deadline.
    bool allows_draw_or_calls(int64_t batch_size, std::function<void()> listener, const Deadline& deadline);
    void stop_listening();
    void end_draws(uint64_t process);  // `process` is what ProcessMark::current() was at begin_draws()

    per_shard_summary summarize(int32_t measured_scale, int64_t measured_reference);
    void set_scale(int32_t scale, int64_t reference);
    void raise_max_priority(float priority, void* stream);

    per_replay_options describe();
    // Wait until the rate limiter allows an add of `count` steps, or a draw of batch_size transitions.
    void wait_to_add(int64_t count, const Deadline& deadline);
    void wait_to_sample(int64_t batch_size, const Deadline& deadline);
    void stop_limiting();

    per_replay_statistics statistics();
    // Options of saves must have been checked. If they have a function to write with, `path` is not used.
    // late_frees becomes a list of the handles that the function freed, in order. The caller must free them, even after
    // an error.
    void save(const char* path, const per_save_options& options, LateFree*& late_frees);
    // Returns the number of bytes that were written.
    int64_t checkpoint(const char* directory, const per_save_options& options);
    std::shared_ptr<Save> start_save(const char* path, const per_save_options& options);

    // Freeing the buffer, or an object that uses it, waits for its lock. If the function with which save() writes calls
    // this, `late` is added to what that save() returns, and the result is true.
    bool free_after_save(LateFree& late) noexcept;

 private:
    friend class Mixture;

    // Selects the constructor that does not create the row file.
    struct WithoutRowFile {};
    Replay(const per_replay_options& options, WithoutRowFile);

    void add_checked(const ReplaySteps& steps, int64_t n_limited, int64_t* ids_out, void* stream);
    int64_t n_unmasked(ReplaySteps& steps);
    void count_drawn(int64_t n);
    void sample_hindsight(std::unique_lock<OrderedLock>& guard, const ReplaySample& sample,
                          const per_hindsight_options& hindsight, void* stream);
    int32_t level_of(const per_save_options& options) const {
        return options.compression < 0 ? options_.save_compression : options.compression;
    }
    void write_checkpoint(CheckpointWriter& writer);

    Fields fields_;
    std::string storage_;         // options_.memory.storage points to it
    per_replay_options options_;  // resolved, with the settings changed since
    StepChecks step_checks_;
    std::unique_ptr<ReplayBackend> backend_;
    OrderedLock lock_;
    RateLimiter limiter_;
    std::vector<uint8_t> mask_;          // of the call under way, if the rate limiter counts its steps
    std::vector<per_array> fields_set_;  // of the call of set() under way
    int64_t n_changes_ = 0;              // calls so far that may have changed later draws
    uint64_t loader_process_ = 0;        // the process in which the buffer has a loader
    std::shared_ptr<Save> save_;         // the latest that was started
    LateFree** late_frees_ = nullptr;    // of the save() under way

    // Memory for draws with hindsight, of which several may run at once: they do not hold the lock while they ask for
    // rewards. There is as much as was ever in use at the same time.
    std::list<Relabelling> spare_relabellings_;
};

}  // namespace per
