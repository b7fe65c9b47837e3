// The vectorised steps of a draw: random numbers; the targets, which are units of mass; the node of the frontier (the
// level where the search starts) that holds each target; and the search from there down to the leaf.
#pragma once

#include "cpu/kernels/kernels.h"
#include "cpu/kernels/lanes.h"
#include "cpu/memory/prefetch.h"
#include "rules/draw.h"

namespace per::cpu {
namespace {

// ---- random numbers and targets

struct Philox {
    Bits x0, x1, x2, x3;  // words in the lower halves; the upper halves are undefined
};

// philox4x32() of one block in each lane.
PER_INLINE Philox philox(uint64_t key, Bits counter, uint64_t batch_number) {
    uint32_t key0 = static_cast<uint32_t>(key);
    uint32_t key1 = static_cast<uint32_t>(key >> 32);
    Philox x = {counter, counter >> 32, each_lane(batch_number), each_lane(batch_number >> 32)};
    for (int round = 0; round < 10; ++round) {
        const Bits product0 = multiply_low_halves(x.x0, each_lane(0xD2511F53));
        const Bits product1 = multiply_low_halves(x.x2, each_lane(0xCD9E8D57));
        x = {(product1 >> 32) ^ x.x1 ^ each_lane(key0), product1, (product0 >> 32) ^ x.x3 ^ each_lane(key1), product0};
        key0 += 0x9E3779B9;
        key1 += 0xBB67AE85;
    }
    return x;
}

PER_INLINE Bits words_to_number(Bits low, Bits high) {
    return (low & 0xffffffffu) | high << 32;
}

// Interleaves the lanes of a and b: the first and the second half of the result.
PER_INLINE void interleave(Bits a, Bits b, Bits& first, Bits& second) {
    if constexpr (lanes == 2) {
        first = shuffle<0, 2>(a, b);
        second = shuffle<1, 3>(a, b);
    } else if constexpr (lanes == 4) {
        first = shuffle<0, 4, 1, 5>(a, b);
        second = shuffle<2, 6, 3, 7>(a, b);
    } else {
        first = shuffle<0, 8, 1, 9, 2, 10, 3, 11>(a, b);
        second = shuffle<4, 12, 5, 13, 6, 14, 7, 15>(a, b);
    }
}

void random_numbers(uint64_t seed, uint64_t batch_number, uint64_t first, int64_t count, uint64_t* numbers_out) {
    Bits counter = lane_numbers() + first / 2;
    for (int64_t i = 0; i < count; i += 2 * lanes) {
        const Philox x = philox(seed, counter, batch_number);
        Bits numbers[2];
        interleave(words_to_number(x.x0, x.x1), words_to_number(x.x2, x.x3), numbers[0], numbers[1]);
        if (i + 2 * lanes <= count)
            __builtin_memcpy(numbers_out + i, numbers, sizeof numbers);
        else
            __builtin_memcpy(numbers_out + i, numbers, static_cast<size_t>(count - i) * sizeof *numbers_out);
        counter += lanes;
    }
}

// mulhi(), from four products of halves.
PER_INLINE Bits multiply_high(Bits a, uint64_t factor) {
    const Bits factor_low = each_lane(factor);
    const Bits factor_high = each_lane(factor >> 32);
    const Bits a_high = a >> 32;
    const Bits middle = multiply_low_halves(a_high, factor_low) + (multiply_low_halves(a, factor_low) >> 32);
    const Bits lower = multiply_low_halves(a, factor_high) + (middle & 0xffffffffu);
    return multiply_low_halves(a_high, factor_high) + (middle >> 32) + (lower >> 32);
}

void stratify(int64_t batch_size, uint64_t total, uint64_t* targets) {
    const uint64_t width = stratum_width(batch_size);
    Bits place;
    for (int l = 0; l < lanes; ++l) place[l] = static_cast<uint64_t>(l) * width;
    int64_t i = 0;
    for (; i + lanes <= batch_size; i += lanes) {
        const Bits fraction = place + multiply_high(load<Bits>(targets + i), width);
        store(targets + i, multiply_high(fraction, total));
        place += lanes * width;
    }
    for (; i < batch_size; ++i) targets[i] = stratified_target(targets[i], static_cast<uint64_t>(i), width, total);
}

void spread(int64_t count, uint64_t total, uint64_t* targets) {
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) store(targets + i, multiply_high(load<Bits>(targets + i), total));
    for (; i < count; ++i) targets[i] = independent_target(targets[i], total);
}

// ---- the frontier: the level where a batch starts its way down

// The lanes moved up by n, 0 moved in.
template <int n>
PER_INLINE Bits move_up(Bits x) {
    const Bits zero{};
    if constexpr (lanes == 2) return shuffle<0, 2>(zero, x);
    if constexpr (lanes == 4 && n == 1) return shuffle<0, 4, 5, 6>(zero, x);
    if constexpr (lanes == 4 && n == 2) return shuffle<0, 0, 4, 5>(zero, x);
    if constexpr (lanes == 8 && n == 1) return shuffle<0, 8, 9, 10, 11, 12, 13, 14>(zero, x);
    if constexpr (lanes == 8 && n == 2) return shuffle<0, 0, 8, 9, 10, 11, 12, 13>(zero, x);
    if constexpr (lanes == 8 && n == 4) return shuffle<0, 0, 0, 0, 8, 9, 10, 11>(zero, x);
}

uint64_t sum_prefixes(const uint64_t* numbers, int64_t n, uint64_t* prefix_out) {
    prefix_out[0] = 0;
    Bits before{};
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        Bits sums = load<Bits>(numbers + i);
        sums += move_up<1>(sums);
        if constexpr (lanes >= 4) sums += move_up<2>(sums);
        if constexpr (lanes >= 8) sums += move_up<4>(sums);
        store(prefix_out + i + 1, sums + before);
        before += sums[lanes - 1];
    }
    uint64_t sum = before[0];
    for (; i < n; ++i) prefix_out[i + 1] = sum += numbers[i];
    return sum;
}

