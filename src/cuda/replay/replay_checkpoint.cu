// Saving and restoring the replay buffer in the memory of a device.
#include <vector>

#include "cuda/replay/priorities.h"
#include "cuda/replay/replay_backend.h"
#include "cuda/runtime/check.h"
#include "cuda/runtime/slot_copies.h"
#include "file/checkpoint.h"
#include "file/saved_state.h"
#include "rules/mass.h"
#include "rules/priority.h"
#include "rules/td_error.h"

namespace per::cuda {
namespace {

std::byte* data_of(const ReplayMemory& memory, const SlotArray& array) {
    const DeviceReplay& replay = memory.device();
    switch (array.kind) {
        case SlotArray::Kind::flags:
            return reinterpret_cast<std::byte*>(replay.flags);
        case SlotArray::Kind::rewards:
            return reinterpret_cast<std::byte*>(replay.rewards);
        case SlotArray::Kind::priorities:
            return reinterpret_cast<std::byte*>(replay.priorities.given);
        case SlotArray::Kind::field:
            return memory.fields()[static_cast<std::size_t>(array.field)].frames;
        case SlotArray::Kind::next_field:
            return memory.fields()[static_cast<std::size_t>(array.field)].next_frames;
    }
    __builtin_unreachable();
}

// What is copied may go once it returns.
template <class T>
void write_to_device(T* to, const T* from, std::size_t n, cudaStream_t stream) {
    copy_to_device(to, from, n, stream);
    wait_for(stream);
}

// What of a file's arrays decides about the leaves of the tree: gathered while they pass by on their way to the device.
class SavedLeaves {
 public:
    SavedLeaves(const WindowRules& rules, int64_t n_words, double alpha, int32_t tree_scale)
        : rules_(rules),
          flags_(static_cast<std::size_t>(rules.ring.capacity())),
          live_words_(static_cast<std::size_t>(n_words)),
          alpha_(alpha),
          has_scale_(is_scale(tree_scale)),
          factor_(has_scale_ ? power_of_two(tree_scale) : 1.0) {}

    void see_flags(int64_t slot, const uint8_t* flags, int64_t n) { std::copy_n(flags, n, &flags_[index(slot)]); }

    // After all flags.
    void find_live(const std::vector<Lane>& lanes) {
        for_each_live_slot(rules_, lanes, flags_.data(), [&](int64_t slot) {
            live_words_[index(slot / slots_per_word)] |= 1u << slot % slots_per_word;
            ++n_live_;
        });
        flags_ = {};
    }

    // After that.
    void see_priorities(int64_t slot, const float* priorities, int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
            if (!(live_words_[index((slot + i) / slots_per_word)] >> (slot + i) % slots_per_word & 1)) continue;
            are_priorities_ &= is_priority(priorities[i]);
            if (!are_priorities_) return;
            mass_ = add_to_batch(mass_, leaf_priority(priorities[i], alpha_), factor_);
            ++bucket_counts_[index(rank_bucket(priorities[i]))];
        }
    }

    // Whether some buffer can have had these priorities at this scale.
    bool can_be() const { return has_scale_ && are_priorities_ && !breaks_limits(mass_, 0); }

    // The same of ranks, once the priorities can be.
    bool can_be(const SavedRanks& ranks) const {
        if (!is_scale(ranks.tree_scale)) return false;
        const double factor = power_of_two(ranks.tree_scale);
        float largest = 0.0f;
        unsigned __int128 sum = 0;
        for (std::size_t bucket = 0; bucket < bucket_counts_.size(); ++bucket) {
            if (bucket_counts_[bucket] == 0) continue;
            largest = std::max(largest, ranks.weights[bucket]);
            sum +=
                static_cast<unsigned __int128>(bucket_counts_[bucket]) * limited_mass_of(ranks.weights[bucket], factor);
        }
        const BatchMass mass =
            batch_mass(largest, factor, static_cast<uint64_t>(sum >> 64), static_cast<uint64_t>(sum));
        return !breaks_limits(mass, 0);
    }

    const std::vector<uint32_t>& live_words() const { return live_words_; }
    int64_t n_live() const { return n_live_; }

 private:
    static std::size_t index(int64_t i) { return static_cast<std::size_t>(i); }

    const WindowRules& rules_;
    std::vector<uint8_t> flags_;
    std::vector<uint32_t> live_words_;
    int64_t n_live_ = 0;
    double alpha_;
    bool has_scale_;
    double factor_;
    bool are_priorities_ = true;
    BatchMass mass_ = {0.0, 0};
    std::vector<uint64_t> bucket_counts_ = std::vector<uint64_t>(n_rank_buckets);  // of live rows
};

}  // namespace

