"""Types of arguments: the words of each choice, the accepted arrays, and options by name.

Use them to annotate programs that forward such arguments:

>>> import per.typing
>>> def make(capacity: int, scheme: per.typing.Scheme = "stratified") -> per.ReplayBuffer:
...     return per.ReplayBuffer(capacity, {"observation": per.Field(2)}, scheme=scheme)

To type checkers the batches of a new or loaded buffer hold the arrays that its options name: numpy's, or torch's with
arrays="torch". Annotations can say so, too: `per.ReplayBuffer[torch.Tensor]` gives batches of tensors,
`per.Batch[torch.Tensor]` is one such batch, and `per.LoadedBatch[torch.Tensor]` one of a loader. The arrays of a plain
`per.ReplayBuffer` are of any type. A subclass declares its arrays: after
`class Mine(per.ReplayBuffer[torch.Tensor])`, load with `Mine.load(path, arrays="torch")`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict, Union

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from per.ragged import Ragged

    Array = TypeVar("Array", default=Any)
else:
    from typing import TypeVar

    Array = TypeVar("Array")  # without a default before Python 3.13; only type checkers need it

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

ArrayLike: TypeAlias = npt.ArrayLike | SupportsDLPack | SupportsCudaArrayInterface
"""Arrays of numpy, torch, JAX, CuPy and others, numbers, and lists of them."""

IntLike: TypeAlias = int | np.integer[Any]
"""A whole number of Python or numpy."""

IntArrayLike: TypeAlias = (
    int | SupportsArray | SupportsDLPack | SupportsCudaArrayInterface | Sequence[int | SupportsArray | Sequence[int]]
)
"""Whole numbers: arrays, numbers, and lists of them. Unlike ArrayLike, it excludes str."""

FieldLike: TypeAlias = Union[ArrayLike, "Ragged[Any]", Mapping[Any, Any], tuple[Any, ...], None]
"""Values of a field, or of the fields in a container, in the user's form."""

DTypeLike: TypeAlias = DTypeName | type[Any] | HasItemSize | None
"""A dtype by name, or of numpy, torch or JAX."""

Path: TypeAlias = Union[str, "os.PathLike[str]"]


class DrawOptions(TypedDict, total=False):
    """Options of one draw. They override the buffer's; None keeps the buffer's."""

    beta: float | None
    scheme: Scheme | None
    prioritization: Prioritization | None
    uniform_fraction: float | None
    normalize_weights: NormalizeWeights | None
    n_step: IntLike | tuple[IntLike, IntLike] | None


class ReadOptions(TypedDict, total=False):
    """Options of a call that returns transitions in the form of a draw: those of a draw, except the scheme."""

    beta: float | None
    prioritization: Prioritization | None
    uniform_fraction: float | None
    normalize_weights: NormalizeWeights | None
    n_step: IntLike | tuple[IntLike, IntLike] | None


class HostOptions(TypedDict, total=False):
    """Options of a ReplayBuffer beside capacity and fields, without those that determine the arrays of batches."""

    n_envs: IntLike
    n_step: IntLike
    gamma: float
    frame_stack: IntLike
    sequence_length: IntLike | None
    burn_in: IntLike
    sequence_stride: IntLike | None
    sequence_eta: float
    alpha: float
    beta: float
    beta_final: float
    beta_steps: IntLike
    epsilon: float
    prioritization: Prioritization
    scheme: Scheme
    uniform_fraction: float
    normalize_weights: NormalizeWeights
    max_priority: MaxPriority
    on_invalid: OnInvalid
    on_gap: OnGap
    on_nan: OnNan
    autoreset: Autoreset
    store_next_observation: bool
    overwrite: bool
    critics: Critics
    half_life: float | None
    age: Age
    max_age: IntLike | None
    gather_threads: IntLike
    save_compression: IntLike
    samples_per_insert: float
    samples_tolerance: IntLike
    min_size_to_sample: IntLike
    keep_times_sampled: bool
    max_times_sampled: IntLike
    max_heap_bytes: IntLike | None
    storage: Path | None
    storage_preallocated: bool
    seed: IntLike


class BufferOptions(HostOptions, total=False):
    """Options of a ReplayBuffer beside capacity and fields."""

    device: DeviceLike
    arrays: Arrays | None
