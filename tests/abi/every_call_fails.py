#!/usr/bin/env python3
"""Every function of per.h x each allocation and each call of the system that it makes, which fails.

    every_call_fails.py LIBRARY FAILING_CALLS

FAILING_CALLS is failing_calls.c as a library. A good call (calls.py) is made again and again, and fails at its first
call of the C library, at its second, and so on. Its status is then that of a lack of memory or of the disk, and all
handles are as they were; or the library can do without, and did all that it was to do.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import os
import pathlib
import sys
from collections.abc import Iterator

from calls import Function, Interface, World

OUT_OF_MEMORY, IO = 2, 9
CPU = 0
# What the library can do without: huge pages; and of a save, that it follows a link, keeps the mode of the file, has a
# lock, and removes what killed savers left.
DISPENSABLE = {"madvise", "readlink", "fstat", "fstatat", "fchmod", "flock", "openat", "fdopendir"}


class FailingCalls:
    def __init__(self, path: pathlib.Path, library: pathlib.Path) -> None:
        self.lib = ctypes.CDLL(str(path))
        self.lib.failed_call.restype = ctypes.c_char_p
        name = str(library.resolve())
        lines = [line for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if line.endswith(name)]
        first, last = lines[0].partition("-")[0], lines[-1].partition(" ")[0].partition("-")[2]
        self.lib.watch_library(ctypes.c_uint64(int(first, 16)), ctypes.c_uint64(int(last, 16)))
        self.fail_call, self.failed_call = self.lib.fail_call, self.lib.failed_call


def problems_of(
    function: Function, interface: Interface, calls: FailingCalls, met: collections.Counter[str]
) -> Iterator[str]:
    done = World(interface, CPU)
    interface.call(function, done.arguments(function))
    after = done.state()
    done.close()
    world = World(interface, CPU)
    before = world.state()
    k = 0
    while True:
        arguments = world.arguments(function)
        calls.fail_call(k)
        status = interface.call(function, arguments)
        failed = calls.failed_call()
        calls.fail_call(-1)
        where = f"{function.name}, call {k}, {(failed or b'none').decode()}"
        if status not in (0, OUT_OF_MEMORY, IO):
            yield f"{where}: {interface.status_name(status)}: {interface.last_error()}"
        if world.state() != (after if status == 0 else before):
            yield f"{where}: {interface.status_name(status)}, and the handles are not as they should be"
        if failed is None:
            break
        met[failed.decode()] += 1
        if status == 0 and failed.decode() not in DISPENSABLE:
            yield f"{where}: PER_OK"
        if status == 0:
            world.close()
            world = World(interface, CPU)
        k += 1
    world.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Let every call of the C library fail.")
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("failing_calls", type=pathlib.Path)
    arguments = parser.parse_args()
    preload = str(arguments.failing_calls.resolve())
    if os.environ.get("LD_PRELOAD") != preload:
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"LD_PRELOAD": preload})
    interface = Interface(arguments.library)
    calls = FailingCalls(arguments.failing_calls, arguments.library)
    met: collections.Counter[str] = collections.Counter()
    problems = []
    for function in interface.functions:
        if function.has_status:
            problems += problems_of(function, interface, calls, met)
    print(f"{sum(met.values())} calls failed: " + ", ".join(f"{n} x {name}" for name, n in sorted(met.items())))
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
