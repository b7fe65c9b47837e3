/*
 * per/mixture.h - one batch from several buffers, in fixed shares.
 *
 * It serves agents that learn from demonstrations as well as from their own steps (Ball et al. 2023, "Efficient Online
 * Reinforcement Learning with Offline Data", take half of each batch from each), or from one buffer per task. Each
 * buffer draws its rows as it would alone; the rows of the buffers follow each other, and the weights are those of the
 * mixture. Here half of each batch comes from demonstrations:
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
 *     static per_replay* buffer_of(int steps, float first) {
 *         per_field field = {.name = "observation", .dtype = PER_FLOAT32};
 *         per_replay_options options;
 *         per_replay* replay;
 *         check(per_replay_options_init(&options, sizeof options));
 *         options.capacity = 1000;
 *         options.fields = &field;
 *         options.n_fields = 1;
 *         options.field_size = sizeof field;
 *         check(per_replay_create(&options, &replay));
 *         for (int t = 0; t < steps; t++) {
 *             float observation = first + t, next_observation = first + t + 1, reward = 1;
 *             uint8_t terminated = 0, truncated = 0;
 *             per_array array = {.data = &observation, .dtype = PER_FLOAT32};
 *             per_array next_array = {.data = &next_observation, .dtype = PER_FLOAT32};
 *             per_steps steps;
 *             check(per_steps_init(&steps, sizeof steps));
 *             steps.fields = &array;
 *             steps.next_fields = &next_array;
 *             steps.reward = (per_array){.data = &reward, .dtype = PER_FLOAT32};
 *             steps.terminated = (per_array){.data = &terminated, .dtype = PER_BOOL};
 *             steps.truncated = (per_array){.data = &truncated, .dtype = PER_BOOL};
 *             check(per_replay_add(replay, &steps, NULL, NULL));
 *         }
 *         return replay;
 *     }
 *
 *     int main(void) {
 *         per_source sources[2] = {{.replay = buffer_of(100, 0), .share = 1},
 *                                  {.replay = buffer_of(10, 1000), .share = 1}};
 *         float observation[4], weights[4], td_errors[4];
 *         int64_t ids[4];
 *         int32_t source_of[4];
 *         void* fields[1] = {observation};
 *         per_batch batch;
 *         check(per_batch_init(&batch, sizeof batch));
 *         batch.fields = fields;
 *         batch.weights = weights;
 *         batch.ids = ids;
 *         check(per_mixture_sample(sources, 2, NULL, 4, &batch, source_of, NULL));
 *         for (int i = 0; i < 4; i++) {
 *             printf("source %d: observation %g, weight %g\n", source_of[i], observation[i], weights[i]);
 *             td_errors[i] = 1;
 *         }
 *         per_priorities priorities;
 *         check(per_priorities_init(&priorities, sizeof priorities));
 *         priorities.count = 4;
 *         priorities.ids = ids;
 *         priorities.td_errors = td_errors;
 *         check(per_mixture_update_priorities(sources, 2, &priorities, source_of, NULL));
 *         for (int i = 0; i < 2; i++) per_replay_free(sources[i].replay);
 *         return 0;
 *     }
 */
#ifndef PER_MIXTURE_H
#define PER_MIXTURE_H

#include "replay.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Handling of a source that has no live transition. */
typedef enum per_when_empty {
    PER_EMPTY_ERROR = 0, /* a batch in which the source has rows is PER_ERROR_EMPTY */
    PER_EMPTY_OTHERS = 1 /* the source gets no rows and is owed none later; the others divide its share in proportion to
                            their own. If all sources with a share are empty: PER_ERROR_EMPTY */
} per_when_empty;

/*
 * A buffer of a mixture, and its share of each batch. The caller keeps an array of sources from batch to batch. It is
 * the whole state of the mixture, and only one call at a time may use it. Shares may be changed between calls.
 *
 * The buffers must be distinct and on one device, and their batches must have the same arrays: the same fields (name,
 * shape, dtype, role, stack and max_length, in the same order), and the same sequence_length, burn_in and, with
 * sequences, n_step. Everything else may differ.
 */
typedef struct per_source {
    per_replay* replay; /* still usable by itself */
    double share;       /* finite and >= 0, not 0 in all sources: the share is share / sum of all shares */
    int64_t carry;      /* what earlier batches owe this source, in units of 2^-32 rows; per_mixture_sample() keeps it.
                           0 at the beginning; -2^40 .. 2^40 */
    int32_t when_empty; /* a per_when_empty. With PER_EMPTY_OTHERS on PER_CUDA the call waits for the device, and must
                           not be captured */
    int32_t reserved;   /* 0 */
} per_source;

/*
 * Draws a batch from all sources, as one call.
 *
 * Each source gets a whole number of rows; the numbers add up to batch_size. What rounding adds to or takes from a
 * source is carried over to the next batch, so that shares are exact in the long run: 33 rows in two equal shares are
 * 17 and 16, then 16 and 17. A source that gets n rows draws them as per_replay_sample() with batch_size n does; one
 * that gets none makes no draw. A share of 0 gets no rows, whatever its carry. The rows of sources[0] come first, then
 * those of sources[1], and so on.
 *
 * Row i of source k has P(i) = share_k P_k(i), where P_k(i) is its probability in its own buffer, and the weight
 *
 *   w_i = (N P(i))^-beta / max_j (N P(j))^-beta
 *
 * where N is the number of live transitions of all sources, and the maximum is over the whole batch. With PER_NONE the
 * divisor is 1. If beta is NAN, row i has the beta of its buffer's schedule, in the numerator and in the divisor: the
 * least probable row of the batch then has weight 1, and no weight is larger.
 *
 *   n_sources    1 .. 32
 *   options      as in per_replay_sample(), but normalize_weights -1 is PER_BATCH_MAX. key and hindsight must be NULL,
 *                newest 0
 *   batch_size   1 .. 2^24
 *   batch        see per_batch; ids must be given. `probabilities` are P(i)
 *   sources_out  [B] the index of each row's source, or NULL; like the batch, in the memory of the device
 *
 * PER_ERROR_UNSUPPORTED for PER_BUFFER_MAX, and for buffers with max_times_sampled. All other errors are those of
 * per_replay_sample(), for any of the sources. After an error no source has made a draw, and no carry has changed. On
 * PER_CUDA a source in which only the device knows that nothing is live gives ids -1, weights 0 and zero rows; and each
 * launch of a graph draws the numbers of rows that the captured call drew.
 */
PER_API per_status per_mixture_sample(per_source* sources, int64_t n_sources, const per_sample_options* options,
                                      int64_t batch_size, const per_batch* batch, int32_t* sources_out, void* stream);

/*
 * Sets the priority of each id in its source: per_replay_update_priorities() for all sources at once. With a count of 0
 * it only checks the sources.
 *
 *   priorities  those of all sources, in any order
 *   source_of   [count] the index of the source of each id, as per_mixture_sample() writes it
 *
 * PER_ERROR_INVALID_ARGUMENT for an index that is not 0 .. n_sources - 1, and as in per_replay_update_priorities():
 * nothing is changed in any source. On PER_CUDA such entries are skipped, and counted by sources[0].
 */
PER_API per_status per_mixture_update_priorities(const per_source* sources, int64_t n_sources,
                                                 const per_priorities* priorities, const int32_t* source_of,
                                                 void* stream);

#ifdef __cplusplus
}
#endif

#endif /* PER_MIXTURE_H */
