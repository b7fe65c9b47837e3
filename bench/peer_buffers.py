"""The compared libraries with a common interface, each used as its own documentation shows.

A class takes the shape of its rows, a capacity and a batch size, and is filled with transitions whose priorities all
change once. `add` takes one transition, `sample` draws a batch with its weights, `update` sets the priorities of the
batch drawn last. Arrays are of the library's own kind, which its users have at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import transitions
from libper_buffers import ALPHA, BETA, EPSILON, Libper, LibperCalls, LibperOut
from transitions import Arrays, RowShape


class NumpyCumsum:
    """Rings of numpy arrays; prefix sums of all priorities, recomputed for each batch."""

    package = "numpy"
    version_of = "numpy"
    stores_observations_once = False

    def __init__(self, shape: RowShape, capacity: int, batch: int) -> None:
        self.rings = {
            name: np.zeros((capacity, *array.shape[1:]), array.dtype)
            for name, array in transitions.transitions(shape, 0, 1).items()
        }
        self.masses = np.zeros(capacity)
        self.largest = 1.0
        self.added = 0
        self.capacity = capacity
        self.strata = np.arange(batch)
        self.random = np.random.default_rng(1)

    def fill(self, arrays: Arrays, priorities: npt.NDArray) -> None:
        slots = np.arange(self.added, self.added + len(priorities)) % self.capacity
        for name, array in arrays.items():
            self.rings[name][slots] = array
        self.added += len(priorities)
        self.slots = slots
        self.priorities = priorities
        self.update()

    def prepare(self, step: Arrays, priorities: npt.NDArray) -> None:
        self.step = step
        self.priorities = priorities

    def add(self) -> None:
        slot = self.added % self.capacity
        for name, value in self.step.items():
            self.rings[name][slot] = value
        self.masses[slot] = self.largest**ALPHA
        self.added += 1

    def prepare_run(self, run: Arrays) -> None:
        self.run = run

    def extend(self) -> None:
        count = len(self.run["reward"])
        for done in (0, min(count, self.capacity - self.added % self.capacity)):
            slot = self.added % self.capacity
            length = min(count - done, self.capacity - slot)
            for name, array in self.run.items():
                self.rings[name][slot : slot + length] = array[done : done + length]
            self.masses[slot : slot + length] = self.largest**ALPHA
            self.added += length

    def sample(self) -> None:
        sums = np.cumsum(self.masses)
        targets = (self.strata + self.random.random(len(self.strata))) * (sums[-1] / len(self.strata))
        self.slots = np.minimum(np.searchsorted(sums, targets, side="right"), self.capacity - 1)
        self.drawn = {name: ring[self.slots] for name, ring in self.rings.items()}
        masses = self.masses[self.slots]
        self.drawn["weights"] = (masses.min() / masses) ** BETA

    def update(self) -> None:
        self.masses[self.slots] = (self.priorities + EPSILON) ** ALPHA
        self.largest = max(self.largest, float(self.priorities.max()))

    def sampled(self) -> Arrays:
        return self.drawn


class Cpprb:
    package = "cpprb"
    version_of = "cpprb"
    stores_observations_once = False

    def __init__(self, shape: RowShape, capacity: int, batch: int) -> None:
        import cpprb

        fields = {
            "observation": {"shape": shape.observation},
            "action": {"shape": shape.action},
            "reward": {},
            "next_observation": {"shape": shape.observation},
            "done": {"dtype": np.bool_},
        }
        self.buffer = cpprb.PrioritizedReplayBuffer(capacity, fields, alpha=ALPHA, eps=EPSILON)
        self.batch = batch

    def fill(self, arrays: Arrays, priorities: npt.NDArray) -> None:
        first = self.buffer.add(**arrays)
        self.buffer.update_priorities(np.arange(first, first + len(priorities)), priorities)

    def prepare(self, step: Arrays, priorities: npt.NDArray) -> None:
        self.step = step
        self.priorities = priorities

    def add(self) -> None:
        self.buffer.add(**self.step)

    def prepare_run(self, run: Arrays) -> None:
        self.run = run

    def extend(self) -> None:
        self.buffer.add(**self.run)

    def sample(self) -> None:
        self.drawn = self.buffer.sample(self.batch, beta=BETA)

    def update(self) -> None:
        self.buffer.update_priorities(self.drawn["indexes"], self.priorities)

    def sampled(self) -> Arrays:
        return self.drawn


class Tianshou:
    package = "tianshou"
    version_of = "tianshou"
    stores_observations_once = False

    def __init__(self, shape: RowShape, capacity: int, batch: int) -> None:
        import tianshou.data

        self.batch_type = tianshou.data.Batch
        self.plain_buffer = tianshou.data.ReplayBuffer
        self.buffer = tianshou.data.PrioritizedReplayBuffer(capacity, alpha=ALPHA, beta=BETA)
        self.batch = batch

    def _batch_of(self, arrays: Arrays) -> Any:
        return self.batch_type(
            obs=arrays["observation"],
            act=arrays["action"],
            rew=arrays["reward"],
            terminated=arrays["done"],
            truncated=np.zeros_like(arrays["done"]),
            done=arrays["done"],
            obs_next=arrays["next_observation"],
        )

    def fill(self, arrays: Arrays, priorities: npt.NDArray) -> None:
        given = self.plain_buffer(len(priorities))
        given.set_batch(self._batch_of(arrays))
        given._size = len(priorities)  # like its own from_data()
        self.buffer.update_weight(self.buffer.update(given), priorities)

    def prepare(self, step: Arrays, priorities: npt.NDArray) -> None:
        self.step = self._batch_of(step)
        self.priorities = priorities

    def add(self) -> None:
        self.buffer.add(self.step)

    def sample(self) -> None:
        self.drawn, self.slots = self.buffer.sample(self.batch)

    def update(self) -> None:
        self.buffer.update_weight(self.slots, self.priorities)

    def sampled(self) -> Arrays:
        drawn = self.drawn
        return {
            "observation": drawn.obs,
            "action": drawn.act,
            "reward": drawn.rew,
            "next_observation": drawn.obs_next,
            "weights": drawn.weight,
        }


class TorchRL:
    package = "torchrl"
    version_of = "torchrl"
    stores_observations_once = False

    def __init__(self, shape: RowShape, capacity: int, batch: int) -> None:
        import tensordict
        import torch
        from torchrl.data import LazyTensorStorage, PrioritizedReplayBuffer

        self.torch = torch
        self.tensordict = tensordict.TensorDict
        storage = LazyTensorStorage(capacity)
        self.buffer = PrioritizedReplayBuffer(
            alpha=ALPHA, beta=BETA, eps=EPSILON, storage=storage, batch_size=batch, collate_fn=lambda rows: rows
        )

    def _rows_of(self, arrays: Arrays, size: list[int]) -> Any:
        return self.tensordict({name: self.torch.as_tensor(array) for name, array in arrays.items()}, size)

    def fill(self, arrays: Arrays, priorities: npt.NDArray) -> None:
        slots = self.buffer.extend(self._rows_of(arrays, [len(priorities)]))
        self.buffer.update_priority(slots, self.torch.as_tensor(priorities))

    def prepare(self, step: Arrays, priorities: npt.NDArray) -> None:
        self.step = self._rows_of(step, [])
        self.priorities = self.torch.as_tensor(priorities)

    def add(self) -> None:
        self.buffer.add(self.step)

    def prepare_run(self, run: Arrays) -> None:
        self.run = self._rows_of(run, [len(run["reward"])])

    def extend(self) -> None:
        self.buffer.extend(self.run)

    def sample(self) -> None:
        self.drawn, self.info = self.buffer.sample(return_info=True)

    def update(self) -> None:
        self.buffer.update_priority(self.info["index"], self.priorities)

    def sampled(self) -> Arrays:
        rows = {name: self.drawn[name].numpy() for name in ("observation", "action", "reward", "next_observation")}
        return rows | {"weights": np.asarray(self.info["priority_weight"])}


class Flashbax:
    """Flashbax's item buffer, jitted, with the state donated as documented; weights are computed in the same jit."""

    package = "flashbax"
    version_of = "flashbax"
    stores_observations_once = False

    def __init__(self, shape: RowShape, capacity: int, batch: int) -> None:
        import flashbax
        import jax

        self.jax = jax
        options = {"max_length": capacity, "min_length": 1, "sample_batch_size": batch, "priority_exponent": ALPHA}
        self._make(flashbax, options)
        step = transitions.transitions(shape, 0, 1)
        self.state = self.buffer.init({name: jax.numpy.asarray(array[0]) for name, array in step.items()})
        self.key = jax.random.PRNGKey(1)
        self.capacity = capacity
        self.jit_add = jax.jit(self.buffer.add, donate_argnums=0)
        self.jit_add_run = jax.jit(self.run_buffer.add, donate_argnums=0)
        self.jit_update = jax.jit(self.buffer.set_priorities, donate_argnums=0)
        self.jit_sample = jax.jit(self._sample)
        self.added = 0

    def _make(self, flashbax: Any, options: dict[str, Any]) -> None:
        self.buffer = flashbax.make_prioritised_item_buffer(**options)
        self.run_buffer = flashbax.make_prioritised_item_buffer(add_sequences=True, **options)

    def _sample(self, state: Any, key: Any) -> tuple[Any, Any, Any]:
        key, used = self.jax.random.split(key)
        drawn = self.buffer.sample(state, used)
        weights = (drawn.probabilities.min() / drawn.probabilities) ** BETA
        return drawn, weights, key

    def fill(self, arrays: Arrays, priorities: npt.NDArray) -> None:
        self.state = self.jit_add_run(self.state, arrays)
        # The transition of the newest observation of a flat buffer is incomplete, and must not get a priority.
        waiting = int(self.stores_observations_once)
        slots = np.arange(max(self.added - waiting, 0), self.added + len(priorities) - waiting)
        self.added += len(priorities)
        priorities = self.jax.numpy.asarray(priorities[-len(slots) :])
        self.state = self.jit_update(self.state, self.jax.numpy.asarray(slots % self.capacity), priorities)

    def prepare(self, step: Arrays, priorities: npt.NDArray) -> None:
        self.step = {name: self.jax.numpy.asarray(value) for name, value in step.items()}
        self.priorities = self.jax.numpy.asarray(priorities)

    def add(self) -> None:
        self.state = self.jax.block_until_ready(self.jit_add(self.state, self.step))

    def prepare_run(self, run: Arrays) -> None:
        self.run = {name: self.jax.numpy.asarray(value) for name, value in run.items()}

    def extend(self) -> None:
        self.state = self.jax.block_until_ready(self.jit_add_run(self.state, self.run))

    def sample(self) -> None:
        self.drawn, self.weights, self.key = self.jax.block_until_ready(self.jit_sample(self.state, self.key))

    def update(self) -> None:
        self.state = self.jax.block_until_ready(self.jit_update(self.state, self.drawn.indices, self.priorities))

    def sampled(self) -> Arrays:
        return dict(self.drawn.experience) | {"weights": self.weights}


