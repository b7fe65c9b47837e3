"""The package for type checkers: words of choices, options by name, and misspelt uses, each of which is an error."""

import importlib.util
import inspect
import pathlib
import re
import subprocess
import sys
import typing
from typing import Literal, get_args, get_origin

import per
import per.llm
import per.typing
import pytest
from per import _library

PYTHON = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = PYTHON / "tests" / "misspelt.py"
CHECKERS = {"mypy": ["--strict"], "pyright": ["--pythonpath", sys.executable]}
ENUMS = {
    "Age": "per_age",
    "Autoreset": "per_autoreset",
    "Compression": "per_compression",
    "Critics": "per_critics",
    "DTypeName": "per_dtype",
    "GoalStrategy": "per_goal_strategy",
    "MaxPriority": "per_max_priority",
    "MovedBy": "per_moved_by",
    "NormalizeWeights": "per_normalization",
    "OnGap": "per_on_gap",
    "OnInvalid": "per_on_invalid",
    "OnNan": "per_on_nan",
    "Padding": "per_padding",
    "Prioritization": "per_prioritization",
    "Role": "per_role",
    "Scheme": "per_scheme",
    "WhenFull": "per_when_full",
    "WhenEmpty": "per_when_empty",
}


@pytest.mark.parametrize("alias", ENUMS)
def test_a_choice_has_the_words_of_the_library(alias):
    words = set(get_args(getattr(per.typing, alias)))
    not_given = {"default"} if alias == "Role" else set()  # expressed by None
    assert words == _library.choices(ENUMS[alias]).keys() - not_given


def test_every_choice_is_compared_with_the_library():
    choices = {name for name, alias in vars(per.typing).items() if get_origin(alias) is Literal}
    assert choices == {*ENUMS, "Arrays"}


def test_options_by_name_are_those_of_the_signatures():
    parameters = inspect.signature(per.ReplayBuffer).parameters
    options = [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY]
    assert sorted(per.typing.BufferOptions.__annotations__) == sorted(options)
    buffer = per.ReplayBuffer(10, {"observation": per.Field()})
    assert sorted(per.typing.AllOptions.__annotations__) == sorted(buffer.options)
    derived = inspect.signature(typing.get_overloads(per.ReplayBuffer.__init__)[0]).parameters.keys() - {
        "self",
        "options",
    }
    assert sorted({*per.typing.DerivedOptions.__annotations__, *derived}) == sorted(buffer.options)
    assert sorted(per.tree.TreeOptions.__annotations__) == sorted(per.SumTree(4).options)
    of_draw = set(per.typing.DrawOptions.__annotations__)
    for method in (per.ReplayBuffer.sample, per.ReplayBuffer.loader, per.ReplayBuffer.shared_loader):
        assert of_draw <= set(inspect.signature(method).parameters)
    of_read = set(per.typing.ReadOptions.__annotations__)
    assert of_read == of_draw - {"scheme"}
    for method in (per.ReplayBuffer.get_windows, per.ReplayBuffer.get_units):
        assert (
            of_read <= set(inspect.signature(method).parameters)
            and "scheme" not in inspect.signature(method).parameters
        )


@pytest.mark.parametrize("method", ["sample", "get_windows", "get_units", "loader", "shared_loader"])
def test_an_option_that_a_draw_does_not_have_is_an_error_that_names_the_call(method):
    buffer = per.ReplayBuffer(10, {"observation": per.Field()})
    given = {"readers": 1} if method == "shared_loader" else {}
    with pytest.raises(TypeError, match=rf"^ReplayBuffer\.{method}\(\) got .* argument 'betta'; did you mean beta\?$"):
        getattr(buffer, method)(4, betta=0.5, **given)


def test_annotations_can_be_read_while_the_program_runs():
    kinds = [each for module in (per, per.llm, per.coordinator) for each in vars(module).values()]
    functions = [per.coordinator.agree_on_scale, per.plot.priorities]
    for _, member in [pair for kind in kinds if isinstance(kind, type) for pair in inspect.getmembers(kind)]:
        functions.append(getattr(member, "fget", getattr(member, "__func__", member)))
    public = [each for each in filter(inspect.isfunction, functions) if re.match(r"__init__$|[a-z]", each.__name__)]
    ours = [each for each in public if each.__module__.startswith("per")]
    assert len(ours) > 100
    for function in ours:
        typing.get_type_hints(function)


@pytest.mark.parametrize("checker", CHECKERS)
def test_each_misspelt_use_is_an_error(checker):
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    command = [sys.executable, "-m", checker, *CHECKERS[checker], str(PROGRAM)]
    result = subprocess.run(command, cwd=PYTHON, capture_output=True, text=True)
    found = re.findall(r"misspelt\.py:(\d+)(?::\d+)?(?: -|:) error", result.stdout)
    marked = [i for i, line in enumerate(PROGRAM.read_text().splitlines(), 1) if line.endswith("# error")]
    assert sorted(set(map(int, found))) == marked, result.stdout + result.stderr
    if checker == "mypy":  # as docs/start/python.md says
        assert 'argument "alhpa" for overloaded function "ReplayBuffer"; did you mean "alpha"?' in result.stdout
