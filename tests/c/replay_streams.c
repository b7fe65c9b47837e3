/*
 * Saving and loading by callbacks: the bytes equal those of a file, a stream may hold several checkpoints and other
 * data, a failing callback ends the call and changes nothing, and the saved state is that of one moment, whatever the
 * callbacks and other threads do meanwhile.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoints.h"
#include "loader_check.h"
#include "thread_check.h"

enum { ROOM = 1 << 20, MAX_PIECE = 1 << 20, PLACES = 64 };

/* A stream in memory, and the behaviour of its functions. */
typedef struct stream {
    unsigned char bytes[ROOM];
    int64_t size, at;    /* bytes written, and read */
    int64_t piece;       /* largest size per call; 0: unlimited */
    int n_calls, bad_at; /* call number bad_at, from 1 on, returns `answer`; 0: none does */
    int64_t answer;
    void (*visit)(struct stream* visited); /* called by each call, if any */
    per_replay* replay;                    /* the buffer being saved */
} stream;

static int64_t taken(stream* s, int64_t size) {
    CHECK(size >= 1 && size <= MAX_PIECE);
    if (s->visit != NULL) s->visit(s);
    if (++s->n_calls == s->bad_at) return s->answer;
    return s->piece > 0 && s->piece < size ? s->piece : size;
}

static int64_t write_to(void* context, const void* bytes, int64_t size) {
    stream* s = (stream*)context;
    const int64_t n = taken(s, size);
    if (s->n_calls == s->bad_at) return n;
    CHECK(s->size + n <= ROOM);
    memcpy(s->bytes + s->size, bytes, (size_t)n);
    s->size += n;
    return n;
}

static int64_t read_from(void* context, void* bytes_out, int64_t size) {
    stream* s = (stream*)context;
    int64_t n = taken(s, size);
    if (s->n_calls == s->bad_at) return n;
    if (n > s->size - s->at) n = s->size - s->at;
    memcpy(bytes_out, s->bytes + s->at, (size_t)n);
    s->at += n;
    return n;
}

/* Resets the stream. */
static void begin(stream* s) {
    s->size = s->at = s->n_calls = 0;
    s->piece = s->bad_at = 0;
    s->visit = NULL;
}

static void save_into(stream* s, per_replay* replay) {
    begin(s);
    CHECK_OK(save_to(replay, write_to, s));
}

static int are_equal(const stream* a, const stream* b) {
    return a->size == b->size && memcmp(a->bytes, b->bytes, (size_t)a->size) == 0;
}

static per_replay* filled(int n_steps) {
    per_replay_options options = replay_options(40, 2);
    options.n_step = 2;
    options.seed = 3;
    options.beta_steps = 50;
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < n_steps; ++t)
        add_full(replay, t % 2, (float)t, 1, t % 9 > 6 ? TRUNCATED : GOES_ON, (float)(t % 9 > 6 ? 99 : t + 2));
    return replay;
}

static per_replay* load(stream* s, int32_t device) {
    per_replay* replay = NULL;
    CHECK_OK(load_from(read_from, s, device, 0, &replay));
    CHECK(replay != NULL);
    return replay;
}

/* Expects both buffers to continue alike. */
static void check_twins(per_replay* replay, per_replay* twin) {
    static rows drawn;
    const per_replay_statistics a = stats_of(replay), b = stats_of(twin);
    CHECK(a.live == b.live && a.samples == b.samples && a.beta_step == b.beta_step && a.total == b.total);
    for (int i = 0; i < 3; ++i) {
        CHECK(add_full(replay, 0, 50, 1, GOES_ON, 51) == add_full(twin, 0, 50, 1, GOES_ON, 51));
        check_same_draw(replay, twin, PLACES, &drawn);
        set_priority(replay, drawn.ids[i], 3);
        set_priority(twin, drawn.ids[i], 3);
    }
}

