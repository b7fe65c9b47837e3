/*
 * Programs that were built against another header of this interface: a later one, or, where the library of this program
 * knows of it, an older one. Both are invented. All that takes a struct takes theirs, and neither reads nor writes what
 * follows it: each struct ends with a page, and the next page is not there.
 */
#define _DEFAULT_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include "loader_check.h"

/* The sizes of the older header, of which each struct lacks its last fields, if these may be 0. */
enum {
    TREE_OPTIONS = offsetof(per_tree_options, device),
    REPLAY_OPTIONS = offsetof(per_replay_options, save_compression),
    STEPS = offsetof(per_steps, td_errors),
    SAMPLE_OPTIONS = offsetof(per_sample_options, n_step_min),
    BATCH = offsetof(per_batch, gamma_m),
    STATISTICS = offsetof(per_replay_statistics, suspected_resets),
    HINDSIGHT_OPTIONS = offsetof(per_hindsight_options, context),
    LOADER_OPTIONS = offsetof(per_loader_options, gather_on_device),
    CHANNEL_OPTIONS = offsetof(per_channel_options, when_full),
    CHANNEL_STATISTICS = offsetof(per_channel_statistics, attached),
    SHARED_LOADER_OPTIONS = offsetof(per_shared_loader_options, sample),
    SHARED_LOADER_STATISTICS = offsetof(per_shared_loader_statistics, refused),
    LAW = sizeof(per_law),
    COORDINATOR_STATUS = sizeof(per_coordinator_status)
};

#ifdef PER_OLDER_HEADER
/* per::is_size_of_a_header(), in whose place the linker puts this: the list of each struct begins with the older size. */
bool __wrap__ZN3per19is_size_of_a_headerEPKmmm(const uint64_t* sizes, size_t n_sizes, uint64_t size);
bool __wrap__ZN3per19is_size_of_a_headerEPKmmm(const uint64_t* sizes, size_t n_sizes, uint64_t size) {
    static const uint64_t older[][2] = {{sizeof(per_tree_options), TREE_OPTIONS},
                                        {sizeof(per_replay_options), REPLAY_OPTIONS},
                                        {sizeof(per_steps), STEPS},
                                        {sizeof(per_sample_options), SAMPLE_OPTIONS},
                                        {sizeof(per_batch), BATCH},
                                        {sizeof(per_replay_statistics), STATISTICS},
                                        {sizeof(per_hindsight_options), HINDSIGHT_OPTIONS},
                                        {sizeof(per_loader_options), LOADER_OPTIONS},
                                        {sizeof(per_channel_options), CHANNEL_OPTIONS},
                                        {sizeof(per_channel_statistics), CHANNEL_STATISTICS},
                                        {sizeof(per_shared_loader_options), SHARED_LOADER_OPTIONS},
                                        {sizeof(per_shared_loader_statistics), SHARED_LOADER_STATISTICS}};
    size_t i;
    for (i = 0; i < sizeof older / sizeof *older; ++i)
        if (older[i][0] == sizes[n_sizes - 1] && older[i][1] == size) return true;
    return size == sizes[n_sizes - 1];
}
enum { FIRST_IS_LATER = 0 };
#else
enum { FIRST_IS_LATER = 1 };
#endif

/* Whether the program is the later one, whose structs all have a field more than this library knows. */
static int is_later;

static size_t size_of(size_t older, size_t known) {
    return is_later ? known + 8 : older;
}

/* The last `size` bytes of a page. */
static void* end_of_page(size_t size) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char* pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0);
    return pages + page - size;
}

/* A struct that is shorter than any has been, down to its struct_size. */
static void* too_short(void) {
    uint64_t* size = end_of_page(sizeof *size);
    *size = sizeof *size;
    return size;
}

/* A call that is given a struct of the later program, in which the field that this library does not know is set. */
#define CHECK_UNKNOWN(call, given)                                                \
    do {                                                                          \
        unsigned char* last = (unsigned char*)(given) + (given)->struct_size - 1; \
        if (!is_later) break;                                                     \
        *last = 1;                                                                \
        CHECK_FAILS(call, PER_ERROR_UNSUPPORTED, "in a field that this version"); \
        *last = 0;                                                                \
    } while (0)

