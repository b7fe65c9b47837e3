#include <map>

#include "host_arrays.h"

using namespace host_arrays;

namespace {

std::mutex mutex;

struct Walk {
    per_replay* replay;
    int64_t batch_size;
};

std::map<const per_epochs*, Walk>& walks() {
    static std::map<const per_epochs*, Walk> all;
    return all;
}

bool describe(per_replay* replay, per_replay_options& options) {
    if (replay == nullptr) return false;
    require(per_replay_options_init(&options, sizeof options) == PER_OK, "per_replay_options_init");
    return per_replay_describe(replay, &options) == PER_OK && options.device == PER_CUDA;
}

void wait(per_replay* replay) {
    int64_t live;
    require(per_replay_live(replay, &live) == PER_OK, "per_replay_live");
}

int64_t size_of(int32_t dtype) {
    switch (dtype) {
        case PER_BOOL:
        case PER_INT8:
        case PER_UINT8:
            return 1;
        case PER_INT16:
        case PER_UINT16:
        case PER_FLOAT16:
        case PER_BFLOAT16:
            return 2;
        case PER_INT32:
        case PER_UINT32:
        case PER_FLOAT32:
            return 4;
        default:
            return 8;
    }
}

int64_t elements_of(const per_field& field) {
    int64_t n = 1;
    for (int32_t i = 0; i < field.ndim; ++i) n *= field.shape[i];
    return n;
}

// With as many elements as its shape says, or as it must have.
per_array staged_array(Staged& staged, per_array array, int64_t n_full) {
    int64_t n = n_full;
    if (array.shape != nullptr) {
        n = 1;
        for (int32_t i = 0; i < array.ndim; ++i) n *= array.shape[i];
    }
    array.data = staged.bytes(array.data, n * size_of(array.dtype));
    return array;
}

// What rows of a batch are.
struct RowShape {
    int64_t observations = 1;  // a row
    int64_t steps = 1;         // values of step-wise arrays, and of other fields
    bool is_single_frame = false;
};

// A batch whose arrays are on the device.
class StagedBatch {
 public:
    StagedBatch(const per_batch& batch, const per_replay_options& options, int64_t n, RowShape shape)
        : on_host_(batch), on_device_(batch), n_fields_(options.n_fields) {
        fields_ = stage(batch.fields, options, n, shape, false);
        next_fields_ = stage(batch.next_fields, options, n, shape, true);
        if (batch.fields != nullptr) on_device_.fields = fields_.data();
        if (batch.next_fields != nullptr) on_device_.next_fields = next_fields_.data();
        on_device_.reward = staged_.array(batch.reward, n * shape.steps);
        on_device_.discount = staged_.array(batch.discount, n * shape.steps);
        on_device_.n_steps = staged_.array(batch.n_steps, n * shape.steps);
        on_device_.terminated = staged_.array(batch.terminated, n * shape.steps);
        on_device_.truncated = staged_.array(batch.truncated, n * shape.steps);
        on_device_.mask = staged_.array(batch.mask, n * shape.steps);
        on_device_.weights = staged_.array(batch.weights, n);
        on_device_.ids = staged_.array(batch.ids, n);
        on_device_.priorities = staged_.array(batch.priorities, n);
        on_device_.probabilities = staged_.array(batch.probabilities, n);
    }

    const per_batch* get() const { return &on_device_; }

    void copy_back() {
        for (int64_t i = 0; i < n_fields_; ++i) {
            if (on_host_.fields != nullptr) staged_.copy_back(on_host_.fields[i]);
            if (on_host_.next_fields != nullptr) staged_.copy_back(on_host_.next_fields[i]);
        }
        for (const void* array :
             {static_cast<const void*>(on_host_.reward), static_cast<const void*>(on_host_.discount),
              static_cast<const void*>(on_host_.n_steps), static_cast<const void*>(on_host_.terminated),
              static_cast<const void*>(on_host_.truncated), static_cast<const void*>(on_host_.mask),
              static_cast<const void*>(on_host_.weights), static_cast<const void*>(on_host_.ids),
              static_cast<const void*>(on_host_.priorities), static_cast<const void*>(on_host_.probabilities)})
            staged_.copy_back(array);
    }

 private:
    std::vector<void*> stage(void* const* fields, const per_replay_options& options, int64_t n, RowShape shape,
                             bool is_next) {
        std::vector<void*> staged;
        for (int64_t i = 0; fields != nullptr && i < options.n_fields; ++i) {
            const per_field& field = options.fields[i];
            const bool is_observation = field.role == PER_ROLE_OBSERVATION;
            const int64_t stack = shape.is_single_frame ? 1 : field.stack;
            const int64_t times = is_observation                           ? (is_next ? 1 : shape.observations)
                                  : field.role == PER_ROLE_RECURRENT_STATE ? 1
                                                                           : shape.steps;
            const int64_t n_bytes = n * times * stack * elements_of(field) * size_of(field.dtype);
            staged.push_back(const_cast<void*>(staged_.bytes(fields[i], n_bytes)));
        }
        return staged;
    }

