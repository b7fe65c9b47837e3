#include "core/replay.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <mutex>
#include <utility>

#include "backend/create.h"
#include "backend/replay_options.h"
#include "base/arguments.h"
#include "base/error.h"
#include "core/checks.h"
#include "file/caller_stream.h"
#include "file/checkpoint_file.h"
#include "file/checkpoint_folder.h"
#include "file/checkpoint_options.h"
#include "rows/cast.h"
#include "rules/limits.h"
#include "rules/mass.h"
#include "system/thread.h"

namespace per {
namespace {

const per_replay_options& checked(const per_replay_options& options) {
    check_replay_options(options);
    return options;
}

// The options in a file are checked like those of a caller. If they are not allowed, the file is damaged.
const CheckpointOptions& checked(const CheckpointOptions& saved, const CheckpointReader& reader) {
    try {
        const per_replay_options options = saved.options(default_load_options);
        check_replay_options(options);
        resolve_replay_options(options, Fields(options));
    } catch (const Error& error) {
        if (error.status() == PER_ERROR_INVALID_ARGUMENT) reader.refuse(error.what());
        if (error.status() == PER_ERROR_UNSUPPORTED) reader.refuse_option(error.what());
        throw;
    }
    return saved;
}

std::unique_ptr<ReplayBackend> create_backend(const per_replay_options& options, const Fields& fields) {
    try {
        if (options.device == PER_CPU) return cpu::create_replay_backend(options, fields);
        return cuda::create_replay_backend(options, fields);
    } catch (const Error& error) {
        if (error.status() != PER_ERROR_OUT_OF_MEMORY) throw;
        throw Error(PER_ERROR_OUT_OF_MEMORY,
                    "%s; capacity is %" PRId64 ": fewer rows, or fields of smaller dtypes, take less", error.what(),
                    options.capacity);
    }
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

}  // namespace

Replay::Replay(const per_replay_options& options, WithoutRowFile)
    : fields_(checked(options)),
      storage_(options.memory.storage != nullptr ? options.memory.storage : ""),
      options_(resolve_replay_options(options, fields_)),
      step_checks_(fields_, options_),
      backend_(create_backend(options_, fields_)),
      limiter_(options_.rate_limit) {
    if (options.memory.storage == nullptr) return;
    options_.memory.storage = storage_.c_str();
    lock_.stay_in_process();
}

Replay::Replay(const per_replay_options& options) : Replay(options, WithoutRowFile()) {
    if (options.memory.storage != nullptr) backend_->row_file()->create(options.memory.storage_preallocated != 0);
}

// No row file is created before restore(), which may continue with that of the checkpoint: a new one would take disk
// space for nothing.
Replay::Replay(CheckpointReader& reader, const per_load_options& place)
    : Replay(checked(CheckpointOptions(reader), reader).options(place), WithoutRowFile()) {
    backend_->restore(reader);
    if (limiter_.is_on()) limiter_.restore(reader);
    reader.finish();
    if (place.memory.storage_preallocated != 0) backend_->row_file()->preallocate();
}

Replay::~Replay() {
    if (save_) save_->finish();
}

// -------------------------------------------------------------------------------------------------------------- add

void Replay::add(const per_steps& steps, int64_t* ids_out, void* stream) {
    const std::unique_lock guard(lock_);
    ReplaySteps checked = step_checks_.steps(steps);
    if (checked.length == 0 || checked.n_envs == 0) return;
    const int64_t n = limiter_.is_on() ? n_unmasked(checked) : 0;
    limiter_.check_add(n);
    add_checked(checked, n, ids_out, stream);
}

int64_t Replay::add_in_turn(per_steps steps, std::span<const int64_t> step_sizes, const Deadline& locked_by,
                            const Deadline& allowed_by, const std::atomic<bool>& ends) {
    const RequestBell::Haste haste(lock_.draw_bell());  // the wait may be for draws that are asked for meanwhile
    std::unique_lock guard(lock_, std::defer_lock);
    lock_in_time(guard, locked_by);
    limiter_.wait_to_add(guard, step_sizes.front(), allowed_by, [&] { return ends.load(); });
    const bool is_limited = !ends;
    if (is_limited) limiter_.check_add(step_sizes.front());
    int64_t n = 0;
    steps.length = 0;
    for (const int64_t size : step_sizes) {
        if (is_limited && !limiter_.allows_add(n + size)) break;
        n += size;
        ++steps.length;
    }
    ReplaySteps checked = step_checks_.steps(steps);
    checked.are_in_host_memory = true;
    add_checked(checked, n, nullptr, nullptr);
    return steps.length;
}

void Replay::add_checked(const ReplaySteps& steps, int64_t n_limited, int64_t* ids_out, void* stream) {
    backend_->add(steps, ids_out, stream);
    limiter_.count_added(n_limited);
    ++n_changes_;
}

// Returns the number of steps that the mask selects, if the host can read it; otherwise the number of all steps. The
// mask is replaced by a copy, so that the steps counted are the steps added.
int64_t Replay::n_unmasked(ReplaySteps& steps) {
    const int64_t n = steps.length * steps.n_envs;
    if (steps.mask.data == nullptr || device() != PER_CPU) return n;
    if (mask_.size() < static_cast<std::size_t>(n)) mask_.resize(static_cast<std::size_t>(n));
    cast_flags("mask", steps.mask, mask_.data(), {n, 1});
    steps.mask = {mask_.data(), nullptr, 0, PER_BOOL, nullptr};
    return std::count(mask_.begin(), mask_.begin() + n, uint8_t{1});
}

void Replay::cut(int64_t count, const int64_t* env_ids, const Deadline& deadline, void* stream) {
    std::unique_lock guard(lock_, std::defer_lock);
    lock_in_time(guard, deadline);
    if (env_ids == nullptr) {
        backend_->cut(options_.n_envs, nullptr, stream);
    } else {
        const std::span<const int64_t> environments = step_checks_.environments(count, env_ids, true);
        backend_->cut(static_cast<int64_t>(environments.size()), environments.data(), stream);
    }
    ++n_changes_;
}

// ----------------------------------------------------------------------------------------------------- rows in and out

void Replay::sample(const per_sample_options& options, int64_t batch_size, const per_batch& batch, void* stream) {
    std::unique_lock guard(lock_);
    check_drawn_batch(batch, fields_, options_);
    ReplaySample sample = resolve_sample_options(options, batch_size, options_);
    sample.batch = batch;
    if (options.hindsight != nullptr) return sample_hindsight(guard, sample, *options.hindsight, stream);
    limiter_.check_draw(batch_size);
    backend_->sample(sample, stream);
    count_drawn(batch_size);
}

void Replay::get_windows(const per_sample_options& options, int64_t count, const BatchRows& rows,
                         const per_batch& batch, void* stream) {
    std::unique_lock guard(lock_);
    check_drawn_batch(batch, fields_, options_);
    ReplaySample sample = resolve_windows(options, count, rows, options_);
    sample.batch = batch;
    if (options.hindsight != nullptr) return sample_hindsight(guard, sample, *options.hindsight, stream);
    if (count > 0) backend_->sample(sample, stream);
}

// A draw is taken back if its rewards or its relabelling fail. With max_times_sampled the rate limiter counts it all
// the same: transitions that it has used up stay used up, and adds would otherwise wait for draws for which nothing is
// left.
void Replay::sample_hindsight(std::unique_lock<OrderedLock>& guard, const ReplaySample& sample,
                              const per_hindsight_options& hindsight, void* stream) {
    const ReplayHindsight resolved = resolve_hindsight_options(hindsight, fields_);
    // A reward of 1 may end a window earlier, at an observation of another length.
    if (options_.sequence_length == 0 && sample.n_step > 1 && sample.batch.next_fields != nullptr)
        for (int64_t i = 0; i < fields_.count(); ++i)
            if (fields_[i].is_observation() && fields_[i].is_ragged() && sample.batch.next_fields[i] != nullptr)
                throw Error(PER_ERROR_UNSUPPORTED,
                            "%s is not NULL: hindsight with n_step %" PRId64 " takes no observations of any length",
                            fields_[i].next_name.c_str(), sample.n_step);
    if (sample.batch_size == 0) return;
    // Lends memory for the relabelling, and puts it back when this scope ends, even by an exception. The lock is held
    // then.
    struct Loan {
        std::list<Relabelling>& spare;
        std::list<Relabelling> lent;
        ~Loan() { spare.splice(spare.begin(), lent); }
    };
    if (spare_relabellings_.empty()) spare_relabellings_.emplace_back();
    Loan loan = {spare_relabellings_, {}};
    loan.lent.splice(loan.lent.begin(), loan.spare, loan.spare.begin());
    Relabelling& relabelling = loan.lent.front();
    const int64_t n_drawn = sample.is_drawn() ? sample.batch_size : 0;
    if (n_drawn > 0) limiter_.check_draw(n_drawn);
    relabelling.is_drawn = false;
    try {
        backend_->sample_hindsight(sample, resolved, relabelling, stream);
    } catch (...) {
        if (relabelling.is_drawn && options_.max_times_sampled > 0) count_drawn(n_drawn);
        throw;
    }
    count_drawn(n_drawn);
    const int64_t n_clears = limiter_.n_clears();
    guard.unlock();
    try {
        ask_for_rewards(hindsight, relabelling);
        guard.lock();
        backend_->relabel(relabelling, sample.batch, stream);
    } catch (...) {
        if (!guard.owns_lock()) guard.lock();
        if (options_.max_times_sampled == 0) limiter_.take_back_drawn(n_drawn, n_clears);
        backend_->take_back_draw(relabelling);
        throw;
    }
}

// Counts drawn transitions for the rate limiter. If the draw may use transitions up, it also counts as a call that may
// change later draws.
void Replay::count_drawn(int64_t n) {
    limiter_.count_drawn(n);
    if (n > 0 && options_.max_times_sampled > 0) ++n_changes_;
}

void Replay::update(const per_priorities& priorities, const Deadline& deadline, void* stream) {
    std::unique_lock guard(lock_, std::defer_lock);
    lock_in_time(guard, deadline);
    const ReplayUpdate update = resolve_priorities(priorities, options_);
    if (update.count == 0) return;
    backend_->update(update, stream);
    ++n_changes_;
}

void Replay::get(int64_t count, const int64_t* ids, const per_batch& batch, void* stream) {
    const std::unique_lock guard(lock_);
    check_batch_by_id(batch, fields_, options_);
    backend_->get(count, ids, batch, stream);
}

void Replay::set(int64_t count, const int64_t* ids, const per_array* fields, void* stream) {
    const std::unique_lock guard(lock_);
    // A copy, since other threads may write to the caller's.
    fields_set_.assign(fields, fields + fields_.count());
    check_fields_set(count, fields_set_.data(), fields_, device());
    backend_->set(count, ids, fields_set_.data(), stream);
}

void Replay::clear(void* stream) {
    const std::unique_lock guard(lock_);
    backend_->clear(stream);
    limiter_.clear();
    ++n_changes_;
}

// ------------------------------------------------------------------------------------------------------ for a loader

BatchShape Replay::shape_of_draws(const per_sample_options& options, int64_t batch_size) {
    const std::unique_lock guard(lock_);
    const ReplaySample sample = resolve_sample_options(options, batch_size, options_);
    const bool has_sequences = options_.sequence_length > 0;
    return {batch_size, has_sequences ? options_.burn_in + options_.sequence_length : 0, sample.n_step,
            options_.keep_times_sampled != 0};
}

void Replay::begin_draws(const per_sample_options& options, int64_t batch_size, FrameGather* gather) {
    const std::unique_lock guard(lock_);
    if (loader_process_ == ProcessMark::current())
        throw Error(PER_ERROR_BUSY, "the buffer has a loader already, which must end first");
    limiter_.check_draw_size(batch_size);
    backend_->end_ahead();  // of a loader that a fork left behind
    backend_->begin_ahead(resolve_sample_options(options, batch_size, options_), gather);
    loader_process_ = ProcessMark::current();
    lock_.begin_draws();
}

void Replay::draw_ahead(const per_sample_options& options, int64_t batch_size, const OpenSlot& slot) {
    const std::unique_lock guard(lock_.unordered());
    // Settings may have changed since the draw was asked for.
    ReplaySample sample = resolve_sample_options(options, batch_size, options_);
    sample.batch = slot.batch;
    std::get<DrawnRows>(sample.rows).ahead = DrawAhead{slot.outcome, slot.gather};
    limiter_.check_draw(batch_size);
    backend_->sample(sample, slot.stream);
    if (slot.gather != nullptr) slot.gather->queue();
    count_drawn(batch_size);
}

// On a device, handing out needs the lock, like other calls. On the CPU it needs none, so that a finished batch does
// not wait for the draw of the next.
std::unique_lock<ReservedLock> Replay::try_lock_to_hand_out() {
    if (device() == PER_CPU) return {};
    return std::unique_lock(lock_.unordered(), std::try_to_lock);
}

void Replay::wait_for_call(const Deadline& deadline) {
    const std::unique_lock guard(lock_.unordered(), deadline.time());
}

bool Replay::allows_draw_or_calls(int64_t batch_size, std::function<void()> listener, const Deadline& deadline) {
    const std::unique_lock guard(lock_, deadline.time());
    return !guard.owns_lock() || limiter_.allows_draw_or_calls(batch_size, std::move(listener));
}

void Replay::stop_listening() {
    const std::unique_lock guard(lock_.unordered().unreserved());
    limiter_.stop_listening();
}

// Works even while the buffer is saved, since a checkpoint contains nothing about loaders.
void Replay::end_draws(uint64_t process) {
    const std::unique_lock guard(lock_.unordered().unreserved());
    if (loader_process_ != process) return;  // in a forked child another loader has begun
    loader_process_ = 0;
    backend_->end_ahead();
}

// ------------------------------------------------------------------------------------------------------- on-policy

void Replay::start_epochs(int64_t n_epochs, int64_t batch_size, bool drop_last, Epochs& epochs, void* stream) {
    const std::unique_lock guard(lock_);
    check_range("n_epochs", n_epochs, 1, max_n_epochs);
    check_range("batch_size", batch_size, 1, max_batch_size);
    std::vector<int64_t> ids = backend_->live_ids(stream);
    const int64_t n = static_cast<int64_t>(ids.size());
    const bool of_sequences = options_.sequence_length > 0;
    if (n == 0) {
        per_replay_statistics statistics = default_statistics;
        backend_->statistics(statistics);
        throw_empty(of_sequences, options_.n_step, statistics.added);
    }
    if (drop_last && batch_size > n)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "batch_size is %" PRId64 ": with drop_last at most the %" PRId64 " live %ss are allowed",
                    batch_size, n, drawn_noun(of_sequences));
    const uint64_t first_batch = backend_->reserve_batches(n_epochs, stream);
    epochs.start(std::move(ids), n_epochs, batch_size, drop_last, options_.n_step, options_.seed, first_batch);
}

int64_t Replay::next_of_epochs(Epochs& epochs, const per_batch& batch, void* stream) {
    const std::unique_lock guard(lock_);
    check_drawn_batch(batch, fields_, options_);
    const int64_t count = epochs.count();
    if (count == 0) return 0;
    // The arrays of sequences were made for the earlier n_step.
    if (options_.sequence_length > 0 && options_.n_step != epochs.n_step())
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "n_step is %" PRId64 ": it was %" PRId64 " when the epochs over sequences began", options_.n_step,
                    epochs.n_step());
    // Each transition comes equally often, as in a uniform draw.
    ReplaySample sample = {};
    sample.batch_size = count;
    sample.n_step = options_.n_step;
    sample.prioritization = PER_UNIFORM;
    sample.normalize_weights = PER_NONE;
    sample.batch = batch;
    sample.rows = RowsOfEpoch{epochs.ids(), epochs.transitions()};
    backend_->sample(sample, stream);
    epochs.advance();
    return count;
}

