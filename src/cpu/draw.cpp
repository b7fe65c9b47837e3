#include "cpu/draw.h"

#include <algorithm>

#include "mixture.h"
#include "per.h"
#include "priority.h"

namespace per::cpu {

void LiveDraw::draw(PriorityStore& priorities, const ReplaySample& sample, const DrawRequest& request) {
    const size_t n = static_cast<size_t>(sample.batch_size);
    slots_.resize(n);
    shares_.resize(n);
    masses_.resize(n);
    // With all priorities 0 the draw is uniform.
    is_uniform_ =
        sample.prioritization == PER_UNIFORM || sample.uniform_fraction == 1.0 || priorities.tree().total_mass() == 0;
    if (is_uniform_) {
        draw_uniform(priorities.live(), request);
    } else if (sample.uniform_fraction == 0.0) {
        draw_by_priority(priorities.tree(), request);
    } else {
        draw_mixture(priorities, sample.uniform_fraction, request);
    }
    set_reference(priorities, sample);
}

// The r-th live transition, r being drawn as units of mass are.
void LiveDraw::draw_uniform(const LiveSet& live, const DrawRequest& request) {
    const uint64_t total = static_cast<uint64_t>(live.count());
    const uint64_t width = stratum_width(request.batch_size);
    for (size_t i = 0; i < slots_.size(); ++i)
        slots_[i] = live.select(static_cast<int64_t>(draw_target(request, i, width, total)));
    std::fill(shares_.begin(), shares_.end(), 1.0);
    total_ = static_cast<double>(total);
}

void LiveDraw::draw_by_priority(const SumTree& tree, const DrawRequest& request) {
    tree.draw(request, slots_.data(), masses_.data());
    for (size_t i = 0; i < slots_.size(); ++i) shares_[i] = static_cast<double>(masses_[i]);
    total_ = static_cast<double>(tree.total_mass());
}

void LiveDraw::draw_mixture(const PriorityStore& priorities, double uniform_fraction, const DrawRequest& request) {
    const SumTree& tree = priorities.tree();
    const uint64_t n_live = static_cast<uint64_t>(priorities.live().count());
    const uint64_t uniform = uniform_units(uniform_fraction);
    const uint64_t width = stratum_width(request.batch_size);
    places_.clear();
    units_.clear();
    for (size_t i = 0; i < slots_.size(); ++i) {
        const uint64_t target = draw_target(request, i, width, mixture_units);
        if (target < uniform) {
            slots_[i] = priorities.live().select(static_cast<int64_t>(rescaled_target(target, uniform, n_live)));
        } else {
            places_.push_back(i);
            units_.push_back(rescaled_target(target - uniform, mixture_units - uniform, tree.total_mass()));
        }
    }
    found_.resize(places_.size());
    tree.find(static_cast<int64_t>(places_.size()), units_.data(), found_.data(), nullptr);
    for (size_t i = 0; i < places_.size(); ++i) slots_[places_[i]] = found_[i];

    total_ = static_cast<double>(tree.total_mass());
    for (size_t i = 0; i < slots_.size(); ++i)
        shares_[i] = mixture_share(static_cast<double>(tree.mass(slots_[i])), total_, static_cast<double>(n_live),
                                   uniform_fraction);
}

void LiveDraw::set_reference(PriorityStore& priorities, const ReplaySample& sample) {
    const double n_live = static_cast<double>(priorities.live().count());
    if (is_uniform_) {
        reference_ = 1.0;
    } else if (sample.normalize_weights == PER_BATCH_MAX) {
        reference_ = *std::min_element(shares_.begin(), shares_.end());
    } else if (sample.normalize_weights == PER_NONE) {
        reference_ = total_ / n_live;
    } else {
        const double smallest = static_cast<double>(priorities.smallest_mass());
        reference_ = mixture_share(smallest, total_, n_live, sample.uniform_fraction);
    }
}

void LiveDraw::write_weights(double beta, float* weights_out) const {
    for (size_t i = 0; i < shares_.size(); ++i) weights_out[i] = importance_weight(reference_, shares_[i], beta);
}

void LiveDraw::write_probabilities(float* probabilities_out) const {
    for (size_t i = 0; i < shares_.size(); ++i) probabilities_out[i] = static_cast<float>(shares_[i] / total_);
}

}  // namespace per::cpu