static void a_stream_has_the_bytes_of_a_file(void) {
    static stream s;
    static unsigned char bytes[ROOM];
    char path[] = "/tmp/per_streams_XXXXXX";
    const int file = mkstemp(path);
    per_replay *replay = filled(30), *loaded = NULL, *other;
    ssize_t size;
    CHECK(file >= 0);
    save_into(&s, replay);
    CHECK_OK(per_replay_save(replay, path, NULL));
    CHECK(close(file) == 0);
    {
        FILE* saved = fopen(path, "rb");
        CHECK(saved != NULL);
        size = (ssize_t)fread(bytes, 1, sizeof bytes, saved);
        CHECK(fclose(saved) == 0);
    }
    CHECK(size == s.size && memcmp(bytes, s.bytes, (size_t)size) == 0);
    CHECK_OK(load_on(path, test_device(), 0, &loaded));
    other = load(&s, test_device());
    CHECK(s.at == s.size);
    check_twins(other, loaded);
    per_replay_free(other);
    s.at = 0;
    other = load(&s, PER_CPU); /* whatever device wrote it */
    CHECK(live_of(other) == live_of(replay));
    per_replay_free(other);
    free_both(loaded, replay);
    CHECK(remove(path) == 0);
}

/* Bytes before and after a checkpoint belong to the caller. */
static void a_stream_may_hold_several_checkpoints_and_what_else(void) {
    static stream s;
    static const int n_steps[3] = {0, 5, 30};
    per_replay *saved[3], *loaded;
    begin(&s);
    for (int i = 0; i < 3; ++i) {
        CHECK(write_to(&s, "mine", 4) == 4);
        saved[i] = filled(n_steps[i]);
        CHECK_OK(save_to(saved[i], write_to, &s));
    }
    CHECK(write_to(&s, "mine", 4) == 4);
    for (int i = 0; i < 3; ++i) {
        char mine[4];
        CHECK(read_from(&s, mine, 4) == 4 && memcmp(mine, "mine", 4) == 0);
        loaded = load(&s, test_device());
        if (i > 0) check_twins(loaded, saved[i]);
        CHECK(i > 0 || live_of(loaded) == 0);
        per_replay_free(loaded);
        per_replay_free(saved[i]);
    }
    CHECK(s.size - s.at == 4 && memcmp(s.bytes + s.at, "mine", 4) == 0);
}

/* Fields may be larger than a piece. taken() checks the sizes. */
static void functions_may_take_less_than_they_are_given(void) {
    static stream whole, s;
    static const int64_t pieces[3] = {1, 7, 1000};
    per_replay *replay = filled(30), *loaded;
    save_into(&whole, replay);
    for (int i = 0; i < 3; ++i) {
        begin(&s);
        s.piece = pieces[i];
        CHECK_OK(save_to(replay, write_to, &s));
        CHECK(are_equal(&s, &whole));
        CHECK(s.n_calls >= s.size / s.piece);
        loaded = load(&s, test_device());
        CHECK(s.at == s.size && live_of(loaded) == live_of(replay));
        per_replay_free(loaded);
    }
    per_replay_free(replay);
}

static int64_t discard(void* context, const void* bytes, int64_t size) {
    int64_t* total = (int64_t*)context;
    CHECK(bytes != NULL && size >= 1 && size <= MAX_PIECE);
    *total += size;
    return size;
}

static void large_fields_come_in_pieces(void) {
    enum { LENGTH = 300000, STEPS = 4 };
    static const int64_t shape[1] = {LENGTH};
    static float frame[LENGTH];
    const per_field field = field_of("observation", PER_FLOAT32, 1, shape);
    per_replay_options options = replay_options(10, 1);
    int64_t total = 0;
    options.fields = &field;
    per_replay* replay = create_replay(&options);
    for (int t = 0; t < STEPS; ++t) {
        const float reward = 1;
        add_given(replay, 1, frame, NULL, &reward, NULL, NULL, NULL);
    }
    CHECK_OK(save_to(replay, discard, &total));
    CHECK(total > (int64_t)(STEPS * sizeof frame));
    per_replay_free(replay);
}

