"""On-policy learning: passes over all transitions, and advantages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from per import _callbacks, _options
from per._buffer import Buffer
from per._errors import InvalidArgument
from per._handle import created
from per._library import lib
from per.batch import Batch
from per.epochs import Epochs
from per.typing import Array, FloatLike, IntLike


class OnPolicy(Buffer[Array]):
    """Calls for learners that use every transition equally often."""

    __slots__ = ()

    def epochs(
        self, n_epochs: IntLike, batch_size: IntLike, *, drop_last: bool = False, stream: object = None
    ) -> Epochs[Array]:
        """An iterator over batches that has every live transition once per epoch, in a new random order each time.

        The transitions are those live at the call. Each epoch counts as one draw of the buffer, and all are made by
        this call: the seed and the earlier draws determine every order, whatever is drawn in between.

        Parameters
        ----------
        n_epochs : int
            1 to 2^24.
        batch_size : int
            1 to 2^24. The last batch of an epoch has the remainder.
        drop_last : bool, default False
            Drop the last batch if it is smaller; batch_size must then not exceed len(buffer).
        stream : object, optional
            The stream of this call and of each batch; see the class. None: the one that is current at that time.

        Returns
        -------
        Epochs
            An iterator that several threads may share; each batch is delivered once. The batches are like those of
            sample(), with weights 1. A batch with a transition that is no longer live raises InvalidArgument; on CUDA
            the id of that transition is -1, the epochs continue, and synchronize() reports it.

        Raises
        ------
        Empty
            If no transition is live.
        InvalidArgument

        Examples
        --------
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
        drops_last = _options.flag("drop_last", drop_last)
        queue = self._memory.queue(stream)
        # The library refuses to continue epochs of sequences after n_step has changed.
        with _callbacks.held(self._n_step_lock, [self]):
            epochs = created(lib.per_epochs_create, self._open(), count, size, drops_last, queue.handle)
            plain = self._exchange_for(int(self._describe().n_step))[0] if self._steps > 0 else self._plain
        return Epochs(self._handle, lambda: plain.epoch(epochs, size, stream), self._new_batch)

    def advantages(
        self,
        *,
        value: str = "value",
        advantage: str = "advantage",
        returns: str | None = None,
        gae_lambda: FloatLike = 0.95,
        bootstrap: Callable[[Batch[Array]], object] | None = None,
        stream: object = None,
    ) -> None:
        """Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438, equation 16), written to a field.

        A_t = delta_t + gamma lambda A_(t+1) with delta_t = r_t + gamma V(next_t) - V_t and the buffer's gamma.
        V(next_t) is 0 after a terminal state, and A_(t+1) is 0 after any end of an episode. V(next_t) is the value
        stored with the next step. Where no such step exists, at the end of a truncated episode and for the latest step
        of a running one, it comes from `bootstrap`. The latest step of an environment has no advantage if its next
        observation was not given.

        Parameters
        ----------
        value : str, default "value"
            The field with V_t, added with the step or set later. All three fields are plain float32 numbers.
        advantage : str, default "advantage"
            The field for A_t.
        returns : str, optional
            The field for A_t + V_t; None: not written.
        gae_lambda : float, default 0.95
            Lambda, 0 to 1.
        bootstrap : Callable[[Batch[Array]], object], optional
            Called with a Batch of the n steps that need it; returns V of batch.next_observation, float32[n]. None: no
            step may need one.
        stream : object, optional
            See the class.

        Raises
        ------
        InvalidArgument
            Nothing was written. Also if other threads added steps while `bootstrap` ran.

        Examples
        --------
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
                raise InvalidArgument(
                    f"bootstrap is None: {count} steps need the value of their next observation; allowed: a function "
                    "of a Batch of them that returns these values"
                )
            values = bootstrap(self._new_batch(rows, self._row_outputs))
        self._plain.advantages(fields, _options.real("gae_lambda", gae_lambda), ids, values, stream)

    def _field_number(self, argument: str, name: str | None) -> int:
        """The number of a field in C; for None -1, which the library accepts where a field may be left out."""
        if name is None:
            return -1
        if name not in self._layout.fields:
            declared = "per.Field()" if argument == "value" else "per.Field(default=0.0)"
            raise InvalidArgument(
                f"{argument} is {name!r}, but the buffer has no such field; its fields: "
                f"{', '.join(self._layout.fields)}; name one of them, or declare {name!r}: {declared}"
            )
        return self._layout.fields.index(name)
