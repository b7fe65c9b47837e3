#include "cumulative_sums.h"

#include <algorithm>

namespace bench {

CumulativeSums::CumulativeSums(int64_t capacity)
    : capacity_(capacity), priorities_(capacity), sums_(capacity), drawn_(static_cast<size_t>(capacity)) {}

void CumulativeSums::fill(const float* priorities) {
    std::copy_n(priorities, capacity_, priorities_.data());
    sum_from(0);
}

void CumulativeSums::update(int64_t count, const int64_t* indices, const float* priorities) {
    int64_t first = capacity_;
    for (int64_t i = 0; i < count; ++i) {
        priorities_[indices[i]] = priorities[i];
        first = std::min(first, indices[i]);
    }
    sum_from(first);
}

void CumulativeSums::sum_from(int64_t first) {
    double sum = first == 0 ? 0 : sums_[first - 1];
    for (int64_t i = first; i < capacity_; ++i) {
        sum += priorities_[i];
        sums_[i] = sum;
    }
}

int64_t CumulativeSums::find(double prefix_sum) const {
    const double* end = sums_.data() + capacity_;
    const int64_t index = std::upper_bound(sums_.data(), end, prefix_sum) - sums_.data();
    return std::min(index, capacity_ - 1);
}

void CumulativeSums::sample_stratified(Draws& draws) {
    const double stratum = total() / static_cast<double>(draws.batch());
    for (int64_t i = 0; i < draws.batch(); ++i) {
        draws.indices[i] = find((static_cast<double>(i) + random_.uniform()) * stratum);
        draws.priorities[i] = priorities_[draws.indices[i]];
    }
}

void CumulativeSums::sample_independent(Draws& draws) {
    for (int64_t i = 0; i < draws.batch(); ++i) {
        draws.indices[i] = find(random_.uniform() * total());
        draws.priorities[i] = priorities_[draws.indices[i]];
    }
}

/* Independent draws without repeats; a bit for each leaf marks those already drawn. */
void CumulativeSums::sample_without_replacement(Draws& draws) {
    for (int64_t i = 0; i < draws.batch(); ++i) {
        int64_t index = find(random_.uniform() * total());
        while (drawn_[static_cast<size_t>(index)]) index = find(random_.uniform() * total());
        drawn_[static_cast<size_t>(index)] = true;
        draws.indices[i] = index;
        draws.priorities[i] = priorities_[index];
    }
    for (const int64_t index : draws.indices) drawn_[static_cast<size_t>(index)] = false;
}

void CumulativeSums::read(float* priorities_out) const {
    std::copy_n(priorities_.data(), capacity_, priorities_out);
}

}  // namespace bench
