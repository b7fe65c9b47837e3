"""Types of arguments: the words of each choice, the accepted arrays, and options by name.

Use them to annotate programs that forward such arguments:

>>> import per.typing
>>> def make(capacity: int, scheme: per.typing.Scheme = "stratified") -> per.ReplayBuffer:
...     return per.ReplayBuffer(capacity, {"observation": per.Field(2)}, scheme=scheme)

To type checkers the batches of a new or loaded buffer hold the arrays that its options name: numpy's, or torch's with
arrays="torch". Annotations can say so, too: `per.ReplayBuffer[torch.Tensor]` gives batches of tensors,
`per.Batch[torch.Tensor]` is one such batch, and `per.LoadedBatch[torch.Tensor]` one of a loader. The arrays of a plain
`per.ReplayBuffer` are of any type. A subclass declares its arrays: after
`class Mine(per.ReplayBuffer[torch.Tensor])`, load with `Mine.load(path, arrays="torch")`. Functions for buffers of any
arrays take `per.ReplayBuffer[per.typing.Array]`.
"""

from __future__ import annotations

import os
import sys
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple

    from typing_extensions import ReadOnly as ReadOnly
    from typing_extensions import TypeVar
    from typing_extensions import Unpack as Unpack

    from per.field import Field
    from per.ragged import Ragged

    AnyRagged: TypeAlias = Ragged[Any]
    Array = TypeVar("Array", bound="SupportsDLPack", default=Any)
    Array_co = TypeVar("Array_co", covariant=True, default=Any)
    TreeArray = TypeVar("TreeArray", default=npt.NDArray[Any])
else:  # what typing.get_type_hints() needs, in every version of Python
    AnyRagged = Field = Any
    Array, Array_co, TreeArray = map(typing.TypeVar, ("Array", "Array_co", "TreeArray"))

    class Unpack:
        def __class_getitem__(cls, options):
            return Any

    ReadOnly = Unpack

    class _NamedTuple:  # before Python 3.11 a class with that base cannot have the base Generic, too
        def __mro_entries__(self, bases):
            return typing.NamedTuple.__mro_entries__((typing.NamedTuple,))

    NamedTuple = typing.NamedTuple if sys.version_info >= (3, 11) else _NamedTuple()

Age: TypeAlias = Literal["steps", "versions"]
Arrays: TypeAlias = Literal["numpy", "torch", "jax", "cupy"]
Autoreset: TypeAlias = Literal["disabled", "next_step", "same_step"]
Compression: TypeAlias = Literal["none", "delta"]
Critics: TypeAlias = Literal["mean", "max"]
GoalStrategy: TypeAlias = Literal["future", "final", "episode"]
MaxPriority: TypeAlias = Literal["ever", "now"]
MovedBy: TypeAlias = Literal["thread", "calls"]
NormalizeWeights: TypeAlias = Literal["batch_max", "buffer_max", "none"]
OnGap: TypeAlias = Literal["cut", "error"]
OnInvalid: TypeAlias = Literal["error", "skip"]
OnNan: TypeAlias = Literal["allow", "error"]
Padding: TypeAlias = Literal["repeat", "zero"]
Prioritization: TypeAlias = Literal["proportional", "rank", "uniform"]
Role: TypeAlias = Literal["plain", "observation", "recurrent_state"]
Scheme: TypeAlias = Literal["stratified", "independent", "systematic", "without_replacement"]
WhenFull: TypeAlias = Literal["waits", "drops"]
WhenEmpty: TypeAlias = Literal["error", "others"]

DTypeName: TypeAlias = Literal[
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]


class SupportsDLPack(Protocol):
    """An array that other libraries can read in place, such as those of torch, JAX and CuPy."""

    def __dlpack__(self, *arguments: Any, **named: Any) -> Any:
        """Returns a DLPack capsule."""


class SupportsArray(Protocol):
    """An array that numpy can read, such as its own and those of pandas."""

    def __array__(self, *arguments: Any, **named: Any) -> Any:
        """Returns a numpy array."""


