#include "cpu/tree/live_set.h"

#include <algorithm>
#include <bit>

namespace per::cpu {
namespace {

constexpr int64_t round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

constexpr uint64_t low_bits = 0x0101010101010101;  // of each byte
constexpr uint64_t high_bits = 0x8080808080808080;

// The number of set bits in each byte. Baseline x86-64 has no popcount.
uint64_t byte_counts(uint64_t word) {
    word -= word >> 1 & 0x5555555555555555;
    word = (word & 0x3333333333333333) + (word >> 2 & 0x3333333333333333);
    return (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0f;
}

uint64_t bit_count(uint64_t word) {
    return byte_counts(word) * low_bits >> 56;
}

// The index of the set bit of a word that has `rank` set bits below it.
int64_t select_bit(uint64_t word, uint64_t rank) {
    const uint64_t sums = byte_counts(word) * low_bits;  // byte i: bits of bytes 0 .. i
    // Bytes whose sum is not above the rank lie before the bit.
    const uint64_t before = ((rank * low_bits | high_bits) - sums) & high_bits;
    const int shift = static_cast<int>(bit_count(before)) * 8;
    rank -= sums << 8 >> shift & 0xff;
    uint64_t rest = word >> shift;
    for (; rank > 0; --rank) rest &= rest - 1;
    return shift + std::countr_zero(rest);
}

// Calls visit(slot, mask) for each word that holds some of slots first .. first + n - 1: `slot` is the first of them in
// that word, and `mask` has the bits of all of them there.
template <class Visit>
void for_each_word(int64_t first, int64_t n, const Visit& visit) {
    const int64_t end = first + n;
    for (int64_t slot = first; slot < end;) {
        const int64_t in_word = std::min(64 - slot % 64, end - slot);
        visit(slot, ~uint64_t{0} >> (64 - in_word) << (slot % 64));
        slot += in_word;
    }
}

}  // namespace

LiveSet::LiveSet(int64_t capacity, const MemorySource& source) : capacity_(capacity) {
    int64_t n_nodes[max_levels];
    const int64_t n_words = round_up(capacity, slots_per_line) / 64;
    int64_t total = n_words;
    int64_t n = n_words * 64 / slots_per_line;
    do {
        n_nodes[n_levels_] = round_up(n, counts_per_line);
        total += n_nodes[n_levels_];
        n = n_nodes[n_levels_] / counts_per_line;
        ++n_levels_;
    } while (n > 1);
    bytes_ = static_cast<std::size_t>(total) * sizeof(uint64_t);
    memory_ = Memory(bytes_, source);
    words_ = reinterpret_cast<uint64_t*>(memory_.data());
    int64_t* counts = reinterpret_cast<int64_t*>(words_ + n_words);
    for (int level = 0; level < n_levels_; ++level) {
        counts_[level] = counts;
        counts += n_nodes[level];
    }
}

int64_t LiveSet::insert(int64_t first, int64_t n) {
    const int64_t before = count_;
    for_each_word(first, n, [this](int64_t slot, uint64_t mask) {
        uint64_t& word = words_[slot / 64];
        const uint64_t missing = mask & ~word;
        word |= mask;
        if (missing != 0) add(slot, static_cast<int64_t>(bit_count(missing)));
    });
    return count_ - before;
}

int64_t LiveSet::erase(int64_t first, int64_t n) {
    const int64_t before = count_;
    for_each_word(first, n, [this](int64_t slot, uint64_t mask) {
        uint64_t& word = words_[slot / 64];
        const uint64_t present = mask & word;
        word &= ~mask;
        if (present != 0) add(slot, -static_cast<int64_t>(bit_count(present)));
    });
    return before - count_;
}

void LiveSet::add(int64_t slot, int64_t difference) {
    int64_t node = slot / slots_per_line;
    for (int level = 0; level < n_levels_; ++level) {
        counts_[level][node] += difference;
        node /= counts_per_line;
    }
    count_ += difference;
}

void LiveSet::clear() {
    const auto clear_line = [&](int64_t line) {
        std::fill_n(words_ + line * words_per_line, words_per_line, uint64_t{0});
    };
    for_each_used(n_levels_, 0, clear_line, [](int64_t& count) { count = 0; });
    count_ = 0;
}

// Descends level by level for all ranks together, so that the cache misses of a level overlap.
void LiveSet::select(int64_t n, uint64_t* ranks, int64_t* slots_out) const {
    int64_t* const nodes = slots_out;
    for (int64_t i = 0; i < n; ++i) nodes[i] = 0;
    for (int level = n_levels_ - 1; level >= 0; --level) {
        for (int64_t i = 0; i < n; ++i) {
            const int64_t* count = counts_[level] + nodes[i] * counts_per_line;
            uint64_t rank = ranks[i];
            for (; rank >= static_cast<uint64_t>(*count); ++count) rank -= static_cast<uint64_t>(*count);
            ranks[i] = rank;
            nodes[i] = count - counts_[level];
            const void* const next = level > 0
                                         ? static_cast<const void*>(counts_[level - 1] + nodes[i] * counts_per_line)
                                         : words_ + nodes[i] * words_per_line;
            prefetch_to_read(next);
        }
    }
    for (int64_t i = 0; i < n; ++i) {
        const uint64_t* word = words_ + nodes[i] * words_per_line;
        uint64_t rank = ranks[i];
        for (uint64_t bits = bit_count(*word); rank >= bits; bits = bit_count(*word)) {
            rank -= bits;
            ++word;
        }
        slots_out[i] = (word - words_) * 64 + select_bit(*word, rank);
    }
}

}  // namespace per::cpu
