/*
 * A step may involve only some environments: by mask, which hides the other values, or by env_ids. The other
 * environments are unaffected.
 */
#include "replay_check.h"

enum { ENVS = 4 };

static per_replay* create(void) {
    per_replay_options options = replay_options(40, ENVS);
    options.gamma = 0.5;
    return create_replay(&options);
}

static void check_same(per_replay* a, per_replay* b) {
    static rows drawn;
    const per_replay_statistics expected = stats_of(b);
    check_same_statistics(a, &expected);
    check_same_draw(a, b, 256, &drawn);
}

/* Masked entries are NaN, infinities and numbers out of float32's range. In float64 calls these would be errors if they
   were read. */
static void masked_values_are_not_looked_at(void) {
    per_replay *masked = create(), *listed = create();
    const double poison = 1e300;
    for (int t = 0; t < 30; ++t) {
        double observation[ENVS], next[ENVS], reward[ENVS], priorities[ENVS], terminated[ENVS], truncated[ENVS];
        uint8_t mask[ENVS], next_mask[ENVS];
        int64_t ids[ENVS], id;
        call given;
        for (int env = 0; env < ENVS; ++env) {
            const int on = (t * 7 + env * 5) % 3 != 0, ends = (t + env) % 5 == 0;
            mask[env] = (uint8_t)on;
            next_mask[env] = on ? 1 : (uint8_t)(t & 1);
            observation[env] = on ? 1000 * env + t : poison;
            next[env] = on ? 1000 * env + t + 0.5 : -poison;
            reward[env] = on ? t : poison;
            priorities[env] = on ? 1 + t : NAN;
            terminated[env] = on ? ends : NAN;
            truncated[env] = on ? 0 : INFINITY;
            if (!on) continue;
            /* The other buffer gets the same steps, one environment at a time. */
            fill_call(&given, 1, NULL, NULL, NULL, NULL, NULL);
            {
                const float observation_32 = (float)observation[env], next_32 = (float)next[env];
                const float reward_32 = (float)t, priority_32 = 1 + (float)t;
                const uint8_t ended = (uint8_t)ends;
                const int64_t only = env;
                fill_call(&given, 1, &observation_32, &next_32, &reward_32, &ended, NULL);
                given.steps.n_envs = 1;
                given.steps.env_ids = &only;
                given.steps.priorities = array_of(&priority_32, PER_FLOAT32);
                CHECK_OK(per_replay_add(listed, &given.steps, &id, NULL));
            }
        }
        fill_call(&given, 1, NULL, (const float*)next, NULL, NULL, NULL);
        given.observation = array_of(observation, PER_FLOAT64);
        given.next = array_of(next, PER_FLOAT64);
        given.steps.reward = array_of(reward, PER_FLOAT64);
        given.steps.terminated = array_of(terminated, PER_FLOAT64);
        given.steps.truncated = array_of(truncated, PER_FLOAT64);
        given.steps.priorities = array_of(priorities, PER_FLOAT64);
        given.steps.mask = array_of(mask, PER_BOOL);
        given.steps.next_mask = array_of(next_mask, PER_BOOL);
        CHECK_OK(per_replay_add(masked, &given.steps, ids, NULL));
        for (int env = 0; env < ENVS; ++env) CHECK(mask[env] ? ids[env] % ENVS == env : ids[env] == -1);
    }
    check_same(masked, listed);
    free_both(masked, listed);
}

/* The same values without the mask are errors, so the mask did hide them. */
static void the_same_values_unmasked_are_errors(void) {
    per_replay* replay = create();
    const double poison[ENVS] = {0, 0, 1e300, 0}, good[ENVS] = {0, 0, 0, 0};
    const uint8_t mask[ENVS] = {1, 1, 0, 1};
    const float rewards[ENVS] = {0, 0, 0, 0};
    call given;
    fill_call(&given, 1, (const float*)poison, NULL, rewards, NULL, NULL);
    given.observation = array_of(poison, PER_FLOAT64);
    CHECK_BAD_STEP(per_replay_add(replay, &given.steps, NULL, NULL), "observation[2]");
    CHECK(stats_of(replay).added == (on_cuda() ? 3 : 0));
    CHECK_OK(per_replay_clear(replay, NULL));
    given.steps.mask = array_of(mask, PER_BOOL);
    CHECK_OK(per_replay_add(replay, &given.steps, NULL, NULL));
    CHECK(stats_of(replay).added == (on_cuda() ? 6 : 3));
    given.observation = array_of(good, PER_FLOAT64);
    given.steps.mask = array_of(NULL, 0);
    CHECK_OK(per_replay_add(replay, &given.steps, NULL, NULL));
    CHECK(stats_of(replay).added == (on_cuda() ? 10 : 7));
    per_replay_free(replay);
}

