/*
 * A channel with more steps than the rate limiter allows waits, and its writer sees a full ring: no step is refused,
 * lost, or added too early. When the channel ends, its remaining steps are added without a limit. A loader draws ahead
 * as far as allowed, and makes the remaining draws once they are.
 */
#include "channel_check.h"
#include "loader_check.h"

enum { SLOTS = 8 };

static per_replay* limited(int64_t samples_per_insert, int64_t tolerance, int64_t min_size, int64_t n_envs) {
    per_replay_options options = replay_options(100 * n_envs, n_envs);
    set_rate_limit(&options, (double)samples_per_insert, tolerance, min_size);
    return create_replay(&options);
}

static per_status draw_some(per_replay* replay, int64_t batch_size) {
    static rows out;
    fill_rows(&out);
    return per_replay_sample(replay, NULL, batch_size, &out.batch, NULL);
}

static void a_channel_waits_and_its_writer_sees_a_full_ring(void) {
    per_replay* replay = limited(2, 8, 1, 1);
    per_channel* channel = create_channel(replay, 0, NULL, SLOTS, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    int t = 0;
    /* 1 + 8 / 2 steps are allowed, and the ring has room for 8. */
    for (; t < 5 + SLOTS; ++t) CHECK_OK(write_step(writer, (float)t, (float)t + 1, 0, 60000));
    CHECK_FAILS(write_step(writer, 99, 99, 0, 50), PER_ERROR_BUSY, "the ring of 8 slots");
    CHECK_FAILS(per_channel_flush(channel, 20), PER_ERROR_BUSY, "8 steps that were written are not in the buffer yet");
    CHECK(channel_stats(channel).waiting == SLOTS && stats_of(replay).added == 5);
    /* 6 drawn transitions allow 3 more steps. */
    CHECK_OK(draw_some(replay, 6));
    for (; t < 8 + SLOTS; ++t) CHECK_OK(write_step(writer, (float)t, (float)t + 1, 0, 60000));
    CHECK_FAILS(write_step(writer, 99, 99, 0, 50), PER_ERROR_BUSY, "the ring of 8 slots");
    CHECK(stats_of(replay).added == 8);
    /* A flush waits for draws while other threads use the buffer. */
    CHECK_OK(draw_some(replay, 8));
    CHECK_OK(draw_some(replay, 8));
    CHECK_OK(per_writer_flush(writer, 60000));
    CHECK(stats_of(replay).added == 8 + SLOTS && channel_stats(channel).refused == 0 && stats_of(replay).cuts == 0);
    for (; t < 10 + SLOTS; ++t) CHECK_OK(write_step(writer, (float)t, (float)t + 1, 0, 60000));
    CHECK_FAILS(per_writer_flush(writer, 20), PER_ERROR_BUSY, "not in the buffer yet");
    per_writer_free(writer);
    per_channel_free(channel);
    CHECK(live_of(replay) == 10 + SLOTS && stats_of(replay).cuts == 0);
    per_replay_free(replay);
}

/* The buffer refuses a step among others that wait: slots are released as soon as their steps are processed. */
static void a_refused_step_holds_up_no_slots(void) {
    per_replay_options options = replay_options(100, 1);
    set_rate_limit(&options, 2, 8, 0);
    options.on_gap = PER_GAP_ERROR;
    per_replay* replay = create_replay(&options);
    per_channel* channel = create_channel(replay, 0, NULL, 4 * SLOTS, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    /* Step 6 does not continue step 5. */
    for (int t = 0; t < 5 + SLOTS; ++t) CHECK_OK(write_step(writer, t == 6 ? 99 : (float)t, (float)t + 1, 0, 60000));
    while (stats_of(replay).added < 5) CHECK(per_channel_flush(channel, 10) == PER_ERROR_BUSY);
    CHECK_FAILS(per_channel_flush(channel, 50), PER_ERROR_BUSY, "8 steps that were written are not in the buffer yet");
    /* 8 drawn transitions allow 4 more steps, of 7 that the buffer accepts. */
    CHECK_OK(draw_some(replay, 8));
    while (stats_of(replay).added < 9) CHECK(per_channel_flush(channel, 10) == PER_ERROR_BUSY);
    CHECK_FAILS(per_channel_flush(channel, 50), PER_ERROR_BUSY, "3 steps that were written are not in the buffer yet");
    CHECK(channel_stats(channel).refused == 1);
    free_channel(writer, channel, replay);
}

static void the_end_of_limits_lets_a_channel_go_on(void) {
    per_replay* replay = limited(2, 8, 1, 1);
    per_channel* channel = create_channel(replay, 0, NULL, SLOTS, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    for (int t = 0; t < 5 + SLOTS; ++t) CHECK_OK(write_step(writer, (float)t, (float)t + 1, 0, 60000));
    CHECK_FAILS(per_channel_flush(channel, 20), PER_ERROR_BUSY, "not in the buffer yet");
    CHECK_OK(per_replay_stop_limiting(replay));
    CHECK_OK(per_channel_flush(channel, 60000));
    CHECK(stats_of(replay).added == 5 + SLOTS);
    free_channel(writer, channel, replay);
}

enum { ENVS = 8 };

/* A step of all ENVS environments of a channel except those that `mask` leaves out, or of the environment `env`. */
static void write_masked(per_writer* writer, const uint8_t* mask, const int64_t* env) {
    static const float values[ENVS];
    static const uint8_t no[ENVS];
    const per_array field = array_of(values, PER_FLOAT32);
    per_steps steps = steps_of(1, &field, &field, values, no, no);
    steps.n_envs = env != NULL;
    steps.env_ids = env;
    if (mask != NULL) steps.mask = array_of(mask, PER_BOOL);
    CHECK_OK(per_writer_add(writer, &steps, 60000));
}

/* 1 + 8 steps of single environments are allowed, as by per_replay_add(), then one for each transition drawn. */
static void environments_that_a_writer_leaves_out_do_not_count(int32_t moved_by, int64_t added_before) {
    static const uint8_t none[ENVS], three[ENVS] = {0, 1, 0, 0, 1, 0, 1, 0};
    per_replay* replay = limited(1, ENVS, 1, ENVS);
    per_channel* channel = create_channel_moved_by(moved_by, replay, 0, NULL, 64, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    int64_t env;
    for (env = 0; env < added_before; ++env) {
        const int64_t id = env % ENVS;
        write_masked(writer, NULL, &id);
        CHECK_OK(per_channel_flush(channel, 60000));
    }
    CHECK(stats_of(replay).added == added_before);
    for (; env < 12; ++env) {
        const int64_t id = env % ENVS;
        write_masked(writer, NULL, &id);
    }
    while (stats_of(replay).added < 9) CHECK(per_channel_flush(channel, 10) == PER_ERROR_BUSY);
    CHECK_FAILS(per_channel_flush(channel, 50), PER_ERROR_BUSY, "3 steps that were written");
    CHECK(stats_of(replay).added == 9);
    CHECK_OK(draw_some(replay, 3));
    CHECK_OK(per_channel_flush(channel, 60000));
    CHECK(stats_of(replay).added == 12);
    write_masked(writer, none, NULL); /* it is not a step, and always allowed */
    CHECK_OK(per_channel_flush(channel, 60000));
    CHECK(stats_of(replay).added == 12);
    write_masked(writer, three, NULL);
    CHECK_OK(draw_some(replay, 2));
    CHECK_FAILS(per_channel_flush(channel, 50), PER_ERROR_BUSY, "1 steps that were written");
    CHECK_OK(draw_some(replay, 1));
    CHECK_OK(per_channel_flush(channel, 60000));
    CHECK(stats_of(replay).added == 15);
    free_channel(writer, channel, replay);
}

static void a_loader_draws_as_far_as_is_allowed(void) {
    per_replay *replay = limited(1, 8, 4, 1), *twin = limited(0, 0, 0, 1);
    static rows expected;
    per_batch batch;
    int64_t slot;
    int t = 4;
    add_run(replay, 0, t);
    add_run(twin, 0, t);
    /* Three batches are requested, and one is allowed. */
    per_loader* loader = create_loader(replay, 8, 3, NULL);
    for (int i = 0; i < 20; ++i) {
        draw(twin, 8, &expected);
        CHECK_OK(try_next(loader, -1, &batch, &slot));
        check_batch(&batch, &expected, 8);
        CHECK_OK(per_loader_release(loader, slot, NULL));
        CHECK_FAILS(try_next(loader, -1, &batch, &slot), PER_ERROR_BUSY, "before more steps are added");
        CHECK_FAILS(per_replay_wait_to_sample(replay, 8, 0), PER_ERROR_BUSY, "before more steps are added");
        add_run(replay, t, t + 8);
        add_run(twin, t, t + 8);
        t += 8;
        CHECK_OK(per_replay_wait_to_sample(replay, 8, 0));
    }
    per_loader_free(loader);
    per_loader_options options = default_loader_options();
    options.batch_size = 9;
    options.device = loader_device();
    CHECK_REFUSED(per_loader_create(replay, &options, &loader),
                  "batch_size is 9: allowed by samples_tolerance are 1 .. 8");
    free_both(replay, twin);
}

int main(void) {
    a_channel_waits_and_its_writer_sees_a_full_ring();
    if (!on_cuda()) a_refused_step_holds_up_no_slots(); /* on CUDA only the device knows that it is refused */
    the_end_of_limits_lets_a_channel_go_on();
    environments_that_a_writer_leaves_out_do_not_count(PER_MOVED_BY_THREAD, 0);
    environments_that_a_writer_leaves_out_do_not_count(PER_MOVED_BY_THREAD, 9);
    environments_that_a_writer_leaves_out_do_not_count(PER_MOVED_BY_CALLS, 0);
    environments_that_a_writer_leaves_out_do_not_count(PER_MOVED_BY_CALLS, 9);
    a_loader_draws_as_far_as_is_allowed();
    return 0;
}
