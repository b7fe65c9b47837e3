/*
 * Compressed fields: the buffer is bit-identical to one with uncompressed frames, whatever is called. Screens of a game
 * take at most a fifth of the memory, and noise little more than without compression. If memory runs out, a call
 * changes nothing. Fields that cannot be compressed are refused by name, and stay uncompressed after a load.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "posix_check.h"
#include "saved_bytes.h"

enum { SIDE = 84, SCREEN = SIDE * SIDE, GOAL = 4, MAP = 64, N_FIELDS = 5, N_ENVS = 2, BATCH = 32, STEPS = 16 };

/* Functions of the C library that libper calls. */
static int refuses_memory;
void* aligned_alloc(size_t alignment, size_t size) {
    void* memory = NULL;
    errno = refuses_memory ? ENOMEM : posix_memalign(&memory, alignment, size);
    return memory;
}
void* mmap(void* address, size_t size, int protection, int flags, int file, off_t first) {
    if (refuses_memory) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return (void*)syscall(SYS_mmap, address, size, protection, flags, file, first);
}

/* ------------------------------------------------------------------ buffers */

static per_replay_options options_of(int64_t capacity, int32_t compression) {
    static const int64_t screen[] = {SIDE, SIDE}, goal[] = {GOAL}, map[] = {8, 8};
    static const uint8_t zero;
    static const int64_t one[1] = {1};
    static const per_array default_map = {&zero, one, 0, PER_UINT8, NULL};
    static per_field both[2][N_FIELDS];
    per_field* const fields = both[compression];
    per_replay_options options = replay_options(capacity, N_ENVS);
    fields[0] = field_of("observation", PER_UINT8, 2, screen);
    fields[1] = field_of("observation.achieved", PER_FLOAT32, 1, goal);
    fields[2] = field_of("goal", PER_FLOAT32, 1, goal);
    fields[3] = field_of("action", PER_UINT8, 0, NULL);
    fields[4] = field_of("map", PER_UINT8, 2, map);
    fields[4].default_value = &default_map;
    for (int i = 0; i < N_FIELDS; ++i)
        if (i != 3) fields[i].compression = compression;
    set_fields(&options, fields, N_FIELDS);
    return options;
}

/* A screen like that of a game: a ball and two paddles before a pattern, and a score. Scenes differ in their
   pattern. */
static void draw_screen(uint8_t* screen, int t, int env) {
    const int scene = t / 300 % 3 + 3 * env, left = abs(t % 120 - 60), right = abs(t * 7 % 140 - 70);
    for (int y = 0; y < SIDE; ++y)
        for (int x = 0; x < SIDE; ++x)
            screen[y * SIDE + x] = (uint8_t)(87 + (x * 7919 + y * (104729 + scene)) % 11 / 10 * 23);
    for (int y = 0; y < 8; ++y) memset(screen + y * SIDE, t % 100 < 50 ? 236 : 60, SIDE);
    for (int y = 0; y < 10; ++y) {
        memset(screen + (left + 8 + y) * SIDE + 8, 148, 3);
        memset(screen + (right + y) * SIDE + 72, 213, 3);
    }
    for (int y = 0; y < 2; ++y) memset(screen + (t * 3 % 80 + y) * SIDE + t * 2 % 80, 236, 2);
}

static void draw_noise(uint8_t* screen, uint64_t* seed) {
    for (int i = 0; i < SCREEN; i += 8) {
        const uint64_t word = next_random(seed);
        memcpy(screen + i, &word, 8);
    }
}

typedef enum look { SCREENS, NOISE, MIXED } look;

