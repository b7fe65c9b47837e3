#include "cuda/draw/live_draw.h"

#include "cuda/draw/distinct_draw.h"
#include "cuda/draw/draw_law.h"
#include "per.h"
#include "rules/draw.h"
#include "rules/mass.h"

namespace per::cuda {
namespace {

constexpr int64_t max_copy_blocks = 4096;
// The blocks of a draw on a multiprocessor at the same time: more would leave them too few registers.
constexpr int draw_blocks_each = 2;
// A warp searches for up to this many rows at the same time.
constexpr int n_at_once = 2;
// The last block to finish computes the weights of up to this many rows. For more, another launch takes less time.
constexpr int64_t max_weights_of_a_block = 1024;

// The part of the state that a draw needs. All of it is read before any is used, and it stays valid until count_draw().
// In the general case a block keeps it in shared memory, as registers are few.
struct DrawStart {
    BatchKey key;
    uint64_t mass;
    double factor;
};

struct Shared {
    DrawStart start;
    TopRow tree_row;
    TopRow live_row;
    FinishShared finish;
    bool is_last;
};

// ---- finding slots without replacement

struct DistinctSlotsShared {
    TopRow tree_row;
    TopRow live_row;
    DistinctShared draws;
};

__device__ __forceinline__ DistinctResult draw_distinct_slots(const DeviceReplay& replay, const DrawMemory& memory,
                                                              const DrawPlan& plan, DistinctSlotsShared& shared) {
    const DrawLaw law = law_of_draw(replay, memory, plan);
    const double factor = power_of_two(plan.tree.state->scale);
    const DistinctFound out = {plan.rows.n, memory.found, plan.tree.claims};
    const BatchKey key = key_of(replay, plan.rows);
    const DrawRequest request = {plan.rows.n, PER_INDEPENDENT, key.seed, key.batch_number};
    if (law.uniform_fraction == 0.0) {
        TreeSource source = {plan.tree, shared.tree_row, factor, law.mass};
        return draw_distinct(source, shared.draws, out, request);
    }
    MixtureSource source = {plan.tree, replay.priorities.live, shared.tree_row, shared.live_row, factor, law};
    return draw_distinct(source, shared.draws, out, request);
}

__global__ void __launch_bounds__(distinct_threads, 1)
    distinct_slots_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ DrawMemory memory,
                          const __grid_constant__ DrawPlan plan) {
    PER_SHARED(DistinctSlotsShared, shared);
    DistinctResult result = {replay.state->n_live, 0.0};
    if (replay.state->n_live >= plan.rows.n) result = draw_distinct_slots(replay, memory, plan, shared);
    if (threadIdx.x != 0) return;
    memory.facts->n_draws = result.n_draws;
    memory.facts->n_found = result.n_found < plan.rows.n ? result.n_found : plan.rows.n;
}

// ---- drawing

PER_OUT_OF_LINE UnitOrRank target_in_mixture(uint64_t target, double uniform_fraction, uint64_t mass, uint64_t n_live) {
    return part_of_mixture(target, uniform_units(uniform_fraction), mass, n_live);
}

__device__ __forceinline__ UnitOrRank target_of(const DrawLaw& law, const DrawRequest& request, int64_t i,
                                                uint64_t width, uint64_t n_live, uint64_t mass) {
    const uint64_t whole = law.is_mixture() ? mixture_units : law.is_uniform() ? n_live : mass;
    const uint64_t target = draw_target(request, static_cast<uint64_t>(i), width, whole);
    if (!law.is_mixture()) return {target, law.is_uniform()};
    return target_in_mixture(target, law.uniform_fraction, mass, n_live);
}

template <class Plan>
__device__ __forceinline__ double beta_of(const DeviceReplay& replay, const Plan& plan) {
    const ReplayState& state = *replay.state;
    const int64_t step = plan.is_ahead() ? state.beta.step : state.beta_step();
    return plan.beta != plan.beta ? state.beta.beta(step) : plan.beta;
}

template <class Plan>
__device__ __forceinline__ DrawStart start_draw(const DeviceReplay& replay, const Plan& plan) {
    DrawStart start;
    start.mass = plan.tree.state->total;
    const int32_t scale = plan.tree.state->scale;
    start.key = key_of(replay, plan.row_plan());
    start.factor = power_of_two(scale);
    return start;
}

struct DrawnSlot {
    int64_t slot;
    double share;
};

// Makes draw i from any distribution. A warp calls it.
PER_OUT_OF_LINE DrawnSlot draw_slot(const DeviceReplay& replay, const DrawMemory& memory, const DrawPlan& plan,
                                    const Shared& shared, int64_t i) {
    const DrawLaw law = law_of_draw(replay, memory, plan);
    const BatchKey key = key_of(replay, plan.rows);
    // `law` has these numbers as doubles, which may be rounded.
    const uint64_t n_live = static_cast<uint64_t>(replay.state->n_live);
    const uint64_t mass = plan.tree.state->total;
    const double factor = power_of_two(plan.tree.state->scale);
    int64_t slot;
    if (law.is_distinct) {
        slot = memory.found[i];
    } else {
        const DrawRequest request = {plan.rows.n, plan.scheme, key.seed, key.batch_number};
        const UnitOrRank target = target_of(law, request, i, plan.width, n_live, mass);
        slot = target.is_rank ? select(replay.priorities.live, shared.live_row, target.value)
                              : find_leaf(plan.tree, shared.tree_row, factor, target.value).index;
    }
    return {slot, law.share_of(static_cast<double>(leaf_mass(plan.tree.leaves[slot], factor)))};
}

// Makes draws i, i + step ... by priority: n of them. A warp calls it.
template <int most>
__device__ __forceinline__ void draw_by_priority(const DrawPlan& plan, const DrawStart& start, const Shared& shared,
                                                 int64_t i, int64_t step, int n, DrawnSlot (&drawn)[most]) {
    const DrawRequest request = {plan.rows.n, plan.scheme, start.key.seed, start.key.batch_number};
    uint64_t targets[most] = {};
    for (int k = 0; k < most && k < n; ++k)
        targets[k] = draw_target(request, static_cast<uint64_t>(i + k * step), plan.width, start.mass);
    FoundLeaf leaves[most];
    find_leaves(plan.tree, shared.tree_row, start.factor, n, targets, leaves);
    // The share is the mass, as the law has no uniform part.
    for (int k = 0; k < most && k < n; ++k) drawn[k] = {leaves[k].index, static_cast<double>(leaves[k].mass)};
}

PER_OUT_OF_LINE void load_live_row(const DeviceLive& live, TopRow& row) {
    load_top_row(live, row);
}

// Loads the top rows that the draw searches, and hands `start` to the block. The plan says which rows those are, so
// that loading them need not wait for other memory. Only that a draw is uniform because all priorities are 0 is not in
// the plan.
template <class Plan>
__device__ __forceinline__ void load_top_rows(const DeviceReplay& replay, const Plan& plan, const DrawStart& start,
                                              Shared& shared) {
    if (!Plan::is_plain && threadIdx.x == 0) shared.start = start;
    if (plan.is_distinct()) return __syncthreads();
    const bool is_uniform = plan.prioritization == PER_UNIFORM || plan.uniform_fraction == 1.0;
    if (!is_uniform) load_top_row(plan.tree, shared.tree_row);
    if (is_uniform || plan.uniform_fraction != 0.0 || start.mass == 0)
        load_live_row(replay.priorities.live, shared.live_row);
}

template <class Row>
PER_OUT_OF_LINE void copy_placed_row(const FrameCopies& copies, const WindowRules& rules, Row row, int64_t i) {
    copy_small_row(copies, rules, row, i);
}

// Writes row i of the batch, whose share is already stored.
template <class Row, class Plan>
__device__ __forceinline__ void write_drawn_row(const DeviceReplay& replay, const DrawMemory& memory, const Plan& plan,
                                                const FrameCopies& copies, int64_t i, const DrawnSlot& drawn) {
    Row row;
    const WrittenRow written = write_row(replay, plan.row_plan(), i, drawn.slot, row, [&](const Row& guess) {
        if constexpr (Plan::is_plain)
            copy_single_frames(copies, guess, i);
        else if (plan.copies_rows)
            copy_small_row(copies, plan.rows.rules, guess, i);
    });
    if (lane_of_thread() == 0) {
        memory.slots[i] = drawn.slot;
        memory.ages[i] = written.age;
        if (plan.stores_rows) memory.rows_of<Row>()[i] = row;
        if (plan.rows.batch.probabilities != nullptr)
            plan.rows.batch.probabilities[i] =
                static_cast<float>(drawn.share / law_of_draw(replay, memory, plan).total());
    }
    if (plan.copies_rows && !written.has_frames) copy_placed_row(copies, plan.rows.rules, row, i);
}

// Draws and writes the rows of this block. Returns the smallest share of those of this warp.
template <class Row>
__device__ __forceinline__ double draw_rows(const DeviceReplay& replay, const DrawMemory& memory, const DrawPlan& plan,
                                            const FrameCopies& copies, Shared& shared) {
    const DrawStart& start = shared.start;
    double smallest = no_share();
    const GridSpan span = warp_span();
    for (int64_t first = span.first; first < plan.rows.n; first += n_at_once * span.step) {
        const int n = first + span.step < plan.rows.n ? n_at_once : 1;
        DrawnSlot drawn[n_at_once] = {};
        const bool is_by_priority =
            !plan.is_distinct() && uniform_part(plan.prioritization, plan.uniform_fraction, start.mass) == 0.0;
        if (is_by_priority) draw_by_priority(plan, start, shared, first, span.step, n, drawn);
        for (int k = 0; k < n; ++k) {
            const int64_t i = first + k * span.step;
            // Not drawn[k]: as the loop is not unrolled, an index would move the array from registers to memory.
            DrawnSlot of_two = k == 0 ? drawn[0] : drawn[n_at_once - 1];
            if (!is_by_priority) of_two = draw_slot(replay, memory, plan, shared, i);
            if (lane_of_thread() == 0) memory.shares[i] = of_two.share;
            smallest = smaller(smallest, of_two.share);
            write_drawn_row<Row>(replay, memory, plan, copies, i, of_two);
        }
    }
    return smallest;
}

template <class Row>
PER_OUT_OF_LINE void write_no_rows(const DrawMemory& memory, const DrawPlan& plan, const FrameCopies& copies) {
    const GridSpan span = warp_span();
    for (int64_t i = span.first; i < plan.rows.n; i += span.step) {
        Row row;
        write_no_row(plan.rows, i, row);
        if (plan.copies_rows) copy_small_row(copies, plan.rows.rules, row, i);
        if (lane_of_thread() != 0) continue;
        memory.rows_of<Row>()[i] = row;
        if (plan.rows.batch.probabilities != nullptr) plan.rows.batch.probabilities[i] = 0.0f;
    }
}

// The same in the plain case, where each warp draws one row at most. The whole block calls come() once its shares are
// stored, before it writes rows: shares are all that the last block reads.
template <class Row, class Come>
__device__ __forceinline__ void draw_rows(const DeviceReplay& replay, const DrawMemory& memory, const PlainDraw& plan,
                                          const FrameCopies& copies, Shared& shared, const DrawStart& start,
                                          bool is_drawn, const Come& come) {
    const int64_t i = warp_span().first;
    const bool has_one = is_drawn && i < plan.rows.n;
    DrawnSlot drawn[1] = {};
    if (has_one) {
        if (start.mass != 0)
            draw_by_priority(plan, start, shared, i, 1, 1, drawn);
        else
            drawn[0] = draw_slot(replay, memory, plan, shared, i);
        if (lane_of_thread() == 0) memory.shares[i] = drawn[0].share;
    }
    come();
    if (has_one)
        write_drawn_row<Row>(replay, memory, plan, copies, i, drawn[0]);
    else if (!is_drawn)
        write_no_rows<Row>(memory, plan, copies);
}

// ---- weighing

// The counts of the state to which a draw adds. A kernel reads them before it waits for other data.
struct DrawCounts {
    uint64_t batches;
    int64_t beta_step;
    int64_t n_ahead;
};

// Counts the batch, and records it as the last one.
template <class Plan>
__device__ __forceinline__ void count_draw(const DeviceReplay& replay, const DrawMemory& memory, const Plan& plan,
                                           const DrawCounts& before, double reference, double beta) {
    ReplayState& state = *replay.state;
    state.last = {plan.n_rows(), plan.rows.n, beta, reference, memory.slots, memory.ages, memory.shares};
    if (plan.is_ahead()) *plan.outcome_out = {state.n_live, plan.rows.n};
    state.batches = before.batches + 1;
    if (plan.beta != plan.beta) state.beta.step = before.beta_step + 1;
    if (plan.beta != plan.beta && plan.is_ahead()) state.n_ahead = before.n_ahead + 1;
}

// One thread calls it.
__device__ __forceinline__ void count_no_draw(const DeviceReplay& replay, const DrawMemory& memory,
                                              const DrawPlan& plan) {
    ReplayErrors& errors = replay.state->errors;
    if (plan.is_ahead())
        *plan.outcome_out = {replay.state->n_live, memory.facts->n_found};
    else if (replay.state->n_live == 0)
        ++errors.n_empty_draws;
    else
        ++(has_windows(replay, plan) ? errors.n_short_draws : errors.n_outdated_draws);
}

// The threads of `span` write the weights. In one block `ends_draw` is true: it counts the draw. n_draw_blocks is the
// number of blocks that have stored their smallest share; 0: there is only this block, which finds it among all.
template <class Plan>
__device__ __forceinline__ void finish_draw(const DeviceReplay& replay, const DrawMemory& memory, const Plan& plan,
                                            double beta, bool is_drawn, int64_t n_draw_blocks, const GridSpan& span,
                                            bool ends_draw, FinishShared& shared) {
    const DrawLaw law = law_of_draw(replay, memory, plan);
    const ReplayState& state = *replay.state;
    // Only one thread reads and writes the counts, so that no other can still be reading them when they are written.
    DrawCounts counts = {};
    if (ends_draw && threadIdx.x == 0) counts = {state.batches, state.beta.step, state.n_ahead};
    // A thread reads its first share together with the data that all threads need, so that it waits only once.
    double share = span.first < plan.rows.n ? memory.shares[span.first] : no_share();
    float* const weights = plan.rows.batch.weights;
    if (!is_drawn) {
        for (int64_t i = span.first; weights != nullptr && i < plan.rows.n; i += span.step) weights[i] = 0.0f;
        if (ends_draw && threadIdx.x == 0) count_no_draw(replay, memory, plan);
        return;
    }
    const auto smallest = [&] {
        return n_draw_blocks == 0 ? smallest_share(share, memory.shares, plan.rows.n, shared)
                                  : smallest_of_blocks(memory, n_draw_blocks, shared);
    };
    const double reference = reference_of(replay, plan, law, smallest, shared);
    // Beta is read by all threads before it is counted. Finding the smallest share ends with a barrier, too.
    if (plan.normalize_weights != PER_BATCH_MAX) __syncthreads();
    const double log2_reference = log2_of<double, uint64_t>(reference);
    for (int64_t i = span.first; weights != nullptr && i < plan.rows.n; i += span.step) {
        weights[i] = static_cast<float>(importance_weight_of<double, uint64_t>(log2_reference, share, beta));
        if (i + span.step < plan.rows.n) share = memory.shares[i + span.step];
    }
    if (ends_draw && threadIdx.x == 0) count_draw(replay, memory, plan, counts, reference, beta);
}

// ---- kernels

template <class Row, class Plan>
__global__ void __launch_bounds__(n_threads, draw_blocks_each)
    draw_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ DrawMemory memory,
                const __grid_constant__ Plan plan, const __grid_constant__ FrameCopies copies) {
    PER_SHARED(Shared, shared);
    PER_ASSUME(blockDim.x == n_threads);
    const bool is_drawn = can_draw(replay, memory, plan);
    if (!plan.last_block_weighs && blockIdx.x == 0 && threadIdx.x == 0) memory.facts->beta = beta_of(replay, plan);
    const DrawStart start = start_draw(replay, plan);
    load_top_rows(replay, plan, start, shared);
    double smallest = no_share();
    uint32_t& n_arrived = memory.facts->n_arrived;
    uint32_t n_before = 0;  // blocks that have arrived before this one; known to thread 0
    const auto come = [&] {
        __syncthreads();
        if (threadIdx.x == 0) n_before = Plan::is_plain ? begin_arrival(&n_arrived) : arrive(&n_arrived);
    };
    if constexpr (Plan::is_plain) {
        draw_rows<Row>(replay, memory, plan, copies, shared, start, is_drawn, come);
    } else {
        if (is_drawn)
            smallest = draw_rows<Row>(replay, memory, plan, copies, shared);
        else
            write_no_rows<Row>(memory, plan, copies);
        if (!plan.last_block_weighs) {
            smallest = smallest_of_block(smallest, shared.finish.of_warp);
            if (threadIdx.x == 0) memory.smallest_shares[blockIdx.x] = smallest;
            return;
        }
        come();
    }
    if (threadIdx.x == 0) {
        shared.is_last = n_before == gridDim.x - 1;
        if (shared.is_last && Plan::is_plain) end_arrival(&n_arrived);
        if (shared.is_last && !Plan::is_plain) n_arrived = 0;
    }
    __syncthreads();
    if (!shared.is_last) return;
    finish_draw(replay, memory, plan, beta_of(replay, plan), is_drawn, 0, {threadIdx.x, n_threads}, true,
                shared.finish);
}

