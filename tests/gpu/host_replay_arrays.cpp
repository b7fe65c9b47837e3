#include <map>
#include <memory>
#include <optional>
#include <type_traits>

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

// Stages an array with the size of its shape; n_full if it has no shape.
per_array staged_array(Staged& staged, per_array array, int64_t n_full) {
    int64_t n = n_full;
    if (array.shape != nullptr) {
        n = 1;
        for (int32_t i = 0; i < array.ndim; ++i) n *= array.shape[i];
    }
    array.data = staged.bytes(array.data, n * size_of(array.dtype));
    return array;
}

// The shape of a row of a batch.
struct RowShape {
    int64_t observations = 1;  // a row
    int64_t steps = 1;         // values of step-wise arrays, and of other fields
    bool is_single_frame = false;
};

RowShape drawn_rows(const per_replay_options& options, const per_sample_options* sample) {
    if (options.sequence_length == 0) return {};
    const int64_t steps = options.burn_in + options.sequence_length;
    // libper refuses an n_step above the buffer's, and the arrays then have no room for it.
    const bool has_own = sample != nullptr && sample->n_step > 0 && sample->n_step < options.n_step;
    const int64_t n_step = has_own ? sample->n_step : options.n_step;
    return {steps + n_step, steps, false};
}

// A batch of n rows like another one, except for the addresses of its arrays.
class Batch {
 public:
    // `place` returns the address of an array here, given the array and its bytes; NULL stays NULL.
    template <class Place>
    Batch(const per_batch& other, const per_replay_options& options, int64_t n, RowShape shape, const Place& place)
        : batch_(other) {
        const auto put = [&](auto*& array, int64_t count) {
            using Element = std::remove_reference_t<decltype(*array)>;
            array = static_cast<Element*>(place(array, count * static_cast<int64_t>(sizeof *array)));
        };
        const auto put_fields = [&](void* const*& fields, std::vector<void*>& own, bool is_next) {
            if (fields == nullptr) return;
            for (int64_t i = 0; i < options.n_fields; ++i) {
                const per_field& field = options.fields[i];
                const bool is_used = !is_next || field.role == PER_ROLE_OBSERVATION;
                own.push_back(is_used ? place(fields[i], n * bytes_of_row(field, shape, is_next)) : nullptr);
            }
            fields = own.data();
        };
        put_fields(batch_.fields, fields_, false);
        put_fields(batch_.next_fields, next_fields_, true);
        put(batch_.reward, n * shape.steps);
        put(batch_.discount, n * shape.steps);
        put(batch_.n_steps, n * shape.steps);
        put(batch_.terminated, n * shape.steps);
        put(batch_.truncated, n * shape.steps);
        put(batch_.mask, n * shape.steps);
        put(batch_.gamma_m, n * shape.steps);
        put(batch_.weights, n);
        put(batch_.ids, n);
        put(batch_.priorities, n);
        put(batch_.probabilities, n);
        put(batch_.times_sampled, n);
    }
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

    const per_batch& get() const { return batch_; }

 private:
    static int64_t bytes_of_row(const per_field& field, RowShape shape, bool is_next) {
        const bool is_observation = field.role == PER_ROLE_OBSERVATION;
        const int64_t stack = shape.is_single_frame ? 1 : field.stack;
        const int64_t times = is_observation                           ? (is_next ? 1 : shape.observations)
                              : field.role == PER_ROLE_RECURRENT_STATE ? 1
                                                                       : shape.steps;
        return times * stack * elements_of(field) * size_of(field.dtype);
    }

    per_batch batch_;
    std::vector<void*> fields_, next_fields_;
};

// A batch of n rows with its arrays on the device, if the arguments are valid.
class StagedBatch {
 public:
    StagedBatch(Staged& staged, const per_replay_options& options, int64_t n, RowShape shape, const per_batch* batch)
        : given_(batch) {
        per_batch sized;
        require(per_batch_init(&sized, sizeof sized) == PER_OK, "per_batch_init");
        if (!staged.is_on_cuda() || batch == nullptr || n < 0 || n > largest_count ||
            batch->struct_size != sized.struct_size)
            return;
        staged_.emplace(*batch, options, n, shape,
                        [&](void* array, int64_t n_bytes) { return staged.bytes(array, n_bytes); });
    }

    const per_batch* get() const { return staged_ ? &staged_->get() : given_; }

 private:
    const per_batch* const given_;
    std::optional<Batch> staged_;
};

