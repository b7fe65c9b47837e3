"""Registers batches as pytrees with JAX and torch, if these are already imported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

from per import ragged
from per._waiting import new_lock
from per.batch import Batch, JaxBatch
from per.loader import LoadedBatch
from per.ragged import Ragged

_registered: set[str] = set()
_lock = new_lock()


def register() -> None:
    """Registers with each of the two libraries that is imported, once."""
    for library, register_with in (("jax", _register_with_jax), ("torch", _register_with_torch)):
        if library not in sys.modules:
            continue
        with _lock:
            if library in _registered:
                continue
            _registered.add(library)
            try:
                register_with()
            except BaseException:
                _registered.discard(library)
                raise


def _flatten(batch: Batch) -> tuple[list[Any], tuple[str, ...]]:
    return list(batch.values()), tuple(batch)


def _flatten_ragged(rows: Ragged[Any]) -> tuple[list[Any], tuple[int, ...]]:
    return [rows.values, rows.offsets], rows.shape


def _ragged_with_keys(key_of: Callable[[str], Any]) -> Callable[[Ragged[Any]], tuple[list[Any], tuple[int, ...]]]:
    return lambda rows: ([(key_of("values"), rows.values), (key_of("offsets"), rows.offsets)], rows.shape)


def _with_keys(key_of: Callable[[str], Any]) -> Callable[[Batch], tuple[list[tuple[Any, Any]], tuple[str, ...]]]:
    return lambda batch: ([(key_of(name), value) for name, value in batch.items()], tuple(batch))


def _register_with_jax() -> None:
    # Batches of a loader are not registered: JAX reads memory asynchronously, when a slot may already be overwritten.
    tree_util: Any = importlib.import_module("jax.tree_util")

    def unflatten_with(make: Callable[[dict[str, Any]], Batch]) -> Callable[[tuple[str, ...], Iterable[Any]], Batch]:
        return lambda names, values: make(dict(zip(names, values, strict=True)))

    with_keys = _with_keys(tree_util.GetAttrKey)
    tree_util.register_pytree_with_keys(Batch, with_keys, unflatten_with(Batch), _flatten)
    tree_util.register_pytree_with_keys(JaxBatch, with_keys, unflatten_with(JaxBatch.of_jax), _flatten)
    ragged_with_keys = _ragged_with_keys(tree_util.GetAttrKey)
    tree_util.register_pytree_with_keys(Ragged, ragged_with_keys, ragged.of_tree, _flatten_ragged)


def _register_with_torch() -> None:
    pytree: Any = importlib.import_module("torch.utils._pytree")

    def unflatten(values: Iterable[Any], names: tuple[str, ...]) -> Batch:
        return Batch(dict(zip(names, values, strict=True)))

    pytree.register_pytree_node(
        Ragged,
        _flatten_ragged,
        lambda arrays, shape: ragged.of_tree(shape, arrays),
        serialized_type_name="per.Ragged",
        flatten_with_keys_fn=_ragged_with_keys(pytree.GetAttrKey),
    )
    for kind in (Batch, LoadedBatch):
        pytree.register_pytree_node(
            kind,
            _flatten,
            unflatten,
            serialized_type_name=f"per.{kind.__name__}",
            flatten_with_keys_fn=_with_keys(pytree.GetAttrKey),
        )
