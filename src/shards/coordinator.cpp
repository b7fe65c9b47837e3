#include "shards/coordinator.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <mutex>
#include <string>
#include <utility>

#include "backend/draw_outcome.h"
#include "backend/replay_options.h"
#include "base/arguments.h"
#include "base/error.h"
#include "core/checks.h"
#include "core/rate_limiter.h"
#include "rules/limits.h"
#include "rules/mass.h"

namespace per {
namespace {

void require_no_ranks(int32_t prioritization) {
    if (prioritization != PER_RANK) return;
    throw Error(PER_ERROR_UNSUPPORTED, "prioritization is PER_RANK: the ranks of shards are not those of the whole");
}

per_replay_options checked(const per_replay_options& options) {
    check_replay_options(options);
    require_no_ranks(options.prioritization);
    if (options.max_priority == PER_MAX_NOW)
        throw Error(PER_ERROR_UNSUPPORTED, "max_priority is PER_MAX_NOW: shards know the largest priority ever only");
    if (RateLimiter::has_limits(options.rate_limit))
        throw Error(PER_ERROR_UNSUPPORTED,
                    "samples_per_insert is %g and min_size_to_sample %" PRId64 ": a coordinator has no rate limiter",
                    options.rate_limit.samples_per_insert, options.rate_limit.min_size_to_sample);
    if (options.keep_times_sampled != 0 || options.max_times_sampled != 0)
        throw Error(PER_ERROR_UNSUPPORTED,
                    "keep_times_sampled is %" PRId32 " and max_times_sampled %" PRId32
                    ": shards do not know what a coordinator draws",
                    options.keep_times_sampled, options.max_times_sampled);
    per_replay_options resolved = options;
    resolved.fields = nullptr;
    resolved.n_fields = 0;
    resolved.capacity = (options.capacity + options.n_envs - 1) / options.n_envs * options.n_envs;
    check_range("capacity rounded up to a multiple of n_envs", resolved.capacity, 1, max_capacity);
    return resolved;
}

[[noreturn]] void throw_beyond(const char* name, uint64_t value, uint64_t least, uint64_t most) {
    throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is %" PRIu64 ": allowed are %" PRIu64 " .. %" PRIu64, name, value,
                least, most);
}

void check_units(const char* name, uint64_t value, uint64_t most) {
    if (value > most) throw_beyond(name, value, 0, most);
}

void check_entry(const char* name, size_t i, uint64_t value, uint64_t least, uint64_t most) {
    if (value < least || value > most)
        throw_beyond((name + ("[" + std::to_string(i) + "]")).c_str(), value, least, most);
}

// Refuses summaries that no buffer returns. So total masses are below 2^62, and every measured sum leads to a scale in
// range. The lowest scale, -119, follows from 2^40 leaves that each measure 2^52 at the scale for the largest float.
void check_summary(const per_shard_summary& summary, const per_replay_options& options, int64_t capacity) {
    check_range("live", summary.live, 0, capacity);
    check_range("changes", summary.changes, 0, INT64_MAX);
    check_range("version", summary.version, 0, INT32_MAX);
    check_reference("reference", summary.reference, options);
    check_finite("max_priority", static_cast<double>(summary.max_priority));
    check_finite("largest_leaf", static_cast<double>(summary.largest_leaf));
    check_range("scale", summary.scale, min_scale, max_scale);
    check_range("is_scale_fixed", summary.is_scale_fixed, 0, 1);
    if (summary.measured_scale != PER_SCALE_AUTOMATIC) {
        check_range("measured_scale", summary.measured_scale, min_scale, max_scale);
        check_reference("measured_reference", summary.measured_reference, options);
    }
    using Wide = unsigned __int128;
    const Wide live = static_cast<Wide>(summary.live);
    check_units("total_mass", summary.total_mass,
                static_cast<uint64_t>(std::min<Wide>(live * (leaf_mass_limit - 1), total_mass_limit - 1)));
    check_units("smallest_mass", summary.smallest_mass, summary.total_mass);
    if ((static_cast<Wide>(summary.measured_high) << 64 | summary.measured_low) > live * leaf_mass_limit)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "measured_high is %" PRIu64 " and measured_low %" PRIu64 ": more than 2^52 for each of %" PRId64
                    " live transitions",
                    summary.measured_high, summary.measured_low, summary.live);
}

}  // namespace