// Host copies of the batches of a loader on the device.
struct HostSlots {
    per_replay* replay;
    int64_t batch_size;
    int64_t n_step;                                                  // of the loader; 0: that of the buffer
    std::map<int64_t, std::vector<std::unique_ptr<char[]>>> arrays;  // by slot, allocated when it is first handed out
    std::map<int64_t, std::unique_ptr<Batch>> batches;
};

std::map<const per_loader*, HostSlots>& loaders() {
    static std::map<const per_loader*, HostSlots> all;
    return all;
}

// Steps with their arrays on the device, if the arguments are valid.
class StagedSteps {
 public:
    StagedSteps(Staged& staged, const per_replay_options& options, const per_steps* steps) : given_(steps) {
        require(per_steps_init(&staged_, sizeof staged_) == PER_OK, "per_steps_init");
        is_staged_ = staged.is_on_cuda() && steps != nullptr && steps->struct_size == staged_.struct_size &&
                     steps->length >= 0 && steps->n_envs >= 0 && steps->fields != nullptr;
        if (!is_staged_) return;
        staged_ = *steps;
        n_ = steps->length * (steps->env_ids != nullptr ? steps->n_envs : options.n_envs);
        for (int64_t i = 0; i < options.n_fields; ++i) {
            const per_field& field = options.fields[i];
            const bool is_observation = field.role == PER_ROLE_OBSERVATION;
            fields_.push_back(staged_array(staged, steps->fields[i], n_ * elements_of(field)));
            if (steps->next_fields == nullptr) continue;
            const per_array& next = steps->next_fields[i];
            next_fields_.push_back(is_observation ? staged_array(staged, next, n_ * elements_of(field)) : next);
        }
        staged_.fields = fields_.data();
        if (steps->next_fields != nullptr) staged_.next_fields = next_fields_.data();
        for (per_array* array : {&staged_.reward, &staged_.terminated, &staged_.truncated, &staged_.mask,
                                 &staged_.next_mask, &staged_.priorities, &staged_.td_errors})
            *array = staged_array(staged, *array, n_);
    }

    const per_steps* get() const { return is_staged_ ? &staged_ : given_; }
    int64_t n() const { return n_; }

 private:
    const per_steps* const given_;
    bool is_staged_;
    int64_t n_ = 0;
    per_steps staged_;
    std::vector<per_array> fields_, next_fields_;
};

// Like host_arrays::with_staged(), for a buffer. Passes its options on to the call.
template <class Call>
per_status with_staged(per_replay* replay, const Call& call) {
    per_replay_options options;
    require(per_replay_options_init(&options, sizeof options) == PER_OK, "per_replay_options_init");
    const bool is_on_cuda =
        replay != nullptr && per_replay_describe(replay, &options) == PER_OK && options.device == PER_CUDA;
    return host_arrays::with_staged(replay, is_on_cuda, [&](Staged& staged) { return call(staged, options); });
}

using Options = const per_replay_options&;

// Priorities with their arrays on the device, if the struct is valid.
class StagedPriorities {
 public:
    StagedPriorities(Staged& staged, Options options, const per_priorities* priorities) : given_(priorities) {
        require(per_priorities_init(&staged_, sizeof staged_) == PER_OK, "per_priorities_init");
        if (priorities == nullptr || priorities->struct_size != staged_.struct_size) return;
        given_ = &staged_;
        staged_ = *priorities;
        const int64_t n_steps = staged_.n_steps != 0 ? staged_.n_steps : drawn_rows(options, nullptr).steps;
        staged_.ids = staged.array(staged_.ids, staged_.count);
        staged_.td_errors = staged.array(staged_.td_errors, staged_.n_critics * staged_.count * n_steps);
        staged_.priorities = staged.array(staged_.priorities, staged_.count);
    }
    StagedPriorities(const StagedPriorities&) = delete;
    StagedPriorities& operator=(const StagedPriorities&) = delete;

    const per_priorities* get() const { return given_; }
    int64_t count() const { return given_ == &staged_ ? staged_.count : 0; }

 private:
    const per_priorities* given_;
    per_priorities staged_;
};

// The buffer whose options tell the shapes of a mixture's arrays, and whose calls include all work of the mixture.
per_replay* first_of(const per_source* sources, int64_t n_sources) {
    return sources != nullptr && n_sources > 0 ? sources[0].replay : nullptr;
}

