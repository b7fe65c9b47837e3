// A randomly filled buffer on the CPU and one on the simulated device with the same content, for calls on both.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/replay_options.h"
#include "base/error.h"
#include "core/checks.h"
#include "cpu/replay_backend.h"
#include "cuda/batch/batch_queue.h"
#include "cuda/replay/replay_memory.h"
#include "cuda/runtime/staging.h"
#include "cuda/runtime/stream_order.h"
#include "mirror.h"
#include "rows/fields.h"
#include "simulator.h"

namespace per::test {

// The options that differ between the buffers of tests.
struct BufferShape {
    int64_t rows = 40;  // of a lane
    int64_t n_envs = 3;
    int64_t n_step = 1;
    int32_t stack = 1;
    int32_t padding = PER_PADDING_REPEAT;
    bool stores_next = false;
    int64_t sequence_length = 0;
    int64_t burn_in = 0;
    int64_t stride = 0;
    int64_t image_bytes = 36;
    int64_t state_numbers = 2;
    int n_more_fields = 0;
    bool has_extras = true;  // ranks, and the memory of PER_BUFFER_MAX, from the beginning
    double p_end = 0.1;      // of a step
};

// Fields with frames of many sizes: pieces of 1, 2, 4, 8 and 16 bytes, and frames of more than one chunk.
class BothBuffers {
 public:
    BothBuffers(const BufferShape& shape, uint64_t seed)
        : shape_(shape),
          random_(seed),
          declared_(declare(shape)),
          fields_(declared_.options),
          options_(resolve(declared_.options, fields_, seed)),
          cpu_(options_, fields_),
          order_(0),
          memory_(options_, fields_, order_.own_stream()),
          staging_(std::size_t{1} << 16),
          queue_(options_, fields_, memory_, staging_, order_.own_stream()) {
        simulator::options().seed = seed;
        cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
        for (int64_t env = 0; env < shape.n_envs; ++env) observations_.push_back(random_frames());
    }
    ~BothBuffers() {
        cudaStreamSynchronize(stream_);
        cudaStreamDestroy(stream_);
        simulator::options().seed = 1;
    }

    cpu::CpuReplayBackend& cpu() { return cpu_; }
    cuda::ReplayMemory& memory() { return memory_; }
    cuda::BatchQueue& queue() { return queue_; }
    cuda::StreamOrder& order() { return order_; }
    cudaStream_t stream() const { return stream_; }
    const Fields& fields() const { return fields_; }
    const per_replay_options& options() const { return options_; }
    const BufferShape& shape() const { return shape_; }
    int64_t steps() const { return shape_.sequence_length > 0 ? shape_.burn_in + shape_.sequence_length : 0; }
    std::mt19937_64& random() { return random_; }
    bool chance(double p) { return std::uniform_real_distribution<double>()(random_) < p; }

    // Calls of the CPU's buffer.
    void add_steps(int64_t n) {
        for (int64_t i = 0; i < n; ++i) add_step();
    }
    void set_priorities(double p_zero) {
        const std::vector<int64_t> ids = cpu_.live_ids(nullptr);
        std::vector<float> priorities;
        for (std::size_t i = 0; i < ids.size(); ++i)
            priorities.push_back(chance(p_zero) ? 0.0f : std::exp(std::normal_distribution<float>(0, 3)(random_)));
        cpu_.update({static_cast<int64_t>(ids.size()), ids.data(), 1, nullptr, priorities.data()}, nullptr);
    }

    // Copies the CPU's buffer to the device: from here on both have the same content.
    void take_over() {
        cudaDeviceSynchronize();
        mirror(cpu_, memory_);
    }

    // Adds steps, and sets priorities, some of them 0, on both.
    void fill(int64_t n_steps, double p_zero) {
        add_steps(n_steps);
        set_priorities(p_zero);
        take_over();
    }
    // Adds steps without setting priorities.
    void fill(int64_t n_steps) {
        add_steps(n_steps);
        take_over();
    }

    ReplaySample sample_of(int64_t batch_size) const {
        ReplaySample sample = {};
        sample.batch_size = batch_size;
        sample.n_step = shape_.n_step;
        sample.beta = NAN;
        sample.uniform_fraction = 0.0;
        sample.scheme = PER_STRATIFIED;
        sample.prioritization = PER_PROPORTIONAL;
        sample.normalize_weights = PER_BATCH_MAX;
        per_batch_init(&sample.batch, sizeof sample.batch);
        return sample;
    }

