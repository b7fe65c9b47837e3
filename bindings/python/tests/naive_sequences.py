"""Sequences of the naive model in naive_replay.py: which can be drawn, their contents, and their priorities."""

from __future__ import annotations

import numpy as np
from naive_trajectories import window_of


def steps_of(replay):
    """T, or 0 for single transitions."""
    return replay.burn_in + replay.sequence_length if replay.sequence_length else 0


def starts(replay, place):
    """Whether a sequence starts at that place of an episode."""
    return not replay.sequence_length or place % (replay.sequence_stride or replay.sequence_length) == 0


def learnable(replay, episode, place):
    """Number of steps from `place` on that have a complete return, at most T."""
    count = 0
    while count < steps_of(replay) and place + count < len(episode.transitions):
        if window_of(episode, place + count, replay.n_step) is None:
            break
        count += 1
    return count


def is_complete(replay, episode, place):
    """Whether the sequence can be drawn, provided that its rows exist."""
    if not starts(replay, place):
        return False
    count = learnable(replay, episode, place)
    return count == steps_of(replay) or (episode.ended and count > replay.burn_in)


def priority(replay, episode, place, errors):
    """eta max + (1 - eta) mean of errors [T], or [n_critics, T]; None if there is no step after the burn-in."""
    count = learnable(replay, episode, place)
    if count <= replay.burn_in:
        return None
    with np.errstate(all="ignore"):
        steps = np.abs(np.atleast_2d(np.asarray(errors, np.float64)))[:, replay.burn_in : count]
        steps = steps.max(axis=0) if replay.critics == "max" else steps.mean(axis=0)
        eta = replay.sequence_eta
        return np.float32(eta * steps.max() + (1 - eta) * steps.mean() + replay.epsilon)


def sequence(replay, id, n_step):
    """The values of a batch for a sequence, with n_step-step returns: for each step those of a transition."""
    _, _, episode, first = replay.find(id)
    count, steps = learnable(replay, episode, first), steps_of(replay)
    rows = [replay.transition_row(episode, first + t, n_step) for t in range(count)]
    result = {"priorities": episode.transitions[first].priority}
    result["mask"] = np.arange(steps) < count
    kept = observed(rows)
    for name, field in replay.fields.items():
        if name in replay.observations:
            frames = {p: observation(replay, episode, first + p, name) for p in kept}
            result[name] = np.stack([frames.get(p, np.zeros_like(frames[0])) for p in range(steps + n_step)])
        elif field.role == "recurrent_state":
            result[name] = rows[0][name]
        else:
            result[name] = padded([row[name] for row in rows], steps)
    for name in ("reward", "discount", "gamma_m", "n_steps", "terminated", "truncated"):
        result[name] = padded([row[name] for row in rows], steps)
    return result


def padded(values, length):
    values = [np.asarray(value) for value in values]
    return np.stack(values + [np.zeros_like(values[0])] * (length - len(values)))


def observed(rows):
    """The places of a sequence whose observation is used by a step, or bootstrapped from."""
    return {t for t, _ in enumerate(rows)} | {t + int(row["n_steps"]) for t, row in enumerate(rows)}


def observation(replay, episode, place, name):
    """The observation before the step at a place, or after the last one; if unknown, the last one is repeated."""
    last = len(episode.transitions) - 1
    if place <= last:
        return replay.frames(episode, place, episode.transitions[place].values, name)
    if episode.last.next_values is not None:
        return replay.frames(episode, place, episode.last.next_values, name)
    return replay.frames(episode, last, episode.last.values, name)
