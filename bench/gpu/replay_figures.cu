// The benchmark's buffers: draws of all kinds, updates, adds, whole steps of training, loaders, images.
#include <per.h>

#include <cstring>

#include "figures.h"

namespace {

per_field field_of(const char* name, int32_t dtype, int32_t ndim, const int64_t* shape) {
    per_field field;
    std::memset(&field, 0, sizeof field);
    field.name = name;
    field.dtype = dtype;
    field.ndim = ndim;
    field.shape = shape;
    return field;
}

// Consecutive steps of all environments, in arrays of either memory: observations of a given size in bytes, and an
// action of at most 6 float32. Priorities are optional.
struct Steps {
    Steps(const per_replay_options& options, int64_t length, const uint8_t* observation, const float* others,
          const uint8_t* flags, bool with_priorities) {
        fields[0] = array_of(observation, options.fields[0].dtype);
        fields[1] = array_of(others, PER_FLOAT32);
        REQUIRE(per_steps_init(&steps, sizeof steps) == PER_OK);
        steps.length = length;
        steps.fields = fields;
        steps.reward = array_of(others, PER_FLOAT32);
        steps.terminated = array_of(flags, PER_BOOL);
        steps.truncated = array_of(flags, PER_BOOL);
        if (with_priorities) steps.priorities = array_of(others, PER_FLOAT32);
    }
    Steps(const Steps&) = delete;
    Steps& operator=(const Steps&) = delete;

    per_array fields[2];
    per_steps steps;
};

std::vector<uint8_t> observations(int64_t n, int64_t bytes) {
    return std::vector<uint8_t>(static_cast<std::size_t>(n * bytes), 0x3F);
}

std::vector<uint8_t> no_flags(int64_t n) {
    return std::vector<uint8_t>(static_cast<std::size_t>(n));
}

int64_t length_of_fill(const per_replay_options& options) {
    return std::max<int64_t>(1, std::min(options.capacity / options.n_envs, int64_t{65536} / options.n_envs));
}

void fill(per_replay* replay, const per_replay_options& options, const Steps& steps, cudaStream_t stream) {
    for (int64_t added = 0; added < options.capacity; added += steps.steps.length * options.n_envs)
        REQUIRE(per_replay_add(replay, &steps.steps, nullptr, stream) == PER_OK);
    REQUIRE(per_replay_synchronize(replay, stream) == PER_OK);
}

// A full buffer with observations of `bytes` bytes, whose initial priorities have been changed. NULL if the device has
// too little memory.
per_replay* create_replay(const per_replay_options& options, int64_t bytes, cudaStream_t stream) {
    per_replay* replay = nullptr;
    const per_status status = per_replay_create(&options, &replay);
    if (status == PER_ERROR_OUT_OF_MEMORY) return nullptr;
    REQUIRE(status == PER_OK);
    const int64_t length = length_of_fill(options);
    const int64_t n = length * options.n_envs;
    const DeviceArray<uint8_t> observation(observations(n, bytes), stream);
    const DeviceArray<float> others(random_priorities(6 * n, 4), stream);
    const DeviceArray<uint8_t> flags(no_flags(n), stream);
    fill(replay, options, Steps(options, length, observation.data(), others.data(), flags.data(), true), stream);
    return replay;
}

constexpr int64_t n_envs = 256;
constexpr int64_t observation_bytes = 17 * sizeof(float);

per_replay_options rows_options(int64_t capacity, int32_t device) {
    static const int64_t of_observation[] = {17}, of_action[] = {6};
    static const per_field fields[2] = {field_of("observation", PER_FLOAT32, 1, of_observation),
                                        field_of("action", PER_FLOAT32, 1, of_action)};
    per_replay_options options;
    REQUIRE(per_replay_options_init(&options, sizeof options) == PER_OK);
    options.capacity = capacity;
    options.n_envs = n_envs;
    options.fields = fields;
    options.n_fields = 2;
    options.field_size = sizeof(per_field);
    options.device = device;
    return options;
}

// The arrays of a batch of such rows.
struct Rows {
    explicit Rows(const BatchArrays& of, int64_t batch)
        : observation(17 * batch),
          next(17 * batch),
          action(6 * batch),
          reward(batch),
          discount(batch),
          terminated(batch),
          out{observation.data(), action.data()},
          next_out{next.data(), nullptr} {
        REQUIRE(per_batch_init(&rows, sizeof rows) == PER_OK);
        rows.fields = out;
        rows.next_fields = next_out;
        rows.reward = reward.data();
        rows.discount = discount.data();
        rows.terminated = terminated.data();
        rows.weights = of.weights.data();
        rows.ids = of.indices.data();
    }

