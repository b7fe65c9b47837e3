#!/usr/bin/env python3
"""Measures how long a learner waits for its replay buffer, with and without a loader.

    python bench/loader.py --batch 256

The learner is that of examples/python/cartpole_dqn.py: after each environment step, whose arrays are prepared in
advance, it adds the step, takes a batch, trains double DQN on it in PyTorch on one thread, and sets the batch's
priorities. Both ways alternate in one process; the loader needs a second free core. Prints median microseconds per
step, and the buffer's share.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import peers
import per
import torch
from torch import nn

CAPACITY = 100_000
STEPS = 100  # of the learner per round
PARTS = ("add", "batch", "update")


class DuelingNetwork(nn.Module):
    """Q(s, a) = V(s) + A(s, a) - mean A(s, .)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.value = nn.Linear(128, 1)
        self.advantage = nn.Linear(128, 2)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        features = self.body(observation)
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(dim=-1, keepdim=True)


class Learner:
    """Double DQN with its own buffer."""

    def __init__(self, batch: int, slots: int | None) -> None:
        torch.manual_seed(0)
        rng = np.random.default_rng(0)
        fields = {"observation": per.Field((4,), "float32"), "action": per.Field((), "int64")}
        self.buffer = per.ReplayBuffer(CAPACITY, fields, seed=1, arrays="torch")
        self.observations = rng.standard_normal((CAPACITY + 1, 4), dtype=np.float32)
        self.buffer.extend(
            observation=self.observations[:-1],
            next_observation=self.observations[1:],
            action=rng.integers(0, 2, CAPACITY),
            reward=np.ones(CAPACITY, np.float32),
            terminated=False,
            truncated=np.zeros(CAPACITY, bool),
        )
        self.n_steps = 0
        self.online, self.target = DuelingNetwork(), DuelingNetwork()
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-3)
        self.take: Callable[[], Any] = (
            self.buffer.loader(batch, slots=slots).__next__ if slots else lambda: self.buffer.sample(batch)
        )
        self.seconds: dict[str, list[float]] = {part: [] for part in (*PARTS, "step")}

    def step(self) -> None:
        began = time.perf_counter()
        at = self.n_steps % CAPACITY
        self.n_steps += 1
        self.buffer.add(
            observation=self.observations[at],
            next_observation=self.observations[at + 1],
            action=0,
            reward=1.0,
            terminated=False,
            truncated=at + 1 == CAPACITY,
        )
        added = time.perf_counter()
        batch = self.take()
        taken = time.perf_counter()
        errors = self.learn(batch)
        learned = time.perf_counter()
        self.buffer.update_priorities(batch.ids, errors)
        ended = time.perf_counter()
        times = (added - began, taken - added, ended - learned, ended - began)
        for seconds, value in zip(self.seconds.values(), times, strict=True):
            seconds.append(value)

    def learn(self, batch: Any) -> torch.Tensor:
        with torch.no_grad():
            best = self.online(batch.next_observation).argmax(dim=1, keepdim=True)
            bootstrap = self.target(batch.next_observation).gather(1, best).squeeze(1)
            goal = batch.reward + batch.discount * bootstrap
        value = self.online(batch.observation).gather(1, batch.action.unsqueeze(1)).squeeze(1)
        loss = (batch.weights * nn.functional.smooth_l1_loss(value, goal, reduction="none")).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return goal - value.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--json", type=pathlib.Path, help="file to write the results to")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    print(f"{'us a step':24}{'add':>8}{'batch':>8}{'update':>8}{'whole':>8}{'share of the buffer':>21}")
    for size in arguments.batch:
        learners = {"sample": Learner(size, None), "loader": Learner(size, 2)}
        end = time.perf_counter() + arguments.seconds
        with peers.without_garbage_collection():
            while not learners["loader"].seconds["step"] or time.perf_counter() < end:
                for learner in learners.values():
                    for _ in range(STEPS):
                        learner.step()
        for name, learner in learners.items():
            us = {part: 1e6 * statistics.median(seconds) for part, seconds in learner.seconds.items()}
            share = sum(us[part] for part in PARTS) / us["step"]
            print(f"{name + f', B = {size}':24}" + "".join(f"{us[part]:8.1f}" for part in us) + f"{share:21.1%}")
            results.append({"way": name, "batch": size, "share": share} | {f"us_{part}": us[part] for part in us})
    if arguments.json:
        place = {"machine": peers.machine(), "commit": peers.commit(), "versions": peers.versions(["libper"])}
        arguments.json.write_text(json.dumps(place | {"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
