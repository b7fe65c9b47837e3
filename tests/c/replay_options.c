/*
 * Option structs of buffers: what _init sets, and what per_replay_create() refuses by name. structs_of_other_headers.c
 * has those of later and older headers.
 */
#include <stddef.h>

#include "checkpoints.h"
#include "replay_check.h"

static per_replay_options good(void) {
    return replay_options(100, 2);
}

static void check_refused(per_replay_options options, per_status status, const char* text) {
    per_replay* replay = (per_replay*)&options;
    CHECK_FAILS(per_replay_create(&options, &replay), status, text);
    CHECK(replay == NULL);
}

static void check_invalid(per_replay_options options, const char* text) {
    check_refused(options, PER_ERROR_INVALID_ARGUMENT, text);
}

static void what_init_sets(void) {
    per_replay_options options;
    per_steps steps;
    per_sample_options sample;
    per_batch batch;
    per_replay_settings settings;
    unsigned char zero[sizeof(per_batch)];
    memset(zero, 0, sizeof zero);
    memset(&options, 0xAA, sizeof options);
    CHECK_OK(per_replay_options_init(&options, sizeof options));
    CHECK(options.struct_size == sizeof options && options.capacity == 0 && options.fields == NULL);
    CHECK(options.n_fields == 0 && options.n_envs == 1 && options.seed == 0 && options.n_step == 1);
    CHECK(options.frame_stack == 1 && options.sequence_length == 0 && options.burn_in == 0);
    CHECK(options.sequence_stride == 0 && options.beta_steps == 0 && options.gamma == 0.99 && options.alpha == 0.6);
    CHECK(options.beta == 0.4 && options.beta_final == 1 && options.epsilon == 1e-6 && options.sequence_eta == 0.9);
    CHECK(options.uniform_fraction == 0 && options.prioritization == PER_PROPORTIONAL);
    CHECK(options.scheme == PER_STRATIFIED && options.normalize_weights == PER_BATCH_MAX);
    CHECK(options.max_priority == PER_MAX_EVER && options.on_invalid == PER_INVALID_ERROR);
    CHECK(options.on_gap == PER_GAP_CUT && options.autoreset == PER_AUTORESET_DISABLED);
    CHECK(options.store_next_observation == 0 && options.overwrite == 1 && options.device == PER_CPU);
    CHECK(options.device_index == 0 && options.critics == PER_CRITICS_MEAN);
    CHECK(options.gather_threads == 1 && options.on_nan == PER_NAN_ALLOW);
    CHECK(options.save_compression == 0 && options.memory.reserved == 0);
    CHECK(options.memory.allocate == NULL && options.memory.deallocate == NULL && options.memory.context == NULL);
    CHECK(options.rate_limit.samples_per_insert == 0 && options.rate_limit.samples_tolerance == 0 &&
          options.rate_limit.min_size_to_sample == 0);
    CHECK(options.keep_times_sampled == 0 && options.max_times_sampled == 0);
    CHECK(options.memory.storage == NULL && options.memory.storage_preallocated == 0);
    CHECK(options.memory.max_heap_bytes == 0);

    memset(&steps, 0xAA, sizeof steps);
    CHECK_OK(per_steps_init(&steps, sizeof steps));
    CHECK(steps.struct_size == sizeof steps && steps.length == 1 && steps.n_envs == 0 && steps.env_ids == NULL);
    CHECK(steps.fields == NULL && steps.next_fields == NULL && steps.reward.data == NULL);
    CHECK(steps.mask.data == NULL && steps.next_mask.data == NULL && steps.priorities.data == NULL);
    CHECK(steps.td_errors.data == NULL && steps.terminated.data == NULL && steps.truncated.data == NULL);

    memset(&sample, 0xAA, sizeof sample);
    CHECK_OK(per_sample_options_init(&sample, sizeof sample));
    CHECK(sample.struct_size == sizeof sample && isnan(sample.beta) && isnan(sample.uniform_fraction));
    CHECK(sample.n_step == 0 && sample.scheme == -1 && sample.prioritization == -1);
    CHECK(sample.normalize_weights == -1 && sample.newest == 0);

    memset(&batch, 0xAA, sizeof batch);
    CHECK_OK(per_batch_init(&batch, sizeof batch));
    CHECK(batch.struct_size == sizeof batch);
    CHECK(memcmp((unsigned char*)&batch + 8, zero, sizeof batch - 8) == 0);

    memset(&settings, 0xAA, sizeof settings);
    CHECK_OK(per_replay_settings_init(&settings, sizeof settings));
    CHECK(settings.struct_size == sizeof settings && isnan(settings.alpha) && isnan(settings.beta));
    CHECK(isnan(settings.gamma) && settings.n_step == 0 && settings.save_compression == -1 && settings.reserved == 0);
}

