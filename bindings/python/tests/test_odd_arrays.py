"""Arrays whose elements differ from their memory, or have no memory: each is stored correctly or refused by name."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import per
import pytest
import torch
from device_memory import TorchStandIn
from per import _arrays, _dlpack, _kinds, _memory
from torch._subclasses import FakeTensorMode

pytestmark = [
    pytest.mark.usefixtures("each_way"),
    pytest.mark.filterwarnings("ignore:.*(deprecated|beta state|prototype):UserWarning"),
]

VALUES = np.array([1.5, -2.0], np.float32)
TWICE = np.array([1.5, 1.5], np.float32)


class WithFunctions(torch.Tensor):
    """A subclass that intercepts every torch function, and leaves its elements unchanged."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


class Negated(torch.Tensor):
    """A subclass whose elements are the negatives of those in memory, as its methods say."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if function is torch.Tensor.detach:
                return -args[0].as_subclass(torch.Tensor)
            return function(*args, **(kwargs or {}))


class Wrapper(torch.Tensor):
    """A subclass without memory."""

    @staticmethod
    def __new__(cls, elements):
        return torch.Tensor._make_wrapper_subclass(cls, elements.shape, dtype=elements.dtype)

    def __init__(self, elements):
        self.elements = elements

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError("no such function\nand a second line")


def tensor(**options):
    return torch.tensor(VALUES, **options)


def fake():
    with FakeTensorMode():
        return torch.ones(2)


def of_inference():
    with torch.inference_mode():
        return tensor()


def unaligned():
    return np.frombuffer(b"x" + VALUES.tobytes(), np.float32, offset=1)


def memmap(tmp_path, mode):
    path = tmp_path / "values"
    path.write_bytes(VALUES.tobytes())
    return np.memmap(path, np.float32, mode)


def read_only():
    array = VALUES.copy()
    array.setflags(write=False)
    return array


def deleted():
    array = jnp.array(VALUES)
    array.delete()
    return array


def donated():
    array = jnp.array(VALUES)
    jax.jit(lambda given: given + 1, donate_argnums=0)(array).block_until_ready()
    return array


READ = {
    "torch negative": (lambda: torch._neg_view(-tensor()), VALUES),
    "torch negative, not contiguous": (lambda: torch.complex(tensor(), -tensor()).conj().imag, VALUES),
    "torch negative, expanded": (lambda: torch.complex(torch.zeros(1), -tensor()[:1]).conj().imag.expand(2), TWICE),
    "torch negative, whole numbers": (lambda: torch._neg_view(torch.tensor([-3, 4])), [3, -4]),
    "torch expanded": (lambda: tensor()[:1].expand(2), TWICE),
    "torch not contiguous": (lambda: torch.tensor([1.5, 9.0, -2.0, 9.0])[::2], VALUES),
    "torch that requires grad": (lambda: tensor(requires_grad=True), VALUES),
    "torch with a history": (lambda: tensor(requires_grad=True) * 1.0, VALUES),
    "torch parameter": (lambda: torch.nn.Parameter(tensor()), VALUES),
    "torch of inference": (of_inference, VALUES),
    "torch bfloat16": (lambda: tensor().bfloat16(), VALUES),
    "torch unaligned": (
        lambda: torch.frombuffer(bytearray(b"x" + VALUES.tobytes()), dtype=torch.float32, offset=1),
        VALUES,
    ),
    "torch subclass": (lambda: tensor().as_subclass(WithFunctions), VALUES),
    "torch subclass of its own mind": (lambda: (-tensor()).as_subclass(Negated), VALUES),
    "list of torch": (lambda: [torch.tensor(1.5), torch.tensor(-2.0)], VALUES),
    "numpy of the other byte order": (lambda: VALUES.astype(">f4" if sys.byteorder == "little" else "<f4"), VALUES),
    "numpy read-only": (read_only, VALUES),
    "numpy unaligned": (unaligned, VALUES),
    "numpy broadcast": (lambda: np.broadcast_to(np.float32(1.5), 2), TWICE),
    "numpy backwards": (lambda: VALUES[::-1].copy()[::-1], VALUES),
    "numpy subclass": (lambda: VALUES.view(np.recarray), VALUES),
    "numpy masked, nothing masked": (lambda: np.ma.array(VALUES, mask=[False, False]), VALUES),
    "numpy bfloat16": (lambda: VALUES.astype(ml_dtypes.bfloat16), VALUES),
    "memoryview unaligned": (lambda: memoryview(unaligned()), VALUES),
    "memoryview of the other byte order": (lambda: memoryview(VALUES.astype(">f4")), VALUES),
    "memoryview backwards": (lambda: memoryview(VALUES[::-1].copy())[::-1], VALUES),
    "bytes": (lambda: b"ab", [97, 98]),
    "bytearray": (lambda: bytearray(b"ab"), [97, 98]),
    "jax": (lambda: jnp.array(VALUES), VALUES),
    "jax committed": (lambda: jax.device_put(VALUES, jax.devices()[0]), VALUES),
    "jax bfloat16": (lambda: jnp.array(VALUES, jnp.bfloat16), VALUES),
}

REFUSED = {
    "torch conjugate": (lambda: torch.complex(tensor(), tensor()).conj(), "complex64"),
    "torch complex": (lambda: torch.complex(tensor(), tensor()), "complex64"),
    "torch float8": (lambda: tensor().to(torch.float8_e4m3fn), "float8_e4m3fn"),
    "torch quantized": (lambda: torch.quantize_per_tensor(tensor(), 0.5, 0, torch.qint8), "qint8"),
    "torch COO": (lambda: tensor().to_sparse(), "sparse_coo, not dense"),
    "torch CSR": (lambda: torch.eye(2).to_sparse_csr(), "sparse_csr, not dense"),
    "torch nested": (lambda: torch.nested.nested_tensor([tensor(), tensor()]), "nested, not dense"),
    "torch jagged": (lambda: torch.nested.nested_tensor([tensor(), tensor()], layout=torch.jagged), "nested"),
    "torch of no device": (lambda: tensor().to("meta"), "no data"),
    "torch fake": (fake, "subclasses"),
    "torch zeros in no memory": (lambda: torch._efficientzerotensor(2), "ZeroTensor"),
    "torch uninitialized": (torch.nn.UninitializedParameter, "uninitialized"),
    "torch masked": (lambda: torch.masked.masked_tensor(tensor(), torch.tensor([True, False])), "subclasses"),
    "torch wrapper": (lambda: Wrapper(tensor()), "no such function$"),
    "torch module": (lambda: torch.nn.Linear(2, 2), "Linear"),
    "list of torch negatives": (lambda: [torch._neg_view(torch.tensor(1.5)), 1.0], "negative bit"),
    "numpy masked": (lambda: np.ma.array(VALUES, mask=[False, True]), "masked"),
    "numpy structured": (lambda: np.zeros(2, [("a", "f4")]), "dtype"),
    "numpy objects": (lambda: VALUES.astype(object), "dtype object"),
    "numpy strings": (lambda: VALUES.astype(str), "dtype str"),
    "numpy dates": (lambda: np.array([1, 2], "datetime64[s]"), "datetime64"),
    "numpy complex": (lambda: VALUES.astype(complex), "complex128"),
    "numpy bytes": (lambda: VALUES.view("V4"), "V4"),
    "numpy float8": (lambda: VALUES.astype(ml_dtypes.float8_e4m3fn), "float8_e4m3fn"),
    "jax deleted": (deleted, "deleted"),
    "jax donated": (donated, "deleted"),
    "jax key": (lambda: jax.random.key(0), "PRNGKey"),
    "jax float8": (lambda: jnp.array(VALUES, jnp.float8_e4m3fn), "float8_e4m3fn"),
    "jax shape": (lambda: jax.ShapeDtypeStruct((2,), jnp.float32), "ShapeDtypeStruct"),
    "None among numbers": (lambda: [None, 1.0], "dtype object"),
    "text": (lambda: "ab", "dtype str"),
    "set": (lambda: {1, 2}, "set"),
    "generator": (lambda: (i for i in range(2)), "generator"),
}


def traced(transform, *arguments):
    """The array that a function gets inside a transformation."""

    def inside(look):
        transform(lambda array: (look(array), array.sum())[1])(*arguments)

    return inside


TRACED = {
    "torch vmap": traced(torch.func.vmap, torch.tensor(np.stack([VALUES, VALUES]))),
    "torch grad": traced(torch.func.grad, tensor()),
    "torch functionalize": traced(torch.func.functionalize, tensor()),
    "jax jit": traced(jax.jit, jnp.array(VALUES)),
    "jax vmap": traced(jax.vmap, jnp.array(np.stack([VALUES, VALUES]))),
    "jax grad": traced(jax.grad, jnp.array(VALUES)),
}


def new_buffer(**options):
    return per.ReplayBuffer(10, {"observation": per.Field(2), "other": per.Field(2)}, **options)


def add(buffer, **changes):
    step = {"observation": VALUES, "other": VALUES, "next_observation": VALUES, "reward": 0.0, "terminated": True}
    return buffer.add(**step | {"truncated": False} | changes)


def assert_refused(look, words):
    """Checks that `look` is refused by the name of each argument, in one line, without a change."""
    buffer = new_buffer()
    ids = add(buffer)
    before = buffer.stats()
    for name, call in {
        "observation": lambda source: add(buffer, observation=source),
        "next_observation": lambda source: add(buffer, next_observation=source),
        "other": lambda source: buffer.set(np.repeat(ids, 2), other=source),
        "reward": lambda source: add(buffer, reward=source),
        "ids": lambda source: buffer.update_priorities(source, np.ones(2)),
        "td_errors": lambda source: buffer.update_priorities(np.repeat(ids, 2), source),
    }.items():
        with pytest.raises(per.InvalidArgument, match=rf"^{name} [^\n]*{words}"):
            look(call)
    assert buffer.stats() == before


@pytest.mark.parametrize("make, values", READ.values(), ids=READ.keys())
def test_odd_arrays_are_stored_as_they_are_read(make, values):
    buffer = new_buffer()
    add(buffer, observation=make(), other=make(), next_observation=make())
    np.testing.assert_array_equal(buffer.get([0]).observation[0], values)
    np.testing.assert_array_equal(buffer.get([0]).other[0], values)
    np.testing.assert_array_equal(buffer.get([0]).next_observation[0], values)
    buffer.update_priorities([0, 0], make())  # the last one wins
    assert buffer.priorities([0])[0] == np.float32(abs(values[-1]) + 1e-6)


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_files_in_memory_are_read(tmp_path, mode):
    buffer = new_buffer()
    add(buffer, observation=memmap(tmp_path, mode))
    np.testing.assert_array_equal(buffer.get([0]).observation[0], VALUES)


@pytest.mark.parametrize("make, words", REFUSED.values(), ids=REFUSED.keys())
def test_arrays_that_cannot_be_read_are_refused_by_name(make, words):
    assert_refused(lambda call: call(make()), words)


@pytest.mark.parametrize("look", TRACED.values(), ids=TRACED.keys())
def test_arrays_of_a_transformation_are_refused_by_name(look):
    assert_refused(look, "cannot be read")


def test_numbers_of_no_axis_are_read_with_their_sign():
    buffer = per.ReplayBuffer(10, {"observation": per.Field(())})
    number = torch.complex(torch.tensor(0.0), torch.tensor(2.0)).conj().imag
    assert number.is_neg() and number.is_contiguous()
    buffer.add(observation=number, reward=number, terminated=True, truncated=False, next_observation=number)
    row = buffer.get([0])
    assert (row.observation[0], row.reward[0], row.next_observation[0]) == (-2.0, -2.0, -2.0)


def test_numbers_of_bfloat16_are_no_ids_and_are_rewards():
    buffer = new_buffer()
    add(buffer)
    with pytest.raises(per.InvalidArgument, match=r"^ids has dtype bfloat16; allowed: whole numbers"):
        buffer.priorities(torch.zeros(1, dtype=torch.bfloat16))
    her = per.Hindsight("observation", "other", lambda *_: torch.tensor([1.5] * 4).bfloat16(), "final", k=np.inf)
    assert buffer.sample(4, hindsight=her).reward.tolist() == [1.5] * 4


def test_jax_arrays_on_several_devices_are_read():
    program = """