class FlashbaxFlat(Flashbax):
    """Flashbax's flat buffer, which stores observations once. The published figures of Flashbax use it."""

    stores_observations_once = True

    def _make(self, flashbax: Any, options: dict[str, Any]) -> None:
        self.buffer = flashbax.make_prioritised_flat_buffer(**options)
        self.run_buffer = flashbax.make_prioritised_flat_buffer(add_sequences=True, **options)

    def sampled(self) -> Arrays:
        first, second = self.drawn.experience.first, self.drawn.experience.second
        rows = dict(first) | {"next_observation": second["observation"], "weights": self.weights}
        # At the end of an episode a pair reaches into the next one; a learner masks it.
        goes_on = ~np.asarray(first["done"])
        return {name: np.asarray(array)[goes_on] for name, array in rows.items()}


class Reverb:
    """A server in this process and its prefetching dataset: the measured time is the wait for a batch."""

    package = "reverb"
    version_of = "dm-reverb"
    stores_observations_once = False
    largest_capacity = 100_000  # a message for each row

    def __init__(self, shape: RowShape, capacity: int, batch: int) -> None:
        import reverb
        import tensorflow

        step = transitions.transitions(shape, 0, 1)
        signature = {name: tensorflow.TensorSpec(array.shape, array.dtype) for name, array in step.items()}
        self.table = "transitions"
        table = reverb.Table(
            self.table,
            sampler=reverb.selectors.Prioritized(ALPHA),
            remover=reverb.selectors.Fifo(),
            max_size=capacity,
            rate_limiter=reverb.rate_limiters.MinSize(batch),
            signature=signature,
        )
        self.server = reverb.Server([table])
        self.client = reverb.Client(f"localhost:{self.server.port}")
        self.dataset = reverb.TrajectoryDataset.from_table_signature
        self.batch = batch
        self.batches: Any = None

    def fill(self, arrays: Arrays, priorities: npt.NDArray) -> None:
        with self.client.trajectory_writer(num_keep_alive_refs=1) as writer:
            for i, priority in enumerate(priorities):
                writer.append({name: array[i] for name, array in arrays.items()})
                row = {name: column[-1:] for name, column in writer.history.items()}
                writer.create_item(self.table, priority=float(priority) + EPSILON, trajectory=row)

    def prepare(self, step: Arrays, priorities: npt.NDArray) -> None:
        if self.batches is None:
            options = {"server_address": self.client.server_address, "table": self.table}
            self.batches = iter(
                self.dataset(max_in_flight_samples_per_worker=2 * self.batch, **options).batch(self.batch)
            )
        self.step = step
        self.priorities = priorities + EPSILON

    def add(self) -> None:
        self.client.insert(self.step, {self.table: 1.0})

    def sample(self) -> None:
        self.drawn = next(self.batches)
        probabilities = self.drawn.info.probability.numpy()
        self.weights = (probabilities.min() / probabilities) ** BETA
        self.rows = {name: tensor.numpy() for name, tensor in self.drawn.data.items()}

    def update(self) -> None:
        keys = self.drawn.info.key.numpy().tolist()
        self.client.mutate_priorities(self.table, dict(zip(keys, self.priorities.tolist(), strict=True)))

    def sampled(self) -> Arrays:
        return self.rows | {"weights": self.weights}