// --------------------------------------------------------------------------------------------------------- shards

Coordinator::Coordinator(const per_replay_options& options, int64_t n_shards, const per_coordinator_state& state)
    : options_(checked(options)), beta_{options.beta, options.beta_final, options.beta_steps} {
    check_range("n_shards", n_shards, 1, options_.n_envs);
    check_range("samples", state.samples, 0, max_counter);
    check_range("beta_step", state.beta_step, 0, max_counter);
    check_finite("max_priority", static_cast<double>(state.max_priority));
    check_range("scale", state.scale, min_scale, max_scale);
    check_units("total_mass", state.total_mass, total_mass_limit - 1);
    if (state.reference != 0) check_reference("reference", state.reference, options_);
    samples_ = state.samples;
    beta_.step = state.beta_step;
    total_mass_ = state.total_mass;
    low_water_ = state.rescales_below;
    max_priority_ = std::max(1.0f, state.max_priority);
    scale_ = {state.scale, std::max(freshness_of(options_).reference, state.reference)};
    for (int64_t s = 0; s < n_shards; ++s) {
        const int64_t first = s * options_.n_envs / n_shards;
        shards_.push_back({first, (s + 1) * options_.n_envs / n_shards - first, false, false, false, {}});
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

void Coordinator::report(int64_t shard, const per_shard_summary* summary) {
    const std::unique_lock guard(lock_);
    Shard& known = shard_at(shard);
    if (summary != nullptr) {
        check_summary(*summary, options_, options_.capacity / options_.n_envs * known.n_envs);
        known.summary = *summary;
        max_priority_ = std::max(max_priority_, summary->max_priority);
    } else {
        known.summary = default_summary;
    }
    known.has_reported = true;
    known.is_there = summary != nullptr;
    known.has_answered = true;
    is_agreed_ = false;
}

template <class Add>
void Coordinator::for_each_there(const Add& add) {
    for (Shard& shard : shards_)
        if (shard.is_there) add(shard);
}

WideSum Coordinator::total() {
    WideSum sum = {0, 0};
    for_each_there([&](const Shard& shard) { sum = add_wide(sum, {shard.summary.total_mass, 0}); });
    return sum;
}

// ---------------------------------------------------------------------------------------------------------- scale

Coordinator::ScaleRequest Coordinator::ask(Agreement agreement, per_scale_request todo, int32_t scale) {
    agreement_ = agreement;
    asked_.scale = scale;
    for (Shard& shard : shards_) shard.has_answered = false;
    return {todo, asked_};
}

bool Coordinator::has_asked_scale(const per_shard_summary& summary) const {
    return summary.is_scale_fixed != 0 && summary.scale == asked_.scale && summary.reference == asked_.reference;
}

void Coordinator::require_answers(Agreement agreement) {
    for (size_t s = 0; s < shards_.size(); ++s) {
        const Shard& shard = shards_[s];
        if (!shard.has_reported) throw Error(PER_ERROR_INVALID_ARGUMENT, "shard %zu has not reported", s);
        if (!shard.is_there || agreement == Agreement::none) continue;
        const bool has_measured =
            shard.summary.measured_scale == asked_.scale && shard.summary.measured_reference == asked_.reference;
        if (!shard.has_answered || !(agreement == Agreement::scale ? has_asked_scale(shard.summary) : has_measured))
            throw Error(PER_ERROR_INVALID_ARGUMENT, "shard %zu was to %s the scale %" PRId32 "%s, and has not told so",
                        s, agreement == Agreement::scale ? "get" : "measure", asked_.scale,
                        asked_.reference == 0 ? "" : (" at the reference " + std::to_string(asked_.reference)).c_str());
    }
}

// Priorities that decay by versions would decay by different ones.
void Coordinator::require_one_version() {
    const Shard* first = nullptr;
    for_each_there([&](const Shard& shard) {
        if (first == nullptr) first = &shard;
        if (shard.summary.version != first->summary.version)
            throw Error(PER_ERROR_INVALID_ARGUMENT,
                        "shard %td has version %" PRId64 ", and shard %td %" PRId64 ": all need the same version",
                        &shard - shards_.data(), shard.summary.version, first - shards_.data(), first->summary.version);
    });
}

// The scale of a single buffer after the rebase that its latest birth may have made due, and before it looks at its
// sums. If that rebase cannot keep the masses, the scale stays, and another one must be chosen.
LeafScale Coordinator::rebased_scale() {
    LeafScale rebased = scale_;
    for_each_there(
        [&](const Shard& shard) { rebased.reference = std::max(rebased.reference, shard.summary.reference); });
    const int64_t raised = rebased.reference - scale_.reference;
    if (raised > 0 && total_mass_ != 0 && rebase_keeps_masses(scale_.scale, raised))
        rebased.scale += static_cast<int32_t>(raised);
    return rebased;
}

// True if a single buffer would choose another scale now: after a rebase that cannot keep the masses, or by the rule of
// plan_after_change(). The shards check for leaves that are too large. A shard whose masses are not those at `rebased`
// may have found such a leaf, or it was absent when the scale was chosen. Either way the shards need a scale that fits
// them all.
bool Coordinator::needs_scale(const LeafScale& rebased, const WideSum& total) {
    bool is_another_due = rebased.reference > scale_.reference && rebased.scale == scale_.scale;
    for_each_there([&](const Shard& shard) {
        const int64_t raised = rebased.reference - shard.summary.reference;
        const bool has_these = shard.summary.scale + raised == rebased.scale &&
                               (raised == 0 || rebase_keeps_masses(shard.summary.scale, raised));
        is_another_due |= !has_these && shard.summary.total_mass != 0;
    });
    return plan_after_change(total_mass_, total, is_another_due, low_water_) != plan_keep;
}

Coordinator::ScaleRequest Coordinator::agree_on_scale(bool chooses_anew) {
    const std::unique_lock guard(lock_);
    const Agreement agreement = std::exchange(agreement_, Agreement::none);
    if (agreement == Agreement::none) chooses_anew_ |= chooses_anew;
    require_answers(agreement);
    require_one_version();
    const WideSum sum = total();
    const bool has_mass = sum.low != 0 || sum.high != 0;
    if (agreement == Agreement::none) {
        largest_leaf_ = 0.0f;
        asked_ = rebased_scale();
        if (needs_scale(asked_, sum) || (chooses_anew_ && has_mass))
            return ask(Agreement::largest, PER_SCALE_MEASURE, asked_.scale);
    }
    if (agreement == Agreement::largest) {
        for_each_there(
            [&](const Shard& shard) { largest_leaf_ = std::max(largest_leaf_, shard.summary.largest_leaf); });
        if (largest_leaf_ > 0.0f) return ask(Agreement::sum, PER_SCALE_MEASURE, scale_for_largest(largest_leaf_));
    }
    if (agreement == Agreement::sum) {
        WideSum measured = {0, 0};
        for_each_there([&](const Shard& shard) {
            measured = add_wide(measured, {shard.summary.measured_low, shard.summary.measured_high});
        });
        return ask(Agreement::scale, PER_SCALE_SET, scale_of_leaves(largest_leaf_, measured, options_.capacity));
    }
    bool is_everywhere = true;
    for_each_there([&](const Shard& shard) { is_everywhere &= has_asked_scale(shard.summary); });
    if (!is_everywhere) return ask(Agreement::scale, PER_SCALE_SET, asked_.scale);
    if (sum.high != 0 || sum.low >= total_mass_limit)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "the shards have changed since they were measured: their total mass is 2^62 or more");
    if (largest_leaf_ > 0.0f) low_water_ = low_water(sum.low, options_.capacity);
    if (chooses_anew_ && !has_mass) low_water_ = 0;
    scale_ = asked_;
    total_mass_ = sum.low;
    chooses_anew_ = false;
    is_agreed_ = true;
    return {PER_SCALE_AGREED, scale_};
}

// ---------------------------------------------------------------------------------------------------------- batches

uint64_t Coordinator::smallest_mass() {
    uint64_t smallest = 0;
    for_each_there([&](const Shard& shard) {
        if (shard.summary.total_mass == 0) return;
        if (shard.summary.smallest_mass == 0)
            throw Error(PER_ERROR_UNSUPPORTED,
                        "normalize_weights is PER_BUFFER_MAX: the shards must have been created with it");
        smallest = smallest == 0 ? shard.summary.smallest_mass : std::min(smallest, shard.summary.smallest_mass);
    });
    return smallest;
}

ShardDraw& Coordinator::draw_at(ShardDraw::Stage expected, const char* what) {
    if (draw_.stage != expected) throw Error(PER_ERROR_INVALID_ARGUMENT, "%s", what);
    return draw_;
}

ShardDraw& Coordinator::draw_in_round() {
    return draw_at(ShardDraw::Stage::round, "no round is under way: per_coordinator_draw() comes first");
}

int64_t Coordinator::draw(const per_sample_options& options, int64_t batch_size) {
    const std::unique_lock guard(lock_);
    require_no_hindsight(options);
    require_no_newest(options, "for shards");
    per_sample_options given = options;
    given.n_step = 0;  // only the shards use it
    const ReplaySample sample = resolve_sample_options(given, batch_size, options_);
    if (sample.n_step_min != 0)
        throw Error(PER_ERROR_UNSUPPORTED, "n_step_min is %" PRId64 ": shards do not know the places of their windows",
                    sample.n_step_min);
    require_no_ranks(sample.prioritization);
    if (!is_agreed_)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "shards told of themselves: per_coordinator_agree_on_scale() comes before a draw");
    ShardDraw& next = next_;
    next.clear_shards();
    for (const Shard& shard : shards_) next.add_shard(shard.summary);
    const auto n_live = static_cast<int64_t>(next.live());
    next.of_sequences = options_.sequence_length > 0;
    if (n_live == 0) throw_empty(next.of_sequences);
    const bool is_distinct = sample.scheme == PER_WITHOUT_REPLACEMENT;
    if (is_distinct) require_drawn(batch_size, {n_live, n_live}, next.of_sequences);
    next.sample = sample;
    next.law = {batch_size,
                is_distinct,
                uniform_part(sample.prioritization, sample.uniform_fraction, next.mass()),
                static_cast<double>(next.live()),
                static_cast<double>(next.mass()),
                0.0};
    if (is_distinct && next.law.is_mixture())
        throw Error(PER_ERROR_UNSUPPORTED,
                    "uniform_fraction is %g: without replacement shards draw by one of both parts only",
                    next.law.uniform_fraction);
    if (sample.normalize_weights == PER_BUFFER_MAX && !next.law.is_uniform()) next.smallest_mass = smallest_mass();
    const BatchKey own_key = {options_.seed, static_cast<uint64_t>(samples_)};
    const BatchKey key = std::get<DrawnRows>(sample.rows).key_or(own_key);
    const int64_t n_units = next.begin({batch_size, sample.scheme, key.seed, key.batch_number});
    std::swap(draw_, next_);
    return n_units;
}

