#include "core/checks.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <string>

#include "backend/batch.h"
#include "backend/replay_options.h"
#include "base/arguments.h"
#include "base/error.h"
#include "base/overflow.h"
#include "file/compression.h"
#include "rules/limits.h"

namespace per {
namespace {

// With replacement a batch could contain a transition more often than it may be drawn.
void check_scheme_of_uses(int32_t scheme, const per_replay_options& options) {
    if (options.max_times_sampled == 0 || scheme == PER_WITHOUT_REPLACEMENT) return;
    constexpr const char* names[] = {"PER_STRATIFIED", "PER_INDEPENDENT", "PER_SYSTEMATIC"};
    throw Error(PER_ERROR_INVALID_ARGUMENT,
                "scheme is %s (%" PRId32 "): must be PER_WITHOUT_REPLACEMENT (%d) where max_times_sampled is given",
                names[scheme], scheme, static_cast<int>(PER_WITHOUT_REPLACEMENT));
}

// Checks a number of steps that only buffers of sequences have.
void check_of_sequences(const char* name, int64_t value, const per_replay_options& options) {
    if (options.sequence_length == 0 && value != 0)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is %" PRId64 ": must be 0 where sequence_length is not given", name,
                    value);
    check_range(name, value, 0, max_capacity);
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
    check_range("gather_threads", options.gather_threads, 0, max_gather_threads);
    check_range("on_nan", options.on_nan, PER_NAN_ALLOW, PER_NAN_ERROR);
}

void check_memory(const per_memory& memory, int32_t device) {
    if ((memory.allocate == nullptr) != (memory.deallocate == nullptr))
        throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is NULL: allocate and deallocate must be given together",
                    memory.allocate == nullptr ? "allocate" : "deallocate");
    if (memory.allocate != nullptr && device == PER_CUDA)
        throw Error(PER_ERROR_UNSUPPORTED, "allocate is given: on PER_CUDA rows lie in the memory of the device");
    check_range("storage_preallocated", memory.storage_preallocated, 0, 1);
    if (memory.storage == nullptr && memory.storage_preallocated != 0)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "storage_preallocated is 1: must be 0 where storage is not given");
    if (memory.storage != nullptr && device == PER_CUDA)
        throw Error(PER_ERROR_UNSUPPORTED, "storage is given: on PER_CUDA rows lie in the memory of the device");
    check_range("memory.reserved", memory.reserved, 0, 0);
    check_range("max_heap_bytes", memory.max_heap_bytes, 0, INT64_MAX);
}

void check_ragged(const per_replay_options& options, const Fields& fields) {
    const Field* const field = fields.first_ragged();
    if (field == nullptr || can_compress(options.device, options.memory)) return;
    const char* const reason = options.device == PER_CUDA ? "on PER_CUDA all rows have one length"
                               : options.memory.allocate != nullptr
                                   ? "memory of the caller's (allocate) has rows of one length"
                                   : "a file (storage) has rows of one length";
    throw Error(PER_ERROR_UNSUPPORTED, "max_length of field \"%s\" is %" PRId64 ": %s", field->name.c_str(),
                field->max_length, reason);
}

void check_compression(const per_replay_options& options, const Fields& fields) {
    if (can_compress(options.device, options.memory)) return;
    const auto is_compressed = [](const Field& field) { return field.is_compressed(); };
    const auto field = std::find_if(fields.begin(), fields.end(), is_compressed);
    if (field == fields.end()) return;
    const char* const reason = options.device == PER_CUDA ? "on PER_CUDA frames are kept as they are"
                               : options.memory.allocate != nullptr
                                   ? "memory of the caller's (allocate) has the frames as they are"
                                   : "a file (storage) has the frames as they are";
    throw Error(PER_ERROR_UNSUPPORTED, "compression of field \"%s\" is PER_COMPRESSION_DELTA (1): %s",
                field->name.c_str(), reason);
}