import jax, numpy as np, per
from jax.sharding import Mesh, NamedSharding, PartitionSpec
jax.config.update("jax_num_cpu_devices", 2)
mesh = Mesh(np.array(jax.devices()), "x")
buffer = per.ReplayBuffer(10, {"observation": per.Field(2)})
for spec in (PartitionSpec("x"), PartitionSpec()):
    source = jax.device_put(np.array([1.5, -2.0], np.float32), NamedSharding(mesh, spec))
    assert len(source.devices()) == 2
    buffer.add(observation=source, reward=0, terminated=True, truncated=False, next_observation=source)
assert buffer.get([0, 2]).observation.tolist() == [[1.5, -2.0]] * 2
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


NOT_WRITTEN = {
    "torch negative": lambda array: torch._neg_view(array),
    "torch expanded": lambda array: array[:1].expand(array.shape),
    "torch not contiguous": lambda array: array.repeat_interleave(2, 1)[:, ::2],
    "torch of another dtype": lambda array: array.double(),
    "torch conjugate": lambda array: torch.complex(array, array).conj(),
    "torch sparse": lambda array: array.to_sparse(),
    "torch of no device": lambda array: array.to("meta"),
    "torch subclass of its own mind": lambda array: array.as_subclass(Negated),
    "torch wrapper": lambda array: Wrapper(array),
    "numpy broadcast": lambda array: np.broadcast_to(array[:1].numpy(), array.shape),
    "numpy with strides of 0": lambda array: np.lib.stride_tricks.as_strided(array.numpy(), array.shape, (0, 4)),
    "numpy of the other byte order": lambda array: array.numpy().astype(">f4"),
    "numpy masked": lambda array: np.ma.array(array.numpy(), mask=True),
    "numpy objects": lambda array: array.numpy().astype(object),
    "numpy read-only": lambda array: np.frombuffer(array.numpy().tobytes(), np.float32).reshape(array.shape),
    "jax": lambda array: jnp.array(array.numpy()),
    "list": lambda array: array.tolist(),
    "nothing": lambda array: None,
}


