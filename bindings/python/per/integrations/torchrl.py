"""Prioritized replay for TorchRL: a sampler for its storages, and a complete replay buffer of TensorDicts.

    from per.integrations.torchrl import PrioritizedSampler  # in place of: from torchrl.data import PrioritizedSampler

Neither needs TorchRL's compiled trees, which each TorchRL wheel provides for one version of torch only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import replay_buffers as torchrl

import per
from per import spaces
from per._errors import kind_of
from per._saving import _from_checkpoint
from per.integrations._first_step import declared
from per.integrations._single_transitions import refuse_other_batches

_IN_ORDER = "indices are written in any order"
_AGAIN = "it does not count data written to an index again"
_BY_PRIORITY = "only indices with a priority are drawn, in proportion to p^alpha"
_REFUSED = {
    "n_envs": "indices have one lane",
    "n_step": _IN_ORDER,
    "frame_stack": _IN_ORDER,
    "max_age": _IN_ORDER,
    "half_life": _IN_ORDER,
    "max_times_sampled": _AGAIN,
    "samples_per_insert": _AGAIN,
    "uniform_fraction": _BY_PRIORITY,
    "prioritization": _BY_PRIORITY,
}


class PrioritizedSampler(torchrl.PrioritizedSampler):
    """TorchRL's sampler, implemented by libper, for any of its storages, of one or several dimensions.

    Index i is drawn with probability p_i^alpha / sum_k p_k^alpha, p = |priority| + eps, and weighs
    (p_i / min_k p_k)^(-alpha beta), k over all indices with a priority. Sums are exact. Setting alpha costs one pass.

    Parameters
    ----------
    max_capacity : int
        As in TorchRL. The argument dtype is ignored: priorities are float32.
    alpha, beta : float
        As in TorchRL.
    eps : float, default 1e-08
        As in TorchRL.
    reduction : str, default "max"
        As in TorchRL.
    max_priority_within_buffer : bool, default False
        As in TorchRL: the default priority is the current largest one. Otherwise the largest so far, at least 1.
    device : torch.device or str, optional
        As in TorchRL: None follows the storage. CUDA requires a libper with CUDA.
    seed : int, optional
        Seed of the draws, which are independent of torch's generator. None takes a seed from torch.manual_seed()'s
        generator.
    **options : Any
        Options of per.ReplayBuffer, such as scheme="independent", which draws as TorchRL does. Those that need rows in
        order of time, or that draw indices without a priority, are refused.

    Raises
    ------
    InvalidArgument
        A ValueError: arguments, priorities or indices are not allowed, NaN among them; nothing is changed. Index -1, in
        a storage of several dimensions -1 in each, is skipped.
    """

    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        reduction: str = "max",
        max_priority_within_buffer: bool = False,
        device: torch.device | str | None = None,
        *,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        # The base class's __init__() is not called: it warns if the compiled trees are missing.
        self.reduction, self.dtype = reduction, dtype
        self._max_priority_within_buffer = max_priority_within_buffer
        self._device = None if device is None else torch.device(device)
        refuse_other_batches(options, **_REFUSED)
        # Index i is transition i of a buffer with empty rows. It has as many transitions as indices were written.
        own = {
            "capacity": max_capacity,
            "fields": {"observation": per.Field((), "uint8")},
            "alpha": alpha,
            "beta": beta,
            "epsilon": eps,
            "max_priority": "now" if max_priority_within_buffer else "ever",
            "normalize_weights": "buffer_max",
            "store_next_observation": True,
            "device": str(self.device),
            "arrays": "torch",
            "seed": _new_seed() if seed is None else seed,
        }
        for name in own.keys() & options.keys():
            raise per.InvalidArgument(f"{name} is {options[name]!r}; allowed: no {name}, as the sampler sets it")
        buffer = per.ReplayBuffer(**own, **options)
        self._max_capacity = max_capacity
        self._begin(buffer)

    def _begin(self, buffer: per.ReplayBuffer) -> None:
        """Takes an empty buffer, whose first index gets a priority of 0."""
        self._keep(buffer)
        self._reach(1)

    def _init(self) -> None:
        """Starts over on the device of the storage, with the same options."""
        self._begin(per.ReplayBuffer(**{**self._buffer.options, "device": str(self.device)}))

    def _keep(self, buffer: per.ReplayBuffer) -> None:
        options = buffer.options
        self._buffer = buffer
        self._alpha, self._beta, self._eps = options["alpha"], options["beta"], options["epsilon"]
        self._max_priority_within_buffer = options["max_priority"] == "now"
        self._n_indices = len(buffer)

    def _become(self, other: per.ReplayBuffer, what: str) -> None:
        """Takes the buffer of another sampler.

        Raises
        ------
        InvalidArgument
            It has another max_capacity, refused options, or belongs to no sampler; nothing is changed.
        """
        if other.fields != self._buffer.fields or not other.options["store_next_observation"]:
            raise per.InvalidArgument(f"{what} is a buffer with fields {other.fields}; allowed: a PrioritizedSampler's")
        if other.capacity != self._buffer.capacity:
            raise per.InvalidArgument(
                f"{what} has max_capacity {other.capacity}; allowed: the sampler's, {self._max_capacity}"
            )
        refuse_other_batches(other.options, **_REFUSED)
        self._keep(other)

    def _reach(self, n_indices: int) -> None:
        """Adds all missing indices below n_indices, with priorities of 0."""
        n_new = min(n_indices, self._max_capacity) - self._n_indices
        if n_new > 0:
            names = ("observation", "next_observation", "reward", "terminated", "truncated")
            ids = self._buffer.extend(**dict.fromkeys(names, np.zeros(n_new, np.uint8)), td_errors=1.0)
            self._buffer.update_priorities(ids, priorities=torch.zeros(n_new, device=self.device))
            self._n_indices += n_new

    def sample(self, storage: torchrl.Storage, batch_size: int) -> tuple[Any, dict[str, torch.Tensor]]:
        """Draws indices, int64[batch_size] or a tuple of one per dimension, and {"priority_weight": float32}.

        Raises
        ------
        Empty
            A RuntimeError: no index has a priority above 0.
        """
        self._maybe_init_from_storage(storage)
        batch = self._buffer.sample(batch_size)
        if self.device.type == "cpu" and not batch.priorities[0] > 0:
            raise per.Empty("Cannot sample from an empty storage: no index has a priority above 0")
        index = batch.ids if storage.ndim == 1 else torch.unravel_index(batch.ids, storage.shape)
        return index, {"priority_weight": batch.weights}

    @torch.no_grad()
    def update_priority(self, index: Any, priority: Any, *, storage: torchrl.Storage | None = None) -> None:
        """Sets priorities: one for all indices, or one each. In a storage of several dimensions index is [.., ndim]."""
        self._maybe_init_from_storage(storage)
        flat = self._flat(index, storage)
        given = torch.as_tensor(priority, dtype=torch.float, device=self.device)
        priorities = given.flatten().expand(len(flat)) if given.numel() == 1 else given.flatten()
        if len(priorities) != len(flat):
            raise per.InvalidArgument(
                f"priority has shape {list(given.shape)}; allowed: a number, or {len(flat)}, as index has"
            )
        n_reached = int(flat.max()) + 1 if self._n_indices < self._max_capacity and len(flat) > 0 else 0
        if n_reached > self._n_indices:  # the buffer makes these checks after the indices were added
            if n_reached > self._max_capacity or flat.min() < -1:
                raise per.InvalidArgument(
                    f"index is from {int(flat.min())} to {n_reached - 1}; allowed: -1 to {self._max_capacity - 1}"
                )
            if not (priorities.abs() + self._eps).isfinite().all():
                raise per.InvalidArgument("priority has NaN or infinite entries; allowed: finite numbers")
            self._reach(n_reached)
        self._buffer.update_priorities(flat, priorities)

    def _flat(self, index: Any, storage: torchrl.Storage | None) -> torch.Tensor:
        """The indices as int64[n]."""
        given = torch.as_tensor(index, device=self.device)
        if given.numel() > 0 and (given.is_floating_point() or given.is_complex() or given.dtype == torch.bool):
            raise per.InvalidArgument(f"index is of dtype {given.dtype}; allowed: whole numbers")
        given = given.long()
        if storage is None or storage.ndim == 1:
            return given.flatten()
        shape = storage.shape
        if given.shape[-1:] != (len(shape),):
            raise per.InvalidArgument(f"index has shape {list(given.shape)}; allowed: [.., {len(shape)}]")
        is_skipped = (given == -1).all(-1)
        is_wrong = ~is_skipped & ((given < 0) | (given >= given.new_tensor(shape))).any(-1)
        if is_wrong.any():
            raise per.InvalidArgument(
                f"index has {given[is_wrong][0].tolist()}; allowed: 0 and above, below the storage's {list(shape)}"
            )
        strides = [shape[axis + 1 :].numel() for axis in range(len(shape))]
        return torch.where(is_skipped, -1, (given * given.new_tensor(strides)).sum(-1)).flatten()

    @property
    def default_priority(self) -> float:
        """The priority of data written without one."""
        largest = self._buffer.stats().max_priority
        return largest - self._eps if largest > 0 else 1.0

    def _retransform_priority_trees(self, old_alpha: float, new_alpha: float) -> None:
        try:
            self._buffer.alpha = new_alpha
        except per.InvalidArgument:
            self._alpha = old_alpha
            raise

    @torchrl.PrioritizedSampler.beta.setter
    def beta(self, value: float) -> None:
        """Exponent of the weights."""
        self._buffer.beta = value
        self._beta = value

    @property
    def device(self) -> torch.device:
        """The device of the priorities."""
        return self._device or torch.device("cpu")

    def _empty(self) -> None:
        self._begin(per.ReplayBuffer(**{**self._buffer.options, "beta": self.beta, "seed": _new_seed()}))

    def state_dict(self) -> dict[str, Any]:
        """Priorities, exponents and random state. After load_state_dict() the draws continue unchanged."""
        return self._buffer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replaces the sampler by that of a state_dict(), with its options; max_capacity must be the same."""
        other = per.ReplayBuffer(**self._buffer.options)
        other.load_state_dict(state_dict)
        self._become(other, "state_dict")

    def dumps(self, path: Path | str) -> None:
        """Writes state_dict() to a file in that folder."""
        Path(path).mkdir(exist_ok=True)
        self._buffer.save(Path(path) / "sampler.per")

    def loads(self, path: Path | str) -> None:
        """Replaces the sampler by that of dumps(), with its options; max_capacity must be the same."""
        file = Path(path) / "sampler.per"
        self._become(per.ReplayBuffer.load(file, device=str(self.device), arrays="torch"), str(file))


