// per_shared_loader: batches for readers in other processes.
#pragma once

#include <pthread.h>

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

namespace per {

// A loader whose slots lie in shared memory, and the thread that is its one consumer: it hands batches on to readers,
// in the order in which they asked.
//
// The shared memory is untrusted. The thread itself keeps the owner of each slot and the amount of mail taken, and copies
// a mail into private memory before it looks at it. It never reads a batch.
//
// A call such as a save may hold the buffer for long. The thread waits for it a moment at a time, and meanwhile does
// everything that needs no buffer: it greets readers and takes slots back. A mail that has to wait delays those behind
// it, so a reader's calls stay in order.
class SharedLoader {
 public:
    // Throws Error; with BUSY if the buffer has a loader.
    SharedLoader(Replay& replay, const per_shared_loader_options& options);
    ~SharedLoader();
    SharedLoader(const SharedLoader&) = delete;
    SharedLoader& operator=(const SharedLoader&) = delete;

    const char* path() const;
    int32_t descriptor() const;
    per_shared_loader_statistics statistics() const;

 private:
    // What the thread knows of a reader.
    struct Place {
        bool is_taken = false;    // by a reader that was greeted
        bool is_cut_off = false;  // as its mail was none that a reader writes
        bool is_gone = false;     // the reader; its slots are back, and its mail is still to be taken
        bool asks = false;
        uint64_t life = 0;
        uint64_t taken = 0;     // bytes of mail
        uint64_t answered = 0;  // mail_ask
        int64_t n_out = 0;
    };

    void check_usable() const;
    void start_thread();
    void stop();
    void close();
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
    const uint64_t process_;  // HandleLock::process() of the process that has the thread
    pthread_t thread_;
    std::atomic<bool> stopping_ = false;

    // The thread's.
    std::vector<Place> places_;
    std::vector<std::size_t> holders_;  // by slot: the place that has it
    std::vector<std::size_t> askers_;   // places, in the order in which they asked
    std::vector<std::byte> mail_;       // the ids and values of one

    // The thread's; others read.
    std::atomic<int64_t> n_handed_ = 0;
    std::atomic<int64_t> n_out_ = 0;
    std::atomic<int64_t> n_updates_ = 0;
    std::atomic<int64_t> n_refused_ = 0;
    std::atomic<int64_t> n_returned_ = 0;
};

}  // namespace per