void check_rate_limiter(const per_replay_options& options) {
    const per_rate_limit& limit = options.rate_limit;
    check_finite("samples_per_insert", limit.samples_per_insert);
    check_range("min_size_to_sample", limit.min_size_to_sample, 0, max_capacity);
    if (limit.samples_per_insert <= 0) {
        if (limit.samples_tolerance != 0)
            throw Error(PER_ERROR_INVALID_ARGUMENT,
                        "samples_tolerance is %" PRId64 ": must be 0 where samples_per_insert is not given",
                        limit.samples_tolerance);
        return;
    }
    const double tolerance = static_cast<double>(limit.samples_tolerance);
    if (std::floor(tolerance / limit.samples_per_insert) < static_cast<double>(options.n_envs))
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "samples_tolerance is %" PRId64 ": must be at least samples_per_insert %g times n_envs %" PRId64,
                    limit.samples_tolerance, limit.samples_per_insert, options.n_envs);
    check_range("samples_tolerance", limit.samples_tolerance, 1, max_capacity);
}

void check_times_sampled(const per_replay_options& options) {
    check_range("keep_times_sampled", options.keep_times_sampled, 0, 1);
    check_range("max_times_sampled", options.max_times_sampled, 0, INT32_MAX);
    if (options.max_times_sampled == 0) return;
    check_scheme_of_uses(options.scheme, options);
    const double samples_per_insert = options.rate_limit.samples_per_insert;
    if (samples_per_insert > options.max_times_sampled)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "samples_per_insert is %g: must be at most max_times_sampled, %" PRId32,
                    samples_per_insert, options.max_times_sampled);
}

// Ranks and the uniform distribution have no p^alpha that could decay.
void check_prioritization_of_fresh(int32_t prioritization) {
    if (prioritization == PER_PROPORTIONAL) return;
    throw Error(PER_ERROR_INVALID_ARGUMENT,
                "prioritization is %s (%" PRId32 "): must be PER_PROPORTIONAL (%d) where half_life is given",
                prioritization == PER_RANK ? "PER_RANK" : "PER_UNIFORM", prioritization,
                static_cast<int>(PER_PROPORTIONAL));
}

void check_freshness(const per_replay_options& options) {
    const per_freshness& freshness = options.freshness;
    check_range("age", freshness.age, PER_AGE_STEPS, PER_AGE_VERSIONS);
    check_range("max_age", freshness.max_age, -1, max_capacity);
    check_range("freshness.reserved", freshness.reserved, 0, 0);
    if (freshness.half_life == 0.0) return;
    if (!(freshness.half_life >= min_half_life && freshness.half_life <= max_half_life))
        throw Error(PER_ERROR_INVALID_ARGUMENT, "half_life is %g: allowed are 0 and %g .. %g", freshness.half_life,
                    min_half_life, max_half_life);
    check_prioritization_of_fresh(options.prioritization);
}

}  // namespace

void check_reference(const char* name, int64_t reference, const per_replay_options& options) {
    const Freshness freshness = freshness_of(options);
    if (is_reference(freshness, reference)) return;
    if (!freshness.decays())
        throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is %" PRId64 ": must be 0 without half_life", name, reference);
    throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is %" PRId64 ": allowed are %" PRId64 " .. %" PRId64 ", in steps of %d",
                name, reference, first_reference, last_reference, static_cast<int>(reference_step));
}

namespace {

int64_t rows_of(const per_replay_options& options) {
    return (options.capacity + options.n_envs - 1) / options.n_envs;
}

void check_number_field(const char* argument, int64_t i, const Fields& fields) {
    check_range(argument, i, 0, fields.count() - 1);
    const Field& field = fields[i];
    if (field.dtype != PER_FLOAT32 || !field.shape.empty() || field.role != PER_ROLE_PLAIN || field.is_ragged())
        throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is \"%s\": must be a plain float32 field with one number a step",
                    argument, field.name.c_str());
}

void check_differ(const char* argument, int64_t i, const char* other_argument, int64_t other, const Fields& fields) {
    if (i == other)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "%s and %s are both \"%s\": must be two fields", argument,
                    other_argument, fields[i].name.c_str());
}

