/*
 * per/hindsight.h - hindsight experience replay: transitions relabelled with other goals (Andrychowicz et al. 2017).
 *
 * For environments whose observations contain a goal. When transitions are drawn, some of them get a goal that their
 * episode actually achieved, and a function of the program computes their new reward. Stored data does not change.
 *
 *     #include <per.h>
 *     #include <stdio.h>
 *     #include <stdlib.h>
 *
 *     static void check(per_status status) {
 *         if (status == PER_OK) return;
 *         fprintf(stderr, "%s\n", per_last_error());
 *         exit(1);
 *     }
 *
 *     static int32_t reward_of(void* context, int64_t count, const void* achieved, const void* goals, float* rewards_out,
 *                              uint8_t* terminated_out) {
 *         (void)context, (void)terminated_out;
 *         for (int64_t i = 0; i < count; i++)
 *             rewards_out[i] = ((const float*)achieved)[i] == ((const float*)goals)[i] ? 0.0f : -1.0f;
 *         return 0;
 *     }
 *
 *     int main(void) {
 *         per_field fields[2] = {{.name = "observation", .dtype = PER_FLOAT32},
 *                                {.name = "goal", .dtype = PER_FLOAT32}};
 *         per_replay_options options;
 *         per_replay* replay;
 *         check(per_replay_options_init(&options, sizeof options));
 *         options.capacity = 1000;
 *         options.fields = fields;
 *         options.n_fields = 2;
 *         options.field_size = sizeof *fields;
 *         check(per_replay_create(&options, &replay));
 *
 *         for (int t = 0; t < 10; t++) { // an episode that never gets to 100
 *             float observation = t, next_observation = t + 1, goal = 100, reward = -1;
 *             uint8_t terminated = 0, truncated = t == 9;
 *             per_array arrays[2] = {{.data = &observation, .dtype = PER_FLOAT32},
 *                                    {.data = &goal, .dtype = PER_FLOAT32}};
 *             per_array next_arrays[2] = {{.data = &next_observation, .dtype = PER_FLOAT32}};
 *             per_steps steps;
 *             check(per_steps_init(&steps, sizeof steps));
 *             steps.fields = arrays;
 *             steps.next_fields = next_arrays;
 *             steps.reward = (per_array){.data = &reward, .dtype = PER_FLOAT32};
 *             steps.terminated = (per_array){.data = &terminated, .dtype = PER_BOOL};
 *             steps.truncated = (per_array){.data = &truncated, .dtype = PER_BOOL};
 *             check(per_replay_add(replay, &steps, NULL, NULL));
 *         }
 *
 *         float observation[4], goal[4], reward[4];
 *         void* arrays[2] = {observation, goal};
 *         per_hindsight_options hindsight;
 *         per_sample_options sample;
 *         per_batch batch;
 *         check(per_hindsight_options_init(&hindsight, sizeof hindsight));
 *         hindsight.achieved_field = 0;
 *         hindsight.goal_field = 1;
 *         hindsight.reward = reward_of;
 *         check(per_sample_options_init(&sample, sizeof sample));
 *         sample.hindsight = &hindsight;
 *         check(per_batch_init(&batch, sizeof batch));
 *         batch.fields = arrays;
 *         batch.reward = reward;
 *         check(per_replay_sample(replay, &sample, 4, &batch, NULL));
 *         for (int i = 0; i < 4; i++) printf("at %g, goal %g, reward %g\n", observation[i], goal[i], reward[i]);
 *         per_replay_free(replay);
 *         return 0;
 *     }
 */
