/*
 * Rows of any length in shared memory. A writer's steps arrive as per_replay_add() would have added them, even if the
 * writer is killed, and readers get the rows that the buffer would have drawn. Damaged memory harms no other process.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "channel_check.h"
#include "posix_check.h"
#include "ragged_check.h"
#include "reader_check.h"
#include "thread_check.h"

enum { N_ENVS = 4, SLOTS = 6, EPISODE = 9 };

static int64_t n_live(per_replay* replay) {
    static int64_t ids[1024];
    int64_t n = 0;
    CHECK_OK(per_replay_get_live_ids(replay, 1024, ids, &n));
    return n;
}

/* All live transitions are the same. A cut at the beginning, which a writer makes, does not change them. */
static void check_same_rows(per_replay* replay, per_replay* twin) {
    static ragged_rows found, expected;
    static int64_t ids[1024], twin_ids[1024];
    int64_t n = 0, n_twin = 0;
    CHECK_OK(per_replay_get_live_ids(replay, 1024, ids, &n));
    CHECK_OK(per_replay_get_live_ids(twin, 1024, twin_ids, &n_twin));
    CHECK(n > 0 && n == n_twin && memcmp(ids, twin_ids, (size_t)n * sizeof *ids) == 0);
    fill_batch(&found, 0, 0);
    fill_batch(&expected, 0, 0);
    CHECK_OK(per_replay_get_windows(replay, NULL, PER_INVALID_ERROR, n, ids, &found.batch, NULL));
    CHECK_OK(per_replay_get_windows(twin, NULL, PER_INVALID_ERROR, n, ids, &expected.batch, NULL));
    CHECK(memcmp(found.actions, expected.actions, (size_t)n * sizeof *found.actions) == 0);
    for (int a = 0; a < 3; ++a)
        CHECK(memcmp(found.offsets[a], expected.offsets[a], (size_t)(n + 1) * sizeof(int64_t)) == 0);
    const size_t sizes[3] = {2 * sizeof(float), 2 * sizeof(float), sizeof(int16_t)};
    for (int a = 0; a < 3; ++a)
        CHECK(memcmp(found.ragged[a].values, expected.ragged[a].values, (size_t)expected.offsets[a][n] * sizes[a]) ==
              0);
}

