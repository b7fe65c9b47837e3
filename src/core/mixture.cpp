#include "core/mixture.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cmath>
#include <memory_resource>
#include <new>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/arguments.h"
#include "base/error.h"
#include "core/checks.h"

namespace per {
namespace {

constexpr int64_t units_of_row = int64_t{1} << 32;
constexpr int64_t max_carry = int64_t{1} << 40;

// Returns an uninitialised array that lives as long as `memory`. Objects put into it are never destroyed.
template <class Value>
Value* new_array(std::size_t n, std::pmr::memory_resource& memory) {
    static_assert(std::is_trivially_destructible_v<Value>);
    return std::pmr::polymorphic_allocator<Value>(&memory).allocate(n);
}

// The rows of one source in a batch: `count` of them from row `first` on. The draw does not write weights and
// probabilities, which are those of the mixture. Arrays with rows of any length only tell their totals at first.
struct PartOfBatch {
    // The arrays of fields are in `memory`, which must outlive this object. Nothing is destroyed: by the end of the call
    // they are no longer in the cache.
    PartOfBatch(const per_sample_options& options, const per_batch& batch, const Fields& fields,
                const per_replay_options& buffer, int64_t first_row, int64_t n_rows, std::pmr::memory_resource& memory)
        : sample(resolve_sample_options(options, std::max<int64_t>(n_rows, 1), buffer)),
          first(first_row),
          count(n_rows),
          shape{n_rows, buffer.sequence_length > 0 ? buffer.burn_in + buffer.sequence_length : 0, sample.n_step} {
        per_batch& own = sample.batch;
        own = batch;
        own.weights = own.probabilities = nullptr;
        const auto advance_fields = [&](void* const*& arrays) {
            if (arrays == nullptr) return;
            void** const moved = new_array<void*>(static_cast<std::size_t>(fields.count()), memory);
            for (int64_t j = 0; j < fields.count(); ++j) {
                void* array = arrays[j];
                if (array != nullptr && fields[j].is_ragged())
                    array = new (new_array<per_ragged>(1, memory))
                        per_ragged{nullptr, nullptr, 0, static_cast<per_ragged*>(array)->padded_length, 0};
                else if (array != nullptr)
                    array = static_cast<std::byte*>(array) + first * bytes_of_place(fields[j], shape);
                moved[j] = array;
            }
            arrays = moved;
        };
        advance_fields(own.fields);
        advance_fields(own.next_fields);
        if (own.ids != nullptr) own.ids += first;
        for_each_number(own, [&](const char*, auto*& array, bool is_of_steps) {
            if (array != nullptr) array += first * shape.entries_of_place(is_of_steps);
        });
    }

    ReplaySample sample;
    const int64_t first;
    const int64_t count;
    const BatchShape shape;
};

// The arrays of a batch with rows of any length, to which the sources write one after the other.
class JoinedRows {
 public:
    // Copies each per_ragged of the batch, since other threads may write to the caller's.
    JoinedRows(const per_batch& batch, const Fields& fields) : fields_(fields), batch_(batch) {
        if (!fields.has_ragged()) return;
        arrays_.reserve(2 * static_cast<std::size_t>(fields.count()));
        if (batch.fields != nullptr) own_fields_.assign(batch.fields, batch.fields + fields.count());
        if (batch.next_fields != nullptr)
            own_next_fields_.assign(batch.next_fields, batch.next_fields + fields.count());
        for (int64_t i = 0; i < fields.count(); ++i) {
            const Field& field = fields[i];
            const auto copy = [&](std::vector<void*>& own, const std::string& name) {
                if (own.empty() || own[static_cast<std::size_t>(i)] == nullptr || !field.is_ragged()) return;
                void*& array = own[static_cast<std::size_t>(i)];
                per_ragged& out = *static_cast<per_ragged*>(array);
                arrays_.push_back({out, out, name, field, 0, 0});
                array = &arrays_.back().given;
            };
            copy(own_fields_, field.name);
            if (field.is_observation())
                copy(own_next_fields_, field.next_name);
            else if (!own_next_fields_.empty())
                own_next_fields_[static_cast<std::size_t>(i)] = nullptr;  // ignored
        }
        if (batch.fields != nullptr) batch_.fields = own_fields_.data();
        if (batch.next_fields != nullptr) batch_.next_fields = own_next_fields_.data();
    }
    JoinedRows(const JoinedRows&) = delete;
    JoinedRows& operator=(const JoinedRows&) = delete;

    // The batch with the copies.
    const per_batch& batch() const { return batch_; }

