"""Arrays of any library are accepted, and arrays of numpy, torch and JAX are returned."""

import array
import importlib
import pickle
import sys

import cuda_switch
import jax
import jax.numpy as jnp
import numpy as np
import per
import pytest
import torch
from per import _arrays

pytestmark = pytest.mark.usefixtures("each_way")

FIELDS = {"observation": per.Field((2, 2), "float32"), "action": per.Field((), "int64")}
VALUES = [[1.0, 2.0], [3.0, 4.5]]
STEP = {"action": 1, "reward": 0.5, "terminated": False, "truncated": False}


class OnlyDlpack:
    """An array of a library that offers only DLPack."""

    def __init__(self, values):
        self.values = np.array(values, np.float32)

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


class OnlyInterface:
    """An array of a library that offers only __array_interface__."""

    def __init__(self, values):
        self.values = np.array(values, np.float32)
        self.__array_interface__ = self.values.__array_interface__


def not_contiguous():
    tensor = torch.tensor(VALUES).t().contiguous().t()
    assert not tensor.is_contiguous()
    return tensor


@pytest.mark.parametrize(
    "make",
    [
        lambda: VALUES,
        lambda: tuple(map(tuple, VALUES)),
        lambda: np.array(VALUES, np.float32),
        lambda: np.array(VALUES, np.float64),
        lambda: np.array(VALUES, np.float16),
        lambda: np.array(VALUES, np.float32, order="F"),
        lambda: np.repeat(np.array(VALUES, np.float32), 2, axis=1)[:, ::2],
        lambda: torch.tensor(VALUES),
        lambda: torch.tensor(VALUES, dtype=torch.float64),
        lambda: torch.tensor(VALUES, dtype=torch.float16),
        not_contiguous,
        lambda: torch.tensor([[9.0, 9.0], *VALUES])[1:],
        lambda: [torch.tensor(row) for row in VALUES],
        lambda: [np.array(row, np.float32) for row in VALUES],
        lambda: memoryview(np.array(VALUES, np.float32)),
        lambda: memoryview(np.array(VALUES, np.float64)),
        lambda: OnlyDlpack(VALUES),
        lambda: OnlyInterface(VALUES),
    ],
)
def test_arrays_of_any_library_dtype_and_layout_are_read(make):
    buffer = per.ReplayBuffer(10, FIELDS)
    for run in (False, True):
        source = make()
        if run:
            buffer.extend(observation=[source] if isinstance(source, (list, tuple)) else as_run(source),
                          action=[1], reward=[0.5], terminated=[False], truncated=[False])  # fmt: skip
        else:
            buffer.add(**STEP, observation=source, next_observation=source)
    buffer.add(**STEP, observation=np.zeros((2, 2)))
    np.testing.assert_array_equal(buffer.get([0, 1]).observation, np.array([VALUES, VALUES], np.float32))


def as_run(source):
    """The same array with a leading time axis, if its type has axes."""
    return (
        source[None]
        if hasattr(source, "ndim") and hasattr(source, "dtype")
        else np.asarray(_arrays.as_array(source, "")[0])[None]
    )


@pytest.mark.parametrize(
    "action",
    [
        3,
        True,
        np.int64(3),
        np.uint8(3),
        np.int16(3),
        np.bool_(True),
        np.array(3),
        torch.tensor(3),
        jnp.array(3),
        array.array("i", [3]),
    ],
)
def test_numbers_of_any_kind_are_read(action):
    buffer = per.ReplayBuffer(10, FIELDS)
    buffer.add(observation=VALUES, action=action, reward=np.float64(0.5), terminated=np.True_, truncated=0,
               next_observation=VALUES)  # fmt: skip
    row = buffer.get([0])
    assert row.action[0] == int(np.asarray(action).reshape(()))
    assert row.reward[0] == 0.5 and row.terminated[0] and not row.truncated[0]


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
                                   "float16", "float32", "float64"])  # fmt: skip
def test_fields_of_every_dtype_come_back_as_they_went_in(dtype):
    fields = {"observation": per.Field(3, dtype), "other": per.Field((), dtype)}
    buffer = per.ReplayBuffer(10, fields)
    values = np.array([0, 1, 1] if dtype == "bool" else [0, 1, 100], dtype)
    if dtype not in ("bool", "float16"):
        values[1] = np.iinfo(dtype).max if values.dtype.kind in "iu" else np.finfo(dtype).max
    step = {"reward": 0, "terminated": True, "truncated": False}
    buffer.add(**step, observation=values, other=values[1], next_observation=values[::-1])
    batch = buffer.sample(2)
    assert batch.observation.dtype == batch.other.dtype == dtype
    np.testing.assert_array_equal(batch.observation, [values, values])
    np.testing.assert_array_equal(batch.next_observation, [values[::-1], values[::-1]])
    np.testing.assert_array_equal(batch.other, [values[1], values[1]])


