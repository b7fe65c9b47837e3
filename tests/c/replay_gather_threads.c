/*
 * A large batch copied by several threads is byte-identical to one copied by a single thread, also if the batch size
 * changes, and in a child of fork(), which lacks the parent's threads.
 */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <unistd.h>

#include "posix_check.h"
#include "replay_check.h"

enum { ROWS = 256, PIXELS = 12000, LARGEST = 700, ENVS = 2 };

typedef struct frames {
    uint8_t images[LARGEST * PIXELS];
    uint8_t next[LARGEST * PIXELS];
    float rewards[LARGEST];
    int64_t ids[LARGEST];
    per_batch batch;
    void* fields[1];
    void* next_fields[1];
} frames;

static frames expected, found;

static void point_to(frames* rows) {
    memset(rows->images, 0, sizeof rows->images);
    memset(rows->next, 0, sizeof rows->next);
    CHECK_OK(per_batch_init(&rows->batch, sizeof rows->batch));
    rows->fields[0] = rows->images;
    rows->next_fields[0] = rows->next;
    rows->batch.fields = rows->fields;
    rows->batch.next_fields = rows->next_fields;
    rows->batch.reward = rows->rewards;
    rows->batch.ids = rows->ids;
}

/* Pixel p of environment e at step t is e + 7 t + p. */
static void add_steps(per_replay* replay, int n) {
    static uint8_t images[ENVS * PIXELS], next[ENVS * PIXELS];
    const uint8_t no_flags[ENVS] = {0};
    per_array image = array_of(images, PER_UINT8), after = array_of(next, PER_UINT8);
    float rewards[ENVS];
    for (int t = 0; t < n; ++t) {
        for (int e = 0; e < ENVS; ++e) {
            rewards[e] = (float)(t * ENVS + e);
            for (int p = 0; p < PIXELS; ++p) {
                images[e * PIXELS + p] = (uint8_t)(e + 7 * t + p);
                next[e * PIXELS + p] = (uint8_t)(e + 7 * (t + 1) + p);
            }
        }
        const per_steps steps = steps_of(1, &image, &after, rewards, no_flags, no_flags);
        CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    }
}

static per_replay* filled(int32_t gather_threads) {
    static const int64_t shape[1] = {PIXELS};
    per_field field = field_of("observation", PER_UINT8, 1, shape);
    per_replay_options options = replay_options(ROWS, ENVS);
    options.fields = &field;
    options.gather_threads = gather_threads;
    options.seed = 5;
    per_replay* replay = create_replay(&options);
    add_steps(replay, ROWS);
    return replay;
}

static void compare(per_replay* one, per_replay* several, int64_t batch_size) {
    point_to(&expected);
    point_to(&found);
    CHECK_OK(per_replay_sample(one, NULL, batch_size, &expected.batch, NULL));
    CHECK_OK(per_replay_sample(several, NULL, batch_size, &found.batch, NULL));
    CHECK(memcmp(expected.images, found.images, sizeof found.images) == 0);
    CHECK(memcmp(expected.next, found.next, sizeof found.next) == 0);
    CHECK(memcmp(expected.rewards, found.rewards, sizeof found.rewards) == 0);
    CHECK(memcmp(expected.ids, found.ids, sizeof found.ids) == 0);
    for (int i = 0; i < batch_size; ++i) {
        const int64_t t = found.ids[i] / ENVS, e = found.ids[i] % ENVS;
        CHECK(found.rewards[i] == (float)found.ids[i]);
        CHECK(found.images[i * PIXELS + PIXELS - 1] == (uint8_t)(e + 7 * t + PIXELS - 1));
        CHECK(found.next[i * PIXELS] == (uint8_t)(e + 7 * (t + 1)));
    }
    const per_replay_statistics a = stats_of(one);
    const per_replay_statistics b = stats_of(several);
    CHECK(a.last_mean_age == b.last_mean_age && a.last_max_age == b.last_max_age);
}

/* ThreadSanitizer does not support threads in a child of fork(), and runs one itself. */
#if defined(__SANITIZE_THREAD__)
#define HAS_OWN_THREADS 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HAS_OWN_THREADS 0
#endif
#endif
#ifndef HAS_OWN_THREADS
#define HAS_OWN_THREADS 1
#endif

static int threads_of_this_process(void) {
    DIR* const tasks = opendir("/proc/self/task");
    int n = 0;
    CHECK(tasks != NULL);
    for (; readdir(tasks) != NULL; ++n) continue;
    closedir(tasks);
    return n - 2; /* "." and ".." */
}

/* Children draw or not, and free the buffer, whose threads exist only in the parent. */
static void compare_in_children(per_replay* one, per_replay* several, int32_t threads) {
    static const int64_t sizes[] = {0, 175, LARGEST};
    for (size_t i = 0; HAS_OWN_THREADS && i < sizeof sizes / sizeof *sizes; ++i) {
        const pid_t child = start_child();
        if (child == 0) {
            alarm(20); /* a wait for a missing thread ends the test */
            if (sizes[i] > 0) {
                compare(one, several, sizes[i]);
                compare(one, several, sizes[i]);
                CHECK(threads_of_this_process() <= (threads > 1 ? threads : 1));
            }
            per_replay_free(several);
            _exit(0);
        }
        check_child(child);
    }
    compare(one, several, LARGEST);
}

int main(void) {
    static const int64_t sizes[] = {1, 100, 175, 400, LARGEST, 3};
    const int32_t threads[] = {0, 2, 5};
    const int n_before = threads_of_this_process();
    for (size_t k = 0; k < 3; ++k) {
        per_replay* const one = filled(1);
        per_replay* const several = filled(threads[k]);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) compare(one, several, sizes[i]);
        compare_in_children(one, several, threads[k]);
        CHECK(!HAS_OWN_THREADS || on_cuda() ||
              threads_of_this_process() == n_before + (threads[k] > 1 ? threads[k] - 1 : 0));
        free_both(several, one);
    }
    return 0;
}
