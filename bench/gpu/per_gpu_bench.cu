// Times libper on a CUDA device, through per.h, beside a sum tree of float atomics (float_tree.h) and the device's copy
// bandwidth. One line of JSON a figure, medians in microseconds; exits with 77 where there is no device.
//
//     per_gpu_bench [--capacity N...] [--batch B...] [--images ROWS] [--seconds S]
//
// What is timed is looked at afterwards: indices in range, weights in (0, 1], no entry refused by the device.
#include <per.h>

#include <cinttypes>
#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "../../tests/gpu/require.h"
#include "device_array.h"
#include "float_tree.h"

namespace {

struct Arguments {
    std::vector<int64_t> capacities = {1000000, 100000000, 1000000000};
    std::vector<int64_t> batches = {256, 1024, 4096};
    int64_t images = 200000;
    double seconds = 0.5;
};

constexpr double beta = 0.4;
constexpr int64_t most_entries_a_call = int64_t{1} << 22;

void print(const char* what, const char* variant, int64_t capacity, int64_t batch, const Timing& t,
           const std::string& more = "") {
    std::printf("{\"case\": \"%s\", \"variant\": \"%s\", \"capacity\": %" PRId64 ", \"batch\": %" PRId64
                ", \"call_us\": %.2f, \"in_burst_us\": %.2f, \"graph_call_us\": %.2f, \"graph_in_burst_us\": %.2f%s}\n",
                what, variant, capacity, batch, t.call, t.in_burst, t.graph_call, t.graph_in_burst, more.c_str());
    std::fflush(stdout);
}

void print_left_out(const char* what, int64_t capacity, const char* why) {
    std::printf("{\"case\": \"%s\", \"capacity\": %" PRId64 ", \"left_out\": \"%s\"}\n", what, capacity, why);
}

// Like |TD error|^0.6 with TD errors of an exponential law.
std::vector<float> random_priorities(int64_t n, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<float> priorities;
    for (int64_t i = 0; i < n; ++i) {
        const double uniform = (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
        priorities.push_back(static_cast<float>(std::pow(-std::log(uniform), 0.6)));
    }
    return priorities;
}

std::vector<int64_t> random_indices(int64_t n, int64_t capacity, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < n; ++i) indices.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(capacity)));
    return indices;
}

// What a batch goes to, and what updates come from.
struct BatchArrays {
    BatchArrays(int64_t batch, int64_t capacity, cudaStream_t stream)
        : size(batch),
          indices(batch),
          priorities(batch),
          weights(batch),
          updated(random_indices(batch, capacity, 1), stream),
          given(random_priorities(batch, 2), stream) {}

    void check(int64_t capacity, cudaStream_t stream) const {
        for (const int64_t index : indices.read(size, stream)) REQUIRE(index >= 0 && index < capacity);
        for (const float weight : weights.read(size, stream)) REQUIRE(weight > 0.0f && weight <= 1.0f);
    }

    int64_t size;
    DeviceArray<int64_t> indices;
    DeviceArray<float> priorities;
    DeviceArray<float> weights;
    DeviceArray<int64_t> updated;
    DeviceArray<float> given;
};

// ------------------------------------------------------------------------------------------------------- trees

// NULL where the memory of the device does not suffice; ends the program where there is no device.
per_tree* create_tree(int64_t capacity, cudaStream_t stream) {
    per_tree_options options;
    per_tree* tree = nullptr;
    REQUIRE(per_tree_options_init(&options, sizeof options) == PER_OK);
    options.capacity = capacity;
    options.device = PER_CUDA;
    const per_status status = per_tree_create(&options, &tree);
    if (status == PER_ERROR_OUT_OF_MEMORY) return nullptr;
    REQUIRE(status == PER_OK);
    const int64_t chunk = std::min(capacity, most_entries_a_call);
    const DeviceArray<float> priorities(random_priorities(chunk, 3), stream);
    for (int64_t first = 0; first < capacity; first += chunk) {
        const int64_t n = std::min(chunk, capacity - first);
        std::vector<int64_t> indices(static_cast<std::size_t>(n));
        for (int64_t i = 0; i < n; ++i) indices[static_cast<std::size_t>(i)] = first + i;
        const DeviceArray<int64_t> on_device(indices, stream);
        REQUIRE(per_update(tree, n, on_device.data(), priorities.data(), stream) == PER_OK);
        REQUIRE(per_tree_synchronize(tree, stream) == PER_OK);
    }
    return tree;
}