    // Gives each source its room, once all have chosen their rows. Throws Error with FULL if there is too little.
    void divide(std::span<const PartOfBatch> parts) {
        for (Array& array : arrays_) array.given.total = 0;
        for (const PartOfBatch& part : parts)
            for_each(part, [](Array& array, const per_ragged& rows) {
                int64_t& total = array.given.total;
                total = rows.padded_length > 0 ? std::max(total, rows.total) : total + rows.total;
            });
        const Array* full = nullptr;
        for (Array& array : arrays_) {
            array.rows_of_place = length_of(array.field, parts.front().shape);
            array.out.total = array.given.total;
            if (full == nullptr && !has_room(array.given)) full = &array;
        }
        if (full != nullptr) throw_no_room(full->name, full->given);
        for (const PartOfBatch& part : parts)
            for_each(part, [&](Array& array, per_ragged& rows) {
                const per_ragged& given = array.given;
                const int64_t first = part.first * array.rows_of_place;
                const int64_t n_before = rows.padded_length > 0 ? first * rows.padded_length : array.n_before;
                if (given.values != nullptr)
                    rows.values = static_cast<std::byte*>(given.values) + n_before * array.field.bytes;
                if (given.offsets != nullptr) rows.offsets = given.offsets + first;
                array.n_before += rows.total;
            });
        for (Array& array : arrays_) array.n_before = 0;
    }

    // Makes the offsets of each source follow those of the sources before it. The sources must have written theirs, the
    // last one first: the first offset of a source is the end of the one before.
    void join(std::span<const PartOfBatch> parts) {
        for (const PartOfBatch& part : parts)
            for_each(part, [&](Array& array, const per_ragged& rows) {
                if (rows.offsets == nullptr) return;
                const int64_t n_rows = part.count * array.rows_of_place;
                for (int64_t i = 1; i <= n_rows; ++i) rows.offsets[i] += array.n_before;
                if (n_rows > 0) array.n_before = rows.offsets[n_rows];
            });
    }

 private:
    struct Array {
        per_ragged& out;  // the caller's
        per_ragged given;
        const std::string& name;
        const Field& field;
        int64_t rows_of_place;
        int64_t n_before;  // values of the sources before the current one
    };

    // Calls visit(array, the rows of that part).
    template <class Visit>
    void for_each(const PartOfBatch& part, const Visit& visit) {
        auto array = arrays_.begin();
        for_each_ragged(part.sample.batch, fields_, part.shape,
                        [&](per_ragged& rows, const Field&, const std::string&, int64_t) { visit(*array++, rows); });
    }

    const Fields& fields_;
    std::vector<Array> arrays_;  // in the order of for_each_ragged()
    std::vector<void*> own_fields_;
    std::vector<void*> own_next_fields_;
    per_batch batch_;
};

bool are_same(const Field& a, const Field& b) {
    return a.name == b.name && a.shape == b.shape && a.dtype == b.dtype && a.role == b.role && a.stack == b.stack &&
           a.max_length == b.max_length;
}

void require_same(const char* option, std::size_t k, int64_t value, int64_t value_of_first) {
    if (value != value_of_first)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "%s of sources[%zu].replay is %" PRId64 ", and of sources[0].replay %" PRId64 ": must be the same",
                    option, k, value, value_of_first);
}

// Calls work() for source k. Its errors then begin with "sources[k]", followed by `what`.
template <class Work>
void of_source(std::size_t k, const Work& work, const char* what = ".replay: ") {
    try {
        work();
    } catch (const Error& error) {
        throw Error(error.status(), "sources[%zu]%s%s", k, what, error.what());
    }
}

}  // namespace

void divide_rows(std::span<const double> shares, int64_t total, std::span<int64_t> carries,
                 std::span<int64_t> rows_out) {
    const std::size_t n = shares.size();
    // The shares in units of a row: whole numbers that add up to one row.
    std::array<int64_t, max_sources> units;
    const auto end = std::transform(shares.begin(), shares.end(), units.begin(), [](double share) {
        return std::llround(share * static_cast<double>(units_of_row));
    });
    *std::max_element(units.begin(), end) += units_of_row - std::accumulate(units.begin(), end, int64_t{0});
    int64_t n_given = 0;
    for (std::size_t k = 0; k < n; ++k) {
        carries[k] += units[k] * total;
        rows_out[k] = units[k] == 0 ? 0 : std::max<int64_t>(carries[k] >> 32, 0);  // P would be 0 without a share
        carries[k] -= rows_out[k] * units_of_row;
        n_given += rows_out[k];
    }
    // The sources to which most is owed get the rows that are left. If too many were given, since other sources had
    // more than their share before, those to which least is owed lose one.
    while (n_given != total) {
        const int64_t one = n_given < total ? 1 : -1;
        std::size_t chosen = n;
        for (std::size_t k = 0; k < n; ++k) {
            if (one < 0 ? rows_out[k] == 0 : units[k] == 0) continue;
            if (chosen == n || one * carries[k] > one * carries[chosen]) chosen = k;
        }
        rows_out[chosen] += one;
        carries[chosen] -= one * units_of_row;
        n_given += one;
    }
    // The carries of draws stay small. Those that a caller has set may grow.
    for (int64_t& carry : carries) carry = std::clamp(carry, -max_carry, max_carry);
}