int64_t Replay::bootstraps(int64_t capacity, const per_batch& batch, void* stream) {
    const std::unique_lock guard(lock_);
    check_batch_by_id(batch, fields_, options_);
    return backend_->bootstraps(capacity, batch, stream);
}

void Replay::advantages(const ReplayAdvantages& advantages, void* stream) {
    const std::unique_lock guard(lock_);
    check_advantages(advantages, fields_);
    backend_->advantages(advantages, stream);
}

// ---------------------------------------------------------------------------------------------------- rate limiter

void Replay::wait_to_add(int64_t count, const Deadline& deadline) {
    const RequestBell::Haste haste(lock_.draw_bell());
    std::unique_lock guard(lock_, std::defer_lock);
    lock_in_time(guard, deadline.with_a_moment());
    limiter_.wait_to_add(guard, count, deadline, [] { return false; });
    limiter_.check_add(count);
}

void Replay::wait_to_sample(int64_t batch_size, const Deadline& deadline) {
    std::unique_lock guard(lock_, std::defer_lock);
    lock_in_time(guard, deadline.with_a_moment());
    check_range("batch_size", batch_size, 1, max_batch_size);
    limiter_.check_draw_size(batch_size);
    limiter_.wait_to_draw(guard, batch_size, deadline);
    limiter_.check_draw(batch_size);
}

