#include "process/batch_share.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/overflow.h"
#include "rules/limits.h"

namespace per {
namespace {

constexpr MemoryKind share_kind = {"PER LOAD", 1, "shared loader", sizeof(ShareHeader), loader_lock};
// A ring always has room for the TD errors of a whole batch from this many critics.
constexpr int64_t critics_with_room = 16;
constexpr int64_t min_mail_bytes = int64_t{64} << 10;
constexpr std::size_t line = BatchArrays::alignment;

int64_t steps_of_sequence(const per_replay_options& options) {
    return options.sequence_length > 0 ? options.burn_in + options.sequence_length : 0;
}

}  // namespace

BatchShare::BatchShare(const per_replay_options& options, const Fields& fields, const BatchShape& shape,
                       int64_t n_readers, int64_t slots)
    : shape_(shape),
      n_readers_(static_cast<std::size_t>(n_readers)),
      slots_(slots),
      mail_bytes_(bytes_of_ring()),
      memory_(share_kind, options, fields, [&](std::size_t first_byte) { return place(first_byte, fields); }) {
    ShareHeader& made = header();
    made.batch_size = shape.batch_size;
    made.n_readers = n_readers;
    made.slots = slots;
    made.n_step = shape.n_step;
    made.mail_bytes = static_cast<int64_t>(mail_bytes_);
    make_batches();
}

BatchShare::BatchShare(const char* path, int descriptor) : memory_(share_kind, path, descriptor) {
    const ShareHeader& found = header();
    shape_ = {memory_.read(found.batch_size, "batch_size", 1, max_batch_size), steps_of_sequence(options()),
              memory_.read(found.n_step, "n_step", 1, max_n_step), options().keep_times_sampled != 0};
    n_readers_ = static_cast<std::size_t>(memory_.read(found.n_readers, "readers", 1, max_slots));
    slots_ = memory_.read(found.slots, "slots", 1, max_slots / static_cast<int64_t>(n_readers_));
    mail_bytes_ = static_cast<std::size_t>(
        memory_.read(found.mail_bytes, "the size of a ring", min_mail_bytes, INT64_MAX - min_mail_bytes));
    if (mail_bytes_ % line != 0) memory_.refuse("its rings have another size");
    if (place(memory_.first_byte(), fields()).n_bytes != memory_.n_bytes()) memory_.refuse("it has another size");
    make_batches();
}

std::size_t BatchShare::bytes_of_ring() const {
    const int64_t size = mail_size({mail_td_errors, 0, 0, shape_.batch_size, critics_with_room, 0});
    if (size < 0) throw_out_of_memory(SIZE_MAX);
    return line_after(static_cast<std::size_t>(min_mail_bytes), 1, static_cast<std::size_t>(size));
}

// Sets all offsets, and returns the sizes of the memory.
MemorySize BatchShare::place(std::size_t first_byte, const Fields& fields) {
    mailboxes_ = first_byte;
    mails_ = line_after(mailboxes_, n_readers_, sizeof(Mailbox));
    first_batch_ = line_after(mails_, n_readers_, mail_bytes_) + host_batch_offset;
    batch_bytes_ = BatchArrays::n_bytes(fields, shape_);
    first_values_ = line_after(first_batch_, n_slots(), batch_bytes_);
    std::size_t bytes_of_batch = 0;
    for (const Field& field : fields) {
        if (!field.is_ragged()) continue;
        const bool has_next = field.is_observation() && shape_.steps == 0;
        for (int n = has_next ? 2 : 1; n > 0; --n) bytes_of_batch = end_of_values(bytes_of_batch, field);
    }
    return {line_after(first_values_, n_slots(), bytes_of_batch), first_values_};
}

// Values of rows of any length that begin at that offset end at the returned one, however long the rows are.
std::size_t BatchShare::end_of_values(std::size_t first, const Field& field) const {
    return line_after(first + host_batch_offset, static_cast<std::size_t>(rows_of(field, shape_)),
                      static_cast<std::size_t>(field.max_length * field.bytes));
}

void BatchShare::make_batches() {
    batches_.reserve(n_slots());
    rows_.resize(n_slots());
    std::size_t first_value = first_values_;
    for (std::size_t i = 0; i < n_slots(); ++i) {
        batches_.emplace_back(fields(), shape_, memory_.data() + first_batch_ + i * batch_bytes_);
        for_each_ragged(batch(i), fields(), shape_,
                        [&](per_ragged& rows, const Field& field, const std::string&, int64_t n_rows) {
                            const std::size_t first = first_value + host_batch_offset;
                            const std::size_t most = static_cast<std::size_t>(n_rows * field.max_length * field.bytes);
                            rows.values = memory_.data() + first;
                            rows_[i].push_back({LatePart(first, most), rows.offsets, {}});
                            first_value = end_of_values(first_value, field);
                        });
    }
}

bool BatchShare::make_room(std::size_t slot) {
    bool had_too_little = false;
    auto own = rows_[slot].begin();
    for_each_ragged(batch(slot), fields(), shape_,
                    [&](per_ragged& rows, const Field& field, const std::string&, int64_t n_rows) {
                        LatePart& values = own++->values;
                        if (has_room(rows)) return;
                        had_too_little = true;
                        const int64_t n_values = std::min(room_for(rows), n_rows * field.max_length);
                        values.allocate(memory_.memory(), static_cast<std::size_t>(n_values * field.bytes));
                        rows.capacity = static_cast<int64_t>(values.n_allocated()) / field.bytes;
                    });
    return had_too_little;
}

const per_batch& BatchShare::read_batch(std::size_t slot) {
    auto own = rows_[slot].begin();
    for_each_ragged(batch(slot), fields(), shape_,
                    [&](per_ragged& rows, const Field& field, const std::string&, int64_t n_rows) {
                        std::vector<int64_t>& offsets = own->offsets;
                        offsets.assign(own->shared_offsets, own->shared_offsets + n_rows + 1);
                        ++own;
                        for (std::size_t i = 0; i < offsets.size(); ++i) {
                            const int64_t least = i == 0 ? 0 : offsets[i - 1];
                            const int64_t most = i == 0 ? 0 : least + field.max_length;
                            memory_.check("an offset", offsets[i], least, most);
                        }
                        rows.offsets = offsets.data();
                        rows.total = rows.capacity = offsets.back();
                    });
    return batch(slot);
}

void BatchShare::write_mail(std::size_t place, uint64_t at, const void* bytes, std::size_t n) const {
    std::byte* const ring = memory_.data() + mails_ + place * mail_bytes_;
    const std::size_t first = at % mail_bytes_, n_first = std::min(n, mail_bytes_ - first);
    if (n_first > 0) std::memcpy(ring + first, bytes, n_first);
    if (n_first < n) std::memcpy(ring, static_cast<const std::byte*>(bytes) + n_first, n - n_first);
}

void BatchShare::read_mail(std::size_t place, uint64_t at, void* bytes_out, std::size_t n) const {
    const std::byte* const ring = memory_.data() + mails_ + place * mail_bytes_;
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
    const int64_t steps = steps_of(mail);
    if (mail.number < 0 || mail.n_critics < 0 || steps < 0) return -1;
    const int64_t n_values = saturated_product(saturated_product(mail.number, mail.n_critics), steps);
    size = saturated_sum(size, saturated_product(mail.number, sizeof(int64_t)));
    size = saturated_sum(size, saturated_product(n_values, sizeof(float)));
    size = saturated_sum(size, 7);
    return size == INT64_MAX ? -1 : size / 8 * 8;
}

// Leaves room for the most mails without ids that a ring can hold: one that asks, one that leaves, and one for each
// batch that is out.
int64_t BatchShare::max_mail_size() const {
    return static_cast<int64_t>(mail_bytes_ - static_cast<std::size_t>(slots_ + 2) * sizeof(Mail));
}

}  // namespace per
