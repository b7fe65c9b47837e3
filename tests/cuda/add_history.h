// Random calls of a replay buffer, made on the CPU and on CUDA.
#pragma once

#include <cuda_runtime.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "per.h"
#include "rows/cast.h"
#include "rows/dtype.h"
#include "rows/element.h"
#include "rows/fields.h"

namespace per::test {

// A number as an element of any dtype.
inline void write_element(int32_t dtype, double value, std::byte* to) {
    with_element_type(dtype, [&]<class Element>(std::type_identity<Element>) {
        Element element;
        if constexpr (std::is_same_v<Element, Bool>)
            element = {static_cast<uint8_t>(value != 0)};
        else if constexpr (std::is_arithmetic_v<Element>)
            element = std::is_integral_v<Element> && std::isnan(value) ? Element{} : static_cast<Element>(value);
        else
            element = Element::from_double(value);
        std::memcpy(to, &element, sizeof element);
    });
}

// An array of a call, in host memory and in device memory.
class BothArrays {
 public:
    explicit BothArrays(std::size_t n_bytes) : host_(n_bytes) {
        void* memory;
        EXPECT_EQ(cudaMalloc(&memory, n_bytes), cudaSuccess);
        device_ = static_cast<std::byte*>(memory);
    }
    ~BothArrays() { cudaFree(device_); }
    BothArrays(const BothArrays&) = delete;
    BothArrays& operator=(const BothArrays&) = delete;

    std::byte* host() { return host_.data(); }
    // Host memory that the caller may reuse after the call.
    std::byte* lent() {
        lent_ = host_;
        return lent_.data();
    }
    void take_back() {
        for (std::byte& byte : lent_) byte = std::byte{0xA5};
    }
    std::byte* device() { return device_; }
    void copy_to_device() { std::memcpy(device_, host_.data(), host_.size()); }

 private:
    std::vector<std::byte> host_;
    std::vector<std::byte> lent_;
    std::byte* device_;
};

// The arrays of a call of add, and the call as each device sees it.
struct GivenCall {
    std::vector<std::unique_ptr<BothArrays>> arrays;
    std::vector<int64_t> env_ids;
    ReplaySteps steps[2];  // on the CPU, on CUDA
    std::vector<GivenArray> fields[2];
    std::vector<GivenArray> next_fields[2];
};

// Probabilities of the properties of calls.
struct Manner {
    double p_end = 0.1;         // of a step
    double p_mask = 0.3;        // of a call
    double p_rated = 0.3;       // of a call: it gives priorities or TD errors
    double p_cast = 0.3;        // of an array: another dtype than its field's
    double p_host_memory = 0;   // of an array, for CUDA
    double p_gap = 0.03;        // of a step
    double p_bad_priority = 0;  // of a step
    bool never_ends = false;
    double p_single = 0.6;  // of a call: it brings one step
    int64_t longest = 12;
};

// Environments that run, end and reset. Some resets are not announced.
class Environments {
 public:
    Environments(std::mt19937_64& random, const per_replay_options& options, const Fields& fields, const Manner& manner)
        : random_(random),
          options_(options),
          fields_(fields),
          manner_(manner),
          states_(static_cast<std::size_t>(options.n_envs)) {
        for (State& state : states_) state.observation = ++serial_;
    }

    bool chance(double p) { return std::uniform_real_distribution<double>()(random_) < p; }
    int64_t number(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(random_); }

    // A call that the buffer must accept, unless it is full or rejects gaps.
    std::unique_ptr<GivenCall> call() {
        auto call = std::make_unique<GivenCall>();
        const int64_t length = chance(manner_.p_single) ? 1 : number(1, manner_.longest);
        if (chance(0.5)) choose_environments(*call);
        const int64_t n = call->env_ids.empty() ? options_.n_envs : static_cast<int64_t>(call->env_ids.size());
        has_next_ = options_.store_next_observation || chance(0.6);
        has_mask_ = chance(manner_.p_mask);
        has_next_mask_ = options_.autoreset == PER_AUTORESET_SAME_STEP || chance(0.4);
        steps_.clear();
        for (int64_t i = 0; i < length * n; ++i)
            steps_.push_back(step(call->env_ids.empty() ? i % n : call->env_ids[static_cast<std::size_t>(i % n)]));
        write(*call, length, n);
        return call;
    }

 private:
    struct State {
        int64_t observation;
        bool resets_next = false;
    };
    struct Step {
        int64_t observation;
        int64_t next;
        bool is_given = true, has_next = true, terminated = false, truncated = false;
    };

    void choose_environments(GivenCall& call) {
        for (int64_t env = 0; env < options_.n_envs; ++env)
            if (chance(0.6)) call.env_ids.push_back(env);
        std::shuffle(call.env_ids.begin(), call.env_ids.end(), random_);
    }

    Step step(int64_t env) {
        State& state = states_[static_cast<std::size_t>(env)];
        Step step = {state.observation, ++serial_};
        step.is_given = !has_mask_ || chance(0.8);
        if (!step.is_given) return step;
        if (state.resets_next) {
            state.resets_next = false;
            state.observation = step.next;
            return step;
        }
        const bool can_end = !manner_.never_ends && (has_next_ || has_next_mask_);
        if (can_end && chance(manner_.p_end)) {
            end(state, step);
            return step;
        }
        if (has_next_mask_ && !options_.store_next_observation) step.has_next = chance(0.7);
        state.observation = chance(manner_.p_gap) ? ++serial_ : step.next;
        return step;
    }

    void end(State& state, Step& step) {
        step.terminated = chance(0.5);
        step.truncated = !step.terminated || chance(0.1);
        step.has_next = !has_next_mask_ || (has_next_ && chance(0.5));
        const bool resets = options_.autoreset == PER_AUTORESET_NEXT_STEP;
        state.resets_next = resets;
        // Some episodes begin where the previous one ended, unless their environment resets in the next step.
        state.observation = resets || chance(0.2) ? step.next : ++serial_;
    }

