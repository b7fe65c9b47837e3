"""Prioritized experience replay (Schaul et al. 2016, arXiv:1511.05952), over libper's C interface.

SumTree holds priorities and draws indices in proportion to them. ReplayBuffer adds storage for transitions: it draws
batches of them with importance-sampling weights.
"""

import typing as _typing

from per import _options, coordinator, plot, typing
from per._errors import (
    Busy,
    CallbackError,
    CorruptFile,
    CudaError,
    Empty,
    Error,
    Full,
    InternalError,
    InvalidArgument,
    IoError,
    NoDevice,
    OutOfMemory,
    PerWarning,
    Timeout,
    Unsupported,
)
from per._library import path as library_path
from per._library import version as _version
from per._shards import Units
from per.batch import Batch
from per.channel import Channel, ChannelStatistics, Writer
from per.coordinator import Coordinator, ShardSummary
from per.epochs import Epochs
from per.field import Field
from per.hindsight import Hindsight
from per.loader import LoadedBatch, Loader
from per.mixture import Mixture
from per.ragged import Ragged
from per.replay import ReplayBuffer
from per.saving import Save
from per.shared_loader import Reader, SharedLoader, SharedLoaderStatistics
from per.statistics import Statistics
from per.tree import Draw, Mass, SumTree

__version__ = _version()

if not _typing.TYPE_CHECKING:  # type checkers are to report misspelt names

    def __getattr__(name):
        raise _options.no_attribute(__import__("per"), "module 'per'", name)


__all__ = [
    "Batch",
    "Busy",
    "CallbackError",
    "Channel",
    "ChannelStatistics",
    "Coordinator",
    "CorruptFile",
    "CudaError",
    "Draw",
    "Empty",
    "Epochs",
    "Error",
    "Field",
    "Full",
    "Hindsight",
    "InternalError",
    "InvalidArgument",
    "IoError",
    "LoadedBatch",
    "Loader",
    "Mass",
    "Mixture",
    "NoDevice",
    "OutOfMemory",
    "PerWarning",
    "Ragged",
    "Reader",
    "ReplayBuffer",
    "Save",
    "ShardSummary",
    "SharedLoader",
    "SharedLoaderStatistics",
    "Statistics",
    "SumTree",
    "Timeout",
    "Units",
    "Unsupported",
    "Writer",
    "coordinator",
    "library_path",
    "plot",
    "typing",
]
