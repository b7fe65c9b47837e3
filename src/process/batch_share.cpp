#include "process/batch_share.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "rules/limits.h"

namespace per {
namespace {

constexpr MemoryKind share_kind = {"PER LOAD", 1, "shared loader", sizeof(ShareHeader)};
// An update of a batch by so many critics finds room in any case.
constexpr int64_t critics_with_room = 16;
constexpr int64_t min_mail_bytes = int64_t{64} << 10;
constexpr std::size_t line = BatchArrays::alignment;

int64_t sum(int64_t a, int64_t b) {
    int64_t result;
    return a < 0 || b < 0 || __builtin_add_overflow(a, b, &result) ? -1 : result;
}

int64_t product(int64_t a, int64_t b) {
    int64_t result;
    return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &result) ? -1 : result;
}

// Rounded up, or beyond all memory.
std::size_t end_after(std::size_t first, std::size_t count, std::size_t bytes) {
    std::size_t end;
    if (__builtin_mul_overflow(count, bytes, &end) || __builtin_add_overflow(first, end, &end) ||
        end > INT64_MAX - line)
        throw_out_of_memory(SIZE_MAX);
    return (end + line - 1) / line * line;
}

int64_t steps_of_sequence(const per_replay_options& options) {
    return options.sequence_length > 0 ? options.burn_in + options.sequence_length : 0;
}

}  // namespace

BatchShare::BatchShare(const per_replay_options& options, const Fields& fields, const BatchShape& shape,
                       int64_t n_readers, int64_t slots)
    : fields_(&fields),
      options_(options),
      shape_(shape),
      n_readers_(static_cast<std::size_t>(n_readers)),
      slots_(slots),
      mail_bytes_(0) {
    const int64_t size = mail_size({mail_td_errors, 0, 0, shape.batch_size, critics_with_room, 0});
    if (size < 0) throw_out_of_memory(SIZE_MAX);
    mail_bytes_ = end_after(static_cast<std::size_t>(min_mail_bytes), 1, static_cast<std::size_t>(size));
    memory_ = std::make_unique<LabelledMemory>(share_kind, options,
                                               [&](std::size_t first_byte) { return place(first_byte); });
    ShareHeader& made = header();
    made.batch_size = shape.batch_size;
    made.n_readers = n_readers;
    made.slots = slots;
    made.n_step = shape.n_step;
    made.mail_bytes = static_cast<int64_t>(mail_bytes_);
    make_batches();
    if (!locks().try_lock(loader_lock)) throw Error(PER_ERROR_INTERNAL, "the lock of a loader cannot be taken");
}

BatchShare::BatchShare(const char* path, int descriptor)
    : memory_(std::make_unique<LabelledMemory>(share_kind, path, descriptor)),
      fields_(&memory_->fields()),
      options_(memory_->options()) {
    const ShareHeader& found = header();
    shape_ = {memory_->read(found.batch_size, "batch_size", 1, max_batch_size), steps_of_sequence(options_),
              memory_->read(found.n_step, "n_step", 1, max_n_step), options_.keep_times_sampled != 0};
    n_readers_ = static_cast<std::size_t>(memory_->read(found.n_readers, "readers", 1, max_slots));
    slots_ = memory_->read(found.slots, "slots", 1, max_slots);
    mail_bytes_ = static_cast<std::size_t>(
        memory_->read(found.mail_bytes, "the size of a ring", min_mail_bytes, INT64_MAX - min_mail_bytes));
    if (mail_bytes_ % line != 0) memory_->refuse("its rings have another size");
    if (place(memory_->first_byte()) != memory_->n_bytes()) memory_->refuse("it has another size");
    make_batches();
}

// Decides where everything lies, and returns the end.
std::size_t BatchShare::place(std::size_t first_byte) {
    mailboxes_ = first_byte;
    mails_ = end_after(mailboxes_, n_readers_, sizeof(Mailbox));
    first_batch_ = end_after(mails_, n_readers_, mail_bytes_) + host_batch_offset;
    batch_bytes_ = BatchArrays::n_bytes(*fields_, shape_);
    return end_after(first_batch_, n_readers_ * static_cast<std::size_t>(slots_) + 1, batch_bytes_);
}

void BatchShare::make_batches() {
    const std::size_t n = n_readers_ * static_cast<std::size_t>(slots_) + 1;
    batches_.reserve(n);
    for (std::size_t i = 0; i < n; ++i)
        batches_.emplace_back(*fields_, shape_, memory_->data() + first_batch_ + i * batch_bytes_);
}

void BatchShare::write_mail(std::size_t place, uint64_t at, const void* bytes, std::size_t n) const {
    std::byte* const ring = memory_->data() + mails_ + place * mail_bytes_;
    const std::size_t first = at % mail_bytes_, n_first = std::min(n, mail_bytes_ - first);
    if (n_first > 0) std::memcpy(ring + first, bytes, n_first);
    if (n_first < n) std::memcpy(ring, static_cast<const std::byte*>(bytes) + n_first, n - n_first);
}

void BatchShare::read_mail(std::size_t place, uint64_t at, void* bytes_out, std::size_t n) const {
    const std::byte* const ring = memory_->data() + mails_ + place * mail_bytes_;
    const std::size_t first = at % mail_bytes_, n_first = std::min(n, mail_bytes_ - first);
    if (n_first > 0) std::memcpy(bytes_out, ring + first, n_first);
    if (n_first < n) std::memcpy(static_cast<std::byte*>(bytes_out) + n_first, ring, n - n_first);
}

int64_t BatchShare::steps_of(const Mail& mail) const {
    if (mail.kind != mail_td_errors) return 1;
    return mail.n_steps != 0 ? mail.n_steps : std::max<int64_t>(shape_.steps, 1);
}

int64_t BatchShare::mail_size(const Mail& mail) const {
    int64_t size = sizeof(Mail);
    if (mail.kind != mail_td_errors && mail.kind != mail_priorities) return size;
    size = sum(size, product(mail.number, sizeof(int64_t)));
    size = sum(size, product(product(product(mail.number, mail.n_critics), steps_of(mail)), sizeof(float)));
    size = sum(size, 7);
    return size < 0 ? -1 : size / 8 * 8;
}

// Of those without ids there are at most one that asks, one that leaves, and one for each batch that is out.
int64_t BatchShare::max_mail_size() const {
    return static_cast<int64_t>(mail_bytes_ - static_cast<std::size_t>(slots_ + 2) * sizeof(Mail));
}

}  // namespace per
