#ifndef PER_BENCH_CUMULATIVE_SUMS_H
#define PER_BENCH_CUMULATIVE_SUMS_H

#include <cstdint>
#include <vector>

#include "draws.h"
#include "page_array.h"
#include "xoshiro.h"

namespace bench {

/* All prefix sums in order: a draw is a binary search, an update recomputes the sums from the first change on. */
class CumulativeSums {
 public:
    explicit CumulativeSums(int64_t capacity);

    void fill(const float* priorities);
    void update(int64_t count, const int64_t* indices, const float* priorities);

    void sample_stratified(Draws& draws);
    void sample_independent(Draws& draws);
    void sample_without_replacement(Draws& draws);

    void read(float* priorities_out) const;
    double total() const { return sums_[capacity_ - 1]; }

 private:
    int64_t find(double prefix_sum) const;
    void sum_from(int64_t first);

    int64_t capacity_;
    PageArray<float> priorities_;
    PageArray<double> sums_;  // [i]: sum of the priorities up to and including i
    std::vector<bool> drawn_;
    Xoshiro random_{2};
};

}  // namespace bench

#endif
