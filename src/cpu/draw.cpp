#include "cpu/draw.h"

#include <algorithm>

#include "per.h"
#include "priority.h"
#include "random.h"

namespace per::cpu {
namespace {

// All priorities after alpha are 0: the r-th live row, r being drawn as units of mass are.
void draw_uniform(const LiveSet& live, const DrawRequest& request, Draws& draws) {
    const uint64_t total = static_cast<uint64_t>(live.count());
    const uint64_t width = stratum_width(request.batch_size);
    for (int64_t i = 0; i < request.batch_size; ++i) {
        const uint64_t place = static_cast<uint64_t>(i);
        const uint64_t random = random64(request.seed, request.step, request.scheme == PER_SYSTEMATIC ? 0 : place);
        const uint64_t rank = request.scheme == PER_INDEPENDENT ? independent_target(random, total)
                                                                : stratified_target(random, place, width, total);
        draws.slots[static_cast<size_t>(i)] = live.select(static_cast<int64_t>(rank));
    }
    std::fill(draws.masses.begin(), draws.masses.end(), 1);
    draws.total_mass = total;
}

}  // namespace

void draw_live(const PriorityStore& priorities, const DrawRequest& request, Draws& draws) {
    draws.slots.resize(static_cast<size_t>(request.batch_size));
    draws.masses.resize(static_cast<size_t>(request.batch_size));
    draws.total_mass = priorities.tree().total_mass();
    if (draws.total_mass == 0) {
        draw_uniform(priorities.live(), request, draws);
    } else {
        priorities.tree().draw(request, draws.slots.data(), draws.masses.data());
    }
}

void write_weights(const Draws& draws, double beta, float* weights_out) {
    const double smallest = static_cast<double>(*std::min_element(draws.masses.begin(), draws.masses.end()));
    for (size_t i = 0; i < draws.masses.size(); ++i)
        weights_out[i] = importance_weight(smallest, static_cast<double>(draws.masses[i]), beta);
}

void write_probabilities(const Draws& draws, float* probabilities_out) {
    const double total = static_cast<double>(draws.total_mass);
    for (size_t i = 0; i < draws.masses.size(); ++i)
        probabilities_out[i] = static_cast<float>(static_cast<double>(draws.masses[i]) / total);
}

}  // namespace per::cpu
