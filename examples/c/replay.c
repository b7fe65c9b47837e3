/*
 * Q-learning with prioritized replay on the Blind Cliffwalk, the example of section 3.1 of Schaul et al. 2016: in each
 * of N_STATES states one of two actions moves on and the other ends the episode with nothing; only the last right
 * action is rewarded. Random play gets there once in 2^N_STATES episodes, and priorities find these few transitions
 * again.
 */
#include <math.h>
#include <per.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_STATES = 8, N_ENVS = 4, N_STEPS = 4000, BATCH = 32, N_BATCHES = 4000 };

static void check(per_status status) {
    if (status != PER_OK) {
        fprintf(stderr, "%s: %s\n", per_status_name(status), per_last_error());
        exit(1);
    }
}

static per_array array(const void* data, per_dtype dtype) {
    per_array array = {data, NULL, 0, dtype, NULL};
    return array;
}

static per_replay* create_replay(void) {
    per_field fields[2] = {{0}};
    fields[0].name = "observation";
    fields[0].dtype = PER_UINT8;
    fields[1].name = "action";
    fields[1].dtype = PER_UINT8;

    per_replay_options options;
    check(per_replay_options_init(&options, sizeof options));
    options.capacity = 20000;
    options.fields = fields;
    options.n_fields = 2;
    options.field_size = sizeof(per_field);
    options.n_envs = N_ENVS;
    options.gamma = 0.9;
    options.beta_steps = N_BATCHES;
    options.seed = 1;

    per_replay* replay;
    check(per_replay_create(&options, &replay));
    return replay;
}

/* One step of every environment with random actions. */
static void play(per_replay* replay, uint8_t state[N_ENVS]) {
    uint8_t action[N_ENVS], next_state[N_ENVS], terminated[N_ENVS], truncated[N_ENVS] = {0};
    float reward[N_ENVS];
    for (int i = 0; i < N_ENVS; i++) {
        action[i] = (uint8_t)(rand() / (RAND_MAX / 2 + 1));
        int moves_on = action[i] == state[i] % 2;
        next_state[i] = (uint8_t)(moves_on ? state[i] + 1 : state[i]);
        terminated[i] = !moves_on || next_state[i] == N_STATES;
        reward[i] = next_state[i] == N_STATES ? 1.0f : 0.0f;
    }

    per_array fields[2] = {array(state, PER_UINT8), array(action, PER_UINT8)};
    per_array next_fields[2] = {array(next_state, PER_UINT8)};
    per_steps steps;
    check(per_steps_init(&steps, sizeof steps));
    steps.fields = fields;
    steps.next_fields = next_fields;
    steps.reward = array(reward, PER_FLOAT32);
    steps.terminated = array(terminated, PER_BOOL);
    steps.truncated = array(truncated, PER_BOOL);
    check(per_replay_add(replay, &steps, NULL, NULL));

    for (int i = 0; i < N_ENVS; i++) {
        state[i] = terminated[i] ? 0 : next_state[i];
    }
}

/* One batch of Q-learning. `discount` is gamma, and 0 where the episode ended. */
static void learn(per_replay* replay, double q[N_STATES + 1][2]) {
    uint8_t observation[BATCH], action[BATCH], next_observation[BATCH];
    float reward[BATCH], discount[BATCH], weights[BATCH], td_errors[BATCH];
    int64_t ids[BATCH];
    void* fields[2] = {observation, action};
    void* next_fields[2] = {next_observation, NULL};
    per_batch batch;
    check(per_batch_init(&batch, sizeof batch));
    batch.fields = fields;
    batch.next_fields = next_fields;
    batch.reward = reward;
    batch.discount = discount;
    batch.weights = weights;
    batch.ids = ids;
    check(per_replay_sample(replay, NULL, BATCH, &batch, NULL));

    for (int i = 0; i < BATCH; i++) {
        const double* next_q = q[next_observation[i]];
        double* value = &q[observation[i]][action[i]];
        td_errors[i] = (float)(reward[i] + discount[i] * fmax(next_q[0], next_q[1]) - *value);
        *value += 0.1 * weights[i] * td_errors[i];
    }
    per_priorities priorities;
    check(per_priorities_init(&priorities, sizeof priorities));
    priorities.count = BATCH;
    priorities.ids = ids;
    priorities.td_errors = td_errors;
    check(per_replay_update_priorities(replay, &priorities, NULL));
}

int main(void) {
    per_replay* replay = create_replay();
    uint8_t state[N_ENVS] = {0};
    double q[N_STATES + 1][2] = {{0}};
    double error = 0;
    srand(1);
    for (int i = 0; i < N_STEPS; i++) {
        play(replay, state);
    }
    for (int i = 0; i < N_BATCHES; i++) {
        learn(replay, q);
    }
    for (int s = 0; s < N_STATES; s++) {
        double exact = pow(0.9, N_STATES - 1 - s);
        printf("state %d: value %.3f, exactly %.3f\n", s, q[s][s % 2], exact);
        error = fmax(error, fabs(q[s][s % 2] - exact));
    }
    per_replay_free(replay);
    return error < 0.01 ? 0 : 1;
}
