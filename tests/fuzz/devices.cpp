// Calls on a buffer on the CPU and on one on the simulated GPU, whose results must be bit-identical: every kind of draw
// in per.h, of transitions and of sequences, except those of a loader, which has a thread.
#include "../cpp/expect.h"
#include "../cuda/replay_twins.h"
#include "fuzz.h"
#include "simulator.h"

namespace per::test {
namespace {

constexpr int observation = 0, advantage = 3, return_value = 4, goal = 5;
constexpr int64_t max_n_step = 4;
constexpr int64_t stack_of_observations = 2;

template <class... Values>
double one_of(Choices& choices, Values... values) {
    const double all[] = {static_cast<double>(values)...};
    return all[below(choices, sizeof...(values))];
}

int64_t steps_of_sequence(const per_replay_options& options) {
    return options.sequence_length > 0 ? options.burn_in + options.sequence_length : 0;
}

per_replay_options any_options(Choices& choices) {
    const auto number = [&](auto... values) { return static_cast<int64_t>(one_of(choices, values...)); };
    const auto choice = [&](auto... values) { return static_cast<int32_t>(one_of(choices, values...)); };
    per_replay_options options = twin_options();
    options.n_step = number(1, 2, max_n_step);
    options.frame_stack = stack_of_observations;
    static const int64_t sequences[][3] = {{0, 0, 0}, {0, 0, 0}, {1, 0, 0}, {3, 2, 1}, {5, 0, 2}, {4, 3, 6}};
    const auto& sequence = sequences[below(choices, std::size(sequences))];
    options.sequence_length = sequence[0];
    options.burn_in = sequence[1];
    options.sequence_stride = sequence[2];
    const int64_t needed = max_n_step + goal_stack + std::max<int64_t>(1, steps_of_sequence(options));
    options.capacity = n_envs * (needed + number(0, 4, 20));
    options.gamma = one_of(choices, 0, 0.75, 1);
    options.alpha = one_of(choices, 0, 0.6, 1);
    options.uniform_fraction = one_of(choices, 0, 0.25, 1);
    options.sequence_eta = one_of(choices, 0, 0.5, 1);
    options.freshness.half_life = one_of(choices, 0, 0, 0.03, 5);
    options.freshness.age = choice(PER_AGE_STEPS, PER_AGE_VERSIONS);
    const int64_t more = number(-1, -1, 4);
    if (more >= 0) options.freshness.max_age = more + (options.freshness.age == PER_AGE_STEPS ? needed : 0);
    options.prioritization = choice(PER_PROPORTIONAL, PER_RANK, PER_UNIFORM);
    if (options.freshness.half_life != 0) options.prioritization = PER_PROPORTIONAL;
    options.scheme = choice(PER_STRATIFIED, PER_INDEPENDENT, PER_SYSTEMATIC, PER_WITHOUT_REPLACEMENT);
    options.normalize_weights = choice(PER_BATCH_MAX, PER_BUFFER_MAX, PER_NONE);
    options.max_priority = choice(PER_MAX_EVER, PER_MAX_NOW);
    options.autoreset = choice(PER_AUTORESET_DISABLED, PER_AUTORESET_NEXT_STEP, PER_AUTORESET_SAME_STEP);
    options.critics = choice(PER_CRITICS_MEAN, PER_CRITICS_MAX);
    options.store_next_observation = choice(0, 1);
    options.max_times_sampled = choice(0, 0, 0, 1, 3);
    options.keep_times_sampled = options.max_times_sampled > 0 ? 1 : choice(0, 1);
    if (options.max_times_sampled > 0) options.scheme = PER_WITHOUT_REPLACEMENT;
    return options;
}

// The arrays of a batch, filled with garbage.
class Arrays {
 public:
    enum class Of { draw, rows, bootstraps };