static int32_t no_reward(void* context, int64_t count, const void* achieved, const void* goals, float* rewards_out,
                         uint8_t* terminated_out) {
    (void)context, (void)achieved, (void)goals, (void)terminated_out;
    memset(rewards_out, 0, (size_t)count * sizeof *rewards_out);
    return 0;
}

static void of_a_tree(void) {
    per_tree_options* options = end_of_page(size_of(TREE_OPTIONS, sizeof *options));
    per_tree* tree;
    CHECK_OK(per_tree_options_init(options, size_of(TREE_OPTIONS, sizeof *options)));
    options->capacity = 9;
    if (is_later) options->device = test_device();
    CHECK_UNKNOWN(per_tree_create(options, &tree), options);
    CHECK_OK(per_tree_create(options, &tree));
    per_tree_free(tree);
    CHECK_FAILS(per_tree_create(too_short(), &tree), PER_ERROR_INVALID_ARGUMENT, "options.struct_size is 8");
}

static per_replay* created(void) {
    static const per_field fields[2] = {{"observation", NULL, 0, PER_FLOAT32, PER_ROLE_DEFAULT, 0, NULL, 0, 0},
                                        {"goal", NULL, 0, PER_FLOAT32, PER_ROLE_DEFAULT, 0, NULL, 0, 0}};
    per_replay_options* options = end_of_page(size_of(REPLAY_OPTIONS, sizeof *options));
    per_replay_options* described = end_of_page(size_of(REPLAY_OPTIONS, sizeof *described));
    per_replay* replay;
    CHECK_OK(per_replay_options_init(options, size_of(REPLAY_OPTIONS, sizeof *options)));
    options->capacity = 20;
    options->fields = fields;
    options->n_fields = 2;
    options->device = test_device();
    CHECK_UNKNOWN(per_replay_create(options, &replay), options);
    CHECK_OK(per_replay_create(options, &replay));
    CHECK_OK(per_replay_options_init(described, size_of(REPLAY_OPTIONS, sizeof *described)));
    CHECK_OK(per_replay_describe(replay, described));
    CHECK(described->struct_size == size_of(REPLAY_OPTIONS, sizeof *described) && described->capacity == 20 &&
          described->gather_threads == 1);
    return replay;
}

static void add_to(per_replay* replay) {
    const float observations[3] = {0, 1, 2}, next[3] = {1, 2, 3}, goals[3] = {5, 5, 5}, rewards[3] = {1, 2, 3};
    const uint8_t flags[3] = {0, 0, 0};
    per_steps* steps = end_of_page(size_of(STEPS, sizeof *steps));
    per_array fields[2], next_fields[2];
    fields[0] = array_of(observations, PER_FLOAT32);
    fields[1] = array_of(goals, PER_FLOAT32);
    next_fields[0] = array_of(next, PER_FLOAT32);
    next_fields[1] = array_of(NULL, PER_FLOAT32);
    CHECK_OK(per_steps_init(steps, size_of(STEPS, sizeof *steps)));
    steps->length = 3;
    steps->fields = fields;
    steps->next_fields = next_fields;
    steps->reward = array_of(rewards, PER_FLOAT32);
    steps->terminated = steps->truncated = array_of(flags, PER_BOOL);
    CHECK_UNKNOWN(per_replay_add(replay, steps, NULL, NULL), steps);
    CHECK_OK(per_replay_add(replay, steps, NULL, NULL));
    CHECK_FAILS(per_replay_add(replay, too_short(), NULL, NULL), PER_ERROR_INVALID_ARGUMENT, "steps.struct_size is 8");
}

