// Shared parts of the benchmark: sizes, printing of figures, arrays of batches.
#pragma once

#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "../../tests/gpu/require.h"
#include "device_array.h"
#include "timing.h"

struct Arguments {
    std::vector<int64_t> capacities = {1000000, 100000000, 1000000000};
    std::vector<int64_t> batches = {256, 1024, 4096};
    std::vector<int64_t> updates = {16384, 262144};  // sizes beyond those of batches
    int64_t images = 200000;
    double seconds = 0.5;
};

inline constexpr double beta = 0.4;
inline constexpr int64_t most_entries_a_call = int64_t{1} << 22;

inline void print(const char* what, const char* variant, int64_t capacity, int64_t batch, const Timing& t,
                  const std::string& more = "") {
    std::printf("{\"case\": \"%s\", \"variant\": \"%s\", \"capacity\": %" PRId64 ", \"batch\": %" PRId64, what, variant,
                capacity, batch);
    const struct {
        const char* name;
        double us;
    } figures[] = {{"call_us", t.call},
                   {"in_burst_us", t.in_burst},
                   {"graph_call_us", t.graph_call},
                   {"graph_in_burst_us", t.graph_in_burst},
                   {"kernel_us", t.kernel},
                   {"cold_us", t.cold}};
    for (const auto& figure : figures)
        if (figure.us >= 0) std::printf(", \"%s\": %.2f", figure.name, figure.us);
    std::printf("%s}\n", more.c_str());
    std::fflush(stdout);
}

inline void print_left_out(const char* what, int64_t capacity, const char* why) {
    std::printf("{\"case\": \"%s\", \"capacity\": %" PRId64 ", \"left_out\": \"%s\"}\n", what, capacity, why);
    std::fflush(stdout);
}

inline std::vector<int64_t> sizes_of_updates(const Arguments& given) {
    std::vector<int64_t> sizes = given.batches;
    sizes.insert(sizes.end(), given.updates.begin(), given.updates.end());
    return sizes;
}

// |TD error|^0.6 with exponentially distributed TD errors.
inline std::vector<float> random_priorities(int64_t n, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<float> priorities;
    for (int64_t i = 0; i < n; ++i) {
        const double uniform = (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
        priorities.push_back(static_cast<float>(std::pow(-std::log(uniform), 0.6)));
    }
    return priorities;
}

inline std::vector<int64_t> random_indices(int64_t n, int64_t capacity, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < n; ++i) indices.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(capacity)));
    return indices;
}

// The arrays of a batch, and the source of updates.
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

// ------------------------------------------------------------------------------------------------------- buffers

// The rows of the cases `rows`: observation 17, action 6, reward and flag, in 24 words of 4 bytes.
inline constexpr int64_t n_words = 24;

// A buffer on the device: draws of all kinds, updates, adds, steps of training, loaders.
void time_replay(const Arguments& given, int64_t capacity, cudaStream_t stream);
// A loader of a buffer in host memory.
void time_host_loader(const Arguments& given, int64_t capacity, cudaStream_t stream);
// Loaders of images in host memory (see below), gathered by the CPU and by the device.
void time_host_images(const Arguments& given, cudaStream_t stream);
// Stacks of 4 frames of 84 x 84 bytes and the next ones, next to one copy of as many bytes.
void time_images(const Arguments& given, cudaStream_t stream);
