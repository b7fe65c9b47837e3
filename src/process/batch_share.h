// The memory of a shared loader: what lies where, and how the loader and its readers wake each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/batch.h"
#include "backend/loader_slots.h"
#include "per.h"
#include "process/labelled_memory.h"
#include "rows/fields.h"
#include "threads/shared_bell.h"

namespace per {

struct ShareHeader {
    MemoryLabel label;
    Untrusted<int64_t> batch_size;
    Untrusted<int64_t> n_readers;
    Untrusted<int64_t> slots;  // of a reader
    Untrusted<int64_t> n_step;
    Untrusted<int64_t> mail_bytes;  // of a ring

    alignas(64) AwaitedBell loader_bell;        // there is mail; rung by readers
    alignas(64) Untrusted<uint32_t> is_closed;  // the loader's
};

// What a reader and the loader have of each other. Each place has one, and a reader takes the place whose lock it gets.
// Mail is counted in bytes from the first on, for ever. It is complete once `written` counts it, which is stored last:
// whoever dies before has not written it.
struct Mailbox {
    // The reader's.
    alignas(64) Untrusted<uint64_t> life;  // readers that took this place so far
    Untrusted<uint64_t> written;
    Untrusted<uint32_t> process;  // of the latest reader

    // The loader's.
    alignas(64) Untrusted<uint64_t> greeted;  // the life whose mail is taken: all slots of those before are back
    Untrusted<uint64_t> taken;
    Untrusted<uint64_t> answered;  // number of mail_ask answered; the latest answer follows
    Untrusted<uint32_t> is_cut_off;
    Untrusted<int32_t> status;  // a per_status
    Untrusted<int64_t> slot;    // where that is PER_OK
    char message[512];          // where it is not
    AwaitedBell bell;           // something of the above has changed
};

// What a reader tells.
enum MailKind : uint32_t {
    mail_ask = 1,    // it wants a batch; one at a time
    mail_release,    // of slot `number`
    mail_leave,      // of all slots, for good
    mail_td_errors,  // `number` ids, then n_critics * number * steps TD errors
    mail_priorities  // `number` ids, then as many priorities
};
inline constexpr uint32_t mail_kinds = 6;  // all kinds are below

struct Mail {
    uint32_t kind;
    uint32_t reserved;
    int64_t n_bytes;  // with this struct: a multiple of 8
    int64_t number;
    int64_t n_critics;
    int64_t n_steps;  // of each sequence; 0: all
};

// Bytes of the file that are locked: by the process of the loader, and from place_lock on by those of the readers.
enum ShareLock : int { loader_lock = 0, place_lock = 1 };

class BatchShare {
 public:
    // The loader's end. `fields` must outlive it. Throws Error with OUT_OF_MEMORY.
    BatchShare(const per_replay_options& options, const Fields& fields, const BatchShape& shape, int64_t n_readers,
               int64_t slots);
    // A reader's end. Throws Error for what per_reader_attach() says.
    BatchShare(const char* path, int descriptor);

    ShareHeader& header() const { return *reinterpret_cast<ShareHeader*>(memory_->data()); }
    Mailbox& mailbox(std::size_t place) const {
        return *reinterpret_cast<Mailbox*>(memory_->data() + mailboxes_ + place * sizeof(Mailbox));
    }
    const LabelledMemory& memory() const { return *memory_; }
    const ProcessFile& locks() const { return memory_->locks(); }
    const Fields& fields() const { return *fields_; }
    const per_replay_options& options() const { return options_; }
    const BatchShape& shape() const { return shape_; }
    std::size_t n_readers() const { return n_readers_; }
    int64_t slots_of_a_reader() const { return slots_; }
    std::size_t n_slots() const { return batches_.size(); }
    const per_batch& batch(std::size_t slot) const { return batches_[slot].batch(); }

    // The ring of that place, which begins again after so many bytes.
    std::size_t mail_bytes() const { return mail_bytes_; }
    void write_mail(std::size_t place, uint64_t at, const void* bytes, std::size_t n) const;
    void read_mail(std::size_t place, uint64_t at, void* bytes_out, std::size_t n) const;
    // How many values an id of a mail has.
    int64_t steps_of(const Mail& mail) const;
    // Of a mail for so many ids, with that kind, critics and steps. -1: no memory holds it.
    int64_t mail_size(const Mail& mail) const;
    // Most bytes of a mail with ids: there is room for all others besides.
    int64_t max_mail_size() const;

 private:
    std::size_t place(std::size_t first_byte);
    void make_batches();

    std::unique_ptr<LabelledMemory> memory_;
    const Fields* fields_;
    per_replay_options options_;
    BatchShape shape_;
    std::size_t n_readers_;
    int64_t slots_;
    std::size_t mail_bytes_;
    std::size_t mailboxes_ = 0;  // first bytes
    std::size_t mails_ = 0;
    std::size_t first_batch_ = 0;
    std::size_t batch_bytes_ = 0;
    std::vector<BatchArrays> batches_;
};

// The slots of a loader that draws into shared memory.
class SharedSlots final : public LoaderSlots {
 public:
    // `share` must outlive it.
    explicit SharedSlots(const BatchShare& share) : share_(share) {}

    OpenSlot open(std::size_t slot) override { return {share_.batch(slot), nullptr, nullptr}; }
    void send(std::size_t) override {}
    const per_batch& hand_out(std::size_t slot, void*) override { return share_.batch(slot); }
    void release(std::size_t, void*) override {}

 private:
    const BatchShare& share_;
};

}  // namespace per
