// per_writer: the end of a channel at which steps are written.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/step_checks.h"
#include "cpu/replay/given_steps.h"
#include "per.h"
#include "process/step_ring.h"
#include "threads/deadline.h"

namespace per {

// Casts and checks steps, and writes them to the slots of a ring. A call that waits for room unlocks the writer, and
// casts its steps again afterwards, since another thread's call may have replaced them.
class Writer {
 public:
    // As per_writer_attach(). Throws Error.
    Writer(const char* path, int descriptor, const per_field* fields, int64_t n_fields);
    ~Writer();
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
    void check_process() const;
    void check_fields(const per_field* given, int64_t n_fields) const;
    void check_values(const ReplaySteps& steps) const;
    bool has_room(int64_t n_slots) const;
    uint64_t n_waiting() const;
    bool has_taken(uint64_t count) const;
    void wait_for_room(Guard& guard, int64_t n_slots, const Deadline& deadline);
    bool wait_until_taken(Guard& guard, uint64_t count, const Deadline& deadline);
    void drop(const ReplaySteps& steps);
    void write_cut();
    void write(const ReplaySteps& steps);
    void write_part(const ReplaySteps& steps, int64_t k, int64_t count, int64_t slot);
    void copy(const cpu::GivenValues& values, const ReplaySteps& steps, int64_t k, int64_t count, int64_t slot,
              std::size_t array, int64_t bytes) const;
    void publish(int64_t count);

    StepRing ring_;
    RingHeader& header_;
    const bool drops_;
    const bool looks_for_death_;  // each call looks whether the process of the channel is there
    StepChecks checks_;
    cpu::GivenSteps given_;
    uint64_t written_ = 0;
    std::vector<uint8_t> cuts_;  // by environment: its episode is to be cut before the next step
    bool has_cuts_ = true;
    bool is_waiting_ = false;  // the call before ended as there was no room in time: this one waits on
    const uint64_t process_;   // HandleLock::process() of the process that attached
    std::unique_ptr<std::mutex> mutex_;
};

}  // namespace per
