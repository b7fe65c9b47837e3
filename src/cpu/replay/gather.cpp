#include "cpu/replay/gather.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "cpu/memory/prefetch.h"

namespace per::cpu {
namespace {

constexpr int64_t max_lines = 4;          // fetched of a frame; the hardware's own prefetch takes over from there
constexpr int64_t max_rewards = 16;       // fetched of a window
constexpr int64_t max_run_bytes = 1024;   // of adjacent records that are fetched as one run
constexpr int64_t max_part_bytes = 4096;  // fetched of a record, which may hold large frames

void prefetch_lines(const std::byte* first, int64_t bytes) {
    const std::byte* line = first - reinterpret_cast<uintptr_t>(first) % line_bytes;
    for (; line < first + bytes; line += line_bytes) prefetch_to_read(line);
}

}  // namespace

void GatherPlan::add_copy(int64_t field, void* out, const FramePlaces* gather, int64_t stack, bool is_next) {
    const int64_t bytes = state_.fields[field].bytes;
    const Column<const std::byte> column = state_.rows.field(field);
    const Column<const std::byte> next_column = state_.rows.next_field(field);
    const bool is_own_array = is_next && state_.rules.store_next_observation;
    const int64_t place = state_.rows.place_in_record((is_own_array ? next_column : column).first);
    const std::byte** const places = gather != nullptr ? gather->places(field, is_next) : nullptr;
    const bool is_fetched_apart = places == nullptr && (place < 0 || stack > 1);
    const int64_t place_at_slot = is_next && !is_own_array ? -1 : place;
    if (place < 0)
        is_in_records_ = false;
    else
        (is_next && !is_own_array ? next_part_ : part_).include(place, bytes);
    copies_.push_back({column, next_column, state_.rows.packed(field), state_.rows.next_packed(field),
                       static_cast<std::byte*>(out), places, bytes, stack, place_at_slot, is_next,
                       state_.fields[field].pads_with_zeros(), is_fetched_apart, &moves_of(bytes)});
    row_bytes_ += stack * (places != nullptr ? int64_t{sizeof *places} : bytes);
}

const GatherPlan& GatherPlan::make(const per_batch& batch, bool single_frames, const FramePlaces* gather) {
    copies_.clear();
    part_ = next_part_ = Part();
    is_in_records_ = true;
    are_rows_fetched_ = false;
    const RowStore& rows = state_.rows;
    n_apart_ = 0;
    const auto add_number = [&](const Column<const std::byte>& numbers) {
        const int64_t place = rows.place_in_record(numbers.first);
        if (place >= 0)
            part_.include(place, 1);
        else
            apart_[n_apart_++] = numbers;
    };
    add_number(rows.rewards().as_bytes());
    add_number(rows.flags().as_bytes());
    if (batch.priorities != nullptr) add_number(rows.priorities().as_bytes());
    wishes_ = {1, false};
    row_bytes_ = 0;
    for (int64_t i = 0; i < state_.fields.count(); ++i) {
        const Field& field = state_.fields[i];
        const int64_t stack = single_frames ? 1 : field.stack;
        const size_t before = copies_.size();
        const auto is_wanted = [&](void* const* arrays, bool is_next) {
            return arrays != nullptr && arrays[i] != nullptr && (!field.is_ragged() || has_places(gather, i, is_next));
        };
        if (is_wanted(batch.fields, false)) add_copy(i, batch.fields[i], gather, stack, false);
        if (field.is_observation() && is_wanted(batch.next_fields, true)) {
            add_copy(i, batch.next_fields[i], gather, stack, true);
            wishes_.next = true;
        }
        if (copies_.size() > before) wishes_.stack = std::max(wishes_.stack, stack);
    }
    return *this;
}

void GatherPlan::prefetch_part(const Part& part, int64_t slot) const {
    if (part.end == 0) return;
    prefetch_lines(state_.rows.records().at(slot) + part.first, std::min(part.end - part.first, max_part_bytes));
}

void GatherPlan::will_need(const std::vector<int64_t>& slots, int64_t n_step) const {
    const int64_t before = wishes_.stack - 1;
    state_.will_need(slots, before, before + n_step + (wishes_.next && !state_.rules.store_next_observation ? 1 : 0));
}

const std::byte* GatherPlan::frame(const Copy& copy, const GatherRow& row, int64_t age) const {
    const FramePlace place = frame_place(state_.ring(), row, copy.is_next, age);
    return (place.is_next_array ? copy.next_column : copy.column).at(place.slot);
}

RecordRun GatherPlan::run_of(int64_t n_step) const {
    const Column<const std::byte> records = state_.rows.records();
    const int64_t first = part_.first - (wishes_.stack - 1) * records.stride;
    const int64_t end =
        next_part_.end > 0 ? n_step * records.stride + next_part_.end : (n_step - 1) * records.stride + part_.end;
    if (!is_in_records_ || end - first > max_run_bytes) return {};
    return {{records.first + first, records.stride}, end - first, n_apart_, apart_};
}

RowsOfLeaves GatherPlan::rows_to_fetch(int64_t n, int64_t n_step) const {
    // The draw of a larger batch would wait for memory: with 4096 rows it takes 1.25 times as long.
    constexpr int64_t most_rows = 256;
    if (!fetch_policy.rows_while_drawing || n > most_rows) return {};
    const RecordRun run = run_of(n_step);
    if (run.n_apart > 0) return {};
    return {run.column.first, run.column.stride, run.bytes};
}

void GatherPlan::prefetch(const GatherRow* rows, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) {
        prefetch_part(part_, rows[i].slot);
        prefetch_part(next_part_, rows[i].next_slot);
        for (size_t k = 0; k < n_apart_; ++k) prefetch_to_read(apart_[k].at(rows[i].slot));
    }
    for (const Copy& copy : copies_) {
        if (copy.packed != nullptr) {
            prefetch_packed(copy, rows, n);
            continue;
        }
        if (!copy.is_fetched_apart) continue;
        const int64_t bytes = std::min(copy.bytes, max_lines * line_bytes);
        for (int64_t i = 0; i < n; ++i)
            for (int64_t age = 0; age < copy.stack; ++age) prefetch_lines(frame(copy, rows[i], age), bytes);
    }
}