// `out` is a per_ragged or NULL if the field has rows of any length.
void check_ragged(const void* out, const Field& field, const std::string& name) {
    if (!field.is_ragged() || out == nullptr) return;
    const per_ragged& ragged = *static_cast<const per_ragged*>(out);
    check_aligned(name + ".values", ragged.values, static_cast<std::size_t>(dtype_size(field.dtype)));
    check_aligned(name + ".offsets", ragged.offsets, alignof(int64_t));
    check_range((name + ".capacity").c_str(), ragged.capacity, 0, INT64_MAX);
    check_range((name + ".padded_length").c_str(), ragged.padded_length, 0, field.max_length);
}

void check_arrays(const per_batch& batch, const Fields& fields, const per_replay_options& buffer) {
    for_each_array(batch, fields,
                   [](const char* name, const void* array, std::size_t size) { check_aligned(name, array, size); });
    for (int64_t i = 0; i < fields.count() && fields.has_ragged(); ++i) {
        if (batch.fields != nullptr) check_ragged(batch.fields[i], fields[i], fields[i].name);
        if (batch.next_fields != nullptr && fields[i].is_observation())
            check_ragged(batch.next_fields[i], fields[i], fields[i].next_name);
    }
    if (batch.times_sampled != nullptr && buffer.keep_times_sampled == 0)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "times_sampled is not NULL: keep_times_sampled of the buffer is 0");
}

void check_n_step(int64_t n_step, const per_replay_options& options, const Fields& fields) {
    check_range("n_step", n_step, 1, max_n_step);
    const int64_t stack = fields.max_stack();
    const int64_t rows = rows_of(options);
    const int64_t steps = std::max<int64_t>(options.burn_in + options.sequence_length, 1);
    const bool next_takes_row = options.store_next_observation == 0;
    const int64_t least = least_rows(n_step, stack, steps, next_takes_row);
    if (has_max_age(options, PER_AGE_STEPS) && options.freshness.max_age < least)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "max_age is %" PRId64 ": must be at least %" PRId64 ", the rows that a lane needs",
                    options.freshness.max_age, least);
    if (rows >= least) return;
    std::string parts = "1 for a step";
    if (options.sequence_length > 0)
        parts = std::to_string(steps) + " for sequences of " + std::to_string(options.burn_in) + " + " +
                std::to_string(options.sequence_length) + " steps";
    if (n_step > 1) parts += ", " + std::to_string(n_step - 1) + " for n_step " + std::to_string(n_step);
    if (stack > 1) parts += ", " + std::to_string(stack - 1) + " for stacks of " + std::to_string(stack) + " frames";
    if (next_takes_row) parts += ", 2 for next observations (none with store_next_observation)";
    throw Error(PER_ERROR_INVALID_ARGUMENT,
                "a lane has %" PRId64 " rows (capacity / n_envs), and needs %" PRId64
                ": %s; the least capacity is %" PRId64,
                rows, least, parts.c_str(), saturated_product(least, options.n_envs));
}

}  // namespace

// ------------------------------------------------------------------------------------------------------- any handle

void check_device(int32_t device, int32_t device_index) {
    if (device != PER_CPU && device != PER_CUDA)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "device is %" PRId32 ": allowed are PER_CPU (0) and PER_CUDA (1)",
                    device);
    if (device == PER_CPU && device_index != 0)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "device_index is %" PRId32 ": must be 0 for PER_CPU", device_index);
    check_count("device_index", device_index, 0);
}

void check_count_set(int64_t count, int32_t device) {
    if (device == PER_CPU || count <= max_count_set_on_cuda) return;
    throw Error(PER_ERROR_INVALID_ARGUMENT, "count is %" PRId64 ": allowed on PER_CUDA are 0 .. %" PRId64, count,
                max_count_set_on_cuda);
}

void check_tree_sample(const TreeSample& sample) {
    check_range("batch_size", sample.batch_size, 1, max_batch_size);
    check_range("scheme", sample.scheme, PER_STRATIFIED, PER_WITHOUT_REPLACEMENT);
    check_finite("beta", sample.beta);
}

void check_compression_level(const char* name, int32_t level) {
    check_range(name, level, 0, max_compression);
    if (level > 0 && !has_zstd())
        throw Error(PER_ERROR_UNSUPPORTED, "%s is %" PRId32 ": this libper was built without zstd", name, level);
}