    // steps: the length of sequences, or 0 for single transitions.
    Arrays(int64_t size, int64_t steps, int64_t n_step, bool has_times_sampled, Of of)
        : ids(static_cast<std::size_t>(size), -7) {
        if (of != Of::draw) steps = 0;
        const int64_t each = size * std::max<int64_t>(1, steps);
        per_batch_init(&batch, sizeof batch);
        for (int i = 0; i < n_fields; ++i) {
            const bool is_observation = i == observation || i == goal;
            const int64_t stack = of == Of::rows || !is_observation ? 1
                                  : i == goal                       ? goal_stack
                                                                    : stack_of_observations;
            const int64_t frames = is_observation ? (steps > 0 ? size * (steps + n_step) : each) * stack : each;
            fields_[i] = array<void>(frames * 8);
            if (is_observation && steps == 0) next_fields_[i] = array<void>(frames * 8);
        }
        batch.fields = fields_;
        batch.next_fields = next_fields_;
        batch.reward = array<float>(4 * each);
        batch.discount = array<float>(4 * each);
        batch.n_steps = array<int32_t>(4 * each);
        batch.terminated = array<uint8_t>(each);
        batch.truncated = array<uint8_t>(each);
        batch.gamma_m = array<float>(4 * each);
        batch.priorities = array<float>(4 * size);
        batch.ids = ids.data();
        if (has_times_sampled) batch.times_sampled = array<int32_t>(4 * size);
        if (of != Of::draw) return;
        batch.weights = array<float>(4 * size);
        batch.probabilities = array<float>(4 * size);
        if (steps > 0) batch.mask = array<uint8_t>(each);
    }
    Arrays(const Arrays&) = delete;
    Arrays& operator=(const Arrays&) = delete;

    void expect_same_as(const Arrays& other) const {
        EXPECT_EQ(ids, other.ids);
        for (std::size_t i = 0; i < memory_.size(); ++i) EXPECT_TRUE(memory_[i] == other.memory_[i]) << "array " << i;
    }

    per_batch batch;
    std::vector<int64_t> ids;

 private:
    template <class Element>
    Element* array(int64_t bytes) {
        memory_.emplace_back(static_cast<std::size_t>(bytes), uint8_t{0xa5});
        return static_cast<Element*>(static_cast<void*>(memory_.back().data()));
    }

    std::vector<std::vector<uint8_t>> memory_;
    void* fields_[n_fields] = {};
    void* next_fields_[n_fields] = {};
};

// A step has a reward, and ends its episode, if the goal is reached.
int32_t goal_reward(void*, int64_t count, const void* achieved, const void* goals, float* rewards,
                    uint8_t* terminated) {
    const auto* const a = static_cast<const float*>(achieved);
    const auto* const b = static_cast<const float*>(goals);
    for (int64_t i = 0; i < count; ++i) {
        const bool is_reached = std::memcmp(a + 2 * i, b + 2 * i, 2 * sizeof(float)) == 0;
        rewards[i] = is_reached ? 1.0f : a[2 * i + 1] - b[2 * i + 1];
        if (is_reached) terminated[i] = 1;
    }
    return 0;
}

// The goals with which a batch is relabelled; fraction < 0: no relabelling.
struct Goals {
    double fraction = -1;
    int32_t strategy = PER_GOAL_FUTURE;
};

struct FreeEpochs {
    void operator()(per_epochs* epochs) const { per_epochs_free(epochs); }
};
using Epochs = std::unique_ptr<per_epochs, FreeEpochs>;

class TwinUse {
 public:
    // One choice determines all steps, so the others are left for the calls.
    explicit TwinUse(Choices choices)
        : choices_(choices),
          options_(any_options(choices_)),
          twins_(options_),
          walk_(choices_() % 256, options_.store_next_observation != 0),
          n_step_(options_.n_step) {}

    void run() {
        for (int i = 0; i < 100 && !choices_.are_over() && !testing::Test::HasFailure(); ++i) call();
        twins_.expect_same();
    }

 private:
    void call() {
        switch (any(24)) {
            case 0:
                return cut();
            case 1:
                return change_option();
            case 2:
                return set_priorities();
            case 3:
                return set_fields();
            case 4:
                return rows();
            case 5:
                return windows({});
            case 6:
                return windows(any_goals());
            case 7:
                return epochs();
            case 8:
                return units();
            case 9:
                return advantages();
            case 10:
                return sample(any_goals());
            case 11:
            case 12:
            case 13:
            case 14:
                return sample({});
            default:
                twins_.add(walk_.next(any(6)));
        }
    }

