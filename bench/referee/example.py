"""An adapter in a separate file: python -m per referee --library example.py. Ring takes the place of a library."""

import numpy as np
from contract import Array, Batch, Buffer, Library, NotClaimed, Options, Step


class Ring:
    def __init__(self, capacity: int) -> None:
        self.rows: list[tuple] = [()] * capacity
        self.priorities = np.zeros(capacity)
        self.count = 0

    def append(self, row: tuple, priority: float) -> None:
        slot = self.count % len(self.rows)
        self.rows[slot], self.priorities[slot] = row, priority
        self.count += 1

    def draw(self, n: int, alpha: float) -> tuple[Array, list[Array]]:
        masses = self.priorities[: self.count] ** alpha
        slots = np.random.choice(len(masses), n, p=masses / masses.sum())
        return slots, [np.stack(column) for column in zip(*(self.rows[slot] for slot in slots), strict=True)]


class RingBuffer(Buffer):
    def __init__(self, options: Options) -> None:
        claimed = ("capacity", "batch_size", "alpha", "gamma", "shape", "dtype")
        if options != Options(**{name: getattr(options, name) for name in claimed}):
            raise NotClaimed("single transitions of one environment, drawn by priority")
        self.options = options
        self.ring = Ring(options.capacity)

    def add(self, step: Step) -> None:
        priority = 1.0 if step.priority is None else step.priority[0]
        row = (step.observation, step.action, step.reward, step.next_observation, step.terminated)
        self.ring.append(tuple(column[0] for column in row), priority)

    def sample(self) -> Batch:
        slots, columns = self.ring.draw(self.options.batch_size, self.options.alpha)
        observation, action, reward, following, terminated = columns
        discount = np.where(terminated, 0, self.options.gamma)
        return Batch(observation, action, reward, following, discount, weights=None, handle=slots)

    def update(self, handle: Array, priorities: Array) -> None:
        self.ring.priorities[handle] = priorities

    def set_all(self, priorities: Array) -> None:
        oldest = max(0, self.ring.count - len(self.ring.rows))
        self.update(np.arange(oldest, self.ring.count) % len(self.ring.rows), priorities)


class RingLibrary(Library):
    name = "ring"
    module = "numpy"
    pure_python = windows = macos = True

    def create(self, options: Options) -> Buffer:
        return RingBuffer(options)
