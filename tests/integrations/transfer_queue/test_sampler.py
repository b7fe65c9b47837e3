"""per.integrations.transfer_queue draws the groups of a ledger from the partitions of TransferQueue's controller."""

from __future__ import annotations

import numpy as np
import per
import per.llm
import pytest
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from per.integrations.transfer_queue import GroupSampler, lease_of
from tensordict import TensorDict
from transfer_queue.controller import DataPartitionStatus

SIZE = 3
TASK = {"task_name": "train"}


class Queue:
    """A partition of TransferQueue's controller and a sampler, without the processes around them."""

    def __init__(self, sampler):
        self.sampler, self.partition, self.tags, self.n_rows = sampler, DataPartitionStatus("train"), {}, 0

    def put(self, group, member, field="tokens", **facts):
        """Adds a row of a member; with another field, to the row that it has."""
        tag = {"group": group, "member": member, **facts}
        (index,) = [index for index, known in self.tags.items() if known == tag] or [self.n_rows]
        self.n_rows, self.tags[index] = max(self.n_rows, index + 1), tag
        self.partition.set_custom_meta({index: tag})
        self.partition.update_production_status([index], [field], {field: {"dtype": torch.int64, "shape": (1,)}})

    def ready(self, task="train", fields=("tokens",)):
        return self.partition.scan_data_status([*fields], task)

    def draw(self, batch_size, task="train", fields=("tokens",), **config):
        """A batch as (group, member), in the same steps as the controller."""
        config = {"task_name": task, **config}
        drawn, consumed = self.sampler(self.ready(task, fields), batch_size, partition=self.partition, **config)
        if drawn and consumed:
            self.partition.mark_consumed(task, consumed)
        return [(self.tags[index]["group"], self.tags[index]["member"]) for index in drawn]


def ledger(**options):
    return per.llm.Groups(SIZE, **{"capacity": 8, **options})


def queue_of(groups, **options):
    return Queue(GroupSampler(groups, SIZE, **options))


def whole(*groups):
    return [(group, member) for group in groups for member in range(SIZE)]


def acknowledge(groups, batch, **options):
    (lease,) = [lease for lease in groups.leases() if batch == whole(*lease.groups.tolist())]
    groups.ack(lease, **options)


def test_batches_are_those_of_transferqueues_group_sampler_if_groups_are_ready_in_order():
    """Both draw the first groups whose rows are all ready. TransferQueue's sampler takes neighbours for a group."""
    random = np.random.default_rng(0)
    groups = ledger(capacity=100)
    ours, theirs = queue_of(groups), Queue(tq.GRPOGroupNSampler(SIZE))
    compared = 0
    for group in groups.reserve(100):
        for member in range(SIZE):
            for queue in (ours, theirs):
                queue.put(group, member)
            while random.random() < 0.3:
                n = int(random.integers(1, 4))
                expected = theirs.draw(n * SIZE)
                drawn = ours.draw(n * SIZE)
                assert drawn == expected
                if drawn:
                    compared += 1
                    acknowledge(groups, drawn)
    assert compared > 20
    assert groups.counts().consumed > 80


@pytest.mark.parametrize("order", ["issued", "sealed", "priority"])
def test_each_group_is_drawn_whole_and_once_however_its_rows_arrive(order):
    random = np.random.default_rng(1)
    groups = ledger(capacity=40, order=order)
    queue, drawn = queue_of(groups), []
    rows = whole(*groups.reserve(40))
    for place in random.permutation(len(rows)):
        queue.put(*rows[place])
        while batch := queue.draw(2 * SIZE):
            ids = [group for group, _ in batch[::SIZE]]
            assert batch == whole(*ids)
            drawn += ids
            acknowledge(groups, batch)
    assert sorted(drawn) == list(range(40))
    if order == "issued":
        assert drawn == list(range(40))


def test_a_row_is_consumed_when_its_group_is_acknowledged_not_when_it_is_drawn():
    groups = ledger()
    queue = queue_of(groups)
    for row in whole(*groups.reserve(4)):
        queue.put(*row)
    first = queue.draw(SIZE)
    assert queue.draw(SIZE) == whole(1)
    assert len(queue.ready()) == 12
    acknowledge(groups, first)
    assert queue.draw(SIZE) == whole(2)
    assert len(queue.ready()) == 9
    for lease in groups.leases():  # as after a restore
        groups.release(lease)
    assert queue.draw(3 * SIZE) == whole(1, 2, 3)


