"""A memory for skrl that draws by priority, and its DQN and DDQN with weights in their loss.

    from per.integrations.skrl import DQN, PrioritizedMemory

    memory = PrioritizedMemory(memory_size=100_000, num_envs=8, device="cpu", alpha=0.6)
    agent = DQN(models=models, memory=memory, cfg=cfg, ...)

Other agents of skrl take the memory as it is. Their priorities stay equal until `memory.update_priorities()` is called.
"""

from __future__ import annotations

from typing import Any

import torch
from skrl import config
from skrl.agents.torch import ddqn, dqn
from skrl.memories.torch import Memory

import per

__all__ = ["DDQN", "DQN", "PrioritizedMemory"]

_NEVER = -(2**62)


class PrioritizedMemory(Memory):
    """skrl's tensors, of which rows or sequences of rows are drawn by priority (Schaul et al. 2016).

    A sequence is drawn whole, of one environment, and goes past no end of an episode: `terminated` and `truncated`,
    where samples have them, may be set in its last row only. Nor does it join the latest rows and the oldest ones.
    Episodes shorter than a sequence are not drawn. Priorities are those of first rows.

    Arguments:
        memory_size, num_envs, device, export, export_format, export_directory: as skrl's memories take them.
        alpha: exponent of priorities.
        beta: exponent of weights; the attribute may be set at any time.
        epsilon: added to |td_error|.
        scheme: of the draws, as per.SumTree.sample() takes it.
        seed: of the draws. None: one from torch's generator.
    """

    def __init__(
        self,
        *,
        memory_size: int,
        num_envs: int = 1,
        device: str | torch.device | None = None,
        export: bool = False,
        export_format: Any = "pt",
        export_directory: str = "",
        alpha: float = 0.6,
        beta: float = 0.4,
        epsilon: float = 1e-6,
        scheme: str = "stratified",
        seed: int | None = None,
    ) -> None:
        super().__init__(
            memory_size=memory_size,
            num_envs=num_envs,
            device=device,
            export=export,
            export_format=export_format,
            export_directory=export_directory,
        )
        self.beta = beta
        self._alpha, self._epsilon, self._scheme = alpha, epsilon, scheme
        self._rows = memory_size * num_envs
        seed = int(torch.randint(2**63 - 1, ())) if seed is None else seed
        # p^alpha of each row; 0: it begins no sequence.
        self._tree = per.SumTree(self._rows, device=str(self.device), seed=seed)
        self._largest = 1.0
        self._sequence_length = 1
        # The time of a row in its environment, which goes on by 1 a step and by 1 more at an end: rows L - 1 apart in
        # one episode, and none else, have times L - 1 apart.
        self._times = torch.full((self._rows,), _NEVER, dtype=torch.int64, device=self.device)
        self._now = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self.sampling_weights: torch.Tensor | None = None
        """float32[rows drawn, 1], importance-sampling weights of the last sample, one for each row"""

    def reset(self) -> None:
        """As skrl's. Rows from before are not drawn any more."""
        super().reset()
        self._times.fill_(_NEVER)
        self._tree.reset()

    def add_samples(self, **tensors: torch.Tensor) -> None:
        """As skrl's; `terminated` and `truncated` say where sequences end. New rows get the largest priority seen.

        Several samples of one environment are added one after the other: skrl's memories store each further tensor of
        such a call in later rows than the one before.
        """
        given: Any = tensors.get("observations", next(iter(tensors.values()), None))
        if self.num_envs == 1 and given is not None and given.ndim == 2 and len(given) > 1:
            for i in range(len(given)):
                self.add_samples(**{name: tensor[i : i + 1] for name, tensor in tensors.items() if tensor is not None})
            return
        count = len(given) if given is not None and given.ndim == 2 else 1
        lanes = slice(self.env_index, self.env_index + count)
        first = self.memory_index * self.num_envs + self.env_index
        super().add_samples(**tensors)
        self._times[first : first + count] = self._now[lanes]
        self._now[lanes] += 1
        for name in ("terminated", "truncated"):
            if tensors.get(name) is not None:
                self._now[lanes] += tensors[name].reshape(-1).to(self._now)
        rows = torch.arange(first, first + count, device=self.device)
        starts = rows
        if self._sequence_length > 1:
            self._tree.update(rows, torch.zeros(count, device=self.device))
            starts = (rows - (self._sequence_length - 1) * self.num_envs) % self._rows
            starts = starts[self._are_starts(starts)]
        self._tree.update(starts, torch.full((len(starts),), self._largest**self._alpha, device=self.device))

    def _are_starts(self, rows: torch.Tensor) -> torch.Tensor:
        """Whether sequences begin at these rows."""
        times = self._times[rows]
        last = self._times[(rows + (self._sequence_length - 1) * self.num_envs) % self._rows]
        return (times != _NEVER) & (last - times == self._sequence_length - 1)

    def sample(
        self, names: list[str], *, batch_size: int, mini_batches: int = 1, sequence_length: int = 1
    ) -> list[list[torch.Tensor]]:
        """Draws batch_size rows, or sequences whose rows follow each other: [batch_size * sequence_length, ...] each.

        `sampling_weights` has their weights. Another sequence_length than before begins with equal priorities.

        Raises:
            per.Empty, a RuntimeError, if there is no row or no whole sequence.
        """
        if sequence_length != self._sequence_length:
            self._sequence_length = sequence_length
            rows = torch.arange(self._rows, device=self.device)
            self._tree.update(rows, self._are_starts(rows) * self._largest**self._alpha)
        draw = self._tree.sample(batch_size, beta=self.beta, scheme=self._scheme)
        self._drawn = torch.as_tensor(draw.indices, device=self.device)
        offsets = torch.arange(sequence_length, device=self.device) * self.num_envs
        self.sampling_indexes = ((self._drawn[:, None] + offsets) % self._rows).flatten()
        weights = torch.as_tensor(draw.weights, device=self.device)
        self.sampling_weights = weights.repeat_interleave(sequence_length)[:, None]
        return self.sample_by_index(names, indexes=self.sampling_indexes, mini_batches=mini_batches)

    @torch.no_grad()
    def update_priorities(self, td_errors: torch.Tensor) -> None:
        """Sets p = |td_error| + epsilon of what was drawn last, from the mean |td_error| of a sequence and of critics.

        Arguments:
            td_errors: [rows drawn] or [rows drawn, 1], and with several critics an axis in front.

        Raises:
            per.InvalidArgument for a TD error that is not finite; then nothing is changed.
        """
        errors = td_errors.float().abs().reshape(-1, len(self._drawn), self._sequence_length)
        priorities = errors.mean(dim=(0, 2)) + self._epsilon
        self._tree.update(self._drawn, priorities**self._alpha)
        self._largest = max(self._largest, float(priorities.max()))

    @property
    def tree(self) -> per.SumTree:
        """Draws rows by their p^alpha."""
        return self._tree