void require_no_ragged(const Fields& fields, const char* where) {
    const Field* const field = fields.first_ragged();
    if (field == nullptr) return;
    throw Error(PER_ERROR_UNSUPPORTED, "field \"%s\" has max_length %" PRId64 ": %s takes no rows of any length",
                field->name.c_str(), field->max_length, where);
}

void check_save_options(const per_save_options& options) {
    check_count("timeout_ms", options.timeout_ms, -1);
    if (options.compression != -1) check_compression_level("compression", options.compression);
    check_range("reserved", options.reserved, 0, 0);
}

void check_load_options(const per_load_options& options) {
    check_device(options.device, options.device_index);
    check_memory(options.memory, options.device);
    check_count("timeout_ms", options.timeout_ms, -1);
}

// ----------------------------------------------------------------------------------------------- options of a buffer

void check_replay_options(const per_replay_options& options) {
    check_range("capacity", options.capacity, 1, max_capacity);
    check_range("n_envs", options.n_envs, 1, max_n_envs);
    check_range("n_step", options.n_step, 1, max_n_step);
    check_range("frame_stack", options.frame_stack, 1, max_stack);
    check_range("sequence_length", options.sequence_length, 0, max_capacity);
    check_of_sequences("burn_in", options.burn_in, options);
    check_of_sequences("sequence_stride", options.sequence_stride, options);
    check_range("beta_steps", options.beta_steps, 0, INT64_MAX);
    check_number("gamma", options.gamma, 1.0);
    check_finite("alpha", options.alpha);
    check_finite("beta", options.beta);
    check_finite("beta_final", options.beta_final);
    check_number("epsilon", options.epsilon, max_epsilon);
    check_number("sequence_eta", options.sequence_eta, 1.0);
    check_number("uniform_fraction", options.uniform_fraction, 1.0);
    check_choices(options);
    check_compression_level("save_compression", options.save_compression);
    check_memory(options.memory, options.device);
    check_rate_limiter(options);
    check_times_sampled(options);
    check_freshness(options);
}

per_replay_options resolve_replay_options(const per_replay_options& options, const Fields& fields) {
    check_n_step(options.n_step, options, fields);
    check_compression(options, fields);
    check_ragged(options, fields);
    per_replay_options resolved = options;
    resolved.struct_size = sizeof(per_replay_options);
    resolved.capacity = rows_of(options) * options.n_envs;
    if (options.sequence_stride == 0) resolved.sequence_stride = options.sequence_length;
    if (options.max_times_sampled > 0) resolved.keep_times_sampled = 1;
    resolved.fields = fields.described();
    resolved.field_size = sizeof(per_field);
    check_range("capacity rounded up to a multiple of n_envs", resolved.capacity, 1, max_capacity);
    // If nothing is overwritten, a buffer never holds more rows than its capacity.
    if (options.overwrite == 0)
        check_range("min_size_to_sample", options.rate_limit.min_size_to_sample, 0, resolved.capacity);
    return resolved;
}

void check_settings(const per_replay_settings& settings, const per_replay_options& buffer, const Fields& fields) {
    if (!std::isnan(settings.alpha)) check_finite("alpha", settings.alpha);
    if (!std::isnan(settings.beta)) check_finite("beta", settings.beta);
    if (!std::isnan(settings.gamma)) check_number("gamma", settings.gamma, 1.0);
    if (settings.n_step != 0) check_n_step(settings.n_step, buffer, fields);
    if (settings.save_compression != -1) check_compression_level("save_compression", settings.save_compression);
    check_range("reserved", settings.reserved, 0, 0);
    if (settings.version != -1 && buffer.freshness.age != PER_AGE_VERSIONS)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "version is %" PRId64 ": only a buffer whose age is PER_AGE_VERSIONS (%d) has versions",
                    settings.version, static_cast<int>(PER_AGE_VERSIONS));
}

