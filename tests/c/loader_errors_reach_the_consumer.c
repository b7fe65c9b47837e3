/* The status and message of a failing draw are returned by the call that would have handed out its batch; the loader
   continues after it. */
#include <pthread.h>

#include "loader_check.h"

static per_replay* create(double capacity) {
    per_replay_options options = replay_options((int64_t)capacity, 1);
    options.seed = 3;
    return create_replay(&options);
}

static void check_empty(per_loader* loader, int waits) {
    per_batch batch;
    int64_t slot = -7;
    per_status status;
    while ((status = try_next(loader, waits ? -1 : 0, &batch, &slot)) == PER_ERROR_BUSY) CHECK(!waits);
    CHECK(status == PER_ERROR_EMPTY);
    CHECK(strstr(per_last_error(), "no transition is live") == per_last_error());
    CHECK(slot == -7 && batch.ids == NULL);
}

static void an_empty_buffer(void) {
    per_replay *replay = create(100), *twin = create(100);
    per_loader* loader = create_loader(replay, 8, 3, NULL);
    per_batch batch;
    for (int i = 0; i < 10; ++i) check_empty(loader, i % 2 == 0);
    CHECK(stats_of(replay).samples == 0 && stats_of(replay).beta_step == 0);
    add_run(replay, 0, 20);
    add_run(twin, 0, 20);
    for (int i = 0; i < 6; ++i) check_next(loader, twin, 8);
    /* Batches drawn earlier are handed out, then the buffer is empty again. */
    CHECK_OK(per_replay_clear(replay, NULL));
    for (int i = 0; i < 3; ++i) check_next(loader, twin, 8);
    check_empty(loader, 1);
    check_empty(loader, 0);
    add_run(replay, 50, 55);
    int64_t slot = take(loader, &batch);
    CHECK(batch.ids[0] >= 20);
    CHECK_OK(per_loader_release(loader, slot, NULL));
    free_loader(loader, replay, twin);
}

/* The buffer is filled after the loader was created: draws ahead have failed, and are repeated. */
static void a_buffer_that_is_filled_later(void) {
    per_replay *replay = create(100), *twin = create(100);
    per_loader* loader = create_loader(replay, 8, 3, NULL);
    add_run(replay, 0, 20);
    add_run(twin, 0, 20);
    for (int i = 0; i < 6; ++i) check_next(loader, twin, 8);
    free_loader(loader, replay, twin);
}

static void more_than_can_be_drawn(void) {
    per_replay* replay = create(100);
    per_batch batch;
    int64_t slot;
    per_sample_options options = default_sample_options();
    options.scheme = PER_WITHOUT_REPLACEMENT;
    add_run(replay, 0, 5);
    per_loader* loader = create_loader(replay, 8, 2, &options);
    CHECK(try_next(loader, -1, &batch, &slot) == PER_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(per_last_error(), "batch_size is 8") != NULL);
    CHECK(stats_of(replay).samples == 0);
    add_run(replay, 5, 10);
    slot = take(loader, &batch);
    CHECK_OK(per_loader_release(loader, slot, NULL));
    free_loader(loader, replay, NULL);
}

/* The n_step of the loader was valid when it was created. */
static void a_setting_that_came_later(void) {
    per_replay_options replay_with_steps = replay_options(100, 1);
    per_batch batch;
    int64_t slot;
    replay_with_steps.n_step = 3;
    per_replay* replay = create_replay(&replay_with_steps);
    add_run(replay, 0, 20);
    per_sample_options options = default_sample_options();
    options.n_step = 2;
    per_loader* loader = create_loader(replay, 8, 1, &options);
    CHECK_OK(per_loader_release(loader, take(loader, &batch), NULL));
    CHECK_OK(change_n_step(replay, 1, NULL));
    CHECK_OK(per_loader_release(loader, take(loader, &batch), NULL)); /* drawn before */
    CHECK(try_next(loader, -1, &batch, &slot) == PER_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(per_last_error(), "n_step is 2") != NULL);
    free_loader(loader, replay, NULL);
}

