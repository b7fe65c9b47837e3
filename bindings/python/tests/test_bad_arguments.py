"""Bad arguments of every method, one at a time and in any combination: a Python error, and no change.

Methods and parameters are read from the signatures, so a new one must get its values here.
"""

from __future__ import annotations

import inspect
import io
import random
import re
from typing import Literal, get_origin

import numpy as np
import per
import pytest

# By annotation: invalid values for any argument of that kind.
BAD = {
    "int": [-7, 2**62, 2**70, 1.5, "seven", None, np.nan],
    "float": [-0.5, np.nan, np.inf, "half", None],
    "str": ["nonsense", 3, None, b"bytes"],
    "float | None": [-0.5, np.inf, "half"],
    "str | None": ["nonsense", 3],
    "int | None": [-(2**31), 2**70, 1.5, "seven"],
    "int | tuple[int, int] | None": [-7, 65, 2**70, (2, 1), (1, 2, 3), "seven"],
}
# Other names for types of this table.
SAME = {"IntLike": "int", "FloatLike": "float", "DeviceLike": "str"}
# Choices are strings at run time, whatever their words.
CHOICES = re.compile(
    "|".join(rf"\b{name}\b" for name, alias in vars(per.typing).items() if get_origin(alias) is Literal)
)
BAD_IDS = ["ids", [0.5], [2**50], [2**70], [None]]
BAD_NUMBERS = ["numbers", [None], np.ones((2, 3, 4)), [object()]]
BAD_ARRAYS = {"ids": BAD_IDS, "indices": [*BAD_IDS, [-1], [99]], "env_ids": [*BAD_IDS, [-1], [2]]}
# Every other parameter is one of these, or accepts values of any kind and has a separate test.
ARRAYS = ["td_errors", "priorities", "prefix_sums", "units", "reward"]
FLAGS = ["terminated", "truncated", "mask", "next_mask"]
OWN_TESTS = {"self", "stream", "fields", "out", "info", "hindsight", "bootstrap", "options", "path", "data"}
OWN_TESTS |= {"directory", "wait", "timeout", "drop_last", "next_observations", "state_dict"}
BAD_FLAGS = ["flags", object(), -1.5, 0.3, np.nan, 2, np.array([[0, 7]], np.uint8)]
ERRORS = (per.Error, TypeError, ValueError, OverflowError, KeyError)


def filled() -> per.ReplayBuffer:
    fields = {name: per.Field() for name in ("observation", "value", "advantage", "returns")}
    replay = per.ReplayBuffer(40, fields, n_envs=2, n_step=2, seed=3)
    for t in range(8):
        replay.add(**steps(t))
    return replay


def steps(t: int = 8) -> dict[str, object]:
    now = np.float32([t, t + 100])
    fields = dict.fromkeys(("observation", "value", "advantage", "returns"), now)
    flags = np.zeros(2, bool)
    return fields | {"next_observation": now + 1, "reward": now, "terminated": flags, "truncated": flags}


def tree() -> per.SumTree:
    made = per.SumTree(8)
    made.update([1, 4], [0.5, 2.0])
    return made


# Good arguments of each method that has any.
GOOD = {
    "ReplayBuffer.add": steps,
    "ReplayBuffer.extend": lambda: {name: np.asarray(value)[None] for name, value in steps().items()},
    "ReplayBuffer.advantages": lambda: {"bootstrap": lambda batch: np.zeros(len(batch["ids"]))},
    "ReplayBuffer.channel": lambda: {"env_ids": [0]},
    "ReplayBuffer.cut": lambda: {"env_ids": [0]},
    "ReplayBuffer.epochs": lambda: {"n_epochs": 1, "batch_size": 4},
    "ReplayBuffer.get": lambda: {"ids": [4]},
    "ReplayBuffer.get_units": lambda: {"units": [4]},
    "ReplayBuffer.get_windows": lambda: {"ids": [4]},
    "ReplayBuffer.summarize": dict,
    "ReplayBuffer.loader": lambda: {"batch_size": 4},
    "ReplayBuffer.priorities": lambda: {"ids": [4]},
    "ReplayBuffer.raise_max_priority": lambda: {"priority": 1.0},
    "ReplayBuffer.set_scale": lambda: {"scale": 3},
    "ReplayBuffer.shared_loader": lambda: {"batch_size": 4, "readers": 2},
    "ReplayBuffer.sample": lambda: {"batch_size": 4},
    "ReplayBuffer.set": lambda: {"ids": [4], "value": [1.0]},
    "ReplayBuffer.wait_to_add": lambda: {"count": 1},
    "ReplayBuffer.wait_to_sample": lambda: {"batch_size": 4},
    "ReplayBuffer.update_priorities": lambda: {"ids": [4], "td_errors": [1.0]},
    "SumTree.find": lambda: {"prefix_sums": [0.5]},
    "SumTree.find_mass": lambda: {"units": [0]},
    "SumTree.priorities": lambda: {"indices": [1]},
    "SumTree.sample": lambda: {"batch_size": 4},
    "SumTree.update": lambda: {"indices": [1], "priorities": [1.0]},
}
METHODS = {
    f"{kind.__name__}.{name}": inspect.signature(method)
    for kind in (per.ReplayBuffer, per.SumTree)
    for name, method in inspect.getmembers(kind, inspect.isfunction)
    if not name.startswith("_")
}


