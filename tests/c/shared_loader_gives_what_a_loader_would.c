/*
 * With one reader, a shared loader hands out the batches of a loader for the same calls, bit-identical, also if
 * priorities change and steps are added in between, and for sequences. Several readers, each in a separate process,
 * together get the batches of one loader: each batch once, and in order for each reader.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "reader_check.h"

enum { BATCH = 32, ROUNDS = 150, READERS = 3, READ = 60, STEPS = 6 };

/* `steps` is the length of a sequence with its burn-in, at most STEPS; 0: there are no sequences. */
static int burn_in_of(int steps) {
    return steps > 2 ? 2 : 0;
}

static per_replay* filled(int steps) {
    per_replay_options options = replay_options(300, 2);
    options.seed = 5;
    options.beta_steps = 100;
    options.n_step = 3;
    options.burn_in = burn_in_of(steps);
    options.sequence_length = steps - burn_in_of(steps);
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < 200; ++t)
        add_full(replay, t % 2, (float)t, (float)(t % 7), t % 11 == 0 ? TRUNCATED : GOES_ON, (float)t + 2);
    return replay;
}

static void check_equal(const per_batch* batch, const per_batch* expected, int steps) {
    const int64_t n = BATCH * (steps > 0 ? steps : 1);
    check_same(batch->fields[0], expected->fields[0], steps > 0 ? BATCH * (steps + 3) : n, sizeof(float));
    if (steps == 0) check_same(batch->next_fields[0], expected->next_fields[0], n, sizeof(float));
    check_same(batch->reward, expected->reward, n, sizeof(float));
    check_same(batch->discount, expected->discount, n, sizeof(float));
    check_same(batch->n_steps, expected->n_steps, n, sizeof(int32_t));
    check_same(batch->terminated, expected->terminated, n, 1);
    check_same(batch->truncated, expected->truncated, n, 1);
    check_same(batch->gamma_m, expected->gamma_m, n, sizeof(float));
    if (steps > 0) check_same(batch->mask, expected->mask, n, 1);
    CHECK((batch->mask == NULL) == (expected->mask == NULL));
    check_same(batch->weights, expected->weights, BATCH, sizeof(float));
    check_same(batch->ids, expected->ids, BATCH, sizeof(int64_t));
    check_same(batch->priorities, expected->priorities, BATCH, sizeof(float));
    check_same(batch->probabilities, expected->probabilities, BATCH, sizeof(float));
}

static void send_errors(per_reader* reader, per_replay* twin, const int64_t* ids, int steps, uint64_t* state) {
    static float errors[2 * BATCH * STEPS];
    const int64_t n_steps = steps == 0 ? 1 : next_random(state) % 2 ? steps : steps - burn_in_of(steps);
    const int64_t n_critics = 1 + (int64_t)(next_random(state) % 2);
    for (int i = 0; i < n_critics * BATCH * n_steps; ++i) errors[i] = (float)(next_random(state) % 1000) / 100 - 5;
    if (steps > 0) {
        CHECK_OK(send_sequence_errors(reader, BATCH, ids, n_critics, n_steps, errors, -1));
        CHECK_OK(write_sequence_errors(twin, BATCH, ids, n_critics, n_steps, errors, NULL));
    } else if (n_critics == 2) {
        CHECK_OK(send_td_errors(reader, BATCH, ids, n_critics, errors, -1));
        CHECK_OK(write_td_errors(twin, BATCH, ids, n_critics, errors, NULL));
    } else {
        for (int i = 0; i < BATCH; ++i) errors[i] = errors[i] < 0 ? -errors[i] : errors[i];
        CHECK_OK(send_priorities(reader, BATCH, ids, errors, -1));
        CHECK_OK(write_priorities(twin, BATCH, ids, errors, NULL));
    }
}

