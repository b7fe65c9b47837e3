/*
 * Rows and priorities lie only in the memory that `allocate` returned; the buffer behaves like one in the system's
 * memory. Each array is freed exactly once, by the matching function, and errors leave no memory allocated.
 */
#define _DEFAULT_SOURCE
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "replay_check.h"

enum { MAX_ARRAYS = 32, GUARD = 4096 };

typedef struct array {
    unsigned char *memory, *mapping;
    int64_t bytes;
    int32_t use;
} array;

/* The caller's memory, and the requests for it. */
typedef struct heap {
    array arrays[MAX_ARRAYS];
    int n_asked, n_lent;
    int fails_at;     /* index of the array whose allocation fails; -1: none */
    int misplaced_at; /* index of the array whose memory is misaligned; -1: none */
    int sharing;      /* MAP_PRIVATE or MAP_SHARED */
} heap;

static void* allocate(void* context, int64_t bytes, int64_t alignment, int32_t use) {
    heap* const from = context;
    array* const made = &from->arrays[from->n_asked];
    CHECK(alignment == 64 && bytes > 0 && bytes % alignment == 0);
    CHECK(use == PER_MEMORY_ROWS || use == PER_MEMORY_PRIORITIES);
    CHECK(from->n_asked < MAX_ARRAYS);
    if (from->n_asked++ == from->fails_at) return NULL;
    made->bytes = bytes;
    made->use = use;
    made->mapping = mmap(NULL, (size_t)bytes + GUARD, PROT_READ | PROT_WRITE, from->sharing | MAP_ANONYMOUS, -1, 0);
    CHECK(made->mapping != MAP_FAILED);
    memset(made->mapping, 0xAB, (size_t)bytes + GUARD); /* the library must clear its part */
    made->memory = made->mapping + (from->n_asked - 1 == from->misplaced_at ? 32 : 0);
    ++from->n_lent;
    return made->memory;
}

static void deallocate(void* context, void* memory, int64_t bytes, int32_t use) {
    heap* const from = context;
    int i = 0;
    while (i < from->n_asked && from->arrays[i].memory != memory) ++i;
    CHECK(i < from->n_asked && from->arrays[i].bytes == bytes && from->arrays[i].use == use);
    for (int k = 32; k < GUARD; ++k) CHECK(from->arrays[i].mapping[bytes + k] == 0xAB); /* nothing beyond its end */
    from->arrays[i].memory = NULL; /* so that a double free is detected */
    munmap(from->arrays[i].mapping, (size_t)bytes + GUARD);
    --from->n_lent;
}

static heap empty_heap(void) {
    heap made;
    memset(&made, 0, sizeof made);
    made.fails_at = made.misplaced_at = -1;
    made.sharing = MAP_PRIVATE;
    return made;
}

/* Options that use every kind of memory: next observations stored apart, priorities, ranks and both maxima. */
static per_replay_options options_with_everything(void) {
    static const int64_t large[] = {300};
    static per_field fields[2];
    per_replay_options options = replay_options(200, 2);
    fields[0] = field_of("observation", PER_FLOAT32, 0, NULL);
    fields[1] = field_of("image", PER_FLOAT32, 1, large);
    set_fields(&options, fields, 2);
    options.prioritization = PER_RANK;
    options.normalize_weights = PER_BUFFER_MAX;
    options.max_priority = PER_MAX_NOW;
    return options;
}

static per_replay_options with_heap(per_replay_options options, heap* from) {
    options.memory.allocate = allocate;
    options.memory.deallocate = deallocate;
    options.memory.context = from;
    return options;
}

static void add_images(per_replay* replay, int n) {
    static float images[2][300];
    for (int t = 0; t < n; ++t) {
        const float observations[2] = {(float)t, (float)t + 0.5f}, rewards[2] = {1, 2};
        const uint8_t flags[2] = {0, 0};
        for (int env = 0; env < 2; ++env)
            for (int i = 0; i < 300; ++i) images[env][i] = (float)(t + env + i);
        const per_array fields[2] = {array_of(observations, PER_FLOAT32), array_of(images, PER_FLOAT32)};
        const per_steps steps = steps_of(1, fields, NULL, rewards, flags, flags);
        CHECK_OK(per_replay_add(replay, &steps, NULL, NULL));
    }
}

static void draw_images(per_replay* replay, int64_t* ids, float* images, float* weights) {
    void* fields[2] = {NULL, images};
    per_batch batch = default_batch();
    batch.ids = ids;
    batch.fields = fields;
    batch.weights = weights;
    CHECK_OK(per_replay_sample(replay, NULL, 64, &batch, NULL));
}

static void check_same_draws(per_replay* replay, per_replay* twin) {
    static float images[64 * 300], of_twin[64 * 300];
    float weights[64], twin_weights[64];
    int64_t ids[64], twin_ids[64];
    for (int round = 0; round < 3; ++round) {
        draw_images(replay, ids, images, weights);
        draw_images(twin, twin_ids, of_twin, twin_weights);
        CHECK(memcmp(ids, twin_ids, sizeof ids) == 0 && memcmp(weights, twin_weights, sizeof weights) == 0);
        CHECK(memcmp(images, of_twin, sizeof images) == 0);
    }
}

