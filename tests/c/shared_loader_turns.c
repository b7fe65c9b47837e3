/*
 * Readers wait for batches that are not drawn yet, and are notified of those that never will be. No reader can keep all
 * slots. The reader whose turn it was gets the error of a failed draw. The rate limiter blocks readers and no other
 * calls. The end of the loader, of its process or of a fork ends no call in a wait.
 */
#define _GNU_SOURCE /* memfd_create */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "channel_check.h"
#include "posix_check.h"
#include "reader_check.h"
#include "save_check.h"
#include "thread_check.h"

enum { BATCH = 8 };

static void fill(per_replay* replay, int first, int end) {
    for (; first < end; ++first) add_full(replay, 0, (float)first, (float)first, GOES_ON, (float)first + 1);
}

static per_replay* small_buffer(void) {
    per_replay* replay = create_plain(100, 1);
    fill(replay, 0, 50);
    return replay;
}

/* A thread that takes a batch, and the result. */
typedef struct taker {
    per_reader* reader;
    per_status status;
    char message[512];
    int64_t slot;
    pthread_t thread;
} taker;

static void* run_taker(void* context) {
    taker* it = context;
    per_batch batch;
    it->status = try_read(it->reader, -1, &batch, &it->slot);
    strncpy(it->message, per_last_error(), sizeof it->message - 1);
    return NULL;
}

static void start_taking(taker* it, per_reader* reader) {
    memset(it, 0, sizeof *it);
    it->reader = reader;
    it->thread = start_thread(run_taker, it);
}

static per_status describe(per_reader* reader) {
    int64_t batch_size;
    per_replay_options options = default_replay_options();
    return per_reader_describe(reader, &options, &batch_size);
}

/* Readers count even if they leave before the loader's thread notices them. */
static void all_readers_are_counted(void) {
    per_replay* replay = small_buffer();
    per_shared_loader* loader = share_batches(replay, BATCH, 2, 1, NULL);
    for (int i = 0; i < 50; ++i) {
        per_reader *one = attach_reader(path_of_batches(loader)), *two = attach_reader(path_of_batches(loader));
        per_reader_free(one);
        per_reader_free(two);
    }
    CHECK(sharing_stats(loader).readers == 100 && sharing_stats(loader).attached == 0);
    per_shared_loader_free(loader);
    per_replay_free(replay);
}

static void no_reader_keeps_all_slots(void) {
    per_replay* replay = small_buffer();
    per_shared_loader* loader = share_batches(replay, BATCH, 2, 2, NULL);
    per_reader *one = attach_reader(path_of_batches(loader)), *two = attach_reader(path_of_batches(loader));
    per_reader* third = one;
    per_batch batch;
    taker waits;
    int64_t slot = -1, first = read_batch(one, &batch), second = read_batch(one, &batch);
    CHECK_FAILS(per_reader_attach(path_of_batches(loader), -1, &third), PER_ERROR_BUSY, "has 2 readers already");
    CHECK(third == NULL);
    CHECK_FAILS(try_read(one, 20, &batch, &slot), PER_ERROR_BUSY,
                "no batch was there in time: as many are out as there are slots, 2");
    CHECK(slot == -1);
    for (int i = 0; i < 20; ++i) CHECK_OK(per_reader_release(two, read_batch(two, &batch)));
    CHECK_REFUSED(per_reader_release(two, first), "allowed are those of batches that are out");
    CHECK_REFUSED(per_reader_release(one, 99), "slot is 99");
    CHECK_REFUSED(per_reader_release(one, -1), "slot is -1");
    CHECK_OK(per_reader_flush(two, -1));
    CHECK(sharing_stats(loader).out == 2 && sharing_stats(loader).attached == 2 && sharing_stats(loader).places == 2);
    start_taking(&waits, one); /* as if another thread of its process released one */
    CHECK_OK(per_reader_release(one, first));
    join_thread(waits.thread);
    CHECK(waits.status == PER_OK && waits.slot != second);
    CHECK_REFUSED(per_reader_release(one, first == waits.slot ? 99 : first), "slot is");
    /* When a reader stops, its place is free at once, and its slots are reused. */
    CHECK_OK(per_reader_stop(one));
    CHECK_OK(per_reader_stop(one));
    CHECK_REFUSED(try_read(one, -1, &batch, &slot), "reader was stopped");
    CHECK_REFUSED(per_reader_release(one, second), "reader was stopped");
    CHECK_REFUSED(per_reader_flush(one, -1), "reader was stopped");
    CHECK_REFUSED(describe(one), "reader was stopped");
    third = attach_reader(path_of_batches(loader));
    for (int i = 0; i < 20; ++i) CHECK_OK(per_reader_release(third, read_batch(third, &batch)));
    CHECK(sharing_stats(loader).returned == 2 && sharing_stats(loader).readers == 3);
    per_reader_free(one);
    per_reader_free(two);
    free_shared(third, loader, replay);
}

