#include "cpu/replay/draw.h"

#include <algorithm>

#include "backend/draw_outcome.h"
#include "cpu/tree/distinct_draw.h"
#include "per.h"
#include "rules/mixture.h"
#include "rules/priority.h"

namespace per::cpu {

void LiveDraw::draw(PriorityStore& priorities, const ReplaySample& sample, const DrawRequest& request) {
    LiveSet& live = priorities.live_to_draw();
    const bool is_distinct = sample.scheme == PER_WITHOUT_REPLACEMENT;
    if (is_distinct) require_drawn(sample.batch_size, {live.count(), live.count()}, sample.of_sequences);
    SumTree& tree = priorities.tree_to_draw(sample.prioritization);
    const bool by_priority = sample.prioritization != PER_UNIFORM && tree.total_mass() > 0;
    law_ = {sample.batch_size,
            is_distinct,
            by_priority ? sample.uniform_fraction : 1.0,
            static_cast<double>(live.count()),
            static_cast<double>(tree.total_mass()),
            0.0};
    slots_.resize(static_cast<size_t>(sample.batch_size));
    shares_.resize(static_cast<size_t>(sample.batch_size));
    masses_.resize(static_cast<size_t>(sample.batch_size + draw_padding));
    if (law_.is_uniform())
        draw_uniform(tree, live, request);
    else if (law_.uniform_fraction == 0.0)
        draw_by_priority(tree, request, sample.of_sequences);
    else
        draw_mixture(tree, live, request);
    set_reference(priorities, sample);
}

void LiveDraw::draw_uniform(SumTree& tree, LiveSet& live, const DrawRequest& request) {
    if (law_.is_distinct) {
        mixture_.draw_distinct(tree, live, 1.0, request, slots_);
    } else {
        const uint64_t n_live = static_cast<uint64_t>(live.count());
        write_targets(tree.kernels().draw, request, n_live, masses_.data());
        live.select(request.batch_size, masses_.data(), slots_.data());
    }
    std::fill(shares_.begin(), shares_.end(), 1.0);
}

void LiveDraw::draw_by_priority(SumTree& tree, const DrawRequest& request, bool of_sequences) {
    const int64_t n = request.batch_size;
    if (law_.is_distinct) {
        const ScratchPool::Loan loan(scratch_, distinct_draw_scratch_bytes(tree, n));
        const DistinctDraw found = per::cpu::draw_distinct(tree, request, loan.data());
        require_drawn(n, {static_cast<int64_t>(law_.n_live), found.n_found}, of_sequences);
        law_.n_draws = found.n_draws;
        std::copy_n(found.indices, n, slots_.data());
        std::copy_n(found.masses, n, masses_.data());
    } else {
        tree.draw(request, slots_.data(), masses_.data());
    }
    for (size_t i = 0; i < slots_.size(); ++i) shares_[i] = law_.share_of(static_cast<double>(masses_[i]));
}

void LiveDraw::draw_mixture(SumTree& tree, LiveSet& live, const DrawRequest& request) {
    if (law_.is_distinct) {
        law_.n_draws = mixture_.draw_distinct(tree, live, law_.uniform_fraction, request, slots_);
    } else {
        mixture_.draw(tree, live, uniform_units(law_.uniform_fraction), request, slots_.data());
    }
    for (size_t i = 0; i < slots_.size(); ++i) shares_[i] = law_.share_of(static_cast<double>(tree.mass(slots_[i])));
}

void LiveDraw::set_reference(PriorityStore& priorities, const ReplaySample& sample) {
    is_batch_max_ = sample.normalize_weights == PER_BATCH_MAX;
    if (is_batch_max_) return;
    reference_ =
        law_.reference(sample.normalize_weights, [&] { return priorities.smallest_mass(sample.prioritization); });
}

void LiveDraw::write_weights(const PowerKernels& kernels, double beta, float* weights_out) const {
    const int64_t n = static_cast<int64_t>(shares_.size());
    const double reference = is_batch_max_ ? kernels.smallest(n, shares_.data()) : reference_;
    kernels.weigh_shares(n, shares_.data(), reference, beta, weights_out);
}

void LiveDraw::write_probabilities(float* probabilities_out) const {
    const double total = law_.total();
    for (size_t i = 0; i < shares_.size(); ++i) probabilities_out[i] = static_cast<float>(shares_[i] / total);
}

}  // namespace per::cpu
