// Draws live rows of a replay buffer, and writes them into a batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/draw_outcome.h"
#include "cuda/batch/copy_frames.h"
#include "cuda/batch/write_rows.h"
#include "cuda/replay/replay_state.h"

namespace per::cuda {

// Data that the kernels of a call leave for each other.
struct DrawFacts {
    double beta;         // if another launch computes the weights
    double n_draws;      // of a draw without replacement; see DrawLaw
    int64_t n_found;     // rows of the batch that a draw without replacement found
    uint32_t n_arrived;  // blocks that have drawn; 0 between calls
};

// Memory for up to `size` rows. slots, ages and shares keep the last batch that was drawn.
struct DrawMemory {
    DrawFacts* facts;
    double* smallest_shares;  // [max_draw_blocks] of the draws of each block
    int64_t* slots;           // [size]
    int64_t* ages;            // [size]
    double* shares;           // [size]
    int64_t* found;           // [size] slots found without replacement, or by id; ids of an epoch
    std::byte* rows;          // [size] GatherRow or SequenceRow
    int64_t size;

    template <class Row>
    __device__ __forceinline__ Row* rows_of() const {
        return reinterpret_cast<Row*>(rows);
    }
};

inline constexpr std::size_t max_row_bytes = sizeof(SequenceRow) > sizeof(GatherRow) ? sizeof(SequenceRow)
                                                                                     : sizeof(GatherRow);

// The plan of a draw, for all of its kernels.
struct DrawPlan {
    RowPlan rows;      // those that are drawn
    int64_t n_newest;  // rows of the batch that follow them: the newest live ones
    DeviceTree tree;   // of the priorities, or ranks, that the draw uses
    uint64_t width;    // stratum_width()
    int32_t scheme;
    int32_t prioritization;
    int32_t normalize_weights;
    double beta;  // NAN: by the schedule, which advances
    double uniform_fraction;
    DrawOutcome* outcome_out;  // for a draw of a loader; else NULL
    // Further work of the kernel that draws.
    bool copies_rows;        // for rows of few pieces
    bool stores_rows;        // for another kernel that copies frames
    bool last_block_weighs;  // for batches of few rows

    static constexpr bool is_plain = false;

    PER_HOST_DEVICE const RowPlan& row_plan() const { return rows; }
    PER_HOST_DEVICE int64_t n_rows() const { return rows.n + n_newest; }
    PER_HOST_DEVICE bool is_ahead() const { return outcome_out != nullptr; }
    PER_HOST_DEVICE bool is_distinct() const { return scheme == PER_WITHOUT_REPLACEMENT; }
};

// The plan of a draw without rarely used options, which the kernel for it leaves out: see is_plain() in live_draw.cu.
struct PlainDraw : DrawPlan {
    PER_HOST_DEVICE explicit PlainDraw(const DrawPlan& plan) : DrawPlan(plan) {}

    static constexpr bool is_plain = true;
    static constexpr int64_t n_newest = 0;
    static constexpr int32_t prioritization = PER_PROPORTIONAL;
    static constexpr int32_t normalize_weights = PER_BATCH_MAX;
    static constexpr double uniform_fraction = 0.0;
    static constexpr bool copies_rows = true;
    static constexpr bool stores_rows = false;
    static constexpr bool last_block_weighs = true;

    PER_HOST_DEVICE PlainRows row_plan() const { return {rows.rules, {1, rows.wishes.next}, rows.n, rows.batch}; }
    PER_HOST_DEVICE int64_t n_rows() const { return rows.n; }
    PER_HOST_DEVICE static constexpr bool is_ahead() { return false; }
    PER_HOST_DEVICE static constexpr bool is_distinct() { return false; }
};

// True if the windows of live rows are complete for the n_step of the plan. They are for the buffer's current n_step,
// but a graph may have been captured with a larger n_step.
__device__ __forceinline__ bool has_windows(const DeviceReplay& replay, const DrawPlan& plan) {
    return plan.rows.rules.n_step <= replay.state->rules.n_step;
}

template <class Plan>
__device__ __forceinline__ bool can_draw(const DeviceReplay& replay, const DrawMemory& memory, const Plan& plan) {
    // All conditions are read before any is used, so they are joined by & and not by &&.
    const int64_t n_live = replay.state->n_live;
    const int64_t n_found = plan.is_distinct() ? memory.facts->n_found : n_live;
    const bool has_rows = plan.is_distinct() ? n_found == plan.rows.n : n_found != 0;
    return has_windows(replay, plan) & has_rows & (n_live >= plan.n_newest);
}

// Queues a draw. It copies no frames, except those of `copies` if plan.copies_rows is set. It takes one launch for up
// to 1024 rows and two for more, one more without replacement, and one more with newest rows.
void queue_sample(const DeviceReplay& replay, const DrawMemory& memory, DrawPlan plan, const FrameCopies& copies,
                  cudaStream_t stream);

// Queues the writing of the newest rows of a draw, as queue_sample() does before it queues the draw of the others.
void queue_newest(const DeviceReplay& replay, const DrawMemory& memory, const DrawPlan& plan, const FrameCopies& copies,
                  cudaStream_t stream);

// Rows that are written as if they had been drawn. This does not count as a draw; only errors are counted.
struct WindowsPlan {
    DrawPlan draw;       // the draw with replacement that would give them
    const int64_t* ids;  // [n]; may be memory.found
    bool skips_dead;     // otherwise ids that are not live count as bad
    int64_t n_of_epoch;  // the number of transitions that the draw would choose from; 0: all live ones
};

// Queues the writing of rows without their frames. memory.found then has their slots, -1 for rows that are not live.
void queue_windows(const DeviceReplay& replay, const DrawMemory& memory, const WindowsPlan& plan, cudaStream_t stream);

// Queues copies of the frames of rows that queue_sample(), queue_windows() or the functions of rows_by_id.h have
// placed. The functions of rows_by_id.h place no sequences, even in a buffer that draws them.
void queue_copies(const RowPlan& plan, const DrawMemory& memory, const FrameCopies& copies, bool of_sequences,
                  cudaStream_t stream);

// Counts the rows of a draw that queue_sample() has queued, with keep_times_sampled, and writes times_sampled of the
// batch. Rows that have been drawn max_times_sampled times stop being live. One launch.
void queue_count_draws(const DeviceReplay& replay, const DrawMemory& memory, const DrawPlan& plan, cudaStream_t stream);

// The arguments of per_replay_get_units(); masses_out and first_units_out may be NULL.
struct UnitsPlan {
    int64_t n;
    const int64_t* units;
    uint64_t* masses_out;
    uint64_t* first_units_out;
};

// Queues finding the rows that own units of the buffer's mass: a draw without its random numbers. memory.found then has
// their ids. A unit that does not exist gets id -1 and mass 0.
void queue_find_units(const DeviceReplay& replay, const DrawMemory& memory, const UnitsPlan& plan, cudaStream_t stream);

void load_sample_kernels();
void load_newest_kernels();
void load_window_kernels();
void load_count_kernels();
void load_unit_kernels();

}  // namespace per::cuda
