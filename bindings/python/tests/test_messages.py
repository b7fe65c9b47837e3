"""Error messages: bad arguments of every public call, in the terms of this package and not of the C library."""

from __future__ import annotations

import importlib
import inspect
import math
import os
import pathlib
import re
import subprocess
import sys
import warnings

import numpy as np
import per
import pytest
from numpy.lib.stride_tricks import as_strided
from per import batch

# Words of per.h: constants, functions, members of structs, and a range of one number.
WORDS_OF_C = re.compile(
    r"PER_|NULL|\bper_|_fields? is|next_fields|n_fields|device_index|bootstrap_values|struct_size|\bcount is|->|"
    r"allowed are (-?\d+) \.\. \1\b"
)

HUGE = 2**62
NUMBERS = (HUGE, 2**64, 2**40, 2**24 + 1, 0, -1, 1.5, math.nan, math.inf, "a", None, True)
FIELDS = {"observation": per.Field(2), "action": per.Field((), "int64")}
STEP = {
    "observation": [0, 0],
    "action": 0,
    "reward": 1.0,
    "terminated": False,
    "truncated": False,
    "next_observation": [0, 0],
}


def filled(fields=FIELDS, **options):
    """A buffer with eight steps of zeros."""
    buffer = per.ReplayBuffer(64, fields, **options)
    zeros = {name: np.zeros(field.shape, field.dtype) for name, field in fields.items()}
    step = {"reward": 0, "terminated": False, "truncated": False, "next_observation": zeros["observation"]}
    for _ in range(8):
        buffer.add(**zeros, **step)
    return buffer


def fill(buffer):
    while True:
        buffer.add(**STEP)


def goals():
    return filled({"observation": per.Field(), "goal": per.Field()})


def values():
    return filled(
        {"observation": per.Field(), "value": per.Field(), "advantage": per.Field(), "i": per.Field((), "int8")}
    )


def step_with(**changed):
    return {**STEP, **changed}


def run_with(**changed):
    return {**{name: [value, value] for name, value in STEP.items()}, **changed}


def hindsight(**changed):
    given = {"achieved": "observation", "goal": "goal", "reward": lambda achieved, goal: achieved == goal}
    return per.Hindsight(**{**given, **changed})


def all_zeros(batch):
    return np.zeros(len(batch.ids))


def add_in_between(buffer):
    def bootstrap(batch):
        buffer.add(
            observation=0, value=0, advantage=0, i=0, reward=0, terminated=True, truncated=False, next_observation=0
        )
        return np.zeros(len(batch.ids))

    return bootstrap


def take_twice(buffer):
    with buffer.loader(4, slots=1) as loader:
        loader.take()
        loader.take(timeout=0)


def two_loaders(buffer):
    with buffer.loader(4):
        buffer.loader(4)


def save_and_change(folder, change):
    """Loads a file of save() after `change` of its bytes."""
    path = folder / "buffer.per"
    filled().save(path)
    path.write_bytes(change(path.read_bytes()))
    per.ReplayBuffer.load(path)


OPTIONS = [name for name in per.ReplayBuffer.__init__.__kwdefaults__ if name not in ("arrays", "device")]
SEQUENCE_OPTIONS = ("burn_in", "sequence_stride", "sequence_eta")


def with_option(name, value):
    more = {"sequence_length": 4} if name in SEQUENCE_OPTIONS else {}
    return per.ReplayBuffer(64, FIELDS, **more, **{name: value})