/* `length` steps of all environments from step t on; some of them end an episode. */
static per_status try_steps(per_replay* replay, int length, int t, look kind) {
    static uint8_t screens[STEPS + 1][N_ENVS][SCREEN];
    static float achieved[STEPS + 1][N_ENVS][GOAL], goals[STEPS][N_ENVS][GOAL], rewards[STEPS][N_ENVS];
    static uint8_t actions[STEPS][N_ENVS], maps[STEPS][N_ENVS][MAP], ends[STEPS][N_ENVS], no[STEPS][N_ENVS];
    uint64_t seed = (uint64_t)t + 1;
    const int has_next = next_random(&seed) % 2 == 0, has_maps = next_random(&seed) % 2 == 0;
    CHECK(length <= STEPS);
    memset(ends, 0, sizeof ends);
    for (int k = 0; k <= length; ++k)
        for (int env = 0; env < N_ENVS; ++env) {
            if (kind == NOISE || (kind == MIXED && next_random(&seed) % 8 == 0))
                draw_noise(screens[k][env], &seed);
            else
                draw_screen(screens[k][env], t + k, env);
            for (int i = 0; i < GOAL; ++i) achieved[k][env][i] = (float)((t + k) / 7 + i);
            if (k == length) continue;
            for (int i = 0; i < GOAL; ++i) goals[k][env][i] = (float)((t + k) / 50 + i);
            for (int i = 0; i < MAP; ++i) maps[k][env][i] = (uint8_t)((t + k) / 5 + i / 16);
            actions[k][env] = (uint8_t)next_random(&seed);
            rewards[k][env] = (float)(next_random(&seed) % 10);
        }
    if (has_next && t % 5 == 0) ends[length - 1][1] = 1;
    per_array fields[N_FIELDS] = {array_of(screens, PER_UINT8), array_of(achieved, PER_FLOAT32),
                                  array_of(goals, PER_FLOAT32), array_of(actions, PER_UINT8),
                                  array_of(has_maps ? maps : NULL, PER_UINT8)};
    per_array next[N_FIELDS] = {array_of(screens[1], PER_UINT8), array_of(achieved[1], PER_FLOAT32)};
    const per_steps steps = steps_of(length, fields, has_next ? next : NULL, rewards, ends, no);
    return per_replay_add(replay, &steps, NULL, NULL);
}

/* A step of all environments with their next observations, as store_next_observation requires. */
static per_status try_step_with_next(per_replay* replay, int t) {
    static uint8_t screens[2][N_ENVS][SCREEN];
    static float achieved[2][N_ENVS][GOAL], rewards[N_ENVS];
    static uint8_t actions[N_ENVS], no[N_ENVS];
    for (int k = 0; k < 2; ++k)
        for (int env = 0; env < N_ENVS; ++env) {
            draw_screen(screens[k][env], t + k, env);
            achieved[k][env][0] = (float)(t + k);
        }
    per_array fields[N_FIELDS] = {array_of(screens, PER_UINT8), array_of(achieved, PER_FLOAT32),
                                  array_of(achieved, PER_FLOAT32), array_of(actions, PER_UINT8),
                                  array_of(NULL, PER_UINT8)};
    per_array next[N_FIELDS] = {array_of(screens[1], PER_UINT8), array_of(achieved[1], PER_FLOAT32)};
    const per_steps steps = steps_of(1, fields, next, rewards, no, no);
    return per_replay_add(replay, &steps, NULL, NULL);
}

static void add_to_both(per_replay* const* buffers, int length, int t, look kind, int with_next) {
    for (int i = 0; i < 2; ++i)
        CHECK_OK(with_next ? try_step_with_next(buffers[i], t) : try_steps(buffers[i], length, t, kind));
}

typedef struct drawn {
    int64_t ids[BATCH];
    float weights[BATCH], reward[BATCH * 8];
    uint8_t screens[BATCH * 8 * SCREEN], next_screens[BATCH * 4 * SCREEN], maps[BATCH * 8 * MAP];
    float achieved[BATCH * 8 * 4 * GOAL], next_achieved[BATCH * 8 * 4 * GOAL], goals[BATCH * 8 * GOAL];
} drawn;

static int32_t reward_of(void* context, int64_t count, const void* achieved, const void* goals, float* rewards_out,
                         uint8_t* terminated_out) {
    const float *const a = achieved, *const g = goals;
    (void)context, (void)terminated_out;
    for (int64_t i = 0; i < count; ++i) rewards_out[i] = a[GOAL * i] - 3 * g[GOAL * i];
    return 0;
}

typedef enum way { DRAWN, RELABELLED, BY_ID, AS_ADDED } way;

