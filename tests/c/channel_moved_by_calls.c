/*
 * A channel without a thread: steps enter the buffer only by per_channel_move() and per_channel_flush(), as many as the
 * call and the rate limiter allow. If the channel's process died, the writer's next call reports it.
 */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "channel_check.h"
#include "checkpoints.h"
#include "posix_check.h"
#include "save_check.h"
#include "thread_check.h"

enum { SLOTS = 8, ALL = 2000 };

static per_channel* by_calls(per_replay* replay) {
    return create_channel_moved_by(PER_MOVED_BY_CALLS, replay, 0, NULL, SLOTS, PER_FULL_WAITS);
}

static per_replay* buffer_of(int64_t n_envs) {
    return create_plain(4000 * n_envs, n_envs);
}

static void nothing_comes_in_by_itself(void) {
    per_replay* replay = buffer_of(1);
    per_channel* channel = by_calls(replay);
    per_writer* writer = attach(path_of(channel));
    int t;
    for (t = 0; t < SLOTS - 1; ++t) CHECK_OK(write_step(writer, (float)t, (float)t + 1, 0, 0)); /* after the cut */
    CHECK_FAILS(write_step(writer, 99, 99, 0, 20), PER_ERROR_BUSY, "the ring of 8 slots has no room for 1 more");
    CHECK_FAILS(per_writer_flush(writer, 20), PER_ERROR_BUSY, "8 steps that were written are not in the buffer yet");
    CHECK(live_of(replay) == 0 && channel_stats(channel).waiting == SLOTS);
    CHECK(moved(channel, 0) == 0 && channel_stats(channel).waiting == SLOTS - 1); /* a cut is not a step */
    CHECK(moved(channel, 3) == 3 && live_of(replay) == 3);
    CHECK_OK(write_step(writer, (float)t, (float)t + 1, 0, 0));
    CHECK(moved(channel, INT64_MAX) == SLOTS - 3 && moved(channel, INT64_MAX) == 0);
    CHECK(live_of(replay) == SLOTS && stats_of(replay).cuts == 0 && channel_stats(channel).added == SLOTS);
    CHECK_OK(per_writer_flush(writer, 0));
    CHECK_OK(write_step(writer, SLOTS, SLOTS + 1, 0, 0));
    CHECK_OK(per_channel_flush(channel, 0));
    CHECK(live_of(replay) == SLOTS + 1 && channel_stats(channel).waiting == 0);
    CHECK(channel_stats(channel).waits == 1); /* it ended with the next step */
    for (t = 0; t < SLOTS; ++t) CHECK_OK(write_step(writer, 0, 0, 0, 0));
    CHECK_FAILS(write_step(writer, 0, 0, 0, 0), PER_ERROR_BUSY, "has no room");
    CHECK(channel_stats(channel).waits == 2);
    free_channel(writer, channel, replay);
}

/* A step of the listed environments, out of two. */
static void write_some(per_writer* writer, int64_t n_envs, const int64_t* env_ids) {
    static const float value[2] = {1, 1};
    static const uint8_t no[2] = {0, 0};
    const per_array field = array_of(value, PER_FLOAT32);
    per_steps steps = steps_of(1, &field, &field, value, no, no);
    steps.n_envs = n_envs;
    steps.env_ids = env_ids;
    CHECK_OK(per_writer_add(writer, &steps, 0));
}

/* Steps of 1, 2, 1, 2 and 2 environments. */
static void a_step_comes_in_as_a_whole_and_none_overtakes_it(void) {
    static const int64_t both[2] = {0, 1}, second = 1;
    per_replay* replay = buffer_of(2);
    per_channel* channel = by_calls(replay);
    per_writer* writer = attach(path_of(channel));
    write_some(writer, 1, &second);
    write_some(writer, 2, both);
    write_some(writer, 1, &second);
    write_some(writer, 2, both);
    write_some(writer, 2, both);
    CHECK(moved(channel, 2) == 1); /* the second has two environments, and the third waits behind it */
    CHECK(moved(channel, 1) == 0);
    CHECK(moved(channel, 4) == 3);
    CHECK(moved(channel, 3) == 2);
    CHECK(moved(channel, 3) == 2);
    CHECK(stats_of(replay).added == 8 && channel_stats(channel).added == 5);
    free_channel(writer, channel, replay);
}

