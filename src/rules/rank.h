// Rank-based prioritization (section 3.3, second variant): P(i) in proportion to 1 / rank(i)^alpha; rank 1 has the
// largest priority.
//
// Priorities are counted in buckets, 32 to a power of two. Ranks follow from the counts. Transitions of one bucket,
// within a 32nd of each other, share the mean weight of their ranks.
#pragma once

#include <stdint.h>

#include "rules/host_device.h"
#include "rules/priority.h"

namespace per {

// A bucket is the exponent of a priority and the first five bits of its fraction.
inline constexpr int rank_bucket_shift = 18;
inline constexpr int32_t n_rank_buckets = (0x7f7fffff >> rank_bucket_shift) + 1;

// Larger priorities have larger buckets. Bucket 0 is for priority 0 alone: the smallest positive ones, below 2^-131,
// are in bucket 1.
PER_HOST_DEVICE int32_t rank_bucket(float priority) {
    const int32_t bucket = static_cast<int32_t>(bit_cast<uint32_t>(priority + 0.0f) >> rank_bucket_shift);
    return bucket == 0 && priority > 0.0f ? 1 : bucket;
}

// A number of changes that always makes ranks due. It is the count at first, and after ranks were forgotten.
inline constexpr int64_t ranks_never_taken = INT64_MAX / 2;

// True if ranks are due: more than a 32nd of the transitions changed since they were last taken. A change is a
// transition that was added, was used up, or moved to another bucket; an overwritten one counts through the one that
// replaces it. So until ranks are due, a rank is off by at most a 32nd of the number of transitions.
//
// Ranks that are due stay due until they are taken, as no transition is added without a change. So a failed draw that
// took ranks is undone by forgetting them: the next draw would have taken them in any case.
PER_HOST_DEVICE bool ranks_are_due(int64_t n_changes, int64_t n_live) {
    return n_changes > n_live / 32;
}

// x^-alpha for x >= 1.
PER_HOST_DEVICE double rank_weight(double rank, double alpha) {
    return power_of<double, uint64_t>(rank, -alpha);
}

// Up to this rank weights are added one by one; beyond, the sum is smooth enough for rank_weight_sum().
PER_HOST_DEVICE int64_t first_smooth_rank(double alpha) {
    return 16 + 4 * static_cast<int64_t>(alpha < 1024.0 ? alpha : 1024.0);
}

// Sum of r^-alpha over first < r <= last for first >= first_smooth_rank(), by Euler and Maclaurin: the integral, the
// ends' halves, and the corrections by first and third derivatives. The relative error is below 1e-7.
PER_HOST_DEVICE double rank_weight_sum(int64_t first, int64_t last, double alpha) {
    const double from = static_cast<double>(first);
    const double to = static_cast<double>(last);
    const double at_from = rank_weight(from, alpha);
    const double at_to = rank_weight(to, alpha);
    // from^(1-alpha) ((to/from)^(1-alpha) - 1) / (1-alpha), which is a logarithm at alpha 1.
    const double exponent = 1.0 - alpha;
    const double log2_ratio = log2_of<double, uint64_t>(to / from);
    const double y = exponent * log2_ratio;
    const double power_minus_1 = y > -0.5 && y < 0.5 ? exp2_minus_1<double>(y) : exp2_of<double, uint64_t>(y) - 1.0;
    const double integral =
        from * at_from * (exponent == 0.0 ? 0.6931471805599453 * log2_ratio : power_minus_1 / exponent);
    const double first_derivatives = -alpha * (at_to / to - at_from / from);
    const double third_derivatives =
        -alpha * (alpha + 1.0) * (alpha + 2.0) * (at_to / to / to / to - at_from / from / from / from);
    return integral + 0.5 * (at_to - at_from) + first_derivatives / 12.0 - third_derivatives / 720.0;
}

// The weight of each transition in a bucket of `count`, with `rank` transitions in the buckets above: the mean weight
// of their ranks. For an empty bucket, the weight that its first transition would have.
PER_HOST_DEVICE float mean_rank_weight(int64_t rank, int64_t count, double alpha) {
    const int64_t first = rank;
    const int64_t last = rank + (count > 0 ? count : 1);
    const int64_t first_smooth = first_smooth_rank(alpha);
    double sum = 0.0;
    for (; rank < last && rank < first_smooth; ++rank) sum += rank_weight(static_cast<double>(rank + 1), alpha);
    if (rank < last) sum += rank_weight_sum(rank, last, alpha);
    return static_cast<float>(clamp_to_positive_float(sum / static_cast<double>(last - first)));
}

// Goes through the buckets from the largest priority down.
class RankWeights {
 public:
    PER_HOST_DEVICE explicit RankWeights(double alpha) : alpha_(alpha) {}

    // The weight of each transition in the next bucket, which has `count` of them.
    PER_HOST_DEVICE float next(int64_t count) {
        const float weight = mean_rank_weight(rank_, count, alpha_);
        rank_ += count;
        return weight;
    }

 private:
    double alpha_;
    int64_t rank_ = 0;  // transitions in the buckets so far
};

}  // namespace per