// Computes the worst case: an adversary chooses the episodes of a lane, so that the fewest rows are live. Not live are
//   - in the oldest episode, cut off by the ring: stack - 1 rows that miss a frame, stride - 1 rows before the next
//     start of a sequence, and the last burn_in rows, from which a sequence would end within its burn-in;
//   - in the running episode: its latest steps + n_step - 2 rows, and the row of its next observation;
//   - the row of each episode's final observation.
// The rest are full episodes, and rows of which every stride-th is a live start. Each full episode is as short as
// allowed, and then as much longer as it can be without another start. With store_next_observation no observation takes
// a row.
int64_t capacity_for(const per_replay_options& options, int64_t transitions, int64_t episode_length) {
    per_replay_options known = options;
    known.capacity = 1;  // not used
    check_replay_options(known);
    const int64_t stack = options.n_fields == 0 ? options.frame_stack : Fields(known).max_stack();
    check_range("transitions", transitions, 1, max_capacity);
    check_range("episode_length", episode_length, 0, INT64_MAX);
    const int64_t steps = std::max<int64_t>(options.burn_in + options.sequence_length, 1);
    const int64_t stride =
        std::max<int64_t>(options.sequence_stride != 0 ? options.sequence_stride : options.sequence_length, 1);
    if (episode_length != 0 && episode_length <= options.burn_in)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "episode_length is %" PRId64 ": must be more than burn_in, %" PRId64 ", or no sequence is live",
                    episode_length, options.burn_in);
    const int64_t others = (transitions - 1) / options.n_envs;  // transitions of a lane, less one
    // The divisor is the number of starts of a full episode.
    const int64_t n_full = episode_length == 0 ? 0 : others / ((episode_length - options.burn_in - 1) / stride + 1);
    const int64_t observation = options.store_next_observation != 0 ? 0 : 1;
    using Wide = __int128;
    const Wide rows = Wide{others + 1} * stride + Wide{n_full + 1} * (options.burn_in + observation) + observation +
                      (stack - 1) + (steps + options.n_step - 2);
    const Wide capacity =
        std::max<Wide>(rows, least_rows(options.n_step, stack, steps, observation > 0)) * options.n_envs;
    if (capacity > max_capacity)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "transitions is %" PRId64 ": must be less, as the capacity would be above %" PRId64, transitions,
                    max_capacity);
    return static_cast<int64_t>(capacity);
}

namespace {

void check_n_step_of_call(int64_t n_step, int64_t most) {
    if (n_step >= 1 && n_step <= most) return;
    throw Error(PER_ERROR_INVALID_ARGUMENT,
                "n_step is %" PRId64 ": allowed %s%" PRId64 ", as n_step of the buffer is %" PRId64, n_step,
                most > 1 ? "are 1 .. " : "is ", most, most);
}

// Resolves the options that draws and windows share.
ReplaySample resolve_options_of_call(const per_sample_options& given, int64_t batch_size,
                                     const per_replay_options& buffer) {
    check_range("batch_size", batch_size, 1, max_batch_size);
    if (given.n_step != 0) check_n_step_of_call(given.n_step, buffer.n_step);
    const int64_t n_step = given.n_step != 0 ? given.n_step : buffer.n_step;
    check_range("n_step_min", given.n_step_min, 0, n_step);
    if (!std::isnan(given.beta)) check_finite("beta", given.beta);
    if (!std::isnan(given.uniform_fraction)) check_number("uniform_fraction", given.uniform_fraction, 1.0);
    check_range("scheme", given.scheme, -1, PER_WITHOUT_REPLACEMENT);
    check_range("prioritization", given.prioritization, -1, PER_UNIFORM);
    check_range("normalize_weights", given.normalize_weights, -1, PER_NONE);
    ReplaySample sample = {};
    sample.batch_size = batch_size;
    sample.n_step = n_step;
    sample.n_step_min = given.n_step_min;
    sample.beta = given.beta;
    sample.uniform_fraction = std::isnan(given.uniform_fraction) ? buffer.uniform_fraction : given.uniform_fraction;
    sample.scheme = given.scheme >= 0 ? given.scheme : buffer.scheme;
    sample.prioritization = given.prioritization >= 0 ? given.prioritization : buffer.prioritization;
    if (buffer.freshness.half_life != 0.0 && sample.prioritization == PER_RANK)
        check_prioritization_of_fresh(sample.prioritization);
    sample.normalize_weights = given.normalize_weights >= 0 ? given.normalize_weights : buffer.normalize_weights;
    return sample;
}

}  // namespace

