"""A buffer that is right and quick enough for a million transitions, and faults of cost to plant in it.

Rows are in a list. Masses are the leaves of a sum tree in a numpy array: node k has the children 2 k and 2 k + 1, and
each level is read or summed for a whole batch at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from contract import Array, Batch, Buffer, Library, NotClaimed, Options, Step


class TreeBuffer(Buffer):
    work = 0  # nodes that all buffers have read and written

    def __init__(self, options: Options, fault: str | None = None) -> None:
        if options.n_envs > 1 or options.n_step > 1 or options.frame_stack > 1 or options.sequence_length:
            raise NotClaimed("single transitions of one environment")
        self.options = options
        self.fault = fault
        self.rows: list[Any] = [None] * options.capacity
        self.copies: list[Array] = []
        self.leaves = 1 << (options.capacity - 1).bit_length()
        self.tree = np.zeros(2 * self.leaves)
        self.added = 0
        self.largest = 1.0
        self.random = np.random.default_rng(options.seed)

    def add(self, step: Step) -> None:
        self.extend([step])

    def extend(self, steps: list[Step]) -> None:
        slots = (self.added + np.arange(len(steps))) % self.options.capacity
        self.added += len(steps)
        for slot, step in zip(slots.tolist(), steps, strict=True):
            self.rows[slot] = step
            if self.fault == "stores_twice":
                self.copies.append(np.copy(np.stack([step.observation, step.next_observation])))
        self.update(slots, np.full(len(slots), self.largest))

    def sample(self) -> Batch:
        size = self.options.batch_size
        nodes, points = np.ones(size, np.int64), self.random.random(size) * self.tree[1]
        while nodes[0] < self.leaves:
            TreeBuffer.work += size
            left = self.tree[2 * nodes]
            right = points >= left
            points -= left * right
            nodes = 2 * nodes + right
        if self.fault == "computes_all_probabilities":
            TreeBuffer.work += 4 * self.leaves
        rows = [self.rows[slot] for slot in (nodes - self.leaves).tolist()]
        weights = self.tree[nodes] ** -self.options.beta
        return Batch(
            observation=np.concatenate([row.observation for row in rows]),
            action=np.concatenate([row.action for row in rows]),
            reward=np.concatenate([row.reward for row in rows]),
            next_observation=np.concatenate([row.next_observation for row in rows]),
            discount=np.where(np.concatenate([row.terminated for row in rows]), 0.0, self.options.gamma),
            weights=weights / weights.max(),
            handle=nodes - self.leaves,
        )

    def update(self, handle: Any, priorities: Array) -> None:
        self.largest = max(self.largest, float(np.max(priorities)))
        nodes = np.asarray(handle) + self.leaves
        self.tree[nodes] = np.asarray(priorities) ** self.options.alpha
        while nodes[0] > 1:
            TreeBuffer.work += len(nodes)
            nodes = np.unique(nodes // 2)
            self.tree[nodes] = self.tree[2 * nodes] + self.tree[2 * nodes + 1]


class NaiveTree(Library):
    name = "naive tree"
    module = "numpy"
    pure_python = windows = macos = True

    def __init__(self, fault: str | None = None) -> None:
        self.fault = fault

    def create(self, options: Options) -> Buffer:
        return TreeBuffer(options, self.fault)
