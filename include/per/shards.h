/*
 * per/shards.h - several buffers, in several processes or on several machines, that sample as one.
 *
 * Each shard stores the transitions of some of the environments. A coordinator decides what is drawn; it never sees a
 * transition. The program passes small arrays of numbers between them, over any transport; in this example both shards
 * are in one process.
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
 *     static void report(per_coordinator* coordinator, per_replay* shards[N_SHARDS], int32_t measured_scale,
 *                        int64_t measured_reference) {
 *         for (int s = 0; s < N_SHARDS; s++) {
 *             per_shard_summary summary;
 *             check(per_replay_summarize(shards[s], measured_scale, measured_reference, &summary, sizeof summary));
 *             check(per_coordinator_report(coordinator, s, &summary));
 *         }
 *     }
 *
 *     int main(void) {
 *         per_field field = {.name = "observation", .dtype = PER_FLOAT32};
 *         per_replay_options options; // of the whole buffer
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
 *         int32_t todo, scale;
 *         int64_t reference;
 *         report(coordinator, shards, PER_SCALE_AUTOMATIC, 0);
 *         for (;;) { // until all shards have one scale
 *             check(per_coordinator_agree_on_scale(coordinator, 0, &todo, &scale, &reference));
 *             if (todo == PER_SCALE_AGREED) break;
 *             for (int s = 0; s < N_SHARDS && todo == PER_SCALE_SET; s++)
 *                 check(per_replay_set_scale(shards[s], scale, reference));
 *             report(coordinator, shards, todo == PER_SCALE_MEASURE ? scale : PER_SCALE_AUTOMATIC, reference);
 *         }
 *
 *         int64_t count, shard_of[BATCH], units[BATCH], shard_ids[BATCH], ids[BATCH];
 *         uint64_t masses[BATCH], first_units[BATCH];
 *         float rewards[BATCH], weights[BATCH];
 *         check(per_coordinator_draw(coordinator, NULL, BATCH, &count));
 *         while (count > 0) { // one round, if draws are with replacement
 *             check(per_coordinator_get_units(coordinator, count, shard_of, units));
 *             for (int i = 0; i < count; i++) { // a real program passes all units of a shard in one call
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
 * Several buffers, the shards, draw bit-identically to one buffer with all their lanes: the same ids, transitions,
 * weights and priorities, for any number of shards. They may be in several processes and on several machines. Steps
 * with priorities or TD errors must be added one step of each environment per call. Within a longer call, one buffer
 * would give new transitions the largest priority so far in any environment, and a shard knows only those of its own.
 *
 * A draw is an integer, unit u of the total mass, and selects the transition that owns this unit, with transitions
 * ordered environment by environment. If each shard has consecutive environments, unit u of the whole is unit u - C of
 * a shard, where C is the mass of the shards before it. A coordinator holds the global state: the random numbers, the
 * schedule of beta, the scale of all masses and the largest priority. It keeps no transitions and calls no shard: the
 * program passes the results from one to the other.
 *
 *   after calls that change shards   per_replay_summarize() of each, per_coordinator_report(), and
 *                                    per_coordinator_agree_on_scale() until it returns PER_SCALE_AGREED. One buffer
 *                                    checks its scale after each added step and after every other call; a coordinator
 *                                    must do the same if draws are to equal those of one buffer
 *   a batch                          per_coordinator_draw(); for each round per_coordinator_get_units(),
 *                                    per_replay_get_units() of the shards and per_coordinator_submit(); then
 *                                    per_coordinator_finish()
 *   before steps are added,          per_replay_raise_max_priority() with the largest priority of the coordinator:
 *   episodes are cut or n_step is    these calls give transitions that become live the largest priority
 *   changed
 *   updates                          per_coordinator_locate() maps ids to shards
 *
 * With a half-life H (per_freshness) a buffer does not store p^alpha for a transition, but this leaf:
 *
 *   p^alpha 2^(birth / H - reference)
 *
 * The birth is the row number of the transition in its lane, or its version. The reference follows from the latest
 * birth in the buffer, so one buffer would have the largest reference of the shards. As births grow, the reference is
 * raised from time to time: leaves are divided by a power of two, the scale rises by as much, and masses stay as they
 * are. Shards therefore agree on a reference together with the scale. With PER_AGE_VERSIONS, the program gives all
 * shards the same version, including shards that come back, before it calls per_coordinator_agree_on_scale().
 */

/* Automatic choice of the scale, as in trees. */
enum { PER_SCALE_AUTOMATIC = 2147483647 };

