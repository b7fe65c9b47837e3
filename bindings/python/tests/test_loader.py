"""Loaders: batches drawn ahead, compared with those of a twin without one."""

import os
import pickle
import subprocess
import sys
import threading
import time

import numpy as np
import per
import pytest
from cuda_switch import IS_CUDA

FIELDS = {"observation": per.Field(4), "image": per.Field((2, 3), "uint8"), "action": per.Field((), "int64")}


def filled(rows=400, **options):
    buffer = per.ReplayBuffer(rows + 60, options.pop("fields", FIELDS), **{"seed": 7, "n_step": 3} | options)
    add(buffer, 0, rows)
    return buffer


def add(buffer, first, rows):
    numbers = np.arange(first, first + rows)
    names = {"observation": np.repeat(numbers[:, None], 4, 1), "action": numbers}
    if "image" in buffer.fields:
        names["image"] = np.repeat(numbers % 256, 6).reshape(rows, 2, 3).astype(np.uint8)
    flags = np.zeros(rows, bool)
    buffer.extend(**names, reward=numbers, terminated=flags, truncated=numbers % 50 == 49, next_mask=flags)


def assert_same(batch, expected):
    assert list(batch) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(np.asarray(batch[name]), np.asarray(array), err_msg=name)


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
@pytest.mark.parametrize("slots", [1, 3])
def test_batches_are_those_of_sample(arrays, slots):
    buffer, twin = (filled(arrays=arrays, frame_stack=2, beta_steps=10) for _ in range(2))
    with buffer.loader(32, slots=slots) as batches:
        for _, batch in zip(range(20), batches, strict=False):
            expected = twin.sample(32)
            assert type(batch.image) is type(expected.image) and batch.image.dtype == expected.image.dtype
            assert_same(batch, expected)
            assert buffer.beta == twin.beta
    assert buffer.stats().beta_step == 20


def test_options_are_those_of_sample():
    buffer, twin = filled(), filled()
    options = {"beta": 1.0, "scheme": "without_replacement", "prioritization": "uniform", "n_step": 2}
    options |= {"uniform_fraction": 0.5, "normalize_weights": "none"}
    with buffer.loader(32, **options) as batches:
        for _, batch in zip(range(3), batches, strict=False):
            assert_same(batch, twin.sample(32, **options))


def test_nested_observations_come_nested():
    fields = {"observation.image": per.Field(2), "observation.speed": per.Field()}
    buffers = [per.ReplayBuffer(50, fields, seed=1) for _ in range(2)]
    for buffer in buffers:
        for t in range(20):
            buffer.add(observation={"image": [t, t], "speed": t}, reward=t, terminated=False, truncated=False)
    with buffers[0].loader(8) as batches:
        batch, expected = next(batches), buffers[1].sample(8)
        assert batch.observation.keys() == {"image", "speed"}
        np.testing.assert_array_equal(batch.observation["image"], expected.observation["image"])
        np.testing.assert_array_equal(batch["next_observation.speed"], expected["next_observation.speed"])


def test_bfloat16_comes_as_in_a_sample():
    pytest.importorskip("ml_dtypes")
    fields = {"observation": per.Field(4, "bfloat16"), "action": per.Field((), "int64")}
    buffer, twin = filled(fields=fields), filled(fields=fields)
    with buffer.loader(8) as batches:
        batch, expected = next(batches), twin.sample(8)
        assert batch.observation.dtype == expected.observation.dtype
        np.testing.assert_array_equal(batch.observation, expected.observation)


