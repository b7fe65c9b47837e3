/*
 * per/shards.h - several buffers, in several processes or on several machines, that draw as one.
 *
 * Each shard has some of the environments and keeps their transitions. A coordinator decides what is drawn; it never
 * sees a transition. The program carries small arrays of numbers from one to the other, by whatever it has: this one
 * has both shards in its own process.
 *
 *     #include <per.h>
 *     #include <stdio.h>
 *     #include <stdlib.h>
 *
 *     enum { N_SHARDS = 2, BATCH = 4 };
 *
 *     static void check(per_status status) {
 *         if (status == PER_OK) return;
 *         fprintf(stderr, "%s\n", per_last_error());
 *         exit(1);
 *     }
 *
 *     static per_replay* shard_with_steps(const per_replay_options* options, int s) {
 *         per_replay* shard;
 *         check(per_replay_create(options, &shard));
 *         for (int t = 0; t < 10; t++) {
 *             float observation = t, next_observation = t + 1, reward = s;
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
 *             check(per_replay_add(shard, &steps, NULL, NULL));
 *         }
 *         return shard;
 *     }
 *
 *     static void report(per_coordinator* coordinator, per_replay* shards[N_SHARDS], int32_t measured_scale) {
 *         for (int s = 0; s < N_SHARDS; s++) {
 *             per_shard_summary summary;
 *             check(per_replay_summarize(shards[s], measured_scale, &summary, sizeof summary));
 *             check(per_coordinator_report(coordinator, s, &summary));
 *         }
 *     }
 *
 *     int main(void) {
 *         per_field field = {.name = "observation", .dtype = PER_FLOAT32};
 *         per_replay_options options; // of the whole
 *         per_coordinator* coordinator;
 *         per_replay* shards[N_SHARDS];
 *         check(per_replay_options_init(&options, sizeof options));
 *         options.capacity = 1000;
 *         options.fields = &field;
 *         options.n_fields = 1;
 *         options.field_size = sizeof field;
 *         options.n_envs = 2;
 *         check(per_coordinator_create(&options, N_SHARDS, NULL, &coordinator));
 *         for (int s = 0; s < N_SHARDS; s++) {
 *             per_replay_options shard_options = options;
 *             int64_t first_env;
 *             check(per_coordinator_describe_shard(coordinator, s, &shard_options.capacity, &shard_options.n_envs, &first_env));
 *             shards[s] = shard_with_steps(&shard_options, s);
 *         }
 *
 *         int32_t todo = PER_SCALE_MEASURE, scale = PER_SCALE_AUTOMATIC;
 *         report(coordinator, shards, PER_SCALE_AUTOMATIC);
 *         for (;;) { // until all shards have one scale
 *             check(per_coordinator_agree_on_scale(coordinator, 0, &todo, &scale));
 *             if (todo == PER_SCALE_AGREED) break;
 *             for (int s = 0; s < N_SHARDS && todo == PER_SCALE_SET; s++) check(per_replay_set_scale(shards[s], scale));
 *             report(coordinator, shards, todo == PER_SCALE_MEASURE ? scale : PER_SCALE_AUTOMATIC);
 *         }
 *
 *         int64_t count, shard_of[BATCH], units[BATCH], shard_ids[BATCH], ids[BATCH];
 *         uint64_t masses[BATCH], first_units[BATCH];
 *         float rewards[BATCH], weights[BATCH];
 *         check(per_coordinator_draw(coordinator, NULL, BATCH, &count));
 *         while (count > 0) { // one round, if draws are with replacement
 *             check(per_coordinator_get_units(coordinator, count, shard_of, units));
 *             for (int i = 0; i < count; i++) { // of a real batch, all units of a shard in one call
 *                 per_batch batch;
 *                 check(per_batch_init(&batch, sizeof batch));
 *                 batch.ids = &shard_ids[i];
 *                 batch.reward = &rewards[i];
 *                 check(per_replay_get_units(shards[shard_of[i]], NULL, 1, &units[i], &batch, &masses[i], &first_units[i],
 *                                            NULL));
 *             }
 *             check(per_coordinator_submit(coordinator, count, shard_ids, masses, first_units, &count));
 *         }
 *         check(per_coordinator_finish(coordinator, BATCH, ids, weights, NULL));
 *         for (int i = 0; i < BATCH; i++) printf("id %d, reward %g, weight %.2f\n", (int)ids[i], rewards[i], weights[i]);
 *         for (int s = 0; s < N_SHARDS; s++) per_replay_free(shards[s]);
 *         per_coordinator_free(coordinator);
 *         return 0;
 *     }
 */
