/*
 * A program loads the library, closes it while a loader draws, and continues: the library stays loaded, and the loader
 * usable. The only reference to the library is its path, given as the argument.
 */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <per.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition), exit(1); \
        }                                                                                    \
    } while (0)

static void* library;

/* Looks up a function of the library, as a pointer of its type. */
static void find(const char* name, void* function_out) {
    void* const found = dlsym(library, name);
    CHECK(found != NULL);
    memcpy(function_out, &found, sizeof found);
}

int main(int argc, char** argv) {
    static const per_field field = {"observation", NULL, 0, PER_FLOAT32, PER_ROLE_DEFAULT, 0, NULL, 0, 0, 0};
    const struct timespec moment = {0, 100000000};
    const float observation = 1, next = 2, reward = 3;
    const uint8_t flag = 0;
    per_status (*replay_options_init)(per_replay_options*, uint64_t);
    per_status (*replay_create)(const per_replay_options*, per_replay**);
    per_status (*steps_init)(per_steps*, uint64_t);
    per_status (*replay_add)(per_replay*, const per_steps*, int64_t*, void*);
    per_status (*loader_options_init)(per_loader_options*, uint64_t);
    per_status (*loader_create)(per_replay*, const per_loader_options*, per_loader**);
    per_status (*loader_next)(per_loader*, int64_t, per_batch*, int64_t*, void*);
    per_status (*loader_release)(per_loader*, int64_t, void*);
    per_status (*batch_init)(per_batch*, uint64_t);
    per_replay_options options;
    per_loader_options loader_options;
    per_array fields, next_fields;
    per_steps steps;
    per_replay* replay;
    per_loader* loader;
    per_batch batch;
    int64_t slot;
    int i;
    CHECK(argc == 2);
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fprintf(stderr, "%s\n", dlerror());
    CHECK(library != NULL);
    find("per_replay_options_init", &replay_options_init);
    find("per_replay_create", &replay_create);
    find("per_steps_init", &steps_init);
    find("per_replay_add", &replay_add);
    find("per_loader_options_init", &loader_options_init);
    find("per_loader_create", &loader_create);
    find("per_loader_next", &loader_next);
    find("per_loader_release", &loader_release);
    find("per_batch_init", &batch_init);

    CHECK(replay_options_init(&options, sizeof options) == PER_OK);
    options.capacity = 10;
    options.fields = &field;
    options.n_fields = 1;
    options.field_size = sizeof(per_field);
    CHECK(replay_create(&options, &replay) == PER_OK);
    CHECK(steps_init(&steps, sizeof steps) == PER_OK);
    fields.data = &observation, next_fields.data = &next, steps.reward.data = &reward;
    steps.terminated.data = steps.truncated.data = &flag;
    fields.shape = next_fields.shape = NULL;
    fields.ndim = next_fields.ndim = 0;
    fields.offsets = next_fields.offsets = NULL;
    fields.dtype = next_fields.dtype = steps.reward.dtype = PER_FLOAT32;
    steps.fields = &fields;
    steps.next_fields = &next_fields;
    CHECK(replay_add(replay, &steps, NULL, NULL) == PER_OK);
    CHECK(loader_options_init(&loader_options, sizeof loader_options) == PER_OK);
    loader_options.batch_size = 1000000; /* some are still being drawn when the library is closed */
    CHECK(loader_create(replay, &loader_options, &loader) == PER_OK);

    CHECK(dlclose(library) == 0);
    CHECK(batch_init(&batch, sizeof batch) == PER_OK);
    for (i = 0; i < 5; ++i) {
        CHECK(loader_next(loader, -1, &batch, &slot, NULL) == PER_OK);
        CHECK(batch.reward[999999] == 3 && batch.ids[999999] == 0);
        CHECK(loader_release(loader, slot, NULL) == PER_OK);
    }
    nanosleep(&moment, NULL);
    return 0; /* returns while the loader is in that state */
}