def test_groups_that_are_too_old_or_failed_are_never_drawn_and_count_as_consumed():
    groups = ledger(max_age=1)
    queue = queue_of(groups)
    for group in groups.reserve(3):
        for member in range(SIZE):
            queue.put(group, member, version=0)
    assert queue.draw(SIZE) == whole(0)
    groups.advance(1)
    groups.fail(1, "filtered")
    groups.reserve(1)
    for member in range(SIZE):
        queue.put(3, member, version=1)
    assert queue.draw(SIZE) == whole(2)  # age 1
    assert len(queue.ready()) == 9  # all but those of group 1
    groups.advance(2)
    assert queue.draw(SIZE) == whole(3)
    assert [lease.ages.tolist() for lease in groups.leases()] == [[0], [1], [1]]
    assert groups.counts().retired_by == {("filtered", ""): 1}


def test_the_ledger_gets_rewards_versions_and_lengths_from_the_tags():
    groups = ledger(capacity=2)
    groups.advance(5)
    queue = queue_of(groups)
    groups.reserve(2)
    for group in (0, 1):
        for member in range(SIZE):
            queue.put(group, member, reward=group + member / 4, version=3 + group, n_tokens=10 * group + member)
    queue.draw(SIZE)
    queue.draw(SIZE)
    first, second = groups.leases()
    assert (first.ages.tolist(), second.ages.tolist()) == ([2], [1])
    assert (first.n_tokens.tolist(), second.n_tokens.tolist()) == ([3], [33])
    for lease in (first, second):
        groups.release(lease)
    assert groups.sample(2).batch.reward.tolist() == [[0, 0.25, 0.5], [1, 1.25, 1.5]]


def test_a_group_waits_until_all_its_rows_are_ready_for_the_task():
    groups = ledger()
    queue = queue_of(groups)
    for row in whole(*groups.reserve(2)):
        queue.put(*row)
    fields = ("tokens", "advantage")
    assert queue.draw(SIZE, fields=fields) == []
    for row in whole(1):
        queue.put(*row, field="advantage")
    assert queue.draw(SIZE, fields=fields) == []  # group 0 is issued first
    for row in whole(0):
        queue.put(*row, field="advantage")
    assert queue.draw(2 * SIZE, fields=fields) == whole(0, 1)


def test_other_tasks_get_rows_in_sequence_and_leave_the_ledger_alone():
    groups = ledger()
    queue = queue_of(groups, task_name="train")
    for row in whole(*groups.reserve(2)):
        queue.put(*row)
    assert queue.draw(4, task="reference") == whole(0, 1)[:4]
    assert queue.draw(4, task="reference") == whole(0, 1)[4:]
    assert groups.counts().open == 2
    assert queue.draw(SIZE) == whole(0)


def test_ranks_that_ask_for_the_same_batch_get_it_until_the_queue_is_restored():
    groups = ledger()
    queue = queue_of(groups)
    for row in whole(*groups.reserve(4)):
        queue.put(*row)
    asked = {"partition_id": "train", "dp_rank": 0, "batch_index": 0}
    assert queue.draw(SIZE, **asked) == queue.draw(SIZE, **asked) == whole(0)
    assert queue.sampler.has_cached_result("train", "train", asked)
    assert queue.draw(SIZE, **{**asked, "dp_rank": 1}) == whole(1)
    assert queue.draw(SIZE, **{**asked, "batch_index": 1}) == whole(2)
    assert len(groups.leases()) == 3
    for lease in groups.leases():
        groups.release(lease)
    queue.sampler.load_checkpoint(queue.sampler.save_checkpoint())
    assert queue.draw(2 * SIZE, **asked) == whole(0, 1)


@pytest.mark.parametrize("call", ["missing", "leases", "append", "sample"])
def test_a_call_of_the_ledger_that_fails_leaves_no_lease(monkeypatch, call):
    groups = ledger()
    queue = queue_of(groups)
    for row in whole(*groups.reserve(2)):
        queue.put(*row)
    groups.fail(1)

    def fail(*given, **options):
        raise ConnectionError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(groups, call, fail)
        with pytest.raises(ConnectionError):
            queue.draw(SIZE)
    assert queue.draw(SIZE) == whole(0)


