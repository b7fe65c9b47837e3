"""The compiled bridge, which passes arrays to the library without Python code: see bindings/python/bridge."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from per import _exchange
from per.batch import Batch

sizes: dict[str, int]
"""Size in bytes of each struct of per.h, as compiled into the bridge."""

class Exchange:
    """Calls of a buffer that take or return many arrays. Rare cases go to `plain`."""

    def __init__(
        self,
        plain: _exchange.Exchange,
        handle: Any,
        addresses: dict[str, int],
        layout: dict[str, Any],
        check: Callable[..., None],
        as_array: Callable[[object, str], tuple[Any, int]],
        make_batch: Callable[[dict[str, Any]], Batch[Any]],
    ) -> None: ...
    def add(
        self, step_arrays: Sequence[object], fields: Mapping[str, object], env_ids: object, is_run: bool, stream: object
    ) -> Any: ...
    def write(
        self,
        step_arrays: Sequence[object],
        fields: Mapping[str, object],
        env_ids: object,
        is_run: bool,
        timeout_ms: int,
    ) -> int: ...
    def sample(self, size: object, options: int, out: dict[str, Any] | None, stream: object) -> Any: ...
    def sample_mixture(
        self,
        sources: int,
        n_sources: int,
        has_times_sampled: bool,
        size: object,
        options: int,
        out: dict[str, Any] | None,
        stream: object,
    ) -> dict[str, Any]: ...
    def update(self, ids: object, values: object, are_priorities: bool, stream: object) -> None: ...
    def update_mixture(
        self,
        sources: int,
        n_sources: int,
        ids: object,
        source_of: object,
        values: object,
        are_priorities: bool,
        stream: object,
    ) -> None: ...
    def close(self) -> None: ...