    per_batch on_host_, on_device_;
    int64_t n_fields_;
    std::vector<void*> fields_, next_fields_;
    Staged staged_;
};

RowShape drawn_rows(const per_replay_options& options, const per_sample_options* sample) {
    if (options.sequence_length == 0) return {};
    const int64_t steps = options.burn_in + options.sequence_length;
    const int64_t n_step = sample != nullptr && sample->n_step > 0 ? sample->n_step : options.n_step;
    return {steps + n_step, steps, false};
}

constexpr int64_t largest_batch = int64_t{1} << 24;  // that per.h allows

// Calls libper with a batch on the device, if the arguments allow that.
template <class Call>
per_status with_staged_batch(per_replay* replay, const per_replay_options& options, int64_t n, RowShape shape,
                             const per_batch* batch, const Call& call) {
    per_batch known;
    require(per_batch_init(&known, sizeof known) == PER_OK, "per_batch_init");
    const bool is_refused = batch == nullptr || n < 0 || n > largest_batch || batch->struct_size != known.struct_size;
    if (is_refused) return call(batch);
    StagedBatch staged(*batch, options, n, shape);
    const per_status status = call(staged.get());
    if (status != PER_OK) return status;
    wait(replay);
    staged.copy_back();
    return status;
}

}  // namespace