#ifndef PER_HINDSIGHT_H
#define PER_HINDSIGHT_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * With `hindsight` in their options, per_replay_sample() and per_replay_get_windows() of per/replay.h relabel some of
 * the transitions that they write with other goals: hindsight experience replay (Andrychowicz et al. 2017, section
 * 3.3). The buffer does not change.
 *
 * Each transition is relabelled with probability `fraction`. Its goal field is replaced, in every frame of a stack, by
 * the goal achieved after a step of its episode that `strategy` allows. If the field is an observation, its next_ value
 * is replaced, too. Zero frames that precede the episode (PER_PADDING_ZERO) stay zero. Eligible steps of an episode are
 * those whose rows have not been overwritten and whose next observation is known; of a running episode, those added so
 * far. A window that ends in an unknown terminal state (next_mask 0) is not relabelled. Relabelling does not affect
 * which transitions are drawn, their weights or priorities. The random choices are the handle's: the same seed and the
 * same calls give the same goals. To make these choices, per_replay_get_windows() advances the random state by one
 * draw, as an epoch does; that draw also serves n_step_min, and counts in `samples`.
 *
 * One call of `reward` then computes the rewards of all steps in the windows of relabelled transitions, if there are
 * any. Its arrays are in host memory, on PER_CUDA too, so the same function serves both devices.
 *
 *   count           steps, window by window in batch order, each window in time order
 *   achieved        [count, shape of the field] the goal achieved after the step
 *   goals           [count, shape of the field] the goal of its transition
 *   rewards_out     [count] receives the reward of each step
 *   terminated_out  [count] whether the step ends in a terminal state (nonzero: true): initially the stored flag, which
 *                   may be changed
 *   returns         0; any other value makes the call fail
 *
 * reward, discount, gamma_m, n_steps, terminated and next_fields are computed from the results as from stored steps: a
 * window ends at its first terminal step. `truncated` is the stored flag of the step where a window ends, or 0 if that
 * step is terminal. A step given with both flags was stored as terminated only: if the function clears `terminated`,
 * both flags are 0. A sequence gets one goal, which PER_GOAL_FUTURE takes from its first step or a later one; rewards
 * are computed for all its steps and for those that its last returns reach. A terminal step ends the windows of
 * returns, as for single transitions; padding is unchanged.
 *
 * `reward` runs on the thread of the call without a lock on the buffer: it may use any handle, including this one, but
 * must not free it. Changes made meanwhile do not affect the batch. `reward` must not leave by an exception or longjmp;
 * it may end its thread by pthread_exit(), which counts as a failure.
 *
 * The call is PER_ERROR_CALLBACK if `reward` fails. After that, and possibly after PER_ERROR_OUT_OF_MEMORY, the arrays
 * of the batch have been written to. A failed call does not count as a draw, unless other draws were made while
 * `reward` ran, by it or by another thread: its draw number is then used up. If `reward` or an allocation fails after
 * the transitions are drawn, they still count as used (keep_times_sampled). Cost: the draw, plus reading one byte per
 * step of the episodes up to their ends. Synchronises.
 */

/*
 * Steps in a transition's episode from which its new goal may be taken (Andrychowicz et al. 2017, arXiv:1707.01495,
 * section 4.5).
 */
typedef enum per_goal_strategy {
    PER_GOAL_FUTURE = 0, /* its own step and all later ones, each equally likely */
    PER_GOAL_FINAL = 1,  /* the last one */
    PER_GOAL_EPISODE = 2 /* all, each equally likely */
} per_goal_strategy;

/* Fill with per_hindsight_options_init(), then set the fields and `reward`, and change what differs. */
typedef struct per_hindsight_options {
    uint64_t struct_size;   /* set by _init; do not change */
    int32_t achieved_field; /* index of the observation field with the goal that a state achieves; _init: -1, to be
                               set */
    int32_t goal_field;     /* index of the field with the pursued goal, of the same dtype and shape; _init: -1, to be
                               set */
    int32_t strategy;       /* a per_goal_strategy; _init: PER_GOAL_FUTURE */
    int32_t reserved;       /* 0 */
    double fraction;        /* probability that a transition is relabelled, 0 .. 1: k / (k + 1) for k relabelled goals
                               per pursued one; _init: 0.8 */
    /* The reward function, as described above. _init: NULL, to be set */
    int32_t (*reward)(void* context, int64_t count, const void* achieved, const void* goals, float* rewards_out,
                      uint8_t* terminated_out);
    void* context; /* given to reward; _init: NULL */
} per_hindsight_options;

/* Like per_tree_options_init(). */
PER_API per_status per_hindsight_options_init(per_hindsight_options* options, uint64_t struct_size);

#ifdef __cplusplus
}
#endif

#endif /* PER_HINDSIGHT_H */