static void rows_and_priorities_lie_there(void) {
    heap from = empty_heap();
    const per_replay_options plain = options_with_everything(), options = with_heap(plain, &from);
    per_replay *replay = create_replay(&options), *twin = create_replay(&plain);
    int64_t rows = 0, priorities = 0;
    int i, has_image = 0;
    for (i = 0; i < from.n_asked; ++i)
        *(from.arrays[i].use == PER_MEMORY_ROWS ? &rows : &priorities) += from.arrays[i].bytes;
    CHECK(rows >= 200 * (1216 + 4 + 6)); /* images on cache lines of 64 bytes, observation, reward and flags */
    CHECK(priorities >= 200 * (4 + 4 + 6));
    CHECK(stats_of(replay).memory_bytes == stats_of(twin).memory_bytes);
    CHECK(stats_of(replay).memory_bytes <= rows + priorities + 65536 && stats_of(replay).huge_page_bytes == 0);
    add_images(replay, 150);
    add_images(twin, 150);
    check_same_draws(replay, twin);
    /* The last image of the first lane has the numbers 149 .. 448, and is in slot 49. */
    for (i = 0; i < from.n_asked; ++i)
        if (from.arrays[i].bytes == 200 * 1216) has_image = ((float*)(from.arrays[i].memory + 49 * 1216))[299] == 448;
    CHECK(has_image);
    const per_replay_options described = describe_replay(replay);
    CHECK(described.memory.allocate == allocate && described.memory.deallocate == deallocate &&
          described.memory.context == &from);
    i = from.n_asked;
    per_replay_free(replay);
    CHECK(from.n_asked == i && from.n_lent == 0); /* only the first call allocated memory */
    per_replay_free(twin);
}

/* A call that needs more than the options provide for uses the system's memory. */
static void later_calls_ask_for_none(void) {
    heap from = empty_heap();
    const per_replay_options options = with_heap(replay_options(100, 1), &from);
    per_replay* replay = create_replay(&options);
    const int n_asked = from.n_asked;
    for (int t = 0; t < 20; ++t) add_step(replay, 0, (float)t, 0);
    per_batch batch = default_batch();
    per_sample_options by_rank = default_sample_options();
    by_rank.prioritization = PER_RANK;
    by_rank.normalize_weights = PER_BUFFER_MAX;
    CHECK_OK(per_replay_sample(replay, &by_rank, 8192, &batch, NULL));
    CHECK(from.n_asked == n_asked);
    per_replay_free(replay);
    CHECK(from.n_lent == 0);
}

static void no_memory_leaves_nothing_behind(void) {
    heap from = empty_heap();
    per_replay_options options = with_heap(options_with_everything(), &from);
    per_replay* replay = create_replay(&options);
    const int n_arrays = from.n_asked;
    per_replay_free(replay);
    CHECK(n_arrays >= 6);
    for (int i = 0; i < n_arrays; ++i) {
        from = empty_heap();
        from.fails_at = i;
        CHECK_FAILS(per_replay_create(&options, &replay), PER_ERROR_OUT_OF_MEMORY, "allocate returned NULL: ");
        CHECK(replay == NULL && from.n_lent == 0 && from.n_asked == i + 1);
        from = empty_heap();
        from.misplaced_at = i;
        CHECK_FAILS(per_replay_create(&options, &replay), PER_ERROR_CALLBACK, ": must be a multiple of 64");
        CHECK(replay == NULL && from.n_lent == 0 && from.n_asked == i + 1);
    }
}

/* Rows are read from the caller's memory: writes of another process to shared memory are visible. */
static void another_process_sees_rows(void) {
    heap from = empty_heap();
    const per_replay_options options = with_heap(options_with_everything(), &from);
    int status;
    from.sharing = MAP_SHARED;
    per_replay* replay = create_replay(&options);
    add_images(replay, 10);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < from.n_asked; ++i)
            if (from.arrays[i].bytes == 200 * 1216) ((float*)from.arrays[i].memory)[0] = 1000;
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    {
        static float image[300];
        const int64_t id = 0;
        void* fields[2] = {NULL, image};
        per_batch batch = default_batch();
        batch.fields = fields;
        CHECK_OK(per_replay_get(replay, 1, &id, &batch, NULL));
        CHECK(image[0] == 1000 && image[1] == 1);
    }
    per_replay_free(replay);
}

static void what_is_refused(void) {
    heap from = empty_heap();
    per_replay_options options = with_heap(replay_options(100, 1), &from);
    per_replay* replay;
    options.memory.deallocate = NULL;
    CHECK_REFUSED(per_replay_create(&options, &replay), "deallocate is NULL");
    options.memory.allocate = NULL;
    options.memory.deallocate = deallocate;
    CHECK_REFUSED(per_replay_create(&options, &replay), "allocate is NULL");
    options.memory.allocate = allocate;
    options.device = PER_CUDA;
    CHECK_FAILS(per_replay_create(&options, &replay), PER_ERROR_UNSUPPORTED, "allocate is given: on PER_CUDA ");
    CHECK(from.n_asked == 0);
}

int main(void) {
    what_is_refused();
    rows_and_priorities_lie_there();
    later_calls_ask_for_none();
    no_memory_leaves_nothing_behind();
    another_process_sees_rows();
    return 0;
}
