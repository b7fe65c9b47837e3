"""per.integrations.verl does what verl's own buffers do, and loses nothing where they do."""

from __future__ import annotations

import collections

import per
import pytest
import transfer_queue as tq
from common import Blocked, Rollouts, Trainer, buffer_of, clear
from per.integrations.verl import ReplayBuffer


def uids_of(batch):
    """The prompts of a batch, whose trajectories lie together and are whole."""
    uids = [key.split("_")[0] for key in batch.keys]
    assert uids == [uid for uid in dict.fromkeys(uids) for _ in range(2)]
    return [*dict.fromkeys(uids)]


def test_verl_makes_it_from_its_configuration(tmp_path):
    trainer = Trainer(tmp_path, size=2, capacity=64)
    assert isinstance(trainer.replay_buffer, ReplayBuffer)
    assert len(trainer.rollouts.running) == 2  # the warm-up
    trainer.replay_buffer.refill_fn(3)
    assert len(trainer.rollouts.running) == 5


@pytest.mark.parametrize(
    ("threshold", "strategy", "metric"), [(3, "drop", None), (3, "wait", None), (None, "drop", "acc")]
)
def test_takes_and_replaces_the_groups_that_verls_buffer_does(draws, threshold, strategy, metric):
    """Groups end in the order in which they were dispatched. verl then draws the oldest, in any order within a step."""
    worlds, refills = {}, {"ours": [], "theirs": []}
    for kind in refills:
        worlds[kind] = Rollouts(f"{kind}-{threshold}")

        def refill(n, kind=kind):
            refills[kind].append(n)
            worlds[kind].dispatch(n, step)

        options = {} if metric is None else {"filter_groups_metric": metric}
        worlds[kind].buffer = buffer_of(kind, "separate_async", threshold, strategy, refill, **options)
    n_drawn = n_blocked = 0
    for step in range(1, 20):
        for world in worlds.values():
            world.dispatch(3, step)
        for _ in range(draws.choice([1, 4, 6])):
            status = draws.choice(["finished"] * 6 + ["failure"])
            rewards = draws.choice([(0.0, 1.0), (1.0, 1.0), (0.0, 0.0)] if metric else [(0.0, 1.0)])
            for world in worlds.values():
                if world.running:
                    world.end(next(iter(world.running)), status, rewards)
        found = {}
        for kind, world in worlds.items():
            try:
                batch, _ = world.buffer.sample(step, world.partition_id, 3)
            except Blocked:
                found[kind] = "blocked"
            else:
                found[kind] = sorted(tag["global_steps"] for tag in batch.tags)
                assert threshold is None or strategy != "drop" or step - found[kind][0] + 1 <= threshold
                tq.kv_clear(keys=batch.keys, partition_id=world.partition_id)
        assert found["ours"] == found["theirs"]
        n_blocked += found["ours"] == "blocked"
        n_drawn += found["ours"] != "blocked"
        assert sum(refills["ours"]) == sum(refills["theirs"])
        tags = [tq.kv_list(world.partition_id)[world.partition_id].values() for world in worlds.values()]
        ours, theirs = (sorted((tag["global_steps"], tag.get("status", "")) for tag in each) for each in tags)
        assert ours == theirs
    assert n_drawn > 3
    assert n_blocked > 0
    assert sum(refills["ours"]) > 0
    counts = worlds["ours"].buffer.groups(worlds["ours"].partition_id).counts()
    assert counts.consumed == 3 * n_drawn
    assert counts.issued == counts.consumed + counts.retired + counts.sealed + counts.open


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_metrics_have_verls_names_and_values(rollouts, kind):
    buffer = buffer_of(kind, threshold=2, refill_fn=lambda n: None, filter_groups_metric="reward")
    old, failed, same, *good = (*rollouts.dispatch(1, 1), *rollouts.dispatch(4, 4))
    rollouts.end(old)
    rollouts.end(failed, "failure", ())
    rollouts.end(same, "finished", (0.5, 0.5))
    for uid in good:
        rollouts.end(uid)
    batch, metrics = buffer.sample(4, "train", 2)
    assert {key.split("_")[0] for key in batch.keys} == set(good)
    assert metrics == {
        "training/off_policy/evicted_samples": 1,
        "training/off_policy/evicted_samples_staleness/mean": 4.0,
        "training/off_policy/evicted_samples_staleness/max": 4.0,
        "training/off_policy/evicted_samples_staleness/min": 4.0,
        "training/filter_groups/evicted_samples": 1,
        "training/rollout_failure/evicted_samples": 1,
        "_dapo_filtered_reward_counts": {0.5: 1},
    }


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_a_group_of_one_trajectory_is_not_filtered(rollouts, kind):
    buffer = buffer_of(kind, refill_fn=pytest.fail, filter_groups_metric="acc")
    rollouts.end(rollouts.dispatch(1, 1)[0], "finished", (1.0,))
    assert len(buffer.sample(1, "train", 1)[0].keys) == 1


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_a_group_may_be_as_old_as_the_threshold(rollouts, kind):
    buffer = buffer_of(kind, threshold=2)
    rollouts.end(rollouts.dispatch(1, 1)[0])
    assert [buffer.get_sampleable_count(step, "train") for step in (2, 3)] == [1, 0]


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_a_draw_waits_for_running_groups_as_old_as_the_threshold(rollouts, kind):
    buffer = buffer_of(kind, threshold=3, strategy="wait")
    for uid in rollouts.dispatch(3, 1)[:2]:
        rollouts.end(uid)
    assert len(buffer.sample(2, "train", 1)[0].keys) == 2
    with pytest.raises(Blocked):
        buffer.sample(3, "train", 1)
    rollouts.end(next(iter(rollouts.running)))
    assert len(buffer.sample(3, "train", 1)[0].keys) == 2


