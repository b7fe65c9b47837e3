/*
 * Another process may write anything into the memory of a channel. The buffer still gets only steps of the channel's
 * environments, or the writer is cut off: no fault, no endless wait, and other environments are unchanged.
 */
#define _POSIX_C_SOURCE 200809L
#include <unistd.h>

#include "channel_check.h"
#include "posix_check.h"
#include "thread_check.h"

enum { ROUNDS = 300, WRITES = 2000, SLOTS = 32, FRAME = 4096 };

typedef struct forger {
    unsigned char* memory;
    size_t size;
    uint64_t seed;
    int is_wild; /* it writes anywhere; otherwise only behind the first lines */
} forger;

static void* forge(void* context) {
    forger* it = context;
    uint64_t state = it->seed;
    for (int i = 0; i < WRITES; ++i) {
        const uint64_t r = next_random(&state);
        const size_t first = it->is_wild ? 0 : 192;
        const size_t at = r % 4 == 0 ? (size_t)(r >> 8) % it->size : (size_t)(r >> 8) % 320;
        const size_t place = at < first ? first : at;
        __atomic_store_n(it->memory + place, (unsigned char)(r >> 40), __ATOMIC_RELAXED);
    }
    return NULL;
}

static void check_other_environment(per_replay* replay) {
    const int64_t id = 0;
    static rows one;
    fill_rows(&one);
    one.batch.weights = one.batch.probabilities = NULL;
    CHECK_OK(per_replay_get(replay, 1, &id, &one.batch, NULL));
    CHECK(one.observation[0] == 5 && one.reward[0] == 1 && one.next[0] == 6);
}

typedef struct mask_forger {
    unsigned char* masks;
    size_t size;
    int has_ended;
} mask_forger;

static void* forge_masks(void* context) {
    mask_forger* it = context;
    int flag = 0;
    while (!__atomic_load_n(&it->has_ended, __ATOMIC_RELAXED)) memset(it->masks, flag = !flag, it->size);
    return NULL;
}

/* The rate limiter, and a call with max_steps, count exactly the steps that enter the buffer, although their masks
   change all the time. Without draws 1 + ALLOWED steps are allowed, so the number still allowed shows the number
   counted. */
