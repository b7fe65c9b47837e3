/*
 * per/on_policy.h - for learners that use each rollout a few times and then drop it, such as PPO.
 *
 * The rollout lies in a buffer as any transitions do. Advantages are computed into one of its fields, minibatches are
 * taken until every transition was used n_epochs times, and per_replay_clear() makes room for the next rollout.
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
 * Epochs over all live transitions or sequences: each gives every one of them once, in another random order, in
 * minibatches. Several threads may take from them: each minibatch is given out once. The transitions are those that were
 * live at per_epochs_create(); what is added later has no part in them.
 *
 * Epochs keep a pointer to their buffer, which must not be freed before the last call of per_epochs_next().
 */
typedef struct per_epochs per_epochs;

/*
 * Begins epochs and stores them in *epochs_out (NULL on failure). Free them with per_epochs_free(). Synchronises: epochs
 * are kept in host memory.
 *
 *   n_epochs    1 .. 2^24
 *   batch_size  1 .. 2^24: transitions of a minibatch
 *   drop_last   0: the last minibatch of an epoch has what is left. Else it is left out if that is fewer than
 *               batch_size, which must then not be larger than the number of live transitions
 *
 * Orders are uniform random permutations. Each epoch counts as one draw, all of them made by this call: the seed and
 * the number of draws before it decide every order, whatever is drawn in the meantime. Cost: one pass over the
 * buffer, and 8 bytes a transition until per_epochs_free().
 *
 * PER_ERROR_EMPTY if nothing is live; PER_ERROR_INVALID_ARGUMENT; PER_ERROR_OUT_OF_MEMORY. Then nothing was drawn.
 */
PER_API per_status per_epochs_create(per_replay* replay, int64_t n_epochs, int64_t batch_size, int32_t drop_last,
                                     void* stream, per_epochs** epochs_out);

/*
 * Writes the next minibatch, as per_replay_sample() writes a batch: n_step, gamma and stacks as the buffer has them
 * now. All transitions being given equally often, weights are 1, and probabilities 1 over the number of transitions.
 *
 *   batch      its arrays have room for batch_size transitions
 *   count_out  transitions written; 0: the last epoch is over, and nothing was written
 *
 * PER_ERROR_INVALID_ARGUMENT if a transition of the minibatch is not live any more: overwritten, cleared, drawn
 * max_times_sampled times, or short of a window after n_step was changed; of sequences also if n_step, and so the
 * size of observations, is not what it was when they were created. The epochs then stay where they are. (PER_CUDA: for a
 * transition that is not live id -1 and zeros, counted, and the epochs go on.) A captured call writes the same
 * minibatch with every launch. On PER_CUDA the ids of more than 256 transitions go through a ring of pinned memory;
 * where that is full, the call waits for the device, and calls of other threads on the buffer for this one.
 */
PER_API per_status per_epochs_next(per_epochs* epochs, const per_batch* batch, int64_t* count_out, void* stream);

/* NULL is allowed. Does not touch the buffer. */
PER_API void per_epochs_free(per_epochs* epochs);

/*
 * Gathers the transitions whose next observation needs a value for per_replay_compute_advantages() that no row has: the last
 * step of each truncated episode whose final observation is known, and the latest step of each running episode if the
 * observation after it is known. Environment by environment, in order of time.
 *
 *   capacity   >= 0: for how many the arrays of the batch have room; if there are more, the first are written
 *   batch      single steps, also where sequences are drawn, with stacks: fields, next_fields, reward, discount,
 *              n_steps (1), terminated, truncated, gamma_m, ids, priorities and times_sampled; weights, probabilities
 *              and mask must be NULL. May be NULL if capacity is 0
 *   count_out  how many there are, also if that is more than capacity
 *
 * PER_ERROR_INVALID_ARGUMENT. Cost: one pass over the buffer. Synchronises.
 */
PER_API per_status per_replay_get_bootstraps(per_replay* replay, int64_t capacity, const per_batch* batch,
                                             int64_t* count_out, void* stream);

/*
 * Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438, equation 16), written to a field:
 *
 *   A_t     = delta_t + gamma lambda A_(t+1)          (A_(t+1) taken as 0 after the end of an episode)
 *   delta_t = r_t + gamma V(next_t) - V_t             (V(next_t) taken as 0 after a terminal state)
 *
 * over the rows of each lane that would be live with n_step 1. V_t is the value field of row t and V(next_t) that of
 * the row after it, or the bootstrap value where per_replay_get_bootstraps() names the transition. A row that is not
 * reached by that - the latest step of a running episode if the observation after it is not known, the last of one
 * that was truncated at an unknown observation - keeps its advantage, and the row before it takes A_(t+1) as 0.
 *
 *   value_field       number of a plain float32 field of shape (): V, as it was when the step was added or set since
 *   advantage_field   number of another one: where A goes
 *   return_field      number of a third one: where A + V goes, what V is fitted to; -1: nowhere
 *   lambda            0 .. 1
 *   count             as per_replay_get_bootstraps() counts now; if 0, the arrays may be NULL
 *   ids               [count] those of per_replay_get_bootstraps(), in its order
 *   bootstrap_values  [count] V of their next observations, finite
 *
 * PER_ERROR_INVALID_ARGUMENT: nothing is changed. (PER_CUDA: for ids and values known on the device only, nothing is
 * changed either, and that is counted.) Cost: one pass over the buffer.
 */
PER_API per_status per_replay_compute_advantages(per_replay* replay, int32_t value_field, int32_t advantage_field,
                                                 int32_t return_field, double lambda, int64_t count, const int64_t* ids,
                                                 const float* bootstrap_values, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* PER_ON_POLICY_H */
