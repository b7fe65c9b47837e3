#include "measure.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "page_array.h"

namespace bench {
namespace {

constexpr int warm_up_batches = 2;
constexpr int timed_batches = 4;
constexpr int64_t neutral_bytes = 8 << 20;
constexpr int64_t cold_bytes = 128 << 20;
constexpr size_t fewest_bursts = 3;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/* Fills the caches with unrelated memory; small pages also fill the TLB. */
class Eviction {
 public:
    explicit Eviction(Caches caches)
        : words_((caches == Caches::cold ? cold_bytes : neutral_bytes) / int64_t{sizeof(uint64_t)},
                 caches == Caches::cold ? Pages::small : Pages::huge) {
        std::fill_n(words_.data(), words_.size(), 1);
    }

    void operator()() const {
        uint64_t sum = 0;
        for (int64_t i = 0; i < words_.size(); i += words_per_line) sum += words_[i];
        keep(sum);
    }

 private:
    static constexpr int64_t words_per_line = 8;

    PageArray<uint64_t> words_;
};

struct Record {
    std::vector<double> seconds;  // of each timed batch, in order
    double spent = 0;             // total of all its bursts
};

template <class BeforeRun>
double timed_run(const Variant& variant, const BeforeRun& before_run) {
    variant.prepare();
    before_run();
    const Clock::time_point start = Clock::now();
    variant.run();
    return seconds_since(start);
}

template <class BeforeRun>
void burst(const Variant& variant, Record& record, double share, int n_warm_up, const BeforeRun& before_run) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < n_warm_up; ++i) timed_run(variant, before_run);
    for (int i = 0; i < timed_batches; ++i) {
        record.seconds.push_back(timed_run(variant, before_run));
        if (record.spent + seconds_since(start) > share) break;  // a slow variant has used up its time
    }
    record.spent += seconds_since(start);
}

Timing summary(const Variant& variant, Record& record, int64_t batch) {
    const auto middle = record.seconds.begin() + static_cast<int64_t>(record.seconds.size() / 2);
    std::nth_element(record.seconds.begin(), middle, record.seconds.end());
    const double best = *std::min_element(record.seconds.begin(), record.seconds.end());
    const double ns_per_element = 1e9 / static_cast<double>(batch);
    return Timing{variant.name, *middle * ns_per_element, best * ns_per_element,
                  static_cast<int64_t>(record.seconds.size())};
}

}  // namespace

const char* name_of(Caches caches) {
    return caches == Caches::cold ? "cold" : "neutral";
}

std::vector<Timing> measure(std::vector<Variant>& variants, int64_t batch, double seconds, Caches caches) {
    const Eviction evict(caches);
    std::mt19937_64 random(8);
    std::vector<Record> records(variants.size());
    std::vector<size_t> order(variants.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;

    // A variant that used up its share sits out, so that slow variants do not take the time of others.
    const double share = seconds / static_cast<double>(variants.size());
    const Clock::time_point start = Clock::now();
    size_t rounds = 0;
    while (rounds < fewest_bursts || seconds_since(start) < seconds) {
        std::shuffle(order.begin(), order.end(), random);
        for (const size_t i : order) {
            if (rounds >= fewest_bursts && records[i].spent > share) continue;
            if (caches == Caches::cold) {
                burst(variants[i], records[i], share, 0, evict);
            } else {
                evict();
                burst(variants[i], records[i], share, warm_up_batches, [] {});
            }
        }
        ++rounds;
    }

    std::vector<Timing> timings;
    for (size_t i = 0; i < variants.size(); ++i) {
        variants[i].verify();
        timings.push_back(summary(variants[i], records[i], batch));
    }
    return timings;
}

}  // namespace bench
