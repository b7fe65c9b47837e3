/*
 * Out of memory is a status: no handle is created, and a handle whose call failed is unchanged. The memory is that of
 * the process, or of a device with 64 MiB (PER_SIMULATOR_MEMORY).
 */
#define _POSIX_C_SOURCE 200809L
#include <sys/resource.h>

#include "replay_check.h"

static void check_none(per_replay_options options) {
    per_replay* replay = (per_replay*)&options;
    CHECK(per_replay_create(&options, &replay) == PER_ERROR_OUT_OF_MEMORY);
    CHECK(replay == NULL && strstr(per_last_error(), "bytes") != NULL);
}

/* Sizes that overflow 64 bits or exceed any machine. */
static void sizes_beyond_any_machine(void) {
    static const int64_t large[] = {INT64_C(1) << 40}, larger[] = {INT64_C(1) << 40, INT64_C(1) << 30};
    per_replay_options options = replay_options(INT64_C(1) << 40, 1);
    per_field fields[2] = {field_of("observation", PER_FLOAT64, 1, large), field_of("action", PER_FLOAT64, 1, large)};
    set_fields(&options, fields, 1);
    check_none(options); /* 2^83 bytes */
    options.capacity = 1000;
    options.n_fields = 2;
    options.field_size = sizeof(per_field);
    check_none(options); /* 2^54 bytes */
    fields[1] = field_of("action", PER_FLOAT64, 2, larger);
    options.capacity = 3;
    check_none(options); /* 2^73 bytes a row */
}

/* The first batch of more than 4096 allocates; if that fails, nothing is drawn. */
static void within_the_memory_of_the_device(void) {
    static rows drawn;
    per_replay_options options = replay_options(20, 1), large = replay_options(10000000, 1);
    per_replay *replay = create_replay(&options), *twin;
    options.device = PER_CPU;
    twin = create_replay(&options);
    for (int t = 0; t < 9; ++t) {
        add_step(replay, 0, (float)t, 0);
        add_step(twin, 0, (float)t, 0);
    }
    per_batch batch = default_batch();
    const per_replay_statistics stats_before = stats_of(replay);
    for (int t = 0; t < 3; ++t) {
        check_none(large);
        CHECK_FAILS(per_replay_sample(replay, NULL, 1 << 24, &batch, NULL), PER_ERROR_OUT_OF_MEMORY,
                    " bytes of memory of the device: cudaErrorMemory");
    }
    check_same_statistics(replay, &stats_before);
    check_same_draw(replay, twin, 64, &drawn);
    large.capacity = 1000000; /* 25 MB, which fit after three failures */
    per_replay_free(create_replay(&large));
    free_both(replay, twin);
}

static void within_a_limit(void) {
#ifndef SANITIZED /* a sanitizer cannot run under a memory limit */
    enum { STEPS = 4000, SIZE = 1000 };
    static const int64_t shape[] = {SIZE};
    static uint8_t given_bytes[STEPS][SIZE];
    static float rewards[STEPS];
    static uint8_t flags[STEPS];
    static rows drawn;
    struct rlimit limit, before;
    per_field field = field_of("observation", PER_FLOAT64, 1, shape);
    per_replay_options options = replay_options(10, 1), small = replay_options(20, 1);
    per_replay *replay, *large, *twin = create_replay(&small), *same = create_replay(&small);
    per_array observation = array_of(given_bytes, PER_UINT8);
    options.fields = &field;
    replay = create_replay(&options);
    per_steps steps = steps_of(3, &observation, NULL, rewards, flags, flags);
    CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    for (int t = 0; t < 9; ++t) {
        add_step(twin, 0, (float)t, 0);
        add_step(same, 0, (float)t, 0);
    }
    const per_replay_statistics stats_before = stats_of(replay);

    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    limit.rlim_cur = (rlim_t)24 << 20;
    limit.rlim_max = before.rlim_max;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    options = replay_options(10000000, 1);
    CHECK_FAILS(per_replay_create(&options, &large), PER_ERROR_OUT_OF_MEMORY,
                "out of memory: 161480704 bytes were asked for; capacity is 10000000: fewer rows, or fields of smaller "
                "dtypes, take less"); /* 16 bytes a row, in whole huge pages */
    CHECK(large == NULL);
    steps.length = STEPS; /* cast to float64, these need 32 MB of scratch memory */
    CHECK_FAILS(per_replay_add(replay, &steps, NULL, NULL), PER_ERROR_OUT_OF_MEMORY, "out of memory");
    CHECK_FAILS(per_replay_sample(twin, NULL, 1 << 24, &(per_batch){.struct_size = sizeof(per_batch)}, NULL),
                PER_ERROR_OUT_OF_MEMORY, "out of memory");
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);

    check_same_statistics(replay, &stats_before);
    steps.length = 1;
    CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    CHECK(stats_of(replay).added == 4 && live_of(replay) == 3);
    check_same_draw(twin, same, 64, &drawn);
    per_replay_free(replay);
    free_both(twin, same);
#endif
}

int main(void) {
    sizes_beyond_any_machine();
    if (on_cuda())
        within_the_memory_of_the_device();
    else
        within_a_limit();
    return 0;
}
