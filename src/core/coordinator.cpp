#include "core/coordinator.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <mutex>
#include <utility>

#include "backend/draw_outcome.h"
#include "backend/replay_options.h"
#include "core/checks.h"
#include "cpu/kernels/kernels.h"
#include "cpu/tree/sum_tree.h"
#include "rows/arguments.h"
#include "rows/error.h"
#include "rules/limits.h"
#include "rules/mass.h"

namespace per {
namespace {

per_replay_options checked(const per_replay_options& options) {
    check_replay_options(options);
    if (options.prioritization == PER_RANK)
        throw Error(PER_ERROR_UNSUPPORTED,
                    "prioritization is PER_RANK: the ranks of shards are not those of the whole");
    if (options.max_priority == PER_MAX_NOW)
        throw Error(PER_ERROR_UNSUPPORTED, "max_priority is PER_MAX_NOW: shards know the largest priority ever only");
    per_replay_options resolved = options;
    resolved.fields = nullptr;
    resolved.n_fields = 0;
    resolved.capacity = (options.capacity + options.n_envs - 1) / options.n_envs * options.n_envs;
    check_range("capacity rounded up to a multiple of n_envs", resolved.capacity, 1, max_capacity);
    return resolved;
}

}  // namespace

// ------------------------------------------------------------------------------------------------------- left out

void LeftOut::clear() {
    parts_.clear();
    size_ = 0;
}

void LeftOut::add(uint64_t first, uint64_t size) {
    parts_.push_back({first, size, 0});
    size_ += size;
}

void LeftOut::sort() {
    std::sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) { return a.first < b.first; });
    uint64_t before = 0;
    for (Part& part : parts_) {
        part.rest = part.first - before;
        before += part.size;
    }
}

uint64_t LeftOut::unit(uint64_t rest) const {
    const auto beyond = std::upper_bound(parts_.begin(), parts_.end(), rest,
                                         [](uint64_t r, const Part& part) { return r < part.rest; });
    if (beyond == parts_.begin()) return rest;
    const Part& last = *(beyond - 1);
    return rest + (last.first + last.size - last.rest);
}

// --------------------------------------------------------------------------------------------------------- shards

Coordinator::Coordinator(const per_replay_options& options, int64_t n_shards)
    : options_(checked(options)), beta_{options.beta, options.beta_final, options.beta_steps} {
    check_range("n_shards", n_shards, 1, options_.n_envs);
    for (int64_t s = 0; s < n_shards; ++s) {
        const int64_t first = s * options_.n_envs / n_shards;
        shards_.push_back({first, (s + 1) * options_.n_envs / n_shards - first, false, false, false, {}, 0, 0});
    }
}

Coordinator::Shard& Coordinator::shard_at(int64_t shard) {
    check_range("shard", shard, 0, static_cast<int64_t>(shards_.size()) - 1);
    return shards_[static_cast<size_t>(shard)];
}

Coordinator::Share Coordinator::share(int64_t shard) {
    const std::unique_lock guard(lock_);
    const Shard& known = shard_at(shard);
    return {options_.capacity / options_.n_envs * known.n_envs, known.n_envs, known.first_env};
}

void Coordinator::tell(int64_t shard, const per_law* law) {
    const std::unique_lock guard(lock_);
    Shard& known = shard_at(shard);
    if (law != nullptr) {
        check_range("live", law->live, 0, options_.capacity / options_.n_envs * known.n_envs);
        check_finite("max_priority", static_cast<double>(law->max_priority));
        check_finite("largest_leaf", static_cast<double>(law->largest_leaf));
        check_range("scale", law->scale, min_scale, max_scale);
        if (law->total_mass >= total_mass_limit)
            throw Error(PER_ERROR_INVALID_ARGUMENT, "total_mass is %" PRIu64 ": must be below 2^62", law->total_mass);
        known.law = *law;
        max_priority_ = std::max(max_priority_, law->max_priority);
    } else {
        known.law = default_law;
    }
    known.has_told = true;
    known.is_there = law != nullptr;
    known.has_answered = true;
    is_settled_ = false;
}

template <class Add>
void Coordinator::for_each_there(const Add& add) {
    for (Shard& shard : shards_)
        if (shard.is_there) add(shard);
}