    int64_t any(uint64_t n) { return static_cast<int64_t>(below(choices_, n)); }
    int64_t steps() const { return steps_of_sequence(options_); }
    per_replay* replay(bool is_gpu) { return (is_gpu ? twins_.gpu : twins_.cpu).get(); }
    void* stream(bool is_gpu) { return is_gpu ? twins_.stream : nullptr; }
    std::vector<int64_t> live_ids() { return live_ids_of(twins_.cpu.get()); }

    // Makes the call on both, and expects the same status.
    template <class Call>
    per_status both(const Call& call) {
        const per_status status = call(replay(false), stream(false), false);
        EXPECT_EQ(call(replay(true), stream(true), true), status) << per_last_error();
        twins_.synchronize();
        return status;
    }

    // Makes a call that writes a batch on both, and expects the same batch. A call that the CPU refuses is not made on
    // the GPU, where perhaps only the device would notice.
    template <class Call>
    std::vector<int64_t> both(int64_t size, int64_t n_step, Arrays::Of of, const Call& call) {
        const bool has_times_sampled = options_.keep_times_sampled != 0;
        Arrays cpu(size, steps(), n_step, has_times_sampled, of), gpu(size, steps(), n_step, has_times_sampled, of);
        if (call(replay(false), stream(false), cpu.batch) != PER_OK) return {};
        EXPECT_EQ(call(replay(true), stream(true), gpu.batch), PER_OK) << per_last_error();
        twins_.synchronize();
        gpu.expect_same_as(cpu);
        return cpu.ids;
    }

    per_sample_options any_how() {
        per_sample_options how = initialized(per_sample_options_init);
        how.scheme = static_cast<int32_t>(any(5)) - 1;
        if (options_.max_times_sampled > 0) how.scheme = PER_WITHOUT_REPLACEMENT;
        how.prioritization = static_cast<int32_t>(any(4)) - 1;
        how.normalize_weights = static_cast<int32_t>(any(4)) - 1;
        if (any(3) == 0) how.uniform_fraction = 0.25 * static_cast<double>(any(5));
        if (any(3) == 0) how.beta = 0.25 * static_cast<double>(any(9));
        how.n_step = any(3) == 0 ? 1 + any(static_cast<uint64_t>(n_step_)) : n_step_;
        if (any(3) == 0) how.n_step_min = 1 + any(static_cast<uint64_t>(how.n_step));
        return how;
    }

    Goals any_goals() { return {0.5 * static_cast<double>(any(3)), static_cast<int32_t>(any(3))}; }
    static per_hindsight_options hindsight_of(const Goals& goals) {
        per_hindsight_options hindsight = initialized(per_hindsight_options_init);
        hindsight.achieved_field = observation;
        hindsight.goal_field = goal;
        hindsight.strategy = goals.strategy;
        hindsight.fraction = goals.fraction;
        hindsight.reward = goal_reward;
        return hindsight;
    }

    void sample(const Goals& goals) {
        per_sample_options how = any_how();
        const uint64_t key[2] = {any_key_, any_key_ / 2};
        const bool has_goals = goals.fraction >= 0;
        if (!has_goals && any(4) == 0) how.key = key;
        const per_hindsight_options hindsight = hindsight_of(goals);
        const int64_t size = 1 + any(40);
        if (options_.max_times_sampled == 0 && any(4) == 0)
            how.newest = static_cast<int32_t>(any(static_cast<uint64_t>(size)));
        const std::vector<int64_t> ids =
            both(size, how.n_step, Arrays::Of::draw, [&](per_replay* r, void* stream, const per_batch& batch) {
                return has_goals ? sample_with_hindsight(r, &how, &hindsight, size, &batch, stream)
                                 : per_replay_sample(r, &how, size, &batch, stream);
            });
        if (!ids.empty() && any(4) != 0) update(ids);
    }

    void update(const std::vector<int64_t>& ids) {
        const int64_t n_critics = 1 + any(2), n = static_cast<int64_t>(ids.size());
        const int64_t n_steps = steps() == 0 ? 1 : any(2) == 0 ? steps() : options_.sequence_length;
        std::vector<float> td_errors;
        for (int64_t i = 0; i < n_critics * n * n_steps; ++i)
            td_errors.push_back(static_cast<float>(walk_.random() % 256) - 100.0f);
        both([&](per_replay* r, void* stream, bool) {
            return steps() > 0 ? write_sequence_errors(r, n, ids.data(), n_critics, n_steps, td_errors.data(), stream)
                               : write_td_errors(r, n, ids.data(), n_critics, td_errors.data(), stream);
        });
    }

