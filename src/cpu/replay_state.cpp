#include "cpu/replay_state.h"

#include "replay_options.h"

namespace per::cpu {

ReplayState::ReplayState(const per_replay_options& options, const Fields& declared)
    : fields(declared),
      rules(window_rules(options, declared)),
      rows(declared, options.capacity, options.store_next_observation != 0),
      priorities(options),
      lanes(static_cast<size_t>(options.n_envs)) {}

void ReplayState::make_live(int64_t env, RowRange range, float otherwise) {
    for_each_part(ring(), env, range, [&](int64_t slot, int64_t, int64_t n) {
        if (rules.sequence.stride == 1) return priorities.make_live(slot, n, otherwise);
        for (int64_t i = slot; i < slot + n; ++i)
            if (rows.flags()[i] & row_starts_sequence) priorities.make_live(i, 1, otherwise);
    });
}

void ReplayState::make_dead(int64_t env, RowRange range) {
    for_each_part(ring(), env, range, [&](int64_t slot, int64_t, int64_t n) { priorities.make_dead(slot, n); });
}

void ReplayState::apply(int64_t env, const Cut& cut, float largest) {
    rows.flags()[ring().slot(env, cut.row)] |= cut.flags;
    make_live(env, cut.completed, largest);
    ++counters.cuts;
    ++counters.episodes;
}

void ReplayState::advance_tail(int64_t env) {
    Lane& lane = this->lane(env);
    const auto flags_of = [&](int64_t row) { return flags(env, row); };
    const int64_t tail = first_with_stack(oldest_row(lane, rules), lane, rules.stack, flags_of);
    if (tail == lane.tail) return;
    make_dead(env, {lane.tail, tail});
    lane.tail = tail;
}

}  // namespace per::cpu