static void gather(per_replay* replay, int has_sequences, way how, const int64_t* ids, drawn* out) {
    memset(out, 0, sizeof *out);
    void* fields[N_FIELDS] = {out->screens, out->achieved, out->goals, NULL, out->maps};
    void* next[N_FIELDS] = {out->next_screens, out->next_achieved};
    per_batch batch = default_batch();
    batch.fields = fields;
    if (!has_sequences) batch.next_fields = next;
    batch.ids = out->ids;
    batch.reward = out->reward;
    if (how != AS_ADDED) batch.weights = out->weights;
    const per_hindsight_options hindsight = relabelling(1, 2, reward_of, NULL);
    if (how == DRAWN) CHECK_OK(per_replay_sample(replay, NULL, BATCH, &batch, NULL));
    if (how == RELABELLED) CHECK_OK(sample_with_hindsight(replay, NULL, &hindsight, BATCH, &batch, NULL));
    if (how == BY_ID) CHECK_OK(per_replay_get_windows(replay, NULL, PER_INVALID_ERROR, BATCH, ids, &batch, NULL));
    if (how == AS_ADDED) CHECK_OK(per_replay_get(replay, BATCH, ids, &batch, NULL));
}

/* All ways to read rows give the same from both buffers. Then some rows of both are set. */
static void check_same_batches(per_replay* const* buffers, int has_sequences, uint64_t* seed) {
    static drawn batches[2];
    static uint8_t maps[BATCH][MAP];
    static const way all[] = {DRAWN, BY_ID, AS_ADDED, RELABELLED};
    int64_t ids[BATCH];
    for (int i = 0; i < 4; ++i) {
        if (has_sequences && all[i] == AS_ADDED) continue;
        for (int k = 0; k < 2; ++k) gather(buffers[k], has_sequences, all[i], ids, &batches[k]);
        CHECK(memcmp(&batches[0], &batches[1], sizeof batches[0]) == 0);
        memcpy(ids, batches[0].ids, sizeof ids);
    }
    for (int i = 0; i < BATCH; ++i) memset(maps[i], (int)next_random(seed), MAP);
    per_array fields[N_FIELDS] = {[4] = array_of(maps, PER_UINT8)};
    for (int k = 0; k < 2; ++k) CHECK_OK(per_replay_set(buffers[k], BATCH, ids, fields, NULL));
}

static int is_compressed(per_replay* replay) {
    const per_replay_options described = describe_replay(replay);
    CHECK(described.n_fields < 4 || described.fields[3].compression == PER_COMPRESSION_NONE);
    CHECK(described.fields[0].compression == described.fields[described.n_fields - 1].compression);
    return described.fields[0].compression == PER_COMPRESSION_DELTA;
}

/* -------------------------------------------------------------------- cases */

/* The file of the compressed buffer, loaded without compression, is saved like the twin. */
static void check_same_files(per_replay* const* buffers) {
    char folder[] = "/tmp/per-compression-XXXXXX", path[PATH_MAX];
    per_replay* loaded;
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/saved", folder);
    CHECK_OK(per_replay_save(buffers[1], path, NULL));
    per_load_options place = default_load_options();
    place.memory.storage = folder;
    CHECK_OK(per_replay_load(path, &place, &loaded));
    CHECK(!is_compressed(loaded));
    check_same_saves(loaded, buffers[0]);
    per_replay_free(loaded);
    CHECK_OK(per_replay_load(path, NULL, &loaded));
    CHECK(is_compressed(loaded));
    check_same_saves(loaded, buffers[1]);
    per_replay_free(loaded);
    CHECK(unlink(path) == 0);
    CHECK_OK(per_replay_checkpoint(buffers[1], path, NULL, NULL));
    CHECK_OK(per_replay_load(path, NULL, &loaded));
    check_same_saves(loaded, buffers[1]);
    per_replay_free(loaded);
    snprintf(path, sizeof path, "rm -r %s", folder);
    CHECK(system(path) == 0);
}

/* Rings that wrap around twice, with all kinds of draws. */
static void the_buffer_is_the_same(void) {
    int length;
    for (int kind = 0; kind < 6; ++kind) {
        per_replay* buffers[2];
        uint64_t seed = (uint64_t)kind;
        for (int k = 0; k < 2; ++k) {
            per_replay_options options = options_of(200, k);
            if (kind == 1) options.n_step = 3, options.frame_stack = 4;
            if (kind == 2) options.sequence_length = 5, options.burn_in = 1, options.frame_stack = 1;
            if (kind == 3) options.store_next_observation = 1;
            if (kind == 4) options.gather_threads = 3, options.frame_stack = 2, options.n_step = 2;
            if (kind == 5) ((per_field*)options.fields)[0].padding = PER_PADDING_ZERO, options.frame_stack = 3;
            buffers[k] = create_replay(&options);
            CHECK(is_compressed(buffers[k]) == k);
        }
        for (int t = 0; t < 260; t += length) {
            length = kind == 3 ? 1 : 1 + (int)(next_random(&seed) % STEPS);
            add_to_both(buffers, length, t, MIXED, kind == 3);
            if (t > 40 && next_random(&seed) % (kind == 3 ? 20 : 4) == 0) check_same_batches(buffers, kind == 2, &seed);
            if (t > 100 && t < 110)
                for (int k = 0; k < 2; ++k) CHECK_OK(per_replay_cut(buffers[k], 0, NULL, NULL));
            if (t > 150 && t < 160)
                for (int k = 0; k < 2; ++k) CHECK_OK(per_replay_clear(buffers[k], NULL));
        }
        check_same_files(buffers);
        for (int k = 0; k < 2; ++k) per_replay_free(buffers[k]);
    }
}

