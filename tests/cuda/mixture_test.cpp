// Mixtures of buffers on CUDA are bit-identical to those of the same buffers on the CPU: rows, weights, sources, what
// rounding owes, and the priorities after updates; in calls on changing streams, and in graphs.
#include <array>

#include "graph.h"
#include "replay_twins.h"

namespace per::test {
namespace {

constexpr int64_t batch_size = 19;

// The buffers differ in options that a mixture does not require to be the same.
per_replay_options options_of(int k) {
    per_replay_options options = twin_options();
    options.capacity = 48 + 24 * k;
    options.seed = 3 + static_cast<uint64_t>(k);
    options.alpha = 0.5 + 0.2 * k;
    options.beta = 0.3 + 0.3 * k;
    return options;
}

struct MixedBatch : TwinBatch {
    std::array<int32_t, batch_size> sources;

    MixedBatch() : TwinBatch(batch_size) { sources.fill(-7); }
};

class TwinMixtures {
 public:
    Twins first{options_of(0)}, second{options_of(1)};

    // Starts random walks with calls on both buffers.
    explicit TwinMixtures(uint64_t seed) : walks_{first.begin(seed, 12), second.begin(seed + 100, 12)} {
        cpu_ = {{{first.cpu.get(), 0.3, 0, 0, 0}, {second.cpu.get(), 0.7, 0, 0, 0}}};
        gpu_ = {{{first.gpu.get(), 0.3, 0, 0, 0}, {second.gpu.get(), 0.7, 0, 0, 0}}};
    }

    void add() {
        first.add(walks_[0].next());
        second.add(walks_[1].next(2));
    }

    per_status sample(bool on_gpu, const per_sample_options* options, MixedBatch& drawn, void* stream) {
        const per_batch batch = drawn.batch();
        return per_mixture_sample((on_gpu ? gpu_ : cpu_).data(), 2, options, batch_size, &batch, drawn.sources.data(),
                                  stream);
    }

    // Draws on both devices, expects the same batch, and updates the priorities of its rows.
    void draw_and_update(const per_sample_options* options, cudaStream_t stream) {
        MixedBatch of_cpu, of_gpu;
        ASSERT_EQ(sample(false, options, of_cpu, nullptr), PER_OK) << per_last_error();
        ASSERT_EQ(sample(true, options, of_gpu, stream), PER_OK) << per_last_error();
        cudaStreamSynchronize(stream);
        expect_same(of_cpu, of_gpu);
        update(of_cpu, stream);
        synchronize();
    }

    void update(MixedBatch& drawn, cudaStream_t stream) {
        std::vector<float> errors;
        for (const int64_t id : drawn.ids) errors.push_back(static_cast<float>(id % 17) * 0.3f);
        per_priorities given = priorities_given(batch_size, drawn.ids.data());
        given.td_errors = errors.data();
        EXPECT_EQ(per_mixture_update_priorities(cpu_.data(), 2, &given, drawn.sources.data(), nullptr), PER_OK);
        EXPECT_EQ(per_mixture_update_priorities(gpu_.data(), 2, &given, drawn.sources.data(), stream), PER_OK);
        cudaStreamSynchronize(stream);
    }

    void expect_same(const MixedBatch& of_cpu, const MixedBatch& of_gpu) {
        EXPECT_TRUE(of_cpu == of_gpu);
        EXPECT_EQ(of_cpu.ids, of_gpu.ids);
        EXPECT_EQ(of_cpu.weights, of_gpu.weights);
        EXPECT_EQ(of_cpu.probabilities, of_gpu.probabilities);
        EXPECT_EQ(of_cpu.sources, of_gpu.sources);
        for (std::size_t k = 0; k < 2; ++k) EXPECT_EQ(cpu_[k].carry, gpu_[k].carry);
    }

    void synchronize() {
        first.synchronize();
        second.synchronize();
    }

    void expect_same() {
        synchronize();
        first.expect_same();
        second.expect_same();
    }

