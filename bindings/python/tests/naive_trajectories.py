"""Episodes of one environment, kept whole: the trajectories of the naive model in naive_replay.py."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np


@dataclass
class Transition:
    row: int
    values: dict  # every declared field at this step, including observations
    reward: np.float32
    terminated: bool
    truncated: bool
    next_values: dict | None  # observations after this step; None while, or because, they are unknown
    priority: np.float32 | None = None  # None: it will get the maximum when it becomes live
    uses: int = 0  # number of times drawn
    version: int = 0  # of the buffer when it was added


@dataclass
class Episode:
    transitions: list = field(default_factory=list)
    ended: bool = False

    @property
    def last(self):
        return self.transitions[-1]

    @property
    def final_is_missing(self):
        return self.ended and not self.last.terminated and self.last.next_values is None


@dataclass
class Lane:
    next_row: int = 0  # row of the next step, or of the observation announced for it
    first_row: int = 0  # first row since the last clear
    episodes: list = field(default_factory=list)
    final: dict | None = None  # of the episode that the last step ended; a reset step or a suspect one repeats it

    def running(self):
        return bool(self.episodes) and not self.episodes[-1].ended

    def announced(self):
        """The observation that the lane's next step should have, if its trajectory goes on and that is known."""
        return self.episodes[-1].last.next_values if self.running() else None

    def copied(self):
        lane = replace(self, episodes=[])
        for episode in self.episodes:
            transitions = [replace(t, values=dict(t.values)) for t in episode.transitions]
            lane.episodes.append(Episode(transitions, episode.ended))
        return lane


@dataclass
class Window:
    steps: list
    start: int
    length: int
    bootstrap: int  # place in the episode of the observation bootstrapped from
    bootstrap_values: dict

    @property
    def ending(self):
        return self.steps[self.start + self.length - 1]


def window_of(episode, place, n_step):
    """The steps of the return from `place`, or None if it cannot be formed (yet)."""
    steps, last = episode.transitions, len(episode.transitions) - 1
    if episode.final_is_missing:
        length = min(n_step, last - place)
        return Window(steps, place, length, place + length, steps[place + length].values) if length else None
    end = place + n_step - 1
    if end > last:
        if not episode.ended:
            return None
        end = last
    if steps[end].next_values is not None:
        return Window(steps, place, end - place + 1, end + 1, steps[end].next_values)
    if steps[end].terminated:
        return Window(steps, place, end - place + 1, end, steps[end].values)
    return None
