#ifndef PER_BENCH_MEASURE_H
#define PER_BENCH_MEASURE_H

#include <cstdint>
#include <string>
#include <vector>

#include "variant.h"

namespace bench {

struct Timing {
    std::string variant;
    double median_ns;  // of an element
    double best_ns;
    int64_t batches;  // timed
};

/* What a batch finds in the caches. */
enum class Caches {
    neutral, /* what is left of the batches before it in a burst, and before a burst 8 MiB that no variant uses */
    cold,    /* nothing of its own, in the TLB neither: 128 MiB on small pages are read before each batch */
};

const char* name_of(Caches caches);

/*
 * Times the variants against each other in one process for about `seconds`, then verifies each once.
 *
 * In rounds: the variants in random order, each in a burst of a few batches. Before a burst other memory is read, so
 * that no variant finds its lines where the one before left them; with neutral caches the first batches of a burst are
 * not counted. Order and what the caches hold move results by 30 % otherwise.
 */
std::vector<Timing> measure(std::vector<Variant>& variants, int64_t batch, double seconds, Caches caches);

}  // namespace bench

#endif
