"""ReplayBuffer: transitions, and batches of them drawn by priority."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import io
import os
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, Literal, NamedTuple, NoReturn, overload

import numpy as np
import numpy.typing as npt

from per import (
    _arrays,
    _bridging,
    _exchange,
    _files,
    _kinds,
    _library,
    _memory,
    _options,
    _pytrees,
    batch,
    final_observations,
    spaces,
)
from per._errors import InvalidArgument
from per._handle import Store, created
from per._layout import Layout, layout_of
from per._library import NULL, check, ffi, lib
from per._waiting import DIRECTORY_TIMEOUT, waited
from per.batch import Batch, JaxBatch
from per.channel import Channel
from per.coordinator import ShardSummary
from per.epochs import Epochs
from per.field import Field, from_c, set_fields
from per.hindsight import Call, Hindsight
from per.loader import LoadedBatch, Loader, loader_kind
from per.saving import Save
from per.shared_loader import SharedLoader
from per.statistics import Statistics

# How many calls of add(), or steps of extend(), lie between looks at the statistics; before the first they get fewer.
_CALLS_BETWEEN_LOOKS = 256


class Units(NamedTuple):
    """What ReplayBuffer.get_units() returns."""

    batch: Batch
    masses: npt.NDArray[np.int64]
    """int64[n], mass of each transition"""
    first_units: npt.NDArray[np.int64]
    """int64[n], the first unit of each"""


class ReplayBuffer(Store):
    """Prioritized experience replay (Schaul et al. 2016, arXiv:1511.05952).

    Transition i is drawn with probability P(i) = p_i^alpha / sum_k p_k^alpha, p = |td_error| + epsilon (equation 1,
    section 3.3), and weighs w_i = (N P(i))^-beta / max_j (N P(j))^-beta (section 3.4), N being the number of live ones.

    Arguments:
        capacity: rows in all, rounded up to a multiple of n_envs. A row holds a step; at the end of an episode the
            final observation takes one more. Of the rows of an environment once they are full at least
            rows - 1 - ends of episodes - (n_step - 1) - (frame_stack - 1) are live transitions; capacity_for() gives
            the capacity for so many of them.
        fields: names and Field of what is stored beside reward, terminated and truncated. At least one observation.
            One with a default may be left out when steps are added. A name is any text of up to 255 bytes in UTF-8,
            without control characters; dots stand for containers, as for_env() says. Names of arguments of add(), and
            of what batches have beside the fields, are reserved.
        n_envs: environments, each with a ring of its own.
        n_step, gamma: steps of a return and discount of a step; returns are formed when a batch is drawn.
        frame_stack: frames of an observation in a batch; one frame a step is stored. Frames from before an episode are
            what the field's padding says.
        sequence_length: transitions that a sequence is learned from; None: single transitions are drawn. A batch of
            sequences has T = burn_in + sequence_length steps each, and `mask` (see Batch).
        burn_in: transitions before them that only warm up a recurrent state.
        sequence_stride: distance of the starts of sequences, counted from the first step of an episode; None:
            sequence_length.
        sequence_eta: of the priority eta max |td_error| + (1 - eta) mean |td_error| of a sequence (Kapturowski et al.
            2019).
        alpha, epsilon: of priorities.
        beta, beta_final, beta_steps: exponent of the weights of the first batch, and after beta_steps batches, linear
            in between; beta_steps 0: beta stays, and a beta_final that was given is warned of.
        prioritization: "proportional", "rank", "uniform".
        scheme: "stratified", "independent", "systematic", "without_replacement".
        uniform_fraction: u of P = (1 - u) p^alpha / sum + u / N.
        normalize_weights: "batch_max", "buffer_max", "none".
        max_priority: a transition added without a priority gets the largest one "ever", or of those live "now".
        on_invalid: a TD error that is not finite is an "error", or is "skip"ped and counted.
        on_gap: a step whose observation is not the one announced by the step before "cut"s the trajectory there, or is
            an "error".
        on_nan: "allow" takes a NaN in an observation, a next observation or a reward as any value, and "error" refuses
            the call. Infinities are numbers, and other fields may hold NaN.
        autoreset: how environments reset after an end, in Gymnasium's words: "disabled", "next_step", "same_step".
            for_env() takes it from env.metadata["autoreset_mode"]; that of gymnasium.make_vec() is "next_step", unless
            it is told otherwise.
        store_next_observation: keep next observations in arrays of their own: rows may then be added in any order, and
            capacity is exact, each row being a transition. Without it, rows of a data set in no order of time are cut
            off from each other: each takes a second row for its next observation, or is never live if it comes without
            one. A warning says so.
        overwrite: False makes a full lane an error (Full).
        critics: what the TD errors of several critics make together, the "mean" or the "max" of their absolute values.
        gather_threads: threads on which a batch of 4 MiB or more is copied, the caller's among them; on the CPU,
            and not for sequences.
        save_compression: of what save() writes, and what is pickled: 0: none; 1 to 19: that level of zstd.
        samples_per_insert, samples_tolerance, min_size_to_sample: the rate limiter: how many transitions are to be
            drawn for each step that is added, by how many draws may be ahead of that or behind, and how many steps are
            to be added before the first draw. What it does not allow yet is Busy: see wait_to_add(). 0: no limit.
        keep_times_sampled: True counts how often each transition, or sequence, is drawn: `times_sampled` of batches.
        max_times_sampled: a transition, or sequence, can be drawn so many times and no more. Needs the scheme
            "without_replacement", and counts. 0: as often as it is drawn.
        storage: a directory, which is made if it is not there: rows lie in a file in it, and as many of them in memory
            as there is room for; 9.7 bytes a row always do. The file has no name, and is gone when the buffer is. A
            child that is forked cannot use the buffer. What save() wrote is loaded into such a file by
            load(storage=...); what was pickled, or comes from a state_dict or a file object, lies in memory. Not on
            CUDA.
        storage_preallocated: take the room on the disk for all rows at once, rather than by add() as they come.
        device: "cpu", "cuda", "cuda:1".
        arrays: of the batches: "numpy" (the default on the CPU), "torch" (the default on CUDA), "jax"; on CUDA also
            "cupy".
        seed: of the draws. The same seed and the same calls give the same ids, from every language.

    Raises:
        InvalidArgument, OutOfMemory, NoDevice, Unsupported (naming the option).

    >>> import numpy as np, per
    >>> fields = {"observation": per.Field(2, "float32"), "action": per.Field((), "int64")}
    >>> buffer = per.ReplayBuffer(100, fields, seed=3)
    >>> for t in range(10):
    ...     ids = buffer.add(observation=[t, 0.0], action=t % 2, reward=1.0, terminated=t == 9, truncated=False,
    ...                      next_observation=[t + 1, 0.0])
    >>> len(buffer)
    10
    >>> batch = buffer.sample(32)
    >>> batch.observation.shape, batch.weights.dtype
    ((32, 2), dtype('float32'))
    >>> bool((batch.next_observation == batch.observation + [1, 0]).all())
    True
    >>> buffer.update_priorities(batch.ids, np.ones(32, np.float32))

    On CUDA, batches and whatever else calls return lie in the memory of that device, live_ids() apart. Calls queue
    their work on `stream` - a stream of torch or CuPy, or a cudaStream_t; by default the current one of `arrays` - and
    return at once. Those of one buffer follow each other whatever their streams; what the caller does on other streams
    is the caller's to order, and arrays used there must live until it is done. JAX has a stream for this, and none to
    choose.

    There, arrays on the device are read in place: anything with __dlpack__ or __cuda_array_interface__, also if it
    requires gradients. Those of `arrays` are converted on the device where they are not contiguous, or ids are not
    int64, TD errors or priorities not float32; all others must be contiguous and of these dtypes. Arrays of the host
    are copied. What is wrong with values is known on the device only: entries are skipped and counted, and
    synchronize() reports them. A draw from an empty buffer gives ids -1.

    A buffer may be used by several threads; each call is atomic. On the CPU it stays usable in a forked child, which
    then has its own copy. It closes itself, and earlier at the end of a `with` block.
    """

    _noun = "buffer"
    _synchronize = lib.per_replay_synchronize
    _attached: frozenset[str] = frozenset()
    """Names of the attributes that follow from the handle; those of subclasses are others."""

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, Field],
        *,
        n_envs: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        frame_stack: int = 1,
        sequence_length: int | None = None,
        burn_in: int = 0,
        sequence_stride: int | None = None,
        sequence_eta: float = 0.9,
        alpha: float = 0.6,
        beta: float = 0.4,
        beta_final: float = 1.0,
        beta_steps: int = 0,
        epsilon: float = 1e-6,
        prioritization: str = "proportional",
        scheme: str = "stratified",
        uniform_fraction: float = 0.0,
        normalize_weights: str = "batch_max",
        max_priority: str = "ever",
        on_invalid: str = "error",
        on_gap: str = "cut",
        on_nan: str = "allow",
        autoreset: str = "disabled",
        store_next_observation: bool = False,
        overwrite: bool = True,
        critics: str = "mean",
        gather_threads: int = 1,
        save_compression: int = 0,
        samples_per_insert: float = 0.0,
        samples_tolerance: int = 0,
        min_size_to_sample: int = 0,
        keep_times_sampled: bool = False,
        max_times_sampled: int = 0,
        storage: str | os.PathLike[str] | None = None,
        storage_preallocated: bool = False,
        device: str = "cpu",
        arrays: str | None = None,
        seed: int = 0,
    ) -> None:
        given = dict(locals())
        kind = _kinds.kind_of(arrays, str(device))
        options = _library.new("per_replay_options")
        kept = set_fields(options, fields)
        options.device, options.device_index = _options.device(device)
        # What is not given stays as the library filled it.
        _options.set_options(options, {name: given[name] for name in _OPTIONS if given[name] is not _DEFAULTS[name]})
        _options.set_options(options, {"capacity": capacity})
        kept_storage = _options.set_storage(options, storage)
        words = {"n_fields": "the number of fields"}
        handle = created(lib.per_replay_create, options, check=lambda status: check(status, words))
        del kept, kept_storage
        self._attach(handle, str(device), kind)
        if beta_steps == 0 and beta_final not in (beta, _DEFAULTS["beta_final"]):
            warnings.warn(f"beta_final is {beta_final}, but beta_steps is 0: beta stays {beta}", stacklevel=2)

    def _attach(self, handle: Any, device: str, kind: str) -> None:
        """Takes a handle, whose options say the rest."""
        others = vars(self).keys() - self._attached
        options = _library.new("per_replay_options")
        check(lib.per_replay_describe(handle, options))
        self._fields = from_c(options)
        self._n_envs, self._capacity = int(options.n_envs), int(options.capacity)
        self._autoreset = _library.name_of("per_autoreset", options.autoreset)
        self._device, self._kind = device, kind
        self._batch_type = JaxBatch if kind == "jax" else Batch
        self._memory = _memory.memory_of(options.device, options.device_index, kind)
        # Steps of a sequence; 0: single transitions. The shapes of sequences depend on n_step.
        self._steps = int(options.burn_in + options.sequence_length) if options.sequence_length > 0 else 0
        self._learned_steps = int(options.sequence_length)
        self._keeps_times_sampled = bool(options.keep_times_sampled)
        self._n_step = int(options.n_step)
        self._n_step_lock = threading.Lock()
        layout = self._sequence_layout(self._n_step)
        _kinds.check_dtypes(kind, layout)
        self._layout = layout
        self._inputs = batch.structure_of([*layout.fields, *filter(None, layout.next_fields)])
        batch.refuse_argument_names(self._inputs)
        self._is_nested = batch.is_nested(self._inputs)
        self._outputs = batch.structure_of([output.name for output in layout.batch])
        self._row_outputs = batch.structure_of([output.name for output in layout.rows])
        batch.refuse_method_names(self._outputs | self._row_outputs)
        # Calls that added steps, and those at which their statistics are looked at next. On CUDA looking would wait for
        # the device: there stats() does.
        self._calls = [0, 1 if isinstance(self._memory, _memory.HostMemory) else sys.maxsize]
        self._suspicions = [_suspicion_of_cuts, _suspicion_of_resets]
        # Until they were warned of.
        self._looks_at_rewards = isinstance(self._memory, _memory.HostMemory)
        self._looks_at_lengths = True
        _pytrees.register()
        self._handle = handle
        self._plain, self._exchange = self._new_exchange(layout)
        self._exchanges = {self._n_step: (self._plain, self._exchange)}
        self._attached = frozenset({"_attached", *vars(self)} - others)

    def _new_exchange(self, layout: Layout) -> tuple[_exchange.Exchange, Any]:
        """What passes arrays of that layout: in Python, and as fast as possible."""
        plain = _exchange.Exchange(self._handle, layout, self._memory)
        return plain, _bridging.new_exchange(self._handle, plain, layout, self._memory)

    def _exchange_for(self, n_step: int) -> tuple[_exchange.Exchange, Any]:
        """The same for batches of sequences with that n_step; the library refuses what is none."""
        self._open()
        n_step = max(n_step, 1)
        found = self._exchanges.get(n_step)
        if found is None:
            # Threads that come here at the same time take the one that close() will find.
            found = self._exchanges.setdefault(n_step, self._new_exchange(self._sequence_layout(n_step)))
        return found

    def _sequence_layout(self, n_step: int) -> Layout:
        steps = self._steps, self._learned_steps
        return layout_of(self._fields, self._n_envs, *steps, n_step, self._keeps_times_sampled)

    @staticmethod
    def capacity_for(
        transitions: int, episode_length: int = 0, *, fields: Mapping[str, Field] | None = None, **options: Any
    ) -> int:
        """The smallest capacity that keeps so many transitions, or sequences, live once the buffer is full.

        Without sequences and store_next_observation, divisions rounded down, t being transitions per environment:
        n_envs (t + (t - 1) / episode_length + n_step + frame_stack).

        Arguments:
            transitions: 1 to 2^40, of all environments. For a rollout of K steps in each of n_envs environments
                K * n_envs: the capacity then takes all of it, ends of episodes included, also with overwrite=False.
            episode_length: steps of the shortest episode; 0: episodes are longer than what an environment has of rows.
            fields: needed where a field has a stack of its own.
            options: as the class takes them; only those that change the result are looked at.

        Raises:
            InvalidArgument.

        >>> import per
        >>> per.ReplayBuffer.capacity_for(1000, episode_length=10)
        1101
        >>> per.ReplayBuffer.capacity_for(128 * 8, episode_length=1, n_envs=8)
        2056
        """
        c_options = _library.new("per_replay_options")
        unknown = options.keys() - _OPTIONS - {"device", "arrays", "storage"}
        if unknown:
            name = min(unknown)
            hint = _options.meant(name, _OPTIONS)
            raise InvalidArgument(f"{name} is no option of a buffer{hint}; allowed: {', '.join(_OPTIONS)}")
        _options.set_options(
            c_options,
            {name: value for name, value in options.items() if name in _OPTIONS and value is not _DEFAULTS[name]},
        )
        kept = set_fields(c_options, fields or {})
        capacity = ffi.new("int64_t *")
        given = _options.whole("transitions", transitions), _options.whole("episode_length", episode_length)
        check(lib.per_replay_compute_capacity(c_options, *given, capacity))
        del kept
        return int(capacity[0])

    @classmethod
    def for_env(
        cls,
        env: Any,
        capacity: int,
        *,
        fields: Mapping[str, Field] | None = None,
        dtypes: Mapping[str, object] | None = None,
        **options: Any,
    ) -> ReplayBuffer:
        """A buffer for a Gymnasium environment or vector environment.

        Its spaces give the fields observation and action, its number of environments and its autoreset mode the options
        of these names. Box, Discrete, MultiDiscrete and MultiBinary become one field, Dict and Tuple one for each part
        ("observation.image", "observation.0"), while add() and batches take and give them as the user holds them. In
        names a backslash marks what would be read as something else: the key "a.b" is `a\\.b`, "0" is `\\0`, and the
        number 0 as a key `\\#0`. An environment that stacks frames (FrameStackObservation) gives frame_stack and the
        padding of the observation's fields, and its newest frame is stored.

        Arguments:
            env: gymnasium.Env or gymnasium.vector.VectorEnv.
            capacity: rows in all.
            fields: further fields, such as {"log_prob": per.Field(()), "advantage": per.Field((), default=0.0)}.
            dtypes: by name of a field, dtypes to store in place of the spaces'. Float64 is kept as float32 by default.
            options: as the class takes them; they go before what the environment says.

        Raises:
            Unsupported for a space that has no arrays of one shape (Text, Graph, Sequence, OneOf), for keys that are
            neither strings nor whole numbers, and for stacks of frames that begin with neither the first frame nor
            zeros; and as the class.
        """
        found = spaces.of_env(env, dtypes or {}, has_64_bits=_has_64_bits(options))
        for name, value in found.options.items():
            options.setdefault(name, value)
        return cls(capacity, {**found.fields, **(fields or {})}, **options)

    @classmethod
    def for_spaces(
        cls,
        observation_space: Any,
        action_space: Any,
        capacity: int,
        *,
        fields: Mapping[str, Field] | None = None,
        dtypes: Mapping[str, object] | None = None,
        **options: Any,
    ) -> ReplayBuffer:
        """A buffer for environments of which only the spaces are known, as a framework hands them to its buffers.

        The fields are those of for_env(); n_envs and autoreset are options here. With frame_stack observation_space is
        that of one frame.

        Arguments:
            observation_space, action_space: gymnasium.Space, of one environment.
            capacity: rows in all.
            fields, dtypes: as for_env() takes them.
            options: as the class takes them.

        Raises:
            Unsupported for a space that has no arrays of one shape; and as the class.

        Example:
            >>> import gymnasium
            >>> import per
            >>> box, discrete = gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Discrete(2)
            >>> sorted(per.ReplayBuffer.for_spaces(box, discrete, 100, n_envs=4).fields)
            ['action', 'observation']
        """
        found = spaces.of_spaces(observation_space, action_space, dtypes or {}, has_64_bits=_has_64_bits(options))
        return cls(capacity, {**found, **(fields or {})}, **options)

    # ------------------------------------------------------------ adding

    @_options.by_name
    def add(
        self,
        /,
        *positional: NoReturn,
        reward: object = None,
        terminated: object = None,
        truncated: object = None,
        mask: object = None,
        next_mask: object = None,
        priorities: object = None,
        td_errors: object = None,
        env_ids: object = None,
        info: Mapping[str, Any] | None = None,
        stream: object = None,
        **fields: object,
    ) -> npt.NDArray[np.int64]:
        """Adds one step of every environment, all of them or, on any error, none.

        Arrays are [n_envs, ...]; the axis may be left out if there is one environment. They may be numpy's, torch's,
        JAX's or of any type with the buffer protocol, __array_interface__ or __dlpack__, or numbers and lists; elements
        are cast as numpy's "same_kind" rule allows.

        Arguments:
            **fields: each declared field by name, but those with a default may be left out; and for observations x also
                next_x: what was observed after the step. next_x may be left out on steps that end no episode; the step
                is then live from the next one on.
            reward: [n]. It, flags and priorities may be one number for all.
            terminated, truncated: flags [n]: the episode ended in a terminal state; otherwise, such as by a time limit.
                Flags are booleans, or 0 and 1 of any dtype.
            mask: flags [n]; where False nothing is added and no value is looked at.
            next_mask: flags [n]; where False the next observation is not available (simulators that reset by
                themselves).
            priorities, td_errors: [n], at most one of the two; without them the largest priority seen.
            env_ids: int64[n], 0 to n_envs - 1, each at most once: the environments whose steps these are. None: all.
            info: of a vector environment. With autoreset "same_step" its final observations are taken from it, flags
                and next observations being looked at on the host. Final observations in it are an error with another
                autoreset, as other environments give none.
            stream: see the class. Arrays may lie in host memory and on the device, those of one call too; host memory
                may be written again at once.

        Returns:
            ids, int64 in the shape of terminated; -1 where nothing was added.

        Warns:
            UserWarning, once, if environments seem to reset in another way than `autoreset` says: their final
                observations are given twice (suspected_resets in stats()). Once also if most steps are cuts, and if
                a reward is a whole number that float32 does not have.

        Raises:
            InvalidArgument naming the field or argument, Full; Busy where the rate limiter does not allow it yet;
            OutOfMemory where there is none for compressed fields.
        """
        if positional:
            raise _options.not_by_name("add", positional, self._inputs)
        if self._is_nested:
            fields = self._flat(fields)
        if info is not None and (key := final_observations.key_in(info, self._autoreset)) is not None:
            fields, next_mask = final_observations.insert(
                key, info, fields, next_mask, self._inputs, terminated, truncated
            )
        step_arrays = (reward, terminated, truncated, mask, next_mask, priorities, td_errors)
        ids: npt.NDArray[np.int64] = self._exchange.add(step_arrays, fields, env_ids, False, stream)
        self._look_at_steps(1)
        if self._looks_at_rewards:
            self._look_at_rewards(reward)
        return ids

    @_options.by_name
    def extend(
        self,
        /,
        *positional: NoReturn,
        reward: object = None,
        terminated: object = None,
        truncated: object = None,
        mask: object = None,
        next_mask: object = None,
        priorities: object = None,
        td_errors: object = None,
        env_ids: object = None,
        stream: object = None,
        **fields: object,
    ) -> npt.NDArray[np.int64]:
        """Adds K consecutive steps, as K calls of add() would, but in one.

        Arguments:
            As in add(), with an axis of time in front: [K, n_envs, ...], or [K, ...] for one environment.

        Returns:
            ids, int64 in the shape of terminated; -1 where nothing was added.

        Warns:
            UserWarning, as add(), and once if an environment gets more steps than it has rows.

        Raises:
            InvalidArgument, Full, Busy, OutOfMemory; then nothing was added.
        """
        if positional:
            raise _options.not_by_name("extend", positional, self._inputs)
        if self._is_nested:
            fields = self._flat(fields)
        step_arrays = (reward, terminated, truncated, mask, next_mask, priorities, td_errors)
        ids: npt.NDArray[np.int64] = self._exchange.add(step_arrays, fields, env_ids, True, stream)
        self._look_at_steps(len(ids))
        if self._looks_at_rewards:
            self._look_at_rewards(reward)
        if self._looks_at_lengths and len(ids) * self._n_envs > self._capacity:
            self._looks_at_lengths = False
            warnings.warn(
                f"extend() was given {len(ids)} steps of an environment that has room for "
                f"{self._capacity // self._n_envs}: only the latest stay. A capacity for all is "
                f"ReplayBuffer.capacity_for({len(ids) * self._n_envs}, ...)",
                stacklevel=2,
            )
        return ids

    def cut(self, env_ids: object = None, *, stream: object = None) -> None:
        """Ends the running episodes of the environments (None: all) as truncated: the next step starts another."""
        queue = self._memory.queue(stream)
        if env_ids is None:
            check(lib.per_replay_cut(self._open(), 0, NULL, queue.handle))
        else:
            ids = _arrays.as_int64(env_ids, "env_ids")
            check(lib.per_replay_cut(self._open(), ids.size, ffi.from_buffer("int64_t[]", ids), queue.handle))

    # ---------------------------------------------------------- sampling

    def sample(
        self,
        batch_size: int,
        *,
        beta: float | None = None,
        scheme: str | None = None,
        prioritization: str | None = None,
        uniform_fraction: float | None = None,
        normalize_weights: str | None = None,
        n_step: int | tuple[int, int] | None = None,
        key: object = None,
        hindsight: Hindsight | None = None,
        out: Batch | None = None,
        stream: object = None,
    ) -> Batch:
        """Draws live transitions and their importance-sampling weights.

        Arguments:
            batch_size: B, 1 to 2^24.
            beta, scheme, prioritization, uniform_fraction, normalize_weights, n_step: for this batch in place of the
                buffer's. A batch with a beta of its own does not advance the schedule of beta. With n_step (1, 5) each
                transition, or sequence, has an n of its own, drawn from 1 to 5; `n_steps` says how long its window is.
            key: uint64[2], such as (7, 3): the draw is that of a buffer with seed 7 after 3 others, and not the next
                one of this buffer, as which it counts all the same. Not with hindsight.
            hindsight: gives some of the transitions goals that were reached later. What its reward function raises
                passes through; the call is then no draw, but counts in `times_sampled`.
            out: an earlier batch of the same size, whose arrays are written again and which is returned. Not for JAX.
                A captured CUDA graph needs it.
            stream: see the class.

        Raises:
            Empty if no transition is live; Busy where the rate limiter does not allow so many yet; InvalidArgument. A
            call that fails is no draw.
        """
        options, address, exchange = None, 0, self._exchange
        if self._steps > 0 and n_step is None:
            n_step = self._n_step  # said with each call, since what is allocated here is for that one
        has_choice = scheme is not None or prioritization is not None or normalize_weights is not None
        has_choice |= beta is not None or uniform_fraction is not None or n_step is not None
        if has_choice or key is not None or hindsight is not None:
            options = _options.sample_options(beta, scheme, prioritization, uniform_fraction, normalize_weights, n_step)
            address = int(ffi.cast("uintptr_t", options))
        plain = self._plain
        if options is not None and self._steps > 0:
            plain, exchange = self._exchange_for(options.n_step)
        arrays = None if out is None else self._arrays_of(out)
        if hindsight is None and key is None:
            arrays = exchange.sample(batch_size, address, arrays, stream)
        else:
            call = None if hindsight is None else Call(hindsight, self._layout)
            arrays = plain.sample(batch_size, address, arrays, stream, call, key)
        return self._new_batch(arrays) if out is None else out

    def update_priorities(
        self, ids: object, td_errors: object = None, *, priorities: object = None, stream: object = None
    ) -> None:
        """Sets p = |td_error| + epsilon (section 3.3), or the priorities given. Of equal ids the last one wins.

        Updates of transitions that were overwritten meanwhile, and of id -1, are ignored and counted (stale_updates).

        Arguments:
            ids: int64[n], as batches carry them.
            td_errors: float32[n] of any sign, or [n_critics, n]: then by critics, their mean |td_error| or the largest.
                On the host other types of numbers, and lists, are cast to float32.
                Of sequences [n, T] or [n_critics, n, T], or with sequence_length in place of T if they leave the
                burn-in out. Steps after the burn-in that are no padding are looked at: p = sequence_eta max_t |d_t|
                + (1 - sequence_eta) mean_t |d_t| + epsilon.
            priorities: float32[n], >= 0, before alpha, in place of td_errors.
            stream: see the class.

        Raises:
            InvalidArgument for an id that was never issued, for shapes that do not match, and for values that are not
            finite unless on_invalid is "skip"; then nothing is changed. On CUDA entries with such ids and values are
            skipped, the others take effect, and synchronize() reports it.
        """
        if priorities is None and td_errors is not None:
            self._exchange.update(ids, td_errors, False, stream)
        elif td_errors is None and priorities is not None:
            self._exchange.update(ids, priorities, True, stream)
        else:
            raise InvalidArgument("update_priorities needs td_errors or priorities, one of the two")

    def priorities(self, ids: object, *, stream: object = None) -> npt.NDArray[np.float32]:
        """Reads p by id, float32[n]; 0 for transitions that are not live.

        Raises:
            InvalidArgument for an id that was never issued. On CUDA it reads 0, and synchronize() reports it.
        """
        queue = self._memory.queue(stream)
        entries = self._memory.read_numbers(ids, "ids", "int64", queue)
        return self._each(lib.per_replay_get_priorities, entries, "float32", queue)  # type: ignore[no-any-return]

    def get(self, ids: object, *, next_observations: bool = True, stream: object = None) -> Batch:
        """Rows by id, as they were added: one step, one frame, whatever n_step and frame_stack.

        The batch has no weights and probabilities.

        Arguments:
            ids: int64[n]
            next_observations: False leaves them out of the batch. Steps whose next observation is not known, or not
                there yet, can only be read so.
            stream: on a device: where the work is queued

        Raises:
            InvalidArgument for an id that was never issued or was overwritten, and with next_observations for a step
            whose next observation is not there.
        """
        if next_observations:
            return self._new_batch(self._plain.get(ids, self._layout.rows, stream), self._row_outputs)
        outputs = [output for output in self._layout.rows if output.member != "next_fields"]
        names = batch.structure_of([output.name for output in outputs])
        return self._new_batch(self._plain.get(ids, outputs, stream), names)

    def get_windows(
        self,
        ids: object,
        *,
        on_invalid: str = "error",
        beta: float | None = None,
        prioritization: str | None = None,
        uniform_fraction: float | None = None,
        normalize_weights: str | None = None,
        n_step: int | tuple[int, int] | None = None,
        hindsight: Hindsight | None = None,
        out: Batch | None = None,
        stream: object = None,
    ) -> Batch:
        """Live transitions by id, as sample() would have drawn them: n-step returns, stacks, sequences, weights.

        It is no draw: the random state, the schedule of beta and all statistics stay as they are. Probabilities and
        weights are those of one draw with replacement, whatever the scheme, by the priorities of now. One that would
        never be drawn, as its priority is 0, has weight 0.

        Arguments:
            ids: int64[n], n from 0 to 2^24, in any order; one may be given several times.
            on_invalid: an id that is not live is an "error", or is "skip"ped: the batch has id -1 and zeros there, in
                weights too.
            beta, prioritization, uniform_fraction, normalize_weights, n_step: in place of the buffer's. "batch_max"
                looks for the largest weight among these ids.
            hindsight: as sample() takes it. With it, or with a range for n_step, the call takes a number from the
                draws, and counts in `samples`.
            out: an earlier batch of n transitions, whose arrays are written again and which is returned. Not for JAX.
            stream: see the class.

        Raises:
            InvalidArgument, for the first id that is not live unless such are skipped. On CUDA they are always skipped,
            and with "error" synchronize() reports them.

        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(1)}, n_step=2, gamma=0.5)
        >>> for t in range(10):
        ...     ids = buffer.add(observation=[t], reward=t, terminated=False, truncated=False, next_observation=[t + 1])
        >>> batch = buffer.get_windows([7, 4, 2])
        >>> batch.reward.tolist(), batch.next_observation[:, 0].tolist(), batch.weights.tolist()
        ([11.0, 6.5, 3.5], [9.0, 6.0, 4.0], [1.0, 1.0, 1.0])
        >>> buffer.get_windows([7, 99], on_invalid="skip").ids.tolist()
        [7, -1]
        """
        if self._steps > 0 and n_step is None:
            n_step = self._n_step  # said with each call, since what is allocated here is for that one
        options = _options.sample_options(beta, None, prioritization, uniform_fraction, normalize_weights, n_step)
        plain = self._plain if self._steps == 0 else self._exchange_for(options.n_step)[0]
        arrays = plain.get_windows(
            ids,
            _options.number("per_on_invalid", "on_invalid", on_invalid),
            options,
            None if out is None else self._arrays_of(out),
            stream,
            None if hindsight is None else Call(hindsight, self._layout),
        )
        return self._new_batch(arrays) if out is None else out

    def get_units(
        self,
        units: object,
        *,
        beta: float | None = None,
        prioritization: str | None = None,
        uniform_fraction: float | None = None,
        normalize_weights: str | None = None,
        n_step: int | None = None,
        stream: object = None,
    ) -> Units:
        """The transitions that own units of the total mass of summarize(), as get_windows() gives those of ids.

        Unit u, 0 to total_mass - 1, belongs to transition i with m_0 + .. + m_(i-1) <= u < m_0 + .. + m_i. -1 - r is
        the transition with r live ones before it: environment by environment, and by place in the ring of each.

        Arguments:
            units: int64[n].
            beta, prioritization, uniform_fraction, normalize_weights, n_step, stream: as get_windows() takes them.

        Raises:
            InvalidArgument, for the first unit that there is not. On CUDA the batch has id -1 there, and synchronize()
            reports it.
        """
        if self._steps > 0 and n_step is None:
            n_step = self._n_step  # said with each call, since what is allocated here is for that one
        options = _options.sample_options(beta, None, prioritization, uniform_fraction, normalize_weights, n_step)
        plain = self._plain if self._steps == 0 else self._exchange_for(options.n_step)[0]
        arrays, masses, first_units = plain.get_units(units, options, stream)
        return Units(self._new_batch(arrays), masses, first_units)

    def summarize(self, measured_scale: int | None = None) -> ShardSummary:
        """What draws are made of, in whole numbers: see Coordinator. Synchronises.

        Arguments:
            measured_scale: a scale at which the masses are added up, too, in one pass over the buffer.

        >>> import per
        >>> buffer = per.ReplayBuffer(10, {"observation": per.Field()})
        >>> ids = buffer.extend(observation=range(4), reward=[0] * 4, terminated=[0] * 4, truncated=[0] * 4)
        >>> buffer.set_scale(3)
        >>> buffer.summarize().total_mass, buffer.summarize().live, buffer.summarize(1).measured_mass
        (24, 3, 6)
        """
        return ShardSummary._of(self._open(), measured_scale)

    def set_scale(self, scale: int | None) -> None:
        """Sets the scale of mass(p^alpha) = ceil(p^alpha 2^scale), from -120 up to one at which all masses fit.

        It stays until a call makes a leaf, or their sum, too large for it, or sets alpha; the buffer then chooses by
        itself, and summarize() says so. None: it does so now. Synchronises.
        """
        chosen = lib.PER_SCALE_AUTOMATIC if scale is None else _options.whole("scale", scale)
        check(lib.per_replay_set_scale(self._open(), chosen))

    def raise_max_priority(self, priority: float, *, stream: object = None) -> None:
        """Makes the largest priority ever at least this one, as if a transition had been given it."""
        value = _options.real("priority", priority)
        check(lib.per_replay_raise_max_priority(self._open(), value, self._memory.queue(stream).handle))

    def set(self, /, ids: object, *, stream: object = None, **fields: object) -> None:
        """Writes fields of transitions back, [n, shape of the field]; not observations, which rows share.

        Rows overwritten meanwhile, and id -1, are ignored and counted (stale_updates). Of equal ids the last one wins.

        Raises:
            InvalidArgument naming the field, or for an id that was never issued; OutOfMemory.
        """
        self._plain.set(ids, self._flat(fields) if self._is_nested else fields, stream)

    # ----------------------------------------------------- state, options

    def clear(self, *, stream: object = None) -> None:
        """Empties all lanes. Ids go on counting; random state, maximum priority and the schedule of beta stay."""
        check(lib.per_replay_clear(self._open(), self._memory.queue(stream).handle))

    def stats(self) -> Statistics:
        """What the buffer holds and has done. Synchronises."""
        statistics = self._statistics()
        self._tell(statistics, stacklevel=3)
        return statistics

    def live_ids(self) -> npt.NDArray[np.int64]:
        """Ids of the live transitions, int64[live]: environment by environment, in order of time."""
        count = ffi.new("int64_t *")
        ids = np.zeros(0, np.int64)
        check(lib.per_replay_get_live_ids(self._open(), 0, NULL, count))
        while count[0] > ids.size:  # again where another thread added meanwhile
            ids = np.empty(count[0], np.int64)
            check(lib.per_replay_get_live_ids(self._open(), ids.size, ffi.from_buffer("int64_t[]", ids), count))
        return ids[: count[0]]

    def __len__(self) -> int:
        count = ffi.new("int64_t *")
        check(lib.per_replay_get_live_ids(self._open(), 0, NULL, count))
        return int(count[0])

    @property
    def capacity(self) -> int:
        """Rows in all."""
        return self._capacity

    @property
    def n_envs(self) -> int:
        """Environments, each with a lane of its own."""
        return self._n_envs

    @property
    def fields(self) -> dict[str, Field]:
        """The declared fields, with their roles and stacks as they were resolved."""
        return dict(self._fields)

    @property
    def options(self) -> dict[str, Any]:
        """Every option by name as it is now: those that can be set as they were set since.

        `per.ReplayBuffer(**buffer.options)` makes an empty buffer like this one.

        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(2)}, n_envs=3, scheme="systematic")
        >>> buffer.gamma = 0.5
        >>> again = per.ReplayBuffer(**buffer.options)
        >>> again.options == buffer.options, again.capacity, again.options["scheme"], again.gamma
        (True, 102, 'systematic', 0.5)
        """
        described = self._describe()
        options = {"capacity": self._capacity, "fields": self.fields, "device": self._device, "arrays": self._kind}
        for name in _OPTIONS:
            value = _options.option(described, name)
            if _DEFAULTS[name] is None:
                value = value or None  # not given
            options[name] = bool(value) if isinstance(_DEFAULTS[name], bool) else value
        storage = described.memory.storage
        options["storage"] = None if storage == NULL else os.fsdecode(ffi.string(storage))
        return options

    @property
    def alpha(self) -> float:
        """Exponent of the priorities. Setting it costs one pass over the buffer."""
        return float(self._describe().alpha)

    @alpha.setter
    def alpha(self, value: float) -> None:
        self._change("alpha", _options.real("alpha", value))

    @property
    def beta(self) -> float:
        """Exponent of the weights of the next batch. Setting it ends its schedule."""
        return self.stats().beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._change("beta", _options.real("beta", value))

    @property
    def gamma(self) -> float:
        """Discount of a step. Returns are formed when a batch is drawn."""
        return float(self._describe().gamma)

    @gamma.setter
    def gamma(self, value: float) -> None:
        self._change("gamma", _options.real("gamma", value))

    @property
    def n_step(self) -> int:
        """Steps of a return. Setting it costs one pass over the buffer."""
        return int(self._describe().n_step)

    @n_step.setter
    def n_step(self, value: int) -> None:
        n_step = _options.whole("n_step", value)
        with self._n_step_lock:
            self._change("n_step", n_step)
            self._n_step = n_step

    @property
    def save_compression(self) -> int:
        """How what save() writes is compressed: 0: not at all; 1 to 19: that level of zstd."""
        return int(self._describe().save_compression)

    @save_compression.setter
    def save_compression(self, value: int) -> None:
        self._change("save_compression", value)

    def _change(self, name: str, value: float) -> None:
        settings = _library.new("per_replay_settings")
        unchanged = getattr(settings, name)
        _options.set_field(settings, name, name, value)
        if value == unchanged or value != value:  # by which C leaves a setting as it is
            allowed = "1 and above" if name == "n_step" else "0 and above"
            raise InvalidArgument(f"{name} is {value!r}; allowed: {allowed}")
        check(lib.per_replay_change_settings(self._open(), settings, self._memory.queue(None).handle))

    # -------------------------------------------------------- rate limiter

    def wait_to_add(self, count: int | None = None, *, timeout: float | None = None) -> None:
        """Waits until the rate limiter allows to add so many steps. Other threads use the buffer meanwhile.

        It counts a steps that were added, without those masked, and d transitions that were drawn, by sample() and
        loaders, since the buffer was made or cleared. With r, e and m for samples_per_insert, samples_tolerance and
        min_size_to_sample, at least 1, it allows to add k steps if floor(r (a + k - m)) - d <= e, and to draw b
        transitions if a >= m and floor(r (a - m)) - d - b >= -e. With r = 0 only a >= m is asked for, of draws. Since
        no call may be for more than e transitions, or for more than e / r steps beyond the first m, one of the two is
        allowed at any time; choose m so large that a draw succeeds by then, and that a prefill by one extend() belongs
        to the first m steps. Channels wait by themselves: their writers see a full ring. The add may
        still be Busy if another thread adds before it: then wait again.

        Arguments:
            count: steps, of all environments together; None: one of each.
            timeout: seconds; None: for as long as it takes, or until Ctrl-C.

        Raises:
            Busy if it takes longer; InvalidArgument if so many are never allowed, and once the buffer is closed.

        >>> import per
        >>> options = {"samples_per_insert": 4, "samples_tolerance": 64, "min_size_to_sample": 10}
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(1)}, **options)
        >>> for t in range(100):
        ...     try:
        ...         ids = buffer.add(observation=[t], reward=t, terminated=False, truncated=False,
        ...                          next_observation=[t + 1])
        ...     except per.Busy:
        ...         break
        >>> t
        26
        >>> batch = buffer.sample(32)
        >>> buffer.wait_to_add(8)
        """
        steps = self._n_envs if count is None else _options.whole("count", count)
        self._wait_for_rate(timeout, lib.per_replay_wait_to_add, steps)

    def wait_to_sample(self, batch_size: int, *, timeout: float | None = None) -> None:
        """Waits until the rate limiter allows to draw so many transitions: see wait_to_add().

        Arguments:
            batch_size: B, 1 to 2^24.
            timeout: seconds; None: for as long as it takes, or until Ctrl-C.

        Raises:
            Busy if it takes longer; InvalidArgument if so many are never allowed, and once the buffer is closed.
        """
        size = _options.whole("batch_size", batch_size)
        self._wait_for_rate(timeout, lib.per_replay_wait_to_sample, size)

    def _wait_for_rate(
        self,
        timeout: float | None,
        wait: Callable[[Any, int, int], int],
        count: int,
        check_open: Callable[[], object] = lambda: None,
    ) -> None:
        def wait_once(timeout_ms: int) -> int:
            check_open()
            return wait(self._open(), count, timeout_ms)

        waited(timeout, wait_once)

    def stop_limiting(self) -> None:
        """Ends the limits of samples_per_insert and min_size_to_sample for good: whoever waits goes on."""
        check(lib.per_replay_stop_limiting(self._open()))

    # --------------------------------------------------------------- files

    @overload
    def save(
        self, path: str | os.PathLike[str] | BinaryIO, *, wait: Literal[True] = True, compression: int | None = None
    ) -> None: ...
    @overload
    def save(self, path: str | os.PathLike[str], *, wait: bool, compression: int | None = None) -> Save | None: ...
    def save(
        self, path: str | os.PathLike[str] | BinaryIO, *, wait: bool = True, compression: int | None = None
    ) -> Save | None:
        """Writes the whole buffer to a file, so that a loaded one continues bit for bit.

        Of a path the file takes its place once it is complete; until then, and after an error, what was there before
        stays. Where path is a symbolic link, the file that it leads to is replaced. The mode of a file that is replaced
        is kept.

        A binary file object gets the same bytes by its write(), from where it stands; several buffers, and what else,
        may go to one file. What is written is the buffer of one moment: other threads that use it wait for the end, and
        write() itself may use any buffer but this one (Busy). What it raises passes through, and what it took until
        then is no checkpoint.

        With wait=False a thread of the library writes the file, and gets what the buffer is now, bit for bit, whatever
        is added, drawn or updated meanwhile. Save.wait() says how it ended. Rows that change before they are written
        are copied first; on CUDA all of the buffer is copied to host memory by this call. Closing the buffer, and the
        end of the interpreter, wait for the end of the save.

        Arguments:
            wait: for the file to be on the disk. A file object takes its bytes on the thread of the call.
            compression: of this file, 0 to 19 as save_compression; None: save_compression.

        Raises:
            IoError: the file cannot be written.
            Busy: wait is False, and such a save of this buffer is still running.
            InvalidArgument: path has a NUL in it, or is a file object though wait is False.
            CallbackError: write() says that it took no bytes, or more than it was given.

        >>> import io, per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(2)}, seed=3)
        >>> file = io.BytesIO()
        >>> buffer.save(file)
        >>> file.getvalue() == bytes(buffer)
        True
        """
        options = _options.save_options(compression)
        if _files.is_file(path, "write"):
            if not wait:
                raise InvalidArgument("path is a file object; allowed with wait=False: paths")
            _files.save(self._open(), path, options)
        elif wait:
            check(lib.per_replay_save(self._open(), _options.path(path), options))
        else:
            return Save(self._open(), _options.path(path), options)
        return None

    def checkpoint(
        self,
        directory: str | os.PathLike[str],
        *,
        timeout: float | None = DIRECTORY_TIMEOUT,
        compression: int | None = None,
    ) -> int:
        """Writes a checkpoint into a directory, and of it only what the last one there does not hold.

        That is rows that came since then or were set, priorities, and what else has changed. load() takes the
        directory. It is made if it is not there; the one above it must be there. It takes at most some two times what
        save() writes. At any time, also after an error, a kill or a power failure, it holds this checkpoint or the one
        before, whole. Where it is the buffer's `storage`, rows stay in their file, which load() with the same `storage`
        goes on from. Other files in it stay.

        Calls for one directory take turns, those of other processes too. Other threads may use the buffer while this
        call waits for its turn.

        Arguments:
            timeout: seconds until its turn; None: for as long as it takes.
            compression: of what this call writes, 0 to 19 as save_compression; None: save_compression.

        Returns:
            The bytes that were written.

        Raises:
            IoError: the directory cannot be written.
            Busy: its turn does not come in time.
            InvalidArgument: it has a NUL in its name.
            CorruptFile: the manifest of the last checkpoint is damaged.
            Unsupported: it is of a newer version.

        >>> import per, tempfile
        >>> buffer = per.ReplayBuffer(100_000, {"observation": per.Field(2)}, seed=3)
        >>> _ = buffer.extend(observation=[[0, 1]] * 50_000, reward=[1] * 50_000, terminated=[0] * 50_000,
        ...                   truncated=[0] * 50_000)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     first, second = buffer.checkpoint(directory), buffer.checkpoint(directory)
        ...     len(per.ReplayBuffer.load(directory)), second < first / 10
        (49999, True)
        """
        written_out = ffi.new("int64_t *")
        path = _options.path(directory, "directory")
        options = _options.save_options(compression)

        def checkpoint_once(timeout_ms: int) -> int:
            options.timeout_ms = timeout_ms
            return int(lib.per_replay_checkpoint(self._open(), path, options, written_out))

        waited(timeout, checkpoint_once)
        return int(written_out[0])

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | BinaryIO,
        *,
        device: str = "cpu",
        arrays: str | None = None,
        storage: str | os.PathLike[str] | None = None,
        storage_preallocated: bool = False,
        timeout: float | None = DIRECTORY_TIMEOUT,
    ) -> ReplayBuffer:
        """A buffer from a file that save() wrote, or a directory of checkpoint(), on the device asked for.

        With `storage` its rows lie in a file in that directory, as the class says; not for file objects. The call waits
        while a checkpoint is written to the directory, `timeout` seconds at most; None: for as long as it takes.

        Of a binary file object the bytes of one buffer are read, by its read(), from where it stands to where they end.
        What that raises passes through.

        Raises:
            IoError: the file cannot be read.
            InvalidArgument: path has a NUL in it.
            CorruptFile: it is not one of save()'s, is damaged, or ends early.
            Busy: the directory is written to for all that time; with the `storage` that rows of a checkpoint lie in, a
                buffer has them already.
            Unsupported: it is of a newer version.
            CallbackError: read() gave more than it was asked for.
        """
        kind = _kinds.kind_of(arrays, str(device))
        if _files.is_file(path, "read"):
            for name, value, allowed in (
                ("storage", storage, None),
                ("storage_preallocated", storage_preallocated, False),
            ):
                if value is not allowed:
                    raise InvalidArgument(f"{name} is {value!r}; allowed: {allowed}, as a file object is read")
            handle = _files.load(path, _options.device(device))
        else:
            options = _library.new("per_load_options")
            options.device, options.device_index = _options.device(device)
            _options.set_options(options, {"storage_preallocated": storage_preallocated})
            kept = _options.set_storage(options, storage)
            given = _options.path(path)
            handle = None

            def load_once(timeout_ms: int) -> int:
                nonlocal handle
                options.timeout_ms = timeout_ms
                handle = created(lib.per_replay_load, given, options)
                return int(lib.PER_OK)

            waited(timeout, load_once)
            del kept
        buffer = cls.__new__(cls)
        buffer._attach(handle, str(device), kind)
        return buffer

    def __bytes__(self) -> bytes:
        """What save() writes."""
        file = io.BytesIO()
        self.save(file)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: object, *, device: str = "cpu", arrays: str | None = None) -> ReplayBuffer:
        """The buffer of bytes(buffer), on the device asked for.

        Arguments:
            data: bytes, or anything else of contiguous memory.

        Raises:
            CorruptFile: it is not of a buffer, is damaged, ends early, or goes on.
            InvalidArgument, Unsupported: as load().

        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(2)}, seed=3)
        >>> per.ReplayBuffer.from_bytes(bytes(buffer)).options == buffer.options
        True
        """
        memory = _files.Memory(data)
        buffer = cls.load(memory, device=device, arrays=arrays)  # type: ignore[arg-type]
        memory.check_end()
        return buffer

    def _checkpoint(self) -> npt.NDArray[np.uint8]:
        """What save() writes, uint8[bytes]."""
        file = io.BytesIO()
        self.save(file)
        return np.frombuffer(file.getbuffer(), np.uint8)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled or copied buffer goes on bit for bit, on its own device. Loaders and epochs stay with this one."""
        others = {name: value for name, value in vars(self).items() if name not in self._attached}
        return _from_checkpoint, (type(self), self._checkpoint(), self._device, self._kind), others or None

    def state_dict(self) -> dict[str, Any]:
        """The whole buffer as {"checkpoint": uint8[bytes]}: what save() writes, in host memory.

        The array is torch's if the buffer gives such, so that torch.load() reads it with weights_only, else numpy's.

        >>> import per
        >>> fields = {"observation": per.Field(2)}
        >>> buffer, other = per.ReplayBuffer(100, fields, seed=3), per.ReplayBuffer(50, fields)
        >>> other.load_state_dict(buffer.state_dict())
        >>> other.options == buffer.options
        True
        """
        checkpoint = self._checkpoint()
        return {
            "checkpoint": importlib.import_module("torch").from_numpy(checkpoint)
            if self._kind == "torch"
            else checkpoint
        }

    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Becomes the buffer of a state_dict(), with its options, on its own device and with its own kind of arrays.

        No other thread may use the buffer meanwhile. Loaders and epochs that were begun before go on with what it was.

        Arguments:
            state_dict: of a buffer with the same fields and n_envs.

        Raises:
            InvalidArgument, CorruptFile, Unsupported; then the buffer is as it was.
        """
        self._open()
        if set(state_dict) != {"checkpoint"}:
            given = ", ".join(map(repr, state_dict)) or "no entries"
            raise InvalidArgument(f"state_dict has {given}; allowed: 'checkpoint'")
        array, _ = _arrays.as_array(state_dict["checkpoint"], "checkpoint")
        if array.dtype != np.uint8:
            raise InvalidArgument(f"checkpoint is of dtype {array.dtype}; allowed: uint8")
        other = ReplayBuffer.from_bytes(np.ascontiguousarray(array), device=self._device, arrays=self._kind)
        for name in ("fields", "n_envs"):
            own, given = getattr(self, name), getattr(other, name)
            if own != given:
                raise InvalidArgument(f"checkpoint has {name} {given!r}; allowed: those of the buffer, {own!r}")
        self._attach(other._handle, self._device, self._kind)

    # ---------------------------------------------------------- on-policy

    def epochs(self, n_epochs: int, batch_size: int, *, drop_last: bool = False, stream: object = None) -> Epochs:
        """An iterator over batches of every live transition once an epoch, each epoch in another random order.

        The transitions are those live now. Each epoch counts as one draw of the buffer, all of them made by this call:
        the seed and the draws before it decide every order, whatever is drawn in between.

        Arguments:
            n_epochs: 1 to 2^24.
            batch_size: 1 to 2^24. The last batch of an epoch has what is left.
            drop_last: leave that one out if it is smaller; batch_size must then not be larger than len(buffer).
            stream: of this call and of each batch; see the class. None: the one that is current at each.

        Returns:
            Epochs, of which several threads may take batches, each batch being given out once. The batches are those of
            sample(), with weights 1. A batch with a transition that is not live any more is an InvalidArgument; on CUDA
            the id of such a one is -1, the epochs go on, and synchronize() reports it.

        Raises:
            Empty if no transition is live; InvalidArgument.

        >>> import per
        >>> fields = {"observation": per.Field(1, "int32"), "advantage": per.Field(default=0.0)}
        >>> buffer = per.ReplayBuffer(20, fields, overwrite=False, seed=5)
        >>> for t in range(10):
        ...     ids = buffer.add(observation=[t], reward=t, terminated=t == 9, truncated=False,
        ...                      next_observation=[t + 1])
        >>> [len(batch.ids) for batch in buffer.epochs(2, batch_size=4)]
        [4, 4, 2, 4, 4, 2]
        >>> sorted(float(reward) for batch in buffer.epochs(1, batch_size=4) for reward in batch.reward)
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
        """
        size = _options.whole("batch_size", batch_size)
        count = _options.whole("n_epochs", n_epochs)
        queue = self._memory.queue(stream)
        with self._n_step_lock:  # the library refuses to go on with epochs of sequences once n_step is another
            epochs = created(lib.per_epochs_create, self._open(), count, size, bool(drop_last), queue.handle)
            plain = self._exchange_for(self._n_step)[0] if self._steps > 0 else self._plain
        return Epochs(self._handle, lambda: plain.epoch(epochs, size, stream), self._new_batch)

    def advantages(
        self,
        *,
        value: str = "value",
        advantage: str = "advantage",
        returns: str | None = None,
        gae_lambda: float = 0.95,
        bootstrap: Callable[[Batch], object] | None = None,
        stream: object = None,
    ) -> None:
        """Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438, equation 16), written to a field.

        A_t = delta_t + gamma lambda A_(t+1), delta_t = r_t + gamma V(next_t) - V_t, gamma the buffer's; V(next_t) is
        0 after a terminal state, A_(t+1) after any end of an episode. V(next_t) is the value stored with the next step,
        or comes from `bootstrap` where there is none: at the end of a truncated episode, and for the latest step of one
        that goes on. The latest step of an environment has no advantage if its next observation was not given.

        Arguments:
            value: the field with V_t, as it was when the step was added. Fields are plain float32 numbers.
            advantage: the field for A_t.
            returns: the field for A_t + V_t; None: it is written nowhere.
            gae_lambda: lambda, 0 to 1.
            bootstrap: called with a Batch of n such steps, gives V of batch.next_observation, float32[n]. None: no step
                may need one.
            stream: see the class.

        Raises:
            InvalidArgument; then nothing was written. Also if other threads added steps while `bootstrap` ran.

        >>> import per
        >>> computed_later = per.Field(default=0.0)
        >>> fields = {"observation": per.Field(1, "int32"), "value": per.Field(), "advantage": computed_later}
        >>> buffer = per.ReplayBuffer(20, fields, gamma=0.5)
        >>> for t in range(3):
        ...     ids = buffer.add(observation=[t], value=1.0, reward=1.0, terminated=False, truncated=t == 2,
        ...                      next_observation=[t + 1])
        >>> buffer.advantages(gae_lambda=1.0, bootstrap=lambda batch: 2.0 * batch.next_observation[:, 0])
        >>> buffer.get([0, 1, 2]).advantage.tolist()
        [1.5, 2.0, 3.0]
        """
        if bootstrap is not None:
            _options.function("bootstrap", bootstrap)
        given = {"value": value, "advantage": advantage, "returns": returns}
        fields = [self._field_number(argument, name) for argument, name in given.items()]
        ids: Any = np.zeros(0, np.int64)
        values: object = np.zeros(0, np.float32)
        rows = self._plain.bootstraps(stream)
        if rows is not None:
            ids = rows["ids"]
            if bootstrap is None:
                count = int(ids.shape[0])
                raise InvalidArgument(f"bootstrap is None: {count} steps need the value of their next observation")
            values = bootstrap(self._new_batch(rows, self._row_outputs))
        self._plain.advantages(fields, _options.real("gae_lambda", gae_lambda), ids, values, stream)

    # -------------------------------------------------------------- loader

    def loader(
        self,
        batch_size: int,
        *,
        slots: int = 3,
        beta: float | None = None,
        scheme: str | None = None,
        prioritization: str | None = None,
        uniform_fraction: float | None = None,
        normalize_weights: str | None = None,
        n_step: int | tuple[int, int] | None = None,
        device: str | None = None,
        gather_on_device: bool = False,
        arrays: str | None = None,
    ) -> Loader:
        """An iterator over batches that a thread of the library's own draws ahead, into memory used again and again.

        Creating it asks for `slots` batches, and handing one out asks for the next, so up to `slots` batches are drawn
        before what is done with the latest; every other call waits for those asked for before it. So the same seed and
        calls give the same batches for the same `slots`, and those of sample() if nothing is changed in between.

        Arguments:
            batch_size: B, 1 to 2^24.
            slots: batches drawn ahead, and most that may be out at a time, 1 to 1024. One more is kept in memory.
            beta, scheme, prioritization, uniform_fraction, normalize_weights, n_step: as sample() takes them.
            device: where batches are wanted. None: where the buffer is; one on the CPU may also hand them out on "cuda"
                or "cuda:1", where they are copied behind the caller's back. Neither the next batch nor releasing one
                waits for the device, only the streams named to take() do, by default the current ones. A CUDA graph
                copies each batch to arrays of its own.
            gather_on_device: with batches on CUDA of a buffer on the CPU, the device itself copies the frames of large
                fields, those of 1 KiB and more, out of the rows, which are pinned as long as the loader is open. The
                batches are the same. add() and set() may wait for frames that are still to be read.
            arrays: "numpy" or "torch"; on CUDA "torch" or "cupy". None: those of the buffer, where it is; else "torch".

        Returns:
            Loader. Its batches lie in its memory until they are released: asking for the next one does that, or
            batch.release(); copy what must last longer. A buffer has one loader at a time.

        Raises:
            Busy if the buffer has a loader that is not closed; InvalidArgument, also for arrays="jax": JAX reads memory
            later than it says, when a slot may have been written again. Use sample(), whose arrays are new. NoDevice;
            CudaError; Unsupported where gather_on_device is asked of a device that cannot, or
            of rows that lie in `storage`.

        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(1)}, seed=5)
        >>> for t in range(10):
        ...     ids = buffer.add(observation=[t], reward=t, terminated=False, truncated=False, next_observation=[t + 1])
        >>> with buffer.loader(32) as batches:
        ...     for step, batch in zip(range(4), batches):
        ...         buffer.update_priorities(batch.ids, td_errors=batch.reward)
        >>> buffer.stats().beta_step
        4
        """
        options = _library.new("per_loader_options")
        device = self._device if device is None else device
        options.device, options.device_index = _options.device(device)
        if arrays is None and _options.device(device) == _options.device(self._device):
            arrays = self._kind
        kind = loader_kind(arrays, str(device))
        batch.refuse_method_names(self._outputs, LoadedBatch)
        _options.set_options(options, {"batch_size": batch_size, "slots": slots, "gather_on_device": gather_on_device})
        if self._steps > 0 and n_step is None:
            n_step = self._n_step  # which the slots are for
        choices = _options.sample_options(beta, scheme, prioritization, uniform_fraction, normalize_weights, n_step)
        options.sample = choices
        layout = self._layout if self._steps == 0 else self._sequence_layout(choices.n_step)
        _kinds.check_dtypes(kind, layout)
        memory = _memory.memory_of(options.device, options.device_index, kind)
        wait_to_sample = functools.partial(
            self._wait_for_rate, wait=lib.per_replay_wait_to_sample, count=options.batch_size
        )
        return Loader(self._open(), self._open, wait_to_sample, options, layout.batch, memory, self._nested)

    def shared_loader(
        self,
        batch_size: int,
        *,
        readers: int,
        slots: int = 2,
        beta: float | None = None,
        scheme: str | None = None,
        prioritization: str | None = None,
        uniform_fraction: float | None = None,
        normalize_weights: str | None = None,
        n_step: int | tuple[int, int] | None = None,
    ) -> SharedLoader:
        """Batches for several processes - the ranks of a DDP learner, evaluators -, drawn ahead into shared memory.

        Pass it to each of them, and take shared_loader.reader() there: an iterator over batches, each of which goes to
        one reader and is not copied. Readers send priorities back; one that dies gives its slots back. Together they
        get the batches of a loader() with as many slots.

        Arguments:
            batch_size: B, 1 to 2^24.
            readers: most that may be attached at a time.
            slots: most batches that each of them may have at a time. Times readers, at most 1024.
            beta, scheme, prioritization, uniform_fraction, normalize_weights, n_step: as sample() takes them.

        Raises:
            Busy if the buffer has a loader that is not closed; InvalidArgument; OutOfMemory; Unsupported for a buffer
            on CUDA.

        >>> import multiprocessing
        >>> import per
        >>> def learn(loader):  # doctest: +SKIP
        ...     with loader.reader(arrays="torch") as batches:
        ...         for batch in batches:
        ...             batches.update_priorities(batch.ids, td_errors=batch.reward)
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(1)}, device="cpu")
        >>> loader = buffer.shared_loader(32, readers=2)
        >>> for rank in range(2):  # doctest: +SKIP
        ...     multiprocessing.Process(target=learn, args=(loader,)).start()
        """
        options = _library.new("per_shared_loader_options")
        batch.refuse_method_names(self._outputs, LoadedBatch)
        _options.set_options(options, {"batch_size": batch_size, "readers": readers, "slots": slots})
        choices = _options.sample_options(beta, scheme, prioritization, uniform_fraction, normalize_weights, n_step)
        options.sample = choices
        return SharedLoader(self._open(), self._open, options)

    # ------------------------------------------------------------- channel

    def channel(
        self, env_ids: object = None, *, slots: int = 0, when_full: str = "waits", moved_by: str = "thread"
    ) -> Channel:
        """A way for another process to bring steps into this buffer, through shared memory and without pickling them.

        Give each process that writes a channel, with environments of its own, and take channel.writer() there. A thread
        of the library moves what was written into the buffer, many steps at a time, also while others draw.

        Arguments:
            env_ids: int64[n], each once: the environments of this buffer whose steps are written; those of the writer
                are counted from 0 in their order. None: all.
            slots: steps of all these environments that the ring has room for; 0: as many as take 4 MiB, at least 16.
            when_full: a writer that finds no room "waits", or "drops" its steps, which are counted.
            moved_by: "thread"; or "calls": there is no thread, and steps come into the buffer only by move() and
                flush() of the channel, on the thread that calls them.

        Raises:
            InvalidArgument; OutOfMemory.

        >>> import multiprocessing
        >>> import per
        >>> def act(channel):  # doctest: +SKIP
        ...     with channel.writer() as writer:
        ...         writer.add(observation=[0], reward=0, terminated=True, truncated=False, next_observation=[1])
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(1)}, n_envs=4)
        >>> channels = [buffer.channel([env]) for env in range(4)]
        >>> for channel in channels:  # doctest: +SKIP
        ...     multiprocessing.Process(target=act, args=(channel,)).start()
        """
        options = _library.new("per_channel_options")
        _options.set_options(options, {"slots": slots, "when_full": when_full, "moved_by": moved_by})
        ids = None if env_ids is None else _arrays.as_int64(env_ids, "env_ids")
        if ids is not None:
            options.env_ids, options.n_envs = ffi.from_buffer("int64_t[]", ids), ids.size
        return Channel(self._open(), self._open, options)

    # ------------------------------------------------------------- object

    def close(self) -> None:
        """Frees its memory. Every later call but close() is an error."""
        if self._handle is not None:
            super().close()
            for _, exchange in [*self._exchanges.values()]:
                exchange.close()

    def __repr__(self) -> str:
        state = f"live={len(self)}" if self._handle is not None else "closed"
        fields = ", ".join(f"{name!r}: {field.dtype}{list(field.shape)}" for name, field in self._fields.items())
        return (
            f"per.ReplayBuffer({self._capacity}, {{{fields}}}, n_envs={self._n_envs}, device={self._device!r}, "
            f"arrays={self._kind!r}, {state})"
        )

    # ------------------------------------------------------------ private

    def _describe(self) -> Any:
        options = _library.new("per_replay_options")
        check(lib.per_replay_describe(self._open(), options))
        return options

    def _field_number(self, argument: str, name: str | None) -> int:
        """The number of a field in C; -1 for None, which the library takes where a field may be left out."""
        if name is None:
            return -1
        if name not in self._layout.fields:
            raise InvalidArgument(f"{argument} is {name!r}; allowed: {', '.join(map(repr, self._layout.fields))}")
        return self._layout.fields.index(name)

    def _flat(self, fields: Mapping[str, object]) -> dict[str, object]:
        """Fields as the user holds them under the names they were declared by."""
        flat: dict[str, object] = {}
        for name, value in fields.items():
            batch.flatten(self._inputs.get(name, name), value, name, flat)
        return flat

    def _new_batch(self, arrays: dict[str, Any], outputs: dict[str, Any] | None = None) -> Batch:
        """A batch as the user holds it: of what is drawn, or of those outputs."""
        return self._batch_type(self._nested(arrays, outputs) if self._is_nested else arrays)

    def _nested(self, arrays: dict[str, Any], outputs: dict[str, Any] | None = None) -> dict[str, Any]:
        """Arrays by name as the user holds them: those of what is drawn, or of those outputs."""
        if not self._is_nested:
            return arrays
        nodes = self._outputs if outputs is None else outputs
        return {name: batch.nest(node, arrays) for name, node in nodes.items()}

    def _arrays_of(self, out: Batch) -> dict[str, Any]:
        if self._kind == "jax":
            raise InvalidArgument(
                "out is given; not allowed with arrays='jax': JAX reads its arrays later than it says"
            )
        if not isinstance(out, Batch):
            raise InvalidArgument(f"out is a {type(out).__name__}; allowed: a batch that sample() of this buffer gave")
        if not self._is_nested:
            return dict(vars(out))  # which holds the arrays: another thread may delete them from the batch
        arrays: dict[str, Any] = {}
        for name, node in self._outputs.items():
            batch.flatten(node, vars(out).get(name), f"out.{name}", arrays)
        return arrays

    def _statistics(self) -> Statistics:
        statistics = _library.filled("per_replay_statistics", lib.per_replay_get_statistics, self._open())
        return Statistics(**{field.name: getattr(statistics, field.name) for field in dataclasses.fields(Statistics)})

    def _look_at_steps(self, calls: int) -> None:
        """Warns if the statistics show that steps are given wrongly. Seldom, since it looks at all of them."""
        counts = self._calls
        counts[0] += calls
        if counts[0] < counts[1] or not self._suspicions:
            return
        n = counts[0]
        counts[1] = min(1 << n.bit_length(), (n // _CALLS_BETWEEN_LOOKS + 1) * _CALLS_BETWEEN_LOOKS)
        self._tell(self._statistics(), stacklevel=4)

    def _look_at_rewards(self, reward: object) -> None:
        """Warns once of a whole number that float32 rounds."""
        rounded = _arrays.rounded_by_float32(reward)
        if rounded is not None:
            self._looks_at_rewards = False
            warnings.warn(
                f"reward {rounded} is stored as {int(np.float32(rounded))}: rewards are float32, which has not all "
                f"whole numbers above 2^24",
                stacklevel=3,
            )

    def _tell(self, statistics: Statistics, stacklevel: int) -> None:
        """Warns of each suspicion that the statistics raise, once."""
        for suspicion in self._suspicions:
            message = suspicion(statistics, self._autoreset)
            if message is not None:
                self._suspicions = [other for other in self._suspicions if other is not suspicion]
                warnings.warn(message, stacklevel=stacklevel)


def _from_checkpoint(kind: type[ReplayBuffer], checkpoint: object, device: str, arrays: str) -> ReplayBuffer:
    """What a pickled buffer calls."""
    return kind.from_bytes(checkpoint, device=device, arrays=arrays)


def _has_64_bits(options: Mapping[str, Any]) -> bool:
    return options.get("arrays") != "jax" or _kinds.jax_has_64_bits()


def _suspicion_of_cuts(statistics: Statistics, autoreset: str) -> str | None:
    """That most steps are cuts: observations then are not those that the steps before announced."""
    if 2 * statistics.cuts <= statistics.added:
        return None
    return (
        f"{statistics.cuts} of {statistics.added} steps were cut off from the one before: their observation is not the "
        "next_observation given there. For rows in no order of time use store_next_observation=True."
    )


def _suspicion_of_resets(statistics: Statistics, autoreset: str) -> str | None:
    """That environments reset by themselves after most ends, in another way than the buffer was told."""
    ends = statistics.episodes - statistics.cuts
    if 2 * statistics.suspected_resets <= ends or statistics.suspected_resets < 3:
        return None
    if autoreset == "next_step":
        return (
            f"After {statistics.suspected_resets} of {ends} ends the step that was dropped for a reset (autoreset is "
            "'next_step') had a reward or was an end itself: the environment seems to have reset before it. Use "
            "autoreset='same_step' and add(..., info=info)."
        )
    return (
        f"After {statistics.suspected_resets} of {ends} ends the next step brought the final observation once more. "
        "Either the program does not go on with what env.reset() gave: observation, info = env.reset(). Or the "
        f"environment resets by itself, and not as autoreset={autoreset!r} says: use what "
        "env.metadata['autoreset_mode'] names, autoreset='next_step', or autoreset='same_step' and add(..., "
        "info=info); ReplayBuffer.for_env() reads it. Where episodes do begin with the observation that the last one "
        "ended with, nothing is wrong."
    )


# The keyword arguments of ReplayBuffer that are fields of per_replay_options, and what its signature shows.
_DEFAULTS: dict[str, Any] = ReplayBuffer.__init__.__kwdefaults__ or {}
_OPTIONS = [name for name in _DEFAULTS if name not in ("device", "arrays", "storage")]