@pytest.mark.parametrize("seed", range(2))
def test_every_prompt_is_learned_from_once_over_restores(tmp_path, draws, seed):
    draws.seed(seed)
    trainer, learned, saved, n_restores = Trainer(tmp_path, capacity=64, per_version=4, ahead=1), [], [], 0
    for _ in range(14):
        learned += trainer.learn(draws)
        save = draws.random() < 0.4
        trainer.end_step(save)
        if save:
            saved = [*learned]
        if saved and draws.random() < 0.3:  # the process ends, and with it TransferQueue
            clear()
            trainer, learned, n_restores = (
                Trainer(tmp_path, capacity=64, per_version=4, ahead=1),
                [*saved],
                n_restores + 1,
            )
    learned += trainer.learn(draws)
    counts = trainer.replay_buffer.groups().counts()
    prompts = [tag["index"] for tag in tq.kv_list("train")["train"].values() if "index" in tag]
    assert n_restores > 0
    assert len(set(learned)) == len(learned) == counts.consumed
    assert {("rollout_failure", "")} <= {*counts.retired_by} <= {("rollout_failure", ""), ("stale", "")}
    assert not set(learned) & set(prompts)
    n_fetched = len(learned) + counts.retired + len(prompts)
    assert counts.issued == n_fetched
    assert {*learned, *prompts} <= {*range(n_fetched)}
    assert counts.open + counts.sealed == len(prompts) == 4  # no burst, and no gap: one batch ahead


@pytest.mark.parametrize(("kind", "n_left"), [("ours", 0), ("theirs", 8)])
def test_a_restore_clears_the_trajectories_that_were_learned_from(tmp_path, draws, kind, n_left):
    trainer = Trainer(tmp_path, kind)
    trainer.learn(draws)
    drawn = trainer.batch.keys
    trainer.end_step(save=True)
    clear()
    trainer = Trainer(tmp_path, kind)
    trainer.learn(draws)
    assert len(set(drawn) & set(tq.kv_list("train")["train"])) == n_left


@pytest.mark.parametrize(("kind", "n_refilled"), [("ours", 1), ("theirs", 0)])
def test_a_refill_that_fails_is_asked_again(rollouts, kind, n_refilled):
    calls = []

    def refill(n):
        calls.append(n)
        if len(calls) == 1:
            raise OSError("a worker of the data loader died")
        rollouts.dispatch(n, 1)

    buffer = buffer_of(kind, refill_fn=refill)
    rollouts.end(rollouts.dispatch(1, 1)[0], "failure", ())
    with pytest.raises(OSError, match="died"):
        buffer.sample(1, "train", 1)
    with pytest.raises(Blocked):
        buffer.sample(1, "train", 1)
    assert len(rollouts.running) == n_refilled


def test_counting_leaves_groups_to_be_replaced_by_the_next_draw(rollouts):
    refills = []
    buffer = buffer_of("ours", refill_fn=refills.append)
    (uid,) = rollouts.dispatch(1, 1)
    rollouts.end(uid, "failure")
    assert [buffer.get_sampleable_count(1, "train") for _ in range(2)] == [0, 0]
    assert refills == []
    assert uid in tq.kv_list("train")["train"]
    with pytest.raises(Blocked):
        buffer.sample(1, "train", 1)
    assert refills == [1]
    assert buffer.groups().counts()[:2] == (1, 0)  # issued and open
    assert not tq.kv_list("train")["train"]