/* Any call may fail, with any invalid result. */
static void a_write_that_fails_ends_the_save_and_changes_nothing(void) {
    static stream whole, s;
    static const int64_t answers[4] = {0, -1, INT64_MIN, MAX_PIECE + 1};
    per_replay *replay = filled(30), *twin = filled(30);
    int k;
    save_into(&whole, replay);
    for (k = 1; k <= 40; ++k) {
        begin(&s);
        s.piece = whole.size / 40 + 1;
        s.bad_at = k;
        s.answer = answers[k % 4];
        if (k > 1 && s.piece * (k - 1) >= whole.size) break;
        CHECK_FAILS(save_to(replay, write_to, &s), PER_ERROR_CALLBACK, "write returned ");
        CHECK(strstr(per_last_error(), ": allowed are 1 .. ") != NULL);
        CHECK(s.n_calls == k && s.size == s.piece * (k - 1));
        CHECK(memcmp(s.bytes, whole.bytes, (size_t)s.size) == 0);
    }
    CHECK(k > 20);
    save_into(&s, replay);
    CHECK(are_equal(&s, &whole));
    for (int i = 0; i < 2; ++i) check_twins(replay, twin);
    free_both(replay, twin);
}

static void a_read_that_fails_or_ends_early_makes_no_buffer(void) {
    static stream s;
    static const int64_t answers[3] = {-1, INT64_MIN, MAX_PIECE + 1};
    per_replay* replay = filled(30);
    per_replay* loaded;
    save_into(&s, replay);
    int64_t size = s.size;
    s.n_calls = 0;
    per_replay_free(load(&s, test_device()));
    int n_calls = s.n_calls;
    CHECK(n_calls > 20);
    for (int64_t k = 1; k <= n_calls; k += on_cuda() ? 9 : 1) {
        begin(&s);
        s.size = size;
        s.bad_at = (int)k;
        s.answer = answers[k % 3];
        loaded = replay;
        CHECK_FAILS(load_from(read_from, &s, test_device(), 0, &loaded), PER_ERROR_CALLBACK, "read returned ");
        CHECK(strstr(per_last_error(), ": allowed are 0 .. ") != NULL);
        CHECK(loaded == NULL && s.n_calls == k);
    }
    int64_t step = on_cuda() ? 29 : 1;
    for (int64_t k = 0; k < size; k += step) {
        begin(&s);
        s.size = k;
        loaded = replay;
        CHECK(load_from(read_from, &s, test_device(), 0, &loaded) == PER_ERROR_CORRUPT_FILE);
        CHECK(strstr(per_last_error(), "the stream is damaged") != NULL);
        CHECK(strstr(per_last_error(), k < 8 ? ": it is not a file of libper" : ": it ends early") != NULL);
        CHECK(loaded == NULL);
    }
    per_replay_free(replay);
}

/* ------------------------------------------------------------ what happens meanwhile */

static per_replay* another;
static per_loader* loader;
static per_epochs* walk;
static int64_t slot_out;
static int n_visits;

#define CHECK_BUSY(call) CHECK_FAILS(call, PER_ERROR_BUSY, "the buffer is being saved")

/* Requests a draw, which waits for the end of the save. */
static void* take_meanwhile(void* unused) {
    per_batch batch;
    (void)unused;
    CHECK_OK(per_loader_release(loader, take(loader, &batch), NULL));
    return NULL;
}

