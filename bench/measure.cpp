#include "measure.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "page_array.h"

namespace bench {
namespace {

constexpr int warm_up_batches = 2;
constexpr int timed_batches = 4;
constexpr int64_t evicting_bytes = 8 << 20;
constexpr size_t fewest_bursts = 3;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/* Fills the caches with memory that no variant uses. */
class Eviction {
 public:
    Eviction() { std::fill_n(words_.data(), words_.size(), 1); }

    void operator()() const {
        uint64_t sum = 0;
        for (int64_t i = 0; i < words_.size(); i += words_per_line) sum += words_[i];
        keep(sum);
    }

 private:
    static constexpr int64_t words_per_line = 8;

    PageArray<uint64_t> words_{evicting_bytes / int64_t{sizeof(uint64_t)}};
};

struct Record {
    std::vector<double> seconds;  // of each timed batch
    double spent = 0;             // in all of its bursts
};

double timed_run(const Variant& variant) {
    variant.prepare();
    const Clock::time_point start = Clock::now();
    variant.run();
    return seconds_since(start);
}

void burst(const Variant& variant, Record& record, double share) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < warm_up_batches; ++i) timed_run(variant);
    for (int i = 0; i < timed_batches; ++i) {
        record.seconds.push_back(timed_run(variant));
        if (record.spent + seconds_since(start) > share) break;  // a slow one: it has had its time
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

std::vector<Timing> measure(std::vector<Variant>& variants, int64_t batch, double seconds) {
    const Eviction evict;
    std::mt19937_64 random(8);
    std::vector<Record> records(variants.size());
    std::vector<size_t> order(variants.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;

    // A variant that used up its share sits out, so that slow ones do not take the others' time.
    const double share = seconds / static_cast<double>(variants.size());
    const Clock::time_point start = Clock::now();
    size_t rounds = 0;
    while (rounds < fewest_bursts || seconds_since(start) < seconds) {
        std::shuffle(order.begin(), order.end(), random);
        for (const size_t i : order) {
            if (rounds >= fewest_bursts && records[i].spent > share) continue;
            evict();
            burst(variants[i], records[i], share);
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