void time_tree(const Arguments& given, int64_t capacity, cudaStream_t stream) {
    per_tree* const tree = create_tree(capacity, stream);
    if (tree == nullptr) return print_left_out("tree", capacity, "out of memory");
    Stopwatch watch(stream, given.seconds);
    for (const int64_t batch : given.batches) {
        const BatchArrays arrays(batch, capacity, stream);
        const Timing sample = watch.time([&] {
            REQUIRE(per_sample(tree, batch, PER_STRATIFIED, beta, arrays.indices.data(), arrays.priorities.data(),
                               arrays.weights.data(), stream) == PER_OK);
        });
        REQUIRE(per_tree_synchronize(tree, stream) == PER_OK);
        arrays.check(capacity, stream);
        print("sample", "libper", capacity, batch, sample);
        const Timing update = watch.time(
            [&] { REQUIRE(per_update(tree, batch, arrays.updated.data(), arrays.given.data(), stream) == PER_OK); });
        REQUIRE(per_tree_synchronize(tree, stream) == PER_OK);
        print("update", "libper", capacity, batch, update);
    }
    per_tree_free(tree);
}

// The rows of the cases `rows`: observation 17, action 6, reward and flag, 24 words of 4 bytes.
constexpr int64_t n_words = 24;

void time_float_tree(const Arguments& given, int64_t capacity, cudaStream_t stream) {
    const int64_t n_leaves = float_tree_leaves(capacity);
    void* memory = nullptr;
    if (cudaMalloc(&memory, static_cast<std::size_t>(2 * n_leaves) * sizeof(float)) != cudaSuccess)
        return print_left_out("float tree", capacity, "out of memory");
    const FloatTree tree = {static_cast<float*>(memory), n_leaves, capacity};
    REQUIRE_CUDA(cudaMemsetAsync(memory, 0, static_cast<std::size_t>(2 * n_leaves) * sizeof(float), stream));
    const int64_t chunk = std::min(capacity, most_entries_a_call);
    const std::vector<float> priorities = random_priorities(chunk, 3);
    for (int64_t first = 0; first < capacity; first += chunk)
        REQUIRE_CUDA(cudaMemcpyAsync(tree.sums + n_leaves + first, priorities.data(),
                                     static_cast<std::size_t>(std::min(chunk, capacity - first)) * sizeof(float),
                                     cudaMemcpyHostToDevice, stream));
    REQUIRE_CUDA(float_tree_build(tree, stream));
    REQUIRE_CUDA(cudaStreamSynchronize(stream));
    void* rows = nullptr;
    const bool has_rows =
        cudaMalloc(&rows, static_cast<std::size_t>(capacity * n_words) * sizeof(uint32_t)) == cudaSuccess;
    Stopwatch watch(stream, given.seconds);
    for (const int64_t batch : given.batches) {
        const BatchArrays arrays(batch, capacity, stream);
        const DeviceArray<float> uniforms(batch), largest(1);
        const DeviceArray<uint32_t> rows_out(batch * n_words);
        const FloatTreeBatch out = {
            batch,         uniforms.data(), arrays.indices.data(), arrays.priorities.data(), arrays.weights.data(),
            largest.data()};
        REQUIRE_CUDA(float_tree_uniforms(tree, out, 5, stream));
        print("draw", "float tree, bare kernel", capacity, batch,
              watch.time([&] { REQUIRE_CUDA(float_tree_draw(tree, out, stream)); }));
        const auto sample = [&] {
            REQUIRE_CUDA(float_tree_uniforms(tree, out, 5, stream));
            REQUIRE_CUDA(float_tree_draw(tree, out, stream));
            REQUIRE_CUDA(float_tree_weigh(tree, out, static_cast<float>(beta), stream));
        };
        print("sample", "float tree", capacity, batch, watch.time(sample));
        arrays.check(capacity, stream);
        if (has_rows)
            print("rows", "float tree", capacity, batch, watch.time([&] {
                sample();
                REQUIRE_CUDA(
                    float_tree_gather(out, static_cast<const uint32_t*>(rows), n_words, rows_out.data(), stream));
            }));
        print("update", "float tree", capacity, batch, watch.time([&] {
            REQUIRE_CUDA(float_tree_update(tree, batch, arrays.updated.data(), arrays.given.data(), stream));
        }));
    }
    REQUIRE_CUDA(cudaFree(rows));
    REQUIRE_CUDA(cudaFree(memory));
}

