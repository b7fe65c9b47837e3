/*
 * per/tree.h - a sum tree: priorities, and indices drawn in proportion to them.
 *
 * It is for programs that store their own transitions and only need to choose which ones to learn from. Indices 0 ..
 * capacity - 1 are the program's own numbering. All priorities of a new tree are 0, and an index of priority 0 is never
 * drawn.
 *
 *     #include <per.h>
 *     #include <stdio.h>
 *
 *     int main(void) {
 *         int64_t indices[3] = {0, 1, 2}, drawn[4];
 *         float priorities[3] = {1.0f, 2.0f, 5.0f}, weights[4];
 *         per_tree_options options;
 *         per_tree* tree;
 *         per_tree_options_init(&options, sizeof options);
 *         options.capacity = 1000000;
 *         if (per_tree_create(&options, &tree) != PER_OK ||
 *             per_update(tree, 3, indices, priorities, NULL) != PER_OK ||
 *             per_sample(tree, 4, PER_STRATIFIED, 0.4f, drawn, NULL, weights, NULL) != PER_OK) {
 *             fprintf(stderr, "%s\n", per_last_error());
 *             return 1;
 *         }
 *         for (int i = 0; i < 4; i++) printf("index %d, weight %.2f\n", (int)drawn[i], weights[i]);
 *         per_tree_free(tree);
 *         return 0;
 *     }
 */
#ifndef PER_TREE_H
#define PER_TREE_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A tree holds `capacity` priorities and draws indices in proportion to them (section 3.3). Setting a priority and
 * drawing an index cost O(log capacity).
 *
 * Priorities are float32, finite and not negative. A leaf of priority p has mass(p) = ceil(p * 2^scale), an integer.
 * The probability of a draw is mass / sum of masses to within 2^-64, because random numbers have 64 bits; with strata
 * it is within (batch_size + 2) 2^-64 on average over the batch. Integer sums are exact: no sequence of updates,
 * however long or uneven, makes the total drift, loses a leaf, or draws a leaf of priority 0. The tree chooses the
 * scale automatically, and again when priorities grow or shrink by orders of magnitude. With 1e8 leaves and priorities
 * typical of training, probabilities differ from those of unrounded priorities by less than 1e-13 in total variation.
 */
typedef struct per_tree per_tree;

/* Fill with per_tree_options_init(), then change what differs. */
typedef struct per_tree_options {
    uint64_t struct_size; /* set by _init; do not change */
    int64_t capacity;     /* number of leaves, 1 to 2^40; _init: 0, to be set */
    uint64_t seed;        /* seed of the draws; _init: 0 */
    int32_t device;       /* a per_device; _init: PER_CPU */
    int32_t device_index; /* index of the CUDA device; 0 for PER_CPU; _init: 0 */
} per_tree_options;

/*
 * Fills *options with the _init values above. struct_size is sizeof(per_tree_options) of the caller.
 *
 * PER_ERROR_INVALID_ARGUMENT for a struct_size that no version of the struct has had. A larger multiple of 8, up to
 * 4096, counts as that of a newer header.
 */
PER_API per_status per_tree_options_init(per_tree_options* options, uint64_t struct_size);

/*
 * Creates a tree with all priorities 0 and stores it in *tree_out (NULL on failure). Free it with per_tree_free().
 * Memory: 4.6 bytes per leaf, 8.3 on PER_CUDA. There the first update of a size beyond 4096 allocates up to 32 bytes
 * per entry, and cannot be captured. Synchronises.
 *
 * PER_ERROR_INVALID_ARGUMENT, PER_ERROR_OUT_OF_MEMORY, PER_ERROR_NO_DEVICE, PER_ERROR_CUDA.
 */
PER_API per_status per_tree_create(const per_tree_options* options, per_tree** tree_out);

/* NULL is allowed. Synchronises. */
PER_API void per_tree_free(per_tree* tree);

/*
 * Sets the priority of indices[i] to priorities[i] for i = 0 .. count - 1. If an index occurs more than once, the last
 * entry wins.
 *
 *   count       >= 0, on PER_CUDA at most 2^32 - 2; 0 changes nothing, and the arrays may then be NULL
 *   indices     [count]  0 .. capacity - 1
 *   priorities  [count]  finite, >= 0
 *
 * PER_ERROR_INVALID_ARGUMENT for any invalid entry: nothing is changed. On PER_CUDA invalid entries are skipped,
 * counted, and reported by per_tree_synchronize(). PER_ERROR_OUT_OF_MEMORY if it allocates (see per_tree_create()):
 * nothing is changed.
 */
