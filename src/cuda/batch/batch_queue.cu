#include "cuda/batch/batch_queue.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cmath>

#include "backend/replay_options.h"
#include "base/error.h"
#include "cuda/add/step_queue.h"
#include "cuda/batch/rows_by_id.h"
#include "cuda/replay/on_policy.h"
#include "cuda/replay/priorities.h"
#include "cuda/runtime/device.h"
#include "cuda/tree/layout.h"
#include "rows/dtype.h"
#include "rules/draw.h"

namespace per::cuda {
namespace {

// The number of rows for which there is memory from the beginning.
constexpr int64_t first_rows = 4096;

DrawMemory lay_out_draws(int64_t n_rows, Layout& layout) {
    DrawMemory memory = {};
    memory.facts = layout.array<DrawFacts>(1);
    memory.smallest_shares = layout.array<double>(max_draw_blocks);
    memory.slots = layout.array<int64_t>(n_rows);
    memory.ages = layout.array<int64_t>(n_rows);
    memory.shares = layout.array<double>(n_rows);
    memory.found = layout.array<int64_t>(n_rows);
    memory.rows = layout.bytes(n_rows, max_row_bytes);
    memory.size = n_rows;
    return memory;
}

}  // namespace

BatchQueue::BatchQueue(const per_replay_options& options, const Fields& fields, ReplayMemory& memory, Staging& staging,
                       cudaStream_t stream)
    : fields_(fields), replay_(memory), staging_(staging), rules_(window_rules(options, fields)) {
    load_sample_kernels();
    load_newest_kernels();
    load_window_kernels();
    load_count_kernels();
    load_unit_kernels();
    load_rows_by_id_kernels();
    allocate(first_rows, stream);
    if (options.prioritization == PER_RANK) queue_ranks(memory.device(), stream);
}

void BatchQueue::allocate(int64_t n_rows, cudaStream_t stream) {
    blocks_.emplace_back(bytes_of_layout([&](Layout& layout) { lay_out_draws(n_rows, layout); }));
    Layout layout(blocks_.back().data());
    const DrawMemory memory = lay_out_draws(n_rows, layout);
    check(cudaMemsetAsync(memory.facts, 0, sizeof(DrawFacts), stream), "clearing memory");
    memory_ = memory;
}

const DrawMemory& BatchQueue::memory_for(int64_t n_rows, const StreamOrder::Call& call) {
    if (n_rows <= memory_.size) return memory_;
    if (call.is_captured())
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "stream is %p: it is being captured, and the first batch or update of more than %" PRId64
                    " rows (%" PRId64 ") allocates memory: make one such call before",
                    static_cast<void*>(call.stream()), memory_.size, n_rows);
    allocate(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n_rows))), call.stream());
    return memory_;
}

UpdateEntry* BatchQueue::entries_for(int64_t count, const StreamOrder::Call& call) {
    static_assert(sizeof(UpdateEntry) <= max_row_bytes);
    return reinterpret_cast<UpdateEntry*>(memory_for(count, call).rows);
}

// ---------------------------------------------------------------------------------------------------------- plans

void BatchQueue::add_copy(std::size_t field, void* out, int64_t length, int64_t stack, bool is_next) {
    if (copies_.empty() || copies_.back().n == max_copies) copies_.emplace_back();
    FrameCopies& launch = copies_.back();
    const DeviceField& from = replay_.fields()[field];
    const auto [piece_bytes, n_pieces, n_chunks] = pieces_of(from.bytes, out);
    if (length * stack * n_pieces > UINT32_MAX)
        throw Error(PER_ERROR_UNSUPPORTED,
                    "%s has %" PRId64 " pieces of %d bytes in a row of a batch: allowed on PER_CUDA are 2^32 - 1",
                    fields_[static_cast<int64_t>(field)].name.c_str(), length * stack * n_pieces,
                    static_cast<int>(piece_bytes));
    launch.n_pieces += length * stack * n_pieces;
    launch.copies[launch.n++] = {from.frames,
                                 from.next_frames,
                                 static_cast<std::byte*>(out),
                                 from.bytes,
                                 length,
                                 static_cast<int32_t>(stack),
                                 piece_bytes,
                                 static_cast<uint32_t>(n_pieces),
                                 static_cast<uint32_t>(n_chunks),
                                 static_cast<uint32_t>(launch.n_pieces),
                                 from.role == PER_ROLE_OBSERVATION,
                                 is_next,
                                 from.pads_with_zeros};
    launch.n_chunks += length * stack * n_chunks;
}

