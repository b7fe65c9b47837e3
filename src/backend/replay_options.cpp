#include "backend/replay_options.h"

#include <cmath>

namespace per {
namespace {

template <class Struct>
constexpr Struct empty() {
    Struct made = {};
    made.struct_size = sizeof made;
    return made;
}

}  // namespace

const per_replay_options default_replay_options = {
    .struct_size = sizeof(per_replay_options),
    .capacity = 0,
    .fields = nullptr,
    .n_fields = 0,
    .field_size = 0,
    .overwrite = 1,
    .n_envs = 1,
    .n_step = 1,
    .gamma = 0.99,
    .frame_stack = 1,
    .sequence_length = 0,
    .burn_in = 0,
    .sequence_stride = 0,
    .seed = 0,
    .scheme = PER_STRATIFIED,
    .gather_threads = 1,
    .alpha = 0.6,
    .epsilon = 1e-6,
    .beta = 0.4,
    .beta_final = 1.0,
    .beta_steps = 0,
    .uniform_fraction = 0.0,
    .sequence_eta = 0.9,
    .prioritization = PER_PROPORTIONAL,
    .normalize_weights = PER_BATCH_MAX,
    .max_priority = PER_MAX_EVER,
    .critics = PER_CRITICS_MEAN,
    .autoreset = PER_AUTORESET_DISABLED,
    .on_gap = PER_GAP_CUT,
    .on_nan = PER_NAN_ALLOW,
    .on_invalid = PER_INVALID_ERROR,
    .device = PER_CPU,
    .device_index = 0,
    .store_next_observation = 0,
    .save_compression = 0,
    .memory = {},
    .rate_limit = {},
    .keep_times_sampled = 0,
    .max_times_sampled = 0,
};

const per_save_options default_save_options = {
    .struct_size = sizeof(per_save_options),
    .timeout_ms = PER_DIRECTORY_TIMEOUT_MS,
    .compression = -1,
    .reserved = 0,
    .write = nullptr,
    .context = nullptr,
};

const per_load_options default_load_options = {
    .struct_size = sizeof(per_load_options),
    .device = PER_CPU,
    .device_index = 0,
    .memory = {},
    .timeout_ms = PER_DIRECTORY_TIMEOUT_MS,
    .read = nullptr,
    .context = nullptr,
};

const per_replay_settings default_settings = {
    .struct_size = sizeof(per_replay_settings),
    .alpha = NAN,
    .beta = NAN,
    .gamma = NAN,
    .n_step = 0,
    .save_compression = -1,
    .reserved = 0,
};

const per_steps default_steps = [] {
    per_steps steps = empty<per_steps>();
    steps.length = 1;
    return steps;
}();

const per_sample_options default_sample_options = {
    .struct_size = sizeof(per_sample_options),
    .beta = NAN,
    .uniform_fraction = NAN,
    .n_step = 0,
    .scheme = -1,
    .prioritization = -1,
    .normalize_weights = -1,
    .reserved = 0,
    .n_step_min = 0,
    .key = nullptr,
    .hindsight = nullptr,
};

const per_hindsight_options default_hindsight_options = {
    .struct_size = sizeof(per_hindsight_options),
    .achieved_field = -1,
    .goal_field = -1,
    .strategy = PER_GOAL_FUTURE,
    .reserved = 0,
    .fraction = 0.8,
    .reward = nullptr,
    .context = nullptr,
};

const per_batch default_batch = empty<per_batch>();

const per_priorities default_priorities = [] {
    per_priorities priorities = empty<per_priorities>();
    priorities.n_critics = 1;
    return priorities;
}();

const per_loader_options default_loader_options = {
    .struct_size = sizeof(per_loader_options),
    .batch_size = 0,
    .slots = 3,
    .sample = nullptr,
    .device = PER_CPU,
    .device_index = 0,
    .gather_on_device = 0,
    .reserved = 0,
};

const per_replay_statistics default_statistics = empty<per_replay_statistics>();
const per_channel_options default_channel_options = empty<per_channel_options>();
const per_channel_statistics default_channel_statistics = empty<per_channel_statistics>();

const per_shared_loader_options default_shared_loader_options = {
    .struct_size = sizeof(per_shared_loader_options),
    .batch_size = 0,
    .readers = 0,
    .slots = 2,
    .sample = nullptr,
};

const per_shared_loader_statistics default_shared_loader_statistics = empty<per_shared_loader_statistics>();

const per_shard_summary default_summary = [] {
    per_shard_summary summary = empty<per_shard_summary>();
    summary.measured_scale = PER_SCALE_AUTOMATIC;
    return summary;
}();

const per_coordinator_state default_coordinator_state = empty<per_coordinator_state>();

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
    if (options.sequence_length > 0)
        rules.sequence = {options.burn_in + options.sequence_length, options.burn_in, options.sequence_stride};
    return rules;
}

}  // namespace per