/* Each option, just beyond its limit; the message names it. */
static void values_that_are_not_allowed(void) {
    per_replay_options o;
#define INVALID(member, value) (o = good(), o.member = (value), check_invalid(o, #member " is "))
#define INVALID_BOTH(member, value, other) (INVALID(member, value), INVALID(member, other))
#define INVALID_LIMIT(member, value) (o = good(), o.rate_limit.member = (value), check_invalid(o, #member " is "))
    INVALID_BOTH(capacity, 0, -1);
    INVALID_BOTH(capacity, (INT64_C(1) << 40) + 1, INT64_MAX);
    INVALID_BOTH(n_fields, 0, -1);
    INVALID(n_fields, 257);
    INVALID_BOTH(field_size, 0, -48);
    INVALID_BOTH(field_size, sizeof(per_field) - 4, sizeof(per_field) + 4);
    INVALID(field_size, 4104);
    INVALID_BOTH(n_envs, 0, -1);
    INVALID(n_envs, (1 << 20) + 1);
    INVALID_BOTH(n_step, 0, 65);
    INVALID_BOTH(frame_stack, 0, 65);
    INVALID(sequence_length, -1);
    INVALID(burn_in, -1);
    INVALID(sequence_stride, -1);
    INVALID(beta_steps, -1);
    INVALID_BOTH(gamma, -0.01, 1.01);
    INVALID(alpha, -0.01);
    INVALID(beta, -0.01);
    INVALID(beta_final, -0.01);
    INVALID(epsilon, -1e-9);
    INVALID(epsilon, 3.5e38); /* no TD error would give a priority that fits in float32 */
    INVALID_BOTH(sequence_eta, -0.01, 1.01);
    INVALID_BOTH(uniform_fraction, -0.01, 1.01);
    INVALID_BOTH(prioritization, -1, 3);
    INVALID_BOTH(scheme, -1, 4);
    INVALID_BOTH(normalize_weights, -1, 3);
    INVALID_BOTH(max_priority, -1, 2);
    INVALID_BOTH(on_invalid, -1, 2);
    INVALID_BOTH(on_gap, -1, 2);
    INVALID_BOTH(autoreset, -1, 3);
    INVALID_BOTH(store_next_observation, -1, 2);
    INVALID_BOTH(overwrite, -1, 2);
    INVALID_BOTH(device, -1, 2);
    INVALID(device_index, -1);
    INVALID_BOTH(critics, -1, 2);
    INVALID_BOTH(gather_threads, -1, 65);
    INVALID_BOTH(on_nan, -1, 2);
    INVALID_BOTH(save_compression, -1, 20);
    INVALID(memory.reserved, 1);
    INVALID_LIMIT(samples_per_insert, -1);
    INVALID_LIMIT(samples_tolerance, -1);
    INVALID_LIMIT(samples_tolerance, 1); /* without samples_per_insert */
    INVALID_LIMIT(min_size_to_sample, -1);
    INVALID_LIMIT(min_size_to_sample, (INT64_C(1) << 40) + 1);
    INVALID_BOTH(keep_times_sampled, 2, -1);
    INVALID(max_times_sampled, -1);
    INVALID(max_times_sampled, 1); /* with the scheme PER_STRATIFIED */
#undef INVALID_LIMIT
#undef INVALID_BOTH
#undef INVALID
    per_replay* replay = (per_replay*)&o;
    CHECK_REFUSED(per_replay_create(NULL, &replay), "options");
    CHECK(replay == NULL);
}

/* fields_test.cpp has every one. */
static void fields_that_are_not_allowed(void) {
    per_field fields[2] = {field_of("observation", PER_FLOAT32, 0, NULL), field_of("action", PER_INT64, 0, NULL)};
    per_replay_options o = good();
    fields[1].stack = 65;
    set_fields(&o, fields, 2);
    check_invalid(o, "stack of field \"action\" is 65");
}

/* A single field, with or without a name. */
static void fields_are_checked_by_themselves(void) {
    static const int64_t negative[] = {-1}, good_shape[] = {84, 84};
    per_field field = field_of(NULL, PER_UINT8, 2, good_shape);
    CHECK_OK(per_field_check(&field, sizeof(per_field)));
    field.name = "action";
    CHECK_OK(per_field_check(&field, sizeof(per_field)));
    field.name = "next_action";
    CHECK_REFUSED(per_field_check(&field, sizeof(per_field)), "name of a field is \"next_action\"");
    field = field_of(NULL, PER_UINT8, 1, negative);
    CHECK_REFUSED(per_field_check(&field, sizeof(per_field)), "shape is (-1,): allowed are axes of 1 and above");
    field = field_of(NULL, PER_UINT8, 0, NULL);
    field.stack = 65;
    CHECK_REFUSED(per_field_check(&field, sizeof(per_field)), "stack is 65: allowed are 0 .. 64");
}

static void devices_that_are_not_there(void) {
    per_replay_options o = good();
    o.device = 2;
    check_refused(o, PER_ERROR_INVALID_ARGUMENT, "device is 2: allowed are PER_CPU (0) and PER_CUDA (1)");
    o = good();
    o.device_index = -1;
    check_refused(o, PER_ERROR_INVALID_ARGUMENT,
                  on_cuda() ? "device_index is -1: must be >= 0" : "device_index is -1: must be 0 for PER_CPU");
    o.device_index = 1000;
    check_refused(o, on_cuda() ? PER_ERROR_NO_DEVICE : PER_ERROR_INVALID_ARGUMENT, "device_index is 1000");
    o.device = PER_CUDA; /* also with a library without CUDA */
    check_refused(o, PER_ERROR_NO_DEVICE, "CUDA");
}

