/*
 * Whatever another process writes into the memory of a channel, the buffer gets steps of the channel's environments or
 * the writer is cut off: no fault, no wait without end, and other environments as they were.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "channel_check.h"

enum { ROUNDS = 300, WRITES = 2000, SLOTS = 32 };

typedef struct forger {
    unsigned char* memory;
    size_t size;
    uint64_t seed;
    int is_wild; /* it writes anywhere, else to what lies behind the first lines only */
} forger;

static void* forge(void* context) {
    forger* it = context;
    uint64_t state = it->seed;
    int i;
    for (i = 0; i < WRITES; ++i) {
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

int main(void) {
    uint64_t state = 4;
    int i, n_cut_off = 0;
    for (i = 0; i < rounds(ROUNDS); ++i) {
        static const int64_t lane = 1;
        const per_replay_options options = replay_options(200, 2);
        per_replay* replay = create_replay(&options);
        const int by_calls = i % 5 < 2;
        per_channel* channel = create_channel_moved_by(by_calls ? PER_MOVED_BY_CALLS : PER_MOVED_BY_THREAD, replay, 1,
                                                       &lane, SLOTS, i % 2 ? PER_FULL_WAITS : PER_FULL_DROPS);
        per_writer* writer = attach(path_of(channel));
        forger forging;
        struct stat status;
        pthread_t thread;
        int32_t descriptor;
        per_status flushed;
        int t;
        CHECK_OK(per_channel_descriptor(channel, &descriptor));
        CHECK(fstat(descriptor, &status) == 0);
        /* It cannot be cut short under the buffer's feet. */
        CHECK(ftruncate(descriptor, 1) != 0);
        forging.size = (size_t)status.st_size;
        forging.memory = mmap(NULL, forging.size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        CHECK(forging.memory != MAP_FAILED);
        forging.seed = next_random(&state);
        forging.is_wild = i % 3 != 0;
        add_full(replay, 0, 5, 1, GOES_ON, 6);
        CHECK(pthread_create(&thread, NULL, forge, &forging) == 0);
        for (t = 0; t < 200; ++t) {
            int64_t steps;
            write_step(writer, (float)t, (float)t + 1, t % 7 == 0, 1);
            if (!by_calls || t % 4 != 0) continue;
            CHECK(per_channel_move(channel, 7, &steps) == PER_OK ? steps <= 7 : steps == 0);
        }
        pthread_join(thread, NULL);
        flushed = per_channel_flush(channel, 1000);
        CHECK(flushed == PER_OK || flushed == PER_ERROR_CORRUPT_FILE);
        if (flushed == PER_ERROR_CORRUPT_FILE) {
            ++n_cut_off;
            CHECK_FAILS(per_channel_flush(channel, -1), PER_ERROR_CORRUPT_FILE, "its writer was cut off");
        }
        channel_stats(channel);
        check_other_environment(replay);
        munmap(forging.memory, forging.size);
        per_writer_free(writer);
        per_channel_free(channel);
        per_replay_free(replay);
    }
    CHECK(n_cut_off > 0);
    return 0;
}