class RLlib:
    package = "ray.rllib"
    version_of = "ray"
    stores_observations_once = False
    largest_capacity = 100_000  # an object of Python for each row

    def __init__(self, shape: RowShape, capacity: int, batch: int) -> None:
        from ray.rllib.policy.sample_batch import SampleBatch
        from ray.rllib.utils.replay_buffers.prioritized_replay_buffer import PrioritizedReplayBuffer

        self.rows = SampleBatch
        self.buffer = PrioritizedReplayBuffer(capacity, alpha=ALPHA)
        self.batch = batch
        self.added = 0

    def _row_of(self, arrays: Arrays, i: int) -> Any:
        return self.rows({name: array[i : i + 1] for name, array in arrays.items()})

    def fill(self, arrays: Arrays, priorities: npt.NDArray) -> None:
        for i in range(len(priorities)):
            self.buffer.add(self._row_of(arrays, i))
        slots = np.arange(self.added, self.added + len(priorities)) % self.buffer.capacity
        self.buffer.update_priorities(slots, priorities + EPSILON)
        self.added += len(priorities)

    def prepare(self, step: Arrays, priorities: npt.NDArray) -> None:
        self.step = self.rows({name: np.asarray(value)[None] for name, value in step.items()})
        self.priorities = priorities + EPSILON

    def add(self) -> None:
        self.buffer.add(self.step)

    def sample(self) -> None:
        self.drawn = self.buffer.sample(self.batch, beta=BETA)

    def update(self) -> None:
        self.buffer.update_priorities(self.drawn["batch_indexes"], self.priorities)

    def sampled(self) -> Arrays:
        return self.drawn


