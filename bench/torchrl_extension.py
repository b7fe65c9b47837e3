"""TorchRL's priority trees, compiled from the sources that its package ships.

Each release of TorchRL is compiled for one version of torch, and lacks priority trees with another. This module
compiles them for the installed torch, for this process only, without changing the installed package.
"""

from __future__ import annotations

import importlib.util
import pathlib
import sys

NAME = "torchrl._torchrl"

_BINDINGS = """
#include "segment_tree.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  torchrl::DefineSumSegmentTree<float>("Fp32", m);
  torchrl::DefineSumSegmentTree<double>("Fp64", m);
  torchrl::DefineMinSegmentTree<float>("Fp32", m);
  torchrl::DefineMinSegmentTree<double>("Fp64", m);
}
"""


def is_missing() -> bool:
    """True if TorchRL is installed, but its trees cannot be loaded."""
    if importlib.util.find_spec("torchrl") is None:
        return False
    import torchrl.data.replay_buffers.samplers.prioritized as prioritized

    return prioritized.SumSegmentTreeFp32 is None


def build() -> None:
    """Compiles the trees (a minute; cached by torch) and adds them to TorchRL, also if it is imported already."""
    spec = importlib.util.find_spec("torchrl")
    if spec is None or spec.origin is None:
        raise RuntimeError("TorchRL's trees are built where it is installed")
    from torch.utils import cpp_extension

    sources = pathlib.Path(spec.origin).parent / "csrc"
    # TorchRL's releases are compiled with -O3 -DNDEBUG.
    trees = cpp_extension.load_inline(
        name="per_bench_torchrl",
        cpp_sources=_BINDINGS,
        extra_include_paths=[str(sources)],
        extra_cflags=["-O3", "-DNDEBUG"],
    )
    sys.modules[NAME] = trees
    if "torchrl" in sys.modules:
        import torchrl.data.replay_buffers.samplers.prioritized as prioritized

        vars(prioritized).update({name: tree for name, tree in vars(trees).items() if "SegmentTree" in name})
