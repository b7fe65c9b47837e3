#include "core/rate_limiter.h"

#include <cinttypes>
#include <cmath>

#include "base/error.h"

namespace per {
namespace {

// Larger numbers of transitions that are due are all treated as this one.
constexpr double max_due = 0x1p62;
// The largest count, which no buffer reaches.
constexpr int64_t max_counted = int64_t{1} << 61;

}  // namespace

int64_t RateLimiter::due(int64_t added) const {
    const double exact = limit_.samples_per_insert * static_cast<double>(added - min_size());
    return static_cast<int64_t>(std::floor(std::clamp(exact, -max_due, max_due)));
}

bool RateLimiter::allows_add(int64_t n) const {
    if (n == 0 || limit_.samples_per_insert <= 0) return true;
    return due(counts_.added + n) - counts_.drawn <= limit_.samples_tolerance;
}

bool RateLimiter::allows_draw(int64_t n) const {
    if (!is_on()) return true;
    if (counts_.added < min_size()) return false;
    if (limit_.samples_per_insert <= 0) return true;
    return due(counts_.added) - counts_.drawn - n >= -limit_.samples_tolerance;
}

int64_t RateLimiter::max_steps_of_call() const {
    const double exact = static_cast<double>(limit_.samples_tolerance) / limit_.samples_per_insert;
    return n_missing() + static_cast<int64_t>(std::floor(std::min(exact, max_due)));
}

bool RateLimiter::never_allows_add(int64_t n) const {
    return limit_.samples_per_insert > 0 && n > max_steps_of_call();
}

void RateLimiter::check_limited_add(int64_t n) const {
    if (never_allows_add(n) && n_missing() > 0)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "steps of the call are %" PRId64 ": allowed are 0 .. %" PRId64 ", %" PRId64
                    " up to min_size_to_sample and those that samples_tolerance %" PRId64
                    " with samples_per_insert %g allows beyond it",
                    n, max_steps_of_call(), n_missing(), limit_.samples_tolerance, limit_.samples_per_insert);
    if (never_allows_add(n))
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "steps of the call are %" PRId64 ": allowed by samples_tolerance %" PRId64
                    " with samples_per_insert %g are 0 .. %" PRId64,
                    n, limit_.samples_tolerance, limit_.samples_per_insert, max_steps_of_call());
    if (allows_add(n)) return;
    throw Error(PER_ERROR_BUSY,
                "steps of the call are %" PRId64 ": the rate limiter allows at most %" PRId64
                " before more transitions are drawn (samples_per_insert %g, samples_tolerance %" PRId64 "); %" PRId64
                " steps are added, %" PRId64 " transitions drawn. wait_to_add() waits for more draws",
                n, n_allowed_steps(n), limit_.samples_per_insert, limit_.samples_tolerance, counts_.added,
                counts_.drawn);
}

void RateLimiter::check_limited_draw(int64_t n) const {
    check_draw_size(n);
    if (allows_draw(n)) return;
    if (counts_.added < min_size())
        throw Error(PER_ERROR_BUSY,
                    "batch_size is %" PRId64 ": the rate limiter allows no draw before %" PRId64
                    " steps are added (min_size_to_sample); %" PRId64 " are so far. wait_to_sample() waits for them",
                    n, min_size(), counts_.added);
    throw Error(PER_ERROR_BUSY,
                "batch_size is %" PRId64 ": the rate limiter allows at most %" PRId64
                " before more steps are added (samples_per_insert %g, samples_tolerance %" PRId64 "); %" PRId64
                " steps are added, %" PRId64 " transitions drawn. wait_to_sample() waits for more steps",
                n, due(counts_.added) - counts_.drawn + limit_.samples_tolerance, limit_.samples_per_insert,
                limit_.samples_tolerance, counts_.added, counts_.drawn);
}

void RateLimiter::check_draw_size(int64_t n) const {
    if (limit_.samples_per_insert > 0 && n > limit_.samples_tolerance)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "batch_size is %" PRId64 ": allowed by samples_tolerance are 1 .. %" PRId64, n,
                    limit_.samples_tolerance);
}

int64_t RateLimiter::n_allowed_steps(int64_t most) const {
    if (limit_.samples_per_insert <= 0) return most;
    int64_t least = 0;
    while (least < most) {
        const int64_t middle = most - (most - least) / 2;
        if (due(counts_.added + middle) - counts_.drawn <= limit_.samples_tolerance)
            least = middle;
        else
            most = middle - 1;
    }
    return least;
}

void RateLimiter::count(int64_t& counter, int64_t n) {
    counter = std::clamp<int64_t>(counter + n, 0, max_counted);
    if (adds_.least != nobody && allows_add(adds_.least)) adds_.wake();
    if (draws_.least != nobody && allows_draw(draws_.least)) draws_.wake();
}

void RateLimiter::clear() {
    counts_ = {};
    ++n_clears_;
    adds_.wake();
    draws_.wake();
}

void RateLimiter::restore(CheckpointReader& reader) {
    reader.begin("rate limiter");
    counts_.added = reader.number<int64_t>(0, max_counted);
    counts_.drawn = reader.number<int64_t>(0, max_counted);
    reader.end();
    if (counts_.drawn > 0 && !allows_draw(0)) reader.refuse("more transitions are drawn than the rate limiter allows");
}

void write_rate_limiter(CheckpointWriter& writer, const RateLimiter::Counts& counts) {
    SectionContent content;
    content.number(counts.added);
    content.number(counts.drawn);
    writer.write("rate limiter", content);
}

}  // namespace per