WideSum Coordinator::total() {
    WideSum sum = {0, 0};
    for_each_there([&](const Shard& shard) { sum = add_wide(sum, {shard.law.total_mass, 0}); });
    return sum;
}

// ---------------------------------------------------------------------------------------------------------- scale

per_settling Coordinator::ask(Settling settling, per_settling todo, int32_t scale, int32_t& scale_out) {
    settling_ = settling;
    asked_scale_ = scale;
    scale_out = scale;
    for (Shard& shard : shards_) shard.has_answered = false;
    return todo;
}

void Coordinator::require_answers(Settling settling) {
    for (size_t s = 0; s < shards_.size(); ++s) {
        const Shard& shard = shards_[s];
        if (!shard.has_told) throw Error(PER_ERROR_INVALID_ARGUMENT, "shard %zu has not told of itself", s);
        if (!shard.is_there || settling == Settling::none) continue;
        const bool is_set = shard.law.is_scale_fixed != 0 && shard.law.scale == asked_scale_;
        if (!shard.has_answered || !(settling == Settling::scale ? is_set : shard.law.measured_scale == asked_scale_))
            throw Error(PER_ERROR_INVALID_ARGUMENT, "shard %zu was to %s the scale %" PRId32 ", and has not told so", s,
                        settling == Settling::scale ? "get" : "measure", asked_scale_);
    }
}

// Whether one buffer would choose another scale now: the rule is plan_after_change(), of which the shards have looked
// at what is too large. One that left the scale by itself found something so.
bool Coordinator::needs_scale(const WideSum& total) {
    bool has_too_large = false;
    for_each_there([&](const Shard& shard) {
        const bool has_left = shard.law.is_scale_fixed == 0 && shard.law.scale != scale_;
        has_too_large |= has_left && shard.law.total_mass != 0;
    });
    return plan_after_change(total_mass_, total, has_too_large, low_water_) != plan_keep;
}

per_settling Coordinator::settle(bool chooses_anew, int32_t& scale_out) {
    const std::unique_lock guard(lock_);
    const Settling settling = std::exchange(settling_, Settling::none);
    require_answers(settling);
    const WideSum sum = total();
    const bool has_mass = sum.low != 0 || sum.high != 0;
    if (settling == Settling::none) {
        largest_leaf_ = 0.0f;  // no scale is chosen so far
        if (chooses_anew && !has_mass) low_water_ = 0;
        if (needs_scale(sum) || (chooses_anew && has_mass))
            return ask(Settling::largest, PER_SETTLE_MEASURE, scale_, scale_out);
    }
    if (settling == Settling::largest) {
        for_each_there([&](const Shard& shard) { largest_leaf_ = std::max(largest_leaf_, shard.law.largest_leaf); });
        if (largest_leaf_ > 0.0f)
            return ask(Settling::sum, PER_SETTLE_MEASURE, scale_for_largest(largest_leaf_), scale_out);
    }
    if (settling == Settling::sum) {
        WideSum measured = {0, 0};
        for_each_there([&](const Shard& shard) {
            measured = add_wide(measured, {shard.law.measured_low, shard.law.measured_high});
        });
        scale_ = scale_of_leaves(largest_leaf_, measured, options_.capacity);
        return ask(Settling::scale, PER_SETTLE_SET, scale_, scale_out);
    }
    bool is_everywhere = true;
    for_each_there(
        [&](const Shard& shard) { is_everywhere &= shard.law.is_scale_fixed != 0 && shard.law.scale == scale_; });
    if (!is_everywhere) return ask(Settling::scale, PER_SETTLE_SET, scale_, scale_out);
    if (largest_leaf_ > 0.0f) low_water_ = low_water(sum.low, options_.capacity);
    total_mass_ = sum.low;
    largest_leaf_ = 0.0f;
    is_settled_ = true;
    scale_out = scale_;
    return PER_SETTLED;
}

// ---------------------------------------------------------------------------------------------------------- batches

void Coordinator::add_up() {
    mass_ = 0;
    live_ = 0;
    smallest_mass_ = 0;
    for (Shard& shard : shards_) {
        shard.mass_before = mass_;
        shard.live_before = live_;
        mass_ += shard.law.total_mass;
        live_ += static_cast<uint64_t>(shard.law.live);
    }
}

