"""Batches that a thread of the library draws ahead."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from per import _kinds, _library, _memory, _options, batch
from per._library import lib
from per._rate_limiter import RateLimiter
from per.loader import LoadedBatch, Loader, loader_kind
from per.shared_loader import SharedLoader
from per.typing import Array, Arrays, DrawOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


class DrawingAhead(RateLimiter[Array]):
    """The calls that make loaders."""

    __slots__ = ()

    @_options.takes_draw_options()
    def loader(
        self,
        batch_size: int,
        *,
        slots: int = 3,
        device: str | None = None,
        gather_on_device: bool = False,
        arrays: Arrays | None = None,
        **choices: Unpack[DrawOptions],
    ) -> Loader:
        """An iterator over batches that a thread of the library's own draws ahead, into memory used again and again.

        Creating it asks for `slots` batches, and handing one out asks for the next, so up to `slots` batches are drawn
        before what is done with the latest; every other call waits for those asked for before it. So the same seed and
        calls give the same batches for the same `slots`, and those of sample() if nothing is changed in between.

        Parameters
        ----------
        batch_size : int
            B, 1 to 2^24.
        slots : int, default 3
            Batches drawn ahead, and most that may be out at a time, 1 to 1024. One more is kept in memory.
        device : str, optional
            Where batches are wanted. None: where the buffer is; one on the CPU may also hand them out on "cuda" or
            "cuda:1", where they are copied behind the caller's back. Neither the next batch nor releasing one waits for
            the device, only the streams named to take() do, by default the current ones. A CUDA graph copies each batch
            to arrays of its own.
        gather_on_device : bool, default False
            With batches on CUDA of a buffer on the CPU, the device itself copies the frames of large fields, those of 1
            KiB and more, out of the rows, which are pinned as long as the loader is open. The batches are the same.
            add() and set() may wait for frames that are still to be read.
        arrays : {"numpy", "torch", "jax", "cupy"}, optional
            "numpy" or "torch"; on CUDA "torch" or "cupy". None: those of the buffer, where it is; else "torch".
        beta : float, optional
            As sample() takes it.
        scheme : {"stratified", "independent", "systematic", "without_replacement"}, optional
            As sample() takes it.
        prioritization : {"proportional", "rank", "uniform"}, optional
            As sample() takes it.
        uniform_fraction : float, optional
            As sample() takes it.
        normalize_weights : {"batch_max", "buffer_max", "none"}, optional
            As sample() takes it.
        n_step : int or tuple[int, int], optional
            As sample() takes it.

        Returns
        -------
        Loader
            Its batches lie in its memory until they are released: asking for the next one does that, or
            batch.release(); copy what must last longer. A buffer has one loader at a time.

        Raises
        ------
        Busy
            If the buffer has a loader that is not closed.
        InvalidArgument
            Also for arrays="jax": JAX reads memory later than it says, when a slot may have been written again. Use
            sample(), whose arrays are new.
        NoDevice
        CudaError
        Unsupported
            Where gather_on_device is asked of a device that cannot, or of rows that lie in `storage`.

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
        options = _library.new("per_loader_options")
        device = self._device if device is None else device
        options.device, options.device_index = _options.device(device)
        if arrays is None and _options.device(device) == _options.device(self._device):
            arrays = self._kind
        kind = loader_kind(arrays, str(device))
        batch.refuse_method_names(self._outputs, LoadedBatch)
        _options.set_options(options, {"batch_size": batch_size, "slots": slots, "gather_on_device": gather_on_device})
        if self._steps > 0:
            self._say_n_step(choices)
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
        batch_size: int,
        *,
        readers: int,
        slots: int = 2,
        **choices: Unpack[DrawOptions],
    ) -> SharedLoader:
        """Batches for several processes - the ranks of a DDP learner, evaluators -, drawn ahead into shared memory.

        Pass it to each of them, and take shared_loader.reader() there: an iterator over batches, each of which goes to
        one reader and is not copied. Readers send priorities back; one that dies gives its slots back. Together they
        get the batches of a loader() with as many slots.

        Parameters
        ----------
        batch_size : int
            B, 1 to 2^24.
        readers : int
            Most that may be attached at a time.
        slots : int, default 2
            Most batches that each of them may have at a time. Times readers, at most 1024.
        beta : float, optional
            As sample() takes it.
        scheme : {"stratified", "independent", "systematic", "without_replacement"}, optional
            As sample() takes it.
        prioritization : {"proportional", "rank", "uniform"}, optional
            As sample() takes it.
        uniform_fraction : float, optional
            As sample() takes it.
        normalize_weights : {"batch_max", "buffer_max", "none"}, optional
            As sample() takes it.
        n_step : int or tuple[int, int], optional
            As sample() takes it.

        Raises
        ------
        Busy
            If the buffer has a loader that is not closed.
        InvalidArgument
        OutOfMemory
        Unsupported
            For a buffer on CUDA.

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
        return SharedLoader(self._open(), self._open, options)