// Calls visit(frames, slot) for each frame of the rows in the order of the batch; visit(NULL, 0) for a frame that is
// all zero.
template <class Visit>
void GatherPlan::for_each_packed(const Copy& copy, const GatherRow* rows, int64_t n, const Visit& visit) const {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t age = copy.stack - 1; age >= 0; --age) {
            if (copy.pads_with_zeros && is_padding(rows[i], copy.is_next, age)) {
                visit(nullptr, 0);
                continue;
            }
            const FramePlace place = frame_place(state_.ring(), rows[i], copy.is_next, age);
            visit(place.is_next_array ? copy.next_packed : copy.packed, place.slot);
        }
}

void GatherPlan::prefetch_packed(const Copy& copy, const GatherRow* rows, int64_t n) const {
    for_each_packed(copy, rows, n, [](const PackedFrames* frames, int64_t slot) {
        if (frames != nullptr) frames->prefetch(slot);
    });
}

// All that the rows need is fetched before the first frame is unpacked.
void GatherPlan::copy_packed(const Copy& copy, std::byte* out, const GatherRow* rows, int64_t n) const {
    for_each_packed(copy, rows, n, [](const PackedFrames* frames, int64_t slot) {
        if (frames != nullptr) frames->prefetch_key(slot);
    });
    for_each_packed(copy, rows, n, [&](const PackedFrames* frames, int64_t slot) {
        if (frames == nullptr)
            std::memset(out, 0, static_cast<size_t>(copy.bytes));
        else
            frames->read(slot, out);
        out += copy.bytes;
    });
}

// Finds the places of all frames before it copies the first. Finding a place takes 1 ns then, and 4 ns if copies are
// made in between. records: [n] those of the rows' slots, where most frames lie.
void GatherPlan::copy_newest(const Copy& copy, std::byte* out, const GatherRow* rows, const std::byte* const* records,
                             int64_t n) const {
    const auto is_own = [](const GatherRow& row) { return row.next_is_own_array; };
    const auto is_at_slot = [](const GatherRow& row) { return row.next_is_own_array && row.next_slot == row.slot; };
    if (copy.place >= 0 && (!copy.is_next || std::all_of(rows, rows + n, is_at_slot)))
        return copy.moves->gather(out, records, copy.place, n, copy.bytes);
    const std::byte* frames[max_block_rows];
    for (int64_t i = 0; i < n; ++i) {
        const Column<const std::byte>& column = copy.is_next && is_own(rows[i]) ? copy.next_column : copy.column;
        frames[i] = column.at(copy.is_next ? rows[i].next_slot : rows[i].slot);
    }
    copy.moves->gather(out, frames, 0, n, copy.bytes);
}

