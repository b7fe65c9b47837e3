"""Relabelled batches after random walks, compared with the definition applied to the naive model's episodes."""

from __future__ import annotations

import os
import pathlib
import sys

import naive_sequences
import numpy as np
import per
import pytest
from cuda_switch import IS_CUDA
from naive_trajectories import window_of
from naive_walk import Walk

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden"))
from make_draws import random64

HINDSIGHT_NUMBERS = 2**62
SMALL = 4  # values of a goal: some are reached


def reward_of(achieved, goal):
    return (achieved * np.array([1.0, 0.5]) - goal * np.array([0.25, 1.0])).sum(axis=-1).astype(np.float32)


def fields_of(goal_role, stack, padding):
    return {
        "observation": per.Field((), "float32", padding=padding),
        "achieved": per.Field(2, "int16", role="observation", stack=stack),
        "goal": per.Field(2, "int16", role=goal_role, stack=stack, padding=padding),
        "action": per.Field((), "uint8"),
    }


class HindsightWalk(Walk):
    end_probability = 0.05
    cut_probability = 0.03

    def __init__(self, seed, capacity, goal_role, stack, padding, **options):
        super().__init__(seed, capacity, fields_of(goal_role, stack, padding), **options)
        self.seed = seed
        self.relabelled = 0

    def observe(self):
        return {
            "observation": self.random.integers(0, 1000, self.n).astype(np.float32),
            "achieved": self.random.integers(0, SMALL, (self.n, 2)).astype(np.int16),
            "goal": self.random.integers(0, SMALL, (self.n, 2)).astype(np.int16),
        }

    def other_fields(self, at):
        return {"action": self.random.integers(0, 256, self.n).astype(np.uint8)}

    # ---- the definition

    def goals_known(self, episode):
        """The goals achieved by an episode's steps whose rows exist and whose next observation is known."""
        lane = next(lane for lane in self.naive.lanes if any(episode is e for e in lane.episodes))
        oldest = self.naive.oldest_row(lane)
        return {
            place: step.next_values["achieved"]
            for place, step in enumerate(episode.transitions)
            if step.row >= oldest and step.next_values is not None
        }

    def goal_of(self, i, batch_number, id, strategy, fraction, n_step):
        """The new goal of place i of a batch, or None if it keeps its goal."""
        _, _, episode, place = self.naive.find(id)
        if random64(self.seed, batch_number, HINDSIGHT_NUMBERS + 2 * i) >> 11 >= fraction * 2**53:
            return None
        if any(s.next_values is None for s in self.asked_for(episode, place, n_step)):
            return None
        known = self.goals_known(episode)
        places = sorted(known) if strategy == "episode" else [p for p in sorted(known) if p >= place]
        if strategy == "final":
            return known[places[-1]]
        return known[places[random64(self.seed, batch_number, HINDSIGHT_NUMBERS + 2 * i + 1) * len(places) >> 64]]

    def asked_for(self, episode, place, n_step):
        """The steps whose rewards are needed for a draw of that place."""
        count = naive_sequences.learnable(self.naive, episode, place) if self.naive.sequence_length else 1
        window = window_of(episode, place + count - 1, n_step)
        return window.steps[place : window.start + window.length]

    def sequence(self, id, goal, recomputes, n_step):
        """The values of a batch for a sequence with that goal: for each step those of a transition."""
        _, _, episode, place = self.naive.find(id)
        result = self.naive.row(id, n_step)
        count = int(result["mask"].sum())
        goals = set(range(count))
        if "goal" in self.naive.observations:
            goals = naive_sequences.observed([{"n_steps": result["n_steps"][t]} for t in range(count)])
        for t in range(count):
            row = self.row(episode, place + t, goal, recomputes, n_step)
            for name in ("reward", "discount", "gamma_m", "n_steps", "terminated", "truncated"):
                result[name][t] = row[name]
        for t in goals:
            result["goal"][t] = self.goal_frames(goal, place + t)
        return result

    def row(self, episode, place, goal, recomputes, n_step):
        """The values of a batch for a transition with that goal."""
        window = window_of(episode, place, n_step)
        steps = window.steps[place : place + window.length]
        rewards = [reward_of(step.next_values["achieved"], goal) for step in steps]
        terminated = [step.terminated for step in steps]
        if recomputes:
            terminated = [bool((step.next_values["achieved"] == goal).all()) for step in steps]
        length = terminated.index(True) + 1 if True in terminated else len(steps)
        result = self.naive.transition_row(episode, place, length)
        gamma = self.naive.gamma
        result["reward"] = np.float32(sum(gamma**k * float(rewards[k]) for k in range(length)))
        result["discount"] = np.float32(0 if terminated[length - 1] else gamma**length)
        result["gamma_m"] = np.float32(gamma**length)
        result["n_steps"] = length
        result["terminated"] = terminated[length - 1]
        result["truncated"] = steps[length - 1].truncated and not result["terminated"]
        result["goal"] = self.goal_frames(goal, place)
        if "next_goal" in result:
            result["next_goal"] = self.goal_frames(goal, place + length)
        return result

    def goal_frames(self, goal, place):
        """The stack of the goal at a place of an episode: the goal in each frame but the zeros before it."""
        stack = self.naive.stacks["goal"]
        if stack == 1:
            return goal
        n_zeros = max(0, stack - 1 - place) if self.naive.fields["goal"].padding == "zero" else 0
        return np.stack([np.zeros_like(goal)] * n_zeros + [goal] * (stack - n_zeros))

    # ---- checks

    def check(self):
        if not self.naive.live():
            return
        strategy = str(self.random.choice(["future", "final", "episode"]))
        k = float(self.random.choice([0, 1, 4, np.inf]))
        fraction = 1.0 if k == np.inf else k / (k + 1)
        recomputes = self.random.random() < 0.5
        n_step = int(self.random.integers(1, self.naive.n_step + 1))
        asked = []

        def reward(achieved, goal):
            assert achieved.shape == goal.shape == (len(goal), 2) and achieved.dtype == np.int16
            asked.append(len(goal))
            rewards = reward_of(achieved, goal)
            return (rewards, (achieved == goal).all(axis=1)) if recomputes else rewards

        hindsight = per.Hindsight("achieved", "goal", reward, strategy=strategy, k=k)
        batch_number = self.naive.counters["samples"]
        batch = self.buffer.sample(24, hindsight=hindsight, n_step=n_step)
        self.naive.count_sample(by_schedule=True)
        n_asked = 0
        for i, id in enumerate(batch.ids.tolist()):
            goal = self.goal_of(i, batch_number, id, strategy, fraction, n_step)
            expected = self.naive.row(id, n_step)
            if goal is not None:
                _, _, episode, place = self.naive.find(id)
                self.relabelled += 1
                n_asked += len(self.asked_for(episode, place, n_step))
                if self.naive.sequence_length:
                    expected = self.sequence(id, goal, recomputes, n_step)
                else:
                    expected = self.row(episode, place, goal, recomputes, n_step)
            for name, value in expected.items():
                np.testing.assert_allclose(batch[name][i], value, rtol=1e-6, atol=1e-7, err_msg=f"{name} of {id}")
        assert sum(asked) == n_asked and len(asked) <= 1
        assert self.buffer.stats().samples == self.naive.counters["samples"]


