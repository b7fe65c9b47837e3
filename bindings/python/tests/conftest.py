import pytest
from per import _bridging


@pytest.fixture(params=["bridge", "plain"])
def each_way(request, monkeypatch):
    """Runs a test with arrays passed by the bridge in C++, and again by Python alone."""
    if request.param == "plain":
        monkeypatch.setattr(_bridging, "bridge", None)
    else:
        assert _bridging.bridge is not None, "per._bridge is not built for this interpreter"
    return request.param
