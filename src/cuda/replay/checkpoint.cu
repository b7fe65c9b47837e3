// A replay buffer in the memory of a device is saved to a checkpoint and restored from one.
#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/replay/priorities.h"
#include "cuda/replay/replay_backend.h"
#include "cuda/runtime/device.h"
#include "cuda/runtime/staging.h"
#include "file/checkpoint_file.h"
#include "file/checkpoint_state.h"

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
        case SlotArray::Kind::versions:
            return reinterpret_cast<std::byte*>(replay.versions);
        case SlotArray::Kind::times_sampled:
            return reinterpret_cast<std::byte*>(replay.times_sampled);
        case SlotArray::Kind::field:
            return memory.fields()[static_cast<std::size_t>(array.field)].frames;
        case SlotArray::Kind::next_field:
            return memory.fields()[static_cast<std::size_t>(array.field)].next_frames;
    }
    __builtin_unreachable();
}

// The source may be freed once it returns.
template <class T>
void write_to_device(T* to, const T* from, std::size_t n, cudaStream_t stream) {
    copy_to_device(to, from, n, stream);
    wait_for(stream);
}

// Sets the bits of live slots. The words of slots that are not in use stay 0.
void copy_live_words(const WindowRules& rules, const std::vector<Lane>& lanes, const std::vector<SlotRange>& live_slots,
                     uint32_t* to, cudaStream_t stream) {
    constexpr int64_t max_gap = 1024;  // up to here copying zeros costs less than another copy
    std::vector<uint32_t> words;
    int64_t first_word = 0;
    const auto copy = [&] {
        if (!words.empty()) write_to_device(to + first_word, words.data(), words.size(), stream);
        words.clear();
    };
    auto live = live_slots.begin();
    for (std::size_t env = 0; env < lanes.size(); ++env) {
        const int64_t slot = rules.ring.slot(static_cast<int64_t>(env), 0);
        const int64_t n = std::min(used_end(lanes[env], rules), rules.ring.rows);
        if (n == 0) continue;
        const int64_t begin = slot / slots_per_word;
        if (words.empty() || begin > first_word + static_cast<int64_t>(words.size()) + max_gap) {
            copy();
            first_word = begin;
        }
        words.resize(static_cast<std::size_t>((slot + n - 1) / slots_per_word + 1 - first_word));
        for (; live != live_slots.end() && live->first < slot + n; ++live)
            for (int64_t i = live->first; i < live->end; ++i)
                words[static_cast<std::size_t>(i / slots_per_word - first_word)] |= 1u << i % slots_per_word;
    }
    copy();
}

// Calls write(bytes, size) with the elements of an array that belong to saved rows.
template <class Write>
void read_array(const ReplayMemory& memory, const SlotArray& array, const WindowRules& rules,
                const std::vector<Lane>& lanes, SlotCopies& copies, const Write& write) {
    const std::byte* const data = data_of(memory, array);
    for_each_saved_part(rules, lanes, [&](int64_t slot, int64_t n) {
        copies.from_device(data + slot * array.bytes, static_cast<std::size_t>(n * array.bytes), write);
    });
    copies.finish(write);
}

// The whole state, copied to host memory at once: later, a graph might change the device without asking the host.
class Snapshot final : public ReplaySnapshot {
 public:
    Snapshot(CheckpointMoment moment, const WindowRules& rules, std::vector<SlotArray> arrays)
        : moment_(std::move(moment)),
          rules_(rules),
          arrays_(std::move(arrays)),
          n_bytes_(bytes_of_arrays(arrays_, rules, moment_.lanes)) {}

    // Reads the arrays, one after the other.
    void read(const ReplayMemory& memory, cudaStream_t stream) {
        bytes_.reserve(static_cast<std::size_t>(n_bytes_));
        SlotCopies copies(stream);
        for (const SlotArray& array : arrays_) {
            read_array(memory, array, rules_, moment_.lanes, copies, [&](const std::byte* bytes, std::size_t size) {
                bytes_.insert(bytes_.end(), bytes, bytes + size);
            });
            ends_.push_back(bytes_.size());
        }
    }

    int64_t n_bytes() const override { return n_bytes_; }

    void write(CheckpointWriter& writer, HandleLock&, std::atomic<int64_t>* n_written_out) override {
        constexpr std::size_t max_piece = std::size_t{1} << 20;
        std::size_t done = 0;
        write_state(writer, moment_, rules_, arrays_, [&](std::size_t i) {
            for (std::size_t n; done < ends_[i]; done += n) {
                n = std::min(ends_[i] - done, max_piece);
                writer.bytes(bytes_.data() + done, n);
                *n_written_out += static_cast<int64_t>(n);
            }
        });
    }

 private:
    const CheckpointMoment moment_;
    const WindowRules rules_;
    const std::vector<SlotArray> arrays_;
    const int64_t n_bytes_;
    std::vector<std::byte> bytes_;
    std::vector<std::size_t> ends_;  // by array: where its bytes end
};

}  // namespace

