#include "cpu/replay/gather.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace per::cpu {
namespace {

constexpr int64_t line_bytes = 64;
constexpr int64_t most_lines = 4;  // of a frame are fetched; the hardware's own prefetch takes over from there

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

void Gather::add_copy(int64_t field, std::byte* out, int64_t stack, bool is_next) {
    const int64_t bytes = state_.fields[field].bytes;
    copies_.push_back({state_.rows.field(field), state_.rows.next_field(field), out, bytes, stack, is_next,
                       state_.fields[field].pads_with_zeros(), std::min(bytes, most_lines * line_bytes),
                       move_of(bytes)});
    row_bytes_ += stack * bytes;
}

void Gather::prepare(const per_batch& batch, bool single_frames) {
    copies_.clear();
    wishes_ = {1, false};
    row_bytes_ = 0;
    for (int64_t i = 0; i < state_.fields.count(); ++i) {
        const Field& field = state_.fields[i];
        const int64_t stack = single_frames ? 1 : field.stack;
        const size_t before = copies_.size();
        if (batch.fields != nullptr && batch.fields[i] != nullptr)
            add_copy(i, static_cast<std::byte*>(batch.fields[i]), stack, false);
        if (field.is_observation() && batch.next_fields != nullptr && batch.next_fields[i] != nullptr) {
            add_copy(i, static_cast<std::byte*>(batch.next_fields[i]), stack, true);
            wishes_.next = true;
        }
        if (copies_.size() > before) wishes_.stack = std::max(wishes_.stack, stack);
    }
}

void Gather::prefetch_frame(const std::byte* frame, const Copy& copy) {
    const std::byte* const end = frame + copy.prefetched_bytes;
    const std::byte* line = frame - reinterpret_cast<uintptr_t>(frame) % line_bytes;
    for (; line < end; line += line_bytes) __builtin_prefetch(line);
}

const std::byte* Gather::frame(const Copy& copy, const GatherRow& row, int64_t age) const {
    const FramePlace place = frame_place(state_.ring(), row, copy.is_next, age);
    return (place.is_next_array ? copy.next_array : copy.array) + place.slot * copy.bytes;
}

void Gather::prefetch(const GatherRow* rows, int64_t n) const {
    for (const Copy& copy : copies_)
        for (int64_t i = 0; i < n; ++i)
            for (int64_t age = 0; age < copy.stack; ++age) prefetch_frame(frame(copy, rows[i], age), copy);
}

void Gather::copy(int64_t first, const GatherRow* rows, int64_t n) const {
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

}  // namespace per::cpu
