"""Makes TorchRL's own sampler work with any version of torch.

TorchRL's wheel contains compiled trees for one version of torch. The tests replace them with arrays that are summed in
each call: the rules are those of TorchRL's sampler, and the sums are exact.
"""

import importlib.machinery
import os
import sys
import types

import numpy as np
import pytest
import torch

os.environ.setdefault("RL_LOGGING_LEVEL", "WARNING")


class NaiveTree:
    dtype = np.float32

    def __init__(self, size):
        self.leaves = np.full(size, self.neutral, self.dtype)

    def __getitem__(self, index):
        found = self.leaves[np.asarray(index)]
        return torch.from_numpy(found) if isinstance(index, torch.Tensor) else found

    def __setitem__(self, index, value):
        self.leaves[np.asarray(index)] = np.asarray(value)

    def query(self, begin, end):
        return self.reduce(self.leaves[begin:end])


class SumTree(NaiveTree):
    neutral, reduce = 0, staticmethod(np.sum)

    def scan_lower_bound(self, sums):
        found = np.searchsorted(np.cumsum(self.leaves, dtype=np.float64), np.asarray(sums), side="right")
        return torch.from_numpy(found)


class MinTree(NaiveTree):
    neutral, reduce = np.inf, staticmethod(np.min)


def trees():
    module = types.ModuleType("torchrl._torchrl")
    module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
    for kind in (SumTree, MinTree):
        for suffix, dtype in (("Fp32", np.float32), ("Fp64", np.float64)):
            name = f"{kind.__name__[:3]}SegmentTree{suffix}"
            setattr(module, name, type(name, (kind,), {"dtype": dtype}))
    return module


sys.modules.setdefault("torchrl._torchrl", trees())


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    np.random.seed(0)
