// A bell wakes the threads of its process that sleep on it. In a forked child those threads do not exist, and its copy
// of the bell works.
#include "threads/bell.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "threads/process_mark.h"

namespace per {
namespace {

using namespace std::chrono_literals;

// A sleep that no ring ends lasts longer than this, which ends the test.
constexpr unsigned most_seconds = 100;

class BellTest : public testing::Test {
 protected:
    void SetUp() override { alarm(most_seconds); }
    void TearDown() override { alarm(0); }
};

TEST_F(BellTest, wakes_all_threads_that_sleep) {
    Bell bell;
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i)
        threads.emplace_back([&bell, seen = bell.count.load()] {
            while (bell.count == seen) bell.sleep(seen, 1h);
        });
    std::this_thread::sleep_for(1ms);
    bell.ring();
    for (std::thread& thread : threads) thread.join();
}

TEST_F(BellTest, keeps_nobody_asleep_that_it_has_rung_for) {
    Bell bell;
    const uint32_t seen = bell.count;
    bell.ring();
    bell.sleep(seen, 1h);
}

TEST_F(BellTest, ends_a_sleep_at_its_time) {
    Bell bell;
    const auto began = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - began < 5ms) bell.sleep(bell.count, 5ms);
    bell.sleep(bell.count, -1ms);
}

TEST_F(BellTest, is_not_rung_if_nobody_waits) {
    static std::atomic<int> n_rings;
    n_rings = 0;
    at_bell_ring = [] { ++n_rings; };
    Awaited<Bell> bell;
    bell.ring();
    EXPECT_EQ(n_rings, 0);
    const uint32_t seen = bell.await();
    bell.ring();
    bell.ring();
    EXPECT_EQ(n_rings, 1);
    bell.bell.sleep(seen, 1h);
    at_bell_ring = nullptr;
}

// Destroying the inherited condition variable, instead of replacing it, would wait for the thread that sleeps in the
// parent.
TEST_F(BellTest, works_in_a_forked_child_whoever_sleeps_on_it_in_the_parent) {
    auto bell = std::make_unique<Bell>();
    const uint32_t seen = bell->count;
    std::thread sleeper([&] {
        while (bell->count == seen) bell->sleep(seen, 1h);
    });
    for (int i = 0; i < 10; ++i) {
        std::this_thread::sleep_for(1ms);
        const pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            alarm(20);
            bell->ring();
            bell->sleep(seen, 1h);
            bell->sleep(bell->count, 1ms);
            bell.reset();
            _exit(0);
        }
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << i;
    }
    bell->ring();
    sleeper.join();
}

TEST(OfOneProcess, is_neither_used_nor_freed_in_a_forked_child) {
    struct Ended {
        ~Ended() { _exit(1); }
    };
    static auto* const object = new OfOneProcess<Ended>();  // must not be freed
    EXPECT_TRUE(object->process().is_here());
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        const bool is_here = object->process().is_here();
        delete object;
        _exit(is_here ? 2 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace per
