/*
 * A transition that died during epochs is an error, as is every bad argument, and the epochs do not advance. On CUDA a
 * dead one is returned as id -1 and zeros, and counted, and the epochs continue.
 */
#include "replay_check.h"

static per_replay* filled(int64_t n) {
    per_replay_options options = replay_options(20, 1);
    return create_filled(&options, n);
}

static per_status next(per_replay* replay, per_epochs* walk, rows* out, int64_t* count) {
    return synchronized(replay, per_epochs_next(walk, &out->batch, count, NULL));
}

/* The order of an epoch over 10 transitions. */
static void order_of_walk(int64_t* ids_out) {
    static rows out;
    per_replay* replay = filled(10);
    per_epochs* walk;
    int64_t count = -1;
    CHECK_OK(per_epochs_create(replay, 1, 10, 0, NULL, &walk));
    fill_rows(&out);
    CHECK_OK(next(replay, walk, &out, &count));
    CHECK(count == 10);
    memcpy(ids_out, out.ids, 10 * sizeof *ids_out);
    per_epochs_free(walk);
    per_replay_free(replay);
}

/* With windows of three steps, the last two of 10 transitions are pending again. A minibatch has -1 in place of their
   ids. */
static void dead_rows_are_left_out(void) {
    static rows out;
    per_replay* replay = filled(10);
    per_epochs* walk;
    int64_t count = -1, expected[10];
    int n_dead = 0;
    order_of_walk(expected);
    CHECK_OK(per_epochs_create(replay, 1, 5, 0, NULL, &walk));
    CHECK_OK(change_n_step(replay, 3, NULL));
    CHECK(live_of(replay) == 8);
    for (int i = 0; i < 2; ++i) {
        const int n_dead_before = n_dead;
        char text[32];
        fill_rows(&out);
        out.observation[0] = out.weights[1] = out.reward[2] = -7;
        per_status status = next(replay, walk, &out, &count);
        CHECK(count == 5);
        for (int k = 0; k < 5; ++k) {
            const int64_t id = expected[5 * i + k];
            const int is_dead = id >= 8;
            n_dead += is_dead;
            CHECK(out.ids[k] == (is_dead ? -1 : id) && out.observation[k] == (is_dead ? 0 : (float)id));
            CHECK(out.n_steps[k] == (is_dead ? 0 : 3) && out.weights[k] == (is_dead ? 0 : 1) && out.reward[k] == 0);
        }
        sprintf(text, "%d ids", n_dead - n_dead_before);
        if (n_dead == n_dead_before)
            CHECK(status == PER_OK);
        else
            CHECK(status == PER_ERROR_INVALID_ARGUMENT && strstr(per_last_error(), text) != NULL);
    }
    CHECK(n_dead == 2);
    CHECK_OK(next(replay, walk, &out, &count));
    CHECK(count == 0); /* the last epoch is over */
    per_epochs_free(walk);
    per_replay_free(replay);
}

/* Later rows in the slots of cleared rows do not replace these in the epoch: rows 16 to 34 are live in the 20 slots. */
static void cleared_rows_are_left_out(void) {
    static rows out;
    per_replay* replay = filled(10);
    per_epochs* walk;
    int64_t count = -1;
    CHECK_OK(per_epochs_create(replay, 2, 4, 0, NULL, &walk));
    CHECK_OK(per_replay_clear(replay, NULL));
    for (int i = 0; i < 2; ++i) {
        fill_rows(&out);
        CHECK_REFUSED(next(replay, walk, &out, &count), "4 ids");
        CHECK(count == 4);
        for (int k = 0; k < 4; ++k) CHECK(out.ids[k] == -1 && out.observation[k] == 0 && out.weights[k] == 0);
        add_run(replay, 0, 25);
    }
    CHECK_REFUSED(next(replay, walk, &out, &count), "2 ids");
    CHECK(count == 2);
    per_epochs_free(walk);
    per_replay_free(replay);
}

