"""TorchRL's priority trees, compiled from the sources that its package ships.

Each release of TorchRL is compiled for one version of torch and has no priority trees with another. This makes them
with the torch at hand, for this process, and leaves the installed package alone.
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
    """Whether TorchRL is installed, but its trees cannot be loaded."""
    if importlib.util.find_spec("torchrl") is None:
        return False
    import torchrl.data.replay_buffers.samplers.prioritized as prioritized

    return prioritized.SumSegmentTreeFp32 is None


def build() -> None:
    """Compiles the trees (a minute; kept in torch's cache of extensions) and gives them to TorchRL."""
    spec = importlib.util.find_spec("torchrl")
    if spec is None or spec.origin is None or "torchrl" in sys.modules:
        raise RuntimeError("TorchRL's trees are built before it is imported, and where it is installed")
    from torch.utils import cpp_extension

    sources = pathlib.Path(spec.origin).parent / "csrc"
    # -O3 -DNDEBUG is what its own releases are compiled with.
    trees = cpp_extension.load_inline(
        name="per_bench_torchrl",
        cpp_sources=_BINDINGS,
        extra_include_paths=[str(sources)],
        extra_cflags=["-O3", "-DNDEBUG"],
    )
    sys.modules[NAME] = trees
