/*
 * Programs built against another header of this interface: a later one, or an older one, if the library was given its
 * sizes. Both are invented. Calls accept their structs, and neither read nor write beyond them: each struct ends with a
 * page, and the next page is not mapped.
 */
#define _DEFAULT_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "loader_check.h"

/* The sizes of the older header: each struct lacks its last fields, if these may be 0. */
enum {
    TREE_OPTIONS = offsetof(per_tree_options, device),
    TREE_DESCRIPTION = offsetof(per_tree_description, scale),
    FIELD = offsetof(per_field, padding),
    REPLAY_OPTIONS = offsetof(per_replay_options, save_compression),
    SAVE_OPTIONS = offsetof(per_save_options, write),
    LOAD_OPTIONS = offsetof(per_load_options, read),
    STEPS = offsetof(per_steps, td_errors),
    SAMPLE_OPTIONS = offsetof(per_sample_options, n_step_min),
    BATCH = offsetof(per_batch, gamma_m),
    PRIORITIES = offsetof(per_priorities, n_steps),
    STATISTICS = offsetof(per_replay_statistics, suspected_resets),
    HINDSIGHT_OPTIONS = offsetof(per_hindsight_options, context),
    LOADER_OPTIONS = offsetof(per_loader_options, gather_on_device),
    CHANNEL_OPTIONS = offsetof(per_channel_options, when_full),
    CHANNEL_STATISTICS = offsetof(per_channel_statistics, attached),
    SHARED_LOADER_OPTIONS = offsetof(per_shared_loader_options, sample),
    SHARED_LOADER_STATISTICS = offsetof(per_shared_loader_statistics, refused),
    SETTINGS = sizeof(per_replay_settings),
    LAW = sizeof(per_shard_summary),
    COORDINATOR_STATUS = sizeof(per_coordinator_state)
};