/* The buffer, its loader and its epochs are busy; everything else is usable. */
static void use_handles(stream* s) {
    static rows drawn;
    static stream nested;
    per_replay* const replay = s->replay;
    const int64_t id = 0;
    const float number = 1;
    per_batch batch;
    per_replay_statistics statistics;
    per_loader* new_loader = NULL;
    per_epochs* new_walk = NULL;
    int64_t count = 0, slot = 0;
    call given;
    if (n_visits++ == 0 && !on_cuda()) { /* on CUDA, handing out a batch is a call on the buffer, too */
        pthread_t taker = start_thread(take_meanwhile, NULL);
        join_thread(taker);
    }
    fill_rows(&drawn);
    fill_call(&given, 1, &number, NULL, &number, NULL, NULL);
    given.steps.n_envs = 1;
    given.steps.env_ids = &id;
    begin(&nested);
    per_loader_options loader_options = default_loader_options();
    loader_options.batch_size = 4;
    loader_options.device = loader_device();
    CHECK_BUSY(per_replay_add(replay, &given.steps, NULL, NULL));
    CHECK_BUSY(per_replay_cut(replay, 0, NULL, NULL));
    CHECK_BUSY(per_replay_sample(replay, NULL, 4, &drawn.batch, NULL));
    CHECK_BUSY(write_priorities(replay, 1, &id, &number, NULL));
    CHECK_BUSY(per_replay_clear(replay, NULL));
    CHECK_BUSY(change_gamma(replay, 0.5, NULL));
    CHECK_BUSY(per_replay_get_live_ids(replay, 0, NULL, &count));
    CHECK_BUSY(per_replay_get_statistics(replay, &statistics, sizeof statistics));
    CHECK_BUSY(per_replay_save(replay, "/tmp/per_streams_never", NULL));
    CHECK_BUSY(save_to(replay, write_to, &nested));
    CHECK_BUSY(per_epochs_create(replay, 1, 4, 0, NULL, &new_walk));
    CHECK_BUSY(per_epochs_next(walk, &drawn.batch, &count, NULL));
    CHECK_BUSY(per_loader_create(replay, &loader_options, &new_loader));
    CHECK_BUSY(try_next(loader, -1, &batch, &slot));
    CHECK_BUSY(per_loader_release(loader, slot_out, NULL));
    CHECK_BUSY(per_loader_stop(loader));
    CHECK(nested.n_calls == 0);
    draw(another, 4, &drawn);
    CHECK_OK(save_to(another, write_to, &nested));
    per_replay_free(load(&nested, test_device()));
}

static void own_calls_are_busy_and_other_handles_are_not(void) {
    static stream s, after;
    static rows drawn;
    per_batch batch;
    per_replay* replay = filled(30);
    int64_t count;
    another = filled(20);
    loader = create_loader(replay, 4, 2, NULL);
    slot_out = take(loader, &batch);
    CHECK_OK(per_epochs_create(replay, 1, 4, 0, NULL, &walk));
    n_visits = 0;
    begin(&s);
    s.visit = use_handles;
    s.replay = replay;
    CHECK_OK(save_to(replay, write_to, &s));
    CHECK(n_visits > 0);
    save_into(&after, replay);
    CHECK(after.size == s.size);
    CHECK_OK(per_loader_release(loader, slot_out, NULL));
    CHECK_OK(per_loader_release(loader, take(loader, &batch), NULL));
    fill_rows(&drawn);
    CHECK_OK(per_epochs_next(walk, &drawn.batch, &count, NULL));
    CHECK(count == 4);
    per_epochs_free(walk);
    free_loader(loader, replay, another);
}

/* On the CPU the freed loader's thread has a draw to make, for which it waits until the end of the save. */
static void free_loader_once(stream* s) {
    (void)s;
    if (n_visits++ > 0) return;
    if (!on_cuda()) join_thread(start_thread(take_meanwhile, NULL));
    per_loader_free(loader);
}

static void free_the_buffer(stream* s) {
    if (n_visits++ == 0) per_replay_free(s->replay);
}

