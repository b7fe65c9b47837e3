# Generated from include/per.h by bindings/generate.py; do not edit.
"""What per.h says of the fields of its statistics."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Figures:
    """
    Attributes
    ----------
    capacity : int
        rows in all: n_envs * rows of a lane
    live : int
        transitions, or sequences, that can be drawn now
    added : int
        transitions added
    dropped : int
        steps not added because the environment was resetting (autoreset)
    episodes : int
        episodes that ended, cuts included
    cuts : int
        of them, those that were cut
    samples : int
        batches drawn, also ahead by a loader; each epoch counts as one, and each call of per_replay_get_windows() with
        n_step_min or hindsight
    beta_step : int
        batches that advanced beta; those of a loader once they are handed out
    stale_updates : int
        entries of updates, also of fields, that came too late
    rejected_updates : int
        entries of calls that write, not allowed and skipped
    total : float
        sum of p^alpha over the live transitions
    max_priority : float
        priority that the next transition gets
    alpha : float
        exponent of the priorities
    beta : float
        exponent of the weights of the next batch
    gamma : float
        discount of a step
    updates : int
        entries of updates that set a priority
    last_batch_size : int
        transitions of the last batch that was sampled; 0, and so is all else of it, before the first
    last_max_age : int
        largest age in the last batch: rows that its lane took after a transition until the draw, one for each step and
        one for each final observation; (newest id of the lane - id) / n_envs
    last_mean_age : float
        mean age in the last batch
    last_effective_size : float
        (sum of w)^2 / sum of w^2 of the last batch: so many transitions of equal weight say as much
    last_duplicates : float
        share of the last batch that repeats another of its transitions, 0 .. 1
    memory_bytes : int
        bytes allocated for rows and priorities
    suspected_resets : int
        ends after which an environment seems to have reset in another way than autoreset says
    huge_page_bytes : int
        of memory_bytes, those on huge pages, as the kernel gave the first one of each array; 0 on CUDA. Much less than
        memory_bytes in a buffer of many MB: draws are slower, as the kernel does not give huge pages to those who ask
        (madvise)
    """

    capacity: int
    """rows in all: n_envs * rows of a lane"""
    live: int
    """transitions, or sequences, that can be drawn now"""
    added: int
    """transitions added"""
    dropped: int
    """steps not added because the environment was resetting (autoreset)"""
    episodes: int
    """episodes that ended, cuts included"""
    cuts: int
    """of them, those that were cut"""
    samples: int
    """batches drawn, also ahead by a loader; each epoch counts as one, and each call of per_replay_get_windows() with
    n_step_min or hindsight"""
    beta_step: int
    """batches that advanced beta; those of a loader once they are handed out"""
    stale_updates: int
    """entries of updates, also of fields, that came too late"""
    rejected_updates: int
    """entries of calls that write, not allowed and skipped"""
    total: float
    """sum of p^alpha over the live transitions"""
    max_priority: float
    """priority that the next transition gets"""
    alpha: float
    """exponent of the priorities"""
    beta: float
    """exponent of the weights of the next batch"""
    gamma: float
    """discount of a step"""
    updates: int
    """entries of updates that set a priority"""
    last_batch_size: int
    """transitions of the last batch that was sampled; 0, and so is all else of it, before the first"""
    last_max_age: int
    """largest age in the last batch: rows that its lane took after a transition until the draw, one for each step and
    one for each final observation; (newest id of the lane - id) / n_envs"""
    last_mean_age: float
    """mean age in the last batch"""
    last_effective_size: float
    """(sum of w)^2 / sum of w^2 of the last batch: so many transitions of equal weight say as much"""
    last_duplicates: float
    """share of the last batch that repeats another of its transitions, 0 .. 1"""
    memory_bytes: int
    """bytes allocated for rows and priorities"""
    suspected_resets: int
    """ends after which an environment seems to have reset in another way than autoreset says"""
    huge_page_bytes: int
    """of memory_bytes, those on huge pages, as the kernel gave the first one of each array; 0 on CUDA. Much less than
    memory_bytes in a buffer of many MB: draws are slower, as the kernel does not give huge pages to those who ask
    (madvise)"""


@dataclasses.dataclass(frozen=True)
class ChannelFigures:
    """
    Attributes
    ----------
    slots : int
        of the ring
    waiting : int
        steps in it
    added : int
        steps that were moved into the buffer
    refused : int
        steps that the buffer refused, and that were left out
    dropped : int
        steps dropped as the ring was full; this, waits and writers are what the writers say
    waits : int
        times that a writer began to wait for room
    gaps : int
        times that episodes were cut: by the writer, or as told at per_channel
    writers : int
        writers that attached so far
    attached : int
        the process, in its own numbers, of the one that is; 0: none is
    """

    slots: int
    """of the ring"""
    waiting: int
    """steps in it"""
    added: int
    """steps that were moved into the buffer"""
    refused: int
    """steps that the buffer refused, and that were left out"""
    dropped: int
    """steps dropped as the ring was full; this, waits and writers are what the writers say"""
    waits: int
    """times that a writer began to wait for room"""
    gaps: int
    """times that episodes were cut: by the writer, or as told at per_channel"""
    writers: int
    """writers that attached so far"""
    attached: int
    """the process, in its own numbers, of the one that is; 0: none is"""


@dataclasses.dataclass(frozen=True)
class SharedLoaderFigures:
    """
    Attributes
    ----------
    places : int
        readers that may be attached at a time
    attached : int
        readers that are attached
    readers : int
        readers that attached so far, as they say
    handed : int
        batches handed out
    out : int
        batches that readers have
    returned : int
        batches that readers had when they ended
    updates : int
        calls of readers whose priorities are in the buffer
    refused : int
        calls of readers that the buffer refused, such as for an id that was never issued, or for which it had no memory
    """

    places: int
    """readers that may be attached at a time"""
    attached: int
    """readers that are attached"""
    readers: int
    """readers that attached so far, as they say"""
    handed: int
    """batches handed out"""
    out: int
    """batches that readers have"""
    returned: int
    """batches that readers had when they ended"""
    updates: int
    """calls of readers whose priorities are in the buffer"""
    refused: int
    """calls of readers that the buffer refused, such as for an id that was never issued, or for which it had no
    memory"""