    // One with options of any kind.
    ReplaySample any_sample(int64_t batch_size) {
        ReplaySample sample = sample_of(batch_size);
        sample.scheme = static_cast<int32_t>(random_() % 4);
        sample.prioritization = static_cast<int32_t>(random_() % 3);
        sample.normalize_weights = static_cast<int32_t>(random_() % 3);
        const double fractions[] = {0.0, 0.0, 0.25, 1.0 / 3, 1.0};
        sample.uniform_fraction = fractions[random_() % 5];
        if (chance(0.4)) sample.beta = static_cast<double>(random_() % 5) / 4;
        if (chance(0.3)) sample.n_step = 1 + static_cast<int64_t>(random_()) % shape_.n_step;
        if (sample.n_step < 1) sample.n_step = 1;
        if (chance(0.4)) sample.n_step_min = 1 + static_cast<int64_t>(random_() % static_cast<uint64_t>(sample.n_step));
        if (chance(0.3)) sample.rows = DrawnRows{key_, {}};
        const int64_t most_newest = std::min(batch_size - 1, cpu_.live());
        if (chance(0.2) && most_newest > 0)
            sample.n_newest = 1 + static_cast<int64_t>(random_() % static_cast<uint64_t>(most_newest));
        return sample;
    }

    // Enqueues work on the stream of the test and waits for it.
    template <class Work>
    void on_device(const Work& work) {
        {
            cuda::StreamOrder::Call call(order_, stream_);
            work(call);
            call.finish();
        }
        cudaStreamSynchronize(stream_);
    }
    const cuda::ReplayState& device_state() const { return *memory_.device().state; }

 private:
    // One frame of each field.
    using Frames = std::vector<std::vector<std::byte>>;

    struct Declared {
        std::vector<std::string> names;
        std::vector<std::vector<int64_t>> shapes;
        std::vector<per_field> fields;
        per_replay_options options;
    };

    static Declared declare(const BufferShape& shape) {
        Declared declared;
        declared.shapes = {{shape.image_bytes}, {2}, {3}, {}, {shape.state_numbers}, {5}};
        struct {
            const char* name;
            int32_t dtype;
            int32_t role;
            int32_t stack;
        } const of_field[] = {
            {"image", PER_UINT8, PER_ROLE_OBSERVATION, shape.stack},
            {"velocity", PER_FLOAT32, PER_ROLE_OBSERVATION, shape.stack > 1 ? 2 : 1},
            {"torque", PER_UINT8, PER_ROLE_DEFAULT, 1},
            {"action", PER_INT64, PER_ROLE_DEFAULT, 1},
            {"state", PER_FLOAT64, PER_ROLE_RECURRENT_STATE, 1},
            {"hint", PER_INT16, PER_ROLE_DEFAULT, 1},
        };
        for (std::size_t i = 0; i < std::size(of_field); ++i) {
            per_field field = {};
            field.name = of_field[i].name;
            field.shape = declared.shapes[i].data();
            field.ndim = static_cast<int32_t>(declared.shapes[i].size());
            field.dtype = of_field[i].dtype;
            field.role = of_field[i].role;
            field.stack = of_field[i].stack;
            field.padding = shape.padding;
            if (field.role == PER_ROLE_RECURRENT_STATE && shape.sequence_length == 0) field.role = PER_ROLE_DEFAULT;
            declared.fields.push_back(field);
        }
        for (int i = 0; i < shape.n_more_fields; ++i) declared.names.push_back("more" + std::to_string(i));
        for (const std::string& name : declared.names) {
            per_field field = {};
            field.name = name.c_str();
            field.dtype = PER_INT32;
            declared.fields.push_back(field);
        }
        declared.options = default_replay_options;
        declared.options.fields = declared.fields.data();
        declared.options.n_fields = static_cast<int32_t>(declared.fields.size());
        declared.options.field_size = sizeof(per_field);
        declared.options.capacity = shape.rows * shape.n_envs;
        declared.options.n_envs = shape.n_envs;
        declared.options.n_step = shape.n_step;
        declared.options.store_next_observation = shape.stores_next;
        declared.options.sequence_length = shape.sequence_length;
        declared.options.burn_in = shape.burn_in;
        declared.options.sequence_stride = shape.stride;
        if (shape.has_extras) {
            declared.options.prioritization = PER_RANK;
            declared.options.normalize_weights = PER_BUFFER_MAX;
        }
        declared.options.alpha = 0.7;
        declared.options.beta = 0.4;
        declared.options.beta_steps = 17;
        declared.options.gamma = 0.93;
        return declared;
    }