/* Frees take effect at the end of the save, whether it succeeds or fails. */
static void a_function_may_free_what_it_saves(void) {
    static stream s, before;
    per_replay* replay = filled(30);
    save_into(&before, replay);
    for (int bad_at = 0; bad_at < 2; ++bad_at) {
        loader = create_loader(replay, 4, 2, NULL);
        n_visits = 0;
        begin(&s);
        s.bad_at = bad_at;
        s.visit = free_loader_once;
        CHECK(save_to(replay, write_to, &s) == (bad_at == 0 ? PER_OK : PER_ERROR_CALLBACK));
        if (bad_at == 1) CHECK(strstr(per_last_error(), "write returned ") != NULL);
    }
    per_loader_free(create_loader(replay, 4, 2, NULL)); /* the buffer has no loader any more */
    n_visits = 0;
    begin(&s);
    s.visit = free_the_buffer;
    s.replay = replay;
    CHECK_OK(save_to(replay, write_to, &s));
    CHECK(n_visits > 0 && s.size == before.size);
    replay = filled(30);
    n_visits = 0;
    begin(&s);
    s.visit = free_the_buffer;
    s.replay = replay;
    s.bad_at = 1;
    CHECK(save_to(replay, write_to, &s) == PER_ERROR_CALLBACK);
}

static pthread_t adder;
static int has_begun, has_added;