#ifdef PER_OLDER_HEADER
/* Replaces per::is_size_of_a_header() at link time: the list of each struct starts with the older size. */
bool __wrap__ZN3per19is_size_of_a_headerEPKmmm(const uint64_t* sizes, size_t n_sizes, uint64_t size);
bool __wrap__ZN3per19is_size_of_a_headerEPKmmm(const uint64_t* sizes, size_t n_sizes, uint64_t size) {
    static const uint64_t older[][2] = {{sizeof(per_tree_options), TREE_OPTIONS},
                                        {sizeof(per_tree_description), TREE_DESCRIPTION},
                                        {sizeof(per_field), FIELD},
                                        {sizeof(per_replay_options), REPLAY_OPTIONS},
                                        {sizeof(per_save_options), SAVE_OPTIONS},
                                        {sizeof(per_load_options), LOAD_OPTIONS},
                                        {sizeof(per_steps), STEPS},
                                        {sizeof(per_sample_options), SAMPLE_OPTIONS},
                                        {sizeof(per_batch), BATCH},
                                        {sizeof(per_priorities), PRIORITIES},
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

/* True if the program is the later one, in which all structs have one field unknown to this library. */
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

/* A struct shorter than any version, down to its struct_size alone. */
static void* too_short(void) {
    uint64_t* size = end_of_page(sizeof *size);
    *size = sizeof *size;
    return size;
}

/* A call given a struct of the later program in which the unknown field is set. */
#define CHECK_UNKNOWN(call, given)                                                \
    do {                                                                          \
        unsigned char* last = (unsigned char*)(given) + (given)->struct_size - 1; \
        if (!is_later) break;                                                     \
        *last = 1;                                                                \
        CHECK_FAILS(call, PER_ERROR_UNSUPPORTED, "in a field that this version"); \
        *last = 0;                                                                \
    } while (0)

#define CHECK_TAKEN(call, given)    \
    do {                            \
        CHECK_UNKNOWN(call, given); \
        CHECK_OK(call);             \
    } while (0)

/* A pointer to a struct of the program, filled by its _init function. */
#define STRUCT_OF_PROGRAM(name, variable, older)                          \
    per_##name* variable = end_of_page(size_of(older, sizeof *variable)); \
    CHECK_OK(per_##name##_init(variable, size_of(older, sizeof *variable)))

static void of_a_tree(void) {
    const size_t size = size_of(TREE_DESCRIPTION, sizeof(per_tree_description));
    per_tree_description* description = end_of_page(size);
    STRUCT_OF_PROGRAM(tree_options, options, TREE_OPTIONS);
    per_tree* tree;
    options->capacity = 9;
    if (is_later) options->device = test_device();
    CHECK_TAKEN(per_tree_create(options, &tree), options);
    CHECK_OK(per_tree_describe(tree, description, size));
    CHECK(description->struct_size == size && description->capacity == 9 && description->total == 0);
    CHECK_REFUSED(per_tree_describe(tree, too_short(), 8), "struct_size is 8");
    per_tree_free(tree);
    CHECK_REFUSED(per_tree_create(too_short(), &tree), "options.struct_size is 8");
}

/* The fields of the program, at the stride of its struct. */
static per_field* fields_of_program(size_t size) {
    static const char* const names[2] = {"observation", "goal"};
    char* fields = end_of_page(2 * size);
    memset(fields, 0, 2 * size);
    for (int i = 0; i < 2; ++i) {
        per_field* field = (per_field*)(void*)(fields + (size_t)i * size);
        field->name = names[i];
        field->dtype = PER_FLOAT32;
    }
    return (per_field*)(void*)fields;
}

static per_replay* created(void) {
    const size_t field_size = size_of(FIELD, sizeof(per_field));
    per_field* fields = fields_of_program(field_size);
    unsigned char* last = (unsigned char*)fields + 2 * field_size - 1;
    STRUCT_OF_PROGRAM(replay_options, options, REPLAY_OPTIONS);
    STRUCT_OF_PROGRAM(replay_options, described, REPLAY_OPTIONS);
    int64_t capacity;
    per_replay* replay;
    options->capacity = 20;
    options->fields = fields;
    options->n_fields = 2;
    options->field_size = (int64_t)field_size;
    options->device = test_device();
    CHECK_UNKNOWN(per_replay_create(options, &replay), options);
    if (is_later) {
        *last = 1;
        CHECK_FAILS(per_replay_create(options, &replay), PER_ERROR_UNSUPPORTED, "fields[1] has byte");
        CHECK_FAILS(per_replay_compute_capacity(options, 1, 1, &capacity), PER_ERROR_UNSUPPORTED, "fields[1] has byte");
        *last = 0;
    }
    CHECK_OK(per_replay_compute_capacity(options, 1, 1, &capacity));
    CHECK_OK(per_field_check(fields, (int64_t)field_size));
    CHECK_OK(per_replay_create(options, &replay));
    CHECK_OK(per_replay_describe(replay, described));
    CHECK(described->struct_size == size_of(REPLAY_OPTIONS, sizeof *described) && described->capacity == 20 &&
          described->gather_threads == 1);
    const per_field* second = (const per_field*)(const void*)((const char*)described->fields + described->field_size);
    CHECK(described->n_fields == 2 && strcmp(second->name, "goal") == 0);
    return replay;
}

static void change(per_replay* replay) {
    STRUCT_OF_PROGRAM(replay_settings, settings, SETTINGS);
    settings->gamma = 0.5;
    CHECK_TAKEN(per_replay_change_settings(replay, settings, NULL), settings);
    CHECK_REFUSED(per_replay_change_settings(replay, too_short(), NULL), "settings.struct_size is 8");
}

static void add_to(per_replay* replay) {
    const float observations[3] = {0, 1, 2}, next[3] = {1, 2, 3}, goals[3] = {5, 5, 5}, rewards[3] = {1, 2, 3};
    const uint8_t flags[3] = {0, 0, 0};
    STRUCT_OF_PROGRAM(steps, steps, STEPS);
    per_array fields[2] = {array_of(observations, PER_FLOAT32), array_of(goals, PER_FLOAT32)};
    per_array next_fields[2] = {array_of(next, PER_FLOAT32), array_of(NULL, PER_FLOAT32)};
    steps->length = 3;
    steps->fields = fields;
    steps->next_fields = next_fields;
    steps->reward = array_of(rewards, PER_FLOAT32);
    steps->terminated = steps->truncated = array_of(flags, PER_BOOL);
    CHECK_TAKEN(per_replay_add(replay, steps, NULL, NULL), steps);
    CHECK_REFUSED(per_replay_add(replay, too_short(), NULL, NULL), "steps.struct_size is 8");
}

static void draw_from(per_replay* replay) {
    const int64_t id = 2;
    int64_t ids[4] = {-7, -7, -7, -7}, count;
    float rewards[4];
    STRUCT_OF_PROGRAM(sample_options, options, SAMPLE_OPTIONS);
    STRUCT_OF_PROGRAM(hindsight_options, hindsight, HINDSIGHT_OPTIONS);
    STRUCT_OF_PROGRAM(sample_options, with_hindsight, sizeof *with_hindsight);
    STRUCT_OF_PROGRAM(batch, batch, BATCH);
    per_epochs* epochs;
    batch->ids = ids;
    batch->reward = rewards;
    CHECK_UNKNOWN(per_replay_sample(replay, options, 4, batch, NULL), options);
    CHECK_UNKNOWN(per_replay_sample(replay, options, 4, batch, NULL), batch);
    CHECK(stats_of(replay).samples == 0);
    CHECK_OK(per_replay_sample(replay, options, 4, batch, NULL));
    CHECK(ids[3] >= 0 && rewards[3] == (float)(ids[3] + 1));
    CHECK_TAKEN(per_replay_get(replay, 1, &id, batch, NULL), batch);
    CHECK(rewards[0] == 3);
    CHECK_UNKNOWN(per_replay_get_windows(replay, options, 0, 1, &id, batch, NULL), options);
    CHECK_UNKNOWN(per_replay_get_windows(replay, options, 0, 1, &id, batch, NULL), batch);
    rewards[0] = 7;
    CHECK_OK(per_replay_get_windows(replay, options, 0, 1, &id, batch, NULL));
    CHECK(rewards[0] == 3);
    hindsight->achieved_field = 0;
    hindsight->goal_field = 1;
    hindsight->reward = no_reward;
    hindsight->fraction = 1;
    with_hindsight->hindsight = hindsight;
    CHECK_TAKEN(per_replay_sample(replay, with_hindsight, 4, batch, NULL), hindsight);
    CHECK(rewards[0] == 0);
    CHECK_UNKNOWN(per_replay_get_windows(replay, with_hindsight, 0, 1, &id, batch, NULL), hindsight);
    rewards[0] = 7;
    CHECK_OK(per_replay_get_windows(replay, with_hindsight, 0, 1, &id, batch, NULL));
    CHECK(rewards[0] == 0);
    CHECK_OK(per_epochs_create(replay, 1, 3, 0, NULL, &epochs));
    CHECK_UNKNOWN(per_epochs_next(epochs, batch, &count, NULL), batch);
    CHECK_OK(synchronized(replay, per_epochs_next(epochs, batch, &count, NULL)));
    CHECK(count == 3 && rewards[0] + rewards[1] + rewards[2] == 6);
    CHECK_REFUSED(per_epochs_next(epochs, too_short(), &count, NULL), "batch.struct_size");
    per_epochs_free(epochs);
    CHECK_TAKEN(per_replay_get_bootstraps(replay, 4, batch, &count, NULL), batch);
    CHECK(count == 1 && ids[0] == 2);

    CHECK_REFUSED(per_replay_sample(replay, too_short(), 4, batch, NULL), "options.struct");
    CHECK_REFUSED(per_replay_sample(replay, options, 4, too_short(), NULL), "batch.struct");
    CHECK_REFUSED(per_replay_get(replay, 1, &id, too_short(), NULL), "batch.struct_size");
    CHECK_REFUSED(per_replay_get_bootstraps(replay, 4, too_short(), &count, NULL), "batch.struct_size");
    with_hindsight->hindsight = too_short();
    CHECK_REFUSED(per_replay_sample(replay, with_hindsight, 4, batch, NULL), "hindsight.struct_size");
}

static void set_priorities_of(per_replay* replay) {
    const int64_t id = 1;
    const float td_error = -3;
    float priority = -7;
    STRUCT_OF_PROGRAM(priorities, priorities, PRIORITIES);
    priorities->count = 1;
    priorities->ids = &id;
    priorities->td_errors = &td_error;
    CHECK_TAKEN(per_replay_update_priorities(replay, priorities, NULL), priorities);
    CHECK_OK(per_replay_get_priorities(replay, 1, &id, &priority, NULL));
    CHECK(priority > 3 && priority < 3.1f);
    CHECK_REFUSED(per_replay_update_priorities(replay, too_short(), NULL), "priorities.struct_size is 8");
}

static void of_files(per_replay* replay) {
    char path[] = "/tmp/per-headers-XXXXXX";
    STRUCT_OF_PROGRAM(save_options, saving, SAVE_OPTIONS);
    STRUCT_OF_PROGRAM(load_options, loading, LOAD_OPTIONS);
    per_replay* loaded;
    per_save* save;
    const int file = mkstemp(path);
    CHECK(file >= 0 && close(file) == 0);
    CHECK_UNKNOWN(per_replay_save(replay, path, saving), saving);
    CHECK_UNKNOWN(per_replay_save_start(replay, path, saving, &save), saving);
    CHECK_UNKNOWN(per_replay_checkpoint(replay, path, saving, NULL), saving);
    CHECK_OK(per_replay_save(replay, path, saving));
    CHECK_TAKEN(per_replay_load(path, loading, &loaded), loading);
    per_replay_free(loaded);
    CHECK(unlink(path) == 0);
    CHECK_REFUSED(per_replay_save(replay, path, too_short()), "options.struct_size is 8");
    CHECK_REFUSED(per_replay_load(path, too_short(), &loaded), "options.struct_size is 8");
}

static void of_a_loader(per_replay* replay) {
    STRUCT_OF_PROGRAM(loader_options, options, LOADER_OPTIONS);
    STRUCT_OF_PROGRAM(sample_options, sample, SAMPLE_OPTIONS);
    STRUCT_OF_PROGRAM(batch, batch, BATCH);
    per_loader* loader;
    int64_t slot;
    options->batch_size = 4;
    options->sample = sample;
    options->device = loader_device();
    CHECK_UNKNOWN(per_loader_create(replay, options, &loader), sample);
    CHECK_TAKEN(per_loader_create(replay, options, &loader), options);
    CHECK_OK(per_loader_next(loader, -1, batch, &slot, NULL));
    CHECK(batch->struct_size == size_of(BATCH, sizeof *batch) && batch->ids != NULL && batch->mask == NULL);
    CHECK_OK(per_loader_release(loader, slot, NULL));
    CHECK_REFUSED(per_loader_next(loader, -1, too_short(), &slot, NULL), "batch_out.struct");
    per_loader_free(loader);
    options->sample = too_short();
    CHECK_REFUSED(per_loader_create(replay, options, &loader), "sample.struct_size is 8");
    CHECK_REFUSED(per_loader_create(replay, too_short(), &loader), "options.struct_size");
}

static void of_a_channel(per_replay* replay) {
    STRUCT_OF_PROGRAM(channel_options, options, CHANNEL_OPTIONS);
    const size_t size = size_of(CHANNEL_STATISTICS, sizeof(per_channel_statistics));
    per_channel_statistics* statistics = end_of_page(size);
    per_channel* channel;
    options->slots = 8;
    CHECK_TAKEN(per_channel_create(replay, options, &channel), options);
    CHECK_OK(per_channel_get_statistics(channel, statistics, size));
    CHECK(statistics->struct_size == size && statistics->slots == 8);
    CHECK_REFUSED(per_channel_get_statistics(channel, too_short(), 8), "struct_size is 8");
    per_channel_free(channel);
    CHECK_REFUSED(per_channel_create(replay, too_short(), &channel), "options.struct_size");
}

/* On the CPU only. */
static void of_a_shared_loader(per_replay* replay) {
    const size_t size = size_of(SHARED_LOADER_STATISTICS, sizeof(per_shared_loader_statistics));
    STRUCT_OF_PROGRAM(shared_loader_options, options, SHARED_LOADER_OPTIONS);
    per_shared_loader_statistics* statistics = end_of_page(size);
    STRUCT_OF_PROGRAM(batch, batch, BATCH);
    per_shared_loader* loader;
    per_reader* reader;
    const char* path;
    int64_t slot;
    options->batch_size = 2;
    options->readers = 3;
    CHECK_TAKEN(per_shared_loader_create(replay, options, &loader), options);
    CHECK_OK(per_shared_loader_get_statistics(loader, statistics, size));
    CHECK(statistics->struct_size == size && statistics->places == 3);
    CHECK_REFUSED(per_shared_loader_get_statistics(loader, too_short(), 8), "struct_size is 8");
    CHECK_OK(per_shared_loader_get_address(loader, &path, NULL));
    CHECK_OK(per_reader_attach(path, -1, &reader));
    CHECK_OK(per_reader_next(reader, -1, batch, &slot));
    CHECK(batch->struct_size == size_of(BATCH, sizeof *batch) && batch->ids != NULL && batch->mask == NULL);
    CHECK_REFUSED(per_reader_next(reader, -1, too_short(), &slot), "batch_out.struct");
    per_reader_free(reader);
    per_shared_loader_free(loader);
    CHECK_REFUSED(per_shared_loader_create(replay, too_short(), &loader), "options.struct");
}

static void statistics_of(per_replay* replay) {
    const size_t size = size_of(STATISTICS, sizeof(per_replay_statistics));
    per_replay_statistics* statistics = end_of_page(size);
    CHECK_OK(per_replay_get_statistics(replay, statistics, size));
    CHECK(statistics->struct_size == size && statistics->added == 3 && statistics->memory_bytes > 0);
    CHECK_REFUSED(per_replay_get_statistics(replay, too_short(), 8), "struct_size is 8");
    CHECK_REFUSED(per_replay_describe(replay, too_short()), "options_out.struct_size is 8");
}

static void of_a_coordinator(per_replay* replay) {
    const size_t size_of_law = size_of(LAW, sizeof(per_shard_summary));
    const size_t size_of_status = size_of(COORDINATOR_STATUS, sizeof(per_coordinator_state));
    STRUCT_OF_PROGRAM(replay_options, options, REPLAY_OPTIONS);
    per_shard_summary* law = end_of_page(size_of_law);
    per_coordinator_state* status = end_of_page(size_of_status);
    per_coordinator *coordinator, *again;
    CHECK_OK(per_replay_describe(replay, options));
    CHECK_TAKEN(per_coordinator_create(options, 1, NULL, &coordinator), options);
    CHECK_OK(per_coordinator_get_state(coordinator, status, size_of_status));
    CHECK(status->struct_size == size_of_status && status->max_priority == 1);
    CHECK_TAKEN(per_coordinator_create(options, 1, status, &again), status);
    per_coordinator_free(again);
    CHECK_OK(per_replay_summarize(replay, PER_SCALE_AUTOMATIC, 0, law, size_of_law));
    CHECK(law->struct_size == size_of_law && law->live == 3);
    CHECK_TAKEN(per_coordinator_report(coordinator, 0, law), law);
    CHECK_REFUSED(per_replay_summarize(replay, PER_SCALE_AUTOMATIC, 0, too_short(), 8), "struct_size is 8");
    CHECK_REFUSED(per_coordinator_report(coordinator, 0, too_short()), "summary.struct_size is 8");
    CHECK_REFUSED(per_coordinator_get_state(coordinator, too_short(), 8), "struct_size is 8");
    CHECK_REFUSED(per_coordinator_create(options, 1, too_short(), &again), "state.struct_size");
    CHECK_REFUSED(per_coordinator_create(too_short(), 1, NULL, &again), "options.struct");
    per_coordinator_free(coordinator);
}

int main(void) {
    for (is_later = FIRST_IS_LATER; is_later <= 1; ++is_later) {
        of_a_tree();
        per_replay* replay = created();
        add_to(replay);
        change(replay);
        draw_from(replay);
        set_priorities_of(replay);
        statistics_of(replay);
        of_files(replay);
        of_a_loader(replay);
        of_a_channel(replay);
        of_a_coordinator(replay);
        if (!on_cuda()) of_a_shared_loader(replay);
        per_replay_free(replay);
    }
    return 0;
}
