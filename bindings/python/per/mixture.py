"""Mixture: one batch from several buffers."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Generic, overload

from per import _callbacks, _options
from per._errors import Error, InvalidArgument, kind_of
from per._handle import Guarded
from per._library import ffi
from per._waiting import new_lock
from per.batch import Batch
from per.replay import ReplayBuffer
from per.typing import Array, ArrayLike, DrawOptions, FloatLike, IntLike, Unpack, WhenEmpty


class Mixture(Guarded, Generic[Array]):
    """Draws batches from several buffers, in fixed shares.

    It serves agents that learn from demonstrations as well as from their own steps (Ball et al. 2023, "Efficient Online
    Reinforcement Learning with Offline Data": half of each batch from each), or from one buffer per task.

    A batch has whole rows of each buffer, and what rounding takes from one, later batches give back: with equal shares,
    batches of 33 rows have 17 and 16, then 16 and 17. The rows of the first buffer come first. Each buffer draws its
    rows as it would alone. A row that its own buffer draws with P_k(i) has P(i) = share P_k(i) in the mixture, and the
    weight (N P(i))^-beta / max_j (N P(j))^-beta, j over the batch. N is the number of live transitions of all buffers,
    and beta that of the row's buffer, unless it is given.

    Parameters
    ----------
    sources : Mapping[str, tuple[ReplayBuffer, float]]
        The buffers by name, up to 32, each with its share; shares are divided by their sum. The buffers are on one
        device, and have the same fields and arrays and, for sequences, the same lengths and n_step, unless draws say
        one. All else may differ. Buffers with max_times_sampled are not supported. Each can still be used by itself.
    when_empty : {"error", "others"}, default "error"
        What becomes of the share of a buffer while none of its transitions is live: an error, or the others divide it,
        each in proportion to its own share. On CUDA the latter makes each draw wait for the device.

    Raises
    ------
    InvalidArgument
        The buffers do not fit together, or a share is not allowed.

    Examples
    --------
    >>> import per
    >>> online, demonstrations = (per.ReplayBuffer(100, {"observation": per.Field()}, seed=seed) for seed in (3, 4))
    >>> for buffer, first in ((online, 0), (demonstrations, 1000)):
    ...     ids = buffer.extend(observation=range(first, first + 9), reward=[1] * 9, terminated=[0] * 9,
    ...                         truncated=[0] * 9)
    >>> mixture = per.Mixture({"online": (online, 0.5), "demonstrations": (demonstrations, 0.5)})
    >>> batch = mixture.sample(4)
    >>> batch.sources.tolist(), (batch.observation >= 1000).tolist()
    ([0, 0, 1, 1], [False, False, True, True])
    >>> mixture.update_priorities(batch, [0.5, 1.0, 2.0, 0.1])
    """

    _noun = "mixture"

    def __init__(
        self, sources: Mapping[str, tuple[ReplayBuffer[Array], FloatLike]], *, when_empty: WhenEmpty = "error"
    ) -> None:
        if not isinstance(sources, Mapping) or not sources:
            raise InvalidArgument(f"sources is {sources!r}; allowed: a dict of (buffer, share) by name, not empty")
        self._buffers: dict[str, ReplayBuffer[Array]] = {}
        shares: dict[str, FloatLike] = {}
        for name, source in sources.items():
            if not isinstance(source, tuple) or len(source) != 2 or not isinstance(source[0], ReplayBuffer):
                raise InvalidArgument(f"sources[{name!r}] is {kind_of(source)}; allowed: (ReplayBuffer, share)")
            self._buffers[name], shares[name] = source
        first_name, first = next(iter(self._buffers.items()))
        if "sources" in first._outputs:
            raise InvalidArgument("field sources has the name of an array of a mixture's batches; allowed: other names")
        for name, buffer in self._buffers.items():
            if buffer._kind != first._kind:
                raise InvalidArgument(
                    f"arrays of {name!r} is {buffer._kind!r}, and of {first_name!r} {first._kind!r}; "
                    "allowed: the same for all"
                )
        self._sources = ffi.new("per_source[]", len(self._buffers))
        self._address = int(ffi.cast("uintptr_t", self._sources))
        self._lock = new_lock()
        for each in self._sources:
            _options.set_options(each, {"when_empty": when_empty})
        self.shares = shares

    def _check_n_steps(self) -> None:
        """Raises InvalidArgument if sequences of the buffers have different lengths."""
        (first_name, first), *others = self._buffers.items()
        n_step = first._own_n_step()
        for name, buffer in others:
            if (other := buffer._own_n_step()) != n_step:
                raise InvalidArgument(
                    f"n_step of {name!r} is {other}, and of {first_name!r} {n_step}; "
                    "allowed for sequences: the same for all, or n_step as an argument"
                )

    @property
    def buffers(self) -> Mapping[str, ReplayBuffer[Array]]:
        """The buffers by name."""
        return dict(self._buffers)

    @property
    def shares(self) -> Mapping[str, float]:
        """The shares by name, with a sum of 1. Assign a dict with all names to change them."""
        given = [source.share for source in self._copied()]
        return {name: share / sum(given) for name, share in zip(self._buffers, given, strict=True)}

    @shares.setter
    def shares(self, shares: Mapping[str, FloatLike]) -> None:
        self._set(shares=shares)

    @_options.takes_draw_options()
    def sample(
        self,
        batch_size: IntLike,
        *,
        out: Batch[Array] | None = None,
        stream: object = None,
        **choices: Unpack[DrawOptions],
    ) -> Batch[Array]:
        """Draws a batch from all buffers. A call that fails changes none of them.

        Parameters
        ----------
        batch_size : int
            B, 1 to 2^24.
        out : Batch[Array], optional
            An earlier batch of the same size, which is overwritten and returned. Not for JAX.
        stream : object, optional
            See per.ReplayBuffer.
        beta : float, optional
            Exponent of the weights. None: each row has the beta of its buffer, whose schedule advances.
        scheme : {"stratified", "independent", "systematic", "without_replacement"}, optional
            In place of the buffers'.
        prioritization : {"proportional", "rank", "uniform"}, optional
            In place of the buffers'.
        uniform_fraction : float, optional
            In place of the buffers'.
        normalize_weights : {"batch_max", "none"}, optional
            None: "batch_max": the least probable row of the whole batch has weight 1.
        n_step : int or tuple[int, int], optional
            In place of the buffers'.

        Returns
        -------
        Batch[Array]
            As per.ReplayBuffer.sample() returns it, with `sources`; with `times_sampled` if all buffers keep them.

        Raises
        ------
        Empty
            A buffer has no live transition, or with when_empty="others" none of them.
        Busy
            The rate limiter of a buffer does not allow that many yet.
        InvalidArgument
        Unsupported
            normalize_weights is "buffer_max", or a buffer has max_times_sampled.

        Examples
        --------
        >>> import per
        >>> buffers = [per.ReplayBuffer(100, {"observation": per.Field()}) for _ in range(2)]
        >>> for buffer in buffers:
        ...     ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> mixture = per.Mixture({"mine": (buffers[0], 3), "others": (buffers[1], 1)})
        >>> [mixture.sample(2).sources.tolist() for _ in range(2)]
        [[0, 0], [0, 1]]
        """
        first = next(iter(self._buffers.values()))
        if first._steps > 0 and choices.get("n_step") is None:
            self._check_n_steps()
            call = functools.partial(self.sample, batch_size, out=out, stream=stream)
            return first._at_own_n_step(call, choices)
        exchange = first._exchange
        options, address = None, 0
        if choices:
            options = _options.sample_options(choices, Mixture.sample)
            address = int(ffi.cast("uintptr_t", options))
        if options is not None and first._steps > 0:
            exchange = first._exchange_for(options.n_step)[1]
        has_times_sampled = all(buffer._keeps_times_sampled for buffer in self._buffers.values())
        arrays = None if out is None else self._arrays_of(first, out)
        with self._call():
            drawn = self._address, len(self._buffers), has_times_sampled, batch_size, address
            arrays = exchange.sample_mixture(*drawn, arrays, stream)
        if out is not None:
            return out
        outputs = first._outputs | {"sources": "sources"}
        if not has_times_sampled:
            outputs.pop("times_sampled", None)
        return first._batch_type(first._nested(arrays, outputs))

    @overload
    def update_priorities(self, batch: Batch[Array], td_errors: ArrayLike, *, stream: object = None) -> None: ...
    @overload
    def update_priorities(
        self,
        batch: Batch[Array],
        td_errors: ArrayLike | None = None,
        *,
        priorities: ArrayLike | None,
        stream: object = None,
    ) -> None: ...
    def update_priorities(
        self,
        batch: Batch[Array],
        td_errors: ArrayLike | None = None,
        *,
        priorities: ArrayLike | None = None,
        stream: object = None,
    ) -> None:
        """Sets the priorities of a batch's rows, each in its buffer: see per.ReplayBuffer.update_priorities().

        Parameters
        ----------
        batch : Batch[Array]
            As sample() returned it; its `ids` and `sources` are used.
        td_errors : ArrayLike, optional
            float32[B], as in per.ReplayBuffer.update_priorities().
        priorities : ArrayLike, optional
            float32[B], in place of td_errors.
        stream : object, optional
            See per.ReplayBuffer.

        Raises
        ------
        InvalidArgument
            As in per.ReplayBuffer.update_priorities(). No priority of any buffer is changed.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field()})
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> mixture = per.Mixture({"only": (buffer, 1)})
        >>> batch = mixture.sample(2)
        >>> mixture.update_priorities(batch, priorities=[2, 3])
        >>> buffer.priorities(batch.ids).tolist()
        [2.0, 3.0]
        """
        if (td_errors is None) == (priorities is None):
            raise InvalidArgument("update_priorities needs td_errors or priorities, one of the two")
        if not isinstance(batch, Batch) or not {"ids", "sources"} <= set(batch):
            raise InvalidArgument(f"batch is {kind_of(batch)}; allowed: a batch that sample() of a mixture gave")
        first = next(iter(self._buffers.values()))
        values = td_errors if priorities is None else priorities
        with self._call():
            given = batch.ids, batch.sources, values, priorities is not None, stream
            first._exchange.update_mixture(self._address, len(self._buffers), *given)

    def state_dict(self) -> dict[str, Any]:
        """The shares, and the rows that rounding owes each buffer. Save the buffers separately."""
        with _callbacks.held(self._lock, self._buffers.values()):
            carries = [int(source.carry) for source in self._sources]
            return {"shares": self.shares, "carries": dict(zip(self._buffers, carries, strict=True))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from what state_dict() returned, for buffers of the same names.

        Raises
        ------
        InvalidArgument
            The state is not one of state_dict() of such a mixture.
        """
        if not isinstance(state, Mapping) or set(state) != {"shares", "carries"}:
            raise InvalidArgument(f"state is {state!r}; allowed: what state_dict() returned")
        self._set(**state)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled or copied mixture continues from its state. A pickle or deep copy has its buffers, too."""
        with _callbacks.held(self._lock, self._buffers.values()):
            of_each = zip(self._buffers, self._sources, strict=True)
            given = {name: (float(source.share), int(source.carry)) for name, source in of_each}
        own = {name: value for name, value in vars(self).items() if name not in _OWN}
        when_empty = _options.option(self._sources[0], "when_empty")
        return _restored, (type(self), dict(self._buffers), given, when_empty), own or None

    def __repr__(self) -> str:
        parts = (f"{name!r}: {share:.3g}" for name, share in self.shares.items())
        return f"per.Mixture({{{', '.join(parts)}}})"

    def _set(self, **given: Mapping[str, Any]) -> None:
        """Sets shares and carries, or none of them. The library checks them, and that the buffers fit together."""
        for argument, values in given.items():
            if not isinstance(values, Mapping) or set(values) != set(self._buffers):
                shown = ", ".join(map(repr, values)) if isinstance(values, Mapping) else kind_of(values)
                allowed = ", ".join(map(repr, self._buffers))
                raise InvalidArgument(f"{argument} has {shown}; allowed: {allowed}, all of them")
        with self._call():
            changed = self._copied()
            for argument, values in given.items():
                for source, name in zip(changed, self._buffers, strict=True):
                    member = {"shares": "share", "carries": "carry"}[argument]
                    _options.set_field(source, member, f"{argument}[{name!r}]", values[name])
            address = int(ffi.cast("uintptr_t", changed))
            next(iter(self._buffers.values()))._plain.update_mixture(address, len(changed), [], [], [], True, None)
            ffi.memmove(self._sources, changed, ffi.sizeof(changed))

    def _copied(self) -> Any:
        """A copy of the sources, whose shares another thread may set meanwhile: all of them or none."""
        return ffi.new("per_source[]", list(self._sources))

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        """For one call of the library at a time, whose errors get the names of the buffers."""
        names = list(self._buffers)
        handles = []  # their references keep the buffers open during the call
        with _callbacks.held(self._lock, self._buffers.values()):
            for name, source in zip(names, self._sources, strict=True):
                try:
                    handles.append(self._buffers[name]._open())
                except InvalidArgument as error:
                    raise InvalidArgument(f"sources[{name!r}]: {error}") from error
                source.replay = handles[-1]
            try:
                yield
            except Error as error:
                named = re.sub(
                    r"(?<![.\w])sources\[(\d+)\](\.replay)?", lambda it: f"sources[{names[int(it[1])]!r}]", str(error)
                )
                error.args = (named,)
                raise

    def _arrays_of(self, first: ReplayBuffer[Array], out: Batch[Array]) -> dict[str, Any]:
        arrays = first._arrays_of(out)
        arrays["sources"] = vars(out).get("sources")
        return arrays


_OWN = {"_buffers", "_sources", "_address", "_lock"}


def _restored(
    kind: type[Mixture[Any]],
    buffers: Mapping[str, ReplayBuffer[Any]],
    given: Mapping[str, tuple[float, int]],
    when_empty: WhenEmpty,
) -> Mixture[Any]:
    """A mixture of that class with the given shares and carries."""
    mixture = kind.__new__(kind)
    shares, carries = ({name: values[k] for name, values in given.items()} for k in (0, 1))
    Mixture.__init__(mixture, {name: (buffers[name], shares[name]) for name in buffers}, when_empty=when_empty)
    mixture._set(shares=shares, carries=carries)
    return mixture
