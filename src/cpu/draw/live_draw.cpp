#include "cpu/draw/live_draw.h"

#include <algorithm>
#include <cmath>

#include "backend/draw_outcome.h"
#include "base/arguments.h"
#include "per.h"

namespace per::cpu {

bool LiveDraw::draw(PriorityStore& priorities, const ReplaySample& sample, const DrawRequest& request,
                    const RowsOfLeaves& rows, const std::vector<int64_t>& newest) {
    LiveSet& live = priorities.live_to_draw();
    const bool is_distinct = sample.scheme == PER_WITHOUT_REPLACEMENT;
    SumTree& tree = priorities.tree_to_draw(sample.prioritization);
    set_law(priorities, sample, tree);
    n_weighed_ = static_cast<size_t>(request.batch_size);
    slots_.resize(n_weighed_ + newest.size());
    shares_.resize(slots_.size());
    masses_.resize(slots_.size() + draw_padding);
    std::copy(newest.begin(), newest.end(), slots_.begin() + request.batch_size);
    bool has_fetched = false;
    if (is_distinct)
        draw_distinct(tree, live, request);
    else
        has_fetched = draw_with_replacement(tree, live, request, rows);
    // A draw with replacement from the tree alone has already written the masses.
    const bool has_masses = !law_.is_mixture() && (!is_distinct || law_.is_uniform());
    for (size_t i = has_masses ? n_weighed_ : 0; i < slots_.size(); ++i) masses_[i] = tree.mass(slots_[i]);
    const DrawLaw law = law_;
    if (law.are_shares_masses())  // masses are far below 2^63, and a signed number converts in a third of the time
        for (size_t i = 0; i < shares_.size(); ++i) shares_[i] = static_cast<double>(static_cast<int64_t>(masses_[i]));
    else
        for (size_t i = 0; i < shares_.size(); ++i) shares_[i] = law.share_of(static_cast<double>(masses_[i]));
    has_no_share_ = false;
    set_reference(priorities, sample);
    return has_fetched;
}

void LiveDraw::take(PriorityStore& priorities, const ReplaySample& sample, const std::vector<int64_t>& slots) {
    slots_.resize(slots.size());
    shares_.resize(slots.size());
    n_weighed_ = slots.size();
    const SumTree& tree = priorities.tree_to_draw(sample.prioritization);
    set_law(priorities, sample, tree);
    const int64_t stand_in = *std::max_element(slots.begin(), slots.end());
    has_no_share_ = false;
    for (size_t i = 0; i < slots.size(); ++i) {
        const bool is_there = slots[i] >= 0;
        const uint64_t mass = is_there && !law_.is_uniform() ? tree.mass(slots[i]) : 0;
        const double share = is_there ? law_.share_of(static_cast<double>(mass)) : 0.0;
        slots_[i] = is_there ? slots[i] : stand_in;
        shares_[i] = share > 0.0 ? share : no_share();
        has_no_share_ |= !(share > 0.0);
    }
    set_reference(priorities, sample);
}

const std::vector<int64_t>& LiveDraw::find_units(const PriorityStore& priorities, int64_t count,
                                                 const RowsOfUnits& rows) {
    const SumTree& tree = priorities.tree();
    const int64_t n_units = static_cast<int64_t>(tree.total_mass());
    const int64_t n_live = priorities.live().count();
    units_.resize(static_cast<size_t>(count));
    slots_of_units_.resize(units_.size());
    for (size_t i = 0; i < units_.size(); ++i) {
        units_[i] = read_once(rows.units[i]);
        if (units_[i] < -n_live || units_[i] >= n_units)
            throw_out_of_range("units", static_cast<int64_t>(i), units_[i], -n_live, n_units - 1);
    }
    mixture_.find(tree, priorities.live(), count, units_.data(), slots_of_units_.data());
    return slots_of_units_;
}

void LiveDraw::write_units(const SumTree& tree, const RowsOfUnits& rows) const {
    for (size_t i = 0; i < slots_of_units_.size(); ++i) {
        const int64_t slot = slots_of_units_[i];
        if (rows.masses_out != nullptr) rows.masses_out[i] = tree.mass(slot);
        if (rows.first_units_out != nullptr) rows.first_units_out[i] = tree.first_unit(slot);
    }
}

void LiveDraw::set_law(PriorityStore& priorities, const ReplaySample& sample, const SumTree& tree) {
    const auto* const epoch = sample.rows_as<RowsOfEpoch>();
    const int64_t n = epoch != nullptr ? epoch->n_transitions : priorities.live().count();
    law_ = {sample.n_drawn(),
            sample.scheme == PER_WITHOUT_REPLACEMENT,
            uniform_part(sample.prioritization, sample.uniform_fraction, tree.total_mass()),
            static_cast<double>(n),
            static_cast<double>(tree.total_mass()),
            0.0};
}

bool LiveDraw::draw_with_replacement(const SumTree& tree, const LiveSet& live, const DrawRequest& request,
                                     const RowsOfLeaves& rows) {
    if (law_.is_uniform()) {
        write_targets(tree.kernels().draw, request, static_cast<uint64_t>(live.count()), masses_.data());
        live.select(request.batch_size, masses_.data(), slots_.data());
    } else if (law_.is_mixture()) {
        mixture_.draw(tree, live, uniform_units(law_.uniform_fraction), request, slots_.data());
    } else {
        tree.draw(request, slots_.data(), masses_.data(), nullptr, nullptr, rows);
        return rows.bytes > 0;
    }
    return false;
}

void LiveDraw::draw_distinct(SumTree& tree, LiveSet& live, const DrawRequest& request) {
    const bool has_uniform_part = law_.uniform_fraction != 0.0;
    const DistinctDraw::Found found =
        has_uniform_part ? distinct_.draw(tree, live, mixture_, law_, request) : distinct_.draw(tree, request);
    require_drawn(request.batch_size, {live.count(), found.n}, of_sequences_);
    law_.n_draws = found.n_draws;
    std::copy_n(found.indices, found.n, slots_.data());
}

void LiveDraw::set_reference(PriorityStore& priorities, const ReplaySample& sample) {
    is_batch_max_ = sample.normalize_weights == PER_BATCH_MAX;
    if (is_batch_max_) return;
    reference_ =
        law_.reference(sample.normalize_weights, [&] { return priorities.smallest_mass(sample.prioritization); });
}

void LiveDraw::write_weights(const PowerKernels& kernels, double beta, float* weights_out) const {
    const int64_t n = static_cast<int64_t>(n_weighed_);
    const double reference = is_batch_max_ ? kernels.smallest(n, shares_.data()) : reference_;
    kernels.weigh_shares(n, shares_.data(), reference, beta, weights_out);
    for (size_t i = 0; has_no_share_ && i < shares_.size(); ++i)
        if (shares_[i] == no_share()) weights_out[i] = 0.0f;
    std::fill(weights_out + n, weights_out + shares_.size(), 1.0f);
}

void LiveDraw::write_probabilities(float* probabilities_out) const {
    const double total = law_.total();
    for (size_t i = 0; i < shares_.size(); ++i) probabilities_out[i] = static_cast<float>(shares_[i] / total);
    for (size_t i = 0; has_no_share_ && i < shares_.size(); ++i)
        if (shares_[i] == no_share()) probabilities_out[i] = 0.0f;
}

void LiveDraw::become(LastBatch& last, double beta) {
    shares_.resize(n_weighed_);
    slots_.swap(last.slots);
    shares_.swap(last.shares);
    last.reference = is_batch_max_ ? NAN : reference_;
    last.beta = beta;
}

}  // namespace per::cpu