uint64_t Coordinator::smallest_mass() {
    uint64_t smallest = 0;
    for_each_there([&](const Shard& shard) {
        if (shard.law.total_mass == 0) return;
        if (shard.law.smallest_mass == 0)
            throw Error(PER_ERROR_UNSUPPORTED,
                        "normalize_weights is PER_BUFFER_MAX: the shards must have been created with it");
        smallest = smallest == 0 ? shard.law.smallest_mass : std::min(smallest, shard.law.smallest_mass);
    });
    return smallest;
}

void Coordinator::check_drawing(Drawing expected, const char* what) const {
    if (drawing_ != expected) throw Error(PER_ERROR_INVALID_ARGUMENT, "%s", what);
}

int64_t Coordinator::draw(const per_sample_options& options, int64_t batch_size) {
    const std::unique_lock guard(lock_);
    ReplaySample sample = resolve_sample_options(options, batch_size, options_);
    if (sample.n_step_min != 0)
        throw Error(PER_ERROR_UNSUPPORTED, "n_step_min is %" PRId64 ": shards do not know the places of their windows",
                    sample.n_step_min);
    if (sample.prioritization == PER_RANK)
        throw Error(PER_ERROR_UNSUPPORTED,
                    "prioritization is PER_RANK: the ranks of shards are not those of the whole");
    if (!is_settled_)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "shards told of themselves: per_coordinator_settle() comes before a draw");
    drawing_ = Drawing::none;
    add_up();
    const DrawOutcome all = {static_cast<int64_t>(live_), static_cast<int64_t>(live_)};
    if (live_ == 0) throw_empty(sample.of_sequences);
    const bool is_distinct = sample.scheme == PER_WITHOUT_REPLACEMENT;
    if (is_distinct) require_drawn(batch_size, all, sample.of_sequences);
    law_ = {batch_size,
            is_distinct,
            uniform_part(sample.prioritization, sample.uniform_fraction, mass_),
            static_cast<double>(live_),
            static_cast<double>(mass_),
            0.0};
    if (is_distinct && law_.is_mixture())
        throw Error(PER_ERROR_UNSUPPORTED,
                    "uniform_fraction is %g: without replacement shards draw by one of both parts only",
                    law_.uniform_fraction);
    if (sample.normalize_weights == PER_BUFFER_MAX && !law_.is_uniform()) smallest_mass_ = smallest_mass();
    key_ = {options_.seed, static_cast<uint64_t>(samples_)};
    if (sample.key != nullptr) key_ = {sample.key[0], sample.key[1]};
    sample_ = sample;
    const size_t n = static_cast<size_t>(batch_size);
    ids_.resize(n);
    masses_.resize(n + 1);
    shares_.resize(n);
    DrawRequest request = {batch_size, sample.scheme, key_.seed, key_.batch_number};
    if (is_distinct) {
        firsts_.resize(n + 1);
        rounds_.reserve(batch_size);
        rounds_.begin(request);
        left_out_.clear();
        request = rounds_.round();
    }
    make_units(request);
    drawing_ = Drawing::round;
    return request.batch_size;
}

// How many units, or ranks, are left to draw from.
uint64_t Coordinator::left() const {
    return (law_.is_uniform() ? live_ : mass_) - left_out_.size();
}

// The units of a round. Of a draw without replacement they are of what is left.
void Coordinator::make_units(const DrawRequest& request) {
    const int64_t n = request.batch_size;
    const size_t size = static_cast<size_t>(n);
    targets_.resize(size + cpu::draw_padding);
    shards_of_units_.resize(size);
    units_.resize(size);
    const bool by_mixture = law_.is_mixture() || (law_.is_distinct && law_.is_uniform());
    const uint64_t whole = by_mixture ? mixture_units : law_.is_uniform() ? live_ : left();
    write_targets(cpu::chosen_kernels().draw, request, whole, targets_.data());
    const uint64_t uniform = uniform_units(law_.uniform_fraction);
    positions_.resize(size);
    for (size_t i = 0; i < size; ++i) {
        UnitOrRank target = {targets_[i], law_.is_uniform()};
        if (by_mixture) target = part_of_mixture(targets_[i], uniform, mass_, live_ - left_out_.size());
        if (law_.is_distinct) target.value = left_out_.unit(target.value);
        positions_[i] = target.value;
        const auto beyond =
            std::upper_bound(shards_.begin(), shards_.end(), target.value, [&](uint64_t value, const Shard& shard) {
                return value < (target.is_rank ? shard.live_before : shard.mass_before);
            });
        const Shard& owner = *(beyond - 1);
        shards_of_units_[i] = beyond - 1 - shards_.begin();
        units_[i] = static_cast<int64_t>(target.value - (target.is_rank ? owner.live_before : owner.mass_before));
        if (target.is_rank) units_[i] = -1 - units_[i];
    }
}

