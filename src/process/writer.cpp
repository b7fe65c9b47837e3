#include "process/writer.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <span>
#include <string>

#include "base/arguments.h"
#include "base/error.h"
#include "rows/cast.h"
#include "rows/dtype.h"
#include "rules/td_error.h"
#include "system/process_number.h"

namespace per {
namespace {

std::string type_text(int32_t dtype, std::span<const int64_t> shape) {
    return (is_dtype(dtype) ? std::string(dtype_name(dtype)) : std::to_string(dtype)) + shape_text(shape);
}

}  // namespace

Writer::Writer(const char* path, int descriptor, const per_field* fields, int64_t n_fields)
    : ring_(path, descriptor),
      header_(ring_.header()),
      drops_(ring_.memory().read(header_.when_full, "when_full", PER_FULL_WAITS, PER_FULL_DROPS) == PER_FULL_DROPS),
      looks_for_death_(ring_.memory().read(header_.moved_by, "moved_by", PER_MOVED_BY_THREAD, PER_MOVED_BY_CALLS) ==
                       PER_MOVED_BY_CALLS),
      checks_(ring_.fields(), ring_.options()),
      given_(ring_.fields(), ring_.options().on_nan == PER_NAN_ERROR),
      cuts_(static_cast<std::size_t>(ring_.n_envs()), 1) {
    check_open();
    if (fields != nullptr) check_fields(fields, n_fields);
    if (!ring_.memory().locks().try_lock(writer_lock))
        throw Error(PER_ERROR_BUSY, "the channel has a writer already, of process %" PRIu32, header_.process.any());
    header_.process = process_number();
    ++header_.n_writers;
    header_.room_at = StepRing::never;
    written_ = header_.written.any();
    place_late_parts();
    if (has_room(1)) write_cut();
}

const per_replay_options& Writer::describe() const {
    check_usable();
    check_open();
    return ring_.options();
}

void Writer::add(const per_steps& steps, const Deadline& deadline) {
    check_usable();
    for (Guard guard(*mutex_);;) {
        check_open();
        const ReplaySteps checked = checks_.steps(steps);
        check_range("length", checked.length, 0, ring_.n_slots() - 1);
        if (checked.length == 0 || checked.n_envs == 0) return;
        given_.read(checked, ring_.options().epsilon);
        check_values(checked);
        const int64_t n_slots = checked.length + (has_cuts_ ? 1 : 0);
        if (has_room(n_slots)) {
            make_room(checked, n_slots - checked.length);
            if (has_cuts_) write_cut();
            return write(checked);
        }
        if (drops_) return drop(checked);
        wait_for_room(guard, n_slots, deadline);
    }
}

void Writer::cut(int64_t count, const int64_t* env_ids, const Deadline& deadline) {
    check_usable();
    for (Guard guard(*mutex_);;) {
        check_open();
        std::span<const int64_t> environments;
        if (env_ids != nullptr) environments = checks_.environments(count, env_ids, true);
        const bool can_write = has_room(1);
        if (!can_write && drops_) ring_.memory().check_alive();
        if (can_write || drops_) {
            if (env_ids == nullptr) std::fill(cuts_.begin(), cuts_.end(), uint8_t{1});
            for (const int64_t env : environments) cuts_[static_cast<std::size_t>(env)] = 1;
            has_cuts_ = true;
            if (can_write) write_cut();
            return;
        }
        wait_for_room(guard, 1, deadline);
    }
}

void Writer::flush(const Deadline& deadline) {
    check_usable();
    Guard guard(*mutex_);
    check_open();
    const uint64_t end = written_;
    header_.written_bell.ring();
    if (!wait_until_taken(guard, end, deadline))
        throw Error(PER_ERROR_BUSY, "%" PRIu64 " steps that were written are not in the buffer yet",
                    n_waiting() - (written_ - end));
}

// ----------------------------------------------------------------------------------------------------------- checks

void Writer::check_usable() const {
    mutex_.process().check("writer was attached before a fork: it is the parent's");
}

void Writer::check_open() const {
    ring_.memory().check_open(header_.is_closed);
    if (looks_for_death_) ring_.memory().check_alive();
}

void Writer::check_fields(const per_field* given, int64_t n_fields) const {
    const Fields& declared = ring_.fields();
    if (n_fields != declared.count())
        throw Error(PER_ERROR_INVALID_ARGUMENT, "n_fields is %" PRId64 ": the buffer has %" PRId64 " fields", n_fields,
                    declared.count());
    for (int64_t i = 0; i < n_fields; ++i) {
        const Field& field = declared[i];
        check_field(given[i]);
        if (given[i].name == nullptr || field.name != given[i].name)
            throw Error(PER_ERROR_INVALID_ARGUMENT, "fields[%" PRId64 "].name is \"%s\": in the buffer it is \"%s\"", i,
                        given[i].name == nullptr ? "" : given[i].name, field.name.c_str());
        const std::span<const int64_t> shape(given[i].shape, static_cast<std::size_t>(given[i].ndim));
        if (given[i].dtype != field.dtype ||
            !std::equal(shape.begin(), shape.end(), field.shape.begin(), field.shape.end()))
            throw Error(PER_ERROR_INVALID_ARGUMENT, "field \"%s\" is %s: in the buffer it is %s", field.name.c_str(),
                        type_text(given[i].dtype, shape).c_str(), type_text(field.dtype, field.shape).c_str());
        if (given[i].max_length != field.max_length)
            throw Error(PER_ERROR_INVALID_ARGUMENT,
                        "max_length of field \"%s\" is %" PRId64 ": in the buffer it is %" PRId64, field.name.c_str(),
                        given[i].max_length, field.max_length);
    }
}

// Makes those checks of a buffer that do not depend on the steps before. With PER_AUTORESET_NEXT_STEP it checks neither
// next observations nor priorities: the buffer ignores steps of a reset, and only the buffer knows which steps these
// are.
void Writer::check_values(const ReplaySteps& steps) const {
    const per_replay_options& options = ring_.options();
    const bool checks_next = options.autoreset != PER_AUTORESET_NEXT_STEP;
    const bool checks_priorities = checks_next && given_.has_priorities() && options.on_invalid == PER_INVALID_ERROR;
    for (int64_t k = 0, entry = 0; k < steps.length; ++k) {
        for (int64_t j = 0; j < steps.n_envs; ++j, ++entry) {
            if (!given_.is_given(entry)) continue;
            const int64_t env = steps.env_ids != nullptr ? steps.env_ids[j] : j;
            if (checks_next) given_.check_next(entry, k, env, options.autoreset, options.store_next_observation != 0);
            if (!checks_priorities || is_priority(given_.priority(entry))) continue;
            throw Error(PER_ERROR_INVALID_ARGUMENT,
                        "the priority of step %" PRId64 " of environment %" PRId64
                        " is %g: it must be finite and not negative",
                        k, env, static_cast<double>(given_.priority(entry)));
        }
    }
}

// ------------------------------------------------------------------------------------------------------------- room

// Number of slots that are written and not taken yet.
uint64_t Writer::n_waiting() const {
    const uint64_t n_slots = static_cast<uint64_t>(ring_.n_slots());
    return written_ - ring_.memory().read(header_.taken, "the number of steps taken", written_ - n_slots, written_);
}

bool Writer::has_room(int64_t n_slots) const {
    return n_waiting() + static_cast<uint64_t>(n_slots) <= static_cast<uint64_t>(ring_.n_slots());
}

bool Writer::has_taken(uint64_t count) const {
    return n_waiting() <= written_ - count;
}

// Waits until there is room. By the time this returns, another thread may have used the room. Throws Error with BUSY.
void Writer::wait_for_room(Guard& guard, int64_t n_slots, const Deadline& deadline) {
    if (!is_waiting_) ++header_.n_waits;
    is_waiting_ = true;
    const uint64_t count = written_ + static_cast<uint64_t>(n_slots) - static_cast<uint64_t>(ring_.n_slots());
    if (!wait_until_taken(guard, count, deadline))
        throw Error(PER_ERROR_BUSY, "the ring of %" PRId64 " slots has no room for %" PRId64 " more", ring_.n_slots(),
                    n_slots);
}

// Returns false if the deadline passes first. The mutex is free meanwhile.
bool Writer::wait_until_taken(Guard& guard, uint64_t count, const Deadline& deadline) {
    const auto await = [&] {
        // The count is read first. If another thread waits for fewer slots, room_at stays, and the bell may already
        // ring for that thread. Then this thread must not sleep, but set room_at again.
        const uint32_t seen = header_.taken_bell.count;
        uint64_t at = header_.room_at;
        while (at > count && !header_.room_at.compare_exchange_weak(at, count)) continue;
        return seen;
    };
    const auto is_over = [&] {
        if (has_taken(count)) return true;
        check_open();
        return false;
    };
    return ring_.memory().wait(guard, header_.taken_bell, deadline, await, is_over);
}

void Writer::drop(const ReplaySteps& steps) {
    ring_.memory().check_alive();
    header_.n_dropped += static_cast<uint64_t>(steps.length);
    for (int64_t entry = 0; entry < steps.length * steps.n_envs; ++entry) {
        if (!given_.is_given(entry)) continue;
        const int64_t j = entry % steps.n_envs;
        cuts_[static_cast<std::size_t>(steps.env_ids != nullptr ? steps.env_ids[j] : j)] = 1;
        has_cuts_ = true;
    }
}

// ---------------------------------------------------------------------------------------------------------- writing

// The slot that is written n slots after the next one.
int64_t Writer::slot_after(int64_t n) const {
    return static_cast<int64_t>((written_ + static_cast<uint64_t>(n)) % static_cast<uint64_t>(ring_.n_slots()));
}

void Writer::write_cut() {
    const int64_t slot = slot_after(0);
    std::memcpy(ring_.at(ring_.arrays().mask, slot, 1), cuts_.data(), cuts_.size());
    ring_.kind(slot) = slot_cuts;
    publish(1);
    std::fill(cuts_.begin(), cuts_.end(), uint8_t{0});
    has_cuts_ = false;
}

// Calls visit(field, part, offsets) for each array with rows of any length, with its part of the slot and its offsets
// there. rows_ are then those of step k. A step, or an observation after it, that is not given has an empty row.
template <class Visit>
void Writer::for_each_ragged(const ReplaySteps& steps, int64_t k, int64_t slot, const Visit& visit) {
    const RingArrays& arrays = ring_.arrays();
    LatePart* part = late_parts_.data() + slot * (std::ssize(late_parts_) / ring_.n_slots());
    const auto visit_array = [&](const Field& field, const cpu::GivenValues& values, bool is_next,
                                 std::size_t offsets) {
        std::fill(rows_.begin(), rows_.end(), std::span<const std::byte>());
        for (int64_t j = 0; j < steps.n_envs; ++j) {
            const int64_t entry = k * steps.n_envs + j, env = steps.env_ids != nullptr ? steps.env_ids[j] : j;
            if (is_next ? given_.next_known(entry) : given_.is_given(entry))
                rows_[static_cast<std::size_t>(env)] = values.row(entry);
        }
        visit(field, part[is_next ? 1 : 0], ring_.offsets_at(offsets, slot));
    };
    for (int64_t i = 0; i < ring_.fields().count() && ring_.fields().has_ragged(); ++i) {
        const Field& field = ring_.fields()[i];
        const auto at = static_cast<std::size_t>(i);
        if (!field.is_ragged()) continue;
        visit_array(field, given_.field(i), false, arrays.offsets[at]);
        if (field.is_observation() && steps.next_fields != nullptr)
            visit_array(field, given_.next_field(i), true, arrays.next_offsets[at]);
        part += 2;
    }
}

void Writer::place_late_parts() {
    if (!ring_.fields().has_ragged()) return;
    const RingArrays& arrays = ring_.arrays();
    rows_.resize(static_cast<std::size_t>(ring_.n_envs()));
    for (int64_t slot = 0; slot < ring_.n_slots(); ++slot) {
        for (int64_t i = 0; i < ring_.fields().count(); ++i) {
            const Field& field = ring_.fields()[i];
            if (!field.is_ragged()) continue;
            const auto bytes = static_cast<std::size_t>(ring_.n_envs() * field.max_length * field.bytes);
            for (const std::size_t array :
                 {arrays.fields[static_cast<std::size_t>(i)], arrays.next_fields[static_cast<std::size_t>(i)]})
                late_parts_.emplace_back(array + static_cast<std::size_t>(slot) * bytes, bytes);
        }
    }
}

// Allocates the memory for rows of any length, of the steps that will be written `n_before` slots after the next one.
void Writer::make_room(const ReplaySteps& steps, int64_t n_before) {
    for (int64_t k = 0; k < steps.length; ++k)
        for_each_ragged(steps, k, slot_after(n_before + k), [&](const Field&, LatePart& part, const int64_t*) {
            std::size_t n_bytes = 0;
            for (const std::span<const std::byte> row : rows_) n_bytes += row.size();
            part.allocate(ring_.memory().memory(), n_bytes);
        });
}

void Writer::write_rows(const ReplaySteps& steps, int64_t k, int64_t slot) {
    for_each_ragged(steps, k, slot, [&](const Field& field, const LatePart& part, int64_t* offsets) {
        std::byte* values = ring_.memory().data() + part.first();
        *offsets = 0;
        for (const std::span<const std::byte> row : rows_) {
            if (!row.empty()) std::memcpy(values, row.data(), row.size());
            values += row.size();
            offsets[1] = *offsets + std::ssize(row) / field.bytes;
            ++offsets;
        }
    });
}

// Writes at most two parts, as the ring may wrap around.
void Writer::write(const ReplaySteps& steps) {
    const int64_t first = slot_after(0);
    const int64_t n = std::min(steps.length, ring_.n_slots() - first);
    write_part(steps, 0, n, first);
    if (n < steps.length) write_part(steps, n, steps.length - n, 0);
    publish(steps.length);
}

// Writes steps k .. k + count - 1 to the slots from `slot` on.
void Writer::write_part(const ReplaySteps& steps, int64_t k, int64_t count, int64_t slot) {
    const RingArrays& arrays = ring_.arrays();
    const int64_t n_envs = ring_.n_envs();
    const bool is_part = steps.env_ids != nullptr;
    const bool has_mask = is_part || steps.mask.data != nullptr;
    const bool has_next_mask = steps.next_mask.data != nullptr;
    const auto bytes_of = [&](std::size_t array) { return ring_.at(array, slot, 1); };
    std::byte* const mask = bytes_of(arrays.mask);
    if (is_part) std::memset(mask, 0, static_cast<std::size_t>(count * n_envs));
    for (int64_t i = 0; i < count; ++i) {
        for (int64_t j = 0; j < steps.n_envs; ++j) {
            const int64_t entry = (k + i) * steps.n_envs + j;
            const int64_t at = i * n_envs + (is_part ? steps.env_ids[j] : j);
            bytes_of(arrays.terminated)[at] = std::byte{given_.terminated(entry)};
            bytes_of(arrays.truncated)[at] = std::byte{given_.truncated(entry)};
            if (has_mask) mask[at] = std::byte{given_.is_given(entry)};
            if (has_next_mask) bytes_of(arrays.next_mask)[at] = std::byte{!given_.next_unavailable(entry)};
            if (!given_.has_priorities()) continue;
            const float priority = given_.is_given(entry) ? given_.priority(entry) : 0.0f;
            std::memcpy(ring_.at(arrays.priorities, slot, sizeof priority) + at * static_cast<int64_t>(sizeof priority),
                        &priority, sizeof priority);
        }
    }
    copy(given_.rewards(), steps, k, count, slot, arrays.reward, sizeof(float));
    for (int64_t i = 0; i < count; ++i) write_rows(steps, k + i, slot + i);
    for (int64_t i = 0; i < ring_.fields().count(); ++i) {
        const Field& field = ring_.fields()[i];
        const auto at = static_cast<std::size_t>(i);
        if (field.is_ragged()) continue;
        copy(given_.field(i), steps, k, count, slot, arrays.fields[at], field.bytes);
        if (field.is_observation() && steps.next_fields != nullptr)
            copy(given_.next_field(i), steps, k, count, slot, arrays.next_fields[at], field.bytes);
    }
    const uint32_t kind = (steps.next_fields != nullptr ? slot_has_next : 0) | (has_mask ? slot_has_mask : 0) |
                          (has_next_mask ? slot_has_next_mask : 0) |
                          (given_.has_priorities() ? slot_has_priorities : 0);
    for (int64_t i = 0; i < count; ++i) ring_.kind(slot + i) = kind;
}

void Writer::copy(const cpu::GivenValues& values, const ReplaySteps& steps, int64_t k, int64_t count, int64_t slot,
                  std::size_t array, int64_t bytes) const {
    const cpu::Column<std::byte> column = ring_.column(array, bytes);
    const int64_t n_envs = ring_.n_envs();
    if (steps.env_ids == nullptr) return values.copy(k * n_envs, 1, count * n_envs, bytes, column.from(slot * n_envs));
    for (int64_t i = 0; i < count; ++i)
        for (int64_t j = 0; j < steps.n_envs; ++j)
            values.copy((k + i) * steps.n_envs + j, 1, 1, bytes, column.from((slot + i) * n_envs + steps.env_ids[j]));
}

// Makes the written slots visible to the channel, all at once. If the process dies earlier, none of them is visible.
void Writer::publish(int64_t count) {
    is_waiting_ = false;
    written_ += static_cast<uint64_t>(count);
    header_.written = written_;
    wake_at(header_.wake_at, written_, header_.written_bell);
}

}  // namespace per
