#ifndef PER_BENCH_DRAWS_H
#define PER_BENCH_DRAWS_H

#include <cstddef>
#include <cstdint>
#include <vector>

namespace bench {

/* Exponent of importance-sampling weights in all cases. */
constexpr float weights_beta = 0.5F;

/* The result of drawing a batch. */
struct Draws {
    explicit Draws(int64_t batch)
        : indices(static_cast<size_t>(batch)),
          priorities(static_cast<size_t>(batch)),
          weights(static_cast<size_t>(batch)) {}

    int64_t batch() const { return static_cast<int64_t>(indices.size()); }

    std::vector<int64_t> indices;
    std::vector<float> priorities;
    std::vector<float> weights;
};

/* Importance-sampling weights (q_min / q)^weights_beta of a batch, in plain C++. */
void importance_weights(Draws& draws);

}  // namespace bench

#endif
