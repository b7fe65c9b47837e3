"""RLlib: PrioritizedReplayBuffer, and PrioritizedEpisodeReplayBuffer of its new stack, as in their docstrings."""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

import numpy as np
from contract import Array, Batch, Buffer, Library, NotClaimed, Options, Step


def refuse_options(options: Options) -> None:
    """Raises NotClaimed for options that neither buffer has."""
    if options.beta_steps:
        raise NotClaimed("beta is an argument of sample(); there is no schedule")
    if options.seed is not None:
        raise NotClaimed("no seed of a buffer")
    if not options.replacement or options.stratified:
        raise NotClaimed("draws are independent, with replacement")
    if options.frame_stack > 1:
        raise NotClaimed("stacks are formed by connectors, before or after the buffer")
    if options.sequence_length:
        raise NotClaimed("no sequences of a fixed length with priorities")
    if options.n_envs > 1:
        raise NotClaimed("rows do not tell environments apart")
    if options.goals:
        raise NotClaimed("no hindsight relabelling")
    if options.autoreset != "disabled":
        raise NotClaimed("the environment runner resets")


class RLlibBuffer(Buffer):
    def __init__(self, options: Options) -> None:
        from ray.rllib.policy.sample_batch import SampleBatch
        from ray.rllib.utils.replay_buffers.prioritized_replay_buffer import PrioritizedReplayBuffer

        refuse_options(options)
        if options.n_step > 1:
            raise NotClaimed("n-step returns are formed before the buffer, by adjust_nstep()")
        if options.alpha == 0:
            raise NotClaimed("alpha must be positive")
        self.options = options
        self.rows = SampleBatch
        self.buffer = PrioritizedReplayBuffer(options.capacity, alpha=options.alpha)

    def add(self, step: Step) -> None:
        row = self.rows(
            {
                "obs": step.observation,
                "actions": step.action,
                "rewards": step.reward,
                "new_obs": step.next_observation,
                "terminateds": step.terminated,
                "truncateds": step.truncated,
            }
        )
        given = {} if step.priority is None else {"weight": float(step.priority[0])}
        self.buffer.add(row, **given)

    def sample(self) -> Batch:
        drawn = self.buffer.sample(self.options.batch_size, beta=self.options.beta)
        return Batch(
            observation=drawn["obs"],
            action=drawn["actions"],
            reward=drawn["rewards"],
            next_observation=drawn["new_obs"],
            discount=self.options.gamma * (1 - np.asarray(drawn["terminateds"], np.float32)),
            weights=drawn["weights"],
            handle=drawn["batch_indexes"],
        )

    def update(self, handle: Any, priorities: Array) -> None:
        if (np.asarray(priorities) == 0).any():
            raise NotClaimed("priorities must be positive")
        self.buffer.update_priorities(handle, priorities)

    def set_all(self, priorities: Array) -> None:
        first = self.buffer.stats()["added_count"] - len(priorities)
        self.update((first + np.arange(len(priorities))) % self.options.capacity, priorities)

    def __len__(self) -> int:
        return len(self.buffer)

    def save(self, path: str) -> None:
        with open(path, "wb") as file:
            pickle.dump(self.buffer.get_state(), file)

    def load(self, path: str) -> None:
        with open(path, "rb") as file:
            self.buffer.set_state(pickle.load(file))

    def nbytes(self) -> int:
        return int(self.buffer.stats()["est_size_bytes"])


class RLlibEpisodeBuffer(Buffer):
    def __init__(self, options: Options) -> None:
        from ray.rllib.env.single_agent_episode import SingleAgentEpisode
        from ray.rllib.utils.replay_buffers.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer

        refuse_options(options)
        self.options = options
        self.episode_of = SingleAgentEpisode
        self.episode: Any = None  # the running one
        self.buffer = PrioritizedEpisodeReplayBuffer(options.capacity, alpha=options.alpha)
        self.batches = 0
        self.newest = -1  # the number of the step that was added last

    def add(self, step: Step) -> None:
        self.newest = int(step.observation.flat[0])
        if self.episode is None:
            self.episode = self.episode_of()
            self.episode.add_env_reset(step.observation[0], {})
        ends = {"terminated": bool(step.terminated[0]), "truncated": bool(step.truncated[0])}
        assert step.next_observation is not None
        self.episode.add_env_step(step.next_observation[0], step.action[0], step.reward[0], {}, **ends)
        given = {} if step.priority is None else {"weight": float(step.priority[0])}
        self.buffer.add([self.episode], **given)
        self.episode = None if self.episode.is_done else self.episode.cut()

    def sample(self) -> Batch:
        options = self.options
        given = {"n_step": options.n_step, "gamma": options.gamma, "beta": options.beta}
        drawn = self.buffer.sample(options.batch_size, include_extra_model_outputs=True, **given)
        n_steps = np.array([e.get_extra_model_outputs("n_step", 0) for e in drawn])
        self.batches += 1
        return Batch(
            observation=np.stack([e.get_observations(0) for e in drawn]),
            action=np.array([e.get_actions(0) for e in drawn]),
            reward=np.array([e.get_rewards(0) for e in drawn]),
            next_observation=np.stack([e.get_observations(-1) for e in drawn]),
            discount=np.array([not e.is_terminated for e in drawn]) * options.gamma**n_steps,
            weights=np.array([e.get_extra_model_outputs("weights", 0) for e in drawn]),
            handle=np.full(options.batch_size, self.batches),
        )

    def update(self, handle: Any, priorities: Array) -> None:
        if len(handle) != self.options.batch_size or (handle != self.batches).any():
            raise NotClaimed("update_priorities() sets those of the batch drawn last, all of them")
        self.buffer.update_priorities(priorities)

    def set_all(self, priorities: Array) -> None:
        """Draws batches and updates them until each row had its turn: rows cannot be named otherwise."""
        unseen = set(range(len(priorities)))
        for _ in range(500):
            batch = self.sample()
            rows = batch.steps().reshape(-1) - (self.newest + 1 - len(priorities))
            self.update(batch.handle, priorities[rows])
            unseen -= set(rows.tolist())
            if not unseen:
                return
        raise NotClaimed("only rows that were drawn can get a priority")

    def __len__(self) -> int:
        return int(self.buffer.get_num_timesteps())

    def save(self, path: str) -> None:
        with open(path, "wb") as file:
            pickle.dump(self.buffer.get_state(), file)

    def load(self, path: str) -> None:
        with open(path, "rb") as file:
            self.buffer.set_state(pickle.load(file))


class RLlib(Library):
    name = "RLlib"
    package = "ray"
    module = "ray.rllib"
    documents = "https://docs.ray.io/en/latest/rllib/rllib-replay-buffers.html"
    disclaims: ClassVar[dict[str, str]] = {
        "a_kill_during_a_save_leaves_a_whole_file": "get_state() only: the caller writes the file"
    }
    windows = macos = True

    def create(self, options: Options) -> Buffer:
        return RLlibBuffer(options)


class RLlibEpisodes(RLlib):
    name = "RLlib-episodes"
    disclaims: ClassVar[dict[str, str]] = {
        **RLlib.disclaims,
        "a_row_of_a_wrong_shape_is_an_error": "an episode keeps a list of any observations; it checks those that come "
        "after to_numpy()",
    }
    epsilon = 1e-12  # smaller priorities are raised to it

    def create(self, options: Options) -> Buffer:
        return RLlibEpisodeBuffer(options)
