/*
 * Another process may write anything into the memory of a shared loader. The buffer's rows are unchanged, and its
 * process continues: priorities change, or a reader is cut off. The next reader of the place finds it valid.
 */
#define _POSIX_C_SOURCE 200809L
#include <unistd.h>

#include "posix_check.h"
#include "reader_check.h"
#include "thread_check.h"

enum { ROUNDS = 150, WRITES = 3000, BATCH = 8, ROWS = 60, SLOTS = 2 };

typedef struct forger {
    unsigned char* memory;
    size_t size, first, mailbox;
    uint64_t seed;
    int is_wild; /* it writes anywhere; otherwise only to the reader's mailbox and mail */
} forger;

static void* forge(void* context) {
    forger* it = context;
    uint64_t state = it->seed;
    for (int i = 0; i < WRITES; ++i) {
        const uint64_t r = next_random(&state);
        const size_t width = r % 4 == 0 ? 4096 : 64;
        const size_t place =
            it->is_wild && r % 16 == 1 ? (size_t)(r >> 8) % it->size : it->mailbox + (size_t)(r >> 8) % width;
        __atomic_store_n(it->memory + place, (unsigned char)(r >> 40), __ATOMIC_RELAXED);
    }
    return NULL;
}

static void check_rows(per_replay* replay) {
    static rows all;
    draw(replay, 500, &all);
    for (int i = 0; i < 500; ++i)
        CHECK(all.next[i] == all.observation[i] + 1 && all.reward[i] == all.observation[i] && all.ids[i] < ROWS);
}

static per_replay* filled_buffer(void) {
    per_replay* replay = create_plain(ROWS + 2, 1);
    for (int t = 0; t < ROWS; ++t) add_full(replay, 0, (float)t, (float)t, GOES_ON, (float)t + 1);
    return replay;
}

/* The first mailbox at or after this position. It starts with the number of readers that it has had, and the number of
   bytes they wrote. */
static size_t find_mailbox(const unsigned char* memory, size_t size, uint64_t lives, size_t at) {
    for (; at + 64 <= size && at < 1 << 16; at += 64) {
        uint64_t words[3];
        memcpy(words, memory + at, sizeof words);
        if (words[0] == lives && words[1] > 0 && words[1] < 4096 && words[2] == (uint64_t)getpid()) return at;
    }
    CHECK(!"there is a mailbox");
    return 0;
}

static per_reader* second_reader(per_shared_loader* loader) {
    per_batch batch;
    per_reader* reader = attach_reader(path_of_batches(loader));
    per_reader_free(reader);
    reader = attach_reader(path_of_batches(loader));
    CHECK_OK(per_reader_release(reader, read_batch(reader, &batch)));
    CHECK_OK(per_reader_flush(reader, -1));
    return reader;
}

/* The layout of a reader's message in memory. */
typedef struct mail {
    uint32_t kind, reserved;
    int64_t n_bytes, number, n_critics, n_steps;
} mail;

enum { ASK = 1, RELEASE, LEAVE, TD_ERRORS, PRIORITIES, OTHERS_SLOT = -77, HUGE_MAIL = 1 << 30 };

static const mail of_no_reader[] = {
    {0, 0, 40, 0, 1, 0},
    {6, 0, 40, 0, 1, 0},
    {UINT32_MAX, 0, 40, 0, 1, 0},
    {ASK, 0, 48, 0, 1, 0},
    {ASK, 0, 0, 0, 1, 0},
    {ASK, 0, -40, 0, 1, 0},
    {ASK, 0, 40, 0, 2, 0},
    {RELEASE, 0, 40, -1, 1, 0},
    {RELEASE, 0, 40, 5, 1, 0},
    {RELEASE, 0, 40, INT64_MAX, 1, 0},
    {RELEASE, 0, 40, OTHERS_SLOT, 1, 0},
    {TD_ERRORS, 0, 40, 3, 1, 0},
    {TD_ERRORS, 0, 40, -3, 1, 0},
    {TD_ERRORS, 0, 48, INT64_MAX / 8, 1, 0},
    {TD_ERRORS, 0, 72, 3, 1, 1},
    {TD_ERRORS, 0, 48, 1, INT64_MIN, 0},
    {TD_ERRORS, 0, HUGE_MAIL, (HUGE_MAIL - 40) / 12, 1, 0},
    {PRIORITIES, 0, 72, 3, 2, 0},
    {PRIORITIES, 0, 40, INT64_MIN, 1, 0},
    {PRIORITIES, 0, 40, 1 << 20, 1, 0},
};