static void fill(per_replay* replay, int n, look kind) {
    for (int t = 0; t < n; t += STEPS) CHECK_OK(try_steps(replay, STEPS, t, kind));
}

/* Both hold 28 MB of screens. */
static void screens_take_a_fifth_and_noise_hardly_more(void) {
    enum { CAPACITY = 4000, ROUND = CAPACITY / N_ENVS };
    per_replay_options plain = options_of(CAPACITY, 0), options = options_of(CAPACITY, 1);
    per_replay *const twin = create_replay(&plain), *replay = create_replay(&options);
    const int64_t as_they_are = stats_of(twin).memory_bytes;
    CHECK(stats_of(replay).memory_bytes < 100 * CAPACITY);
    fill(replay, 2 * ROUND, SCREENS);
    CHECK(5 * stats_of(replay).memory_bytes < as_they_are);
    for (int i = 0; i < 3; ++i) { /* the memory is reused for both */
        fill(replay, ROUND, NOISE);
        CHECK(stats_of(replay).memory_bytes < as_they_are + as_they_are / 10 + 300 * CAPACITY);
        fill(replay, ROUND, SCREENS);
    }
    per_replay_free(replay);
    replay = create_replay(&options);
    fill(replay, ROUND, NOISE);
    CHECK(stats_of(replay).memory_bytes < as_they_are + as_they_are / 25 + 200 * CAPACITY);
    free_both(replay, twin);
}

static per_status set_maps(per_replay* replay, int n, const uint8_t* maps) {
    int64_t* const ids = malloc((size_t)n * sizeof *ids);
    for (int i = 0; i < n; ++i) ids[i] = 20 + i % 100;
    per_array fields[N_FIELDS] = {[4] = array_of(maps, PER_UINT8)};
    per_status status = per_replay_set(replay, n, ids, fields, NULL);
    free(ids);
    return status;
}

/* Adds steps, and sets rows repeatedly by one call, until memory runs out. */
static void memory_that_is_refused_changes_nothing(void) {
    enum { N_MAPS = 200000 };
    per_replay* buffers[2];
    per_status status;
    uint8_t* const maps = malloc(N_MAPS * MAP);
    uint64_t seed = 1;
    int t;
    for (int i = 0; i < N_MAPS * MAP; ++i) maps[i] = (uint8_t)next_random(&seed);
    for (int i = 0; i < 2; ++i) {
        per_replay_options options = options_of(8000, i);
        buffers[i] = create_replay(&options);
    }
    for (t = 0; t < 5 * STEPS; t += STEPS) add_to_both(buffers, STEPS, t, SCREENS, 0);
    for (;; t += STEPS) {
        refuses_memory = 1;
        status = try_steps(buffers[1], STEPS, t, NOISE);
        refuses_memory = 0;
        if (status != PER_OK) break;
        CHECK_OK(try_steps(buffers[0], STEPS, t, NOISE));
    }
    CHECK(status == PER_ERROR_OUT_OF_MEMORY);
    bytes before = saved(buffers[1]);
    refuses_memory = 1;
    for (int i = 1; i <= 3; ++i) CHECK(try_steps(buffers[1], STEPS, t + i, NOISE) == PER_ERROR_OUT_OF_MEMORY);
    refuses_memory = 0;
    check_saved_as(&before, buffers[1]);
    free(before.data);
    add_to_both(buffers, STEPS, t, NOISE, 0);
    before = saved(buffers[1]);
    refuses_memory = 1;
    CHECK(set_maps(buffers[1], N_MAPS, maps) == PER_ERROR_OUT_OF_MEMORY);
    refuses_memory = 0;
    check_saved_as(&before, buffers[1]);
    free(before.data);
    for (int i = 0; i < 2; ++i) CHECK_OK(set_maps(buffers[i], 500, maps));
    check_same_files(buffers);
    for (int i = 0; i < 2; ++i) per_replay_free(buffers[i]);
    free(maps);
}

