#include "cuda/tree/layout.h"

#include "base/error.h"
#include "cuda/runtime/device.h"

namespace per::cuda {
namespace {

constexpr std::size_t alignment = 256;

int64_t nodes_above(int64_t n) {
    return (n + fan_out - 1) / fan_out;
}

// The shape of the levels above n_leaves, without their arrays.
DeviceSums shape_of_sums(int64_t n_leaves) {
    DeviceSums sums = {};
    sums.n_nodes[0] = nodes_above(n_leaves) * fan_out;
    sums.n_levels = 1;
    do {
        const int64_t n_sums = nodes_above(sums.n_nodes[sums.n_levels - 1]);
        sums.n_nodes[sums.n_levels++] = nodes_above(n_sums) * fan_out;
    } while (sums.n_nodes[sums.n_levels - 1] > max_top);
    return sums;
}

void lay_out_sums(DeviceSums& sums, Layout& layout) {
    const int top = sums.n_levels - 1;
    for (int level = top; level > 0; --level)
        sums.sums[level] = layout.array<uint64_t>(level == top ? max_top : sums.n_nodes[level]);
    sums.top = sums.sums[top];
    sums.n_top = sums.n_nodes[top];
}

}  // namespace

std::byte* Layout::bytes(int64_t n, int64_t bytes_each) {
    std::byte* const first = block_ == nullptr ? nullptr : block_ + n_bytes_;
    int64_t size;
    if (__builtin_mul_overflow(n, bytes_each, &size) ||
        __builtin_add_overflow(n_bytes_, (static_cast<std::size_t>(size) + alignment - 1) / alignment * alignment,
                               &n_bytes_))
        throw Error(PER_ERROR_OUT_OF_MEMORY, "out of memory: the bytes of a buffer are beyond 63 bits");
    return first;
}

DeviceTree lay_out_tree(int64_t capacity, Layout& layout, uint32_t* claims) {
    DeviceTree tree = {};
    static_cast<DeviceSums&>(tree) = shape_of_sums(capacity);
    tree.capacity = capacity;
    tree.state = layout.array<TreeState>(1);
    tree.smallest_masses = layout.array<uint64_t>(max_draw_blocks);
    lay_out_sums(tree, layout);
    tree.leaves = layout.array<float>(tree.n_nodes[0]);
    tree.claims = claims != nullptr ? claims : layout.array<uint32_t>(capacity);
    tree.max_blocks = n_multiprocessors();
    tree.has_fast_float64 = has_fast_float64();
    return tree;
}

DeviceLive lay_out_live(int64_t capacity, Layout& layout) {
    DeviceLive live = {};
    static_cast<DeviceSums&>(live) = shape_of_sums((capacity + slots_per_word - 1) / slots_per_word);
    lay_out_sums(live, layout);
    live.words = layout.array<uint32_t>(live.n_nodes[0]);
    return live;
}

DeviceMaximum lay_out_maximum(int64_t capacity, Layout& layout) {
    DeviceMaximum maximum = {};
    int64_t n = capacity;
    do {
        n = nodes_above(n);
        maximum.n_nodes[maximum.n_levels] = n;
        maximum.levels[maximum.n_levels++] = layout.array<uint32_t>(nodes_above(n) * fan_out);
    } while (n > 1);
    return maximum;
}

}  // namespace per::cuda
