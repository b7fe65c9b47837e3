"""The recipes of a second index and of other priorities compute what their pages say.

The statistical tests draw from seeded buffers, so their outcomes are the same in every run. With other seeds a correct
recipe would exceed a bound once in a million runs (z = 4.75, one-sided).
"""

from __future__ import annotations

import collections
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


@pytest.fixture(scope="module")
def other_priorities() -> Any:
    return module_of("other_priorities")


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


# -------------------------------------------------------------------------------------------- other priorities


def test_curious_priorities_by_hand(other_priorities: Any) -> None:
    found = other_priorities.curious_priorities(
        np.array([0.99, -3.99, 0.0]), np.array([0, 2, 1]), c=100.0, beta=0.5, alpha=0.5, e=0.01
    )
    np.testing.assert_allclose(found, [100 + 1, 25 + 2, 50 + 0.1])


def test_visits_of_curious_replay_are_the_draws_so_far(other_priorities: Any) -> None:
    buffer = per.ReplayBuffer(30, SCALAR, alpha=1.0, keep_times_sampled=True, seed=7)
    steps, random = Steps(buffer, seed=8), np.random.default_rng(9)
    visits: collections.Counter[int] = collections.Counter()
    expected: dict[int, float] = {}
    for _ in range(200):
        ids, _ = steps.add(priorities=1e5)
        expected[int(ids[0])] = 1e5
        batch = buffer.sample(4)
        losses = random.normal(size=31)[batch.ids % 31]  # a transition that is drawn twice has one loss
        buffer.update_priorities(batch.ids, priorities=other_priorities.curious_priorities(losses, batch.times_sampled))
        visits.update(batch.ids.tolist())
        for id, loss in zip(batch.ids.tolist(), losses, strict=True):
            expected[id] = 1e4 * 0.7 ** visits[id] + (abs(loss) + 0.01) ** 0.7
        live = buffer.live_ids()
        np.testing.assert_allclose(buffer.priorities(live), [expected[id] for id in live.tolist()], rtol=1e-6)


def reaper_buffer(other_priorities: Any, capacity: int, n_envs: int = 1) -> per.ReplayBuffer:
    fields = {**SCALAR, **other_priorities.REAPER_FIELDS}
    return per.ReplayBuffer(capacity, fields, n_envs=n_envs, alpha=1.0, seed=7)


def test_reaper_priorities_by_hand(other_priorities: Any) -> None:
    buffer = reaper_buffer(other_priorities, 20)
    reaper = other_priorities.Reaper(buffer, alpha=0.5, omega=2.0)

    def add(observation: int, step: int, end: bool) -> np.ndarray:
        return buffer.add(
            observation=[observation],
            next_observation=[observation + 1],
            reward=[0.0],
            terminated=[end],
            truncated=[False],
            step=[step],
            error=[reaper.largest],
            priorities=[reaper.largest**0.5],
        )

    for step in range(3):
        ids = add(step, step, step == 2)
    reaper.end(0, 3)
    np.testing.assert_allclose(buffer.priorities([0, 1, 2]), [(1 / 3) ** 2, (2 / 3) ** 2, 1])
    reaper.update(buffer.get_windows([1, 0]), np.array([-4.0, 3.0]), newest=ids)
    sums = np.array([3, 7, 8]) / 8  # of the errors 3, 4 and 1
    np.testing.assert_allclose(buffer.priorities([0, 1, 2]), np.sqrt([3, 4, 1]) * sums**2, rtol=1e-5)
    # The steps of an episode that is not over are compared with the largest sum of an episode. Id 3 is the final
    # observation of the first episode; new steps have the largest error.
    for step in range(2):
        ids = add(10 + step, step, False)
    assert ids.tolist() == [5]
    np.testing.assert_allclose(buffer.priorities([4, 5]), [2, 2], rtol=1e-5)
    reaper.update(buffer.get_windows([4]), np.array([1.0]), newest=ids)
    np.testing.assert_allclose(buffer.priorities([4, 5]), [(1 / 8) ** 2, 2 * (5 / 8) ** 2], rtol=1e-5)


def test_reaper_priorities_are_those_of_a_naive_model(other_priorities: Any) -> None:
    n_envs, alpha, omega = 2, 0.4, 0.2
    buffer = reaper_buffer(other_priorities, 60, n_envs)
    reaper = other_priorities.Reaper(buffer, alpha, omega)
    steps, random = Steps(buffer, seed=10), np.random.default_rng(11)
    error: dict[int, float] = {}
    priority: dict[int, float] = {}
    episodes: list[list[int]] = []  # ids in order of time
    running: list[list[int]] = [[] for _ in range(n_envs)]
    finished: dict[int, float] = {}  # sums of |TD errors|, by the id of the last step
    largest = 1.0
    n_partly, n_running = 0, 0

    def prioritize(episode: list[int]) -> None:
        nonlocal n_partly, n_running
        live = set(buffer.live_ids().tolist())
        there = [id for id in episode if id in live]
        total = sum(error[id] for id in there)
        if any(episode is other for other in running):
            n_running += 1
            total = max([total, *finished.values()])
        else:
            finished[episode[-1]] = total
        n_partly += 0 < len(there) < len(episode)
        for place, id in enumerate(there):
            # With the total of a finished episode this is 1 - (sum of the later errors) / total.
            so_far = sum(error[other] for other in there[: place + 1])
            priority[id] = error[id] ** alpha * (1 - (total - so_far) / total) ** omega

    for _ in range(400):
        ids, ends = steps.add(
            step=steps.step, error=np.full(n_envs, largest), priorities=np.full(n_envs, largest**alpha)
        )
        for env, id in enumerate(ids.tolist()):
            error[id], priority[id] = largest, largest**alpha
            if not running[env]:
                running[env] = []
                episodes.append(running[env])
            running[env].append(id)
            if ends[env]:
                episode, running[env] = running[env], []
                reaper.end(episode[0], len(episode))
                steps.step[env] = 0
                prioritize(episode)
                finished = {last: total for last, total in finished.items() if last in buffer.live_ids()}
        batch = buffer.sample(3)
        td_errors = random.normal(size=61)[batch.ids % 61] * 2
        reaper.update(batch, td_errors, newest=ids)
        for id, td_error in zip(batch.ids.tolist(), td_errors.tolist(), strict=True):
            error[id] = abs(td_error) + 1e-6
            largest = max(largest, error[id])
        drawn = [episode for episode in episodes if set(episode) & set(batch.ids.tolist())]
        for episode in sorted(drawn, key=lambda one: any(one is other for other in running)):
            prioritize(episode)
        assert reaper.largest == pytest.approx(largest)
        live = buffer.live_ids().tolist()
        np.testing.assert_allclose(buffer.priorities(live), [priority[id] for id in live], rtol=1e-5)
    assert n_partly > 20 and n_running > 20
