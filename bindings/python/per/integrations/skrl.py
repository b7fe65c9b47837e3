"""A prioritized memory for skrl, and its DQN and DDQN with weights in their loss.

    from per.integrations.skrl import DQN, PrioritizedMemory

    memory = PrioritizedMemory(memory_size=100_000, num_envs=8, device="cpu", alpha=0.6)
    agent = DQN(models=models, memory=memory, cfg=cfg, ...)

skrl's other agents use the memory unchanged. Their priorities stay equal until `memory.update_priorities()` is called.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from skrl import config
from skrl.agents.torch import ddqn, dqn
from skrl.memories.torch import Memory
from skrl.utils.spaces.torch import flatten_tensorized_space, tensorize_space

import per
from per import _options
from per._errors import kind_of
from per.integrations._copied_tree import CopiedTree
from per.integrations._resets import SuspectedResets
from per.typing import Autoreset, Scheme

__all__ = ["DDQN", "DQN", "PrioritizedMemory"]

_NEVER = -(2**62)
_STATE = "libper."  # prefix of the names under which save() stores data other than skrl's tensors


class PrioritizedMemory(Memory):
    """skrl's tensors, with prioritized draws of rows or sequences of rows (Schaul et al. 2016).

    A sequence is drawn whole. It is of one environment and one episode: `terminated` and `truncated`, if samples have
    them, may be set in its last row only. It never joins the latest rows and the oldest ones. Episodes shorter than a
    sequence are not drawn. A sequence has the priority of its first row.

    A copy or a pickled memory keeps rows and priorities, and draws with another seed.

    Parameters
    ----------
    memory_size : int
        As in skrl's memories.
    num_envs : int, default 1
        As in skrl's memories.
    device : str or torch.device, optional
        As in skrl's memories.
    export : bool, default False
        As in skrl's memories.
    export_format : Any, default "pt"
        As in skrl's memories.
    export_directory : str, default ""
        As in skrl's memories.
    alpha : float, default 0.6
        Exponent of priorities.
    beta : float, default 0.4
        Exponent of weights; the attribute may be set at any time.
    epsilon : float, default 1e-06
        Added to |td_error|.
    scheme : {"stratified", "independent", "systematic", "without_replacement"}, default "stratified"
        Scheme of the draws, as in per.SumTree.sample().
    autoreset : {"disabled", "next_step", "same_step"}, optional
        How environments reset after an end, in Gymnasium's terms. "next_step": the row after an end is the reset step,
        and is not drawn. "same_step": rows with `truncated` set have the first observation of the next episode as their
        next one, and are not drawn. "disabled": all rows are drawn. None: like "disabled", with a warning if
        environments seem to reset in the step after an end.
    seed : int, optional
        Seed of the draws. None: one from torch's generator.

    Notes
    -----
    Ends are taken from `terminated` and `truncated` of add_samples(), and from cut().
    """

    export: bool

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
        scheme: Scheme = "stratified",
        autoreset: Autoreset | None = None,
        seed: int | None = None,
    ) -> None:
        if autoreset is not None:
            _options.number("per_autoreset", "autoreset", autoreset)  # raises an error if invalid
        _options.number("per_scheme", "scheme", scheme)
        alpha, beta, epsilon = map(_not_negative, ("alpha", "beta", "epsilon"), (alpha, beta, epsilon))
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
        # p^alpha of each row; 0: no sequence begins there.
        self._tree = CopiedTree(self._rows, device=str(self.device), seed=seed)
        self._largest = 1.0
        self._sequence_length = 1
        # The time of a row in its environment: it advances by 1 per step and by 1 more at an end, so rows L - 1 apart
        # are in one episode exactly if their times are L - 1 apart.
        self._times = torch.full((self._rows,), _NEVER, dtype=torch.int64, device=self.device)
        self._now = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self._autoreset = autoreset
        self._suspected = SuspectedResets() if autoreset is None and self.device.type == "cpu" else None
        # The environments whose latest row ended an episode.
        self._have_ended = torch.zeros(num_envs, dtype=torch.bool, device=self.device)
        # The first rows of the last draw, and their times: an overwritten row has another time.
        self._drawn = self._drawn_times = torch.zeros(0, dtype=torch.int64, device=self.device)
        self._latest = self._drawn, slice(0, 0)  # rows of the latest samples, and their environments
        self.sampling_weights: torch.Tensor | None = None
        """float32[rows drawn, 1], importance-sampling weights of the last sample, one per row"""

    def reset(self) -> None:
        """As in skrl. Earlier rows are no longer drawn."""
        super().reset()
        self._times.fill_(_NEVER)
        self._tree.reset()

    def add_samples(self, **tensors: torch.Tensor) -> None:
        """As in skrl; `terminated` and `truncated` end sequences. New rows get the largest priority seen.

        Several samples of one environment are added one by one, since skrl's memories store each further tensor of such
        a call in later rows than the one before.
        """
        given: Any = tensors.get("observations", next(iter(tensors.values()), None))
        if self.num_envs == 1 and given is not None and given.ndim == 2 and len(given) > 1:
            for i in range(len(given)):
                self.add_samples(**{name: tensor[i : i + 1] for name, tensor in tensors.items() if tensor is not None})
            return
        count = len(given) if given is not None and given.ndim == 2 else 1
        lanes = slice(self.env_index, self.env_index + count)
        first = self.memory_index * self.num_envs + self.env_index
        export, self.export = self.export, False  # must follow the code below
        try:
            super().add_samples(**tensors)
        finally:
            self.export = export
        if self._suspected is not None:
            self._look_for_resets(tensors)
        rows = torch.arange(first, first + count, device=self.device)
        self._set_times(rows, lanes, tensors)
        self._latest = rows, lanes
        starts = rows
        if self._sequence_length > 1:
            self._tree.update(rows, torch.zeros(count, device=self.device))
            starts = (rows - (self._sequence_length - 1) * self.num_envs) % self._rows
            starts = starts[self._are_starts(starts)]
        self._tree.update(starts, self._are_starts(starts) * self._largest**self._alpha)
        if export and self.memory_index == self.env_index == 0:
            self.save(directory=self.export_directory, format=self.export_format)

    def _set_times(self, rows: torch.Tensor, lanes: slice, tensors: dict[str, torch.Tensor]) -> None:
        flags = (tensors.get(name) for name in ("terminated", "truncated"))
        terminated, truncated = (
            torch.zeros(len(rows), dtype=torch.bool, device=self.device) if flag is None else flag.reshape(-1).bool()
            for flag in flags
        )
        self._times[rows] = self._now[lanes]
        ended = terminated | truncated
        if self._autoreset == "next_step":
            is_reset = self._have_ended[lanes]
            self._times[rows[is_reset]] = _NEVER
            ended &= ~is_reset
        elif self._autoreset == "same_step":
            self._times[rows[truncated & ~terminated]] = _NEVER
        self._now[lanes] += 1 + ended.to(self._now)
        self._have_ended[lanes] = ended

    def _look_for_resets(self, tensors: dict[str, torch.Tensor]) -> None:
        names = ("observations", "next_observations", "rewards", "terminated")
        given = [tensors.get(name) for name in names]
        if all(tensor is not None and tensor.ndim == 2 and len(tensor) == self.num_envs for tensor in given):
            observations, following, rewards, ends = (tensor.detach().numpy() for tensor in given)  # type: ignore[union-attr]
            self._suspected.look(observations, following, rewards[:, 0], ends[:, 0].astype(bool))  # type: ignore[union-attr]

    def cut(self, truncated: torch.Tensor, is_known: torch.Tensor | None = None) -> None:
        """Marks the latest samples that were truncated, for agents that do not pass `truncated` to add_samples().

        Parameters
        ----------
        truncated : torch.Tensor
            Flags, one per sample.
        is_known : torch.Tensor, optional
            Flags, one per sample: next_observations has the final observation, so the row can be drawn. None: True
            unless autoreset is "same_step".
        """
        rows, lanes = self._latest
        flags = truncated.reshape(-1).bool()
        if len(flags) != len(rows):
            raise per.InvalidArgument(
                f"truncated has {len(flags)} entries; allowed: {len(rows)}, as the latest samples"
            )
        # Excludes rows that ended anyway, and reset steps.
        flags = flags & ~self._have_ended[lanes] & (self._times[rows] != _NEVER)
        self._now[lanes] += flags.to(self._now)
        self._have_ended[lanes] |= flags
        if is_known is None:
            is_known = torch.full_like(flags, self._autoreset != "same_step")
        unknown = rows[flags & ~is_known.reshape(-1).bool()]
        self._times[unknown] = _NEVER
        starts = (unknown - (self._sequence_length - 1) * self.num_envs) % self._rows
        self._tree.update(starts, torch.zeros(len(starts), device=self.device))

    def _are_starts(self, rows: torch.Tensor) -> torch.Tensor:
        """Whether sequences begin at these rows."""
        times = self._times[rows]
        last = self._times[(rows + (self._sequence_length - 1) * self.num_envs) % self._rows]
        return (times != _NEVER) & (last - times == self._sequence_length - 1)

    def sample(
        self, names: list[str], *, batch_size: int, mini_batches: int = 1, sequence_length: int = 1
    ) -> list[list[torch.Tensor]]:
        """Draws batch_size rows, or sequences of consecutive rows: [batch_size * sequence_length, ...] each.

        `sampling_weights` has their weights. After a change of sequence_length all priorities are equal.

        Raises
        ------
        Empty
            A RuntimeError: there is no row or no whole sequence.
        InvalidArgument
            An argument is not allowed; nothing is changed.
        """
        sequence_length = _options.at_least("sequence_length", sequence_length, 1)
        mini_batches = _options.whole("mini_batches", mini_batches)
        if isinstance(names, str) or not isinstance(names, Collection) or not all(isinstance(n, str) for n in names):
            raise per.InvalidArgument(f"names is {names!r}; allowed: a list of names of tensors")
        draw = self._draw(batch_size, sequence_length)
        drawn = torch.as_tensor(draw.indices, device=self.device)
        offsets = torch.arange(sequence_length, device=self.device) * self.num_envs
        indexes = ((drawn[:, None] + offsets) % self._rows).flatten()
        sampled: list[list[torch.Tensor]] = self.sample_by_index(names, indexes=indexes, mini_batches=mini_batches)
        self._drawn, self._drawn_times, self.sampling_indexes = drawn, self._times[drawn], indexes
        weights = torch.as_tensor(draw.weights, device=self.device)
        self.sampling_weights = weights.repeat_interleave(sequence_length)[:, None]
        return sampled

    def _draw(self, batch_size: int, sequence_length: int) -> per.Draw[Any]:
        if sequence_length == self._sequence_length:
            return self._tree.sample(batch_size, beta=self.beta, scheme=self._scheme)
        rows = torch.arange(self._rows, device=self.device)
        before = self._sequence_length, self._tree.priorities()
        try:
            self._sequence_length = sequence_length
            self._tree.update(rows, self._are_starts(rows) * self._largest**self._alpha)
            return self._tree.sample(batch_size, beta=self.beta, scheme=self._scheme)
        except BaseException:
            self._sequence_length, priorities = before
            self._tree.update(rows, priorities)
            raise

    @torch.no_grad()
    def update_priorities(self, td_errors: torch.Tensor) -> None:
        """Sets p = |td_error| + epsilon for the last draw, from the mean |td_error| over a sequence and over critics.

        Rows overwritten meanwhile are skipped.

        Parameters
        ----------
        td_errors : torch.Tensor
            [rows drawn] or [rows drawn, 1]; with several critics, a leading axis for them.

        Raises
        ------
        InvalidArgument
            The number of TD errors is wrong, or one is not finite; nothing is changed.
        """
        n_rows = len(self._drawn) * self._sequence_length
        shape = td_errors.shape[:-1] if td_errors.shape[-2:] == (n_rows, 1) else td_errors.shape
        if td_errors.numel() == 0 or len(shape) not in (1, 2) or shape[-1] != n_rows:
            raise per.InvalidArgument(f"td_errors has shape {list(td_errors.shape)}; allowed: [{n_rows}], as was drawn")
        errors = td_errors.float().abs().reshape(-1, len(self._drawn), self._sequence_length)
        priorities = errors.mean(dim=(0, 2)) + self._epsilon
        if not priorities.isfinite().all():
            raise per.InvalidArgument("td_errors give priorities that are not finite; allowed: finite numbers")
        is_there = self._times[self._drawn] == self._drawn_times
        rows, priorities = self._drawn[is_there], priorities[is_there]
        masses = priorities**self._alpha
        # A power that is too small for float32 does not exclude a row from the draws.
        masses = torch.where(priorities > 0, masses.clamp(min=2**-149), masses)
        self._tree.update(rows, masses)
        if len(rows) > 0:
            self._largest = max(self._largest, float(priorities.max()))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name, tensor in self.tensors.items():  # a copied view would not share the copy's memory
            self.tensors_view[name] = tensor.view(-1, *tensor.shape[2:])
            setattr(self, f"_tensor_{name}", tensor)

    def _state(self) -> dict[str, torch.Tensor]:
        counts = [self.memory_index, self.env_index, self.filled, self._sequence_length]
        return {
            "counts": torch.tensor(counts),
            "numbers": torch.tensor([self._alpha, self._largest], dtype=torch.float64),
            "masses": torch.as_tensor(self._tree.priorities()),
            "times": self._times,
            "now": self._now,
            "have_ended": self._have_ended,
        }

    def save(self, directory: str = "", *, format: Any = "pt") -> None:
        """As in skrl. Files of format "pt" and "npz" also have the priorities and the place of the newest row."""
        if format == "csv":
            return super().save(directory, format=format)
        tensors = {**self.tensors, **{_STATE + name: tensor for name, tensor in self._state().items()}}
        theirs = SimpleNamespace(
            tensors=tensors, get_tensor_names=lambda: sorted(tensors), export_directory=self.export_directory
        )
        Memory.save(theirs, directory, format=format)  # type: ignore[arg-type]
        return None

    def load(self, path: str) -> None:
        """Loads a file of save(), in format "pt" or "npz"; the memory's tensors must have been created.

        A file of another skrl memory has rows only. Rows that are not NaN are loaded with equal priorities, and the
        last of them is taken as the newest, as in files that skrl exports.

        Raises
        ------
        InvalidArgument
            The file has other tensors, other dtypes, another alpha, or values that no memory has; nothing is changed.
        """
        if path.endswith(".npz"):
            with np.load(path) as file:
                data = {name: torch.from_numpy(file[name]) for name in file}
        elif path.endswith(".pt"):
            data = torch.load(path, map_location=self.device)
        else:
            return super().load(path)  # raises the error with the accepted formats
        if not self.tensors:
            raise per.InvalidArgument(
                "the memory has no tensors yet: create_tensor(), or an agent's init(), comes first"
            )
        if not isinstance(data, dict):
            raise per.InvalidArgument(f"{path} has {kind_of(data)}; allowed: a dict of tensors")
        expected = dict(self.tensors)
        if any(str(name).startswith(_STATE) for name in data):
            expected |= {_STATE + name: tensor for name, tensor in self._state().items()}
        for name in [*expected, *data]:
            given, own = _form(data, name), _form(expected, name)
            if given != own:
                raise per.InvalidArgument(f"{name} of {path} is {given}; allowed: {own}, as in the memory")
        state = {name[len(_STATE) :]: data[name] for name in data if name.startswith(_STATE)}
        if state:
            self._check_state(state, path)
        for name, tensor in self.tensors.items():
            tensor.copy_(data[name])
        self._drawn = self._drawn_times = self._drawn[:0]
        if state:
            self.memory_index, self.env_index, filled, self._sequence_length = state["counts"].tolist()
            self.filled, self._largest = bool(filled), float(state["numbers"][1])
            for name in ("times", "now", "have_ended"):
                getattr(self, f"_{name}").copy_(state[name])
            self._tree.update(torch.arange(self._rows, device=self.device), state["masses"].to(self.device))
        else:
            self._take_rows()
        return None

    def _check_state(self, state: dict[str, torch.Tensor], path: str) -> None:
        alpha, largest = state["numbers"].tolist()
        if alpha != self._alpha:
            raise per.InvalidArgument(f"{path} has alpha {alpha:g}; allowed: the memory's, {self._alpha:g}")
        counts = state["counts"].tolist()
        most = [self.memory_size - 1, self.num_envs - 1, 1, math.inf]
        are_numbers = 0 <= largest < math.inf and bool(((state["masses"] >= 0) & state["masses"].isfinite()).all())
        if not are_numbers or any(
            not least <= count <= last for least, count, last in zip([0, 0, 0, 1], counts, most, strict=True)
        ):
            raise per.InvalidArgument(f"{path} has places or priorities that no memory has; allowed: a file of save()")

    def _take_rows(self) -> None:
        """Takes the rows of the tensors, from the first one on, as consecutive steps."""
        n = self.memory_size
        are_nan = [tensor.isnan().flatten(2).all(2) for tensor in self.tensors.values() if tensor.is_floating_point()]
        if are_nan:
            is_missing = torch.stack(are_nan).all(0).any(1)  # for some environment
            n = int((~is_missing).long().cumprod(0).sum())
        ends = torch.zeros(n, self.num_envs, dtype=torch.int64, device=self.device)
        for name in ("terminated", "truncated"):
            if name in self.tensors:
                ends |= self.tensors[name][:n].reshape(n, self.num_envs).long()
        steps = torch.arange(n, device=self.device)[:, None] + 1 + ends.cumsum(0)  # before the next row
        self._times.fill_(_NEVER)
        self._times[: n * self.num_envs] = (steps - 1 - ends).flatten()
        self._now.copy_(steps[-1] if n > 0 else torch.zeros_like(self._now))
        self._have_ended.copy_(ends[-1] > 0 if n > 0 else torch.zeros_like(self._have_ended))
        self.memory_index, self.env_index, self.filled = n % self.memory_size, 0, n == self.memory_size
        self._largest = 1.0
        rows = torch.arange(self._rows, device=self.device)
        self._tree.update(rows, self._are_starts(rows).float())

    @property
    def tree(self) -> per.SumTree:
        """The tree that draws rows by p^alpha."""
        return self._tree


def _not_negative(name: str, value: Any) -> float:
    number = _options.real(name, value)
    if not 0 <= number < math.inf:
        raise per.InvalidArgument(f"{name} is {number:g}; allowed: finite numbers, 0 and above")
    return number


def _form(tensors: dict[str, Any], name: str) -> str:
    """The shape and dtype of a tensor in a message."""
    if name not in tensors:
        return "missing"
    tensor = tensors[name]
    if isinstance(tensor, torch.Tensor):
        return f"{list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
    return kind_of(tensor)


class _Prioritized:
    """The update of skrl's DQN with weights in its loss and TD errors as priorities."""

    memory: PrioritizedMemory

    def _next_values(self, next_inputs: dict[str, Any]) -> torch.Tensor:
        raise NotImplementedError

    def record_transition(
        self: Any, *, next_observations: torch.Tensor, truncated: torch.Tensor, infos: Any, **others: Any
    ) -> None:
        """As in skrl. Stores the final observations in infos, and marks truncations in the memory."""
        is_final = None
        if isinstance(infos, Mapping) and "final_obs" in infos and "_final_obs" in infos:
            is_final = torch.as_tensor(infos["_final_obs"], device=truncated.device)
            next_observations = next_observations.clone()
            for i in is_final.nonzero().flatten().tolist():
                final = tensorize_space(self.observation_space, infos["final_obs"][i], device=next_observations.device)
                next_observations[i] = flatten_tensorized_space(final).flatten()
        super().record_transition(next_observations=next_observations, truncated=truncated, infos=infos, **others)  # type: ignore[misc]
        if self.training:
            self.memory.cut(truncated, is_final)

    def update(self: Any, *, timestep: int, timesteps: int) -> None:
        """Makes `gradient_steps` steps, each with its own batch."""
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
