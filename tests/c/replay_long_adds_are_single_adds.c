/*
 * A call with K steps has the effect of K calls with one step: the same ids, rows, priorities, counters and draws, over
 * random masks, ends and gaps, even if K exceeds the rows of a lane. Every row of the buffer is compared. On CUDA the
 * buffer that gets single steps is on the CPU, and there are fewer calls and at most a tenth of the buffers. */
#include "replay_check.h"
#include "settings.h"

/* CUDA tests one in ONE_IN kinds of buffers. It is coprime to the numbers of kinds. */
#ifdef SANITIZED
enum { ONE_IN = 61 };
#else
enum { ONE_IN = 11 };
#endif

enum { MAX_ENVS = 3, MAX_LENGTH = 160, CALLS = 30, CALM_CALLS = 30 };

typedef struct steps {
    int envs, length; /* of a call at most */
    int calm;         /* factor by which ends, gaps and masked steps are rarer */
    float observation[MAX_LENGTH * MAX_ENVS], next[MAX_LENGTH * MAX_ENVS], reward[MAX_LENGTH * MAX_ENVS];
    float priorities[MAX_LENGTH * MAX_ENVS];
    uint8_t terminated[MAX_LENGTH * MAX_ENVS], truncated[MAX_LENGTH * MAX_ENVS], mask[MAX_LENGTH * MAX_ENVS];
    uint8_t next_mask[MAX_LENGTH * MAX_ENVS];
} steps;

static uint64_t random_state;
static float announced[MAX_ENVS]; /* the observation that the last step of each environment announced */

static int one_in(int n) {
    return next_random(&random_state) % (uint64_t)n == 0;
}

static void make_steps(steps* out, int length, const per_replay_options* options) {
    static float counter;
    const int calm = out->calm;
    for (int k = 0; k < length; ++k) {
        for (int env = 0; env < out->envs; ++env) {
            const int i = k * out->envs + env;
            const float fresh = ++counter;
            out->mask[i] = !one_in(5 * calm);
            out->terminated[i] = one_in(9 * calm);
            out->truncated[i] = one_in(9 * calm);
            out->next_mask[i] = options->store_next_observation || !one_in(4 * calm);
            out->observation[i] = one_in(8 * calm) ? fresh : announced[env];
            out->next[i] = fresh + 0.5f;
            out->reward[i] = fresh;
            out->priorities[i] = one_in(2) ? 1 : (float)(next_random(&random_state) % 5);
            if (one_in(10)) out->priorities[i] = fresh; /* larger than all earlier ones */
            if (options->on_invalid == PER_INVALID_SKIP && one_in(7 * calm)) out->priorities[i] = -1;
            if (out->mask[i]) announced[env] = out->next[i];
        }
    }
}

static void fill(call* given, const steps* from, int k, int length, int with_priorities) {
    const int i = k * from->envs;
    fill_call(given, length, from->observation + i, from->next + i, from->reward + i, from->terminated + i,
              from->truncated + i);
    given->steps.mask = array_of(from->mask + i, PER_BOOL);
    given->steps.next_mask = array_of(from->next_mask + i, PER_BOOL);
    if (with_priorities) given->steps.priorities = array_of(from->priorities + i, PER_FLOAT32);
}

static void check_same_rows(per_replay* a, per_replay* b, int64_t last_id) {
    static rows of_a, of_b;
    static const int64_t window = 60;
    for (int64_t id = last_id > window ? last_id - window : 0; id <= last_id; ++id) {
        float priority_a = -1, priority_b = -2;
        fill_rows(&of_a);
        fill_rows(&of_b);
        of_a.batch.weights = of_b.batch.weights = NULL;
        of_a.batch.probabilities = of_b.batch.probabilities = NULL;
        of_a.batch.next_fields = of_b.batch.next_fields = NULL;
        per_status status_a = per_replay_get(a, 1, &id, &of_a.batch, NULL);
        per_status status_b = per_replay_get(b, 1, &id, &of_b.batch, NULL);
        CHECK(status_a == status_b);
        CHECK(of_a.observation[0] == of_b.observation[0] && of_a.reward[0] == of_b.reward[0]);
        CHECK(of_a.terminated[0] == of_b.terminated[0] && of_a.truncated[0] == of_b.truncated[0]);
        status_a = per_replay_get_priorities(a, 1, &id, &priority_a, NULL);
        status_b = per_replay_get_priorities(b, 1, &id, &priority_b, NULL);
        CHECK(status_a == status_b && (status_a != PER_OK || priority_a == priority_b));
    }
}

static void check_same(per_replay* a, per_replay* b, int64_t last_id) {
    static rows drawn;
    per_replay_statistics stats_a = stats_of(a), stats_b = stats_of(b);
    stats_b.memory_bytes = stats_a.memory_bytes; /* specific to the device */
    stats_b.huge_page_bytes = stats_a.huge_page_bytes;
    CHECK(memcmp(&stats_a, &stats_b, sizeof stats_a) == 0);
    check_same_rows(a, b, last_id);
    if (stats_a.live > 0) check_same_draw(a, b, 64, &drawn);
}

