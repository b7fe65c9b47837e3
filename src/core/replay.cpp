#include "core/replay.h"

#include <unwind.h>

#include <algorithm>
#include <cinttypes>
#include <mutex>
#include <utility>

#include "backend/batch_arrays.h"
#include "backend/replay_options.h"
#include "cpu/replay/replay_backend.h"
#include "cuda/runtime/create.h"
#include "file/checkpoint_file.h"
#include "file/checkpoint_options.h"
#include "rows/arguments.h"
#include "rows/cast.h"
#include "rows/error.h"

namespace per {
namespace {

constexpr int64_t largest_batch = int64_t{1} << 24;
constexpr int64_t most_epochs = int64_t{1} << 24;

const per_replay_options& checked(const per_replay_options& options) {
    check_replay_options(options);
    return options;
}

std::unique_ptr<ReplayBackend> create_backend(const per_replay_options& options, const Fields& fields) {
    if (options.device == PER_CPU) return std::make_unique<cpu::CpuReplayBackend>(options, fields);
    return cuda::create_replay_backend(options, fields);
}

void require_array(const char* name, const per_array& array) {
    if (array.data == nullptr) throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is missing", name);
}

// A number for each step and environment, that may be left out or not.
void check_flags(const char* name, const per_array& array, const Entries& entries) {
    if (array.data != nullptr) check_array(name, array, entries);
}

void check_numbers(const char* name, const per_array& array, const Entries& entries) {
    if (array.data == nullptr) return;
    check_array(name, array, entries);
    check_cast(name, array.dtype, PER_FLOAT32);
}

GivenArray checked_field(const std::string& name, const per_array& array, const Field& field, Entries entries) {
    require_array(name.c_str(), array);
    entries.shape = field.shape;
    if (field.is_observation()) entries.stack = field.stack;
    const GivenArray given = {array, check_array(name, array, entries)};
    check_cast(name, array.dtype, field.dtype);
    return given;
}

void check_batch_size(int64_t batch_size) {
    check_range("batch_size", batch_size, 1, largest_batch);
}

// The thread may end in a function of the caller: Python before 3.14 ends threads that way when the interpreter exits.
// pthread_exit() then unwinds the stack by the system's libgcc, and the frames of this library answer by the libgcc that
// is linked into it, which aborts unless it has looked at a stack before.
void prepare_for_thread_exit() {
    static const _Unwind_Reason_Code ready =
        _Unwind_Backtrace([](_Unwind_Context*, void*) { return _URC_NORMAL_STOP; }, nullptr);
    static_cast<void>(ready);
}

void ask_for_rewards(const per_hindsight_options& hindsight, Relabelling& relabelling) {
    const int64_t count = relabelling.n_steps();
    if (count == 0) return;
    prepare_for_thread_exit();
    const int32_t answer =
        hindsight.reward(hindsight.context, count, relabelling.achieved.data(), relabelling.goals.data(),
                         relabelling.rewards.data(), relabelling.terminated.data());
    if (answer != 0) throw Error(PER_ERROR_CALLBACK, "reward returned %" PRId32 ": 0 is success", answer);
}

void check_env_id(int64_t i, int64_t env, int64_t n_envs) {
    if (env < 0 || env >= n_envs) throw_out_of_range("env_ids", i, env, 0, n_envs - 1);
}

}  // namespace

Replay::Replay(const per_replay_options& options)
    : fields_(checked(options)),
      options_(resolve_replay_options(options, fields_)),
      backend_(create_backend(options_, fields_)),
      given_fields_(static_cast<size_t>(fields_.count())),
      given_next_fields_(static_cast<size_t>(fields_.count())),
      last_call_of_(static_cast<size_t>(options.n_envs), 0) {
    given_env_ids_.reserve(last_call_of_.size());
}

Replay::Replay(CheckpointReader& reader, int32_t device, int32_t device_index)
    : Replay(CheckpointOptions(reader).options(device, device_index)) {
    backend_->restore(reader);
    reader.finish();
}

void Replay::check_arrays(const per_batch& batch) const {
    for_each_array(batch, fields_,
                   [](const char* name, const void* array, std::size_t size) { check_aligned(name, array, size); });
}

// For rows that were not drawn.
void Replay::check_plain(const per_batch& batch) const {
    check_arrays(batch);
    if (batch.weights == nullptr && batch.probabilities == nullptr && batch.mask == nullptr) return;
    throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is not NULL: rows by id have none",
                batch.weights != nullptr         ? "weights"
                : batch.probabilities != nullptr ? "probabilities"
                                                 : "mask");
}