# By call, a function of a bad value. Some of the values are valid for some of the calls.
CALLS = {
    "capacity": lambda x: per.ReplayBuffer(x, FIELDS),
    "capacity of no field": lambda x: per.ReplayBuffer(64, {}),
    "capacity and fields": lambda x: per.ReplayBuffer(2**40, {"observation": per.Field(x)}),
    "capacity_for": lambda x: per.ReplayBuffer.capacity_for(x),
    "capacity_for, episode_length": lambda x: per.ReplayBuffer.capacity_for(8, x),
    "capacity_for, option": lambda x: per.ReplayBuffer.capacity_for(8, n_envs=x, bogus=x),
    "fields": lambda x: per.ReplayBuffer(64, x),
    "fields, name": lambda x: per.ReplayBuffer(64, {"observation": per.Field(), f"next_{x}": per.Field()}),
    "fields, observation": lambda x: per.ReplayBuffer(64, {"action": per.Field()}),
    "fields, field": lambda x: per.ReplayBuffer(64, {"observation": x}),
    "Field": per.Field,
    "Field, axes": lambda x: per.Field((2, x)),
    "Field, dtype": lambda x: per.Field((), x),
    "Field, role": lambda x: per.Field((), role=str(x)),
    "Field, stack": lambda x: per.Field((), stack=x),
    "device": lambda x: per.ReplayBuffer(64, FIELDS, device=f"cuda:{x}"),
    "device that is missing": lambda x: per.ReplayBuffer(64, FIELDS, device="cuda:7"),
    "arrays": lambda x: per.ReplayBuffer(64, FIELDS, arrays=x or "x"),
    **{f"option {name}": lambda x, name=name: with_option(name, x) for name in OPTIONS},
    **{f"add, {name}": lambda x, name=name: filled().add(**step_with(**{name: x})) for name in STEP},
    **{f"extend, {name}": lambda x, name=name: filled().extend(**run_with(**{name: [x, x]})) for name in STEP},
    "add, no such field": lambda x: filled().add(**step_with(bogus=x)),
    "add, env_ids": lambda x: filled().add(**STEP, env_ids=[x]),
    "add, info": lambda x: filled().add(**STEP, info=7 if x is None else x),
    "add, info with finals": lambda x: filled().add(**STEP, info={"final_obs": [x]}),
    "add, mask": lambda x: filled().add(**STEP, mask=[x, x]),
    "add, priorities": lambda x: filled().add(**STEP, priorities=[x], td_errors=[x]),
    "add, td_errors": lambda x: filled().add(**STEP, td_errors=[x]),
    "add, stream": lambda x: filled().add(**STEP, stream=x),
    "add, gap": lambda x: filled(on_gap="error").add(**step_with(observation=[7, 7])),
    "add, nan": lambda x: filled(on_nan="error").add(**step_with(reward=math.nan)),
    "add, full": lambda x: fill(filled(overwrite=False)),
    "extend, no axis of time": lambda x: filled().extend(**STEP),
    "extend, huge": lambda x: filled().extend(**run_with(terminated=as_strided(np.zeros(1, bool), (2**40,), (0,)))),
    "cut": lambda x: filled().cut([x]),
    "sample": lambda x: filled().sample(x),
    "sample, empty": lambda x: per.ReplayBuffer(64, FIELDS).sample(4),
    "sample, sequences": lambda x: filled(sequence_length=4).sample(x),
    "sample, sequences, n_step": lambda x: filled(sequence_length=4).sample(4, n_step=x),
    "sample, n_step": lambda x: filled().sample(4, n_step=x),
    "sample, beta": lambda x: filled().sample(x, beta=0.5),
    "sample, scheme": lambda x: filled().sample(x, scheme="without_replacement"),
    "sample, out": lambda x: filled().sample(4, out=x or 7),
    "sample, size of out": lambda x: (lambda buffer: buffer.sample(x, out=buffer.sample(4)))(filled()),
    "sample, hindsight": lambda x: goals().sample(x, hindsight=hindsight()),
    "hindsight": lambda x: goals().sample(4, hindsight=x or 7),
    "hindsight, k": lambda x: hindsight(k=x),
    "hindsight, strategy": lambda x: hindsight(strategy=x),
    "hindsight, reward": lambda x: hindsight(reward=x),
    "hindsight, what reward gives": lambda x: goals().sample(64, hindsight=hindsight(reward=lambda a, g: x)),
    "hindsight, achieved": lambda x: goals().sample(4, hindsight=hindsight(achieved=x)),
    "hindsight, goal": lambda x: goals().sample(4, hindsight=hindsight(goal="observation")),
    "hindsight, no observation": lambda x: goals().sample(4, hindsight=hindsight(achieved="goal", goal="observation")),
    "hindsight, sequences": lambda x: filled(sequence_length=2).sample(4, hindsight=hindsight(goal="action")),
    "update_priorities": lambda x: filled().update_priorities([x], [1.0]),
    "update_priorities, td_errors": lambda x: filled().update_priorities([0], [x]),
    "update_priorities, priorities": lambda x: filled().update_priorities([0], priorities=[x]),
    "update_priorities, shapes": lambda x: filled().update_priorities([0, 1], [1.0]),
    "update_priorities, neither": lambda x: filled().update_priorities([0]),
    "priorities": lambda x: filled().priorities([x]),
    "get": lambda x: filled().get([x]),
    "set": lambda x: filled().set([x], action=[1]),
    "set, field": lambda x: filled().set([0], action=[x]),
    "set, observation": lambda x: filled().set([0], observation=[[0, 0]]),
    "advantages, gae_lambda": lambda x: values().advantages(gae_lambda=x, bootstrap=all_zeros),
    "advantages, value": lambda x: values().advantages(value=x, bootstrap=all_zeros),
    "advantages, dtype": lambda x: values().advantages(value="i", bootstrap=all_zeros),
    "advantages, returns": lambda x: values().advantages(returns="value", bootstrap=all_zeros),
    "advantages, bootstrap": lambda x: values().advantages(bootstrap=x),
    "advantages, what bootstrap gives": lambda x: values().advantages(bootstrap=lambda batch: [x]),
    "advantages, steps in between": lambda x: (lambda b: b.advantages(bootstrap=add_in_between(b)))(values()),
    "alpha": lambda x: setattr(filled(), "alpha", x),
    "beta": lambda x: setattr(filled(), "beta", x),
    "gamma": lambda x: setattr(filled(), "gamma", x),
    "n_step": lambda x: setattr(filled(), "n_step", x),
    "epochs": lambda x: next(filled().epochs(1, x)),
    "epochs, n_epochs": lambda x: next(filled().epochs(x, 4)),
    "epochs, drop_last": lambda x: filled().epochs(1, 64, drop_last=True),
    "loader": lambda x: filled().loader(x).close(),
    "loader, slots": lambda x: filled().loader(4, slots=x).close(),
    "loader, n_step": lambda x: filled(sequence_length=4).loader(4, n_step=x).close(),
    "loader, device": lambda x: filled().loader(4, device="cuda:7"),
    "loader, a second one": lambda x: two_loaders(filled()),
    "loader, no slot": lambda x: take_twice(filled()),
    "loader, empty": lambda x: next(per.ReplayBuffer(64, FIELDS).loader(4)),
    "save": lambda x: filled().save(x),
    "save, no folder": lambda x: filled().save("/nowhere/at/all"),
    "load": per.ReplayBuffer.load,
    "load, no file": lambda x: per.ReplayBuffer.load("/nowhere/at/all"),
    "load, device": lambda x: per.ReplayBuffer.load("/nowhere/at/all", device=f"cuda:{x}"),
    "synchronize": lambda x: filled().synchronize(stream=x),
    "SumTree": per.SumTree,
    "SumTree, seed": lambda x: per.SumTree(4, seed=x),
    "SumTree, device": lambda x: per.SumTree(4, device=f"cuda:{x}"),
    "SumTree.update": lambda x: per.SumTree(1).update([x], [1.0]),
    "SumTree.update, priorities": lambda x: per.SumTree(1).update([0], [x]),
    "SumTree.sample": lambda x: tree().sample(x),
    "SumTree.sample, beta": lambda x: tree().sample(4, beta=x),
    "SumTree.sample, scheme": lambda x: tree().sample(4, scheme=x),
    "SumTree.sample, too few": lambda x: tree().sample(4, scheme="without_replacement"),
    "SumTree.find": lambda x: tree().find([x]),
    "SumTree.find_mass": lambda x: tree().find_mass([x]),
    "SumTree.find, empty": lambda x: per.SumTree(4).find([0]),
    "SumTree.priorities": lambda x: tree().priorities([x]),
}


