#include "backend/replay_options.h"

#include <cmath>

namespace per {
namespace {

// A struct whose members are 0 and NULL, but for those that set() sets.
template <class Struct, class Set>
constexpr Struct with(const Set& set) {
    Struct made = {};
    made.struct_size = sizeof made;
    set(made);
    return made;
}

constexpr auto nothing = [](auto&) {};

}  // namespace

constinit const per_replay_options default_replay_options = with<per_replay_options>([](auto& options) {
    options.overwrite = 1;
    options.n_envs = 1;
    options.n_step = 1;
    options.gamma = 0.99;
    options.frame_stack = 1;
    options.scheme = PER_STRATIFIED;
    options.gather_threads = 1;
    options.alpha = 0.6;
    options.epsilon = 1e-6;
    options.beta = 0.4;
    options.beta_final = 1.0;
    options.sequence_eta = 0.9;
    options.prioritization = PER_PROPORTIONAL;
    options.normalize_weights = PER_BATCH_MAX;
    options.max_priority = PER_MAX_EVER;
    options.critics = PER_CRITICS_MEAN;
    options.freshness.max_age = -1;
    options.autoreset = PER_AUTORESET_DISABLED;
    options.on_gap = PER_GAP_CUT;
    options.on_nan = PER_NAN_ALLOW;
    options.on_invalid = PER_INVALID_ERROR;
    options.device = PER_CPU;
});

constinit const per_save_options default_save_options = with<per_save_options>([](auto& options) {
    options.timeout_ms = PER_DIRECTORY_TIMEOUT_MS;
    options.compression = -1;
});

constinit const per_load_options default_load_options = with<per_load_options>([](auto& options) {
    options.device = PER_CPU;
    options.timeout_ms = PER_DIRECTORY_TIMEOUT_MS;
});

constinit const per_replay_settings default_settings = with<per_replay_settings>([](auto& settings) {
    settings.alpha = settings.beta = settings.gamma = NAN;
    settings.save_compression = -1;
    settings.version = -1;
});

constinit const per_steps default_steps = with<per_steps>([](auto& steps) { steps.length = 1; });

constinit const per_sample_options default_sample_options = with<per_sample_options>([](auto& options) {
    options.beta = options.uniform_fraction = NAN;
    options.scheme = options.prioritization = options.normalize_weights = -1;
});

constinit const per_hindsight_options default_hindsight_options = with<per_hindsight_options>([](auto& options) {
    options.achieved_field = options.goal_field = -1;
    options.strategy = PER_GOAL_FUTURE;
    options.fraction = 0.8;
});

constinit const per_batch default_batch = with<per_batch>(nothing);

constinit const per_priorities default_priorities =
    with<per_priorities>([](auto& priorities) { priorities.n_critics = 1; });

constinit const per_loader_options default_loader_options = with<per_loader_options>([](auto& options) {
    options.slots = 3;
    options.device = PER_CPU;
});

constinit const per_replay_statistics default_statistics = with<per_replay_statistics>(nothing);
constinit const per_channel_options default_channel_options = with<per_channel_options>(nothing);
constinit const per_channel_statistics default_channel_statistics = with<per_channel_statistics>(nothing);

constinit const per_shared_loader_options default_shared_loader_options =
    with<per_shared_loader_options>([](auto& options) { options.slots = 2; });

constinit const per_shared_loader_statistics default_shared_loader_statistics =
    with<per_shared_loader_statistics>(nothing);

constinit const per_shard_summary default_summary =
    with<per_shard_summary>([](auto& summary) { summary.measured_scale = PER_SCALE_AUTOMATIC; });

constinit const per_coordinator_state default_coordinator_state = with<per_coordinator_state>(nothing);

bool has_max_age(const per_replay_options& options, int32_t age) {
    return options.freshness.age == age && options.freshness.max_age >= 0;
}

Freshness freshness_of(const per_replay_options& options) {
    Freshness freshness;
    if (options.freshness.half_life == 0.0) return freshness;
    freshness.half_lives_per_birth = 1.0 / options.freshness.half_life;
    freshness.reference = first_reference;
    return freshness;
}

bool can_compress(int32_t device, const per_memory& memory) {
    return device == PER_CPU && memory.allocate == nullptr && memory.storage == nullptr;
}

WindowRules window_rules(const per_replay_options& options, const Fields& fields) {
    WindowRules rules = {};
    rules.ring = {options.capacity / options.n_envs, options.n_envs};
    rules.n_step = options.n_step;
    rules.stack = fields.max_stack();
    rules.store_next_observation = options.store_next_observation != 0;
    rules.drops_reset_step = options.autoreset == PER_AUTORESET_NEXT_STEP;
    rules.max_age = has_max_age(options, PER_AGE_STEPS) ? options.freshness.max_age : no_max_age;
    if (options.sequence_length > 0)
        rules.sequence = {options.burn_in + options.sequence_length, options.burn_in, options.sequence_stride};
    return rules;
}

}  // namespace per
