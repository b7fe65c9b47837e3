// The sum tree in device memory: float32 leaves and exact uint64 sums of their masses (mass.h). A node has 32 children,
// which a warp reads at once; the top row has up to 1024 entries, which a block sums up in shared memory. Draws depend
// only on the masses and their order, not on this shape, and so equal the CPU's.
#pragma once

#include <cstdint>

#include "cuda/runtime/dialect.h"
#include "rules/mass.h"

namespace per::cuda {

inline constexpr int64_t fan_out = warp_size;
inline constexpr int64_t max_top = fan_out * fan_out;
// One level of leaves, and up to 6 levels of sums: enough for 2^40 leaves.
inline constexpr int max_tree_levels = 7;
// The most blocks of a draw; each stores its smallest mass.
inline constexpr int64_t max_draw_blocks = 1024;

// Arrays whose entries the device checks.
enum class TreeArgument { indices, priorities, prefix_sums, units };
inline constexpr int n_tree_arguments = 4;

// All state that changes from call to call, so that a captured graph can be replayed.
struct TreeState {
    uint64_t batches;    // drawn so far
    uint64_t total;      // of all masses
    uint64_t low_water;  // a total below it asks for a rescale
    int32_t scale;
    int32_t is_scale_fixed;  // it was set, and stays while leaves and their sum fit it

    // State of the current change, rebuild or draw; 0 between calls, but for the meeting.
    int32_t plan;            // a ScalePlan
    uint32_t has_too_large;  // a leaf was written that is too large for the scale
    uint32_t is_scale_due;   // the change must choose a scale
    uint32_t largest_bits;   // of a leaf; bits of floats >= 0 are in the order of the floats
    WideSum sum;             // of differences of masses in a change, of masses in a rebuild
    Meeting meeting;         // of the blocks that make the change or rebuild
    uint32_t n_arrived;      // blocks that have drawn

    // Since the last report.
    uint32_t n_empty_draws;
    uint32_t n_short_draws;
    uint64_t n_bad_entries[n_tree_arguments];
};

// Levels of sums over leaves of some kind, 32 to a node. Level 0 is the leaves; `sums` begins at level 1.
struct DeviceSums {
    uint64_t* sums[max_tree_levels];
    int64_t n_nodes[max_tree_levels];  // rounded up to whole nodes; the rest is always 0
    int n_levels;                      // leaves included
    uint64_t* top;                     // the last array of sums: [max_top]
    int64_t n_top;                     // its length but for zeros
};

// An entry of an update as the kernel read it: once, as the caller's arrays may change meanwhile.
struct UpdateEntry {
    int64_t index;  // of a leaf or slot; -1: the entry is skipped
    float priority;
    bool is_live = true;  // false: the slot's row is not live yet
};

// The entries of an update that belong to a thread, by their number in the call. The first of them stays in registers;
// with has_one there are no others.
template <bool has_one = false>
class EntriesOfThread {
 public:
    static constexpr bool at_most_one = has_one;

    __device__ __forceinline__ EntriesOfThread(int64_t first, UpdateEntry* others) : first_(first), others_(others) {}

    __device__ __forceinline__ void set(int64_t i, const UpdateEntry& entry) {
        if (has_one || i == first_)
            first_entry_ = entry;
        else
            others_[i] = entry;
    }
    __device__ __forceinline__ UpdateEntry operator[](int64_t i) const {
        return has_one || i == first_ ? first_entry_ : others_[i];
    }

