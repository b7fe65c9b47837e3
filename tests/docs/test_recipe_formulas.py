"""The recipe of a second index computes what its page says.

The statistical tests draw from seeded buffers, so their outcomes are the same in every run. With other seeds a correct
recipe would exceed a bound once in a million runs (z = 4.75, one-sided).
"""

from __future__ import annotations

import importlib.util
import types
from pathlib import Path
from typing import Any

import numpy as np
import per
import pytest

RECIPES = Path(__file__).resolve().parents[2] / "docs" / "recipes"
Z = 4.75
SCALAR = {"observation": per.Field((), "int64")}


def module_of(name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def event_tables() -> Any:
    return module_of("event_tables")


class Steps:
    """Adds steps whose observations count up, with random ends, gaps and left-out environments."""

    def __init__(self, buffer: per.ReplayBuffer, seed: int) -> None:
        self.buffer, self.random = buffer, np.random.default_rng(seed)
        self.observation = np.zeros(buffer.n_envs, np.int64)
        self.step = np.zeros(buffer.n_envs, np.int64)

    def add(self, gaps: float = 0.0, left_out: float = 0.0, **fields: Any) -> tuple[np.ndarray, np.ndarray]:
        """Ids, and which steps ended their episodes."""
        n = self.buffer.n_envs
        has_gap = self.random.random(n) < gaps
        self.observation += 100 * has_gap
        self.step[has_gap] = 0
        mask = self.random.random(n) >= left_out
        terminated, truncated = self.random.random((2, n)) < 0.1
        ids = self.buffer.add(
            observation=self.observation,
            reward=np.zeros(n),
            terminated=terminated,
            truncated=truncated,
            next_observation=self.observation + 1,
            mask=mask,
            **fields,
        )
        ends = mask & (terminated | truncated)
        self.observation += mask + 100 * ends
        self.step += mask
        return ids, ends


# ----------------------------------------------------------------------------------------------- a second index


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("options", [{}, {"n_step": 3}, {"frame_stack": 3}, {"store_next_observation": True}], ids=str)
def test_index_has_the_tagged_transitions_that_are_live(
    event_tables: Any, n_envs: int, options: dict[str, Any]
) -> None:
    buffer = per.ReplayBuffer(40 * n_envs, SCALAR, n_envs=n_envs, seed=1, **options)
    index, steps = event_tables.EventIndex(buffer, seed=2), Steps(buffer, seed=3)
    tagged: set[int] = set()
    sizes = []
    for _ in range(500):
        ids, ends = steps.add(gaps=0.05, left_out=0.1)
        index.forget_overwritten(ids)
        for env in np.flatnonzero(ends):
            last = ids[env] - n_envs * np.arange(min(steps.step[env], 4))
            if steps.random.random() < 0.5:
                index.tag(last)
                tagged |= set(last.tolist())
            steps.step[env] = 0
        held = set(index.ids[index.tree.priorities() > 0].tolist())
        live = tagged & set(buffer.live_ids().tolist())
        if "frame_stack" in options:  # the first steps of an episode need fewer earlier rows, and live longer
            assert held <= live and len(live) - len(held) <= 2 * n_envs
        elif "store_next_observation" in options:  # a next observation takes no row
            assert held <= live and len(live) - len(held) <= n_envs
        else:
            assert held == live
        sizes.append(len(held))
    assert max(sizes) > 4 * n_envs and len(tagged) > 5 * max(sizes)


def chi_square_bound(degrees: int) -> float:
    """Wilson and Hilferty's cube-root approximation of the quantile."""
    return float(degrees * (1 - 2 / (9 * degrees) + Z * np.sqrt(2 / (9 * degrees))) ** 3)


def chi_square(ids: np.ndarray, probabilities: np.ndarray) -> tuple[float, float]:
    """Pearson's statistic, and its bound. Stratified draws scatter less than independent ones."""
    expected = ids.size * probabilities
    counts = np.bincount(ids.ravel(), minlength=expected.size)
    assert not counts[expected == 0].any() and expected[expected > 0].min() > 5
    drawable = expected > 0
    statistic = ((counts - expected)[drawable] ** 2 / expected[drawable]).sum()
    return float(statistic), chi_square_bound(int(drawable.sum()) - 1)


def test_a_quarter_of_each_batch_comes_from_the_index_and_weights_are_those_of_the_union(event_tables: Any) -> None:
    n_rows, n_batches = 50, 4000
    buffer = per.ReplayBuffer(n_rows + 1, {**SCALAR, "success": per.Field((), "bool")}, beta=0.7, seed=4)
    random = np.random.default_rng(5)
    success = random.random(n_rows) < 0.2
    flags = np.zeros(n_rows, bool)
    ids = buffer.extend(
        observation=np.arange(n_rows),
        next_observation=np.arange(n_rows) + 1,
        success=success,
        reward=flags,
        terminated=flags,
        truncated=flags,
    )
    priorities = random.exponential(size=n_rows).astype(np.float32) + 0.1
    buffer.update_priorities(ids, priorities=priorities)
    index = event_tables.EventIndex(buffer, seed=6)
    tag_priorities = np.where(success, random.uniform(0.5, 2, n_rows), 0.0)
    for id in ids[success]:
        index.tag(np.array([id]), tag_priorities[id])

    by_buffer = priorities.astype(np.float64) ** 0.6
    by_buffer /= by_buffer.sum()
    by_index = tag_priorities / tag_priorities.sum()
    union = 0.75 * by_buffer + 0.25 * by_index
    drawn = []
    for _ in range(n_batches):
        batch = event_tables.sample(buffer, index, 32, share=0.25)
        assert batch["success"][24:].all()
        np.testing.assert_array_equal(batch["observation"], batch["ids"])
        np.testing.assert_allclose(batch["probabilities"], union[batch["ids"]], rtol=1e-5)
        weights = (n_rows * union[batch["ids"]]) ** -0.7
        np.testing.assert_allclose(batch["weights"], weights / weights.max(), rtol=1e-5)
        drawn.append(batch["ids"])
    found = np.stack(drawn)
    assert found.shape == (n_batches, 32)
    for part, probabilities in ((found[:, :24], by_buffer), (found[:, 24:], by_index), (found, union)):
        statistic, bound = chi_square(part, probabilities)
        assert statistic < bound

    # With beta = 1 the weighted mean of any function of the transitions is that of a uniform draw.
    function = np.arange(n_rows) ** 2.0
    weighted = function / (n_rows * union)
    variance = sum(
        share * (p @ weighted**2 - (p @ weighted) ** 2) for share, p in ((0.75, by_buffer), (0.25, by_index))
    )
    assert abs(weighted[found].mean() - function.mean()) < Z * np.sqrt(variance / found.size)


def test_without_tags_all_of_a_batch_comes_from_the_buffer(event_tables: Any) -> None:
    buffer = per.ReplayBuffer(20, SCALAR, seed=4)
    steps = Steps(buffer, seed=3)
    for _ in range(15):
        steps.add()
    index = event_tables.EventIndex(buffer, seed=6)
    batch = event_tables.sample(buffer, index, 32, share=0.25)
    np.testing.assert_allclose(batch["probabilities"], 1 / len(buffer), rtol=1e-6)
    np.testing.assert_allclose(batch["weights"], 1.0, rtol=1e-6)