def test_errors_name_the_argument_and_change_nothing():
    groups = ledger()
    with pytest.raises(per.InvalidArgument, match=r"n_samples_per_prompt is 0; allowed: 1 and above"):
        GroupSampler(groups, 0)
    queue = queue_of(groups)
    for row in whole(*groups.reserve(2)):
        queue.put(*row)
    with pytest.raises(per.InvalidArgument, match=r"batch_size is 4; allowed: multiples of 3, n_samples_per_prompt"):
        queue.draw(4)
    assert groups.counts().open == 2
    assert queue.draw(SIZE) == whole(0)
    (lease,) = groups.leases()
    groups.release(lease)
    queue.put(*whole(0)[0], field="more")
    with pytest.raises(per.InvalidArgument, match=r"group 0 is sealed, but its rows are not ready for this task"):
        queue.draw(SIZE, fields=("more",))
    assert (groups.counts().sealed, groups.leases()) == (2, [])


def test_an_invalid_tag_is_an_error_until_it_is_mended_or_the_group_failed():
    groups = ledger()
    queue = queue_of(groups)
    groups.reserve(2)
    for group, member in whole(0, 1):
        queue.put(group, member, reward=np.nan if (group, member) == (0, 1) else member)
    for _ in range(2):
        with pytest.raises(per.InvalidArgument, match=r"reward is nan; allowed: finite numbers"):
            queue.draw(SIZE)
    (index,) = [index for index, tag in queue.tags.items() if (tag["group"], tag["member"]) == (0, 1)]
    queue.partition.set_custom_meta({index: {"group": 0, "member": 1, "reward": 1.0}})
    assert queue.draw(SIZE) == whole(0)
    groups.release(*groups.leases())
    assert groups.sample(1).batch.reward.tolist() == [[0, 1, 2]]


def test_a_group_whose_sealing_was_interrupted_is_sealed_after_a_restore():
    groups = ledger()
    queue = queue_of(groups)
    groups.reserve()
    saved = groups.state_dict()
    for group, member in whole(0):
        queue.put(group, member, reward=np.nan if member == 2 else member)
    with pytest.raises(per.InvalidArgument, match="reward is nan"):
        queue.draw(SIZE)
    queue.sampler._groups = per.llm.Groups.load(saved)
    queue.sampler.load_checkpoint(queue.sampler.save_checkpoint())
    queue.put(0, 2, reward=2.0)
    for index in [index for index, tag in queue.tags.items() if tag["member"] == 2]:
        queue.partition.set_custom_meta({index: {"group": 0, "member": 2, "reward": 2.0}})
    assert queue.draw(SIZE) == whole(0)


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20)
    yield
    ray.shutdown()


def test_a_controller_of_ray_draws_from_a_ledger_that_the_driver_serves(cluster):
    """All groups are drawn once, by version, at ages of at most 1, with the payloads that were put for them."""
    groups = ledger(per_version=2, ahead=1, max_age=1)
    address = per.llm.serve(groups, authkey=b"secret")
    conf = OmegaConf.create(flags={"allow_objects": True})
    conf.backend = {"SimpleStorage": {"num_data_storage_units": 1}}
    conf.controller = {"sampler": GroupSampler(address, SIZE, authkey=b"secret"), "polling_mode": True}
    tq.init(conf)
    client, learned, ages = tq.get_client(), [], []
    try:
        assert client.get_meta(["tokens"], SIZE, "train", task_name="train").size == 0
        while groups.version < 6:
            for group in groups.reserve(groups.room):
                for member in range(SIZE):
                    fields = TensorDict({"tokens": torch.tensor([[group, member]])}, batch_size=1)
                    tag = {"group": group, "member": member, "version": groups.version}
                    tq.kv_batch_put([f"{group}.{member}"], "train", fields, [tag])
            meta = client.get_meta(["tokens"], 2 * SIZE, "train", task_name="train")
            lease = lease_of(groups, meta)
            rows = [tuple(row.tolist()) for row in client.get_data(meta)["tokens"].unbind()]
            assert rows == whole(*lease.groups.tolist())
            learned += lease.groups.tolist()
            ages += lease.ages.tolist()
            groups.ack(lease, version=groups.version + 1)
            with pytest.raises(per.InvalidArgument, match="allowed: the groups of a lease that has not ended"):
                lease_of(groups, meta)
            client.clear_samples(meta)
        with pytest.raises(RuntimeError, match=r"batch_size is 4; allowed: multiples of 3"):
            client.get_meta(["tokens"], 4, "train", task_name="train")
    finally:
        tq.close()
    assert learned == list(range(12))
    assert ages == [0] * 2 + [1] * 10