// Copies a batch to the host arrays of its slot.
void copy_to_host(HostSlots& slots, int64_t slot, per_batch& batch, cudaStream_t stream) {
    per_replay_options options;
    require(per_replay_options_init(&options, sizeof options) == PER_OK, "per_replay_options_init");
    require(per_replay_describe(slots.replay, &options) == PER_OK, "per_replay_describe");
    per_sample_options sample;
    require(per_sample_options_init(&sample, sizeof sample) == PER_OK, "per_sample_options_init");
    sample.n_step = static_cast<decltype(sample.n_step)>(slots.n_step);
    std::vector<std::unique_ptr<char[]>>& arrays = slots.arrays[slot];
    std::size_t n = 0;
    const auto copied = [&](const void* array, int64_t n_bytes) -> void* {
        if (array == nullptr) return nullptr;
        const std::size_t size = static_cast<std::size_t>(n_bytes);
        if (n == arrays.size()) arrays.push_back(std::make_unique<char[]>(size));
        void* const to = arrays[n++].get();
        require(cudaMemcpyAsync(to, array, size, cudaMemcpyDeviceToHost, stream) == cudaSuccess, "cudaMemcpyAsync");
        return to;
    };
    slots.batches[slot] =
        std::make_unique<Batch>(batch, options, slots.batch_size, drawn_rows(options, &sample), copied);
    require(cudaStreamSynchronize(stream) == cudaSuccess, "cudaStreamSynchronize");
    batch = slots.batches[slot]->get();
}

}  // namespace