    // Element i of the observation with this number.
    static double element(int64_t observation, int64_t i) {
        return static_cast<double>((observation * 7 + i * 3) % 100);
    }

    int32_t dtype_for(int32_t dtype, bool of_observation) {
        if (!chance(manner_.p_cast)) return dtype;
        for (;;) {
            const int32_t given = static_cast<int32_t>(number(PER_BOOL, PER_FLOAT64));
            // Observations keep their numbers, so that they match the announced ones.
            if (can_cast(given, dtype) && !(of_observation && given == PER_BOOL)) return given;
        }
    }

    // Writes n_entries entries of `frames` frames each. value(entry, element) is for the newest frame.
    template <class Value>
    void write_array(GivenCall& call, int64_t n_entries, int64_t frames, int64_t elements, int32_t dtype,
                     const Value& value, per_array& on_cpu, per_array& on_cuda) {
        const int64_t size = dtype_size(dtype);
        call.arrays.push_back(
            std::make_unique<BothArrays>(static_cast<std::size_t>(n_entries * frames * elements * size)));
        BothArrays& both = *call.arrays.back();
        for (int64_t i = 0; i < n_entries * frames * elements; ++i) {
            const int64_t entry = i / (frames * elements);
            const bool is_newest = i / elements % frames == frames - 1;
            write_element(dtype, is_newest ? value(entry, i % elements) : 55.0, both.host() + i * size);
        }
        both.copy_to_device();
        on_cpu = {both.host(), nullptr, 0, dtype, nullptr};
        on_cuda = {chance(manner_.p_host_memory) ? both.lent() : both.device(), nullptr, 0, dtype, nullptr};
    }

    template <class Value>
    void write_flags(GivenCall& call, per_array ReplaySteps::*which, const Value& value) {
        const int32_t dtype = chance(0.6) ? PER_BOOL : static_cast<int32_t>(number(PER_BOOL, PER_FLOAT64));
        write_array(
            call, static_cast<int64_t>(steps_.size()), 1, 1, dtype,
            [&](int64_t entry, int64_t) { return value(steps_[static_cast<std::size_t>(entry)]) ? 1.0 : 0.0; },
            call.steps[0].*which, call.steps[1].*which);
    }

    template <class Value>
    void write_numbers(GivenCall& call, per_array ReplaySteps::*which, const Value& value) {
        write_array(
            call, static_cast<int64_t>(steps_.size()), 1, 1, dtype_for(PER_FLOAT32, false),
            [&](int64_t, int64_t) { return value(); }, call.steps[0].*which, call.steps[1].*which);
    }

    void write_fields(GivenCall& call, bool is_next) {
        std::vector<GivenArray>* const to = is_next ? call.next_fields : call.fields;
        for (int i = 0; i < 2; ++i) to[i].assign(static_cast<std::size_t>(fields_.count()), GivenArray{});
        for (int64_t f = 0; f < fields_.count(); ++f) {
            const Field& field = fields_[f];
            if (is_next && !field.is_observation()) continue;
            const int64_t frames = field.stack > 1 && field.is_observation() && chance(0.4) ? field.stack : 1;
            const auto value = [&](int64_t entry, int64_t i) {
                const Step& step = steps_[static_cast<std::size_t>(entry)];
                if (!field.is_observation()) return static_cast<double>(number(0, 100));
                return element(is_next ? step.next : step.observation, i);
            };
            GivenArray& on_cpu = to[0][static_cast<std::size_t>(f)];
            GivenArray& on_cuda = to[1][static_cast<std::size_t>(f)];
            on_cpu.frames = on_cuda.frames = frames;
            write_array(call, static_cast<int64_t>(steps_.size()), frames, field.elements,
                        dtype_for(field.dtype, field.is_observation()), value, on_cpu.array, on_cuda.array);
        }
        for (int i = 0; i < 2; ++i) (is_next ? call.steps[i].next_fields : call.steps[i].fields) = to[i].data();
    }

    void write(GivenCall& call, int64_t length, int64_t n) {
        for (ReplaySteps& steps : call.steps) {
            steps = {};
            steps.length = length;
            steps.n_envs = n;
            steps.env_ids = call.env_ids.empty() ? nullptr : call.env_ids.data();
        }
        write_fields(call, false);
        if (has_next_) write_fields(call, true);
        write_numbers(call, &ReplaySteps::reward,
                      [&] { return chance(0.5) ? 0.0 : static_cast<double>(number(1, 1000)) / 8; });
        write_flags(call, &ReplaySteps::terminated, [](const Step& step) { return step.terminated; });
        write_flags(call, &ReplaySteps::truncated, [](const Step& step) { return step.truncated; });
        if (has_mask_) write_flags(call, &ReplaySteps::mask, [](const Step& step) { return step.is_given; });
        if (has_next_mask_) write_flags(call, &ReplaySteps::next_mask, [](const Step& step) { return step.has_next; });
        if (!chance(manner_.p_rated)) return;
        const auto priority = [&] {
            return chance(manner_.p_bad_priority) ? NAN : static_cast<double>(number(0, 40)) / 4;
        };
        write_numbers(call, chance(0.5) ? &ReplaySteps::priorities : &ReplaySteps::td_errors, priority);
    }

    std::mt19937_64& random_;
    const per_replay_options& options_;
    const Fields& fields_;
    const Manner manner_;
    std::vector<State> states_;
    int64_t serial_ = 0;

    // The call that is being made.
    bool has_next_, has_mask_, has_next_mask_;
    std::vector<Step> steps_;
};

}  // namespace per::test