Mixture::Mixture(std::span<const per_source> sources, std::span<Replay* const> replays)
    : sources_(sources), replays_(replays) {
    double total = 0.0;
    for (std::size_t k = 0; k < sources_.size(); ++k) {
        check_source(k);
        total += sources_[k].share;
    }
    if (!(total > 0.0) || !std::isfinite(total))
        throw Error(PER_ERROR_INVALID_ARGUMENT, "the shares of all sources add up to %g: must be finite and > 0",
                    total);
    for (std::size_t k = 0; k < sources_.size(); ++k) shares_[k] = sources_[k].share / total;
    lock_all();
}

// Holds no lock while it waits for another: fork() takes the locks of all handles, the newest handle first, and a save
// of one source may wait for a call on another.
void Mixture::lock_all() {
    for (std::size_t waited_for = 0;;) {
        locks_[waited_for] = std::unique_lock(replays_[waited_for]->lock_);
        std::size_t k = 0;
        for (; k < sources_.size(); ++k) {
            if (k != waited_for) locks_[k] = std::unique_lock(replays_[k]->lock_, std::try_to_lock);
            if (!locks_[k].owns_lock()) break;
        }
        if (k == sources_.size()) return;
        for (std::unique_lock<OrderedLock>& lock : locks_) lock = {};
        waited_for = k;
    }
}

void Mixture::check_source(std::size_t k) const {
    const per_source& source = sources_[k];
    const auto check_numbers = [&] {
        check_finite("share", source.share);
        check_range("carry", source.carry, -max_carry, max_carry);
        check_range("when_empty", source.when_empty, PER_EMPTY_ERROR, PER_EMPTY_OTHERS);
        check_range("reserved", source.reserved, 0, 0);
    };
    of_source(k, check_numbers, ".");
    const Replay& replay = *replays_[k];
    const Replay& first = *replays_[0];
    for (std::size_t other = 0; other < k; ++other)
        if (replays_[other] == &replay)
            throw Error(PER_ERROR_INVALID_ARGUMENT,
                        "sources[%zu].replay is that of sources[%zu]: each source needs its own buffer", k, other);
    if (replay.device() != first.device() || replay.device_index() != first.device_index())
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "sources[%zu].replay is on another device than that of sources[0]: all must be on one", k);
    const Fields &fields = replay.fields_, &fields_of_first = first.fields_;
    if (fields.count() != fields_of_first.count())
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "sources[%zu].replay has %" PRId64 " fields, and that of sources[0] has %" PRId64
                    ": all must have the same",
                    k, fields.count(), fields_of_first.count());
    for (int64_t i = 0; i < fields.count() && k > 0; ++i)
        if (!are_same(fields[i], fields_of_first[i]))
            throw Error(PER_ERROR_INVALID_ARGUMENT,
                        "field %" PRId64
                        " of sources[%zu].replay, \"%s\", differs from that of sources[0], \"%s\": name, shape, "
                        "dtype, role, stack and max_length must be the same",
                        i, k, fields[i].name.c_str(), fields_of_first[i].name.c_str());
    const per_replay_options &own = replay.options_, &own_of_first = first.options_;
    require_same("sequence_length", k, own.sequence_length, own_of_first.sequence_length);
    require_same("burn_in", k, own.burn_in, own_of_first.burn_in);
    if (own.max_times_sampled > 0)
        throw Error(PER_ERROR_UNSUPPORTED, "max_times_sampled of sources[%zu].replay is %d: allowed in a mixture is 0",
                    k, own.max_times_sampled);
}

// The shares of a batch: without those sources that are empty and give their share to the others.
Mixture::OfSources<double> Mixture::shares_of_batch() const {
    OfSources<double> shares;
    double total = 0.0;
    for (std::size_t k = 0; k < sources_.size(); ++k) {
        const bool gives_way = sources_[k].when_empty == PER_EMPTY_OTHERS && replays_[k]->backend_->live() == 0;
        shares[k] = gives_way ? 0.0 : shares_[k];
        total += shares[k];
    }
    for (std::size_t k = 0; k < sources_.size(); ++k) shares[k] = total == 0.0 ? shares_[k] : shares[k] / total;
    return shares;
}

// Calls work() between begin_mixture() and end_mixture() of all buffers.
template <class Work>
void Mixture::at_once(void* stream, const Work& work) const {
    struct Begun {
        std::span<Replay* const> replays;
        std::size_t n = 0;
        void end_last(bool is_done) { replays[--n]->backend_->end_mixture(is_done); }
        ~Begun() {
            while (n > 0) end_last(false);
        }
    } begun = {replays_};
    for (; begun.n < replays_.size(); ++begun.n) replays_[begun.n]->backend_->begin_mixture(stream);
    work();
    while (begun.n > 0) begun.end_last(true);
}

