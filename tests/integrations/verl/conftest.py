from __future__ import annotations

import random
import types

import pytest
import ray
import transfer_queue as tq
from common import Blocked, Rollouts, clear
from per.integrations import verl as ours
from verl.trainer.ppo.v1 import replay_buffer as theirs


@pytest.fixture(scope="session")
def _transfer_queue():
    # TransferQueue starts three actors, of one CPU each.
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    tq.init()
    yield
    tq.close()
    ray.shutdown()


@pytest.fixture(autouse=True)
def _empty(_transfer_queue):
    clear()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    def block(seconds):
        raise Blocked

    for module in (theirs, ours):
        clock = types.SimpleNamespace(time=module.time.time, sleep=block)
        monkeypatch.setattr(module, "time", clock)


@pytest.fixture
def rollouts():
    return Rollouts()


@pytest.fixture
def draws():
    return random.Random(1)