static void mail_that_no_reader_writes(mail forged) {
    per_replay* replay = filled_buffer();
    per_shared_loader* loader = share_batches(replay, BATCH, 2, 2, NULL);
    per_reader *reader = attach_reader(path_of_batches(loader)), *other = attach_reader(path_of_batches(loader));
    per_batch batch;
    size_t size;
    uint64_t written;
    read_batch(reader, &batch);
    int64_t slot = read_batch(other, &batch);
    if (forged.number == OTHERS_SLOT) forged.number = slot;
    unsigned char* memory = map_shared(descriptor_of_batches(loader), &size);
    size_t mailbox = find_mailbox(memory, size, 1, 64);
    size_t mailbox_bytes = find_mailbox(memory, size, 1, mailbox + 64) - mailbox;
    memcpy(&written, memory + mailbox + 8, sizeof written);
    memcpy(memory + mailbox + 2 * mailbox_bytes + written, &forged, sizeof forged);
    written += forged.n_bytes > 40 && forged.n_bytes < 4096 ? (uint64_t)forged.n_bytes : 40;
    __atomic_store_n((uint64_t*)(void*)(memory + mailbox + 8), written, __ATOMIC_SEQ_CST);
    /* The other reader wakes the loader, and gets the batch that it requests. */
    CHECK_OK(per_reader_release(other, read_batch(other, &batch)));
    CHECK_OK(per_reader_flush(other, -1));
    CHECK_FAILS(per_reader_flush(reader, -1), PER_ERROR_CORRUPT_FILE, "this reader was cut off");
    CHECK(stats_of(replay).updates == 0 && sharing_stats(loader).refused == 0 && sharing_stats(loader).out == 2);
    per_reader_free(reader);
    reader = attach_reader(path_of_batches(loader));
    CHECK_OK(per_reader_release(reader, read_batch(reader, &batch)));
    CHECK_OK(per_reader_release(other, slot));
    munmap(memory, size);
    per_reader_free(reader);
    per_reader_free(other);
    per_shared_loader_free(loader);
    check_rows(replay);
    per_replay_free(replay);
}

static void check_taken(const per_batch* batch) {
    for (int k = 0; k < BATCH; ++k)
        CHECK(((const float*)batch->next_fields[0])[k] == batch->reward[k] + 1 && batch->ids[k] < ROWS);
}

/* Takes batches with all arrays, and sends priorities, like any reader of the loader. */
static void check_reader(per_reader* reader) {
    const float errors[BATCH] = {1, 2, 3, 4, 5, 6, 7, 8};
    per_batch batch;
    for (int i = 0; i < 5; ++i) {
        const int64_t slot = read_batch(reader, &batch);
        check_taken(&batch);
        CHECK_OK(send_td_errors(reader, BATCH, batch.ids, 1, errors, -1));
        CHECK_OK(per_reader_release(reader, slot));
    }
    CHECK_OK(per_reader_flush(reader, -1));
}

/*
 * A mailbox has a false number of readers. The loader releases the slots of the reader of this mailbox: that reader is
 * cut off, or gets no more answers, and other readers are unaffected. The loader continues, and another reader can use
 * the mailbox.
 */
static void a_life_that_nobody_has(uint64_t life, int has_reader) {
    per_replay* replay = filled_buffer();
    per_shared_loader* loader = share_batches(replay, BATCH, 2, 2, NULL);
    per_reader *reader = attach_reader(path_of_batches(loader)), *other = attach_reader(path_of_batches(loader));
    per_batch batch, of_other;
    size_t size;
    int64_t latest = -1;
    int64_t of_reader = read_batch(reader, &batch);
    int64_t slot = read_batch(other, &of_other);
    unsigned char* memory = map_shared(descriptor_of_batches(loader), &size);
    size_t mailbox = find_mailbox(memory, size, 1, 64);
    if (!has_reader) {
        per_reader_free(reader);
        check_reader(other); /* so the loader knows that it has left */
    }
    __atomic_store_n((uint64_t*)(void*)(memory + mailbox), life, __ATOMIC_SEQ_CST);
    check_reader(other);
    check_taken(&of_other);
    CHECK(sharing_stats(loader).readers >= 0);
    if (has_reader) {
        const per_status read = try_read(reader, 1000, &batch, &latest);
        CHECK(read == PER_OK || read == PER_ERROR_BUSY);
        if (read == PER_OK) check_taken(&batch);
        CHECK_OK(per_reader_release(reader, of_reader));
        per_reader_flush(reader, 100);
        check_reader(other);
        per_reader_free(reader);
    }
    /* The next reader that attaches there. */
    reader = attach_reader(path_of_batches(loader));
    check_reader(reader);
    check_reader(other);
    check_taken(&of_other);
    CHECK_OK(per_reader_release(other, slot));
    CHECK_OK(per_reader_flush(other, -1));
    CHECK(sharing_stats(loader).out == 0 && sharing_stats(loader).attached == 2);
    per_reader_free(reader);
    per_reader_free(other);
    munmap(memory, size);
    per_shared_loader_free(loader);
    check_rows(replay);
    per_replay_free(replay);
}

