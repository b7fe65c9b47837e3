#!/usr/bin/env python3
"""Times what users of PyTorch have for prioritized draws on a GPU, beside libper's figures of per_gpu_bench.

    python bench/gpu/torch_baselines.py [--float-tree LIBFLOAT_TREE.SO] [--capacity N...] [--batch B...] [--seconds S]

    multinomial               torch.multinomial of all priorities (up to 2^24 of them)
    cumsum and searchsorted   prefix sums of all priorities, made anew for each batch, and a binary search
    coursework, end to end    the sum tree of float_tree.h with torch around it: random numbers, weights and rows by an
                              operation of torch each, and the largest priority read by the host after an update
    TorchRL                   its PrioritizedSampler and storage on the device, where it is installed

One line of JSON a figure: medians in microseconds, from the call until the device is done (call_us) and of calls that
follow each other, by events (in_burst_us). Exits with 77 where torch sees no device.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

N_WORDS = 24  # of a row, 4 bytes each, as in per_gpu_bench
ALPHA, BETA, EPSILON = 0.6, 0.4, 1e-6
LARGEST_MULTINOMIAL = 1 << 24
BURST = 20


def report(case: str, variant: str, capacity: int, batch: int, call: Callable[[], object], seconds: float) -> None:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    alone: list[float] = []
    end = time.monotonic() + seconds / 2
    while len(alone) < 3 or (len(alone) < 2000 and time.monotonic() < end):
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        alone.append(1e6 * (time.perf_counter() - begin))
    bursts: list[float] = []
    end = time.monotonic() + seconds / 2
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    while len(bursts) < 3 or (len(bursts) < 500 and time.monotonic() < end):
        events[0].record()
        for _ in range(BURST):
            call()
        events[1].record()
        events[1].synchronize()
        bursts.append(1e3 * events[0].elapsed_time(events[1]) / BURST)
    figure = {
        "case": case,
        "variant": variant,
        "capacity": capacity,
        "batch": batch,
        "call_us": round(statistics.median(alone), 2),
        "in_burst_us": round(statistics.median(bursts), 2),
    }
    print(json.dumps(figure), flush=True)


def random_priorities(n: int) -> torch.Tensor:
    return torch.empty(n, device="cuda").exponential_().pow_(ALPHA)


def weights_of(priorities: torch.Tensor, total: torch.Tensor, capacity: int) -> torch.Tensor:
    weights = (capacity * priorities.clamp_min(EPSILON) / total).pow(-BETA)
    return weights / weights.max()


def time_torch(capacity: int, batches: list[int], seconds: float) -> None:
    priorities = random_priorities(capacity)
    rows = torch.zeros(capacity, N_WORDS, device="cuda") if capacity <= 100_000_000 else None
    for batch in batches:

        def multinomial(batch: int = batch) -> tuple[torch.Tensor, torch.Tensor]:
            drawn = torch.multinomial(priorities, batch, replacement=True)
            return drawn, weights_of(priorities[drawn], priorities.sum(), capacity)

        def search(batch: int = batch) -> tuple[torch.Tensor, torch.Tensor]:
            sums = priorities.cumsum(0)
            drawn = torch.searchsorted(sums, torch.rand(batch, device="cuda") * sums[-1]).clamp_max_(capacity - 1)
            return drawn, weights_of(priorities[drawn], sums[-1], capacity)

        if capacity <= LARGEST_MULTINOMIAL:
            report("sample", "multinomial", capacity, batch, multinomial, seconds)
        report("sample", "cumsum and searchsorted", capacity, batch, search, seconds)
        if rows is not None:
            report("rows", "cumsum and searchsorted", capacity, batch, lambda: rows[search()[0]], seconds)


class FloatTree(ctypes.Structure):
    _fields_ = (("sums", ctypes.c_void_p), ("n_leaves", ctypes.c_int64), ("capacity", ctypes.c_int64))


class FloatTreeBatch(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_int64),
        ("uniforms", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("priorities", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("largest_weight", ctypes.c_void_p),
    )


def time_coursework(path: str, capacity: int, batches: list[int], seconds: float) -> None:
    library = ctypes.CDLL(path)
    n_leaves = 1 << (capacity - 1).bit_length()
    sums = torch.zeros(2 * n_leaves, device="cuda")
    sums[n_leaves : n_leaves + capacity] = random_priorities(capacity)
    tree = FloatTree(sums.data_ptr(), n_leaves, capacity)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    if library.float_tree_build_c(tree, stream) != 0:
        sys.exit("torch_baselines: float_tree_build_c")
    rows = torch.zeros(capacity, N_WORDS, device="cuda") if capacity <= 100_000_000 else None
    for batch in batches:
        chosen = torch.randint(capacity, (batch,), device="cuda")
        errors = torch.randn(batch, device="cuda")

        def sample(batch: int = batch) -> tuple[torch.Tensor, torch.Tensor]:
            uniforms = torch.rand(batch, device="cuda") * sums[1]
            drawn = torch.empty(batch, dtype=torch.int64, device="cuda")
            of_batch = FloatTreeBatch(batch, uniforms.data_ptr(), drawn.data_ptr(), None, None, None)
            library.float_tree_draw_c(tree, of_batch, stream)
            return drawn, weights_of(sums[n_leaves + drawn], sums[1], capacity)

        def update(chosen: torch.Tensor = chosen, errors: torch.Tensor = errors) -> float:
            priorities = (errors.abs() + EPSILON).pow(ALPHA)
            library.float_tree_update_c(
                tree,
                ctypes.c_int64(len(chosen)),
                ctypes.c_void_p(chosen.data_ptr()),
                ctypes.c_void_p(priorities.data_ptr()),
                stream,
            )
            return float(priorities.max().item())

        def with_rows() -> torch.Tensor:
            assert rows is not None
            return rows[sample()[0]]

        report("sample", "coursework, end to end", capacity, batch, sample, seconds)
        if rows is not None:
            report("rows", "coursework, end to end", capacity, batch, with_rows, seconds)
        report("update", "coursework, end to end", capacity, batch, update, seconds)


def time_torchrl(capacity: int, batches: list[int], seconds: float) -> None:
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler

    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity, device="cuda"),
        sampler=PrioritizedSampler(capacity, alpha=ALPHA, beta=BETA),
        batch_size=batches[0],
    )
    buffer.extend(TensorDict({"row": torch.zeros(capacity, N_WORDS, device="cuda")}, [capacity]))
    buffer.update_priority(torch.arange(capacity, device="cuda"), random_priorities(capacity))
    for batch in batches:

        def sample(batch: int = batch) -> object:
            return buffer.sample(batch)

        report("rows", "TorchRL", capacity, batch, sample, seconds)
        chosen, given = torch.randint(capacity, (batch,), device="cuda"), random_priorities(batch)

        def update(chosen: torch.Tensor = chosen, given: torch.Tensor = given) -> None:
            buffer.update_priority(chosen, given)

        report("update", "TorchRL", capacity, batch, update, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--float-tree", help="the library of bench/gpu/float_tree.cu")
    parser.add_argument("--capacity", nargs="+", type=float, default=[1e6, 1e8])
    parser.add_argument("--batch", nargs="+", type=int, default=[256, 1024, 4096])
    parser.add_argument("--seconds", type=float, default=0.2)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: torch sees no CUDA device")
        return 77
    for capacity in map(int, arguments.capacity):
        time_torch(capacity, arguments.batch, arguments.seconds)
        if arguments.float_tree:
            time_coursework(arguments.float_tree, capacity, arguments.batch, arguments.seconds)
        if importlib.util.find_spec("torchrl") is None:
            print(json.dumps({"variant": "TorchRL", "left_out": "it is not installed"}))
        elif capacity <= 1_000_000:
            time_torchrl(capacity, arguments.batch, arguments.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
