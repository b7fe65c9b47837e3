"""A replay buffer for verl's V1 trainers, whose prompts are groups of a per.llm.Groups.

trainer.v1.sampler.custom_sampler.path=pkg://per.integrations.verl
trainer.v1.sampler.custom_sampler.name=ReplayBuffer
"""

from __future__ import annotations

import collections
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import DAPO_FILTERED_REWARD_COUNTS_KEY
from verl.utils.skip import SkipManager

from per import _options
from per._errors import InvalidArgument, Timeout
from per.llm import Groups

__all__ = ["ReplayBuffer"]

_LEDGERS = "per.llm"  # the partition of TransferQueue with the states of ledgers
_OPTIONS = ("capacity", "max_open", "per_version", "ahead", "order", "half_life", "seed")
_OWN_OPTIONS = ("filter_groups_metric", "sync_refill_failed_groups")
_RUNNING, _ENDED = ("pending", "running"), ("finished", "failure")
_STALE, _FILTERED, _FAILED = "off_policy", "filter_groups", "rollout_failure"  # in the names of verl's metrics

logger = logging.getLogger(__name__)


class ReplayBuffer:
    """Takes the place of verl's ReplayBuffer and ReplayBufferAsync: a ledger of the prompts in TransferQueue.

    docs/integrations/verl.md has the configuration, and the differences from verl's buffers.

    Parameters
    ----------
    trainer_mode, trainer_config, max_off_policy_threshold, max_off_policy_strategy, poll_interval, refill_fn : Any
        As verl passes them to its own buffers.
    sampler_kwargs : Mapping[str, Any], optional
        Options of Groups: capacity (4096), max_open, per_version, ahead, order ("sealed"), half_life, seed. Also
        filter_groups_metric and sync_refill_failed_groups, which verl passes to its own buffers as arguments.
    """

    def __init__(
        self,
        trainer_mode: str,
        trainer_config: Any,
        max_off_policy_threshold: int | None,
        max_off_policy_strategy: str,
        sampler_kwargs: Mapping[str, Any] | None = None,
        poll_interval: float = 2.0,
        refill_fn: Callable[[int], object] | None = None,
    ) -> None:
        limit, strategy, options = max_off_policy_threshold, max_off_policy_strategy, dict(sampler_kwargs or {})
        self._metric, self._replaces_failed = (options.pop(name, None) for name in _OWN_OPTIONS)
        if unknown := sorted(options.keys() - {*_OPTIONS}):
            allowed = ", ".join(_OPTIONS + _OWN_OPTIONS)
            raise InvalidArgument(f"sampler_kwargs has {', '.join(unknown)}; allowed: {allowed}")
        if strategy not in ("drop", "wait"):
            raise InvalidArgument(f"max_off_policy_strategy is {strategy!r}; allowed: 'drop', 'wait'")
        if limit is not None:
            limit = _options.at_least("max_off_policy_threshold", limit, 1)
        if not isinstance(self._metric, (str, type(None))):
            raise InvalidArgument(f"filter_groups_metric is {self._metric!r}; allowed: a name, None")
        if self._replaces_failed is not None:
            _options.flag("sync_refill_failed_groups", self._replaces_failed)
        if refill_fn is None and (self._metric is not None or self._replaces_failed):
            raise InvalidArgument("refill_fn is None; needed to replace filtered or failed groups")
        self.trainer_mode, self.poll_interval, self.refill_fn = trainer_mode, poll_interval, refill_fn
        limit = None if trainer_mode == "sync" else limit
        self._waits_at = limit if strategy == "wait" else None
        max_age = limit - 1 if limit is not None and strategy == "drop" else None
        self._options = {"capacity": 4096, "order": "sealed", **options, "max_age": max_age}
        with Groups(1, **self._options):
            pass  # checks the options before a partition uses them
        self._partitions: dict[str, _Partition] = {}

    def groups(self, partition_id: str = "train") -> Groups[Any]:
        """The ledger of a partition, from the first draw on: its counts(), missing() prompts and version."""
        return self._partition(partition_id).groups

    @SkipManager.annotate_tq(role="rollout_tq", phase="sample")
    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """Waits for a number of groups, and takes them.

        Returns a KVBatchMeta with all trajectories of each group, one group after the other, and metrics of the groups
        that were replaced since the last call. If TransferQueue fails, the next call returns the same batch.
        """
        partition = self._partition(partition_id)
        if not partition.drawn:
            self._wait(global_steps, partition_id, batch_size)
            partition.draw(batch_size)
        tq.kv_clear(keys=partition.drawn, partition_id=partition_id)
        if self.trainer_mode != "sync" and partition.is_training:
            partition.save()
        partition.drawn = []
        return partition.batch, partition.metrics()

    def get_sampleable_count(self, global_steps: int, partition_id: str) -> int:
        """Number of groups that can be drawn at this moment."""
        partition = self._partition(partition_id)
        self._look(partition, global_steps)
        return len(partition.ready())

    def wait_for_sampleable(
        self, global_steps: int, partition_id: str, target_count: int
    ) -> tuple[set[str], dict[str, Any]]:
        """Waits until a number of groups can be drawn. Returns their uids, and metrics as sample() does."""
        partition = self._wait(global_steps, partition_id, target_count)
        return set(partition.ready()), partition.metrics()

    def _partition(self, name: str) -> _Partition:
        return self._partitions.get(name) or self._partitions.setdefault(name, _Partition(name, self._options))

    def _wait(self, step: int, name: str, n_groups: int) -> _Partition:
        partition = self._partition(name)
        while True:
            self._look(partition, step)
            if self._replace(partition):
                continue
            with contextlib.suppress(Timeout):
                partition.groups.wait_blocking(groups=n_groups, timeout=0)
                oldest = max((partition.span(uid, step) for uid in partition.running()), default=0)
                if self._waits_at is None or oldest < self._waits_at or not partition.is_training:
                    return partition
            logger.debug("waiting for %s groups in %s: %s", n_groups, name, partition.groups)
            time.sleep(self.poll_interval)

    def _look(self, partition: _Partition, step: int) -> None:
        """Brings the ledger up to date with TransferQueue and with the trainer's step."""
        partition.read()
        partition.advance(step)
        partition.admit()
        ended = partition.ended()
        finished = [uid for uid in ended if partition.is_training and partition.prompts[uid]["status"] == "finished"]
        values = partition.values_of(self._metric, finished)
        for uid in ended:
            if self._is_replaced(partition, uid):
                partition.retire(uid, _FAILED)
            elif not partition.seal(uid):
                partition.note(uid, _STALE, partition.span(uid, step))
            elif len(values[uid]) > 1 and len(set(values[uid])) == 1:
                partition.retire(uid, _FILTERED, values[uid][0])

    def _is_replaced(self, partition: _Partition, uid: str) -> bool:
        is_wanted = self.trainer_mode != "sync" or (self._replaces_failed and not partition.trajectories[uid])
        return is_wanted and partition.is_training and partition.prompts[uid]["status"] == "failure"

    def _replace(self, partition: _Partition) -> bool:
        """Clears retired groups, and asks for as many prompts. Returns True if TransferQueue has changed."""
        cleared = [key for uid in partition.retired for key in (uid, *partition.trajectories[uid])]
        if cleared:
            tq.kv_clear(keys=cleared, partition_id=partition.name)
            partition.retired.clear()
        wanted = min(partition.owed, partition.groups.room - partition.n_waiting)
        if self.refill_fn is None or wanted <= 0:
            return bool(cleared)
        self.refill_fn(wanted)
        partition.owed -= wanted  # if refill_fn fails, the next call asks again
        return True