/* The ring is full. A call that runs out of memory would have overwritten 16 rows of each environment; the next call
   overwrites one. */
static void what_was_packed_before_memory_ended_is_put_nowhere(void) {
    per_replay* buffers[2];
    int t;
    for (int i = 0; i < 2; ++i) {
        per_replay_options options = options_of(200, i);
        buffers[i] = create_replay(&options);
    }
    for (t = 0; t < 20 * STEPS; t += STEPS) add_to_both(buffers, STEPS, t, SCREENS, 0);
    refuses_memory = 1;
    for (int i = 0; try_steps(buffers[1], STEPS, t, NOISE) == PER_OK; t += STEPS) {
        CHECK(++i < 100);
        refuses_memory = 0;
        CHECK_OK(try_steps(buffers[0], STEPS, t, NOISE));
        refuses_memory = 1;
    }
    refuses_memory = 0;
    add_to_both(buffers, 1, t, SCREENS, 0);
    check_same_files(buffers);
    for (int i = 0; i < 2; ++i) per_replay_free(buffers[i]);
}

/* Buffers of the two fields of a long call: one plain, one compressed. */
static void create_small(per_replay** buffers, int64_t capacity, int64_t n_envs) {
    static const int64_t screen[] = {SIDE, SIDE}, map[] = {32, 32};
    for (int i = 0; i < 2; ++i) {
        per_replay_options options = replay_options(capacity, n_envs);
        per_field fields[2] = {field_of("observation", PER_UINT8, 2, screen), field_of("map", PER_UINT8, 2, map)};
        fields[0].compression = fields[1].compression = i;
        set_fields(&options, fields, 2);
        buffers[i] = create_replay(&options);
    }
}

static void add_small(per_replay* replay, int64_t length, const uint8_t* screens, const uint8_t* next_screens,
                      const uint8_t* maps, const uint8_t* ends, int64_t* ids_out) {
    float* const rewards = calloc((size_t)length * N_ENVS, sizeof *rewards);
    uint8_t* const no = calloc((size_t)length * N_ENVS, 1);
    per_array fields[2] = {array_of(screens, PER_UINT8), array_of(maps, PER_UINT8)};
    per_array next[2] = {array_of(next_screens, PER_UINT8)};
    const per_steps steps =
        steps_of(length, fields, next_screens != NULL ? next : NULL, rewards, ends != NULL ? ends : no, no);
    CHECK_OK(per_replay_add(replay, &steps, ids_out, NULL));
    free(rewards);
    free(no);
}

/* Calls with many times more frames than the buffer has rows. Memory holds about twice the frames that stay. */
static void a_long_call_takes_the_memory_of_what_stays(void) {
    enum { ROWS = 40, LENGTH = 1500, N_SET = 20000, LARGE_MAP = 1024, ALLOWED = 1 << 20 };
    uint8_t* const screens = malloc((size_t)(LENGTH + 1) * N_ENVS * SCREEN);
    uint8_t* const maps = malloc((size_t)N_SET * LARGE_MAP);
    static uint8_t ends[LENGTH][N_ENVS];
    int64_t* const ids = malloc(N_SET * sizeof *ids);
    per_replay* buffers[2];
    uint64_t seed = 9;
    CHECK(screens != NULL && maps != NULL && ids != NULL);
    for (int i = 0; i < (LENGTH + 1) * N_ENVS; ++i) draw_noise(screens + (size_t)i * SCREEN, &seed);
    for (int i = 0; i < N_SET * LARGE_MAP; ++i) maps[i] = (uint8_t)next_random(&seed);
    for (int i = 0; i < LENGTH; ++i)
        for (int k = 0; k < N_ENVS; ++k) ends[i][k] = next_random(&seed) % 7 == 0;
    create_small(buffers, ROWS, N_ENVS);
    int64_t plain = stats_of(buffers[0]).memory_bytes;
    for (int i = 0; i < 2; ++i) {
        add_small(buffers[i], 7, screens, NULL, maps, NULL, NULL);
        add_small(buffers[i], LENGTH, screens, screens + N_ENVS * SCREEN, maps, &ends[0][0], NULL);
    }
    CHECK(stats_of(buffers[1]).memory_bytes < 4 * plain + ALLOWED);
    check_same_files(buffers);
    per_array fields[2] = {[1] = array_of(maps, PER_UINT8)};
    {
        int64_t n = 0;
        CHECK_OK(per_replay_get_live_ids(buffers[0], ROWS, ids, &n));
        CHECK(n > 3);
        for (int i = (int)n; i < N_SET; ++i) ids[i] = ids[next_random(&seed) % (uint64_t)n];
    }
    for (int i = 0; i < 2; ++i) CHECK_OK(per_replay_set(buffers[i], N_SET, ids, fields, NULL));
    CHECK(stats_of(buffers[1]).memory_bytes < 4 * plain + 2 * ALLOWED);
    check_same_files(buffers);
    for (int i = 0; i < 2; ++i) per_replay_free(buffers[i]);
    free(screens);
    free(maps);
    free(ids);
}