def _new_seed() -> int:
    return int(torch.randint(2**63 - 1, ()))


# The name of a field is one of these words and the entry's key. An entry both at the top and in "next" is an
# observation; other entries at the top belong to the step, and other entries in "next" to its successor.
_OBSERVATION, _STEP, _NEXT = "observation", "step", "following"
_OWN = (("reward",), ("done",), ("terminated",), ("truncated",))


class ReplayBuffer:
    """A replay buffer that takes and returns TensorDicts in the form of TorchRL's environments and losses.

    It wraps a per.ReplayBuffer, its attribute `buffer` after the first add. Entries both at the top and in "next" are
    stored once, n-step returns are computed when a batch is drawn, and late updates have no effect. If an observation
    differs from the previous next one, the trajectory is cut, so pieces of several may follow each other.

    Parameters
    ----------
    capacity : int
        Number of rows.
    batch_size : int, default 0
        Default batch size of sample().
    priority_key : str, default "td_error"
        The key of TD errors in update_tensordict_priority(); of several per transition the largest is used.
    **options : Any
        Options of per.ReplayBuffer, except those of sequences: alpha, beta, n_step, gamma, n_envs, device, seed, ...
        With n_envs add() takes [n_envs], and extend() [n_envs, T].

    Notes
    -----
    The first transition declares the entries. "next" must have a scalar reward and "done"; if "terminated" and
    "truncated" are missing, they are derived from "done". Batches have "index", ids for update_priority(),
    "priority_weight" and, with n_step above 1, "steps_to_next_obs" for losses. Reward and flags are [batch_size, 1].
    """

    buffer: per.ReplayBuffer | None = None

    def __init__(self, capacity: int, *, batch_size: int = 0, priority_key: str = "td_error", **options: Any) -> None:
        refuse_other_batches(options)
        self.batch_size, self.priority_key = batch_size, priority_key
        self._options = {"capacity": capacity, "arrays": "torch", **options}
        self._place: dict[str, Any] = {"arrays": "torch", "device": "cpu", "max_heap_bytes": None}
        self._place |= {name: options[name] for name in ("device", "max_heap_bytes") if name in options}

    def add(self, data: TensorDictBase) -> torch.Tensor:
        """Adds one step of each environment. Returns ids, int64 in the shape of data."""
        self._check_environments(data, list(data.shape), "")
        return self._use(data, lambda buffer: torch.as_tensor(buffer.add(**self._given(buffer, data))))

    def extend(self, data: TensorDictBase) -> torch.Tensor:
        """Adds consecutive steps; the last dimension is time. Returns ids, int64 in the shape of data."""
        if data.ndim == 0:
            raise per.InvalidArgument("data has shape []; allowed: a dimension of time, or add()")
        self._check_environments(data, list(data.shape[:-1]), "T")
        steps = data if data.ndim == 1 else data.transpose(0, 1)
        ids = self._use(data, lambda buffer: torch.as_tensor(buffer.extend(**self._given(buffer, steps))))
        return ids if data.ndim == 1 else ids.transpose(0, 1)

    def sample(self, batch_size: int = 0) -> TensorDict:
        """Draws a batch. Raises per.Empty, a RuntimeError, if nothing can be drawn.

        Parameters
        ----------
        batch_size : int, default 0
            B, 1 to 2^24.
        """
        batch = self._open().sample(batch_size or self.batch_size)
        top = {"index": batch.ids, "priority_weight": batch.weights}
        if self._open().n_step > 1:
            top["steps_to_next_obs"] = batch.n_steps.unsqueeze(-1)
        following = {name: batch[name].unsqueeze(-1) for name in ("reward", "terminated", "truncated")}
        following["done"] = following["terminated"] | following["truncated"]
        for place, tree in ((_OBSERVATION, top), (f"next_{_OBSERVATION}", following), (_STEP, top), (_NEXT, following)):
            _merge(batch.get(place, {}), tree)
        top["next"] = TensorDict(following, batch.ids.shape)
        return TensorDict(top, batch.ids.shape)

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Sets priorities by the TD errors of a batch from this buffer."""
        self.update_priority(data["index"], data[self.priority_key].reshape(*data.shape, -1).abs().amax(-1))

    def update_priority(self, index: torch.Tensor, priority: torch.Tensor) -> None:
        """Sets |priority| + epsilon. Transitions overwritten meanwhile, and index -1, are skipped."""
        self._open().update_priorities(index, priority)

    def empty(self) -> None:
        """Removes all transitions."""
        if self.buffer is not None:
            self.buffer.clear()

    def __len__(self) -> int:
        return 0 if self.buffer is None else len(self.buffer)

    @property
    def write_count(self) -> int:
        """Number of steps added; used by collectors."""
        return 0 if self.buffer is None else self.buffer.stats().added

    def state_dict(self) -> dict[str, Any]:
        """The whole buffer. After load_state_dict() it continues unchanged."""
        return {} if self.buffer is None else self.buffer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replaces the buffer by that of a state_dict(). Raises InvalidArgument for other dicts."""
        if not isinstance(state_dict, Mapping):
            raise per.InvalidArgument(f"state_dict is {kind_of(state_dict)}; allowed: what state_dict() returned")
        if state_dict and set(state_dict) != {"checkpoint"}:
            raise per.InvalidArgument(f"state_dict has {[*state_dict]}; allowed: what state_dict() returned")
        if not state_dict:
            self.buffer = None
            return
        data = np.asarray(state_dict["checkpoint"])
        if data.dtype != np.uint8:
            raise per.InvalidArgument(f"checkpoint is of dtype {data.dtype}; allowed: uint8")
        self.buffer = _from_checkpoint(per.ReplayBuffer, data, **self._place)

    def dumps(self, path: Path | str) -> None:
        """Writes state_dict() to a file in that folder."""
        Path(path).mkdir(exist_ok=True)
        self._open().save(Path(path) / "buffer.per")

    def loads(self, path: Path | str) -> None:
        """Loads a file written by dumps()."""
        self.buffer = per.ReplayBuffer.load(Path(path) / "buffer.per", **self._place)

    def _open(self) -> per.ReplayBuffer:
        if self.buffer is None:
            raise per.Empty("Cannot sample from an empty buffer: nothing was added yet")
        return self.buffer

    def _check_environments(self, data: TensorDictBase, given: list[int], time: str) -> None:
        """Refuses data of other environments; `given` is its shape without time."""
        n_envs = self._options.get("n_envs", 1) if self.buffer is None else self.buffer.n_envs
        if given == [n_envs] or (given == [] and n_envs == 1):
            return
        allowed = f"[{time}]" if n_envs == 1 else f"[{', '.join(filter(None, (str(n_envs), time)))}]"
        hint = f"; for {given[0]} environments give n_envs={given[0]} to ReplayBuffer()" if len(given) == 1 else ""
        raise per.InvalidArgument(f"data has shape {list(data.shape)}; allowed with n_envs={n_envs}: {allowed}{hint}")

    def _use(self, data: TensorDictBase, add: Callable[[per.ReplayBuffer], torch.Tensor]) -> torch.Tensor:
        """Adds steps to the buffer, whose fields the first transition declares."""
        ids: torch.Tensor = declared(self, "buffer", lambda: self._new_buffer(data), add)
        return ids

    def _new_buffer(self, data: TensorDictBase) -> per.ReplayBuffer:
        ignored = {("index",), ("priority_weight",), (self.priority_key,)}
        keys = {key if isinstance(key, tuple) else (key,): value for key, value in data.items(True, True)}
        top = {key: value for key, value in keys.items() if key[0] != "next" and key not in ignored}
        following = {key[1:]: value for key, value in keys.items() if key[0] == "next" and key[1:] not in _OWN}
        fields = {}
        for key, value in {**top, **following}.items():
            place = _OBSERVATION if key in top and key in following else _STEP if key in top else _NEXT
            name = spaces.name_of(place, *key)
            fields[name] = spaces.field_of(name, value.shape[data.ndim :], value.dtype)
        return per.ReplayBuffer(fields=fields, **self._options)

    def _given(self, buffer: per.ReplayBuffer, data: TensorDictBase) -> dict[str, Any]:
        """The arguments for add() and extend() of the buffer."""
        following = data["next"]
        given = {}
        for name in buffer.fields:
            place, *steps = spaces.steps_of(name)
            key = tuple(map(spaces.key_of, steps))
            given[name] = (following if place == _NEXT else data)[key]
            if place == _OBSERVATION:
                given[f"next_{name}"] = following[key]
        own = {name: following[name].reshape(data.shape) for (name,) in _OWN if following.get(name, None) is not None}
        done = own.pop("done")
        truncated = own.get("truncated", done & ~own.get("terminated", done))
        return {"terminated": done & ~truncated, "truncated": truncated, **own, **given}


def _merge(tree: Any, into: dict[str, Any]) -> None:
    """Enters the arrays of nested containers."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, (dict, tuple)):
            _merge(value, into.setdefault(str(key), {}))
        else:
            into[str(key)] = value