@pytest.mark.parametrize("kind, scalar", [("numpy", "bfloat16"), ("torch", torch.bfloat16), ("jax", jnp.bfloat16)])
def test_bfloat16_comes_out_as_each_library_has_it(kind, scalar):
    fields = {"observation": per.Field(2, scalar)}
    assert fields["observation"].dtype == "bfloat16"
    buffer = per.ReplayBuffer(10, fields, arrays=kind)
    step = {"reward": 0, "terminated": True, "truncated": False}
    buffer.add(**step, observation=torch.tensor([1.5, -3.0], dtype=torch.bfloat16), next_observation=[0.5, 2.0])
    batch = buffer.sample(1)
    assert "bfloat16" in str(batch.observation.dtype)
    np.testing.assert_array_equal(np.asarray(torch.as_tensor(np.asarray(as_float32(batch.observation)))), [[1.5, -3.0]])
    np.testing.assert_array_equal(as_float32(batch.next_observation), [[0.5, 2.0]])
    again = buffer.add(**step, observation=batch.observation[0], next_observation=batch.next_observation[0])
    np.testing.assert_array_equal(as_float32(buffer.get(again).observation), [[1.5, -3.0]])


def as_float32(values):
    return values.float().numpy() if isinstance(values, torch.Tensor) else np.asarray(values).astype(np.float32)


