/*
 * Days of training in minutes: a tree and a buffer in long use stay exact, keep their distribution of draws, and use no
 * more memory than after the first tenth.
 *
 *   c_long_runs [N]    N times the work of the test, which has N = 1
 *
 * N = 1300: 1.3e9 updates and 1e9 draws of a tree whose priorities change by orders of magnitude, and 2.7e8 steps of a
 * buffer, which wraps around 2,665 times. Seeds are fixed. Each chi-square exceeds its limit for one seed in 10^9;
 * there are 64 + 16 at any N.
 */
#define _POSIX_C_SOURCE 200809L
#include <float.h>
#include <unistd.h>

#include "replay_check.h"

static int64_t n_times = 1;

/* Bytes of memory in use. */
static int64_t resident_bytes(void) {
    long long pages = 0, resident = 0;
    FILE* file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%lld %lld", &pages, &resident) == 2);
    fclose(file);
    return resident * sysconf(_SC_PAGESIZE);
}

static void check_memory(int64_t before, const char* of) {
    const int64_t now = resident_bytes();
    printf("%s: %.1f MB in use after a tenth, %.1f MB at the end\n", of, before / 1e6, now / 1e6);
#ifndef SANITIZED /* a sanitizer keeps freed memory */
    CHECK(now <= before + (1 << 20));
#endif
}

/* Compares counts of classes with their expected values, after merging classes of fewer than 25. Wilson and Hilferty
   1931: the cube root of chi^2 / k is close to normal. */
static void check_chi_square(int64_t n_classes, const int64_t* counts, const double* expected, const char* of) {
    double chi_square = 0, sum = 0, held_sum = 0;
    int64_t count = 0, held_count = 0, freedom = -2;
    for (int64_t i = 0; i <= n_classes; ++i) {
        if (sum >= 25 || i == n_classes) {
            if (i == n_classes) { /* the remainder joins the last class that is large enough */
                held_sum += sum;
                held_count += count;
            }
            if (held_sum > 0) chi_square += pow((double)held_count - held_sum, 2) / held_sum;
            ++freedom;
            held_sum = sum;
            held_count = count;
            sum = 0;
            count = 0;
        }
        if (i == n_classes) break;
        CHECK(expected[i] > 0 || counts[i] == 0);
        sum += expected[i];
        count += counts[i];
    }
    if (freedom < 1) return;
    double deviate =
        (cbrt(chi_square / (double)freedom) - 1 + 2 / (9.0 * (double)freedom)) / sqrt(2 / (9.0 * (double)freedom));
    if (deviate <= 6.0) return;
    fprintf(stderr, "%s: chi-square %.1f with %lld degrees of freedom\n", of, chi_square, (long long)freedom);
    exit(1);
}

/* -------------------------------------------------------------------------------------------------------------- */

enum { LEAVES = 50000, BATCH = 4096, ROUNDS = 250, DRAWS = 1 << 16 };

static float shadow[LEAVES]; /* the expected content of the tree */

/* The magnitude wanders from denormal numbers to the largest, with zeros and extremes in between. */
static float any_priority(uint64_t* state, int64_t round) {
    const uint64_t random = next_random(state);
    const int exponent = (int)(round * 7 % 250) - 140;
    if (random % 16 == 0) return 0;
    if (random % 1024 == 1) return FLT_MAX;
    if (random % 1024 == 2) return (float)ldexp(1, -149);
    if (random % 1024 == 3) return FLT_MIN;
    return (float)ldexp((double)(random >> 40) + 1, exponent - 24);
}

/* The sum of ceil(p 2^scale), recomputed from all leaves, and every priority. */
static void check_exact(per_tree* tree) {
    static float priorities[LEAVES];
    const uint64_t total = total_mass_of(tree);
    const int32_t scale = scale_of(tree);
    uint64_t expected = 0;
    for (int64_t i = 0; i < LEAVES; ++i) expected += (uint64_t)ceil(ldexp((double)shadow[i], scale));
    CHECK(total == expected && total < UINT64_C(1) << 62);
    CHECK_OK(per_tree_get_priorities(tree, LEAVES, NULL, priorities, NULL));
    CHECK(memcmp(priorities, shadow, sizeof shadow) == 0);
}