void Coordinator::units(int64_t count, int64_t* shards_out, int64_t* units_out) {
    const std::unique_lock guard(lock_);
    const ShardDraw& draw = draw_in_round();
    const auto n = static_cast<int64_t>(draw.units.size());
    check_range("count", count, n, n);
    std::copy(draw.shards.begin(), draw.shards.end(), shards_out);
    std::copy(draw.units.begin(), draw.units.end(), units_out);
}

// Reads each entry once, as other threads may write to them, and accepts them only if a buffer could have found all of
// them.
void Coordinator::read_found(const int64_t* ids, const uint64_t* masses, const uint64_t* first_units) {
    for (size_t i = 0; i < draw_.units.size(); ++i) {
        const size_t s = static_cast<size_t>(draw_.shards[i]);
        const bool is_rank = draw_.units[i] < 0;
        const uint64_t whole = draw_.mass_of(s);
        const int64_t max_id = max_shard_id(shards_[s]);
        const int64_t id = read_once(ids[i]);
        const uint64_t mass = read_once(masses[i]);
        const uint64_t first = first_units == nullptr ? 0 : read_once(first_units[i]);
        if (id < 0 || id > max_id) throw_out_of_range("ids", static_cast<int64_t>(i), id, 0, max_id);
        check_entry("masses", i, mass, is_rank ? 0 : 1, whole);
        if (first_units != nullptr && !is_rank) {
            const auto unit = static_cast<uint64_t>(draw_.units[i]);
            check_entry("first_units", i, first, unit < mass ? 0 : unit - mass + 1, std::min(unit, whole - mass));
        }
        draw_.round_found[i] = {whole_id(shards_[s], id), mass, draw_.mass_before[s] + first};
    }
}