/* Sets rows to frames of an earlier scene than that of the steps that are added meanwhile. */
static void what_is_set_leaves_the_keys_of_steps(void) {
    enum { CAPACITY = 2000, STEPS_OF_SCENE = 500, LARGE_MAP = 1024 };
    static uint8_t scenes[4][LARGE_MAP], screen[SCREEN], map[LARGE_MAP];
    static int64_t ids[2 * CAPACITY];
    per_replay* buffers[2];
    uint64_t seed = 3;
    for (int t = 0; t < 4; ++t)
        for (int i = 0; i < LARGE_MAP; ++i) scenes[t][i] = (uint8_t)next_random(&seed);
    create_small(buffers, CAPACITY, 1);
    per_array fields[2] = {[1] = array_of(map, PER_UINT8)};
    for (int t = 0; t < 2 * CAPACITY; ++t) {
        memcpy(map, scenes[t / STEPS_OF_SCENE % 4], LARGE_MAP);
        map[next_random(&seed) % LARGE_MAP] = (uint8_t)t;
        for (int i = 0; i < 2; ++i) add_small(buffers[i], 1, screen, NULL, map, NULL, &ids[t]);
        if (t < STEPS_OF_SCENE) continue;
        memcpy(map, scenes[(t / STEPS_OF_SCENE - 1) % 4], LARGE_MAP);
        map[next_random(&seed) % LARGE_MAP] = (uint8_t)t;
        for (int i = 0; i < 2; ++i) CHECK_OK(per_replay_set(buffers[i], 1, &ids[t - STEPS_OF_SCENE], fields, NULL));
    }
    CHECK(stats_of(buffers[1]).memory_bytes < 400 * CAPACITY);
    check_same_files(buffers);
    for (int i = 0; i < 2; ++i) per_replay_free(buffers[i]);
}

/* A quarter of each frame is new, so every 17th is a key. A key stays while others need it, even if its row is set. */
static void what_is_set_is_packed_by_the_frame_that_was_there(void) {
    enum { CAPACITY = 8000, LARGE_MAP = 1024, NEW = LARGE_MAP / 4 };
    static uint8_t screen[SCREEN], maps[CAPACITY][LARGE_MAP], found[CAPACITY][LARGE_MAP];
    static int64_t ids[CAPACITY];
    void* const out[] = {NULL, found};
    per_replay* buffers[2];
    uint64_t seed = 5;
    for (int i = 0; i < LARGE_MAP; ++i) maps[0][i] = (uint8_t)next_random(&seed);
    create_small(buffers, CAPACITY, 1);
    for (int t = 0; t < CAPACITY - 1; ++t) {
        if (t > 0) memcpy(maps[t], maps[0], LARGE_MAP);
        for (int i = 0; i < NEW; ++i) maps[t][i] = (uint8_t)next_random(&seed);
        add_small(buffers[1], 1, screen, NULL, maps[t], NULL, &ids[t]);
    }
    int64_t before = stats_of(buffers[1]).memory_bytes;
    for (int t = 0; t < CAPACITY - 1; ++t)
        for (int i = 0; i < NEW; ++i) maps[t][i] = (uint8_t)next_random(&seed);
    per_array fields[2] = {{0}};
    for (int t = 0; t < CAPACITY - 1; ++t) {
        fields[1] = array_of(maps[t], PER_UINT8);
        CHECK_OK(per_replay_set(buffers[1], 1, &ids[t], fields, NULL));
    }
    CHECK(stats_of(buffers[1]).memory_bytes < before + before / 12);
    per_batch batch = default_batch();
    batch.fields = out;
    CHECK_OK(per_replay_get(buffers[1], CAPACITY - 1, ids, &batch, NULL));
    CHECK(memcmp(found, maps, (CAPACITY - 1) * sizeof maps[0]) == 0);
    for (int i = 0; i < 2; ++i) per_replay_free(buffers[i]);
}

