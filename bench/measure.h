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

/* The state of the caches before a batch. */
enum class Caches {
    neutral, /* as left by earlier batches of the burst; 8 MiB of unrelated memory are read before a burst */
    cold,    /* none of the variant's lines or TLB entries: 128 MiB on small pages are read before each batch */
};

const char* name_of(Caches caches);

/*
 * Times the variants against each other in one process for about `seconds`, then verifies each once.
 *
 * Each round runs the variants in random order, each in a burst of a few batches. Other memory is read before a burst,
 * so that no variant profits from lines that the previous one left; with neutral caches the first batches of a burst
 * are warm-up. Otherwise order and cache state move results by 30 %.
 */
std::vector<Timing> measure(std::vector<Variant>& variants, int64_t batch, double seconds, Caches caches);

}  // namespace bench

#endif