/* The third step does not continue the second. The buffer refuses it, and it does not count as one of the four. */
static void what_the_buffer_refuses_does_not_count(void) {
    per_replay_options options = replay_options(100, 1);
    char before[600];
    options.on_gap = PER_GAP_ERROR;
    per_replay* replay = create_replay(&options);
    per_channel* channel = by_calls(replay);
    per_writer* writer = attach(path_of(channel));
    CHECK_REFUSED(per_channel_flush(channel, -2), "timeout_ms is -2");
    strcpy(before, per_last_error());
    for (int t = 0; t < 6; ++t) CHECK_OK(write_step(writer, t == 2 ? 99 : (float)t, (float)t + 1, 0, 0));
    CHECK(moved(channel, 4) == 4);
    CHECK(channel_stats(channel).refused == 1 && channel_stats(channel).waiting == 1);
    CHECK_OK(per_channel_flush(channel, 0));
    CHECK(strcmp(before, per_last_error()) == 0); /* calls that succeed leave the message unchanged */
    CHECK(stats_of(replay).added == 5);
    free_channel(writer, channel, replay);
}

static void* draw_in_a_while(void* replay) {
    static rows out;
    pause_ns(20000000);
    draw(replay, 8, &out);
    return NULL;
}

/* 1 + 8 / 2 steps are allowed, then 4 more after 8 draws. */
static void the_rate_limiter_holds_the_calls(void) {
    per_replay_options options = replay_options(100, 1);
    int t;
    set_rate_limit(&options, 2, 8, 0);
    per_replay* replay = create_replay(&options);
    per_channel* channel = by_calls(replay);
    per_writer* writer = attach(path_of(channel));
    for (t = 0; t < SLOTS - 1; ++t) CHECK_OK(write_step(writer, (float)t, (float)t + 1, 0, 0));
    CHECK(moved(channel, 4) == 4);
    CHECK(moved(channel, INT64_MAX) == 1);
    CHECK(moved(channel, INT64_MAX) == 0);
    CHECK_FAILS(per_channel_flush(channel, 0), PER_ERROR_BUSY, "2 steps that were written are not in the buffer yet");
    CHECK_FAILS(per_channel_flush(channel, 20), PER_ERROR_BUSY, "2 steps that were written");
    CHECK(stats_of(replay).added == 5);
    pthread_t thread = start_thread(draw_in_a_while, replay);
    CHECK_OK(per_channel_flush(channel, -1));
    join_thread(thread);
    CHECK(stats_of(replay).added == SLOTS - 1 && channel_stats(channel).refused == 0);
    for (; t < SLOTS + 3; ++t) CHECK_OK(write_step(writer, (float)t, (float)t + 1, 0, 0));
    CHECK(moved(channel, INT64_MAX) == 2); /* the other two of the 4 */
    thread = start_thread(draw_in_a_while, replay);
    CHECK_OK(per_channel_flush(channel, 60000)); /* the draw takes much less time */
    join_thread(thread);
    CHECK(stats_of(replay).added == SLOTS + 3);
    free_channel(writer, channel, replay);
}

enum { FLUSHERS = 3 };

typedef struct flushers {
    per_channel* channel;
    pthread_t threads[FLUSHERS];
    int are_there;
} flushers;

static void* flush_all(void* channel) {
    CHECK_OK(per_channel_flush(channel, -1));
    return NULL;
}

/* Begins calls of per_channel_flush() on several threads, and gives them time to proceed as far as they can. */
static void begin_to_flush(flushers* these) {
    for (int i = 0; i < FLUSHERS; ++i) these->threads[i] = start_thread(flush_all, these->channel);
    these->are_there = 1;
    pause_ns(20000000);
}

static void end_to_flush(flushers* these) {
    for (int i = 0; i < FLUSHERS; ++i) join_thread(these->threads[i]);
}

static int64_t begin_during_a_save(void* these, const void* data, int64_t size) {
    (void)data;
    if (!((flushers*)these)->are_there) begin_to_flush(these);
    return size;
}

/* The save locks the buffer, so all calls have begun before any can move the first slot: the writer's cut or a step.
   Each step still enters exactly once. */
static void flushes_of_several_threads_bring_each_step_once(int begins_with_a_step) {
    per_replay* replay = buffer_of(1);
    per_channel* channel = by_calls(replay);
    per_writer* writer = attach(path_of(channel));
    flushers these = {NULL, {0}, 0};
    int t;
    these.channel = channel;
    for (t = 0; t < SLOTS - 1; ++t) CHECK_OK(write_step(writer, (float)t, (float)t + 1, 0, 0));
    if (begins_with_a_step) CHECK(moved(channel, 0) == 0);
    CHECK_OK(save_to(replay, begin_during_a_save, &these));
    end_to_flush(&these);
    CHECK(stats_of(replay).added == SLOTS - 1 && channel_stats(channel).added == SLOTS - 1);
    for (; t < ALL; ++t) { /* the slots are in their proper places */
        CHECK_OK(write_step(writer, (float)t, (float)t + 1, 0, 0));
        if (t % 5 == 0) CHECK_OK(per_channel_flush(channel, 0));
    }
    CHECK_OK(per_channel_flush(channel, 0));
    CHECK(stats_of(replay).added == ALL && stats_of(replay).cuts == 0 && channel_stats(channel).waiting == 0);
    free_channel(writer, channel, replay);
}