/* Ages of every kind. Half-lives of less than a step or a version change the reference of the leaves within a call. */
static per_freshness freshness_of(uint64_t kind, int64_t rows) {
    const int64_t least = 6; /* rows that a lane needs with n_step 3 */
    const per_freshness kinds[] = {{0, -1, PER_AGE_STEPS, 0},
                                   {5, -1, PER_AGE_STEPS, 0},
                                   {0.07, -1, PER_AGE_STEPS, 0},
                                   {0.5, least + rows / 3, PER_AGE_STEPS, 0},
                                   {0, least + rows / 2, PER_AGE_STEPS, 0},
                                   {0.3, -1, PER_AGE_VERSIONS, 0},
                                   {0.02, 2, PER_AGE_VERSIONS, 0},
                                   {0, 1, PER_AGE_VERSIONS, 0}};
    return kinds[kind % (sizeof kinds / sizeof kinds[0])];
}

static void compare(per_replay_options options, uint64_t seed, int calm, int with_priorities) {
    static steps made;
    const int n_calls = on_cuda() ? 6 : calm > 1 ? CALM_CALLS : CALLS;
    const int64_t n_step = options.n_step;
    const int grows_n_step = seed % 3 == 0;
    if (grows_n_step) options.n_step = 1;
    per_replay *at_once = create_replay(&options), *one_by_one;
    int64_t last_id = -1;
    options.device = PER_CPU;
    one_by_one = create_replay(&options);
    if (grows_n_step) {
        CHECK_OK(change_n_step(at_once, n_step, NULL));
        CHECK_OK(change_n_step(one_by_one, n_step, NULL));
    }
    random_state = seed;
    made.envs = (int)options.n_envs;
    made.calm = calm;
    made.length = calm > 1 ? MAX_LENGTH : 40;
    for (int i = 0; i < n_calls; ++i) {
        const int length = (int)(next_random(&random_state) % (uint64_t)(made.length + 1));
        const int gives_priorities = with_priorities && !one_in(3);
        int64_t ids[MAX_LENGTH * MAX_ENVS], single_ids[MAX_LENGTH * MAX_ENVS];
        call given;
        if (options.freshness.age == PER_AGE_VERSIONS && one_in(2)) {
            CHECK_OK(change_version(at_once, 3 * i, NULL));
            CHECK_OK(change_version(one_by_one, 3 * i, NULL));
        }
        make_steps(&made, length, &options);
        fill(&given, &made, 0, length, gives_priorities);
        CHECK_OK(per_replay_add(at_once, &given.steps, ids, NULL));
        for (int k = 0; k < length; ++k) {
            fill(&given, &made, k, 1, gives_priorities);
            CHECK_OK(per_replay_add(one_by_one, &given.steps, single_ids + k * made.envs, NULL));
        }
        CHECK(memcmp(ids, single_ids, (size_t)(length * made.envs) * sizeof ids[0]) == 0);
        for (int k = 0; k < length * made.envs; ++k)
            if (ids[k] > last_id) last_id = ids[k];
        check_same(at_once, one_by_one, last_id);
    }
    CHECK(stats_of(at_once).live > 0 && stats_of(at_once).episodes > (on_cuda() ? 1 : 20));
    CHECK(options.store_next_observation || stats_of(at_once).cuts > (on_cuda() ? 1 : 20));
    free_both(at_once, one_by_one);
}

/* Every kind of buffer; `calm` gives long runs of plain steps. */
static void compare_all(int64_t n_envs, int calm) {
    static uint64_t seed = 1;
    const uint64_t one_in = on_cuda() ? ONE_IN : 1;
    for (int64_t rows = 7; rows <= 100; rows += 31) { /* 7: nearly every call is longer than a lane */
        for (int64_t n_step = 1; n_step <= 3; n_step += 2) {
            for (int32_t max_priority = PER_MAX_EVER; max_priority <= PER_MAX_NOW; ++max_priority) {
                for (int32_t store = 0; store <= 1; ++store) {
                    for (int32_t autoreset = PER_AUTORESET_DISABLED; autoreset <= PER_AUTORESET_SAME_STEP;
                         ++autoreset) {
                        per_replay_options options = replay_options(rows * n_envs, n_envs);
                        options.n_step = n_step;
                        options.frame_stack = 1;
                        options.max_priority = max_priority;
                        options.store_next_observation = store;
                        options.autoreset = autoreset;
                        options.on_invalid = seed % 4 == 0 ? PER_INVALID_SKIP : PER_INVALID_ERROR;
                        options.seed = seed;
                        options.freshness = freshness_of(seed, rows);
                        if (seed % one_in == 0) compare(options, seed, calm, seed % 2 == 0);
                        ++seed;
                    }
                }
            }
        }
    }
}

int main(void) {
    compare_all(MAX_ENVS, 1);
    compare_all(MAX_ENVS, 8);
    compare_all(1, 8);
    return 0;
}
