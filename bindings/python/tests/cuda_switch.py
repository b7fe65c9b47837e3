"""Runs tests that were written for buffers in host memory on CUDA: what is the default there, and what cannot be."""

from __future__ import annotations

import functools
import os

import per
from device_memory import JaxStandIn, NumpyStandIn, TorchStandIn
from per import _device_arrays, _kinds, _library
from per._library import lib

IS_CUDA = os.environ.get("PER_TEST_DEVICE", "cpu") == "cuda"

# Of what the CPU refuses as a whole, CUDA skips the entries that are wrong, and says so later.
PARTS_ARE_KEPT = "on CUDA entries that are allowed take effect, and the others are skipped"
CPU_ONLY = "this is of the CPU"

# By the name of a file or test: why it cannot run on CUDA.
REASONS: dict[str, str] = {
    "test_cuda.py": "chooses its devices by itself",
    "test_device_arrays.py": "chooses its devices by itself",
    "test_library.py": CPU_ONLY,
    "test_package.py": CPU_ONLY,
    "test_examples.py": CPU_ONLY,
}


def reason_to_skip(item):
    if not IS_CUDA:
        return None
    return REASONS.get(item.path.name) or REASONS.get(getattr(item, "originalname", item.name))


def run_on_cuda():
    """Makes buffers and trees whose device is not said CUDA's, with arrays of numpy, and their errors known at once."""
    _kinds.ON_DEVICE = ("numpy", "torch", "jax")
    _device_arrays.LIBRARIES = {"numpy": NumpyStandIn, "torch": TorchStandIn, "jax": JaxStandIn}
    for function in (per.ReplayBuffer.__init__, per.ReplayBuffer.load.__func__, per.SumTree.__init__):
        function.__kwdefaults__["device"] = "cuda"
    queued = ("add", "extend", "cut", "sample", "update_priorities", "priorities", "get", "set", "advantages")
    for name in queued:
        setattr(per.ReplayBuffer, name, _reporting(getattr(per.ReplayBuffer, name)))
    for name in ("update", "sample", "find", "find_mass", "priorities"):
        setattr(per.SumTree, name, _reporting(getattr(per.SumTree, name)))


def _reporting(method):
    @functools.wraps(method)
    def call(self, *args, **kwargs):
        result = method(self, *args, **kwargs)
        if not _skips(self):
            self.synchronize()
        return result

    return call


def _skips(owner):
    """Whether the buffer is to skip on the CPU, too, what is not allowed."""
    if isinstance(owner, per.SumTree):
        return False
    options = _library.new("per_replay_options")
    _library.check(lib.per_replay_describe(owner._handle, options))
    return _library.name_of("per_on_invalid", options.on_invalid) == "skip"
