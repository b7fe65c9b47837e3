#include "cpu/replay/gather.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>

namespace per::cpu {
namespace {

constexpr int64_t line_bytes = 64;
constexpr int64_t max_lines = 4;  // of a frame are fetched; the hardware's own prefetch takes over from there

using Move = void (*)(std::byte* out, const std::byte* frame, int64_t bytes);

struct Block {
    uint64_t words[2];
};

template <class Word>
void move_word(std::byte* out, const std::byte* from) {
    Word word;
    std::memcpy(&word, from, sizeof word);
    std::memcpy(out, &word, sizeof word);
}

// Frames of one word to two.
template <class Word>
void move_ends(std::byte* out, const std::byte* frame, int64_t bytes) {
    const int64_t last = bytes - static_cast<int64_t>(sizeof(Word));
    move_word<Word>(out, frame);
    move_word<Word>(out + last, frame + last);
}

// Frames of more than n_blocks blocks and of one more at most.
template <int n_blocks>
void move_blocks(std::byte* out, const std::byte* frame, int64_t bytes) {
    for (int i = 0; i < n_blocks; ++i) move_word<Block>(out + 16 * i, frame + 16 * i);
    move_word<Block>(out + bytes - 16, frame + bytes - 16);
}

void move_bytes(std::byte* out, const std::byte* frame, int64_t bytes) {
    std::memcpy(out, frame, static_cast<size_t>(bytes));
}

void move_few_bytes(std::byte* out, const std::byte* frame, int64_t bytes) {
    for (int64_t i = 0; i < bytes; ++i) out[i] = frame[i];
}

// Moves whose number the compiler knows, the last two overlapping: a call of memcpy takes longer than they do.
Move move_of(int64_t bytes) {
    static constexpr Move by_blocks[] = {
        move_blocks<1>, move_blocks<2>, move_blocks<3>, move_blocks<4>,  move_blocks<5>,  move_blocks<6>,
        move_blocks<7>, move_blocks<8>, move_blocks<9>, move_blocks<10>, move_blocks<11>, move_blocks<12>,
    };
    if (bytes < 4) return move_few_bytes;
    if (bytes < 8) return move_ends<uint32_t>;
    if (bytes < 16) return move_ends<uint64_t>;
    if (bytes == 16) return move_ends<Block>;
    const size_t n_blocks = static_cast<size_t>(bytes - 1) / sizeof(Block);
    return n_blocks <= std::size(by_blocks) ? by_blocks[n_blocks - 1] : move_bytes;
}

}  // namespace

void GatherPlan::add_copy(int64_t field, void* out, int64_t stack, bool is_next) {
    const int64_t bytes = state_.fields[field].bytes;
    copies_.push_back({state_.rows.field(field), state_.rows.next_field(field), static_cast<std::byte*>(out), bytes,
                       stack, is_next, state_.fields[field].pads_with_zeros(), std::min(bytes, max_lines * line_bytes),
                       move_of(bytes)});
    row_bytes_ += stack * bytes;
}

const GatherPlan& GatherPlan::make(const per_batch& batch, bool single_frames) {
    copies_.clear();
    wishes_ = {1, false};
    row_bytes_ = 0;
    for (int64_t i = 0; i < state_.fields.count(); ++i) {
        const Field& field = state_.fields[i];
        const int64_t stack = single_frames ? 1 : field.stack;
        const size_t before = copies_.size();
        if (batch.fields != nullptr && batch.fields[i] != nullptr) add_copy(i, batch.fields[i], stack, false);
        if (field.is_observation() && batch.next_fields != nullptr && batch.next_fields[i] != nullptr) {
            add_copy(i, batch.next_fields[i], stack, true);
            wishes_.next = true;
        }
        if (copies_.size() > before) wishes_.stack = std::max(wishes_.stack, stack);
    }
    return *this;
}

void GatherPlan::prefetch_frame(const std::byte* frame, const Copy& copy) {
    const std::byte* const end = frame + copy.prefetched_bytes;
    const std::byte* line = frame - reinterpret_cast<uintptr_t>(frame) % line_bytes;
    for (; line < end; line += line_bytes) __builtin_prefetch(line);
}

const std::byte* GatherPlan::frame(const Copy& copy, const GatherRow& row, int64_t age) const {
    const FramePlace place = frame_place(state_.ring(), row, copy.is_next, age);
    return (place.is_next_array ? copy.next_array : copy.array) + place.slot * copy.bytes;
}

void GatherPlan::prefetch(const GatherRow* rows, int64_t n) const {
    for (const Copy& copy : copies_)
        for (int64_t i = 0; i < n; ++i)
            for (int64_t age = 0; age < copy.stack; ++age) prefetch_frame(frame(copy, rows[i], age), copy);
}

void GatherPlan::copy(int64_t first, const GatherRow* rows, int64_t n) const {
    for (const Copy& copy : copies_) {
        std::byte* out = copy.out + first * copy.stack * copy.bytes;
        for (int64_t i = 0; i < n; ++i)
            for (int64_t age = copy.stack - 1; age >= 0; --age, out += copy.bytes) {
                if (copy.pads_with_zeros && is_padding(rows[i], copy.is_next, age))
                    std::memset(out, 0, static_cast<size_t>(copy.bytes));
                else
                    copy.move(out, frame(copy, rows[i], age), copy.bytes);
            }
    }
}

// ---- transitions

namespace {

// What one thread does of write_transitions().
struct TransitionWriter {
    const ReplayState& state;
    const GatherPlan& plan;
    int64_t n_step;
    const int64_t* slots;
    const per_batch& batch;
    int64_t* ages_out;

