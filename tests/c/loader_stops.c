/*
 * A loader can be stopped and freed at any time: while it draws, with every slot out, while another thread waits for a
 * batch. The buffer stays usable, in a state that depends only on the order of calls.
 */
#define _POSIX_C_SOURCE 200809L

#include "loader_check.h"
#include "posix_check.h"
#include "thread_check.h"

enum { SLOTS = 3 };

static int64_t batch_size, n_steps;

static per_replay* filled(void) {
    per_replay_options options = replay_options(n_steps + 10, 1);
    options.seed = 4;
    return create_filled(&options, n_steps);
}

static void while_it_draws(void) {
    static rows drawn, expected;
    for (int i = 0; i < (on_cuda() ? 8 : 50); ++i) {
        per_replay *replay = filled(), *twin = filled();
        per_loader* loader = create_loader(replay, batch_size, SLOTS, NULL);
        per_batch batch;
        for (int k = 0; k < i % 4; ++k) CHECK_OK(per_loader_release(loader, take(loader, &batch), NULL));
        per_loader_free(loader);
        CHECK(stats_of(replay).beta_step == i % 4 && stats_of(replay).samples == SLOTS + i % 4);
        for (int k = 0; k < SLOTS + i % 4; ++k) draw(twin, batch_size, &expected);
        draw(replay, batch_size, &drawn);
        draw(twin, batch_size, &expected);
        CHECK(memcmp(drawn.ids, expected.ids, sizeof drawn.ids) == 0);
        free_both(replay, twin);
    }
}

static void with_every_slot_out(void) {
    per_replay* replay = filled();
    per_loader *loader = create_loader(replay, batch_size, SLOTS, NULL), *next;
    per_batch batches[SLOTS], none;
    int64_t slots[SLOTS], slot;
    for (int i = 0; i < SLOTS; ++i) slots[i] = take(loader, &batches[i]);
    int64_t first_id = batches[0].ids[0];
    CHECK_OK(per_loader_stop(loader));
    CHECK_OK(per_loader_stop(loader));
    CHECK(try_next(loader, -1, &none, &slot) == PER_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(per_last_error(), "stopped") != NULL);
    CHECK_REFUSED(per_loader_release(loader, slots[0], NULL), "stopped");
    next = create_loader(replay, batch_size, SLOTS, NULL); /* the buffer can have another loader */
    take(next, &none);
    CHECK(batches[0].ids[0] == first_id); /* batches that are out stay unchanged until the loader is freed */
    per_loader_free(loader);
    per_loader_free(next);
    CHECK(live_of(replay) == n_steps);
    per_replay_free(replay);
}

static per_loader* shared;

static void* wait_for_a_batch(void* argument) {
    per_batch batch;
    int64_t slot;
    (void)argument;
    CHECK(try_next(shared, -1, &batch, &slot) == PER_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(per_last_error(), "stopped") != NULL);
    return NULL;
}

static void* stop(void* argument) {
    (void)argument;
    CHECK_OK(per_loader_stop(shared));
    return NULL;
}

static void while_others_wait(void) {
    per_replay* replay = filled();
    pthread_t threads[4];
    per_batch batch;
    shared = create_loader(replay, batch_size, SLOTS, NULL);
    for (int i = 0; i < SLOTS; ++i) take(shared, &batch);
    for (int i = 0; i < 2; ++i) threads[i] = start_thread(wait_for_a_batch, NULL);
    pause_ns(10000000);
    for (int i = 2; i < 4; ++i) threads[i] = start_thread(stop, NULL);
    for (int i = 0; i < 4; ++i) join_thread(threads[i]);
    free_loader(shared, replay, NULL);
}

/* main returns while the thread draws. */
static void at_exit(void) {
#ifndef SANITIZED /* it leaks memory */
    per_batch batch;
    take(create_loader(filled(), batch_size, SLOTS, NULL), &batch);
#endif
}

int main(void) {
    batch_size = large_batch();
    n_steps = on_cuda() ? 50 : 500;
    while_it_draws();
    with_every_slot_out();
    while_others_wait();
    at_exit();
    return 0;
}