    static per_replay_options resolve(per_replay_options options, const Fields& fields, uint64_t seed) {
        options.seed = seed;
        check_replay_options(options);
        return resolve_replay_options(options, fields);
    }

    Frames random_frames() {
        Frames frames;
        for (const Field& field : fields_) {
            std::vector<std::byte> frame(static_cast<std::size_t>(field.bytes));
            for (std::byte& byte : frame) byte = static_cast<std::byte>(random_());
            frames.push_back(std::move(frame));
        }
        return frames;
    }

    static std::vector<GivenArray> arrays_of(const std::vector<std::vector<std::byte>>& frames, const Fields& fields) {
        std::vector<GivenArray> arrays;
        for (int64_t i = 0; i < fields.count(); ++i)
            arrays.push_back({{frames[static_cast<std::size_t>(i)].data(), nullptr, 0, fields[i].dtype, nullptr}, 1});
        return arrays;
    }

    // A step of each environment. Some episodes end, some of them at an unknown observation; some environments are
    // reset silently.
    void add_step() {
        std::vector<std::vector<std::byte>> given(static_cast<std::size_t>(fields_.count()));
        std::vector<std::vector<std::byte>> next = given;
        const std::size_t n = observations_.size();
        std::vector<float> rewards(n);
        std::vector<uint8_t> terminated(n), truncated(n), next_mask(n, 1);
        for (std::size_t env = 0; env < n; ++env) {
            const Frames after = random_frames();
            Frames now = random_frames();
            for (std::size_t i = 0; i < now.size(); ++i) {
                if (fields_[static_cast<int64_t>(i)].is_observation()) now[i] = observations_[env][i];
                given[i].insert(given[i].end(), now[i].begin(), now[i].end());
                next[i].insert(next[i].end(), after[i].begin(), after[i].end());
            }
            rewards[env] = std::normal_distribution<float>()(random_);
            const bool ends = chance(shape_.p_end);
            (chance(0.5) ? terminated : truncated)[env] = ends;
            if (ends)
                next_mask[env] = chance(0.6);
            else if (!shape_.stores_next)
                next_mask[env] = chance(0.9);
            observations_[env] = ends || chance(0.02) ? random_frames() : after;
        }
        const std::vector<GivenArray> arrays = arrays_of(given, fields_);
        const std::vector<GivenArray> next_arrays = arrays_of(next, fields_);
        ReplaySteps steps = {};
        steps.length = 1;
        steps.n_envs = shape_.n_envs;
        steps.fields = arrays.data();
        steps.next_fields = next_arrays.data();
        steps.reward = {rewards.data(), nullptr, 0, PER_FLOAT32, nullptr};
        steps.terminated = {terminated.data(), nullptr, 0, PER_BOOL, nullptr};
        steps.truncated = {truncated.data(), nullptr, 0, PER_BOOL, nullptr};
        steps.next_mask = {next_mask.data(), nullptr, 0, PER_BOOL, nullptr};
        cpu_.add(steps, nullptr, nullptr);
    }

    BufferShape shape_;
    std::mt19937_64 random_;
    const uint64_t key_[2] = {11, 5};
    Declared declared_;
    Fields fields_;
    per_replay_options options_;
    cpu::CpuReplayBackend cpu_;
    cuda::StreamOrder order_;
    cuda::ReplayMemory memory_;
    cuda::Staging staging_;
    cuda::BatchQueue queue_;
    cudaStream_t stream_ = nullptr;
    std::vector<Frames> observations_;
};

// The arrays of a batch: initially garbage, some omitted, with a border of garbage that must not change.
class BatchArrays {
 public:
    enum Number {
        reward,
        discount,
        n_steps,
        terminated,
        truncated,
        weights,
        ids,
        priorities,
        probabilities,
        mask,
        gamma_m
    };