class SupportsCudaArrayInterface(Protocol):
    """An array on a CUDA device, such as those of CuPy and Numba."""

    @property
    def __cuda_array_interface__(self) -> Any:
        """The array's address, shape and dtype."""


class NestedSequence(Protocol):
    """A list or tuple of numbers, arrays or other lists. A str does not count: its elements are not numbers."""

    def __len__(self) -> int:
        """Number of elements."""

    def __contains__(self, value: object, /) -> bool:
        """Whether an element has that value. A str looks for str only, and so does not have this method."""

    def __getitem__(self, place: int, /) -> ArrayLike:
        """An element."""


class SupportsWrite(Protocol):
    """A binary file object to write to, such as those of gzip.open() and io.BytesIO."""

    def write(self, data: bytes, /) -> Any:
        """Writes bytes."""


class SupportsRead(Protocol):
    """A binary file object to read from."""

    def read(self, size: int, /) -> bytes:
        """Returns up to that many bytes."""


class HasItemSize(Protocol):
    """A dtype of numpy, torch or JAX."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""


class TorchDevice(Protocol):
    """A torch.device."""

    @property
    def type(self) -> str:
        """ "cpu" or "cuda"."""


DeviceLike: TypeAlias = str | TorchDevice
"""A device by name, such as "cpu" or "cuda:1", or of torch."""

ArrayLike: TypeAlias = float | SupportsArray | SupportsDLPack | SupportsCudaArrayInterface | NestedSequence
"""Arrays of numpy, torch, JAX, CuPy and others, numbers, and lists of them."""

FloatLike: TypeAlias = float | np.floating[Any] | np.integer[Any]
"""A number of Python or numpy."""

IntLike: TypeAlias = int | np.integer[Any]
"""A whole number of Python or numpy."""

IntArrayLike: TypeAlias = (
    int | SupportsArray | SupportsDLPack | SupportsCudaArrayInterface | Sequence[int | SupportsArray | Sequence[int]]
)
"""Whole numbers: arrays, numbers, and lists of them."""

FieldLike: TypeAlias = ArrayLike | AnyRagged | Mapping[Any, Any] | tuple[Any, ...] | None
"""Values of a field, or of the fields in a container, in the user's form."""

DTypeLike: TypeAlias = DTypeName | type[np.generic] | type[float] | HasItemSize | None
"""A dtype by name, or of numpy, torch or JAX."""

Path: TypeAlias = str | os.PathLike[str]


class DrawOptions(TypedDict, total=False):
    """Options of one draw. They override the buffer's; None keeps the buffer's."""

    beta: FloatLike | None
    scheme: Scheme | None
    prioritization: Prioritization | None
    uniform_fraction: FloatLike | None
    normalize_weights: NormalizeWeights | None
    n_step: IntLike | tuple[IntLike, IntLike] | None


class ReadOptions(TypedDict, total=False):
    """Options of a call that returns transitions in the form of a draw: those of a draw, except the scheme."""

    beta: FloatLike | None
    prioritization: Prioritization | None
    uniform_fraction: FloatLike | None
    normalize_weights: NormalizeWeights | None
    n_step: IntLike | tuple[IntLike, IntLike] | None


class CoordinatorOptions(TypedDict, total=False):
    """Options of a ReplayBuffer beside capacity and fields, without those that say where its memory and batches lie."""

    n_envs: IntLike
    n_step: IntLike
    gamma: FloatLike
    frame_stack: IntLike
    sequence_length: IntLike | None
    burn_in: IntLike
    sequence_stride: IntLike | None
    sequence_eta: FloatLike
    alpha: FloatLike
    beta: FloatLike
    beta_final: FloatLike
    beta_steps: IntLike
    epsilon: FloatLike
    prioritization: Prioritization
    scheme: Scheme
    uniform_fraction: FloatLike
    normalize_weights: NormalizeWeights
    max_priority: MaxPriority
    on_invalid: OnInvalid
    on_gap: OnGap
    on_nan: OnNan
    autoreset: Autoreset
    store_next_observation: bool
    overwrite: bool
    critics: Critics
    half_life: FloatLike | None
    age: Age
    max_age: IntLike | None
    gather_threads: IntLike
    save_compression: IntLike
    samples_per_insert: FloatLike
    samples_tolerance: IntLike
    min_size_to_sample: IntLike
    keep_times_sampled: bool
    max_times_sampled: IntLike
    max_heap_bytes: IntLike | None
    seed: IntLike