// Whether the arrays are those of what is drawn: transitions or sequences.
void Replay::check_drawn(const per_batch& batch) const {
    check_arrays(batch);
    if (options_.sequence_length == 0) {
        if (batch.mask == nullptr) return;
        throw Error(PER_ERROR_INVALID_ARGUMENT, "mask is not NULL: the buffer draws single transitions");
    }
    for (int64_t i = 0; i < fields_.count() && batch.next_fields != nullptr; ++i)
        if (batch.next_fields[i] != nullptr)
            throw Error(PER_ERROR_INVALID_ARGUMENT,
                        "next_fields[%" PRId64 "] is not NULL: sequences have next observations among their own", i);
}

// -------------------------------------------------------------------------------------------------------------- add

void Replay::add(const per_steps& steps, int64_t* ids_out, void* stream) {
    const std::unique_lock guard(lock_);
    const ReplaySteps checked = checked_steps(steps);
    if (checked.length > 0 && checked.n_envs > 0) backend_->add(checked, ids_out, stream);
}

// Adds the i-th environment of the call to given_env_ids_; false if it is there already.
bool Replay::take_environment(int64_t i, int64_t env) {
    check_env_id(i, env, options_.n_envs);
    uint64_t& last = last_call_of_[static_cast<size_t>(env)];
    if (last == n_calls_with_env_ids_) return false;
    last = n_calls_with_env_ids_;
    given_env_ids_.push_back(env);
    return true;
}

void Replay::check_environments(const per_steps& steps) {
    ++n_calls_with_env_ids_;
    given_env_ids_.clear();
    for (int64_t j = 0; j < steps.n_envs; ++j) {
        const int64_t env = read_once(steps.env_ids[j]);
        if (!take_environment(j, env))
            throw Error(PER_ERROR_INVALID_ARGUMENT, "env_ids[%" PRId64 "] is %" PRId64 ": given twice", j, env);
    }
}

// Whether the observations after the steps are given: all of them or none.
bool Replay::check_next_fields(const per_steps& steps) const {
    const Field* given = nullptr;
    const Field* missing = nullptr;
    for (int64_t i = 0; i < fields_.count(); ++i) {
        if (!fields_[i].is_observation()) continue;
        const bool has_data = steps.next_fields != nullptr && steps.next_fields[i].data != nullptr;
        (has_data ? given : missing) = &fields_[i];
    }
    if (given != nullptr && missing != nullptr)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is missing: %s is given, and all or none are allowed",
                    missing->next_name.c_str(), given->next_name.c_str());
    if (given == nullptr && options_.store_next_observation)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is missing: with store_next_observation every step needs it",
                    missing->next_name.c_str());
    return given != nullptr;
}

ReplaySteps Replay::checked_steps(const per_steps& steps) {
    if (steps.length < 0) throw Error(PER_ERROR_INVALID_ARGUMENT, "length is %" PRId64 ": must be >= 0", steps.length);
    ReplaySteps checked = {};
    checked.length = steps.length;
    checked.n_envs = options_.n_envs;
    if (steps.env_ids != nullptr) {
        check_aligned("env_ids", steps.env_ids);
        check_count("n_envs", steps.n_envs, 0);
        if (steps.n_envs > options_.n_envs)
            throw Error(PER_ERROR_INVALID_ARGUMENT,
                        "env_ids has %" PRId64 " entries: at most the %" PRId64
                        " environments of the buffer are allowed",
                        steps.n_envs, options_.n_envs);
        check_environments(steps);
        checked.n_envs = steps.n_envs;
        checked.env_ids = given_env_ids_.data();
    }
    if (checked.length == 0 || checked.n_envs == 0) return checked;
    int64_t n_entries;
    if (__builtin_mul_overflow(checked.length, checked.n_envs, &n_entries) || n_entries > largest_count)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "length is %" PRId64 ": too many steps", steps.length);

    if (steps.fields == nullptr) throw Error(PER_ERROR_INVALID_ARGUMENT, "fields is NULL");
    const Entries entries = {checked.length, checked.n_envs, {}, 1};
    const bool has_next = check_next_fields(steps);
    for (int64_t i = 0; i < fields_.count(); ++i) {
        const Field& field = fields_[i];
        const bool takes_default = steps.fields[i].data == nullptr && field.has_default();
        given_fields_[static_cast<size_t>(i)] =
            takes_default ? GivenArray{{}, 1} : checked_field(field.name, steps.fields[i], field, entries);
        if (has_next && field.is_observation())
            given_next_fields_[static_cast<size_t>(i)] =
                checked_field(field.next_name, steps.next_fields[i], field, entries);
    }
    require_array("reward", steps.reward);
    require_array("terminated", steps.terminated);
    require_array("truncated", steps.truncated);
    check_numbers("reward", steps.reward, entries);
    check_flags("terminated", steps.terminated, entries);
    check_flags("truncated", steps.truncated, entries);
    check_flags("mask", steps.mask, entries);
    check_flags("next_mask", steps.next_mask, entries);
    check_numbers("priorities", steps.priorities, entries);
    check_numbers("td_errors", steps.td_errors, entries);
    if (steps.priorities.data != nullptr && steps.td_errors.data != nullptr)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "priorities and td_errors are both given: at most one is allowed");

    checked.fields = given_fields_.data();
    checked.next_fields = has_next ? given_next_fields_.data() : nullptr;
    checked.reward = steps.reward;
    checked.terminated = steps.terminated;
    checked.truncated = steps.truncated;
    checked.mask = steps.mask;
    checked.next_mask = steps.next_mask;
    checked.priorities = steps.priorities;
    checked.td_errors = steps.td_errors;
    return checked;
}

