// The interface of a device: one virtual call for a batch of work. Array arguments lie in the memory of the device;
// `stream` is a cudaStream_t, NULL on the CPU. Callers must have checked scalars, pointers and enums. The elements of
// arrays are checked here, as far as the device can, before the first write.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "backend/draw_outcome.h"
#include "backend/frame_gather.h"
#include "per.h"
#include "rules/freshness.h"
#include "rules/n_step.h"

namespace per {

class CheckpointReader;
class CheckpointWriter;
class HandleLock;
class RowFile;
struct Relabelling;
struct ReplayHindsight;

struct TreeSample {
    int64_t batch_size;
    int32_t scheme;  // a per_scheme
    double beta;
    int64_t* indices_out;
    float* priorities_out;  // may be NULL
    float* weights_out;     // may be NULL
};

struct TreeMass {
    uint64_t total;
    int32_t scale;
};

// The memory and the work of a tree. It also counts the batches drawn, since the device needs that number.
class TreeBackend {
 public:
    virtual ~TreeBackend() = default;

    // True if several threads may make calls that only read at the same time. These calls are find(), find_mass(),
    // priorities(), mass(), and sample() with replacement. Without replacement, sample() may write in between.
    virtual bool reads_concurrently() const = 0;

    virtual void update(int64_t count, const int64_t* indices, const float* priorities, void* stream) = 0;
    virtual void sample(const TreeSample& sample, void* stream) = 0;
    virtual void find(int64_t count, const double* prefix_sums, int64_t* indices_out, void* stream) = 0;
    virtual void find_mass(int64_t count, const uint64_t* units, int64_t* indices_out, void* stream) = 0;
    // If indices is NULL, reads the first `count`.
    virtual void priorities(int64_t count, const int64_t* indices, float* priorities_out, void* stream) = 0;
    virtual TreeMass mass() = 0;
    virtual void reset(void* stream) = 0;
    virtual void synchronize(void* stream) = 0;
};

// An array of a call. array.data is NULL if it was not given.
struct GivenArray {
    per_array array;
    int64_t frames;  // of an entry; only the newest one is taken
};

// The steps of per_replay_add(): `length` steps of `n_envs` environments.
struct ReplaySteps {
    int64_t length;
    int64_t n_envs;
    const int64_t* env_ids;         // [n_envs] in host memory, each once; NULL: 0 .. n_envs - 1
    const GivenArray* fields;       // [n_fields]; steps get the field's default if its array is not given
    const GivenArray* next_fields;  // [n_fields], given for every observation; NULL: not given
    per_array reward;
    per_array terminated;
    per_array truncated;
    per_array mask;
    per_array next_mask;
    per_array priorities;
    per_array td_errors;
    bool are_in_host_memory;  // true: all arrays are, and are valid during the call only; false: the device is asked
};

// A draw for a loader. It advances the schedule of beta at once for later draws ahead, and for all other calls when its
// batch is handed out.
struct DrawAhead {
    // On a device: pinned memory that receives the outcome of the draw. synchronize() then does not report it.
    DrawOutcome* outcome_out;
    // On the CPU: for fields with an array in this gather, the draw writes the addresses of their frames there and
    // copies no frames. The caller then queues the gather. NULL: all frames are copied.
    FrameGather* gather;
};

// The source of a batch's transitions or sequences. They are drawn, or they are named and written as if they had been
// drawn.
struct DrawnRows {
    const uint64_t* key = nullptr;  // [2] in the device's memory: replaces the buffer's seed and batch number
    std::optional<DrawAhead> ahead;

    BatchKey key_or(const BatchKey& own) const { return key != nullptr ? BatchKey{key[0], key[1]} : own; }
};

struct RowsOfIds {
    const int64_t* ids;  // [batch_size]
    int32_t on_invalid;  // a per_on_invalid, for ids that are not live
};

struct RowsOfEpoch {
    const int64_t* ids;     // [batch_size] in host memory
    int64_t n_transitions;  // of the epoch
};

// The rows that own units: see per_replay_get_units().
struct RowsOfUnits {
    const int64_t* units;       // [batch_size]
    uint64_t* masses_out;       // [batch_size] or NULL
    uint64_t* first_units_out;  // [batch_size] or NULL
};

using BatchRows = std::variant<DrawnRows, RowsOfIds, RowsOfEpoch, RowsOfUnits>;

// A batch: its rows, and the distribution from which they are drawn. Only beta may be left to a default.
struct ReplaySample {
    int64_t batch_size;
    int64_t n_newest = 0;  // the last rows are the newest live ones, newest first, with weight 1; others are drawn
    int64_t n_step;
    int64_t n_step_min = 0;  // not 0: each transition's own n is drawn from n_step_min .. n_step
    double beta;             // NAN: given by the schedule, which advances
    double uniform_fraction;
    int32_t scheme;
    int32_t prioritization;
    int32_t normalize_weights;
    per_batch batch;
    BatchRows rows;