/* Steps in one call and one by one, of some environments, with a mask and next_mask; the ring wraps many times. */
static void a_channel_brings_what_add_would(int32_t moved_by) {
    static ragged_call add;
    per_replay_options options = options_of(N_ENVS);
    options.capacity = 200 * N_ENVS;
    per_replay* replay = create_replay(&options);
    per_replay* twin = create_replay(&options);
    per_channel* channel = create_channel_moved_by(moved_by, replay, 0, NULL, SLOTS, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    static uint8_t mask[64 * N_ENVS], next_mask[64 * N_ENVS];
    uint64_t state = 3;
    for (int64_t t = 0; t < 400;) {
        const int64_t length = 1 + (int64_t)(next_random(&state) % (SLOTS - 2));
        fill_ragged_call(&add, N_ENVS, t, length, EPISODE);
        t += length;
        for (int64_t i = 0; i < length * N_ENVS; ++i) {
            mask[i] = next_random(&state) % 5 != 0;
            next_mask[i] = next_random(&state) % 7 != 0;
        }
        if (next_random(&state) % 3 == 0) add.steps.mask = array_of(mask, PER_BOOL);
        if (next_random(&state) % 3 == 0) add.steps.next_mask = array_of(next_mask, PER_BOOL);
        /* A row that is masked out may even be longer than max_length. */
        if (add.steps.mask.data != NULL && !mask[length * N_ENVS - 1]) add.offsets[0][length * N_ENVS] += 50;
        if (add.steps.next_mask.data != NULL && !next_mask[length * N_ENVS - 1]) add.offsets[1][length * N_ENVS] += 50;
        CHECK_OK(per_replay_add(twin, &add.steps, NULL, NULL));
        if (moved_by == PER_MOVED_BY_CALLS) CHECK_OK(per_channel_flush(channel, -1));
        CHECK_OK(per_writer_add(writer, &add.steps, -1));
        memset(&add, 0x11, sizeof add); /* the caller may overwrite its arrays */
    }
    CHECK_OK(per_channel_flush(channel, -1));
    CHECK(channel_stats(channel).refused == 0);
    check_same_rows(replay, twin);
    per_replay_free(twin);
    free_channel(writer, channel, replay);
}

/* The channel's environments are some of the buffer's, and a call has some of the channel's. */
static void a_channel_of_some_environments(void) {
    static ragged_call add, part;
    static const int64_t env_ids[2] = {3, 1}, last = 1;
    per_replay_options options = options_of(N_ENVS);
    per_replay* replay = create_replay(&options);
    per_channel* channel = create_channel(replay, 2, env_ids, SLOTS, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    for (int64_t t = 0; t < 12; ++t) {
        /* Environment 1 of the channel is environment 1 of the buffer. */
        fill_ragged_call(&add, 2, t, 1, EPISODE);
        memcpy(&part, &add, sizeof part);
        for (int a = 0; a < 2; ++a) {
            part.arrays[a] = add.arrays[a];
            part.arrays[a].offsets = add.arrays[a].offsets + 1;
            part.next_arrays[a] = add.next_arrays[a];
            if (a == 0) part.next_arrays[a].offsets = add.next_arrays[a].offsets + 1;
        }
        part.arrays[2] = array_of(add.actions + 1, PER_INT32);
        part.steps = steps_of(1, part.arrays, part.next_arrays, add.rewards, add.terminated, add.truncated);
        part.steps.env_ids = &last;
        part.steps.n_envs = 1;
        CHECK_OK(per_writer_add(writer, &part.steps, -1));
    }
    CHECK_OK(per_channel_flush(channel, -1));
    CHECK(n_live(replay) > 8);
    static ragged_rows rows;
    fill_batch(&rows, 0, 0);
    CHECK_OK(per_replay_sample(replay, NULL, B, &rows.batch, NULL));
    for (int i = 0; i < B; ++i) CHECK(rows.ids[i] % N_ENVS == 1);
    check_ragged_rows(&rows, B, N_ENVS);
    free_channel(writer, channel, replay);
}

/* A bad call, or one with too large a row, writes nothing. */
static void bad_rows_are_refused_by_the_writer(void) {
    static ragged_call add;
    per_replay_options options = options_of(1);
    per_replay* replay = create_replay(&options);
    per_channel* channel = create_channel(replay, 0, NULL, SLOTS, PER_FULL_WAITS);
    per_writer* writer = NULL;
    per_field other[N_FIELDS];
    memcpy(other, fields, sizeof other);
    other[1].max_length = 7;
    CHECK_REFUSED(per_writer_attach(path_of(channel), -1, other, N_FIELDS, sizeof *other, &writer),
                  "max_length of field \"tokens\" is 7: in the buffer it is 300");
    CHECK_OK(per_writer_attach(path_of(channel), -1, fields, N_FIELDS, sizeof *fields, &writer));
    per_replay_options described;
    CHECK_OK(per_replay_options_init(&described, sizeof described));
    CHECK_OK(per_writer_describe(writer, &described));
    const per_field* const second = (const per_field*)((const char*)described.fields + described.field_size);
    CHECK(second->max_length == MAX_TOKENS);
    fill_ragged_call(&add, 1, 0, 1, EPISODE);
    add.offsets[2][1] = MAX_TOKENS + 1;
    CHECK_REFUSED(per_writer_add(writer, &add.steps, -1), "tokens: row 0 has 301 values: at most max_length, 300");
    fill_ragged_call(&add, 1, 0, 1, EPISODE);
    add.arrays[1].offsets = NULL;
    CHECK_REFUSED(per_writer_add(writer, &add.steps, -1), "tokens.shape is NULL: must tell the length of the row");
    CHECK_OK(per_channel_flush(channel, -1));
    CHECK(channel_stats(channel).added + channel_stats(channel).refused == 0);
    free_channel(writer, channel, replay);
}

/* A step whose rows do not fit into max_heap_bytes is dropped, and the others go on. */
static void rows_beyond_the_limit_are_refused(void) {
    enum { LONGEST = 200000 };
    static const per_field two[2] = {{.name = "observation", .dtype = PER_FLOAT32},
                                     {.name = "tokens", .dtype = PER_INT32, .max_length = LONGEST}};
    static int32_t tokens[LONGEST];
    per_replay_options options = replay_options(100, 1);
    set_fields(&options, two, 2);
    options.memory.max_heap_bytes = 500000;
    per_replay* replay = create_replay(&options);
    per_channel* channel = create_channel(replay, 0, NULL, SLOTS, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    for (int t = 0; t < 10; ++t) {
        const float observation = (float)t, reward = 0;
        const uint8_t goes_on = 0;
        const int64_t offsets[2] = {0, t == 4 ? LONGEST : 10};
        per_array arrays[2] = {array_of(&observation, PER_FLOAT32), array_of(tokens, PER_INT32)};
        arrays[1].offsets = offsets;
        const per_steps steps = steps_of(1, arrays, NULL, &reward, &goes_on, &goes_on);
        CHECK_OK(per_writer_add(writer, &steps, -1));
    }
    CHECK_OK(per_channel_flush(channel, -1));
    CHECK(channel_stats(channel).refused == 1 && channel_stats(channel).added == 9);
    CHECK(stats_of(replay).cuts == 1);
    free_channel(writer, channel, replay);
}

/* The steps of completed calls are in the buffer, whole, however a writer ends. */
static void killed_writers(void) {
    enum { KILLS = 40, MOST = 6000 };
    volatile int64_t* const done = mmap(NULL, sizeof *done, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(done != MAP_FAILED);
    uint64_t state = 8;
    per_replay_options options = options_of(1);
    options.capacity = 2 * MOST;
    for (int i = 0; i < KILLS; ++i) {
        per_replay* replay = create_replay(&options);
        per_channel* channel = create_channel(replay, 0, NULL, SLOTS, PER_FULL_WAITS);
        const char* path = path_of(channel);
        *done = 0;
        const pid_t child = start_child();
        if (child == 0) {
            static ragged_call add;
            per_writer* writer = attach(path);
            for (; *done < MOST; *done = *done + 1) {
                fill_ragged_call(&add, 1, *done, 1, 1000000);
                CHECK_OK(per_writer_add(writer, &add.steps, -1));
            }
            for (;;) pause();
        }
        while (*done < 3) pause_ns(10000);
        pause_ns((long)(next_random(&state) % 300000));
        int status;
        CHECK(kill(child, SIGKILL) == 0);
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        CHECK_OK(per_channel_flush(channel, -1));
        const int64_t n = channel_stats(channel).added;
        CHECK(n == *done || n == *done + 1);
        static ragged_rows rows;
        fill_batch(&rows, 0, 0);
        for (int64_t id = 0; id < n; ++id) {
            CHECK_OK(per_replay_get(replay, 1, &id, &rows.batch, NULL));
            CHECK(rows.actions[0] == id);
            check_ragged_rows(&rows, 1, 1);
        }
        per_channel_free(channel);
        per_replay_free(replay);
    }
}

/* Two readers, one in another process, get the batches of a loader. */
static void readers_get_the_same_rows(void) {
    enum { ROUNDS = 30 };
    static ragged_rows rows, of_twin;
    per_replay_options options = options_of(N_ENVS);
    per_replay* replay = create_replay(&options);
    per_replay* twin = create_replay(&options);
    for (int64_t t = 0; t < 30; ++t) {
        add_steps(replay, N_ENVS, t, 1, EPISODE);
        add_steps(twin, N_ENVS, t, 1, EPISODE);
    }
    per_shared_loader* loader = share_batches(replay, B, 2, 2, NULL);
    const char* path = path_of_batches(loader);
    per_reader* reader = attach_reader(path);
    per_batch batches[2];
    int64_t slots[2];
    for (int round = 0; round < ROUNDS; ++round) {
        for (int i = 0; i < 2; ++i) slots[i] = read_batch(reader, &batches[i]);
        for (int i = 0; i < 2; ++i) {
            refer_to(&rows, &batches[i], B);
            fill_batch(&of_twin, 0, 0);
            CHECK_OK(per_replay_sample(twin, NULL, B, &of_twin.batch, NULL));
            check_ragged_rows(&rows, B, N_ENVS);
            CHECK(memcmp(rows.ids, of_twin.ids, B * sizeof *rows.ids) == 0);
        }
        for (int i = 0; i < 2; ++i) CHECK_OK(per_reader_release(reader, slots[i]));
    }
    const pid_t child = start_child();
    if (child == 0) {
        per_reader* const other = attach_reader(path);
        for (int round = 0; round < ROUNDS; ++round) {
            const int64_t slot = read_batch(other, &batches[0]);
            refer_to(&rows, &batches[0], B);
            check_ragged_rows(&rows, B, N_ENVS);
            CHECK_OK(per_reader_release(other, slot));
        }
        _exit(0);
    }
    check_child(child);
    per_replay_free(twin);
    free_shared(reader, loader, replay);
}

/* ----------------------------------------------------------------------------------------------------- damaged memory */

typedef struct forger {
    unsigned char* memory;
    size_t first, end;
    int has_ended;
} forger;

static void* forge(void* context) {
    forger* const it = context;
    uint64_t state = 5;
    while (!__atomic_load_n(&it->has_ended, __ATOMIC_RELAXED)) {
        const uint64_t r = next_random(&state);
        unsigned char* const byte = it->memory + it->first + r % (it->end - it->first);
        __atomic_store_n(byte, (unsigned char)(r >> 40), __ATOMIC_RELAXED);
    }
    return NULL;
}

/* Whatever lies in a slot, the buffer gets rows of at most max_length, or refuses the step. */
static void forged_offsets_of_a_channel(void) {
    static ragged_call add;
    per_replay_options options = options_of(N_ENVS);
    per_replay* replay = create_replay(&options);
    per_channel* channel = create_channel(replay, 0, NULL, SLOTS, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    forger forging = {0};
    size_t size;
    forging.memory = map_shared(descriptor_of(channel), &size);
    forging.first = 4096; /* behind the header */
    forging.end = size;
    CHECK(size > 2 * forging.first);
    const pthread_t thread = start_thread(forge, &forging);
    for (int64_t t = 0; t < 3000; ++t) {
        fill_ragged_call(&add, N_ENVS, t, 1, EPISODE);
        const per_status status = per_writer_add(writer, &add.steps, 10000);
        if (status == PER_ERROR_CORRUPT_FILE || status == PER_ERROR_INVALID_ARGUMENT) break; /* cut off */
        CHECK_OK(status);
    }
    __atomic_store_n(&forging.has_ended, 1, __ATOMIC_RELAXED);
    join_thread(thread);
    static ragged_rows rows;
    fill_batch(&rows, 0, 0);
    if (n_live(replay) > 0) {
        CHECK_OK(per_replay_sample(replay, NULL, B, &rows.batch, NULL));
        for (int a = 0; a < 3; ++a)
            for (int64_t i = 0; i < B; ++i)
                CHECK(rows.offsets[a][i + 1] - rows.offsets[a][i] <= (a == 2 ? MAX_TOKENS : MAX_POINTS));
    }
    munmap(forging.memory, size);
    free_channel(writer, channel, replay);
}

/* The length of a row that is masked out does not matter, but all rows lie within their slot. */
static void forged_offsets_beyond_a_slot(void) {
    static ragged_call add;
    static const uint8_t mask[N_ENVS] = {0, 1, 1, 1};
    per_replay_options options = options_of(N_ENVS);
    per_replay* replay = create_replay(&options);
    per_channel* channel = create_channel_moved_by(PER_MOVED_BY_CALLS, replay, 0, NULL, SLOTS, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    size_t size, at = 0;
    unsigned char* const memory = map_shared(descriptor_of(channel), &size);
    int64_t offsets[N_ENVS + 1] = {0, 0};
    fill_ragged_call(&add, N_ENVS, 5, 1, EPISODE);
    add.steps.mask = array_of(mask, PER_BOOL);
    CHECK_OK(per_writer_add(writer, &add.steps, -1));
    for (int64_t env = 1; env < N_ENVS; ++env) offsets[env + 1] = offsets[env] + n_tokens(env, 5);
    CHECK(offsets[N_ENVS] > 0);
    while (memcmp(memory + at, offsets, sizeof offsets) != 0) CHECK((at += sizeof *offsets) + sizeof offsets < size);
    for (int env = 1; env <= N_ENVS; ++env) offsets[env] += 1 << 20;
    memcpy(memory + at, offsets, sizeof offsets);
    CHECK_OK(per_channel_flush(channel, -1));
    CHECK(channel_stats(channel).refused == 1 && stats_of(replay).added == 0);
    munmap(memory, size);
    free_channel(writer, channel, replay);
}

/* A reader does not hand out offsets that no loader writes. */
static void forged_offsets_of_a_batch(void) {
    per_replay_options options = options_of(1);
    per_replay* replay = create_replay(&options);
    for (int64_t t = 0; t < 30; ++t) add_steps(replay, 1, t, 1, EPISODE);
    per_shared_loader* loader = share_batches(replay, B, 1, 1, NULL);
    per_reader* reader = attach_reader(path_of_batches(loader));
    per_batch batch;
    int64_t slot = read_batch(reader, &batch);
    CHECK(stats_of(replay).samples == 2); /* the next batch is drawn */
    size_t size;
    unsigned char* const memory = map_shared(descriptor_of_batches(loader), &size);
    /* The offsets of tokens in all batches. */
    int n_forged = 0;
    for (size_t at = 0; at + B * sizeof(int64_t) < size && n_forged < 64; at += sizeof(int64_t)) {
        int64_t offsets[B + 1];
        memcpy(offsets, memory + at, sizeof offsets);
        int are_offsets = offsets[0] == 0 && offsets[B] > MAX_POINTS * B;
        for (int i = 0; i < B && are_offsets; ++i)
            are_offsets = offsets[i + 1] >= offsets[i] && offsets[i + 1] - offsets[i] <= MAX_TOKENS;
        if (!are_offsets) continue;
        const int64_t forged = offsets[B - 1] + MAX_TOKENS + 1;
        memcpy(memory + at + B * sizeof(int64_t), &forged, sizeof forged);
        ++n_forged;
    }
    CHECK(n_forged == 2);
    CHECK_OK(per_reader_release(reader, slot));
    CHECK_FAILS(try_read(reader, -1, &batch, &slot), PER_ERROR_CORRUPT_FILE, "an offset is ");
    munmap(memory, size);
    free_shared(reader, loader, replay);
}

int main(void) {
    a_channel_brings_what_add_would(PER_MOVED_BY_THREAD);
    a_channel_brings_what_add_would(PER_MOVED_BY_CALLS);
    a_channel_of_some_environments();
    bad_rows_are_refused_by_the_writer();
    rows_beyond_the_limit_are_refused();
    killed_writers();
    readers_get_the_same_rows();
    forged_offsets_of_a_channel();
    forged_offsets_beyond_a_slot();
    forged_offsets_of_a_batch();
    return 0;
}