static void a_child_has_its_own_copy(void) {
    per_replay* buffers[2];
    uint64_t seed = 1;
    for (int k = 0; k < 2; ++k) {
        per_replay_options options = options_of(100, k);
        buffers[k] = create_replay(&options);
    }
    for (int t = 0; t < 96; t += STEPS) add_to_both(buffers, STEPS, t, MIXED, 0);
    pid_t child = start_child();
    for (int t = 0; t < 160; t += STEPS) {
        add_to_both(buffers, STEPS, child == 0 ? 3 * t + 5 : t, MIXED, 0);
        check_same_batches(buffers, 0, &seed);
    }
    for (int k = 0; k < 2; ++k) per_replay_free(buffers[k]);
    if (child == 0) _exit(0);
    check_child(child);
}

static void* allocate(void* context, int64_t n, int64_t alignment, int32_t use) {
    (void)context, (void)use;
    return aligned_alloc((size_t)alignment, (size_t)n);
}
static void deallocate(void* context, void* memory, int64_t n, int32_t use) {
    (void)context, (void)n, (void)use;
    free(memory);
}

static void what_is_refused(void) {
    static const int64_t large[] = {1 << 12, (1 << 12) + 1}, seven[] = {7};
    per_replay_options options = options_of(100, 1), changed = options;
    per_field fields[N_FIELDS];
    per_replay* replay = (per_replay*)&options;
    changed.device = PER_CUDA;
    CHECK_FAILS(
        per_replay_create(&changed, &replay), PER_ERROR_UNSUPPORTED,
        "compression of field \"observation\" is PER_COMPRESSION_DELTA (1): on PER_CUDA frames are kept as they");
    CHECK(replay == NULL);
    changed = options;
    changed.memory.allocate = allocate;
    changed.memory.deallocate = deallocate;
    CHECK_FAILS(per_replay_create(&changed, &replay), PER_ERROR_UNSUPPORTED,
                "memory of the caller's (allocate) has the");
    changed = options;
    changed.memory.storage = "/tmp";
    CHECK_FAILS(per_replay_create(&changed, &replay), PER_ERROR_UNSUPPORTED, "a file (storage) has the frames as they");
    memcpy(fields, options.fields, sizeof fields);
    changed = options;
    changed.fields = fields;
    fields[3].compression = PER_COMPRESSION_DELTA;
    CHECK_REFUSED(
        per_replay_create(&changed, &replay),
        "compression of field \"action\" is PER_COMPRESSION_DELTA (1): its frame has 1 bytes, and must have 8 .. "
        "16777216");
    fields[3].ndim = 1;
    fields[3].shape = seven;
    CHECK_REFUSED(per_replay_create(&changed, &replay), "its frame has 7 bytes");
    CHECK_REFUSED(per_field_check(&fields[3], sizeof(per_field)), "compression is PER_COMPRESSION_DELTA (1): its");
    fields[3].ndim = 2;
    fields[3].shape = large;
    CHECK_REFUSED(per_field_check(&fields[3], sizeof(per_field)), "its frame has 16781312 bytes");
    for (fields[3].compression = -1; fields[3].compression <= 2; fields[3].compression += 3)
        CHECK_REFUSED(per_field_check(&fields[3], sizeof(per_field)), "allowed are 0 .. 1");
}

int main(void) {
    what_is_refused();
    the_buffer_is_the_same();
    screens_take_a_fifth_and_noise_hardly_more();
    memory_that_is_refused_changes_nothing();
    what_was_packed_before_memory_ended_is_put_nowhere();
    a_long_call_takes_the_memory_of_what_stays();
    what_is_set_leaves_the_keys_of_steps();
    what_is_set_is_packed_by_the_frame_that_was_there();
    a_child_has_its_own_copy();
    return 0;
}