    void cut() {
        const int64_t env = any(n_envs);
        both([&](per_replay* r, void* stream, bool) { return per_replay_cut(r, 1, &env, stream); });
    }

    // A reference that leaves may be raised to.
    int64_t any_reference() { return options_.freshness.half_life == 0 ? 0 : 36 + 32 * any(200); }

    void change_option() {
        const int64_t kind = any(9), value = any(4);
        const int64_t reference = kind == 8 ? any_reference() : 0;
        const double number = 0.5 * static_cast<double>(value);
        const per_status status = both([&](per_replay* r, void* stream, bool) {
            switch (kind) {
                case 0:
                    return per_replay_clear(r, stream);
                case 1:
                case 2:
                    return change_n_step(r, 1 + value % max_n_step, stream);
                case 3:
                    return change_alpha(r, number, stream);
                case 4:
                    return change_beta(r, number, stream);
                case 5:
                    return change_gamma(r, number / 2, stream);
                case 7:
                    return change_version(r, version_ + 20 * value, stream);
                case 6:
                    return per_replay_raise_max_priority(r, static_cast<float>(1 + 100 * value), stream);
                default:
                    return per_replay_set_scale(r, value == 0 ? PER_SCALE_AUTOMATIC : static_cast<int32_t>(20 * value),
                                                reference);
            }
        });
        if (status == PER_OK && kind == 7) version_ += 20 * value;
        if (status == PER_OK && (kind == 1 || kind == 2)) n_step_ = 1 + value % max_n_step;
    }

    // Priorities of all magnitudes, and 0.
    void set_priorities() {
        const std::vector<int64_t> ids = live_ids();
        std::vector<float> priorities;
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const auto kind = static_cast<int>(walk_.random() % 256);
            priorities.push_back(kind < 64 ? 0.0f : std::ldexp(1.0f + static_cast<float>(kind % 8), kind - 170));
        }
        const auto n = static_cast<int64_t>(ids.size());
        both([&](per_replay* r, void* stream, bool) {
            return write_priorities(r, n, ids.data(), priorities.data(), stream);
        });
        std::vector<float> read[2] = {std::vector<float>(ids.size()), std::vector<float>(ids.size())};
        both([&](per_replay* r, void* stream, bool is_gpu) {
            return per_replay_get_priorities(r, n, ids.data(), read[is_gpu].data(), stream);
        });
        EXPECT_EQ(read[0], read[1]);
    }

    void set_fields() {
        const std::vector<int64_t> ids = live_ids();
        const std::vector<float> values(ids.size(), static_cast<float>(any(256)));
        per_array fields[n_fields] = {};
        fields[return_value] = {values.data(), nullptr, 0, PER_FLOAT32, nullptr};
        both([&](per_replay* r, void* stream, bool) {
            return per_replay_set(r, static_cast<int64_t>(ids.size()), ids.data(), fields, stream);
        });
    }

    void rows() {
        const std::vector<int64_t> ids = live_ids();
        const auto n = static_cast<int64_t>(ids.size());
        both(n, 0, Arrays::Of::rows, [&](per_replay* r, void* stream, per_batch batch) {
            batch.next_fields = steps() == 0 ? batch.next_fields : nullptr;
            return per_replay_get(r, n, ids.data(), &batch, stream);
        });
    }

    // All live ids and some others.
    void windows(const Goals& goals) {
        std::vector<int64_t> ids = live_ids();
        for (int64_t i = any(4); i > 0; --i) ids.push_back(any(200) - 1);
        const auto n = static_cast<int64_t>(ids.size());
        const per_sample_options how = any_how();
        const per_hindsight_options hindsight = hindsight_of(goals);
        both(n, how.n_step, Arrays::Of::draw, [&](per_replay* r, void* stream, const per_batch& batch) {
            return goals.fraction >= 0
                       ? get_windows_with_hindsight(r, &how, &hindsight, PER_INVALID_SKIP, n, ids.data(), &batch,
                                                    stream)
                       : per_replay_get_windows(r, &how, PER_INVALID_SKIP, n, ids.data(), &batch, stream);
        });
    }