#ifndef PER_SHARDS_H
#define PER_SHARDS_H

#include "replay.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Several buffers, the shards, that draw as one buffer with all their lanes does: the same ids, transitions, weights and
 * priorities, bit for bit, for any number of them. They may be in several processes and on several machines.
 * Steps that are added with priorities or TD errors are to be added one of each environment a call: of several, new ones
 * of the other environments get the largest priority so far, which a shard would know of its own only.
 *
 * A draw is a whole number: unit u of the total mass, and the transition that owns it, transitions counted environment
 * by environment. So where each shard has a run of environments, unit u of the whole is unit u - C of a shard, C being
 * the mass of the shards before it. A coordinator has what does not belong to any of them: the random numbers, the
 * schedule of beta, the scale of all masses and the largest priority. It keeps no transitions, and calls no shard: the
 * program carries what the one says to the other.
 *
 *   after calls that change shards   per_replay_summarize() of each, per_coordinator_report(), and per_coordinator_agree_on_scale() until
 *                                    it asks for nothing more. One buffer looks at its scale after each step that is
 *                                    added and after every other call; so must a coordinator, if draws are to be those
 *                                    of one buffer
 *   a batch                          per_coordinator_draw(), then per_coordinator_get_units(), per_replay_get_units() of the
 *                                    shards and per_coordinator_submit() for each round, then per_coordinator_finish()
 *   before steps are added           per_replay_raise_max_priority() with the largest priority of the coordinator
 *   updates                          per_coordinator_locate() says to which shards ids belong
 */

/* The scale that a buffer chooses by itself, as trees do. */
enum { PER_SCALE_AUTOMATIC = 2147483647 };

/* What draws from a buffer are made of, in whole numbers: per_replay_summarize(). Masses are those of p^alpha, ranks apart. */
typedef struct per_shard_summary {
    uint64_t struct_size;   /* set by the call */
    uint64_t total_mass;    /* sum of mass(p^alpha) = ceil(p^alpha 2^scale) over the live transitions, below 2^62 */
    uint64_t smallest_mass; /* the smallest of them that is not 0; 0 if there is none, or if the buffer was created with
                               another normalize_weights than PER_BUFFER_MAX */
    int64_t live;           /* N */
    int64_t changes;        /* calls on this handle that may have changed what is drawn; not launches of CUDA graphs */
    uint64_t measured_low;  /* the sum of all masses at measured_scale: its lower 64 bits */
    uint64_t measured_high; /* and its upper ones */
    float max_priority;     /* priority that the next transition gets */
    float largest_leaf;     /* the largest p^alpha, if it was measured */
    int32_t scale;          /* of the masses */
    int32_t is_scale_fixed; /* 1: it is the one that was set; 0: the buffer chose it */
    int32_t measured_scale; /* PER_SCALE_AUTOMATIC: nothing was measured, and what is measured is 0 */
    int32_t scale_needed;   /* the scale that this buffer would choose by itself now, if it was measured */
} per_shard_summary;

/*
 * Fills *summary_out.
 *
 *   measured_scale  PER_SCALE_AUTOMATIC: nothing is measured, and the call costs nothing that grows. -120 .. 200: the
 *                   sum of the masses at that scale is, each being 2^52 at most, and the largest leaf. One pass
 *   struct_size     sizeof(per_shard_summary) of the caller
 *
 * PER_ERROR_INVALID_ARGUMENT. Synchronises.
 */
PER_API per_status per_replay_summarize(per_replay* replay, int32_t measured_scale, per_shard_summary* summary_out,
                                        uint64_t struct_size);

/*
 * Sets the scale of all masses, which then stays until a call makes a leaf, or the sum, too large for it, or sets alpha:
 * no such call fails, but the buffer then chooses a scale by itself, and its summary says so. Draws by rank have a scale of
 * their own. The scale of a checkpoint is the one that the buffer had; a buffer that is loaded chooses the next.
 *
 *   scale  -120 .. 200, at which each leaf is at most 2^52 - 1 and the total below 2^62; or PER_SCALE_AUTOMATIC: as the
 *          buffer would choose now
 *
 * PER_ERROR_INVALID_ARGUMENT: the message says which scales are allowed, and nothing is changed. Cost: some passes over
 * the buffer. Synchronises.
 */
PER_API per_status per_replay_set_scale(per_replay* replay, int32_t scale);

/*
 * Makes the largest priority ever seen at least this one, as if a transition had been given it. With PER_MAX_NOW that
 * changes nothing which new transitions get.
 *
 *   priority  finite, >= 0
 */
PER_API per_status per_replay_raise_max_priority(per_replay* replay, float priority, void* stream);

