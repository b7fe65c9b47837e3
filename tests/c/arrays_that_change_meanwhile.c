/*
 * Another thread writes to the arrays while a call reads them. This is an error of the caller, but must do no further
 * harm: a call uses the values that it checked. Entries flip between valid and far out of range; calls succeed or are
 * refused, and the handle stays usable.
 */
#define _DEFAULT_SOURCE
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "replay_check.h"
#include "thread_check.h"

enum { N = 512, ENVS = 512, ROUNDS = 6000 };

typedef struct flips {
    pthread_t thread;
    int64_t* entries; /* [N] */
    const int64_t* good;
    int64_t bad;
    int running, stopping;
} flips;

/* Entries are valid most of the time, so that calls pass their checks. */
static void* flip(void* argument) {
    flips* const known = (flips*)argument;
    uint64_t random = 1;
    while (!__atomic_load_n(&known->stopping, __ATOMIC_RELAXED)) {
        const uint64_t i = next_random(&random) % N;
        __atomic_store_n(&known->entries[i], known->bad, __ATOMIC_RELAXED);
        __atomic_store_n(&known->entries[i], known->good[i], __ATOMIC_RELAXED);
        __atomic_store_n(&known->running, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void start(flips* flipping, int64_t* entries, const int64_t* good, int64_t bad) {
    flips begun;
    memset(&begun, 0, sizeof begun);
    *flipping = begun;
    flipping->entries = entries;
    flipping->good = good;
    flipping->bad = bad;
    memcpy(entries, good, N * sizeof *entries);
    flipping->thread = start_thread(flip, flipping);
    while (!__atomic_load_n(&flipping->running, __ATOMIC_RELAXED)) sched_yield();
}

static void stop(flips* flipping) {
    __atomic_store_n(&flipping->stopping, 1, __ATOMIC_RELAXED);
    join_thread(flipping->thread);
}

static void check_status(per_status status) {
    CHECK(status == PER_OK || status == PER_ERROR_INVALID_ARGUMENT);
}

static void a_tree(void) {
    static int64_t indices[N], good[N], drawn[N];
    static float priorities[N], read[N];
    flips flipping;
    double sum = 0;
    per_tree* tree = create_tree(5 * N, 0);
    for (int i = 0; i < N; ++i) {
        good[i] = 5 * i;
        priorities[i] = 1 + (float)i;
        sum += (double)priorities[i];
    }
    start(&flipping, indices, good, INT64_C(1) << 44);
    for (int i = 0; i < ROUNDS; ++i) {
        check_status(per_update(tree, N, indices, priorities, NULL));
        check_status(per_tree_get_priorities(tree, N, indices, read, NULL));
    }
    stop(&flipping);
    CHECK_OK(per_update(tree, N, good, priorities, NULL));
    CHECK(total_of(tree) == sum);
    CHECK_OK(per_sample(tree, N, PER_STRATIFIED, 1, drawn, NULL, NULL, NULL));
    for (int i = 0; i < N; ++i) CHECK(drawn[i] % 5 == 0 && drawn[i] < 5 * N);
    per_tree_free(tree);
}

/* Writes a pair of priorities at a time: NaN twice, or the original values. */
static void priorities_of_a_tree(void) {
    static int64_t indices[2 * N], pairs[N], good[N];
    static float ones[2 * N];
    flips flipping;
    int64_t drawn[64];
    double total;
    per_tree* tree = create_tree(3 * N, 0);
    for (int i = 0; i < 2 * N; ++i) {
        indices[i] = 2 * N - i;
        ones[i] = 1;
    }
    memcpy(good, ones, sizeof good);
    start(&flipping, pairs, good, -1);
    for (int i = 0; i < ROUNDS; ++i) {
        check_status(per_update(tree, 2 * N, indices, (const float*)(const void*)pairs, NULL));
        total = total_of(tree);
        CHECK(total == 0 || total == 2 * N); /* all of a call or nothing */
        if (total == 0) continue;
        CHECK_OK(per_sample(tree, 64, PER_INDEPENDENT, 1, drawn, NULL, NULL, NULL));
        for (int k = 0; k < 64; ++k) CHECK(drawn[k] >= 1 && drawn[k] <= 2 * N);
    }
    stop(&flipping);
    per_tree_free(tree);
}

static void environments(per_replay* replay) {
    static int64_t env_ids[N], good[N];
    static float observations[N], rewards[N];
    call given;
    flips flipping;
    for (int i = 0; i < N; ++i) {
        good[i] = N - 1 - i;
        observations[i] = (float)i;
    }
    fill_call(&given, 1, observations, NULL, rewards, NULL, NULL);
    given.steps.n_envs = N;
    given.steps.env_ids = env_ids;
    start(&flipping, env_ids, good, INT64_C(1) << 44);
    for (int i = 0; i < ROUNDS; ++i) {
        check_status(per_replay_add(replay, &given.steps, NULL, NULL));
        if (i % 8 == 0) check_status(per_replay_cut(replay, N, env_ids, NULL));
    }
    stop(&flipping);
    CHECK(stats_of(replay).added % N == 0);
    /* On a busy machine each call above may have been refused. The handle stays usable; these steps provide rows. */
    given.steps.env_ids = good;
    for (int i = 0; i < 3; ++i) CHECK_OK(per_replay_add(replay, &given.steps, NULL, NULL));
}

static void ids(per_replay* replay) {
    static int64_t given[N], good[N];
    static float priorities[N], read[N];
    static rows out;
    flips flipping;
    int64_t n_live;
    CHECK_OK(per_replay_get_live_ids(replay, N, good, &n_live));
    CHECK(n_live >= N);
    for (int i = 0; i < N; ++i) priorities[i] = 1 + (float)i;
    fill_rows(&out);
    out.batch.weights = out.batch.probabilities = NULL;
    start(&flipping, given, good, INT64_MIN + 7);
    for (int i = 0; i < ROUNDS; ++i) {
        check_status(write_priorities(replay, N, given, priorities, NULL));
        check_status(write_td_errors(replay, N, given, 1, priorities, NULL));
        check_status(per_replay_get_priorities(replay, N, given, read, NULL));
        check_status(per_replay_get(replay, N, given, &out.batch, NULL));
        check_status(per_replay_get_windows(replay, NULL, i % 2, N, given, &out.batch, NULL));
    }
    stop(&flipping);
    draw(replay, N, &out);
}

/* A value that cannot be cast may become valid before the call looks for it again, to name it. */
static void values_that_are_cast(per_replay* replay) {
    static int64_t observations[N], good[N];
    static float rewards[N];
    call given;
    flips flipping;
    fill_call(&given, 1, (const float*)(const void*)observations, NULL, rewards, NULL, NULL);
    given.observation.dtype = PER_FLOAT64;
    start(&flipping, observations, good, INT64_C(0x7fe0000000000000)); /* 2^1023, beyond float32 */
    for (int i = 0; i < ROUNDS; ++i) check_status(per_replay_add(replay, &given.steps, NULL, NULL));
    stop(&flipping);
}

/* A NaN may be gone when the call looks for its position. The array ends at the end of mapped memory. */
static void nans(void) {
    static int64_t good[N];
    static const int64_t shape = 2 * N;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (sizeof good + page - 1) / page * page;
    char* const memory = mmap(NULL, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int64_t* const pairs = (int64_t*)(void*)(memory + pages - sizeof good);
    per_field field = field_of("observation", PER_FLOAT32, 1, &shape);
    per_replay_options options = replay_options(64, 1);
    flips flipping;
    call given;
    float reward = 1;
    CHECK(memory != MAP_FAILED && mprotect(memory + pages, page, PROT_NONE) == 0);
    options.fields = &field;
    options.on_nan = PER_NAN_ERROR;
    per_replay* replay = create_replay(&options);
    fill_call(&given, 1, (const float*)(const void*)pairs, NULL, &reward, NULL, NULL);
    start(&flipping, pairs, good, -1);
    for (int i = 0; i < 20 * ROUNDS; ++i) check_status(per_replay_add(replay, &given.steps, NULL, NULL));
    stop(&flipping);
    per_replay_free(replay);
    CHECK(munmap(memory, pages + page) == 0);
}

static void a_coordinator(void) {
    static int64_t given[N], good[N], shards[N], shard_ids[N], out[N];
    static uint64_t masses[N];
    per_replay_options options = replay_options(4 * N, 2);
    per_coordinator* coordinator;
    per_shard_summary law = {.struct_size = sizeof law,
                             .total_mass = N,
                             .live = N,
                             .measured_low = N,
                             .largest_leaf = 1,
                             .is_scale_fixed = 1};
    flips flipping;
    int64_t count, reference;
    int32_t todo = PER_SCALE_SET, scale = 0;
    CHECK_OK(per_coordinator_create(&options, 2, NULL, &coordinator));
    while (todo != PER_SCALE_AGREED) {
        law.scale = law.measured_scale = scale;
        for (int k = 0; k < 2; ++k) CHECK_OK(per_coordinator_report(coordinator, k, &law));
        CHECK_OK(per_coordinator_agree_on_scale(coordinator, 0, &todo, &scale, &reference));
    }
    for (int i = 0; i < N; ++i) {
        good[i] = i;
        masses[i] = 1;
    }
    start(&flipping, given, good, INT64_MAX);
    for (int i = 0; i < ROUNDS; ++i) {
        const per_status status = per_coordinator_get_ids(coordinator, 1, N, given, out);
        check_status(status);
        for (int k = 0; status == PER_OK && k < N; ++k) CHECK(out[k] == 2 * k + 1 || out[k] == -1);
        CHECK_OK(per_coordinator_locate(coordinator, N, given, shards, shard_ids));
        for (int k = 0; k < N; ++k) CHECK((shards[k] == 0 || shards[k] == 1) && shard_ids[k] >= 0);
        CHECK_OK(per_coordinator_draw(coordinator, NULL, N, &count));
        if (per_coordinator_submit(coordinator, N, given, masses, NULL, &count) != PER_OK) continue;
        CHECK_OK(per_coordinator_finish(coordinator, N, out, NULL, NULL));
        for (int k = 0; k < N; ++k) CHECK(out[k] / 2 == k);
    }
    stop(&flipping);
    per_coordinator_free(coordinator);
}

int main(void) {
    per_replay* replay = create_plain(64 * ENVS, ENVS);
    a_tree();
    nans();
    priorities_of_a_tree();
    environments(replay);
    ids(replay);
    values_that_are_cast(replay);
    a_coordinator();
    per_replay_free(replay);
    return 0;
}
