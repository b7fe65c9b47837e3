// Walks over all live transitions, and advantages, of the replay buffer in host memory.
#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstring>

#include "cpu/replay/replay_backend.h"
#include "rows/error.h"
#include "rules/advantage.h"

namespace per::cpu {

std::vector<int64_t> CpuReplayBackend::live_ids(void*) {
    std::vector<int64_t> ids;
    ids.reserve(static_cast<size_t>(live()));
    const Ring& ring = state_.ring();
    for (int64_t env = 0; env < ring.n_envs; ++env) {
        const Lane& lane = state_.lane(env);
        for (int64_t row = lane.tail; row < complete_end(lane, state_.rules); ++row)
            if (state_.priorities.live().contains(ring.slot(env, row))) ids.push_back(ring.id(env, row));
    }
    return ids;
}

uint64_t CpuReplayBackend::reserve_batches(int64_t count, void*) {
    const int64_t first = batches_;
    batches_ += count;
    return static_cast<uint64_t>(first);
}

void CpuReplayBackend::get_as_drawn(int64_t count, const int64_t* ids, float probability, const per_batch& batch,
                                    void*) {
    slots_.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
        const Row row = row_of(i, ids[i]);
        if (!row.is_there || !state_.priorities.live().contains(row.slot))
            throw Error(PER_ERROR_INVALID_ARGUMENT, "id %" PRId64 " of the walk is not live any more", ids[i]);
        slots_[static_cast<size_t>(i)] = row.slot;
    }
    prepare_live(state_.rules.n_step, batch);
    write_live(state_.rules.n_step, slots_, batch);
    if (batch.weights != nullptr) std::fill_n(batch.weights, count, 1.0f);
    if (batch.probabilities != nullptr) std::fill_n(batch.probabilities, count, probability);
}

// Calls visit(env, row) for what needs a bootstrap value: environment by environment, in order of time.
template <class Visit>
void CpuReplayBackend::for_each_bootstrap(Visit visit) const {
    for (int64_t env = 0; env < state_.ring().n_envs; ++env) {
        const Lane& lane = state_.lane(env);
        const RowRange rows = advantage_rows(lane, state_.rules);
        for (int64_t row = rows.first; row < rows.end; ++row)
            if (needs_bootstrap(lane, row, state_.flags(env, row))) visit(env, row);
    }
}

int64_t CpuReplayBackend::bootstraps(int64_t capacity, const per_batch& batch, void*) {
    int64_t count = 0;
    slots_.clear();
    for_each_bootstrap([&](int64_t env, int64_t row) {
        if (count++ < capacity) slots_.push_back(state_.ring().slot(env, row));
    });
    gather_.prepare(batch, false);
    write_rows(1, slots_, batch);
    for (size_t i = 0; batch.priorities != nullptr && i < slots_.size(); ++i)
        batch.priorities[i] = state_.priorities.priority(slots_[i]);
    return count;
}

void CpuReplayBackend::check_bootstraps(const ReplayAdvantages& advantages) const {
    int64_t i = 0;
    for_each_bootstrap([&](int64_t env, int64_t row) {
        const int64_t id = state_.ring().id(env, row);
        if (i < advantages.count && advantages.ids[i] != id)
            throw Error(PER_ERROR_INVALID_ARGUMENT,
                        "ids[%" PRId64 "] is %" PRId64 ": the bootstrap value of %" PRId64 " is due there", i,
                        advantages.ids[i], id);
        ++i;
    });
    if (advantages.count != i)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "count is %" PRId64 ": %" PRId64 " transitions need a bootstrap value",
                    advantages.count, i);
    for (i = 0; i < advantages.count; ++i)
        if (!std::isfinite(advantages.bootstrap_values[i]))
            throw Error(PER_ERROR_INVALID_ARGUMENT, "bootstrap_values[%" PRId64 "] is %g: must be finite", i,
                        static_cast<double>(advantages.bootstrap_values[i]));
}

void CpuReplayBackend::advantages(const ReplayAdvantages& advantages, void*) {
    check_bootstraps(advantages);
    const Ring& ring = state_.ring();
    const auto numbers = [&](int64_t field) { return reinterpret_cast<float*>(state_.rows.field(field)); };
    const float* const values = numbers(advantages.value_field);
    float* const advantages_out = numbers(advantages.advantage_field);
    float* const returns_out = advantages.return_field >= 0 ? numbers(advantages.return_field) : nullptr;
    int64_t n_left = advantages.count;
    for (int64_t env = ring.n_envs - 1; env >= 0; --env) {
        const auto value_of = [&](int64_t row) { return static_cast<double>(values[ring.slot(env, row)]); };
        lane_advantages(
            state_.lane(env), state_.rules, gamma_, advantages.lambda,
            [&](int64_t row) { return state_.flags(env, row); },
            [&](int64_t row) { return static_cast<double>(state_.rows.rewards()[ring.slot(env, row)]); }, value_of,
            [&] { return static_cast<double>(advantages.bootstrap_values[--n_left]); },
            [&](int64_t row, double advantage) {
                const int64_t slot = ring.slot(env, row);
                advantages_out[slot] = static_cast<float>(advantage);
                if (returns_out != nullptr) returns_out[slot] = static_cast<float>(advantage + value_of(row));
            });
    }
}

}  // namespace per::cpu
