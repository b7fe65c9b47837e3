// Calls on a buffer of the CPU and on one of the simulated GPU, which answer alike, bit for bit.
#include "../cuda/replay_twins.h"
#include "fuzz.h"
#include "simulator.h"

namespace per::test {
namespace {

per_replay_options any_options(Choices& choices) {
    const auto of = [&](auto... values) {
        const double all[] = {static_cast<double>(values)...};
        return all[below(choices, sizeof...(values))];
    };
    per_replay_options options = twin_options();
    options.capacity = static_cast<int64_t>(of(30, 48, 99));
    options.n_step = static_cast<int64_t>(of(1, 2, 4));
    options.frame_stack = static_cast<int64_t>(of(2));  // what a TwinBatch has room for
    options.gamma = of(0, 0.75, 1);
    options.alpha = of(0, 0.6, 1);
    options.uniform_fraction = of(0, 0.25, 1);
    options.prioritization = static_cast<int32_t>(of(PER_PROPORTIONAL, PER_RANK, PER_UNIFORM));
    options.scheme = static_cast<int32_t>(of(PER_STRATIFIED, PER_INDEPENDENT, PER_SYSTEMATIC, PER_WITHOUT_REPLACEMENT));
    options.normalize_weights = static_cast<int32_t>(of(PER_BATCH_MAX, PER_BUFFER_MAX, PER_NONE));
    options.max_priority = static_cast<int32_t>(of(PER_MAX_EVER, PER_MAX_NOW));
    options.autoreset = static_cast<int32_t>(of(PER_AUTORESET_DISABLED, PER_AUTORESET_NEXT_STEP));
    return options;
}

class TwinUse {
 public:
    explicit TwinUse(Choices choices) : choices_(choices), twins_(any_options(choices_)), walk_(choices_) {}

    void run() {
        for (int i = 0; i < 60 && !walk_.is_over() && !testing::Test::HasFailure(); ++i) call();
        twins_.expect_same();
    }

 private:
    uint64_t any(uint64_t n) { return walk_.random() % n; }

    template <class Call>
    void both(const Call& call) {
        EXPECT_EQ(call(twins_.cpu.get(), nullptr), PER_OK) << per_last_error();
        EXPECT_EQ(call(twins_.gpu.get(), static_cast<void*>(twins_.stream)), PER_OK) << per_last_error();
        twins_.synchronize();
    }

    void call() {
        switch (any(16)) {
            case 0: {
                const auto env = static_cast<int64_t>(any(n_envs));
                return both([&](auto* replay, void* stream) { return per_replay_cut(replay, 1, &env, stream); });
            }
            case 1: {
                if (any(4) != 0) return;
                return both([](auto* replay, void* stream) { return per_replay_clear(replay, stream); });
            }
            case 2: {
                const auto n_step = static_cast<int64_t>(1 + any(4));
                return both([&](auto* r, void* stream) { return per_replay_set_n_step(r, n_step, stream); });
            }
            case 3: {
                const double alpha = 0.5 * static_cast<double>(any(4));
                return both([&](auto* replay, void* stream) { return per_replay_set_alpha(replay, alpha, stream); });
            }
            case 4: {
                const double beta = 0.5 * static_cast<double>(any(4));
                return both([&](auto* replay, void* stream) { return per_replay_set_beta(replay, beta, stream); });
            }
            case 5:
                return set_priorities();
            case 6:
                return read();
            case 7:
            case 8:
            case 9:
            case 10:
                return draw_and_update();
            default:
                twins_.add(walk_.next(static_cast<int64_t>(any(4))));
        }
    }

    void draw_and_update() {
        per_sample_options options;
        per_sample_options_init(&options, sizeof options);
        options.scheme = static_cast<int32_t>(any(5)) - 1;
        options.prioritization = static_cast<int32_t>(any(4)) - 1;
        options.normalize_weights = static_cast<int32_t>(any(4)) - 1;
        if (any(3) == 0) options.uniform_fraction = 0.25 * static_cast<double>(any(5));
        if (any(3) == 0) options.beta = 0.25 * static_cast<double>(any(9));
        if (any(3) == 0) options.n_step_min = 1;
        const std::vector<int64_t> ids = twins_.sample(static_cast<int64_t>(1 + any(40)), &options);
        std::vector<float> td_errors;
        for (std::size_t i = 0; i < ids.size(); ++i) td_errors.push_back(static_cast<float>(any(256)) - 100.0f);
        if (!ids.empty()) twins_.update(ids, td_errors);
    }

    // Priorities of all magnitudes, and 0.
    void set_priorities() {
        const std::vector<int64_t> ids = live_ids_of(twins_.cpu.get());
        std::vector<float> priorities;
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const auto kind = static_cast<int>(any(256));
            priorities.push_back(kind < 64 ? 0.0f : std::ldexp(1.0f + static_cast<float>(kind % 8), kind - 170));
        }
        both([&](auto* replay, void* stream) {
            return per_replay_set_priorities(replay, static_cast<int64_t>(ids.size()), ids.data(), priorities.data(),
                                             stream);
        });
    }

    void read() {
        const std::vector<int64_t> ids = live_ids_of(twins_.cpu.get());
        const auto n = static_cast<int64_t>(ids.size());
        TwinBatch windows[2] = {TwinBatch(n), TwinBatch(n)}, rows[2] = {TwinBatch(n), TwinBatch(n)};
        std::vector<float> priorities[2] = {std::vector<float>(ids.size()), std::vector<float>(ids.size())};
        for (const bool is_gpu : {false, true}) {
            per_replay* const replay = (is_gpu ? twins_.gpu : twins_.cpu).get();
            void* const stream = is_gpu ? twins_.stream : nullptr;
            const per_batch drawn = windows[is_gpu].batch(), by_id = rows[is_gpu].batch(false);
            EXPECT_EQ(per_replay_get_windows(replay, nullptr, PER_INVALID_ERROR, n, ids.data(), &drawn, stream), PER_OK)
                << per_last_error();
            EXPECT_EQ(per_replay_get(replay, n, ids.data(), &by_id, stream), PER_OK) << per_last_error();
            EXPECT_EQ(per_replay_priorities(replay, n, ids.data(), priorities[is_gpu].data(), stream), PER_OK);
        }
        twins_.synchronize();
        EXPECT_TRUE(windows[0] == windows[1] && rows[0] == rows[1] && priorities[0] == priorities[1]);
    }

    Choices choices_;
    Twins twins_;
    TwinWalk walk_;
};

}  // namespace
}  // namespace per::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    using namespace per::test;
    return fuzz(data, size, [](Choices choices) { TwinUse(choices).run(); });
}
