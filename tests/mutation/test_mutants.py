"""The mutants of a small program are those counted by hand, and each of them is active when it is chosen."""

import os
import pathlib
import subprocess

import pytest

pytest.importorskip("clang.cindex", reason="needs the libclang of scripts/requirements.txt")
import mutants

HERE = pathlib.Path(__file__).resolve().parent
HEADER = """extern "C" int printf(const char*, ...);
namespace std {
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a < b ? b : a; }
}  // namespace std
"""
SOURCE = """#include "../../header.h"
namespace small {
constexpr int unused[7 + 1] = {};
int difference(int a, int b) { return a - b; }
void prefetch(const int* first, int n) { __builtin_prefetch(first + n); }
int f(int a, int b) {
    prefetch(&b, 1);
    if (a < b) a += 10;  // a comment
    return std::min(difference(a, b), 20);
}
}  // namespace small
int main() { printf("%d %d\\n", small::f(1, 2), small::f(3, 3)); }
"""
# The output of each mutant, instead of "9 0".
PRINTS = {
    "a - b -> a + b": "13 6",
    "a < b -> a <= b": "9 10",
    "a += 10; -> nothing": "-1 0",
    "a += 10 -> a -= 10": "-11 0",
    "10 -> 10 + 1": "10 0",
    "a, b -> b, a": "-9 0",
    "std::min(difference(a, b), 20) -> std::max(difference(a, b), 20)": "20 20",
    "20 -> 20 + 1": "9 0",
    "return a - b; -> nothing": None,  # is not one: the function would end without a value
    "difference(a, b), 20 -> 20, difference(a, b)": None,  # nor these: nobody sees them
    "prefetch(&b, 1); -> nothing": None,
    "first + n -> first - n": None,
}


def test_mutants_of_a_small_program_are_found_and_run(tmp_path):
    source = tmp_path / "src" / "room" / "small.cpp"
    source.parent.mkdir(parents=True)
    (tmp_path / "header.h").write_text(HEADER)
    source.write_text(SOURCE)
    found = {}
    for mutant in mutants.find(tmp_path, ["room"], {source: ["-std=c++20"]}):
        if mutant.function != "main":
            found[mutant.text] = mutant
    assert set(found) == {text for text, printed in PRINTS.items() if printed is not None}
    numbered = dict(enumerate(found.values()))
    planted = mutants.planted_text(SOURCE, numbered)
    assert planted.count("\n") == SOURCE.count("\n")
    source.write_text(planted)
    program = tmp_path / "small"
    subprocess.run(
        ["clang++", "-std=c++20", "-w", "-include", HERE / "planted.h", source, HERE / "planted.cpp", "-o", program],
        check=True,
    )

    def prints(**environment):
        return subprocess.run(
            [program], env={**os.environ, **environment}, check=True, capture_output=True, text=True
        ).stdout.strip()

    assert prints() == "9 0"
    for number, mutant in numbered.items():
        assert prints(PER_MUTANT=str(number)) == PRINTS[mutant.text], mutant.text
    numbers = {mutant.text: str(number) for number, mutant in numbered.items()}
    assert prints(PER_MUTANT=f"{numbers['a - b -> a + b']},{numbers['10 -> 10 + 1']}") == "14 6"
    reached = tmp_path / "reached"
    prints(PER_REACHED=str(reached))
    assert reached.read_bytes()[: len(numbered) + 1] == b"\1" * len(numbered) + b"\0"