static void masks_change_while_they_are_counted(int32_t moved_by) {
    enum { ENVS = 2000, STEPS = 4, ALLOWED = 1 << 30, MOST = 3 * ENVS / 2 };
    const int n_tries = on_cuda() ? 20 : 200; /* a simulated GPU takes 0.1 s for each */
    static float values[STEPS * ENVS];
    static uint8_t no[STEPS * ENVS], mask[STEPS * ENVS];
    const per_array field = array_of(values, PER_FLOAT32);
    per_replay_options options = replay_options(64 * ENVS, ENVS);
    mask_forger forging;
    size_t size;
    int64_t n_moved = 0;
    size_t at = 0;
    int i;
    set_rate_limit(&options, 1, ALLOWED, 0);
    per_replay* replay = create_replay(&options);
    per_channel* channel = create_channel_moved_by(moved_by, replay, 0, NULL, SLOTS, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    per_steps steps = steps_of(STEPS, &field, NULL, values, no, no);
    steps.mask = array_of(mask, PER_BOOL);
    for (i = 0; i < STEPS * ENVS; ++i) mask[i] = (uint8_t)(i * 7 % 16 < 8);
    unsigned char* memory = map_shared(descriptor_of(channel), &size);
    CHECK_OK(per_writer_add(writer, &steps, 60000)); /* behind a cut, in slot 0 */
    while (memcmp(memory + at, mask, sizeof mask) != 0) CHECK(++at + sizeof mask < size);
    forging.masks = memory + at - ENVS;
    forging.size = SLOTS * ENVS;
    forging.has_ended = 0;
    memset(mask, 0, sizeof mask);
    pthread_t thread = start_thread(forge_masks, &forging);
    for (i = 0; i < n_tries; ++i) {
        const per_status written = per_writer_add(writer, &steps, 0);
        CHECK(written == PER_OK || written == PER_ERROR_BUSY);
        if (moved_by == PER_MOVED_BY_CALLS)
            n_moved += moved(channel, MOST);
        else
            pause_ns(100000);
    }
    __atomic_store_n(&forging.has_ended, 1, __ATOMIC_RELAXED);
    join_thread(thread);
    if (moved_by == PER_MOVED_BY_CALLS)
        while ((i = (int)moved(channel, MOST)) != 0) n_moved += i;
    memset(mask, 1, sizeof mask); /* the error names the limit only after a step has been added */
    CHECK_OK(per_writer_add(writer, &steps, 60000));
    if (moved_by == PER_MOVED_BY_CALLS)
        while ((i = (int)moved(channel, MOST)) != 0) n_moved += i;
    else
        CHECK_OK(per_channel_flush(channel, 60000));
    int64_t left = 1 + ALLOWED - stats_of(replay).added;
    CHECK_OK(per_replay_wait_to_add(replay, left, 0));
    CHECK_FAILS(per_replay_wait_to_add(replay, left + 1, 0), PER_ERROR_BUSY, "before more transitions are drawn");
    if (moved_by == PER_MOVED_BY_CALLS) CHECK(stats_of(replay).added == n_moved);
    munmap(memory, size);
    free_channel(writer, channel, replay);
}

/* Bytes of frames in a channel's memory, which change all the time. */
typedef struct frame_forger {
    unsigned char* frames[SLOTS];
    int n_frames;
    uint64_t seed;
    int has_ended;
} frame_forger;

static void* forge_frames(void* context) {
    frame_forger* it = context;
    uint64_t state = it->seed;
    while (!__atomic_load_n(&it->has_ended, __ATOMIC_RELAXED)) {
        const uint64_t r = next_random(&state);
        unsigned char* const frame = it->frames[r % (uint64_t)it->n_frames];
        __atomic_store_n(frame + (r >> 8) % FRAME, (unsigned char)((r >> 40) % 2), __ATOMIC_RELAXED);
    }
    return NULL;
}

static void write_frame(per_writer* writer, const uint8_t* frame) {
    const uint8_t no = 0;
    const float reward = 0;
    const per_array field = array_of(frame, PER_UINT8);
    const per_steps steps = steps_of(1, &field, NULL, &reward, &no, &no);
    CHECK_OK(per_writer_add(writer, &steps, 10000));
}

/* A frame that changes while it is compressed is stored as one frame, of bytes that it had. No other frame changes. */
static void frames_change_while_they_are_packed(void) {
    enum { CAPACITY = 1000, N_STEPS = 4000, GUARD = 64, MARK = 0xa7 };
    static const int64_t shape[] = {FRAME / 64, 64};
    static uint8_t frame[FRAME], out[GUARD + FRAME + GUARD];
    per_field field = field_of("observation", PER_UINT8, 2, shape);
    per_replay_options options = replay_options(CAPACITY, 1);
    static frame_forger forging;
    int64_t n_ids;
    static int64_t ids[CAPACITY];
    size_t size, n_marks = 0;
    field.compression = PER_COMPRESSION_DELTA;
    options.fields = &field;
    per_replay* replay = create_replay(&options);
    per_channel* channel = create_channel(replay, 1, NULL, SLOTS, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    memset(frame, MARK, sizeof frame);
    for (int t = 0; t < 2 * SLOTS; ++t) write_frame(writer, frame);
    CHECK_OK(per_channel_flush(channel, -1));
    unsigned char* memory = map_shared(descriptor_of(channel), &size);
    for (size_t at = 0; at < size; ++at) {
        n_marks = memory[at] == MARK ? n_marks + 1 : 0;
        if (n_marks < FRAME) continue;
        CHECK(forging.n_frames < SLOTS);
        forging.frames[forging.n_frames++] = memory + at + 1 - FRAME;
        n_marks = 0;
    }
    CHECK(forging.n_frames > 0);
    forging.seed = 8;
    pthread_t thread = start_thread(forge_frames, &forging);
    for (int t = 0; t < N_STEPS; ++t) {
        memset(frame, t / 100 % 2, sizeof frame);
        for (int i = 0; i < FRAME; i += 64) memset(frame + i + t % 32, (t + i / 64) % 2, 9);
        write_frame(writer, frame);
    }
    CHECK_OK(per_channel_flush(channel, -1));
    __atomic_store_n(&forging.has_ended, 1, __ATOMIC_RELAXED);
    join_thread(thread);
    CHECK_OK(per_replay_get_live_ids(replay, CAPACITY, ids, &n_ids));
    CHECK(n_ids > CAPACITY / 2);
    for (int64_t id = 0; id < n_ids; ++id) {
        void* const fields[] = {out + GUARD};
        memset(out, MARK, sizeof out);
        per_batch batch = default_batch();
        batch.fields = fields;
        CHECK_OK(per_replay_get(replay, 1, &ids[id], &batch, NULL));
        for (int i = 0; i < GUARD; ++i) CHECK(out[i] == MARK && out[GUARD + FRAME + i] == MARK);
        for (int i = 0; i < FRAME; ++i) CHECK(out[GUARD + i] <= 1);
    }
    munmap(memory, size);
    free_channel(writer, channel, replay);
}

/* The writer reads how many slots the channel has taken: the first number of the header's third line. */
static void numbers_of_steps_taken_are_those_of_a_channel(void) {
    static const uint64_t forged[] = {3, SLOTS, UINT64_C(1) << 63, UINT64_MAX - SLOTS}; /* 2 slots are written */
    enum { TAKEN = 128 };
    const per_replay_options options = replay_options(200, 1);
    for (int i = 0; i < (int)(sizeof forged / sizeof *forged); ++i) {
        per_replay* replay = create_replay(&options);
        per_channel* channel = create_channel_moved_by(PER_MOVED_BY_CALLS, replay, 0, NULL, SLOTS,
                                                       i % 2 ? PER_FULL_WAITS : PER_FULL_DROPS);
        per_writer *writer = attach(path_of(channel)), *other = NULL;
        size_t size;
        CHECK_OK(write_step(writer, 0, 1, 0, 0)); /* after a cut */
        unsigned char* memory = map_shared(descriptor_of(channel), &size);
        __atomic_store_n((uint64_t*)(void*)(memory + TAKEN), forged[i], __ATOMIC_SEQ_CST);
        CHECK_FAILS(write_step(writer, 1, 2, 0, 60000), PER_ERROR_CORRUPT_FILE,
                    "the channel's memory is damaged: the number of steps taken is ");
        CHECK_FAILS(per_writer_flush(writer, 60000), PER_ERROR_CORRUPT_FILE, "the number of steps taken is ");
        CHECK_FAILS(per_writer_cut(writer, 0, NULL, 60000), PER_ERROR_CORRUPT_FILE, "the number of steps taken is ");
        per_writer_free(writer);
        CHECK_FAILS(per_writer_attach(path_of(channel), -1, NULL, 0, 0, &other), PER_ERROR_CORRUPT_FILE,
                    "the number of steps taken is ");
        CHECK(other == NULL);
        munmap(memory, size);
        per_channel_free(channel);
        per_replay_free(replay);
    }
}

/* Forges numbers of the header: the format in its label, with formats that do not exist, and the options when_full and
   moved_by behind the label. */
static void choices_of_the_header_are_those_of_a_channel(void) {
    enum { FORMAT = 8, WHEN_FULL = 40, MOVED_BY = 44 };
    static const int formats[] = {0, 2, 77};
    static const int32_t forged[] = {-1, 2, INT32_MAX, INT32_MIN};
    per_replay* replay = create_plain(200, 1);
    per_channel* channel = create_channel(replay, 0, NULL, SLOTS, PER_FULL_WAITS);
    per_writer* writer = NULL;
    size_t size;
    unsigned char* memory = map_shared(descriptor_of(channel), &size);
    for (int i = 0; i < 2 * (int)(sizeof forged / sizeof *forged); ++i) {
        int32_t* const choice = (int32_t*)(void*)(memory + (i % 2 ? MOVED_BY : WHEN_FULL));
        CHECK(*choice == 0);
        __atomic_store_n(choice, forged[i / 2], __ATOMIC_SEQ_CST);
        CHECK_FAILS(per_writer_attach(path_of(channel), -1, NULL, 0, 0, &writer), PER_ERROR_CORRUPT_FILE,
                    i % 2 ? "damaged: moved_by is " : "damaged: when_full is ");
        CHECK(writer == NULL);
        __atomic_store_n(choice, 0, __ATOMIC_SEQ_CST);
    }
    for (int i = 0; i < 3; ++i) {
        char message[64];
        snprintf(message, sizeof message, "the channel has format %d: this version has 1", formats[i]);
        __atomic_store_n((int32_t*)(void*)(memory + FORMAT), formats[i], __ATOMIC_SEQ_CST);
        CHECK_FAILS(per_writer_attach(path_of(channel), -1, NULL, 0, 0, &writer), PER_ERROR_UNSUPPORTED, message);
        CHECK(writer == NULL);
    }
    __atomic_store_n((int32_t*)(void*)(memory + FORMAT), 1, __ATOMIC_SEQ_CST);
    per_writer_free(attach(path_of(channel)));
    munmap(memory, size);
    per_channel_free(channel);
    per_replay_free(replay);
}

int main(void) {
    uint64_t state = 4;
    int n_cut_off = 0;
    for (int i = 0; i < rounds(ROUNDS); ++i) {
        static const int64_t lane = 1;
        per_replay* replay = create_plain(200, 2);
        const int by_calls = i % 5 < 2;
        per_channel* channel = create_channel_moved_by(by_calls ? PER_MOVED_BY_CALLS : PER_MOVED_BY_THREAD, replay, 1,
                                                       &lane, SLOTS, i % 2 ? PER_FULL_WAITS : PER_FULL_DROPS);
        per_writer* writer = attach(path_of(channel));
        forger forging;
        forging.memory = map_shared(descriptor_of(channel), &forging.size);
        forging.seed = next_random(&state);
        forging.is_wild = i % 3 != 0;
        add_full(replay, 0, 5, 1, GOES_ON, 6);
        pthread_t thread = start_thread(forge, &forging);
        for (int t = 0; t < 200; ++t) {
            int64_t steps;
            write_step(writer, (float)t, (float)t + 1, t % 7 == 0, 1);
            if (!by_calls || t % 4 != 0) continue;
            CHECK(per_channel_move(channel, 7, &steps) == PER_OK ? steps <= 7 : steps == 0);
        }
        join_thread(thread);
        per_status flushed = per_channel_flush(channel, 1000);
        CHECK(flushed == PER_OK || flushed == PER_ERROR_CORRUPT_FILE);
        if (flushed == PER_ERROR_CORRUPT_FILE) {
            ++n_cut_off;
            CHECK_FAILS(per_channel_flush(channel, -1), PER_ERROR_CORRUPT_FILE, "its writer was cut off");
        }
        channel_stats(channel);
        check_other_environment(replay);
        munmap(forging.memory, forging.size);
        free_channel(writer, channel, replay);
    }
    CHECK(n_cut_off > 0);
    numbers_of_steps_taken_are_those_of_a_channel();
    choices_of_the_header_are_those_of_a_channel();
    masks_change_while_they_are_counted(PER_MOVED_BY_THREAD);
    masks_change_while_they_are_counted(PER_MOVED_BY_CALLS);
    if (!on_cuda()) frames_change_while_they_are_packed();
    return 0;
}