__global__ void __launch_bounds__(n_threads, 1)
    weigh_kernel(const __grid_constant__ DeviceReplay replay, const __grid_constant__ DrawMemory memory,
                 const __grid_constant__ DrawPlan plan, int64_t n_draw_blocks) {
    PER_SHARED(FinishShared, shared);
    const bool is_drawn = can_draw(replay, memory, plan);
    finish_draw(replay, memory, plan, memory.facts->beta, is_drawn, n_draw_blocks, grid_span(), blockIdx.x == 0,
                shared);
}

template <class Row>
__global__ void __launch_bounds__(n_threads, 1)
    copy_kernel(const __grid_constant__ RowPlan plan, const __grid_constant__ DrawMemory memory,
                const __grid_constant__ FrameCopies copies) {
    copy_rows(copies, plan.rules, memory.rows_of<Row>(), plan.n);
}

// Whether the kernel of PlainDraw can make this draw, with two thirds of the instructions.
bool is_plain(const DeviceReplay& replay, const DrawPlan& plan, const FrameCopies& copies, int64_t n_draw_blocks) {
    const RowPlan& rows = plan.rows;
    return !replay.has_sequences && plan.n_newest == 0 && plan.prioritization == PER_PROPORTIONAL &&
           plan.normalize_weights == PER_BATCH_MAX && plan.uniform_fraction == 0.0 && !plan.is_ahead() &&
           !plan.is_distinct() && plan.last_block_weighs && rows.n <= n_draw_blocks * n_warps && rows.key == nullptr &&
           rows.n_step_min == 0 && rows.wishes.stack == 1 && rows.rules.n_step <= int64_t{warp_size} &&
           plan.copies_rows && !plan.stores_rows && copies.n_pieces <= int64_t{warp_size};
}

}  // namespace