/* 1 + 8 / 2 of 7 steps are allowed before draws. Calls that wait for draws leave the channel to others. */
static void flushes_of_several_threads_wait_for_draws_beside_other_calls(void) {
    per_replay_options options = replay_options(100, 1);
    per_channel* channel;
    flushers these = {NULL, {0}, 0};
    rows out;
    set_rate_limit(&options, 2, 8, 0);
    per_replay* replay = create_replay(&options);
    these.channel = channel = by_calls(replay);
    per_writer* writer = attach(path_of(channel));
    for (int t = 0; t < SLOTS - 1; ++t) CHECK_OK(write_step(writer, (float)t, (float)t + 1, 0, 0));
    CHECK(moved(channel, INT64_MAX) == 5);
    begin_to_flush(&these);
    CHECK(moved(channel, INT64_MAX) == 0);
    CHECK_FAILS(per_channel_flush(channel, 0), PER_ERROR_BUSY, "2 steps that were written are not in the buffer yet");
    draw(replay, 8, &out);
    end_to_flush(&these);
    CHECK(stats_of(replay).added == SLOTS - 1 && channel_stats(channel).added == SLOTS - 1);
    free_channel(writer, channel, replay);
}

/* A save locks the buffer while other calls wait for it without a timeout. No step is lost. */
static void a_flush_ends_in_time_while_the_buffer_is_saved(void) {
    per_replay* replay = buffer_of(1);
    per_channel* channel = by_calls(replay);
    per_writer* writer = attach(path_of(channel));
    flushers these = {NULL, {0}, 0};
    held save;
    these.channel = channel;
    for (int t = 0; t < SLOTS - 1; ++t) CHECK_OK(write_step(writer, (float)t, (float)t + 1, 0, 0));
    hold_buffer(&save, replay);
    CHECK_FAILS(per_channel_flush(channel, 20), PER_ERROR_BUSY, "8 steps that were written are not in the buffer yet");
    begin_to_flush(&these);
    CHECK_FAILS(per_channel_flush(channel, 20), PER_ERROR_BUSY, "another call that moves the steps of the channel");
    CHECK_FAILS(per_writer_flush(writer, 20), PER_ERROR_BUSY, "8 steps that were written are not in the buffer yet");
    let_go(&save);
    end_to_flush(&these);
    CHECK(stats_of(replay).added == SLOTS - 1 && stats_of(replay).cuts == 0);
    free_channel(writer, channel, replay);
}

static void* write_many(void* writer) {
    for (int t = 0; t < ALL; ++t) CHECK_OK(write_step(writer, (float)t, (float)t + 1, 0, -1));
    return NULL;
}

typedef struct mover {
    per_channel* channel;
    int64_t steps;
} mover;

static void* move_many(void* context) {
    mover* it = context;
    while (channel_stats(it->channel).added < ALL) {
        it->steps += moved(it->channel, 3);
        pause_ns(10000);
    }
    return NULL;
}

/* The ring has room for 8 of the 2000 steps: the writer waits and is woken many times. */
static void a_writer_that_waits_is_woken_and_several_threads_may_move(void) {
    per_replay* replay = buffer_of(1);
    per_channel* channel = by_calls(replay);
    per_writer* writer = attach(path_of(channel));
    mover movers[2] = {{NULL, 0}, {NULL, 0}};
    movers[0].channel = movers[1].channel = channel;
    pthread_t writing = start_thread(write_many, writer);
    pthread_t moving = start_thread(move_many, &movers[0]);
    move_many(&movers[1]);
    join_thread(writing);
    join_thread(moving);
    CHECK(movers[0].steps + movers[1].steps == ALL);
    CHECK(live_of(replay) == ALL && stats_of(replay).cuts == 0);
    free_channel(writer, channel, replay);
}

static void the_end_of_a_channel_moves_nothing(void) {
    per_replay* replay = buffer_of(1);
    per_channel* channel = by_calls(replay);
    per_writer* writer = attach(path_of(channel));
    CHECK_OK(write_step(writer, 0, 1, 0, 0));
    per_channel_free(channel);
    CHECK(stats_of(replay).added == 0);
    CHECK_REFUSED(write_step(writer, 1, 2, 0, 0), "the channel was closed");
    per_writer_free(writer);
    per_replay_free(replay);
}

static int64_t move_channel(void* channel, const void* data, int64_t size) {
    int64_t steps = 7;
    (void)data;
    CHECK_FAILS(per_channel_move(channel, 1, &steps), PER_ERROR_BUSY, "the buffer is being saved");
    CHECK(steps == 0);
    CHECK_FAILS(per_channel_flush(channel, -1), PER_ERROR_BUSY, "the buffer is being saved");
    return size;
}

