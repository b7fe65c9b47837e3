/*
 * A fork at any moment of a loader: in the child, its calls fail, except freeing it, and a buffer on the CPU is usable,
 * also for another loader. In the parent the loader continues unchanged.
 */
#define _POSIX_C_SOURCE 200809L
#include <unistd.h>

#include "loader_check.h"
#include "posix_check.h"

enum { BATCH = 512, SLOTS = 3, FORKS = 60 };

static int n_steps;

static per_replay* filled(void) {
    per_replay_options options = replay_options(n_steps + 10, 1);
    options.seed = 8;
    options.beta_steps = 1000;
    return create_filled(&options, n_steps);
}

static void use_own_loader(per_replay* replay) {
#ifndef SANITIZED /* ThreadSanitizer does not support threads in a child whose parent had several */
    const int64_t beta_step = stats_of(replay).beta_step;
    per_loader* loader = create_loader_on(PER_CPU, replay, BATCH, SLOTS, NULL);
    per_batch batch;
    for (int i = 0; i < 5; ++i) CHECK_OK(per_loader_release(loader, take(loader, &batch), NULL));
    CHECK(stats_of(replay).beta_step == beta_step + 5);
    per_loader_free(loader);
#else
    (void)replay;
#endif
}

static void use_in_child(per_replay* replay, per_loader* loader, int64_t slot) {
    static rows drawn;
    per_batch batch;
    int64_t other;
    alarm(20); /* if the child waits for the parent's thread, the test ends */
    CHECK(try_next(loader, -1, &batch, &other) == PER_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(per_last_error(), "fork") != NULL);
    CHECK_REFUSED(per_loader_release(loader, slot, NULL), "fork");
    CHECK_REFUSED(per_loader_stop(loader), "fork");
    if (on_cuda()) {
        fill_rows(&drawn);
        CHECK(per_replay_sample(replay, NULL, BATCH, &drawn.batch, NULL) == PER_ERROR_NO_DEVICE);
    } else {
        draw(replay, BATCH, &drawn);
        for (int i = 0; i < BATCH; ++i) CHECK(drawn.observation[i] == (float)drawn.ids[i]);
        CHECK_OK(write_td_errors(replay, BATCH, drawn.ids, 1, drawn.weights, NULL));
        use_own_loader(replay);
    }
    free_loader(loader, replay, NULL);
    _exit(0);
}

int main(void) {
    static rows expected;
    n_steps = on_cuda() ? 50 : 500;
    per_replay *replay = filled(), *twin = filled();
    per_loader* loader = create_loader(replay, BATCH, SLOTS, NULL);
    for (int i = 0; i < rounds(FORKS); ++i) {
        per_batch batch;
        const int64_t slot = take(loader, &batch);
        const pid_t child = start_child();
        if (child == 0) use_in_child(replay, loader, slot);
        draw(twin, BATCH, &expected);
        check_batch(&batch, &expected, BATCH);
        CHECK_OK(per_loader_release(loader, slot, NULL));
        check_child(child);
    }
    free_loader(loader, replay, twin);
    return 0;
}