    DeviceArray<float> observation, next, action, reward, discount;
    DeviceArray<uint8_t> terminated;
    void* out[2];
    void* next_out[2];
    per_batch rows;
};

// A kind of draw, selected by the options of a call. A buffer that was once asked for ranks, or for its smallest leaf,
// keeps them from then on, which makes updates and adds slower. So each kind has its own buffer.
struct Way {
    const char* variant;
    per_sample_options options;
    bool is_plain = false;
};

std::vector<Way> ways() {
    per_sample_options plain;
    REQUIRE(per_sample_options_init(&plain, sizeof plain) == PER_OK);
    std::vector<Way> all(4, Way{"libper", plain});
    all[0].is_plain = true;
    all[1].variant = "libper, PER_RANK";
    all[1].options.prioritization = PER_RANK;
    all[2].variant = "libper, PER_BUFFER_MAX";
    all[2].options.normalize_weights = PER_BUFFER_MAX;
    all[3].variant = "libper, without replacement";
    all[3].options.scheme = PER_WITHOUT_REPLACEMENT;
    return all;
}

// Adds of one step of all environments, and of 32.
void time_adds(Stopwatch& watch, per_replay* replay, const Way& way, const per_replay_options& options,
               cudaStream_t stream) {
    for (const int64_t length : {1, 32}) {
        const int64_t n = length * n_envs;
        const std::vector<uint8_t> host_observation = observations(n, observation_bytes), host_flags = no_flags(n);
        const std::vector<float> host_others = random_priorities(6 * n, 5);
        const DeviceArray<uint8_t> observation(host_observation, stream), flags(host_flags, stream);
        const DeviceArray<float> others(host_others, stream);
        const Steps here(options, length, observation.data(), others.data(), flags.data(), false);
        const Steps of_host(options, length, host_observation.data(), host_others.data(), host_flags.data(), false);
        const auto add = [&](const Steps& steps) {
            REQUIRE(per_replay_add(replay, &steps.steps, nullptr, stream) == PER_OK);
        };
        print("add", way.variant, options.capacity, n, watch.time([&] { add(here); }));
        if (way.is_plain)
            print("add", "libper, from host memory", options.capacity, n, watch.time_uncaptured([&] { add(of_host); }));
    }
    REQUIRE(per_replay_synchronize(replay, stream) == PER_OK);
}

per_priorities td_errors_of(int64_t n, const BatchArrays& arrays) {
    per_priorities priorities;
    REQUIRE(per_priorities_init(&priorities, sizeof priorities) == PER_OK);
    priorities.count = n;
    priorities.ids = arrays.indices.data();
    priorities.td_errors = arrays.given.data();
    return priorities;
}

// Draws; draws with updates; the same after an added step of every environment.
void time_steps(Stopwatch& watch, per_replay* replay, const Way& way, const per_replay_options& options, int64_t batch,
                cudaStream_t stream) {
    const BatchArrays arrays(batch, options.capacity, stream);
    const Rows rows(arrays, batch);
    const auto sample = [&] { REQUIRE(per_replay_sample(replay, &way.options, batch, &rows.rows, stream) == PER_OK); };
    print("rows", way.variant, options.capacity, batch, watch.time(sample));
    REQUIRE(per_replay_synchronize(replay, stream) == PER_OK);
    arrays.check(INT64_MAX, stream);
    const per_priorities priorities = td_errors_of(batch, arrays);
    const DeviceArray<uint8_t> observation(observations(n_envs, observation_bytes), stream);
    const DeviceArray<uint8_t> flags(no_flags(n_envs), stream);
    const DeviceArray<float> others(random_priorities(6 * n_envs, 5), stream);
    const Steps steps(options, 1, observation.data(), others.data(), flags.data(), false);
    const auto learn = [&] {
        sample();
        REQUIRE(per_replay_update_priorities(replay, &priorities, stream) == PER_OK);
    };
    print("step", way.variant, options.capacity, batch, watch.time(learn));
    print("step with add", way.variant, options.capacity, batch, watch.time([&] {
        REQUIRE(per_replay_add(replay, &steps.steps, nullptr, stream) == PER_OK);
        learn();
    }));
    REQUIRE(per_replay_synchronize(replay, stream) == PER_OK);
}

void time_updates(const Arguments& given, Stopwatch& watch, per_replay* replay, const Way& way, int64_t capacity,
                  cudaStream_t stream) {
    for (const int64_t n : sizes_of_updates(given)) {
        const BatchArrays arrays(n, capacity, stream);
        per_batch ids;
        REQUIRE(per_batch_init(&ids, sizeof ids) == PER_OK);
        ids.ids = arrays.indices.data();
        REQUIRE(per_replay_sample(replay, nullptr, n, &ids, stream) == PER_OK);
        const per_priorities priorities = td_errors_of(n, arrays);
        print("update of TD errors", way.variant, capacity, n,
              watch.time([&] { REQUIRE(per_replay_update_priorities(replay, &priorities, stream) == PER_OK); }));
    }
    REQUIRE(per_replay_synchronize(replay, stream) == PER_OK);
}

// Like create_replay(), in host memory.
per_replay* create_host_replay(const per_replay_options& options, int64_t bytes) {
    per_replay* replay = nullptr;
    REQUIRE(per_replay_create(&options, &replay) == PER_OK);
    const int64_t length = length_of_fill(options);
    const int64_t n = length * options.n_envs;
    const std::vector<uint8_t> observation = observations(n, bytes), flags = no_flags(n);
    const std::vector<float> others = random_priorities(6 * n, 4);
    fill(replay, options, Steps(options, length, observation.data(), others.data(), flags.data(), true), nullptr);
    return replay;
}

// Times a consumer that takes a batch and releases it without work in between: it waits for the loader.
void time_loader(const Arguments& given, Stopwatch& watch, per_replay* replay, const char* variant, int64_t capacity,
                 cudaStream_t stream, bool gathers_on_device = false) {
    for (const int64_t batch : given.batches) {
        per_loader_options options;
        per_loader* loader = nullptr;
        REQUIRE(per_loader_options_init(&options, sizeof options) == PER_OK);
        options.batch_size = batch;
        options.device = PER_CUDA;
        options.gather_on_device = gathers_on_device;
        REQUIRE(per_loader_create(replay, &options, &loader) == PER_OK);
        print("loader", variant, capacity, batch, watch.time_uncaptured([&] {
            per_batch rows;
            int64_t slot = -1;
            REQUIRE(per_batch_init(&rows, sizeof rows) == PER_OK);
            REQUIRE(per_loader_next(loader, -1, &rows, &slot, stream) == PER_OK);
            REQUIRE(per_loader_release(loader, slot, stream) == PER_OK);
        }));
        per_loader_free(loader);
    }
}

}  // namespace

