#include "libper_replay.h"

#include "draws.h"
#include "libper_call.h"

namespace bench {
namespace {

per_array array(const void* data, per_dtype dtype) {
    return per_array{data, nullptr, 0, dtype, nullptr};
}

}  // namespace

LibperReplay::LibperReplay(const RowKind& kind, int64_t capacity, int32_t gather_threads, double half_life)
    : kind_(kind),
      field_arrays_(kind.fields.size()),
      next_field_arrays_(kind.fields.size()),
      field_outputs_(kind.fields.size()),
      next_field_outputs_(kind.fields.size()) {
    std::vector<per_field> fields;
    for (const RowField& field : kind_.fields) {
        per_field declared = {};
        declared.name = field.name.c_str();
        declared.shape = field.shape.data();
        declared.ndim = static_cast<int32_t>(field.shape.size());
        declared.dtype = field.dtype;
        fields.push_back(declared);
    }
    per_replay_options options;
    expect_ok(per_replay_options_init(&options, sizeof options));
    options.capacity = capacity;
    options.fields = fields.data();
    options.n_fields = static_cast<int64_t>(fields.size());
    options.field_size = sizeof(per_field);
    options.seed = 7;
    options.n_step = kind_.n_step;
    options.frame_stack = kind_.stack;
    options.burn_in = kind_.burn_in;
    options.sequence_length = kind_.sequence_length;
    options.gamma = row_gamma;
    options.gather_threads = gather_threads;
    options.freshness.half_life = half_life;
    options.beta = static_cast<double>(weights_beta);
    per_replay* replay = nullptr;
    expect_ok(per_replay_create(&options, &replay));
    replay_.reset(replay);
}

void LibperReplay::add(const Steps& steps, const float* priorities, int64_t* ids_out) {
    add_part(steps, 0, steps.length(), priorities, ids_out);
}

void LibperReplay::add_singly(const Steps& steps, int64_t* ids_out) {
    for (int64_t i = 0; i < steps.length(); ++i) add_part(steps, i, 1, nullptr, ids_out + i);
}

void LibperReplay::add_part(const Steps& steps, int64_t first, int64_t length, const float* priorities,
                            int64_t* ids_out) {
    for (size_t f = 0; f < kind_.fields.size(); ++f) {
        const RowField& field = kind_.fields[f];
        field_arrays_[f] = array(steps.fields[f].data() + first * field.bytes(), field.dtype);
        next_field_arrays_[f] =
            array(field.is_observation() ? steps.next_fields[f].data() + first * field.bytes() : nullptr, field.dtype);
    }
    per_steps given;
    expect_ok(per_steps_init(&given, sizeof given));
    given.length = length;
    given.fields = field_arrays_.data();
    given.next_fields = next_field_arrays_.data();
    given.reward = array(steps.reward.data() + first, PER_FLOAT32);
    given.terminated = array(steps.terminated.data() + first, PER_BOOL);
    given.truncated = array(steps.truncated.data() + first, PER_BOOL);
    if (priorities != nullptr) given.priorities = array(priorities, PER_FLOAT32);
    expect_ok(per_replay_add(replay_.get(), &given, ids_out, nullptr));
    next_step_ += length;
}

per_batch LibperReplay::outputs(Rows& rows) const {
    for (size_t f = 0; f < kind_.fields.size(); ++f) {
        field_outputs_[f] = rows.fields[f].data();
        next_field_outputs_[f] = rows.next_fields[f].empty() ? nullptr : rows.next_fields[f].data();
    }
    per_batch batch;
    expect_ok(per_batch_init(&batch, sizeof batch));
    batch.fields = field_outputs_.data();
    batch.next_fields = next_field_outputs_.data();
    batch.reward = rows.reward.data();
    batch.terminated = rows.terminated.data();
    return batch;
}

void LibperReplay::sample_rows(Rows& rows) {
    per_batch batch = outputs(rows);
    batch.weights = rows.weights.data();
    batch.ids = rows.ids.data();
    expect_ok(per_replay_sample(replay_.get(), nullptr, rows.batch(), &batch, nullptr));
}

void LibperReplay::sample_mixture(LibperReplay& other, std::array<per_source, 2>& sources, Rows& rows) {
    per_batch batch = outputs(rows);
    batch.weights = rows.weights.data();
    batch.ids = rows.ids.data();
    sources[0].replay = replay_.get();
    sources[1].replay = other.replay_.get();
    sources[0].share = sources[1].share = 0.5;
    expect_ok(per_mixture_sample(sources.data(), 2, nullptr, rows.batch(), &batch, nullptr, nullptr));
}

void LibperReplay::sample_sequences(Sequences& sequences) {
    for (size_t f = 0; f < kind_.fields.size(); ++f) field_outputs_[f] = sequences.fields[f].data();
    per_batch batch;
    expect_ok(per_batch_init(&batch, sizeof batch));
    batch.fields = field_outputs_.data();
    batch.reward = sequences.reward.data();
    batch.discount = sequences.discount.data();
    batch.n_steps = sequences.n_steps.data();
    batch.terminated = sequences.terminated.data();
    batch.truncated = sequences.truncated.data();
    batch.mask = sequences.mask.data();
    batch.weights = sequences.weights.data();
    batch.ids = sequences.ids.data();
    expect_ok(per_replay_sample(replay_.get(), nullptr, sequences.batch(), &batch, nullptr));
}

void LibperReplay::sample_ids(per_prioritization prioritization, std::vector<int64_t>& ids,
                              std::vector<float>& weights) {
    per_sample_options options;
    expect_ok(per_sample_options_init(&options, sizeof options));
    options.prioritization = prioritization;
    per_batch batch;
    expect_ok(per_batch_init(&batch, sizeof batch));
    batch.ids = ids.data();
    batch.weights = weights.data();
    expect_ok(per_replay_sample(replay_.get(), &options, static_cast<int64_t>(ids.size()), &batch, nullptr));
}

void LibperReplay::update(const std::vector<int64_t>& ids, const std::vector<float>& td_errors) {
    per_priorities given;
    expect_ok(per_priorities_init(&given, sizeof given));
    given.count = static_cast<int64_t>(ids.size());
    given.ids = ids.data();
    given.td_errors = td_errors.data();
    expect_ok(per_replay_update_priorities(replay_.get(), &given, nullptr));
}

void LibperReplay::get(Rows& rows) const {
    const per_batch batch = outputs(rows);
    expect_ok(per_replay_get(replay_.get(), rows.batch(), rows.ids.data(), &batch, nullptr));
}

std::vector<float> LibperReplay::priorities(const std::vector<int64_t>& ids) const {
    std::vector<float> result(ids.size());
    expect_ok(
        per_replay_get_priorities(replay_.get(), static_cast<int64_t>(ids.size()), ids.data(), result.data(), nullptr));
    return result;
}

double LibperReplay::alpha() const {
    per_replay_statistics statistics;
    expect_ok(per_replay_get_statistics(replay_.get(), &statistics, sizeof statistics));
    return statistics.alpha;
}

}  // namespace bench