static void draw_from(per_replay* replay) {
    const int64_t id = 2;
    int64_t ids[4] = {-7, -7, -7, -7}, count;
    float rewards[4];
    per_sample_options* options = end_of_page(size_of(SAMPLE_OPTIONS, sizeof *options));
    per_hindsight_options* hindsight = end_of_page(size_of(HINDSIGHT_OPTIONS, sizeof *hindsight));
    per_batch* batch = end_of_page(size_of(BATCH, sizeof *batch));
    per_epochs* epochs;
    CHECK_OK(per_sample_options_init(options, size_of(SAMPLE_OPTIONS, sizeof *options)));
    CHECK_OK(per_batch_init(batch, size_of(BATCH, sizeof *batch)));
    batch->ids = ids;
    batch->reward = rewards;
    CHECK_UNKNOWN(per_replay_sample(replay, options, 4, batch, NULL), options);
    CHECK_UNKNOWN(per_replay_sample(replay, options, 4, batch, NULL), batch);
    CHECK_OK(per_replay_sample(replay, options, 4, batch, NULL));
    CHECK(ids[3] >= 0 && rewards[3] == (float)(ids[3] + 1));
    CHECK_UNKNOWN(per_replay_get(replay, 1, &id, batch, NULL), batch);
    CHECK_OK(per_replay_get(replay, 1, &id, batch, NULL));
    CHECK(rewards[0] == 3);
    CHECK_UNKNOWN(per_replay_get_windows(replay, options, 0, 1, &id, batch, NULL), options);
    CHECK_UNKNOWN(per_replay_get_windows(replay, options, 0, 1, &id, batch, NULL), batch);
    rewards[0] = 7;
    CHECK_OK(per_replay_get_windows(replay, options, 0, 1, &id, batch, NULL));
    CHECK(rewards[0] == 3);
    CHECK_OK(per_hindsight_options_init(hindsight, size_of(HINDSIGHT_OPTIONS, sizeof *hindsight)));
    hindsight->achieved_field = 0;
    hindsight->goal_field = 1;
    hindsight->reward = no_reward;
    hindsight->fraction = 1;
    CHECK_UNKNOWN(per_replay_sample_hindsight(replay, options, hindsight, 4, batch, NULL), hindsight);
    CHECK_OK(per_replay_sample_hindsight(replay, options, hindsight, 4, batch, NULL));
    CHECK(rewards[0] == 0);
    CHECK_UNKNOWN(per_replay_get_windows_hindsight(replay, options, hindsight, 0, 1, &id, batch, NULL), hindsight);
    rewards[0] = 7;
    CHECK_OK(per_replay_get_windows_hindsight(replay, options, hindsight, 0, 1, &id, batch, NULL));
    CHECK(rewards[0] == 0);
    CHECK_OK(per_epochs_create(replay, 1, 3, 0, NULL, &epochs));
    CHECK_UNKNOWN(per_epochs_next(epochs, batch, &count, NULL), batch);
    CHECK_OK(synchronized(replay, per_epochs_next(epochs, batch, &count, NULL)));
    CHECK(count == 3 && rewards[0] + rewards[1] + rewards[2] == 6);
    CHECK_FAILS(per_epochs_next(epochs, too_short(), &count, NULL), PER_ERROR_INVALID_ARGUMENT, "batch.struct_size");
    per_epochs_free(epochs);
    CHECK_UNKNOWN(per_replay_bootstraps(replay, 4, batch, &count, NULL), batch);
    CHECK_OK(per_replay_bootstraps(replay, 4, batch, &count, NULL));
    CHECK(count == 1 && ids[0] == 2);

    CHECK_FAILS(per_replay_sample(replay, too_short(), 4, batch, NULL), PER_ERROR_INVALID_ARGUMENT, "options.struct");
    CHECK_FAILS(per_replay_sample(replay, options, 4, too_short(), NULL), PER_ERROR_INVALID_ARGUMENT, "batch.struct");
    CHECK_FAILS(per_replay_get(replay, 1, &id, too_short(), NULL), PER_ERROR_INVALID_ARGUMENT, "batch.struct_size");
    CHECK_FAILS(per_replay_bootstraps(replay, 4, too_short(), &count, NULL), PER_ERROR_INVALID_ARGUMENT,
                "batch.struct_size");
    CHECK_FAILS(per_replay_sample_hindsight(replay, options, too_short(), 4, batch, NULL), PER_ERROR_INVALID_ARGUMENT,
                "hindsight.struct_size");
}