/* The loader's part of a mailbox, for a reader that has sent one request. */
typedef struct answer {
    uint64_t taken, answered;
    int32_t status;
    int64_t slot;
    const char* message; /* of the reader's error */
} answer;

enum { ASKED = 40 /* the bytes of that mail */ };

static const answer of_no_loader[] = {
    {ASKED, 1, PER_OK, SLOTS + 1, "the slot that was handed out is 3, and not 0 .. 2"}, /* one is the loader's */
    {ASKED, 1, PER_OK, INT64_MAX, "the slot that was handed out is 9223372036854775807"},
    {ASKED, 1, PER_OK, -1, "the slot that was handed out is -1"},
    {ASKED, 1, PER_ERROR_CALLBACK + 1, 0, "a status is 13, and not 0 .. 12"},
    {ASKED, 1, 0x3f3f3f3f, 0, "a status is 1061109567"},
    {ASKED, 1, -1, 0, "a status is -1"},
    {ASKED, 1, INT32_MIN, 0, "a status is -2147483648"},
    {ASKED, 2, PER_OK, 0, "the number of answers is 2, and not 0 .. 1"},
    {ASKED, UINT64_MAX, PER_OK, 0, "the number of answers is 18446744073709551615"},
    {ASKED + 1, 0, PER_OK, 0, "the number of bytes taken is 41"},
    {UINT64_C(1) << 63, 0, PER_OK, 0, "the number of bytes taken is 9223372036854775808"},
};

static void an_answer_that_no_loader_gives(answer forged) {
    per_replay_options options = replay_options(ROWS + 2, 1);
    per_batch batch;
    size_t size;
    int64_t slot;
    set_rate_limit(&options, 1, BATCH, 0); /* so that no request is answered */
    per_replay* replay = create_replay(&options);
    per_shared_loader* loader = share_batches(replay, BATCH, 1, SLOTS, NULL);
    per_reader* reader = attach_reader(path_of_batches(loader));
    CHECK_OK(per_reader_flush(reader, -1));
    CHECK(try_read(reader, 0, &batch, &slot) == PER_ERROR_BUSY); /* it has sent a request */
    CHECK_OK(per_reader_flush(reader, -1));
    unsigned char* memory = map_shared(descriptor_of_batches(loader), &size);
    unsigned char* of_loader = memory + find_mailbox(memory, size, 1, 64) + 64;
    __atomic_store_n((uint64_t*)(void*)(of_loader + 8), forged.taken, __ATOMIC_SEQ_CST);
    __atomic_store_n((int32_t*)(void*)(of_loader + 28), forged.status, __ATOMIC_SEQ_CST);
    __atomic_store_n((int64_t*)(void*)(of_loader + 32), forged.slot, __ATOMIC_SEQ_CST);
    __atomic_store_n((uint64_t*)(void*)(of_loader + 16), forged.answered, __ATOMIC_SEQ_CST);
    if (forged.answered != 0)
        CHECK_FAILS(try_read(reader, 60000, &batch, &slot), PER_ERROR_CORRUPT_FILE, forged.message);
    else
        CHECK_FAILS(per_reader_flush(reader, 60000), PER_ERROR_CORRUPT_FILE, forged.message);
    munmap(memory, size);
    free_shared(reader, loader, replay);
}

static per_status status_of_attaching(per_shared_loader* loader) {
    per_reader* reader = NULL;
    const per_status status = per_reader_attach(path_of_batches(loader), -1, &reader);
    CHECK((reader != NULL) == (status == PER_OK));
    per_reader_free(reader);
    return status;
}