def test_handing_out_asks_for_the_next_batch_before_what_the_consumer_does_then():
    """Uses large batches: a call that did not wait for the pending draw would overtake it."""
    slots, size = 3, 200 if IS_CUDA else 2000
    buffer, twin = filled(), filled()
    ahead = [twin.sample(size) for _ in range(slots)]
    with buffer.loader(size, slots=slots) as batches:
        for step, batch in zip(range(40), batches, strict=False):
            expected = ahead.pop(0)
            ahead.append(twin.sample(size))
            ids, errors = expected.ids, expected.reward % (step + 2)
            for each in (buffer, twin):
                each.update_priorities(ids, errors)
                if step % 4 == 0:
                    add(each, 400 + step // 4, 1)
                if step % 7 == 0:
                    each.gamma = 0.9 - step / 100
            assert_same(batch, expected)


def test_asking_for_the_next_batch_releases_the_one_before():
    buffer = filled()
    with buffer.loader(8, slots=2) as batches:
        first = next(batches)
        ids = first.ids
        for _ in range(10):
            next(batches)
        with pytest.raises(AttributeError, match="was released"):
            _ = first.ids
        assert len(first) == 0 and ids.shape == (8,)


def test_released_early_a_batch_is_not_released_again():
    buffer = filled()
    with buffer.loader(8, slots=2) as batches:
        batch = next(batches)
        batch.release()
        held = batches.take()
        batch.release()  # does not release the slot's next batch
        copy = held.ids.copy()
        for _ in range(10):
            next(batches)
            np.testing.assert_array_equal(held.ids, copy)


def test_slots_are_used_again_and_held_ones_are_not():
    buffer = filled()
    with buffer.loader(8, slots=3) as batches:
        held = [batches.take() for _ in range(2)]
        copies = [{name: array.copy() for name, array in batch.items()} for batch in held]
        places = set()
        for _, batch in zip(range(30), batches, strict=False):
            places.add(batch.observation.ctypes.data)
        assert len(places) <= 2
        assert not places & {batch.observation.ctypes.data for batch in held}
        for batch, copy in zip(held, copies, strict=True):
            assert_same(batch, copy)


def test_all_slots_out_is_busy_or_waits_for_a_release():
    buffer = filled()
    with buffer.loader(8, slots=2) as batches:
        held = [batches.take(), batches.take()]
        for timeout in (0, 0.02):
            with pytest.raises(per.Busy, match="out"):
                batches.take(timeout=timeout)
        with pytest.raises(per.InvalidArgument, match="timeout is -1"):
            batches.take(timeout=-1)
        timer = threading.Timer(0.02, held[0].release)
        timer.start()
        assert batches.take().ids.shape == (8,)
        timer.join()


INTERRUPTED = """
import os, signal, threading
import numpy as np, per
buffer = per.ReplayBuffer(100, {"observation": per.Field(4)})
flags = np.zeros(50, bool)
buffer.extend(observation=np.zeros((50, 4)), reward=flags, terminated=flags, truncated=flags)
batches = buffer.loader(4, slots=2)
held = next(batches), batches.take()
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is started without one
threading.Timer(20, os._exit, (3,)).start()
try:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    batches.take()
except KeyboardInterrupt:
    print("interrupted")
held[1].release()
print(len(batches.take().ids), flush=True)
os._exit(0)
"""


def test_waiting_for_a_slot_can_be_interrupted():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n4\n", "", 0)


def test_closing_a_loader_ends_the_wait_for_a_slot():
    buffer = filled()
    batches = buffer.loader(8, slots=1)
    batches.take()
    timer = threading.Timer(0.02, batches.close)
    timer.start()
    with pytest.raises(per.InvalidArgument, match=r"loader was stopped|the loader is closed"):
        batches.take()
    timer.join()


def test_threads_that_wait_for_a_slot_get_one_each():
    buffer = filled()
    with buffer.loader(8, slots=2) as batches:
        held, taken = [batches.take(), batches.take()], []
        threads = [threading.Thread(target=lambda: taken.append(batches.take())) for _ in range(3)]
        for thread in threads:
            thread.start()
        for batch in held:
            batch.release()
        while len(taken) < 2:
            time.sleep(0.001)
        taken[0].release()
        for thread in threads:
            thread.join()
        assert len(taken) == 3
        with pytest.raises(per.Busy, match="out"):
            batches.take(timeout=0)


def test_a_batch_of_which_no_arrays_can_be_made_gives_its_slot_back():
    with filled().loader(8, slots=2) as batches:
        nest, batches._nest = batches._nest, {}.__getitem__
        for _ in range(5):
            with pytest.raises(TypeError):
                batches.take()
        batches._nest = nest
        held = [batches.take() for _ in range(2)]
        assert [len(batch.ids) for batch in held] == [8, 8]
        with pytest.raises(per.Busy, match="out"):
            batches.take(timeout=0)


def test_an_empty_buffer_is_an_error_and_then_not():
    buffer, twin = filled(0), filled(0)
    with buffer.loader(8) as batches:
        for _ in range(5):
            with pytest.raises(per.Empty, match="no transition is live"):
                next(batches)
        for each in (buffer, twin):
            add(each, 0, 50)
        for _ in range(5):
            assert_same(next(batches), twin.sample(8))
        buffer.clear()
        for _ in range(3):  # drawn before
            next(batches)
        with pytest.raises(per.Empty):
            next(batches)


def test_a_buffer_has_one_loader_at_a_time():
    buffer = filled()
    first = buffer.loader(8)
    with pytest.raises(per.Busy, match="loader"):
        buffer.loader(8)
    batch = first.take()
    first.close()
    first.close()
    with buffer.loader(16) as batches:
        assert next(batches).ids.shape == (16,)
    assert batch.ids.shape == (8,)
    for call in (first.take, lambda: next(first), first.__enter__):
        with pytest.raises(per.InvalidArgument, match="the loader is closed"):
            call()
    batch.release()


def test_a_forgotten_loader_frees_its_buffer():
    buffer = filled()
    next(buffer.loader(8))
    with buffer.loader(8) as batches:
        next(batches)


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
def test_arrays_may_outlive_loader_and_buffer(arrays):
    buffer = filled(arrays=arrays)
    batches = buffer.loader(500)
    array = batches.take().observation
    copy = np.asarray(array).copy()
    batches.close()
    buffer.close()
    del batches, buffer
    other = filled()  # would reuse their memory
    other.sample(500)
    np.testing.assert_array_equal(np.asarray(array), copy)
    array[:] = 5


def test_a_closed_buffer_is_an_error():
    buffer = filled()
    batches = buffer.loader(8)
    next(batches)
    buffer.close()
    with pytest.raises(per.InvalidArgument, match="the buffer is closed"):
        next(batches)
    with pytest.raises(per.InvalidArgument, match="the buffer is closed"):
        buffer.loader(8)
    batches.close()


def test_a_loader_that_is_refused_is_not_the_one_of_the_buffer():
    buffer = filled()
    with pytest.raises(per.InvalidArgument, match="slots is 0"):
        buffer.loader(8, slots=0)
    with buffer.loader(8) as batches:
        next(batches)


def test_jax_is_refused_with_the_reason():
    pytest.importorskip("jax")
    fields = {"observation": per.Field(4), "action": per.Field((), "int32")}
    buffer = filled(fields=fields, arrays="jax")
    with pytest.raises(per.InvalidArgument, match="JAX reads memory later than it says"):
        buffer.loader(8)
    buffer.sample(8)


def test_a_field_called_release_is_refused():
    buffer = per.ReplayBuffer(10, {"observation": per.Field(), "release": per.Field()})
    with pytest.raises(per.InvalidArgument, match="field release has the name of a method"):
        buffer.loader(8)


def test_batches_can_be_pickled_and_loaders_cannot():
    buffer = filled()
    with buffer.loader(8) as batches:
        batch = next(batches)
        copy = pickle.loads(pickle.dumps(batch))
        assert_same(copy, batch)
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(batches)
        assert repr(batches) == "per.Loader(batch_size=8, slots=3)"
    assert repr(batches) == "per.Loader(batch_size=8, slots=3, closed)"


def test_threads_take_from_one_loader():
    buffer = filled()
    errors, taken = [], []

    def learn(batches):
        try:
            for _ in range(200):
                batch = batches.take()
                np.testing.assert_array_equal(batch.observation[:, 0], batch.action)
                taken.append(batch.ids.size)
                buffer.update_priorities(batch.ids, batch.reward)
                batch.release()
        except BaseException as error:
            errors.append(error)

    with buffer.loader(64) as batches:
        threads = [threading.Thread(target=learn, args=(batches,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == [] and len(taken) == 600
    assert buffer.stats().beta_step == 600


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_in_a_forked_child_the_loader_is_gone_and_the_buffer_is_not():
    buffer, twin = filled(), filled()
    with buffer.loader(32) as batches:
        for _, batch in zip(range(10), batches, strict=False):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    with pytest.raises(per.InvalidArgument, match="fork"):
                        next(batches)
                    buffer.update_priorities(buffer.sample(8).ids, np.ones(8, np.float32))
                    with buffer.loader(8) as own:
                        next(own)
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
            assert_same(batch, twin.sample(32))


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_in_a_forked_child_no_slot_is_waited_for():
    with filled().loader(8, slots=1) as batches:
        batches.take()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(per.InvalidArgument, match="fork"):
                    batches.take()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0


EXITS = {
    "while it draws": "batches.take()",
    "with every slot out": "held = [batches.take() for _ in range(3)]",
    "by an exception": "next(batches); raise SystemExit(0)",
    "in a cycle": "batches._me = batches; buffer._it = batches; next(batches)",
    "without a look": "pass",
}


@pytest.mark.parametrize("action", EXITS.values(), ids=EXITS.keys())
def test_the_interpreter_exits_cleanly(action):
    program = f"""
import numpy as np, per
buffer = per.ReplayBuffer(1000, {{"observation": per.Field(100)}})
flags = np.zeros(900, bool)
buffer.extend(observation=np.ones((900, 100)), reward=flags, terminated=flags, truncated=flags)
batches = buffer.loader(5000)
{action}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
