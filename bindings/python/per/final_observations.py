"""Final observations of environments that reset in the step that ends an episode (autoreset "same_step").

There next_observation is the first one of the next episode. Gymnasium keeps the final one in info["final_obs"], by
environment, where info["_final_obs"] is True. Before version 1.0 the key was "final_observation", as in some
simulators. ALE's vector environment gives final_obs alone, an array in which the rows of ended episodes count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from per import _arrays, ragged
from per._errors import InvalidArgument
from per.batch import Node, flatten

_KEYS = ("final_obs", "final_observation")


def key_in(info: Mapping[str, Any], autoreset: str) -> str | None:
    """The key of an info's final observations, if any. Only buffers with autoreset "same_step" accept them."""
    if not isinstance(info, Mapping):
        raise InvalidArgument(f"info is {info!r}; allowed: the dict that a vector environment gave")
    key = next((key for key in _KEYS if key in info or f"_{key}" in info), None)
    if key is None:
        return None
    if autoreset != "same_step":
        raise InvalidArgument(
            f"info has {key}, as environments with autoreset 'same_step' give it; this buffer has {autoreset!r}"
        )
    if key not in info:
        raise InvalidArgument(f"info has _{key}, but no {key}; needed are both")
    if f"_{key}" not in info and not _is_numeric(info[key]):
        raise InvalidArgument(f"info has {key}, but no _{key}; needed are both, unless {key} is an array of numbers")
    return key


def _is_numeric(finals: object) -> bool:
    return isinstance(finals, np.ndarray) and finals.dtype != object


def insert(
    key: str,
    info: Mapping[str, Any],
    fields: Mapping[str, object],
    next_mask: object,
    inputs: Mapping[str, Node],
    terminated: object,
    truncated: object,
    value_shapes: Mapping[str, tuple[int, ...]],
) -> tuple[dict[str, Any], Any]:
    """The fields with final observations in place of first ones, and the next_mask of the known ones.

    The final observations are in the info under `key`. `fields` has one array per field, by full name; `inputs` has the
    containers of all fields and next observations, and `value_shapes` the fields with rows of any length.
    """
    if next_mask is not None:
        raise InvalidArgument(f"next_mask is given beside info with {key}; allowed: one of the two")
    ended = np.atleast_1d(_as_flags(terminated, "terminated", key) | _as_flags(truncated, "truncated", key))
    is_final = ended
    if f"_{key}" in info:
        is_final = np.atleast_1d(_arrays.as_array(info[f"_{key}"], f"info['_{key}']")[0]).astype(bool)
    if is_final.shape != ended.shape:
        raise InvalidArgument(f"info['_{key}'] has shape {list(is_final.shape)}; allowed: {list(ended.shape)}")
    if len(info[key]) != ended.size:
        raise InvalidArgument(f"info['{key}'] has {len(info[key])} observations; allowed: {ended.size}")
    rows = [int(i) for i in np.flatnonzero(is_final & ended)]
    observed = {top: node for top in inputs if (node := inputs.get(f"next_{top}")) is not None}
    finals: list[dict[str, Any]] = []
    for i in rows:
        where, final = f"info['{key}'][{i}]", dict[str, Any]()
        for top, node in observed.items():
            flatten(node, _part_of(info[key][i], top, observed, where), where, final)
        finals.append(final)
    changed = dict(fields)
    known = not any(name.startswith("next_") for name in fields)
    for following in (name for node in observed.values() for name in _names(node)):
        name, of_name = following.removeprefix("next_"), [final[following] for final in finals]
        if name in value_shapes:
            changed[following] = _rows_with(fields, name, rows, of_name, ended.size, value_shapes[name])
        else:
            changed[following] = _with_rows(fields, name, rows, of_name, ended.size, key)
    return changed, (is_final & ended) if known else (is_final | ~ended)


def _part_of(final: object, top: str, observed: Mapping[str, Node], where: str) -> object:
    """The part of a final observation for a field or container. A single one gets all, unless it is named there."""
    is_named = isinstance(final, Mapping) and top in final
    if len(observed) == 1:
        node = observed[top]
        is_all = isinstance(node, dict) and isinstance(final, Mapping) and final.keys() == node.keys()
        return final[top] if is_named and not is_all else final  # type: ignore[index]
    if not is_named:
        allowed = f"dicts with {', '.join(observed)}, or no info, and next_{top} with the final ones"
        raise InvalidArgument(f"{where} has no {top}; allowed: {allowed}")
    return final[top]  # type: ignore[index]


def _as_flags(source: object, name: str, key: str) -> Any:
    if source is None:
        raise InvalidArgument(f"{name} is not given; needed beside info with {key}")
    return _arrays.as_array(source, name)[0] != 0


def _names(node: Node) -> list[str]:
    if isinstance(node, str):
        return [node]
    return [name for child in (node.values() if isinstance(node, dict) else node) for name in _names(child)]


def _rows_with(
    fields: Mapping[str, object], name: str, rows: list[int], finals: list[Any], n: int, value_shape: tuple[int, ...]
) -> list[Any]:
    """The same as _with_rows() for a field with rows of any length."""
    source = fields.get(f"next_{name}")
    following = [()] * n if source is None else ragged.rows_in(source, f"next_{name}", (n,), len(value_shape))
    if len(following) != n:
        raise InvalidArgument(f"next_{name} has {len(following)} rows; allowed: {n}, one for each step")
    for i, final in zip(rows, finals, strict=True):
        following[i] = final
    return following


def _with_rows(
    fields: Mapping[str, object], name: str, rows: list[int], finals: list[Any], n: int, key: str
) -> _arrays.Array:
    """A copy of the next observations of a field with those of some environments replaced."""
    source = fields.get(f"next_{name}")
    array = np.array(_as_numbers(fields.get(name) if source is None else source, name))
    if source is None:
        array[...] = 0
    if array.shape[:1] != (n,) or (n == 1 and len(finals) > 0 and array.shape == np.shape(finals[0])):
        array = array.reshape(n, *array.shape)
    for i, final in zip(rows, finals, strict=True):
        value = _as_numbers(final, f"info['{key}'][{i}]")
        if value.shape != array.shape[1:] or not np.can_cast(value.dtype, array.dtype, "same_kind"):
            raise InvalidArgument(
                f"info['{key}'][{i}] is {value.dtype}{list(value.shape)}, next_{name} of one environment "
                f"{array.dtype}{list(array.shape[1:])}; allowed: the same"
            )
        array[i] = value
    return array


def _as_numbers(source: object, name: str) -> _arrays.Array:
    """An array in numpy's dtypes: bfloat16 as float32."""
    array, code = _arrays.as_array(source, name)
    return _arrays.as_float(source, name) if code == _arrays.BFLOAT16 else array
