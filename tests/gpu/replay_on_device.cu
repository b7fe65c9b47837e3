// A replay buffer on a CUDA device, compared with the same buffer on the CPU, for each scheme: the same calls have
// bit-identical results, on two streams ordered only by the library, and in a graph of a batch and its update. Exits
// with 77 if there is no device, and with 0 if everything is equal; otherwise prints the differences and exits with 1.
//
//     replay_on_device [ROUNDS]
#include "replay_pair.h"

namespace {

constexpr Kind kinds[] = {
    {"stratified", PER_PROPORTIONAL, PER_STRATIFIED, PER_BATCH_MAX, false, false},
    {"systematic", PER_PROPORTIONAL, PER_SYSTEMATIC, PER_BATCH_MAX, false, false},
    {"independent", PER_PROPORTIONAL, PER_INDEPENDENT, PER_BATCH_MAX, false, false},
};
constexpr Size size = {600, 6, 96, 8, 40, 3};

}  // namespace

int main(int n_arguments, char** arguments) {
    const int rounds = n_arguments > 1 ? std::atoi(arguments[1]) : 100;
    for (const Kind& kind : kinds) {
        Pair buffers(kind, size);
        for (int round = 0; round < 4; ++round) buffers.add_steps(size.most_steps);
        for (int round = 0; round < rounds; ++round) {
            buffers.add_steps(1 + round % size.most_steps);
            buffers.learn();
        }
        buffers.replay_graph(3);
        std::printf("%s: the same bits\n", kind.name);
    }
    std::printf("passed\n");
    return 0;
}
