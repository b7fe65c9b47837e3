#include "process/reader.h"

#include <algorithm>
#include <cinttypes>

#include "base/arguments.h"
#include "base/error.h"
#include "core/checks.h"
#include "rules/td_error.h"
#include "system/process_number.h"

namespace per {

Reader::Reader(const char* path, int descriptor)
    : share_(path, descriptor), place_(0), box_(nullptr), is_out_(share_.n_slots(), 0) {
    check_open();
    while (place_ < share_.n_readers() && !share_.memory().locks().try_lock(lock_of_place(place_))) ++place_;
    if (place_ == share_.n_readers())
        throw Error(PER_ERROR_BUSY, "the shared loader has %zu readers already, as many as it has places for", place_);
    box_ = &share_.mailbox(place_);
    box_->process = process_number();
    life_ = ++box_->life;
    share_.header().loader_bell.ring();
}

Reader::~Reader() {
    if (mutex_.process().is_here()) detach();
}

const per_replay_options& Reader::describe() const {
    check_usable();
    const Guard guard(*mutex_);
    check_open();
    return share_.options();
}

int64_t Reader::next(const Deadline& deadline, per_batch& batch_out) {
    check_usable();
    Guard guard(*mutex_);
    wait_for_greeting(guard, deadline);
    if (!wait(guard, deadline, [&] { return is_answered(); })) {
        if (std::count(is_out_.begin(), is_out_.end(), 1) == share_.slots_of_a_reader())
            throw Error(PER_ERROR_BUSY, "no batch was there in time: as many are out as there are slots, %" PRId64,
                        share_.slots_of_a_reader());
        throw Error(PER_ERROR_BUSY, "no batch was there in time: the one that was asked for is for the next call");
    }
    is_asking_ = false;
    const auto status =
        static_cast<per_status>(share_.memory().read(box_->status, "a status", PER_OK, PER_ERROR_CALLBACK));
    if (status != PER_OK) {
        char message[sizeof box_->message];
        std::copy_n(box_->message, sizeof message, message);
        message[sizeof message - 1] = '\0';
        throw Error(status, "%s", message);
    }
    const int64_t slot =
        share_.memory().read(box_->slot, "the slot that was handed out", 0, static_cast<int64_t>(share_.n_slots()) - 1);
    uint8_t& is_out = is_out_[static_cast<std::size_t>(slot)];
    share_.memory().check<int>("the number of times that this slot is out already", is_out, 0, 0);
    try {
        batch_out = share_.read_batch(static_cast<std::size_t>(slot));
    } catch (...) {
        write(mail_release, slot);
        throw;
    }
    is_out = 1;
    return slot;
}

void Reader::release(int64_t slot) {
    check_usable();
    const Guard guard(*mutex_);
    check_open();
    if (slot < 0 || slot >= static_cast<int64_t>(share_.n_slots()) || is_out_[static_cast<std::size_t>(slot)] == 0)
        throw Error(PER_ERROR_INVALID_ARGUMENT, "slot is %" PRId64 ": allowed are those of batches that are out", slot);
    write(mail_release, slot);
    is_out_[static_cast<std::size_t>(slot)] = 0;
}

void Reader::update(const per_priorities& priorities, const Deadline& deadline) {
    check_usable();
    Guard guard(*mutex_);
    check_open();
    const ReplayUpdate update = resolve_priorities(priorities, share_.options());
    if (update.count == 0) return;
    const bool has_errors = update.td_errors != nullptr;
    Mail mail = {
        has_errors ? mail_td_errors : mail_priorities, 0, 0, update.count, update.n_critics, priorities.n_steps};
    mail.n_bytes = share_.mail_size(mail);
    if (mail.n_bytes < 0 || mail.n_bytes > share_.max_mail_size())
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "count is %" PRId64 ": ids and values of a call to a reader may take %" PRId64 " bytes",
                    mail.number, share_.max_mail_size() - static_cast<int64_t>(sizeof mail));
    check_values(update);
    wait_for_greeting(guard, deadline);
    const std::size_t reserved = share_.mail_bytes() - static_cast<std::size_t>(share_.max_mail_size());
    if (!wait(guard, deadline, [&] { return room() >= static_cast<std::size_t>(mail.n_bytes) + reserved; }))
        throw Error(PER_ERROR_BUSY, "%" PRIu64 " bytes of priorities that were sent are not in the buffer yet",
                    n_waiting());
    const void* const values = has_errors ? static_cast<const void*>(update.td_errors) : update.priorities;
    const auto n_values = update.count * update.n_critics * share_.steps_of(mail);
    write(mail, update.ids, values, static_cast<std::size_t>(n_values) * sizeof(float));
}

