/*
 * Readers in separate processes take batches of 256 of HalfCheetah's transitions from one buffer by a shared loader,
 * compared with a loader in the process of the buffer: for each batch the consumer reads the rewards, and sends back a
 * TD error for each transition.
 *
 *     build/readers_bench [READERS [SECONDS [ROUNDS]]]
 *
 * Prints, in turn for ROUNDS rounds, the batches per second of all consumers together, and the processor time per
 * batch: in the process of the buffer, and in the readers.
 */
#define _GNU_SOURCE /* MAP_ANONYMOUS, RUSAGE_CHILDREN */
#include <per.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OBSERVATION = 17, ACTION = 6, BATCH = 256, ROWS = 1 << 18, CHUNK = 1 << 10, MOST_READERS = 64 };

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

/* Processor time in seconds of this process, or of children that have ended. */
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

static per_replay* filled_buffer(void) {
    static const int64_t observation = OBSERVATION, action = ACTION;
    static float observations[(CHUNK + 1) * OBSERVATION], actions[CHUNK * ACTION], reward[CHUNK];
    static uint8_t no[CHUNK];
    per_replay_options options;
    per_field fields[2];
    per_array given[2], following[2];
    per_steps steps;
    per_replay* replay;
    int i;
    memset(fields, 0, sizeof fields);
    fields[0].name = "observation";
    fields[0].shape = &observation;
    fields[1].name = "action";
    fields[1].shape = &action;
    fields[0].ndim = fields[1].ndim = 1;
    fields[0].dtype = fields[1].dtype = PER_FLOAT32;
    ok(per_replay_options_init(&options, sizeof options));
    options.capacity = ROWS;
    options.fields = fields;
    options.n_fields = 2;
    options.field_size = sizeof(per_field);
    ok(per_replay_create(&options, &replay));
    ok(per_steps_init(&steps, sizeof steps));
    memset(following, 0, sizeof following);
    given[0] = array_of(observations, PER_FLOAT32);
    given[1] = array_of(actions, PER_FLOAT32);
    following[0] = array_of(observations + OBSERVATION, PER_FLOAT32);
    steps.length = CHUNK;
    steps.fields = given;
    steps.next_fields = following;
    steps.reward = array_of(reward, PER_FLOAT32);
    steps.terminated = steps.truncated = array_of(no, PER_BOOL);
    for (i = 0; i < ROWS / CHUNK; ++i) ok(per_replay_add(replay, &steps, NULL, NULL));
    return replay;
}

static per_priorities errors_of(const per_batch* batch, float* errors_out) {
    per_priorities priorities;
    int i;
    for (i = 0; i < BATCH; ++i) errors_out[i] = batch->reward[i] + (float)(batch->ids[i] % 7);
    ok(per_priorities_init(&priorities, sizeof priorities));
    priorities.count = BATCH;
    priorities.ids = batch->ids;
    priorities.td_errors = errors_out;
    return priorities;
}

static void read_for_ever(const char* path, volatile int64_t* n) {
    float errors[BATCH];
    per_reader* reader;
    per_batch batch;
    ok(per_reader_attach(path, -1, &reader));
    ok(per_batch_init(&batch, sizeof batch));
    for (;;) {
        per_priorities priorities;
        int64_t slot;
        if (per_reader_next(reader, -1, &batch, &slot) != PER_OK) _exit(0); /* the loader has ended */
        priorities = errors_of(&batch, errors);
        per_reader_update_priorities(reader, &priorities, -1);
        per_reader_release(reader, slot);
        *n = *n + 1;
    }
}

static void measure_readers(per_replay* replay, int64_t n_readers, double seconds, volatile int64_t* counts) {
    per_shared_loader_options options;
    per_shared_loader* loader;
    const char* path;
    pid_t children[MOST_READERS];
    double begin, own, others;
    int64_t i, n = 0, before = 0;
    struct timespec time = {0, 0};
    ok(per_shared_loader_options_init(&options, sizeof options));
    options.batch_size = BATCH;
    options.readers = n_readers;
    ok(per_shared_loader_create(replay, &options, &loader));
    ok(per_shared_loader_get_address(loader, &path, NULL));
    others = worked(RUSAGE_CHILDREN);
    for (i = 0; i < n_readers; ++i) {
        counts[i] = 0;
        children[i] = fork();
        if (children[i] == 0) read_for_ever(path, &counts[i]);
    }
    time.tv_nsec = 1000000;
    for (i = 0; i < n_readers; ++i)
        while (counts[i] < 10) nanosleep(&time, NULL);
    for (i = 0; i < n_readers; ++i) before += counts[i];
    own = worked(RUSAGE_SELF);
    begin = now();
    time.tv_sec = (time_t)seconds;
    time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
    nanosleep(&time, NULL);
    for (i = 0; i < n_readers; ++i) n += counts[i];
    begin = now() - begin;
    own = worked(RUSAGE_SELF) - own;
    for (i = 0; i < n_readers; ++i) kill(children[i], SIGKILL);
    for (i = 0; i < n_readers; ++i) waitpid(children[i], NULL, 0);
    others = worked(RUSAGE_CHILDREN) - others;
    printf("%2lld readers: %7.0f batches/s; a batch takes %5.1f us in the buffer's process, %5.1f us in its reader\n",
           (long long)n_readers, (double)(n - before) / begin, 1e6 * own / (double)(n - before),
           1e6 * others / (double)n);
    per_shared_loader_free(loader);
}

static void measure_loader(per_replay* replay, double seconds) {
    float errors[BATCH];
    per_loader_options options;
    per_loader* loader;
    per_batch batch;
    double begin, own;
    int64_t n = -10;
    ok(per_loader_options_init(&options, sizeof options));
    options.batch_size = BATCH;
    ok(per_loader_create(replay, &options, &loader));
    ok(per_batch_init(&batch, sizeof batch));
    begin = own = 0;
    do {
        per_priorities priorities;
        int64_t slot;
        if (++n == 0) {
            begin = now();
            own = worked(RUSAGE_SELF);
        }
        ok(per_loader_next(loader, -1, &batch, &slot, NULL));
        priorities = errors_of(&batch, errors);
        ok(per_replay_update_priorities(replay, &priorities, NULL));
        ok(per_loader_release(loader, slot, NULL));
    } while (n < 0 || now() - begin < seconds);
    printf(" a loader:  %7.0f batches/s; a batch takes %5.1f us in the buffer's process\n", (double)n / (now() - begin),
           1e6 * (worked(RUSAGE_SELF) - own) / (double)n);
    per_loader_free(loader);
}

int main(int argc, char** argv) {
    const int64_t n_readers = argc > 1 ? atoi(argv[1]) : 2;
    const double seconds = argc > 2 ? atof(argv[2]) : 3;
    const int rounds = argc > 3 ? atoi(argv[3]) : 3;
    int64_t* counts =
        mmap(NULL, MOST_READERS * sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    per_replay* replay;
    int i;
    if (n_readers < 1 || n_readers > MOST_READERS || counts == MAP_FAILED) return 2;
    replay = filled_buffer();
    for (i = 0; i < rounds; ++i) {
        measure_loader(replay, seconds);
        measure_readers(replay, 1, seconds, counts);
        if (n_readers > 1) measure_readers(replay, n_readers, seconds, counts);
    }
    per_replay_free(replay);
    return 0;
}
