#include "backend/replay_statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "rules/draw.h"

namespace per {

const BatchFigures& LastBatch::figures() {
    if (slots.empty()) return figures_;
    const double n = static_cast<double>(slots.size());
    std::sort(slots.begin(), slots.end());
    const auto n_repeats = slots.end() - std::unique(slots.begin(), slots.end());
    if (std::isnan(reference)) reference = *std::min_element(shares.begin(), shares.end());
    double sum = static_cast<double>(slots.size() - shares.size());
    double sum_of_squares = sum;
    for (const double share : shares) {
        const double weight = static_cast<double>(importance_weight(reference, share, beta));
        sum += weight;
        sum_of_squares += weight * weight;
    }
    figures_.size = static_cast<int64_t>(slots.size());
    figures_.max_age = *std::max_element(ages.begin(), ages.end());
    figures_.mean_age = static_cast<double>(std::accumulate(ages.begin(), ages.end(), int64_t{0})) / n;
    // Without normalisation, all weights underflow to 0 if beta is extreme.
    figures_.effective_size = sum_of_squares > 0.0 ? sum * sum / sum_of_squares : 0.0;
    figures_.duplicates = static_cast<double>(n_repeats) / n;
    slots.clear();
    return figures_;
}

void write_statistics(const ReplayCounters& counters, const BatchFigures& last, per_replay_statistics& statistics_out) {
    statistics_out.added = counters.added;
    statistics_out.dropped = counters.dropped;
    statistics_out.episodes = counters.episodes;
    statistics_out.cuts = counters.cuts;
    statistics_out.suspected_resets = counters.suspected_resets;
    statistics_out.updates = counters.updates;
    statistics_out.stale_updates = counters.stale_updates;
    statistics_out.rejected_updates = counters.rejected_updates;
    statistics_out.last_batch_size = last.size;
    statistics_out.last_max_age = last.max_age;
    statistics_out.last_mean_age = last.mean_age;
    statistics_out.last_effective_size = last.effective_size;
    statistics_out.last_duplicates = last.duplicates;
}

}  // namespace per
