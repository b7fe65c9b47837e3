// Updating: checks, sums and the way up from the leaves.
#pragma once

#include <float.h>

#include "cpu/kernels/kernels.h"
#include "cpu/kernels/lanes.h"
#include "cpu/memory/prefetch.h"

namespace per::cpu {
namespace {

PER_INLINE uint64_t sum_of_lanes(Bits x) {
    if constexpr (lanes == 8) x += shuffle<4, 5, 6, 7, 0, 1, 2, 3>(x, x);
    if constexpr (lanes == 8) x += shuffle<2, 3, 0, 1, 6, 7, 4, 5>(x, x);
    if constexpr (lanes == 4) x += shuffle<2, 3, 0, 1>(x, x);
    return x[0] + x[1];
}

bool valid(int64_t count, const int64_t* indices, const float* priorities, int64_t capacity) {
    const Bits last = each_lane(static_cast<uint64_t>(capacity - 1));
    Whole outside{};  // a lane becomes negative if an index is out of range
    FloatMask bad{};
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        const Whole index = load<Whole>(indices + i);
        outside |= index | as_whole(last - bit_cast<Bits>(index));  // unsigned: signed, an index of -2^63 overflows
        const Floats priority = load<Floats>(priorities + i);
        bad |= ~((priority >= 0.0f) & (priority <= FLT_MAX));
    }
    bool any_bad = any_negative(outside);
    int32_t each_bad[lanes];
    store(each_bad, bad);
    for (const int32_t one : each_bad) any_bad |= one != 0;
    for (; i < count; ++i) {
        any_bad |= indices[i] < 0 || indices[i] >= capacity;
        any_bad |= !(priorities[i] >= 0.0f && priorities[i] <= FLT_MAX);
    }
    return !any_bad;
}

WideSum sum_masses(int64_t count, const float* priorities, double factor) {
    // In a run each lane sums 512 masses below 2^52. The sum of all lanes, at most 8, then fits 64 bits.
    constexpr int64_t run = 512 * lanes;
    unsigned __int128 sum = 0;
    int64_t i = 0;
    while (i + lanes <= count) {
        Bits part{};
        const int64_t end = count - i < run ? count : i + run;
        for (; i + lanes <= end; i += lanes) part += masses_of(priorities + i, factor);
        sum += sum_of_lanes(part);
    }
    for (; i < count; ++i) sum += mass_of(priorities[i], factor);
    return {static_cast<uint64_t>(sum), static_cast<uint64_t>(sum >> 64)};
}

float largest_of(int64_t count, const float* priorities) {
    Floats most{};
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        const Floats priority = load<Floats>(priorities + i);
        most = priority > most ? priority : most;
    }
    float each[lanes];
    store(each, most);
    float largest = 0.0f;
    for (const float one : each) largest = one > largest ? one : largest;
    for (; i < count; ++i) largest = priorities[i] > largest ? priorities[i] : largest;
    return largest;
}

// Fetches the lines that an update of a leaf changes: the leaf's, and those of up to three levels of sums. The levels
// above these stay in the cache.
template <class Fetch>
PER_INLINE void prefetch_path(const TreeArrays& tree, int last_level, int64_t index, const Fetch& fetch) {
    fetch(tree.leaves + index);
    if (last_level >= 1) fetch(tree.sums[1] + (index >> 4));
    if (last_level >= 2) fetch(tree.sums[2] + (index >> 7));
    if (last_level >= 3) fetch(tree.sums[3] + (index >> 10));
}

// Returns the leaf's previous value.
PER_INLINE float write_leaf(const TreeArrays& tree, int64_t index, float priority) {
    const float before = tree.leaves[index];
    tree.leaves[index] = priority + 0.0f;  // -0 becomes 0
    return before;
}

template <bool in_stages>
void apply_fetching(const TreeArrays& tree, int last_level, int64_t count, const int64_t* indices,
                    const float* priorities) {
    constexpr int64_t early = 48;
    constexpr int64_t ahead = in_stages ? 8 : 16;
    constexpr int64_t run = 128;
    // Lambdas, not the functions themselves: a function whose address is taken becomes a weak symbol.
    const auto fetch_early = [&](int64_t i) {
        if (i >= count) return;
        prefetch_path(tree, last_level, indices[i], [](const void* line) { prefetch_into_second_level(line); });
    };
    const auto fetch = [&](int64_t i) {
        if (i >= count) return;
        prefetch_path(tree, last_level, indices[i], [](const void* line) { prefetch_to_write(line); });
    };
    for (int64_t i = 0; in_stages && i < early; ++i) fetch_early(i);
    for (int64_t i = 0; i < ahead; ++i) fetch(i);
    const auto write = [&](int64_t i) {
        if constexpr (in_stages) fetch_early(i + early);
        fetch(i + ahead);
        return write_leaf(tree, indices[i], priorities[i]);
    };
    if (last_level == 0) {  // masses are not computed, as they may be too large for this scale
        for (int64_t i = 0; i < count; ++i) write(i);
        return;
    }
    for (int64_t first = 0; first < count; first += run) {
        const int64_t n = count - first < run ? count - first : run;
        uint64_t differences[run];
        int64_t i = 0;
        for (; i + lanes <= n; i += lanes) {
            const Floats before = each_float([&](int l) { return write(first + i + l); });
            store(differences + i, masses_of(priorities + first + i, tree.factor) - masses_of(before, tree.factor));
        }
        for (; i < n; ++i) {
            const uint64_t before = mass_of(write(first + i), tree.factor);
            differences[i] = mass_of(priorities[first + i], tree.factor) - before;
        }
        for (i = 0; i < n; ++i) {
            int64_t node = indices[first + i] >> 4;
            for (int level = 1; level <= last_level; ++level, node >>= 3) tree.sums[level][node] += differences[i];
        }
    }
}

// Makes two passes over each run of leaves. The first writes the leaves in order and computes how their masses change,
// one leaf in each lane. The second adds these differences to the sums.
void apply(const TreeArrays& tree, int last_level, int64_t count, const int64_t* indices, const float* priorities,
           bool in_stages) {
    if (in_stages)
        apply_fetching<true>(tree, last_level, count, indices, priorities);
    else
        apply_fetching<false>(tree, last_level, count, indices, priorities);
}

void refresh(const TreeArrays& tree, int level, int64_t first, int64_t last) {
    for (int64_t node = first; node <= last; ++node) {
        Bits sum{};
        if (level == 1) {
            for (int64_t i = 0; i < leaves_per_line; i += lanes)
                sum += masses_of(tree.leaves + node * leaves_per_line + i, tree.factor);
        } else {
            for (int64_t i = 0; i < sums_per_line; i += lanes)
                sum += load<Bits>(tree.sums[level - 1] + node * sums_per_line + i);
        }
        tree.sums[level][node] = sum_of_lanes(sum);
    }
}

}  // namespace
}  // namespace per::cpu