@pytest.mark.parametrize(("kind", "n_dispatched"), [("ours", 6), ("theirs", 8)])
def test_no_prompt_is_generated_in_vain_in_sync_mode(rollouts, kind, n_dispatched):
    uids = []

    def refill(n):
        uids.extend(rollouts.dispatch(n, 1))
        for uid in uids[-n:]:
            rollouts.end(uid)

    buffer = buffer_of(kind, "sync", refill_fn=refill, filter_groups_metric="acc")
    uids += rollouts.dispatch(4, 1)
    for uid, rewards in zip([*uids], [(0.0, 0.0), (1.0, 1.0), (0.0, 1.0), (1.0, 0.0)], strict=True):
        rollouts.end(uid, "finished", rewards)
    batch, _ = buffer.sample(1, "train", 4)
    assert len({key.split("_")[0] for key in batch.keys}) == 4
    assert len(uids) == n_dispatched


def test_draws_in_the_order_of_dispatch_do_not_depend_on_the_speed_of_rollouts(rollouts):
    buffer = buffer_of("ours", order="issued")
    first, second, third = rollouts.dispatch(3, 1)
    rollouts.end(third)
    rollouts.end(second)
    assert buffer.get_sampleable_count(1, "train") == 0
    with pytest.raises(Blocked):
        buffer.sample(1, "train", 1)
    rollouts.end(first)
    assert buffer.wait_for_sampleable(1, "train", 2) == ({first, second, third}, {})
    assert uids_of(buffer.sample(1, "train", 2)[0]) == [first, second]
    assert uids_of(buffer.sample(1, "train", 1)[0]) == [third]


def test_the_order_priority_with_a_short_half_life_draws_the_newest(rollouts):
    buffer = buffer_of("ours", order="priority", half_life=0.05)
    for step in (1, 2, 3):
        rollouts.end(rollouts.dispatch(1, step)[0])
    drawn = [buffer.sample(3, "train", 1)[0].tags[0]["global_steps"] for _ in range(3)]
    assert drawn == [3, 2, 1]  # the newest is 2^20 times as likely as the next


def test_prompts_beyond_the_pace_wait_for_the_next_version(rollouts):
    refills = []
    buffer = buffer_of("ours", per_version=2, ahead=0, refill_fn=refills.append)
    uids = rollouts.dispatch(5, 1)
    rollouts.end(uids[0], "failure")
    for uid in uids[1:]:
        rollouts.end(uid)
    assert set(uids_of(buffer.sample(1, "train", 2)[0])) == set(uids[1:3])
    assert refills == []  # three prompts waited, one of which takes the place of the one that failed
    with pytest.raises(Blocked):
        buffer.sample(1, "train", 1)
    assert set(uids_of(buffer.sample(2, "train", 2)[0])) == set(uids[3:])


def test_a_prompt_that_something_else_cleared_is_replaced(rollouts):
    refills = []
    buffer = buffer_of("ours", refill_fn=refills.append)
    gone, ended, running = rollouts.dispatch(3, 1)
    rollouts.end(ended)
    assert buffer.get_sampleable_count(1, "train") == 1
    tq.kv_clear(keys=[gone, ended], partition_id="train")
    with pytest.raises(Blocked):
        buffer.sample(1, "train", 1)
    assert refills == [2]
    assert buffer.groups().counts().retired_by == {("lost", ""): 2}
    assert [*buffer.groups().missing().values()] == [running]


def test_validation_keeps_failed_and_old_groups_and_replaces_nothing():
    rollouts = Rollouts("val")
    buffer = buffer_of("ours", threshold=1, refill_fn=pytest.fail, filter_groups_metric="acc", per_version=1)
    uids = rollouts.dispatch(3, 0)
    rollouts.end(uids[0], "failure", ())
    rollouts.end(uids[1], "finished", (1.0, 1.0))
    rollouts.end(uids[2])
    batch, metrics = buffer.sample(5, "val", 3)
    assert set(uids_of(batch)) == set(uids[1:])
    assert metrics == {}


def test_other_options_after_a_restore_take_over_the_prompts(tmp_path, draws):
    trainer = Trainer(tmp_path, capacity=64)
    trainer.learn(draws)
    trainer.end_step(save=True)
    clear()
    trainer = Trainer(tmp_path, capacity=64, order="issued")
    trainer.learn(draws)
    counts = trainer.replay_buffer.groups().counts()
    assert (counts.consumed, counts.open + counts.sealed) == (4, 4)