static void of_a_loader(per_replay* replay) {
    per_loader_options* options = end_of_page(size_of(LOADER_OPTIONS, sizeof *options));
    per_sample_options* sample = end_of_page(size_of(SAMPLE_OPTIONS, sizeof *sample));
    per_batch* batch = end_of_page(size_of(BATCH, sizeof *batch));
    per_loader* loader;
    int64_t slot;
    CHECK_OK(per_loader_options_init(options, size_of(LOADER_OPTIONS, sizeof *options)));
    CHECK_OK(per_sample_options_init(sample, size_of(SAMPLE_OPTIONS, sizeof *sample)));
    options->batch_size = 4;
    options->sample = sample;
    options->device = loader_device();
    CHECK_UNKNOWN(per_loader_create(replay, options, &loader), sample);
    CHECK_UNKNOWN(per_loader_create(replay, options, &loader), options);
    CHECK_OK(per_loader_create(replay, options, &loader));
    CHECK_OK(per_batch_init(batch, size_of(BATCH, sizeof *batch)));
    CHECK_OK(per_loader_next(loader, 1, batch, &slot, NULL));
    CHECK(batch->struct_size == size_of(BATCH, sizeof *batch) && batch->ids != NULL && batch->mask == NULL);
    CHECK_OK(per_loader_release(loader, slot, NULL));
    CHECK_FAILS(per_loader_next(loader, 1, too_short(), &slot, NULL), PER_ERROR_INVALID_ARGUMENT, "batch_out.struct");
    per_loader_free(loader);
    options->sample = too_short();
    CHECK_FAILS(per_loader_create(replay, options, &loader), PER_ERROR_INVALID_ARGUMENT, "sample.struct_size is 8");
    CHECK_FAILS(per_loader_create(replay, too_short(), &loader), PER_ERROR_INVALID_ARGUMENT, "options.struct_size");
}

static void of_a_channel(per_replay* replay) {
    per_channel_options* options = end_of_page(size_of(CHANNEL_OPTIONS, sizeof *options));
    per_channel_statistics* statistics = end_of_page(size_of(CHANNEL_STATISTICS, sizeof *statistics));
    per_channel* channel;
    CHECK_OK(per_channel_options_init(options, size_of(CHANNEL_OPTIONS, sizeof *options)));
    options->slots = 8;
    CHECK_UNKNOWN(per_channel_create(replay, options, &channel), options);
    CHECK_OK(per_channel_create(replay, options, &channel));
    CHECK_OK(per_channel_statistics_init(statistics, size_of(CHANNEL_STATISTICS, sizeof *statistics)));
    CHECK_OK(per_channel_stats(channel, statistics));
    CHECK(statistics->struct_size == size_of(CHANNEL_STATISTICS, sizeof *statistics) && statistics->slots == 8);
    CHECK_FAILS(per_channel_stats(channel, too_short()), PER_ERROR_INVALID_ARGUMENT, "statistics_out.struct_size is 8");
    per_channel_free(channel);
    CHECK_FAILS(per_channel_create(replay, too_short(), &channel), PER_ERROR_INVALID_ARGUMENT, "options.struct_size");
}

/* On the CPU only. */
static void of_a_shared_loader(per_replay* replay) {
    const size_t size = size_of(SHARED_LOADER_STATISTICS, sizeof(per_shared_loader_statistics));
    per_shared_loader_options* options = end_of_page(size_of(SHARED_LOADER_OPTIONS, sizeof *options));
    per_shared_loader_statistics* statistics = end_of_page(size);
    per_batch* batch = end_of_page(size_of(BATCH, sizeof *batch));
    per_shared_loader* loader;
    per_reader* reader;
    const char* path;
    int64_t slot;
    CHECK_OK(per_shared_loader_options_init(options, size_of(SHARED_LOADER_OPTIONS, sizeof *options)));
    options->batch_size = 2;
    options->readers = 3;
    CHECK_UNKNOWN(per_shared_loader_create(replay, options, &loader), options);
    CHECK_OK(per_shared_loader_create(replay, options, &loader));
    CHECK_OK(per_shared_loader_statistics_init(statistics, size));
    CHECK_OK(per_shared_loader_stats(loader, statistics));
    CHECK(statistics->struct_size == size && statistics->places == 3);
    CHECK_FAILS(per_shared_loader_stats(loader, too_short()), PER_ERROR_INVALID_ARGUMENT, "statistics_out.struct_size");
    CHECK_OK(per_shared_loader_path(loader, &path));
    CHECK_OK(per_reader_attach(path, -1, &reader));
    CHECK_OK(per_batch_init(batch, size_of(BATCH, sizeof *batch)));
    CHECK_OK(per_reader_next(reader, -1, batch, &slot));
    CHECK(batch->struct_size == size_of(BATCH, sizeof *batch) && batch->ids != NULL && batch->mask == NULL);
    CHECK_FAILS(per_reader_next(reader, -1, too_short(), &slot), PER_ERROR_INVALID_ARGUMENT, "batch_out.struct");
    per_reader_free(reader);
    per_shared_loader_free(loader);
    CHECK_FAILS(per_shared_loader_create(replay, too_short(), &loader), PER_ERROR_INVALID_ARGUMENT, "options.struct");
}