std::vector<SlotArray> CudaReplayBackend::slot_arrays(const WindowRules& rules) const {
    const DeviceReplay& replay = memory_.device();
    return per::slot_arrays(fields_, rules, replay.times_sampled != nullptr, replay.versions != nullptr);
}

CheckpointMoment CudaReplayBackend::moment(const HostCopy& copy, const StreamOrder::Call& call) {
    const ReplayState& state = copy.replay;
    return {{state.beta_step(), static_cast<int64_t>(state.batches), state.counters,
             bit_cast<float>(state.largest_bits), copy.tree.scale, copy.tree.low_water,
             batches_.last_batch(state.last, call).figures(), version_, state.freshness.reference},
            read_array(memory_.device().lanes, memory_.device().n_envs, call.stream()),
            known_ranks(copy, call)};
}

void CudaReplayBackend::save(CheckpointWriter& writer) {
    StreamOrder::Call call(order_, order_.own_stream());
    const HostCopy& copy = read(call);
    const CheckpointMoment now = moment(copy, call);
    SlotCopies copies(call.stream());
    const std::vector<SlotArray> arrays = slot_arrays(copy.replay.rules);
    write_state(writer, now, copy.replay.rules, arrays, [&](std::size_t i) {
        read_array(memory_, arrays[i], copy.replay.rules, now.lanes, copies,
                   [&](const std::byte* bytes, std::size_t size) { writer.bytes(bytes, size); });
    });
    call.finish();
}

std::unique_ptr<ReplaySnapshot> CudaReplayBackend::snapshot() {
    StreamOrder::Call call(order_, order_.own_stream());
    const HostCopy& copy = read(call);
    const WindowRules& rules = copy.replay.rules;
    auto snapshot = std::make_unique<Snapshot>(moment(copy, call), rules, slot_arrays(rules));
    snapshot->read(memory_, call.stream());
    call.finish();
    return snapshot;
}

void CudaReplayBackend::restore(CheckpointReader& reader) {
    StreamOrder::Call call(order_, order_.own_stream());
    const HostCopy& copy = read(call);
    ReplayState state = copy.replay;
    const DeviceReplay& replay = memory_.device();
    CheckpointState saved(reader, {state.rules, state.alpha, replay.max_times_sampled, state.freshness,
                                   replay.versions != nullptr, replay.max_age});
    const CheckpointNumbers& numbers = saved.numbers();
    const std::vector<Lane>& lanes = saved.lanes();
    state.beta.step = numbers.beta_step;
    state.batches = static_cast<uint64_t>(numbers.batches);
    state.counters = numbers.counters;
    state.largest_bits = bit_cast<uint32_t>(numbers.largest_priority);
    state.version = version_ = numbers.version;
    state.freshness.reference = numbers.reference;
    write_to_device(replay.lanes, lanes.data(), lanes.size(), call.stream());

    SlotCopies copies(call.stream());
    for (const SlotArray& array : slot_arrays(state.rules)) {
        std::byte* const data = data_of(memory_, array);
        saved.begin(array);
        saved.for_each_part([&](int64_t slot, int64_t n) {
            const std::size_t size = static_cast<std::size_t>(n * array.bytes);
            copies.to_device(data + slot * array.bytes, size, static_cast<std::size_t>(array.bytes),
                             [&](std::byte* piece, std::size_t piece_size) { saved.read(array, piece, piece_size); });
        });
        saved.end(array);
    }
    const std::optional<CheckpointRanks> ranks = saved.read_ranks(has_ranks(replay.priorities));

    state.n_live = saved.n_live();
    write_to_device(replay.state, &state, 1, call.stream());
    copy_live_words(state.rules, lanes, saved.live_slots(), replay.priorities.live.words, call.stream());
    copies.wait();
    queue_restored_priorities(replay, numbers.tree_scale, numbers.tree_rescales_below, call.stream());
    batches_.restore(LastBatch(numbers.figures));
    if (ranks) restore_ranks(*ranks, call);
    call.finish();
    wait_for(call.stream());
}

std::optional<CheckpointRanks> CudaReplayBackend::known_ranks(const HostCopy& copy, const StreamOrder::Call& call) {
    const DeviceRanks& ranks = memory_.device().priorities.ranks;
    if (ranks.state == nullptr) return {};
    if (ranks_are_due(copy.ranks.n_changes, copy.ranks.n_live)) return due_ranks(always_has_ranks_);
    CheckpointRanks known = {copy.ranks.n_changes, copy.rank_tree.scale, copy.rank_tree.low_water, {}};
    copy_to_host(known.weights, ranks.weights, n_rank_buckets, call.stream());
    wait_for(call.stream());
    return known;
}

// Call it last, after all else was restored.
void CudaReplayBackend::restore_ranks(const CheckpointRanks& saved, const StreamOrder::Call& call) {
    memory_.add_ranks(call);
    const DeviceReplay& replay = memory_.device();
    queue_ranks(replay, call.stream());
    write_to_device(replay.priorities.ranks.weights, saved.weights, n_rank_buckets, call.stream());
    queue_restored_ranks(replay, saved.n_changes, saved.tree_scale, saved.tree_rescales_below, call.stream());
}

}  // namespace per::cuda