    // Arrays for n sequences of `steps` steps, or for n single transitions if `steps` is 0. With n_step -1, for rows as
    // they were added. For each array, `skips` tells whether it is omitted, and `offsets` how far it is from a multiple
    // of 16 bytes.
    BatchArrays(const Fields& fields, int64_t n, int64_t steps, int64_t n_step, uint64_t skips, uint64_t offsets) {
        const int64_t n_each = n * (steps > 0 ? steps : 1);
        n_ = static_cast<std::size_t>(n);
        const int64_t sizes[] = {4 * n_each, 4 * n_each, 4 * n_each, n_each, n_each,    4 * n,
                                 8 * n,      4 * n,      4 * n,      n_each, 4 * n_each};
        per_batch_init(&batch, sizeof batch);
        batch.reward = array<float>(sizes[reward], skips >> reward & 1);
        batch.discount = array<float>(sizes[discount], skips >> discount & 1);
        batch.n_steps = array<int32_t>(sizes[n_steps], skips >> n_steps & 1);
        batch.terminated = array<uint8_t>(sizes[terminated], skips >> terminated & 1);
        batch.truncated = array<uint8_t>(sizes[truncated], skips >> truncated & 1);
        batch.weights = array<float>(sizes[weights], skips >> weights & 1);
        batch.ids = array<int64_t>(sizes[ids], skips >> ids & 1);
        batch.priorities = array<float>(sizes[priorities], skips >> priorities & 1);
        batch.probabilities = array<float>(sizes[probabilities], skips >> probabilities & 1);
        batch.mask = array<uint8_t>(sizes[mask], steps == 0 || skips >> mask & 1);
        batch.gamma_m = array<float>(sizes[gamma_m], skips >> gamma_m & 1);
        for (int64_t i = 0; i < fields.count(); ++i) {
            const Field& field = fields[i];
            const bool is_state = field.role == PER_ROLE_RECURRENT_STATE;
            const int64_t length = steps == 0 || is_state ? 1 : field.is_observation() ? steps + n_step : steps;
            const int64_t bytes = n * length * field.bytes * (n_step < 0 ? 1 : field.stack);
            const int offset = static_cast<int>(offsets >> (4 * (i % 16)) & 15);
            const bool has_next = steps == 0 && field.is_observation();
            fields_.push_back(array<void>(bytes, skips >> (16 + i) & 1, offset));
            next_fields_.push_back(array<void>(bytes, !has_next || skips >> (32 + i) & 1, offset));
        }
        batch.fields = fields_.data();
        batch.next_fields = steps > 0 ? nullptr : next_fields_.data();
    }
    BatchArrays(const BatchArrays&) = delete;
    BatchArrays& operator=(const BatchArrays&) = delete;

    // Fills the arrays as a draw that finds no live transition must.
    void expect_nothing() {
        for (std::vector<std::byte>& memory : memory_) fill(memory, std::byte{0});
        if (batch.ids != nullptr) std::memset(batch.ids, 0xff, size_of_ids_);
    }

    void expect_same_as(const BatchArrays& expected) const {
        ASSERT_EQ(memory_.size(), expected.memory_.size());
        for (std::size_t i = 0; i < memory_.size(); ++i)
            EXPECT_TRUE(memory_[i] == expected.memory_[i]) << "array " << i;
    }

    // All values of row i in the arrays, concatenated.
    std::vector<std::byte> row(std::size_t i) const {
        std::vector<std::byte> bytes;
        for (std::size_t a = 0; a < memory_.size(); ++a) {
            const std::size_t n_each = offsets_[a].is_skipped ? 0 : offsets_[a].bytes / n_;
            const auto first =
                memory_[a].begin() + static_cast<std::ptrdiff_t>(border + offsets_[a].offset + i * n_each);
            bytes.insert(bytes.end(), first, first + static_cast<std::ptrdiff_t>(n_each));
        }
        return bytes;
    }

    per_batch batch;

 private:
    static constexpr std::size_t border = 32;

    template <class Element>
    Element* array(int64_t bytes, bool is_skipped, int offset = 0) {
        // An array that is left out of a batch (NULL) has memory, too, which must not be written.
        memory_.emplace_back(static_cast<std::size_t>(bytes) + 3 * border, std::byte{0xa5});
        offsets_.push_back({static_cast<std::size_t>(bytes), static_cast<std::size_t>(offset), is_skipped});
        if (is_skipped) return nullptr;
        if (sizeof(std::conditional_t<std::is_void_v<Element>, char, Element>) == 8 && !std::is_void_v<Element>)
            size_of_ids_ = static_cast<std::size_t>(bytes);
        return reinterpret_cast<Element*>(memory_.back().data() + border + offset);
    }

    void fill(std::vector<std::byte>& memory, std::byte value) {
        const Extent& extent = offsets_[static_cast<std::size_t>(&memory - memory_.data())];
        if (!extent.is_skipped)
            std::fill_n(memory.begin() + static_cast<std::ptrdiff_t>(border + extent.offset), extent.bytes, value);
    }

    struct Extent {
        std::size_t bytes;
        std::size_t offset;
        bool is_skipped;
    };

    std::size_t n_;
    std::vector<std::vector<std::byte>> memory_;
    std::vector<Extent> offsets_;
    std::vector<void*> fields_;
    std::vector<void*> next_fields_;
    std::size_t size_of_ids_ = 0;
};

}  // namespace per::test