static void a_draw_that_fails_is_told(void) {
    per_replay* replay = create_plain(100, 1);
    per_shared_loader* loader = share_batches(replay, BATCH, 1, 2, NULL);
    per_reader* reader = attach_reader(path_of_batches(loader));
    per_batch batch;
    int64_t slot;
    CHECK_FAILS(try_read(reader, -1, &batch, &slot), PER_ERROR_EMPTY, "no transition is live");
    CHECK_FAILS(try_read(reader, -1, &batch, &slot), PER_ERROR_EMPTY, "no transition is live");
    fill(replay, 0, 10);
    CHECK_OK(per_reader_release(reader, read_batch(reader, &batch)));
    free_shared(reader, loader, replay);
}

static void the_rate_limiter_makes_readers_wait_and_nobody_else(void) {
    per_replay_options options = replay_options(1000, 1);
    per_batch batch;
    taker waits;
    float errors[BATCH] = {1};
    int64_t ids[BATCH] = {0}, slot;
    int t = 0, n = 0;
    set_rate_limit(&options, 1, 16, 4);
    per_replay* replay = create_replay(&options);
    per_shared_loader* loader = share_batches(replay, BATCH, 2, 2, NULL);
    per_reader *reader = attach_reader(path_of_batches(loader)), *other = attach_reader(path_of_batches(loader));
    CHECK_FAILS(try_read(reader, 30, &batch, &slot), PER_ERROR_BUSY, "no batch was there in time");
    per_channel* channel = create_channel(replay, 0, NULL, 64, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    start_taking(&waits, reader);
    for (; t < 4; ++t) CHECK_OK(write_step(writer, (float)t, (float)t + 1, 0, -1));
    join_thread(waits.thread);
    CHECK(waits.status == PER_OK);
    CHECK_OK(per_reader_release(reader, waits.slot));
    /* 16 transitions are allowed before more is added: another batch. */
    CHECK_OK(per_reader_release(reader, read_batch(reader, &batch)));
    CHECK_FAILS(try_read(reader, 30, &batch, &slot), PER_ERROR_BUSY, "no batch was there in time");
    /* Updates of the other reader arrive meanwhile, even before steps that it writes. */
    CHECK_OK(send_td_errors(other, 1, ids, 1, errors, -1));
    CHECK_OK(per_reader_flush(other, 60000));
    CHECK(stats_of(replay).updates == 1);
    /* The writer and the reader have different speeds. Without the rate limiter one would run ahead of the other. */
    for (int i = 0; i < 200; ++i) {
        CHECK_OK(write_step(writer, (float)t, (float)t + 1, 0, -1));
        ++t;
        if (try_read(reader, 1, &batch, &slot) != PER_OK) continue;
        CHECK_OK(per_reader_release(reader, slot));
        ++n;
    }
    CHECK(n > 10);
    /* If one side ends, the other continues without limits. */
    CHECK_OK(per_replay_stop_limiting(replay));
    CHECK_OK(per_channel_flush(channel, -1));
    for (int i = 0; i < 50; ++i) CHECK_OK(per_reader_release(reader, read_batch(reader, &batch)));
    per_reader_free(reader);
    per_reader_free(other);
    per_writer_free(writer);
    per_channel_free(channel);
    per_shared_loader_free(loader);
    per_replay_free(replay);
}

static void what_is_wrong_with_values_is_told_or_counted(void) {
    per_replay* replay = small_buffer();
    per_shared_loader* loader = share_batches(replay, BATCH, 1, 2, NULL);
    per_reader* reader = attach_reader(path_of_batches(loader));
    static float errors[1 << 20];
    static int64_t ids[1 << 20];
    const int64_t never = 1000, negative = -2, late = 0, nobody = -1;
    const float bad = NAN, below = -1;
    int64_t batch_size;
    CHECK_REFUSED(send_td_errors(reader, 1, &late, 1, &bad, -1), "TD errors must be finite");
    CHECK_REFUSED(send_priorities(reader, 1, &late, &below, -1), "priorities[0] is -1: must be finite and >= 0");
    CHECK_REFUSED(send_td_errors(reader, 1, &negative, 1, errors, -1), "ids[0] is -2: never issued");
    CHECK_REFUSED(send_td_errors(reader, 1 << 20, ids, 1, errors, -1),
                  "count is 1048576: ids and values of a call to a reader may take");
    CHECK_REFUSED(send_td_errors(reader, 1, &late, 1, errors, -2), "timeout_ms is -2");
    CHECK_OK(send_td_errors(reader, 0, NULL, 1, NULL, -1));
    CHECK_OK(per_reader_flush(reader, -1));
    CHECK(sharing_stats(loader).updates == 0 && sharing_stats(loader).refused == 0);
    CHECK_OK(send_td_errors(reader, 1, &never, 1, errors, -1));
    CHECK_OK(per_reader_flush(reader, -1));
    CHECK(sharing_stats(loader).updates == 0 && sharing_stats(loader).refused == 1);
    fill(replay, 50, 300); /* id 0 is overwritten */
    CHECK_OK(send_td_errors(reader, 1, &late, 1, errors, -1));
    CHECK_OK(send_td_errors(reader, 1, &nobody, 1, errors, -1));
    CHECK_OK(per_reader_flush(reader, -1));
    CHECK(sharing_stats(loader).updates == 2 && stats_of(replay).stale_updates == 2);
    per_replay_options described = default_replay_options();
    CHECK_OK(per_reader_describe(reader, &described, &batch_size));
    CHECK(batch_size == BATCH && described.capacity == 100 && described.n_step == 1);
    CHECK(described.n_fields == 1 && strcmp(described.fields[0].name, "observation") == 0);
    free_shared(reader, loader, replay);
}

static void what_cannot_be_is_named(void) {
    per_replay* replay = small_buffer();
    per_shared_loader *loader = share_batches(replay, BATCH, 1, 2, NULL), *second = loader;
    per_channel* channel = create_channel(replay, 0, NULL, 8, PER_FULL_WAITS);
    per_reader* reader = (per_reader*)replay;
    per_writer* writer = NULL;
    int32_t descriptor;
    char path[200];
    per_shared_loader_options options = default_shared_loader_options();
    CHECK(options.slots == 2);
    options.batch_size = BATCH;
    CHECK_REFUSED(per_shared_loader_create(replay, &options, &second), "readers is 0: allowed are 1 .. 1024");
    CHECK(second == NULL);
    options.readers = 4;
    options.slots = 257;
    CHECK_REFUSED(per_shared_loader_create(replay, &options, &second), "slots is 257: allowed are 1 .. 256");
    options.slots = 2;
    CHECK_FAILS(per_shared_loader_create(replay, &options, &second), PER_ERROR_BUSY, "has a loader already");
    CHECK_FAILS(per_reader_attach(path_of(channel), -1, &reader), PER_ERROR_CORRUPT_FILE,
                "the shared memory is no shared loader: it begins with other bytes");
    CHECK(reader == NULL);
    CHECK_FAILS(per_writer_attach(path_of_batches(loader), -1, NULL, 0, 0, &writer), PER_ERROR_CORRUPT_FILE,
                "the shared memory is no channel: it begins with other bytes");
    CHECK_FAILS(per_reader_attach("/dev/null", -1, &reader), PER_ERROR_CORRUPT_FILE, "/dev/null is no shared loader");
    CHECK_FAILS(per_reader_attach(NULL, -1, &reader), PER_ERROR_IO, "/proc/self/fd/-1");
    CHECK_OK(per_shared_loader_get_address(loader, NULL, &descriptor));
    CHECK_OK(per_reader_attach(NULL, descriptor, &reader));
    per_reader_free(reader);
    CHECK(strlen(path_of_batches(loader)) < sizeof path);
    strcpy(path, path_of_batches(loader));
    per_shared_loader_free(loader);
    CHECK_FAILS(per_reader_attach(path, -1, &reader), PER_ERROR_IO, "no shared loader that can be opened");
    per_channel_free(channel);
    per_replay_free(replay);
}

/* Memory of other versions starts with the same label, followed by a header of any size. */
static void memory_of_another_version_is_named(void) {
    per_replay* replay = small_buffer();
    per_shared_loader* loader = share_batches(replay, BATCH, 1, 2, NULL);
    const uint32_t version = 77;
    unsigned char label[32] = {0};
    per_reader* reader;
    int32_t descriptor;
    CHECK_OK(per_shared_loader_get_address(loader, NULL, &descriptor));
    CHECK(pread(descriptor, label, sizeof label, 0) == sizeof label);
    memcpy(label + 8, &version, sizeof version);
    CHECK(pwrite(descriptor, label, sizeof label, 0) == sizeof label);
    CHECK_FAILS(per_reader_attach(path_of_batches(loader), -1, &reader), PER_ERROR_UNSUPPORTED,
                "the shared loader has format 77: this version has 1");
    int small = memfd_create("small", MFD_ALLOW_SEALING);
    CHECK(small >= 0 && write(small, label, sizeof label) == sizeof label);
    CHECK(fcntl(small, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    CHECK_FAILS(per_reader_attach(NULL, small, &reader), PER_ERROR_UNSUPPORTED,
                "the shared loader has format 77: this version has 1");
    memset(label + 8, 0, sizeof version);
    label[8] = 1;
    CHECK(pwrite(small, label, sizeof label, 0) == sizeof label);
    CHECK_FAILS(per_reader_attach(NULL, small, &reader), PER_ERROR_CORRUPT_FILE, "it is too short");
    label[0] ^= 1;
    CHECK(pwrite(small, label, sizeof label, 0) == sizeof label);
    CHECK_FAILS(per_reader_attach(NULL, small, &reader), PER_ERROR_CORRUPT_FILE, "it begins with other bytes");
    close(small);
    per_shared_loader_free(loader);
    per_replay_free(replay);
}

static void a_closed_loader_is_told_to_its_readers(void) {
    per_replay* replay = create_plain(100, 1);
    per_batch batch;
    taker waits;
    const int64_t id = 0;
    const float error = 7;
    fill(replay, 0, 10);
    per_shared_loader* loader = share_batches(replay, BATCH, 2, 1, NULL);
    per_reader *reader = attach_reader(path_of_batches(loader)), *other = attach_reader(path_of_batches(loader));
    int64_t slot = read_batch(reader, &batch);
    start_taking(&waits, reader);
    CHECK_OK(per_reader_flush(other, -1));
    CHECK_OK(send_priorities(other, 1, &id, &error, -1));
    per_shared_loader_free(loader);
    CHECK(priority_of(replay, 0) == 7); /* updates sent before were applied */
    join_thread(waits.thread);
    CHECK(waits.status == PER_ERROR_INVALID_ARGUMENT && strstr(waits.message, "the shared loader was closed") != NULL);
    CHECK_REFUSED(per_reader_release(reader, slot), "the shared loader was closed");
    CHECK_REFUSED(describe(reader), "the shared loader was closed");
    CHECK(batch.reward[0] + 1 == ((const float*)batch.next_fields[0])[0]);
    per_reader_free(reader);
    per_reader_free(other);
    CHECK(stats_of(replay).live == 10);
    per_loader_free(create_loader(replay, BATCH, 1, NULL));
    per_replay_free(replay);
}

/* The buffer is in a child process, which is killed. */
static void a_dead_buffer_is_told_to_its_readers(void) {
    int ends[2], status;
    char path[200];
    per_batch batch;
    int64_t slot;
    CHECK(pipe(ends) == 0);
    pid_t child = start_child();
    if (child == 0) {
        per_replay* replay = small_buffer();
        per_shared_loader* loader = share_batches(replay, BATCH, 1, 1, NULL);
        CHECK(write(ends[1], path_of_batches(loader), strlen(path_of_batches(loader)) + 1) > 0);
        for (;;) pause();
    }
    CHECK(read(ends[0], path, sizeof path) > 0);
    per_reader* reader = attach_reader(path);
    read_batch(reader, &batch);
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitpid(child, &status, 0) == child);
    /* A call that does not wait reports it, too. */
    CHECK_REFUSED(try_read(reader, 0, &batch, &slot), "the shared loader's process has ended");
    CHECK_REFUSED(try_read(reader, -1, &batch, &slot), "the shared loader's process has ended");
    CHECK(batch.reward == NULL);
    per_reader_free(reader);
    close(ends[0]);
    close(ends[1]);
}

static void a_forked_child_has_none(void) {
    per_replay* replay = small_buffer();
    per_shared_loader* loader = share_batches(replay, BATCH, 1, 2, NULL);
    per_reader* reader = attach_reader(path_of_batches(loader));
    per_batch batch;
    int64_t slot = read_batch(reader, &batch);
    char path[200];
    strcpy(path, path_of_batches(loader));
    pid_t child = start_child();
    if (child == 0) {
        static rows drawn;
        per_shared_loader_statistics statistics;
        per_reader* other = NULL;
        const char* again;
        alarm(20);
        CHECK_REFUSED(per_shared_loader_get_statistics(loader, &statistics, sizeof statistics), "before a fork");
        CHECK_REFUSED(per_shared_loader_get_address(loader, &again, NULL), "before a fork");
        CHECK_REFUSED(try_read(reader, -1, &batch, &slot), "before a fork");
        CHECK_REFUSED(per_reader_release(reader, slot), "before a fork");
        CHECK_REFUSED(per_reader_stop(reader), "before a fork");
        CHECK_FAILS(per_reader_attach(path, -1, &other), PER_ERROR_BUSY, "has 1 readers already");
        per_reader_free(reader);
        per_shared_loader_free(loader);
        add_full(replay, 0, 50, 0, GOES_ON, 51); /* the child has a separate copy of the buffer */
        draw(replay, BATCH, &drawn);
        per_replay_free(replay);
        _exit(0);
    }
    check_child(child);
    CHECK_OK(per_reader_release(reader, slot));
    CHECK_OK(per_reader_release(reader, read_batch(reader, &batch)));
    free_shared(reader, loader, replay);
}

static void a_buffer_on_a_device_has_none(void) {
    per_replay* replay = small_buffer();
    per_shared_loader* loader;
    per_shared_loader_options options = default_shared_loader_options();
    options.batch_size = BATCH;
    options.readers = 1;
    CHECK_FAILS(per_shared_loader_create(replay, &options, &loader), PER_ERROR_UNSUPPORTED, "for buffers on PER_CPU");
    per_replay_free(replay);
}

/*
 * A save locks the buffer, and with it draws and updates. Meanwhile the slots of readers that end are returned, even if
 * their mail has to wait, and another reader is greeted. The mail is applied in order after the save.
 */
static void a_save_keeps_no_place_and_no_slot(void) {
    per_replay* replay = small_buffer();
    per_shared_loader* loader = share_batches(replay, BATCH, 3, 1, NULL);
    per_reader *loud = attach_reader(path_of_batches(loader)), *quiet = attach_reader(path_of_batches(loader)),
               *waits = attach_reader(path_of_batches(loader)), *in_place_of_loud, *in_place_of_quiet;
    const int64_t ids[3] = {3, 4, 5};
    const float sevens[2] = {7, 7}, nine = 9, eleven = 11;
    float priorities[3];
    per_batch batch;
    int64_t slot;
    per_status status;
    held save;
    read_batch(loud, &batch);
    read_batch(quiet, &batch);
    hold_buffer(&save, replay);
    while ((status = try_read(waits, 200, &batch, &slot)) == PER_OK) CHECK_OK(per_reader_release(waits, slot));
    CHECK(status == PER_ERROR_BUSY); /* the batches drawn ahead are used up */
    CHECK_OK(send_priorities(loud, 2, ids, sevens, 0));
    CHECK_OK(send_priorities(loud, 1, ids + 1, &nine, 0));
    per_reader_free(loud);
    per_reader_free(quiet);
    while (sharing_stats(loader).returned < 2) sched_yield();
    CHECK(sharing_stats(loader).out == 0 && sharing_stats(loader).updates == 0);
    in_place_of_loud = attach_reader(path_of_batches(loader));
    in_place_of_quiet = attach_reader(path_of_batches(loader));
    CHECK_FAILS(send_priorities(in_place_of_loud, 1, ids, &eleven, 200), PER_ERROR_BUSY,
                "the shared loader has not taken notice of this reader yet");
    CHECK_OK(send_priorities(in_place_of_quiet, 1, ids + 2, &eleven, 60000));
    CHECK(sharing_stats(loader).updates == 0);
    let_go(&save);
    CHECK_OK(per_reader_flush(in_place_of_loud, 60000));
    CHECK_OK(per_reader_flush(in_place_of_quiet, 60000));
    CHECK(sharing_stats(loader).updates == 3 && sharing_stats(loader).refused == 0);
    CHECK_OK(per_replay_get_priorities(replay, 3, ids, priorities, NULL));
    CHECK(priorities[0] == 7 && priorities[1] == 9 && priorities[2] == 11);
    CHECK_OK(try_read(waits, 60000, &batch, &slot));
    per_reader_free(waits);
    per_reader_free(in_place_of_loud);
    free_shared(in_place_of_quiet, loader, replay);
}

int main(void) {
    alarm(300); /* a hang ends the test */
    if (on_cuda()) {
        a_buffer_on_a_device_has_none();
        return 0;
    }
    a_dead_buffer_is_told_to_its_readers(); /* a child of a process without threads */
    all_readers_are_counted();
    no_reader_keeps_all_slots();
    a_draw_that_fails_is_told();
    a_save_keeps_no_place_and_no_slot();
    the_rate_limiter_makes_readers_wait_and_nobody_else();
    what_is_wrong_with_values_is_told_or_counted();
    what_cannot_be_is_named();
    memory_of_another_version_is_named();
    a_closed_loader_is_told_to_its_readers();
    a_forked_child_has_none();
    return 0;
}
