#include "cpu/memory/moves.h"

#include <cstring>
#include <iterator>

namespace per::cpu {
namespace {

// Small frames are copied by a number of moves that the compiler knows. The last move overlaps the one before it,
// unless the frame is a whole number of words.
struct Block {
    uint64_t words[2];
};

template <class Word>
void move_word(std::byte* out, const std::byte* from) {
    Word word;
    std::memcpy(&word, from, sizeof word);
    std::memcpy(out, &word, sizeof word);
}

// Copies frames of one to two words.
template <class Word>
void move_ends(std::byte* out, const std::byte* frame, int64_t bytes) {
    const int64_t last = bytes - static_cast<int64_t>(sizeof(Word));
    move_word<Word>(out, frame);
    move_word<Word>(out + last, frame + last);
}

// Copies frames of more than n_blocks and at most n_blocks + 1 blocks.
template <int n_blocks>
void move_blocks(std::byte* out, const std::byte* frame, int64_t bytes) {
    for (int i = 0; i < n_blocks; ++i) move_word<Block>(out + 16 * i, frame + 16 * i);
    move_word<Block>(out + bytes - 16, frame + bytes - 16);
}

void move_bytes(std::byte* out, const std::byte* frame, int64_t bytes) {
    std::memcpy(out, frame, static_cast<size_t>(bytes));
}

template <class Word>
void move_exactly(std::byte* out, const std::byte* frame, int64_t) {
    move_word<Word>(out, frame);
}

void move_few_bytes(std::byte* out, const std::byte* frame, int64_t bytes) {
    for (int64_t i = 0; i < bytes; ++i) out[i] = frame[i];
}

// A move, and loops into which the compiler inlines it.
template <decltype(Moves::one) move>
constexpr Moves moves = {
    move,
    [](std::byte* out, int64_t out_stride, const std::byte* from, int64_t from_stride, int64_t n, int64_t bytes) {
        for (; n > 0; --n, out += out_stride, from += from_stride) move(out, from, bytes);
    },
    [](std::byte* out, const std::byte* const* from, int64_t place, int64_t n, int64_t bytes) {
        for (int64_t i = 0; i < n; ++i, out += bytes) move(out, from[i] + place, bytes);
    }};

}  // namespace

const Moves& moves_of(int64_t bytes) {
    static constexpr const Moves* by_blocks[] = {
        &moves<move_blocks<1>>, &moves<move_blocks<2>>,  &moves<move_blocks<3>>,  &moves<move_blocks<4>>,
        &moves<move_blocks<5>>, &moves<move_blocks<6>>,  &moves<move_blocks<7>>,  &moves<move_blocks<8>>,
        &moves<move_blocks<9>>, &moves<move_blocks<10>>, &moves<move_blocks<11>>, &moves<move_blocks<12>>,
    };
    if (bytes < 4) return moves<move_few_bytes>;
    if (bytes == 4) return moves<move_exactly<uint32_t>>;
    if (bytes < 8) return moves<move_ends<uint32_t>>;
    if (bytes == 8) return moves<move_exactly<uint64_t>>;
    if (bytes < 16) return moves<move_ends<uint64_t>>;
    if (bytes == 16) return moves<move_exactly<Block>>;
    const size_t n_blocks = static_cast<size_t>(bytes - 1) / sizeof(Block);
    return n_blocks <= std::size(by_blocks) ? *by_blocks[n_blocks - 1] : moves<move_bytes>;
}

void copy_frames(std::byte* out, int64_t out_stride, const std::byte* from, int64_t from_stride, int64_t n,
                 int64_t bytes) {
    if (out_stride == bytes && from_stride == bytes)
        std::memcpy(out, from, static_cast<size_t>(n * bytes));
    else
        moves_of(bytes).many(out, out_stride, from, from_stride, n, bytes);
}

}  // namespace per::cpu