ReplaySample resolve_sample_options(const per_sample_options& given, int64_t batch_size,
                                    const per_replay_options& buffer) {
    ReplaySample sample = resolve_options_of_call(given, batch_size, buffer);
    if (given.key != nullptr) require_array("key", given.key);
    sample.rows = DrawnRows{given.key, {}};
    check_scheme_of_uses(sample.scheme, buffer);
    check_range("newest", given.newest, 0, batch_size - 1);
    if (given.newest > 0 && buffer.max_times_sampled > 0)
        throw Error(
            PER_ERROR_UNSUPPORTED,
            "newest is %d: allowed is 0, as max_times_sampled of the buffer is %d and rows may repeat the newest",
            given.newest, buffer.max_times_sampled);
    sample.n_newest = given.newest;
    if (given.hindsight != nullptr && given.key != nullptr)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "key is not NULL: must be NULL where hindsight is given");
    return sample;
}

void require_no_key(const per_sample_options& given) {
    if (given.key != nullptr)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "key is not NULL: per_replay_sample() alone takes one");
}

void require_no_newest(const per_sample_options& given, const char* where) {
    if (given.newest != 0)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "newest is %d: allowed %s is 0", given.newest, where);
}

void require_no_hindsight(const per_sample_options& given) {
    if (given.hindsight != nullptr)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "hindsight is not NULL: per_replay_sample() and per_replay_get_windows() alone take it");
}

ReplaySample resolve_windows(const per_sample_options& given, int64_t count, const BatchRows& rows,
                             const per_replay_options& buffer) {
    const auto* const of_ids = std::get_if<RowsOfIds>(&rows);
    if (of_ids == nullptr) require_no_hindsight(given);
    check_range("count", count, 0, max_batch_size);
    if (of_ids != nullptr) check_range("on_invalid", of_ids->on_invalid, PER_INVALID_ERROR, PER_INVALID_SKIP);
    require_no_key(given);
    require_no_newest(given, "for named rows");
    ReplaySample sample = resolve_options_of_call(given, std::max<int64_t>(count, 1), buffer);
    sample.batch_size = count;
    sample.scheme = PER_INDEPENDENT;  // the probabilities are those of one draw
    sample.rows = rows;
    return sample;
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
    check_differ("goal_field", given.goal_field, "achieved_field", given.achieved_field, fields);
    if (goal.is_ragged() || achieved.is_ragged())
        throw Error(PER_ERROR_UNSUPPORTED, "%s is \"%s\": goals of any length cannot be replaced",
                    achieved.is_ragged() ? "achieved_field" : "goal_field",
                    achieved.is_ragged() ? achieved.name.c_str() : goal.name.c_str());
    if (goal.dtype != achieved.dtype || goal.shape != achieved.shape)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "goal_field is \"%s\": must have the dtype and shape of \"%s\"",
                    goal.name.c_str(), achieved.name.c_str());
    return {given.achieved_field, given.goal_field, given.strategy, given.fraction};
}

// --------------------------------------------------------------------------------------------------------- batches

void check_batch_by_id(const per_batch& batch, const Fields& fields, const per_replay_options& buffer) {
    check_arrays(batch, fields, buffer);
    if (batch.weights == nullptr && batch.probabilities == nullptr && batch.mask == nullptr) return;
    throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is not NULL: rows by id have none",
                batch.weights != nullptr         ? "weights"
                : batch.probabilities != nullptr ? "probabilities"
                                                 : "mask");
}

void check_drawn_batch(const per_batch& batch, const Fields& fields, const per_replay_options& buffer) {
    check_arrays(batch, fields, buffer);
    if (buffer.sequence_length == 0) {
        if (batch.mask == nullptr) return;
        throw Error(PER_ERROR_INVALID_ARGUMENT, "mask is not NULL: the buffer draws single transitions");
    }
    for (int64_t i = 0; i < fields.count() && batch.next_fields != nullptr; ++i)
        if (batch.next_fields[i] != nullptr)
            throw Error(PER_ERROR_INVALID_ARGUMENT,
                        "next_fields[%" PRId64 "] is not NULL: sequences have next observations among their own", i);
}

