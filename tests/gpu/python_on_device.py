#!/usr/bin/env python3
"""The Python package on a CUDA device, with device arrays of torch, CuPy or JAX: every call has the results of the CPU,
with arrays of this library and others, on any of its streams, and from a graph.

    python_on_device.py torch|cupy|jax|xla [--stand-ins]

xla: programs that XLA compiles, with the buffers of per.jax.

--stand-ins: uses libper on the simulated GPU, and the stand-ins for the libraries in the package's tests. Exits with 77
if there is no device, and with 1 at the first difference.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

TESTS = pathlib.Path(__file__).resolve().parents[2] / "bindings" / "python" / "tests"

Array = Any
Give = Callable[[np.ndarray], Array]


def as_numpy(array: Array) -> np.ndarray:
    """Copies an array of any library to numpy. JAX represents 64-bit integers as pairs of words if it has none."""
    if hasattr(array, "cpu"):
        array = array.cpu().numpy()
    elif hasattr(array, "get"):
        array = array.get()
    array = np.asarray(array)
    return array.view(np.int64)[..., 0] if array.dtype == np.uint32 else array


def same(expected: Array, given: Array, what: str) -> None:
    np.testing.assert_array_equal(np.asarray(expected), as_numpy(given), err_msg=what)


class Protocol:
    """A device array with only one protocol."""

    def __init__(self, array: Array, name: str) -> None:
        self._array, self._name = array, name

    def __getattr__(self, name: str) -> Any:
        if name != self._name and not (self._name == "__dlpack__" and name == "__dlpack_device__"):
            raise AttributeError(name)
        return getattr(self._array, name)


class Torch:
    def __init__(self) -> None:
        import torch

        self.library, self.device = torch, "cuda:0"

    def given(self) -> dict[str, Give]:
        def on_device(array: np.ndarray) -> Array:
            return self.library.from_numpy(np.ascontiguousarray(array)).to(self.device)

        return {
            "torch": on_device,
            "dlpack": lambda array: Protocol(on_device(array), "__dlpack__"),
            "interface": lambda array: Protocol(on_device(array), "__cuda_array_interface__"),
        }

    @contextlib.contextmanager
    def other_stream(self) -> Iterator[None]:
        cuda = self.library.cuda
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            yield
        cuda.current_stream().wait_stream(stream)

    def launched(self, call: Callable[[], object]) -> Callable[[], None]:
        """Returns a function that launches a graph of the call."""
        cuda = self.library.cuda
        graph = cuda.CUDAGraph()
        cuda.synchronize()
        with cuda.graph(graph):
            call()

        def launch() -> None:
            graph.replay()
            cuda.synchronize()

        return launch


class Cupy:
    def __init__(self) -> None:
        import cupy

        self.library = cupy

    def given(self) -> dict[str, Give]:
        cupy = self.library
        return {
            "cupy": cupy.asarray,
            "dlpack": lambda array: Protocol(cupy.asarray(array), "__dlpack__"),
            "interface": lambda array: Protocol(cupy.asarray(array), "__cuda_array_interface__"),
        }

    @contextlib.contextmanager
    def other_stream(self) -> Iterator[None]:
        stream = self.library.cuda.Stream(non_blocking=True)
        stream.wait_event(self.library.cuda.get_current_stream().record())
        with stream:
            yield
        stream.synchronize()

    def launched(self, call: Callable[[], object]) -> Callable[[], None]:
        stream = self.library.cuda.Stream(non_blocking=True)
        self.library.cuda.Device().synchronize()
        with stream:
            stream.begin_capture()
            call()
            graph = stream.end_capture()

        def launch() -> None:
            graph.launch(stream)
            stream.synchronize()

        return launch


class Jax:
    """JAX uses its own streams, and captures nothing."""

    def __init__(self) -> None:
        import jax

        jax.config.update("jax_enable_x64", True)
        self.library, self.device = jax, jax.devices("cuda")[0]

    def given(self) -> dict[str, Give]:
        def on_device(array: np.ndarray) -> Array:
            return self.library.device_put(array, self.device)

        return {"jax": on_device, "dlpack": lambda array: Protocol(on_device(array), "__dlpack__")}

    other_stream = staticmethod(contextlib.nullcontext)
    launched = None


class StandIn:
    """Host memory that counts as device memory."""

    def __init__(self, kind: str) -> None:
        sys.path.insert(0, str(TESTS))
        from device_memory import DlpackArray, InterfaceArray, JaxStandIn, TorchStandIn
        from per import _device_arrays

        _device_arrays.LIBRARIES = {"torch": TorchStandIn, "jax": JaxStandIn}
        self._others: dict[str, Give] = {"dlpack": lambda array: Protocol(DlpackArray(array), "__dlpack__")}
        if kind != "jax":
            self._others["interface"] = lambda array: Protocol(InterfaceArray(array), "__cuda_array_interface__")

    def given(self) -> dict[str, Give]:
        return self._others

    other_stream = staticmethod(contextlib.nullcontext)
    launched = None


N_ENVS = 3

OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "n_step": {"n_step": 3, "uniform_fraction": 0.25, "beta_steps": 5},
    "stack": {"frame_stack": 2, "normalize_weights": "buffer_max"},
    "rank": {"prioritization": "rank", "scheme": "independent"},
    "distinct": {"scheme": "without_replacement"},
    "now": {"max_priority": "now", "alpha": 1.0},
    "stored": {"store_next_observation": True},
    "fresh": {"half_life": 40, "max_age": 60},
    "counted": {"max_times_sampled": 9, "scheme": "without_replacement"},
    "sequences": {"sequence_length": 4, "burn_in": 1, "sequence_stride": 2, "n_step": 2},
}


def steps(numbers: np.random.Generator, length: int) -> dict[str, np.ndarray]:
    """Steps of environments that reset at the end of an episode, with their next observations."""
    arrays = {
        "observation": numbers.normal(size=(length, N_ENVS, 3)).astype(np.float32),
        "action": numbers.integers(0, 9, (length, N_ENVS)).astype(np.int32),
        "reward": numbers.normal(size=(length, N_ENVS)).astype(np.float32),
        "terminated": numbers.random((length, N_ENVS)) < 0.1,
        "truncated": numbers.random((length, N_ENVS)) < 0.05,
    }
    following = np.roll(arrays["observation"], -1, axis=0)
    following[arrays["terminated"] | arrays["truncated"]] += 100
    return arrays | {"next_observation": following}


def check_tree(per: Any, kind: str, give: Give) -> None:
    host, device = per.SumTree(1000, seed=3), per.SumTree(1000, seed=3, device="cuda", arrays=kind)
    numbers = np.random.default_rng(1)
    for _ in range(3):
        indices, priorities = numbers.integers(0, 1000, 200), numbers.random(200, np.float32)
        host.update(indices, priorities)
        device.update(give(indices), give(priorities))
        for scheme in ("stratified", "independent", "systematic", "without_replacement"):
            expected, drawn = host.sample(20, beta=0.5, scheme=scheme), device.sample(20, beta=0.5, scheme=scheme)
            for name in ("indices", "priorities", "weights"):
                same(getattr(expected, name), getattr(drawn, name), name)
            same(host.priorities(expected.indices), device.priorities(drawn.indices), "priorities()")
        same(host.find([0.0, host.total / 2]), device.find(give(np.array([0.0, host.total / 2]))), "find()")
        assert device.mass == host.mass
    device.synchronize()


def replays(per: Any, kind: str, **options: Any) -> list[Any]:
    fields = {"observation": per.Field(3), "action": per.Field((), "int32")}
    on = ({}, {"device": "cuda", "arrays": kind})
    return [per.ReplayBuffer(200, fields, n_envs=N_ENVS, seed=5, **options, **where) for where in on]


def check_buffer(per: Any, kind: str, give: Give, library: Any, **options: Any) -> None:
    host, device = replays(per, kind, **options)
    numbers = np.random.default_rng(4)
    for turn in range(4):
        run = steps(numbers, 12)
        with library.other_stream() if turn % 2 else contextlib.nullcontext():
            same(host.extend(**run), device.extend(**{name: give(array) for name, array in run.items()}), "ids")
            expected, batch = host.sample(8), device.sample(8)
            for name, array in expected.items():
                same(array, batch[name], name)
            errors = numbers.normal(size=expected.reward.shape).astype(np.float32)
            host.update_priorities(expected.ids, errors)
            device.update_priorities(batch.ids, give(errors))
            same(host.priorities(expected.ids), device.priorities(batch.ids), "priorities()")
        host.set(expected.ids, action=np.full(8, turn))
        device.set(batch.ids, action=give(np.full(8, turn, np.int32)))
        same(host.live_ids(), device.live_ids(), "live_ids()")
        figures = [dataclasses.replace(buffer.stats(), memory_bytes=0, huge_page_bytes=0) for buffer in (host, device)]
        assert figures[0] == figures[1], figures
    for expected, batch in zip(host.epochs(1, 16), device.epochs(1, 16), strict=True):
        for name, array in expected.items():
            same(array, batch[name], f"{name} of an epoch")
    device.synchronize()


def check_graph(per: Any, kind: str, give: Give, library: Any) -> None:
    """A whole training step in a graph: each launch equals the next step on the CPU."""
    host, device = replays(per, kind)
    run = steps(np.random.default_rng(4), 40)
    host.extend(**run)
    device.extend(**run)
    errors = np.linspace(0.1, 2.0, 8, dtype=np.float32)
    given = give(errors)
    out = device.sample(8)
    device.update_priorities(out.ids, given)

    def step() -> None:
        device.sample(8, out=out)
        device.update_priorities(out.ids, given)

    def expect() -> None:
        expected = host.sample(8)
        for name, array in expected.items():
            same(array, out[name], f"{name} of a graph")
        host.update_priorities(expected.ids, errors)

    expect()
    launch = library.launched(step)
    for _ in range(5):
        launch()
        expect()
    device.synchronize()


def check_casts(per: Any, kind: str, give: Give) -> None:
    """Casts on the device, bit for bit: rounded numbers, infinities and NaNs of either sign."""
    random = np.random.default_rng(6).integers(0, 1 << 32, 1 << 15, dtype=np.uint32)
    bits = np.concatenate([np.arange(0, 1 << 32, 1 << 17, dtype=np.uint32), random])
    values = bits.view(np.float32)
    values = values[~(np.isfinite(values) & (np.abs(values) >= 65520))]  # too large for float16
    kinds = {"half": "float16", "double": "float64", "same": "float32"}
    fields = {"observation": per.Field(()), **{name: per.Field(len(values), dtype) for name, dtype in kinds.items()}}
    step = {"observation": 0.0, "next_observation": 0.0, "reward": 0.0, "terminated": True, "truncated": False}
    stored = []
    for where, of_array in (({}, np.asarray), ({"device": "cuda", "arrays": kind}, give)):
        buffer = per.ReplayBuffer(10, fields, **where)
        ids = buffer.add(**step, **{name: of_array(values) for name in kinds})
        rows = buffer.get(ids)
        stored.append([as_numpy(rows[name]).reshape(-1).view(np.uint8) for name in kinds])
    for name, expected, found in zip(kinds, *stored, strict=True):
        same(expected, found, f"cast to {name}")


def check_loader(per: Any, kind: str) -> None:
    """Device batches of a buffer in host memory and of one on the device."""
    fields = {"observation": per.Field(3), "action": per.Field((), "int32")}
    options = {"n_envs": N_ENVS, "seed": 5, "n_step": 2}
    here, twin = (per.ReplayBuffer(120, fields, **options) for _ in range(2))
    there = per.ReplayBuffer(120, fields, **options, device="cuda", arrays=kind)
    for filled in (here, there, twin):
        filled.extend(**steps(np.random.default_rng(4), 30))
    with here.loader(8, slots=2, device="cuda", arrays=kind) as copied, there.loader(8, slots=2) as drawn:
        for _, of_here, of_there in zip(range(20), copied, drawn, strict=False):
            for name, array in twin.sample(8).items():
                same(array, of_here[name], f"{name} of a loader")
                same(array, of_there[name], f"{name} of a loader on the device")


def batches_of_program(platform: str) -> list[np.ndarray]:
    """What a compiled program of 30 steps draws from a buffer on the first device of a platform."""
    import jax
    import jax.numpy as jnp
    import per.jax

    buffer = per.jax.make_prioritised_flat_buffer(100, 1, 16, True, 2, device=platform)
    step = {"observation": jnp.zeros(3), "action": jnp.zeros((), jnp.int8), "done": jnp.zeros((), bool)}

    def call(state: Any, given: Any) -> tuple[Any, Any]:
        t, key = given
        steps = jax.tree.map(lambda x: jnp.broadcast_to(t.astype(x.dtype), (2, 5, *x.shape)), step)
        state = buffer.add(state, steps)
        batch = buffer.sample(state, key)
        return buffer.set_priorities(state, batch.indices, jnp.abs(batch.weights - 0.75)), batch

    steps = jnp.arange(30.0), jax.random.split(jax.random.key(0), 30)
    _, batches = jax.jit(lambda state: jax.lax.scan(call, state, steps))(buffer.init(step))
    return [as_numpy(leaf) for leaf in jax.tree.leaves(batches)]


def check_programs() -> int:
    import jax

    if not any(device.platform == "gpu" for device in jax.devices()):
        print("skipped: JAX sees no GPU")
        return 77
    drawn = []
    for platform in ("cpu", "gpu"):
        with jax.default_device(jax.devices(platform)[0]):
            drawn.append(batches_of_program(platform))
    for number, (expected, given) in enumerate(zip(*drawn, strict=True)):
        same(expected, given, f"array {number} of the batches")
    print(f"a program of XLA: the same {len(drawn[0])} arrays\npassed")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("torch", "cupy", "jax", "xla"))
    parser.add_argument("--stand-ins", action="store_true")
    arguments = parser.parse_args()
    kind = arguments.kind
    if kind == "xla":
        return check_programs()
    import per

    try:
        per.SumTree(1, device="cuda", arrays=kind) if not arguments.stand_ins else None
    except (per.NoDevice, per.Unsupported) as error:
        print(f"skipped: {error}")
        return 77
    library: Any = StandIn(kind) if arguments.stand_ins else {"torch": Torch, "cupy": Cupy, "jax": Jax}[kind]()
    givers = {"host": lambda array: array, **library.given()}
    for name, give in givers.items():
        check_tree(per, kind, give)
        check_buffer(per, kind, give, library)
        print(f"arrays of {kind}, given as {name}: the same", flush=True)
    own = givers.get(kind, givers["dlpack"])
    for name, options in OPTIONS.items():
        check_buffer(per, kind, own, library, **options)
        print(f"{name}: the same", flush=True)
    if library.launched is not None:
        check_graph(per, kind, own, library)
        print("a graph: the same")
    if kind != "jax":  # JAX may lack 64 bits, and has no loader
        check_casts(per, kind, own)
        print("casts: the same")
        check_loader(per, kind)
        print("a loader: the same")
    print("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
