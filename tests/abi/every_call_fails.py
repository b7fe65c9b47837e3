#!/usr/bin/env python3
"""Lets each allocation and each system call that a function of per.h makes fail, one at a time.

    every_call_fails.py LIBRARY FAILING_CALLS
    every_call_fails.py LIBRARY --device cuda     each call of CUDA's runtime; LIBRARY is built for the simulated GPU

FAILING_CALLS is failing_calls.c as a library. A valid call (calls.py) is repeated: its first call of the C library
fails, then its second, and so on. Each time either the status says that memory, the disk or CUDA failed and all handles
are unchanged, or the library does without and the call has its full effect. On CUDA, work that was enqueued before the
failure is done.
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
# Calls that may fail without an error of the function. Huge pages and read-ahead are hints.
DISPENSABLE = {"madvise", "posix_fadvise"}
# A load checks whether a directory exists. A save follows a link, keeps the mode of the file, takes a lock, and removes
# files of killed savers.
DISPENSABLE |= {"readlink", "stat", "fstat", "fstatat", "fchmod", "flock", "openat", "fdopendir"}
# The next checkpoint removes files that cannot be removed now. Rows are written out if their file gets no name.
DISPENSABLE |= {"unlinkat", "linkat"}
# On CUDA nothing can be done about the end of a call or the release of memory.
DISPENSABLE |= {"cudaThreadExchangeStreamCaptureMode", "cudaGetDevice", "cudaStreamSynchronize", "deallocate"}
# Calls that enqueue work for the device or wait for it. If one fails, part of the work may be done.
QUEUES = {"enqueue_grid", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaEventRecord"}
QUEUES |= {"cudaStreamSynchronize", "cudaThreadExchangeStreamCaptureMode"}

# Functions that make further calls in another variant of World.
OTHER_CALLS = {
    "stored": ("add", "set", "advantages", "checkpoint", "load"),
    "copied": ("load",),
    "streamed": ("save", "load"),
}


class FailingCalls:
    """Calls of the C library that a library makes."""

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
        """Stops failing. Returns the name of the call that failed, if one did."""
        failed = self.lib.failed_call()
        self.lib.fail_call(-1)
        return failed.decode() if failed else None


class FailingCudaCalls:
    """Calls of CUDA's runtime on the simulated GPU. Every other failure is out of memory."""

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