void time_replay(const Arguments& given, int64_t capacity, cudaStream_t stream) {
    const per_replay_options options = rows_options(capacity, PER_CUDA);
    const int64_t largest = *std::max_element(given.updates.begin(), given.updates.end());
    Stopwatch watch(stream, given.seconds);
    for (const Way& way : ways()) {
        per_replay* const replay = create_replay(options, observation_bytes, stream);
        if (replay == nullptr) return print_left_out(way.variant, capacity, "out of memory");
        // A call allocates memory the first time that its options differ from the buffer's, or that its batch is
        // larger. It cannot do so after a capture.
        const BatchArrays arrays(largest, capacity, stream);
        per_batch ids;
        REQUIRE(per_batch_init(&ids, sizeof ids) == PER_OK);
        ids.ids = arrays.indices.data();
        const bool is_distinct = way.options.scheme == PER_WITHOUT_REPLACEMENT;
        per_status status = per_replay_sample(replay, nullptr, largest, &ids, stream);
        if (status == PER_OK)
            status =
                per_replay_sample(replay, &way.options, is_distinct ? given.batches.front() : largest, &ids, stream);
        REQUIRE(status == PER_OK || status == PER_ERROR_OUT_OF_MEMORY);
        if (status == PER_OK) {
            for (const int64_t batch : given.batches) time_steps(watch, replay, way, options, batch, stream);
            time_updates(given, watch, replay, way, capacity, stream);
            time_adds(watch, replay, way, options, stream);
            if (way.is_plain) time_loader(given, watch, replay, way.variant, capacity, stream);
        } else {
            print_left_out(way.variant, capacity, "out of memory");
        }
        per_replay_free(replay);
    }
}

