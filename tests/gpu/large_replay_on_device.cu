// Replay buffers of training size on a CUDA device, bit-identical to those on the CPU: kernels have many blocks, while
// copies on another stream compete for the memory bandwidth. There is one buffer of each of three kinds, all with
// PER_MAX_NOW and times_sampled: proportional priorities with PER_BUFFER_MAX, ranks, and sequences. Exits with 77 if
// there is no device, and with 0 if everything is equal; otherwise prints the differences and exits with 1.
//
//     large_replay_on_device [ROUNDS [CAPACITY LANES BATCH]]
#include <utility>

#include "replay_pair.h"

namespace {

constexpr int64_t most_steps = 4;  // of an add between two batches

constexpr Kind kinds[] = {
    {"proportional", PER_PROPORTIONAL, PER_STRATIFIED, PER_BUFFER_MAX, false, true},
    {"ranks", PER_RANK, PER_INDEPENDENT, PER_BATCH_MAX, false, true},
    {"sequences", PER_PROPORTIONAL, PER_SYSTEMATIC, PER_BUFFER_MAX, true, true},
};

// Copies on a stream that is never waited for: they keep the memory busy, and evict data from the caches.
class Hammer {
 public:
    explicit Hammer(std::size_t n_bytes) : memory_(2 * n_bytes), n_bytes_(n_bytes) {
        REQUIRE(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess);
        REQUIRE(cudaMemsetAsync(memory_.device, 0, 2 * n_bytes, stream_) == cudaSuccess);
    }
    ~Hammer() { static_cast<void>(cudaStreamDestroy(stream_)); }
    Hammer(const Hammer&) = delete;
    Hammer& operator=(const Hammer&) = delete;

    void begin(int n_copies) {
        unsigned char* from = memory_.device;
        unsigned char* to = memory_.device + n_bytes_;
        for (int i = 0; i < n_copies; ++i) {
            REQUIRE(cudaMemcpyAsync(to, from, n_bytes_, cudaMemcpyDeviceToDevice, stream_) == cudaSuccess);
            std::swap(from, to);
        }
    }
    void end() { REQUIRE(cudaStreamSynchronize(stream_) == cudaSuccess); }

 private:
    Arrays memory_;
    std::size_t n_bytes_;
    cudaStream_t stream_;
};

}  // namespace

int main(int n_arguments, char** arguments) {
    const auto argument = [&](int i, int64_t otherwise) {
        return n_arguments > i ? static_cast<int64_t>(std::atoll(arguments[i])) : otherwise;
    };
    const int64_t rounds = argument(1, 20);
    const Size size = {argument(2, 1000000), argument(3, 4096), argument(4, 8192), most_steps, 16, 2};
    constexpr int n_copies = 32;
    for (const Kind& kind : kinds) {
        Pair buffers(kind, size);
        Hammer hammer(static_cast<std::size_t>(size.capacity) * 64);
        // Fills the buffer and a little more: the oldest rows are overwritten.
        for (int64_t row = 0; row * size.n_lanes < size.capacity; row += most_steps) buffers.add_steps(most_steps);
        for (int64_t round = 0; round < rounds; ++round) {
            hammer.begin(n_copies);
            buffers.add_steps(1 + round % most_steps);
            buffers.learn();
            hammer.end();
        }
        std::printf("%s: the same bits\n", kind.name);
    }
    std::printf("passed\n");
    return 0;
}