extern "C" {

per_status per_replay_add(per_replay* replay, const per_steps* steps, int64_t* ids_out, void* stream) {
    return with_staged(replay, [&](Staged& staged, Options options) {
        const StagedSteps given(staged, options, steps);
        return IN_LIBRARY(per_replay_add)(replay, given.get(), staged.array(ids_out, given.n()), stream);
    });
}

per_status per_replay_sample(per_replay* replay, const per_sample_options* sample, int64_t batch_size,
                             const per_batch* batch, void* stream) {
    return with_staged(replay, [&](Staged& staged, Options options) {
        const StagedBatch rows(staged, options, batch_size, drawn_rows(options, sample), batch);
        per_sample_options given;
        require(per_sample_options_init(&given, sizeof given) == PER_OK, "per_sample_options_init");
        if (sample == nullptr || sample->struct_size != given.struct_size)
            return IN_LIBRARY(per_replay_sample)(replay, sample, batch_size, rows.get(), stream);
        given = *sample;
        given.key = staged.array(given.key, 2);
        return IN_LIBRARY(per_replay_sample)(replay, &given, batch_size, rows.get(), stream);
    });
}

per_status per_replay_update_priorities(per_replay* replay, const per_priorities* priorities, void* stream) {
    return with_staged(replay, [&](Staged& staged, Options options) {
        const StagedPriorities given(staged, options, priorities);
        return IN_LIBRARY(per_replay_update_priorities)(replay, given.get(), stream);
    });
}

per_status per_mixture_sample(per_source* sources, int64_t n_sources, const per_sample_options* sample,
                              int64_t batch_size, const per_batch* batch, int32_t* sources_out, void* stream) {
    return with_staged(first_of(sources, n_sources), [&](Staged& staged, Options options) {
        const StagedBatch rows(staged, options, batch_size, drawn_rows(options, sample), batch);
        return IN_LIBRARY(per_mixture_sample)(sources, n_sources, sample, batch_size, rows.get(),
                                              staged.array(sources_out, batch_size), stream);
    });
}

per_status per_mixture_update_priorities(const per_source* sources, int64_t n_sources, const per_priorities* priorities,
                                         const int32_t* source_of, void* stream) {
    return with_staged(first_of(sources, n_sources), [&](Staged& staged, Options options) {
        const StagedPriorities given(staged, options, priorities);
        return IN_LIBRARY(per_mixture_update_priorities)(sources, n_sources, given.get(),
                                                         staged.array(source_of, given.count()), stream);
    });
}

per_status per_replay_get_priorities(per_replay* replay, int64_t count, const int64_t* ids, float* priorities_out,
                                     void* stream) {
    return with_staged(replay, [&](Staged& staged, Options) {
        return IN_LIBRARY(per_replay_get_priorities)(replay, count, staged.array(ids, count),
                                                     staged.array(priorities_out, count), stream);
    });
}

per_status per_replay_get(per_replay* replay, int64_t count, const int64_t* ids, const per_batch* batch, void* stream) {
    return with_staged(replay, [&](Staged& staged, Options options) {
        const StagedBatch rows(staged, options, count, {1, 1, true}, batch);
        return IN_LIBRARY(per_replay_get)(replay, count, staged.array(ids, count), rows.get(), stream);
    });
}

per_status per_replay_get_windows(per_replay* replay, const per_sample_options* sample, int32_t on_invalid,
                                  int64_t count, const int64_t* ids, const per_batch* batch, void* stream) {
    return with_staged(replay, [&](Staged& staged, Options options) {
        const StagedBatch rows(staged, options, count, drawn_rows(options, sample), batch);
        return IN_LIBRARY(per_replay_get_windows)(replay, sample, on_invalid, count, staged.array(ids, count),
                                                  rows.get(), stream);
    });
}

per_status per_replay_get_units(per_replay* replay, const per_sample_options* sample, int64_t count,
                                const int64_t* units, const per_batch* batch, uint64_t* masses_out,
                                uint64_t* first_units_out, void* stream) {
    return with_staged(replay, [&](Staged& staged, Options options) {
        const StagedBatch rows(staged, options, count, drawn_rows(options, sample), batch);
        return IN_LIBRARY(per_replay_get_units)(replay, sample, count, staged.array(units, count), rows.get(),
                                                staged.array(masses_out, count), staged.array(first_units_out, count),
                                                stream);
    });
}

per_status per_replay_set(per_replay* replay, int64_t count, const int64_t* ids, const per_array* fields,
                          void* stream) {
    return with_staged(replay, [&](Staged& staged, Options options) {
        std::vector<per_array> arrays;
        for (int64_t i = 0; fields != nullptr && i < options.n_fields; ++i)
            arrays.push_back(staged_array(staged, fields[i], count * elements_of(options.fields[i])));
        return IN_LIBRARY(per_replay_set)(replay, count, staged.array(ids, count), arrays.data(), stream);
    });
}

per_status per_replay_get_bootstraps(per_replay* replay, int64_t capacity, const per_batch* batch, int64_t* count_out,
                                     void* stream) {
    return with_staged(replay, [&](Staged& staged, Options options) {
        const StagedBatch rows(staged, options, capacity, {}, batch);
        return IN_LIBRARY(per_replay_get_bootstraps)(replay, capacity, rows.get(), count_out, stream);
    });
}

per_status per_replay_compute_advantages(per_replay* replay, int32_t value_field, int32_t advantage_field,
                                         int32_t return_field, double lambda, int64_t count, const int64_t* ids,
                                         const float* bootstrap_values, void* stream) {
    return with_staged(replay, [&](Staged& staged, Options) {
        return IN_LIBRARY(per_replay_compute_advantages)(replay, value_field, advantage_field, return_field, lambda,
                                                         count, staged.array(ids, count),
                                                         staged.array(bootstrap_values, count), stream);
    });
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
    Walk walk = {nullptr, 0};
    {
        const std::lock_guard<std::mutex> guard(mutex);
        if (const auto found = walks().find(epochs); found != walks().end()) walk = found->second;
    }
    return with_staged(walk.replay, [&](Staged& staged, Options options) {
        const StagedBatch rows(staged, options, walk.batch_size, drawn_rows(options, nullptr), batch);
        return IN_LIBRARY(per_epochs_next)(epochs, rows.get(), count_out, stream);
    });
}

void per_epochs_free(per_epochs* epochs) {
    {
        const std::lock_guard<std::mutex> guard(mutex);
        walks().erase(epochs);
    }
    IN_LIBRARY(per_epochs_free)(epochs);
}

per_status per_loader_create(per_replay* replay, const per_loader_options* options, per_loader** loader_out) {
    const per_status status = IN_LIBRARY(per_loader_create)(replay, options, loader_out);
    if (status != PER_OK || options->device != PER_CUDA) return status;
    const std::lock_guard<std::mutex> guard(mutex);
    loaders()[*loader_out] = {
        replay, options->batch_size, options->sample != nullptr ? options->sample->n_step : 0, {}, {}};
    return status;
}

per_status per_loader_next(per_loader* loader, int64_t timeout_ms, per_batch* batch_out, int64_t* slot_out,
                           void* stream) {
    const per_status status = IN_LIBRARY(per_loader_next)(loader, timeout_ms, batch_out, slot_out, stream);
    if (status != PER_OK) return status;
    const std::lock_guard<std::mutex> guard(mutex);
    if (const auto found = loaders().find(loader); found != loaders().end())
        copy_to_host(found->second, *slot_out, *batch_out, static_cast<cudaStream_t>(stream));
    return status;
}

void per_loader_free(per_loader* loader) {
    IN_LIBRARY(per_loader_free)(loader);
    const std::lock_guard<std::mutex> guard(mutex);
    loaders().erase(loader);
}

}  // extern "C"