def tree():
    found = per.SumTree(4)
    found.update([0, 1], [1.0, 2.0])
    return found


def errors_of(call):
    """The errors, successes left out, of calls with each of the values."""
    for value in NUMBERS:
        try:
            call(value)
        except BaseException as error:
            yield value, error


@pytest.mark.usefixtures("each_way")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", CALLS)
def test_errors_are_this_package_s_and_speak_no_c(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = list(errors_of(CALLS[name]))
    assert found
    for value, error in found:
        assert isinstance(error, per.Error), (value, repr(error))
        assert not WORDS_OF_C.search(str(error)), (value, str(error))


@pytest.mark.parametrize("n_bytes", [0, 7, 40, 300])
def test_damaged_files_are_spoken_of_without_words_of_c(tmp_path, n_bytes):
    with pytest.raises(per.Error) as raised:
        save_and_change(tmp_path, lambda data: data[:n_bytes])
    assert not WORDS_OF_C.search(str(raised.value))


# Buffers with one environment and fields with one name: a range with one number is printed as a number.
def test_one_allowed_number_is_no_range():
    with pytest.raises(per.InvalidArgument, match=r"^env_ids\[0\] is 3: allowed is 0$"):
        filled().cut([3])
    with pytest.raises(per.InvalidArgument, match=r"^n_step is 2: allowed is 1, as n_step of the buffer is 1$"):
        filled().sample(4, n_step=2)
    for n_step in (2**31, (1, 2**40)):
        with pytest.raises(per.InvalidArgument, match=r"^n_step\S* is \d+: allowed is 1"):
            filled(sequence_length=4).sample(4, n_step=n_step)


SIZES = [2**24 + 1, 2**40, HUGE, 2**63 - 1, 2**64, 0, -1]


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("arrays", ["numpy", "torch"])
@pytest.mark.parametrize("size", SIZES)
def test_absurd_sizes_of_batches_are_invalid_and_no_draw(arrays, size):
    buffer, twin = filled(arrays=arrays), filled(arrays=arrays)
    draws = [
        *(buffer.sample, lambda size: buffer.sample(size, beta=0.5), lambda size: buffer.epochs(1, size)),
        *(
            buffer.loader,
            lambda size: buffer.shared_loader(size, readers=1),
            buffer.wait_to_sample,
            per.SumTree(4).sample,
        ),
    ]
    for draw in draws:
        with pytest.raises(per.InvalidArgument, match=r"^batch_size is"):
            draw(size)
    assert buffer.sample(16).ids.tolist() == twin.sample(16).ids.tolist()


LITTLE_MEMORY = """
import re, resource
import per
buffer = per.ReplayBuffer(8, {"observation": per.Field((84, 84))}, arrays=%r)
buffer.add(observation=[[0] * 84] * 84, reward=0, terminated=False, truncated=True, next_observation=[[0] * 84] * 84)
buffer.sample(2)
used = int(re.search(r"VmSize:\\s*(\\d+)", open("/proc/self/status").read())[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
try:
    buffer.sample(2**24)
except per.OutOfMemory as error:
    print(error)
assert buffer.sample(2).ids.tolist() == [0, 0]
"""


@pytest.mark.parametrize("way", ["1", "0"])
@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_batch_for_which_there_is_no_memory_says_how_many_bytes(arrays, way):
    environment = {**os.environ, "PER_BRIDGE": way, "PYTHONPATH": str(pathlib.Path(per.__file__).parents[1])}
    command = [sys.executable, "-c", LITTLE_MEMORY % arrays]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # float32, 2^24 of 84 x 84: 28,224 bytes each
    assert done.stdout.startswith("out of memory: 473520144384 bytes")


def taking_fields():
    """The arguments, beside fields, of each method that takes fields by name."""
    kinds = [per.ReplayBuffer, per.Writer, importlib.import_module("per.torch").Buffer]
    methods = [method for kind in kinds for _, method in inspect.getmembers(kind, inspect.isfunction)]
    for method in methods:
        parameters = inspect.signature(method).parameters.values()
        if {"fields", "arrays"} & {each.name for each in parameters if each.kind is each.VAR_KEYWORD}:
            yield {each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)}