/* One byte less than in the header leaves everything in place, as sizes are rounded up to whole cache lines. */
static void numbers_of_the_header_are_those_of_its_loader(void) {
    enum { OPTIONS_BYTES = 24 };
    const int64_t before_the_ring[] = {BATCH, 1, SLOTS, 1}; /* the batch size, readers, their slots, and n_step */
    per_replay* replay = create_plain(ROWS + 2, 1);
    per_shared_loader* loader = share_batches(replay, BATCH, 1, SLOTS, NULL);
    size_t size;
    size_t at = 0;
    uint64_t bytes;
    unsigned char* memory = map_shared(descriptor_of_batches(loader), &size);
    while (memcmp(memory + at, before_the_ring, sizeof before_the_ring) != 0) CHECK((at += 8) < 256);
    at += sizeof before_the_ring;
    CHECK(status_of_attaching(loader) == PER_OK);
    memcpy(&bytes, memory + at, sizeof bytes);
    CHECK(bytes % 64 == 0);
    --bytes;
    memcpy(memory + at, &bytes, sizeof bytes);
    CHECK(status_of_attaching(loader) == PER_ERROR_CORRUPT_FILE);
    CHECK(strstr(per_last_error(), "the shared memory is no shared loader: its rings have another size") != NULL);
    ++bytes;
    memcpy(memory + at, &bytes, sizeof bytes);
    memcpy(&bytes, memory + OPTIONS_BYTES, sizeof bytes);
    --bytes;
    memcpy(memory + OPTIONS_BYTES, &bytes, sizeof bytes);
    CHECK(status_of_attaching(loader) == PER_ERROR_CORRUPT_FILE);
    CHECK(strstr(per_last_error(), "in the section 'end': it ends early") != NULL);
    ++bytes;
    memcpy(memory + OPTIONS_BYTES, &bytes, sizeof bytes);
    CHECK(status_of_attaching(loader) == PER_OK);
    munmap(memory, size);
    per_shared_loader_free(loader);
    per_replay_free(replay);
}

int main(void) {
    const uint64_t lives[] = {0, 2, 3, UINT64_MAX - 1, UINT64_MAX, UINT64_C(1) << 63};
    uint64_t state = 4;
    int n_cut_off = 0;
    for (int i = 0; i < rounds(ROUNDS); ++i) {
        per_replay* replay = filled_buffer();
        per_shared_loader* loader = share_batches(replay, BATCH, 1, 2, NULL);
        float errors[BATCH];
        forger forging;
        per_status latest = PER_OK;
        per_reader* reader = second_reader(loader);
        forging.memory = map_shared(descriptor_of_batches(loader), &forging.size);
        forging.mailbox = find_mailbox(forging.memory, forging.size, 2, 64);
        forging.seed = next_random(&state);
        forging.is_wild = i % 3 == 0;
        for (int t = 0; t < BATCH; ++t) errors[t] = (float)(t + 1);
        pthread_t thread = start_thread(forge, &forging);
        for (int t = 0; t < 60; ++t) {
            per_batch batch;
            int64_t slot;
            const per_status read = try_read(reader, 1, &batch, &slot);
            if (read != PER_OK && read != PER_ERROR_BUSY) latest = read;
            if (read != PER_OK) continue;
            send_td_errors(reader, BATCH, batch.ids, 1, errors, 1);
            per_reader_release(reader, slot);
        }
        join_thread(thread);
        sharing_stats(loader);
        check_rows(replay);
        n_cut_off += latest == PER_ERROR_CORRUPT_FILE;
        per_reader_free(reader);
        if (!forging.is_wild) {
            while (sharing_stats(loader).attached != 0) continue;
            reader = attach_reader(path_of_batches(loader));
            check_reader(reader);
            per_reader_free(reader);
        }
        munmap(forging.memory, forging.size);
        per_shared_loader_free(loader);
        check_rows(replay);
        per_replay_free(replay);
    }
    CHECK(n_cut_off > 0);
    for (int i = 0; i < 2 * (int)(sizeof lives / sizeof *lives); ++i) a_life_that_nobody_has(lives[i / 2], i % 2);
    for (int i = 0; i < (int)(sizeof of_no_reader / sizeof *of_no_reader); ++i)
        mail_that_no_reader_writes(of_no_reader[i]);
    for (int i = 0; i < (int)(sizeof of_no_loader / sizeof *of_no_loader); ++i)
        an_answer_that_no_loader_gives(of_no_loader[i]);
    numbers_of_the_header_are_those_of_its_loader();
    return 0;
}
