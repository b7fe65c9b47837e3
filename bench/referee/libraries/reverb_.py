"""Reverb: a server in this process with a prioritized table, a TrajectoryWriter and a client, as its README shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from contract import Array, Batch, Buffer, Library, NotClaimed, Options, Step

TABLE = "steps"
NAMES = ("observation", "action", "reward", "next_observation", "terminated")  # of a step


class ReverbBuffer(Buffer):
    def __init__(self, options: Options) -> None:
        if options.beta_steps:
            raise NotClaimed("the caller forms weights from the returned probabilities")
        if options.seed is not None:
            raise NotClaimed("no seed")
        if not options.replacement or options.stratified:
            raise NotClaimed("draws of a prioritized table are independent, with replacement")
        if options.n_step > 1:
            raise NotClaimed("the caller sums the rewards of a trajectory")
        if options.frame_stack > 1:
            raise NotClaimed("the caller says which steps are the frames of an item")
        if options.goals:
            raise NotClaimed("no hindsight relabelling")
        if options.n_envs > 1:
            raise NotClaimed("one environment a writer")
        if options.autoreset != "disabled":
            raise NotClaimed("the caller resets")
        self.options = options
        self.length = max(options.sequence_length, 1)
        self.newest = -1  # the number of the step that was written last
        self.keys: dict[int, int] = {}  # of the items that were drawn, by the number of their last step
        self.start()

    def start(self, checkpointer: Any = None) -> None:
        """Starts a server, from the latest checkpoint of the checkpointer if one is given."""
        import reverb
        import tensorflow

        options = self.options
        frame, dtypes = list(options.shape), (options.dtype, "int64", "float32", options.dtype, "bool")
        signature = {
            name: tensorflow.TensorSpec([self.length, *(frame if "observation" in name else [])], dtype)
            for name, dtype in zip(NAMES, dtypes, strict=True)
        }
        table = reverb.Table(
            TABLE,
            sampler=reverb.selectors.Prioritized(options.alpha),
            remover=reverb.selectors.Fifo(),
            max_size=options.capacity,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature=signature,
        )
        self.server = reverb.Server([table], checkpointer=checkpointer)
        self.client = reverb.Client(f"localhost:{self.server.port}")
        self.writer = self.client.trajectory_writer(num_keep_alive_refs=self.length)
        self.steps = 0  # of the running episode

    def write(self, step: Step) -> None:
        assert step.next_observation is not None
        arrays = (step.observation, step.action, step.reward, step.next_observation, step.terminated)
        self.writer.append({name: array[0] for name, array in zip(NAMES, arrays, strict=True)})
        self.steps += 1
        self.newest = int(step.observation.flat[0])
        if self.steps >= self.length:
            columns = {name: column[-self.length :] for name, column in self.writer.history.items()}
            priority = 1.0 if step.priority is None else float(step.priority[0])  # the caller chooses it
            self.writer.create_item(TABLE, priority=priority, trajectory=columns)
        if step.terminated[0] or step.truncated[0]:
            self.writer.end_episode()
            self.steps = 0

    def add(self, step: Step) -> None:
        self.write(step)
        self.writer.flush()

    def extend(self, steps: list[Step]) -> None:
        for step in steps:
            self.write(step)
        self.writer.flush()

    def sample(self) -> Batch:
        options = self.options
        given = {"emit_timesteps": False, "unpack_as_table_signature": True}
        drawn = list(self.client.sample(TABLE, options.batch_size, **given))
        rows = {name: np.stack([sample.data[name] for sample in drawn]) for name in NAMES}
        if not options.sequence_length:
            rows = {name: column[:, 0] for name, column in rows.items()}
        weights = np.array([sample.info.probability for sample in drawn]) ** -options.beta
        newest = rows["observation"].reshape(len(drawn), -1)[:, -1].astype(int)
        keys = [sample.info.key for sample in drawn]
        self.keys.update(zip(newest.tolist(), keys, strict=True))
        if len(self.keys) > 2 * options.capacity:
            self.keys = {step: key for step, key in self.keys.items() if step > self.newest - options.capacity}
        return Batch(
            observation=rows["observation"],
            action=rows["action"],
            reward=rows["reward"],
            next_observation=rows["next_observation"],
            discount=~rows["terminated"] * np.float32(options.gamma),
            weights=weights / weights.max(),  # as the caller forms them
            handle=np.array(keys, np.uint64),
        )

    def update(self, handle: Any, priorities: Array) -> None:
        self.client.mutate_priorities(TABLE, dict(zip(handle.tolist(), np.asarray(priorities).tolist(), strict=True)))

    def set_all(self, priorities: Array) -> None:
        """Draws until each row was seen: batches are the only source of keys."""
        first = self.newest + 1 - len(priorities)
        for _ in range(500):
            if all(first + row in self.keys for row in range(len(priorities))):
                updates = {self.keys[first + row]: float(priority) for row, priority in enumerate(priorities)}
                return self.client.mutate_priorities(TABLE, updates)
            self.sample()
        raise NotClaimed("the keys of rows that were never drawn are unknown")

    def __len__(self) -> int:
        return int(self.client.server_info()[TABLE].current_size)

    def save(self, path: str) -> None:
        """The server chooses the folder of its checkpoints; the file gets its name."""
        Path(path).write_text(str(Path(self.client.checkpoint()).parent))

    def load(self, path: str) -> None:
        from reverb.platform.checkpointers_lib import DefaultCheckpointer

        self.start(DefaultCheckpointer(Path(path).read_text()))


class Reverb(Library):
    threads = True
    name = "Reverb"
    package = "dm-reverb"
    module = "reverb"
    documents = "https://github.com/google-deepmind/reverb#readme"
    disclaims: ClassVar[dict[str, str]] = {
        "new_ones_have_the_maximum": "the caller gives each new item its priority",
        "sampling_an_empty_buffer_is_an_error": "sample() waits until the rate limiter allows it",
        "a_forked_child_has_its_own_copy": "gRPC supports no fork(): each process connects with a client of its own",
    }
    servers = selectors = True

    def create(self, options: Options) -> Buffer:
        return ReverbBuffer(options)