class HostOptions(CoordinatorOptions, total=False):
    """Options of a ReplayBuffer beside capacity and fields, without those that determine the arrays of batches."""

    storage: Path | None
    storage_preallocated: bool


class BufferOptions(HostOptions, total=False):
    """Options of a ReplayBuffer beside capacity and fields."""

    device: DeviceLike
    arrays: Arrays | None


class AllOptions(TypedDict):
    """The value of every option of a buffer: ReplayBuffer.options."""

    capacity: ReadOnly[int]
    fields: ReadOnly[Mapping[str, Field]]
    device: ReadOnly[str]
    arrays: ReadOnly[Arrays]
    n_envs: ReadOnly[int]
    n_step: ReadOnly[int]
    gamma: ReadOnly[float]
    frame_stack: ReadOnly[int]
    sequence_length: ReadOnly[int | None]
    burn_in: ReadOnly[int]
    sequence_stride: ReadOnly[int | None]
    sequence_eta: ReadOnly[float]
    alpha: ReadOnly[float]
    beta: ReadOnly[float]
    beta_final: ReadOnly[float]
    beta_steps: ReadOnly[int]
    epsilon: ReadOnly[float]
    prioritization: ReadOnly[Prioritization]
    scheme: ReadOnly[Scheme]
    uniform_fraction: ReadOnly[float]
    normalize_weights: ReadOnly[NormalizeWeights]
    max_priority: ReadOnly[MaxPriority]
    on_invalid: ReadOnly[OnInvalid]
    on_gap: ReadOnly[OnGap]
    on_nan: ReadOnly[OnNan]
    autoreset: ReadOnly[Autoreset]
    store_next_observation: ReadOnly[bool]
    overwrite: ReadOnly[bool]
    critics: ReadOnly[Critics]
    half_life: ReadOnly[float | None]
    age: ReadOnly[Age]
    max_age: ReadOnly[int | None]
    gather_threads: ReadOnly[int]
    save_compression: ReadOnly[int]
    samples_per_insert: ReadOnly[float]
    samples_tolerance: ReadOnly[int]
    min_size_to_sample: ReadOnly[int]
    keep_times_sampled: ReadOnly[bool]
    max_times_sampled: ReadOnly[int]
    max_heap_bytes: ReadOnly[int | None]
    storage: ReadOnly[str | None]
    storage_preallocated: ReadOnly[bool]
    seed: ReadOnly[int]


class DerivedOptions(TypedDict, total=False):
    """Options made from AllOptions, such as `buffer.options | {"alpha": 0.4}`: type checkers lose their types."""

    device: Any
    n_envs: Any
    n_step: Any
    gamma: Any
    frame_stack: Any
    sequence_length: Any
    burn_in: Any
    sequence_stride: Any
    alpha: Any
    beta: Any
    beta_final: Any
    beta_steps: Any
    epsilon: Any
    prioritization: Any
    scheme: Any
    uniform_fraction: Any
    normalize_weights: Any
    max_priority: Any
    on_invalid: Any
    on_gap: Any
    on_nan: Any
    autoreset: Any
    store_next_observation: Any
    overwrite: Any
    critics: Any
    half_life: Any
    age: Any
    max_age: Any
    gather_threads: Any
    save_compression: Any
    samples_per_insert: Any
    samples_tolerance: Any
    min_size_to_sample: Any
    keep_times_sampled: Any
    max_times_sampled: Any
    max_heap_bytes: Any
    storage: Any
    seed: Any