// The number of targets below `bound`; the targets ascend. The search starts at `guess`, which should be close.
PER_INLINE int64_t count_below(uint64_t bound, int64_t guess, int64_t batch_size, const uint64_t* targets) {
    int64_t count = guess < batch_size ? guess : batch_size;
    while (count < batch_size && targets[count] < bound) ++count;
    while (count > 0 && targets[count - 1] >= bound) --count;
    return count;
}

// Up to this number of parts, comparing each target with all of them is faster than finding their ends.
constexpr int64_t few_parts = 4 * lanes;

// invert() and invert_strata() for few parts: each lane takes a target, and compares it with the ends of all parts.
// Lanes past the last target are set to 0, since `target + 1` could overflow for uninitialised values.
void invert_few(const uint64_t* prefix, int64_t n, int64_t count, uint64_t* targets, uint64_t* parts_out) {
    store(targets + count, Whole{});
    for (int64_t i = 0; i < count; i += lanes) {
        const Whole target = load<Whole>(targets + i);
        const Whole beyond = target + 1;
        Whole part{};
        Whole before{};  // the part's first unit
        for (int64_t end = 1; end < n; ++end) {
            const Whole bound = as_whole(each_lane(prefix[end]));
            const Whole passed = beyond > bound;
            part = add_where(passed, part, Whole{} + 1);
            before = passed ? bound : before;
        }
        store(parts_out + i, part);
        store(targets + i, target - before);
    }
}

// If a stratum has fewer units than this, the estimates of mark_part_ends() are too coarse.
constexpr uint64_t fine_stratum = uint64_t{1} << 24;