void Mixture::sample(const per_sample_options& options, int64_t batch_size, const per_batch& batch,
                     int32_t* sources_out, std::span<int64_t> carries_out, void* stream) {
    require_no_key(options);
    require_no_hindsight(options);
    require_no_newest(options, "in a mixture");
    check_range("batch_size", batch_size, 1, max_batch_size);
    per_sample_options of_parts = options;
    of_parts.normalize_weights = PER_NONE;
    const int32_t normalize_weights = options.normalize_weights == -1 ? PER_BATCH_MAX : options.normalize_weights;
    check_range("normalize_weights", normalize_weights, PER_BATCH_MAX, PER_NONE);
    if (normalize_weights == PER_BUFFER_MAX)
        throw Error(PER_ERROR_UNSUPPORTED,
                    "normalize_weights is PER_BUFFER_MAX: allowed in a mixture are PER_BATCH_MAX and PER_NONE");
    require_array("ids", batch.ids);
    check_drawn_batch(batch, replays_[0]->fields_, replays_[0]->options_);
    JoinedRows joined(batch, replays_[0]->fields_);

    const std::size_t n = sources_.size();
    OfSources<int64_t> rows;
    for (std::size_t k = 0; k < n; ++k) carries_out[k] = sources_[k].carry;
    const OfSources<double> shares = shares_of_batch();
    divide_rows({shares.data(), n}, batch_size, carries_out, {rows.data(), n});
    std::array<std::byte, 4096> on_stack;  // enough for two sources of 64 fields
    std::pmr::monotonic_buffer_resource memory(on_stack.data(), on_stack.size());
    const std::span<PartOfBatch> parts(new_array<PartOfBatch>(n, memory), n);
    for (std::size_t k = 0; k < n; ++k) {
        const Replay& replay = *replays_[k];
        const per_replay_options& own = replay.options_;
        if (k > 0) check_drawn_batch(joined.batch(), replay.fields_, own);
        const int64_t first = k == 0 ? 0 : parts[k - 1].first + parts[k - 1].count;
        const auto add_part = [&] {
            new (&parts[k]) PartOfBatch(of_parts, joined.batch(), replay.fields_, own, first, rows[k], memory);
        };
        if (k == 0)
            add_part();
        else
            of_source(k, add_part);  // the options suit the first source
        if (rows[k] > 0) of_source(k, [&] { replays_[k]->limiter_.check_draw(rows[k]); });
        // The sequences of a batch must have one length.
        if (own.sequence_length > 0) require_same("n_step", k, parts[k].sample.n_step, parts[0].sample.n_step);
    }

    at_once(stream, [&] {
        for (std::size_t k = 0; k < n; ++k)
            if (rows[k] > 0) of_source(k, [&] { replays_[k]->backend_->choose_rows(parts[k].sample); });
        joined.divide(parts);
        OfSources<SourceRows> sources;
        for (std::size_t k = 0; k < n; ++k)
            sources[k] = {replays_[k]->backend_.get(), &parts[k].sample, shares[k], parts[k].first, rows[k]};
        replays_[0]->backend_->write_mixture({sources.data(), n}, normalize_weights, batch, sources_out);
        for (std::size_t k = 0; k < n; ++k)
            if (rows[k] > 0) replays_[k]->count_drawn(rows[k]);
        joined.join(parts);
    });
}

void Mixture::update(const per_priorities& priorities, const int32_t* source_of, void* stream) {
    const int32_t n = static_cast<int32_t>(sources_.size());
    std::vector<ReplayUpdate> updates;
    for (int32_t k = 0; k < n; ++k) {
        ReplayUpdate update = resolve_priorities(priorities, replays_[static_cast<std::size_t>(k)]->options_);
        update.source_of = source_of;
        update.source = k;
        update.n_sources = n;
        updates.push_back(update);
    }
    if (priorities.count == 0) return;
    require_array("source_of", source_of);
    if (replays_[0]->device() == PER_CPU)
        for (int64_t i = 0; i < priorities.count; ++i)
            if (const int32_t source = read_once(source_of[i]); source < 0 || source >= n)
                throw_out_of_range("source_of", i, source, 0, n - 1);
    at_once(stream, [&] {
        for (std::size_t k = 0; k < updates.size(); ++k)
            of_source(k, [&] { replays_[k]->backend_->check_update(updates[k]); });
        for (std::size_t k = 0; k < updates.size(); ++k) {
            replays_[k]->backend_->write_update(updates[k]);
            ++replays_[k]->n_changes_;
        }
    });
}

}  // namespace per
