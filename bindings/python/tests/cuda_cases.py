"""SumTree on CUDA: run by test_cuda.py, in a process of its own with libper on the simulated GPU.

There memory of the device is memory of the host, so that arrays of numpy can stand in for those of a device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import per
import pytest
from per import _memory


class DeviceArray:
    """What lies on the device, with nothing but what describes it."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        described = dict(self.array.__array_interface__)
        return {name: described[name] for name in ("shape", "typestr", "data", "strides")} | {"version": 3}


class DeviceLibrary:
    """In place of torch."""

    streams_asked_for = 0

    def __init__(self, index: int) -> None:
        assert index == 0

    def empty(self, size: int, dtype: type) -> DeviceArray:
        return DeviceArray(np.full(size, 77, dtype))

    def from_host(self, array: np.ndarray[Any, Any]) -> DeviceArray:
        return DeviceArray(array.copy())

    def current_stream(self) -> int:
        DeviceLibrary.streams_asked_for += 1
        return 0


@pytest.fixture(autouse=True)
def _device_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_memory.DeviceMemory.LIBRARIES, "torch", DeviceLibrary)


def both(capacity: int = 1000, seed: int = 3) -> tuple[per.SumTree, per.SumTree]:
    return per.SumTree(capacity, seed=seed), per.SumTree(capacity, seed=seed, device="cuda")


def test_every_call_gives_what_the_cpu_gives() -> None:
    host, device = both()
    numbers = np.random.default_rng(1)
    for _ in range(3):
        indices = numbers.integers(0, 1000, 200)
        priorities = numbers.random(200, np.float32)
        host.update(indices, priorities)
        device.update(DeviceArray(indices), DeviceArray(priorities))
        for scheme in ("stratified", "independent", "systematic", "without_replacement"):
            expected, draw = host.sample(20, beta=0.5, scheme=scheme), device.sample(20, beta=0.5, scheme=scheme)
            for name in ("indices", "priorities", "weights"):
                assert np.array_equal(getattr(expected, name), getattr(draw, name).array)
        assert device.mass == host.mass and device.total == host.total
        sums = np.array([0.0, host.total / 2])
        assert np.array_equal(host.find(sums), device.find(DeviceArray(sums)).array)
        units = np.array([0, host.mass.total - 1], np.uint64)
        assert np.array_equal(host.find_mass(units), device.find_mass(DeviceArray(units)).array)
        assert np.array_equal(host.priorities(), device.priorities().array)
        assert np.array_equal(host.priorities(indices), device.priorities(DeviceArray(indices)).array)
    device.reset()
    assert device.total == 0
    device.synchronize()


def test_arrays_of_the_host_are_copied_to_the_device() -> None:
    _, device = both()
    device.update([1, 2, 1], [1.0, 2.0, 3.0])
    assert device.priorities([0, 1, 2]).array.tolist() == [0, 3, 2]
    assert device.find([0.0, 4.0]).array.tolist() == [1, 2]


def test_arrays_of_the_device_are_neither_converted_nor_copied() -> None:
    _, device = both()
    indices, priorities = np.arange(4), np.ones(4, np.float32)
    with pytest.raises(per.InvalidArgument, match="indices has dtype int32"):
        device.update(DeviceArray(indices.astype(np.int32)), DeviceArray(priorities))
    with pytest.raises(per.InvalidArgument, match="priorities has dtype float64"):
        device.update(DeviceArray(indices), DeviceArray(priorities.astype(np.float64)))
    with pytest.raises(per.InvalidArgument, match="indices is not contiguous"):
        device.update(DeviceArray(np.arange(8)[::2]), DeviceArray(priorities))
    with pytest.raises(per.InvalidArgument, match="priorities has 3 entries"):
        device.update(DeviceArray(indices), DeviceArray(priorities[:3]))
    assert device.total == 0


def test_the_current_stream_is_the_default() -> None:
    _, device = both()
    before = DeviceLibrary.streams_asked_for
    device.update([1], [1.0])
    assert DeviceLibrary.streams_asked_for == before + 1
    device.update([1], [1.0], stream=1)
    device.sample(2, stream=0)
    assert DeviceLibrary.streams_asked_for == before + 1
    for stream in (-1, "0", 1.5, True):
        with pytest.raises(per.InvalidArgument, match="stream is"):
            device.sample(2, stream=stream)
    with pytest.raises(per.InvalidArgument, match="stream is 1"):
        per.SumTree(3).update([1], [1.0], stream=1)


def test_what_is_wrong_on_the_device_is_reported_once() -> None:
    _, device = both()
    assert device.sample(3).indices.array.tolist() == [-1, -1, -1]
    with pytest.raises(per.Empty):
        device.synchronize()
    device.synchronize()
    device.update([1, 5000, 2], [1.0, 1.0, float("nan")])
    with pytest.raises(per.InvalidArgument, match="2 entries"):
        device.synchronize()
    device.synchronize()
    assert device.total == 1


def test_the_kind_of_arrays() -> None:
    with pytest.raises(per.InvalidArgument, match="arrays is 'numpy'"):
        per.SumTree(3, device="cuda", arrays="numpy")
    with pytest.raises(per.InvalidArgument, match="arrays is 'torch'"):
        per.SumTree(3, arrays="torch")
    with pytest.raises(per.Unsupported, match="cupy"):
        per.SumTree(3, device="cuda", arrays="cupy")
    with pytest.raises(per.NoDevice, match="device_index is 1"):
        per.SumTree(3, device="cuda:1")


def test_replay_buffers_say_that_they_are_not_there_yet() -> None:
    with pytest.raises(per.Unsupported, match="CUDA"):
        per.ReplayBuffer(10, {"observation": per.Field((2,))}, device="cuda")