extern "C" {

per_status per_replay_add(per_replay* replay, const per_steps* steps, int64_t* ids_out, void* stream) {
    auto* const add = IN_LIBRARY(per_replay_add);
    per_replay_options options;
    per_steps on_device;
    require(per_steps_init(&on_device, sizeof on_device) == PER_OK, "per_steps_init");
    if (!describe(replay, options) || steps == nullptr || steps->struct_size != on_device.struct_size ||
        steps->length < 0 || steps->n_envs < 0 || steps->fields == nullptr)
        return add(replay, steps, ids_out, stream);
    const int64_t n = steps->length * (steps->env_ids != nullptr ? steps->n_envs : options.n_envs);
    Staged staged;
    on_device = *steps;
    std::vector<per_array> fields, next_fields;
    for (int64_t i = 0; i < options.n_fields; ++i) {
        const per_field& field = options.fields[i];
        fields.push_back(staged_array(staged, steps->fields[i], n * elements_of(field)));
        if (steps->next_fields != nullptr)
            next_fields.push_back(field.role == PER_ROLE_OBSERVATION
                                      ? staged_array(staged, steps->next_fields[i], n * elements_of(field))
                                      : steps->next_fields[i]);
    }
    on_device.fields = fields.data();
    if (steps->next_fields != nullptr) on_device.next_fields = next_fields.data();
    for (per_array* array : {&on_device.reward, &on_device.terminated, &on_device.truncated, &on_device.mask,
                             &on_device.next_mask, &on_device.priorities, &on_device.td_errors})
        *array = staged_array(staged, *array, n);
    const per_status status = add(replay, &on_device, staged.array(ids_out, n), stream);
    if (status != PER_OK) return status;
    wait(replay);
    staged.copy_back(ids_out);
    return status;
}

per_status per_replay_sample(per_replay* replay, const per_sample_options* sample, int64_t batch_size,
                             const per_batch* batch, void* stream) {
    auto* const draw = IN_LIBRARY(per_replay_sample);
    per_replay_options options;
    if (!describe(replay, options)) return draw(replay, sample, batch_size, batch, stream);
    return with_staged_batch(replay, options, batch_size, drawn_rows(options, sample), batch,
                             [&](const per_batch* staged) { return draw(replay, sample, batch_size, staged, stream); });
}

per_status per_replay_sample_hindsight(per_replay* replay, const per_sample_options* sample,
                                       const per_hindsight_options* hindsight, int64_t batch_size,
                                       const per_batch* batch, void* stream) {
    auto* const draw = IN_LIBRARY(per_replay_sample_hindsight);
    per_replay_options options;
    if (!describe(replay, options)) return draw(replay, sample, hindsight, batch_size, batch, stream);
    return with_staged_batch(
        replay, options, batch_size, drawn_rows(options, sample), batch,
        [&](const per_batch* staged) { return draw(replay, sample, hindsight, batch_size, staged, stream); });
}

per_status per_replay_update_priorities(per_replay* replay, int64_t count, const int64_t* ids, int64_t n_critics,
                                        const float* td_errors, void* stream) {
    auto* const update = IN_LIBRARY(per_replay_update_priorities);
    per_replay_options options;
    if (!describe(replay, options)) return update(replay, count, ids, n_critics, td_errors, stream);
    Staged staged;
    const int64_t* const ids_on_device = staged.array(ids, count);
    const int64_t n = count * n_critics * drawn_rows(options, nullptr).steps;
    const per_status status = update(replay, count, ids_on_device, n_critics, staged.array(td_errors, n), stream);
    if (status == PER_OK) wait(replay);
    return status;
}

per_status per_replay_set_priorities(per_replay* replay, int64_t count, const int64_t* ids, const float* priorities,
                                     void* stream) {
    auto* const set = IN_LIBRARY(per_replay_set_priorities);
    per_replay_options options;
    if (!describe(replay, options)) return set(replay, count, ids, priorities, stream);
    Staged staged;
    const int64_t* const ids_on_device = staged.array(ids, count);
    const per_status status = set(replay, count, ids_on_device, staged.array(priorities, count), stream);
    if (status == PER_OK) wait(replay);
    return status;
}

per_status per_replay_priorities(per_replay* replay, int64_t count, const int64_t* ids, float* priorities_out,
                                 void* stream) {
    auto* const read = IN_LIBRARY(per_replay_priorities);
    per_replay_options options;
    if (!describe(replay, options)) return read(replay, count, ids, priorities_out, stream);
    Staged staged;
    const int64_t* const ids_on_device = staged.array(ids, count);
    const per_status status = read(replay, count, ids_on_device, staged.array(priorities_out, count), stream);
    if (status != PER_OK) return status;
    wait(replay);
    staged.copy_back(priorities_out);
    return status;
}

per_status per_replay_get(per_replay* replay, int64_t count, const int64_t* ids, const per_batch* batch, void* stream) {
    auto* const get = IN_LIBRARY(per_replay_get);
    per_replay_options options;
    if (!describe(replay, options)) return get(replay, count, ids, batch, stream);
    Staged staged;
    const int64_t* const ids_on_device = staged.array(ids, count);
    return with_staged_batch(replay, options, count, {1, 1, true}, batch,
                             [&](const per_batch* rows) { return get(replay, count, ids_on_device, rows, stream); });
}

per_status per_replay_set(per_replay* replay, int64_t count, const int64_t* ids, const per_array* fields,
                          void* stream) {
    auto* const set = IN_LIBRARY(per_replay_set);
    per_replay_options options;
    if (!describe(replay, options) || fields == nullptr) return set(replay, count, ids, fields, stream);
    Staged staged;
    std::vector<per_array> on_device;
    for (int64_t i = 0; i < options.n_fields; ++i)
        on_device.push_back(staged_array(staged, fields[i], count * elements_of(options.fields[i])));
    const per_status status = set(replay, count, staged.array(ids, count), on_device.data(), stream);
    if (status == PER_OK) wait(replay);
    return status;
}

per_status per_replay_bootstraps(per_replay* replay, int64_t capacity, const per_batch* batch, int64_t* count_out,
                                 void* stream) {
    auto* const gather = IN_LIBRARY(per_replay_bootstraps);
    per_replay_options options;
    if (!describe(replay, options)) return gather(replay, capacity, batch, count_out, stream);
    return with_staged_batch(replay, options, capacity, {}, batch, [&](const per_batch* staged) {
        return gather(replay, capacity, staged, count_out, stream);
    });
}

per_status per_replay_advantages(per_replay* replay, int32_t value_field, int32_t advantage_field, int32_t return_field,
                                 double lambda, int64_t count, const int64_t* ids, const float* bootstrap_values,
                                 void* stream) {
    auto* const estimate = IN_LIBRARY(per_replay_advantages);
    per_replay_options options;
    Staged staged;
    const bool is_staged = describe(replay, options);
    if (is_staged) {
        ids = staged.array(ids, count);
        bootstrap_values = staged.array(bootstrap_values, count);
    }
    const per_status status =
        estimate(replay, value_field, advantage_field, return_field, lambda, count, ids, bootstrap_values, stream);
    if (is_staged && status == PER_OK) wait(replay);
    return status;
}

per_status per_epochs_create(per_replay* replay, int64_t n_epochs, int64_t batch_size, int32_t drop_last, void* stream,
                             per_epochs** epochs_out) {
    const per_status status =
        IN_LIBRARY(per_epochs_create)(replay, n_epochs, batch_size, drop_last, stream, epochs_out);
    const std::lock_guard<std::mutex> guard(mutex);
    if (status == PER_OK) walks()[*epochs_out] = {replay, batch_size};
    return status;
}

per_status per_epochs_next(per_epochs* epochs, const per_batch* batch, int64_t* count_out, void* stream) {
    auto* const next = IN_LIBRARY(per_epochs_next);
    Walk walk = {nullptr, 0};
    {
        const std::lock_guard<std::mutex> guard(mutex);
        if (const auto found = walks().find(epochs); found != walks().end()) walk = found->second;
    }
    per_replay_options options;
    if (!describe(walk.replay, options)) return next(epochs, batch, count_out, stream);
    return with_staged_batch(walk.replay, options, walk.batch_size, drawn_rows(options, nullptr), batch,
                             [&](const per_batch* staged) { return next(epochs, staged, count_out, stream); });
}

void per_epochs_free(per_epochs* epochs) {
    {
        const std::lock_guard<std::mutex> guard(mutex);
        walks().erase(epochs);
    }
    IN_LIBRARY(per_epochs_free)(epochs);
}

}  // extern "C"
