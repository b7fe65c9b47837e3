/*
 * After a fork while other threads are inside calls, the child can use its copy of the buffer, which is consistent: no
 * step is half added. Parent and child are then independent. The child can only free a buffer on CUDA; it can create
 * another one on the CPU.
 */
#define _POSIX_C_SOURCE 200809L
#include <unistd.h>

#include "posix_check.h"
#include "replay_check.h"
#include "thread_check.h"

enum { ENVS = 64, ROWS = 32, FORKS = 60, BATCH = 64 };

static per_replay* replay;
static int stopping;

static int is_stopping(void) {
    return __atomic_load_n(&stopping, __ATOMIC_RELAXED);
}

/* Each call adds one step to every environment, so between calls all have the same number. */
static void add_all(float t) {
    float observations[ENVS], nexts[ENVS], rewards[ENVS];
    for (int env = 0; env < ENVS; ++env) {
        observations[env] = rewards[env] = t;
        nexts[env] = t < 1e6f ? t + 1 : 0;
    }
    add_given(replay, 1, observations, nexts, rewards, NULL, NULL, NULL);
}

static void* add(void* argument) {
    (void)argument;
    for (float t = 1; !is_stopping(); t = t < 1e6f ? t + 1 : 0) add_all(t);
    return NULL;
}

static void* sample_and_update(void* argument) {
    rows* drawn = malloc(sizeof *drawn);
    (void)argument;
    CHECK(drawn != NULL);
    while (!is_stopping()) {
        fill_rows(drawn);
        CHECK_OK(per_replay_sample(replay, NULL, BATCH, &drawn->batch, NULL));
        CHECK_OK(write_td_errors(replay, BATCH, drawn->ids, 1, drawn->reward, NULL));
    }
    free(drawn);
    return NULL;
}

static void use_copy(void) {
    static rows drawn;
    const per_replay_statistics before = stats_of(replay);
    CHECK(before.added % ENVS == 0 && before.cuts == 0);
    CHECK(before.live == (before.added < (ROWS - 1) * ENVS ? before.added : (ROWS - 1) * ENVS));
    draw(replay, BATCH, &drawn);
    for (int i = 0; i < BATCH; ++i) CHECK(drawn.next[i] == drawn.observation[i] + 1 || drawn.next[i] == 0);
    CHECK_OK(write_td_errors(replay, BATCH, drawn.ids, 1, drawn.reward, NULL));
    CHECK(stats_of(replay).samples == before.samples + 1);
    CHECK_OK(per_replay_cut(replay, 0, NULL, NULL));
    add_full(replay, 3, -5, 0, GOES_ON, -6);
    CHECK(stats_of(replay).added == before.added + 1);
}

static void refuse_everything(void) {
    static const char* const why = "cannot be used in a forked child";
    static rows out;
    const float zeros[ENVS] = {0};
    int64_t id = 3, live = -7;
    float priority = 2;
    per_replay_statistics statistics = {0};
    per_epochs* walk;
    call given;
    fill_rows(&out);
    out.ids[0] = -7;
    fill_call(&given, 1, zeros, zeros, zeros, NULL, NULL);
#define REFUSED(call) CHECK_FAILS(call, PER_ERROR_NO_DEVICE, why)
    REFUSED(per_replay_add(replay, &given.steps, NULL, NULL));
    REFUSED(per_replay_cut(replay, 0, NULL, NULL));
    REFUSED(per_replay_sample(replay, NULL, BATCH, &out.batch, NULL));
    REFUSED(write_td_errors(replay, 1, &id, 1, &priority, NULL));
    REFUSED(write_priorities(replay, 1, &id, &priority, NULL));
    REFUSED(per_replay_get_priorities(replay, 1, &id, &priority, NULL));
    REFUSED(per_replay_clear(replay, NULL));
    REFUSED(change_alpha(replay, 0.5, NULL));
    REFUSED(change_beta(replay, 0.5, NULL));
    REFUSED(change_gamma(replay, 0.5, NULL));
    REFUSED(change_n_step(replay, 1, NULL));
    REFUSED(per_replay_get_live_ids(replay, 0, NULL, &live));
    REFUSED(per_replay_get_live_ids(replay, 1, &id, &live));
    REFUSED(per_replay_get_statistics(replay, &statistics, sizeof statistics));
    REFUSED(per_epochs_create(replay, 1, 4, 0, NULL, &walk));
    REFUSED(per_replay_synchronize(replay, NULL));
    out.batch.weights = out.batch.probabilities = NULL;
    REFUSED(per_replay_get(replay, 1, &id, &out.batch, NULL));
    REFUSED(per_replay_get_bootstraps(replay, 0, NULL, &live, NULL));
#undef REFUSED
    CHECK(out.ids[0] == -7 && id == 3 && priority == 2 && live == -7 && walk == NULL && statistics.added == 0);
}

static void use_in_child(void) {
    per_replay_options options = replay_options(10, 1);
    alarm(20); /* a wait for a lock that is never released ends the test */
    if (on_cuda())
        refuse_everything();
    else
        use_copy();
    options.device = PER_CPU;
    per_replay* other = create_replay(&options);
    add_full(other, 0, 1, 0, TERMINATED, 2);
    CHECK(live_of(other) == 1);
    free_both(other, replay);
    _exit(0);
}

int main(void) {
    pthread_t threads[3];
    replay = create_plain(ROWS * ENVS, ENVS);
    add_all(0); /* so that draws always find live transitions */
    threads[0] = start_thread(add, NULL);
    threads[1] = start_thread(sample_and_update, NULL);
    threads[2] = start_thread(sample_and_update, NULL);
    for (int i = 0; i < (on_cuda() ? FORKS / 4 : FORKS); ++i) {
        pid_t child = start_child();
        if (child == 0) use_in_child();
        check_child(child);
    }
    __atomic_store_n(&stopping, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 3; ++i) join_thread(threads[i]);
    CHECK(stats_of(replay).added % ENVS == 0 && stats_of(replay).cuts == 0); /* the children had no effect here */
    per_replay_free(replay);
    return 0;
}
