#include "cuda/add/step_queue.h"

#include <algorithm>
#include <cstring>

#include "backend/replay_options.h"
#include "base/error.h"
#include "cuda/replay/priorities.h"
#include "cuda/runtime/device.h"
#include "cuda/tree/layout.h"

namespace per::cuda {
namespace {

// The most steps of a piece. waiting_since() must be able to tell them apart.
constexpr int64_t max_steps = 1 << 17;

// The most entries of a piece: at least 2^14, enough to keep a device busy. A large buffer has larger pieces, up to a
// scratch memory of one byte for each row of the buffer.
int64_t max_entries_of_piece(const per_replay_options& options) {
    constexpr int64_t least = 1 << 14;
    constexpr int64_t bytes = sizeof(int64_t) + sizeof(LaneProgress) + 2 * sizeof(uint32_t);
    return std::max(options.n_envs, std::clamp(options.capacity / bytes, least, max_steps));
}

StepScratch lay_out(int64_t max_entries, int64_t n_envs, int64_t n_fields, Layout& layout) {
    StepScratch scratch;
    scratch.entries = layout.array<int64_t>(max_entries);
    scratch.progress = layout.array<LaneProgress>(max_entries);
    // Each step has at least one entry.
    scratch.largest_of_step = layout.array<uint32_t>(std::min(max_entries, max_steps));
    scratch.largest_before = layout.array<uint32_t>(std::min(max_entries, max_steps));
    scratch.facts = layout.array<StepFacts>(1);
    scratch.further_fields = layout.array<GivenField>(std::max<int64_t>(n_fields - max_fields_by_value, 0));
    scratch.env_ids = layout.array<int64_t>(n_envs);
    return scratch;
}

// The most steps of a piece in which no row is taken and overwritten. Then at most one row of each slot becomes live in
// the piece. A step takes up to two rows.
int64_t max_steps_of_ring(const WindowRules& rules) {
    const int64_t kept = 2 * least_rows(rules);
    return std::clamp<int64_t>((most_live_rows(rules) - kept) / 2, 1, max_steps);
}

}  // namespace

void send_ids(int64_t count, const int64_t* ids, int64_t* to, Staging& staging, const StreamOrder::Call& call) {
    if (call.is_captured() || count <= max_ids_by_value) return queue_ids(count, ids, to, call.stream());
    const int64_t most = static_cast<int64_t>(staging.buffer_bytes() / sizeof(int64_t));
    for (int64_t first = 0; first < count; first += most) {
        const std::size_t n_bytes = static_cast<std::size_t>(std::min(most, count - first)) * sizeof(int64_t);
        std::memcpy(staging.host(), ids + first, n_bytes);
        staging.send(reinterpret_cast<std::byte*>(to + first), n_bytes, call.stream());
    }
}

StepQueue::StepQueue(const ReplayMemory& memory, const Fields& fields, const per_replay_options& options,
                     cudaStream_t stream)
    : replay_(memory),
      max_entries_(max_entries_of_piece(options)),
      rules_(window_rules(options, fields)),
      window_rows_(options.n_step + options.burn_in + options.sequence_length),
      arrays_(fields, memory, options.n_envs, max_entries_),
      memory_(bytes_of_layout([&](Layout& l) { lay_out(max_entries_, options.n_envs, fields.count(), l); })) {
    Layout layout(memory_.data());
    scratch_ = lay_out(max_entries_, options.n_envs, fields.count(), layout);
    cuda::check(cudaMemsetAsync(memory_.data(), 0, layout.n_bytes(), stream), "clearing memory");
    load_add_kernels();
}

// -------------------------------------------------------------------------------------------------------------- add

// A piece has as many whole steps as fit, or a part of one.
StepPiece StepQueue::piece_from(int64_t first_entry, const ReplaySteps& steps) const {
    const int64_t most = std::min(max_entries_, arrays_.max_staged());
    const int64_t k = first_entry / steps.n_envs;
    const int64_t j = first_entry % steps.n_envs;
    if (most < steps.n_envs) return {first_entry, 1, std::min(most, steps.n_envs - j)};
    // With PER_MAX_NOW the largest live priority falls when its row is overwritten. It must be found again after each
    // step, so a piece has only one step.
    const bool takes_steps_apart = replay_.device().max_priority == PER_MAX_NOW;
    const int64_t longest = takes_steps_apart ? 1 : max_steps_of_ring(rules_);
    const int64_t length = std::min({most / steps.n_envs, steps.length - k, longest});
    return {first_entry, length, steps.n_envs};
}

// Makes all checks that are possible before anything is queued.
void StepQueue::check(const ReplaySteps& steps, const int64_t* ids_out, const StreamOrder::Call& call) {
    require_reachable("ids_out", ids_out);
    arrays_.read(steps);
    if (call.is_captured() && !arrays_.host_array().empty())
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "%.*s is in host memory: a call that is captured in a graph takes arrays of the device only",
                    static_cast<int>(arrays_.host_array().size()), arrays_.host_array().data());
    if (!arrays_.casts_on_host()) return;
    const int64_t n_entries = steps.length * steps.n_envs;
    StepPiece piece = piece_from(0, steps);
    if (piece.length * piece.n_lanes == n_entries) return;  // it is checked as it is staged
    for (int64_t first = 0; first < n_entries; first += piece.length * piece.n_lanes) {
        piece = piece_from(first, steps);
        arrays_.check_values(piece);
    }
}