 private:
    int64_t first_;
    UpdateEntry first_entry_ = {-1, 0.0f};
    UpdateEntry* others_;
};

// Pointers to the arrays of a tree, passed to kernels by value.
struct DeviceTree : DeviceSums {
    TreeState* state;
    float* leaves;     // [n_nodes[0]]; negative: taken out by a draw without replacement
    uint32_t* claims;  // [capacity] the entry or draw that holds this leaf; 0 between calls
    int64_t capacity;
    uint64_t* smallest_masses;  // [max_draw_blocks] of the current draw
    int32_t max_blocks;         // of launch_together(): one for each multiprocessor
    bool has_fast_float64;      // of the device
};

__device__ __forceinline__ int top_level(const DeviceSums& sums) {
    return sums.n_levels - 1;
}

// The node above a leaf or node. Division of an unsigned number is a shift.
__device__ __forceinline__ int64_t parent_of(int64_t node) {
    return static_cast<int64_t>(static_cast<uint64_t>(node) / fan_out);
}

__device__ __forceinline__ uint64_t leaf_mass(float priority, double factor) {
    return mass_of(priority > 0.0f ? priority : 0.0f, factor);
}

// ---- sums over a warp, all lanes taking part

// The device sums up 32-bit numbers of a warp in one instruction, and 32 numbers of this many bits do not overflow.
inline constexpr int bits_of_piece = 27;

// The sum of the pieces that begin at bit `first`.
__device__ __forceinline__ uint64_t sum_of_pieces(uint64_t value, int first) {
    return __reduce_add_sync(all_lanes, static_cast<uint32_t>(value >> first) & ((1u << bits_of_piece) - 1));
}

// The sum modulo 2^64.
__device__ __forceinline__ uint64_t sum_of_warp(uint64_t value) {
    return sum_of_pieces(value, 0) + (sum_of_pieces(value, bits_of_piece) << bits_of_piece) +
           (sum_of_pieces(value, 2 * bits_of_piece) << 2 * bits_of_piece);
}

__device__ __forceinline__ WideSum sum_of_warp(WideSum value) {
    const uint64_t low = sum_of_pieces(value.low, 0) + (sum_of_pieces(value.low, bits_of_piece) << bits_of_piece);
    const uint64_t middle = sum_of_pieces(value.low, 2 * bits_of_piece);
    return add_wide({low, sum_of_warp(value.high)}, {middle << 2 * bits_of_piece, middle >> (64 - 2 * bits_of_piece)});
}

// The smallest of 64-bit numbers. Doubles must not be negative, so that their bits have their order.
template <class Number>
__device__ __forceinline__ Number least_of_warp(Number value) {
    const uint64_t bits = bit_cast<uint64_t>(value);
    const uint32_t high = static_cast<uint32_t>(bits >> 32);
    const uint32_t least = __reduce_min_sync(all_lanes, high);
    const uint32_t low = __reduce_min_sync(all_lanes, high == least ? static_cast<uint32_t>(bits) : ~0u);
    return bit_cast<Number>(uint64_t{least} << 32 | low);
}

// Adds the sum over the warp to a number in global memory.
template <class Number>
__device__ __forceinline__ void add_of_warp(Number* at, uint64_t value) {
    value = sum_of_warp(value);
    if (lane_of_thread() == 0) add_if_any(at, value);
}

// The sum is exact in any order, as each addition that wraps carries.
__device__ __forceinline__ void atomic_add_wide(WideSum* at, WideSum value) {
    const uint64_t before = atomic_add(&at->low, value.low);
    const uint64_t carry = before + value.low < before;
    add_if_any(&at->high, value.high + carry);
}

// ---- sums over a block

// The sum of the values of the threads before this one. The whole block calls it; `sums` lies in shared memory.
__device__ __forceinline__ uint64_t sum_before(uint64_t value, uint64_t (&sums)[warp_size]) {
    const unsigned lane = lane_of_thread();
    const unsigned warp = threadIdx.x / warp_size;
    const uint64_t up_to = prefix_sum(value);
    if (lane == warp_size - 1) sums[warp] = up_to;
    __syncthreads();
    return up_to - value + sum_of_warp(lane < warp ? sums[lane] : 0);
}

// The smallest of the numbers that the warps pass. The whole block, of n_threads, calls it and gets the result;
// `numbers` lies in shared memory.
template <class Number>
__device__ __forceinline__ Number smallest_of_block(Number of_warp, Number (&numbers)[n_warps]) {
    const unsigned lane = lane_of_thread();
    if (lane == 0) numbers[threadIdx.x / warp_size] = of_warp;
    __syncthreads();
    const Number smallest = least_of_warp(numbers[lane % n_warps]);
    __syncthreads();
    return smallest;
}

// ---- the top row, in the shared memory of a block. Its entries are the children of up to 32 nodes, whose sums the block
// computes: so the descent begins at one node, and takes the same steps there as in the levels below.

struct TopRow {
    uint64_t entries[max_top];
    uint64_t nodes[fan_out];  // sums of 32 entries each
};

// The whole block calls it, when no thread reads the row any more. Ends with a barrier.
template <int block_size = n_threads>
__device__ __forceinline__ void load_top_row(const DeviceSums& tree, TopRow& row) {
    constexpr int n_each = max_top / block_size;
    uint64_t entries[n_each] = {};
    entries[0] = tree.top[threadIdx.x];
    if (tree.n_top > block_size)
        for (int i = 1; i < n_each; ++i) entries[i] = tree.top[i * block_size + threadIdx.x];
    for (int i = 0; i < n_each; ++i) row.entries[i * block_size + threadIdx.x] = entries[i];
    PER_ROLLED
    for (int first = 0; first < max_top; first += block_size) {
        const unsigned at = first + threadIdx.x;
        const uint64_t sum = sum_of_warp(row.entries[at]);
        if (lane_of_thread() == 0) row.nodes[at / fan_out] = sum;
    }
    __syncthreads();
}

// A warp calls it.
__device__ __forceinline__ uint64_t total_of(const TopRow& row) {
    return sum_of_warp(row.nodes[lane_of_thread()]);
}

// The sum of the entries before one of them. A warp calls it.
__device__ __forceinline__ uint64_t sum_before_entry(const TopRow& row, int64_t entry) {
    const unsigned lane = lane_of_thread();
    const int64_t node = entry / fan_out;
    return sum_of_warp((lane < node ? row.nodes[lane] : 0) +
                       (lane < entry % fan_out ? row.entries[node * fan_out + lane] : 0));
}

// ---- the descent

struct FoundLeaf {
    int64_t index;
    uint64_t mass;
    float own_priority;  // of the leaf of the same node that the thread has read