def test_no_field_has_the_name_of_an_argument_of_a_call_that_takes_fields_by_name():
    arguments = set().union(*taking_fields())
    assert len(list(taking_fields())) == 7 and arguments > set(batch._ARGUMENTS)
    for name in sorted(arguments):
        with pytest.raises(per.InvalidArgument, match=rf"{name}\b.*(has the name of an argument|reserved)"):
            per.ReplayBuffer(10, {"observation": per.Field(), name: per.Field()})
    nested = {"observation": per.Field(), "info.speed": per.Field()}
    with pytest.raises(per.InvalidArgument, match="field info has the name of an argument"):
        per.ReplayBuffer(10, nested)


def test_a_buffer_of_another_language_whose_field_has_such_a_name_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(batch, "_ARGUMENTS", ())
    other = per.ReplayBuffer(10, {"observation": per.Field(), "timeout": per.Field()})
    other.save(tmp_path / "saved")
    channel = other.channel()
    monkeypatch.undo()
    for open_it in (lambda: per.ReplayBuffer.load(tmp_path / "saved"), channel.writer):
        with pytest.raises(per.InvalidArgument, match="field timeout has the name of an argument"):
            open_it()


def test_a_field_may_be_called_self():
    buffer = filled({"observation": per.Field(2), "self": per.Field()})
    ids = buffer.add(**{"observation": [0, 0], "self": 3.0, "reward": 0, "terminated": False, "truncated": False})
    buffer.set(ids, **{"self": [4.0]})
    writer = buffer.channel().writer()
    writer.add(**{"observation": [0, 0], "self": 3.0, "reward": 0, "terminated": False, "truncated": False})
    assert buffer.get(ids, next_observations=False)["self"].tolist() == [4.0]


def test_what_is_given_without_a_name_is_told_the_names():
    buffer = filled()
    writer = buffer.channel().writer()
    names = "observation=..., action=..., next_observation=..., reward=..., terminated=..., truncated=..."
    for subject in (buffer, writer):
        with pytest.raises(TypeError, match=re.escape(f"add() takes names: {names}; given without a name: list, int")):
            subject.add([0, 0], 1)
        with pytest.raises(TypeError, match=re.escape(f"extend() takes names: {names}; given without a name: list")):
            subject.extend([STEP, STEP])
        assert "positional" not in str(inspect.signature(subject.add))
    assert len(buffer) == 8


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((3, 84, 80), "expected is (84, 80, 3); its axes are in another order"),
        ((80, 84, 3), "expected is (84, 80, 3); its axes are in another order"),
        ((84, 80), "expected is (84, 80, 3)"),
        ((4, 84, 80), "expected is (84, 80, 3)"),
    ],
)
def test_axes_in_another_order(shape, words):
    buffer = per.ReplayBuffer(9, {"observation": per.Field((84, 80, 3), "uint8")})
    image = np.zeros(shape, np.uint8)
    with pytest.raises(per.InvalidArgument) as error:
        buffer.add(observation=image, reward=0, terminated=False, truncated=False, next_observation=image)
    assert str(error.value) == f"observation has shape {shape}: {words}"


def test_a_buffer_for_which_there_is_no_memory_names_its_capacity():
    with pytest.raises(per.OutOfMemory) as error:
        per.ReplayBuffer(10**12, {"observation": per.Field((84, 84, 3), "uint8")})
    words = r"out of memory: \d{17} bytes \(\d{8}\.\d GB\) were asked for; capacity is 1000000000000: fewer rows, or .*"
    assert re.fullmatch(words, str(error.value))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("push", "; did you mean add()?"),
        ("get_batch", "; did you mean sample()?"),
        ("update", "; did you mean update_priorities()?"),
        ("size", "; did you mean len()?"),
        ("sampel", "; did you mean sample?"),
        ("load_everything", ""),
        ("_exchang", ""),
        ("per.load", "; did you mean ReplayBuffer.load()?"),
        ("per.PrioritizedReplayBuffer", "; did you mean ReplayBuffer()?"),
        ("per.Replaybuffer", "; did you mean ReplayBuffer?"),
        ("per.nonsense", ""),
    ],
)
def test_a_name_that_a_buffer_or_the_package_does_not_have(name, words):
    is_of_package, name = name.startswith("per."), name.removeprefix("per.")
    owner, whose = (per, "module 'per'") if is_of_package else (per.ReplayBuffer(9, FIELDS), "'ReplayBuffer' object")
    with pytest.raises(AttributeError) as error:
        getattr(owner, name)
    assert str(error.value) == f"{whose} has no attribute '{name}'{words}"


def test_an_error_within_a_property_of_a_subclass_is_not_hidden():
    class Own(per.ReplayBuffer):
        @property
        def newest(self):
            return self.nonsense

    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = Own(9, FIELDS).newest


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: per.ReplayBuffer(100, FIELDS, n_steps=3),
            "ReplayBuffer() has no argument n_steps; did you mean n_step?",
        ),
        (lambda: per.ReplayBuffer(buffer_size=9, fields=FIELDS), "no argument buffer_size; did you mean capacity?"),
        (lambda: per.ReplayBuffer(100, FIELDS, xyz=3), "ReplayBuffer() has no argument xyz"),
        (lambda: per.SumTree(8, sed=3), "SumTree() has no argument sed; did you mean seed?"),
        (lambda: per.Field((), dtpye="int8"), "Field() has no argument dtpye; did you mean dtype?"),
        (lambda: per.Hindsight("a", "b", max, stratgy="final"), "no argument stratgy; did you mean strategy?"),
    ],
)
def test_a_misspelt_argument_of_a_constructor_is_told_what_was_meant(call, words):
    with pytest.raises(TypeError, match=re.escape(words)):
        call()


