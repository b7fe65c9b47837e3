/* Several consumers of one epoch together get every transition exactly once per epoch, each into its own memory. */

#include "replay_check.h"
#include "thread_check.h"

enum { CONSUMERS = 4, EPOCHS = 50, STEPS = 1000, BATCH = 7 };

static per_replay* replay;
static per_epochs* walk;

typedef struct consumer {
    pthread_t thread;
    int times[STEPS];
    rows out;
} consumer;

static void* consume(void* argument) {
    consumer* self = argument;
    int64_t count = 1;
    fill_rows(&self->out);
    while (count > 0) {
        CHECK_OK(synchronized(replay, per_epochs_next(walk, &self->out.batch, &count, NULL)));
        for (int64_t i = 0; i < count; ++i) {
            CHECK(self->out.observation[i] == (float)self->out.ids[i]);
            ++self->times[self->out.ids[i]];
        }
    }
    return NULL;
}

/* Steps and draws of other threads do not change the epochs. */
static void* use(void* argument) {
    static rows drawn;
    (void)argument;
    for (int t = STEPS; t < STEPS + rounds(500); ++t) {
        add_full(replay, 0, (float)t, 0, GOES_ON, (float)t + 1);
        draw(replay, BATCH, &drawn);
    }
    return NULL;
}

int main(void) {
    static consumer consumers[CONSUMERS];
    replay = create_plain(STEPS + 600, 1);
    add_run(replay, 0, STEPS);
    CHECK_OK(per_epochs_create(replay, rounds(EPOCHS), BATCH, 0, NULL, &walk));
    pthread_t user = start_thread(use, NULL);
    for (int i = 0; i < CONSUMERS; ++i) consumers[i].thread = start_thread(consume, &consumers[i]);
    for (int i = 0; i < CONSUMERS; ++i) join_thread(consumers[i].thread);
    join_thread(user);
    for (int t = 0; t < STEPS; ++t) {
        int times = 0;
        for (int i = 0; i < CONSUMERS; ++i) times += consumers[i].times[t];
        CHECK(times == rounds(EPOCHS));
    }
    per_epochs_free(walk);
    per_replay_free(replay);
    return 0;
}