class StableBaselines3:
    """Uniform: it has no priorities, no update and no weights."""

    package = "stable_baselines3"
    version_of = "stable_baselines3"
    stores_observations_once = False
    update = None

    def __init__(self, shape: RowShape, capacity: int, batch: int) -> None:
        import gymnasium
        from stable_baselines3.common.buffers import ReplayBuffer

        observations = gymnasium.spaces.Box(-np.inf, np.inf, shape.observation, np.float32)
        actions = gymnasium.spaces.Box(-1e6, 1e6, shape.action, np.float32)
        self.buffer = ReplayBuffer(capacity, observations, actions, device="cpu")
        self.batch = batch

    def fill(self, arrays: Arrays, priorities: npt.NDArray) -> None:
        slots = (self.buffer.pos + np.arange(len(priorities))) % self.buffer.buffer_size
        self.buffer.observations[slots, 0] = arrays["observation"]
        self.buffer.next_observations[slots, 0] = arrays["next_observation"]
        self.buffer.actions[slots, 0] = arrays["action"]
        self.buffer.rewards[slots, 0] = arrays["reward"]
        self.buffer.dones[slots, 0] = arrays["done"]
        self.buffer.full |= bool(slots[-1] + 1 == self.buffer.buffer_size or slots[-1] < slots[0])
        self.buffer.pos = int(slots[-1] + 1) % self.buffer.buffer_size

    def prepare(self, step: Arrays, priorities: npt.NDArray) -> None:
        names = ("observation", "next_observation", "action", "reward", "done")
        self.step = [np.asarray(step[name])[None] for name in names]

    def add(self) -> None:
        self.buffer.add(*self.step, [{}])

    def sample(self) -> None:
        self.drawn = self.buffer.sample(self.batch)

    def sampled(self) -> Arrays:
        drawn = self.drawn
        return {
            "observation": drawn.observations.numpy(),
            "action": drawn.actions.numpy(),
            "reward": drawn.rewards.numpy(),
            "next_observation": drawn.next_observations.numpy(),
        }


BUFFERS: dict[str, Callable[[RowShape, int, int], Any]] = {
    "libper": Libper,
    "libper, out=": LibperOut,
    "libper, C calls": LibperCalls,
    "numpy cumsum": NumpyCumsum,
    "cpprb": Cpprb,
    "tianshou": Tianshou,
    "TorchRL": TorchRL,
    "Flashbax": Flashbax,
    "Flashbax flat": FlashbaxFlat,
    "Reverb": Reverb,
    "RLlib": RLlib,
    "stable-baselines3": StableBaselines3,
}
