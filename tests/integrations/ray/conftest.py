from __future__ import annotations

import per.ray.coordination
import per.ray.loader
import per.ray.replay
import per.ray.writer
import pytest
import ray
import stand_ins
from ray.cluster_utils import Cluster


@pytest.fixture
def in_process(monkeypatch):
    """Actors are objects of this process."""
    for module in (per.ray.coordination, per.ray.loader, per.ray.replay, per.ray.writer):
        monkeypatch.setattr(module, "ray", stand_ins.RAY)
    monkeypatch.setattr(stand_ins.RAY, "waited", 0.0)


@pytest.fixture(scope="module")
def cluster():
    """A Ray of three raylets on this machine: the driver's, and two with room for two shards each."""
    memory = 80 * 2**20
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "object_store_memory": memory})
    for _ in range(2):
        cluster.add_node(num_cpus=1, resources={"shard": 2}, object_store_memory=memory)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