void Reader::flush(const Deadline& deadline) {
    check_usable();
    Guard guard(*mutex_);
    wait_for_greeting(guard, deadline);
    const uint64_t end = written_;
    if (!wait(guard, deadline, [&] { return n_waiting() <= written_ - end; }))
        throw Error(PER_ERROR_BUSY, "%" PRIu64 " bytes of priorities that were sent are not in the buffer yet",
                    n_waiting() - (written_ - end));
}

void Reader::stop() {
    check_usable();
    detach();
}

// ----------------------------------------------------------------------------------------------------------- checks

void Reader::check_usable() const {
    mutex_.process().check("reader was attached before a fork: it is the parent's");
}

void Reader::check_open() const {
    if (is_stopped_) throw Error(PER_ERROR_INVALID_ARGUMENT, "reader was stopped");
    share_.memory().check_open(share_.header().is_closed);
    if (box_ != nullptr && is_greeted_ && box_->is_cut_off.any() != 0)
        throw Error(PER_ERROR_CORRUPT_FILE, "the shared loader's memory is damaged: this reader was cut off");
}

// Makes those checks of the buffer that do not depend on its rows.
void Reader::check_values(const ReplayUpdate& update) const {
    const per_replay_options& options = share_.options();
    for (int64_t i = 0; i < update.count; ++i)
        if (update.ids[i] < -1) throw_negative_id(i, update.ids[i]);
    const bool has_errors = update.td_errors != nullptr;
    const bool depends_on_rows = has_errors && share_.shape().steps > 0;
    if (depends_on_rows || options.on_invalid != PER_INVALID_ERROR) return;
    for (int64_t i = 0; i < update.count; ++i) {
        const float p = has_errors ? td_error_priority(update.td_errors + i, update.n_critics, update.count,
                                                       options.critics, options.epsilon)
                                   : update.priorities[i];
        if (!is_priority(p)) throw_no_priority(i, p, has_errors);
    }
}

// ------------------------------------------------------------------------------------------------------------ waits

// Waits until is_over(). Returns false if the deadline passes first. The mutex is free meanwhile, so that other threads
// may release batches.
template <class IsOver>
bool Reader::wait(Guard& guard, const Deadline& deadline, IsOver is_over) {
    const auto await = [&] { return box_->bell.await(); };
    const auto is_open_and_over = [&] {
        check_open();
        return is_over();
    };
    return share_.memory().wait(guard, box_->bell.bell, deadline, await, is_open_and_over);
}

// Waits until the loader has taken back the slots of the previous reader at this place. Until then the reader must
// write nothing.
void Reader::wait_for_greeting(Guard& guard, const Deadline& deadline) {
    if (!is_greeted_ && !wait(guard, deadline, [&] { return is_greeted_ || box_->greeted.any() == life_; }))
        throw Error(PER_ERROR_BUSY, "the shared loader has not taken notice of this reader yet");
    if (is_greeted_) return;
    is_greeted_ = true;
    written_ = box_->taken.any();
    box_->written = written_;
    asked_ = box_->answered.any();
}

// True if the loader has answered the request for a batch. Makes the request first if there is none.
bool Reader::is_answered() {
    if (!is_asking_) {
        write(mail_ask);
        ++asked_;
        is_asking_ = true;
    }
    return share_.memory().read(box_->answered, "the number of answers", asked_ - 1, asked_) == asked_;
}

// ---------------------------------------------------------------------------------------------------------- writing

// Number of bytes that are written and not taken yet.
uint64_t Reader::n_waiting() const {
    return written_ -
           share_.memory().read(box_->taken, "the number of bytes taken", written_ - share_.mail_bytes(), written_);
}

std::size_t Reader::room() const {
    return share_.mail_bytes() - static_cast<std::size_t>(n_waiting());
}

// Publishes the mail once all of its bytes are written. If the process dies earlier, no mail was sent.
void Reader::write(const Mail& mail, const int64_t* ids, const void* values, std::size_t value_bytes) {
    const std::size_t id_bytes = ids != nullptr ? static_cast<std::size_t>(mail.number) * sizeof *ids : 0;
    share_.write_mail(place_, written_, &mail, sizeof mail);
    share_.write_mail(place_, written_ + sizeof mail, ids, id_bytes);
    share_.write_mail(place_, written_ + sizeof mail + id_bytes, values, value_bytes);
    written_ += static_cast<uint64_t>(mail.n_bytes);
    box_->written = written_;
    share_.header().loader_bell.ring();
}

// There is always room for a mail without ids.
void Reader::write(uint32_t kind, int64_t number) {
    write({kind, 0, sizeof(Mail), number, 1, 0}, nullptr, nullptr, 0);
}

// Waiting threads notice that the reader has ended when the loader answers the mail.
void Reader::detach() {
    const Guard guard(*mutex_);
    if (is_stopped_) return;
    is_stopped_ = true;
    if (is_greeted_) write(mail_leave);
    share_.memory().locks().unlock(lock_of_place(place_));
}

}  // namespace per
