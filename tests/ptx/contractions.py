#!/usr/bin/env python3
"""Finds floating-point operations in PTX whose result may differ from the CPU's.

    contractions.py FILE.ptx...

No kernel requests a fused multiply-add, so an fma was made by nvcc from a product and a sum. ptxas may still fuse a
product, sum or difference without a rounding mode. Prints both, by kernel, and exits with 1 if there are any.
"""

from __future__ import annotations

import pathlib
import re
import sys

FUNCTION = re.compile(r"^\s*\.(?:entry|func)\b.*?(_Z\w+)")
CONTRACTION = re.compile(r"^\s*(?:@!?%\w+\s+)?(fma\.\S+|(?:mad|mul|add|sub)\.(?:(?:ftz|sat)\.)*f(?:32|64))\s")


def contractions_of(ptx: str) -> list[tuple[str, str]]:
    """Pairs of a function and an instruction in it."""
    found = []
    function = ""
    for line in ptx.splitlines():
        if named := FUNCTION.match(line):
            function = named[1]
        elif contracted := CONTRACTION.match(line):
            found.append((function, contracted[1]))
    return found


def main() -> int:
    n_rounded = 0
    n_found = 0
    for path in map(pathlib.Path, sys.argv[1:]):
        ptx = path.read_text()
        n_rounded += len(re.findall(r"\b(?:mul|add|sub)\.r[nzmp]\.\S*f(?:32|64)\s", ptx))
        for function, instruction in contractions_of(ptx):
            print(f"{path.parent.name}/{path.name}: {function}: {instruction}")
            n_found += 1
    print(f"{n_found} operations may be or are contracted; {n_rounded} products, sums and differences are rounded")
    if n_rounded + n_found == 0:
        print("there are no sums at all: this cannot be the PTX of the kernels")
    return 0 if n_rounded and not n_found else 1


if __name__ == "__main__":
    sys.exit(main())