@pytest.mark.parametrize("arrays", ["numpy", "torch"])
@pytest.mark.parametrize("spoil", NOT_WRITTEN.values(), ids=NOT_WRITTEN.keys())
def test_arrays_that_cannot_be_written_are_refused_as_out(arrays, spoil):
    buffer, twin = new_buffer(arrays=arrays, seed=1), new_buffer(arrays=arrays, seed=1)
    for each in (buffer, twin):
        add(each)
    arrays = dict(buffer.sample(3))
    twin.sample(3)
    target = spoil(torch.as_tensor(arrays["observation"]))
    with pytest.raises(per.InvalidArgument, match=r"^out\.observation "):
        buffer.sample(3, out=per.Batch(arrays | {"observation": target}))
    assert buffer.sample(3).ids.tolist() == twin.sample(3).ids.tolist()  # it was no draw


@pytest.mark.parametrize("mode, is_written", [("r", False), ("r+", True), ("c", True)])
def test_files_in_memory_are_written_where_they_may_be(tmp_path, mode, is_written):
    buffer = per.ReplayBuffer(10, {"observation": per.Field(())})
    buffer.add(observation=7, reward=0, terminated=True, truncated=False, next_observation=8)
    target = memmap(tmp_path, mode)
    out = per.Batch(dict(buffer.sample(2)) | {"observation": target})
    if is_written:
        buffer.sample(2, out=out)
        assert target.tolist() == [7, 7]
    else:
        with pytest.raises(per.InvalidArgument, match=r"^out\.observation "):
            buffer.sample(2, out=out)


