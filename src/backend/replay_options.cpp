#include "backend/replay_options.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>

#include "rows/arguments.h"
#include "rows/error.h"

namespace per {
namespace {

constexpr int64_t largest_capacity = int64_t{1} << 40;
constexpr int64_t largest_n_envs = int64_t{1} << 20;
constexpr int64_t largest_n_step = 64;
constexpr int64_t largest_stack = 64;
constexpr double largest_float = 0x1.fffffep127;
constexpr double largest_double = 1.7976931348623157e308;

// A number of steps that only buffers of sequences have.
void check_of_sequences(const char* name, int64_t value, const per_replay_options& options) {
    if (options.sequence_length == 0 && value != 0)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is %" PRId64 ": must be 0 where sequence_length is not given", name,
                    value);
    check_range(name, value, 0, largest_capacity);
}

// Not NaN, and finite.
void check_number(const char* name, double value, double most) {
    if (value >= 0.0 && value <= most) return;
    if (most == largest_double)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is %g: must be finite and >= 0", name, value);
    throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is %g: allowed are 0 .. %.9g", name, value, most);
}

void check_choices(const per_replay_options& options) {
    check_range("prioritization", options.prioritization, PER_PROPORTIONAL, PER_UNIFORM);
    check_range("scheme", options.scheme, PER_STRATIFIED, PER_WITHOUT_REPLACEMENT);
    check_range("normalize_weights", options.normalize_weights, PER_BATCH_MAX, PER_NONE);
    check_range("max_priority", options.max_priority, PER_MAX_EVER, PER_MAX_NOW);
    check_range("on_invalid", options.on_invalid, PER_INVALID_ERROR, PER_INVALID_SKIP);
    check_range("on_gap", options.on_gap, PER_GAP_CUT, PER_GAP_ERROR);
    check_range("autoreset", options.autoreset, PER_AUTORESET_DISABLED, PER_AUTORESET_SAME_STEP);
    check_range("store_next_observation", options.store_next_observation, 0, 1);
    check_range("overwrite", options.overwrite, 0, 1);
    check_device(options.device, options.device_index);
    check_range("critics", options.critics, PER_CRITICS_MEAN, PER_CRITICS_MAX);
    check_range("gather_threads", options.gather_threads, 0, 64);
    check_range("on_nan", options.on_nan, PER_NAN_ALLOW, PER_NAN_ERROR);
}

int64_t rows_of(const per_replay_options& options) {
    return (options.capacity + options.n_envs - 1) / options.n_envs;
}

}  // namespace

const per_replay_options default_replay_options = {
    .struct_size = sizeof(per_replay_options),
    .capacity = 0,
    .fields = nullptr,
    .n_fields = 0,
    .n_envs = 1,
    .seed = 0,
    .n_step = 1,
    .frame_stack = 1,
    .sequence_length = 0,
    .burn_in = 0,
    .sequence_stride = 0,
    .beta_steps = 0,
    .gamma = 0.99,
    .alpha = 0.6,
    .beta = 0.4,
    .beta_final = 1.0,
    .epsilon = 1e-6,
    .sequence_eta = 0.9,
    .uniform_fraction = 0.0,
    .prioritization = PER_PROPORTIONAL,
    .scheme = PER_STRATIFIED,
    .normalize_weights = PER_BATCH_MAX,
    .max_priority = PER_MAX_EVER,
    .on_invalid = PER_INVALID_ERROR,
    .on_gap = PER_GAP_CUT,
    .autoreset = PER_AUTORESET_DISABLED,
    .store_next_observation = 0,
    .overwrite = 1,
    .device = PER_CPU,
    .device_index = 0,
    .critics = PER_CRITICS_MEAN,
    .gather_threads = 1,
    .on_nan = PER_NAN_ALLOW,
};

const per_steps default_steps = {
    .struct_size = sizeof(per_steps),
    .length = 1,
    .n_envs = 0,
    .env_ids = nullptr,
    .fields = nullptr,
    .next_fields = nullptr,
    .reward = {},
    .terminated = {},
    .truncated = {},
    .mask = {},
    .next_mask = {},
    .priorities = {},
    .td_errors = {},
};