static void files_that_are_not_there(void) {
    per_replay* replay = create_plain(100, 2);
    per_replay* loaded = replay;
    CHECK_FAILS(load_on("no/such/file", test_device(), 0, &loaded), PER_ERROR_IO, "no/such/file");
    CHECK(loaded == NULL);
    CHECK_FAILS(per_replay_save(replay, "no/such/folder/file", NULL), PER_ERROR_IO, "no/such/folder/file");
    CHECK_FAILS(per_replay_checkpoint(replay, "no/such/folder/new", NULL, NULL), PER_ERROR_IO, "no/such/folder/new");
    per_replay_free(replay);
}

/* The capacity is rounded up to whole lanes; a lane shorter than a window is refused, and the message names both
   lengths. */
static void capacity_and_lanes(void) {
    per_replay_options o = replay_options(10, 4), described;
    per_replay* replay = create_replay(&o);
    CHECK(stats_of(replay).capacity == 12);
    CHECK_OK(per_replay_options_init(&described, sizeof described));
    CHECK_OK(per_replay_describe(replay, &described));
    CHECK(described.capacity == 12 && described.n_envs == 4);
    per_replay_free(replay);
    o.capacity = 8; /* lanes of 2 rows; 3 are needed */
    check_invalid(o, "2 rows");
    CHECK(strstr(per_last_error(), "needs 3: 1 for a step, 2 for next observations (none with") != NULL);
    o.store_next_observation = 1;
    per_replay_free(create_replay(&o));
    o = replay_options(9, 1);
    o.n_step = 3;
    o.frame_stack = 6;
    check_invalid(o, "needs 10: 1 for a step, 2 for n_step 3, 5 for stacks of 6 frames, 2 for next observations");
    o.capacity = 10;
    per_replay_free(create_replay(&o));
    /* A field's stack counts too. */
    {
        per_field fields[2] = {field_of("observation", PER_FLOAT32, 0, NULL), field_of("action", PER_FLOAT32, 0, NULL)};
        fields[1].stack = 7;
        set_fields(&o, fields, 2);
        check_invalid(o, "needs 11");
    }
}

static void describe_resolves_what_was_left_open(void) {
    static int64_t shape[] = {2, 3};
    char name[] = "observation.image";
    per_replay_options o = replay_options(100, 1), described;
    per_replay_settings settings = unchanged_settings();
    per_field fields[3] = {field_of(name, PER_UINT8, 2, shape), field_of("goal", PER_FLOAT16, 0, NULL)};
    fields[1].role = PER_ROLE_OBSERVATION;
    fields[1].stack = 1;
    fields[2] = field_of("action", PER_INT64, 0, NULL);
    set_fields(&o, fields, 3);
    o.frame_stack = 4;
    o.alpha = 0.5;
    per_replay* replay = create_replay(&o);
    /* The buffer has copied names, shapes and declarations. */
    name[0] = 'x';
    shape[0] = 99;
    memset(fields, 0, sizeof fields);
    settings.alpha = 0.75;
    settings.gamma = 0.5;
    settings.n_step = 7;
    CHECK_OK(per_replay_change_settings(replay, &settings, NULL));
    CHECK_OK(per_replay_options_init(&described, sizeof described));
    CHECK_OK(per_replay_describe(replay, &described));
    CHECK(described.struct_size == sizeof described && described.n_fields == 3 && described.frame_stack == 4 &&
          described.field_size == sizeof(per_field));
    CHECK(described.alpha == 0.75 && described.gamma == 0.5 && described.n_step == 7 && described.beta == 0.4);
    CHECK(strcmp(described.fields[0].name, "observation.image") == 0);
    CHECK(described.fields[0].ndim == 2 && described.fields[0].shape[0] == 2 && described.fields[0].shape[1] == 3);
    CHECK(described.fields[0].role == PER_ROLE_OBSERVATION && described.fields[0].stack == 4);
    CHECK(described.fields[0].dtype == PER_UINT8);
    CHECK(described.fields[1].role == PER_ROLE_OBSERVATION && described.fields[1].stack == 1);
    CHECK(described.fields[2].role == PER_ROLE_PLAIN && described.fields[2].stack == 1);
    CHECK(strcmp(described.fields[2].name, "action") == 0);
    /* A buffer can be created from the description. */
    {
        per_replay* copy = create_replay(&described);
        CHECK(stats_of(copy).capacity == 100);
        per_replay_free(copy);
    }
    per_replay_free(replay);
}

int main(void) {
    what_init_sets();
    values_that_are_not_allowed();
    fields_that_are_not_allowed();
    fields_are_checked_by_themselves();
    devices_that_are_not_there();
    files_that_are_not_there();
    capacity_and_lanes();
    describe_resolves_what_was_left_open();
    return 0;
}
