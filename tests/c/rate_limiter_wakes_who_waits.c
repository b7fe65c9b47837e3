/*
 * Threads add and threads draw, each waiting for the others. Adds and draws never exceed the rate limit, and no thread
 * waits for ever, even if one side ends, the buffer is cleared, a process forks, or limits end. While a thread waits,
 * others can use the buffer; a wait times out even if another call holds the buffer.
 */
#define _POSIX_C_SOURCE 200809L
#include <unistd.h>

#include "posix_check.h"
#include "replay_check.h"
#include "save_check.h"
#include "thread_check.h"

enum { RATE = 4, TOLERANCE = 64, MIN_SIZE = 10, BATCH = 24, ADDERS = 3, DRAWERS = 2, STEPS = 3000 };

static per_replay* replay;

static per_replay* limited(void) {
    per_replay_options options = replay_options(1000, ADDERS);
    set_rate_limit(&options, RATE, TOLERANCE, MIN_SIZE);
    return create_replay(&options);
}

static per_status try_add(int64_t env) {
    int64_t id;
    return try_step(replay, env, 1, 1, GOES_ON, NEXT_GIVEN, 1, &id);
}

static per_status try_draw(int64_t batch_size) {
    rows out; /* not static: threads draw at the same time */
    fill_rows(&out);
    return per_replay_sample(replay, NULL, batch_size, &out.batch, NULL);
}

/* Makes the next allowed call of its kind. Others may make it first. */
static void add_when_allowed(int64_t env) {
    per_status status;
    while ((status = try_add(env)) == PER_ERROR_BUSY) CHECK_OK(per_replay_wait_to_add(replay, 1, -1));
    CHECK_OK(status);
}

static void draw_when_allowed(void) {
    per_status status;
    while ((status = try_draw(BATCH)) == PER_ERROR_BUSY) CHECK_OK(per_replay_wait_to_sample(replay, BATCH, -1));
    CHECK_OK(status);
}

static int64_t drawn;
static int is_over;

static void nap(void) {
    pause_ns(20000000);
}

static void* add_all(void* env) {
    for (int i = 0; i < rounds(STEPS); ++i) add_when_allowed(*(const int64_t*)env);
    return NULL;
}