class _Partition:
    """A partition of TransferQueue as it was last read, and its ledger."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.name, self.is_training = name, name != "val"
        self.options: dict[str, Any] = dict(options) if self.is_training else {"capacity": 2**16, "order": "sealed"}
        self.ids: dict[str, int] = {}  # the groups of prompts that are open or sealed
        self.retired: set[str] = set()  # prompts that are still in TransferQueue
        self.drawn: list[str] = []  # prompts of the batch, until sample() returns it
        self.batch: Any = None
        self.owed = 0  # retired groups that are not replaced yet
        self.n_waiting = 0  # prompts for which the ledger has no room yet
        self._gone: dict[str, list[float]] = collections.defaultdict(list)
        self.read()
        # Trajectories without a prompt were learned from before the checkpoint that TransferQueue was loaded from.
        if orphans := [key for uid, keys in self.trajectories.items() if uid not in self.prompts for key in keys]:
            tq.kv_clear(keys=orphans, partition_id=name)
        self.groups: Groups[Any] = Groups(1, arrays="torch", **self.options)
        saved = tq.kv_list(_LEDGERS).get(_LEDGERS, {}).get(name, {})
        if saved and saved["options"] != self.options:
            logger.warning("options are %s, in the checkpoint %s; counts begin again", self.options, saved["options"])
        elif saved:
            state = tq.kv_batch_get(keys=[name], partition_id=_LEDGERS)
            self.groups = Groups.load({str(key): state[key][0] for key in saved["keys"]})
            self.ids, self.owed = dict(saved["ids"]), saved["owed"]

    def save(self) -> None:
        """Puts the ledger into TransferQueue, which verl saves and loads with its checkpoints."""
        state = self.groups.state_dict()
        tag = {"ids": self.ids, "owed": self.owed, "options": self.options, "keys": [*state]}
        tq.kv_put(key=self.name, partition_id=_LEDGERS, fields=state, tag=tag)

    def read(self) -> None:
        """Reads the keys of TransferQueue. Prompts that something else has cleared are lost."""
        self.tags: dict[str, dict[str, Any]] = tq.kv_list(self.name).get(self.name, {})
        self.prompts = {key: tag for key, tag in self.tags.items() if tag.get("is_prompt")}
        self.trajectories: dict[str, list[str]] = collections.defaultdict(list)
        for key in self.tags:
            if key not in self.prompts:
                self.trajectories[key.split("_")[0]].append(key)
        for uid in self.ids.keys() - self.prompts.keys():
            self.groups.fail(self.ids.pop(uid), "lost")
            self.owed += self.is_training

    def span(self, uid: str, step: int) -> int:
        """Versions from the dispatch of a prompt to a step, as verl counts them."""
        return int(step - self.prompts[uid]["global_steps"]) + 1

    def advance(self, step: int) -> None:
        before = self.groups.counts().retired
        self.groups.advance(step)
        n_stale = self.groups.counts().retired - before
        for uid in self._by_step(self.ids.keys() - self.running())[:n_stale]:  # age alone decides which
            self.note(uid, _STALE, self.span(uid, step))

    def admit(self) -> None:
        """Gives new prompts to the ledger, in the order of their steps, as far as it has room."""
        known = {*self.ids, *self.retired, *self.drawn}
        new = self._by_step(uid for uid in self.prompts if uid not in known)
        admitted = new[: self.groups.room]
        self.ids.update(zip(admitted, self.groups.reserve(keys=admitted), strict=True))
        self.n_waiting = len(new) - len(admitted)

    def running(self) -> set[str]:
        """The open groups."""
        return {str(uid) for uid in self.groups.missing().values()}

    def ended(self) -> list[str]:
        """The open groups whose generation has ended, in the order of their steps."""
        running = self.running()
        if unknown := {self.prompts[uid]["status"] for uid in running} - {*_RUNNING, *_ENDED}:
            allowed = ", ".join(map(repr, _RUNNING + _ENDED))
            raise InvalidArgument(f"status of a prompt is {unknown.pop()!r}; allowed: {allowed}")
        return self._by_step(uid for uid in running if self.prompts[uid]["status"] in _ENDED)

    def _by_step(self, uids: Iterable[str]) -> list[str]:
        return sorted(uids, key=lambda uid: (int(self.prompts[uid]["global_steps"]), self.ids.get(uid, 0)))

    def seal(self, uid: str) -> bool:
        """Seals a group. Returns False if it is too old."""
        version = min(int(self.prompts[uid]["global_steps"]), self.groups.version)
        n_tokens = sum(int(self.tags[key].get("seq_len", 0)) for key in self.trajectories[uid])
        return self.groups.close(self.ids[uid], 0, 0.0, version=version, n_tokens=n_tokens)

    def retire(self, uid: str, reason: str, number: float = 1) -> None:
        self.groups.fail(self.ids[uid], reason)
        self.note(uid, reason, number)

    def note(self, uid: str, reason: str, number: float) -> None:
        """Notes that the ledger has retired a group."""
        del self.ids[uid]
        self.retired.add(uid)
        self.owed += 1
        self._gone[reason].append(number)

    def ready(self) -> list[str]:
        """The groups that can be drawn."""
        running = self.groups.missing()
        end = min(running) if running and self.options["order"] == "issued" else self.groups.counts().issued
        return [uid for uid, group in self.ids.items() if group not in running and group < end]

    def values_of(self, metric: str | None, uids: Iterable[str]) -> dict[str, list[float]]:
        """The values of a metric for the trajectories of each group."""
        values: dict[str, list[float]] = collections.defaultdict(list)
        keys = [key for uid in uids for key in self.trajectories[uid] if metric is not None]
        field = "rm_scores" if metric == "reward" else "extra_fields"
        found = tq.kv_batch_get(keys=keys, partition_id=self.name, select_fields=[field])[field] if keys else ()
        for key, value in zip(keys, found, strict=True):
            inner = getattr(value, "data", value)
            known: Any = {metric: inner.sum()} if metric == "reward" else inner.get("reward_extra_info", {})
            if metric not in known:
                raise InvalidArgument(f"filter_groups_metric is {metric!r}; allowed for {key}: {', '.join(known)}")
            values[key.split("_")[0]].append(float(known[metric]))
        return values

    def draw(self, n_groups: int) -> None:
        """Consumes the groups of a batch. verl saves checkpoints when it has learned from all batches that it drew."""
        lease = self.groups.sample(n_groups)
        uids = [str(uid) for uid in lease.keys]
        keys = [key for uid in uids for key in self.trajectories[uid]]
        if not keys and self.is_training:
            self.groups.release(lease)
            raise InvalidArgument("all groups of the batch failed; needed: one with trajectories, see sampler_kwargs")
        self.batch = tq.KVBatchMeta(partition_id=self.name, keys=keys, tags=[self.tags[key] for key in keys])
        self.drawn = uids
        self.groups.ack(lease)
        for uid in uids:
            del self.ids[uid]

    def metrics(self) -> dict[str, Any]:
        """The metrics of the groups that were retired since the last call, by verl's names."""
        prefix, gone = "training" if self.name == "train" else "validation", self._gone
        self._gone = collections.defaultdict(list)
        metrics: dict[str, Any] = {f"{prefix}/{reason}/evicted_samples": len(gone[reason]) for reason in gone}
        for name, of in (("mean", np.mean), ("max", np.max), ("min", np.min)) if _STALE in gone else ():
            metrics[f"{prefix}/{_STALE}/evicted_samples_staleness/{name}"] = float(of(gone[_STALE]))
        if _FILTERED in gone:
            metrics[DAPO_FILTERED_REWARD_COUNTS_KEY] = dict(collections.Counter(gone[_FILTERED]))
        return metrics
