/*
 * per_loader_next() waits no longer than its timeout, whatever locks the buffer: a long call, or a draw that repeats a
 * failed one. Here a fork locks the buffer, since it takes the locks of all handles. A fork handler that was registered
 * before the library's runs after it, and waits until the polls are done.
 */
#define _POSIX_C_SOURCE 200809L
#include <sched.h>
#include <semaphore.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loader_check.h"
#include "thread_check.h"

static sem_t is_held, may_go_on;
static int holds;

static void hold(void) {
    if (!holds) return;
    CHECK(sem_post(&is_held) == 0);
    while (sem_wait(&may_go_on) != 0) continue;
}

static void* fork_once(void* argument) {
    int status;
    const pid_t child = fork();
    (void)argument;
    CHECK(child >= 0);
    if (child == 0) _exit(0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return NULL;
}

static pthread_t hold_all_handles(void) {
    holds = 1;
    pthread_t thread = start_thread(fork_once, NULL);
    while (sem_wait(&is_held) != 0) continue;
    return thread;
}

static void let_go(pthread_t thread) {
    holds = 0;
    CHECK(sem_post(&may_go_on) == 0);
    join_thread(thread);
}

/* Polls until the result is not PER_ERROR_BUSY. */
static per_status poll(per_loader* loader, per_batch* batch, int64_t* slot) {
    per_status status;
    while ((status = try_next(loader, 0, batch, slot)) == PER_ERROR_BUSY) sched_yield();
    return status;
}

static void after_draws_ahead_failed(void) {
    per_replay *replay = create_plain(100, 1), *twin = create_plain(100, 1);
    per_loader* loader = create_loader(replay, 8, 3, NULL);
    static rows expected;
    per_batch batch;
    int64_t slot;
    /* A blocking call returns each of these failures, and one more. */
    CHECK(try_next(loader, -1, &batch, &slot) == PER_ERROR_EMPTY);
    pthread_t thread = hold_all_handles();
    for (int i = 0; i < 5; ++i) CHECK(try_next(loader, 0, &batch, &slot) == PER_ERROR_BUSY);
    CHECK(try_next(loader, 20, &batch, &slot) == PER_ERROR_BUSY);
    let_go(thread);
    CHECK(poll(loader, &batch, &slot) == PER_ERROR_EMPTY);
    CHECK(strstr(per_last_error(), "no transition is live") == per_last_error());
    CHECK(poll(loader, &batch, &slot) == PER_ERROR_EMPTY);
    add_run(replay, 0, 20);
    add_run(twin, 0, 20);
    for (int i = 0; i < 5; ++i) {
        CHECK_OK(poll(loader, &batch, &slot));
        draw(twin, 8, &expected);
        check_batch(&batch, &expected, 8);
        CHECK_OK(per_loader_release(loader, slot, NULL));
    }
    free_loader(loader, replay, twin);
}

typedef struct taker {
    per_loader* loader;
    int64_t slot;
} taker;

static void* take_waiting(void* argument) {
    taker* const known = (taker*)argument;
    per_batch batch;
    known->slot = take(known->loader, &batch);
    return NULL;
}

/* On the CPU, a batch that is ready is handed out. On CUDA, handing it out is a call on the buffer: a poll returns
   busy, also while another thread waits for the buffer. */
static void with_a_batch_that_is_there(void) {
    per_replay* replay = create_plain(100, 1);
    taker other;
    per_batch batch;
    int64_t slot;
    add_run(replay, 0, 20);
    per_loader* loader = create_loader(replay, 8, 3, NULL);
    CHECK(stats_of(replay).samples == 3); /* waits for the draws */
    CHECK_OK(poll(loader, &batch, &slot));
    CHECK_OK(per_loader_release(loader, slot, NULL));
    CHECK(stats_of(replay).samples == 4);
    pthread_t thread = hold_all_handles();
    other.loader = loader;
    pthread_t waiting = start_thread(take_waiting, &other);
    if (on_cuda()) {
        for (int i = 0; i < 1000; ++i) {
            CHECK(try_next(loader, 0, &batch, &slot) == PER_ERROR_BUSY);
            sched_yield();
        }
        CHECK(try_next(loader, 20, &batch, &slot) == PER_ERROR_BUSY);
    } else {
        CHECK_OK(try_next(loader, 0, &batch, &slot));
        CHECK_OK(per_loader_release(loader, slot, NULL));
    }
    let_go(thread);
    join_thread(waiting);
    CHECK_OK(per_loader_release(loader, other.slot, NULL));
    free_loader(loader, replay, NULL);
}

int main(void) {
    alarm(100); /* a call that waits ends the test */
    CHECK(sem_init(&is_held, 0, 0) == 0 && sem_init(&may_go_on, 0, 0) == 0);
    CHECK(pthread_atfork(hold, NULL, NULL) == 0);
    after_draws_ahead_failed();
    with_a_batch_that_is_there();
    return 0;
}