    // The struct of this type in `rows`; NULL if `rows` holds another one.
    template <class Rows>
    const Rows* rows_as() const {
        return std::get_if<Rows>(&rows);
    }
    bool is_drawn() const { return rows_as<DrawnRows>() != nullptr; }
    int64_t n_drawn() const { return batch_size - n_newest; }
    bool is_ahead() const { return is_drawn() && rows_as<DrawnRows>()->ahead.has_value(); }
    // The n_step of each window of the batch with that key.
    NSteps n_steps(const BatchKey& key) const { return {n_step, n_step_min, key.seed, key.batch_number}; }
};

// Priorities for ids: td_errors or priorities is given, and the other is NULL.
struct ReplayUpdate {
    int64_t count;
    const int64_t* ids;
    int64_t n_critics;
    const float* td_errors;   // [n_critics, count], of sequences [n_critics, count, T - n_left_out]
    const float* priorities;  // [count]
    int64_t n_left_out = 0;   // steps at the start of each sequence that are not in td_errors
    // If given, only the entries whose source_of is `source` are for this buffer, of n_sources in a mixture. On a
    // device, source 0 also counts entries that are for none.
    const int32_t* source_of = nullptr;  // [count]
    int32_t source = 0;
    int32_t n_sources = 0;
};

class ReplayBackend;

// The rows of one source in a batch of a mixture.
struct SourceRows {
    ReplayBackend* backend;
    const ReplaySample* sample;  // with PER_NONE, and without arrays for weights and probabilities
    double share;                // of the source; all shares add up to 1
    int64_t first;
    int64_t count;
};

struct ReplayAdvantages {
    int64_t value_field;
    int64_t advantage_field;
    int64_t return_field;  // -1: none
    double lambda;
    int64_t count;
    const int64_t* ids;             // [count] as bootstraps() gives them
    const float* bootstrap_values;  // [count]
};

// The state of a buffer when this object was made, for a thread that writes it while calls go on.
class ReplaySnapshot {
 public:
    virtual ~ReplaySnapshot() = default;

    // Bytes of the arrays that have a value for each slot.
    virtual int64_t n_bytes() const = 0;
    // Writes all state but the options. Call it once. It adds the bytes of the arrays that n_bytes() counts to
    // *n_written_out as it writes them. `lock` is the buffer's lock, held only while a piece of the rows is read.
    virtual void write(CheckpointWriter& writer, HandleLock& lock, std::atomic<int64_t>* n_written_out) = 0;
};

// The memory and the work of a replay buffer. It keeps all that changes as rows come and go (lanes, rows, priorities,
// counters, the random state), since a device knows of such changes before the host does.
class ReplayBackend {
 public:
    virtual ~ReplayBackend() = default;

