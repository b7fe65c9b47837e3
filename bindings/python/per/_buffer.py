"""The base of all parts of ReplayBuffer: its handle, its layout, and arrays in the form that users hold."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from per import _bridging, _callbacks, _exchange, _kinds, _library, _memory, _pytrees, batch
from per._diagnostics import Diagnostics
from per._errors import InvalidArgument, kind_of
from per._handle import Handle, Store
from per._layout import Layout, layout_of
from per._library import check, lib
from per._waiting import new_lock
from per.batch import Batch, JaxBatch
from per.field import from_c
from per.typing import Array, Arrays, DrawOptions, ReadOptions

if TYPE_CHECKING:
    from per import _bridge

    _AnyExchange: TypeAlias = _exchange.Exchange | _bridge.Exchange

Result = TypeVar("Result")

_MOST_N_STEP = 64  # of a buffer, and so of a call


class Buffer(Store, Generic[Array]):
    """A replay buffer without its calls. Each part of ReplayBuffer derives from it and adds calls of one concept."""

    # Attributes derived from the handle. Those of users' subclasses are in __dict__, which is pickled.
    __slots__ = (
        "_autoreset",
        "_batch_type",
        "_capacity",
        "_device",
        "_diagnostics",
        "_exchange",
        "_exchanges",
        "_fields",
        "_inputs",
        "_is_nested",
        "_keeps_times_sampled",
        "_kind",
        "_layout",
        "_learned_steps",
        "_memory",
        "_n_envs",
        "_n_step",
        "_n_step_lock",
        "_outputs",
        "_plain",
        "_row_outputs",
        "_served",
        "_steps",
    )

    _noun = "buffer"
    _synchronize = lib.per_replay_synchronize

    def _attach(self, handle: Any, device: str, kind: Arrays) -> None:
        """Takes a handle and derives everything else from its options."""
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
        self._n_step_lock = new_lock()
        layout = self._sequence_layout(self._n_step)
        _kinds.check_dtypes(kind, layout)
        self._layout = layout
        self._inputs = batch.structure_of([*layout.fields, *filter(None, layout.next_fields)])
        batch.refuse_argument_names(self._inputs)
        self._is_nested = batch.is_nested(self._inputs)
        self._outputs = batch.structure_of([output.name for output in layout.batch])
        self._row_outputs = batch.structure_of([output.name for output in layout.rows])
        batch.refuse_method_names(self._outputs | self._row_outputs)
        self._diagnostics = Diagnostics(self._autoreset, isinstance(self._memory, _memory.HostMemory))
        _pytrees.register()
        if not hasattr(self, "_served"):
            self._served: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._handle = handle
        self._plain, self._exchange = self._new_exchange(handle, layout)
        self._exchanges = {self._n_step: (self._plain, self._exchange)}

    def _new_exchange(self, handle: Any, layout: Layout) -> tuple[_exchange.Exchange, _AnyExchange]:
        """Two objects that pass arrays of that layout: one in pure Python, and the fastest available."""
        make_batch = batch.maker_of(self._batch_type, self._outputs)
        plain = _exchange.Exchange(handle, layout, self._memory, make_batch)
        return plain, _bridging.new_exchange(handle, plain, layout, self._memory)

    def _exchange_for(self, n_step: int) -> tuple[_exchange.Exchange, _AnyExchange]:
        """The same for batches of sequences with that n_step; the library refuses invalid values."""
        handle = self._open()
        n_step = min(max(n_step, 1), _MOST_N_STEP)
        found = self._exchanges.get(n_step)
        if found is None:
            # Threads that arrive at the same time all use the exchange stored first, which close() will find.
            found = self._exchanges.setdefault(n_step, self._new_exchange(handle, self._sequence_layout(n_step)))
            if self._handle is None:  # close() in another thread did not find it
                found[1].close()
        return found

    def _sequence_layout(self, n_step: int) -> Layout:
        steps = self._steps, self._learned_steps
        return layout_of(self._fields, self._n_envs, *steps, n_step, self._keeps_times_sampled)

    def close(self) -> None:
        """Frees its memory, and closes its channels and shared loaders. Every later call but close() is an error."""
        if self._handle is not None:
            super().close()
            for served in list(self._served):  # whose other processes would wait for a buffer that is gone
                served.close()
            for exchange in [self._exchange, *(exchange for _, exchange in self._exchanges.values())]:
                exchange.close()

    def _own_n_step(self) -> int:
        return self._n_step or int(self._describe().n_step)

    def _at_own_n_step(self, call: Callable[..., Result], choices: DrawOptions | ReadOptions) -> Result:
        """Calls for sequences with the buffer's n_step, for which their arrays are allocated.

        Repeats a call that the library refuses, as it does if another thread changes n_step meanwhile.
        """
        try:
            return call(**{**choices, "n_step": self._own_n_step()})
        except InvalidArgument as error:
            if "n_step is " not in str(error):
                raise
        with _callbacks.held(self._n_step_lock, [self]):
            return call(**{**choices, "n_step": self._own_n_step()})

    def _describe(self) -> Any:
        options = _library.new("per_replay_options")
        check(lib.per_replay_describe(self._open(), options))
        return options

    def _flat(self, fields: Mapping[str, object]) -> dict[str, Any]:
        """Fields in the user's containers, flattened to their declared names."""
        flat: dict[str, Any] = {}
        for name, value in fields.items():
            batch.flatten(self._inputs.get(name, name), value, name, flat)
        return flat

    def _new_batch(self, arrays: dict[str, Any], outputs: dict[str, Any] | None = None) -> Batch[Array]:
        """A batch in the user's containers, from the arrays of a draw or from those outputs."""
        return self._batch_type(self._nested(arrays, outputs) if self._is_nested else arrays)

    def _nested(self, arrays: dict[str, Any], outputs: dict[str, Any] | None = None) -> dict[str, Any]:
        """Arrays by name in the user's containers, from the arrays of a draw or from those outputs."""
        if not self._is_nested:
            return arrays
        nodes = self._outputs if outputs is None else outputs
        return batch.nested(nodes, arrays)

    def _arrays_of(self, out: Batch) -> dict[str, Any]:
        if self._kind == "jax":
            raise InvalidArgument(
                "out is given; not allowed with arrays='jax': JAX reads its arrays later than it says"
            )
        if not isinstance(out, Batch):
            raise InvalidArgument(f"out is {kind_of(out)}; allowed: a batch that sample() of this buffer gave")
        if not self._is_nested:
            return dict(vars(out))  # keeps the arrays alive: another thread may delete them from the batch
        arrays: dict[str, Any] = {}
        for name, node in self._outputs.items():
            batch.flatten(node, vars(out).get(name), f"out.{name}", arrays)
        return arrays