    // The whole warp calls it.
    __device__ __forceinline__ float priority() const {
        return __shfl_sync(all_lanes, own_priority, static_cast<int>(index & (fan_out - 1)));
    }
};

// The child whose mass holds unit `rest` of the node's mass; the last child if no other does. `rest` becomes the number
// of the unit within the child. All threads of the warp pass the same `rest`.
__device__ __forceinline__ int find_child(uint64_t mass, uint64_t& rest) {
    const uint64_t up_to = prefix_sum(mass);
    const unsigned beyond = __ballot_sync(all_lanes, rest < up_to) | 1u << (warp_size - 1);
    const int child = __ffs(static_cast<int>(beyond)) - 1;
    rest -= __shfl_sync(all_lanes, up_to - mass, child);
    return child;
}

// The sums of a level from the top row down. A descent begins with row.nodes, one level above.
__device__ __forceinline__ const uint64_t* sums_of_level(const DeviceSums& sums, const TopRow& row, int level) {
    return level == top_level(sums) ? row.entries : sums.sums[level];
}

// Finds the node of 32 leaves that holds a unit, which is below the total. The unit becomes its number within the node.
// All threads of a warp pass the same unit.
__device__ __forceinline__ int64_t find_node(const DeviceSums& sums, const TopRow& row, uint64_t& unit) {
    const unsigned lane = lane_of_thread();
    int64_t node = 0;
    const uint64_t* level_sums = row.nodes;
    PER_ROLLED
    for (int level = top_level(sums) + 1; level > 0;) {
        node = node * fan_out + find_child(level_sums[node * fan_out + lane], unit);
        level_sums = sums_of_level(sums, row, --level);
    }
    return node;
}

// Finds the leaves that hold n units of mass; n is 1 .. most, and the units are below the total. Each unit becomes its
// number within its leaf. A warp searches for all units at once, and so waits for memory only as often as for one. All
// its threads pass the same units. The loop handles leaves like sums, so that the code of find_child() is there only
// once.
template <int most>
__device__ __forceinline__ void find_leaves(const DeviceTree& tree, const TopRow& row, double factor, int n,
                                            uint64_t (&units)[most], FoundLeaf (&leaves)[most]) {
    const unsigned lane = lane_of_thread();
    int64_t nodes[most] = {};
    float priorities[most] = {};
    uint64_t masses[most];
    const uint64_t* sums = row.nodes;
    PER_ROLLED
    for (int level = top_level(tree) + 1;;) {
        for (int k = 0; k < most && k < n; ++k) {
            nodes[k] = nodes[k] * fan_out + lane;
            if (level != 0)
                masses[k] = sums[nodes[k]];
            else
                priorities[k] = tree.leaves[nodes[k]];
        }
        for (int k = 0; k < most && k < n; ++k) {
            if (level == 0) masses[k] = leaf_mass(priorities[k], factor);
            nodes[k] += find_child(masses[k], units[k]) - static_cast<int>(lane);
        }
        if (level == 0) break;
        sums = sums_of_level(tree, row, --level);  // not used for level 0
    }
    for (int k = 0; k < most && k < n; ++k) {
        const int child = static_cast<int>(nodes[k] & (fan_out - 1));
        leaves[k] = {nodes[k], __shfl_sync(all_lanes, masses[k], child), priorities[k]};
    }
}

__device__ __forceinline__ FoundLeaf find_leaf(const DeviceTree& tree, const TopRow& row, double factor,
                                               uint64_t unit) {
    FoundLeaf leaf[1];
    uint64_t units[1] = {unit};
    find_leaves(tree, row, factor, 1, units, leaf);
    return leaf[0];
}

// The number of blocks for n draws, n_each on each multiprocessor at most, so that all of them run at the same time.
inline int64_t blocks_of_draw(const DeviceTree& tree, int64_t n, int64_t n_each) {
    const int64_t most = n_each * tree.max_blocks;
    return blocks_for(n, n_warps, most < max_draw_blocks ? most : max_draw_blocks);
}

// Adds a difference, modulo 2^64, to all sums above a leaf.
__device__ __forceinline__ void add_to_sums(const DeviceSums& sums, int64_t leaf, uint64_t difference) {
    PER_ASSUME(sums.n_levels > 1);
    PER_ROLLED
    for (int level = 1; level < sums.n_levels; ++level) {
        leaf = parent_of(leaf);
        atomic_add(&sums.sums[level][leaf], difference);
    }
}

// ---- many changes: a block first adds up its changes of the top row in shared memory. Many leaves share the few
// entries of that row, and atomics on the same memory wait for each other.

// Lies in the shared memory of the block.
struct TopChanges {
    SharedSum differences[max_top];
};

// The whole block, of n_threads, calls it. A barrier must follow.
__device__ __forceinline__ void clear(TopChanges& top) {
    PER_ASSUME(blockDim.x == n_threads);
    for (int i = 0; i < max_top; i += n_threads) top.differences[i + threadIdx.x] = {0, 0};
}

// Like the function above, but leaves the top row to write_top().
__device__ __forceinline__ void add_to_sums(const DeviceSums& sums, TopChanges& top, int64_t leaf,
                                            uint64_t difference) {
    PER_ROLLED
    for (int level = 1; level < top_level(sums); ++level) {
        leaf = parent_of(leaf);
        atomic_add(&sums.sums[level][leaf], difference);
    }
    atomic_add(top.differences[parent_of(leaf)], difference);
}

// The whole block, of n_threads, calls it after its last change.
__device__ __forceinline__ void write_top(const DeviceSums& sums, const TopChanges& top) {
    PER_ASSUME(blockDim.x == n_threads);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < max_top; i += n_threads) add_if_any(&sums.top[i], top.differences[i].value());
}

