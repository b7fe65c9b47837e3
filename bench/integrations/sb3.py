"""Microseconds of calls of the replay buffers of stable-baselines3 and of per.integrations.sb3, in turns.

    .venvs/sb3/bin/python bench/integrations/sb3.py [--capacity N] [--seconds S]

libper draws by priority, with weights; the last row also sets priorities.
"""

from __future__ import annotations

import argparse

import numpy as np
import stable_baselines3
import torch
from gymnasium import spaces
from interleaved import microseconds, print_table
from per.integrations import sb3
from stable_baselines3.common import buffers
from stable_baselines3.common.logger import Logger

STATES = spaces.Box(-np.inf, np.inf, (17,), np.float32)
IMAGES = spaces.Box(0, 255, (4, 84, 84), np.uint8)
ACTIONS = spaces.Box(-1, 1, (6,), np.float32)


def steps(space: spaces.Box, n_envs: int, count: int = 64) -> list[tuple]:
    """Steps of endless episodes; the first step follows the last."""
    random = np.random.default_rng(0)
    seen = [(100 * random.random((n_envs, *space.shape))).astype(space.dtype) for _ in range(count)]
    action = random.random((n_envs, 6)).astype(np.float32)
    rest = action, np.ones(n_envs, np.float32), np.zeros(n_envs, bool), [{} for _ in range(n_envs)]
    return [(seen[i], seen[(i + 1) % count], *rest) for i in range(count)]


def adding(buffer: buffers.ReplayBuffer, given: list[tuple]):
    """A function that adds the next step on each call."""
    at = [0]

    def add() -> None:
        buffer.add(*given[at[0]])
        at[0] = (at[0] + 1) % len(given)

    return add


def full(kinds: dict[str, type], capacity: int, space: spaces.Box, n_envs: int = 1, **options: object) -> tuple:
    """A full buffer of each kind, and functions that add to them."""
    made = {name: kind(capacity, space, ACTIONS, "cpu", n_envs=n_envs, **options) for name, kind in kinds.items()}
    given = steps(space, n_envs)
    adds = {name: adding(buffer, given) for name, buffer in made.items()}
    for add in adds.values():
        for _ in range(capacity // n_envs + 1):
            add()
    random = np.random.default_rng(1)
    replay = made["libper"].replay
    replay.update_priorities(replay.live_ids(), random.random(len(replay)).astype(np.float32))
    return made, adds


def algorithms(capacity: int) -> dict:
    """A call of train() with each, on random transitions."""
    trains = {}
    for name, kind in (("stable-baselines3", stable_baselines3.DQN), ("libper", sb3.DQN)):
        model = kind("MlpPolicy", "CartPole-v1", buffer_size=capacity, learning_starts=5000, device="cpu", seed=1)
        model.learn(5000)
        model.set_logger(Logger(None, []))
        trains[name] = lambda model=model: model.train(1, 64)
    return trains


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--capacity", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=5, help="for each row")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    theirs, ours = buffers.ReplayBuffer, sb3.PrioritizedReplayBuffer
    uniform = {"stable-baselines3": theirs, "libper": ours}
    n_step = {"stable-baselines3": buffers.NStepReplayBuffer, "libper": ours}
    rows = {}

    def measure(row: str, functions: dict) -> None:
        rows[row] = microseconds(functions, seconds=arguments.seconds)

    made, adds = full(uniform, arguments.capacity, STATES)
    measure("add", adds)
    measure("sample 256", {name: lambda buffer=buffer: buffer.sample(256) for name, buffer in made.items()})
    _, adds = full(uniform, arguments.capacity, STATES, n_envs=8)
    measure("add, 8 environments", adds)
    made, _ = full(n_step, arguments.capacity, STATES, n_steps=3)
    measure("sample 256, 3 steps", {name: lambda buffer=buffer: buffer.sample(256) for name, buffer in made.items()})
    made, adds = full(uniform, arguments.capacity // 20, IMAGES)
    measure("add, 84 x 84 x 4", adds)
    measure("sample 32, 84 x 84 x 4", {name: lambda buffer=buffer: buffer.sample(32) for name, buffer in made.items()})
    measure("DQN.train(1, 64)", algorithms(arguments.capacity))
    print_table(f"microseconds, {arguments.capacity} transitions", rows)


if __name__ == "__main__":
    main()