MEANT = {
    "obsevation": "observation",
    "rewrd": "reward",
    "terminations": "terminated",
    "td_error": "td_errors",
    "priority": "priorities",
    "env_id": "env_ids",
    "dones": "terminated and truncated",
}


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("name", MEANT)
def test_a_misspelt_name_given_with_a_step_is_told_what_was_meant(name):
    parts = {"observation.image": per.Field(), "observation.speed": per.Field()}
    plain, nested = per.ReplayBuffer(64, FIELDS), per.ReplayBuffer(64, parts)
    words = rf"^{name} is no field of this buffer; its fields: observation.*; did you mean {MEANT[name]}\?$"
    for subject in (plain, nested, plain.channel().writer(), nested.channel().writer()):
        for call in (subject.add, subject.extend):
            with pytest.raises(per.InvalidArgument, match=words):
                call(terminated=[False], truncated=[False], reward=[0], **{name: [0]})


def test_a_name_that_is_like_no_other_or_known_elsewhere_is_told_no_other():
    buffer = filled()
    fields = "its fields: observation, action, next_observation$"
    with pytest.raises(per.InvalidArgument, match=f"^next_action is no field of this buffer; {fields}"):
        buffer.add(**STEP, next_action=0)
    with pytest.raises(per.InvalidArgument, match=r"^next_observation cannot be set; allowed: action$"):
        buffer.set([0], next_observation=[[0, 0]])
    with pytest.raises(per.InvalidArgument, match=r"^obs is no field of this buffer; its fields: state, next_state$"):
        per.ReplayBuffer(64, {"state": per.Field(role="observation")}).add(obs=0)


def step_of_four(**changed):
    """A step of four environments."""
    return {**{name: [value] * 4 for name, value in STEP.items()}, **changed}


def lost(n_envs=1):
    """A buffer of 8 rows per environment whose first steps are overwritten."""
    buffer = per.ReplayBuffer(8 * n_envs, FIELDS, n_envs=n_envs)
    for _ in range(20):
        buffer.add(**{name: [value] * n_envs for name, value in STEP.items()})
    return buffer


OTHER = {"observation": per.Field(2), "action": per.Field(), "value": per.Field()}

