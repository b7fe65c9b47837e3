#include "linear_scan.h"

#include <algorithm>

namespace bench {

LinearScan::LinearScan(int64_t capacity) : capacity_(capacity), priorities_(capacity) {}

void LinearScan::fill(const float* priorities) {
    std::copy_n(priorities, capacity_, priorities_.data());
}

void LinearScan::update(int64_t count, const int64_t* indices, const float* priorities) {
    for (int64_t i = 0; i < count; ++i) priorities_[indices[i]] = priorities[i];
}

double LinearScan::total() const {
    // Eight independent sums, so that additions do not wait for each other.
    double sums[8] = {};
    int64_t i = 0;
    for (; i + 8 <= capacity_; i += 8) {
        for (int64_t k = 0; k < 8; ++k) sums[k] += priorities_[i + k];
    }
    for (; i < capacity_; ++i) sums[0] += priorities_[i];
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

void LinearScan::sample_stratified(Draws& draws) {
    const double stratum = total() / static_cast<double>(draws.batch());
    int64_t index = 0;
    double below = 0;  // sum of the priorities before index
    for (int64_t i = 0; i < draws.batch(); ++i) {
        const double prefix_sum = (static_cast<double>(i) + random_.uniform()) * stratum;
        while (index < capacity_ - 1 && below + priorities_[index] <= prefix_sum) below += priorities_[index++];
        draws.indices[i] = index;
        draws.priorities[i] = priorities_[index];
    }
}

void LinearScan::read(float* priorities_out) const {
    std::copy_n(priorities_.data(), capacity_, priorities_out);
}

}  // namespace bench
