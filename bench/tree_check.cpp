#include "tree_check.h"

#include <algorithm>
#include <cmath>

#include "variant.h"

namespace bench {

/* Largest error of rounded sums, as a share of the total, at any of the sizes measured. */
constexpr long double rounding = 1e-4L;

double Masses::of(float priority) const {
    const double scaled = static_cast<double>(priority) * unit;
    return whole ? std::ceil(scaled) : scaled;
}

long double Masses::slack(int64_t batch) const {
    // libper's strata are multiples of floor((2^64 - 1) / batch) / 2^64 of the total.
    return whole ? std::ldexp(total * static_cast<long double>(batch), -63) + 1 : rounding * total;
}

Masses masses_of(const LibperTree& tree) {
    uint64_t total = 0;
    int32_t scale = 0;
    tree.mass(total, scale);
    return Masses{true, std::ldexp(1.0, scale), static_cast<long double>(total)};
}

void check_total(const Masses& masses, const std::vector<float>& priorities) {
    long double total = 0;
    for (const float priority : priorities) total += masses.of(priority);
    const long double allowed = masses.whole ? 0 : rounding * total;
    require(std::fabs(total - masses.total) <= allowed, "the total is the sum of all masses");
}

void check_strata(const Masses& masses, const std::vector<float>& priorities, const Draws& draws) {
    const auto batch = static_cast<long double>(draws.batch());
    const long double slack = masses.slack(draws.batch());
    int64_t index = 0;
    long double below = 0;  // mass before index
    for (int64_t i = 0; i < draws.batch(); ++i) {
        require(draws.indices[i] >= index, "stratified draws are in the order of their strata");
        for (; index < draws.indices[i]; ++index) below += masses.of(priorities[index]);
        const long double first = masses.total * static_cast<long double>(i) / batch;
        const long double last = masses.total * static_cast<long double>(i + 1) / batch;
        require(below <= last + slack && below + masses.of(priorities[index]) >= first - slack,
                "draw i lies in the i-th part of the total");
    }
}

void check_drawn(const std::vector<float>& priorities, const Draws& draws) {
    const auto capacity = static_cast<int64_t>(priorities.size());
    for (int64_t i = 0; i < draws.batch(); ++i) {
        const int64_t index = draws.indices[i];
        require(index >= 0 && index < capacity, "a draw is the index of a leaf");
        require(priorities[index] > 0, "no leaf of priority 0 is drawn");
        require(draws.priorities[i] == priorities[index], "a draw's priority is that of its leaf");
    }
}

void check_distinct(const Draws& draws) {
    std::vector<int64_t> sorted = draws.indices;
    std::sort(sorted.begin(), sorted.end());
    require(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(), "no index is drawn twice");
}

void check_weights(const Draws& draws) {
    const double smallest = *std::min_element(draws.priorities.begin(), draws.priorities.end());
    for (int64_t i = 0; i < draws.batch(); ++i) {
        const double weight =
            std::pow(smallest / static_cast<double>(draws.priorities[i]), static_cast<double>(weights_beta));
        require(std::fabs(draws.weights[i] - weight) <= 1e-5 * weight, "a weight is (q_min / q)^beta");
    }
}

void check_update(std::vector<float> before, const std::vector<int64_t>& indices, const std::vector<float>& priorities,
                  const std::vector<float>& after) {
    for (size_t i = 0; i < indices.size(); ++i) before[indices[i]] = priorities[i];
    require(before == after, "leaves hold what was written last, and no others changed");
}

}  // namespace bench
