/*
 * A buffer that gets its steps through a channel is bit-identical to one that gets them by per_replay_add(): cast
 * values, masks, final observations, priorities, listed environments, cuts. This holds whether the library's thread
 * moves the steps or calls do, a few steps at a time.
 */
#include "channel_check.h"
#include "saved_bytes.h"

enum { ENVS = 4, LANES = 3, CALLS = 400, MOST = 6, SLOTS = 16 };

static const int64_t env_ids[LANES] = {2, 0, 3};

static per_replay* create_buffer(void) {
    static const int64_t two = 2;
    static const float seven = 7;
    static const per_array seventh = {&seven, &two, 0, PER_FLOAT32, NULL};
    per_replay_options options = replay_options(400, ENVS);
    per_field fields[3] = {field_of("observation", PER_FLOAT32, 1, &two), field_of("action", PER_INT32, 0, NULL),
                           field_of("value", PER_FLOAT64, 0, NULL)};
    fields[2].default_value = &seventh;
    set_fields(&options, fields, 3);
    options.n_step = 3;
    options.seed = 5;
    options.autoreset = PER_AUTORESET_NEXT_STEP;
    return create_replay(&options);
}

/* Random steps of the listed environments. Must not be copied. */
typedef struct given {
    float observation[MOST * LANES][2], next[MOST * LANES][2], priorities[MOST * LANES];
    int16_t action[MOST * LANES];
    float value[MOST * LANES];
    uint8_t reward[MOST * LANES], terminated[MOST * LANES], truncated[MOST * LANES], mask[MOST * LANES];
    uint8_t next_mask[MOST * LANES];
    int64_t lanes[LANES], envs[LANES];
    per_array fields[3], next_fields[3];
    per_steps steps;
} given;

static void fill(given* call, uint64_t* state) {
    const int64_t length = (int64_t)(next_random(state) % MOST) + 1;
    const uint64_t bits = next_random(state);
    int64_t n = LANES;
    memset(call, 0, sizeof *call);
    CHECK_OK(per_steps_init(&call->steps, sizeof call->steps));
    if (bits & 1) n = (int64_t)(next_random(state) % LANES) + 1;
    for (int64_t i = 0; i < n; ++i) {
        call->lanes[i] = (i + (int64_t)(bits >> 8)) % LANES;
        call->envs[i] = env_ids[call->lanes[i]];
    }
    for (int64_t i = 0; i < length * n; ++i) {
        const uint64_t r = next_random(state);
        call->observation[i][0] = (float)(r % 5);
        call->observation[i][1] = call->next[i][1] = 1;
        call->next[i][0] = (float)(r / 5 % 5);
        call->action[i] = (int16_t)(r >> 20);
        call->value[i] = (float)(r >> 40);
        call->reward[i] = (uint8_t)(r >> 50);
        call->terminated[i] = r % 11 == 0;
        call->truncated[i] = r % 13 == 0;
        call->mask[i] = r % 7 != 0;
        call->next_mask[i] = r % 3 != 0;
        call->priorities[i] = (float)(r % 17);
    }
    call->fields[0] = array_of(call->observation, PER_FLOAT32);
    call->fields[1] = array_of(call->action, PER_INT16);
    if (bits & 2) call->fields[2] = array_of(call->value, PER_FLOAT32);
    call->next_fields[0] = array_of(call->next, PER_FLOAT32);
    call->steps.length = length;
    call->steps.n_envs = n;
    call->steps.fields = call->fields;
    if (bits & 4) call->steps.next_fields = call->next_fields;
    call->steps.reward = array_of(call->reward, PER_UINT8);
    call->steps.terminated = array_of(call->terminated, PER_UINT8);
    call->steps.truncated = array_of(call->truncated, PER_BOOL);
    if (bits & 8) call->steps.mask = array_of(call->mask, PER_UINT8);
    if (bits & 16 || !(bits & 4)) call->steps.next_mask = array_of(call->next_mask, PER_BOOL);
    if (!(bits & 4)) memset(call->next_mask, 0, sizeof call->next_mask);
    if ((bits & 96) == 32) call->steps.priorities = array_of(call->priorities, PER_FLOAT32);
    if ((bits & 96) == 64) call->steps.td_errors = array_of(call->priorities, PER_FLOAT32);
}

/* Unmasked steps of single environments. */
static int64_t count_of(const given* call) {
    const int64_t n = call->steps.length * call->steps.n_envs;
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) count += call->steps.mask.data == NULL || call->mask[i] != 0;
    return count;
}

static void brings_the_same(int32_t moved_by) {
    per_replay *replay = create_buffer(), *twin = create_buffer();
    per_channel* channel = create_channel_moved_by(moved_by, replay, LANES, env_ids, SLOTS, PER_FULL_WAITS);
    per_writer* writer = attach(path_of(channel));
    static given call;
    uint64_t state = 3;
    const int by_calls = moved_by == PER_MOVED_BY_CALLS;
    int64_t steps = 0, count = 0, n_moved = 0;
    for (int i = 0; i < rounds(CALLS); ++i) {
        fill(&call, &state);
        call.steps.env_ids = call.lanes;
        if (by_calls && per_writer_add(writer, &call.steps, 0) != PER_OK) {
            n_moved += moved(channel, INT64_MAX);
            CHECK_OK(per_writer_add(writer, &call.steps, 0));
        } else if (!by_calls) {
            CHECK_OK(per_writer_add(writer, &call.steps, -1));
        }
        steps += call.steps.length;
        count += count_of(&call);
        if (by_calls) n_moved += moved(channel, (int64_t)(next_random(&state) % 12));
        call.steps.env_ids = call.envs;
        CHECK_OK(per_replay_add(twin, &call.steps, NULL, NULL));
        if (i % 50 == 49) {
            const int64_t lane = 1;
            if (by_calls) n_moved += moved(channel, INT64_MAX);
            CHECK_OK(per_writer_cut(writer, 1, &lane, -1));
            CHECK_OK(per_replay_cut(twin, 1, &env_ids[1], NULL));
        }
        if (i % 20 != 0) continue;
        if (by_calls) {
            n_moved += moved(channel, INT64_MAX);
            CHECK(n_moved == count);
        }
        CHECK_OK(i % 40 == 0 ? per_channel_flush(channel, -1) : per_writer_flush(writer, -1));
        check_same_saves(replay, twin);
    }
    CHECK_OK(per_channel_flush(channel, -1));
    check_same_saves(replay, twin);
    CHECK(live_of(replay) > 0);
    CHECK(channel_stats(channel).added == steps);
    CHECK(channel_stats(channel).refused == 0);
    CHECK(channel_stats(channel).waiting == 0);

    per_writer_free(writer);
    CHECK(channel_stats(channel).attached == 0);
    per_channel_free(channel);
    free_both(replay, twin);
}

int main(void) {
    brings_the_same(PER_MOVED_BY_THREAD);
    brings_the_same(PER_MOVED_BY_CALLS);
    return 0;
}
