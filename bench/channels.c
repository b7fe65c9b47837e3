/*
 * Writers in separate processes add HalfCheetah's steps of 165 bytes to one buffer through channels, while a learner
 * draws batches of 256 and sets their priorities.
 *
 *     build/channels_bench [WRITERS [STEPS_OF_A_CALL [SECONDS]]]
 *
 * Prints the steps added per second and the batches drawn meanwhile. Then prints the processor time of a step: in its
 * writer and in the channel's thread, without the learner's time, which predicts the rate on an otherwise idle machine;
 * and for the two copies alone, into a ring of 4 MiB and from there to a row in uncached memory.
 */
#define _GNU_SOURCE /* RUSAGE_THREAD */
#include <per.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OBSERVATION = 17, ACTION = 6, STEP_BYTES = 165, BATCH = 256, MOST_WRITERS = 64, MOST_STEPS = 256 };
enum { ROWS = 1 << 20, RING_BYTES = 4 << 20 };

static void ok(per_status status) {
    if (status == PER_OK) return;
    fprintf(stderr, "%s: %s\n", per_status_name(status), per_last_error());
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Processor time in seconds of this process, this thread, or children that have ended. */
static double worked(int who) {
    struct rusage usage;
    getrusage(who, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static per_array array_of(const void* data, int32_t dtype) {
    per_array array;
    memset(&array, 0, sizeof array);
    array.data = data;
    array.dtype = dtype;
    return array;
}

static per_replay* create_buffer(int64_t n_envs) {
    static const int64_t observation = OBSERVATION, action = ACTION;
    per_replay_options options;
    per_field fields[2];
    per_replay* replay;
    memset(fields, 0, sizeof fields);
    fields[0].name = "observation";
    fields[0].shape = &observation;
    fields[1].name = "action";
    fields[1].shape = &action;
    fields[0].ndim = fields[1].ndim = 1;
    fields[0].dtype = fields[1].dtype = PER_FLOAT32;
    ok(per_replay_options_init(&options, sizeof options));
    options.capacity = ROWS;
    options.n_envs = n_envs;
    options.fields = fields;
    options.n_fields = 2;
    options.field_size = sizeof(per_field);
    ok(per_replay_create(&options, &replay));
    return replay;
}

static void write_for_ever(const char* path, int64_t length) {
    static float observation[(MOST_STEPS + 1) * OBSERVATION], action[MOST_STEPS * ACTION], reward[MOST_STEPS];
    static uint8_t no[MOST_STEPS];
    per_array fields[2], next_fields[2];
    per_steps steps;
    per_writer* writer;
    ok(per_writer_attach(path, -1, NULL, 0, 0, &writer));
    ok(per_steps_init(&steps, sizeof steps));
    memset(next_fields, 0, sizeof next_fields);
    fields[0] = array_of(observation, PER_FLOAT32);
    fields[1] = array_of(action, PER_FLOAT32);
    next_fields[0] = array_of(observation + OBSERVATION, PER_FLOAT32);
    steps.length = length;
    steps.fields = fields;
    steps.next_fields = next_fields;
    steps.reward = array_of(reward, PER_FLOAT32);
    steps.terminated = steps.truncated = array_of(no, PER_BOOL);
    for (;;) {
        const per_status status = per_writer_add(writer, &steps, -1);
        if (status != PER_OK) _exit(0); /* the channel has ended */
    }
}

/* Seconds per step. */
static double copies_alone(void) {
    unsigned char* ring = calloc(1, RING_BYTES);
    unsigned char* rows = malloc((size_t)ROWS * STEP_BYTES);
    unsigned char step[STEP_BYTES];
    const size_t slots = RING_BYTES / STEP_BYTES;
    uint64_t n = 0;
    double begin;
    if (ring == NULL || rows == NULL) exit(1);
    memset(step, 1, sizeof step);
    memset(rows, 1, (size_t)ROWS * STEP_BYTES);
    begin = worked(RUSAGE_THREAD);
    while (n < 8 * ROWS) {
        size_t i;
        for (i = 0; i < slots; ++i) memcpy(ring + i * STEP_BYTES, step, STEP_BYTES);
        for (i = 0; i < slots; ++i) memcpy(rows + (n + i) % ROWS * STEP_BYTES, ring + i * STEP_BYTES, STEP_BYTES);
        n += slots;
    }
    free(ring);
    free(rows);
    return (worked(RUSAGE_THREAD) - begin) / (double)n;
}

int main(int argc, char** argv) {
    const int64_t n_writers = argc > 1 ? atoi(argv[1]) : 16, length = argc > 2 ? atoi(argv[2]) : 1;
    const double seconds = argc > 3 ? atof(argv[3]) : 5;
    const long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
    static float weights[BATCH], rows[2 * BATCH * OBSERVATION], actions[BATCH * ACTION], reward[BATCH];
    static int64_t ids[BATCH];
    per_channel* channels[MOST_WRITERS];
    pid_t writers[MOST_WRITERS];
    per_replay_statistics statistics;
    per_priorities priorities;
    per_batch batch;
    void *fields[2], *next_fields[2];
    per_replay* replay;
    double begin, wall;
    int64_t i, added, n_batches = 0;
    if (n_writers < 1 || n_writers > MOST_WRITERS || length < 1 || length > MOST_STEPS) return 2;
    replay = create_buffer(n_writers);
    for (i = 0; i < n_writers; ++i) {
        per_channel_options options;
        const char* path;
        ok(per_channel_options_init(&options, sizeof options));
        options.env_ids = &i;
        options.n_envs = 1;
        ok(per_channel_create(replay, &options, &channels[i]));
        ok(per_channel_get_address(channels[i], &path, NULL));
        writers[i] = fork();
        if (writers[i] == 0) write_for_ever(path, length);
    }
    ok(per_batch_init(&batch, sizeof batch));
    fields[0] = rows;
    fields[1] = actions;
    next_fields[0] = rows + BATCH * OBSERVATION;
    next_fields[1] = NULL;
    batch.fields = fields;
    batch.next_fields = next_fields;
    batch.reward = reward;
    batch.weights = weights;
    batch.ids = ids;
    ok(per_priorities_init(&priorities, sizeof priorities));
    priorities.count = BATCH;
    priorities.ids = ids;
    priorities.td_errors = weights;
    do ok(per_replay_get_statistics(replay, &statistics, sizeof statistics));
    while (statistics.added < ROWS); /* warm: every row was touched */
    added = statistics.added;
    begin = now();
    do {
        ok(per_replay_sample(replay, NULL, BATCH, &batch, NULL));
        ok(per_replay_update_priorities(replay, &priorities, NULL));
        ++n_batches;
        wall = now() - begin;
    } while (wall < seconds);
    ok(per_replay_get_statistics(replay, &statistics, sizeof statistics));
    for (i = 0; i < n_writers; ++i) kill(writers[i], SIGKILL);
    for (i = 0; i < n_writers; ++i) waitpid(writers[i], NULL, 0);
    for (i = 0; i < n_writers; ++i) per_channel_free(channels[i]);
    printf("%lld writers, %lld steps a call, %ld cores: %.3g steps/s, %.3g batches/s\n", (long long)n_writers,
           (long long)length, n_cores, (double)(statistics.added - added) / wall, (double)n_batches / wall);
    ok(per_replay_get_statistics(replay, &statistics, sizeof statistics));
    printf("a step takes %.0f ns in its writer and %.0f ns in the channel's thread, its copies alone %.0f ns\n",
           1e9 * worked(RUSAGE_CHILDREN) / (double)statistics.added,
           1e9 * (worked(RUSAGE_SELF) - worked(RUSAGE_THREAD)) / (double)statistics.added, 1e9 * copies_alone());
    per_replay_free(replay);
    return 0;
}