RowPlan BatchQueue::plan_rows(int64_t n, int64_t n_step, const per_batch& batch, RowShape shape) {
    RowPlan plan = {rules_, {shape == RowShape::frame ? 1 : rules_.stack, false}, n, batch};
    plan.rules.n_step = n_step;
    copies_.clear();
    const int64_t steps = rules_.sequence.steps;
    for (int64_t i = 0; i < fields_.count(); ++i) {
        const Field& field = fields_[i];
        const bool is_state = field.role == PER_ROLE_RECURRENT_STATE;
        const int64_t length = !replay_.device().has_sequences || shape != RowShape::drawn || is_state ? 1
                               : field.is_observation() ? steps + plan.rules.n_step
                                                        : steps;
        const int64_t stack = shape == RowShape::frame ? 1 : field.stack;
        const std::size_t index = static_cast<std::size_t>(i);
        if (plan.batch.fields != nullptr && plan.batch.fields[i] != nullptr)
            add_copy(index, plan.batch.fields[i], length, stack, false);
        if (field.is_observation() && plan.batch.next_fields != nullptr && plan.batch.next_fields[i] != nullptr) {
            add_copy(index, plan.batch.next_fields[i], length, stack, true);
            plan.wishes.next = true;
        }
    }
    if (copies_.empty()) copies_.emplace_back();
    for (FrameCopies& launch : copies_) launch.by_chunks = Divisor(std::max<int64_t>(launch.n_chunks, 1));
    return plan;
}

// ---------------------------------------------------------------------------------------------------------- calls

void BatchQueue::prepare(const ReplaySample& sample, const StreamOrder::Call& call) {
    memory_for(sample.batch_size, call);
    const DevicePriorities& priorities = replay_.device().priorities;
    if (sample.prioritization == PER_RANK && !has_ranks(priorities)) {
        replay_.add_ranks(call);
        queue_ranks(replay_.device(), call.stream());
    }
    const bool asks_smallest = sample.prioritization != PER_RANK && sample.normalize_weights == PER_BUFFER_MAX;
    if (asks_smallest && priorities.smallest_leaf.n_levels == 0) {
        replay_.add_smallest_leaf(call);
        queue_smallest_leaves(replay_.device(), call.stream());
    }
}

void BatchQueue::sample(const ReplaySample& sample, const StreamOrder::Call& call) {
    RowPlan rows = plan_rows(sample.n_drawn(), sample.n_step, sample.batch, RowShape::drawn);
    rows.n_step_min = sample.n_step_min;
    const auto* const drawn = sample.rows_as<DrawnRows>();
    if (drawn != nullptr) rows.key = drawn->key;
    prepare(sample, call);
    const DrawMemory& memory = memory_;
    const DeviceReplay& replay = replay_.device();
    if (sample.prioritization == PER_RANK) {
        const int64_t least_live = sample.scheme == PER_WITHOUT_REPLACEMENT ? sample.n_drawn() : 1;
        queue_take_ranks_if_due(replay, {std::max(least_live, sample.n_newest), sample.n_step}, call.stream());
    }
    DrawPlan plan = {rows,
                     sample.n_newest,
                     sample.prioritization == PER_RANK ? replay.priorities.ranks.tree : replay.priorities.tree,
                     0,
                     sample.scheme,
                     sample.prioritization,
                     sample.normalize_weights,
                     sample.beta,
                     sample.uniform_fraction,
                     sample.is_ahead() ? drawn->ahead->outcome_out : nullptr,
                     false,
                     false,
                     false};
    if (drawn == nullptr) return get_windows(sample, plan, call);
    plan.copies_rows = copies_[0].n_pieces <= max_pieces_of_small_row;
    plan.stores_rows = !plan.copies_rows || copies_.size() > 1;
    queue_sample(replay, memory, plan, copies_[0], call.stream());
    rows.n = sample.batch_size;
    queue_copies_from(plan.copies_rows ? 1 : 0, rows, replay.has_sequences, call.stream());
    if (replay.times_sampled != nullptr) queue_count_draws(replay, memory, plan, call.stream());
}

