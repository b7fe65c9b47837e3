"""Helpers for buffers whose framework expects batches of single transitions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import per

_DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(per.ReplayBuffer).parameters.items()}
_OF_SEQUENCES = ("sequence_length", "burn_in", "sequence_stride")


def refuse_other_batches(options: Mapping[str, Any], **reasons: str) -> None:
    """Refuses options of per.ReplayBuffer whose batches the framework cannot use.

    The options of sequences are always refused. `reasons`: others by name, with the alternative to use.

    Raises
    ------
    InvalidArgument
        One of the options differs from its default.
    """
    for name, reason in {**dict.fromkeys(_OF_SEQUENCES, "batches hold single transitions here"), **reasons}.items():
        if name in options and options[name] != _DEFAULTS[name]:
            raise per.InvalidArgument(f"{name} is {options[name]!r}; allowed: {_DEFAULTS[name]!r}, as {reason}")
