#!/usr/bin/env python3
"""Every function of per.h x each allocation and each call of the system that it makes, which fails.

    every_call_fails.py LIBRARY FAILING_CALLS
    every_call_fails.py LIBRARY --device cuda     each call of CUDA's runtime; LIBRARY is that of the simulated GPU

FAILING_CALLS is failing_calls.c as a library. A good call (calls.py) is made again and again, and fails at its first
call of the C library, at its second, and so on. Its status is then that of a lack of memory, of the disk or of CUDA,
and all handles are as they were; or the library can do without, and did all that it was to do. On CUDA a part of the
work may have been given to the device before, and is done.
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

OUT_OF_MEMORY, NO_DEVICE, CUDA, IO = 2, 7, 8, 9
CPU, GPU = 0, 1
# What the library can do without: huge pages, and rows that are fetched from the disk ahead; of a load, that it asks
# whether there is a directory; and of a save, that it follows a link, keeps the mode of the file, has a lock, and
# removes what killed savers left. On CUDA what ends a call or frees its memory: nothing can be done then.
DISPENSABLE = {"madvise", "posix_fadvise", "readlink", "stat", "fstat", "fstatat", "fchmod", "flock", "openat"}
DISPENSABLE |= {"fdopendir"}
# A file that no checkpoint names, and that cannot be removed, stays for the next checkpoint to remove.
DISPENSABLE |= {"unlinkat"}
# Rows whose file gets no name are written.
DISPENSABLE |= {"linkat"}
DISPENSABLE |= {"cudaThreadExchangeStreamCaptureMode", "cudaGetDevice", "cudaStreamSynchronize", "deallocate"}
# What gives work to the device, or waits for it: of a call that fails there, something may be done.
QUEUES = {"enqueue_grid", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaEventRecord"}
QUEUES |= {"cudaStreamSynchronize", "cudaThreadExchangeStreamCaptureMode"}


# Functions that make further calls in another variant of World.
OTHER_CALLS = {
    "stored": ("add", "set", "advantages", "checkpoint", "load"),
    "copied": ("load",),
    "streamed": ("save", "load"),
}


class FailingCalls:
    """Those of the C library that a library makes."""

    device = CPU

    def __init__(self, path: pathlib.Path, library: pathlib.Path) -> None:
        self.lib = ctypes.CDLL(str(path))
        self.lib.failed_call.restype = ctypes.c_char_p
        name = str(library.resolve())
        lines = [line for line in pathlib.Path("/proc/self/maps").read_text().splitlines() if line.endswith(name)]
        first, last = lines[0].partition("-")[0], lines[-1].partition(" ")[0].partition("-")[2]
        self.lib.watch_library(ctypes.c_uint64(int(first, 16)), ctypes.c_uint64(int(last, 16)))

    def fail(self, k: int) -> None:
        self.lib.fail_call(k)

    def end(self) -> str | None:
        """What failed, if anything did. From now on nothing does."""
        failed = self.lib.failed_call()
        self.lib.fail_call(-1)
        return failed.decode() if failed else None


class FailingCudaCalls:
    """Those of CUDA's runtime, on the simulated GPU. Every other one is out of memory."""

    device = GPU
    OUT_OF_MEMORY, INVALID_VALUE = 2, 1

    def __init__(self, library: pathlib.Path) -> None:
        self.lib = ctypes.CDLL(str(library))
        self.lib.simulator_failed_call.restype = ctypes.c_char_p

    def fail(self, k: int) -> None:
        self.lib.simulator_fail_call(ctypes.c_uint64(k), self.INVALID_VALUE if k % 2 else self.OUT_OF_MEMORY)

    def end(self) -> str | None:
        failed = self.lib.simulator_failed_call()
        self.lib.simulator_fail_call(ctypes.c_uint64(0), 0)
        return failed.decode() if failed else None


def problems_of(
    function: Function,
    interface: Interface,
    calls: FailingCalls | FailingCudaCalls,
    met: collections.Counter[str],
    variant: str = "",
) -> Iterator[str]:
    done = World(interface, calls.device, variant)
    interface.call(function, done.arguments(function))
    after = done.state()
    done.close()
    world = World(interface, calls.device, variant)
    before = world.state()
    k = 0
    while True:
        arguments = world.arguments(function)
        calls.fail(k)
        status = interface.call(function, arguments)
        failed = calls.end()
        where = f"{function}, call {k}, {failed or 'none'}"
        allowed = (0, OUT_OF_MEMORY, IO) if calls.device == CPU else (0, OUT_OF_MEMORY, CUDA)
        if status not in allowed and (status, failed) != (NO_DEVICE, "cudaGetDeviceCount"):
            yield f"{where}: {interface.status_name(status)}: {interface.last_error()}"
        is_as_it_should_be = world.state() == (after if status == 0 else before)
        if not is_as_it_should_be and failed not in QUEUES:
            yield f"{where}: {interface.status_name(status)}, and the handles are not as they should be"
        if failed is None:
            break
        met[failed] += 1
        if status == 0 and failed not in DISPENSABLE:
            yield f"{where}: PER_OK"
        if status == 0 or not is_as_it_should_be:
            world.close()
            world = World(interface, calls.device, variant)
        k += 1
    world.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Let every call of the C library fail.")
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("failing_calls", type=pathlib.Path, nargs="?")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args()
    calls: FailingCalls | FailingCudaCalls
    if arguments.device == "cuda":
        interface = Interface(arguments.library)
        calls = FailingCudaCalls(arguments.library)
    else:
        preload = str(arguments.failing_calls.resolve())
        if os.environ.get("LD_PRELOAD") != preload:
            os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"LD_PRELOAD": preload})
        interface = Interface(arguments.library)
        calls = FailingCalls(arguments.failing_calls, arguments.library)
    met: collections.Counter[str] = collections.Counter()
    problems = []
    tries = [(function, "") for function in interface.functions if function.has_status]
    for variant, names in OTHER_CALLS.items():
        if calls.device == CPU or variant == "streamed":
            others = [f"per_replay_{name}" for name in names]
            tries += [(function, variant) for function in interface.functions if function.name in others]
    for function, variant in tries:
        for problem in problems_of(function, interface, calls, met, variant):
            print(problem, file=sys.stderr)
            problems.append(problem)
    print(f"{sum(met.values())} calls failed: " + ", ".join(f"{n} x {name}" for name, n in sorted(met.items())))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