static void* add_meanwhile(void* replay) {
    __atomic_store_n(&has_begun, 1, __ATOMIC_SEQ_CST);
    add_full((per_replay*)replay, 0, 70, 1, GOES_ON, 71);
    __atomic_store_n(&has_added, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* Gives the other thread time to try. */
static void start_adding(stream* s) {
    if (n_visits++ == 0) adder = start_thread(add_meanwhile, s->replay);
    while (!__atomic_load_n(&has_begun, __ATOMIC_SEQ_CST)) sched_yield();
    for (int i = 0; i < 1000; ++i) sched_yield();
    CHECK(!__atomic_load_n(&has_added, __ATOMIC_SEQ_CST));
}

static void other_threads_wait_for_the_end_of_the_save(void) {
    static stream s, before;
    per_replay* replay = filled(30);
    const int64_t added = stats_of(replay).added;
    save_into(&before, replay);
    n_visits = has_begun = has_added = 0;
    begin(&s);
    s.visit = start_adding;
    s.replay = replay;
    s.piece = before.size / 8 + 1;
    CHECK_OK(save_to(replay, write_to, &s));
    join_thread(adder);
    CHECK(n_visits == 8);
    CHECK(are_equal(&s, &before));
    CHECK(stats_of(replay).added == added + 1);
    per_replay_free(replay);
}

static int status_of(pid_t child) {
    int status;
    CHECK(child >= 0 && waitpid(child, &status, 0) == child);
    return status;
}

/* The child has no thread that saves. */
static void* fork_meanwhile(void* replay) {
    const pid_t child = fork();
    if (child == 0) {
        if (!on_cuda()) {
            add_full((per_replay*)replay, 0, 70, 1, GOES_ON, 71);
            CHECK(stats_of((per_replay*)replay).added == 31);
        }
        per_replay_free((per_replay*)replay);
        _exit(0);
    }
    CHECK(status_of(child) == 0);
    return NULL;
}

static pid_t own_child;

/* In the child of the thread that saves, too, other threads wait for the end of the save. */
static void fork_once(stream* s) {
    if (n_visits++ > 0) return;
    pthread_t forking = start_thread(fork_meanwhile, s->replay);
    join_thread(forking);
    own_child = fork();
    if (own_child == 0 && !on_cuda()) {
        n_visits = 0;
        start_adding(s);
    }
}

/* A fork by another thread, and one by the callback itself, where both parent and child finish the save. */
static void forks_do_not_wait(void) {
    static stream s, before;
    per_replay* replay = filled(30);
    save_into(&before, replay);
    n_visits = has_begun = has_added = 0;
    begin(&s);
    s.visit = fork_once;
    s.replay = replay;
    s.piece = before.size / 8 + 1;
    per_status status = save_to(replay, write_to, &s);
    int good = status == PER_OK && are_equal(&s, &before);
    if (own_child == 0) {
        if (!on_cuda()) join_thread(adder);
        if (!on_cuda()) CHECK(stats_of(replay).added == 31);
        _exit(good || on_cuda() ? 0 : 1);
    }
    CHECK(good);
    CHECK(status_of(own_child) == 0);
    add_full(replay, 0, 70, 1, GOES_ON, 71);
    per_replay_free(replay);
}

static void end_thread(stream* s) {
    if (s->n_calls == 1) pthread_exit(s);
}

static void* save_and_end(void* context) {
    stream* s = (stream*)context;
    save_to(s->replay, write_to, s);
    return NULL;
}

static void* load_and_end(void* context) {
    per_replay* loaded = NULL;
    load_from(read_from, context, test_device(), 0, &loaded);
    return NULL;
}

static void a_thread_may_end_in_a_function(void) {
    static stream s;
    per_replay *replay = filled(30), *twin = filled(30);
    begin(&s);
    s.piece = 100;
    s.replay = replay;
    s.visit = end_thread;
    pthread_t thread = start_thread(save_and_end, &s);
    CHECK(join_thread(thread) == &s && s.size == 100);
    save_into(&s, replay);
    s.n_calls = 0;
    s.visit = end_thread;
    thread = start_thread(load_and_end, &s);
    CHECK(join_thread(thread) == &s);
    check_twins(replay, twin);
    free_both(replay, twin);
}

static void* allocate(void* context, int64_t bytes, int64_t alignment, int32_t use) {
    (void)context, (void)bytes, (void)alignment, (void)use;
    return NULL;
}

static void deallocate(void* context, void* memory, int64_t bytes, int32_t use) {
    (void)context, (void)memory, (void)bytes, (void)use;
}

static void bad_arguments_are_refused(void) {
    static stream s;
    per_replay* replay = filled(5);
    per_replay* loaded = replay;
    per_save* save;
    begin(&s);
    per_save_options saving = default_save_options();
    CHECK(saving.timeout_ms == PER_DIRECTORY_TIMEOUT_MS && saving.compression == -1 && saving.reserved == 0);
    CHECK(saving.write == NULL && saving.context == NULL);
    saving.write = write_to;
    saving.context = &s;
    CHECK_REFUSED(per_replay_save(replay, "a", &saving), "path is given: must be NULL");
    CHECK_REFUSED(per_replay_save_start(replay, "a", &saving, &save), "write is given");
    CHECK_REFUSED(per_replay_checkpoint(replay, "a", &saving, NULL), "write is given");
    CHECK(s.n_calls == 0);
    CHECK_OK(save_to(replay, write_to, &s));
    per_load_options loading = default_load_options();
    CHECK(loading.device == PER_CPU && loading.device_index == 0 && loading.timeout_ms == PER_DIRECTORY_TIMEOUT_MS);
    CHECK(loading.read == NULL && loading.context == NULL && loading.memory.storage == NULL);
    loading.read = read_from;
    loading.context = &s;
    CHECK_REFUSED(per_replay_load("a", &loading, &loaded), "path is given: must be NULL");
    CHECK(loaded == NULL);
    loading.memory.storage = "/tmp";
    CHECK_REFUSED(per_replay_load(NULL, &loading, &loaded), "storage is given: must be NULL");
    loading.memory.storage = NULL;
    loading.memory.allocate = allocate;
    loading.memory.deallocate = deallocate;
    CHECK_REFUSED(per_replay_load(NULL, &loading, &loaded), "allocate is given: must be");
    loaded = replay;
    CHECK_REFUSED(load_from(read_from, &s, 7, 0, &loaded), "device is 7");
    CHECK(loaded == NULL);
    per_replay_free(replay);
}

int main(void) {
    a_thread_may_end_in_a_function(); /* runs first, as errors of other calls would make the end of a thread easier */
    a_stream_has_the_bytes_of_a_file();
    a_stream_may_hold_several_checkpoints_and_what_else();
    functions_may_take_less_than_they_are_given();
    large_fields_come_in_pieces();
    a_write_that_fails_ends_the_save_and_changes_nothing();
    a_read_that_fails_or_ends_early_makes_no_buffer();
    own_calls_are_busy_and_other_handles_are_not();
    a_function_may_free_what_it_saves();
    other_threads_wait_for_the_end_of_the_save();
    forks_do_not_wait();
    bad_arguments_are_refused();
    return 0;
}
