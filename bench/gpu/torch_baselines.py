#!/usr/bin/env python3
"""Times prioritized draws on a GPU with PyTorch's own means, and with libper called from PyTorch.

    python bench/gpu/torch_baselines.py [--float-tree LIBFLOAT_TREE.SO] [--capacity N...] [--batch B...] [--seconds S]
        [--build-torchrl]

    libper from Python        the package, with arrays of torch
    multinomial               torch.multinomial of all priorities (up to 2^24 of them)
    cumsum and searchsorted   prefix sums of all priorities, recomputed for each batch, and a binary search
    coursework, end to end    the sum tree of float_tree.h with torch around it: one torch operation each for random
                              numbers, weights and rows, and the host reads the largest priority after an update
    TorchRL                   its PrioritizedSampler and storage on the device, if installed. A release has priority
                              trees for one version of torch only; --build-torchrl compiles them for this one, which
                              takes a minute

Prints one line of JSON per figure: medians in microseconds, from the call until the device is done (call_us), of
consecutive calls by events (in_burst_us), and both for launches of a graph of the call, if it can be captured. A
failing variant is left out, with the reason; the others are still measured. Exits with 1 if libper fails, and with 77
if torch sees no device. With --device cpu everything runs on the CPU, as a check.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch

N_WORDS = 24  # 4-byte words of a row, as in per_gpu_bench
ALPHA, BETA, EPSILON = 0.6, 0.4, 1e-6
LARGEST_MULTINOMIAL = 1 << 24
LARGEST_ROWS = 100_000_000
BURST = 20
LIBPER = "libper from Python"
N_ENVS = 256

Call = Callable[[], object]


class Clock:
    """Times calls on a torch device."""

    def __init__(self, device: str, seconds: float) -> None:
        self.device = device
        self.seconds = seconds
        self.is_cuda = device == "cuda"

    def wait(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()

    def median(self, sample: Callable[[], float]) -> float:
        """The median of samples taken for a quarter of the time, with a minimum number of samples."""
        samples: list[float] = []
        end = time.monotonic() + self.seconds / 4
        while len(samples) < 3 or (len(samples) < 2000 and time.monotonic() < end):
            samples.append(sample())
        return round(statistics.median(samples), 2)

    def until_done(self, call: Call) -> float:
        begin = time.perf_counter()
        call()
        self.wait()
        return 1e6 * (time.perf_counter() - begin)

    def in_burst(self, call: Call) -> float:
        if not self.is_cuda:
            return self.until_done(lambda: [call() for _ in range(BURST)]) / BURST
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        for _ in range(BURST):
            call()
        events[1].record()
        events[1].synchronize()
        return 1e3 * events[0].elapsed_time(events[1]) / BURST

    def captured(self, call: Call) -> Call:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay

    def figures(self, call: Call, prefix: str = "") -> dict[str, float]:
        for _ in range(3):
            call()
        self.wait()
        return {
            f"{prefix}call_us": self.median(lambda: self.until_done(call)),
            f"{prefix}in_burst_us": self.median(lambda: self.in_burst(call)),
        }

    def report(
        self, case: str, variant: str, capacity: int, batch: int, call: Call, can_be_captured: bool = True
    ) -> None:
        figure = {"case": case, "variant": variant, "capacity": capacity, "batch": batch, **self.figures(call)}
        if can_be_captured and self.is_cuda:
            try:
                figure |= self.figures(self.captured(call), "graph_")
            except Exception as error:
                figure["no_graph"] = reason(error)
        print(json.dumps(figure), flush=True)


def reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


left_out: set[str] = set()  # variants


@contextlib.contextmanager
def left_out_if_it_fails(variant: str, capacity: int) -> Iterator[None]:
    """A failure of another library must not end the other measurements."""
    try:
        yield
    except Exception as error:
        left_out.add(variant)
        print(json.dumps({"variant": variant, "capacity": capacity, "left_out": reason(error)}), flush=True)


def random_priorities(n: int, device: str) -> torch.Tensor:
    return torch.empty(n, device=device).exponential_().pow_(ALPHA)


def weights_of(priorities: torch.Tensor, total: torch.Tensor, capacity: int) -> torch.Tensor:
    weights = (capacity * priorities.clamp_min(EPSILON) / total).pow(-BETA)
    return weights / weights.max()


def place(clock: Clock) -> dict[str, str]:
    return {"device": clock.device, "arrays": "torch" if clock.is_cuda else "numpy"}


def time_libper_tree(clock: Clock, capacity: int, batches: list[int]) -> None:
    import per

    tree = per.SumTree(capacity, **place(clock))
    tree.update(torch.arange(capacity, device=clock.device), random_priorities(capacity, clock.device))
    for batch in batches:
        clock.report("sample", LIBPER, capacity, batch, lambda batch=batch: tree.sample(batch, beta=BETA))


def time_libper_buffer(clock: Clock, capacity: int, batches: list[int]) -> None:
    import per

    fields = {"observation": per.Field(17), "action": per.Field(6)}
    buffer = per.ReplayBuffer(capacity, fields, n_envs=N_ENVS, alpha=ALPHA, beta=BETA, **place(clock))
    length = max(1, min(capacity, 65536) // N_ENVS)
    steps = {
        "observation": torch.zeros(length, N_ENVS, 17, device=clock.device),
        "action": torch.zeros(length, N_ENVS, 6, device=clock.device),
        "reward": torch.zeros(length, N_ENVS, device=clock.device),
        "terminated": torch.zeros(length, N_ENVS, dtype=torch.bool, device=clock.device),
        "truncated": torch.zeros(length, N_ENVS, dtype=torch.bool, device=clock.device),
    }
    for _ in range(0, capacity, length * N_ENVS):
        buffer.extend(**steps)
    step = {name: array[0] for name, array in steps.items()}
    clock.report("add", LIBPER, capacity, N_ENVS, lambda: buffer.add(**step))
    for batch in batches:
        out = buffer.sample(batch)
        ids = out["ids"]
        errors = torch.randn(batch, device=clock.device)
        clock.report("rows", LIBPER, capacity, batch, lambda batch=batch: buffer.sample(batch))
        clock.report(
            "rows", f"{LIBPER}, out=", capacity, batch, lambda batch=batch, out=out: buffer.sample(batch, out=out)
        )
        clock.report(
            "update", LIBPER, capacity, batch, lambda ids=ids, errors=errors: buffer.update_priorities(ids, errors)
        )


def time_torch(clock: Clock, capacity: int, batches: list[int]) -> None:
    priorities = random_priorities(capacity, clock.device)
    rows = torch.zeros(capacity, N_WORDS, device=clock.device) if capacity <= LARGEST_ROWS else None
    for batch in batches:

        def multinomial(batch: int = batch) -> tuple[torch.Tensor, torch.Tensor]:
            drawn = torch.multinomial(priorities, batch, replacement=True)
            return drawn, weights_of(priorities[drawn], priorities.sum(), capacity)

        def search(batch: int = batch) -> tuple[torch.Tensor, torch.Tensor]:
            sums = priorities.cumsum(0)
            uniforms = torch.rand(batch, device=clock.device)
            drawn = torch.searchsorted(sums, uniforms * sums[-1]).clamp_max_(capacity - 1)
            return drawn, weights_of(priorities[drawn], sums[-1], capacity)

        if capacity <= LARGEST_MULTINOMIAL:
            clock.report("sample", "multinomial", capacity, batch, multinomial)
        clock.report("sample", "cumsum and searchsorted", capacity, batch, search)
        if rows is not None:
            clock.report("rows", "cumsum and searchsorted", capacity, batch, lambda search=search: rows[search()[0]])


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


def time_coursework(clock: Clock, path: str, capacity: int, batches: list[int]) -> None:
    library = ctypes.CDLL(path)
    n_leaves = 1 << (capacity - 1).bit_length()
    sums = torch.zeros(2 * n_leaves, device="cuda")
    sums[n_leaves : n_leaves + capacity] = random_priorities(capacity, "cuda")
    tree = FloatTree(sums.data_ptr(), n_leaves, capacity)

    def stream() -> ctypes.c_void_p:
        """The current stream, which differs during a capture."""
        return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    if library.float_tree_build_c(tree, stream()) != 0:
        raise RuntimeError("float_tree_build_c")
    rows = torch.zeros(capacity, N_WORDS, device="cuda") if capacity <= LARGEST_ROWS else None
    for batch in batches:
        chosen = torch.randint(capacity, (batch,), device="cuda")
        errors = torch.randn(batch, device="cuda")

        def sample(batch: int = batch) -> tuple[torch.Tensor, torch.Tensor]:
            uniforms = torch.rand(batch, device="cuda") * sums[1]
            drawn = torch.empty(batch, dtype=torch.int64, device="cuda")
            of_batch = FloatTreeBatch(batch, uniforms.data_ptr(), drawn.data_ptr(), None, None, None)
            library.float_tree_draw_c(tree, of_batch, stream())
            return drawn, weights_of(sums[n_leaves + drawn], sums[1], capacity)

        def update(chosen: torch.Tensor = chosen, errors: torch.Tensor = errors) -> float:
            priorities = (errors.abs() + EPSILON).pow(ALPHA)
            library.float_tree_update_c(
                tree,
                ctypes.c_int64(len(chosen)),
                ctypes.c_void_p(chosen.data_ptr()),
                ctypes.c_void_p(priorities.data_ptr()),
                stream(),
            )
            return float(priorities.max().item())

        variant = "coursework, end to end"
        clock.report("sample", variant, capacity, batch, sample)
        if rows is not None:
            clock.report("rows", variant, capacity, batch, lambda sample=sample: rows[sample()[0]])
        clock.report("update", variant, capacity, batch, update, can_be_captured=False)  # the host reads


@functools.cache
def build_torchrl_trees() -> None:
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
    import torchrl_extension

    torchrl_extension.build()


def time_torchrl(clock: Clock, capacity: int, batches: list[int]) -> None:
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler

    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity, device=clock.device),
        sampler=PrioritizedSampler(capacity, alpha=ALPHA, beta=BETA),
        batch_size=batches[0],
    )
    buffer.extend(TensorDict({"row": torch.zeros(capacity, N_WORDS, device=clock.device)}, [capacity]))
    buffer.update_priority(torch.arange(capacity, device=clock.device), random_priorities(capacity, clock.device))
    for batch in batches:

        def sample(batch: int = batch) -> object:
            return buffer.sample(batch)

        clock.report("rows", "TorchRL", capacity, batch, sample, can_be_captured=False)
        chosen = torch.randint(capacity, (batch,), device=clock.device)
        given = random_priorities(batch, clock.device)

        def update(chosen: torch.Tensor = chosen, given: torch.Tensor = given) -> None:
            buffer.update_priority(chosen, given)

        clock.report("update", "TorchRL", capacity, batch, update, can_be_captured=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--float-tree", help="the library of bench/gpu/float_tree.cu")
    parser.add_argument("--capacity", nargs="+", type=float, default=[1e6, 1e8])
    parser.add_argument("--batch", nargs="+", type=int, default=[256, 1024, 4096])
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--build-torchrl", action="store_true", help="compile TorchRL's priority trees for this torch")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("skipped: torch sees no CUDA device")
        return 77
    clock = Clock(arguments.device, arguments.seconds)
    for capacity in map(int, arguments.capacity):
        with left_out_if_it_fails(LIBPER, capacity):
            time_libper_tree(clock, capacity, arguments.batch)
        if capacity <= LARGEST_ROWS:
            with left_out_if_it_fails(LIBPER, capacity):
                time_libper_buffer(clock, capacity, arguments.batch)
        with left_out_if_it_fails("torch", capacity):
            time_torch(clock, capacity, arguments.batch)
        if arguments.float_tree:
            with left_out_if_it_fails("coursework, end to end", capacity):
                time_coursework(clock, arguments.float_tree, capacity, arguments.batch)
        if capacity <= 1_000_000:
            with left_out_if_it_fails("TorchRL", capacity):
                if arguments.build_torchrl:
                    build_torchrl_trees()
                time_torchrl(clock, capacity, arguments.batch)
    return 1 if LIBPER in left_out else 0


if __name__ == "__main__":
    sys.exit(main())