static void check_draws(per_tree* tree) {
    static int64_t indices[DRAWS], counts[LEAVES];
    static double expected[LEAVES];
    const uint64_t total = total_mass_of(tree);
    const int32_t scale = scale_of(tree);
    CHECK_OK(per_sample(tree, DRAWS, PER_INDEPENDENT, 0, indices, NULL, NULL, NULL));
    memset(counts, 0, sizeof counts);
    for (int64_t i = 0; i < DRAWS; ++i) ++counts[indices[i]];
    for (int64_t i = 0; i < LEAVES; ++i) expected[i] = DRAWS * (ceil(ldexp((double)shadow[i], scale)) / (double)total);
    check_chi_square(LEAVES, counts, expected, "draws of the tree");
}

static void tree_of_changing_priorities(void) {
    static int64_t indices[BATCH], drawn[BATCH];
    static float priorities[BATCH], priorities_out[BATCH], weights[BATCH];
    const int64_t rounds = ROUNDS * n_times, every = rounds / 64 > 0 ? rounds / 64 : 1;
    uint64_t state = 11;
    int64_t before = 0, n_updates = 0, n_draws = 0;
    per_tree* tree = create_tree(LEAVES, 12);
    for (int64_t round = 0; round < rounds; ++round) {
        const int32_t scheme = (int32_t)(round % 4);
        const int64_t n = scheme == PER_WITHOUT_REPLACEMENT ? BATCH / 16 : BATCH;
        for (int64_t i = 0; i < BATCH; ++i) {
            /* consecutive leaves, or random ones; the last of equal indices wins */
            indices[i] = (int64_t)((round % 3 == 0 ? (uint64_t)(round * BATCH + i) : next_random(&state)) % LEAVES);
            priorities[i] = any_priority(&state, round);
            shadow[indices[i]] = priorities[i];
        }
        CHECK_OK(per_update(tree, BATCH, indices, priorities, NULL));
        CHECK_OK(per_sample(tree, n, scheme, 0.5f, drawn, priorities_out, weights, NULL));
        for (int64_t i = 0; i < n; ++i) {
            CHECK(priorities_out[i] > 0 && priorities_out[i] == shadow[drawn[i]]);
            CHECK(weights[i] >= 0 && weights[i] <= 1);
        }
        n_updates += BATCH;
        n_draws += n;
        if (round % every == every - 1) {
            check_exact(tree);
            check_draws(tree);
            n_draws += DRAWS;
        }
        if (round == rounds / 10) before = resident_bytes();
    }
    printf("tree: %lld updates, %lld draws\n", (long long)n_updates, (long long)n_draws);
    check_memory(before, "tree");
    per_tree_free(tree);
}

/* -------------------------------------------------------------------------------------------------------------- */

enum { ROWS = 100000, STEPS = 1024, CALLS = 200, EPISODE = 1000, AGES = 64 };

/* The observation of a step is the number of earlier steps modulo 2^24, so that it is exact; its reward is the same.
   Each episode of a thousand steps needs one more row, for its final observation. */
static int64_t id_of_step(int64_t step) {
    return step + step / EPISODE;
}

static float number_of_step(int64_t step) {
    return (float)(step % (1 << 24));
}

