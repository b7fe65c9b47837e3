"""Docstrings in the form of numpydoc: each argument of a public call has its type, default and meaning."""

import inspect
import re

import per
import per.llm
import pytest

KINDS = [per.ReplayBuffer, per.SumTree, per.Batch, per.Field, per.Hindsight, per.Writer, per.Channel, per.Coordinator]
KINDS += [per.SharedLoader, per.Reader, per.Loader, per.Save, per.Statistics, per.plot.History]
KINDS += [per.llm.Groups, per.llm.Lease, per.llm.Prompts]
FUNCTIONS = [per.llm.serve, per.llm.connect]
# Classes whose objects are returned by calls of a buffer: users do not construct them.
GIVEN = (per.Batch, per.Channel, per.SharedLoader, per.Loader, per.Save, per.Statistics, per.llm.Lease)


def calls():
    for function in FUNCTIONS:
        yield pytest.param(function, id=function.__name__)
    for kind in KINDS:
        if kind not in GIVEN:
            yield pytest.param(kind, id=kind.__name__)
        for name in dir(kind):
            member = getattr(kind, name)
            if not name.startswith("_") and callable(member) and member.__module__.partition(".")[0] == "per":
                yield pytest.param(member, id=f"{kind.__name__}.{name}")


def section(text, name):
    """The lines of a section."""
    found = re.search(rf"^{name}\n-{{{len(name)}}}\n((?:.+\n|\n(?!\w+\n---))*)", text + "\n", re.MULTILINE)
    return "" if found is None else found[1]


@pytest.mark.parametrize("call", calls())
def test_each_argument_has_its_type_default_and_meaning(call):
    described = {}
    for names, kind, text in re.findall(
        r"^(\*{0,2}\w.*?) : (.+)\n((?:    .*\n)*)", section(inspect.getdoc(call), "Parameters"), re.M
    ):
        assert len(text.strip()) > 3, names
        for name in names.split(", "):
            described[name.strip("*")] = kind
    parameters = {name: each for name, each in inspect.signature(call).parameters.items() if name != "self"}
    assert list(described) == list(parameters)
    for name, each in parameters.items():
        if each.default is None:
            assert described[name].endswith("optional"), name
        elif each.default is not each.empty:
            assert "default" in described[name], name


@pytest.mark.parametrize("kind", [per.ReplayBuffer, per.SumTree, per.Batch, per.Field, per.Hindsight, per.Loader])
def test_no_docstring_has_sections_in_another_form(kind):
    for thing in (kind, *(member for name, member in inspect.getmembers(kind) if not name.startswith("_"))):
        text = inspect.getdoc(thing) or ""
        assert not re.search(r"^(Arguments|Args|Returns|Raises|Warns|Example|Attributes):", text, re.MULTILINE), thing


@pytest.mark.parametrize("kind", [per.ReplayBuffer, per.SumTree])
def test_public_calls_have_examples(kind):
    for name, member in inspect.getmembers(kind, callable):
        if not name.startswith("_") and name not in ("close", "synchronize"):
            assert ">>>" in (inspect.getdoc(member) or ""), name