void GatherPlan::copy_stacks(const Copy& copy, std::byte* out, const GatherRow* rows, int64_t n) const {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t age = copy.stack - 1; age >= 0; --age, out += copy.bytes) {
            if (copy.pads_with_zeros && is_padding(rows[i], copy.is_next, age))
                std::memset(out, 0, static_cast<size_t>(copy.bytes));
            else
                copy.moves->one(out, frame(copy, rows[i], age), copy.bytes);
        }
}

// Writes the places of frames, which the device reads later; NULL for a frame that is all zero.
void GatherPlan::write_places(const Copy& copy, const std::byte** out, const GatherRow* rows, int64_t n) const {
    for (int64_t i = 0; i < n; ++i)
        for (int64_t age = copy.stack - 1; age >= 0; --age, ++out) {
            *out = nullptr;
            if (copy.pads_with_zeros && is_padding(rows[i], copy.is_next, age)) continue;
            const FramePlace place = frame_place(state_.ring(), rows[i], copy.is_next, age);
            *out = (place.is_next_array ? copy.next_column : copy.column).at(place.slot);
            state_.reads.note(place.slot);
        }
}

void GatherPlan::prefetch_out(int64_t first, int64_t n) const {
    for (const Copy& copy : copies_) {
        if (copy.places != nullptr) continue;
        std::byte* const out = copy.out + first * copy.stack * copy.bytes;
        for (int64_t at = 0; at < n * copy.stack * copy.bytes; at += line_bytes) prefetch_to_write(out + at);
    }
}

void GatherPlan::copy(int64_t first, const GatherRow* rows, int64_t n) const {
    const std::byte* records[max_block_rows];
    for (; n > 0; first += max_block_rows, rows += max_block_rows, n -= max_block_rows) {
        const int64_t n_rows = std::min(n, max_block_rows);
        for (int64_t i = 0; i < n_rows; ++i) records[i] = state_.rows.records().at(rows[i].slot);
        for (const Copy& copy : copies_) {
            if (copy.places != nullptr) {
                write_places(copy, copy.places + first * copy.stack, rows, n_rows);
                continue;
            }
            std::byte* const out = copy.out + first * copy.stack * copy.bytes;
            if (copy.packed != nullptr)
                copy_packed(copy, out, rows, n_rows);
            else if (copy.stack > 1)
                copy_stacks(copy, out, rows, n_rows);
            else
                copy_newest(copy, out, rows, records, n_rows);
        }
    }
}

// ---- transitions

namespace {

// Kinds of batches: the length of their windows, and the frames they ask for. The compiler makes a loop for each kind.
// Most batches are single steps without stacks, whose loop branches for neither.
struct SingleSteps {
    bool wishes_next;

    static constexpr bool are_single = true;
    static constexpr int64_t n_step_of(int64_t) { return 1; }
    GatherWishes wishes() const { return {1, wishes_next}; }
};

struct EqualWindows {
    int64_t n_step;
    GatherWishes wished;

    static constexpr bool are_single = false;
    int64_t n_step_of(int64_t) const { return n_step; }
    GatherWishes wishes() const { return wished; }
};

struct OwnWindows {
    NSteps n_steps;
    GatherWishes wished;

    static constexpr bool are_single = false;
    int64_t n_step_of(int64_t place) const { return n_steps.of_place(place); }
    GatherWishes wishes() const { return wished; }
};

// The part of write_transitions() that one thread does.
struct TransitionWriter {
    const ReplayState& state;
    const GatherPlan& plan;
    NSteps n_steps;
    const int64_t* slots;
    const per_batch& batch;
    int64_t* ages_out;