// For the end of each part, let c be the number of targets below it: counts[c] becomes the number of parts up to that
// end. If several ends have the same c, the last one counts. c follows from the stratum in which the end lies, and from
// the target of that stratum. Near a border of two strata the stratum is not certain, and the targets are searched.
PER_INLINE void mark_part_ends(const uint64_t* prefix, int64_t n, int64_t batch_size, const uint64_t* targets,
                               uint32_t* counts) {
    const uint64_t total = prefix[n];
    const double strata_a_unit = static_cast<double>(batch_size) / static_cast<double>(total);
    const bool fine = total / fine_stratum >= static_cast<uint64_t>(batch_size);
    int64_t part = 1;
    for (; fine && part + lanes <= n + 1; part += lanes) {
        // Ends are below 2^62. Without their lower 10 bits they fit small_to_real(), and they move by less than 2^-14
        // of a stratum: it has 2^24 units or more.
        const Real place = small_to_real(load<Bits>(prefix + part) >> 10) * (strata_a_unit * 1024.0);
        const Real shifted = place + 0x1p52;
        const Real past = place - (shifted - 0x1p52);  // distance from the nearest border, -1/2 .. 1/2
        const Bits nearest = bit_cast<Bits>(shifted) & 0xffffffffu;
        const Bits stratum = nearest + bit_cast<Bits>(past < 0.0);
        const Whole near = (past < 0x1p-12) & (past > -0x1p-12);
        uint64_t strata[lanes];
        store(strata, stratum);
        __asm__("" : "+m"(strata));
        if (__builtin_expect(any_negative(near), 0)) {
            for (int l = 0; l < lanes; ++l) {
                const int64_t guess = static_cast<int64_t>(strata[l]);
                counts[count_below(prefix[part + l], guess, batch_size, targets)] = static_cast<uint32_t>(part + l);
            }
        } else {
            for (int l = 0; l < lanes; ++l)
                counts[strata[l] + (targets[strata[l]] < prefix[part + l])] = static_cast<uint32_t>(part + l);
        }
    }
    for (; part <= n; ++part) {
        const double place = static_cast<double>(prefix[part]) * strata_a_unit;
        counts[count_below(prefix[part], static_cast<int64_t>(place), batch_size, targets)] =
            static_cast<uint32_t>(part);
    }
}

void invert_strata(const uint64_t* prefix, int64_t n, int64_t batch_size, uint64_t* targets, uint64_t* parts_out,
                   uint32_t* counts) {
    if (compares_lanes && n <= few_parts) return invert_few(prefix, n, batch_size, targets, parts_out);
    __builtin_memset(counts, 0, static_cast<size_t>(batch_size + 1) * sizeof *counts);
    for (int64_t i = 0; i < draw_padding; ++i) targets[batch_size + i] = ~uint64_t{0};
    mark_part_ends(prefix, n, batch_size, targets, counts);
    uint32_t part = 0;
    for (int64_t i = 0; i < batch_size; ++i) {
        part = counts[i] > part ? counts[i] : part;
        parts_out[i] = part;
        targets[i] -= prefix[part];
    }
}

// The guide table divides the total into n to 4 n equal cells. For each cell it has the part in which the cell begins.
// The part of a target in the cell is that one or, rarely, a later one.
void invert(const uint64_t* prefix, int64_t n, int64_t count, uint64_t* targets, uint64_t* parts_out, uint32_t* guide) {
    if (compares_lanes && n <= few_parts) return invert_few(prefix, n, count, targets, parts_out);
    const int total_bits = 64 - __builtin_clzll(prefix[n]);
    const int cell_bits = 65 - __builtin_clzll(static_cast<uint64_t>(n));
    const int shift = total_bits > cell_bits ? total_bits - cell_bits : 0;
    const uint64_t n_cells = (prefix[n] >> shift) + 1;
    __builtin_memset(guide, 0, (n_cells + 1) * sizeof *guide);
    for (int64_t part = 1; part < n; ++part) guide[(prefix[part] >> shift) + 1] = static_cast<uint32_t>(part);
    uint32_t last = 0;
    for (uint64_t cell = 0; cell < n_cells; ++cell) {
        last = guide[cell] > last ? guide[cell] : last;
        guide[cell] = last;
    }
    for (int64_t i = 0; i < count; ++i) {
        const uint64_t target = targets[i];
        uint64_t part = guide[target >> shift];
        while (prefix[part + 1] <= target) ++part;
        parts_out[i] = part;
        targets[i] = target - prefix[part];
    }
}

