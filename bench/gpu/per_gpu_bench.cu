// Times libper on a CUDA device, through per.h, next to a sum tree of float atomics (float_tree.h) and the device's
// copy bandwidth. Prints one line of JSON per figure, medians in microseconds; exits with 77 if there is no device.
//
//     per_gpu_bench [--capacity N...] [--batch B...] [--update N...] [--images ROWS] [--seconds S]
//
// --capacity without a number skips trees and buffers of rows, --images 0 skips images.
// Results are checked afterwards: indices in range, weights in (0, 1], no entry refused by the device.
#include <per.h>

#include <cstdlib>
#include <string>

#include "figures.h"
#include "float_tree.h"

namespace {

// ------------------------------------------------------------------------------------------------------- trees

// NULL if the device has too little memory; ends the program if there is no device.
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
        // Indices alone, like the bare kernel of the other tree.
        print("draw", "libper", capacity, batch, watch.time([&] {
            REQUIRE(per_sample(tree, batch, PER_STRATIFIED, beta, arrays.indices.data(), nullptr, nullptr, stream) ==
                    PER_OK);
        }));
        print("sample", "libper, without replacement", capacity, batch, watch.time([&] {
            REQUIRE(per_sample(tree, batch, PER_WITHOUT_REPLACEMENT, beta, arrays.indices.data(),
                               arrays.priorities.data(), arrays.weights.data(), stream) == PER_OK);
        }));
        REQUIRE(per_tree_synchronize(tree, stream) == PER_OK);
    }
    for (const int64_t n : sizes_of_updates(given)) {
        const BatchArrays arrays(n, capacity, stream);
        const Timing update = watch.time(
            [&] { REQUIRE(per_update(tree, n, arrays.updated.data(), arrays.given.data(), stream) == PER_OK); });
        REQUIRE(per_tree_synchronize(tree, stream) == PER_OK);
        print("update", "libper", capacity, n, update);
    }
    per_tree_free(tree);
}

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
        print("draw", "float tree", capacity, batch,
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
    }
    for (const int64_t n : sizes_of_updates(given)) {
        const BatchArrays arrays(n, capacity, stream);
        print("update", "float tree", capacity, n, watch.time([&] {
            REQUIRE_CUDA(float_tree_update(tree, n, arrays.updated.data(), arrays.given.data(), stream));
        }));
    }
    REQUIRE_CUDA(cudaFree(rows));
    REQUIRE_CUDA(cudaFree(memory));
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
        } else if (name == "--update") {
            given.updates = numbers_after(n, arguments, i);
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

// Buffers also need memory for their rows: up to 1e8 rows.
constexpr int64_t largest_replay = 100000000;
constexpr int64_t largest_host_replay = 1000000;

}  // namespace

int main(int n, char** arguments) {
    const Arguments given = parse(n, arguments);
    require_device();
    cudaStream_t stream;
    REQUIRE_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    print("floor", "an empty kernel", 0, 0,
          Stopwatch(stream, given.seconds).time([&] { REQUIRE_CUDA(launch_empty_kernel(stream)); }));
    // The largest trees come last, so that an interrupted run has everything else.
    for (const int64_t capacity : given.capacities) {
        if (capacity > largest_replay) continue;
        time_tree(given, capacity, stream);
        time_float_tree(given, capacity, stream);
        time_replay(given, capacity, stream);
        if (capacity <= largest_host_replay) time_host_loader(given, capacity, stream);
    }
    if (given.images > 0) {
        time_host_images(given, stream);
        time_images(given, stream);
    }
    for (const int64_t capacity : given.capacities) {
        if (capacity <= largest_replay) continue;
        time_tree(given, capacity, stream);
        time_float_tree(given, capacity, stream);
        print_left_out("rows", capacity, "rows of so many transitions are not timed");
    }
    REQUIRE_CUDA(cudaStreamDestroy(stream));
    return 0;
}