def test_bfloat16_without_ml_dtypes_is_refused_for_numpy_only(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    fields = {"observation": per.Field(2, "bfloat16")}
    with pytest.raises(per.InvalidArgument, match=r"field observation has dtype bfloat16.*install ml_dtypes or use"):
        per.ReplayBuffer(10, fields)
    buffer = per.ReplayBuffer(10, fields, arrays="torch")
    buffer.add(observation=[1, 2], reward=0, terminated=True, truncated=False, next_observation=[3, 4])
    assert buffer.sample(1).observation.tolist() == [[1.0, 2.0]]


def test_numbers_of_python_fit_unsigned_fields_and_those_out_of_range_are_refused():
    buffer = per.ReplayBuffer(10, {"observation": per.Field(2, "uint8")})
    step = {"reward": 0, "terminated": True, "truncated": False}
    buffer.add(**step, observation=[0, 255], next_observation=[3, 4])
    too_large = cuda_switch.said("256", "1 steps were not allowed")
    for values, words in (([0, 256], too_large), ([0, -1], "observation"), (np.array([0, 1]), "observation")):
        with pytest.raises(per.InvalidArgument, match=words):
            buffer.add(**step, observation=values, next_observation=[3, 4])
    assert len(buffer) == 1


def filled(kind, **options):
    buffer = per.ReplayBuffer(100, {"observation": per.Field((2, 2), "float32"), "action": per.Field((), "int32")},
                              arrays=kind, **options)  # fmt: skip
    for t in range(8):
        observation = np.full((2, 2), t)
        buffer.add(observation=observation, action=t, reward=t, terminated=t == 7, truncated=False,
                   next_observation=observation + 1)  # fmt: skip
    return buffer


ALL_ARRAYS = {
    "observation": ("float32", [5, 2, 2]),
    "action": ("int32", [5]),
    "next_observation": ("float32", [5, 2, 2]),
    "reward": ("float32", [5]),
    "discount": ("float32", [5]),
    "n_steps": ("int32", [5]),
    "terminated": ("bool", [5]),
    "truncated": ("bool", [5]),
    "weights": ("float32", [5]),
    "ids": ("int64", [5]),
    "priorities": ("float32", [5]),
    "probabilities": ("float32", [5]),
    "gamma_m": ("float32", [5]),
}


def test_torch_batches_are_tensors_with_the_same_values():
    batch, expected = filled("torch").sample(5), filled("numpy").sample(5)
    assert all(type(value) is torch.Tensor and value.is_contiguous() for value in batch.values())
    described = {name: (str(value.dtype).removeprefix("torch."), list(value.shape)) for name, value in batch.items()}
    assert described == ALL_ARRAYS
    for name, value in expected.items():
        np.testing.assert_array_equal(batch[name].numpy(), value)


def test_torch_batches_outlive_their_buffer_and_take_part_in_gradients():
    buffer = filled("torch")
    batch = buffer.sample(5)
    buffer.close()
    del buffer
    weight = torch.ones((), requires_grad=True)
    loss = (batch.weights * (batch.reward * weight - batch.discount) ** 2).mean()
    loss.backward()
    assert weight.grad is not None
    assert batch.observation[:, 0, 0].tolist() == batch.action.tolist() == batch.ids.tolist()


def test_torch_batch_is_reused_as_out_and_td_errors_need_no_detach():
    buffer = filled("torch")
    out = buffer.sample(5)
    pointers = [value.data_ptr() for value in out.values()]
    for value in out.values():
        value.zero_()
    assert buffer.sample(5, out=out) is out
    assert [value.data_ptr() for value in out.values()] == pointers
    assert out.action.tolist() == out.ids.tolist()
    td_errors = (out.reward * torch.ones((), requires_grad=True)) - 3.0
    buffer.update_priorities(out.ids, td_errors)
    latest = {i: abs(e) + 1e-6 for i, e in zip(out.ids.tolist(), td_errors.tolist(), strict=True)}
    np.testing.assert_allclose(buffer.priorities(list(latest)), list(latest.values()), rtol=1e-6)


def test_jax_batches_are_jax_arrays_with_the_same_values():
    batch, expected = filled("jax").sample(5), filled("numpy").sample(5)
    assert set(batch) == set(expected) and len(batch) == len(expected)
    for name, value in expected.items():
        if name != "ids":
            assert isinstance(batch[name], jax.Array) and batch[name].dtype == value.dtype
            np.testing.assert_array_equal(np.asarray(batch[name]), value)
    assert batch.observation is batch["observation"] is batch.observation


def test_jax_ids_without_64_bits_are_pairs_that_updates_take():
    assert not jax.config.jax_enable_x64
    buffer, twin = filled("jax"), filled("numpy")
    batch, expected = buffer.sample(5), twin.sample(5)
    assert batch.ids.dtype == jnp.uint32 and batch.ids.shape == (5, 2)
    buffer.update_priorities(batch.ids, jnp.arange(5.0))
    twin.update_priorities(expected.ids, np.arange(5.0))
    np.testing.assert_array_equal(buffer.priorities(batch.ids), twin.priorities(expected.ids))
    np.testing.assert_array_equal(np.asarray(buffer.get(batch.ids).action), expected.ids)
    buffer.update_priorities(expected.ids, np.arange(5.0))


def test_jax_with_64_bits_has_int64_ids_and_fields():
    with jax.enable_x64(True):
        fields = {"observation": per.Field(2, "float64"), "action": per.Field((), "int64")}
        buffer = per.ReplayBuffer(10, fields, arrays="jax")
        step = {"reward": 0, "terminated": True, "truncated": False}
        buffer.add(**step, observation=[0.1, 0.2], action=2**40, next_observation=[0.3, 0.4])
        batch = buffer.sample(3)
        assert batch.ids.dtype == jnp.int64 and batch.observation.dtype == jnp.float64
        assert batch.action.tolist() == [2**40] * 3
        buffer.update_priorities(batch.ids, jnp.ones(3))


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64"])
def test_fields_that_jax_would_cut_to_32_bits_are_refused(dtype):
    with pytest.raises(per.InvalidArgument, match=f"field x has dtype {dtype}, which JAX would cut to 32 bits"):
        per.ReplayBuffer(10, {"observation": per.Field(2), "x": per.Field((), dtype)}, arrays="jax")


def test_jax_refuses_out():
    buffer = filled("jax")
    with pytest.raises(per.InvalidArgument, match="out is given; not allowed with arrays='jax'"):
        buffer.sample(5, out=buffer.sample(5))


def test_arrays_of_a_library_that_is_not_installed_are_refused_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(per.Unsupported, match="arrays is 'jax', which cannot be imported"):
        per.ReplayBuffer(10, FIELDS, arrays="jax")


def test_ids_of_two_halves_are_read_beyond_32_bits():
    ids = np.array([5, 2**40 + 3, -1])
    pairs = jnp.asarray(ids.view(np.uint32).reshape(3, 2))
    np.testing.assert_array_equal(_arrays.as_ids(pairs), ids)


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_batches_can_be_pickled(kind):
    batch = filled(kind).sample(5)
    same = pickle.loads(pickle.dumps(batch))
    assert list(same) == list(batch)
    for name in batch:
        np.testing.assert_array_equal(np.asarray(same[name]), np.asarray(batch[name]))


def test_device_memory_is_copied_to_the_host():
    class OnDevice:
        def __init__(self):
            self.__cuda_array_interface__ = {"version": 3}

        def get(self):
            return np.array(VALUES, np.float32)

    array_on_device, code = _arrays.as_array(OnDevice(), "observation")
    np.testing.assert_array_equal(array_on_device, np.array(VALUES, np.float32))
    assert code == _arrays.DTYPES["float32"]


def test_dtypes_are_named_in_any_librarys_words():
    for dtype in ("float32", np.float32, np.dtype("f4"), torch.float32, jnp.float32, jnp.dtype("float32")):
        assert per.Field(2, dtype).dtype == "float32"
    assert per.Field(2, bool).dtype == "bool" and per.Field(2, float).dtype == "float64"
    assert per.Field(2, importlib.import_module("ml_dtypes").bfloat16).dtype == "bfloat16"