void Replay::cut(int64_t count, const int64_t* env_ids, void* stream) {
    const std::unique_lock guard(lock_);
    if (env_ids == nullptr) return backend_->cut(options_.n_envs, nullptr, stream);
    ++n_calls_with_env_ids_;
    given_env_ids_.clear();
    for (int64_t i = 0; i < count; ++i) take_environment(i, read_once(env_ids[i]));
    backend_->cut(static_cast<int64_t>(given_env_ids_.size()), given_env_ids_.data(), stream);
}

// ----------------------------------------------------------------------------------------------------- rows in and out

void Replay::sample(const per_sample_options& options, int64_t batch_size, const per_batch& batch, void* stream) {
    const std::unique_lock guard(lock_);
    check_drawn(batch);
    ReplaySample sample = checked_sample(options, batch_size);
    sample.batch = batch;
    backend_->sample(sample, stream);
}

ReplaySample Replay::checked_sample(const per_sample_options& options, int64_t batch_size) const {
    check_batch_size(batch_size);
    ReplaySample sample = resolve_sample_options(options, options_);
    sample.batch_size = batch_size;
    return sample;
}

void Replay::sample_hindsight(const per_sample_options& options, const per_hindsight_options& hindsight,
                              int64_t batch_size, const per_batch& batch, void* stream) {
    std::unique_lock guard(lock_);
    check_drawn(batch);
    const ReplayHindsight resolved = resolve_hindsight_options(hindsight, fields_);
    ReplaySample sample = checked_sample(options, batch_size);
    sample.batch = batch;
    // Given back whatever happens, with the memory that it has by then: the lock is held wherever this ends.
    struct Loan {
        std::vector<std::unique_ptr<Relabelling>>& spare;
        std::unique_ptr<Relabelling> relabelling;
        ~Loan() { spare.push_back(std::move(relabelling)); }
    };
    const Loan loan = {spare_relabellings_, take_relabelling()};
    Relabelling& relabelling = *loan.relabelling;
    backend_->sample_hindsight(sample, resolved, relabelling, stream);
    guard.unlock();
    try {
        ask_for_rewards(hindsight, relabelling);
    } catch (...) {
        guard.lock();
        backend_->take_back_draw(relabelling);
        throw;
    }
    guard.lock();
    backend_->relabel(relabelling, batch, stream);
}

std::unique_ptr<Relabelling> Replay::take_relabelling() {
    if (spare_relabellings_.empty()) {
        spare_relabellings_.reserve(n_relabellings_ + 1);  // giving it back must not fail
        spare_relabellings_.push_back(std::make_unique<Relabelling>());
        ++n_relabellings_;
    }
    std::unique_ptr<Relabelling> relabelling = std::move(spare_relabellings_.back());
    spare_relabellings_.pop_back();
    return relabelling;
}

int64_t Replay::steps_left_out(int64_t n_steps) const {
    const int64_t length = options_.sequence_length;
    if (length == 0)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "n_steps is %" PRId64 ": this buffer draws single transitions",
                    n_steps);
    if (n_steps == length) return options_.burn_in;
    if (n_steps == options_.burn_in + length) return 0;
    throw Error(PER_ERROR_INVALID_ARGUMENT,
                "n_steps is %" PRId64 ": allowed are %" PRId64 " and, with the burn-in, %" PRId64, n_steps, length,
                options_.burn_in + length);
}

