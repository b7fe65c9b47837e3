"""Batches drawn ahead by a thread of the library."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy.typing as npt

from per import _kinds, _library, _memory, _options, batch
from per._library import lib
from per._rate_limiter import RateLimiter
from per.loader import LoadedBatch, Loader, loader_kind
from per.shared_loader import SharedLoader
from per.typing import Array, Arrays, DeviceLike, DrawOptions, IntLike, Unpack

if TYPE_CHECKING:
    import torch


class DrawingAhead(RateLimiter[Array]):
    """Calls that create loaders."""

    __slots__ = ()

    @overload
    def loader(
        self,
        batch_size: IntLike,
        *,
        slots: IntLike = 3,
        device: None = None,
        gather_on_device: bool = False,
        arrays: None = None,
        **choices: Unpack[DrawOptions],
    ) -> Loader[Array]: ...

    @overload
    def loader(
        self,
        batch_size: IntLike,
        *,
        slots: IntLike = 3,
        device: DeviceLike | None = None,
        gather_on_device: bool = False,
        arrays: Literal["torch"],
        **choices: Unpack[DrawOptions],
    ) -> Loader[torch.Tensor]: ...

    @overload
    def loader(
        self,
        batch_size: IntLike,
        *,
        slots: IntLike = 3,
        device: DeviceLike | None = None,
        gather_on_device: bool = False,
        arrays: Literal["numpy"],
        **choices: Unpack[DrawOptions],
    ) -> Loader[npt.NDArray[Any]]: ...

    @overload
    def loader(
        self,
        batch_size: IntLike,
        *,
        slots: IntLike = 3,
        device: DeviceLike | None = None,
        gather_on_device: bool = False,
        arrays: Arrays | None = None,
        **choices: Unpack[DrawOptions],
    ) -> Loader[Any]: ...

    @_options.takes_draw_options()
    def loader(
        self,
        batch_size: IntLike,
        *,
        slots: IntLike = 3,
        device: DeviceLike | None = None,
        gather_on_device: bool = False,
        arrays: Arrays | None = None,
        **choices: Unpack[DrawOptions],
    ) -> Loader[Any]:
        """Creates an iterator over batches that a library thread draws ahead, into memory that is reused.

        Creating it requests `slots` batches, and handing one out requests the next. Up to `slots` batches are therefore
        drawn before updates made with the latest batch take effect. Every other call waits for the batches requested
        before it, so the same seed and calls give the same batches for the same `slots`; if nothing changes in between,
        they are those of sample().

        Parameters
        ----------
        batch_size : int
            B, 1 to 2^24.
        slots : int, default 3
            Batches drawn ahead, and the most that the caller may hold at a time, 1 to 1024. The loader has memory for
            one more.
        device : DeviceLike, optional
            The device of the batches. None: that of the buffer. A buffer on the CPU may also deliver to "cuda" or
            "cuda:1", with asynchronous copies. Neither requesting a batch nor releasing one waits for the device; only
            the streams passed to take() do, by default the current ones. For a CUDA graph, copy each batch to arrays
            that belong to the graph.
        gather_on_device : bool, default False
            For batches on CUDA of a buffer on the CPU: the device itself copies the frames of large fields (1 KiB and
            more) from the rows, which stay pinned while the loader is open. The batches are the same. add() and set()
            may wait until the device has read frames that they overwrite.
        arrays : {"numpy", "torch", "jax", "cupy"}, optional
            "numpy" or "torch"; on CUDA "torch" or "cupy". None: those of the buffer on its own device; else "torch".
        beta : float, optional
            As in sample().
        scheme : {"stratified", "independent", "systematic", "without_replacement"}, optional
            As in sample().
        prioritization : {"proportional", "rank", "uniform"}, optional
            As in sample().
        uniform_fraction : float, optional
            As in sample().
        normalize_weights : {"batch_max", "buffer_max", "none"}, optional
            As in sample().
        n_step : int or tuple[int, int], optional
            As in sample().

        Returns
        -------
        Loader
            Its batches lie in the loader's memory until they are released, by batch.release() or by requesting the next
            batch; copy what must last longer. A buffer has one loader at a time.

        Raises
        ------
        Busy
            The buffer has a loader that is not closed.
        InvalidArgument
            Also for arrays="jax": JAX reads memory asynchronously, when a slot may already have been overwritten. Use
            sample(), whose arrays are new.
        NoDevice
        CudaError
        Unsupported
            gather_on_device with a device that cannot do it, or with rows in `storage`.

        Examples
        --------
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
        if self._steps > 0 and choices.get("n_step") is None:
            given: dict[str, Any] = {"slots": slots, "device": device, "gather_on_device": gather_on_device}
            return self._at_own_n_step(functools.partial(self.loader, batch_size, arrays=arrays, **given), choices)
        options = _library.new("per_loader_options")
        device = self._device if device is None else device
        options.device, options.device_index = _options.device(device)
        if arrays is None and _options.device(device) == _options.device(self._device):
            arrays = self._kind
        kind = loader_kind(arrays, str(device))
        batch.refuse_method_names(self._outputs, LoadedBatch)
        _options.set_options(options, {"batch_size": batch_size, "slots": slots, "gather_on_device": gather_on_device})
        draw = _options.sample_options(choices, DrawingAhead.loader)
        options.sample = draw
        layout = self._layout if self._steps == 0 else self._sequence_layout(draw.n_step)
        _kinds.check_dtypes(kind, layout)
        memory = _memory.memory_of(options.device, options.device_index, kind)
        wait_to_sample = functools.partial(
            self._wait_for_rate, wait=lib.per_replay_wait_to_sample, count=options.batch_size
        )
        return Loader(self._open(), self._open, wait_to_sample, options, layout.batch, memory, self._nested)

    @_options.takes_draw_options()
    def shared_loader(
        self,
        batch_size: IntLike,
        *,
        readers: IntLike,
        slots: IntLike = 2,
        **choices: Unpack[DrawOptions],
    ) -> SharedLoader:
        """Creates a source of batches for several processes, such as DDP ranks and evaluators, in shared memory.

        Pass it to each process and call shared_loader.reader() there: an iterator over batches, each delivered to one
        reader without a copy. Readers send priorities back; the slots of a reader that dies are reclaimed. Together the
        readers get the batches of a loader() with the same total number of slots.

        Parameters
        ----------
        batch_size : int
            B, 1 to 2^24.
        readers : int
            Maximum number of readers attached at a time.
        slots : int, default 2
            Maximum number of batches that a reader may hold. slots * readers is at most 1024.
        beta : float, optional
            As in sample().
        scheme : {"stratified", "independent", "systematic", "without_replacement"}, optional
            As in sample().
        prioritization : {"proportional", "rank", "uniform"}, optional
            As in sample().
        uniform_fraction : float, optional
            As in sample().
        normalize_weights : {"batch_max", "buffer_max", "none"}, optional
            As in sample().
        n_step : int or tuple[int, int], optional
            As in sample().

        Raises
        ------
        Busy
            The buffer has a loader that is not closed.
        InvalidArgument
        OutOfMemory
        Unsupported
            The buffer is on CUDA.

        Examples
        --------
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
        draw = _options.sample_options(choices, DrawingAhead.shared_loader)
        options.sample = draw
        shared_loader = SharedLoader(self._open(), self._open, options)
        self._served.add(shared_loader)
        return shared_loader