LaneList StepQueue::send_env_ids(int64_t count, const int64_t* env_ids, const StreamOrder::Call& call) {
    if (env_ids == nullptr) return {count, nullptr};
    send_ids(count, env_ids, scratch_.env_ids, arrays_.staging(), call);
    return {count, scratch_.env_ids};
}

void StepQueue::queue_piece(const StepPiece& piece, const ReplaySteps& steps, const LaneList& lanes, int64_t* ids_out,
                            const StreamOrder::Call& call) {
    const DeviceReplay& replay = replay_.device();
    const int64_t first_lane = piece.first_entry % steps.n_envs;
    GivenSteps given = arrays_.stage(piece, call.stream());
    given.rules = rules_;
    given.env_ids = lanes.env_ids != nullptr ? lanes.env_ids + first_lane : nullptr;
    given.first_env = first_lane;
    given.further_fields = scratch_.further_fields;
    const auto& further = arrays_.further_fields();
    queue_fields(static_cast<int64_t>(further.size()), further.data(), scratch_.further_fields, call.stream());

    const int64_t n_entries = steps.length * steps.n_envs;
    if (piece.length * piece.n_lanes == n_entries && can_add_at_once(replay, given))
        return queue_add_at_once(replay, given, scratch_, ids_out, call.stream());
    const bool ends_step = first_lane + piece.n_lanes == steps.n_envs;
    is_settled_ = false;
    queue_add(replay, given, scratch_, ids_out != nullptr ? ids_out + piece.first_entry : nullptr, ends_step,
              call.stream());
    if (!ends_step) return;
    if (piece.length == 1) return settle(1, call);
    queue_change_of_steps(replay, given, scratch_, call.stream());
    is_settled_ = true;
}

void StepQueue::add(const ReplaySteps& steps, int64_t* ids_out, const StreamOrder::Call& call) {
    check(steps, ids_out, call);
    const int64_t n_entries = steps.length * steps.n_envs;
    // queue_piece() may still refuse the first piece, see check(). Nothing that is queued before it changes the buffer,
    // except that settle() completes an earlier call.
    StepPiece piece = piece_from(0, steps);
    const LaneList lanes = send_env_ids(steps.n_envs, steps.env_ids, call);
    if (!is_settled_) settle(window_rows_, call);
    for (int64_t first = 0; first < n_entries; first += piece.length * piece.n_lanes) {
        piece = piece_from(first, steps);
        queue_piece(piece, steps, lanes, ids_out, call);
    }
}

void StepQueue::settle(int64_t rows_per_lane, const StreamOrder::Call& call) {
    queue_change_of_lanes(replay_.device(), rows_per_lane, call.stream());
    is_settled_ = true;
}

// ------------------------------------------------------------------------------------------------ cut and set_n_step

void StepQueue::cut(int64_t count, const int64_t* env_ids, const StreamOrder::Call& call) {
    if (count == 0) return;
    const LaneList lanes = send_env_ids(count, env_ids, call);
    is_settled_ = false;
    queue_cut(replay_.device(), lanes, call.stream());
    settle(window_rows_, call);
}

void StepQueue::set_n_step(int64_t n_step, const StreamOrder::Call& call) {
    const DeviceReplay& replay = replay_.device();
    is_settled_ = false;
    queue_n_step(replay, n_step, call.stream());
    rules_.n_step = n_step;
    settle(window_rows_, call);
}

void StepQueue::set_version(int64_t version, const StreamOrder::Call& call) {
    const DeviceReplay& replay = replay_.device();
    if (replay.max_age >= 0) is_settled_ = false;
    queue_version(replay, version, call.stream());
    if (replay.max_age >= 0) settle(window_rows_, call);
}

}  // namespace per::cuda