void Coordinator::units(int64_t* shards_out, int64_t* units_out) {
    const std::unique_lock guard(lock_);
    check_drawing(Drawing::round, "no round is under way: per_coordinator_draw() comes first");
    std::copy(shards_of_units_.begin(), shards_of_units_.end(), shards_out);
    std::copy(units_.begin(), units_.end(), units_out);
}

int64_t Coordinator::found(const int64_t* ids, const uint64_t* masses, const uint64_t* first_units) {
    const std::unique_lock guard(lock_);
    check_drawing(Drawing::round, "no round is under way: per_coordinator_draw() comes first");
    if (law_.is_distinct && !law_.is_uniform()) require_pointer("first_units", first_units);
    for (size_t i = 0; i < units_.size(); ++i) {
        const int64_t most = max_shard_id(shards_[static_cast<size_t>(shards_of_units_[i])]);
        const int64_t id = read_once(ids[i]);
        if (id < 0 || id > most) throw_out_of_range("ids", static_cast<int64_t>(i), id, 0, most);
    }
    take_round(ids, masses, first_units);
    drawing_ = Drawing::found;
    if (!law_.is_distinct) return 0;
    const int64_t n_wanted = sample_.batch_size;
    if (rounds_.wants_more() && left() != 0) {
        drawing_ = Drawing::round;
        make_units(rounds_.round());
        return rounds_.round().batch_size;
    }
    const int64_t n_found = std::min(rounds_.n_found(), n_wanted);
    if (n_found < n_wanted) drawing_ = Drawing::none;
    require_drawn(n_wanted, {static_cast<int64_t>(live_), n_found}, sample_.of_sequences);
    law_.n_draws = rounds_.n_draws();
    std::copy_n(rounds_.found(), n_wanted, ids_.data());
    return 0;
}

// What the shards have found for the round becomes that of the batch.
void Coordinator::take_round(const int64_t* ids, const uint64_t* masses, const uint64_t* first_units) {
    int64_t* const ids_out = law_.is_distinct ? rounds_.drawn() : ids_.data();
    for (size_t i = 0; i < units_.size(); ++i) {
        const Shard& shard = shards_[static_cast<size_t>(shards_of_units_[i])];
        ids_out[i] = whole_id(shard, ids[i]);
    }
    if (!law_.is_distinct) {
        std::copy_n(masses, units_.size(), masses_.data());
        return;
    }
    const double share = law_.is_uniform() ? law_.share_left(0, left()) : static_cast<double>(left()) / law_.mass;
    const int64_t n_before = rounds_.n_found();
    const bool takes_out = rounds_.take(share);
    for (int64_t k = n_before; k < rounds_.n_found(); ++k) {
        const size_t i = static_cast<size_t>(rounds_.place_in_round(k));
        const size_t at = static_cast<size_t>(k);
        masses_[at] = masses[i];
        const Shard& shard = shards_[static_cast<size_t>(shards_of_units_[i])];
        firsts_[at] = law_.is_uniform() ? positions_[i] : shard.mass_before + first_units[i];
    }
    if (!takes_out) return;
    for (size_t k = static_cast<size_t>(rounds_.n_out()); k < static_cast<size_t>(rounds_.n_found()); ++k)
        left_out_.add(firsts_[k], law_.is_uniform() ? 1 : masses_[k]);
    left_out_.sort();
    rounds_.taken_out();
}