class OnDevice(torch.Tensor):
    """A tensor that claims to be on a CUDA device."""

    def __dlpack_device__(self):
        return (_dlpack.CUDA, 0)

    def __dlpack__(self, *, stream, **options):
        return super().__dlpack__(**options)


def test_negative_tensors_on_a_device_are_read_with_their_sign(monkeypatch):
    memory = _memory.DeviceMemory("torch", TorchStandIn(0))
    queue = memory.queue(None)
    for source in (torch._neg_view(-tensor()), torch._neg_view(-tensor()).as_subclass(OnDevice)):
        monkeypatch.setattr(memory.library, "owns", lambda array: type(array) is torch.Tensor)
        found = memory.read_here(source, "observation", queue)
        assert _memory.ffi.unpack(_memory.ffi.cast("float *", found.pointer), 2) == VALUES.tolist()


def test_tensors_without_memory_on_a_device_are_refused_by_name():
    memory = _memory.DeviceMemory("torch", TorchStandIn(0))
    for look in [TRACED[name] for name in ("torch vmap", "torch grad", "torch functionalize")]:
        with pytest.raises(per.InvalidArgument, match=r"^observation is a tensor that cannot be read: "):
            look(lambda source: memory.read_here(source, "observation", memory.queue(None)))


def test_negative_tensors_on_a_device_are_not_written(monkeypatch):
    monkeypatch.setattr(
        _memory, "memory_of", lambda device, index, kind: _memory.DeviceMemory("torch", TorchStandIn(0))
    )
    monkeypatch.setattr(_kinds, "ON_HOST", ("torch",))
    buffer = new_buffer()
    add(buffer)
    arrays = dict(buffer.sample(3))
    with pytest.raises(per.InvalidArgument, match=r"^out\.observation "):
        buffer.sample(3, out=per.Batch(arrays | {"observation": torch._neg_view(arrays["observation"])}))


def test_messages_of_other_libraries_are_cut_to_a_line():
    assert _arrays.first_line(ValueError("one\ntwo")) == "one"
