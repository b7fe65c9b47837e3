"""Replay by priority in TorchRL: a sampler for its storages.

    from per.integrations.torchrl import PrioritizedSampler  # in place of: from torchrl.data import PrioritizedSampler

It does not need TorchRL's compiled trees, which each of its wheels has for one version of torch only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchrl.data import replay_buffers as torchrl

import per

# A lane has 3 rows at least, and a sampler may have one index.
_SPARE_ROWS = 2


class PrioritizedSampler(torchrl.PrioritizedSampler):
    """The sampler of TorchRL, over libper: for any of its storages, of one or of several dimensions.

    Index i is drawn with probability p_i^alpha / sum_k p_k^alpha, p = |priority| + eps, and weighs
    (p_i / min_k p_k)^(-alpha beta), k over all indices that have a priority. Sums are exact. Setting alpha is so, too,
    from 0 as well, and costs one pass.

    Arguments:
        max_capacity, alpha, beta, eps, reduction: as theirs.
        dtype: not looked at. Priorities are float32.
        max_priority_within_buffer: the default priority is the largest one that an index has now. Else it is the
            largest one ever given, and at least 1.
        device: as theirs: None follows a storage on CUDA, which needs a libper with CUDA.
        seed: of the draws, which no generator changes. None takes one from torch.manual_seed()'s generator.
        options: as per.ReplayBuffer has them, such as scheme="independent", which draws as theirs does.

    Raises:
        per.InvalidArgument, a ValueError, for arguments, priorities and indices that are not allowed; then nothing is
        changed. NaN is none. Index -1 is skipped.
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
        # What theirs does in __init__() is not asked for: it warns where the compiled trees are missing.
        self.reduction = reduction
        self.dtype = dtype
        self._max_priority_within_buffer = max_priority_within_buffer
        self._device = None if device is None else torch.device(device)
        options.update(capacity=max_capacity + _SPARE_ROWS, alpha=alpha, beta=beta, epsilon=eps)
        options["max_priority"] = "now" if max_priority_within_buffer else "ever"
        options["seed"] = int(torch.randint(2**63 - 1, ())) if seed is None else seed
        self._options = options
        self._init()

    def _init(self) -> None:
        """Index i is transition i of a buffer whose rows hold nothing. Its priority is 0 until it is written."""
        buffer = per.ReplayBuffer(
            fields={"observation": per.Field((), "uint8")},
            normalize_weights="buffer_max",
            store_next_observation=True,
            device=str(self.device),
            arrays="torch",
            **self._options,
        )
        nothing = np.zeros(buffer.capacity, np.uint8)
        step = {"observation": nothing, "next_observation": nothing, "reward": nothing}
        buffer.extend(terminated=nothing, truncated=nothing, td_errors=1.0, **step)
        self._keep(buffer)
        self._empty()

    def _keep(self, buffer: per.ReplayBuffer) -> None:
        self._buffer = buffer
        self._eps = buffer.options["epsilon"]

    def sample(self, storage: torchrl.Storage, batch_size: int) -> tuple[Any, dict[str, torch.Tensor]]:
        """Draws indices, int64[batch_size] or a tuple of such for each dimension, and {"priority_weight": float32}.

        Raises:
            per.Empty, a RuntimeError, if no index has a priority above 0.
        """
        self._maybe_init_from_storage(storage)
        batch = self._buffer.sample(batch_size)
        if self.device.type == "cpu" and not batch.priorities[0] > 0:
            raise per.Empty("Cannot sample from an empty storage: no index has a priority above 0")
        index = batch.ids if storage.ndim == 1 else torch.unravel_index(batch.ids, storage.shape)
        return index, {"priority_weight": batch.weights}

    @torch.no_grad()
    def update_priority(self, index: Any, priority: Any, *, storage: torchrl.Storage | None = None) -> None:
        """Sets priorities.

        Arguments:
            index: int64, of any shape; of a storage of several dimensions [.., ndim].
            priority: one for all, or as many.
            storage: needed if it has several dimensions.
        """
        self._maybe_init_from_storage(storage)
        flat = self._flat(torch.as_tensor(index, dtype=torch.long, device=self.device), storage)
        given = torch.as_tensor(priority, dtype=torch.float, device=self.device)
        self._buffer.update_priorities(flat, given.flatten().expand(flat.shape) if given.numel() == 1 else given)

    def _flat(self, index: torch.Tensor, storage: torchrl.Storage | None) -> torch.Tensor:
        if storage is None or storage.ndim == 1:
            return index.flatten()
        strides = [storage.shape[axis + 1 :].numel() for axis in range(storage.ndim)]
        return (index * index.new_tensor(strides)).sum(-1).flatten().clamp(min=-1)

    @property
    def default_priority(self) -> float:
        """What is written without a priority gets this one."""
        largest = self._buffer.stats().max_priority
        return largest - self._eps if largest > 0 else 1.0

    @property
    def alpha(self) -> float:
        """Exponent of the priorities."""
        return self._buffer.alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        self._buffer.alpha = value

    @property
    def beta(self) -> float:
        """Exponent of the weights."""
        return self._buffer.beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._buffer.beta = value

    @property
    def max_size(self) -> int:
        """Number of indices."""
        return self._buffer.capacity - _SPARE_ROWS

    @property
    def device(self) -> torch.device:
        """Where the priorities are."""
        return self._device or torch.device("cpu")

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(alpha={self.alpha}, beta={self.beta}, eps={self._eps}, reduction={self.reduction})"
        )

    def _empty(self) -> None:
        ids = torch.arange(self._buffer.capacity, device=self.device)
        self._buffer.update_priorities(ids, priorities=torch.zeros(len(ids), device=self.device))

    def state_dict(self) -> dict[str, Any]:
        """Priorities, exponents and the state of the draws, which go on after load_state_dict() as they would have."""
        return self._buffer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Becomes the sampler of a state_dict()."""
        self._buffer.load_state_dict(state_dict)
        self._keep(self._buffer)

    def dumps(self, path: Path | str) -> None:
        """Writes what state_dict() has to a file in that folder."""
        Path(path).mkdir(exist_ok=True)
        self._buffer.save(Path(path) / "sampler.per")

    def loads(self, path: Path | str) -> None:
        """Reads what dumps() wrote."""
        self._keep(per.ReplayBuffer.load(Path(path) / "sampler.per", device=str(self.device), arrays="torch"))
