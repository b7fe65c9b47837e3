#include "cpu/replay/on_policy.h"

#include <cinttypes>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "rules/advantage.h"

namespace per::cpu {
namespace {

// Access to frames of one float32, which need not be aligned.
float read_number(const std::byte* frame) {
    float number;
    std::memcpy(&number, frame, sizeof number);
    return number;
}
void write_number(std::byte* frame, float number) {
    std::memcpy(frame, &number, sizeof number);
}

// Calls visit(env, row) for each transition that needs a bootstrap value: environment by environment, in order of time.
template <class Visit>
void for_each_bootstrap(const ReplayState& state, const Visit& visit) {
    for (int64_t env = 0; env < state.ring().n_envs; ++env) {
        const Lane& lane = state.lane(env);
        const RowRange rows = advantage_rows(lane, state.rules);
        for (int64_t row = rows.first; row < rows.end; ++row)
            if (needs_bootstrap(lane, row, state.flags(env, row))) visit(env, row);
    }
}

void check_bootstraps(const ReplayState& state, const ReplayAdvantages& advantages) {
    int64_t i = 0;
    for_each_bootstrap(state, [&](int64_t env, int64_t row) {
        const int64_t id = state.ring().id(env, row);
        if (i < advantages.count && advantages.ids[i] != id)
            throw Error(PER_ERROR_INVALID_ARGUMENT,
                        "ids[%" PRId64 "] is %" PRId64 ": must be %" PRId64 ", whose bootstrap value comes here", i,
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

}  // namespace

std::vector<int64_t> live_ids(const ReplayState& state) {
    std::vector<int64_t> ids;
    ids.reserve(static_cast<size_t>(state.priorities.live().count()));
    const Ring& ring = state.ring();
    for (int64_t env = 0; env < ring.n_envs; ++env) {
        const Lane& lane = state.lane(env);
        for (int64_t row = lane.tail; row < complete_end(lane, state.rules); ++row)
            if (state.priorities.live().contains(ring.slot(env, row))) ids.push_back(ring.id(env, row));
    }
    return ids;
}

int64_t find_bootstraps(const ReplayState& state, int64_t capacity, std::vector<int64_t>& slots_out) {
    int64_t count = 0;
    slots_out.clear();
    for_each_bootstrap(state, [&](int64_t env, int64_t row) {
        if (count++ < capacity) slots_out.push_back(state.ring().slot(env, row));
    });
    return count;
}

void write_advantages(ReplayState& state, const ReplayAdvantages& advantages) {
    check_bootstraps(state, advantages);
    const Ring& ring = state.ring();
    for (int64_t env = 0; env < ring.n_envs && state.rows.are_stored(); ++env)
        state.reserve(env, advantage_rows(state.lane(env), state.rules));
    const Column<const std::byte> values = state.rows.field(advantages.value_field);
    const RowColumn<std::byte>& advantages_out = state.rows.field(advantages.advantage_field);
    const bool has_returns = advantages.return_field >= 0;
    const RowColumn<std::byte>& returns_out = has_returns ? state.rows.field(advantages.return_field) : advantages_out;
    int64_t n_left = advantages.count;
    for (int64_t env = ring.n_envs - 1; env >= 0; --env) {
        const auto value_of = [&](int64_t row) {
            return static_cast<double>(read_number(values.at(ring.slot(env, row))));
        };
        lane_advantages(
            state.lane(env), state.rules, state.gamma, advantages.lambda,
            [&](int64_t row) { return state.flags(env, row); },
            [&](int64_t row) { return static_cast<double>(state.rows.rewards()[ring.slot(env, row)]); }, value_of,
            [&] { return static_cast<double>(advantages.bootstrap_values[--n_left]); },
            [&](int64_t row, double advantage) {
                const int64_t slot = ring.slot(env, row);
                write_number(&advantages_out.to_write(slot), static_cast<float>(advantage));
                if (has_returns)
                    write_number(&returns_out.to_write(slot), static_cast<float>(advantage + value_of(row)));
            });
    }
}

}  // namespace per::cpu
