"""CUDA: run by test_cuda.py, in a separate process with libper on the simulated GPU.

There, device memory is host memory, so arrays of the host can stand in for arrays of a device.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import per
import pytest
import torch
from device_memory import DlpackArray, InterfaceArray, JaxStandIn, TorchStandIn
from per import _device_arrays, _dlpack
from replay_subjects import skip_if_unsupported

GIVERS = {"torch": torch.from_numpy, "dlpack": DlpackArray, "interface": InterfaceArray, "host": lambda array: array}


@pytest.fixture(autouse=True)
def _libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_device_arrays, "LIBRARIES", {"torch": TorchStandIn, "jax": JaxStandIn})


def both(capacity=1000, seed=3, **options):
    return per.SumTree(capacity, seed=seed), per.SumTree(capacity, seed=seed, device="cuda", **options)


def as_numpy(array):
    array = np.asarray(array)
    return array.view(np.int64).reshape(-1) if array.dtype == np.uint32 else array


def assert_same(expected, given):
    np.testing.assert_array_equal(np.asarray(expected), as_numpy(given))


@pytest.mark.parametrize("kind", ["torch", "jax"])
@pytest.mark.parametrize("giver", GIVERS)
def test_every_call_of_a_tree_gives_what_the_cpu_gives(kind, giver):
    give = GIVERS[giver]
    host, device = both(arrays=kind)
    numbers = np.random.default_rng(1)
    for _ in range(3):
        indices = numbers.integers(0, 1000, 200)
        priorities = numbers.random(200, np.float32)
        host.update(indices, priorities)
        device.update(give(indices), give(priorities))
        for scheme in ("stratified", "independent", "systematic", "without_replacement"):
            expected, draw = host.sample(20, beta=0.5, scheme=scheme), device.sample(20, beta=0.5, scheme=scheme)
            for name in ("indices", "priorities", "weights"):
                assert_same(getattr(expected, name), getattr(draw, name))
            assert_same(host.priorities(expected.indices), device.priorities(draw.indices))
        assert device.mass == host.mass and device.total == host.total
        sums = np.array([0.0, host.total / 2])
        assert_same(host.find(sums), device.find(give(sums)))
        units = np.array([0, host.mass.total - 1], np.uint64)
        assert_same(host.find_mass(units), device.find_mass(give(units)))
        assert_same(host.priorities(), device.priorities())
        assert_same(host.priorities(indices), device.priorities(give(indices)))
    device.reset()
    assert device.total == 0
    device.synchronize()


def test_arrays_of_the_host_are_copied_to_the_device():
    _, device = both()
    device.update([1, 2, 1], [1.0, 2.0, 3.0])
    assert device.priorities([0, 1, 2]).tolist() == [0, 3, 2]
    assert device.find([0.0, 4.0]).tolist() == [1, 2]


@pytest.mark.parametrize("make", [DlpackArray, InterfaceArray])
def test_arrays_of_the_device_are_neither_converted_nor_copied(make):
    _, device = both()
    indices, priorities = np.arange(4), np.ones(4, np.float32)
    with pytest.raises(per.InvalidArgument, match="indices has dtype int32"):
        device.update(make(indices.astype(np.int32)), make(priorities))
    with pytest.raises(per.InvalidArgument, match="priorities has dtype float64"):
        device.update(make(indices), make(priorities.astype(np.float64)))
    with pytest.raises(per.InvalidArgument, match="indices is not contiguous"):
        device.update(make(np.arange(8)[::2]), make(priorities))
    with pytest.raises(per.InvalidArgument, match="priorities has 3 entries"):
        device.update(make(indices), make(priorities[:3]))
    assert device.total == 0


def test_tensors_of_torch_are_converted_by_torch():
    _, device = both()
    weight = torch.ones((), requires_grad=True)
    device.update(torch.arange(8, dtype=torch.int32)[::2], torch.arange(4, dtype=torch.float64) * weight)
    assert device.priorities([0, 2, 4, 6]).tolist() == [0, 1, 2, 3]


def test_the_current_stream_is_the_default():
    _, device = both()
    before = TorchStandIn.streams_asked_for
    device.update([1], [1.0])
    assert TorchStandIn.streams_asked_for == before + 1
    device.update([1], [1.0], stream=1)
    device.sample(2, stream=0)
    assert TorchStandIn.streams_asked_for == before + 1
    for stream in (-1, "0", 1.5, True):
        with pytest.raises(per.InvalidArgument, match="stream is"):
            device.sample(2, stream=stream)
    with pytest.raises(per.InvalidArgument, match="stream is 1"):
        per.SumTree(3).update([1], [1.0], stream=1)
    with pytest.raises(per.InvalidArgument, match="stream is 1; not allowed with arrays='jax'"):
        per.SumTree(3, device="cuda", arrays="jax").sample(1, stream=1)


def test_what_is_wrong_on_the_device_is_reported_once():
    _, device = both()
    assert device.sample(3).indices.tolist() == [-1, -1, -1]
    with pytest.raises(per.Empty):
        device.synchronize()
    device.synchronize()
    device.update([1, 5000, 2], [1.0, 1.0, float("nan")])
    with pytest.raises(per.InvalidArgument, match="2 entries"):
        device.synchronize()
    device.synchronize()
    assert device.total == 1


def test_the_kind_of_arrays():
    with pytest.raises(
        per.InvalidArgument, match="arrays is 'numpy'; allowed on a CUDA device: 'torch', 'cupy', 'jax'"
    ):
        per.SumTree(3, device="cuda", arrays="numpy")
    with pytest.raises(per.InvalidArgument, match="arrays is 'torch'; allowed in host memory: 'numpy'"):
        per.SumTree(3, arrays="torch")
    with pytest.raises(per.Unsupported, match="cupy"):
        per.SumTree(3, device="cuda", arrays="cupy")
    with pytest.raises(per.NoDevice, match="the number after 'cuda:' is 1"):
        per.SumTree(3, device="cuda:1")


def test_libraries_that_find_no_device_say_so(monkeypatch):
    monkeypatch.undo()
    with pytest.raises(per.Unsupported, match=r"arrays is 'torch', but torch .* finds no CUDA device"):
        per.SumTree(3, device="cuda")
    with pytest.raises(per.Unsupported, match="arrays is 'jax', but JAX finds no CUDA device"):
        per.SumTree(3, device="cuda", arrays="jax")


FIELDS = {"observation": per.Field(3), "action": per.Field((), "int32")}


def replays(kind="torch", **options):
    with skip_if_unsupported():
        return (
            per.ReplayBuffer(200, FIELDS, seed=5, **options),
            per.ReplayBuffer(200, FIELDS, seed=5, device="cuda", arrays=kind, **options),
        )


def steps(numbers, length, n_envs):
    """Steps of environments that are reset at the end of an episode, and the observations that follow them."""
    arrays = {
        "observation": numbers.normal(size=(length, n_envs, 3)).astype(np.float32),
        "action": numbers.integers(0, 9, (length, n_envs)).astype(np.int32),
        "reward": numbers.normal(size=(length, n_envs)).astype(np.float32),
        "terminated": numbers.random((length, n_envs)) < 0.1,
        "truncated": numbers.random((length, n_envs)) < 0.05,
    }
    following = np.roll(arrays["observation"], -1, axis=0)
    ends = arrays["terminated"] | arrays["truncated"]
    following[ends] += 100
    return arrays | {"next_observation": following}


def counted(buffer):
    """The statistics that are equal on every device: all but the memory in use."""
    return dataclasses.replace(buffer.stats(), memory_bytes=0, huge_page_bytes=0)


OPTIONS = {
    "default": {},
    "n_step": {"n_step": 3, "uniform_fraction": 0.25, "beta_steps": 5},
    "stack": {"frame_stack": 2, "normalize_weights": "buffer_max"},
    "rank": {"prioritization": "rank", "scheme": "independent"},
    "uniform": {"prioritization": "uniform", "scheme": "systematic"},
    "distinct": {"scheme": "without_replacement", "normalize_weights": "none"},
    "now": {"max_priority": "now", "alpha": 1.0},
    "stored": {"store_next_observation": True},
    "sequences": {"sequence_length": 4, "burn_in": 1, "sequence_stride": 2, "n_step": 2},
}


@pytest.mark.parametrize("giver", GIVERS)
@pytest.mark.parametrize("options", OPTIONS)
def test_every_call_of_a_buffer_gives_what_the_cpu_gives(options, giver):
    give, n_envs = GIVERS[giver], 3
    host, device = replays(n_envs=n_envs, **OPTIONS[options])
    numbers = np.random.default_rng(4)
    for turn in range(4):
        run = steps(numbers, 12, n_envs)
        expected = host.extend(**run)
        given = device.extend(**{name: give(array) for name, array in run.items()})
        assert_same(expected, given)
        host_batch, batch = host.sample(8), device.sample(8)
        assert list(host_batch) == list(batch)
        for name, array in host_batch.items():
            np.testing.assert_array_equal(array, batch[name].numpy(), err_msg=name)
        td_errors = numbers.normal(size=host_batch.reward.shape).astype(np.float32)
        host.update_priorities(host_batch.ids, td_errors)
        device.update_priorities(batch.ids, give(td_errors))
        assert_same(host.priorities(host_batch.ids), device.priorities(batch.ids))
        host.set(host_batch.ids, action=np.full(8, turn))
        device.set(batch.ids, action=give(np.full(8, turn, np.int32)))
        assert_same(host.live_ids(), device.live_ids())
        assert counted(host) == counted(device)
    for expected, given in zip(host.epochs(1, 16), device.epochs(1, 16), strict=True):
        for name, array in expected.items():
            np.testing.assert_array_equal(array, given[name].numpy(), err_msg=name)
    device.synchronize()


def test_graphs_need_batches_that_are_used_again():
    host, device = replays()
    run = steps(np.random.default_rng(4), 40, 1)
    host.extend(**run), device.extend(**run)
    out = device.sample(8)
    assert_same(host.sample(8).ids, out.ids)
    for _ in range(3):
        assert device.sample(8, out=out) is out
        assert_same(host.sample(8).ids, out.ids)


def loaded_buffers():
    """Two buffers in host memory with the same steps."""
    buffers = [per.ReplayBuffer(120, FIELDS, seed=5, n_step=2, beta_steps=9) for _ in range(2)]
    for buffer in buffers:
        buffer.extend(**steps(np.random.default_rng(4), 40, 1))
    return buffers


def test_loaders_of_buffers_in_host_memory_hand_out_arrays_of_the_device():
    buffer, twin = loaded_buffers()
    with buffer.loader(8, slots=2, device="cuda") as batches:
        for step, batch in zip(range(10), batches, strict=False):
            expected = twin.sample(8)
            assert list(batch) == list(expected)
            for name, array in expected.items():
                assert isinstance(batch[name], torch.Tensor)
                np.testing.assert_array_equal(array, batch[name].numpy(), err_msg=name)
            assert buffer.beta == twin.beta, step
        kept = batch.reward
    assert kept.shape == (8,)


def test_frames_of_large_fields_are_gathered_by_the_device():
    fields = {
        "observation": per.Field((40, 30), "uint8", stack=2),
        "plan": per.Field(300),
        "action": per.Field((), int),
    }
    buffer, twin = (per.ReplayBuffer(30, fields, n_step=2, seed=5) for _ in range(2))

    def add(t: int) -> None:
        for each in (buffer, twin):
            each.add(
                observation=np.full((40, 30), t % 250, np.uint8),
                plan=np.arange(300) + t,
                action=t,
                reward=t,
                terminated=t % 7 == 6,
                truncated=False,
                next_observation=np.full((40, 30), (t + 1) % 250, np.uint8),
            )

    for t in range(40):
        add(t)
    with buffer.loader(8, slots=2, device="cuda", gather_on_device=True) as batches, twin.loader(8, slots=2) as others:
        for t, batch, expected in zip(range(40, 60), batches, others, strict=False):
            for name, array in expected.items():
                assert isinstance(batch[name], torch.Tensor)
                np.testing.assert_array_equal(array, batch[name].numpy(), err_msg=name)
            add(t)


def test_what_cannot_be_gathered_by_the_device_is_refused():
    buffer, _ = loaded_buffers()
    with pytest.raises(per.InvalidArgument, match="gather_on_device is True: device is 'cpu'"):
        buffer.loader(8, gather_on_device=True)
    with pytest.raises(per.InvalidArgument, match="gather_on_device is 1; allowed: True or False"):
        buffer.loader(8, device="cuda", gather_on_device=1)
    _, on_device = replays()
    with pytest.raises(per.InvalidArgument, match="gather_on_device is True: allowed for the loader of a replay on"):
        on_device.loader(8, gather_on_device=True)
    with buffer.loader(8, device="cuda", gather_on_device=True) as batches:  # although no field is large
        assert isinstance(next(batches).reward, torch.Tensor)


def test_a_loader_takes_and_releases_on_the_current_stream_or_the_one_named():
    buffer, _ = loaded_buffers()
    with buffer.loader(8, slots=2, device="cuda:0", arrays="torch") as batches:
        before = TorchStandIn.streams_asked_for
        batches.take(stream=1).release()
        assert TorchStandIn.streams_asked_for == before
        batches.take().release()
        assert TorchStandIn.streams_asked_for == before + 2
        with pytest.raises(per.InvalidArgument, match="stream is -1"):
            batches.take(stream=-1)
    with buffer.loader(8) as batches, pytest.raises(per.InvalidArgument, match="stream is 1"):
        batches.take(stream=1)


def test_what_a_loader_s_device_and_arrays_may_be():
    buffer, _ = loaded_buffers()
    for arrays in ("numpy", "tensorflow"):
        with pytest.raises(per.InvalidArgument, match=f"arrays is '{arrays}'; allowed on a CUDA device"):
            buffer.loader(8, device="cuda", arrays=arrays)
    with pytest.raises(per.InvalidArgument, match="arrays is 'jax', for which there is no loader"):
        buffer.loader(8, device="cuda", arrays="jax")
    with pytest.raises(per.InvalidArgument, match="arrays is 'cupy'; allowed in host memory"):
        buffer.loader(8, arrays="cupy")
    with pytest.raises(per.InvalidArgument, match="device is 'tpu'"):
        buffer.loader(8, device="tpu")
    with pytest.raises(per.NoDevice, match="the number after 'cuda:' is 3"):
        buffer.loader(8, device="cuda:3")
    with buffer.loader(8, arrays="torch") as batches:
        assert isinstance(next(batches).reward, torch.Tensor)
    _, on_device = replays()
    with pytest.raises(
        per.InvalidArgument, match="device is 'cpu': allowed for the loader of a replay on 'cuda' 0 is that device"
    ):
        on_device.loader(8, device="cpu")


def test_loaders_of_buffers_on_the_device_hand_out_what_sample_gives():
    host, device = replays()
    run = steps(np.random.default_rng(4), 40, 1)
    host.extend(**run), device.extend(**run)
    for options in ({}, {"device": "cuda:0", "arrays": "torch"}):
        with device.loader(8, **options) as batches, host.loader(8) as expected:
            for _, batch, other in zip(range(5), batches, expected, strict=False):
                assert type(batch.ids) is type(device.sample(1).ids)
                host.sample(1)
                assert_same(batch.reward, other.reward)
                assert_same(batch.ids, other.ids)
                for buffer, drawn in ((device, batch), (host, other)):
                    buffer.update_priorities(drawn.ids, drawn.reward)


def test_files_go_from_one_device_to_the_other(tmp_path):
    host, device = replays()
    run = steps(np.random.default_rng(4), 40, 1)
    host.extend(**run), device.extend(**run)
    with skip_if_unsupported():
        device.save(tmp_path / "device")
        host.save(tmp_path / "host")
        loaded = [per.ReplayBuffer.load(tmp_path / "device"), per.ReplayBuffer.load(tmp_path / "host", device="cuda")]
    expected = host.sample(8)
    for buffer in (*loaded, device):
        assert_same(expected.ids, buffer.sample(8).ids)


# Rows of which many are copied to the device at once, and rows that are copied in two parts each.
@pytest.mark.parametrize(("n_bytes", "capacity", "turns"), [(16_001, 300, (100, 90)), (9_000_001, 6, (2,))])
def test_rows_that_a_checkpoint_leaves_in_their_file_go_to_the_device(tmp_path, n_bytes, capacity, turns):
    fields = {"observation": per.Field(n_bytes, "uint8"), "action": per.Field((), "int16")}
    host = per.ReplayBuffer(capacity, fields, n_envs=2, seed=3, storage=tmp_path)
    random = np.random.default_rng(6)
    for n in turns:  # the rings wrap around
        observations = random.integers(0, 256, (n + 1, 2, n_bytes), np.uint8)
        ends = random.random((n, 2)) < 0.1
        host.extend(
            observation=observations[:-1],
            next_observation=observations[1:] + ends[:, :, None].astype(np.uint8),
            action=random.integers(0, 9, (n, 2)).astype(np.int16),
            reward=random.random((n, 2)),
            terminated=ends,
            truncated=np.zeros_like(ends),
        )
        host.checkpoint(tmp_path)
    with skip_if_unsupported():
        device = per.ReplayBuffer.load(tmp_path, device="cuda")
    device.checkpoint(tmp_path)
    assert not list(tmp_path.glob("rows-*"))
    ids = host.live_ids()
    there_and_back, expected = per.ReplayBuffer.load(tmp_path).get(ids), host.get(ids)
    for name in ("ids", "observation", "next_observation", "action", "reward"):
        assert_same(getattr(there_and_back, name), getattr(expected, name))


def test_what_is_wrong_with_a_buffer_s_values_is_reported_once():
    _, device = replays()
    assert device.sample(3).ids.tolist() == [-1, -1, -1]
    with pytest.raises(per.Empty):
        device.synchronize()
    device.synchronize()
    device.extend(**steps(np.random.default_rng(4), 40, 1))
    device.update_priorities([0, 1, 2], [1.0, float("nan"), 1.0])
    with pytest.raises(per.InvalidArgument, match="1 "):
        device.synchronize()
    device.synchronize()
    assert device.stats().rejected_updates == 1


def test_arrays_of_the_device_s_number_only():
    _, device = replays()
    with pytest.raises(per.InvalidArgument, match="ids is on cuda:1; allowed: cuda:0"):
        device.priorities(DlpackArray(np.arange(3), device=(_dlpack.CUDA, 1)))