/*
 * Integer summary of a buffer for draws: per_replay_summarize(). Masses are those of p^alpha, except for PER_RANK. With
 * a half-life, p^alpha here stands for the leaf.
 */
typedef struct per_shard_summary {
    uint64_t struct_size;       /* set by the call */
    uint64_t total_mass;        /* sum of mass(p^alpha) = ceil(p^alpha 2^scale) over the live transitions, below 2^62 */
    uint64_t smallest_mass;     /* the smallest nonzero mass; 0 if there is none, or if the buffer was created with a
                                   normalize_weights other than PER_BUFFER_MAX */
    int64_t live;               /* N */
    int64_t changes;            /* calls on this handle that may have changed the draws; launches of CUDA graphs are not
                                   counted */
    int64_t version;            /* version of steps that are added now; 0 if age counts steps */
    int64_t reference;          /* reference of the leaves; 0 without a half-life */
    int64_t measured_reference; /* reference of the leaves as they were measured */
    uint64_t measured_low;      /* the sum of all masses at measured_scale: its lower 64 bits */
    uint64_t measured_high;     /* upper 64 bits of that sum */
    float max_priority;         /* priority that the next transition gets */
    float largest_leaf;         /* the largest p^alpha, if measured */
    int32_t scale;              /* scale of the masses */
    int32_t is_scale_fixed;     /* 1: the scale was set; 0: the buffer chose it */
    int32_t measured_scale;     /* PER_SCALE_AUTOMATIC: nothing was measured, and the measured members are 0 */
    int32_t scale_needed;       /* the scale that this buffer would now choose, if measured */
} per_shard_summary;

/*
 * Fills *summary_out.
 *
 *   measured_scale      PER_SCALE_AUTOMATIC: nothing is measured, at constant cost. -120 .. 200: measures the sum of
 *                       the masses at that scale, each at most 2^52, and the largest leaf. Cost: one pass
 *   measured_reference  the leaves are measured as if the reference had been raised to this value; 0, or any value
 *                       below the buffer's reference: as they are. Without a half-life it must be 0
 *   struct_size         sizeof(per_shard_summary) of the caller
 *
 * PER_ERROR_INVALID_ARGUMENT. Synchronises.
 */
PER_API per_status per_replay_summarize(per_replay* replay, int32_t measured_scale, int64_t measured_reference,
                                        per_shard_summary* summary_out, uint64_t struct_size);

/*
 * Sets the scale of all masses. It stays until a call makes a leaf or the sum too large for it, or sets alpha. With a
 * half-life, a call that raises the reference raises the scale by as much, unless that is above 126: then the scale
 * does not stay either. Such calls do not fail: the buffer chooses a scale automatically, and its summary reports it.
 * Draws by rank have a separate scale. A checkpoint holds the scale that the buffer had; a loaded buffer chooses later
 * scales automatically.
 *
 *   scale      -120 .. 200, such that each mass is at most 2^52 - 1 and the total is below 2^62; or
 *              PER_SCALE_AUTOMATIC: the scale that the buffer would choose now
 *   reference  with a half-life, the buffer's new reference, as a coordinator requests it; 0, or any value below the
 *              current reference: unchanged. Without a half-life it must be 0
 *
 * PER_ERROR_INVALID_ARGUMENT: the message names the allowed scales, and nothing is changed. Cost: a few passes over the
 * buffer. Synchronises.
 */
PER_API per_status per_replay_set_scale(per_replay* replay, int32_t scale, int64_t reference);

/*
 * Raises the largest priority ever seen to at least this value, as if a transition had been given it. With PER_MAX_NOW
 * this does not affect the priority of new transitions.
 *
 *   priority  finite, >= 0
 */
PER_API per_status per_replay_raise_max_priority(per_replay* replay, float priority, void* stream);

/*
 * Writes the transitions that own the given units of the total mass, like per_replay_get_windows() for ids.
 *
 *   options          as for per_replay_get_windows()
 *   count            0 .. 2^24; 0 writes nothing, and the arrays may then be NULL
 *   units            [count] each 0 .. total_mass - 1 of the summary: a unit of mass; or -1 - r, 0 <= r < live: the
 *                    transition with r live ones before it, ordered by environment, then by slot in its ring
 *   batch            see per_batch
 *   masses_out       [count] mass of the transition, or NULL
 *   first_units_out  [count] first unit of the transition, also for -1 - r; or NULL
 *
 * PER_ERROR_INVALID_ARGUMENT, naming the first unit that does not exist. (PER_CUDA: id -1, mass 0 and zeros, and
 * counted.)
 */
