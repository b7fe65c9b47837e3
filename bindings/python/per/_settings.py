"""Options of a buffer: reading them, and changing those that can be changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from per import _callbacks, _library, _options
from per._buffer import Buffer
from per._diagnostics import read_statistics
from per._errors import Error, InvalidArgument
from per._library import NULL, check, ffi, lib
from per.field import Field
from per.typing import AllOptions, Array, FloatLike, IntLike


class Settings(Buffer[Array]):
    """The options of a buffer as properties."""

    __slots__ = ()

    @property
    def capacity(self) -> int:
        """Total number of rows."""
        return self._capacity

    @property
    def n_envs(self) -> int:
        """Number of environments. Each has its own lane."""
        return self._n_envs

    @property
    def fields(self) -> Mapping[str, Field]:
        """The declared fields, with resolved roles and stacks."""
        return dict(self._fields)

    @property
    def options(self) -> AllOptions:
        """A copy of the current value of every option by name. To change one, set its attribute: buffer.alpha = 0.5.

        `per.ReplayBuffer(**buffer.options)` makes an empty buffer like this one.

        Examples
        --------
        >>> import per
        >>> buffer = per.ReplayBuffer(100, {"observation": per.Field(2)}, n_envs=3, scheme="systematic")
        >>> buffer.gamma = 0.5
        >>> again = per.ReplayBuffer(**buffer.options)
        >>> again.options == buffer.options, again.capacity, again.options["scheme"], again.gamma
        (True, 102, 'systematic', 0.5)
        """
        described = self._describe()
        options: Any = {"capacity": self._capacity, "fields": self.fields, "device": self._device, "arrays": self._kind}
        options |= {name: _options.buffer_option(described, name) for name in _options.BUFFER_OPTIONS}
        storage = described.memory.storage
        options["storage"] = None if storage == NULL else os.fsdecode(ffi.string(storage))
        return cast(AllOptions, options)

    @property
    def alpha(self) -> float:
        """Exponent of the priorities. Setting it costs one pass over the buffer."""
        return float(self._describe().alpha)

    @alpha.setter
    def alpha(self, value: FloatLike) -> None:
        self._change("alpha", _options.real("alpha", value))

    @property
    def beta(self) -> float:
        """Exponent of the weights of the next batch. Setting it ends its schedule."""
        return read_statistics(self._open()).beta

    @beta.setter
    def beta(self, value: FloatLike) -> None:
        self._change("beta", _options.real("beta", value))

    @property
    def gamma(self) -> float:
        """Discount of a step. Returns are computed when a batch is drawn."""
        return float(self._describe().gamma)

    @gamma.setter
    def gamma(self, value: FloatLike) -> None:
        self._change("gamma", _options.real("gamma", value))

    @property
    def n_step(self) -> int:
        """Steps of a return. Setting it costs one pass over the buffer."""
        return int(self._describe().n_step)

    @n_step.setter
    def n_step(self, value: IntLike) -> None:
        n_step = _options.whole("n_step", value)
        with _callbacks.held(self._n_step_lock, [self]):
            before, self._n_step = self._n_step, 0  # if an interrupt leaves it 0, draws ask the library
            try:
                self._change("n_step", n_step)
            except Error:
                self._n_step = before
                raise
            self._n_step = n_step

    @property
    def save_compression(self) -> int:
        """Compression of files from save(): 0: none; 1 to 19: level of zstd."""
        return int(self._describe().save_compression)

    @save_compression.setter
    def save_compression(self, value: IntLike) -> None:
        self._change("save_compression", _options.whole("save_compression", value))

    @property
    def version(self) -> int:
        """The version of steps that are added now; see set_version()."""
        return read_statistics(self._open()).version

    def set_version(self, version: IntLike) -> None:
        """Sets the version under which steps are added from here on, in a buffer with age="versions".

        Usually the version number of the acting policy, or the number of its updates. The age of a transition is the
        latest version minus its own. With max_age, transitions that are now too old are no longer drawn; the cost of
        the call is in proportion to their number.

        Parameters
        ----------
        version : int
            At least the latest version, which is 0 at first, and at most 2^31 - 1.

        Raises
        ------
        InvalidArgument

        Examples
        --------
        >>> import per
        >>> fields = {"observation": per.Field(2)}
        >>> buffer = per.ReplayBuffer(100, fields, age="versions", half_life=5, max_age=20)
        >>> for version in range(30):
        ...     buffer.set_version(version)
        ...     _ = buffer.add(observation=[0, 0], reward=0.0, terminated=True, truncated=False,
        ...                    next_observation=[0, 0])
        >>> len(buffer)
        21
        """
        self._change("version", _options.whole("version", version))

    def _change(self, name: str, value: float) -> None:
        settings = _library.new("per_replay_settings")
        unchanged = getattr(settings, name)
        _options.set_field(settings, name, name, value)
        if value == unchanged or value != value:  # values for which C leaves a setting unchanged
            allowed = "1 and above" if name == "n_step" else "0 and above"
            raise InvalidArgument(f"{name} is {value!r}; allowed: {allowed}")
        check(lib.per_replay_change_settings(self._open(), settings, self._memory.queue(None).handle))