/*
 * Writes the transitions that own units of the total mass, as per_replay_get_windows() writes those of ids.
 *
 *   options          as there
 *   count            0 .. 2^24; 0 writes nothing, and the arrays may then be NULL
 *   units            [count] each 0 .. total_mass - 1 of the summary: a unit of mass; or -1 - r, 0 <= r < live: the transition
 *                    with r live ones before it, environment by environment, and by place in the ring of each
 *   batch            see per_batch
 *   masses_out       [count] mass of the transition, or NULL
 *   first_units_out  [count] the first of its units, for -1 - r too; or NULL
 *
 * PER_ERROR_INVALID_ARGUMENT names the first unit that there is not. (PER_CUDA: id -1, mass 0 and zeros, and counted.)
 */
PER_API per_status per_replay_get_units(per_replay* replay, const per_sample_options* options, int64_t count,
                                        const int64_t* units, const per_batch* batch, uint64_t* masses_out,
                                        uint64_t* first_units_out, void* stream);

/* See above. It lies in host memory, and so do all arrays of its calls. */
typedef struct per_coordinator per_coordinator;

/* What a coordinator knows: per_coordinator_get_state(). */
typedef struct per_coordinator_state {
    uint64_t struct_size;    /* set by the call */
    int64_t samples;         /* batches drawn; with the seed the whole random state */
    int64_t beta_step;       /* batches that advanced beta */
    uint64_t total_mass;     /* of the shards that were there when they last agreed on a scale */
    uint64_t rescales_below; /* a total mass below this asks for another scale */
    int64_t live;            /* N of the shards that are there */
    int64_t shards;          /* how many are there */
    double beta;             /* exponent of the weights of the next batch */
    float max_priority;      /* the largest priority that any shard ever reported, at least 1 */
    int32_t scale;           /* of all masses */
} per_coordinator_state;

/*
 * Creates the coordinator of a buffer with these options that is cut into shards, and stores it in *coordinator_out
 * (NULL on failure). Free it with per_coordinator_free(). Fields and device are not looked at.
 *
 *   n_shards  1 .. n_envs: shard s has the environments from s n_envs / n_shards on, up to those of the next
 *   state     NULL: it is new. Otherwise it goes on from there: what per_coordinator_get_state() said of one with the same
 *             options. With shards that were saved at the same time it goes on bit for bit, if they report
 *             and agree on a scale before anything is changed: until then buffers that were loaded choose their scales by
 *             themselves. `live`, `shards` and `beta` are not looked at
 *
 * PER_ERROR_UNSUPPORTED for PER_RANK and PER_MAX_NOW, which need more than summaries of the shards, for a rate limiter, and
 * for keep_times_sampled, as shards do not know what is drawn; PER_ERROR_INVALID_ARGUMENT, PER_ERROR_OUT_OF_MEMORY.
 */
PER_API per_status per_coordinator_create(const per_replay_options* options, int64_t n_shards,
                                          const per_coordinator_state* state, per_coordinator** coordinator_out);

/* NULL is allowed. */
PER_API void per_coordinator_free(per_coordinator* coordinator);

/*
 * What a shard is to be created with: capacity and n_envs.
 *
 *   first_env_out  the environment of the whole that is the shard's environment 0
 */
PER_API per_status per_coordinator_describe_shard(per_coordinator* coordinator, int64_t shard, int64_t* capacity_out,
                                                  int64_t* n_envs_out, int64_t* first_env_out);

/*
 * Takes the summary of a shard.
 *
 *   summary  NULL: the shard is gone, and its mass with it, until it reports again
 *
 * PER_ERROR_INVALID_ARGUMENT for a summary that no buffer has: total_mass above 2^52 - 1 for each live transition, measured
 * masses above 2^52 for each, smallest_mass above total_mass, and what a field does not allow.
 */
PER_API per_status per_coordinator_report(per_coordinator* coordinator, int64_t shard,
                                          const per_shard_summary* summary);

/* What per_coordinator_agree_on_scale() asks for. */
typedef enum per_scale_request {
    PER_SCALE_AGREED = 0,  /* nothing: batches can be drawn */
    PER_SCALE_MEASURE = 1, /* per_replay_summarize() with the scale as measured_scale, of each shard that is there */
    PER_SCALE_SET = 2      /* per_replay_set_scale(), and then per_replay_summarize(), of each shard that is there */
} per_scale_request;