PER_API per_status per_replay_get_units(per_replay* replay, const per_sample_options* options, int64_t count,
                                        const int64_t* units, const per_batch* batch, uint64_t* masses_out,
                                        uint64_t* first_units_out, void* stream);

/* A coordinator of shards, as described above. It is in host memory, and so are all arrays of its calls. */
typedef struct per_coordinator per_coordinator;

/* State of a coordinator: per_coordinator_get_state(). */
typedef struct per_coordinator_state {
    uint64_t struct_size;    /* set by the call */
    int64_t samples;         /* batches drawn; together with the seed the whole random state */
    int64_t beta_step;       /* batches that advanced beta */
    uint64_t total_mass;     /* total mass of the shards present when they last agreed on a scale */
    uint64_t rescales_below; /* a total mass below this requires another scale */
    int64_t live;            /* N of the shards present */
    int64_t shards;          /* number of shards present */
    int64_t reference;       /* reference of all leaves; 0 without a half-life */
    double beta;             /* exponent of the weights of the next batch */
    float max_priority;      /* largest priority ever reported by a shard, at least 1 */
    int32_t scale;           /* scale of all masses */
} per_coordinator_state;

/*
 * Creates the coordinator of a buffer with these options, split into shards, and stores it in *coordinator_out (NULL on
 * failure). Free it with per_coordinator_free(). Fields and device are ignored.
 *
 *   n_shards  1 .. n_envs: shard s has the environments from s n_envs / n_shards up to the first of the next shard
 *   state     NULL: a new coordinator. Otherwise it resumes from a state that per_coordinator_get_state() wrote with
 *             the same options. With shards saved at the same time it continues bit-identically, if they report and
 *             agree on a scale before anything changes: until then loaded buffers choose their scales automatically.
 *             `live`, `shards` and `beta` are ignored
 *
 * PER_ERROR_UNSUPPORTED for PER_RANK and PER_MAX_NOW, which need more than summaries of the shards, for a rate limiter,
 * and for keep_times_sampled, because shards do not know what is drawn; PER_ERROR_INVALID_ARGUMENT,
 * PER_ERROR_OUT_OF_MEMORY.
 */
PER_API per_status per_coordinator_create(const per_replay_options* options, int64_t n_shards,
                                          const per_coordinator_state* state, per_coordinator** coordinator_out);

/* NULL is allowed. */
PER_API void per_coordinator_free(per_coordinator* coordinator);

/*
 * Writes the capacity and n_envs with which to create a shard.
 *
 *   first_env_out  global index of the shard's environment 0
 */
PER_API per_status per_coordinator_describe_shard(per_coordinator* coordinator, int64_t shard, int64_t* capacity_out,
                                                  int64_t* n_envs_out, int64_t* first_env_out);

/*
 * Passes the summary of a shard to the coordinator.
 *
 *   summary  NULL: the shard is absent, and its mass does not count, until it reports again
 *
 * PER_ERROR_INVALID_ARGUMENT for an impossible summary: total_mass above 2^52 - 1 per live transition, measured masses
 * above 2^52 per live transition, smallest_mass above total_mass, a member out of its range, or a reference that no
 * buffer with this half-life has.
 */
PER_API per_status per_coordinator_report(per_coordinator* coordinator, int64_t shard,
                                          const per_shard_summary* summary);

/* Requests of per_coordinator_agree_on_scale(). */
typedef enum per_scale_request {
    PER_SCALE_AGREED = 0,  /* nothing: batches can be drawn */
    PER_SCALE_MEASURE = 1, /* per_replay_summarize() with the scale and the reference, for each shard present */
    PER_SCALE_SET = 2      /* per_replay_set_scale(), and then per_replay_summarize(), for each shard present */
} per_scale_request;

/*
 * Brings all shards to one scale, and to one reference: those of one buffer with all their lanes. *todo_out, *scale_out
 * and *reference_out request an action on every shard. Perform it, report the new summaries, and call this function
 * again. Most calls request nothing.
 *
 *   chooses_anew  1: choose the scale regardless of the current one, as after a change of alpha (in a call of
 *                 per_replay_change_settings() that changes nothing else). Pass 1 to the first of the calls
 *
 * PER_ERROR_INVALID_ARGUMENT if a shard has never reported, has not performed the request, or has grown since it was
 * measured so that the total mass of all is 2^62 or more, and if the shards present have different versions. The next
 * call then starts over and still honours chooses_anew: until PER_SCALE_AGREED the scale and its state are unchanged.
 */
