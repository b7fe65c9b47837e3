"""ReplayBuffer: transitions, and batches of them drawn by priority."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from per import _kinds, _library, _options, spaces
from per._adding import Adding
from per._buffer import Buffer
from per._diagnostics import read_statistics
from per._drawing_ahead import DrawingAhead
from per._errors import Error, PerWarning, about
from per._handle import constructor, created
from per._library import NULL, check, ffi, lib
from per._on_policy import OnPolicy
from per._sampling import Sampling
from per._saving import Saving
from per._shards import Shard
from per.field import Field, set_fields
from per.statistics import Statistics
from per.typing import (
    Age,
    Array,
    Arrays,
    Autoreset,
    BufferOptions,
    Critics,
    DerivedOptions,
    DeviceLike,
    DTypeLike,
    FloatLike,
    HostOptions,
    IntLike,
    MaxPriority,
    NormalizeWeights,
    OnGap,
    OnInvalid,
    OnNan,
    Path,
    Prioritization,
    Scheme,
    Unpack,
)

if TYPE_CHECKING:
    import torch

    from per._saving import NotASubclass


AnyReplayBuffer = TypeVar("AnyReplayBuffer", bound="ReplayBuffer")


class ReplayBuffer(Adding[Array], Sampling[Array], Saving[Array], OnPolicy[Array], DrawingAhead[Array], Shard[Array]):
    """Prioritized experience replay (Schaul et al. 2016, arXiv:1511.05952).

    Transition i is drawn with probability P(i) = p_i^alpha / sum_k p_k^alpha, p = |td_error| + epsilon (equation 1,
    section 3.3), and weighs w_i = (N P(i))^-beta / max_j (N P(j))^-beta (section 3.4). N is the number of live
    transitions: those whose n steps are complete, so that they can be drawn.

    Parameters
    ----------
    capacity : int
        Total rows, rounded up to a multiple of n_envs; capacity_for() returns the capacity for a number of live
        transitions. A step takes one row; the final observation of an episode takes another. In a full lane, at least
        rows - 1 - E - (n_step - 1) - (frame_stack - 1) transitions are live, where E is the number of episodes that
        ended in it.
    fields : Mapping[str, Field]
        Name and Field of each array stored beside reward, terminated and truncated. At least one must be an
        observation. A field with a default may be left out when steps are added. A name is any text of up to 255 bytes
        in UTF-8, without control characters; dots denote containers, see for_env(). Reserved are the argument names of
        add() and extend(), the names of a batch's own arrays and methods, and those that begin with next_.
    n_envs : int, default 1
        Number of environments. Each has its own lane, a ring of capacity / n_envs rows.
    n_step : int, default 1
        Steps of a return. Returns are computed when a batch is drawn.
    gamma : float, default 0.99
        Discount of a step.
    frame_stack : int, default 1
        Frames of an observation in a batch; one frame per step is stored. The field's padding fills in for frames
        before the episode.
    sequence_length : int, optional
        Transitions to learn from in a sequence; None: single transitions are drawn. Sequences have
        T = burn_in + sequence_length steps, and their batches have `mask` (see Batch).
    burn_in : int, default 0
        Transitions that precede those to learn from, and only warm up a recurrent state.
    sequence_stride : int, optional
        Distance between the starts of sequences, counted from the first step of an episode; None: sequence_length.
    sequence_eta : float, default 0.9
        eta of the priority eta max |td_error| + (1 - eta) mean |td_error| of a sequence (Kapturowski et al. 2019).
    alpha : float, default 0.6
        Exponent of the priorities.
    beta : float, default 0.4
        Exponent of the weights of the first batch.
    beta_final : float, default 1.0
        Exponent of the weights after beta_steps batches. Annealing is linear.
    beta_steps : int, default 0
        Batches until beta_final. 0: no annealing, and a warning if beta_final is neither 1 nor beta.
    epsilon : float, default 1e-06
        Added to |td_error|, so that no priority is 0.
    prioritization : {"proportional", "rank", "uniform"}, default "proportional"
        How priorities determine probabilities: in proportion, by rank, or not at all.
    scheme : {"stratified", "independent", "systematic", "without_replacement"}, default "stratified"
        How the draws of a batch depend on each other.
    uniform_fraction : float, default 0.0
        u in P = (1 - u) p^alpha / sum + u / N.
    normalize_weights : {"batch_max", "buffer_max", "none"}, default "batch_max"
        The divisor of the weights: the largest weight of the batch, or of the buffer; "none" leaves them as they are.
    max_priority : {"ever", "now"}, default "ever"
        Priority of a transition added without one. "ever": the largest so far, at least 1. "now": the largest of the
        live transitions.
    on_invalid : {"error", "skip"}, default "error"
        Handling of a TD error that is not finite: "error" raises InvalidArgument, "skip" ignores and counts it.
    on_gap : {"cut", "error"}, default "cut"
        Handling of a step whose observation differs from the next observation of the step before: "cut" ends the
        trajectory there, "error" raises InvalidArgument.
    on_nan : {"allow", "error"}, default "allow"
        "allow" accepts NaN in observations, next observations and rewards; "error" refuses the call. Infinities are
        allowed, and other fields may hold NaN.
    autoreset : {"disabled", "next_step", "same_step"}, default "disabled"
        How environments reset after an end, in Gymnasium's terms: "disabled", "next_step", "same_step". for_env() reads
        it from env.metadata["autoreset_mode"]; environments of gymnasium.make_vec() have "next_step" by default.
    store_next_observation : bool, default False
        Store next observations in separate arrays: rows may then be added in any order, and capacity is exact, since
        every row is a transition. Without it, rows of a data set that is not in order of time are disconnected: each
        transition takes a second row for its next observation, or is never live if that is not given. A warning reports
        this.
    overwrite : bool, default True
        False: adding to a full lane raises Full.
    critics : {"mean", "max"}, default "mean"
        Combines the TD errors of several critics: the "mean" or the "max" of their absolute values.
    half_life : float, optional
        Prefer recent transitions: P(i) is in proportion to p_i^alpha 2^(-age_i / half_life). 0.01 to 1e12, in the unit
        of `age`; None: priorities do not depend on age.
    age : {"steps", "versions"}, default "steps"
        The unit of ages. "steps": rows that the environment's lane has stored since the transition, including those of
        final observations. "versions": the current version, see set_version(), minus that of the transition.
    max_age : int, optional
        Transitions of a larger age are not drawn. 0 and above, in "steps" at least the rows that a lane needs; None: no
        limit.
    gather_threads : int, default 1
        Threads that copy a batch of 4 MiB or more, including the calling thread; on the CPU, and not for sequences.
    save_compression : int, default 0
        Compression of saved and pickled buffers: 0: none; 1 to 19: level of zstd.
    samples_per_insert : float, default 0.0
        Rate limiter: transitions to draw per step added. Calls that it does not allow yet raise Busy: see
        wait_to_add(). 0: no limit.
    samples_tolerance : int, default 0
        Rate limiter: slack of the ratio, in transitions drawn.
    min_size_to_sample : int, default 0
        Rate limiter: steps to add before the first draw.
    keep_times_sampled : bool, default False
        True counts how often each transition or sequence is drawn: `times_sampled` in batches.
    max_times_sampled : int, default 0
        Limit on the draws of a transition or sequence. Requires the scheme "without_replacement", and counts draws. 0:
        no limit.
    max_heap_bytes : int, optional
        Limit, in bytes, on the memory of fields that are compressed or have rows of any length. A call that would
        exceed it raises Full and changes nothing. None: no limit.
    storage : Path, optional
        A directory, created if missing. Rows are kept in a file in it, and cached in memory as far as there is room;
        9.7 bytes per row always stay in memory. The file has no name and disappears with the buffer. A forked child
        cannot use the buffer. load(storage=...) loads a file of save() into such a file; buffers from pickles, state
        dicts and file objects have their rows in memory. Not on CUDA.
    storage_preallocated : bool, default False
        Allocate the disk space of all rows at creation, not in add() as they arrive.
    device : DeviceLike, default "cpu"
        Location of the rows: "cpu", "cuda" or "cuda:1", or a torch.device.
    arrays : {"numpy", "torch", "jax", "cupy"}, optional
        The arrays of batches: "numpy" (the default on the CPU), "torch" (the default on CUDA) or "jax"; on CUDA also
        "cupy".
    seed : int, default 0
        Seed of the draws. The same seed and the same calls give the same ids, from every language.

    Raises
    ------
    InvalidArgument
    OutOfMemory
    NoDevice
    Unsupported
        The message names the option.

    Notes
    -----
    On CUDA, batches and all other results are in the memory of that device, except live_ids(). Calls queue their work
    on `stream` and return immediately. A stream is one of torch or CuPy, or a cudaStream_t; the default is the current
    one of `arrays`. Calls of one buffer are ordered across streams. Work of the caller on other streams must be ordered
    by the caller, and arrays used there must live until it is done. With JAX the stream cannot be chosen.

    On CUDA, arrays on the device are read in place: anything with __dlpack__ or __cuda_array_interface__, with or
    without gradients. Arrays of the library `arrays` are converted on the device if they are not contiguous, if ids are
    not int64, or if TD errors or priorities are not float32; arrays of other libraries must be contiguous and of these
    dtypes. Arrays in host memory are copied. Invalid values are detected on the device only: such entries are skipped
    and counted, and synchronize() reports them. A draw from an empty buffer returns ids -1.

    A buffer may be used by several threads; each call is atomic. On the CPU it stays usable in a forked child, which
    has its own copy. It is closed by the garbage collector, or at the end of a `with` block.

    Examples
    --------
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
    """

    _noun = "buffer"

    @overload  # for **buffer.options, and what derives from them
    def __init__(
        self: ReplayBuffer[Any],
        *,
        capacity: Any,
        fields: Any,
        arrays: Any,
        sequence_eta: Any,
        storage_preallocated: Any,
        **options: Unpack[DerivedOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ReplayBuffer[npt.NDArray[Any]],
        capacity: IntLike,
        fields: Mapping[str, Field],
        *,
        device: Literal["cpu"] = "cpu",
        arrays: Literal["numpy"] | None = None,
        **options: Unpack[HostOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ReplayBuffer[torch.Tensor],
        capacity: IntLike,
        fields: Mapping[str, Field],
        *,
        device: DeviceLike = "cpu",
        arrays: Literal["torch"],
        **options: Unpack[HostOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ReplayBuffer[Any],
        capacity: IntLike,
        fields: Mapping[str, Field],
        **options: Unpack[BufferOptions],
    ) -> None: ...

    def __init__(
        self,
        capacity: IntLike,
        fields: Mapping[str, Field],
        *,
        n_envs: IntLike = 1,
        n_step: IntLike = 1,
        gamma: FloatLike = 0.99,
        frame_stack: IntLike = 1,
        sequence_length: IntLike | None = None,
        burn_in: IntLike = 0,
        sequence_stride: IntLike | None = None,
        sequence_eta: FloatLike = 0.9,
        alpha: FloatLike = 0.6,
        beta: FloatLike = 0.4,
        beta_final: FloatLike = 1.0,
        beta_steps: IntLike = 0,
        epsilon: FloatLike = 1e-6,
        prioritization: Prioritization = "proportional",
        scheme: Scheme = "stratified",
        uniform_fraction: FloatLike = 0.0,
        normalize_weights: NormalizeWeights = "batch_max",
        max_priority: MaxPriority = "ever",
        on_invalid: OnInvalid = "error",
        on_gap: OnGap = "cut",
        on_nan: OnNan = "allow",
        autoreset: Autoreset = "disabled",
        store_next_observation: bool = False,
        overwrite: bool = True,
        critics: Critics = "mean",
        half_life: FloatLike | None = None,
        age: Age = "steps",
        max_age: IntLike | None = None,
        gather_threads: IntLike = 1,
        save_compression: IntLike = 0,
        samples_per_insert: FloatLike = 0.0,
        samples_tolerance: IntLike = 0,
        min_size_to_sample: IntLike = 0,
        keep_times_sampled: bool = False,
        max_times_sampled: IntLike = 0,
        max_heap_bytes: IntLike | None = None,
        storage: Path | None = None,
        storage_preallocated: bool = False,
        device: DeviceLike = "cpu",
        arrays: Arrays | None = None,
        seed: IntLike = 0,
    ) -> None:
        options = _library.new("per_replay_options")
        options.device, options.device_index = _options.device(device)
        kind = _kinds.kind_of(arrays, str(device))
        kept = set_fields(options, fields)
        given: BufferOptions = {
            "n_envs": n_envs,
            "n_step": n_step,
            "gamma": gamma,
            "frame_stack": frame_stack,
            "sequence_length": sequence_length,
            "burn_in": burn_in,
            "sequence_stride": sequence_stride,
            "sequence_eta": sequence_eta,
            "alpha": alpha,
            "beta": beta,
            "beta_final": beta_final,
            "beta_steps": beta_steps,
            "epsilon": epsilon,
            "prioritization": prioritization,
            "scheme": scheme,
            "uniform_fraction": uniform_fraction,
            "normalize_weights": normalize_weights,
            "max_priority": max_priority,
            "on_invalid": on_invalid,
            "on_gap": on_gap,
            "on_nan": on_nan,
            "autoreset": autoreset,
            "store_next_observation": store_next_observation,
            "overwrite": overwrite,
            "critics": critics,
            "half_life": half_life,
            "age": age,
            "max_age": max_age,
            "gather_threads": gather_threads,
            "save_compression": save_compression,
            "samples_per_insert": samples_per_insert,
            "samples_tolerance": samples_tolerance,
            "min_size_to_sample": min_size_to_sample,
            "keep_times_sampled": keep_times_sampled,
            "max_times_sampled": max_times_sampled,
            "max_heap_bytes": max_heap_bytes,
            "storage_preallocated": storage_preallocated,
            "seed": seed,
        }
        _options.set_buffer_options(options, given)
        _options.set_options(options, {"capacity": capacity})
        kept_storage = _options.set_storage(options, storage)
        words = {"n_fields": "the number of fields"}
        with about(None, storage):
            handle = created(lib.per_replay_create, options, check=lambda status: check(status, words))
        del kept, kept_storage
        self._attach(handle, str(device), kind)
        if beta_steps == 0 and beta_final not in (beta, 1.0):
            warnings.warn(
                f"beta_final is {beta_final}, but beta_steps is 0: beta stays {beta}", PerWarning, stacklevel=2
            )

    @staticmethod
    def capacity_for(
        transitions: IntLike,
        episode_length: IntLike = 0,
        *,
        fields: Mapping[str, Field] | None = None,
        **options: Unpack[BufferOptions],
    ) -> int:
        """The smallest capacity that keeps this many transitions, or sequences, live once the buffer is full.

        Without sequences and store_next_observation it is n_envs (t + (t - 1) / episode_length + n_step + frame_stack),
        with t transitions per environment and divisions rounded down.

        Parameters
        ----------
        transitions : int
            Number of live transitions over all environments, 1 to 2^40. For a rollout of K steps in each of n_envs
            environments: K * n_envs; the capacity then holds the whole rollout, ends of episodes included, also with
            overwrite=False.
        episode_length : int, default 0
            Steps of the shortest episode; 0: episodes are longer than an environment's rows.
        fields : Mapping[str, Field], optional
            Needed if a field has its own stack.
        **options : Unpack[BufferOptions]
            As in the class; only those that affect the result are used.

        Raises
        ------
        InvalidArgument

        Examples
        --------
        >>> import per
        >>> per.ReplayBuffer.capacity_for(1000, episode_length=10)
        1101
        >>> per.ReplayBuffer.capacity_for(128 * 8, episode_length=1, n_envs=8)
        2056
        """
        c_options = _library.new("per_replay_options")
        _options.check_buffer_options(options)
        _options.set_buffer_options(c_options, options)
        kept = set_fields(c_options, fields or {})
        capacity = ffi.new("int64_t *")
        given = _options.whole("transitions", transitions), _options.whole("episode_length", episode_length)
        check(lib.per_replay_compute_capacity(c_options, *given, capacity))
        del kept
        return int(capacity[0])

    @overload
    @classmethod
    def for_env(
        cls: type[NotASubclass],
        env: Any,
        capacity: IntLike,
        *,
        fields: Mapping[str, Field] | None = None,
        dtypes: Mapping[str, DTypeLike] | None = None,
        device: Literal["cpu"] = "cpu",
        arrays: Literal["numpy"] | None = None,
        **options: Unpack[HostOptions],
    ) -> ReplayBuffer[npt.NDArray[Any]]: ...

    @overload
    @classmethod
    def for_env(
        cls: type[NotASubclass],
        env: Any,
        capacity: IntLike,
        *,
        fields: Mapping[str, Field] | None = None,
        dtypes: Mapping[str, DTypeLike] | None = None,
        device: DeviceLike = "cpu",
        arrays: Literal["torch"],
        **options: Unpack[HostOptions],
    ) -> ReplayBuffer[torch.Tensor]: ...

    @overload
    @classmethod
    def for_env(
        cls: type[AnyReplayBuffer],
        env: Any,
        capacity: IntLike,
        *,
        fields: Mapping[str, Field] | None = None,
        dtypes: Mapping[str, DTypeLike] | None = None,
        **options: Unpack[BufferOptions],
    ) -> AnyReplayBuffer: ...

    @constructor
    def for_env(
        cls: Any,
        env: Any,
        capacity: IntLike,
        *,
        fields: Mapping[str, Field] | None = None,
        dtypes: Mapping[str, DTypeLike] | None = None,
        **options: Unpack[BufferOptions],
    ) -> ReplayBuffer[Any]:
        """Creates a buffer for a Gymnasium environment or vector environment.

        The environment's spaces give the fields observation and action; its number of environments and its autoreset
        mode give the options of these names. Box, Discrete, MultiDiscrete and MultiBinary become one field, Dict and
        Tuple one for each part ("observation.image", "observation.0"); add() and batches keep the user's containers. In
        names a backslash escapes what would be misread: the key "a.b" is `a\\.b`, "0" is `\\0`, and the number 0 as a
        key `\\#0`. An environment that stacks frames (FrameStackObservation, or ALE's vector environment) gives
        frame_stack and the padding of the observation's fields; only its newest frame is stored. With a wrapper outside
        of the stack that may change frames or skip steps, whole stacks are stored, and a warning says so.

        Parameters
        ----------
        env : Any
            gymnasium.Env or gymnasium.vector.VectorEnv.
        capacity : int
            Total rows.
        fields : Mapping[str, Field], optional
            Additional fields, such as {"log_prob": per.Field(()), "advantage": per.Field((), default=0.0)}.
        dtypes : Mapping[str, DTypeLike], optional
            Dtypes to store in place of the spaces', by field name. By default float64 is stored as float32.
        **options : Unpack[BufferOptions]
            As in the class. They override the environment's.

        Raises
        ------
        Unsupported
            A space has no arrays of fixed shape (Text, Graph, Sequence, OneOf), a key is neither a string nor a whole
            number, or stacks of frames begin with neither the first frame nor zeros. Also as in the class.

        Examples
        --------
        >>> import gymnasium, per
        >>> buffer = per.ReplayBuffer.for_env(gymnasium.make("CartPole-v1"), 1000, n_step=3)
        >>> buffer.fields["observation"].shape, buffer.fields["action"].dtype
        ((4,), 'int64')
        """
        found = spaces.of_env(env, _options.by_field("dtypes", dtypes), options, has_64_bits=_has_64_bits(options))
        given: dict[str, Any] = {**found.options, **options}
        buffer: ReplayBuffer = cls(capacity, {**found.fields, **_options.by_field("fields", fields)}, **given)
        return buffer

    @overload
    @classmethod
    def for_spaces(
        cls: type[NotASubclass],
        observation_space: Any,
        action_space: Any,
        capacity: IntLike,
        *,
        fields: Mapping[str, Field] | None = None,
        dtypes: Mapping[str, DTypeLike] | None = None,
        device: Literal["cpu"] = "cpu",
        arrays: Literal["numpy"] | None = None,
        **options: Unpack[HostOptions],
    ) -> ReplayBuffer[npt.NDArray[Any]]: ...

    @overload
    @classmethod
    def for_spaces(
        cls: type[NotASubclass],
        observation_space: Any,
        action_space: Any,
        capacity: IntLike,
        *,
        fields: Mapping[str, Field] | None = None,
        dtypes: Mapping[str, DTypeLike] | None = None,
        device: DeviceLike = "cpu",
        arrays: Literal["torch"],
        **options: Unpack[HostOptions],
    ) -> ReplayBuffer[torch.Tensor]: ...

    @overload
    @classmethod
    def for_spaces(
        cls: type[AnyReplayBuffer],
        observation_space: Any,
        action_space: Any,
        capacity: IntLike,
        *,
        fields: Mapping[str, Field] | None = None,
        dtypes: Mapping[str, DTypeLike] | None = None,
        **options: Unpack[BufferOptions],
    ) -> AnyReplayBuffer: ...

    @constructor
    def for_spaces(
        cls: Any,
        observation_space: Any,
        action_space: Any,
        capacity: IntLike,
        *,
        fields: Mapping[str, Field] | None = None,
        dtypes: Mapping[str, DTypeLike] | None = None,
        **options: Unpack[BufferOptions],
    ) -> ReplayBuffer[Any]:
        """Creates a buffer for environments from their spaces alone, which frameworks pass to their buffers.

        Fields are as in for_env(); n_envs and autoreset are options here. With frame_stack, observation_space is that
        of one frame.

        Parameters
        ----------
        observation_space, action_space : Any
            gymnasium.Space of one environment.
        capacity : int
            Total rows.
        fields : Mapping[str, Field], optional
            As in for_env().
        dtypes : Mapping[str, DTypeLike], optional
            As in for_env().
        **options : Unpack[BufferOptions]
            As in the class.

        Raises
        ------
        Unsupported
            A space has no arrays of fixed shape. Also as in the class.

        Examples
        --------
        >>> import gymnasium
        >>> import per
        >>> box, discrete = gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Discrete(2)
        >>> sorted(per.ReplayBuffer.for_spaces(box, discrete, 100, n_envs=4).fields)
        ['action', 'observation']
        """
        found = spaces.of_spaces(
            observation_space, action_space, _options.by_field("dtypes", dtypes), has_64_bits=_has_64_bits(options)
        )
        buffer: ReplayBuffer = cls(capacity, {**found, **_options.by_field("fields", fields)}, **options)
        return buffer

    # ----------------------------------------------------- state, options

    def clear(self, *, stream: object = None) -> None:
        """Empties all lanes. Ids continue to count; random state, maximum priority and the schedule of beta are kept.

        Parameters
        ----------
        stream : object, optional
            On a device: the stream on which the work is queued. See the class.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(), "value": per.Field(default=0.0)}, seed=3)
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> buffer.clear()
        >>> len(buffer)
        0
        """
        check(lib.per_replay_clear(self._open(), self._memory.queue(stream).handle))

    def stats(self) -> Statistics:
        """The buffer's contents and activity in numbers. Synchronises.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(), "value": per.Field(default=0.0)}, seed=3)
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> stats = buffer.stats()
        >>> stats.live, stats.added, stats.samples
        (8, 9, 0)
        """
        statistics = read_statistics(self._open())
        self._diagnostics.look_at_statistics(statistics)
        return statistics

    def live_ids(self) -> npt.NDArray[np.int64]:
        """Ids of the live transitions, int64[live]: environment by environment, in order of time.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(), "value": per.Field(default=0.0)}, seed=3)
        >>> ids = buffer.extend(observation=range(9), reward=[1] * 9, terminated=[0] * 9, truncated=[0] * 9)
        >>> buffer.live_ids().tolist()
        [0, 1, 2, 3, 4, 5, 6, 7]
        """
        count = ffi.new("int64_t *")
        ids = np.zeros(0, np.int64)
        check(lib.per_replay_get_live_ids(self._open(), 0, NULL, count))
        while count[0] > ids.size:  # retry if another thread added meanwhile
            ids = np.empty(count[0], np.int64)
            check(lib.per_replay_get_live_ids(self._open(), ids.size, ffi.from_buffer("int64_t[]", ids), count))
        return ids[: count[0]]

    def __len__(self) -> int:
        count = ffi.new("int64_t *")
        check(lib.per_replay_get_live_ids(self._open(), 0, NULL, count))
        return int(count[0])

    # ------------------------------------------------------------- object

    def __repr__(self) -> str:
        state = "closed"
        if self._handle is not None:
            try:
                state = f"live={len(self)}"
            except Error:
                state = "of another process"
        fields = ", ".join(f"{name!r}: {field.dtype}{list(field.shape)}" for name, field in self._fields.items())
        return (
            f"per.ReplayBuffer({self._capacity}, {{{fields}}}, n_envs={self._n_envs}, device={self._device!r}, "
            f"arrays={self._kind!r}, {state})"
        )


def _has_64_bits(options: Mapping[str, Any]) -> bool:
    return options.get("arrays") != "jax" or _kinds.jax_has_64_bits()


# Python's errors for wrong arguments name a function: they are to name the class that users know, not its parts. A
# function is pickled as this name in its module.
for _part in ReplayBuffer.__mro__[1:]:
    if issubclass(_part, Buffer):
        vars(sys.modules[_part.__module__])["ReplayBuffer"] = ReplayBuffer
        for _member in vars(_part).values():
            _function = getattr(_member, "__func__", _member)  # the function of a class method
            if inspect.isfunction(_function):
                _function.__qualname__ = f"ReplayBuffer.{_function.__name__}"