const per_sample_options default_sample_options = {
    .struct_size = sizeof(per_sample_options),
    .beta = NAN,
    .uniform_fraction = NAN,
    .n_step = 0,
    .scheme = -1,
    .prioritization = -1,
    .normalize_weights = -1,
    .reserved = 0,
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

const per_batch default_batch = {
    .struct_size = sizeof(per_batch),
    .fields = nullptr,
    .next_fields = nullptr,
    .reward = nullptr,
    .discount = nullptr,
    .n_steps = nullptr,
    .terminated = nullptr,
    .truncated = nullptr,
    .weights = nullptr,
    .ids = nullptr,
    .priorities = nullptr,
    .probabilities = nullptr,
    .mask = nullptr,
};

const per_loader_options default_loader_options = {
    .struct_size = sizeof(per_loader_options),
    .batch_size = 0,
    .slots = 3,
    .sample = nullptr,
    .device = PER_CPU,
    .device_index = 0,
};

const per_replay_statistics default_statistics = [] {
    per_replay_statistics statistics = {};
    statistics.struct_size = sizeof statistics;
    return statistics;
}();

void check_device(int32_t device, int32_t device_index) {
    check_range("device", device, PER_CPU, PER_CUDA);
    if (device == PER_CPU && device_index != 0)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "device_index is %" PRId32 ": must be 0 for PER_CPU", device_index);
    check_range("device_index", device_index, 0, INT32_MAX);
}

void check_alpha(double alpha) {
    check_number("alpha", alpha, largest_double);
}

void check_beta(double beta) {
    check_number("beta", beta, largest_double);
}

void check_gamma(double gamma) {
    check_number("gamma", gamma, 1.0);
}

void check_n_step(int64_t n_step, const per_replay_options& options, const Fields& fields) {
    check_range("n_step", n_step, 1, largest_n_step);
    const int64_t stack = fields.max_stack();
    const int64_t rows = rows_of(options);
    const int64_t steps = options.burn_in + options.sequence_length;
    const int64_t least = least_rows(n_step, stack, std::max<int64_t>(steps, 1));
    if (rows >= least) return;
    char sequences[80] = "";
    if (steps > 0)
        std::snprintf(sequences, sizeof sequences, ", sequences of %" PRId64 " + %" PRId64 " steps", options.burn_in,
                      options.sequence_length);
    throw Error(PER_ERROR_INVALID_ARGUMENT,
                "a lane has %" PRId64 " rows (capacity / n_envs): n_step %" PRId64 "%s and stacks of %" PRId64
                " frames need %" PRId64,
                rows, n_step, sequences, stack, least);
}

void check_replay_options(const per_replay_options& options) {
    check_range("capacity", options.capacity, 1, largest_capacity);
    check_range("n_envs", options.n_envs, 1, largest_n_envs);
    check_range("n_step", options.n_step, 1, largest_n_step);
    check_range("frame_stack", options.frame_stack, 1, largest_stack);
    check_range("sequence_length", options.sequence_length, 0, largest_capacity);
    check_of_sequences("burn_in", options.burn_in, options);
    check_of_sequences("sequence_stride", options.sequence_stride, options);
    check_range("beta_steps", options.beta_steps, 0, INT64_MAX);
    check_gamma(options.gamma);
    check_alpha(options.alpha);
    check_beta(options.beta);
    check_number("beta_final", options.beta_final, largest_double);
    check_number("epsilon", options.epsilon, largest_float);  // with more every priority would overflow
    check_number("sequence_eta", options.sequence_eta, 1.0);
    check_number("uniform_fraction", options.uniform_fraction, 1.0);
    check_choices(options);
}

per_replay_options resolve_replay_options(const per_replay_options& options, const Fields& fields) {
    check_n_step(options.n_step, options, fields);
    per_replay_options resolved = options;
    resolved.struct_size = sizeof(per_replay_options);
    resolved.capacity = rows_of(options) * options.n_envs;
    if (options.sequence_stride == 0) resolved.sequence_stride = options.sequence_length;
    resolved.fields = fields.described();
    check_range("capacity rounded up to a multiple of n_envs", resolved.capacity, 1, largest_capacity);
    return resolved;
}