void time_host_loader(const Arguments& given, int64_t capacity, cudaStream_t stream) {
    per_replay* const replay = create_host_replay(rows_options(capacity, PER_CPU), observation_bytes);
    Stopwatch watch(stream, given.seconds);
    time_loader(given, watch, replay, "libper, buffer in host memory", capacity, stream);
    per_replay_free(replay);
}

namespace {

constexpr int64_t bytes_of_image = 84 * 84;

per_replay_options image_options(int64_t capacity, int32_t device) {
    static const int64_t shape[] = {84, 84};
    static const per_field fields[2] = {field_of("observation", PER_UINT8, 2, shape),
                                        field_of("action", PER_FLOAT32, 0, nullptr)};
    per_replay_options options;
    REQUIRE(per_replay_options_init(&options, sizeof options) == PER_OK);
    options.capacity = capacity;
    options.n_envs = 16;
    options.frame_stack = 4;
    options.fields = fields;
    options.n_fields = 2;
    options.field_size = sizeof(per_field);
    options.device = device;
    return options;
}

}  // namespace

void time_host_images(const Arguments& given, cudaStream_t stream) {
    per_replay* const replay = create_host_replay(image_options(given.images, PER_CPU), bytes_of_image);
    Stopwatch watch(stream, given.seconds);
    time_loader(given, watch, replay, "libper, images in host memory", given.images, stream);
    time_loader(given, watch, replay, "libper, images gathered by the device", given.images, stream, true);
    per_replay_free(replay);
}

void time_images(const Arguments& given, cudaStream_t stream) {
    constexpr int64_t bytes = bytes_of_image;
    per_replay* const replay = create_replay(image_options(given.images, PER_CUDA), bytes, stream);
    if (replay == nullptr) return print_left_out("images", given.images, "out of memory");
    Stopwatch watch(stream, given.seconds);
    for (const int64_t batch : given.batches) {
        const int64_t n_bytes = batch * 4 * bytes;
        const DeviceArray<uint8_t> observation(n_bytes), next(n_bytes);
        const DeviceArray<int64_t> ids(batch);
        void* const out[2] = {observation.data(), nullptr};
        void* const next_out[2] = {next.data(), nullptr};
        per_batch rows;
        REQUIRE(per_batch_init(&rows, sizeof rows) == PER_OK);
        rows.fields = out;
        rows.next_fields = next_out;
        rows.ids = ids.data();
        const std::string more = ", \"bytes\": " + std::to_string(2 * n_bytes);
        print("images", "libper", given.images, batch,
              watch.time([&] { REQUIRE(per_replay_sample(replay, nullptr, batch, &rows, stream) == PER_OK); }), more);
        REQUIRE(per_replay_synchronize(replay, stream) == PER_OK);
        const DeviceArray<uint8_t> from(2 * n_bytes), to(2 * n_bytes);
        print("images", "one copy of the device", given.images, batch, watch.time([&] {
            REQUIRE_CUDA(cudaMemcpyAsync(to.data(), from.data(), static_cast<std::size_t>(2 * n_bytes),
                                         cudaMemcpyDeviceToDevice, stream));
        }),
              more);
    }
    per_replay_free(replay);
}
