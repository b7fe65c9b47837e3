"""Arrays on a device as arguments and results. The device is a stand-in with host memory and buffers on the CPU.

This tests how arrays and streams are passed, with each library; cuda_cases.py has buffers on the simulated GPU.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import per
import pytest
import torch
from device_memory import CupyStandIn, DlpackArray, FakeCupy, InterfaceArray, JaxStandIn, TorchStandIn
from per import _dlpack, _kinds, _memory, _streams

pytestmark = pytest.mark.usefixtures("each_way")

FIELDS = {"observation": per.Field(3), "action": per.Field((), "int32")}


@pytest.fixture
def library(monkeypatch):
    """The stand-in shared by the buffers of the test."""
    made = []

    def memory_of(device, index, kind):
        made.append({"torch": TorchStandIn, "cupy": CupyStandIn, "jax": JaxStandIn}[kind](index))
        return _memory.DeviceMemory(kind, made[-1])

    monkeypatch.setitem(sys.modules, "cupy", FakeCupy())
    monkeypatch.setattr(_memory, "memory_of", memory_of)
    monkeypatch.setattr(_kinds, "ON_HOST", ("torch", "cupy", "jax"))
    return made


def steps(length, first=0):
    t = np.arange(first, first + length, dtype=np.float32)
    return {
        "observation": np.stack([t, t + 0.5, -t], axis=-1),
        "action": (t * 7).astype(np.int32),
        "reward": t / 4,
        "terminated": t % 10 == 9,
        "truncated": np.zeros(length, bool),
    }


def with_next(arrays):
    following = arrays["observation"] + np.array([1, 1, -1], np.float32)
    return arrays | {"next_observation": following}


def host(**options):
    """A buffer in host memory, created before the stand-in is installed."""
    buffer = per.ReplayBuffer(200, FIELDS, seed=5, **options)
    buffer.extend(**with_next(steps(50)))
    return buffer


def as_numpy(array):
    array = np.asarray(array)
    return array.view(np.int64).reshape(-1) if array.dtype == np.uint32 else array


def assert_same(batch, expected):
    assert list(batch) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(as_numpy(batch[name]), np.asarray(array), err_msg=name)


GIVERS = {
    "torch": lambda array: torch.from_numpy(np.ascontiguousarray(array)),
    "dlpack": DlpackArray,
    "dlpack 0": lambda array: DlpackArray(array, version=0),
    "interface": InterfaceArray,
    "host": lambda array: array,
}


@pytest.fixture
def expected():
    return host()


@pytest.mark.parametrize("kind", ["torch", "cupy", "jax"])
@pytest.mark.parametrize("giver", GIVERS)
def test_every_call_gives_what_it_gives_in_host_memory(expected, library, kind, giver):
    give = GIVERS[giver]
    if giver == "torch" and kind != "torch":
        pytest.skip("tensors of the CPU are in host memory to all but torch")
    numbers = np.random.default_rng(2)
    buffer = per.ReplayBuffer(200, FIELDS, seed=5, arrays=kind)
    ids = buffer.extend(**{name: give(array) for name, array in with_next(steps(50)).items()})
    np.testing.assert_array_equal(as_numpy(ids), np.arange(0, 55)[np.arange(55) % 11 != 10])
    for _ in range(3):
        batch, host_batch = buffer.sample(16), expected.sample(16)
        assert_same(batch, host_batch)
        td_errors = numbers.normal(size=(2, 16)).astype(np.float32)
        buffer.update_priorities(give(host_batch.ids), give(td_errors))
        expected.update_priorities(host_batch.ids, td_errors)
        buffer.update_priorities(batch.ids, priorities=batch.priorities)
        expected.update_priorities(host_batch.ids, priorities=host_batch.priorities)
    ids = np.array([0, 3, 4])
    np.testing.assert_array_equal(np.asarray(buffer.priorities(give(ids))), expected.priorities(ids))
    for each, pass_on in ((buffer, give), (expected, np.asarray)):
        each.set(pass_on(ids), action=pass_on(np.array([5, 6, 7], np.int32)))
        step = {name: array[:1] for name, array in steps(1, first=90).items()}
        each.add(**{name: pass_on(array) for name, array in step.items()})
        each.cut([0])
    assert_same(buffer.get(give(ids)), expected.get(ids))
    for batch, host_batch in zip(buffer.epochs(1, 20), expected.epochs(1, 20), strict=True):
        assert_same(batch, host_batch)
    np.testing.assert_array_equal(buffer.live_ids(), expected.live_ids())
    assert buffer.stats() == expected.stats()
    buffer.clear()
    buffer.synchronize()
    assert len(buffer) == 0


def test_arrays_of_torch_are_tensors_and_used_again_as_out(library):
    buffer = per.ReplayBuffer(200, FIELDS, seed=5, arrays="torch")
    ids = buffer.extend(**with_next(steps(50)))
    assert type(ids) is torch.Tensor and ids.dtype == torch.int64
    out = buffer.sample(8)
    assert all(type(array) is torch.Tensor for array in out.values())
    assert type(buffer.priorities(out.ids)) is torch.Tensor
    places = [array.data_ptr() for array in out.values()]
    before = out.ids.clone()
    assert buffer.sample(8, out=out) is out
    assert [array.data_ptr() for array in out.values()] == places
    assert not torch.equal(before, out.ids)
    with pytest.raises(per.InvalidArgument, match=r"out.observation is float32\[8, 3\]; allowed: float32\[9, 3\]"):
        buffer.sample(9, out=out)
    out.__dict__["reward"] = np.zeros(8, np.float32)
    with pytest.raises(per.InvalidArgument, match=r"out\.reward is a ndarray; allowed: contiguous torch arrays on the"):
        buffer.sample(8, out=out)


def test_tensors_changed_since_the_last_draw_are_checked_again_as_out(library):
    buffer = per.ReplayBuffer(200, FIELDS, seed=5, arrays="torch")
    buffer.extend(**with_next(steps(50)))
    out = buffer.sample(8)
    buffer.sample(8, out=out)
    address = out.reward.data_ptr()
    out.reward.resize_(4)
    assert out.reward.data_ptr() == address
    with pytest.raises(per.InvalidArgument, match=r"out\.reward is float32\[4\]; allowed: float32\[8\]"):
        buffer.sample(8, out=out)
    out.reward.resize_(8)
    out.observation.t_()
    with pytest.raises(per.InvalidArgument, match=r"out\.observation is a Tensor; allowed: contiguous torch arrays"):
        buffer.sample(8, out=out)
    out.observation.t_()
    replaced = torch.full((8,), -1.0)
    out.reward.set_(replaced)
    buffer.sample(8, out=out)
    assert (replaced >= 0).all() and replaced.data_ptr() == out.reward.data_ptr()
    out.weights.untyped_storage().resize_(0)
    with pytest.raises(per.InvalidArgument, match=r"out\.weights is a tensor that cannot be read: it has no memory"):
        buffer.sample(8, out=out)
    assert buffer.stats().samples == 3


def test_batches_of_any_size_and_kind_follow_each_other_in_memory_of_their_own(library):
    buffer = per.ReplayBuffer(200, FIELDS, seed=5, arrays="torch")
    buffer.extend(**with_next(steps(50)))
    arrays = []
    for n in (8, 3, 8):
        for batch, is_drawn in ((buffer.sample(n), True), (buffer.get(range(n)), False), (buffer.sample(n), True)):
            assert all(len(array) == n for array in batch.values()) and ("weights" in batch) == is_drawn
            arrays += batch.values()
    assert len({array.untyped_storage().data_ptr() for array in arrays}) == len(arrays)
    assert all(array.untyped_storage().nbytes() == array.nbytes and array.is_contiguous() for array in arrays)


def test_arrays_of_cupy_are_its_own_and_used_again_as_out(expected, library):
    buffer = per.ReplayBuffer(200, FIELDS, seed=5, arrays="cupy")
    assert type(buffer.extend(**with_next(steps(50)))) is FakeCupy.ndarray
    out = buffer.sample(8)
    assert all(type(array) is FakeCupy.ndarray for array in out.values())
    assert_same(out, expected.sample(8))
    places = [array.data.ptr for array in out.values()]
    assert buffer.sample(8, out=out) is out
    assert_same(out, expected.sample(8))
    assert [array.data.ptr for array in out.values()] == places


def test_arrays_of_cupy_are_converted_by_it_and_those_elsewhere_refused(expected, library):
    buffer = per.ReplayBuffer(200, FIELDS, seed=5, arrays="cupy")
    buffer.extend(**with_next(steps(50)))
    wide = np.arange(8, dtype=np.int32).view(FakeCupy.ndarray)
    buffer.update_priorities(wide[::2], np.arange(4.0).view(FakeCupy.ndarray))
    expected.update_priorities(np.arange(0, 8, 2), np.arange(4.0))
    np.testing.assert_array_equal(as_numpy(buffer.priorities(wide)), expected.priorities(np.arange(8)))
    far = np.arange(4).view(type("far", (FakeCupy.ndarray,), {"device": type("Device", (), {"id": 1})()}))
    with pytest.raises(per.InvalidArgument, match="ids is on cuda:1; allowed: cuda:0"):
        buffer.update_priorities(far, np.ones(4, np.float32))


def test_cupy_works_on_the_stream_that_was_chosen_and_waits_for_that_of_the_writer(library):
    buffer = per.ReplayBuffer(200, FIELDS, seed=5, arrays="cupy")
    buffer.extend(**with_next(steps(50)))
    memory = buffer._memory
    memory.read_numbers(InterfaceArray(np.arange(4), 99), "ids", "int64", memory.queue(4711))
    memory.read_numbers(InterfaceArray(np.arange(4), 4711), "ids", "int64", memory.queue(4711))
    assert library[0].log == [("waits", 4711, ("all before on", 99))]
    with pytest.raises(per.InvalidArgument, match="stream is"):  # the buffers of this file are the CPU's
        buffer.sample(4, stream=CupyStream())
    assert library[0].log[1:] and set(library[0].log[1:]) == {("on", 8)}


def test_tensors_of_torch_are_converted_on_the_device(expected, library):
    buffer = per.ReplayBuffer(200, FIELDS, seed=5, arrays="torch")
    steps_in = {name: torch.from_numpy(array) for name, array in with_next(steps(50)).items()}
    steps_in["observation"] = steps_in["observation"].t().contiguous().t()
    assert not steps_in["observation"].is_contiguous()
    buffer.extend(**steps_in)
    batch, host_batch = buffer.sample(16), expected.sample(16)
    assert_same(batch, host_batch)
    td_errors = np.random.default_rng(2).normal(size=(16, 2)).astype(np.float32)
    weight = torch.ones((), requires_grad=True)
    buffer.update_priorities(batch.ids.to(torch.int32), (torch.from_numpy(td_errors) * weight).t())
    expected.update_priorities(host_batch.ids, td_errors.T)
    assert buffer.stats() == expected.stats()
    buffer.update_priorities(batch.ids, torch.ones(16, dtype=torch.float64))
    buffer.update_priorities(batch.ids, torch.ones(32, dtype=torch.bfloat16)[::2])
    np.testing.assert_array_equal(buffer.priorities(batch.ids), np.full(16, np.float32(1 + 1e-6)))
    with pytest.raises(per.InvalidArgument, match="ids has dtype float32 on the device; allowed there: int64"):
        buffer.update_priorities(batch.ids.float()[::2], td_errors[:8, 0])


@pytest.mark.parametrize("make", [DlpackArray, InterfaceArray])
def test_arrays_of_other_libraries_must_be_as_they_are_needed(library, make):
    buffer = per.ReplayBuffer(200, FIELDS, seed=5, arrays="torch")
    buffer.extend(**with_next(steps(50)))
    ids, td_errors = np.arange(4), np.ones(4, np.float32)
    with pytest.raises(per.InvalidArgument, match="ids has dtype int32 on the device; allowed there: int64"):
        buffer.update_priorities(make(ids.astype(np.int32)), make(td_errors))
    with pytest.raises(per.InvalidArgument, match="td_errors has dtype float64 on the device; allowed there: float32"):
        buffer.update_priorities(make(ids), make(td_errors.astype(np.float64)))
    with pytest.raises(per.InvalidArgument, match="td_errors is not contiguous"):
        buffer.update_priorities(make(ids), make(np.ones(8, np.float32)[::2]))
    with pytest.raises(per.InvalidArgument, match="observation is not contiguous"):
        buffer.add(observation=make(np.zeros((3, 2), np.float32)[:, 0]), action=1, reward=0, terminated=0, truncated=0)
    with pytest.raises(per.InvalidArgument, match="reward has dtype"):
        buffer.add(observation=[0, 0, 0], action=1, reward=make(np.zeros(1, "c8")), terminated=0, truncated=0)
    with pytest.raises(per.InvalidArgument, match="td_errors has shape"):
        buffer.update_priorities(make(ids), make(td_errors[:3]))
    assert buffer.stats().updates == 0 and buffer.stats().added == 50


def test_arrays_on_the_device_that_begin_between_elements_are_refused(library):
    buffer = per.ReplayBuffer(200, FIELDS, seed=5, arrays="torch")
    buffer.extend(**with_next(steps(50)))

    def shifted(array):
        copy = np.frombuffer(b"?" + array.tobytes(), np.uint8)[1:].view(array.dtype).reshape(array.shape)
        assert copy.ctypes.data % array.itemsize == 1
        return InterfaceArray(copy)

    ids, td_errors, last = np.arange(4), np.ones(4, np.float32), steps(1, 50)
    with pytest.raises(per.InvalidArgument, match=r"ids is 0x.*: must be a multiple of 8, the size of its elements"):
        buffer.update_priorities(shifted(ids), InterfaceArray(td_errors))
    with pytest.raises(per.InvalidArgument, match=r"td_errors is 0x.*: must be a multiple of 4"):
        buffer.update_priorities(InterfaceArray(ids), shifted(td_errors))
    for name in ("observation", "action", "reward"):
        with pytest.raises(per.InvalidArgument, match=f"^{name} is 0x.*: must be a multiple of 4"):
            buffer.extend(**last | {name: shifted(last[name])})
    assert buffer.stats().updates == 0 and buffer.stats().added == 50


def test_arrays_on_another_device_are_refused(library):
    buffer = per.ReplayBuffer(200, FIELDS, seed=5, arrays="torch")
    ids = DlpackArray(np.arange(4), device=(_dlpack.CUDA, 1))
    with pytest.raises(per.InvalidArgument, match="ids is on cuda:1; allowed: cuda:0"):
        buffer.update_priorities(ids, np.ones(4, np.float32))
    assert ids.asked == []
    pinned = DlpackArray(np.zeros(1, np.int64), device=(_dlpack.CUDA_HOST, 0))
    buffer._memory.read(pinned, "pinned", buffer._memory.queue(None))
    assert pinned.asked == ["in host memory"]


def test_dlpack_is_asked_for_arrays_that_are_ready_on_the_stream(library):
    buffer = per.ReplayBuffer(200, FIELDS, seed=5, arrays="torch")
    buffer.extend(**with_next(steps(50)))
    queue = buffer._memory.queue
    for stream, number in ((None, 1), (0, 1), (1, 1), (2, 2), (4711, 4711)):
        ids = DlpackArray(np.arange(4))
        buffer._memory.read_numbers(ids, "ids", "int64", queue(stream))
        assert ids.asked == [number]


def test_interfaces_name_streams_that_are_waited_for(library):
    buffer = per.ReplayBuffer(200, FIELDS, seed=5, arrays="torch")
    queue = buffer._memory.queue(4711)
    for producer, waits in ((None, []), (-1, []), (1, [(4711, 0)]), (2, [(4711, 2)]), (99, [(4711, 99)])):
        library[0].waits = []
        buffer._memory.read_numbers(InterfaceArray(np.arange(4), producer), "ids", "int64", queue)
        assert library[0].waits == waits
    for producer in (0, "1", -2, True):
        with pytest.raises(per.InvalidArgument, match="ids says stream"):
            buffer.update_priorities(InterfaceArray(np.arange(4), producer), np.ones(4, np.float32))


class TorchStream:
    cuda_stream = 7


class CupyStream:
    ptr = 8


class CoreStream:
    def __cuda_stream__(self):
        return 0, 9


def test_streams_of_every_library_are_understood():
    for stream, number in ((TorchStream(), 7), (CupyStream(), 8), (CoreStream(), 9), (0, 0), (2**63, 2**63)):
        assert _streams.number_of(stream) == number
    for stream in (-1, 2**64, "0", 1.5, True, object()):
        with pytest.raises(per.InvalidArgument, match="stream is"):
            _streams.number_of(stream)


def test_every_call_is_queued_on_the_stream_that_was_chosen(library):
    buffer = per.ReplayBuffer(200, FIELDS, seed=5, arrays="torch")
    buffer.extend(**with_next(steps(50)))
    batch = buffer.sample(4)
    calls = {
        "add": lambda: buffer.add(**{name: array[:1] for name, array in steps(1).items()}, stream=7),
        "extend": lambda: buffer.extend(**steps(2), stream=7),
        "cut": lambda: buffer.cut(stream=7),
        "sample": lambda: buffer.sample(4, stream=7),
        "sample out": lambda: buffer.sample(4, out=batch, stream=7),
        "update": lambda: buffer.update_priorities(batch.ids, batch.reward, stream=7),
        "set": lambda: buffer.set(batch.ids, action=batch.action, stream=7),
        "get": lambda: buffer.get(batch.ids, stream=7),
        "priorities": lambda: buffer.priorities(batch.ids, stream=7),
        "clear": lambda: buffer.clear(stream=7),
        "epochs": lambda: buffer.epochs(1, 4, stream=7),
    }
    for name, call in calls.items():
        # The library knows what has streams: the buffers of this file are the CPU's.
        with pytest.raises(per.InvalidArgument, match="stream is"):
            call()
            pytest.fail(f"{name} has no stream")
    assert set(library[0].chosen) == {7}


def test_buffers_in_host_memory_have_no_stream():
    buffer = host()
    batch = buffer.sample(4)
    for call in (
        lambda: buffer.sample(4, stream=1),
        lambda: buffer.update_priorities(batch.ids, batch.reward, stream=1),
        lambda: buffer.add(**steps(1), stream=1),
        lambda: buffer.synchronize(stream=1),
    ):
        with pytest.raises(per.InvalidArgument, match="stream is 1; allowed with device='cuda' only"):
            call()
    buffer.synchronize()


def test_jax_has_no_streams_to_choose(library):
    buffer = per.ReplayBuffer(200, FIELDS, seed=5, arrays="jax")
    with pytest.raises(per.InvalidArgument, match="stream is 1; not allowed with arrays='jax'"):
        buffer.sample(4, stream=1)


def test_batches_of_jax_live_in_memory_of_their_own(library):
    buffer = per.ReplayBuffer(200, FIELDS, seed=5, arrays="jax")
    ids = buffer.extend(**with_next(steps(50)))
    assert isinstance(ids, jax.Array) and ids.shape == (50, 2)
    first, second = buffer.sample(8), buffer.sample(8)
    kept = {name: np.asarray(array).copy() for name, array in first.items()}
    assert all(isinstance(array, jax.Array) for array in first.values())
    for _ in range(5):
        buffer.sample(8)
    del buffer
    for name, array in first.items():
        np.testing.assert_array_equal(np.asarray(array), kept[name])
    assert float(jnp.sum(first.reward * first.weights)) == pytest.approx(
        float((kept["reward"] * kept["weights"]).sum())
    )
    assert first.terminated.dtype == bool and second.ids.dtype == jnp.uint32


def test_single_ids_of_jax_are_pairs_with_an_axis(library):
    buffer = per.ReplayBuffer(200, FIELDS, seed=5, arrays="jax")
    step = {"observation": [1, 2, 3], "action": 5, "reward": 0, "terminated": True, "truncated": False}
    ids = buffer.add(**step, next_observation=[1, 2, 3])
    assert ids.shape == (1, 2)
    assert buffer.get(ids).action.tolist() == [5]


def test_tensors_that_lie_nowhere_are_refused_by_name(library):
    buffer = per.ReplayBuffer(200, FIELDS, seed=5, arrays="jax")
    with pytest.raises(per.InvalidArgument, match="td_errors is a tensor that cannot be read"):
        buffer.update_priorities([0], torch.zeros(1, device="meta"))


def test_what_a_call_on_jax_uses_is_held_until_it_is_done(library):
    buffer = per.ReplayBuffer(200, FIELDS, seed=5, arrays="jax")
    buffer.extend(**with_next(steps(50)))
    used = library[0]._used
    for _ in range(20):
        buffer.update_priorities(buffer.sample(4).ids, jnp.ones(4))
    assert 1 <= len(used) <= 3


def test_sequences_advantages_and_loaders_have_arrays_of_the_device(library):
    fields = {"observation": per.Field(3), "value": per.Field(), "advantage": per.Field()}
    buffer = per.ReplayBuffer(100, fields, seed=5, sequence_length=4, n_step=2, arrays="torch")
    run = with_next({name: array for name, array in steps(30).items() if name != "action"})
    zeros = torch.zeros(30)
    buffer.extend(**run, value=zeros, advantage=zeros)
    batch = buffer.sample(5)
    assert batch.observation.shape == (5, 6, 3) and batch.mask.shape == (5, 4)
    assert buffer.sample(5, n_step=1, out=None).observation.shape == (5, 5, 3)
    buffer.update_priorities(batch.ids, torch.ones(5, 4))
    assert buffer.priorities(batch.ids).tolist() == [pytest.approx(1 + 1e-6)] * 5
    buffer.advantages(bootstrap=lambda rows: 2.0 * rows.next_observation[:, 0])
    assert buffer.get(torch.tensor([0])).advantage.shape == (1,)
    with buffer.loader(5) as loader:
        loaded = next(loader)
        assert type(loaded.observation) is torch.Tensor and loaded.observation.shape == (5, 6, 3)
        assert loaded.mask.dtype == torch.bool
        loader.take().release()
    with pytest.raises(per.InvalidArgument, match="bootstrap gave shape"):
        buffer.cut()
        buffer.extend(**{name: array[:2] for name, array in run.items()}, value=zeros[:2], advantage=zeros[:2])
        buffer.advantages(bootstrap=lambda rows: [1.0, 2.0, 3.0, 4.0, 5.0])


def test_memory_is_given_back_once_nobody_reads_it():
    owner = np.arange(6, dtype=np.float32)
    memory = _dlpack.Memory(owner.ctypes.data, (2, 3), "float32", (_dlpack.CPU, 0), owner)
    del owner
    before = len(_dlpack._held)
    tensor = torch.from_dlpack(memory)
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    rows = torch.from_dlpack(memory[:1])
    assert rows.tolist() == [[0, 1, 2]] and len(_dlpack._held) == before + 2
    memory.__dlpack__()  # nobody consumes it
    assert len(_dlpack._held) == before + 2
    del tensor, rows
    assert len(_dlpack._held) == before


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "uint16", "int64", "uint64", "float16", "bfloat16"])
def test_dtypes_come_through_dlpack_both_ways(library, dtype):
    buffer = per.ReplayBuffer(10, {"observation": per.Field(2, dtype)}, arrays="torch")
    values = torch.tensor([[0, 1]], dtype=getattr(torch, dtype))
    read = buffer._memory.read_here(values, "values", buffer._memory.queue(None))
    assert (read.dtype, read.shape) == (dtype, (1, 2))
    buffer.add(observation=values[0], reward=0, terminated=True, truncated=False, next_observation=values[0])
    batch = buffer.sample(1)
    assert batch.observation.dtype == values.dtype and torch.equal(batch.observation, values)
    with buffer.loader(1) as loader:
        assert torch.equal(next(loader).observation, values)