static void dead_rows_are_refused(void) {
    static rows out;
    per_replay* replay = filled(10);
    per_epochs* walk;
    int64_t count = -1, expected[10];
    int i;
    order_of_walk(expected);
    CHECK_OK(per_epochs_create(replay, 1, 5, 0, NULL, &walk));

    /* With windows of three steps the last two transitions are pending again, in the first or the second minibatch. */
    CHECK_OK(change_n_step(replay, 3, NULL));
    CHECK(live_of(replay) == 8);
    fill_rows(&out);
    count = -1;
    for (i = 0; i < 2; ++i) {
        const per_status status = per_epochs_next(walk, &out.batch, &count, NULL);
        if (status == PER_OK) continue;
        CHECK(status == PER_ERROR_INVALID_ARGUMENT && strstr(per_last_error(), "not live any more") != NULL);
        CHECK_OK(change_n_step(replay, 1, NULL)); /* they are live again, in the same minibatch */
        CHECK_OK(per_epochs_next(walk, &out.batch, &count, NULL));
        CHECK(count == 5 && memcmp(out.ids, expected + 5 * i, 5 * sizeof *expected) == 0);
        break;
    }
    CHECK(i < 2);
    per_epochs_free(walk);

    CHECK_OK(per_epochs_create(replay, 2, 4, 0, NULL, &walk));
    CHECK_OK(per_replay_clear(replay, NULL));
    memset(out.ids, 0xff, sizeof out.ids);
    count = -1;
    for (i = 0; i < 2; ++i) CHECK_REFUSED(per_epochs_next(walk, &out.batch, &count, NULL), "not live any more");
    CHECK(count == -1 && out.ids[0] == -1);
    /* Later rows in the slots of cleared rows do not replace these: rows 16 to 34 are live in the 20 slots. */
    add_run(replay, 0, 25);
    CHECK_REFUSED(per_epochs_next(walk, &out.batch, &count, NULL), "not live any more");
    per_epochs_free(walk);
    per_replay_free(replay);
}

static void bad_arguments(void) {
    static rows out;
    per_replay *replay = filled(10), *empty = filled(0);
    const per_replay_statistics before = stats_of(replay);
    per_epochs *walk = (per_epochs*)&out, *good;
    uint8_t mask;
    int64_t count = -1;
#define CHECK_NO_WALK(status, text, ...)                                              \
    do {                                                                              \
        walk = (per_epochs*)&out;                                                     \
        CHECK_FAILS(per_epochs_create(__VA_ARGS__, &walk), PER_ERROR_##status, text); \
        CHECK(walk == NULL);                                                          \
    } while (0)
    CHECK_NO_WALK(INVALID_ARGUMENT, "n_epochs is 0", replay, 0, 4, 0, NULL);
    CHECK_NO_WALK(INVALID_ARGUMENT, "n_epochs is 16777217", replay, (1 << 24) + 1, 4, 0, NULL);
    CHECK_NO_WALK(INVALID_ARGUMENT, "batch_size is 0", replay, 1, 0, 0, NULL);
    CHECK_NO_WALK(INVALID_ARGUMENT, "batch_size is 16777217", replay, 1, (1 << 24) + 1, 0, NULL);
    CHECK_NO_WALK(INVALID_ARGUMENT, "batch_size is 11: with drop_last at most the 10", replay, 1, 11, 1, NULL);
    CHECK_NO_WALK(EMPTY, "no transition is live: no step was added yet", empty, 1, 4, 0, NULL);

    check_same_statistics(replay, &before);
    CHECK(stats_of(empty).samples == 0);
    CHECK_OK(per_epochs_create(replay, 1, 10, 1, NULL, &good));
    fill_rows(&out);
    out.batch.mask = &mask;
    CHECK_REFUSED(per_epochs_next(good, &out.batch, &count, NULL), "mask");
    out.batch.mask = NULL;
    CHECK(count == -1);
    CHECK_OK(next(replay, good, &out, &count));
    CHECK(count == 10);
    per_epochs_free(good);
    free_both(replay, empty);
}

int main(void) {
    if (on_cuda()) {
        dead_rows_are_left_out();
        cleared_rows_are_left_out();
    } else {
        dead_rows_are_refused();
    }
    bad_arguments();
    return 0;
}
