#include "threads/worker_threads.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <optional>
#include <vector>

#include "threads/handle_lock.h"

namespace per::cpu {
namespace {

std::vector<pthread_t> threads_of_parts(WorkerThreads& workers, int64_t n_parts) {
    std::vector<pthread_t> threads(static_cast<std::size_t>(n_parts));
    workers.run(n_parts, [&](int64_t i) { threads[static_cast<std::size_t>(i)] = pthread_self(); });
    return threads;
}

// The worker's locals are slow to destroy, so the test notices if the thread is not joined.
TEST(WorkerThreads, have_ended_when_their_owner_has) {
    static std::atomic<int> n_ended;
    struct SlowEnd {
        bool is_of_worker = false;
        ~SlowEnd() {
            if (!is_of_worker) return;
            usleep(100'000);
            ++n_ended;
        }
    };
    n_ended = 0;
    {
        WorkerThreads workers(3);
        workers.run(3, [](int64_t i) {
            thread_local SlowEnd end;
            end.is_of_worker = i > 0;
        });
        EXPECT_EQ(n_ended, 0);
    }
    EXPECT_EQ(n_ended, 2);
}

TEST(WorkerThreads, each_part_runs_once_on_a_thread_of_its_own) {
    WorkerThreads workers(4);
    const std::vector<pthread_t> first = threads_of_parts(workers, 4);
    EXPECT_TRUE(pthread_equal(first[0], pthread_self()));
    for (std::size_t i = 0; i < 4; ++i)
        for (std::size_t k = 0; k < i; ++k) EXPECT_FALSE(pthread_equal(first[i], first[k]));
    for (int64_t n_parts = 1; n_parts <= 4; ++n_parts) {
        std::array<std::atomic<int>, 4> runs = {};
        workers.run(n_parts, [&](int64_t i) { ++runs[static_cast<std::size_t>(i)]; });
        for (int64_t i = 0; i < 4; ++i)
            EXPECT_EQ(runs[static_cast<std::size_t>(i)], i < n_parts) << n_parts << " " << i;
        EXPECT_TRUE(threads_of_parts(workers, n_parts).back() == first[static_cast<std::size_t>(n_parts - 1)]);
    }
}

// The handlers of Julia and Python must run on threads of the program, and the caller's handlers must not change.
TEST(WorkerThreads, signals_are_blocked_on_them_and_not_on_the_caller) {
    sigset_t before;
    sigset_t of_worker;
    sigset_t after;
    pthread_sigmask(SIG_SETMASK, nullptr, &before);
    WorkerThreads workers(2);
    workers.run(2, [&](int64_t i) {
        if (i == 1) pthread_sigmask(SIG_SETMASK, nullptr, &of_worker);
    });
    pthread_sigmask(SIG_SETMASK, nullptr, &after);
    for (const int number : {SIGINT, SIGTERM, SIGCHLD, SIGUSR1, SIGALRM}) {
        EXPECT_EQ(sigismember(&of_worker, number), 1) << number;
        EXPECT_EQ(sigismember(&after, number), sigismember(&before, number)) << number;
        EXPECT_EQ(sigismember(&before, number), 0) << number;
    }
}

// The parent's threads do not exist in the child, so they neither work nor delay anything.
TEST(WorkerThreads, a_forked_child_starts_its_own) {
    const HandleLock lock;  // every handle has one; the first one registers the fork handlers
    for (const int64_t n : {2, 3}) {
        for (const bool has_work : {true, false}) {
            std::optional<WorkerThreads> workers(std::in_place, n);
            threads_of_parts(*workers, n);
            const pid_t child = fork();
            ASSERT_GE(child, 0);
            if (child == 0) {
                alarm(20);
                bool are_apart = true;
                if (has_work) {
                    const std::vector<pthread_t> threads = threads_of_parts(*workers, n);
                    are_apart = pthread_equal(threads[0], pthread_self()) != 0;
                    for (std::size_t i = 1; i < threads.size(); ++i)
                        are_apart &= threads[i] != pthread_t{} && pthread_equal(threads[i], pthread_self()) == 0;
                }
                workers.reset();
                _exit(are_apart ? 0 : 1);
            }
            int status = 0;
            ASSERT_EQ(waitpid(child, &status, 0), child);
            EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << n << " " << has_work;
        }
    }
}

// A stack as large as the address space cannot be allocated: no thread starts until the default size is restored.
TEST(WorkerThreads, parts_of_threads_that_cannot_start_are_done_by_the_caller) {
    pthread_attr_t usual;
    ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
    pthread_attr_t endless = usual;
    ASSERT_EQ(pthread_attr_setstacksize(&endless, std::size_t{1} << 47), 0);
    ASSERT_EQ(pthread_setattr_default_np(&endless), 0);
    std::optional<WorkerThreads> workers(std::in_place, 3);
    const std::vector<pthread_t> alone = threads_of_parts(*workers, 3);
    EXPECT_EQ(pthread_setattr_default_np(&usual), 0);
    for (const pthread_t thread : alone) EXPECT_TRUE(pthread_equal(thread, pthread_self()));
    const std::vector<pthread_t> together = threads_of_parts(*workers, 3);
    for (std::size_t i = 1; i < 3; ++i) EXPECT_FALSE(pthread_equal(together[i], pthread_self()));
    workers.reset();
    WorkerThreads(3);  // its threads were never started
}

}  // namespace
}  // namespace per::cpu