// --------------------------------------------------------------------------------------------------- writes by id

namespace {

// Returns the number of steps at the start of each sequence for which no TD errors are given.
int64_t steps_left_out(const per_priorities& given, const per_replay_options& buffer) {
    const int64_t length = buffer.sequence_length, n_steps = given.n_steps;
    if (length == 0 && n_steps != 0)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "n_steps is %" PRId64 ": must be 0, as this buffer draws single transitions", n_steps);
    if (n_steps != 0 && n_steps != length && n_steps != buffer.burn_in + length)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "n_steps is %" PRId64 ": allowed are %" PRId64 " and, with the burn-in, %" PRId64 " or 0", n_steps,
                    length, buffer.burn_in + length);
    return n_steps == length ? buffer.burn_in : 0;
}

void check_arrays(const per_priorities& given) {
    check_entries("count", given.count, 0);
    if (given.count == 0) return;
    require_array("ids", given.ids);
    if ((given.td_errors == nullptr) == (given.priorities == nullptr))
        throw Error(PER_ERROR_INVALID_ARGUMENT, "td_errors and priorities are both %s",
                    given.td_errors == nullptr ? "NULL: one of the two must be given" : "given: only one may be");
    check_aligned("td_errors", given.td_errors);
    check_aligned("priorities", given.priorities);
}

void check_critics(const per_priorities& given, const per_replay_options& buffer) {
    check_entries("n_critics", given.n_critics, 1);
    const int64_t steps = std::max<int64_t>(1, buffer.burn_in + buffer.sequence_length);
    int64_t n_errors;
    if (__builtin_mul_overflow(given.n_critics, given.count, &n_errors) ||
        __builtin_mul_overflow(n_errors, steps, &n_errors) || n_errors > max_count)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "n_critics is %" PRId64 ": td_errors of that many for %" PRId64 " ids fit into no memory",
                    given.n_critics, given.count);
    // Nobody has as many critics as ids. If there seem to be, values of shape [n, 1] were given where [n] was meant.
    constexpr int64_t max_critics_as_ids = 16;
    if (buffer.sequence_length == 0 && given.n_critics == given.count && given.count > max_critics_as_ids)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "td_errors are those of %" PRId64
                    " critics for as many ids: probably [n] minus [n, 1], which "
                    "broadcasts to [n, n]; drop the axis of 1",
                    given.n_critics);
}

}  // namespace

ReplayUpdate resolve_priorities(const per_priorities& given, const per_replay_options& buffer) {
    check_arrays(given);
    check_count_set(given.count, buffer.device);
    if (given.priorities != nullptr) {
        if (given.n_critics != 1)
            throw Error(PER_ERROR_INVALID_ARGUMENT, "n_critics is %" PRId64 ": must be 1 where priorities are given",
                        given.n_critics);
        if (given.n_steps != 0)
            throw Error(PER_ERROR_INVALID_ARGUMENT, "n_steps is %" PRId64 ": must be 0 where priorities are given",
                        given.n_steps);
    }
    check_critics(given, buffer);
    return {given.count, given.ids, given.n_critics, given.td_errors, given.priorities, steps_left_out(given, buffer)};
}

void check_advantages(const ReplayAdvantages& advantages, const Fields& fields) {
    check_number_field("value_field", advantages.value_field, fields);
    check_number_field("advantage_field", advantages.advantage_field, fields);
    if (advantages.return_field != -1) check_number_field("return_field", advantages.return_field, fields);
    check_differ("advantage_field", advantages.advantage_field, "value_field", advantages.value_field, fields);
    check_differ("return_field", advantages.return_field, "value_field", advantages.value_field, fields);
    check_differ("return_field", advantages.return_field, "advantage_field", advantages.advantage_field, fields);
    check_number("lambda", advantages.lambda, 1.0);
}

}  // namespace per