    virtual void add(const ReplaySteps& steps, int64_t* ids_out, void* stream) = 0;
    // env_ids [count] in host memory, each once; NULL: 0 .. count - 1.
    virtual void cut(int64_t count, const int64_t* env_ids, void* stream) = 0;
    // If the rows are named, the call takes ranks that are due, and counts a batch if n_step_min is not 0, but changes
    // nothing else. An id that is not live is an error (a device counts it), unless such ids are skipped. The place of
    // such an id gets id -1 and zeros.
    virtual void sample(const ReplaySample& sample, void* stream) = 0;
    // Calls on several buffers at once: begin_mixture() on each of them, then either choose_rows() on each that gives
    // rows and write_mixture() on any one, or check_update() and write_update() on each, and at last end_mixture() on
    // each. choose_rows() and check_update() throw all that sample() and update() would throw; the others do not throw
    // on the CPU, and on a device only if its driver fails. end_mixture() takes is_done false after an exception, and
    // then undoes choose_rows().
    virtual void begin_mixture(void* stream) = 0;
    virtual void choose_rows(const ReplaySample& sample) = 0;
    // Writes the rows of all sources, and the weights and probabilities of the batch, in which ids must be given. All
    // backends are of the same class as this one. sources_out may be NULL. Rows of any length are written from the last
    // source to the first, since the first offset of a source is the end of the one before.
    virtual void write_mixture(std::span<const SourceRows> sources, int32_t normalize_weights, const per_batch& batch,
                               int32_t* sources_out) = 0;
    virtual void check_update(const ReplayUpdate& update) = 0;
    virtual void write_update(const ReplayUpdate& update) = 0;
    virtual void end_mixture(bool is_done) = 0;
    // Like sample(), but replaces goals, and counts even a batch by ids as a draw. `relabelling_out`, in host memory,
    // lists the steps whose rewards the caller then requests. If the caller gets the rewards, it calls relabel(), which
    // writes the results; otherwise take_back_draw(), which undoes the counts unless there was another draw since.
    virtual void sample_hindsight(const ReplaySample& sample, const ReplayHindsight& hindsight,
                                  Relabelling& relabelling_out, void* stream) = 0;
    virtual void relabel(const Relabelling& relabelling, const per_batch& batch, void* stream) = 0;
    virtual void take_back_draw(Relabelling& relabelling) = 0;
    virtual void update(const ReplayUpdate& update, void* stream) = 0;
    virtual void priorities(int64_t count, const int64_t* ids, float* priorities_out, void* stream) = 0;
    virtual void get(int64_t count, const int64_t* ids, const per_batch& batch, void* stream) = 0;
    virtual void set(int64_t count, const int64_t* ids, const per_array* fields, void* stream) = 0;
    virtual void clear(void* stream) = 0;

    // The arrays of frames, if they lie in host memory.
    virtual FrameArrays frame_arrays() const { return {}; }

    // Allocates the memory for a loader's draws, which are like `sample`. gather: see DrawAhead.
    virtual void begin_ahead(const ReplaySample& sample, FrameGather* gather) = 0;
    // Call it when a batch is handed out that was drawn ahead, with a beta by the schedule. On the CPU other calls may
    // run at the same time.
    virtual void hand_out() = 0;
    // Call it when the loader has ended, or was left behind by a fork. Batches that are not handed out yet never will
    // be.
    virtual void end_ahead() = 0;

    // Ids of the live transitions in host memory: environment by environment, in order of time.
    virtual std::vector<int64_t> live_ids(void* stream) = 0;
    // Adds `count` to the number of batches drawn, and returns the first of these numbers.
    virtual uint64_t reserve_batches(int64_t count, void* stream) = 0;
    // Writes the first `capacity` transitions that need a bootstrap value, and returns the number of all.
    virtual int64_t bootstraps(int64_t capacity, const per_batch& batch, void* stream) = 0;
    virtual void advantages(const ReplayAdvantages& advantages, void* stream) = 0;

    // Sets alpha, beta and gamma unless they are NAN, n_step unless it is 0, and the version unless it is -1.
    virtual void change_settings(const per_replay_settings& settings, void* stream) = 0;
    virtual int64_t version() const = 0;

    // Fills all of a summary but `changes`, and smallest_mass only if it is wanted. `measured` and the argument of
    // set_scale() may have a reference below the buffer's, which then counts as the buffer's.
    virtual void summarize(const LeafScale& measured, bool wants_smallest, per_shard_summary& summary_out) = 0;
    virtual void set_scale(const LeafScale& scale) = 0;
    virtual void raise_max_priority(float priority, void* stream) = 0;

    virtual int64_t live() = 0;
    virtual void statistics(per_replay_statistics& statistics_out) = 0;  // all but struct_size and capacity
    virtual void synchronize(void* stream) = 0;

    // The file of the rows; NULL if they lie in memory. restore() takes over the checkpoint's file or creates one. A
    // caller that does not restore must create it.
    virtual RowFile* row_file() { return nullptr; }
    // save() and restore() cover all state but the options. A backend to restore must be new, and have the options of
    // the saved one. restore() throws Error with CORRUPT_FILE for an impossible state.
    virtual void save(CheckpointWriter& writer) = 0;
    // The state that save() would write. Only one snapshot may exist at a time. If its write() is not called, it must
    // be destroyed while the buffer is locked.
    virtual std::unique_ptr<ReplaySnapshot> snapshot() = 0;
    virtual void restore(CheckpointReader& reader) = 0;
};

}  // namespace per
