// The tree on a CUDA device, compared with the tree on the CPU, through per.h and device memory, as users have it: the
// same calls have bit-identical results, on two streams, and in a graph. Exits with 77 if there is no device, and with
// 0 if everything is equal; otherwise prints the differences and exits with 1.
//
//     tree_on_device [LARGEST_CAPACITY [ROUNDS]]
#include <cuda_runtime.h>
#include <per.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "on_device.h"
#include "require.h"

namespace {

template <class Element>
bool same_bits(const std::vector<Element>& a, const std::vector<Element>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(Element)) == 0);
}

per_tree* create(int64_t capacity, int32_t device) {
    per_tree_options options;
    per_tree* tree = nullptr;
    REQUIRE(per_tree_options_init(&options, sizeof options) == PER_OK);
    options.capacity = capacity;
    options.seed = 11;
    options.device = device;
    require_created(per_tree_create(&options, &tree));
    return tree;
}

constexpr std::size_t most = 6000;  // largest number of entries of an update or draws of a batch

// Both trees, and the data that is kept on the device between calls.
class Pair {
 public:
    explicit Pair(int64_t capacity)
        : cpu_(create(capacity, PER_CPU)), cuda_(create(capacity, PER_CUDA)), capacity_(capacity), numbers_(7) {
        for (cudaStream_t& stream : streams_)
            REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    }
    ~Pair() {
        per_tree_free(cpu_);
        per_tree_free(cuda_);
        for (const cudaStream_t stream : streams_) static_cast<void>(cudaStreamDestroy(stream));
    }
    Pair(const Pair&) = delete;
    Pair& operator=(const Pair&) = delete;

    void update(std::size_t count) {
        std::vector<int64_t> indices(count);
        std::vector<float> priorities(count);
        for (std::size_t i = 0; i < count; ++i) {
            indices[i] = static_cast<int64_t>(numbers_() % static_cast<uint64_t>(capacity_));
            // Some priorities are larger or smaller by orders of magnitude, so that the scale changes.
            const float magnitude = numbers_() % 500 == 0 ? 1e20f : numbers_() % 3 == 0 ? 1e-12f : 1.0f;
            priorities[i] = numbers_() % 10 == 0 ? 0.0f : magnitude * static_cast<float>(numbers_() >> 40);
        }
        indices_.write(indices, streams_[0]);
        priorities_.write(priorities, streams_[0]);
        const int64_t n = static_cast<int64_t>(count);
        REQUIRE(per_update(cpu_, n, indices.data(), priorities.data(), nullptr) == PER_OK);
        REQUIRE(per_update(cuda_, n, indices_.data(), priorities_.data(), streams_[0]) == PER_OK);
    }

    // On the other stream; only the library makes it wait for the update.
    void sample(std::size_t n, int32_t scheme) {
        const int64_t size = static_cast<int64_t>(n);
        REQUIRE(per_sample(cuda_, size, scheme, 0.6f, drawn_.data(), drawn_priorities_.data(), weights_.data(),
                           streams_[1]) == PER_OK);
        expect_drawn(n, scheme);
        expect_same_mass();
    }

    // Expects the batch of the device to equal the next one of the CPU.
    void expect_drawn(std::size_t n, int32_t scheme) {
        std::vector<int64_t> indices(n);
        std::vector<float> priorities(n), weights(n);
        const per_status status = per_sample(cpu_, static_cast<int64_t>(n), scheme, 0.6f, indices.data(),
                                             priorities.data(), weights.data(), nullptr);
        REQUIRE(per_tree_synchronize(cuda_, streams_[1]) == status);
        if (status != PER_OK) return;
        REQUIRE(same_bits(drawn_.read(n, streams_[1]), indices));
        REQUIRE(same_bits(drawn_priorities_.read(n, streams_[1]), priorities));
        REQUIRE(same_bits(weights_.read(n, streams_[1]), weights));
    }

    void expect_same_mass() {
        per_tree_description of[2];
        REQUIRE(per_tree_describe(cpu_, &of[0], sizeof of[0]) == PER_OK);
        REQUIRE(per_tree_describe(cuda_, &of[1], sizeof of[1]) == PER_OK);
        REQUIRE(of[0].total_mass == of[1].total_mass && of[0].scale == of[1].scale);
    }

    // A draw and an update in a graph: each launch equals the CPU's next batch.
    void replay_graph(int rounds) {
        constexpr std::size_t n = 64;
        std::vector<int64_t> indices(n);
        std::vector<float> priorities(n, 0.5f);
        for (std::size_t i = 0; i < n; ++i)
            indices[i] = static_cast<int64_t>(numbers_() % static_cast<uint64_t>(capacity_));
        indices_.write(indices, streams_[1]);
        priorities_.write(priorities, streams_[1]);
        cudaGraph_t graph;
        cudaGraphExec_t executable;
        REQUIRE(cudaStreamBeginCapture(streams_[1], cudaStreamCaptureModeGlobal) == cudaSuccess);
        REQUIRE(per_sample(cuda_, n, PER_STRATIFIED, 0.6f, drawn_.data(), drawn_priorities_.data(), weights_.data(),
                           streams_[1]) == PER_OK);
        REQUIRE(per_update(cuda_, n, indices_.data(), priorities_.data(), streams_[1]) == PER_OK);
        REQUIRE(cudaStreamEndCapture(streams_[1], &graph) == cudaSuccess);
        REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
        for (int round = 0; round < rounds; ++round) {
            for (float& priority : priorities) priority = static_cast<float>(round * 100 + 1);
            priorities_.write(priorities, streams_[1]);
            REQUIRE(cudaGraphLaunch(executable, streams_[1]) == cudaSuccess);
            expect_drawn(n, PER_STRATIFIED);
            REQUIRE(per_update(cpu_, n, indices.data(), priorities.data(), nullptr) == PER_OK);
            expect_same_mass();
        }
        REQUIRE(cudaGraphExecDestroy(executable) == cudaSuccess);
        REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
    }

 private:
    per_tree* cpu_;
    per_tree* cuda_;
    int64_t capacity_;
    std::mt19937_64 numbers_;
    cudaStream_t streams_[2];
    OnDevice<int64_t> indices_{most}, drawn_{most};
    OnDevice<float> priorities_{most}, drawn_priorities_{most}, weights_{most};
};

void compare(int64_t capacity, int rounds) {
    Pair trees(capacity);
    for (int round = 0; round < rounds; ++round) {
        // Small and large updates use different code on the device.
        for (const std::size_t count : {std::size_t{1}, std::size_t{300}, most}) {
            trees.update(count);
            for (int32_t scheme = PER_STRATIFIED; scheme <= PER_WITHOUT_REPLACEMENT; ++scheme)
                trees.sample(scheme == PER_WITHOUT_REPLACEMENT ? 200 : 256, scheme);
        }
    }
    trees.replay_graph(3);
    std::printf("capacity %lld: the same bits\n", static_cast<long long>(capacity));
}

}  // namespace

int main(int n_arguments, char** arguments) {
    const long long largest = n_arguments > 1 ? std::atoll(arguments[1]) : 10000000;
    const int rounds = n_arguments > 2 ? std::atoi(arguments[2]) : 20;
    for (const int64_t capacity : {1, 31, 33, 1024, 1025, 32769, 1000000, 10000000})
        if (capacity <= largest) compare(capacity, rounds);
    std::printf("passed\n");
    return 0;
}
