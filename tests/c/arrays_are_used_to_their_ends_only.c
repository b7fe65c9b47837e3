/*
 * No call accesses memory beyond the arrays that it is given: each ends with a page, and the next page is not mapped.
 * Counts from 1 on cover every remainder of vectorized loops.
 */
#define _DEFAULT_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "replay_check.h"

enum { MOST = 40, ARRAYS = 16 };

/* Each array ends at the end of its pages, which the next call reuses. */
static struct {
    char* end;
    size_t size;
} pages[ARRAYS];
static int n_arrays;

static void* array(size_t bytes) {
    CHECK(n_arrays < ARRAYS && bytes <= pages[0].size);
    return pages[n_arrays++].end - bytes;
}

static void* copy(const void* values, size_t bytes) {
    return memcpy(array(bytes), values, bytes);
}

static void make_pages(void) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), size = 4 * page;
    for (int i = 0; i < ARRAYS; ++i) {
        char* memory = mmap(NULL, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(memory != MAP_FAILED && mprotect(memory + size, page, PROT_NONE) == 0);
        pages[i].end = memory + size;
        pages[i].size = size;
    }
}

static int64_t ids[MOST];
static float numbers[4 * MOST], steps_out[MOST + 1];

static void of_a_tree(int64_t n) {
    double sums[MOST];
    uint64_t units[MOST];
    int64_t* indices;
    float *priorities, *weights;
    per_tree* tree = create_tree(MOST, 0);
    for (int64_t i = 0; i < MOST; ++i) {
        sums[i] = 0.5;
        units[i] = (uint64_t)i;
    }
    n_arrays = 0;
    CHECK_OK(per_update(tree, n, copy(ids, (size_t)n * sizeof *ids), copy(numbers, (size_t)n * sizeof *numbers), NULL));
    indices = array((size_t)n * sizeof *indices);
    priorities = array((size_t)n * sizeof *priorities);
    weights = array((size_t)n * sizeof *weights);
    for (int64_t i = PER_STRATIFIED; i <= PER_WITHOUT_REPLACEMENT; ++i)
        CHECK_OK(per_sample(tree, n, (int32_t)i, 0.5f, indices, priorities, weights, NULL));
    CHECK_OK(per_tree_find(tree, n, copy(sums, (size_t)n * sizeof *sums), indices, NULL));
    CHECK_OK(per_tree_find_mass(tree, n, copy(units, (size_t)n * sizeof *units), indices, NULL));
    CHECK_OK(per_tree_get_priorities(tree, n, copy(ids, (size_t)n * sizeof *ids), priorities, NULL));
    per_tree_free(tree);
}

/* n steps of one environment. Every other time, observations and rewards have another dtype than the buffer's. */
static per_replay* with_steps(int64_t n, int32_t critics) {
    static double doubles[MOST + 1];
    static uint8_t flags[MOST];
    per_replay_options options = replay_options(MOST + 8, 1);
    const int casts = n % 2 == 0;
    const size_t size = (size_t)n * (casts ? sizeof(double) : sizeof(float));
    const void* values = casts ? (const void*)doubles : (const void*)steps_out;
    call given;
    options.critics = critics;
    options.n_step = 3;
    per_replay* replay = create_replay(&options);
    for (int64_t i = 0; i <= MOST; ++i) doubles[i] = steps_out[i] = (float)i;
    flags[n - 1] = 1;
    n_arrays = 0;
    CHECK_OK(per_steps_init(&given.steps, sizeof given.steps));
    given.observation = array_of(copy(values, size), casts ? PER_FLOAT64 : PER_FLOAT32);
    given.next = array_of(copy((const char*)values + size / (size_t)n, size), casts ? PER_FLOAT64 : PER_FLOAT32);
    given.steps.length = n;
    given.steps.fields = &given.observation;
    given.steps.next_fields = &given.next;
    given.steps.reward = array_of(copy(values, size), casts ? PER_FLOAT64 : PER_FLOAT32);
    given.steps.terminated = array_of(copy(flags, (size_t)n), PER_BOOL);
    flags[n - 1] = 0;
    given.steps.truncated = array_of(copy(flags, (size_t)n), PER_BOOL);
    given.steps.priorities = array_of(copy(numbers, (size_t)n * sizeof(float)), PER_FLOAT32);
    CHECK_OK(per_replay_add(replay, &given.steps, array((size_t)n * sizeof(int64_t)), NULL));
    CHECK(live_of(replay) == n);
    return replay;
}

static per_batch arrays_for(int64_t n, void** fields, void** next_fields, int of_a_draw) {
    const size_t size = (size_t)n * sizeof(float);
    per_batch batch = default_batch();
    n_arrays = 0;
    fields[0] = array(size);
    next_fields[0] = array(size);
    batch.fields = fields;
    batch.next_fields = next_fields;
    batch.reward = array(size);
    batch.discount = array(size);
    batch.n_steps = array(size);
    batch.terminated = array((size_t)n);
    batch.truncated = array((size_t)n);
    batch.ids = array((size_t)n * sizeof(int64_t));
    batch.priorities = array(size);
    batch.gamma_m = array(size);
    if (!of_a_draw) return batch;
    batch.weights = array(size);
    batch.probabilities = array(size);
    return batch;
}

static void of_a_buffer(int64_t n, int32_t critics) {
    per_replay* replay = with_steps(n, critics);
    void *fields[1], *next_fields[1];
    per_batch batch = arrays_for(n, fields, next_fields, 1);
    CHECK_OK(per_replay_sample(replay, NULL, n, &batch, NULL));
    CHECK_OK(
        per_replay_get_windows(replay, NULL, PER_INVALID_ERROR, n, copy(ids, (size_t)n * sizeof *ids), &batch, NULL));
    batch = arrays_for(n, fields, next_fields, 0);
    CHECK_OK(per_replay_get(replay, n, copy(ids, (size_t)n * sizeof *ids), &batch, NULL));
    for (int64_t n_critics = 1; n_critics <= 4; ++n_critics) {
        n_arrays = 0;
        CHECK_OK(write_td_errors(replay, n, copy(ids, (size_t)n * sizeof *ids), n_critics,
                                 copy(numbers, (size_t)(n * n_critics) * sizeof *numbers), NULL));
    }
    n_arrays = 0;
    CHECK_OK(write_priorities(replay, n, copy(ids, (size_t)n * sizeof *ids), copy(numbers, (size_t)n * sizeof *numbers),
                              NULL));
    CHECK_OK(per_replay_get_priorities(replay, n, copy(ids, (size_t)n * sizeof *ids), array((size_t)n * sizeof(float)),
                                       NULL));
    per_replay_free(replay);
}

int main(void) {
    make_pages();
    for (int64_t n = 0; n < MOST; ++n) ids[n] = n;
    for (int64_t n = 0; n < 4 * MOST; ++n) numbers[n] = (float)(n % 7 + 1);
    for (int64_t n = 1; n <= MOST; ++n) {
        of_a_tree(n);
        of_a_buffer(n, PER_CRITICS_MEAN);
        of_a_buffer(n, PER_CRITICS_MAX);
    }
    return 0;
}