static void buffer_that_wraps(void) {
    static float observation[STEPS], next[STEPS], reward[STEPS], priorities[STEPS], errors[MANY];
    static uint8_t terminated[STEPS];
    static int64_t ids[STEPS], counts[AGES];
    static double expected[AGES];
    static float priority_of_row[ROWS]; /* by id modulo the rows */
    static rows drawn;
    const int64_t calls = CALLS * n_times, every = calls / 16 > 0 ? calls / 16 : 1;
    per_replay_options options = replay_options(ROWS, 1);
    uint64_t state = 13;
    int64_t step = 0, before = 0, n_stale = 0, n_updates = 0;
    options.alpha = 1;
    options.seed = 14;
    options.scheme = PER_INDEPENDENT;
    per_replay* replay = create_replay(&options);
    for (int64_t call_number = 0; call_number < calls; ++call_number) {
        call given;
        for (int64_t i = 0; i < STEPS; ++i) {
            observation[i] = reward[i] = number_of_step(step + i);
            terminated[i] = (step + i) % EPISODE == EPISODE - 1;
            next[i] = terminated[i] ? -1 : number_of_step(step + i + 1);
            priorities[i] = (float)(1 + next_random(&state) % 7);
        }
        fill_call(&given, STEPS, observation, next, reward, terminated, NULL);
        given.steps.priorities = array_of(priorities, PER_FLOAT32);
        CHECK_OK(per_replay_add(replay, &given.steps, ids, NULL));
        for (int64_t i = 0; i < STEPS; ++i) {
            CHECK(ids[i] == id_of_step(step + i));
            priority_of_row[ids[i] % ROWS] = priorities[i];
            priority_of_row[(ids[i] + 1) % ROWS] = 0; /* the row of its next observation, until a step takes it */
        }
        step += STEPS;
        draw(replay, 64, &drawn);
        for (int64_t i = 0; i < 64; ++i) {
            const int64_t id = drawn.ids[i], of_id = id - id / (EPISODE + 1);
            CHECK(id >= 0 && id <= ids[STEPS - 1] && id > ids[STEPS - 1] + 1 - ROWS);
            CHECK(drawn.reward[i] == number_of_step(of_id) && drawn.observation[i] == drawn.reward[i]);
            CHECK(drawn.priorities[i] == priority_of_row[id % ROWS]);
        }
        /* Every other update is stale: its row was overwritten long ago. */
        for (int64_t i = 0; i < 64; ++i) {
            errors[i] = (float)(1 + next_random(&state) % 7);
            if (i % 2 == 1 && drawn.ids[i] >= 2 * ROWS) drawn.ids[i] -= 2 * ROWS;
            if (drawn.ids[i] <= ids[STEPS - 1] + 1 - ROWS)
                ++n_stale;
            else
                priority_of_row[drawn.ids[i] % ROWS] = errors[i];
        }
        CHECK_OK(write_priorities(replay, 64, drawn.ids, errors, NULL));
        n_updates += 64;
        const per_replay_statistics statistics = stats_of(replay);
        CHECK(statistics.added == step && statistics.episodes == step / EPISODE);
        CHECK(statistics.stale_updates == n_stale && statistics.updates == n_updates - n_stale);
        CHECK(statistics.samples == call_number + 1 + (call_number / every) * 32);
        if (call_number % every == every - 1) {
            double total = 0;
            const int64_t newest = ids[STEPS - 1] + (terminated[STEPS - 1] ? 1 : 0);
            for (int64_t i = 0; i < ROWS; ++i) total += (double)priority_of_row[i];
            CHECK(statistics.total == total); /* integers, so exact */
            for (int64_t i = 0; i < AGES; ++i) expected[i] = counts[i] = 0;
            for (int64_t i = 0; i < ROWS && i <= newest; ++i)
                expected[i * AGES / ROWS] += 32 * MANY * ((double)priority_of_row[(newest - i) % ROWS] / total);
            for (int64_t i = 0; i < 32; ++i) {
                draw(replay, MANY, &drawn);
                for (int64_t k = 0; k < MANY; ++k) ++counts[(newest - drawn.ids[k]) * AGES / ROWS];
            }
            check_chi_square(AGES, counts, expected, "ages of what the buffer draws");
        }
        if (call_number == calls / 10) before = resident_bytes();
    }
    printf("buffer: %lld steps, ids up to %lld, %lld laps\n", (long long)step, (long long)ids[STEPS - 1],
           (long long)(ids[STEPS - 1] / ROWS));
    check_memory(before, "buffer");
    per_replay_free(replay);
}

int main(int n_arguments, char** arguments) {
    if (n_arguments > 1) n_times = atoll(arguments[1]);
    CHECK(n_times >= 1);
    tree_of_changing_priorities();
    buffer_that_wraps();
    return 0;
}