void Replay::update(const ReplayUpdate& update, void* stream) {
    const std::unique_lock guard(lock_);
    const int64_t steps = std::max<int64_t>(1, options_.burn_in + options_.sequence_length);
    int64_t n_errors;
    if (__builtin_mul_overflow(update.n_critics, update.count, &n_errors) ||
        __builtin_mul_overflow(n_errors, steps, &n_errors) || n_errors > largest_count)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "n_critics is %" PRId64 ": td_errors of that many for %" PRId64 " ids fit into no memory",
                    update.n_critics, update.count);
    backend_->update(update, stream);
}

void Replay::priorities(int64_t count, const int64_t* ids, float* priorities_out, void* stream) {
    const std::unique_lock guard(lock_);
    backend_->priorities(count, ids, priorities_out, stream);
}

void Replay::get(int64_t count, const int64_t* ids, const per_batch& batch, void* stream) {
    const std::unique_lock guard(lock_);
    check_plain(batch);
    backend_->get(count, ids, batch, stream);
}

void Replay::set(int64_t count, const int64_t* ids, const per_array* fields, void* stream) {
    const std::unique_lock guard(lock_);
    for (int64_t i = 0; i < fields_.count(); ++i) {
        const Field& field = fields_[i];
        if (fields[i].data == nullptr) continue;
        if (field.is_observation())
            throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is given: rows share observations, which cannot be set",
                        field.name.c_str());
        checked_field(field.name, fields[i], field, {1, count, {}, 1});
    }
    backend_->set(count, ids, fields, stream);
}

void Replay::clear(void* stream) {
    const std::unique_lock guard(lock_);
    backend_->clear(stream);
}

// ------------------------------------------------------------------------------------------------------ for a loader

BatchShape Replay::shape_of_draws(const per_sample_options& options, int64_t batch_size) {
    const std::unique_lock guard(lock_);
    const ReplaySample sample = checked_sample(options, batch_size);
    const bool has_sequences = options_.sequence_length > 0;
    return {batch_size, has_sequences ? options_.burn_in + options_.sequence_length : 0, sample.n_step};
}

void Replay::begin_draws(const per_sample_options& options, int64_t batch_size) {
    const std::unique_lock guard(lock_);
    if (loader_process_ == HandleLock::process())
        throw Error(PER_ERROR_BUSY, "the buffer has a loader already, which must end first");
    backend_->end_ahead();  // of a loader that a fork left behind
    backend_->begin_ahead(checked_sample(options, batch_size));
    loader_process_ = HandleLock::process();
    lock_.begin_draws();
}

void Replay::draw_ahead(const per_sample_options& options, int64_t batch_size, const OpenSlot& slot) {
    const std::unique_lock guard(lock_.unordered());
    ReplaySample sample = checked_sample(options, batch_size);  // settings may have changed since it was asked for
    sample.batch = slot.batch;
    sample.is_ahead = true;
    sample.outcome_out = slot.outcome;
    backend_->sample(sample, slot.stream);
}

// On a device handing out is a call like others. On the CPU it waits for none, so that a batch which is there is not
// kept back by the draw of the next.
std::unique_lock<HandleLock> Replay::try_lock_to_hand_out() {
    if (device() == PER_CPU) return {};
    return std::unique_lock(lock_.unordered(), std::try_to_lock);
}

void Replay::wait_for_call() {
    const std::unique_lock guard(lock_.unordered());
}

void Replay::end_draws() {
    const std::unique_lock guard(lock_.unordered());
    loader_process_ = 0;
    backend_->end_ahead();
}

// ------------------------------------------------------------------------------------------------------- on-policy

void Replay::start_epochs(int64_t n_epochs, int64_t batch_size, bool drop_last, EpochWalk& walk, void* stream) {
    const std::unique_lock guard(lock_);
    check_range("n_epochs", n_epochs, 1, most_epochs);
    check_batch_size(batch_size);
    std::vector<int64_t> ids = backend_->live_ids(stream);
    const int64_t n = static_cast<int64_t>(ids.size());
    const bool of_sequences = options_.sequence_length > 0;
    if (n == 0) throw_empty(of_sequences);
    if (drop_last && batch_size > n)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "batch_size is %" PRId64 ": with drop_last at most the %" PRId64 " live %ss are allowed",
                    batch_size, n, drawn_noun(of_sequences));
    const uint64_t first_step = backend_->reserve_draws(n_epochs, stream);
    walk.start(std::move(ids), n_epochs, batch_size, drop_last, options_.n_step, options_.seed, first_step);
}