PER_API per_status per_coordinator_agree_on_scale(per_coordinator* coordinator, int32_t chooses_anew, int32_t* todo_out,
                                                  int32_t* scale_out, int64_t* reference_out);

/*
 * Begins a batch. An earlier batch that was begun but not finished does not count as a draw. After an error the earlier
 * batch is still in progress.
 *
 *   options     NULL: those of the coordinator. n_step is ignored: it is an option of the shards. n_step_min must be 0
 *   batch_size  1 .. 2^24
 *   count_out   units of the first round. With replacement it is the only round
 *
 * PER_ERROR_EMPTY if nothing is live; PER_ERROR_UNSUPPORTED for PER_RANK, for an n_step_min other than 0, for
 * PER_BUFFER_MAX if the shards have no smallest_mass, and for PER_WITHOUT_REPLACEMENT with a uniform_fraction between 0
 * and 1; PER_ERROR_INVALID_ARGUMENT, also if per_coordinator_agree_on_scale() has not returned PER_SCALE_AGREED since a
 * shard reported.
 */
PER_API per_status per_coordinator_draw(per_coordinator* coordinator, const per_sample_options* options,
                                        int64_t batch_size, int64_t* count_out);

/*
 * Writes the units of the current round.
 *
 *   count       count_out of the call that began the round
 *   shards_out  [count] shard of each unit
 *   units_out   [count] argument of per_replay_get_units() of that shard
 *
 * PER_ERROR_INVALID_ARGUMENT, also for a different count: another thread may have begun another round.
 */
PER_API per_status per_coordinator_get_units(per_coordinator* coordinator, int64_t count, int64_t* shards_out,
                                             int64_t* units_out);

/*
 * Passes the shards' results for the round to the coordinator, in the order of its units.
 *
 *   count        as in per_coordinator_get_units()
 *   ids          [count] ids within the shards
 *   masses       [count]
 *   first_units  [count]; may be NULL with replacement
 *   count_out    units of the next round; 0: call per_coordinator_finish() next
 *
 * PER_ERROR_INVALID_ARGUMENT for a different count, for an id that belongs to no shard, and for masses and first_units
 * that are outside the mass of the shard or do not contain the unit: the round is then still in progress. Also if,
 * without replacement, fewer than batch_size can be drawn or a round finds only transitions already taken: then no
 * batch is in progress.
 */
PER_API per_status per_coordinator_submit(per_coordinator* coordinator, int64_t count, const int64_t* ids,
                                          const uint64_t* masses, const uint64_t* first_units, int64_t* count_out);

/*
 * Finishes a batch, which then counts as a draw. With replacement its transitions are those of the round, in that
 * order. Without replacement, per_coordinator_locate() and per_replay_get_windows() of the shards return them.
 *
 *   batch_size         batch_size of per_coordinator_draw()
 *   ids_out            [batch_size] global ids
 *   weights_out        [batch_size] or NULL
 *   probabilities_out  [batch_size] or NULL
 *
 * PER_ERROR_INVALID_ARGUMENT, also for another batch_size.
 */
PER_API per_status per_coordinator_finish(per_coordinator* coordinator, int64_t batch_size, int64_t* ids_out,
                                          float* weights_out, float* probabilities_out);

/*
 * Maps global ids to shards. A global id is k n_envs + environment, as in one buffer.
 *
 *   ids            [count] global ids, >= -1
 *   shards_out     [count] -1 for id -1
 *   shard_ids_out  [count] ids within the shard
 */
PER_API per_status per_coordinator_locate(per_coordinator* coordinator, int64_t count, const int64_t* ids,
                                          int64_t* shards_out, int64_t* shard_ids_out);

/* Maps ids within a shard to global ids; -1 stays -1. */
PER_API per_status per_coordinator_get_ids(per_coordinator* coordinator, int64_t shard, int64_t count,
                                           const int64_t* shard_ids, int64_t* ids_out);

/*
 * Fills *state_out, from which per_coordinator_create() can resume.
 *
 *   struct_size  sizeof(per_coordinator_state) of the caller
 */
PER_API per_status per_coordinator_get_state(per_coordinator* coordinator, per_coordinator_state* state_out,
                                             uint64_t struct_size);

#ifdef __cplusplus
}
#endif

#endif /* PER_SHARDS_H */