static void what_cannot_be_asked_is_an_error(void) {
    per_replay* replay = buffer_of(1);
    per_channel *channel = by_calls(replay), *other = create_channel(replay, 0, NULL, SLOTS, PER_FULL_WAITS);
    int64_t steps = 7;
    CHECK_REFUSED(per_channel_move(other, 1, &steps), "channel has a thread that moves its steps");
    CHECK(steps == 0);
    CHECK_REFUSED(per_channel_move(channel, -1, &steps), "max_steps is -1");
    CHECK_OK(save_to(replay, move_channel, channel));
    per_channel_free(other);
    per_channel_free(channel);
    per_replay_free(replay);
}

/* The buffer is in a child process, which is killed; the ring has room. */
static void a_dead_process_is_told_by_the_next_call(void) {
    int ends[2], status;
    char path[200];
    CHECK(pipe(ends) == 0);
    pid_t child = start_child();
    if (child == 0) {
        per_channel* channel = by_calls(buffer_of(1));
        CHECK(write(ends[1], path_of(channel), strlen(path_of(channel)) + 1) > 0);
        for (;;) pause();
    }
    CHECK(read(ends[0], path, sizeof path) > 0);
    per_writer* writer = attach(path);
    CHECK_OK(write_step(writer, 0, 1, 0, 0));
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_REFUSED(write_step(writer, 1, 2, 0, 0), "the channel's process has ended");
    CHECK_REFUSED(per_writer_flush(writer, -1), "the channel's process has ended");
    CHECK_REFUSED(per_writer_cut(writer, 0, NULL, -1), "the channel's process has ended");
    per_replay_options described = default_replay_options();
    CHECK_REFUSED(per_writer_describe(writer, &described), "process has ended");
    per_writer_free(writer);
    close(ends[0]);
    close(ends[1]);
}

static void a_forked_child_cannot_move(void) {
    per_replay* replay = buffer_of(1);
    per_channel* channel = by_calls(replay);
    const pid_t child = start_child();
    if (child == 0) {
        int64_t steps;
        alarm(20);
        CHECK_REFUSED(per_channel_move(channel, 1, &steps), "before a fork");
        CHECK_REFUSED(per_channel_flush(channel, -1), "before a fork");
        per_channel_free(channel);
        _exit(0);
    }
    check_child(child);
    per_channel_free(channel);
    per_replay_free(replay);
}

/* Descriptor 0 is valid, too. */
static void a_process_without_standard_input_has_channels(void) {
    const pid_t child = start_child();
    if (child == 0) {
        per_replay* replay = buffer_of(1);
        close(STDIN_FILENO);
        per_channel* channel = by_calls(replay);
        per_writer* writer = attach(path_of(channel));
        CHECK_OK(write_step(writer, 0, 1, 0, 0));
        CHECK(moved(channel, 1) == 1);
        free_channel(writer, channel, replay);
        _exit(0);
    }
    check_child(child);
}

/* The fork closes the child's copy of the channel: files that the child opens may reuse its descriptors. */
static void a_forked_child_that_frees_a_channel_keeps_its_own_files(void) {
    enum { FILES = 64 };
    per_replay* replay = buffer_of(1);
    per_channel* channel = by_calls(replay);
    const pid_t child = start_child();
    if (child == 0) {
        int files[FILES];
        alarm(20);
        for (int i = 0; i < FILES; ++i) CHECK((files[i] = dup(STDERR_FILENO)) >= 0);
        per_channel_free(channel);
        for (int i = 0; i < FILES; ++i) CHECK(fcntl(files[i], F_GETFD) >= 0);
        _exit(0);
    }
    check_child(child);
    per_channel_free(channel);
    per_replay_free(replay);
}

int main(void) {
    alarm(300);                                /* a hang ends the test */
    a_dead_process_is_told_by_the_next_call(); /* a child of a process without threads */
    nothing_comes_in_by_itself();
    a_step_comes_in_as_a_whole_and_none_overtakes_it();
    if (!on_cuda()) what_the_buffer_refuses_does_not_count(); /* on CUDA only the device knows that it is refused */
    the_rate_limiter_holds_the_calls();
    flushes_of_several_threads_bring_each_step_once(0);
    flushes_of_several_threads_bring_each_step_once(1);
    flushes_of_several_threads_wait_for_draws_beside_other_calls();
    a_flush_ends_in_time_while_the_buffer_is_saved();
    a_writer_that_waits_is_woken_and_several_threads_may_move();
    the_end_of_a_channel_moves_nothing();
    what_cannot_be_asked_is_an_error();
    a_forked_child_cannot_move();
    a_process_without_standard_input_has_channels();
    a_forked_child_that_frees_a_channel_keeps_its_own_files();
    return 0;
}