// ---- the way down

constexpr int64_t block = 16;  // draws that go down together
static_assert(block <= draw_padding);

// find_child() among n masses. It has no branches, since draws would make them unpredictable.
template <int n>
PER_INLINE uint64_t search_one(const uint64_t* masses, uint64_t& unit) {
    uint64_t child = 0;
    uint64_t sum = 0;
    uint64_t before = 0;
    for (int k = 0; k < n - 1; ++k) {
        sum += masses[k];
        const bool passed = sum <= unit;
        child += passed;
        before = passed ? sum : before;
    }
    unit -= before;
    return child;
}

// find_child() for one draw in each lane, among the 8 sums of that draw's line. lines[l] becomes the line that the
// child found sums up, in the level below, and units[l] the unit within that child.
//
// To halve a line three times takes half of the shuffles, but no less time: either both halves are prepared for the
// choice, or the chosen one is loaded from an address in a lane, and lanes are slow to reach (a vector just stored
// cannot be loaded in parts without a stall).
PER_INLINE void search_sums(const uint64_t* sums, uint64_t* lines, uint64_t* units) {
    if constexpr (!compares_lanes) {
        for (int l = 0; l < lanes; ++l) lines[l] = lines[l] * 8 + search_one<8>(sums + 8 * lines[l], units[l]);
        return;
    }
    Whole x[8];
    for (int first = 0; first < 8; first += lanes) {
        for (int l = 0; l < lanes; ++l) x[first + l] = load<Whole>(sums + 8 * lines[l] + first);
        transpose(x + first);
    }
    const Whole unit = load<Whole>(units);
    const Whole beyond = unit + 1;  // for beyond > sum: GCC compiles sum <= unit on 64-bit lanes to two compares
    Whole sum = x[0];
    Whole child = load<Whole>(lines) * 8;
    Whole before{};  // the child's first unit
    for (int k = 0; k < 7; ++k) {
        const Whole passed = beyond > sum;
        child = add_where(passed, child, Whole{} + 1);
        before = add_where(passed, before, x[k]);
        sum += x[k + 1];
    }
    store(units, unit - before);
    store(lines, child);
}

struct Found {
    int64_t* indices;
    uint64_t* masses;
    float* priorities;
};

// Reads the masses and priorities of the leaves whose indices are in `found`.
PER_INLINE void read_leaves(const TreeArrays& tree, int64_t first, const Found& found) {
    const Floats priorities = each_float([&](int l) { return tree.leaves[found.indices[first + l]]; });
    store(found.masses + first, masses_of(priorities, tree.factor));
    store(found.priorities + first, priorities);
}

