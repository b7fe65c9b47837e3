// per_writer: the end of a channel that writes steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "core/step_checks.h"
#include "cpu/replay/given_steps.h"
#include "per.h"
#include "process/step_ring.h"
#include "threads/deadline.h"
#include "threads/process_mark.h"

namespace per {

// Casts and checks steps, and writes them to the slots of a ring. A call that waits for room unlocks the writer and
// casts its steps again afterwards, since the call of another thread may have replaced them.
class Writer {
 public:
    // Parameters and errors are those of per_writer_attach().
    Writer(const char* path, int descriptor, const per_field* fields, int64_t n_fields);
    Writer(const Writer&) = delete;
    Writer& operator=(const Writer&) = delete;

    const per_replay_options& describe() const;
    void add(const per_steps& steps, const Deadline& deadline);
    void cut(int64_t count, const int64_t* env_ids, const Deadline& deadline);
    void flush(const Deadline& deadline);

 private:
    using Guard = std::unique_lock<std::mutex>;

    void check_usable() const;
    void check_open() const;
    void check_fields(const per_field* given, int64_t n_fields) const;
    void check_values(const ReplaySteps& steps) const;
    bool has_room(int64_t n_slots) const;
    uint64_t n_waiting() const;
    bool has_taken(uint64_t count) const;
    void wait_for_room(Guard& guard, int64_t n_slots, const Deadline& deadline);
    bool wait_until_taken(Guard& guard, uint64_t count, const Deadline& deadline);
    void drop(const ReplaySteps& steps);
    int64_t slot_after(int64_t n) const;
    void write_cut();
    void write(const ReplaySteps& steps);
    template <class Visit>
    void for_each_ragged(const ReplaySteps& steps, int64_t k, int64_t slot, const Visit& visit);
    void place_late_parts();
    void make_room(const ReplaySteps& steps, int64_t n_before);
    void write_rows(const ReplaySteps& steps, int64_t k, int64_t slot);
    void write_part(const ReplaySteps& steps, int64_t k, int64_t count, int64_t slot);
    void copy(const cpu::GivenValues& values, const ReplaySteps& steps, int64_t k, int64_t count, int64_t slot,
              std::size_t array, int64_t bytes) const;
    void publish(int64_t count);

    StepRing ring_;
    RingHeader& header_;
    const bool drops_;
    const bool looks_for_death_;  // each call checks that the process of the channel lives
    StepChecks checks_;
    cpu::GivenSteps given_;
    uint64_t written_ = 0;
    // Rows of any length: [slots, fields that have them, observation and next observation] the values of a slot; and
    // the rows of a step in an array, by environment.
    std::vector<LatePart> late_parts_;
    std::vector<std::span<const std::byte>> rows_;
    std::vector<uint8_t> cuts_;  // by environment: whether to cut its episode before the next step
    bool has_cuts_ = true;
    bool is_waiting_ = false;  // for room, perhaps since an earlier call
    OfOneProcess<std::mutex> mutex_;
};

}  // namespace per