ADVICE = {
    # ids
    "id not issued": (lambda: filled().get([0, 999]), "ids[1] is 999: never issued; ids so far are 0 .. 7"),
    "id of an empty buffer": (
        lambda: per.ReplayBuffer(64, FIELDS).priorities([0]),
        "ids[0] is 0: never issued; no step was added yet",
    ),
    "id of a later environment": (lambda: lost(4).get([800]), "ids[0] is 800: never issued; ids so far are 0 .. 79"),
    "negative id": (lambda: filled().set([-2], action=[1]), "ids[0] is -2: never issued; ids are 0 and above"),
    "id overwritten": (
        lambda: lost().get([3], next_observations=False),
        "ids[0] is 3: overwritten; the oldest row still stored is 13",
    ),
    "id overwritten, of one environment of two": (
        lambda: lost(2).get([3], next_observations=False),
        "ids[0] is 3: overwritten; the oldest row of environment 1 still stored is 27",
    ),
    "id cleared": (lambda: (lambda b: (b.clear(), b.get([3])))(filled()), "ids[0] is 3: cleared; no step was added"),
    "id of no step": (lambda: filled().get([-1]), "ids[0] is -1: no step; -1 marks steps that were not added"),
    "id not live": (
        lambda: lost().get_windows([3]),
        "ids[0] is 3: no live transition (overwritten; the oldest row still stored is 13); with on_invalid 'skip' such",
    ),
    "id not live yet": (
        lambda: (lambda b: b.get_windows(b.add(**step_with(next_observation=None))))(filled()),
        "ids[0] is 8: no live transition (not yet, as more steps of its episode are needed)",
    ),
    "no next observation": (
        lambda: (lambda b: b.get(b.add(**step_with(next_observation=None))))(filled()),
        "was marked as unknown); must be read with next_observations=False",
    ),
    # shapes
    "no axis of environments": (
        lambda: filled_of_four().add(**step_of_four(observation=[0, 0])),
        "observation has shape (2,): expected is (4, 2), as n_envs is 4",
    ),
    "no axis of environments in a run": (
        lambda: filled_of_four().extend(**run_of_four(action=np.zeros(3, int))),
        "action has shape (3,): expected is (3, 4), as n_envs is 4",
    ),
    "other steps": (
        lambda: filled().extend(**run_with(action=[0, 0, 0])),
        "action has shape (3,): expected is (2,), as 2 steps are added",
    ),
    "a run in add()": (
        lambda: filled_of_four().add(**run_of_four()),
        "observation has shape (3, 4, 2): expected is (1, 4, 2), as add() takes one step; extend() takes several",
    ),
    "one-hot actions": (
        lambda: filled_of_four().add(**step_of_four(action=np.eye(4, 2, dtype=int))),
        "action has shape (4, 2): expected is (4,)",
    ),
    "mask": (
        lambda: filled_of_four().add(**step_of_four(), mask=[True]),
        "mask has shape (1,): expected is (4,), as n_envs",
    ),
    "values for other ids": (
        lambda: filled().set([0, 1], action=[1]),
        "action has shape (1,): expected is (2,), as the number of ids is 2",
    ),
    # steps
    "what reset() returns": (
        lambda: filled().add(**step_with(observation=(np.zeros(2), {}))),
        "observation is a tuple that ends with a dict, as reset() and step() of an environment return it; give its "
        "first element, the observation",
    ),
    "what reset() returns, of parts": (
        lambda: per.ReplayBuffer(64, {"observation.a": per.Field(2)}).add(**step_with(observation=({"a": [0, 0]}, {}))),
        "observation is a tuple that ends with a dict, as reset()",
    ),
    "lists of different lengths": (
        lambda: filled().add(**step_with(observation=[[0, 0], [0]])),
        "observation is a list that is no array of numbers: its parts have different lengths",
    ),
    **{
        f"{name} as text": (
            lambda name=name: filled().add(**{**STEP, name: "no"}),
            f"{name} has dtype str; allowed: flags, which are booleans, or 0 and 1",
        )
        for name in ("terminated", "truncated", "mask", "next_mask")
    },
    "reward as text": (lambda: filled().add(**step_with(reward="1")), "reward has dtype str; allowed: numbers"),
    "no reward": (
        lambda: filled().add(observation=[0, 0], action=0, terminated=False, truncated=False),
        "reward is missing: every step needs it",
    ),
    "no truncated": (
        lambda: filled().add(**step_with(truncated=None)),
        "truncated is missing: every step needs it; False is right where episodes have no time limit",
    ),
    "no terminated": (
        lambda: filled().add(**step_with(terminated=None)),
        "terminated is missing: every step needs it",
    ),
    "no action": (
        lambda: filled().add(**step_with(action=None)),
        "action is missing: every step needs it, as the field has no default",
    ),
    "no final observation": (
        lambda: filled().add(**step_with(truncated=True, next_observation=None)),
        "its final observation must be given as its next observation, or be marked as unknown by a False next_mask",
    ),
    "gap": (
        lambda: filled(on_gap="error").add(**step_with(observation=[7, 7])),
        "differs from the next observation of the step before (on_gap is 'error'); if the environment was reset, "
        "call cut() first",
    ),
    "full": (
        lambda: fill(filled(overwrite=False)),
        "and overwrite is off; clear() empties the buffer, ReplayBuffer.capacity_for() computes a larger capacity",
    ),
    # draws
    "rate limiter, too few steps": (
        lambda: filled(min_size_to_sample=20).sample(4),
        "allows no draw before 20 steps are added (min_size_to_sample); 8 are so far. wait_to_sample() waits for them",
    ),
    "rate limiter, too many draws": (
        lambda: [buffer.sample(8) for buffer in [filled(samples_per_insert=1, samples_tolerance=8)] * 9],
        "the rate limiter allows at most 7 before more steps are added (samples_per_insert 1, samples_tolerance 8)",
    ),
    "n_step of a call": (
        lambda: filled(n_step=3).sample(4, n_step=4),
        "n_step is 4: allowed are 1 .. 3, as n_step of the buffer is 3",
    ),
    "device that is none": (
        lambda: per.ReplayBuffer(10, {"x": per.Field()}, device="gpu", arrays="numpy"),
        "device is 'gpu'; allowed",
    ),
    "range of n_step": (lambda: filled(n_step=3).sample(4, n_step=(3, 2)), "n_step is (3, 2); allowed: (least, most)"),
    # other calls
    "move() beside the thread": (
        lambda: [channel.move() for channel in [filled().channel()]],
        "channel has a thread that moves its steps: move() is for channels with moved_by 'calls'",
    ),
    "advantages without a value": (
        lambda: filled().advantages(),
        "value is 'value', but the buffer has no such field; its fields: observation, action; name one of them, or "
        "declare 'value': per.Field()",
    ),
    "advantages without a field for them": (
        lambda: filled(OTHER).advantages(),
        "name one of them, or declare 'advantage': per.Field(default=0.0)",
    ),
    "advantages of whole numbers": (
        lambda: filled({**FIELDS, "value": per.Field()}).advantages(
            value="action", advantage="value", bootstrap=all_zeros
        ),
        'value is "action": must be a plain float32 field with one number a step, as per.Field() declares it',
    ),
    "set the reward": (lambda: filled().set([0], reward=[1]), "reward cannot be set; allowed: action"),
    "set the next observation": (
        lambda: filled().set([0], next_observation=[[0, 0]]),
        "next_observation cannot be set; allowed: action",
    ),
    "set priorities": (
        lambda: filled().set([0], priorities=[1]),
        "priorities cannot be set; update_priorities() takes them",
    ),
    "set an observation": (
        lambda: filled().set([0], observation=[[0, 0]]),
        "observations cannot be set, as rows share them; these can: action",
    ),
    "set where nothing can be": (
        lambda: filled({"observation": per.Field(2)}).set([0], reward=[1]),
        "reward cannot be set; this buffer has only observations",
    ),
    # creation
    "capacity": (lambda: per.ReplayBuffer(8, FIELDS, n_envs=4, n_step=5), "; the least capacity is 28"),
    "field as a shape": (
        lambda: per.ReplayBuffer(8, {"observation": (3,)}),
        "fields has 'observation': (3,); allowed: names and per.Field, such as per.Field((3,))",
    ),
    "fields first": (
        lambda: per.ReplayBuffer(FIELDS, 8),
        "fields is an int; allowed: a dict of names and per.Field, such as {'observation': per.Field(4)}, after the",
    ),
    "no observation": (
        lambda: per.ReplayBuffer(8, {"obs": per.Field(3)}),
        "fields have no observation: name one \"observation\", or give one the role 'observation'",
    ),
    # files
    "other state": (
        lambda: filled().load_state_dict({"model": 1}),
        "state_dict has 'model'; allowed: 'checkpoint', as state_dict() returned it",
    ),
    "state of another type": (
        lambda: filled().load_state_dict(b"x"),
        "state_dict is a bytes; allowed: what state_dict() returned",
    ),
    "other file": (lambda: per.ReplayBuffer.load(__file__), "it is not a file of libper, as save() writes them"),
    "tree of zeros": (lambda: per.SumTree(4).sample(2), "all priorities of the tree are 0; set one above 0 first"),
}