 private:
    TwinWalk walks_[2];
    std::array<per_source, 2> cpu_, gpu_;
};

TEST(MixturesOnCuda, are_those_of_the_cpu) {
    TwinMixtures twins(1);
    const cudaStream_t streams[] = {twins.first.stream, twins.second.stream};
    int i = 0;
    for (int32_t scheme = PER_STRATIFIED; scheme <= PER_WITHOUT_REPLACEMENT; ++scheme)
        for (int32_t prioritization = PER_PROPORTIONAL; prioritization <= PER_UNIFORM; ++prioritization, ++i) {
            per_sample_options options = sample_options(prioritization, i % 2 == 0 ? PER_BATCH_MAX : PER_NONE);
            options.scheme = scheme;
            if (i % 3 == 1) options.uniform_fraction = 0.25;
            if (i % 4 == 3) options.beta = 0.8;
            twins.draw_and_update(&options, streams[i % 2]);
            twins.add();
            if (HasFailure()) return;
        }
    twins.expect_same();
}

TEST(MixturesOnCuda, have_no_rows_of_a_source_in_which_nothing_is_live) {
    Twins full(options_of(0)), empty(options_of(1));
    full.begin(5, 12);
    std::array<per_source, 2> sources = {{{empty.gpu.get(), 0.5, 0, 0, 0}, {full.gpu.get(), 0.5, 0, 0, 0}}};
    for (const int32_t normalize_weights : {PER_BATCH_MAX, PER_NONE}) {
        const per_sample_options options = sample_options(of_buffer, normalize_weights);
        MixedBatch drawn;
        const per_batch batch = drawn.batch();
        ASSERT_EQ(
            per_mixture_sample(sources.data(), 2, &options, batch_size, &batch, drawn.sources.data(), full.stream),
            PER_OK);
        EXPECT_EQ(per_replay_synchronize(empty.gpu.get(), full.stream), PER_ERROR_EMPTY);
        full.synchronize();
        float largest = 0;
        for (std::size_t i = 0; i < batch_size; ++i) {
            const bool is_drawn = drawn.sources[i] == 1;
            EXPECT_EQ(drawn.ids[i] >= 0, is_drawn);
            EXPECT_EQ(drawn.weights[i] > 0, is_drawn);
            EXPECT_EQ(drawn.probabilities[i] > 0, is_drawn);
            largest = std::max(largest, drawn.weights[i]);
        }
        EXPECT_TRUE(largest == 1.0f || normalize_weights == PER_NONE);
    }
}

TEST(MixturesOnCuda, of_a_graph_are_those_of_calls_with_the_same_numbers_of_rows) {
    TwinMixtures twins(9);
    MixedBatch of_graph, expected;
    // The carry of the capture decides the rows of every launch: batches of 19 in shares of 0.3 have 6 rows first.
    const Graph graph(twins.first.stream, [&] {
        EXPECT_EQ(twins.sample(true, nullptr, of_graph, twins.first.stream), PER_OK) << per_last_error();
    });
    graph.launch();
    cudaStreamSynchronize(twins.first.stream);
    ASSERT_EQ(twins.sample(false, nullptr, expected, nullptr), PER_OK);
    twins.expect_same(expected, of_graph);
    twins.update(expected, twins.first.stream);
    graph.launch();
    cudaStreamSynchronize(twins.first.stream);
    EXPECT_EQ(std::count(of_graph.sources.begin(), of_graph.sources.end(), 0), 6);
    EXPECT_NE(of_graph.ids, expected.ids);
}

TEST(MixturesOnCuda, count_entries_of_no_source_once) {
    TwinMixtures twins(13);
    MixedBatch drawn;
    ASSERT_EQ(twins.sample(true, nullptr, drawn, twins.first.stream), PER_OK);
    twins.synchronize();
    const int64_t before = statistics_of(twins.first.gpu.get()).updates;
    drawn.sources.fill(2);
    drawn.sources[0] = -1;
    std::array<per_source, 2> sources = {
        {{twins.first.gpu.get(), 0.3, 0, 0, 0}, {twins.second.gpu.get(), 0.7, 0, 0, 0}}};
    const std::vector<float> errors(batch_size, 1.0f);
    per_priorities given = priorities_given(batch_size, drawn.ids.data());
    given.td_errors = errors.data();
    ASSERT_EQ(per_mixture_update_priorities(sources.data(), 2, &given, drawn.sources.data(), twins.first.stream),
              PER_OK);
    EXPECT_EQ(per_replay_synchronize(twins.first.gpu.get(), twins.first.stream), PER_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(per_last_error()).find("19 ids named no row"), std::string::npos) << per_last_error();
    twins.second.synchronize();
    EXPECT_EQ(statistics_of(twins.first.gpu.get()).updates, before);
}

}  // namespace
}  // namespace per::test
