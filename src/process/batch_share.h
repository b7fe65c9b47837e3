// The memory of a shared loader: its layout, and how the loader and its readers wake each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/batch.h"
#include "backend/loader_slots.h"
#include "per.h"
#include "process/labelled_memory.h"
#include "rows/fields.h"
#include "system/shared_bell.h"
#include "threads/bell.h"

namespace per {

struct ShareHeader {
    MemoryLabel label;
    Untrusted<int64_t> batch_size;
    Untrusted<int64_t> n_readers;
    Untrusted<int64_t> slots;  // of each reader
    Untrusted<int64_t> n_step;
    Untrusted<int64_t> mail_bytes;  // of each ring

    alignas(64) Awaited<SharedBell> loader_bell;  // readers ring it after they have written mail
    alignas(64) Untrusted<uint32_t> is_closed;    // stored by the loader
};

// The state that a reader and the loader share. There is one for each place; a reader takes the first place whose lock
// it gets. Mail is counted in bytes; the counts grow without limit. The reader fills the ring first and stores
// `written` last, so a reader that dies in between leaves no incomplete mail for the loader to read.
struct Mailbox {
    // Stored by the reader.
    alignas(64) Untrusted<uint64_t> life;  // number of readers that have taken this place
    Untrusted<uint64_t> written;
    Untrusted<uint32_t> process;  // of the latest reader

    // Stored by the loader.
    alignas(64) Untrusted<uint64_t> greeted;  // the life whose mail is taken; earlier lives have no slots left
    Untrusted<uint64_t> taken;
    Untrusted<uint64_t> answered;  // number of mail_ask answered; the latest answer follows
    Untrusted<uint32_t> is_cut_off;
    Untrusted<int32_t> status;  // a per_status
    Untrusted<int64_t> slot;    // if the status is PER_OK
    char message[512];          // otherwise
    Awaited<SharedBell> bell;   // the loader rings it after it has changed something
};

// The mails of a reader.
enum MailKind : uint32_t {
    mail_ask = 1,    // requests a batch; one at a time
    mail_release,    // releases slot `number`
    mail_leave,      // releases all slots and the place
    mail_td_errors,  // `number` ids, then n_critics * number * steps TD errors
    mail_priorities  // `number` ids, then as many priorities
};
inline constexpr uint32_t mail_kinds = 6;  // all kinds are less

struct Mail {
    uint32_t kind;
    uint32_t reserved;
    int64_t n_bytes;  // includes this struct; a multiple of 8
    int64_t number;
    int64_t n_critics;
    int64_t n_steps;  // of each sequence; 0: all
};

// Bytes of the file that serve as locks. The process of the loader locks the first; from place_lock on there is one for
// each place, which the process of its reader locks.
enum ShareLock : int { loader_lock = 0, place_lock = 1 };
inline int lock_of_place(std::size_t place) {
    return place_lock + static_cast<int>(place);
}

class BatchShare {
 public:
    // The loader's end. `fields` must outlive it. Throws Error with OUT_OF_MEMORY.
    BatchShare(const per_replay_options& options, const Fields& fields, const BatchShape& shape, int64_t n_readers,
               int64_t slots);
    // A reader's end. Throws the Errors of per_reader_attach().
    BatchShare(const char* path, int descriptor);

    ShareHeader& header() const { return *reinterpret_cast<ShareHeader*>(memory_.data()); }
    Mailbox& mailbox(std::size_t place) const {
        return *reinterpret_cast<Mailbox*>(memory_.data() + mailboxes_ + place * sizeof(Mailbox));
    }
    const LabelledMemory& memory() const { return memory_; }
    const Fields& fields() const { return memory_.fields(); }
    const per_replay_options& options() const { return memory_.options(); }
    const BatchShape& shape() const { return shape_; }
    std::size_t n_readers() const { return n_readers_; }
    int64_t slots_of_a_reader() const { return slots_; }
    std::size_t n_slots() const { return n_readers_ * static_cast<std::size_t>(slots_) + 1; }
    const per_batch& batch(std::size_t slot) const { return batches_[slot].batch(); }
    // For the loader: like BatchMemory::make_room().
    bool make_room(std::size_t slot);
    // For a reader: copies the offsets of rows of any length into the reader's own memory, where no other process can
    // change them, and sets the totals. Throws Error with CORRUPT_FILE for offsets that no loader writes.
    const per_batch& read_batch(std::size_t slot);

    // Size of the mail ring of each place. `at` counts all bytes of mail before those that are written or read; their
    // place in the ring wraps around.
    std::size_t mail_bytes() const { return mail_bytes_; }
    void write_mail(std::size_t place, uint64_t at, const void* bytes, std::size_t n) const;
    void read_mail(std::size_t place, uint64_t at, void* bytes_out, std::size_t n) const;
    // Number of values for each id and critic of a mail.
    int64_t steps_of(const Mail& mail) const;
    // Size of a mail with that kind and number of ids, critics and steps; -1 if no memory holds it.
    int64_t mail_size(const Mail& mail) const;
    // Size limit of a mail with ids. It leaves room for all mails without ids that may be in the ring at the same time.
    int64_t max_mail_size() const;

 private:
    std::size_t bytes_of_ring() const;
    MemorySize place(std::size_t first_byte, const Fields& fields);
    std::size_t end_of_values(std::size_t first, const Field& field) const;
    void make_batches();

    BatchShape shape_;
    std::size_t n_readers_;
    int64_t slots_;
    std::size_t mail_bytes_;
    std::size_t mailboxes_ = 0;  // offset, like the next two
    std::size_t mails_ = 0;
    std::size_t first_batch_ = 0;
    std::size_t batch_bytes_ = 0;
    std::size_t first_values_ = 0;  // of rows of any length
    LabelledMemory memory_;
    std::vector<BatchArrays> batches_;
    // Rows of any length: their values, and their offsets in the shared memory and, for a reader, in its own.
    struct Rows {
        LatePart values;
        const int64_t* shared_offsets;
        std::vector<int64_t> offsets;
    };
    std::vector<std::vector<Rows>> rows_;  // by slot, in the order of for_each_ragged()
};

// The slots of a loader that draws into shared memory.
class SharedSlots final : public LoaderSlots {
 public:
    // `share` must outlive it.
    explicit SharedSlots(BatchShare& share) : share_(share) {}

    OpenSlot open(std::size_t slot) override { return {share_.batch(slot), nullptr, nullptr}; }
    bool make_room(std::size_t slot) override { return share_.make_room(slot); }
    void send(std::size_t) override {}
    const per_batch& hand_out(std::size_t slot, void*) override { return share_.batch(slot); }
    void release(std::size_t, void*) override {}

 private:
    BatchShare& share_;
};

}  // namespace per