/* Values of the next observation are ignored where next_mask is 0. */
static void unavailable_next_observations_are_not_looked_at(void) {
    const double observation[] = {1, 2}, next[] = {1.5, 1e300};
    const float rewards[] = {0, 0};
    const uint8_t next_mask[] = {1, 0};
    per_replay* replay = create_plain(40, 2);
    call given;
    fill_call(&given, 1, NULL, (const float*)next, rewards, NULL, NULL);
    given.observation = array_of(observation, PER_FLOAT64);
    given.next = array_of(next, PER_FLOAT64);
    CHECK_BAD_STEP(per_replay_add(replay, &given.steps, NULL, NULL), "next_observation[1]");
    /* CUDA refuses individual steps and has added that of the other environment: its lane starts over. */
    CHECK_OK(per_replay_clear(replay, NULL));
    given.steps.next_mask = array_of(next_mask, PER_BOOL);
    CHECK_OK(per_replay_add(replay, &given.steps, NULL, NULL));
    CHECK_LIVE(replay, on_cuda() ? 2 : 0);
    per_replay_free(replay);
}

static void a_masked_trajectory_goes_on_at_its_next_step(void) {
    per_replay_options options = replay_options(40, 2);
    const float first[] = {0, 100}, first_next[] = {1, 101}, second[] = {1, -1}, second_next[] = {2, -1};
    const float third[] = {2, 101}, third_next[] = {3, 102}, rewards[] = {1, 2};
    const uint8_t mask[] = {1, 0};
    int64_t ids[2];
    call given;
    options.gamma = 0.5;
    per_replay* replay = create_replay(&options);
    add_given(replay, 1, first, first_next, rewards, NULL, NULL, ids);
    fill_call(&given, 1, second, second_next, rewards, NULL, NULL);
    given.steps.mask = array_of(mask, PER_BOOL);
    CHECK_OK(per_replay_add(replay, &given.steps, ids, NULL));
    CHECK(ids[0] == 2 && ids[1] == -1);
    add_given(replay, 1, third, third_next, rewards, NULL, NULL, ids);
    CHECK(ids[0] == 4 && ids[1] == 3);
    CHECK(stats_of(replay).cuts == 0);
    CHECK_LIVE(replay, 0, 1, 2, 3, 4);
    CHECK_WINDOW(replay, 1, 100, 2, 0.5f, 101, 1, 0, 0);
    per_replay_free(replay);
}

static void environments_may_be_listed_in_any_order(void) {
    per_replay* replay = create();
    const int64_t listed[] = {3, 1}, twice[] = {1, 3, 1}, beyond[] = {0, ENVS}, below[] = {-1, 0};
    const float observation[] = {300, 100, 0, 0}, rewards[] = {3, 1, 0, 0}, next[] = {301, 101, 0, 0};
    int64_t ids[4] = {-7, -7, -7, -7};
    call given;
    fill_call(&given, 1, observation, next, rewards, NULL, NULL);
    given.steps.n_envs = 2;
    given.steps.env_ids = listed;
    CHECK_OK(per_replay_add(replay, &given.steps, ids, NULL));
    CHECK(ids[0] == 3 && ids[1] == 1 && ids[2] == -7);
    CHECK_LIVE(replay, 1, 3);
    CHECK_WINDOW(replay, 3, 300, 3, 0.5f, 301, 1, 0, 0);
    CHECK_WINDOW(replay, 1, 100, 1, 0.5f, 101, 1, 0, 0);

    ids[0] = -7;
    given.steps.n_envs = 3;
    given.steps.env_ids = twice;
    CHECK_REFUSED(per_replay_add(replay, &given.steps, ids, NULL), "env_ids[2]");
    given.steps.n_envs = 2;
    given.steps.env_ids = beyond;
    CHECK_REFUSED(per_replay_add(replay, &given.steps, ids, NULL), "env_ids[1]");
    given.steps.env_ids = below;
    CHECK_REFUSED(per_replay_add(replay, &given.steps, ids, NULL), "env_ids[0]");
    given.steps.n_envs = -1;
    CHECK_REFUSED(per_replay_add(replay, &given.steps, ids, NULL), "n_envs");
    CHECK(ids[0] == -7 && stats_of(replay).added == 2);
    /* After a refused call, the environment does not count as listed twice. */
    given.steps.n_envs = 2;
    given.steps.env_ids = listed;
    CHECK_OK(per_replay_add(replay, &given.steps, ids, NULL));
    given.steps.n_envs = 0;
    CHECK_OK(per_replay_add(replay, &given.steps, NULL, NULL));
    CHECK(stats_of(replay).added == 4);
    per_replay_free(replay);
}

int main(void) {
    masked_values_are_not_looked_at();
    the_same_values_unmasked_are_errors();
    unavailable_next_observations_are_not_looked_at();
    a_masked_trajectory_goes_on_at_its_next_step();
    environments_may_be_listed_in_any_order();
    return 0;
}