// ----------------------------------------------------------------------------------------------------- buffers

per_array array_of(const void* data, int32_t dtype) {
    per_array array;
    std::memset(&array, 0, sizeof array);
    array.data = data;
    array.dtype = dtype;
    return array;
}

per_field field_of(const char* name, int32_t dtype, int32_t ndim, const int64_t* shape) {
    per_field field;
    std::memset(&field, 0, sizeof field);
    field.name = name;
    field.dtype = dtype;
    field.ndim = ndim;
    field.shape = shape;
    return field;
}

// Full, of rows whose observations have `bytes` bytes, with other priorities than at first. NULL as create_tree().
per_replay* create_replay(const per_replay_options& options, int64_t bytes, cudaStream_t stream) {
    per_replay* replay = nullptr;
    const per_status status = per_replay_create(&options, &replay);
    if (status == PER_ERROR_OUT_OF_MEMORY) return nullptr;
    REQUIRE(status == PER_OK);
    const int64_t length =
        std::max<int64_t>(1, std::min(options.capacity / options.n_envs, int64_t{65536} / options.n_envs));
    const int64_t n = length * options.n_envs;
    const DeviceArray<uint8_t> observation(std::vector<uint8_t>(static_cast<std::size_t>(n * bytes), 0x3F), stream);
    const DeviceArray<float> other(random_priorities(6 * n, 4), stream);
    const DeviceArray<uint8_t> flags(std::vector<uint8_t>(static_cast<std::size_t>(n)), stream);
    const per_array fields[2] = {array_of(observation.data(), options.fields[0].dtype),
                                 array_of(other.data(), PER_FLOAT32)};
    per_steps steps;
    REQUIRE(per_steps_init(&steps, sizeof steps) == PER_OK);
    steps.length = length;
    steps.fields = fields;
    steps.reward = array_of(other.data(), PER_FLOAT32);
    steps.terminated = array_of(flags.data(), PER_BOOL);
    steps.truncated = array_of(flags.data(), PER_BOOL);
    steps.priorities = array_of(other.data(), PER_FLOAT32);
    for (int64_t added = 0; added < options.capacity; added += n)
        REQUIRE(per_replay_add(replay, &steps, nullptr, stream) == PER_OK);
    REQUIRE(per_replay_synchronize(replay, stream) == PER_OK);
    return replay;
}

constexpr int64_t n_envs = 256;

void time_replay(const Arguments& given, int64_t capacity, cudaStream_t stream) {
    static const int64_t of_observation[] = {17}, of_action[] = {6};
    const per_field fields[2] = {field_of("observation", PER_FLOAT32, 1, of_observation),
                                 field_of("action", PER_FLOAT32, 1, of_action)};
    per_replay_options options;
    REQUIRE(per_replay_options_init(&options, sizeof options) == PER_OK);
    options.capacity = capacity;
    options.n_envs = n_envs;
    options.fields = fields;
    options.n_fields = 2;
    options.device = PER_CUDA;
    per_replay* const replay = create_replay(options, 17 * sizeof(float), stream);
    if (replay == nullptr) return print_left_out("rows", capacity, "out of memory");
    Stopwatch watch(stream, given.seconds);
    for (const int64_t batch : given.batches) {
        const BatchArrays arrays(batch, capacity, stream);
        const DeviceArray<float> observation(17 * batch), next(17 * batch), action(6 * batch), reward(batch);
        const DeviceArray<float> discount(batch);
        const DeviceArray<uint8_t> terminated(batch);
        void* const out[2] = {observation.data(), action.data()};
        void* const next_out[2] = {next.data(), nullptr};
        per_batch rows;
        REQUIRE(per_batch_init(&rows, sizeof rows) == PER_OK);
        rows.fields = out;
        rows.next_fields = next_out;
        rows.reward = reward.data();
        rows.discount = discount.data();
        rows.terminated = terminated.data();
        rows.weights = arrays.weights.data();
        rows.ids = arrays.indices.data();
        const auto sample = [&] { REQUIRE(per_replay_sample(replay, nullptr, batch, &rows, stream) == PER_OK); };
        const auto update = [&] {
            REQUIRE(per_replay_update_priorities(replay, batch, arrays.indices.data(), 1, arrays.given.data(),
                                                 stream) == PER_OK);
        };
        const auto step = [&] {
            sample();
            update();
        };
        print("rows", "libper", capacity, batch, watch.time(sample));
        REQUIRE(per_replay_synchronize(replay, stream) == PER_OK);
        arrays.check(INT64_MAX, stream);
        print("update of TD errors", "libper", capacity, batch, watch.time(update));
        print("step", "libper", capacity, batch, watch.time(step));
        REQUIRE(per_replay_synchronize(replay, stream) == PER_OK);
    }
    per_replay_free(replay);
}

