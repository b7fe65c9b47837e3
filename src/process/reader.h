// per_reader: the end of a shared loader that reads batches.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "backend/backend.h"
#include "per.h"
#include "process/batch_share.h"
#include "threads/deadline.h"
#include "threads/process_mark.h"

namespace per {

// Reads batches where they were drawn, and sends priorities back.
class Reader {
 public:
    // Parameters and errors are those of per_reader_attach().
    Reader(const char* path, int descriptor);
    ~Reader();
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    const per_replay_options& describe() const;
    int64_t batch_size() const { return share_.shape().batch_size; }
    // Returns the next batch and its slot.
    int64_t next(const Deadline& deadline, per_batch& batch_out);
    void release(int64_t slot);
    void update(const per_priorities& priorities, const Deadline& deadline);
    void flush(const Deadline& deadline);
    void stop();

 private:
    using Guard = std::unique_lock<std::mutex>;

    void check_usable() const;
    void check_open() const;
    void check_values(const ReplayUpdate& update) const;
    template <class IsOver>
    bool wait(Guard& guard, const Deadline& deadline, IsOver is_over);
    void wait_for_greeting(Guard& guard, const Deadline& deadline);
    bool is_answered();
    uint64_t n_waiting() const;
    std::size_t room() const;
    void write(const Mail& mail, const int64_t* ids, const void* values, std::size_t value_bytes);
    void write(uint32_t kind, int64_t number = 0);
    void detach();

    BatchShare share_;
    std::size_t place_;
    Mailbox* box_;
    uint64_t life_ = 0;
    bool is_greeted_ = false;
    bool is_asking_ = false;
    bool is_stopped_ = false;
    uint64_t written_ = 0;
    uint64_t asked_ = 0;
    std::vector<uint8_t> is_out_;  // by slot
    OfOneProcess<std::mutex> mutex_;
};

}  // namespace per