void CudaReplayBackend::save(CheckpointWriter& writer) {
    StreamOrder::Call call(order_, order_.own_stream());
    const std::vector<Lane> lanes = read_lanes(call);
    const HostCopy& copy = read(call);
    const ReplayState& state = copy.replay;
    write_numbers(
        writer,
        {state.beta_step(), static_cast<int64_t>(state.batches), state.counters, bit_cast<float>(state.largest_bits),
         copy.tree.scale, copy.tree.low_water, batches_.figures(state.last, call)},
        lanes);
    SlotCopies copies(call.stream());
    const auto write = [&](const std::byte* bytes, std::size_t size) { writer.bytes(bytes, size); };
    for (const SlotArray& array : slot_arrays(fields_, state.rules)) {
        const std::byte* const data = data_of(memory_, array);
        for_each_used_part(state.rules, lanes, [&](int64_t slot, int64_t n) {
            copies.from_device(data + slot * array.bytes, static_cast<std::size_t>(n * array.bytes), write);
        });
        copies.finish(write);
        writer.seal();
    }
    save_ranks(writer, copy, call);
    call.finish();
}

void CudaReplayBackend::restore(CheckpointReader& reader) {
    StreamOrder::Call call(order_, order_.own_stream());
    const HostCopy& copy = read(call);
    ReplayState state = copy.replay;
    const DeviceReplay& replay = memory_.device();
    std::vector<Lane> lanes(static_cast<std::size_t>(replay.n_envs));
    const SavedNumbers numbers = read_numbers(reader, state.rules, lanes);
    state.beta.step = numbers.beta_step;
    state.batches = static_cast<uint64_t>(numbers.batches);
    state.counters = numbers.counters;
    state.largest_bits = bit_cast<uint32_t>(numbers.largest_priority);
    write_to_device(replay.lanes, lanes.data(), lanes.size(), call.stream());

    SavedLeaves leaves(state.rules, replay.priorities.live.n_nodes[0], state.alpha, numbers.tree_scale);
    SlotCopies copies(call.stream());
    for (const SlotArray& array : slot_arrays(fields_, state.rules)) {
        std::byte* const data = data_of(memory_, array);
        for_each_used_part(state.rules, lanes, [&](int64_t slot, int64_t n) {
            const std::size_t size = static_cast<std::size_t>(n * array.bytes);
            copies.to_device(data + slot * array.bytes, size, static_cast<std::size_t>(array.bytes),
                             [&](std::byte* piece, std::size_t piece_size) {
                                 reader.bytes(piece, piece_size);
                                 const int64_t n_seen = static_cast<int64_t>(piece_size) / array.bytes;
                                 if (array.kind == SlotArray::Kind::flags)
                                     leaves.see_flags(slot, reinterpret_cast<const uint8_t*>(piece), n_seen);
                                 if (array.kind == SlotArray::Kind::priorities)
                                     leaves.see_priorities(slot, reinterpret_cast<const float*>(piece), n_seen);
                                 slot += n_seen;
                             });
        });
        reader.check_seal();
        if (array.kind == SlotArray::Kind::flags) leaves.find_live(lanes);
    }
    if (!leaves.can_be()) reader.refuse("its priorities cannot be");
    state.n_live = leaves.n_live();
    write_to_device(replay.state, &state, 1, call.stream());
    write_to_device(replay.priorities.live.words, leaves.live_words().data(), leaves.live_words().size(),
                    call.stream());
    copies.wait();
    queue_restored_priorities(replay, numbers.tree_scale, numbers.tree_rescales_below, call.stream());
    batches_.restore(numbers.figures);
    SavedRanks ranks;
    if (read_ranks(reader, ranks)) {
        if (!leaves.can_be(ranks)) reader.refuse("its ranks cannot be");
        restore_ranks(ranks, call);
    }
    call.finish();
    wait_for(call.stream());
}

void CudaReplayBackend::save_ranks(CheckpointWriter& writer, const HostCopy& copy, const StreamOrder::Call& call) {
    const DeviceRanks& ranks = memory_.device().priorities.ranks;
    if (ranks.state == nullptr) return write_ranks(writer, nullptr);
    SavedRanks saved = {copy.ranks.n_changes, copy.rank_tree.scale, copy.rank_tree.low_water, {}};
    copy_to_host(saved.weights, ranks.weights, n_rank_buckets, call.stream());
    wait_for(call.stream());
    write_ranks(writer, &saved);
}

// After all else.
void CudaReplayBackend::restore_ranks(const SavedRanks& saved, const StreamOrder::Call& call) {
    memory_.add_ranks(call);
    const DeviceReplay& replay = memory_.device();
    queue_ranks(replay, call.stream());
    write_to_device(replay.priorities.ranks.weights, saved.weights, n_rank_buckets, call.stream());
    queue_restored_ranks(replay, saved.n_changes, saved.tree_scale, saved.tree_rescales_below, call.stream());
}

}  // namespace per::cuda