// Stacks of 4 frames of 84 x 84 bytes, and the next ones, beside one copy of as many bytes.
void time_images(const Arguments& given, cudaStream_t stream) {
    static const int64_t shape[] = {84, 84};
    constexpr int64_t bytes = 84 * 84;
    const per_field fields[2] = {field_of("observation", PER_UINT8, 2, shape),
                                 field_of("action", PER_FLOAT32, 0, nullptr)};
    per_replay_options options;
    REQUIRE(per_replay_options_init(&options, sizeof options) == PER_OK);
    options.capacity = given.images;
    options.n_envs = 16;
    options.frame_stack = 4;
    options.fields = fields;
    options.n_fields = 2;
    options.device = PER_CUDA;
    per_replay* const replay = create_replay(options, bytes, stream);
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

std::vector<int64_t> numbers_after(int n, char** arguments, int& i) {
    std::vector<int64_t> numbers;
    while (i + 1 < n && arguments[i + 1][0] != '-')
        numbers.push_back(static_cast<int64_t>(std::strtod(arguments[++i], nullptr)));
    return numbers;
}

Arguments parse(int n, char** arguments) {
    Arguments given;
    for (int i = 1; i < n; ++i) {
        const std::string name = arguments[i];
        if (name == "--capacity") {
            given.capacities = numbers_after(n, arguments, i);
        } else if (name == "--batch") {
            given.batches = numbers_after(n, arguments, i);
        } else if (name == "--images" && i + 1 < n) {
            given.images = static_cast<int64_t>(std::strtod(arguments[++i], nullptr));
        } else if (name == "--seconds" && i + 1 < n) {
            given.seconds = std::strtod(arguments[++i], nullptr);
        } else {
            std::fprintf(stderr, "per_gpu_bench: unknown argument %s\n", arguments[i]);
            std::exit(2);
        }
    }
    return given;
}

void require_device() {
    per_tree_options options;
    per_tree* tree = nullptr;
    REQUIRE(per_tree_options_init(&options, sizeof options) == PER_OK);
    options.capacity = 1;
    options.device = PER_CUDA;
    const per_status status = per_tree_create(&options, &tree);
    if (status == PER_ERROR_NO_DEVICE) {
        std::fprintf(stderr, "skipped: %s\n", per_last_error());
        std::exit(77);
    }
    REQUIRE(status == PER_OK);
    per_tree_free(tree);
}

// Buffers need the memory of their rows: up to 1e8 of them.
constexpr int64_t largest_replay = 100000000;

}  // namespace

int main(int n, char** arguments) {
    const Arguments given = parse(n, arguments);
    require_device();
    cudaStream_t stream;
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (const int64_t capacity : given.capacities) {
        time_tree(given, capacity, stream);
        time_float_tree(given, capacity, stream);
        if (capacity <= largest_replay)
            time_replay(given, capacity, stream);
        else
            print_left_out("rows", capacity, "rows of so many transitions are not timed");
    }
    time_images(given, stream);
    REQUIRE_CUDA(cudaStreamDestroy(stream));
    return 0;
}
