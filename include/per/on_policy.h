/*
 * per/on_policy.h - for learners that use each rollout a few times and then drop it, such as PPO.
 *
 * The rollout is stored in an ordinary buffer. Advantages are computed into one of its fields, minibatches are drawn
 * until every transition has been used n_epochs times, and per_replay_clear() makes room for the next rollout.
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
 *     int main(void) {
 *         float zero = 0;
 *         const per_array default_value = {.data = &zero, .dtype = PER_FLOAT32};
 *         per_field fields[3] = {{.name = "observation", .dtype = PER_FLOAT32},
 *                                {.name = "value", .dtype = PER_FLOAT32},
 *                                {.name = "advantage", .dtype = PER_FLOAT32, .default_value = &default_value}};
 *         per_replay_options options;
 *         per_replay* replay;
 *         check(per_replay_options_init(&options, sizeof options));
 *         options.fields = fields;
 *         options.n_fields = 3;
 *         options.field_size = sizeof *fields;
 *         check(per_replay_compute_capacity(&options, 4, 1, &options.capacity)); // a rollout of four steps
 *         check(per_replay_create(&options, &replay));
 *
 *         for (int t = 0; t < 4; t++) {
 *             float observation = t, next_observation = t + 1, value = 0, reward = 1;
 *             uint8_t terminated = t == 3, truncated = 0;
 *             per_array arrays[3] = {{.data = &observation, .dtype = PER_FLOAT32},
 *                                    {.data = &value, .dtype = PER_FLOAT32}};
 *             per_array next_arrays[3] = {{.data = &next_observation, .dtype = PER_FLOAT32}};
 *             per_steps steps;
 *             check(per_steps_init(&steps, sizeof steps));
 *             steps.fields = arrays;
 *             steps.next_fields = next_arrays;
 *             steps.reward = (per_array){.data = &reward, .dtype = PER_FLOAT32};
 *             steps.terminated = (per_array){.data = &terminated, .dtype = PER_BOOL};
 *             steps.truncated = (per_array){.data = &truncated, .dtype = PER_BOOL};
 *             check(per_replay_add(replay, &steps, NULL, NULL));
 *         }
 *         // The episode has ended, so that no value has to be bootstrapped: count is 0.
 *         check(per_replay_compute_advantages(replay, 1, 2, -1, 0.95, 0, NULL, NULL, NULL));
 *
 *         float observation[2], advantage[2];
 *         void* arrays[3] = {observation, NULL, advantage};
 *         per_batch batch;
 *         per_epochs* epochs;
 *         int64_t count;
 *         check(per_batch_init(&batch, sizeof batch));
 *         batch.fields = arrays;
 *         check(per_epochs_create(replay, 3, 2, 0, NULL, &epochs)); // three epochs, in minibatches of two
 *         for (;;) {
 *             check(per_epochs_next(epochs, &batch, &count, NULL));
 *             if (count == 0) break;
 *             for (int i = 0; i < count; i++) printf("step %g, advantage %.3f\n", observation[i], advantage[i]);
 *         }
 *         per_epochs_free(epochs);
 *         per_replay_free(replay);
 *         return 0;
 *     }
 */
#ifndef PER_ON_POLICY_H
#define PER_ON_POLICY_H

#include "replay.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Epochs over all live transitions or sequences: each epoch returns every one of them once, in a new random order, in
 * minibatches. Several threads may draw from them: each minibatch is handed out once. The transitions are those live at
 * per_epochs_create(); later additions are not included.
 *
 * Epochs keep a pointer to their buffer, which must not be freed before the last call of per_epochs_next().
 */
typedef struct per_epochs per_epochs;

/*
 * Creates epochs and stores them in *epochs_out (NULL on failure). Free them with per_epochs_free(). Synchronises:
 * epochs are kept in host memory.
 *
 *   n_epochs    1 .. 2^24
 *   batch_size  1 .. 2^24: transitions of a minibatch
 *   drop_last   0: the last minibatch of an epoch has the remaining transitions. Otherwise it is dropped if fewer than
 *               batch_size remain; batch_size must then not exceed the number of live transitions
 *
 * Orders are uniform random permutations. Each epoch counts as one draw, and this call makes all of them: the seed and
 * the number of earlier draws determine every order, whatever is drawn in the meantime. Cost: one pass over the buffer,
 * and 8 bytes per transition until per_epochs_free().
 *
 * PER_ERROR_EMPTY if nothing is live; PER_ERROR_INVALID_ARGUMENT; PER_ERROR_OUT_OF_MEMORY. On an error nothing is
 * drawn.
 */