int64_t Coordinator::submit(int64_t count, const int64_t* ids, const uint64_t* masses, const uint64_t* first_units) {
    const std::unique_lock guard(lock_);
    ShardDraw& draw = draw_in_round();
    const auto n_units = static_cast<int64_t>(draw.units.size());
    check_range("count", count, n_units, n_units);
    if (draw.law.is_distinct && !draw.law.is_uniform()) require_pointer("first_units", first_units);
    read_found(ids, masses, first_units);
    return draw.end_round();
}

void Coordinator::finish(int64_t batch_size, int64_t* ids_out, float* weights_out, float* probabilities_out) {
    const std::unique_lock guard(lock_);
    ShardDraw& draw = draw_at(ShardDraw::Stage::found, "no batch has been found: per_coordinator_submit() comes first");
    const int64_t n = draw.sample.batch_size;
    check_range("batch_size", batch_size, n, n);
    const bool by_schedule = std::isnan(draw.sample.beta);
    std::copy_n(draw.ids.data(), n, ids_out);
    draw.weigh(by_schedule ? beta_.beta(beta_.step) : draw.sample.beta, weights_out, probabilities_out);
    ++samples_;
    if (by_schedule) ++beta_.step;
    draw.stage = ShardDraw::Stage::none;
}

// -------------------------------------------------------------------------------------------------------------- ids

