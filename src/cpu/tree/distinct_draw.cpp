#include "cpu/tree/distinct_draw.h"

#include <algorithm>
#include <limits>

#include "backend/found_set.h"
#include "rules/distinct.h"
#include "rules/priority.h"
#include "rules/random.h"

namespace per::cpu {
namespace {

struct Arrays {
    DistinctDraw found;
    int64_t* indices;  // of one round
    uint64_t* masses;
    float* priorities;
    uint64_t* table;
    float* zeros;
    std::byte* draw;
};

Arrays lay_out(const SumTree& tree, int64_t batch_size, std::byte* scratch) {
    const int64_t n_round = distinct_round_size(batch_size + 1);
    const int64_t n_found = batch_size + 1;
    Arrays arrays;
    arrays.draw = scratch;
    ScratchLayout layout(scratch + tree.draw_scratch_bytes(n_round));
    arrays.found.indices = layout.array<int64_t>(n_found);
    arrays.found.masses = layout.array<uint64_t>(n_found);
    arrays.found.priorities = layout.array<float>(n_found);
    arrays.indices = layout.array<int64_t>(n_round);
    arrays.masses = layout.array<uint64_t>(n_round);
    arrays.priorities = layout.array<float>(n_round);
    arrays.table = layout.array<uint64_t>(found_set_size(batch_size + 1));
    arrays.zeros = layout.array<float>(n_found);
    return arrays;
}

}  // namespace

std::size_t distinct_draw_scratch_bytes(const SumTree& tree, int64_t batch_size) {
    const int64_t n_round = distinct_round_size(batch_size + 1);
    const int64_t n_found = batch_size + 1;
    return tree.draw_scratch_bytes(n_round) + ScratchLayout::bytes_of<int64_t>(n_found) +
           ScratchLayout::bytes_of<uint64_t>(n_found) + 2 * ScratchLayout::bytes_of<float>(n_found) +
           ScratchLayout::bytes_of<int64_t>(n_round) + ScratchLayout::bytes_of<uint64_t>(n_round) +
           ScratchLayout::bytes_of<float>(n_round) + ScratchLayout::bytes_of<uint64_t>(found_set_size(batch_size + 1));
}

DistinctDraw draw_distinct(SumTree& tree, const DrawRequest& request, std::byte* scratch) {
    const int64_t n_wanted = request.batch_size + 1;  // the last one only ends the count of draws
    const Arrays arrays = lay_out(tree, request.batch_size, scratch);
    const double whole = static_cast<double>(tree.total_mass());
    DistinctDraw found = arrays.found;
    FoundSet leaves(arrays.table, found_set_size(n_wanted));
    int64_t n_found = 0;
    int64_t n_taken_out = 0;
    double n_draws = 0.0;

    DrawRequest round = request;
    round.scheme = PER_INDEPENDENT;
    round.first = 0;
    while (n_found < n_wanted && tree.total_mass() != 0) {
        round.batch_size = distinct_round_size(n_wanted - n_found);
        tree.draw(round, arrays.indices, arrays.masses, arrays.priorities, arrays.draw);
        const double share = static_cast<double>(tree.total_mass()) / whole;
        int64_t n_repeats = 0;
        for (int64_t i = 0; i < round.batch_size && n_found < n_wanted; ++i) {
            const uint64_t number = geometric_numbers | (round.first + static_cast<uint64_t>(i));
            n_draws += n_taken_out == 0
                           ? 1.0
                           : draws_until_outside(random64(request.seed, request.batch_number, number), share);
            if (!leaves.insert(arrays.indices[i])) {
                ++n_repeats;
                continue;
            }
            found.indices[n_found] = arrays.indices[i];
            found.masses[n_found] = arrays.masses[i];
            found.priorities[n_found] = arrays.priorities[i];
            ++n_found;
        }
        if (repeats_prevail(n_repeats, round.batch_size) && n_found < n_wanted) {
            const int64_t n = n_found - n_taken_out;
            std::fill_n(arrays.zeros, n, 0.0f);
            tree.set_at_scale(n, found.indices + n_taken_out, arrays.zeros);
            n_taken_out = n_found;
        }
        round.first += static_cast<uint64_t>(round.batch_size);
    }
    tree.set_at_scale(n_taken_out, found.indices, found.priorities);
    found.n_found = std::min(n_found, request.batch_size);
    found.n_draws = n_found == n_wanted ? n_draws - 1.0 : std::numeric_limits<double>::infinity();
    return found;
}

}  // namespace per::cpu
