// per_shared_loader: batches for readers in other processes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/replay.h"
#include "loader/loader.h"
#include "per.h"
#include "process/batch_share.h"
#include "threads/deadline.h"
#include "threads/own_thread.h"

namespace per {

// A loader whose slots lie in shared memory, and a thread that is its only consumer: it hands batches to readers, in
// the order of their requests.
//
// The shared memory is untrusted. The thread keeps the owner of each slot and the amount of mail taken in private
// memory, and copies a mail there before it reads it. It never reads a batch.
//
// A call such as a save may hold the buffer for long. The thread waits for the buffer only briefly at a time. Between
// these waits it does everything that does not need the buffer: it greets readers and takes slots back. A mail that has
// to wait delays later mails of the same reader, so that its calls stay in order.
class SharedLoader {
 public:
    // Throws Error; with BUSY if the buffer has a loader.
    SharedLoader(Replay& replay, const per_shared_loader_options& options);
    ~SharedLoader();
    SharedLoader(const SharedLoader&) = delete;
    SharedLoader& operator=(const SharedLoader&) = delete;

    Replay& replay() { return replay_; }
    const char* path() const;
    int32_t descriptor() const;
    per_shared_loader_statistics statistics() const;

 private:
    // A place for a reader, as the thread knows it.
    struct Place {
        bool is_taken = false;    // by a reader that was greeted
        bool is_cut_off = false;  // its mail was damaged
        bool is_gone = false;  // the reader has ended: its slots are back, and the rest of its mail is yet to be taken
        bool asks = false;
        uint64_t life = 0;
        uint64_t taken = 0;     // bytes of mail
        uint64_t answered = 0;  // mail_ask
        int64_t n_out = 0;
    };

    void check_usable() const;
    void close();
    void run();
    void serve_all();
    bool serve(const Deadline& deadline);
    void look_for_the_dead();
    void greet(std::size_t place, uint64_t life);
    bool take_mails(std::size_t place, const Deadline& deadline);
    bool take_mail(std::size_t place, uint64_t n_there, const Deadline& deadline);
    bool update(const Mail& mail, const Deadline& deadline);
    void give_back(std::size_t place, int64_t slot);
    void leave(std::size_t place);
    void let_go(std::size_t place);
    void cut_off(std::size_t place);
    bool answer_all(const Deadline& deadline);
    bool answer(std::size_t place, const Deadline& deadline);
    void tell(std::size_t place, per_status status, int64_t slot, const char* message);

    static constexpr std::size_t nobody = SIZE_MAX;

    Replay& replay_;
    const int64_t batch_size_;
    std::unique_ptr<BatchShare> share_;
    Loader loader_;
    std::atomic<bool> stopping_ = false;

    // Used by the thread only.
    std::vector<Place> places_;
    std::vector<std::size_t> holders_;  // by slot: its place
    std::vector<std::size_t> askers_;   // places, in the order of their requests
    std::vector<std::byte> mail_;       // ids and values of the current mail

    // Written by the thread, read by others.
    std::atomic<int64_t> n_handed_ = 0;
    std::atomic<int64_t> n_out_ = 0;
    std::atomic<int64_t> n_updates_ = 0;
    std::atomic<int64_t> n_refused_ = 0;
    std::atomic<int64_t> n_returned_ = 0;

    OwnThread thread_;
};

}  // namespace per