void Coordinator::locate(int64_t count, const int64_t* ids, int64_t* shards_out, int64_t* shard_ids_out) {
    const std::unique_lock guard(lock_);
    for (int64_t i = 0; i < count; ++i)
        if (const int64_t id = read_once(ids[i]); id < -1) throw_out_of_range("ids", i, id, -1, INT64_MAX);
    for (int64_t i = 0; i < count; ++i) {
        const int64_t id = std::max<int64_t>(read_once(ids[i]), -1);  // another thread may have written since
        const int64_t env = std::max<int64_t>(id, 0) % options_.n_envs;
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
        const int64_t id = read_once(shard_ids[i]);  // another thread may have written since
        ids_out[i] = id < 0 || id > most ? -1 : whole_id(known, id);
    }
}

int64_t Coordinator::whole_id(const Shard& shard, int64_t id) const {
    return id / shard.n_envs * options_.n_envs + shard.first_env + id % shard.n_envs;
}

// The id in the whole that belongs to a larger id would exceed 63 bits.
int64_t Coordinator::max_shard_id(const Shard& shard) const {
    return (INT64_MAX / options_.n_envs - 1) * shard.n_envs;
}

// ------------------------------------------------------------------------------------------------------------ state

per_coordinator_state Coordinator::state() {
    const std::unique_lock guard(lock_);
    per_coordinator_state status = default_coordinator_state;
    status.samples = samples_;
    status.beta_step = beta_.step;
    status.total_mass = total_mass_;
    status.rescales_below = low_water_;
    for_each_there([&](const Shard& shard) {
        status.live += shard.summary.live;
        ++status.shards;
    });
    status.beta = beta_.beta(beta_.step);
    status.max_priority = max_priority_;
    status.scale = scale_.scale;
    status.reference = scale_.reference;
    return status;
}

}  // namespace per
