"""The memory of batch arrays: it is not reused while any of the arrays is held."""

import gc
import random
import weakref
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import per
import pytest
import torch

HALF_A_LINE = 32  # offset of numpy's arrays from a cache line


def filled(kind="numpy", shape=(3,), capacity=64):
    """A buffer whose rows identify themselves: observation and reward of step t are t."""
    buffer = per.ReplayBuffer(capacity, {"observation": per.Field(shape, "float32")}, arrays=kind, seed=1)
    for t in range(capacity):
        at = np.full(shape, t, np.float32)
        buffer.add(observation=at, reward=t, terminated=False, truncated=False, next_observation=at + 1)
    return buffer


def address(array):
    return array.data_ptr() if isinstance(array, torch.Tensor) else array.ctypes.data


def numbers(array):
    return array.numpy() if isinstance(array, torch.Tensor) else array


def is_itself(batch):
    """Whether all arrays of a batch are of the same rows."""
    rows = numbers(batch.reward)
    observed = numbers(batch.observation).reshape(len(rows), -1)
    following = numbers(batch.next_observation).reshape(len(rows), -1)
    return (observed == rows[:, None]).all() and (following == rows[:, None] + 1).all()


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("kind", ["numpy", "torch"])
class TestHeldArrays:
    def test_batches_that_are_held_stay_as_they_were_drawn(self, kind):
        buffer, twin = filled(kind), filled(kind)
        held = [buffer.sample(16) for _ in range(20)]
        for batch in held:
            expected = twin.sample(16)
            for name in batch:
                assert np.array_equal(numbers(batch[name]), numbers(expected[name])), name

    def test_one_array_of_a_batch_stays_when_the_batch_is_gone(self, kind):
        buffer, twin = filled(kind), filled(kind)
        kept, expected = [], []
        for i in range(30):
            name = ("reward", "ids", "observation", "weights", "next_observation")[i % 5]
            kept.append(buffer.sample(16)[name])
            expected.append(numbers(twin.sample(16)[name]).copy())
        for array, values in zip(kept, expected, strict=True):
            assert np.array_equal(numbers(array), values)

    def test_part_of_an_array_stays_when_all_else_is_gone(self, kind):
        buffer, twin = filled(kind), filled(kind)
        parts = [buffer.sample(16).observation[2:5, 1:] for _ in range(20)]
        for part in parts:
            assert np.array_equal(numbers(part), numbers(twin.sample(16).observation)[2:5, 1:])

    def test_sizes_change_from_batch_to_batch(self, kind):
        buffer = filled(kind)
        sizes, held = random.Random(3), []
        for _ in range(300):
            size = sizes.choice([1, 2, 31, 32, 33, 400])
            held.append(buffer.sample(size))
            assert tuple(held[-1].observation.shape) == (size, 3)
            del held[: sizes.randrange(len(held) + 1)]
            assert all(map(is_itself, held))

    def test_arrays_outlive_their_buffer(self, kind):
        buffer = filled(kind)
        closed, gone = buffer.sample(16), buffer.sample(16)
        for _ in range(3):
            buffer.sample(16)
        buffer.close()
        assert is_itself(closed)
        del closed, buffer
        gc.collect()
        assert is_itself(gone)

    def test_threads_draw_and_let_go(self, kind):
        buffer = filled(kind)

        def work(seed):
            chance, held = random.Random(seed), []
            for _ in range(400):
                held.append(buffer.sample(16))
                if chance.random() < 0.5:
                    del held[: chance.randrange(len(held) + 1)]
                assert all(map(is_itself, held[:3]))

        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(work, range(4))) == [None] * 4

    def test_arrays_of_large_batches(self, kind):
        buffer = filled(kind, shape=(64, 64), capacity=8)
        for _ in range(4):  # 8 MiB of observations
            assert is_itself(buffer.sample(512))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_what_was_given_up_is_taken_again(kind):
    buffer = filled(kind)
    addresses, batch = set(), None
    for _ in range(20):
        batch = buffer.sample(4096)
        addresses.add(address(batch.observation))
    assert len(addresses) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda array: array.setflags(write=False),
        lambda array: setattr(array, "shape", (4, 4)),
        lambda array: setattr(array, "dtype", np.int32),
    ],
)
def test_an_array_that_was_changed_is_not_given_out_again(change):
    buffer, twin = filled(), filled()
    for _ in range(6):
        batch, expected = buffer.sample(16), twin.sample(16)
        assert batch.reward.tolist() == expected.reward.tolist()
        assert batch.reward.dtype == np.float32
        batch.reward[:] = -1  # of the buffer's twin, whose batches are held, nothing changes
        change(batch.reward)