static void statistics_of(per_replay* replay) {
    per_replay_statistics* statistics = end_of_page(size_of(STATISTICS, sizeof *statistics));
    CHECK_OK(per_replay_statistics_init(statistics, size_of(STATISTICS, sizeof *statistics)));
    CHECK_OK(per_replay_stats(replay, statistics));
    CHECK(statistics->struct_size == size_of(STATISTICS, sizeof *statistics) && statistics->added == 3 &&
          statistics->memory_bytes > 0);
    CHECK_FAILS(per_replay_stats(replay, too_short()), PER_ERROR_INVALID_ARGUMENT, "statistics_out.struct_size is 8");
    CHECK_FAILS(per_replay_describe(replay, too_short()), PER_ERROR_INVALID_ARGUMENT, "options_out.struct_size is 8");
}

static void of_a_coordinator(per_replay* replay) {
    per_replay_options* options = end_of_page(size_of(REPLAY_OPTIONS, sizeof *options));
    per_law* law = end_of_page(size_of(LAW, sizeof *law));
    per_coordinator_status* status = end_of_page(size_of(COORDINATOR_STATUS, sizeof *status));
    per_coordinator* coordinator;
    CHECK_OK(per_replay_options_init(options, size_of(REPLAY_OPTIONS, sizeof *options)));
    CHECK_OK(per_replay_describe(replay, options));
    CHECK_UNKNOWN(per_coordinator_create(options, 1, &coordinator), options);
    CHECK_OK(per_coordinator_create(options, 1, &coordinator));
    CHECK_OK(per_coordinator_status_init(status, size_of(COORDINATOR_STATUS, sizeof *status)));
    CHECK_OK(per_coordinator_state(coordinator, status));
    CHECK(status->struct_size == size_of(COORDINATOR_STATUS, sizeof *status) && status->max_priority == 1);
    CHECK_UNKNOWN(per_coordinator_restore(coordinator, status), status);
    CHECK_OK(per_coordinator_restore(coordinator, status));
    CHECK_OK(per_law_init(law, size_of(LAW, sizeof *law)));
    CHECK_OK(per_replay_law(replay, PER_SCALE_AUTOMATIC, law));
    CHECK(law->struct_size == size_of(LAW, sizeof *law) && law->live == 3);
    CHECK_UNKNOWN(per_coordinator_tell(coordinator, 0, law), law);
    CHECK_OK(per_coordinator_tell(coordinator, 0, law));
    CHECK_FAILS(per_replay_law(replay, PER_SCALE_AUTOMATIC, too_short()), PER_ERROR_INVALID_ARGUMENT, "law_out.struct");
    CHECK_FAILS(per_coordinator_tell(coordinator, 0, too_short()), PER_ERROR_INVALID_ARGUMENT, "law.struct_size is 8");
    CHECK_FAILS(per_coordinator_state(coordinator, too_short()), PER_ERROR_INVALID_ARGUMENT, "status_out.struct_size");
    CHECK_FAILS(per_coordinator_restore(coordinator, too_short()), PER_ERROR_INVALID_ARGUMENT, "status.struct_size");
    CHECK_FAILS(per_coordinator_create(too_short(), 1, &coordinator), PER_ERROR_INVALID_ARGUMENT, "options.struct");
    per_coordinator_free(coordinator);
}

int main(void) {
    for (is_later = FIRST_IS_LATER; is_later <= 1; ++is_later) {
        per_replay* replay;
        of_a_tree();
        replay = created();
        add_to(replay);
        draw_from(replay);
        statistics_of(replay);
        of_a_loader(replay);
        of_a_channel(replay);
        of_a_coordinator(replay);
        if (!on_cuda()) of_a_shared_loader(replay);
        per_replay_free(replay);
    }
    return 0;
}
