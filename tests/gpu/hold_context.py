"""Holds a context of the first CUDA device until its standard input ends.

The driver initializes a device for the first program that uses it, and shuts it down after the last one. While this
program runs, others start at once.
"""

from __future__ import annotations

import ctypes
import sys


def main() -> int:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        print(error, flush=True)
        return 1
    device, context = ctypes.c_int(), ctypes.c_void_p()
    for call in (
        lambda: cuda.cuInit(0),
        lambda: cuda.cuDeviceGet(ctypes.byref(device), 0),
        lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
    ):
        if (error := call()) != 0:
            print(f"CUDA's error {error}", flush=True)
            return 1
    print("held", flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