class _Prioritized:
    """The update of skrl's DQN with weights in its loss and TD errors as priorities."""

    memory: PrioritizedMemory

    def _next_values(self, next_inputs: dict[str, Any]) -> torch.Tensor:
        raise NotImplementedError

    def update(self: Any, *, timestep: int, timesteps: int) -> None:
        """Makes `gradient_steps` steps, each with a batch of its own."""
        for _ in range(self.cfg.gradient_steps):
            rows = self.memory.sample(self._tensors_names, batch_size=self.cfg.batch_size)[0]
            drawn = dict(zip(self._tensors_names, rows, strict=True))
            with torch.autocast(device_type=self._device_type, enabled=self.cfg.mixed_precision):
                inputs, next_inputs = (
                    {
                        "observations": self._observation_preprocessor(drawn[f"{when}observations"], train=True),
                        "states": self._state_preprocessor(drawn[f"{when}states"], train=True),
                    }
                    for when in ("", "next_")
                )
                with torch.no_grad():
                    discounts = self.cfg.discount_factor * drawn["terminated"].logical_not()
                    targets = drawn["rewards"] + discounts * self._next_values(next_inputs)
                values = self.q_network.act(inputs, role="q_network")[0].gather(1, drawn["actions"].long())
                errors = targets - values
                loss = (self.memory.sampling_weights * errors.square()).mean()
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            if config.torch.is_distributed:
                self.q_network.reduce_parameters()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.memory.update_priorities(errors)

            self._update_counter += 1
            if self._update_counter % self.cfg.target_update_interval == 0:
                self.target_q_network.update_parameters(self.q_network, polyak=self.cfg.polyak)
            if self.scheduler:
                self.scheduler.step()
                self.track_data("Learning / Learning rate", self.scheduler.get_last_lr()[0])
            self.track_data("Loss / Q-network loss", loss.item())
            for name in ("max", "min", "mean"):
                self.track_data(f"Target / Target ({name})", getattr(targets, name)().item())


class DQN(_Prioritized, dqn.DQN):
    """skrl's DQN on a PrioritizedMemory: weights in the loss, TD errors as priorities."""

    def _next_values(self, next_inputs: dict[str, Any]) -> torch.Tensor:
        values = self.target_q_network.act(next_inputs, role="target_q_network")[0]
        return values.amax(dim=1, keepdim=True)  # type: ignore[no-any-return]


class DDQN(_Prioritized, ddqn.DDQN):
    """skrl's double DQN on a PrioritizedMemory: weights in the loss, TD errors as priorities."""

    def _next_values(self, next_inputs: dict[str, Any]) -> torch.Tensor:
        best = self.q_network.act(next_inputs, role="q_network")[0].argmax(dim=1, keepdim=True)
        return self.target_q_network.act(next_inputs, role="target_q_network")[0].gather(1, best)  # type: ignore[no-any-return]
