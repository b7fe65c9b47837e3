import os

import cuda_switch
import pytest
from per import _bridging

# Runs the same tests on the device that the environment names: the whole suite runs for "cuda" with LIBPER_PATH set to
# the simulated GPU and PER_SIMULATOR_SEED=0.
if cuda_switch.IS_CUDA:
    cuda_switch.run_on_cuda()


def pytest_collection_modifyitems(items):
    all_run = os.environ.get("PER_TEST_ALL") == "1"
    for item in items:
        reason = cuda_switch.reason_to_skip(item)
        if reason is None and item.get_closest_marker("long") and not all_run:
            reason = "left to scripts/test --all"
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(params=["bridge", "plain"])
def each_way(request, monkeypatch):
    """Runs a test twice: with arrays passed by the bridge in C++, and by Python alone."""
    if request.param == "plain":
        monkeypatch.setattr(_bridging, "bridge", None)
    else:
        assert _bridging.bridge is not None, "per._bridge is not built for this interpreter"
    return request.param