static void one_reader_is_a_loader(int64_t slots, int steps) {
    per_replay *replay = filled(steps), *twin = filled(steps);
    per_shared_loader* shared = share_batches(replay, BATCH, 1, slots, NULL);
    per_reader* reader = attach_reader(path_of_batches(shared));
    per_loader* loader = create_loader(twin, BATCH, slots, NULL);
    int64_t slot[8], twin_slot[8];
    uint64_t state = 3;
    int64_t n_out = 0, n_updates = 0;
    int t = 200;
    for (int i = 0; i < ROUNDS; ++i) {
        per_batch batch, expected;
        slot[n_out] = read_batch(reader, &batch);
        twin_slot[n_out] = take(loader, &expected);
        ++n_out;
        check_equal(&batch, &expected, steps);
        for (; next_random(&state) % 3 != 0; ++n_updates) send_errors(reader, twin, batch.ids, steps, &state);
        while (n_out == slots || (n_out > 0 && next_random(&state) % 2 == 0)) {
            const int64_t k = (int64_t)(next_random(&state) % (uint64_t)n_out);
            CHECK_OK(per_reader_release(reader, slot[k]));
            CHECK_OK(per_loader_release(loader, twin_slot[k], NULL));
            --n_out;
            slot[k] = slot[n_out];
            twin_slot[k] = twin_slot[n_out];
        }
        if (next_random(&state) % 4 == 0) {
            CHECK_OK(per_reader_flush(reader, -1));
            add_full(replay, t % 2, (float)t, 1, GOES_ON, (float)t + 2);
            add_full(twin, t % 2, (float)t, 1, GOES_ON, (float)t + 2);
            ++t;
        }
    }
    CHECK_OK(per_reader_flush(reader, -1));
    CHECK(sharing_stats(shared).handed == ROUNDS && sharing_stats(shared).updates == n_updates);
    CHECK(sharing_stats(shared).out == n_out && sharing_stats(shared).refused == 0);
    CHECK(stats_of(replay).beta_step == ROUNDS && stats_of(replay).updates == stats_of(twin).updates);
    per_reader_free(reader);
    per_shared_loader_free(shared);
    free_loader(loader, replay, twin);
}

typedef struct got {
    int64_t ids[READ][BATCH];
    float weights[READ][BATCH];
    float reward[READ][BATCH];
} got;

static void read_in_child(const char* path, got* mine) {
    per_reader* reader = attach_reader(path);
    for (int i = 0; i < READ; ++i) {
        per_batch batch;
        const int64_t slot = read_batch(reader, &batch);
        memcpy(mine->ids[i], batch.ids, sizeof mine->ids[i]);
        memcpy(mine->weights[i], batch.weights, sizeof mine->weights[i]);
        memcpy(mine->reward[i], batch.reward, sizeof mine->reward[i]);
        CHECK_OK(per_reader_release(reader, slot));
    }
    per_reader_free(reader);
    _exit(0);
}

static void readers_share_what_one_loader_draws(void) {
    per_replay *replay = filled(0), *twin = filled(0);
    per_shared_loader* shared = share_batches(replay, BATCH, READERS, 2, NULL);
    per_loader* loader = create_loader(twin, BATCH, 2 * READERS, NULL);
    got* all = mmap(NULL, READERS * sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int next[READERS] = {0}, r, k;
    pid_t children[READERS];
    CHECK(all != MAP_FAILED);
    for (r = 0; r < READERS; ++r) {
        const char* path = path_of_batches(shared);
        children[r] = fork();
        CHECK(children[r] >= 0);
        if (children[r] == 0) read_in_child(path, &all[r]);
    }
    for (r = 0; r < READERS; ++r) {
        int status;
        CHECK(waitpid(children[r], &status, 0) == children[r]);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    for (k = 0; k < READERS * READ; ++k) {
        per_batch expected;
        const int64_t slot = take(loader, &expected);
        int owner = -1;
        for (r = 0; r < READERS; ++r)
            if (next[r] < READ && memcmp(all[r].ids[next[r]], expected.ids, sizeof all[r].ids[0]) == 0) owner = r;
        CHECK(owner >= 0);
        CHECK(memcmp(all[owner].weights[next[owner]], expected.weights, sizeof all[owner].weights[0]) == 0);
        CHECK(memcmp(all[owner].reward[next[owner]], expected.reward, sizeof all[owner].reward[0]) == 0);
        ++next[owner];
        CHECK_OK(per_loader_release(loader, slot, NULL));
    }
    CHECK(sharing_stats(shared).handed == READERS * READ && sharing_stats(shared).readers == READERS);
    munmap(all, READERS * sizeof *all);
    per_shared_loader_free(shared);
    free_loader(loader, replay, twin);
}

int main(void) {
    readers_share_what_one_loader_draws(); /* children of a process whose only other threads are those of loaders */
    one_reader_is_a_loader(1, 0);
    one_reader_is_a_loader(3, 0);
    one_reader_is_a_loader(2, STEPS);
    one_reader_is_a_loader(2, 1);
    return 0;
}
