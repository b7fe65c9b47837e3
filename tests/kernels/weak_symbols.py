"""Compiles kernels and fails if an object file defines a weak symbol.

    weak_symbols.py COMPILER SOURCE FLAG...

The linker keeps one copy of each weak symbol, such as an inline function or a template of the standard library. If a
file for AVX-512 defines one, every machine may run that copy. Sources are compiled without and with optimisation,
because optimisation removes most weak symbols.
"""

import pathlib
import subprocess
import sys
import tempfile

# Letters that nm prints for weak and unique symbols. Lower case v and w are undefined or local.
WEAK_KINDS = {"W", "V", "u"}

LEAK = """
#include <algorithm>
int larger(int a, int b) { return std::max(a, b); }
"""


def weak_symbols(compiler, source, flags):
    with tempfile.TemporaryDirectory() as folder:
        kernel = pathlib.Path(folder) / "kernel.o"
        subprocess.run([compiler, "-std=c++20", "-fPIC", "-c", source, "-o", kernel, *flags], check=True)
        lines = subprocess.run(["nm", "-C", kernel], check=True, capture_output=True, text=True).stdout.splitlines()
    # A line is an address or blanks, the kind, and the name.
    return [line for line in lines if line[17:18] in WEAK_KINDS]


def main():
    compiler, source, *flags = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        leaking = pathlib.Path(folder) / "leaking.cpp"
        leaking.write_text(LEAK)
        if not weak_symbols(compiler, leaking, ["-O0"]):
            sys.exit("a file that is known to define a weak symbol was not found out")
    found = [f"{level}: {line}" for level in ("-O0", "-O3") for line in weak_symbols(compiler, source, [level, *flags])]
    if found:
        sys.exit(f"{source}, compiled by {compiler}, defines weak symbols:\n" + "\n".join(found))


if __name__ == "__main__":
    main()