@pytest.mark.parametrize("takes_effect", [False, True])
@pytest.mark.parametrize("call", ["kv_clear", "kv_put"])
def test_a_draw_that_fails_is_completed_by_the_next_one(rollouts, monkeypatch, call, takes_effect):
    """The prompts, the ledger or both are as before, or not, when the call raises."""
    buffer = buffer_of("ours", refill_fn=pytest.fail)
    first, second, third = rollouts.dispatch(3, 1)
    for uid in (first, second, third):
        rollouts.end(uid)

    done = getattr(tq, call)

    def fail(**given):
        if takes_effect:
            done(**given)
        raise ConnectionError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(tq, call, fail)
        with pytest.raises(ConnectionError):
            buffer.sample(1, "train", 2)
    assert buffer.get_sampleable_count(1, "train") == 1
    assert uids_of(buffer.sample(1, "train", 2)[0]) == [first, second]
    assert uids_of(buffer.sample(1, "train", 1)[0]) == [third]
    for each in (buffer, buffer_of("ours")):  # also in the ledger of a checkpoint
        assert each.groups().counts()[:6] == (3, 0, 0, 0, 3, 0)  # issued and consumed


def test_a_batch_without_trajectories_is_an_error(rollouts):
    buffer = buffer_of("ours", "sync")
    (uid,) = rollouts.dispatch(1, 1)
    rollouts.end(uid, "failure", ())
    with pytest.raises(per.InvalidArgument, match="all groups of the batch failed"):
        buffer.sample(1, "train", 1)
    assert buffer.groups().counts().sealed == 1
    assert uid in tq.kv_list("train")["train"]


def test_failed_groups_without_trajectories_are_replaced_in_sync_mode_on_request(rollouts):
    refills = []
    buffer = buffer_of("ours", "sync", refill_fn=refills.append, sync_refill_failed_groups=True)
    empty, partial = rollouts.dispatch(2, 1)
    rollouts.end(empty, "failure", ())
    rollouts.end(partial, "failure")
    assert uids_of(buffer.sample(1, "train", 1)[0]) == [partial]
    assert refills == [1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"uses": 2}, "sampler_kwargs has uses; allowed: capacity, "),
        ({"strategy": "keep"}, "max_off_policy_strategy is 'keep'; allowed: 'drop', 'wait'"),
        ({"threshold": 0}, "max_off_policy_threshold is 0; allowed: 1 and above"),
        ({"threshold": 2.5}, "max_off_policy_threshold is 2.5, a float; allowed: an int"),
        ({"threshold": "3"}, "max_off_policy_threshold is '3', a str; allowed: an int"),
        ({"capacity": None}, "capacity is None, a NoneType; allowed: an int"),
        ({"capacity": 0}, "capacity is 0; allowed: 1 and above"),
        ({"order": "foo"}, "order is 'foo'; allowed: 'issued', "),
        ({"half_life": 3.0}, "half_life is given; allowed: with order='priority'"),
        ({"ahead": 1}, "ahead is given; allowed: with per_version"),
        ({"seed": "x"}, "seed is 'x', a str; allowed: an int"),
        ({"filter_groups_metric": 5, "refill_fn": print}, "filter_groups_metric is 5; allowed: a name, None"),
        ({"sync_refill_failed_groups": "no", "refill_fn": print}, "sync_refill_failed_groups is 'no'; allowed: True"),
        ({"filter_groups_metric": "acc"}, "refill_fn is None; needed"),
    ],
)
def test_arguments_without_a_meaning_are_errors(given, message):
    with pytest.raises(per.InvalidArgument, match=message):
        buffer_of("ours", **given)


def test_states_without_a_meaning_are_errors(rollouts):
    buffer = buffer_of("ours", capacity=2, refill_fn=pytest.fail, filter_groups_metric="style")
    with pytest.raises(per.InvalidArgument, match="groups is 3; allowed: 1 to 2"):
        buffer.sample(1, "train", 3)
    (uid,) = rollouts.dispatch(1, 1)
    tq.kv_put(key=uid, partition_id="train", tag={"status": "lost"})
    with pytest.raises(per.InvalidArgument, match="status of a prompt is 'lost'; allowed: 'pending', "):
        buffer.sample(1, "train", 1)
    rollouts.end(uid)
    with pytest.raises(per.InvalidArgument, match=r"filter_groups_metric is 'style'; allowed for .*_0_0: acc"):
        buffer.sample(1, "train", 1)
    assert buffer.groups().counts().open == 1
    assert collections.Counter(tag.get("status") for tag in tq.kv_list("train")["train"].values())["finished"] == 1