    void write(int64_t first, int64_t end) const;
    void prefetch_block(int64_t first, int64_t n) const;
    void write_block(int64_t first, int64_t n) const;
};

// Fetches what rows first .. first + n - 1 are made of if their windows are whole and their stacks full, as most are:
// to wait for the flags, which say it, would be to wait twice. In loops that do nothing else: where many pages are
// touched a fetch waits until its page is found, and between other work few such waits overlap.
void TransitionWriter::prefetch_block(int64_t first, int64_t n) const {
    const Return whole = {0.0f, 0.0f, static_cast<int32_t>(n_step), row_is_step, static_cast<int32_t>(n_step)};
    GatherRow rows[GatherPlan::max_block_rows];
    for (int64_t i = 0; i < n; ++i) {
        const int64_t slot = slots[first + i];
        __builtin_prefetch(state.rows.flags() + slot);
        __builtin_prefetch(state.rows.rewards() + slot);
        new (rows + i) GatherRow(gather_row(state.rules, state.ring().env_of_slot(slot), slot, whole, plan.wishes(),
                                            [](int64_t) { return uint8_t{row_is_step}; }));
    }
    plan.prefetch(rows, n);
}

// Each row is made in its place: copying what was just written in pieces stalls for 5 ns.
void TransitionWriter::write_block(int64_t first, int64_t n) const {
    // Copies of its own: stores of bytes could change any other.
    const per_batch out = batch;
    const GatherWishes wishes = plan.wishes();
    const int64_t* const block = slots + first;
    GatherRow rows[GatherPlan::max_block_rows];
    for (int64_t i = 0; i < n; ++i) {
        const int64_t slot = block[i];
        const int64_t env = state.ring().env_of_slot(slot);
        const Return window = window_at(state, env, slot, n_step);
        new (rows + i) GatherRow(frames_at(state, env, slot, window, wishes));
        write_return(first + i, window, out);
        const int64_t age = write_id(state, first + i, env, slot, out);
        if (ages_out != nullptr) ages_out[first + i] = age;
    }
    plan.copy(first, rows, n);
}

// While a block of rows is written, the next one comes in.
void TransitionWriter::write(int64_t first, int64_t end) const {
    const int64_t block = plan.block_rows();
    prefetch_block(first, std::min(block, end - first));
    for (int64_t at = first; at < end; at += block) {
        const int64_t next = std::min(at + block, end);
        prefetch_block(next, std::min(block, end - next));
        write_block(at, next - at);
    }
}

}  // namespace

void write_transitions(const ReplayState& state, const GatherPlan& plan, int64_t n_step,
                       const std::vector<int64_t>& slots, const per_batch& batch, WorkerThreads& threads,
                       int64_t* ages_out) {
    // Below this, waking a thread takes a good part of what it saves.
    constexpr int64_t least_bytes_of_part = int64_t{1} << 19;
    const int64_t n = static_cast<int64_t>(slots.size());
    const int64_t max_parts = std::max<int64_t>(1, std::min(threads.count(), n));
    const int64_t n_parts = std::clamp<int64_t>(n * plan.row_bytes() / least_bytes_of_part, 1, max_parts);
    const TransitionWriter writer = {state, plan, n_step, slots.data(), batch, ages_out};
    threads.run(n_parts, [&](int64_t part) { writer.write(n * part / n_parts, n * (part + 1) / n_parts); });
}

}  // namespace per::cpu