void Replay::stop_limiting() {
    const std::unique_lock guard(lock_);
    options_.rate_limit = {};
    limiter_.clear();
}

// -------------------------------------------------------------------------------------------------------- settings

void Replay::change_settings(const per_replay_settings& settings, void* stream) {
    const std::unique_lock guard(lock_);
    check_settings(settings, options_, fields_);
    if (settings.version != -1) check_range("version", settings.version, backend_->version(), INT32_MAX);
    backend_->change_settings(settings, stream);
    if (!std::isnan(settings.alpha)) options_.alpha = settings.alpha;
    if (!std::isnan(settings.beta)) {
        options_.beta = settings.beta;
        options_.beta_steps = 0;
    }
    if (!std::isnan(settings.gamma)) options_.gamma = settings.gamma;
    if (settings.n_step != 0) options_.n_step = settings.n_step;
    if (settings.save_compression != -1) options_.save_compression = settings.save_compression;
    if (!std::isnan(settings.alpha) || settings.n_step != 0 || settings.version != -1) ++n_changes_;
}

per_shard_summary Replay::summarize(int32_t measured_scale, int64_t measured_reference) {
    const std::unique_lock guard(lock_);
    if (measured_scale != PER_SCALE_AUTOMATIC) check_range("measured_scale", measured_scale, min_scale, max_scale);
    if (measured_reference != 0) check_reference("measured_reference", measured_reference, options_);
    per_shard_summary summary = default_summary;
    backend_->summarize({measured_scale, measured_reference}, options_.normalize_weights == PER_BUFFER_MAX, summary);
    summary.changes = n_changes_;
    return summary;
}

