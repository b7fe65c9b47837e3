/*
 * per/hindsight.h - hindsight experience replay: transitions with other goals (Andrychowicz et al. 2017).
 *
 * For environments whose observations contain a goal. What an episode reached instead of its goal becomes the goal of
 * some of its transitions when they are drawn, and a function of the program says what reward they then have. What is
 * stored does not change.
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
 * With `hindsight` in their options, per_replay_sample() and per_replay_get_windows() of per/replay.h put other goals
 * into some of the transitions that they write: hindsight experience replay (Andrychowicz et al. 2017, section 3.3).
 * The buffer stays as it is.
 *
 * Each transition is relabelled with probability `fraction`. Its goal field, and next_ of it if that field is an
 * observation, in every frame of a stack, become what was achieved after a step of its episode that `strategy` allows; frames that
 * are zeros because they are from before the episode (PER_PADDING_ZERO) stay zeros. Of an episode count the steps whose
 * rows have not been overwritten and whose next observation is known; of a running one those that were added so far. A
 * window that ends in a terminal state which nobody knows (next_mask 0) is not relabelled. Which transitions are drawn,
 * their weights and priorities do not depend on relabelling. The random choices are the handle's: the same seed and the
 * same calls give the same goals. For them per_replay_get_windows() takes a number from the draws, as an epoch
 * does, which serves n_step_min too, and counts in `samples`.
 *
 * The rewards of all steps in the windows of relabelled transitions are then asked for in one call of `reward`, if there
 * are any, with arrays in host memory, on PER_CUDA too: the same function serves both.
 *
 *   count           steps, window after window in the order of the batch, each in order of time
 *   achieved        [count, shape of the field] what was achieved after the step
 *   goals           [count, shape of the field] the goal of its transition
 *   rewards_out     [count] to be written
 *   terminated_out  [count] whether it ends in a terminal state: holds what was stored, to be left or changed (nonzero: true)
 *   returns         0; with anything else the call fails
 *
 * From the answers reward, discount, gamma_m, n_steps, terminated and next_fields are formed as from stored steps: a
 * window ends at its first terminal step. `truncated` is that of the step where a window ends, as it was stored: 0 for
 * a step that was stored with both flags, which is then terminated, or neither if the function says so. A sequence gets
 * one goal, for PER_GOAL_FUTURE from its first step on; asked for are the rewards of all its steps and of those that
 * its last returns reach. A terminal step ends the windows of returns, as it does of transitions drawn by themselves;
 * what is padding stays as it is.
 *
 * `reward` runs on the thread of the call, and the buffer is not locked: it may use any handle, this one too, but not
 * free it. The batch does not see what happens meanwhile. It must not leave by an exception or longjmp; it may end its
 * thread by pthread_exit(), which is as if it failed.
 *
 * The call is PER_ERROR_CALLBACK if `reward` fails. After that, and possibly after PER_ERROR_OUT_OF_MEMORY, the arrays
 * of the batch have been written to. A call that fails is no draw, but for one whose `reward` fails after others drew
 * meanwhile: its number is used up. Where `reward` or memory fails once the transitions are drawn, they have been used
 * all the same (keep_times_sampled). Cost: that of the draw, and of reading a byte a step of the episodes up to their
 * ends. Synchronises.
 */

/* Which steps of its episode may give a transition its other goal (Andrychowicz et al. 2017, arXiv:1707.01495, section
   4.5): what was achieved after them. */
typedef enum per_goal_strategy {
    PER_GOAL_FUTURE = 0, /* its own step and all later ones, each equally likely */
    PER_GOAL_FINAL = 1,  /* the last one */
    PER_GOAL_EPISODE = 2 /* all, each equally likely */
} per_goal_strategy;

/* Fill with per_hindsight_options_init(), then set the fields and `reward`, and change what differs. */
typedef struct per_hindsight_options {
    uint64_t struct_size;   /* set by _init; do not change */
    int32_t achieved_field; /* number of an observation: the goal that a state is one of; _init: -1, to be set */
    int32_t goal_field;     /* number of the field with the goal pursued, of the same dtype and shape; _init: -1, to be
                               set */
    int32_t strategy;       /* a per_goal_strategy; _init: PER_GOAL_FUTURE */
    int32_t reserved;       /* 0 */
    double fraction;        /* probability that a transition gets another goal, 0 .. 1: k / (k + 1) for k such goals to
                               each one pursued; _init: 0.8 */
    /* The reward function, as described above. _init: NULL, to be set */
    int32_t (*reward)(void* context, int64_t count, const void* achieved, const void* goals, float* rewards_out,
                      uint8_t* terminated_out);
    void* context; /* given to reward; _init: NULL */
} per_hindsight_options;

/* As per_tree_options_init(). */
PER_API per_status per_hindsight_options_init(per_hindsight_options* options, uint64_t struct_size);

#ifdef __cplusplus
}
#endif

#endif /* PER_HINDSIGHT_H */
