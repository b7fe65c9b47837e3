/*
 * per.h - prioritized experience replay (Schaul et al. 2016, arXiv:1511.05952), for every language.
 *
 * This header includes all of libper. Each part can also be included alone, and begins with a complete program:
 *
 *   per/base.h       conventions of every function: statuses and messages, threads, memory, streams, random numbers
 *   per/tree.h       a sum tree: per_update() sets priorities, per_sample() draws indices in proportion to them
 *   per/replay.h     a replay buffer: stores transitions, draws batches of them with importance-sampling weights
 *   per/files.h      saves and loads buffers
 *   per/hindsight.h  hindsight experience replay: batches with substituted goals
 *   per/on_policy.h  epochs over a rollout, and advantages
 *   per/mixture.h    one batch from several buffers, in fixed shares
 *   per/loader.h     draws batches ahead on a background thread
 *   per/process.h    channels bring steps from other processes; shared loaders bring batches to them
 *   per/shards.h     several buffers, on several machines, that sample as one
 *
 * Begin with per/replay.h, or with per/tree.h if transitions are stored elsewhere. Needs C99 or C++, and only
 * <stddef.h> and <stdint.h>.
 */
#ifndef PER_H
#define PER_H

/* clang-format off */
#include "per/base.h"
#include "per/tree.h"
#include "per/replay.h"
#include "per/files.h"
#include "per/hindsight.h"
#include "per/on_policy.h"
#include "per/mixture.h"
#include "per/loader.h"
#include "per/process.h"
#include "per/shards.h"
/* clang-format on */

#endif /* PER_H */