void Replay::set_scale(int32_t scale, int64_t reference) {
    const std::unique_lock guard(lock_);
    if (reference != 0) check_reference("reference", reference, options_);
    backend_->set_scale({scale, reference});
    ++n_changes_;
}

void Replay::raise_max_priority(float priority, void* stream) {
    const std::unique_lock guard(lock_);
    check_finite("priority", static_cast<double>(priority));
    backend_->raise_max_priority(priority, stream);
    ++n_changes_;
}

per_replay_options Replay::describe() {
    const std::unique_lock guard(lock_);
    return options_;
}

per_replay_statistics Replay::statistics() {
    const std::unique_lock guard(lock_);
    per_replay_statistics statistics = default_statistics;
    backend_->statistics(statistics);
    statistics.capacity = options_.capacity;
    return statistics;
}

void Replay::save(const char* path, const per_save_options& options, LateFree*& late_frees) {
    const std::unique_lock guard(lock_);
    late_frees_ = &late_frees;
    if (options.write == nullptr) {
        CheckpointWriter writer(path, level_of(options));
        return write_checkpoint(writer);
    }
    const WriteFunction write = {options.write, options.context};
    const auto write_unlocked = [&](const void* data, std::size_t size) {
        const ReservedLock::Reservation reservation(lock_.unordered());
        write.write(data, size);
    };
    CheckpointWriter writer(write_unlocked, level_of(options));
    write_checkpoint(writer);
}