def bad_values(name: str, parameter: inspect.Parameter) -> list[object]:
    if name in BAD_ARRAYS:
        return BAD_ARRAYS[name]
    if name in ("prefix_sums", "units"):
        return [*BAD_NUMBERS[:2], [-1.0], [np.nan]]
    if name == "batch_size":
        return [*BAD["int"], 0, 2**24 + 1]
    if name == "key":
        return [*BAD_NUMBERS[:3], 7, [1, -2], [1.5, 2], [1, 2, 3]]
    if name == "gather_on_device":
        return [True, 1, "yes"]  # True requires a loader with batches on a GPU
    if name in ARRAYS:
        return BAD_NUMBERS
    if name in FLAGS:
        return BAD_FLAGS
    annotation = CHOICES.sub("str", str(parameter.annotation))
    return BAD.get(re.sub("|".join(SAME), lambda found: SAME[found[0]], annotation), [])


def rows() -> list[tuple[str, str, object]]:
    return [
        (method, name, value)
        for method, signature in METHODS.items()
        for name, parameter in signature.parameters.items()
        if name not in OWN_TESTS
        for value in bad_values(name, parameter)
    ]


def state(of: per.ReplayBuffer | per.SumTree) -> object:
    if isinstance(of, per.SumTree):
        return of.priorities().tobytes(), of.mass
    file = io.BytesIO()
    of.save(file)
    return file.getvalue()


def test_every_argument_has_bad_values():
    for method, signature in METHODS.items():
        for name, parameter in signature.parameters.items():
            assert name in OWN_TESTS or bad_values(name, parameter), f"{method}: {name}: {parameter.annotation}"


@pytest.mark.parametrize("method", [name for name in METHODS if name in GOOD])
def test_a_bad_argument_is_an_error_that_names_it_and_changes_nothing(method):
    subject = filled() if method.startswith("Replay") else tree()
    before = state(subject)
    for _, name, value in (row for row in rows() if row[0] == method):
        with pytest.raises(ERRORS) as raised:
            call(subject, method, {name: value})
        assert re.search(rf"\b{name}", str(raised.value)), (name, value, raised.value)
        assert state(subject) == before, (name, value)


def test_any_bad_arguments_at_once_are_an_error_that_changes_nothing():
    choices = random.Random(1)
    bad: dict[tuple[str, str], list[object]] = {}
    for method, name, value in rows():
        bad.setdefault((method, name), []).append(value)
    subjects = {"ReplayBuffer": filled(), "SumTree": tree()}
    before = {name: state(subject) for name, subject in subjects.items()}
    for _ in range(1500):
        method = choices.choice(list(GOOD))
        names = [name for of, name in bad if of == method]
        chosen = choices.sample(names, choices.randint(1, len(names)))
        kind = method.partition(".")[0]
        with pytest.raises(ERRORS):
            call(subjects[kind], method, {name: choices.choice(bad[method, name]) for name in chosen})
        assert state(subjects[kind]) == before[kind], (method, chosen)


def call(subject: object, method: str, given: dict[str, object]) -> object:
    return getattr(subject, method.partition(".")[2])(**GOOD[method]() | given)