OPTIONS = [
    {},
    {"n_step": 3},
    {"n_step": 5, "frame_stack": 3, "gamma": 0.5},
    {"frame_stack": 2},
    {"store_next_observation": True, "n_step": 2},
    {"store_next_observation": True, "frame_stack": 2},
    {"autoreset": "next_step", "n_step": 2},
    {"autoreset": "same_step"},
    {"prioritization": "uniform", "scheme": "independent"},
    {"max_priority": "now", "scheme": "systematic", "beta_steps": 10},
    {"sequence_length": 3, "burn_in": 1, "sequence_stride": 2},
    {"sequence_length": 2, "sequence_stride": 1, "n_step": 3, "frame_stack": 2},
    {"sequence_length": 4, "sequence_stride": 1, "store_next_observation": True, "n_step": 2},
    {"sequence_length": 1, "sequence_stride": 1, "n_step": 4, "frame_stack": 2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "default")
@pytest.mark.parametrize(
    "goal_role, stack, padding",
    [("plain", 1, None), ("observation", 2, "repeat"), ("plain", 3, "zero"), ("observation", 4, "zero")],
)
@pytest.mark.parametrize("n_envs, rows", [(1, 40), (3, 11)])
def test_relabelled_batches_agree_with_the_definition(options, goal_role, stack, padding, n_envs, rows):
    walk = HindsightWalk(rows + n_envs, rows * n_envs, goal_role, stack, padding, n_envs=n_envs, **options)
    n_steps = 100 if os.environ.get("PER_TEST_ALL") == "1" and not IS_CUDA else 30
    for t in range(n_steps):
        walk.step()
        if t % 3 == 2:
            walk.check()
    assert walk.relabelled > 0.6 * n_steps
