#ifndef PER_BENCH_LINEAR_SCAN_H
#define PER_BENCH_LINEAR_SCAN_H

#include <cstdint>

#include "draws.h"
#include "page_array.h"
#include "xoshiro.h"

namespace bench {

/* Priorities without sums: an update is a store, and one pass over all of them serves a whole stratified batch. */
class LinearScan {
 public:
    explicit LinearScan(int64_t capacity);

    void fill(const float* priorities);
    void update(int64_t count, const int64_t* indices, const float* priorities);

    void sample_stratified(Draws& draws);

    void read(float* priorities_out) const;
    double total() const;

 private:
    int64_t capacity_;
    PageArray<float> priorities_;
    Xoshiro random_{3};
};

}  // namespace bench

#endif