    void epochs() {
        const int64_t n_epochs = 1 + any(2), size = 1 + any(20);
        const auto drop_last = static_cast<int32_t>(any(2));
        Epochs walks[2];
        const per_status status = both([&](per_replay* r, void* stream, bool is_gpu) {
            per_epochs* walk = nullptr;
            const per_status created = per_epochs_create(r, n_epochs, size, drop_last, stream, &walk);
            walks[is_gpu].reset(walk);
            return created;
        });
        if (status != PER_OK) return;
        int64_t counts[2] = {1, 1};
        while (counts[0] > 0 && !testing::Test::HasFailure()) {
            both(size, n_step_, Arrays::Of::draw, [&](per_replay* r, void* stream, const per_batch& batch) {
                const bool is_gpu = r == replay(true);
                return per_epochs_next(walks[is_gpu].get(), &batch, &counts[is_gpu], stream);
            });
            EXPECT_EQ(counts[0], counts[1]);
        }
    }

    void units() {
        per_shard_summary laws[2] = {};
        const int32_t measured = any(2) == 0 ? PER_SCALE_AUTOMATIC : static_cast<int32_t>(any(100)) - 50;
        const int64_t reference = any_reference();
        both([&](per_replay* r, void*, bool is_gpu) {
            return per_replay_summarize(r, measured, reference, &laws[is_gpu], sizeof laws[is_gpu]);
        });
        EXPECT_EQ(std::memcmp(&laws[0], &laws[1], sizeof laws[0]), 0);
        std::vector<int64_t> wanted;
        for (int64_t i = any(20); i > 0 && laws[0].live > 0; --i) {
            const bool is_rank = laws[0].total_mass == 0 || any(3) == 0;
            const uint64_t number =
                walk_.random() % (is_rank ? static_cast<uint64_t>(laws[0].live) : laws[0].total_mass);
            wanted.push_back(is_rank ? -1 - static_cast<int64_t>(number) : static_cast<int64_t>(number));
        }
        const auto n = static_cast<int64_t>(wanted.size());
        const per_sample_options how = any_how();
        std::vector<uint64_t> masses[2], firsts[2];
        both(n, how.n_step, Arrays::Of::draw, [&](per_replay* r, void* stream, const per_batch& batch) {
            const bool is_gpu = r == replay(true);
            masses[is_gpu].resize(wanted.size());
            firsts[is_gpu].resize(wanted.size());
            return per_replay_get_units(r, &how, n, wanted.data(), &batch, masses[is_gpu].data(), firsts[is_gpu].data(),
                                        stream);
        });
        if (masses[1].empty()) return;  // the CPU has refused the options
        EXPECT_TRUE(masses[0] == masses[1] && firsts[0] == firsts[1]);
    }

    void advantages() {
        int64_t counts[2] = {0, 0};
        both([&](per_replay* r, void* stream, bool is_gpu) {
            return per_replay_get_bootstraps(r, 0, nullptr, &counts[is_gpu], stream);
        });
        EXPECT_EQ(counts[0], counts[1]);
        const std::vector<int64_t> ids =
            both(counts[0], 0, Arrays::Of::bootstraps, [&](per_replay* r, void* stream, const per_batch& batch) {
                return per_replay_get_bootstraps(r, counts[0], &batch, &counts[r == replay(true)], stream);
            });
        const std::vector<float> values(ids.size(), static_cast<float>(any(16)));
        const double lambda = 0.5 * static_cast<double>(any(3));
        both([&](per_replay* r, void* stream, bool) {
            return per_replay_compute_advantages(r, return_value, advantage, -1, lambda,
                                                 static_cast<int64_t>(ids.size()), ids.data(), values.data(), stream);
        });
    }

    Choices choices_;
    const per_replay_options options_;
    Twins twins_;
    TwinWalk walk_;
    int64_t n_step_;
    int64_t version_ = 0;
    const uint64_t any_key_ = choices_();
};

}  // namespace
}  // namespace per::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    using namespace per::test;
    return fuzz(data, size, [](Choices choices) { TwinUse(choices).run(); });
}