@pytest.mark.parametrize("refer", [memoryview, weakref.ref, lambda array: array.base, lambda array: array.ctypes])
def test_an_array_to_which_anything_refers_is_not_given_out_again(refer):
    buffer = filled()
    held = []
    for _ in range(20):
        reward = buffer.sample(16).reward
        assert not any(isinstance(what, weakref.ref) and what() is reward for what, _ in held)
        held.append((refer(reward), address(reward)))
        del reward
    live = [place for what, place in held if not isinstance(what, weakref.ref) or what() is not None]
    assert len(set(live)) == len(live)


def test_draws_within_a_draw_do_not_give_out_what_it_was_about_to_take():
    buffer = filled()
    batch = buffer.sample(16)
    kept, values = batch.reward, batch.reward.copy()
    reference = weakref.ref(batch.observation, lambda _: [buffer.sample(16), buffer.sample(16)])
    del batch
    later = [buffer.sample(16) for _ in range(3)]  # the first drops the observation, and its callback draws
    assert reference() is None
    assert kept.tolist() == values.tolist()
    assert all(each.reward is not kept for each in later)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_no_more_than_two_arrays_are_kept(kind):
    def resident():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096

    buffer = filled(kind, shape=(1 << 18,), capacity=8)
    batch_bytes = 2 * (40 << 20)  # two arrays, each too large for malloc to keep
    held = [buffer.sample(40) for _ in range(5)]
    all_held = resident()
    held.clear()
    assert all_held - resident() > 2.7 * batch_bytes
    buffer.sample(1)
    assert all_held - resident() > 4.7 * batch_bytes  # those of another size are not kept

    last = [buffer.sample(40) for _ in range(2)]
    two_held = resident()
    del last[0]
    buffer.close()
    assert two_held - resident() > 0.9 * batch_bytes
    last.clear()
    assert two_held - resident() > 1.9 * batch_bytes  # a closed buffer keeps none


class TestWhatJaxCopied:
    """A ready result of jax.device_put() stays unchanged when its source is overwritten."""

    def test_before_out_writes_it_again(self):
        buffer = filled(shape=(64, 64))
        batch = buffer.sample(64)  # 1 MiB of observations, which JAX copies asynchronously
        assert all(address(array) % 64 == HALF_A_LINE for array in batch.values())
        for _ in range(30):
            given = jax.device_put(batch.observation).block_until_ready()
            before = batch.observation.copy()
            buffer.sample(64, out=batch)
            assert not np.array_equal(batch.observation, before)
            assert np.array_equal(np.asarray(given), before)

    @pytest.mark.parametrize("is_shared", [False, True])
    def test_before_a_loader_writes_it_again(self, is_shared):
        buffer = filled(shape=(64, 64))
        loader = buffer.shared_loader(64, readers=1) if is_shared else buffer.loader(64)
        reader = loader.reader() if is_shared else loader
        for _ in range(30):
            batch = reader.take()
            assert all(address(array) % 64 == HALF_A_LINE for array in batch.values())
            given = jax.device_put(batch.observation).block_until_ready()
            written, before = batch.observation, batch.observation.copy()
            batch.release()
            for _ in range(4):
                reader.take().release()
            assert not np.array_equal(written, before)
            assert np.array_equal(np.asarray(given), before)


def test_jax_holds_arrays_of_sample_until_it_has_read_them():
    buffer, twin = filled(shape=(64, 64)), filled(shape=(64, 64))
    given = [jax.device_put(buffer.sample(64).observation) for _ in range(30)]
    for array in given:
        assert np.array_equal(np.asarray(array), twin.sample(64).observation)


def test_tensors_begin_with_a_line():
    assert all(address(array) % 64 == 0 for array in filled("torch").sample(5).values())