static void* draw_all(void* argument) {
    (void)argument;
    while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
        draw_when_allowed();
        __atomic_add_fetch(&drawn, BATCH, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void adders_and_drawers_keep_in_step(void) {
    static const int64_t envs[ADDERS] = {0, 1, 2};
    pthread_t adders[ADDERS], drawers[DRAWERS];
    const int64_t added = (int64_t)ADDERS * rounds(STEPS);
    replay = limited();
    for (int i = 0; i < DRAWERS; ++i) drawers[i] = start_thread(draw_all, NULL);
    for (int i = 0; i < ADDERS; ++i) adders[i] = start_thread(add_all, (void*)&envs[i]);
    for (int i = 0; i < ADDERS; ++i) join_thread(adders[i]);
    /* One side has ended. The other makes the remaining draws, and waits. */
    CHECK(stats_of(replay).added == added);
    while (per_replay_wait_to_sample(replay, BATCH, 0) == PER_OK) nap();
    CHECK_FAILS(per_replay_wait_to_sample(replay, BATCH, 20), PER_ERROR_BUSY, "before more steps are added");
    __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
    CHECK_OK(per_replay_stop_limiting(replay));
    for (int i = 0; i < DRAWERS; ++i) join_thread(drawers[i]);
    /* Each drawer drew once after the limits had ended, or found that the test was over. */
    CHECK(drawn <= RATE * (added - MIN_SIZE) + TOLERANCE + DRAWERS * BATCH);
    CHECK(drawn > RATE * (added - MIN_SIZE) + TOLERANCE - BATCH);
    per_replay_free(replay);
}

/* A thread in a blocking call. */
typedef struct waiter {
    per_status (*wait)(per_replay* replay, int64_t count, int64_t timeout_ms);
    int64_t count, timeout_ms;
    per_status status;
    pthread_t thread;
} waiter;

static void* run_waiter(void* context) {
    waiter* const it = context;
    it->status = it->wait(replay, it->count, it->timeout_ms);
    return NULL;
}

static void start_waiting(waiter* it) {
    it->thread = start_thread(run_waiter, it);
    nap();
}

static void check_ended(waiter* it, per_status status) {
    join_thread(it->thread);
    CHECK(it->status == status);
}

/* Adds until the limit: 16 more steps need 64 drawn transitions. */
static void fill(void) {
    replay = limited();
    for (int i = 0; i < MIN_SIZE + TOLERANCE / RATE; ++i) CHECK_OK(try_add(0));
    CHECK(try_add(0) == PER_ERROR_BUSY);
}

static void draws_wake_an_adder(void) {
    waiter adder = {per_replay_wait_to_add, 16, -1, PER_ERROR_INTERNAL, 0};
    fill();
    start_waiting(&adder);
    for (int i = 0; i < 4; ++i) CHECK_OK(try_draw(16));
    check_ended(&adder, PER_OK);
    per_replay_free(replay);
}

static void adds_wake_a_drawer(void) {
    waiter drawer = {per_replay_wait_to_sample, BATCH, -1, PER_ERROR_INTERNAL, 0};
    replay = limited();
    start_waiting(&drawer);
    for (int i = 0; i < MIN_SIZE; ++i) CHECK_OK(try_add(0));
    check_ended(&drawer, PER_OK);
    per_replay_free(replay);
}

/* After a clear the buffer has fewer than MIN_SIZE, so any add is allowed. */
static void a_clear_wakes_an_adder(void) {
    waiter adder = {per_replay_wait_to_add, 16, -1, PER_ERROR_INTERNAL, 0};
    fill();
    start_waiting(&adder);
    CHECK_OK(per_replay_clear(replay, NULL));
    check_ended(&adder, PER_OK);
    per_replay_free(replay);
}

static void the_end_of_limits_wakes_all(void) {
    waiter adders[2] = {{per_replay_wait_to_add, 16, -1, PER_ERROR_INTERNAL, 0},
                        {per_replay_wait_to_add, 16, -1, PER_ERROR_INTERNAL, 0}};
    fill();
    for (int i = 0; i < 2; ++i) start_waiting(&adders[i]);
    CHECK_OK(per_replay_stop_limiting(replay));
    for (int i = 0; i < 2; ++i) check_ended(&adders[i], PER_OK);
    per_replay_free(replay);
}

/* The child has no waiting thread and proceeds alone. */
static void a_fork_does_not_wait(void) {
    waiter adder = {per_replay_wait_to_add, 16, -1, PER_ERROR_INTERNAL, 0};
    fill();
    start_waiting(&adder);
    pid_t child = start_child();
    if (child == 0) {
        CHECK(try_add(0) == PER_ERROR_BUSY);
        for (int i = 0; i < 4; ++i) CHECK_OK(try_draw(16));
        for (int i = 0; i < 16; ++i) CHECK_OK(try_add(0));
        CHECK(try_add(0) == PER_ERROR_BUSY);
        per_replay_free(replay);
        _exit(0);
    }
    check_child(child);
    CHECK(try_add(0) == PER_ERROR_BUSY);
    CHECK_OK(per_replay_stop_limiting(replay));
    check_ended(&adder, PER_OK);
    per_replay_free(replay);
}

/* One wait begins during the save, and one before it. */
static void a_save_does_not_keep_who_waits(void) {
    waiter adder = {per_replay_wait_to_add, 16, 1000, PER_ERROR_INTERNAL, 0};
    held save;
    fill();
    start_waiting(&adder);
    hold_buffer(&save, replay);
    CHECK_FAILS(per_replay_wait_to_add(replay, 1, 20), PER_ERROR_BUSY, "another call on the buffer");
    CHECK_FAILS(per_replay_wait_to_sample(replay, BATCH, 0), PER_ERROR_BUSY, "another call on the buffer");
    check_ended(&adder, PER_ERROR_BUSY);
    let_go(&save);
    CHECK_OK(per_replay_wait_to_sample(replay, BATCH, 0));
    per_replay_free(replay);
}

int main(void) {
    alarm(300); /* a hang ends the test */
    adders_and_drawers_keep_in_step();
    draws_wake_an_adder();
    adds_wake_a_drawer();
    a_clear_wakes_an_adder();
    the_end_of_limits_wakes_all();
    a_save_does_not_keep_who_waits();
    if (!on_cuda()) a_fork_does_not_wait();
    return 0;
}