/* ------------------------------------------------------------ bad arguments */

static void bad_arguments(void) {
    static const struct {
        int64_t batch_size, slots;
        const char* text;
    } bad[] = {{0, 3, "batch_size is 0"},
               {(1 << 24) + 1, 3, "batch_size is 16777217"},
               {8, 0, "slots is 0"},
               {8, 1025, "slots is 1025"}};
    per_replay* replay = create(100);
    per_loader_options options = default_loader_options();
    per_sample_options sample = default_sample_options();
    per_loader *loader, *other;
    CHECK(options.struct_size == sizeof options && options.batch_size == 0 && options.slots == 3);
    CHECK(options.sample == NULL && options.device == PER_CPU && options.device_index == 0);
    if (on_cuda())
        CHECK_REFUSED(per_loader_create(replay, &options, &loader),
                      "device is PER_CPU: allowed for the loader of a replay on PER_CUDA 0 is that device");
    options.device = 2;
    CHECK_REFUSED(per_loader_create(replay, &options, &loader), "device is 2");
    options.device = PER_CPU;
    options.device_index = 1;
    CHECK_REFUSED(per_loader_create(replay, &options, &loader), "device_index is 1");
    options.device = loader_device();
    options.device_index = 0;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        options.batch_size = bad[i].batch_size;
        options.slots = bad[i].slots;
        loader = (per_loader*)&options;
        CHECK_REFUSED(per_loader_create(replay, &options, &loader), bad[i].text);
        CHECK(loader == NULL);
    }
    options.batch_size = 8;
    options.slots = 2;
    options.sample = &sample;
    sample.beta = -1;
    CHECK_REFUSED(per_loader_create(replay, &options, &loader), "beta is -1");
    sample.struct_size = 7;
    CHECK_REFUSED(per_loader_create(replay, &options, &loader), "struct_size is 7");
    options.sample = NULL;

    add_run(replay, 0, 20);
    loader = create_loader(replay, 8, 2, NULL);
    CHECK_FAILS(per_loader_create(replay, &options, &other), PER_ERROR_BUSY, "loader");
    CHECK(other == NULL);
    per_batch batch = default_batch();
    int64_t slot;
    CHECK_REFUSED(per_loader_next(loader, -2, &batch, &slot, NULL), "timeout_ms is -2");
    CHECK(stats_of(replay).beta_step == 0); /* no batch was handed out */
    slot = take(loader, &batch);
    CHECK_REFUSED(per_loader_release(loader, -1, NULL), "slot is -1");
    CHECK_REFUSED(per_loader_release(loader, 3, NULL), "slot is 3");
    CHECK_REFUSED(per_loader_release(loader, (slot + 1) % 3, NULL), "slot is");
    CHECK_OK(per_loader_release(loader, slot, NULL));
    CHECK_REFUSED(per_loader_release(loader, slot, NULL), "slot is");
    per_loader_free(loader);
    free_loader(NULL, replay, NULL);
}

static void more_memory_than_there_is(void) {
    static const int64_t shape[] = {INT64_C(1) << 36};
    per_field field = field_of("observation", PER_FLOAT64, 1, shape);
    per_replay_options options = replay_options(3, 1);
    per_loader* loader;
    per_replay* replay;
    options.fields = &field;
    if (per_replay_create(&options, &replay) != PER_OK) return; /* a machine that does not overcommit */
    per_loader_options loader_options = default_loader_options();
    loader_options.batch_size = 1 << 24;
    loader_options.device = loader_device();
    CHECK(per_loader_create(replay, &loader_options, &loader) == PER_ERROR_OUT_OF_MEMORY && loader == NULL);
    per_replay_free(replay);
}

int main(void) {
    an_empty_buffer();
    a_buffer_that_is_filled_later();
    more_than_can_be_drawn();
    a_setting_that_came_later();
    bad_arguments();
    more_memory_than_there_is();
    return 0;
}
