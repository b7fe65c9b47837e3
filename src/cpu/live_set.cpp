#include "cpu/live_set.h"

#include <bit>
#include <cstring>

namespace per::cpu {
namespace {

constexpr int64_t round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

// The place of the bit of a word that has `rank` set bits below it.
int select_bit(uint64_t word, int64_t rank) {
    for (; rank > 0; --rank) word &= word - 1;
    return std::countr_zero(word);
}

}  // namespace

LiveSet::LiveSet(int64_t capacity) {
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
    memory_ = Memory(bytes_);
    words_ = reinterpret_cast<uint64_t*>(memory_.data());
    int64_t* counts = reinterpret_cast<int64_t*>(words_ + n_words);
    for (int level = 0; level < n_levels_; ++level) {
        counts_[level] = counts;
        counts += n_nodes[level];
    }
}

bool LiveSet::insert(int64_t slot) {
    if (contains(slot)) return false;
    words_[slot / 64] |= uint64_t{1} << (slot % 64);
    add(slot, 1);
    return true;
}

bool LiveSet::erase(int64_t slot) {
    if (!contains(slot)) return false;
    words_[slot / 64] &= ~(uint64_t{1} << (slot % 64));
    add(slot, -1);
    return true;
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
    if (count_ != 0) std::memset(words_, 0, bytes_);
    count_ = 0;
}

int64_t LiveSet::select(int64_t rank) const {
    int64_t node = 0;
    for (int level = n_levels_ - 1; level >= 0; --level) {
        for (node *= counts_per_line; rank >= counts_[level][node]; ++node) rank -= counts_[level][node];
    }
    int64_t word = node * (slots_per_line / 64);
    for (; rank >= std::popcount(words_[word]); ++word) rank -= std::popcount(words_[word]);
    return word * 64 + select_bit(words_[word], rank);
}

}  // namespace per::cpu