// find_child() for draws first .. first + lanes - 1 of a block, each among the 16 leaves of its line.
PER_INLINE void search_leaves(const TreeArrays& tree, const uint64_t* lines, uint64_t* units, int64_t first,
                              const Found& found) {
    if constexpr (!compares_lanes) {
        for (int l = 0; l < lanes; ++l) {
            uint64_t masses[16];
            for (int i = 0; i < 16; i += lanes)
                store(masses + i, masses_of(tree.leaves + 16 * lines[l] + i, tree.factor));
            const uint64_t child = search_one<16>(masses, units[l]);
            found.indices[first + l] = static_cast<int64_t>(lines[l] * 16 + child);
        }
        read_leaves(tree, first, found);
        return;
    }
    const Whole beyond = load<Whole>(units) + 1;
    Whole sum{};
    Whole child = load<Whole>(lines) * 16;
    Whole passed = beyond > sum;
    Real scaled{};  // the child's priority
    for (int i = 0; i < 16; i += lanes) {
        Floats x[lanes];
        for (int l = 0; l < lanes; ++l) x[l] = load<Floats>(tree.leaves + 16 * lines[l] + i);
        transpose(x);
        for (int k = 0; k < lanes; ++k) {
            if constexpr (has_mask_registers) scaled = passed ? to_real(x[k]) * tree.factor : scaled;
            if (i + k == 15) break;
            sum += as_whole(scaled_ceiling(x[k], tree.factor));
            passed = beyond > sum;
            child = add_where(passed, child, Whole{} + 1);
        }
    }
    store(found.indices + first, child);
    if constexpr (has_mask_registers) {
        store(found.masses + first, ceiling(scaled));
        // Scaling by a power of two is exact, and so is its way back.
        store(found.priorities + first, to_floats(scaled * (1.0 / tree.factor)));
    } else {
        read_leaves(tree, first, found);
    }
}

PER_INLINE const char* lines_of(const TreeArrays& tree, int level) {
    return level == 0 ? reinterpret_cast<const char*>(tree.leaves) : reinterpret_cast<const char*>(tree.sums[level]);
}

// For each draw of a block, prefetches the line that its next search reads.
PER_INLINE void prefetch_block(const TreeArrays& tree, int level, const uint64_t* lines, bool into_first_level) {
    const char* const base = lines_of(tree, level);
    if (into_first_level)
        for (int64_t i = 0; i < block; ++i) prefetch_into_first_level(base + 64 * lines[i]);
    else
        for (int64_t i = 0; i < block; ++i) prefetch_to_read(base + 64 * lines[i]);
}

PER_INLINE void prefetch_rows(const RowsOfLeaves& rows, int64_t n, const int64_t* indices) {
    if (rows.bytes == 0) return;
    for (int64_t i = 0; i < n; ++i) {
        const std::byte* const row = rows.first + indices[i] * rows.stride;
        for (int64_t at = 0; at < rows.bytes - 1; at += 64) prefetch_to_read(row + at);
        prefetch_to_read(row + rows.bytes - 1);
    }
}

// is_direct: the searches write the results of a whole block directly to the arrays of the batch. Another thread of the
// caller may write to these arrays, so it is done only with has_mask_registers: otherwise the searches read results
// again.
PER_INLINE void finish_block(const TreeArrays& tree, int64_t count, bool is_direct, const uint64_t* lines,
                             uint64_t* units, int64_t* indices_out, uint64_t* masses_out, float* priorities_out) {
    int64_t indices[block];
    uint64_t masses[block];
    float priorities[block];
    is_direct = is_direct && has_mask_registers && count == block;
    const Found found = {is_direct ? indices_out : indices, is_direct && masses_out != nullptr ? masses_out : masses,
                         is_direct && priorities_out != nullptr ? priorities_out : priorities};
    for (int64_t i = 0; i < block; i += lanes) search_leaves(tree, lines + i, units + i, i, found);
    if (is_direct) return;
    const size_t n = static_cast<size_t>(count);
    __builtin_memcpy(indices_out, indices, n * sizeof *indices_out);
    if (masses_out != nullptr) __builtin_memcpy(masses_out, masses, n * sizeof *masses_out);
    if (priorities_out != nullptr) __builtin_memcpy(priorities_out, priorities, n * sizeof *priorities_out);
}

