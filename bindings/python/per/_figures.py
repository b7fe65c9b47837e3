# Generated from include/per.h by bindings/generate.py; do not edit.
"""What per.h says of the fields of its statistics."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Figures:
    """
    Attributes
    ----------
    capacity : int
        total rows: n_envs * rows of a lane
    live : int
        transitions, or sequences, that can be drawn now
    added : int
        transitions added
    dropped : int
        steps not added because the environment was resetting (autoreset)
    episodes : int
        episodes that ended, cuts included
    cuts : int
        episodes that ended by a cut
    samples : int
        batches drawn, including a loader's prefetched ones; each epoch counts as one, and so does each call of
        get_windows() with a range for n_step or hindsight
    beta_step : int
        batches that advanced beta; a loader's count once they are handed out
    stale_updates : int
        entries of updates, including those of fields, that came too late
    rejected_updates : int
        invalid entries of calls that write, which were skipped
    total : float
        sum of p^alpha over the live transitions; with a half-life, each times its factor
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
        transitions of the last batch drawn. Without one, all values of the last batch are 0
    last_max_age : int
        largest age in the last batch: rows added to the lane between a transition and the draw, one for each step and
        one for each final observation; (newest id of the lane - id) / n_envs
    last_mean_age : float
        mean age in the last batch
    last_effective_size : float
        (sum of w)^2 / sum of w^2 of the last batch: the number of equally weighted transitions with the same
        information
    last_duplicates : float
        share of the last batch that repeats another of its transitions, 0 .. 1
    memory_bytes : int
        bytes allocated for rows and priorities
    suspected_resets : int
        ends after which an environment seems to have reset in a way other than autoreset declares
    huge_page_bytes : int
        part of memory_bytes on huge pages, judged by the first page of each array; 0 on CUDA. If it is much less than
        memory_bytes in a buffer of many MB, draws are slower, because the kernel does not grant huge pages on request
        (madvise)
    version : int
        version of steps that are added now; 0 at creation, and always if age counts steps
    """

    capacity: int
    """total rows: n_envs * rows of a lane"""
    live: int
    """transitions, or sequences, that can be drawn now"""
    added: int
    """transitions added"""
    dropped: int
    """steps not added because the environment was resetting (autoreset)"""
    episodes: int
    """episodes that ended, cuts included"""
    cuts: int
    """episodes that ended by a cut"""
    samples: int
    """batches drawn, including a loader's prefetched ones; each epoch counts as one, and so does each call of
    get_windows() with a range for n_step or hindsight"""
    beta_step: int
    """batches that advanced beta; a loader's count once they are handed out"""
    stale_updates: int
    """entries of updates, including those of fields, that came too late"""
    rejected_updates: int
    """invalid entries of calls that write, which were skipped"""
    total: float
    """sum of p^alpha over the live transitions; with a half-life, each times its factor"""
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
    """transitions of the last batch drawn. Without one, all values of the last batch are 0"""
    last_max_age: int
    """largest age in the last batch: rows added to the lane between a transition and the draw, one for each step and
    one for each final observation; (newest id of the lane - id) / n_envs"""
    last_mean_age: float
    """mean age in the last batch"""
    last_effective_size: float
    """(sum of w)^2 / sum of w^2 of the last batch: the number of equally weighted transitions with the same
    information"""
    last_duplicates: float
    """share of the last batch that repeats another of its transitions, 0 .. 1"""
    memory_bytes: int
    """bytes allocated for rows and priorities"""
    suspected_resets: int
    """ends after which an environment seems to have reset in a way other than autoreset declares"""
    huge_page_bytes: int
    """part of memory_bytes on huge pages, judged by the first page of each array; 0 on CUDA. If it is much less than
    memory_bytes in a buffer of many MB, draws are slower, because the kernel does not grant huge pages on request
    (madvise)"""
    version: int
    """version of steps that are added now; 0 at creation, and always if age counts steps"""


@dataclasses.dataclass(frozen=True)
class ChannelFigures:
    """
    Attributes
    ----------
    slots : int
        slots of the ring
    waiting : int
        steps and cuts in the ring
    added : int
        steps moved into the buffer
    refused : int
        steps that the buffer refused; they were dropped
    dropped : int
        steps dropped because the ring was full; this, waits and writers are as reported by the writers
    waits : int
        number of times that a writer began to wait for room
    gaps : int
        number of times that episodes were cut: by the writer, or as described at per_channel
    writers : int
        writers that attached so far
    attached : int
        process id, as the process itself sees it, of the attached writer; 0: none
    """

    slots: int
    """slots of the ring"""
    waiting: int
    """steps and cuts in the ring"""
    added: int
    """steps moved into the buffer"""
    refused: int
    """steps that the buffer refused; they were dropped"""
    dropped: int
    """steps dropped because the ring was full; this, waits and writers are as reported by the writers"""
    waits: int
    """number of times that a writer began to wait for room"""
    gaps: int
    """number of times that episodes were cut: by the writer, or as described at per_channel"""
    writers: int
    """writers that attached so far"""
    attached: int
    """process id, as the process itself sees it, of the attached writer; 0: none"""


@dataclasses.dataclass(frozen=True)
class SharedLoaderFigures:
    """
    Attributes
    ----------
    places : int
        maximum number of attached readers
    attached : int
        readers attached now
    readers : int
        readers attached so far, as reported by them
    handed : int
        batches handed out
    out : int
        batches held by readers
    returned : int
        batches held by readers when they ended
    updates : int
        readers' calls whose priorities were applied to the buffer
    refused : int
        readers' calls that the buffer refused, for example because an id was never issued or memory ran out
    """

    places: int
    """maximum number of attached readers"""
    attached: int
    """readers attached now"""
    readers: int
    """readers attached so far, as reported by them"""
    handed: int
    """batches handed out"""
    out: int
    """batches held by readers"""
    returned: int
    """batches held by readers when they ended"""
    updates: int
    """readers' calls whose priorities were applied to the buffer"""
    refused: int
    """readers' calls that the buffer refused, for example because an id was never issued or memory ran out"""