def filled_of_four():
    return per.ReplayBuffer(64, FIELDS, n_envs=4)


def run_of_four(**changed):
    zeros = {name: np.zeros((3, 4, *np.shape(value))) for name, value in STEP.items()}
    return {**zeros, "action": np.zeros((3, 4), int), **changed}


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("name", ADVICE)
def test_messages_tell_newcomers_what_to_do(name):
    call, words = ADVICE[name]
    with pytest.raises(per.Error, match=re.escape(words)) as raised:
        call()
    assert not WORDS_OF_C.search(str(raised.value))


def test_a_constructor_shows_its_own_arguments():
    assert list(inspect.signature(per.ReplayBuffer).parameters)[:3] == ["capacity", "fields", "n_envs"]
    assert list(inspect.signature(per.Field).parameters)[:2] == ["shape", "dtype"]


@pytest.mark.usefixtures("each_way")
def test_a_whole_batch_in_the_place_of_ids_is_said_so():
    buffer = filled()
    drawn = buffer.sample(4)
    words = "^ids is a Batch; allowed: arrays, numbers and lists of them: give batch.ids$"
    for call in (
        lambda: buffer.update_priorities(drawn, np.ones(4)),
        lambda: buffer.priorities(drawn),
        lambda: buffer.get(drawn),
        lambda: buffer.get_windows(drawn),
        lambda: buffer.set(drawn, action=[1]),
    ):
        with pytest.raises(per.InvalidArgument, match=words):
            call()


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (["a"], "str"),
        (np.array([b"a"]), "bytes"),
        ([True], "bool"),
        (np.ones(1), "float64"),
        ([None], "object"),
        ([2**64], "object"),
        ([1j], "complex128"),
    ],
)
def test_ids_that_are_no_whole_numbers_are_told_their_dtype_and_what_is_allowed(given, dtype):
    buffer = filled()
    words = f"^(env_)?ids has dtype {dtype}; allowed: whole numbers of up to 64 bits$"
    for call in (
        lambda: buffer.update_priorities(given, [1.0]),
        lambda: buffer.priorities(given),
        lambda: buffer.get(given),
        lambda: buffer.get_windows(given),
        lambda: buffer.set(given, action=[1]),
        lambda: buffer.cut(given),
    ):
        with pytest.raises(per.InvalidArgument, match=words):
            call()
    with pytest.raises(per.InvalidArgument, match=r"^td_errors has dtype str; allowed: numbers$"):
        buffer.update_priorities([0], ["a"])


def test_axes_of_one_that_are_too_many_are_not_asked_for():
    buffer = per.ReplayBuffer(64, FIELDS, n_envs=2)
    step = {name: [value, value] for name, value in STEP.items()}
    for name in ("action", "reward", "terminated"):
        with pytest.raises(per.InvalidArgument, match=rf"^{name} has shape \(2, 1\): expected is \(2,\)$"):
            buffer.add(**{**step, name: np.zeros((2, 1), int)})


def test_shape_of_other_environments_is_refused_with_their_number():
    buffer = per.ReplayBuffer(64, FIELDS)
    step = {name: [value] * 4 for name, value in STEP.items()}
    with pytest.raises(per.InvalidArgument, match=r"^observation has shape \(4, 2\): .*, as n_envs is 1$"):
        buffer.add(**step)
    with pytest.raises(per.InvalidArgument, match=r"\(4, 2\): .*, as the length of env_ids is 1$"):
        per.ReplayBuffer(64, FIELDS, n_envs=4).add(**step, env_ids=[2])


def test_array_of_another_kind_is_refused_with_what_to_do():
    words = (
        "action has dtype float64: allowed are bool and integers, as the field is int64; "
        "convert the values, or declare the field as float64"
    )
    with pytest.raises(per.InvalidArgument, match=f"^{words}$"):
        filled().add(**step_with(action=0.5))


def test_end_of_an_episode_without_final_observations_asks_for_the_info():
    buffer = per.ReplayBuffer(64, FIELDS, autoreset="same_step")
    with pytest.raises(per.InvalidArgument, match=r"info=info\) says by itself") as raised:
        buffer.add(**step_with(terminated=True))
    assert not WORDS_OF_C.search(str(raised.value))


