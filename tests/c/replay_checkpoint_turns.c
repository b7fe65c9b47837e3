/*
 * A process that holds the lock of a directory for ever delays checkpoints and loads until their timeout; the error
 * then names the directory. Other calls on the buffer, and fork(), do not wait. A child that is forked during a load
 * does not hold the lock.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoints.h"
#include "posix_check.h"
#include "replay_check.h"
#include "thread_check.h"

static char folder[] = "/tmp/per-turns-XXXXXX";

/* Number of requests of the library for a lock. */
static int n_locks;

int flock(int file, int operation) {
    __atomic_add_fetch(&n_locks, 1, __ATOMIC_RELAXED);
    return (int)syscall(SYS_flock, file, operation);
}

/* Another process opens the directory and locks it. */
static int locked_by_another(int operation) {
    const int lock = open(folder, O_RDONLY | O_CLOEXEC);
    CHECK(lock >= 0 && syscall(SYS_flock, lock, operation) == 0);
    return lock;
}

static per_replay* buffer_of(int n) {
    per_replay* const replay = create_plain(100, 1);
    for (int t = 0; t < n; ++t) add_step(replay, 0, (float)t, 0);
    return replay;
}

static void who_does_not_wait_is_busy_at_once(void) {
    per_replay* const replay = buffer_of(5);
    per_replay* loaded = NULL;
    int64_t written = -7;
    int lock = locked_by_another(LOCK_SH);
    CHECK_FAILS(checkpoint_within(replay, folder, 0, &written), PER_ERROR_BUSY, folder);
    CHECK_FAILS(checkpoint_within(replay, folder, 20, &written), PER_ERROR_BUSY, folder);
    CHECK(written == -7);
    CHECK_REFUSED(checkpoint_within(replay, folder, -2, NULL), "timeout_ms is -2");
    close(lock);
    CHECK_OK(checkpoint_within(replay, folder, 0, &written));
    CHECK(written > 0);
    per_load_options place = default_load_options();
    CHECK(place.timeout_ms == PER_DIRECTORY_TIMEOUT_MS);
    place.timeout_ms = 0;
    lock = locked_by_another(LOCK_SH);
    CHECK_OK(per_replay_load(folder, &place, &loaded));
    CHECK(live_of(loaded) == live_of(replay));
    per_replay_free(loaded);
    close(lock);
    lock = locked_by_another(LOCK_EX);
    CHECK_FAILS(per_replay_load(folder, &place, &loaded), PER_ERROR_BUSY, folder);
    CHECK(loaded == NULL);
    close(lock);
    per_replay_free(replay);
}

static void* checkpoint_for_as_long_as_it_takes(void* replay) {
    CHECK_OK(checkpoint_within(replay, folder, -1, NULL));
    return NULL;
}

static void other_calls_and_forks_do_not_wait(void) {
    per_replay* const replay = buffer_of(5);
    per_replay* loaded = NULL;
    const int lock = locked_by_another(LOCK_EX);
    const int64_t live = live_of(replay);
    int status = -1;
    __atomic_store_n(&n_locks, 0, __ATOMIC_RELAXED);
    pthread_t thread = start_thread(checkpoint_for_as_long_as_it_takes, replay);
    while (__atomic_load_n(&n_locks, __ATOMIC_RELAXED) == 0) usleep(1000);
    add_step(replay, 0, 5, 0); /* included in the checkpoint, which has not begun */
    CHECK(live_of(replay) == live + 1);
    pid_t child = start_child();
    if (child == 0) {
        add_step(replay, 0, 6, 0);
        _exit(live_of(replay) == live + 2 ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    close(lock);
    join_thread(thread);
    CHECK_OK(per_replay_load(folder, NULL, &loaded));
    CHECK(live_of(loaded) == live + 1);
    free_both(loaded, replay);
}

static pid_t forked;

/* Called while the directory is locked. */
static void* fork_and_allocate(void* context, int64_t bytes, int64_t alignment, int32_t use) {
    (void)context, (void)use;
    if (forked < 0) forked = fork();
    if (forked == 0) {
        alarm(60);
        pause();
        _exit(0);
    }
    return aligned_alloc((size_t)alignment, (size_t)bytes);
}

static void deallocate(void* context, void* memory, int64_t bytes, int32_t use) {
    (void)context, (void)bytes, (void)use;
    free(memory);
}

static void a_child_forked_during_a_load_holds_nothing(void) {
    per_replay* const replay = buffer_of(5);
    per_replay* loaded = NULL;
    per_load_options place = default_load_options();
    place.memory.allocate = fork_and_allocate;
    place.memory.deallocate = deallocate;
    forked = -1;
    CHECK_OK(per_replay_load(folder, &place, &loaded));
    CHECK(forked > 0);
    CHECK_OK(checkpoint_within(replay, folder, 0, NULL));
    CHECK(kill(forked, SIGKILL) == 0 && waitpid(forked, NULL, 0) == forked);
    free_both(loaded, replay);
}

int main(void) {
    char command[100];
    alarm(120);
    CHECK(mkdtemp(folder) != NULL);
    who_does_not_wait_is_busy_at_once();
    other_calls_and_forks_do_not_wait();
    a_child_forked_during_a_load_holds_nothing();
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(system(command) == 0);
    return 0;
}
