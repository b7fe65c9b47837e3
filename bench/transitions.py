"""The rows for the compared libraries: values derive from the row's number, so that they can be checked."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

EPISODE_STEPS = 200
ROWS_PER_EPISODE = EPISODE_STEPS + 1  # with the row of the final observation
CODES = 65536

Arrays = dict[str, npt.NDArray]


@dataclasses.dataclass(frozen=True)
class RowShape:
    """Observation (and next observation) and action of a transition, both float32; reward float32, done bool."""

    observation: tuple[int, ...]
    action: tuple[int, ...]

    @property
    def step_bytes(self) -> int:
        """Bytes of one transition with a stored next observation: 165 for the row of VECTOR."""
        return 4 * (2 * int(np.prod(self.observation)) + int(np.prod(self.action)) + 1) + 1


VECTOR = RowShape(observation=(17,), action=(6,))
IMAGE = RowShape(observation=(32, 32, 3), action=(1,))


def rows_of_steps(steps: npt.NDArray) -> npt.NDArray:
    """Row numbers of steps: the number after each episode, that of the final observation, is skipped."""
    return steps // EPISODE_STEPS * ROWS_PER_EPISODE + steps % EPISODE_STEPS


def rows_for(steps: int) -> int:
    """Number of rows of that many steps if final observations take rows."""
    return -(-steps // EPISODE_STEPS) * ROWS_PER_EPISODE + 1


def _values(rows: npt.NDArray, shape: tuple[int, ...]) -> npt.NDArray:
    """[n, *shape]: the row's code in the first element; the others differ from it by multiples of 1/32."""
    offsets = (np.arange(np.prod(shape)) % 32).astype(np.float32).reshape(shape) / 32
    codes = (rows % CODES).astype(np.float32)
    return codes.reshape(-1, *(1 for _ in shape)) + offsets


def transitions(shape: RowShape, first: int, count: int) -> Arrays:
    """The steps from number `first` on: observation, action, reward, next_observation, done; [count, ...]."""
    rows = rows_of_steps(np.arange(first, first + count))
    return {
        "observation": _values(rows, shape.observation),
        "action": _values(rows, shape.action),
        "reward": (rows % CODES).astype(np.float32),
        "next_observation": _values(rows + 1, shape.observation),
        "done": rows % ROWS_PER_EPISODE == EPISODE_STEPS - 1,
    }


def check(shape: RowShape, sampled: Arrays) -> None:
    """Raises ValueError unless each entry of `sampled` is a consistent transition of transitions()."""
    reward = np.asarray(sampled["reward"]).reshape(-1)
    steps = {
        "observation": _values(reward.astype(np.int64), shape.observation),
        "action": _values(reward.astype(np.int64), shape.action),
        "next_observation": _values(reward.astype(np.int64) + 1, shape.observation),
    }
    for name, expected in steps.items():
        if not np.array_equal(np.asarray(sampled[name]).reshape(expected.shape), expected):
            raise ValueError(f"{name} of the sampled transitions is not what was stored")
    weights = sampled.get("weights")
    if weights is not None:
        weights = np.asarray(weights)
        if weights.shape[0] != reward.size or not np.all((weights > 0) & np.isfinite(weights)):
            raise ValueError("importance-sampling weights are not positive and finite, one for each row")
