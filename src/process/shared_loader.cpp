#include "process/shared_loader.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "backend/replay_options.h"
#include "base/arguments.h"
#include "base/error.h"
#include "base/guarded.h"
#include "rules/limits.h"

namespace per {
namespace {

// The thread waits this long for the buffer before it checks all readers again.
constexpr int64_t patience_ms = 50;

per_loader_options checked_options(Replay& replay, const per_shared_loader_options& options) {
    if (replay.device() != PER_CPU)
        throw Error(PER_ERROR_UNSUPPORTED, "the buffer is on PER_CUDA: a shared loader is for buffers on PER_CPU");
    check_range("readers", options.readers, 1, max_slots);
    check_range("slots", options.slots, 1, max_slots);
    if (options.slots > max_slots / options.readers)
        throw Error(PER_ERROR_INVALID_ARGUMENT,
                    "slots is %" PRId64 ": allowed are 1 .. %" PRId64 " with %" PRId64 " readers", options.slots,
                    max_slots / options.readers, options.readers);
    per_loader_options loader = default_loader_options;
    loader.batch_size = options.batch_size;
    loader.slots = options.readers * options.slots;
    loader.sample = options.sample;
    return loader;
}

// The options that readers describe.
per_replay_options options_of_readers(Replay& replay, const BatchShape& shape) {
    per_replay_options options = replay.describe();
    options.n_step = shape.n_step;
    options.save_compression = 0;
    options.rate_limit = {};
    return options;
}

}  // namespace

SharedLoader::SharedLoader(Replay& replay, const per_shared_loader_options& options)
    : replay_(replay),
      batch_size_(options.batch_size),
      loader_(replay, checked_options(replay, options),
              [&](const BatchShape& shape, std::size_t) {
                  share_ = std::make_unique<BatchShare>(options_of_readers(replay, shape), replay.fields(), shape,
                                                        options.readers, options.slots);
                  return std::make_unique<SharedSlots>(*share_);
              }),
      places_(share_->n_readers()),
      holders_(share_->n_slots(), nobody) {
    askers_.reserve(places_.size());
    mail_.resize(static_cast<std::size_t>(share_->max_mail_size()));
    thread_.start<&SharedLoader::run>(*this, "loader");
    loader_.begin();  // last, as draws count even if something else fails here
}

SharedLoader::~SharedLoader() {
    if (thread_.is_running()) {
        stopping_ = true;
        share_->header().loader_bell.bell.ring();
        thread_.join();
    }
    static_cast<void>(guarded([&] { replay_.stop_listening(); }));
}

const char* SharedLoader::path() const {
    check_usable();
    return share_->memory().path().c_str();
}

int32_t SharedLoader::descriptor() const {
    check_usable();
    return share_->memory().descriptor();
}

per_shared_loader_statistics SharedLoader::statistics() const {
    check_usable();
    per_shared_loader_statistics statistics = default_shared_loader_statistics;
    uint64_t n_lives = 0;
    statistics.places = static_cast<int64_t>(share_->n_readers());
    for (std::size_t i = 0; i < share_->n_readers(); ++i) {
        statistics.attached += share_->memory().locks().is_locked(lock_of_place(i)) ? 1 : 0;
        n_lives += share_->mailbox(i).life.any();
    }
    statistics.readers = static_cast<int64_t>(n_lives & INT64_MAX);
    statistics.handed = n_handed_;
    statistics.out = n_out_;
    statistics.returned = n_returned_;
    statistics.updates = n_updates_;
    statistics.refused = n_refused_;
    return statistics;
}

void SharedLoader::check_usable() const {
    thread_.process().check("loader was created before a fork: the thread that hands out batches is in the parent");
}

// ------------------------------------------------------------------------------------------------------- the thread

void SharedLoader::run() {
    static_cast<void>(guarded([&] { serve_all(); }));
    close();
}

void SharedLoader::serve_all() {
    using Clock = std::chrono::steady_clock;
    Awaited<SharedBell>& bell = share_->header().loader_bell;
    Clock::time_point next_look = Clock::now() + longest_sleep;
    while (!stopping_) {
        const uint32_t seen = bell.await();
        if (Clock::now() >= next_look) {
            look_for_the_dead();
            next_look = Clock::now() + longest_sleep;
        }
        const bool has_more = serve(Deadline(patience_ms));
        if (!has_more && !stopping_) bell.bell.sleep(seen, longest_sleep);
    }
    serve(Deadline::never());
}

// Wakes the readers that wait.
void SharedLoader::close() {
    share_->header().is_closed = 1;
    for (std::size_t i = 0; i < places_.size(); ++i) share_->mailbox(i).bell.bell.ring();
}

// Returns true if there may be more to do at once. The mail of a reader is taken before its place is given to another
// reader.
bool SharedLoader::serve(const Deadline& deadline) {
    bool has_more = false;
    for (std::size_t i = 0; i < places_.size(); ++i) {
        const uint64_t life = share_->mailbox(i).life.any();
        const bool is_followed = life != places_[i].life;
        if (is_followed) leave(i);
        if (!take_mails(i, deadline)) {
            has_more = true;
            continue;
        }
        if (places_[i].is_gone) let_go(i);
        if (is_followed) greet(i, life);
    }
    return answer_all(deadline) || has_more;
}

// The lock of a place is free if its reader has died.
void SharedLoader::look_for_the_dead() {
    for (std::size_t i = 0; i < places_.size(); ++i)
        if (places_[i].is_taken && !share_->memory().locks().is_locked(lock_of_place(i))) leave(i);
}

// ------------------------------------------------------------------------------------------------------------- mail

void SharedLoader::greet(std::size_t i, uint64_t life) {
    Mailbox& box = share_->mailbox(i);
    places_[i].is_taken = true;
    places_[i].life = life;
    box.greeted = life;
    box.bell.ring();
}

// Takes the mails of a reader, in order. Returns false if one has to wait for the buffer: that mail and those behind it
// are taken later.
bool SharedLoader::take_mails(std::size_t i, const Deadline& deadline) {
    Place& place = places_[i];
    Mailbox& box = share_->mailbox(i);
    const uint64_t written = box.written.any();
    if (!place.is_taken || place.is_cut_off || written == place.taken) return true;
    if (written - place.taken > share_->mail_bytes()) {
        cut_off(i);
        return true;
    }
    bool has_all = true;
    while (has_all && place.is_taken && !place.is_cut_off && place.taken != written)
        has_all = take_mail(i, written - place.taken, deadline);
    box.bell.ring();
    return has_all;
}

// Takes the next mail, of which n_there bytes have arrived. Returns false if it has to wait for the buffer.
bool SharedLoader::take_mail(std::size_t i, uint64_t n_there, const Deadline& deadline) {
    Place& place = places_[i];
    Mail mail = {};
    if (n_there >= sizeof mail) share_->read_mail(i, place.taken, &mail, sizeof mail);
    const bool names_steps = mail.kind == mail_td_errors && share_->shape().steps > 0;
    const bool has_steps =
        mail.n_steps == 0 ||
        (names_steps && (mail.n_steps == share_->shape().steps || mail.n_steps == share_->options().sequence_length));
    const bool has_one_critic = mail.kind == mail_td_errors || mail.n_critics == 1;
    bool is_known = mail.kind != 0 && mail.kind < mail_kinds && has_steps && has_one_critic &&
                    mail.n_bytes == share_->mail_size(mail) && mail.n_bytes <= share_->max_mail_size() &&
                    static_cast<uint64_t>(mail.n_bytes) <= n_there;
    if (is_known && !place.is_gone) {
        if (mail.kind == mail_ask) is_known = !place.asks;
        if (mail.kind == mail_release)
            is_known = mail.number >= 0 && mail.number < static_cast<int64_t>(holders_.size()) &&
                       holders_[static_cast<std::size_t>(mail.number)] == i;
    }
    if (!is_known) {
        cut_off(i);
        return true;
    }
    switch (mail.kind) {
        case mail_ask:
            if (place.is_gone) break;
            place.asks = true;
            askers_.push_back(i);
            break;
        case mail_release:
            if (!place.is_gone) give_back(i, mail.number);
            break;
        case mail_leave:
            let_go(i);
            return true;
        default:
            share_->read_mail(i, place.taken + sizeof mail, mail_.data(),
                              static_cast<std::size_t>(mail.n_bytes) - sizeof mail);
            if (!update(mail, deadline)) return false;
    }
    place.taken += static_cast<uint64_t>(mail.n_bytes);
    share_->mailbox(i).taken = place.taken;
    return true;
}

// Counts an update that the buffer refuses. Returns false if other calls hold the buffer beyond the deadline.
bool SharedLoader::update(const Mail& mail, const Deadline& deadline) {
    per_priorities priorities = default_priorities;
    priorities.count = mail.number;
    priorities.ids = reinterpret_cast<const int64_t*>(mail_.data());
    const auto* const values = reinterpret_cast<const float*>(priorities.ids + mail.number);
    (mail.kind == mail_td_errors ? priorities.td_errors : priorities.priorities) = values;
    priorities.n_critics = mail.n_critics;
    priorities.n_steps = mail.n_steps;
    const per_status status = guarded([&] { replay_.update(priorities, deadline, nullptr); });
    if (status == PER_ERROR_BUSY) return false;
    ++(status == PER_OK ? n_updates_ : n_refused_);
    return true;
}

void SharedLoader::give_back(std::size_t i, int64_t slot) {
    loader_.release(slot, nullptr);
    holders_[static_cast<std::size_t>(slot)] = nobody;
    --places_[i].n_out;
    --n_out_;
}

// Called when a reader has ended. Takes back its slots, and drops its request. The rest of its mail is still taken, but
// releases no slots.
void SharedLoader::leave(std::size_t i) {
    for (std::size_t slot = 0; slot < holders_.size(); ++slot) {
        if (holders_[slot] != i) continue;
        give_back(i, static_cast<int64_t>(slot));
        ++n_returned_;
    }
    askers_.erase(std::remove(askers_.begin(), askers_.end(), i), askers_.end());
    places_[i].asks = false;
    places_[i].is_gone = true;
}

// Frees the place for another reader.
void SharedLoader::let_go(std::size_t i) {
    Place& place = places_[i];
    Mailbox& box = share_->mailbox(i);
    leave(i);
    place.is_taken = place.is_cut_off = place.is_gone = false;
    place.taken = box.written.any();
    box.taken = place.taken;
    box.answered = place.answered;
    box.is_cut_off = 0;
}

// Takes no more mail from a reader whose mail is damaged. It keeps its slots until it ends: another process may have
// done the damage, and the reader may still read its batches.
void SharedLoader::cut_off(std::size_t i) {
    Mailbox& box = share_->mailbox(i);
    places_[i].is_cut_off = true;
    places_[i].asks = false;
    askers_.erase(std::remove(askers_.begin(), askers_.end(), i), askers_.end());
    box.is_cut_off = 1;
    box.bell.bell.ring();
}

// ---------------------------------------------------------------------------------------------------------- answers

// Answers the requests of all readers, except those that hold as many batches as they may: they must release one first.
// Returns true if there may be more to do at once.
bool SharedLoader::answer_all(const Deadline& deadline) {
    for (std::size_t k = 0; k < askers_.size() && !stopping_;) {
        const std::size_t i = askers_[k];
        if (places_[i].n_out == share_->slots_of_a_reader()) {
            ++k;
            continue;
        }
        if (!answer(i, deadline))
            return replay_.allows_draw_or_calls(
                batch_size_, [share = share_.get()] { share->header().loader_bell.bell.ring(); }, deadline);
        places_[i].asks = false;
        askers_.erase(askers_.begin() + static_cast<std::ptrdiff_t>(k));
    }
    return false;
}

// Returns false if the rate limiter does not allow a draw yet, or the batch is not drawn by the deadline.
bool SharedLoader::answer(std::size_t i, const Deadline& deadline) {
    per_batch batch;
    int64_t slot = -1;
    const per_status status = guarded([&] { slot = loader_.next(deadline, batch, nullptr); });
    if (status == PER_ERROR_BUSY) return false;
    if (status == PER_OK) {
        holders_[static_cast<std::size_t>(slot)] = i;
        ++places_[i].n_out;
        ++n_out_;
        ++n_handed_;
    }
    tell(i, status, slot, status == PER_OK ? "" : last_error());
    return true;
}

void SharedLoader::tell(std::size_t i, per_status status, int64_t slot, const char* message) {
    Mailbox& box = share_->mailbox(i);
    box.status = status;
    box.slot = slot;
    std::snprintf(box.message, sizeof box.message, "%s", message);
    box.answered = ++places_[i].answered;
    box.bell.ring();
}

}  // namespace per