// descend() for a batch that fits one vector. With a function of its own, a small batch neither works on a whole block
// nor brings the code for blocks into the cache.
[[gnu::noinline]] void descend_few(const TreeArrays& tree, int level, int64_t count, uint64_t* lines, uint64_t* units,
                                   int64_t* indices_out, uint64_t* masses_out, float* priorities_out) {
    for (int64_t i = count; i < lanes; ++i) {
        lines[i] = lines[count - 1];
        units[i] = units[count - 1];
    }
    for (; level > 0; --level) search_sums(tree.sums[level], lines, units);
    int64_t indices[lanes];
    uint64_t masses[lanes];
    float priorities[lanes];
    search_leaves(tree, lines, units, 0, {indices, masses, priorities});
    const size_t n = static_cast<size_t>(count);
    __builtin_memcpy(indices_out, indices, n * sizeof *indices_out);
    if (masses_out != nullptr) __builtin_memcpy(masses_out, masses, n * sizeof *masses_out);
    if (priorities_out != nullptr) __builtin_memcpy(priorities_out, priorities, n * sizeof *priorities_out);
}

// True if prefetching in stages (FetchPolicy) is worth another turn. It is not if the tree is small and lies in the
// second-level cache anyway, or if the batch is small and has too few blocks to hide the turn.
PER_INLINE bool is_worth_stages(const TreeArrays& tree, int64_t count) {
    return tree.shape.n_nodes[0] > 131072 && count > 3 * block;
}

// A software pipeline: while one block searches a level, the lines for the blocks behind it are in flight. A block
// rests `distance` turns between two levels. With prefetches in stages that is one turn more, in which its lines move
// from the second-level cache to the first.
void descend(const TreeArrays& tree, int level, int64_t count, uint64_t* lines, uint64_t* units, int64_t* indices_out,
             uint64_t* masses_out, float* priorities_out, const RowsOfLeaves& rows) {
    const unsigned rounding = begin_rounding_up();
    if (count <= lanes) {
        descend_few(tree, level, count, lines, units, indices_out, masses_out, priorities_out);
        prefetch_rows(rows, count, indices_out);
        return end_rounding_up(rounding);
    }
    const bool in_stages = fetch_policy.in_stages && is_worth_stages(tree, count);
    const bool is_near = fetch_policy.in_stages && !in_stages;
    const int64_t distance = in_stages ? 3 : 2;
    // Searches do not write directly to the arrays of larger batches: these are not in the first-level cache, and the
    // searches would wait for their lines.
    constexpr int64_t most_direct = 1024;
    const int64_t n_blocks = (count + block - 1) / block;
    for (int64_t i = count; i < n_blocks * block; ++i) {
        lines[i] = lines[count - 1];
        units[i] = units[count - 1];
    }
    const int n_searches = level;
    for (int64_t b = 0; b < distance && b < n_blocks; ++b) prefetch_block(tree, level, lines + b * block, is_near);
    for (int64_t turn = 0; turn < n_blocks + n_searches * distance; ++turn) {
        for (int search = 0; search < n_searches; ++search) {
            const int64_t b = turn - search * distance;
            if (b < 0 || b >= n_blocks) continue;
            const int from = level - search;
            if (in_stages && b + 1 < n_blocks) prefetch_block(tree, from, lines + (b + 1) * block, true);
            for (int64_t i = b * block; i < (b + 1) * block; i += lanes)
                search_sums(tree.sums[from], lines + i, units + i);
            prefetch_block(tree, from - 1, lines + b * block, is_near);
        }
        if (turn + distance < n_blocks) prefetch_block(tree, level, lines + (turn + distance) * block, is_near);
        const int64_t b = turn - n_searches * distance;
        if (b < 0) continue;
        const int64_t at = b * block;
        const int64_t n = count - at < block ? count - at : block;
        if (in_stages && b + 1 < n_blocks) prefetch_block(tree, 0, lines + (b + 1) * block, true);
        finish_block(tree, n, count <= most_direct, lines + at, units + at, indices_out + at,
                     masses_out == nullptr ? nullptr : masses_out + at,
                     priorities_out == nullptr ? nullptr : priorities_out + at);
        prefetch_rows(rows, n, indices_out + at);
    }
    end_rounding_up(rounding);
}

}  // namespace
}  // namespace per::cpu
