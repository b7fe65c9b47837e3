/*
 * Rows of any length: batches of a buffer whose rows have 100 to 2000 tokens of 4 bytes, beside memcpy of the same rows.
 *
 *     build/ragged_bench [ROWS [BATCH [ROUNDS]]]
 *
 * The two alternate, for ROUNDS rounds. memcpy knows the rows beforehand: it copies as many random rows from an array in
 * which they lie one after the other, to the place where libper wrote its batch. Prints the medians in us, the bytes of
 * a batch, and the memory that rows take for each byte stored.
 */
#define _POSIX_C_SOURCE 199309L /* clock_gettime */
#include <per.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SHORTEST = 100, LONGEST = 2000, MOST_ROUNDS = 10000 };

static void check(per_status status) {
    if (status == PER_OK) return;
    fprintf(stderr, "%s\n", per_last_error());
    exit(1);
}

static void require(int condition, const char* what) {
    if (condition) return;
    fprintf(stderr, "not so: %s\n", what);
    exit(1);
}

static void* allocated(size_t bytes) {
    void* const memory = malloc(bytes);
    require(memory != NULL, "there is memory");
    return memory;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e6 * (double)time.tv_sec + 1e-3 * (double)time.tv_nsec;
}

static uint32_t next_random(uint32_t* state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static int compare(const void* a, const void* b) {
    const double one = *(const double*)a, other = *(const double*)b;
    return (one > other) - (one < other);
}

static double median(double* times, int n) {
    qsort(times, (size_t)n, sizeof *times, compare);
    return times[n / 2];
}

/* The rows of the floor: row t is tokens[ends[t]] .. tokens[ends[t + 1] - 1]. */
typedef struct {
    int64_t n_rows;
    int64_t* ends;
    int32_t* tokens;
} rows;

static rows random_rows(int64_t n_rows) {
    rows made = {n_rows, allocated((size_t)(n_rows + 1) * sizeof(int64_t)), NULL};
    uint32_t state = 1;
    made.ends[0] = 0;
    for (int64_t t = 0; t < n_rows; ++t)
        made.ends[t + 1] = made.ends[t] + SHORTEST + next_random(&state) % (LONGEST - SHORTEST + 1);
    made.tokens = allocated((size_t)made.ends[n_rows] * sizeof(int32_t));
    for (int64_t i = 0; i < made.ends[n_rows]; ++i) made.tokens[i] = (int32_t)next_random(&state);
    return made;
}

static per_replay* filled(const rows* all) {
    const per_field fields[2] = {{.name = "observation", .dtype = PER_INT64},
                                 {.name = "tokens", .dtype = PER_INT32, .max_length = LONGEST}};
    per_replay_options options;
    per_replay* replay;
    check(per_replay_options_init(&options, sizeof options));
    options.capacity = all->n_rows;
    options.fields = fields;
    options.n_fields = 2;
    options.field_size = sizeof *fields;
    check(per_replay_create(&options, &replay));
    for (int64_t t = 0; t < all->n_rows; ++t) {
        const float reward = 1;
        const uint8_t goes_on = 0;
        const per_array arrays[2] = {{.data = &t, .dtype = PER_INT64},
                                     {.data = all->tokens, .dtype = PER_INT32, .offsets = all->ends + t}};
        per_steps steps;
        check(per_steps_init(&steps, sizeof steps));
        steps.fields = arrays;
        steps.reward = (per_array){.data = &reward, .dtype = PER_FLOAT32};
        steps.terminated = steps.truncated = (per_array){.data = &goes_on, .dtype = PER_BOOL};
        check(per_replay_add(replay, &steps, NULL, NULL));
    }
    return replay;
}

static int64_t memory_of(per_replay* replay) {
    per_replay_statistics statistics;
    check(per_replay_get_statistics(replay, &statistics, sizeof statistics));
    return statistics.memory_bytes;
}

int main(int argc, char** argv) {
    const int64_t n_rows = argc > 1 ? atoll(argv[1]) : 100000, batch_size = argc > 2 ? atoll(argv[2]) : 256;
    const int n_rounds = argc > 3 ? atoi(argv[3]) : 400;
    require(n_rows > 3 && batch_size > 0 && n_rounds > 0 && n_rounds <= MOST_ROUNDS,
            "ROWS, BATCH and ROUNDS are in range");
    const rows all = random_rows(n_rows), none = {n_rows, calloc((size_t)n_rows + 1, sizeof(int64_t)), all.tokens};
    per_replay *const replay = filled(&all), *const empty = filled(&none);
    const int64_t stored = all.ends[n_rows] * (int64_t)sizeof(int32_t);
    const double memory = (double)(memory_of(replay) - memory_of(empty)) / (double)stored;

    int64_t* const ids = allocated((size_t)batch_size * sizeof(int64_t));
    per_ragged tokens = {.capacity = batch_size * LONGEST};
    tokens.values = allocated((size_t)tokens.capacity * sizeof(int32_t));
    tokens.offsets = allocated((size_t)(batch_size + 1) * sizeof(int64_t));
    void* const fields[2] = {NULL, &tokens};
    per_batch batch;
    check(per_batch_init(&batch, sizeof batch));
    batch.fields = fields;
    batch.ids = ids;
    static double times[2][MOST_ROUNDS];
    double bytes = 0;
    for (int round = 0; round < n_rounds; ++round) {
        const double begin = now();
        check(per_replay_sample(replay, NULL, batch_size, &batch, NULL));
        times[0][round] = now() - begin;
        for (int64_t i = 0; i < batch_size; ++i) {
            const size_t length = (size_t)(tokens.offsets[i + 1] - tokens.offsets[i]);
            require(length == (size_t)(all.ends[ids[i] + 1] - all.ends[ids[i]]) &&
                        memcmp((int32_t*)tokens.values + tokens.offsets[i], all.tokens + all.ends[ids[i]],
                               length * sizeof(int32_t)) == 0,
                    "each row is the one that was added");
        }
        bytes += (double)tokens.total * sizeof(int32_t) / n_rounds;
        /* Other rows: the check above has brought those of the batch into the caches. */
        for (int64_t i = 0; i < batch_size; ++i) ids[i] = (ids[i] + n_rows / 3) % n_rows;
        const double middle = now();
        int32_t* out = tokens.values;
        for (int64_t i = 0; i < batch_size; ++i) {
            const size_t length = (size_t)(all.ends[ids[i] + 1] - all.ends[ids[i]]);
            memcpy(out, all.tokens + all.ends[ids[i]], length * sizeof(int32_t));
            out += length;
        }
        times[1][round] = now() - middle;
    }
    const double libper = median(times[0], n_rounds), floor = median(times[1], n_rounds);
    printf("rows %lld, batch %lld: %.2f MB a batch; libper %.1f us, memcpy %.1f us: %.2f of its speed\n",
           (long long)n_rows, (long long)batch_size, bytes / 1e6, libper, floor, floor / libper);
    printf("memory: %.3f bytes for each byte stored\n", memory);
    per_replay_free(replay);
    per_replay_free(empty);
    return 0;
}
