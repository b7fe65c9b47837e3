#include "shards/shard_draw.h"

#include <algorithm>

#include "backend/draw_outcome.h"
#include "base/error.h"
#include "cpu/kernels/kernels.h"
#include "cpu/tree/sum_tree.h"

namespace per {

void LeftOut::clear() {
    parts_.clear();
    size_ = 0;
}

void LeftOut::add(uint64_t first, uint64_t size) {
    parts_.push_back({first, size, 0});
}

void LeftOut::merge() {
    std::sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) { return a.first < b.first; });
    uint64_t end = 0;
    size_ = 0;
    for (Part& part : parts_) {
        const uint64_t first = std::max(part.first, end);
        end = std::max(part.first + part.size, end);
        part = {first, end - first, first - size_};
        size_ += part.size;
    }
}

uint64_t LeftOut::unit(uint64_t rest) const {
    const auto beyond = std::upper_bound(parts_.begin(), parts_.end(), rest,
                                         [](uint64_t r, const Part& part) { return r < part.rest; });
    if (beyond == parts_.begin()) return rest;
    const Part& last = *(beyond - 1);
    return rest + (last.first + last.size - last.rest);
}

// ----------------------------------------------------------------------------------------------------------- rounds

void ShardDraw::clear_shards() {
    mass_before.assign(1, 0);
    live_before.assign(1, 0);
}

void ShardDraw::add_shard(const per_shard_summary& summary) {
    mass_before.push_back(mass() + summary.total_mass);
    live_before.push_back(live() + static_cast<uint64_t>(summary.live));
}

// Allocates memory for the whole batch and for the first round. No later round is larger, so nothing throws
// std::bad_alloc after begin().
int64_t ShardDraw::begin(const DrawRequest& request) {
    const size_t n = static_cast<size_t>(request.batch_size);
    ids.resize(n);
    shares.resize(n);
    masses.resize(n + 1);
    firsts.resize(n + 1);
    left_out.clear();
    if (law.is_distinct) {
        left_out.reserve(n + 1);
        rounds.reserve(request.batch_size);
        rounds.begin(request);
    }
    make_units(law.is_distinct ? rounds.round() : request);
    stage = Stage::round;
    return static_cast<int64_t>(units.size());
}

// Number of units, or ranks, that are left to draw from.
uint64_t ShardDraw::left() const {
    return (law.is_uniform() ? live() : mass()) - left_out.size();
}

// Draws the units of a round; without replacement from the units that are left.
void ShardDraw::make_units(const DrawRequest& request) {
    const size_t n = static_cast<size_t>(request.batch_size);
    targets.resize(n + cpu::draw_padding);
    positions.resize(n);
    shards.resize(n);
    units.resize(n);
    round_found.resize(n);
    const bool by_mixture = law.is_mixture() || (law.is_distinct && law.is_uniform());
    const uint64_t whole = by_mixture ? mixture_units : left();
    write_targets(cpu::chosen_kernels().draw, request, whole, targets.data());
    const uint64_t uniform = uniform_units(law.uniform_fraction);
    for (size_t i = 0; i < n; ++i) {
        UnitOrRank target = {targets[i], law.is_uniform()};
        if (by_mixture) target = part_of_mixture(targets[i], uniform, mass(), live() - left_out.size());
        if (law.is_distinct) target.value = left_out.unit(target.value);
        const std::vector<uint64_t>& before = target.is_rank ? live_before : mass_before;
        const auto owner = std::upper_bound(before.begin(), before.end(), target.value) - 1;
        positions[i] = target.value;
        shards[i] = owner - before.begin();
        units[i] = static_cast<int64_t>(target.value - *owner);
        if (target.is_rank) units[i] = -1 - units[i];
    }
}

// Adds the transitions that a round without replacement found to the batch. Returns false if the round found only
// transitions that had been taken out, which is impossible unless a shard has changed.
bool ShardDraw::take_round() {
    for (size_t i = 0; i < units.size(); ++i) rounds.drawn()[i] = round_found[i].id;
    const double share = law.is_uniform() ? law.share_left(0, left()) : static_cast<double>(left()) / law.mass;
    const int64_t n_before = rounds.n_found();
    const bool all_were_out = rounds.n_out() == n_before;
    const bool takes_out = rounds.take(share);
    for (int64_t k = n_before; k < rounds.n_found(); ++k) {
        const size_t i = static_cast<size_t>(rounds.place_in_round(k));
        const size_t at = static_cast<size_t>(k);
        masses[at] = round_found[i].mass;
        firsts[at] = law.is_uniform() ? positions[i] : round_found[i].first_unit;
    }
    if (takes_out) {
        for (size_t k = static_cast<size_t>(rounds.n_out()); k < static_cast<size_t>(rounds.n_found()); ++k)
            left_out.add(firsts[k], law.is_uniform() ? 1 : masses[k]);
        left_out.merge();
        rounds.taken_out();
    }
    return !all_were_out || rounds.n_found() > n_before;
}

int64_t ShardDraw::end_round() {
    if (!law.is_distinct) {
        for (size_t i = 0; i < units.size(); ++i) {
            ids[i] = round_found[i].id;
            masses[i] = round_found[i].mass;
        }
        stage = Stage::found;
        return 0;
    }
    stage = Stage::none;
    if (!take_round())
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "ids are all of transitions that were taken out: the shards have changed since the draw began");
    if (rounds.wants_more() && left() != 0) {
        make_units(rounds.round());
        stage = Stage::round;
        return static_cast<int64_t>(units.size());
    }
    const int64_t n_wanted = sample.batch_size;
    const int64_t n_found = std::min(rounds.n_found(), n_wanted);
    require_drawn(n_wanted, {static_cast<int64_t>(live()), n_found}, of_sequences);
    law.n_draws = rounds.n_draws();
    std::copy_n(rounds.found(), n_wanted, ids.data());
    stage = Stage::found;
    return 0;
}

void ShardDraw::weigh(double beta, float* weights_out, float* probabilities_out) {
    const int64_t n = sample.batch_size;
    const cpu::PowerKernels& kernels = cpu::chosen_kernels().power;
    for (size_t i = 0; i < shares.size(); ++i) shares[i] = law.share_of(static_cast<double>(masses[i]));
    const double total = law.total();
    const double reference = sample.normalize_weights == PER_BATCH_MAX
                                 ? kernels.smallest(n, shares.data())
                                 : law.reference(sample.normalize_weights, [&] { return smallest_mass; });
    if (weights_out != nullptr) kernels.weigh_shares(n, shares.data(), reference, beta, weights_out);
    if (probabilities_out != nullptr)
        for (size_t i = 0; i < shares.size(); ++i) probabilities_out[i] = static_cast<float>(shares[i] / total);
}

}  // namespace per
