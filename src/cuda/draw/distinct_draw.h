// Drawing without replacement, by the rounds of rules/draw.h. One block makes all rounds in one launch, since the host
// does not know how many are needed. It makes a chunk of draws at a time, one for each of its threads.
//
// It draws from a Source, which has these functions:
//
//   void load()                  reads what draws need of the state; the whole block calls it
//   bool has_any()               says whether something is left to draw
//   double share_left()          says how much of the whole is left
//   int64_t find(round, i)       returns the index that draw i of a round gives; a warp calls it
//   void take_out(index)         keeps an index from being drawn; a thread calls it
//   void put_back(index)         undoes that; a thread calls it
#pragma once

#include <cstdint>

#include "cuda/tree/live_set.h"
#include "cuda/tree/sum_tree.h"
#include "per.h"
#include "rules/draw.h"

namespace per::cuda {

inline constexpr int distinct_threads = 512;
inline constexpr int64_t distinct_warps = distinct_threads / warp_size;

// `claims` of DistinctFound has a number for each index. Thread t, which makes draw t of a chunk, raises the claim of
// the index it draws to distinct_threads - t: the first draw of an index leaves the largest claim. By that draw the
// index is found. The claim then becomes is_found, which is larger than any thread's, so that draws of the index in
// later chunks count as repeats.
inline constexpr uint32_t is_found = ~0u;

struct DistinctShared {
    int64_t drawn[distinct_threads];  // indices of the chunk
    int64_t warp_counts[distinct_warps];
    double more_draws[distinct_threads];  // the number of independent draws that each draw of the chunk stands for
    int64_t n_found;
    int64_t n_taken_out;
    int64_t n_repeats;
    int64_t last_index;  // the index found after those of the batch, which ends the draw
    double n_draws;
};

// The output of a draw.
struct DistinctFound {
    int64_t batch_size;
    int64_t* indices;  // [batch_size]
    uint32_t* claims;  // by index; 0 between draws
};

// The number of threads for which `counts` is true: those before this one, and all of the block.
struct Ranks {
    int64_t rank;
    int64_t n;
};

__device__ __forceinline__ Ranks rank_in_block(DistinctShared& shared, bool counts) {
    const unsigned lane = lane_of_thread();
    const unsigned warp = threadIdx.x / warp_size;
    const unsigned ballot = __ballot_sync(all_lanes, counts);
    __syncthreads();
    if (lane == 0) shared.warp_counts[warp] = __popc(ballot);
    __syncthreads();
    Ranks ranks = {__popc(ballot & ((1u << lane) - 1)), 0};
    for (int64_t i = 0; i < distinct_warps; ++i) {
        if (i < warp) ranks.rank += shared.warp_counts[i];
        ranks.n += shared.warp_counts[i];
    }
    return ranks;
}

// The warps take draws in turn, so that few draws are spread over all warps.
template <class Source>
__device__ __forceinline__ void draw_chunk(const Source& source, DistinctShared& shared, const DrawRequest& round,
                                           int64_t first) {
    const int64_t left = round.batch_size - first;
    const int64_t n = left < distinct_threads ? left : distinct_threads;
    for (int64_t i = threadIdx.x / warp_size; i < n; i += distinct_warps) {
        const int64_t index = source.find(round, first + i);
        if (lane_of_thread() == 0) shared.drawn[i] = index;
    }
    __syncthreads();
}

// Keeps the first draw of each index, in order, until n_wanted are found. Later draws are ignored.
__device__ __forceinline__ void keep_first_draws(DistinctShared& shared, const DistinctFound& out,
                                                 const DrawRequest& round, int64_t first, double share) {
    const int64_t n_wanted = out.batch_size + 1;
    const bool is_drawn = first + threadIdx.x < round.batch_size;
    const int64_t index = is_drawn ? shared.drawn[threadIdx.x] : 0;
    const uint32_t claim = distinct_threads - threadIdx.x;
    if (is_drawn) atomicMax(&out.claims[index], claim);
    __syncthreads();
    const bool is_first = is_drawn && out.claims[index] == claim;
    const int64_t n_found = shared.n_found;
    const bool takes_out = shared.n_taken_out != 0;
    const Ranks ranks = rank_in_block(shared, is_first);
    const int64_t place = n_found + ranks.rank;  // of the index, if it is found
    const bool is_looked_at = is_drawn && place < n_wanted;
    if (is_first && is_looked_at) {
        if (place < out.batch_size)
            out.indices[place] = index;
        else
            shared.last_index = index;
    }
    if (is_first) out.claims[index] = is_looked_at ? is_found : 0;
    const Ranks repeats = rank_in_block(shared, is_looked_at && !is_first);
    const Ranks looked_at = rank_in_block(shared, is_looked_at);
    if (takes_out && is_looked_at) {
        const uint64_t number = geometric_numbers | (round.first + static_cast<uint64_t>(first) + threadIdx.x);
        shared.more_draws[threadIdx.x] = draws_until_outside(random64(round.seed, round.batch_number, number), share);
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    shared.n_found = n_found + ranks.n < n_wanted ? n_found + ranks.n : n_wanted;
    shared.n_repeats += repeats.n;
    // The numbers are added in order, because sums of doubles beyond 2^53 depend on the order.
    if (!takes_out) shared.n_draws += static_cast<double>(looked_at.n);
    for (int64_t i = 0; takes_out && i < looked_at.n; ++i) shared.n_draws += shared.more_draws[i];
}

template <class Source>
__device__ __forceinline__ void draw_rounds(Source& source, DistinctShared& shared, const DistinctFound& out,
                                            DrawRequest round) {
    const int64_t n_wanted = out.batch_size + 1;
    round.scheme = PER_INDEPENDENT;
    source.load();
    while (shared.n_found < n_wanted && source.has_any()) {
        round.batch_size = distinct_round_size(n_wanted - shared.n_found);
        const double share = source.share_left();
        __syncthreads();
        if (threadIdx.x == 0) shared.n_repeats = 0;
        __syncthreads();
        for (int64_t first = 0; first < round.batch_size && shared.n_found < n_wanted; first += distinct_threads) {
            draw_chunk(source, shared, round, first);
            keep_first_draws(shared, out, round, first, share);
            __syncthreads();
        }
        const int64_t n_found = shared.n_found;
        if (repeats_prevail(shared.n_repeats, round.batch_size) && n_found < n_wanted) {
            for (int64_t i = shared.n_taken_out + threadIdx.x; i < n_found; i += distinct_threads)
                source.take_out(out.indices[i]);
            __syncthreads();
            source.load();
            if (threadIdx.x == 0) shared.n_taken_out = n_found;
            __syncthreads();
        }
        round.first += static_cast<uint64_t>(round.batch_size);
    }
}

// The result of a whole draw: the number of indices found, up to batch_size + 1, and the number of independent draws
// they stand for, which inclusion_probability() needs.
struct DistinctResult {
    int64_t n_found;
    double n_draws;
};

// All threads of the block call it, and get the result. Afterwards the source is as it was.
template <class Source>
__device__ __forceinline__ DistinctResult draw_distinct(Source& source, DistinctShared& shared,
                                                        const DistinctFound& out, const DrawRequest& request) {
    if (threadIdx.x == 0) {
        shared.n_found = 0;
        shared.n_taken_out = 0;
        shared.n_draws = 0.0;
    }
    __syncthreads();
    draw_rounds(source, shared, out, request);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < shared.n_taken_out; i += distinct_threads) source.put_back(out.indices[i]);
    const int64_t n_written = shared.n_found < out.batch_size ? shared.n_found : out.batch_size;
    for (int64_t i = threadIdx.x; i < n_written; i += distinct_threads) out.claims[out.indices[i]] = 0;
    if (threadIdx.x == 0 && shared.n_found > out.batch_size) out.claims[shared.last_index] = 0;
    __syncthreads();
    const double infinity = bit_cast<double>(uint64_t{0x7ff0000000000000});
    return {shared.n_found, shared.n_found == out.batch_size + 1 ? shared.n_draws - 1.0 : infinity};
}

// ---- sources

// Takes a leaf out by negating its priority, so that its mass is 0, and puts it back in the same way.
__device__ __forceinline__ void toggle_leaf(const DeviceTree& tree, int64_t index, double factor) {
    const float before = tree.leaves[index];
    tree.leaves[index] = -before;
    add_to_sums(tree, index, leaf_mass(-before, factor) - leaf_mass(before, factor));
}

// Draws the leaves of a tree.
struct TreeSource {
    const DeviceTree& tree;
    TopRow& row;
    double factor;
    double whole;