bool Replay::free_after_save(LateFree& late) noexcept {
    if (!lock_.unordered().is_reserved_here()) return false;
    LateFree** end = late_frees_;
    while (*end != nullptr) end = &(*end)->next;
    *end = &late;
    return true;
}

// The directory is locked first: another process may hold it for long, and other calls on the buffer go on meanwhile.
int64_t Replay::checkpoint(const char* directory, const per_save_options& options) {
    lock_.check_usable();
    LockedFolder locked(directory, LockedFolder::Use::writing, options.timeout_ms);
    const std::unique_lock guard(lock_);
    FolderWriter folder(std::move(locked), level_of(options), backend_->row_file());
    CheckpointWriter writer(folder);
    write_checkpoint(writer);
    return folder.bytes_written();
}

std::shared_ptr<Save> Replay::start_save(const char* path, const per_save_options& options) {
    const std::unique_lock guard(lock_);
    if (save_ && save_->is_running())
        throw Error(PER_ERROR_BUSY, "a save of the buffer is running already, which must end first");
    const auto save = std::make_shared<Save>(path, level_of(options));
    save->start(options_, limiter_.counts(), backend_->snapshot(), lock_.unordered().unreserved());
    save_ = save;
    return save;
}

void Replay::write_checkpoint(CheckpointWriter& writer) {
    write_options(writer, options_);
    backend_->save(writer);
    if (limiter_.is_on()) write_rate_limiter(writer, limiter_.counts());
    writer.commit();
}

}  // namespace per
