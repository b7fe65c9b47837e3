from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

# Ray gives its workers the niceness 15, with which they hardly run beside another suite.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "integrations"


def pytest_configure(config):
    config.addinivalue_line("markers", "long: left to scripts/test --all, which sets PER_TEST_ALL=1")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("long") and os.environ.get("PER_TEST_ALL") != "1":
            item.add_marker(pytest.mark.skip(reason="left to scripts/test --all"))


@pytest.fixture
def output_of_example(tmp_path):
    """A function that runs examples/integrations/NAME.py in the test's folder and returns its output."""

    def run(name: str, *arguments: str) -> str:
        program = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def buffers_made_by_first_steps():
    """A function that adds the first steps in four threads at once, and returns how many buffers were made for them.

    `make` names the method that makes the buffer. It is slowed down, so that all threads have called `add` by then.
    """

    def run(adapter: Any, make: str, add: Callable[[], object]) -> int:
        make_buffer, together, made = getattr(adapter, make), threading.Barrier(4), []

        def make_late(*arguments: Any) -> Any:
            time.sleep(0.05)
            made.append(make_buffer(*arguments))
            return made[-1]

        def work() -> None:
            together.wait()
            add()

        setattr(adapter, make, make_late)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(made)

    return run


class Transition(NamedTuple):
    """A step of an environment, as numbers that can be compared. A terminal step has no next observation."""

    observation: tuple[float, ...]
    action: int
    reward: float
    next_observation: tuple[float, ...] | None
    terminated: bool

    @classmethod
    def of(cls, observation: Any, action: Any, reward: Any, next_observation: Any, terminated: Any) -> Transition:
        seen, following = (tuple(np.ravel(value).tolist()) for value in (observation, next_observation))
        is_terminal = bool(np.ravel(terminated)[0])
        numbers = int(np.ravel(action)[0]), float(np.ravel(reward)[0])
        return cls(seen, *numbers, None if is_terminal else following, is_terminal)


class Counting:
    """Environments of Gymnasium that count, and the list of the transitions that they made.

    An observation has the numbers of the environment, the episode and the step. Episodes have 6 steps; every other
    episode is truncated, the rest are terminated.
    """

    def __init__(self) -> None:
        import gymnasium

        self.transitions: list[Transition] = []
        transitions = self.transitions

        class Environment(gymnasium.Env):
            observation_space = gymnasium.spaces.Box(-1e6, 1e6, (3,), np.float32)
            action_space = gymnasium.spaces.Discrete(4)

            def __init__(self, number: int = 0) -> None:
                self.number, self.episode, self.t = number, -1, 0

            def _seen(self) -> Any:
                return np.array([self.number, self.episode, self.t], np.float32)

            def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
                super().reset(seed=seed)
                self.episode, self.t = self.episode + 1, 0
                return self._seen(), {}

            def step(self, action: Any) -> Any:
                assert self.t < 6, "a step after the end of the episode"
                seen = self._seen()
                self.t += 1
                is_terminal = self.t == 6 and (self.episode + self.number) % 2 == 0
                reward = 1000.0 * self.number + 10 * self.episode + self.t
                transitions.append(Transition.of(seen, action, reward, self._seen(), is_terminal))
                return self._seen(), reward, is_terminal, self.t == 6 and not is_terminal, {}

        self.environment = Environment

    def vector(self, mode: str, n_envs: int = 2) -> Any:
        """A vector environment with one of Gymnasium's autoreset modes: "next_step", "same_step", "disabled"."""
        import gymnasium

        of_numbers = [lambda number=number: self.environment(number) for number in range(n_envs)]
        return gymnasium.vector.SyncVectorEnv(of_numbers, autoreset_mode=gymnasium.vector.AutoresetMode[mode.upper()])

    def steps(self, envs: Any, n_steps: int) -> Any:
        """Yields (observation, action, result of step()). Resets environments that do not reset themselves."""
        is_disabled = str(envs.metadata["autoreset_mode"]).endswith("DISABLED")
        seen, _ = envs.reset(seed=0)
        for k in range(n_steps):
            action = np.arange(envs.num_envs) % 4 if k % 2 else np.full(envs.num_envs, 3)
            step = envs.step(action)
            yield seen, action, step
            seen, ended = step[0], step[2] | step[3]
            if is_disabled and ended.any():
                seen, _ = envs.reset(options={"reset_mask": ended})

    @staticmethod
    def drawn(*columns: Any) -> set[Transition]:
        """The transitions in columns of observations, actions, rewards, next observations and terminations."""
        return {Transition.of(*row) for row in zip(*columns, strict=True)}


@pytest.fixture
def counting():
    return Counting()
