// A replay buffer on a CUDA device against the same on the CPU, by each scheme: the same bits from the same calls, on two
// streams with only the library between them, and from a graph of a batch and its update. Exits with 77 where there is no
// device, with 0 if everything is the same; else it prints what differs and exits with 1.
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