void queue_sample(const DeviceReplay& replay, const DrawMemory& memory, DrawPlan plan, const FrameCopies& copies,
                  cudaStream_t stream) {
    const int64_t n = plan.rows.n;
    plan.width = stratum_width(n);
    plan.last_block_weighs = n <= max_weights_of_a_block;
    if (plan.is_distinct()) launch(stream, 1, distinct_threads, distinct_slots_kernel, replay, memory, plan);
    if (plan.n_newest > 0) queue_newest(replay, memory, plan, copies, stream);
    const int64_t n_draw_blocks = blocks_of_draw(plan.tree, n, draw_blocks_each);
    if (is_plain(replay, plan, copies, n_draw_blocks))
        return launch(stream, n_draw_blocks, n_threads, draw_kernel<GatherRow, PlainDraw>, replay, memory, plan,
                      copies);
    launch(stream, n_draw_blocks, n_threads,
           replay.has_sequences ? draw_kernel<SequenceRow, DrawPlan> : draw_kernel<GatherRow, DrawPlan>, replay, memory,
           plan, copies);
    if (plan.last_block_weighs) return;
    launch(stream, blocks_for(n), n_threads, weigh_kernel, replay, memory, plan, n_draw_blocks);
}

void queue_copies(const RowPlan& plan, const DrawMemory& memory, const FrameCopies& copies, bool of_sequences,
                  cudaStream_t stream) {
    launch(stream, blocks_for(plan.n * copies.by_chunks.value(), n_warps, max_copy_blocks), n_threads,
           of_sequences ? copy_kernel<SequenceRow> : copy_kernel<GatherRow>, plan, memory, copies);
}

void load_sample_kernels() {
    load_kernels(draw_kernel<GatherRow, PlainDraw>, draw_kernel<GatherRow, DrawPlan>,
                 draw_kernel<SequenceRow, DrawPlan>, weigh_kernel, copy_kernel<GatherRow>, copy_kernel<SequenceRow>,
                 distinct_slots_kernel);
}

}  // namespace per::cuda