// Takes its place where few leaves change, whose atomics on the top row hardly meet: each change goes there at once.
struct NoTopChanges {};

__device__ __forceinline__ void clear(NoTopChanges&) {}
__device__ __forceinline__ void add_to_sums(const DeviceSums& sums, NoTopChanges&, int64_t leaf, uint64_t difference) {
    add_to_sums(sums, leaf, difference);
}
__device__ __forceinline__ void write_top(const DeviceSums&, const NoTopChanges&) {}

// The threads, or warps, that share some work: the number of this one among them, and how many they are.
struct GridSpan {
    int64_t first;
    int64_t step;
};

// Grids are so small that 32 bits are enough for the numbers of their threads.
__device__ __forceinline__ GridSpan grid_span() {
    return {blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x};
}

__device__ __forceinline__ GridSpan warp_span() {
    return {(blockIdx.x * blockDim.x + threadIdx.x) / warp_size, gridDim.x * blockDim.x / warp_size};
}

// Calls visit(i) for each i < n of a thread or warp. With at_most_one the grid has as many of them as n, or more.
template <bool at_most_one, class Visit>
__device__ __forceinline__ void for_each_of(const GridSpan& span, int64_t n, const Visit& visit) {
    if constexpr (at_most_one) {
        if (span.first < n) visit(span.first);
    } else {
        for (int64_t i = span.first; i < n; i += span.step) visit(i);
    }
}

}  // namespace per::cuda
