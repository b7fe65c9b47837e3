from __future__ import annotations

import time

import per.ray.channel
import per.ray.coordination
import per.ray.loader
import per.ray.replay
import per.ray.shard
import per.ray.writer
import pytest
import ray
import ray._private.services
import stand_ins
from ray.cluster_utils import Cluster

# Ray waits half a minute for a raylet to start, which is too short on a busy machine.
_LONGEST_START = 300.0
_get_node = ray._private.services.get_node


def _get_node_that_starts(*args, **options):
    end = time.monotonic() + _LONGEST_START
    while True:
        try:
            return _get_node(*args, **options)
        except RuntimeError:  # the raylet is not known yet
            if time.monotonic() > end:
                raise
        time.sleep(0.1)


ray._private.services.get_node = _get_node_that_starts


@pytest.fixture
def in_process(monkeypatch):
    """Makes actors objects of this process."""
    for name in ("channel", "coordination", "loader", "replay", "shard", "writer"):
        module = getattr(per.ray, name)
        monkeypatch.setattr(module, "ray", stand_ins.RAY)
    monkeypatch.setattr(stand_ins.RAY, "waited", 0.0)


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster of three raylets on this machine: the driver's and two with room for two shards each."""
    memory = 80 * 2**20
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "object_store_memory": memory})
    for _ in range(2):
        cluster.add_node(num_cpus=1, resources={"shard": 2}, object_store_memory=memory)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
