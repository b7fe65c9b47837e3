"""A sampler for TransferQueue that draws whole groups of answers, chosen by a per.llm.Groups.

    from per.integrations.transfer_queue import GroupSampler, lease_of

    groups = per.llm.Groups(4, capacity=64, per_version=8, ahead=1, max_age=1)  # without fields
    address = per.llm.serve(groups, authkey=b"secret")
    conf = OmegaConf.create({"controller": {"polling_mode": True}}, flags={"allow_objects": True})
    conf.controller.sampler = GroupSampler(address, 4, authkey=b"secret")
    transfer_queue.init(conf)

docs/integrations/transfer_queue.md has the calls of workers and learners.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transfer_queue as tq
from transfer_queue.sampler import BaseSampler, SequentialSampler

from per import _options
from per._errors import Busy, InvalidArgument
from per.llm import Groups, Lease, connect

__all__ = ["GroupSampler", "lease_of"]


class GroupSampler(BaseSampler):
    """Draws the groups that a ledger leases. Payloads stay in TransferQueue's storage.

    A row belongs to a group by its tag, a dict with "group", the id that reserve() returned, and "member". "version",
    "reward" and "n_tokens" are optional, with the meaning of per.llm.Groups.close(). The sampler seals a group once
    the rows of all members are ready. Rows of groups that the ledger has consumed or retired count as consumed.

    Parameters
    ----------
    groups : Groups or address
        A ledger without fields, or the address from per.llm.serve(), to which the controller's process connects.
    n_samples_per_prompt : int
        Members of a group, the ledger's group_size.
    task_name : str, optional
        The task that draws groups, as in sampling_config={"task_name": ...}. Other tasks get rows in sequence, as from
        SequentialSampler. None: all tasks draw groups.
    authkey : bytes, optional
        The secret that serve() was given.

    Notes
    -----
    The sampler keeps only results by dp_rank and batch_index, like TransferQueue's samplers. load_checkpoint() drops
    them, because their leases have ended.
    """

    def __init__(
        self, groups: Any, n_samples_per_prompt: int, *, task_name: str | None = None, authkey: bytes | None = None
    ) -> None:
        super().__init__()
        self._groups, self._authkey, self._task_name = groups, authkey, task_name
        self._size = _options.at_least("n_samples_per_prompt", n_samples_per_prompt, 1)
        self._is_connected = isinstance(groups, Groups)
        self._closed: dict[int, int] = {}  # by group: members closed before an error interrupted its sealing

    def sample(
        self,
        ready_indexes: list[int],
        batch_size: int,
        task_name: str = "",
        partition_id: str = "",
        *args: Any,
        partition: Any = None,
        dp_rank: Any = None,
        batch_index: Any = None,
        **options: Any,
    ) -> tuple[list[int], list[int]]:
        """The rows of batch_size / n_samples_per_prompt groups, and the rows of all groups that have ended.

        Both are empty if too few groups are ready. A repeated dp_rank and batch_index gets the same rows.
        """
        if self._task_name not in (None, task_name):
            rows: tuple[list[int], list[int]] = SequentialSampler().sample(ready_indexes, batch_size)
            return rows
        results = self._states.get(partition_id, {}).get(task_name, {}).get(dp_rank, {})
        if batch_index in results:
            cached: tuple[list[int], list[int]] = results[batch_index]
            return cached
        if batch_size < 1 or batch_size % self._size:
            allowed = f"multiples of {self._size}, n_samples_per_prompt"
            raise InvalidArgument(f"batch_size is {batch_size}; allowed: {allowed}")
        result = self._drawn(batch_size // self._size, partition.get_custom_meta(ready_indexes))
        if dp_rank is not None and result[0]:
            self._states.setdefault(partition_id, {}).setdefault(task_name, {}).setdefault(dp_rank, {})
            self._states[partition_id][task_name][dp_rank][batch_index] = result
        return result

    def load_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Drops cached results, whose leases have ended, and the notes about open groups.

        The ledger is restored by the learner.
        """
        self._states.clear()
        self._closed.clear()

    def _drawn(self, n_groups: int, tags: dict[int, dict[str, Any]]) -> tuple[list[int], list[int]]:
        """Seals the groups whose rows are all ready, and leases n of them. `tags` are those of the ready rows."""
        groups = self._ledger()
        indexes: dict[int, dict[int, int]] = {}  # by group and member
        for index, tag in tags.items():
            if "group" in tag:
                indexes.setdefault(tag["group"], {})[tag["member"]] = index
        members = range(self._size)
        whole = {group for group, rows in indexes.items() if all(member in rows for member in members)}
        for group in groups.missing():
            if group in whole:
                self._seal(group, [tags[indexes[group][member]] for member in members])
        kept = {*groups.missing(), *(group for each in groups.leases() for group in each.groups.tolist())}
        ended = {group for group in indexes if group not in kept and self._has_ended(group)}
        try:
            lease = groups.sample(n_groups)  # last, since an error of a later call would leak the lease
        except Busy:
            return [], []
        ids: list[int] = lease.groups.tolist()
        lost = [group for group in ids if group not in whole]
        if lost:
            groups.release(lease)
            raise InvalidArgument(
                f"group {lost[0]} is sealed, but its rows are not ready for this task; allowed: their fields, or fail()"
            )
        drawn = [indexes[group][member] for group in ids for member in members]
        return drawn, [index for index, tag in tags.items() if tag.get("group") in ended]

    def _ledger(self) -> Any:
        if not self._is_connected:
            self._groups, self._is_connected = connect(self._groups, authkey=self._authkey), True
        return self._groups

    def _seal(self, group: int, tags: list[dict[str, Any]]) -> None:
        for member in range(self._closed.get(group, 0), self._size):
            tag = tags[member]
            facts = {"version": tag.get("version"), "n_tokens": tag.get("n_tokens", 0)}
            self._groups.close(group, member, tag.get("reward", 0.0), **facts)
            self._closed[group] = member + 1
        self._closed.pop(group, None)

    def _has_ended(self, group: int) -> bool:
        """Whether a group is neither open nor stored. append() says so, and refuses the closed members of others."""
        try:
            return not self._groups.append(group, 0)
        except InvalidArgument:
            return False


def lease_of(groups: Any, meta: tq.BatchMeta) -> Lease[Any]:
    """The lease of a batch that a controller with a GroupSampler returned, for Groups.ack() or Groups.release()."""
    drawn = {tag["group"] for tag in meta.custom_meta}
    for lease in groups.leases():
        if drawn == set(lease.groups.tolist()):
            return lease
    raise InvalidArgument(f"meta has groups {sorted(drawn)}; allowed: the groups of a lease that has not ended")