@pytest.mark.parametrize(
    ("options", "noun", "steps"),
    [
        ({"n_step": 5}, "transition", "n_step"),
        ({"n_step": 5, "sequence_length": 4}, "sequence", "burn_in + sequence_length + n_step - 1"),
    ],
)
def test_draw_where_nothing_is_live_tells_whether_steps_were_added_and_how_many_are_needed(options, noun, steps):
    buffer = per.ReplayBuffer(64, FIELDS, **options)
    draws = (lambda: buffer.sample(4), lambda: buffer.epochs(1, 4))
    for draw in draws:
        with pytest.raises(per.Empty, match=f"^no {noun} is live: no step was added yet$"):
            draw()
    for _ in range(3):
        buffer.add(**STEP)
    words = (
        f"no {noun} is live (steps added: 3, n_step: 5): a {noun} is live once {steps} steps of its episode and the "
        "observation after them, or the end of the episode, were added, until it is overwritten, cleared, drawn "
        "max_times_sampled times or older than max_age; add more steps before drawing"
    )
    for draw in draws:
        with pytest.raises(per.Empty, match=f"^{re.escape(words)}$"):
            draw()


def test_quoted_names_stay_as_they_are():
    buffer = filled({"observation": per.Field(), "count": per.Field(2), "lambda": per.Field()})
    with pytest.raises(per.InvalidArgument, match=r'^value is "count": must be a plain float32 field'):
        buffer.advantages(value="count", advantage="lambda", bootstrap=all_zeros)


def run_of(n_steps, **changed):
    zeros = {name: np.zeros((n_steps, *np.shape(value))) for name, value in STEP.items()}
    return {**zeros, "action": np.zeros(n_steps, int), **changed}


def warnings_of(action):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(warning.message) for warning in caught if warning.filename == __file__]


@pytest.mark.parametrize("n_envs", [1, 2])
def test_more_steps_at_once_than_an_environment_has_rows_are_warned_of_once(n_envs):
    buffer = per.ReplayBuffer(8 * n_envs, FIELDS, n_envs=n_envs)

    def extend(n_steps):
        run = run_of(n_steps)
        if n_envs > 1:
            run = {name: np.stack([array] * n_envs, 1) for name, array in run.items()}
        return warnings_of(lambda: buffer.extend(**run))

    assert extend(8) == []
    assert extend(9) == [
        "extend() was given 9 steps of an environment that has room for 8: only the latest stay. "
        f"A capacity for all is ReplayBuffer.capacity_for({9 * n_envs}, ...)"
    ]
    assert extend(9) == []


@pytest.mark.parametrize(
    "reward, told",
    [
        (2**24 + 1, 2**24 + 1),
        (np.array(-(2**24) - 1), -(2**24) - 1),
        ([2**24 + 1], 2**24 + 1),
        (np.int32(2**24 + 1), 2**24 + 1),
        (2**53 + 1, 2**53 + 1),
        (2**63 - 1, 2**63 - 1),
        (2**24, None),
        (2**24 + 2, None),
        (2.0**24 + 1, None),
        (np.float64(2**24 + 1), None),
        (-(2**63), None),
        (True, None),
    ],
)
@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_whole_reward_that_float32_does_not_have_is_warned_of_once(reward, told, arrays):
    buffer = per.ReplayBuffer(64, FIELDS, arrays=arrays)
    expected = [] if told is None else [f"reward {told} is stored as {int(np.float32(told))}: "]
    for call in (lambda: buffer.add(**step_with(reward=reward)), lambda: buffer.extend(**run_of(1, reward=reward))):
        found = warnings_of(call)
        assert len(found) == len(expected) and all(map(str.startswith, found, expected))
        expected = []


def test_rewards_of_torch_are_looked_at():
    torch = pytest.importorskip("torch")
    rewards = torch.tensor([1, 2**24 + 1, 3])
    buffer = per.ReplayBuffer(64, FIELDS)
    assert len(warnings_of(lambda: buffer.extend(**run_of(3, reward=rewards)))) == 1
    assert warnings_of(lambda: buffer.extend(**run_of(3, reward=rewards.float()))) == []


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_as_many_critics_as_ids_are_warned_of_at_the_first_update(arrays):
    zeros = np.zeros if arrays == "numpy" else importlib.import_module("torch").zeros

    def update(*shape, ids=(0, 1, 2), **options):
        buffer = filled(arrays=arrays, **options)
        return warnings_of(lambda: [buffer.update_priorities(ids, zeros(shape)) for _ in range(2)])

    assert update(3, 3) == [
        "td_errors has shape [3, 3], which means 3 critics for 3 ids. If it came from [3, 1] minus [3], which "
        "broadcasts to that shape, drop the axis of 1."
    ]
    for shape in ((3,), (3, 1), (1, 3), (2, 3), (4, 3)):
        assert update(*shape) == []
    assert update(2, 2, ids=[0, 1]) == []
    assert update(3, 3, ids=np.arange(9).reshape(3, 3) % 8) == []
    assert update(4, 4, ids=range(0, 4), sequence_length=4, sequence_stride=1) == []


def test_final_beta_that_is_never_reached_is_warned_of():
    def make(**options):
        return warnings_of(lambda: per.ReplayBuffer(64, FIELDS, **options))

    assert make(beta_final=0.8) == ["beta_final is 0.8, but beta_steps is 0: beta stays 0.4"]
    for options in ({}, {"beta_final": 1.0}, {"beta_final": 0.8, "beta_steps": 10}, {"beta": 0.8, "beta_final": 0.8}):
        assert make(**options) == []