    __device__ __forceinline__ void load() { load_top_row<distinct_threads>(tree, row); }
    __device__ __forceinline__ bool has_any() const { return total_of(row) != 0; }
    __device__ __forceinline__ double share_left() const { return static_cast<double>(total_of(row)) / whole; }
    __device__ __forceinline__ int64_t find(const DrawRequest& round, int64_t i) const {
        const uint64_t target = draw_target(round, static_cast<uint64_t>(i), 0, total_of(row));
        return find_leaf(tree, row, factor, target).index;
    }
    __device__ __forceinline__ void take_out(int64_t index) const { toggle_leaf(tree, index, factor); }
    __device__ __forceinline__ void put_back(int64_t index) const { toggle_leaf(tree, index, factor); }
};

// Draws live rows by a DrawLaw that mixes priorities with the uniform distribution. A row that take_out() was given is
// in neither the tree nor the live set until put_back().
struct MixtureSource {
    const DeviceTree& tree;
    const DeviceLive& live;
    TopRow& tree_row;
    TopRow& live_row;
    double factor;
    DrawLaw law;

    __device__ __forceinline__ void load() {
        load_top_row<distinct_threads>(tree, tree_row);
        load_top_row<distinct_threads>(live, live_row);
    }
    __device__ __forceinline__ bool has_any() const { return total_of(live_row) != 0; }
    __device__ __forceinline__ double share_left() const {
        return law.share_left(total_of(tree_row), total_of(live_row));
    }
    __device__ __forceinline__ int64_t find(const DrawRequest& round, int64_t i) const {
        const uint64_t mass = total_of(tree_row);
        const uint64_t n_live = total_of(live_row);
        const uint64_t uniform = law.uniform_units_left(mass, n_live);
        const uint64_t target = draw_target(round, static_cast<uint64_t>(i), 0, mixture_units);
        const UnitOrRank part = part_of_mixture(target, uniform, mass, n_live);
        if (part.is_rank) return select(live, live_row, part.value);
        return find_leaf(tree, tree_row, factor, part.value).index;
    }
    __device__ __forceinline__ void take_out(int64_t index) const {
        toggle_leaf(tree, index, factor);
        erase(live, index);
    }
    __device__ __forceinline__ void put_back(int64_t index) const {
        toggle_leaf(tree, index, factor);
        insert(live, index);
    }
};

}  // namespace per::cuda