void Coordinator::finish(int64_t* ids_out, float* weights_out, float* probabilities_out) {
    const std::unique_lock guard(lock_);
    check_drawing(Drawing::found, "no batch has been found: per_coordinator_found() comes first");
    const cpu::PowerKernels& kernels = cpu::chosen_kernels().power;
    const int64_t n = sample_.batch_size;
    const bool by_schedule = std::isnan(sample_.beta);
    const double beta = by_schedule ? beta_.beta(beta_.step) : sample_.beta;
    const DrawLaw law = law_;
    for (size_t i = 0; i < shares_.size(); ++i) shares_[i] = law.share_of(static_cast<double>(masses_[i]));
    const double total = law.total();
    const double reference = sample_.normalize_weights == PER_BATCH_MAX
                                 ? kernels.smallest(n, shares_.data())
                                 : law.reference(sample_.normalize_weights, [&] { return smallest_mass_; });
    std::copy_n(ids_.data(), n, ids_out);
    if (weights_out != nullptr) kernels.weigh_shares(n, shares_.data(), reference, beta, weights_out);
    if (probabilities_out != nullptr)
        for (size_t i = 0; i < shares_.size(); ++i) probabilities_out[i] = static_cast<float>(shares_[i] / total);
    ++samples_;
    if (by_schedule) ++beta_.step;
    drawing_ = Drawing::none;
}

// -------------------------------------------------------------------------------------------------------------- ids

void Coordinator::locate(int64_t count, const int64_t* ids, int64_t* shards_out, int64_t* shard_ids_out) {
    const std::unique_lock guard(lock_);
    for (int64_t i = 0; i < count; ++i)
        if (read_once(ids[i]) < -1) throw_out_of_range("ids", i, ids[i], -1, INT64_MAX);
    for (int64_t i = 0; i < count; ++i) {
        const int64_t id = read_once(ids[i]);
        const int64_t env = id % options_.n_envs;
        const auto beyond = std::upper_bound(shards_.begin(), shards_.end(), env,
                                             [](int64_t e, const Shard& shard) { return e < shard.first_env; });
        shards_out[i] = id < 0 ? -1 : beyond - 1 - shards_.begin();
        shard_ids_out[i] = id < 0 ? -1 : id / options_.n_envs * (beyond - 1)->n_envs + (env - (beyond - 1)->first_env);
    }
}

void Coordinator::ids(int64_t shard, int64_t count, const int64_t* shard_ids, int64_t* ids_out) {
    const std::unique_lock guard(lock_);
    const Shard& known = shard_at(shard);
    const int64_t most = max_shard_id(known);
    for (int64_t i = 0; i < count; ++i) {
        const int64_t id = read_once(shard_ids[i]);
        if (id < -1 || id > most) throw_out_of_range("shard_ids", i, id, -1, most);
    }
    for (int64_t i = 0; i < count; ++i) {
        const int64_t id = shard_ids[i];
        ids_out[i] = id < 0 ? -1 : whole_id(known, id);
    }
}

int64_t Coordinator::whole_id(const Shard& shard, int64_t id) const {
    return id / shard.n_envs * options_.n_envs + shard.first_env + id % shard.n_envs;
}

// With a larger one that of the whole would be beyond 63 bits.
int64_t Coordinator::max_shard_id(const Shard& shard) const {
    return (INT64_MAX / options_.n_envs - 1) * shard.n_envs;
}

// ------------------------------------------------------------------------------------------------------------ state

per_coordinator_status Coordinator::state() {
    const std::unique_lock guard(lock_);
    per_coordinator_status status = default_coordinator_status;
    status.samples = samples_;
    status.beta_step = beta_.step;
    status.total_mass = total_mass_;
    status.rescales_below = low_water_;
    for_each_there([&](const Shard& shard) {
        status.live += shard.law.live;
        ++status.shards;
    });
    status.beta = beta_.beta(beta_.step);
    status.max_priority = max_priority_;
    status.scale = scale_;
    return status;
}

void Coordinator::restore(const per_coordinator_status& status) {
    const std::unique_lock guard(lock_);
    for (const Shard& shard : shards_)
        if (shard.has_told)
            throw Error(PER_ERROR_INVALID_ARGUMENT, "a shard has told of itself: a restore comes before");
    check_range("samples", status.samples, 0, INT64_MAX);
    check_range("beta_step", status.beta_step, 0, INT64_MAX);
    check_finite("max_priority", static_cast<double>(status.max_priority));
    check_range("scale", status.scale, min_scale, max_scale);
    if (status.total_mass >= total_mass_limit)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "total_mass is %" PRIu64 ": must be below 2^62", status.total_mass);
    samples_ = status.samples;
    beta_.step = status.beta_step;
    total_mass_ = status.total_mass;
    low_water_ = status.rescales_below;
    max_priority_ = std::max(1.0f, status.max_priority);
    scale_ = status.scale;
}

}  // namespace per
