"""A naive model of per.llm.Groups: a list of groups, and rules read off the definition at every call."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Group:
    id: int
    tag: str
    state: str = "open"
    firsts: dict[int, int] = dataclasses.field(default_factory=dict)  # by member
    tokens: dict[int, int] = dataclasses.field(default_factory=dict)  # of closed members
    sealed_at: int = 0
    uses: int = 0
    reason: str = ""


class NaiveGroups:
    """Keeps every group ever issued, and recounts their states for every answer."""

    def __init__(self, group_size, capacity, max_open, per_version, ahead, max_age, uses, order):
        self.group_size, self.capacity, self.max_open, self.per_version = group_size, capacity, max_open, per_version
        self.ahead, self.max_age, self.uses, self.order = ahead, max_age, uses, order
        self.groups: list[Group] = []
        self.version = self.base = self.seals = 0

    def having(self, *states):
        return [group for group in self.groups if group.state in states]

    def allows(self, k):
        """The rule of reserve(): I + k - R <= (V - V0 + 1 + W) B, open + k <= limit, and a place for each."""
        admitted, unused = len(self.groups), len(self.having("retired"))
        is_paced = admitted + k - unused <= (self.version - self.base + 1 + self.ahead) * self.per_version
        has_place = len(self.having("open", "sealed", "leased")) + k <= self.capacity
        return is_paced and len(self.having("open")) + k <= self.max_open and has_place

    def room(self):
        k = 0
        while self.allows(k + 1):
            k += 1
        return k

    def reserve(self, k, tag):
        first = len(self.groups)
        self.groups += [Group(first + i, tag) for i in range(k)]
        return [*range(first, first + k)]

    def append(self, group, member, version):
        it = self.groups[group]
        if it.state != "open":
            return False
        it.firsts[member] = min(version, it.firsts.get(member, version))
        self.retire_stale()
        return it.state == "open"

    def close(self, group, member, tokens, version):
        it = self.groups[group]
        if it.state != "open":
            return False
        if version is not None or member not in it.firsts:
            at = self.version if version is None else version
            it.firsts[member] = min(at, it.firsts.get(member, at))
        it.tokens[member] = tokens
        if len(it.tokens) == self.group_size:
            it.state, it.sealed_at = "sealed", self.seals
            self.seals += 1
        self.retire_stale()
        return it.state == "sealed"

    def retire(self, it, reason):
        it.state = "consumed" if it.uses else "retired"
        it.reason = reason

    def age(self, it):
        return self.version - min(it.firsts.values()) if it.firsts else 0

    def retire_stale(self):
        for it in self.having("open", "sealed"):
            if self.age(it) > self.max_age:
                self.retire(it, "stale")

    def in_order(self):
        if self.order == "sealed":
            return sorted(self.having("sealed"), key=lambda it: it.sealed_at)
        ready = []
        for it in self.having("open", "sealed"):
            if it.state == "open":
                break
            ready.append(it)
        return ready

    def sample(self, n):
        ready = self.in_order()
        return self.lease(ready[:n]) if len(ready) >= n else None

    def sample_tokens(self, budget):
        """None if more groups might fit; "too small" if the first one does not."""
        ready, taken, total = self.in_order(), [], 0
        for it in ready:
            size = sum(it.tokens.values())
            if total + size > budget:
                return self.lease(taken) if taken else "too small"
            taken.append(it)
            total += size
        can_come = self.having("open", "leased") or self.room()
        return self.lease(taken) if taken and (total == budget or not can_come) else None

    def lease(self, chosen):
        for it in chosen:
            it.state = "leased"
        return [it.id for it in chosen]

    def ack(self, ids):
        for id in ids:
            it = self.groups[id]
            it.uses += 1
            it.state = "consumed" if it.uses == self.uses else "sealed"
        self.retire_stale()

    def release(self, ids):
        for id in ids:
            self.groups[id].state = "sealed"
        self.retire_stale()

    def fail(self, group, reason):
        if self.groups[group].state in ("open", "sealed"):
            self.retire(self.groups[group], reason)

    def advance(self):
        self.version += 1
        self.base = self.base if self.groups else self.version
        self.retire_stale()

    def restored(self):
        """After load(): leases are gone, and open groups begin again."""
        for it in self.having("leased"):
            it.state = "sealed"
        for it in self.having("open"):
            it.firsts.clear()
            it.tokens.clear()
        self.retire_stale()

    def counts(self):
        by = {}
        for it in self.having("retired"):
            by[it.reason, it.tag] = by.get((it.reason, it.tag), 0) + 1
        states = {state: len(self.having(state)) for state in ("open", "sealed", "leased", "consumed", "retired")}
        return {"issued": len(self.groups), **states, "retired_by": by}
