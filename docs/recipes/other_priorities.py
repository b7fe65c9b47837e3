"""Priorities by other formulas: Curious Replay and ReaPER."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import per

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]


def curious_priorities(
    losses: Floats,
    visits: npt.NDArray[np.int32],
    c: float = 1e4,
    beta: float = 0.7,
    alpha: float = 0.7,
    e: float = 0.01,
) -> Floats:
    """Priorities of Curious Replay, from the losses of a world model and the numbers of draws."""
    return c * np.power(beta, visits) + (np.abs(losses) + e) ** alpha


# The number of a step in its episode, the length of the episode once it is over, and the last |TD error| of the step.
REAPER_FIELDS = {"step": per.Field((), "int64"), "length": per.Field((), "int64", default=0), "error": per.Field()}


class Reaper:
    """Sets the priorities of ReaPER. The buffer has REAPER_FIELDS and alpha=1."""

    def __init__(self, buffer: per.ReplayBuffer, alpha: float, omega: float) -> None:
        self.buffer, self.alpha, self.omega = buffer, alpha, omega
        self.largest = 1.0  # |TD error| of a step that was never drawn
        self.sums: dict[int, float] = {}  # the sums of the finished episodes, by the id of the last step

    def update(self, batch: per.Batch[Any], td_errors: Floats, newest: Ids) -> None:
        """Sets the priorities of all drawn episodes. `newest`: the id of the newest step of each environment."""
        errors = np.abs(td_errors) + 1e-6
        self.largest = max(self.largest, float(errors.max()))
        self.buffer.set(batch.ids, error=errors)
        first = batch.ids - self.buffer.n_envs * batch["step"]
        length_so_far = 1 + (newest[batch.ids % self.buffer.n_envs] - first) // self.buffer.n_envs
        length = np.where(batch["length"] > 0, batch["length"], length_so_far)
        episodes = np.unique(np.stack([batch["length"] == 0, first, length], axis=1), axis=0)
        for is_running, episode_first, episode_length in episodes.tolist():  # finished ones first
            self.prioritize(episode_first, episode_length, is_running)

    def prioritize(self, first: int, length: int, is_running: bool) -> None:
        ids = self.live_steps(first, length)
        errors = self.buffer.get(ids, next_observations=False)["error"].astype(np.float64)
        sums = errors.cumsum()
        if not is_running:
            self.sums[int(ids[-1])] = sums[-1]
        total = max([sums[-1], *self.sums.values()]) if is_running else sums[-1]
        self.buffer.update_priorities(ids, priorities=errors**self.alpha * (sums / total) ** self.omega)

    def end(self, first: int, length: int) -> None:
        """Ends an episode, and forgets the sums of overwritten ones."""
        ids = self.live_steps(first, length)
        self.buffer.set(ids, length=np.full(ids.size, length))
        self.prioritize(first, length, is_running=False)
        is_there = self.buffer.priorities(list(self.sums)) > 0
        self.sums = {id: total for (id, total), there in zip(self.sums.items(), is_there, strict=True) if there}

    def live_steps(self, first: int, length: int) -> Ids:
        """The steps of an episode that have not been overwritten, in order of time."""
        ids = first + self.buffer.n_envs * np.arange(length)
        return ids[self.buffer.priorities(ids) > 0]


def walk(n: int) -> Iterator[tuple[int, int, bool]]:
    """(state, next state, whether the episode ends) of n steps of a random walk from state 3 to state 0 or 12."""
    random, state = np.random.default_rng(7), 3
    for _ in range(n):
        next_state = state + int(random.choice([-1, 1]))
        yield state, next_state, next_state in (0, 12)
        state = 3 if next_state in (0, 12) else next_state


FIELDS = {"observation": per.Field((), "int64")}
buffer = per.ReplayBuffer(1000, FIELDS, alpha=1.0, keep_times_sampled=True, seed=7)
model = np.zeros(13)  # predicts the state after each state
for state, next_state, is_end in walk(2000):
    buffer.add(
        observation=state,
        reward=next_state == 12,
        terminated=is_end,
        truncated=False,
        next_observation=next_state,
        priorities=1e5,
    )
    batch = buffer.sample(16)
    surprise = batch.next_observation - model[batch.observation]
    np.add.at(model, batch.observation, 0.05 * surprise)
    buffer.update_priorities(batch.ids, priorities=curious_priorities(surprise**2, batch.times_sampled))
print(f"Curious Replay: the largest priority is {buffer.priorities(buffer.live_ids()).max():.0f}")

buffer = per.ReplayBuffer(1000, {**FIELDS, **REAPER_FIELDS}, alpha=1.0, seed=7)
reaper = Reaper(buffer, alpha=0.4, omega=0.2)
values, step = np.zeros(13), 0
for state, next_state, is_end in walk(2000):
    ids = buffer.add(
        observation=[state],
        reward=[next_state == 12],
        terminated=[is_end],
        truncated=[False],
        next_observation=[next_state],
        step=[step],
        error=[reaper.largest],
        priorities=[reaper.largest**reaper.alpha],
    )
    step += 1
    if is_end:
        reaper.end(ids[0] + 1 - step, step)
        step = 0
    batch = buffer.sample(16)
    td_errors = batch.reward + batch.discount * values[batch.next_observation] - values[batch.observation]
    np.add.at(values, batch.observation, 0.05 * batch.weights * td_errors)
    reaper.update(batch, td_errors, newest=ids)
print(f"ReaPER: the largest priority is {buffer.priorities(buffer.live_ids()).max():.2f}")