PER_API per_status per_epochs_create(per_replay* replay, int64_t n_epochs, int64_t batch_size, int32_t drop_last,
                                     void* stream, per_epochs** epochs_out);

/*
 * Writes the next minibatch as per_replay_sample() writes a batch, with the buffer's current n_step, gamma and stacks.
 * Because all transitions are used equally often, weights are 1, and probabilities are 1 over the number of
 * transitions.
 *
 *   batch      arrays with room for batch_size transitions
 *   count_out  transitions written; 0: the last epoch is over, and nothing was written
 *
 * PER_ERROR_INVALID_ARGUMENT if a transition of the minibatch is no longer live: overwritten, cleared, drawn
 * max_times_sampled times, or without a complete window after n_step was changed; for sequences also if n_step, and
 * thus the size of observations, has changed since the epochs were created. The epochs then do not advance. (PER_CUDA:
 * a transition that is not live gives id -1 and zeros and is counted, and the epochs advance.) A captured call writes
 * the same minibatch at every launch. On PER_CUDA the ids of more than 256 transitions go through a ring of pinned
 * memory; if it is full, the call waits for the device, and other threads' calls on the buffer wait for this one.
 */
PER_API per_status per_epochs_next(per_epochs* epochs, const per_batch* batch, int64_t* count_out, void* stream);

/* NULL is allowed. Does not touch the buffer. */
PER_API void per_epochs_free(per_epochs* epochs);

/*
 * Gathers the transitions for which per_replay_compute_advantages() needs the value of a next observation that no row
 * holds: the last step of each truncated episode whose final observation is known, and the latest step of each running
 * episode if the observation after it is known. They come environment by environment, in time order.
 *
 *   capacity   >= 0: number of transitions that the arrays of the batch have room for; if there are more, the first are
 *              written
 *   batch      single steps with stacks, even if the buffer draws sequences: fields, next_fields, reward, discount,
 *              n_steps (1), terminated, truncated, gamma_m, ids, priorities and times_sampled; weights, probabilities
 *              and mask must be NULL. May be NULL if capacity is 0
 *   count_out  their number, even if it exceeds capacity
 *
 * PER_ERROR_INVALID_ARGUMENT. Cost: one pass over the buffer. Synchronises.
 */
PER_API per_status per_replay_get_bootstraps(per_replay* replay, int64_t capacity, const per_batch* batch,
                                             int64_t* count_out, void* stream);

/*
 * Computes generalised advantage estimates (Schulman et al. 2016, arXiv:1506.02438, equation 16) into a field:
 *
 *   A_t     = delta_t + gamma lambda A_(t+1)          (A_(t+1) taken as 0 after the end of an episode)
 *   delta_t = r_t + gamma V(next_t) - V_t             (V(next_t) taken as 0 after a terminal state)
 *
 * over the rows of each lane that would be live with n_step 1; rows that are too old or used up may be among them. V_t
 * is the value field of row t and V(next_t) that of the row after it, or the bootstrap value where
 * per_replay_get_bootstraps() names the transition. Rows without such a value keep their advantage: the latest step of
 * a running episode if the observation after it is not known, and the last step of an episode truncated at an unknown
 * observation. The row before such a row takes A_(t+1) as 0.
 *
 *   value_field       index of a plain float32 field of shape (): V, as added with the step or set later
 *   advantage_field   index of another such field, which receives A
 *   return_field      index of a third such field, which receives A + V, the regression target of V; -1: none
 *   lambda            0 .. 1
 *   count             the current count of per_replay_get_bootstraps(); if 0, the arrays may be NULL
 *   ids               [count] ids of per_replay_get_bootstraps(), in its order
 *   bootstrap_values  [count] V of their next observations, finite
 *
 * PER_ERROR_INVALID_ARGUMENT: nothing is changed. (PER_CUDA: invalid ids and values known only to the device also
 * change nothing, and are counted.) Cost: one pass over the buffer.
 */
PER_API per_status per_replay_compute_advantages(per_replay* replay, int32_t value_field, int32_t advantage_field,
                                                 int32_t return_field, double lambda, int64_t count, const int64_t* ids,
                                                 const float* bootstrap_values, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* PER_ON_POLICY_H */