int64_t Replay::next_of_epochs(EpochWalk& walk, const per_batch& batch, void* stream) {
    const std::unique_lock guard(lock_);
    check_drawn(batch);
    const int64_t count = walk.count();
    if (count == 0) return 0;
    // Arrays of sequences have been made for the n_step of the time.
    if (options_.sequence_length > 0 && options_.n_step != walk.n_step())
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "n_step is %" PRId64 ": it was %" PRId64 " when the walk over sequences began", options_.n_step,
                    walk.n_step());
    const float probability = static_cast<float>(1.0 / static_cast<double>(walk.transitions()));
    backend_->take(count, walk.ids(), probability, batch, stream);
    walk.advance();
    return count;
}

int64_t Replay::bootstraps(int64_t capacity, const per_batch& batch, void* stream) {
    const std::unique_lock guard(lock_);
    check_plain(batch);
    return backend_->bootstraps(capacity, batch, stream);
}

void Replay::check_number_field(const char* argument, int64_t i) const {
    check_range(argument, i, 0, fields_.count() - 1);
    const Field& field = fields_[i];
    if (field.dtype != PER_FLOAT32 || !field.shape.empty() || field.role != PER_ROLE_PLAIN)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "%s is \"%s\": must be a plain float32 field with one number a step",
                    argument, field.name.c_str());
}

void Replay::advantages(const ReplayAdvantages& advantages, void* stream) {
    const std::unique_lock guard(lock_);
    check_number_field("value_field", advantages.value_field);
    check_number_field("advantage_field", advantages.advantage_field);
    if (advantages.return_field != -1) check_number_field("return_field", advantages.return_field);
    const auto check_differ = [&](const char* argument, int64_t i, const char* other_argument, int64_t other) {
        if (i == other)
            throw Error(PER_ERROR_INVALID_ARGUMENT, "%s and %s are both \"%s\": must be two fields", argument,
                        other_argument, fields_[i].name.c_str());
    };
    check_differ("advantage_field", advantages.advantage_field, "value_field", advantages.value_field);
    check_differ("return_field", advantages.return_field, "value_field", advantages.value_field);
    check_differ("return_field", advantages.return_field, "advantage_field", advantages.advantage_field);
    if (!(advantages.lambda >= 0.0 && advantages.lambda <= 1.0))
        throw Error(PER_ERROR_INVALID_ARGUMENT, "lambda is %g: allowed are 0 .. 1", advantages.lambda);
    backend_->advantages(advantages, stream);
}

// -------------------------------------------------------------------------------------------------------- settings

void Replay::set_alpha(double alpha, void* stream) {
    const std::unique_lock guard(lock_);
    check_alpha(alpha);
    backend_->set_alpha(alpha, stream);
    options_.alpha = alpha;
}

void Replay::set_beta(double beta, void* stream) {
    const std::unique_lock guard(lock_);
    check_beta(beta);
    backend_->set_beta(beta, stream);
    options_.beta = beta;
    options_.beta_steps = 0;
}

void Replay::set_gamma(double gamma, void* stream) {
    const std::unique_lock guard(lock_);
    check_gamma(gamma);
    backend_->set_gamma(gamma, stream);
    options_.gamma = gamma;
}

void Replay::set_n_step(int64_t n_step, void* stream) {
    const std::unique_lock guard(lock_);
    check_n_step(n_step, options_, fields_);
    backend_->set_n_step(n_step, stream);
    options_.n_step = n_step;
}

per_replay_options Replay::describe() {
    const std::unique_lock guard(lock_);
    return options_;
}

int64_t Replay::live() {
    const std::unique_lock guard(lock_);
    return backend_->live();
}

std::vector<int64_t> Replay::live_ids() {
    const std::unique_lock guard(lock_);
    return backend_->live_ids(nullptr);
}

per_replay_statistics Replay::statistics() {
    const std::unique_lock guard(lock_);
    per_replay_statistics statistics = default_statistics;
    backend_->statistics(statistics);
    statistics.capacity = options_.capacity;
    return statistics;
}

void Replay::synchronize(void* stream) {
    const std::unique_lock guard(lock_);
    backend_->synchronize(stream);
}

void Replay::save(const char* path) {
    const std::unique_lock guard(lock_);
    CheckpointWriter writer(path);
    write_options(writer, options_);
    backend_->save(writer);
    writer.commit();
}

}  // namespace per