PER_API per_status per_update(per_tree* tree, int64_t count, const int64_t* indices, const float* priorities,
                              void* stream);

/*
 * Draws batch_size indices with probability P(i) = p_i / sum_k p_k, and their importance-sampling weights
 *
 *   w_i = (min_j P(j) / P(i))^beta, j over the batch     (section 3.4, normalised by the batch's maximum)
 *
 * Without replacement P(i) is the probability that i is in the batch at all.
 *
 *   batch_size      1 .. 2^24
 *   scheme          a per_scheme. PER_WITHOUT_REPLACEMENT needs batch_size leaves of positive priority
 *   beta            finite, >= 0; 0 gives weights 1
 *   indices_out     [batch_size]
 *   priorities_out  [batch_size] or NULL
 *   weights_out     [batch_size] or NULL
 *
 * PER_ERROR_EMPTY if all priorities are 0; PER_ERROR_INVALID_ARGUMENT. A failed call does not count as a draw: the next
 * call draws what it would have drawn. On PER_CUDA, if only the device knows that a tree is empty, or has too few
 * leaves for a draw without replacement, all indices are -1 and priorities and weights are 0.
 */
PER_API per_status per_sample(per_tree* tree, int64_t batch_size, int32_t scheme, float beta, int64_t* indices_out,
                              float* priorities_out, float* weights_out, void* stream);

/*
 * Finds, for each prefix sum s, the index i with  p_0 + .. + p_(i-1) <= s < p_0 + .. + p_i.
 *
 *   prefix_sums  [count]  0 <= s < total of per_tree_describe(), in units of priority
 *   indices_out  [count]
 *
 * A prefix sum s denotes the unit of mass floor(s * 2^scale); per_tree_find_mass() takes units directly.
 *
 * PER_ERROR_EMPTY, PER_ERROR_INVALID_ARGUMENT; on PER_CUDA bad entries give -1 and are counted.
 */
PER_API per_status per_tree_find(per_tree* tree, int64_t count, const double* prefix_sums, int64_t* indices_out,
                                 void* stream);

/*
 * Finds, for each unit of mass u, the index i with  m_0 + .. + m_(i-1) <= u < m_0 + .. + m_i.
 *
 *   units        [count]  0 .. total_mass - 1; see per_tree_describe()
 *   indices_out  [count]
 *
 * PER_ERROR_EMPTY, PER_ERROR_INVALID_ARGUMENT; on PER_CUDA bad entries give -1 and are counted.
 */
PER_API per_status per_tree_find_mass(per_tree* tree, int64_t count, const uint64_t* units, int64_t* indices_out,
                                      void* stream);

/*
 * Reads priorities.
 *
 *   count           number of indices; with indices == NULL it must be the capacity
 *   indices         [count], or NULL: 0 .. capacity - 1 in order
 *   priorities_out  [count]
 *
 * PER_ERROR_INVALID_ARGUMENT; on PER_CUDA bad indices give 0 and are counted.
 */
PER_API per_status per_tree_get_priorities(per_tree* tree, int64_t count, const int64_t* indices, float* priorities_out,
                                           void* stream);

/* State of a tree: per_tree_describe(). Everything except the capacity may change with the next per_update(). */
typedef struct per_tree_description {
    uint64_t struct_size; /* set by the call */
    int64_t capacity;     /* number of leaves */
    uint64_t total_mass;  /* sum of all masses, from which draws are made; below 2^62 */
    double total;         /* the same in units of priority: total_mass / 2^scale */
    int32_t scale;        /* s of mass(p) = ceil(p * 2^s) */
    int32_t reserved;     /* 0 */
} per_tree_description;

/*
 * Fills *description_out. Synchronises.
 *
 *   struct_size  sizeof(per_tree_description) of the caller
 *
 * PER_ERROR_INVALID_ARGUMENT.
 */
PER_API per_status per_tree_describe(per_tree* tree, per_tree_description* description_out, uint64_t struct_size);

/* Sets all priorities to 0. The random state is kept. */
PER_API per_status per_tree_reset(per_tree* tree, void* stream);

/*
 * Waits until all work that this tree enqueued on `stream` is done, and reports each error on the device since the last
 * report once: PER_ERROR_INVALID_ARGUMENT with the number of entries skipped, in total and for each array,
 * PER_ERROR_EMPTY, PER_ERROR_CUDA. Does nothing on PER_CPU.
 */
PER_API per_status per_tree_synchronize(per_tree* tree, void* stream);

#ifdef __cplusplus
}
#endif

#endif /* PER_TREE_H */