void BatchQueue::get_windows(const ReplaySample& sample, const DrawPlan& plan, const StreamOrder::Call& call) {
    const cudaStream_t stream = call.stream();
    WindowsPlan windows = {plan, memory_.found, false, 0};
    if (const auto* const epoch = sample.rows_as<RowsOfEpoch>()) {
        send_ids(sample.batch_size, epoch->ids, memory_.found, staging_, call);
        windows.n_of_epoch = epoch->n_transitions;
    } else if (const auto* const of_units = sample.rows_as<RowsOfUnits>()) {
        queue_find_units(replay_.device(), memory_,
                         {sample.batch_size, of_units->units, of_units->masses_out, of_units->first_units_out}, stream);
    } else {
        const RowsOfIds& of_ids = std::get<RowsOfIds>(sample.rows);
        windows.ids = of_ids.ids;
        windows.skips_dead = of_ids.on_invalid == PER_INVALID_SKIP;
    }
    queue_windows(replay_.device(), memory_, windows, stream);
    queue_copies_from(0, plan.rows, replay_.device().has_sequences, stream);
}

void BatchQueue::queue_copies_from(std::size_t first, const RowPlan& plan, bool of_sequences, cudaStream_t stream) {
    for (std::size_t i = first; i < copies_.size(); ++i)
        if (copies_[i].n != 0) queue_copies(plan, memory_, copies_[i], of_sequences, stream);
}

void BatchQueue::get(int64_t count, const int64_t* ids, const per_batch& batch, const StreamOrder::Call& call) {
    if (count == 0) return;
    const DrawMemory& memory = memory_for(count, call);
    const RowPlan plan = plan_rows(count, 1, batch, RowShape::frame);
    queue_get(replay_.device(), memory, plan, ids, call.stream());
    queue_copies_from(0, plan, false, call.stream());
}

void BatchQueue::bootstraps(int64_t count, const per_batch& batch, const StreamOrder::Call& call) {
    if (count == 0) return;
    const DrawMemory& memory = memory_for(count, call);
    const RowPlan plan = plan_rows(count, 1, batch, RowShape::step);
    queue_list_bootstraps(replay_.device(), count, memory.found, call.stream());
    queue_single_steps(replay_.device(), memory, plan, call.stream());
    queue_copies_from(0, plan, false, call.stream());
}

void BatchQueue::set(int64_t count, const int64_t* ids, const per_array* fields, const StreamOrder::Call& call) {
    if (count == 0) return;
    std::vector<FieldsSet>& launches = set_launches_;
    launches.assign(1, {});
    for (int64_t i = 0; i < fields_.count(); ++i) {
        if (fields[i].data == nullptr) continue;
        if (launches.back().n == max_fields_set) launches.emplace_back();
        FieldsSet& launch = launches.back();
        const DeviceField& field = replay_.fields()[static_cast<std::size_t>(i)];
        const bool is_cast = fields[i].dtype != field.dtype;
        launch.fields[launch.n++] = {field, static_cast<const std::byte*>(fields[i].data),
                                     field.elements * dtype_size(fields[i].dtype), fields[i].dtype,
                                     is_cast ? 0 : piece_bytes_of(field.bytes, fields[i].data)};
        launch.has_casts |= is_cast;
    }
    queue_set(replay_.device(), memory_for(count, call), rules_, count, ids, launches, call.stream());
}

// ----------------------------------------------------------------------------------------------------- statistics

LastBatch& BatchQueue::last_batch(const LastDraw& last, const StreamOrder::Call& call) {
    if (last.size == 0) return last_batch_;
    const std::size_t size = static_cast<std::size_t>(last.size);
    last_batch_.slots.resize(size);
    last_batch_.ages.resize(size);
    last_batch_.shares.resize(size);
    copy_to_host(last_batch_.slots.data(), last.slots, size, call.stream());
    copy_to_host(last_batch_.ages.data(), last.ages, size, call.stream());
    copy_to_host(last_batch_.shares.data(), last.shares, size, call.stream());
    wait_for(call.stream());
    last_batch_.shares.resize(static_cast<std::size_t>(last.n_weighed));
    last_batch_.reference = last.reference;
    last_batch_.beta = last.beta;
    return last_batch_;
}

}  // namespace per::cuda
