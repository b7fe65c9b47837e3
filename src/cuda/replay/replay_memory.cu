#include "cuda/replay/replay_memory.h"

#include "backend/replay_options.h"
#include "base/error.h"
#include "cuda/runtime/device.h"
#include "cuda/tree/layout.h"

namespace per::cuda {
namespace {

// Lays out all arrays but fields and ranks.
void lay_out_numbers(DeviceReplay& replay, const per_replay_options& options, Layout& layout) {
    replay.state = layout.array<ReplayState>(1);
    replay.lanes = layout.array<Lane>(replay.n_envs);
    replay.changes = layout.array<LaneChange>(replay.n_envs);
    replay.bootstraps = layout.array<int64_t>(replay.n_envs + 1);
    replay.fields = layout.array<DeviceField>(replay.n_fields);
    replay.flags = layout.array<uint8_t>(replay.capacity);
    replay.rewards = layout.array<float>(replay.capacity);
    if (options.keep_times_sampled != 0) replay.times_sampled = layout.array<int32_t>(replay.capacity);
    if (options.freshness.age == PER_AGE_VERSIONS) replay.versions = layout.array<int32_t>(replay.capacity);
    DevicePriorities& priorities = replay.priorities;
    priorities.tree = lay_out_tree(replay.capacity, layout);
    priorities.given = layout.array<float>(priorities.tree.n_nodes[0]);
    priorities.live = lay_out_live(replay.capacity, layout);
    if (options.max_priority == PER_MAX_NOW) priorities.live_maximum = lay_out_maximum(replay.capacity, layout);
    if (options.normalize_weights == PER_BUFFER_MAX)
        priorities.smallest_leaf = lay_out_maximum(replay.capacity, layout);
}

void lay_out_ranks(DeviceRanks& ranks, const DeviceTree& priorities, Layout& layout) {
    ranks.state = layout.array<RankState>(1);
    ranks.buckets = layout.array<uint32_t>(priorities.capacity);
    ranks.counts = layout.array<uint64_t>(n_rank_buckets);
    ranks.weights = layout.array<float>(n_rank_buckets);
    ranks.tree = lay_out_tree(priorities.capacity, layout, priorities.claims);
}

std::vector<DeviceField> lay_out_fields(const DeviceReplay& replay, const Fields& fields, bool stores_next,
                                        Layout& layout) {
    std::vector<DeviceField> laid_out;
    for (const Field& field : fields) {
        DeviceField of_device = {nullptr,     nullptr,     field.bytes, field.elements,
                                 field.stack, field.dtype, field.role,  field.pads_with_zeros()};
        of_device.frames = layout.bytes(replay.capacity, field.bytes);
        if (stores_next && field.is_observation()) of_device.next_frames = layout.bytes(replay.capacity, field.bytes);
        laid_out.push_back(of_device);
    }
    return laid_out;
}

std::vector<std::byte*> lay_out_defaults(const Fields& fields, Layout& layout) {
    std::vector<std::byte*> laid_out;
    for (const Field& field : fields) laid_out.push_back(field.has_default() ? layout.bytes(1, field.bytes) : nullptr);
    return laid_out;
}

}  // namespace

ReplayMemory::ReplayMemory(const per_replay_options& options, const Fields& fields, cudaStream_t stream) {
    device_.capacity = options.capacity;
    device_.n_envs = options.n_envs;
    device_.n_fields = fields.count();
    device_.seed = options.seed;
    device_.epsilon = options.epsilon;
    device_.sequence_eta = options.sequence_eta;
    device_.has_sequences = options.sequence_length > 0;
    device_.critics = options.critics;
    device_.max_priority = options.max_priority;
    device_.autoreset = options.autoreset;
    device_.on_gap = options.on_gap;
    device_.max_times_sampled = options.max_times_sampled;
    device_.max_age = has_max_age(options, PER_AGE_VERSIONS) ? options.freshness.max_age : -1;
    device_.decays = freshness_of(options).decays();
    device_.refuses_nan = options.on_nan == PER_NAN_ERROR;
    device_.overwrite = options.overwrite != 0;

    lay_out_twice([&](std::size_t n_bytes) { return allocate(n_bytes, stream); },
                  [&](Layout& layout) {
                      lay_out_numbers(device_, options, layout);
                      fields_ = lay_out_fields(device_, fields, options.store_next_observation != 0, layout);
                      defaults_ = lay_out_defaults(fields, layout);
                  });
    const ReplayState state = {.rules = window_rules(options, fields),
                               .beta = {options.beta, options.beta_final, options.beta_steps},
                               .alpha = options.alpha,
                               .gamma = options.gamma,
                               .batches = 0,
                               .counters = {},
                               .n_live = 0,
                               .largest_bits = bit_cast<uint32_t>(1.0f),
                               .freshness = freshness_of(options),
                               .last = {},
                               .n_bad_bootstraps = 0,
                               .errors = {}};
    const WaitAtEnd wait_at_end = {stream};
    copy_to_device(device_.state, &state, 1, stream);
    copy_to_device(device_.fields, fields_.data(), fields_.size(), stream);
    for (int64_t i = 0; i < fields.count(); ++i)
        if (fields[i].has_default())
            copy_to_device(defaults_[static_cast<std::size_t>(i)], fields[i].default_value.data(),
                           fields[i].default_value.size(), stream);
    wait_for(stream);
    if (options.prioritization == PER_RANK) allocate_ranks(stream);
}

std::byte* ReplayMemory::allocate(std::size_t n_bytes, cudaStream_t stream) {
    std::byte* const data = blocks_.emplace_back(n_bytes).data();
    check(cudaMemsetAsync(data, 0, n_bytes, stream), "clearing memory");
    n_bytes_ += n_bytes;
    return data;
}

void ReplayMemory::allocate_ranks(cudaStream_t stream) {
    DeviceRanks ranks = {};
    lay_out_twice([&](std::size_t n_bytes) { return allocate(n_bytes, stream); },
                  [&](Layout& layout) { lay_out_ranks(ranks, device_.priorities.tree, layout); });
    device_.priorities.ranks = ranks;
}

namespace {

// Kernels get all pointers by value. A graph that was captured before memory is added would keep the old pointers.
void require_no_captures(const StreamOrder::Call& call, const char* what) {
    if (call.has_captures())
        throw Error(
            PER_ERROR_INVALID_ARGUMENT,
            "stream is %p: the first call with %s allocates memory, which calls of this buffer that were captured "
            "do not know: make one before the first capture, or create the buffer with it",
            static_cast<void*>(call.stream()), what);
}

}  // namespace

void ReplayMemory::add_ranks(const StreamOrder::Call& call) {
    if (has_ranks(device_.priorities)) return;
    require_no_captures(call, "prioritization PER_RANK");
    allocate_ranks(call.stream());
}

void ReplayMemory::add_smallest_leaf(const StreamOrder::Call& call) {
    if (device_.priorities.smallest_leaf.n_levels != 0) return;
    require_no_captures(call, "normalize_weights PER_BUFFER_MAX");
    DeviceMaximum smallest = {};
    lay_out_twice([&](std::size_t n_bytes) { return allocate(n_bytes, call.stream()); },
                  [&](Layout& layout) { smallest = lay_out_maximum(device_.capacity, layout); });
    device_.priorities.smallest_leaf = smallest;
}

}  // namespace per::cuda