// A lane with m ends among its rows has the fewest live where an adversary chooses what lies between them. Of the rows
// that are there, none is live
//   - of the oldest episode, cut off by the ring, in stack - 1 rows that miss a frame, and then, short of a start and of
//     what follows the burn-in, in stride - 1 + burn_in more;
//   - of the running one in its latest steps + n_step - 2, and the row that its next observation takes;
//   - in the row that the final observation of an episode takes.
// The rest are full episodes, each as short as is allowed and then longer up to where its next start would be, and rows
// of which every stride-th is a live start. With store_next_observation no observation takes a row.
int64_t capacity_for(const per_replay_options& options, int64_t transitions, int64_t episode_length) {
    per_replay_options known = options;
    known.capacity = 1;  // not looked at
    check_replay_options(known);
    const int64_t stack = options.n_fields == 0 ? options.frame_stack : Fields(known).max_stack();
    check_range("transitions", transitions, 1, largest_capacity);
    check_range("episode_length", episode_length, 0, INT64_MAX);
    const int64_t steps = std::max<int64_t>(options.burn_in + options.sequence_length, 1);
    const int64_t stride =
        std::max<int64_t>(options.sequence_stride != 0 ? options.sequence_stride : options.sequence_length, 1);
    if (episode_length != 0 && episode_length <= options.burn_in)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "episode_length is %" PRId64 ": must be more than burn_in, %" PRId64 ", or no sequence is live",
                    episode_length, options.burn_in);
    const int64_t others = (transitions - 1) / options.n_envs;  // of a lane, but one
    const int64_t n_full =
        episode_length == 0 ? 0 : others / ((episode_length - options.burn_in - 1) / stride + 1);  // starts of each
    const int64_t observation = options.store_next_observation != 0 ? 0 : 1;
    using Wide = __int128;
    const Wide rows = Wide{others + 1} * stride + Wide{n_full + 1} * (options.burn_in + observation) + observation +
                      (stack - 1) + (steps + options.n_step - 2);
    const Wide capacity = std::max<Wide>(rows, least_rows(options.n_step, stack, steps)) * options.n_envs;
    if (capacity > largest_capacity)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "transitions is %" PRId64 ": must be less, as the capacity would be above %" PRId64, transitions,
                    largest_capacity);
    return static_cast<int64_t>(capacity);
}

ReplaySample resolve_sample_options(const per_sample_options& given, const per_replay_options& buffer) {
    if (given.n_step != 0) check_range("n_step", given.n_step, 1, buffer.n_step);
    if (!std::isnan(given.beta)) check_beta(given.beta);
    if (!std::isnan(given.uniform_fraction)) check_number("uniform_fraction", given.uniform_fraction, 1.0);
    check_range("scheme", given.scheme, -1, PER_WITHOUT_REPLACEMENT);
    check_range("prioritization", given.prioritization, -1, PER_UNIFORM);
    check_range("normalize_weights", given.normalize_weights, -1, PER_NONE);
    check_range("reserved", given.reserved, 0, 0);
    ReplaySample sample = {};
    sample.n_step = given.n_step != 0 ? given.n_step : buffer.n_step;
    sample.beta = given.beta;
    sample.uniform_fraction = std::isnan(given.uniform_fraction) ? buffer.uniform_fraction : given.uniform_fraction;
    sample.of_sequences = buffer.sequence_length > 0;
    sample.scheme = given.scheme >= 0 ? given.scheme : buffer.scheme;
    sample.prioritization = given.prioritization >= 0 ? given.prioritization : buffer.prioritization;
    sample.normalize_weights = given.normalize_weights >= 0 ? given.normalize_weights : buffer.normalize_weights;
    return sample;
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

ReplayHindsight resolve_hindsight_options(const per_hindsight_options& given, const Fields& fields) {
    check_range("achieved_field", given.achieved_field, 0, fields.count() - 1);
    check_range("goal_field", given.goal_field, 0, fields.count() - 1);
    check_range("strategy", given.strategy, PER_GOAL_FUTURE, PER_GOAL_EPISODE);
    check_range("reserved", given.reserved, 0, 0);
    check_number("fraction", given.fraction, 1.0);
    if (given.reward == nullptr) throw Error(PER_ERROR_INVALID_ARGUMENT, "reward is NULL");
    const Field& achieved = fields[given.achieved_field];
    const Field& goal = fields[given.goal_field];
    if (!achieved.is_observation())
        throw Error(PER_ERROR_INVALID_ARGUMENT, "achieved_field is \"%s\": must be an observation",
                    achieved.name.c_str());
    if (given.goal_field == given.achieved_field)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "goal_field and achieved_field are both \"%s\": must be two fields",
                    goal.name.c_str());
    if (goal.dtype != achieved.dtype || goal.shape != achieved.shape)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "goal_field is \"%s\": must have the dtype and shape of \"%s\"",
                    goal.name.c_str(), achieved.name.c_str());
    return {given.achieved_field, given.goal_field, given.strategy, given.fraction};
}

}  // namespace per
