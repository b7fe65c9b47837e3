/*
 * If the ring is full, a writer waits until there is room or its timeout expires; or it drops the steps that do not
 * fit, counts them, and cuts the episode there. One writer at a time is attached, to the channel at its path. A writer
 * is notified when its channel has ended.
 */
#define _XOPEN_SOURCE 700 /* posix_openpt() */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "channel_check.h"
#include "checkpoints.h"
#include "posix_check.h"
#include "save_check.h"
#include "thread_check.h"

enum { SLOTS = 8 };

static per_replay* small_buffer(void) {
    return create_plain(100, 1);
}

static void a_full_ring_holds_the_writer(void) {
    per_replay* replay = small_buffer();
    per_channel* channel = create_channel(replay, 0, NULL, SLOTS, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    held save;
    int t;
    CHECK_OK(per_writer_flush(writer, -1));
    hold_buffer(&save, replay);
    for (t = 0; t < SLOTS; ++t) CHECK_OK(write_step(writer, (float)t, (float)t + 1, 0, 0));
    CHECK_FAILS(write_step(writer, 99, 99, 0, 0), PER_ERROR_BUSY, "no room for 1 more");
    CHECK_FAILS(write_step(writer, 99, 99, 0, 20), PER_ERROR_BUSY, "the ring of 8 slots");
    CHECK_FAILS(per_channel_flush(channel, 20), PER_ERROR_BUSY, "not in the buffer yet");
    CHECK_FAILS(per_writer_flush(writer, 20), PER_ERROR_BUSY, "not in the buffer yet");
    CHECK(channel_stats(channel).waiting == SLOTS && channel_stats(channel).waits == 1);
    let_go(&save);
    CHECK_OK(write_step(writer, (float)t, (float)t + 1, 0, -1));
    CHECK_OK(per_writer_flush(writer, -1));
    CHECK(live_of(replay) == SLOTS + 1 && stats_of(replay).cuts == 0);
    free_channel(writer, channel, replay);
}

static void a_full_ring_drops_and_counts(void) {
    per_replay* replay = small_buffer();
    per_channel* channel = create_channel(replay, 0, NULL, SLOTS, PER_FULL_DROPS);
    per_writer* writer = attach(path_of(channel));
    const int64_t gaps = channel_stats(channel).gaps;
    held save;
    CHECK_OK(per_writer_flush(writer, -1));
    hold_buffer(&save, replay);
    /* The observation after the dropped steps is the one announced before them: only the count reveals the gap. */
    for (int t = 0; t < SLOTS + 3; ++t)
        CHECK_OK(write_step(writer, t < SLOTS ? (float)t : 99, t < SLOTS ? (float)t + 1 : 8, 0, -1));
    CHECK(channel_stats(channel).dropped == 3);
    let_go(&save);
    CHECK_OK(per_writer_flush(writer, -1));
    CHECK_OK(write_step(writer, 8, 9, 0, -1));
    CHECK_OK(per_channel_flush(channel, -1));
    CHECK(stats_of(replay).added == SLOTS + 1 && stats_of(replay).cuts == 1);
    CHECK(channel_stats(channel).added == SLOTS + 1 && channel_stats(channel).gaps == gaps + 2);
    free_channel(writer, channel, replay);
}

static void what_the_buffer_refuses_is_counted(void) {
    per_replay_options options = replay_options(20, 1);
    options.overwrite = 0;
    per_replay* replay = create_replay(&options);
    per_channel* channel = create_channel(replay, 0, NULL, 0, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    for (int t = 0; t < 25; ++t) CHECK_OK(write_step(writer, (float)t, (float)t + 1, 0, -1));
    CHECK_OK(per_writer_flush(writer, -1));
    CHECK(stats_of(replay).added == 19);
    if (!on_cuda()) CHECK(channel_stats(channel).added == 19 && channel_stats(channel).refused == 6);
    if (on_cuda()) CHECK(per_replay_synchronize(replay, NULL) == PER_ERROR_FULL);
    free_channel(writer, channel, replay);
}

static void writers_take_turns(void) {
    per_replay* replay = small_buffer();
    per_channel* channel = create_channel(replay, 0, NULL, SLOTS, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    per_writer* other = (per_writer*)replay;
    int32_t descriptor = -1;
    char path[200];
    CHECK(channel_stats(channel).attached == getpid());
    CHECK_FAILS(per_writer_attach(path_of(channel), -1, NULL, 0, 0, &other), PER_ERROR_BUSY, "has a writer already");
    CHECK(other == NULL);
    per_writer_free(writer);
    CHECK(channel_stats(channel).attached == 0);
    CHECK_OK(per_channel_get_address(channel, NULL, &descriptor));
    CHECK_OK(per_writer_attach(NULL, descriptor, NULL, 0, 0, &writer));
    per_writer_free(writer);
    CHECK(strlen(path_of(channel)) < sizeof path);
    strcpy(path, path_of(channel));
    per_channel_free(channel);
    CHECK_FAILS(per_writer_attach(path, -1, NULL, 0, 0, &other), PER_ERROR_IO, "no channel that can be opened");
    CHECK_FAILS(per_writer_attach(NULL, -1, NULL, 0, 0, &other), PER_ERROR_IO, "/proc/self/fd/-1");
    /* The next channel most likely reuses the descriptor. */
    channel = create_channel(replay, 0, NULL, SLOTS, PER_FULL_WAITS);
    if (strncmp(path, path_of(channel), (size_t)(strchr(path, '#') - path) + 1) == 0)
        CHECK_REFUSED(per_writer_attach(path, -1, NULL, 0, 0, &other), "there is another one");
    CHECK_FAILS(per_writer_attach("/dev/null", -1, NULL, 0, 0, &other), PER_ERROR_CORRUPT_FILE, "is no channel");
    per_channel_free(channel);
    per_replay_free(replay);
}

static void fields_that_differ_are_named(void) {
    static const int64_t three = 3;
    per_replay* replay = small_buffer();
    per_channel* channel = create_channel(replay, 0, NULL, SLOTS, PER_FULL_WAITS);
    per_writer* writer = NULL;
    per_field fields[2] = {field_of("observation", PER_FLOAT32, 0, NULL), field_of("action", PER_INT64, 0, NULL)};
    CHECK_REFUSED(per_writer_attach(path_of(channel), -1, fields, 2, sizeof(per_field), &writer),
                  "n_fields is 2: the buffer has 1 fields");
    CHECK_REFUSED(per_writer_attach(path_of(channel), -1, fields + 1, 1, sizeof(per_field), &writer),
                  "fields[0].name is \"action\": in the buffer it is \"observation\"");
    fields[0].shape = &three;
    fields[0].ndim = 1;
    CHECK_REFUSED(per_writer_attach(path_of(channel), -1, fields, 1, sizeof(per_field), &writer),
                  "field \"observation\" is float32(3,): in the buffer it is float32()");
    fields[0] = field_of("observation", PER_FLOAT64, 0, NULL);
    CHECK_REFUSED(per_writer_attach(path_of(channel), -1, fields, 1, sizeof(per_field), &writer),
                  "field \"observation\" is float64(): in the buffer it is float32()");
    fields[0] = field_of("observation", PER_FLOAT32, 0, NULL);
    CHECK_OK(per_writer_attach(path_of(channel), -1, fields, 1, sizeof(per_field), &writer));
    per_replay_options described = default_replay_options();
    CHECK_OK(per_writer_describe(writer, &described));
    CHECK(described.n_envs == 1 && described.n_fields == 1 && strcmp(described.fields[0].name, "observation") == 0);
    free_channel(writer, channel, replay);
}

static void what_is_wrong_is_told_where_it_is_written(void) {
    static const float observation = 1, bad = -1;
    static const uint8_t yes = 1;
    per_replay* replay = small_buffer();
    per_channel* channel = create_channel(replay, 0, NULL, SLOTS, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    call given;
    fill_call(&given, 1, &observation, NULL, &observation, &yes, NULL);
    CHECK_REFUSED(per_writer_add(writer, &given.steps, -1), "final observation must be given");
    fill_call(&given, 1, &observation, NULL, &observation, NULL, NULL);
    given.steps.priorities = array_of(&bad, PER_FLOAT32);
    CHECK_REFUSED(per_writer_add(writer, &given.steps, -1), "is -1: it must be finite");
    fill_call(&given, SLOTS, &observation, NULL, &observation, NULL, NULL);
    CHECK_REFUSED(per_writer_add(writer, &given.steps, -1), "length is 8: allowed are 0 .. 7");
    CHECK_OK(per_writer_flush(writer, -1));
    CHECK(channel_stats(channel).added == 0 && stats_of(replay).added == 0);
    free_channel(writer, channel, replay);
}

static int64_t flush_channel(void* channel, const void* data, int64_t size) {
    (void)data;
    CHECK_FAILS(per_channel_flush(channel, -1), PER_ERROR_BUSY, "the buffer is being saved");
    return size;
}

/* The channel's thread waits for the buffer, which is being saved until the function returns. */
static void a_function_that_saves_cannot_wait_for_steps(void) {
    per_replay* replay = small_buffer();
    per_channel* channel = create_channel(replay, 0, NULL, 8, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    CHECK_OK(save_to(replay, flush_channel, channel));
    CHECK_OK(per_channel_flush(channel, -1));
    free_channel(writer, channel, replay);
}

static per_channel* freed_channel;
static per_replay* freed_replay;

/* Writes a step, which the channel's thread cannot add before the save is over, and frees the channel. */
static int64_t free_it(void* writer, const void* data, int64_t size) {
    (void)data;
    if (freed_channel != NULL) {
        CHECK_OK(write_step((per_writer*)writer, 1, 2, 0, -1));
        CHECK_FAILS(per_channel_flush(freed_channel, -1), PER_ERROR_BUSY, "the buffer is being saved");
        per_channel_free(freed_channel);
        per_replay_free(freed_replay);
    }
    freed_channel = NULL;
    return size;
}

static void a_function_that_saves_may_free_a_channel(void) {
    per_replay* replay = small_buffer();
    freed_channel = create_channel(replay, 0, NULL, 8, PER_FULL_WAITS);
    freed_replay = NULL;
    per_writer* writer = attach(path_of(freed_channel));
    CHECK_OK(save_to(replay, free_it, writer));
    CHECK(live_of(replay) == 1);
    CHECK_REFUSED(write_step(writer, 2, 3, 0, -1), "the channel was closed");
    per_writer_free(writer);
    freed_channel = create_channel(replay, 0, NULL, 8, PER_FULL_WAITS);
    freed_replay = replay;
    writer = attach(path_of(freed_channel));
    CHECK_OK(save_to(replay, free_it, writer)); /* then the buffer, after its channel */
    CHECK_REFUSED(write_step(writer, 2, 3, 0, -1), "the channel was closed");
    per_writer_free(writer);
}

static void a_closed_channel_is_told_to_its_writer(void) {
    per_replay* replay = small_buffer();
    per_channel* channel = create_channel(replay, 0, NULL, SLOTS, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    CHECK_OK(write_step(writer, 0, 1, 0, -1));
    per_channel_free(channel);
    CHECK(live_of(replay) == 1);
    CHECK_REFUSED(write_step(writer, 1, 2, 0, -1), "the channel was closed");
    per_replay_options described = default_replay_options();
    CHECK_REFUSED(per_writer_describe(writer, &described), "the channel was closed");
    per_writer_free(writer);
    per_replay_free(replay);
}

/* The buffer is in a child process, which is killed. */
static void a_dead_buffer_is_told_to_its_writer(void) {
    int ends[2], status, t = 0;
    char path[200];
    CHECK(pipe(ends) == 0);
    pid_t child = start_child();
    if (child == 0) {
        per_replay* replay = small_buffer();
        per_channel* channel = create_channel(replay, 0, NULL, SLOTS, PER_FULL_WAITS);
        CHECK(write(ends[1], path_of(channel), strlen(path_of(channel)) + 1) > 0);
        for (;;) pause();
    }
    CHECK(read(ends[0], path, sizeof path) > 0);
    per_writer* writer = attach(path);
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitpid(child, &status, 0) == child);
    while (t < 2 * SLOTS && write_step(writer, (float)t, (float)t + 1, 0, -1) == PER_OK) ++t;
    CHECK(t <= SLOTS);
    CHECK_REFUSED(per_writer_flush(writer, 0), "the channel's process has ended");
    CHECK_REFUSED(write_step(writer, 0, 1, 0, -1), "the channel's process has ended");
    per_writer_free(writer);
    close(ends[0]);
    close(ends[1]);
}

static void a_forked_child_has_no_channel(void) {
    per_replay* replay = small_buffer();
    per_channel* channel = create_channel(replay, 0, NULL, SLOTS, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    char path[200];
    strcpy(path, path_of(channel));
    pid_t child = start_child();
    if (child == 0) {
        per_channel_statistics statistics;
        per_writer* other = NULL;
        alarm(20);
        CHECK_REFUSED(per_channel_get_statistics(channel, &statistics, sizeof statistics), "before a fork");
        CHECK_REFUSED(per_channel_flush(channel, -1), "before a fork");
        CHECK_REFUSED(write_step(writer, 1, 2, 0, -1), "before a fork");
        CHECK_FAILS(per_writer_attach(path, -1, NULL, 0, 0, &other), PER_ERROR_BUSY, "has a writer already");
        per_writer_free(writer);
        per_channel_free(channel);
        if (!on_cuda()) per_replay_free(replay);
        _exit(0);
    }
    check_child(child);
    CHECK_OK(write_step(writer, 0, 1, 0, -1));
    CHECK_OK(per_writer_flush(writer, -1));
    CHECK(live_of(replay) == 1);
    free_channel(writer, channel, replay);
}

/* Without a controlling terminal a process would acquire the first one that it opens, and its user's signals. */
static void a_terminal_that_is_no_channel_does_not_become_that_of_the_process(void) {
    const pid_t child = start_child();
    if (child == 0) {
        const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
        per_writer* writer;
        if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) {
            fprintf(stderr, "no terminal: that channels leave it alone is not tested\n");
            _exit(0);
        }
        CHECK(setsid() >= 0);
        CHECK(per_writer_attach(ptsname(terminal), -1, NULL, 0, 0, &writer) != PER_OK);
        CHECK(open("/dev/tty", O_RDWR) < 0);
        _exit(0);
    }
    check_child(child);
}

typedef struct waiting_writer {
    per_writer* writer;
    per_status status;
} waiting_writer;

static void* write_one(void* context) {
    waiting_writer* it = context;
    it->status = write_step(it->writer, SLOTS, SLOTS + 1, 0, -1);
    return NULL;
}

/* One thread waits for room without a timeout. Calls of others time out, and may use any room there is. */
static void a_call_that_waits_for_room_holds_up_no_other(void) {
    per_replay* replay = small_buffer();
    per_channel* channel = create_channel_moved_by(PER_MOVED_BY_CALLS, replay, 0, NULL, SLOTS, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    waiting_writer waiting;
    for (int t = 1; t < SLOTS; ++t) CHECK_OK(write_step(writer, (float)t, (float)t + 1, 0, 0)); /* after the cut */
    waiting.writer = writer;
    waiting.status = PER_ERROR_INTERNAL;
    pthread_t thread = start_thread(write_one, &waiting);
    while (channel_stats(channel).waits == 0) sched_yield();
    CHECK_FAILS(write_step(writer, 99, 99, 0, 0), PER_ERROR_BUSY, "the ring of 8 slots has no room for 1 more");
    CHECK_FAILS(write_step(writer, 99, 99, 0, 20), PER_ERROR_BUSY, "the ring of 8 slots has no room for 1 more");
    CHECK_FAILS(per_writer_cut(writer, 0, NULL, 20), PER_ERROR_BUSY, "the ring of 8 slots has no room for 1 more");
    CHECK_FAILS(per_writer_flush(writer, 20), PER_ERROR_BUSY, "8 steps that were written are not in the buffer yet");
    CHECK(moved(channel, 1) == 1);
    join_thread(thread);
    CHECK_OK(waiting.status);
    CHECK_OK(write_step(writer, SLOTS + 1, SLOTS + 2, 0, 0)); /* the cut has left, too */
    CHECK(moved(channel, INT64_MAX) == SLOTS);
    CHECK(live_of(replay) == SLOTS + 1 && stats_of(replay).cuts == 0);
    free_channel(writer, channel, replay);
}

int main(void) {
    alarm(300);                            /* a hang ends the test */
    a_dead_buffer_is_told_to_its_writer(); /* a child of a process without threads */
    a_terminal_that_is_no_channel_does_not_become_that_of_the_process();
    a_full_ring_holds_the_writer();
    a_call_that_waits_for_room_holds_up_no_other();
    a_full_ring_drops_and_counts();
    what_the_buffer_refuses_is_counted();
    writers_take_turns();
    fields_that_differ_are_named();
    what_is_wrong_is_told_where_it_is_written();
    a_function_that_saves_cannot_wait_for_steps();
    a_function_that_saves_may_free_a_channel();
    a_closed_channel_is_told_to_its_writer();
    a_forked_child_has_no_channel();
    return 0;
}