    void write(int64_t first, int64_t end) const;
    template <class Kind>
    void write_blocks(int64_t first, int64_t end, const Kind& kind) const;
    template <class Kind>
    void prefetch_block(int64_t first, int64_t n, const Kind& kind) const;
    template <class Kind>
    void write_runs(const RecordRun& run, int64_t first, int64_t end, const Kind& kind) const;
    // Calls before_row(i) before the work on the i-th row of the block.
    template <class Kind, class BeforeRow>
    void write_block(int64_t first, int64_t n, const Kind& kind, const BeforeRow& before_row) const;
    template <class BeforeRow>
    void write_steps(int64_t first, int64_t n, bool wishes_next, const BeforeRow& before_row, GatherRow* rows) const;
    void write_numbers(int64_t first, int64_t n, const GatherRow* rows) const;
};

// Fetches the memory of rows first .. first + n - 1 as if their windows were whole and their stacks full, as most are.
// Only the flags tell whether they are, but reading the flags first would mean waiting for memory twice.
template <class Kind>
void TransitionWriter::prefetch_block(int64_t first, int64_t n, const Kind& kind) const {
    GatherRow rows[GatherPlan::max_block_rows];
    for (int64_t i = 0; i < n; ++i) {
        const int64_t slot = slots[first + i];
        const int64_t env = state.ring().env_of_slot(slot);
        const int64_t n_step = kind.n_step_of(first + i);
        const Return whole = {0.0f, 0.0f, static_cast<int32_t>(n_step), row_is_step, static_cast<int32_t>(n_step)};
        for (int64_t k = 1; k < std::min(n_step, max_rewards); ++k)
            prefetch_to_read(state.rows.rewards().at(state.ring().moved(env, slot, k)));
        new (rows + i) GatherRow(
            gather_row(state.rules, env, slot, whole, kind.wishes(), [](int64_t) { return uint8_t{row_is_step}; }));
    }
    plan.prefetch(rows, n);
}

// Each GatherRow is made in place: copying one whose members have just been written stalls for 5 ns. Priorities and ids
// follow, one array at a time.
template <class Kind, class BeforeRow>
void TransitionWriter::write_block(int64_t first, int64_t n, const Kind& kind, const BeforeRow& before_row) const {
    const GatherWishes wishes = kind.wishes();
    const int64_t* const block = slots + first;
    const per_batch out = batch;
    GatherRow rows[GatherPlan::max_block_rows];
    if constexpr (Kind::are_single)
        write_steps(first, n, wishes.next, before_row, rows);
    else
        for (int64_t i = 0; i < n; ++i) {
            before_row(i);
            const int64_t slot = block[i];
            const int64_t env = state.ring().env_of_slot(slot);
            const Return window = window_at(state, env, slot, kind.n_step_of(first + i));
            new (rows + i) GatherRow(frames_at(state, env, slot, window, wishes));
            write_return(first + i, window, out);
        }
    write_numbers(first, n, rows);
    plan.copy(first, rows, n);
}

// Makes the GatherRows of windows of one step, and writes their returns, an array at a time. before_row() is called in
// the last loop: in the first, which waits for memory itself, its fetches would come too close together.
template <class BeforeRow>
void TransitionWriter::write_steps(int64_t first, int64_t n, bool wishes_next, const BeforeRow& before_row,
                                   GatherRow* rows) const {
    const int64_t* const block = slots + first;
    const WindowRules& rules = state.rules;
    const double gamma = state.gamma;
    uint8_t flags[GatherPlan::max_block_rows];
    float rewards[GatherPlan::max_block_rows];
    for (int64_t i = 0; i < n; ++i) {
        flags[i] = state.rows.flags(block[i]);
        rewards[i] = state.rows.rewards()[block[i]];
    }
    // The same as n_step_return(), whose sum starts at 0 and so is never -0.
    const auto return_at = [&](int64_t i) {
        return own_step(static_cast<float>(0.0 + static_cast<double>(rewards[i])), gamma, flags[i]);
    };
    const auto write = [&](auto* out, const auto& value_of) {
        for (int64_t i = 0; out != nullptr && i < n; ++i) out[first + i] = value_of(return_at(i));
    };
    write(batch.reward, [](const Return& step) { return step.reward; });
    write(batch.discount, [](const Return& step) { return step.discount(); });
    write(batch.n_steps, [](const Return& step) { return step.n_steps; });
    write(batch.terminated, [](const Return& step) { return step.is_terminated(); });
    write(batch.truncated, [](const Return& step) { return (step.last_flags & row_truncated) != 0; });
    write(batch.gamma_m, [](const Return& step) { return step.gamma_m; });
    const auto no_flags = [](int64_t) { return uint8_t{0}; };  // which single frames do not ask for
    const bool has_lanes = rules.ring.n_envs > 1;
    for (int64_t i = 0; i < n; ++i) {
        before_row(i);
        const int64_t env = has_lanes ? rules.ring.env_of_slot(block[i]) : 0;
        new (rows + i) GatherRow(gather_row(rules, env, block[i], return_at(i), {1, wishes_next}, no_flags));
    }
}

void TransitionWriter::write_numbers(int64_t first, int64_t n, const GatherRow* rows) const {
    if (batch.priorities != nullptr)
        for (int64_t i = 0; i < n; ++i) batch.priorities[first + i] = state.priorities.given(rows[i].slot);
    const Ring ring = state.ring();  // a local copy, which stores of ids cannot alias
    int64_t ages[GatherPlan::max_block_rows];
    if (ring.n_envs == 1) {
        const int64_t last = state.lane(0).head - 1, slot_of_last = ring.slot(0, last);
        for (int64_t i = 0; i < n; ++i) {
            const int64_t behind = slot_of_last - slots[first + i];
            ages[i] = behind + (behind < 0 ? ring.rows : 0);
        }
        for (int64_t i = 0; batch.ids != nullptr && i < n; ++i) batch.ids[first + i] = last - ages[i];
    } else {
        for (int64_t i = 0; i < n; ++i) {
            const int64_t head = state.lane(rows[i].env).head;
            const int64_t k = ring.row_of_slot(rows[i].env, rows[i].slot, head);
            if (batch.ids != nullptr) batch.ids[first + i] = ring.id(rows[i].env, k);
            ages[i] = age_of_row(k, head);
        }
    }
    if (ages_out != nullptr) std::copy_n(ages, n, ages_out + first);
}

// Fetches the next block of rows while one is written.
template <class Kind>
void TransitionWriter::write_blocks(int64_t first, int64_t end, const Kind& kind) const {
    const RecordRun run = plan.run_of(n_steps.longest);
    if (run.bytes > 0) return write_runs(run, first, end, kind);
    const int64_t block = plan.block_rows();
    prefetch_block(first, std::min(block, end - first), kind);
    for (int64_t at = first; at < end; at += block) {
        const int64_t next = std::min(at + block, end);
        prefetch_block(next, std::min(block, end - next), kind);
        write_block(at, next - at, kind, [](int64_t) {});
    }
}

// The same if the memory of each row is one run of lines. The memory can serve two dozen lines at once, and should be
// busy all the time. The first line of a run is fetched long before the row is written, in a loop that does nothing
// else: this fetch also waits for the page to be found, and many such waits overlap only in such a loop. The rest of
// the run is fetched later, row by row, between the work on other rows. The lines of the batch that will be written are
// fetched, too: a batch has usually not been touched for a while.
template <class Kind>
void TransitionWriter::write_runs(const RecordRun& run, int64_t first, int64_t end, const Kind& kind) const {
    const int64_t block = plan.block_rows();
    const int64_t first_lines_ahead = 3 * block;
    const auto at_most_end = [end](int64_t row) { return std::min(row, end); };
    if (plan.are_rows_fetched()) {
        plan.prefetch_out(first, std::min(block, end - first));
        for (int64_t at = first; at < end; at += block) {
            plan.prefetch_out(at + block, std::min(block, end - at - block));
            write_block(at, std::min(block, end - at), kind, [](int64_t) {});
        }
        return;
    }
    for (int64_t i = first; i < at_most_end(first + first_lines_ahead); ++i) run.prefetch_first_line(slots[i]);
    plan.prefetch_out(first, std::min(block, end - first));
    for (int64_t i = first; i < at_most_end(first + block); ++i) run.prefetch_rest(slots[i]);
    for (int64_t at = first; at < end; at += block) {
        const int64_t far = at + first_lines_ahead;
        for (int64_t i = far; i < at_most_end(far + block); ++i) run.prefetch_first_line(slots[i]);
        plan.prefetch_out(at + block, std::min(block, end - at - block));
        write_block(at, std::min(block, end - at), kind, [&run, end, next = at + block, this](int64_t i) {
            if (next + i < end) run.prefetch_rest(slots[next + i]);
        });
    }
}

void TransitionWriter::write(int64_t first, int64_t end) const {
    const GatherWishes wishes = plan.wishes();
    if (n_steps.shortest != 0)
        write_blocks(first, end, OwnWindows{n_steps, wishes});
    else if (n_steps.longest > 1 || wishes.stack > 1)
        write_blocks(first, end, EqualWindows{n_steps.longest, wishes});
    else
        write_blocks(first, end, SingleSteps{wishes.next});
}

}  // namespace

void write_transitions(const ReplayState& state, const GatherPlan& plan, const NSteps& n_steps,
                       const std::vector<int64_t>& slots, const per_batch& batch, WorkerThreads& threads,
                       int64_t* ages_out) {
    // Below this, waking a thread costs more than it saves: up to 0.1 ms on virtual machines.
    constexpr int64_t least_bytes_of_part = int64_t{1} << 21;
    const int64_t n = static_cast<int64_t>(slots.size());
    const int64_t max_parts = std::max<int64_t>(1, std::min(threads.count(), n));
    const int64_t n_parts = std::clamp<int64_t>(n * plan.row_bytes() / least_bytes_of_part, 1, max_parts);
    plan.will_need(slots, n_steps.longest);
    const TransitionWriter writer = {state, plan, n_steps, slots.data(), batch, ages_out};
    threads.run(n_parts, [&](int64_t part) { writer.write(n * part / n_parts, n * (part + 1) / n_parts); });
}

}  // namespace per::cpu