/*
 * Brings all shards to one scale: the one that one buffer with all their lanes would have. It asks, by *todo_out and
 * *scale_out, for something to be done with every shard, whose summary is then to be reported; and is called again. Most calls
 * ask for nothing.
 *
 *   chooses_anew  1: as after a change of alpha, the scale is chosen whatever it was; for the first of the calls
 *
 * PER_ERROR_INVALID_ARGUMENT if a shard has never reported, has not done what was asked for, or has grown since it was
 * measured so that all have a total mass of 2^62 or more. The next call then begins anew, and still knows of
 * chooses_anew: until PER_SCALE_AGREED the scale, and what is known of it, stay as they were.
 */
PER_API per_status per_coordinator_agree_on_scale(per_coordinator* coordinator, int32_t chooses_anew, int32_t* todo_out,
                                                  int32_t* scale_out);

/*
 * Begins a batch; one that was begun before and not finished is no draw. After an error that one is still under way.
 *
 *   options     NULL: those of the coordinator. n_step is not looked at: it is for the shards. n_step_min must be 0
 *   batch_size  1 .. 2^24
 *   count_out   units of the first round. There is one round; without replacement there may be several
 *
 * PER_ERROR_EMPTY if nothing is live; PER_ERROR_UNSUPPORTED for PER_RANK, for another n_step_min, for PER_BUFFER_MAX
 * where the shards have no smallest_mass, and for PER_WITHOUT_REPLACEMENT with a uniform_fraction between 0 and 1;
 * PER_ERROR_INVALID_ARGUMENT, also where per_coordinator_agree_on_scale() has not said PER_SCALE_AGREED since a shard
 * reported.
 */
PER_API per_status per_coordinator_draw(per_coordinator* coordinator, const per_sample_options* options,
                                        int64_t batch_size, int64_t* count_out);

/*
 * The round that is under way.
 *
 *   count       as the call gave it that began the round
 *   shards_out  [count] where unit i is
 *   units_out   [count] what per_replay_get_units() of that shard takes
 *
 * PER_ERROR_INVALID_ARGUMENT, also for another count: a thread may have begun another round.
 */
PER_API per_status per_coordinator_get_units(per_coordinator* coordinator, int64_t count, int64_t* shards_out,
                                             int64_t* units_out);

/*
 * Takes what the shards have found for the round, in the order of its units.
 *
 *   count        as in per_coordinator_get_units()
 *   ids          [count] as the shards have them
 *   masses       [count]
 *   first_units  [count]; may be NULL with replacement
 *   count_out    units of the next round; 0: per_coordinator_finish() comes next
 *
 * PER_ERROR_INVALID_ARGUMENT for another count, for an id that is no shard's, and for masses and first_units that are
 * not within the mass of the shard, or do not hold the unit: the round is still under way. Also where without
 * replacement fewer than batch_size can be drawn, or a round finds only what was taken out: then no batch is.
 */
PER_API per_status per_coordinator_submit(per_coordinator* coordinator, int64_t count, const int64_t* ids,
                                          const uint64_t* masses, const uint64_t* first_units, int64_t* count_out);

/*
 * Ends a batch, which counts from now on. With replacement its transitions are those of the round, in that order;
 * without, per_replay_get_windows() of the shards has them, by per_coordinator_locate().
 *
 *   batch_size         that of per_coordinator_draw()
 *   ids_out            [batch_size] ids of the whole
 *   weights_out        [batch_size] or NULL
 *   probabilities_out  [batch_size] or NULL
 *
 * PER_ERROR_INVALID_ARGUMENT, also for another batch_size.
 */
PER_API per_status per_coordinator_finish(per_coordinator* coordinator, int64_t batch_size, int64_t* ids_out,
                                          float* weights_out, float* probabilities_out);

/*
 * Says which shards ids belong to. An id of the whole is k n_envs + environment, as in one buffer.
 *
 *   ids            [count] of the whole, >= -1
 *   shards_out     [count] -1 for id -1
 *   shard_ids_out  [count] as the shard has it
 */
PER_API per_status per_coordinator_locate(per_coordinator* coordinator, int64_t count, const int64_t* ids,
                                          int64_t* shards_out, int64_t* shard_ids_out);

/* The other way round: ids of the whole, from those of a shard; -1 stays -1. */
PER_API per_status per_coordinator_get_ids(per_coordinator* coordinator, int64_t shard, int64_t count,
                                           const int64_t* shard_ids, int64_t* ids_out);

/*
 * Fills *state_out, which per_coordinator_create() makes another coordinator of that goes on from there.
 *
 *   struct_size  sizeof(per_coordinator_state) of the caller
 */
PER_API per_status per_coordinator_get_state(per_coordinator* coordinator, per_coordinator_state* state_out,
                                             uint64_t struct_size);

#ifdef __cplusplus
}
#endif

#endif /* PER_SHARDS_H */
