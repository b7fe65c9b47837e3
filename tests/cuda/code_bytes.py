#!/usr/bin/env python3
"""Compiles the kernels of a training step with nvcc, and checks their code.

    code_bytes.py NVCC [FLAG...]      the flags are those of the library's own build

Prints the bytes of code of each kernel. A kernel's own code is its section without the functions that it calls, such as
rarely used ones. Exits with 1 if a kernel's own code exceeds its limit: an earlier size plus a tenth. During training,
other work evicts it from the instruction caches, and fetching code from the L2 takes time.

Also exits with 1 on 64-bit atomics on shared memory, or on memory of a kind that nvcc does not know. The device lacks
such atomics for shared memory, so they become loops in which threads with the same address wait for each other.
SharedSum (dialect.h) avoids them.
"""

from __future__ import annotations

import pathlib
import re
import struct
import subprocess
import sys
import tempfile

SOURCES = pathlib.Path(__file__).resolve().parents[2] / "src"

# For each file: kernels by a part of their mangled name, the calls that launch them, and the limit of their own code.
LIMITS = {
    "cuda/tree/tree_update.cu": {
        "13update_kernelILb1E": ("tree: update by a block", 5300),
        "13update_kernelILb0E": ("tree: update", 9800),
    },
    "cuda/draw/tree_draw.cu": {"11draw_kernelEN": ("tree: draw", 17300)},
    "cuda/draw/live_draw.cu": {
        "11draw_kernelI.*9PlainDraw": ("buffer: plain sample", 23600),
        "11draw_kernelI.*9GatherRow.*8DrawPlan": ("buffer: sample", 63600),
    },
    "cuda/replay/priorities.cu": {
        "13update_kernelILb0E.*11PlainReplay": ("buffer: plain update", 9300),
        "13update_kernelILb0E.*12DeviceReplay": ("buffer: update", 26400),
        "19change_lanes_kernel": ("buffer: end of an add", 19800),
    },
    "cuda/add/add_kernels.cu": {
        "16add_plain_kernel": ("buffer: plain add of a step", 33100),
        "18add_at_once_kernel": ("buffer: add of few steps", 74500),
        "16add_steps_kernel": ("buffer: add", 46000),
        "18copy_frames_kernel": ("buffer: frames of an add", 13400),
    },
}


def functions_of(cubin: bytes) -> dict[str, tuple[int, int]]:
    """The bytes of each kernel's section, and those of the functions in it."""
    (first_section,) = struct.unpack_from("<Q", cubin, 0x28)
    section_bytes, n_sections, names_of_sections = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, first_section + i * section_bytes) for i in range(n_sections)]

    def string(table: int, offset: int) -> str:
        begin = sections[table][4] + offset
        return cubin[begin : cubin.index(b"\0", begin)].decode()

    names = [string(names_of_sections, section[0]) for section in sections]
    symbols = sections[names.index(".symtab")]
    called = [0] * n_sections
    for at in range(symbols[4], symbols[4] + symbols[5], symbols[9]):
        name, info, _, section, _, n_bytes = struct.unpack_from("<IBBHQQ", cubin, at)
        is_function = info & 15 == 2
        if is_function and names[section] != ".text." + string(symbols[6], name):
            called[section] += n_bytes
    return {
        name.removeprefix(".text."): (sections[i][5], called[i])
        for i, name in enumerate(names)
        if name.startswith(".text.")
    }


def main() -> int:
    nvcc = sys.argv[1:]
    n_beyond = 0
    loops = []
    print(f"| {'kernel':24} | own bytes | of what it calls | limit |\n|---|---|---|---|")
    for source, limits in LIMITS.items():
        with tempfile.TemporaryDirectory() as folder:
            cubin = pathlib.Path(folder) / "kernels.cubin"
            command = [*nvcc, "-cubin", "-arch=sm_90", "--keep", "--keep-dir", folder, SOURCES / source, "-o", cubin]
            subprocess.run(command, check=True)
            kernels = functions_of(cubin.read_bytes())
            (ptx,) = pathlib.Path(folder).glob("*.ptx")
            loops += [f"{source}: {atomic}" for atomic in re.findall(r"\batom\.(?!global)\S*64\b", ptx.read_text())]
        for part, (what, limit) in limits.items():
            (name,) = (name for name in kernels if re.search(part, name))
            n_bytes, called = kernels[name]
            n_beyond += n_bytes - called > limit
            print(f"| {what:24} | {n_bytes - called} | {called} | {limit} |", flush=True)
    if n_beyond:
        print(f"{n_beyond} kernels have more code than they may: put what is rarely needed out of line (dialect.h)")
    if loops:
        print("atomics of 64 bits that are not known to lie in global memory:", *sorted(set(loops)), sep="\n  ")
    return 1 if n_beyond or loops else 0


if __name__ == "__main__":
    sys.exit(main())
