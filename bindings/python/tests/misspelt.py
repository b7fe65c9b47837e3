"""Misspelt uses of the package, for test_typing.py: type checkers find an error in each line marked "error"."""

from __future__ import annotations

import gzip
import io
from typing import Any

import gymnasium
import jax
import numpy as np
import numpy.typing as npt
import per
import per.jax
import per.llm
import per.torch
import torch
from per.typing import Array


class Mine(per.ReplayBuffer[torch.Tensor]):
    def size_in_rows(self) -> int:
        return self.capacity


class MyGroups(per.llm.Groups[torch.Tensor]):
    def half_of_the_room(self) -> int:
        return self.room // 2


def learn(buffer: per.ReplayBuffer[Array]) -> Array:
    batch = buffer.sample(4)
    buffer.update_priorities(batch.ids, batch.reward)
    buffer.set(batch.ids, value=batch.reward)
    return buffer.get(batch.ids).reward


def size_of(batch: per.Batch[npt.NDArray[Any] | torch.Tensor]) -> int:
    return batch.size


def right(buffer: per.ReplayBuffer, named: per.ReplayBuffer[npt.NDArray[np.float32]]) -> None:
    batch = buffer.sample(64, scheme="systematic", n_step=(1, 3))
    td_errors = batch.reward + batch.discount * 2.0 - batch.observation.sum(1)
    buffer.update_priorities(batch.ids, td_errors)
    buffer.update_priorities([1, 2], priorities=np.ones(2))
    either = None if batch.size else np.ones(2)
    buffer.update_priorities([1, 2], either, priorities=either)
    print(buffer.priorities(3), buffer.priorities(np.int64(3)), buffer.priorities(range(3)), buffer.priorities([[1]]))
    print(buffer.get(np.arange(3)), buffer.get(torch.arange(3)), buffer.get([np.arange(3), torch.tensor(3)]))
    buffer.add(observation=[0.0] * 4, reward=1, terminated=False, truncated=np.zeros(1), next_observation=range(4))
    buffer.add(observation={"image": np.zeros(4), "state": (1, 2)}, reward=0.0, terminated=False, truncated=False)
    steps: dict[str, Any] = {"observation": [0.0] * 4, "reward": 1, "terminated": False}
    buffer.add(**steps, truncated=False)
    per.ReplayBuffer(100, {"observation": per.Field((4,), np.float32), "mine": per.Field(dtype="bfloat16")}, alpha=1)
    buffer.add(
        observation=np.zeros(4), reward=gymnasium.make("CartPole-v1").step(0)[1], terminated=True, truncated=False
    )
    rows = named.sample(8).reward.reshape(-1)
    print(rows, batch["mine"], batch.size, len(batch))
    tensors: per.ReplayBuffer[torch.Tensor] = per.ReplayBuffer.for_env(
        None, 100, arrays="torch", device="cuda:1", seed=3
    )
    print(tensors.sample(8).reward.square(), per.ReplayBuffer(9, {}, device=str(batch.size)).sample(8).reward.any_array)
    per.ReplayBuffer(100, {"observation": per.Field(4)}, device=torch.device("cpu"), arrays="torch")
    buffer.save("a file", wait=False).wait()
    word: per.typing.Scheme = "independent"
    buffer.sample(64, scheme=word)
    print(Mine.load("a file", arrays="torch").size_in_rows(), Mine.from_bytes(b"").size_in_rows())
    print(per.ReplayBuffer.load("a file", device=str(batch.size)).sample(8).reward.any_array)
    arrays: per.typing.Arrays = "numpy" if batch.size else "jax"
    print(per.ReplayBuffer.load("a file", arrays=arrays).sample(8).reward)
    with tensors.loader(64) as batches:
        for loaded in batches:
            print(loaded.reward.square())
            loaded.release()
    taken: per.LoadedBatch[torch.Tensor] = buffer.loader(64, arrays="torch").take(timeout=1)
    print(taken.reward.square(), buffer.loader(64).take().reward.any_array)
    with buffer.shared_loader(64, readers=1).reader("torch") as reader:
        print(next(reader).reward.square())
    three = np.int64(3)
    per.ReplayBuffer(
        three, {"observation": per.Field(three, stack=three), "other": per.Field((three, 2))}, n_step=three
    )
    per.ReplayBuffer.for_env(None, three, sequence_length=three, seed=three).sample(three, n_step=(1, np.int32(2)))
    per.ReplayBuffer.capacity_for(three, three, n_envs=three)
    buffer.loader(three, slots=three).close()
    buffer.shared_loader(three, readers=three).close()
    buffer.epochs(three, batch_size=three)
    buffer.wait_to_sample(three)
    buffer.set_version(three)
    buffer.n_step = three
    buffer.save("a file", compression=three)
    per.SumTree(three, seed=three).sample(three)
    half = np.float32(0.5)
    per.ReplayBuffer(100, {"observation": per.Field(4)}, alpha=half).sample(4, beta=half)
    buffer.alpha = half
    print(learn(named).mean(), learn(tensors).square(), size_of(named.sample(4)), size_of(tensors.sample(4)))
    print(tensors.sample(4)["reward"].square(), batch["log_prob"], buffer.options["alpha"] + 1)
    with gzip.open("a file") as file:
        buffer.save(file)
        print(per.ReplayBuffer.load(file).sample(4).reward.mean())
    print(Mine.for_env(None, 100, arrays="torch").size_in_rows(), Mine.for_spaces(None, None, 100).size_in_rows())
    alike: per.ReplayBuffer[torch.Tensor] = per.ReplayBuffer(**tensors.options)
    larger: per.ReplayBuffer[torch.Tensor] = per.ReplayBuffer(**(tensors.options | {"capacity": 1000}))
    of_seed_3: per.ReplayBuffer[torch.Tensor] = per.ReplayBuffer(**{**tensors.options, "seed": 3})
    units: per.Units[torch.Tensor] = tensors.get_units([0])
    print(alike, larger, of_seed_3, units.batch.reward.square(), units.masses.tolist(), units.first_units.tolist())
    print(named.add(reward=1, terminated=True, truncated=False).astype(int), named.priorities([0]).mean())
    coordinator = per.Coordinator(40, 2, n_envs=4, alpha=0.5)
    per.coordinator.agree_on_scale(coordinator, [tensors, None])
    print(
        per.SumTree(4).find(0.5).astype(int), per.SumTree(4, device="cuda", arrays="torch").sample(3).weights.square()
    )
    print(per.Ragged([1, 2], [0, 2]).values.mean(), per.Ragged(torch.ones(2), [0, 2]).padded().square())
    mixture = per.Mixture({"mine": (tensors, half), "others": (larger, 1)})
    mixture.shares = {"mine": 1, "others": mixture.shares["others"]}
    mixture.update_priorities(mixture.sample(4), priorities=torch.ones(4))
    print(per.plot.priorities(buffer, per.plot.History(buffer).picture().axes[0]).get_title())


def right_elsewhere(tensors: per.ReplayBuffer[torch.Tensor], key: jax.Array) -> None:
    groups = per.llm.Groups(4, {"tokens": per.Field(None, "int32", max_length=9)}, capacity=4, arrays="torch")
    groups.close(groups.reserve(keys=["a"], tag="b")[0], 0, np.float32(1), tokens=[1, 2])
    lease = groups.sample(tokens=100)
    print(lease.batch.reward.square(), lease.batch.version_first.square(), lease.batch.tokens, lease.batch["logprobs"])
    groups.ack(lease)
    print(MyGroups.load("a file").half_of_the_room(), per.llm.Groups.load("a file").sample(groups=3).batch.reward)
    replay = per.torch.Buffer(tensors)
    replay.add(observation={"image": torch.ones(4)}, reward=1.0, terminated=False, truncated=False)
    batch = replay.sample(4)
    replay.update_priorities(batch.ids, batch.reward.square() + batch.log_prob)
    flat = per.jax.make_flat_buffer(1000, 32, 32, add_batch_size=4, beta=0.5)
    state = flat.init({"observation": 1.0})
    print(flat.sample(state, key).weights.mean(), flat.can_sample(state).all(), state.current_index.max())


def wrong(buffer: per.ReplayBuffer, named: per.ReplayBuffer[npt.NDArray[np.float32]]) -> None:
    batch = buffer.sample(64)
    print(batch.rewards)  # error
    print(batch.observatoin)  # error
    buffer.update_priorities(batch.indices, [0.0])  # error
    buffer.update_priorities(batch.ids, batch.td)  # error
    buffer.update_priorities(batch.ids, td_error=1)  # error
    buffer.update_priorities(batch.ids)  # error
    buffer.update_priorities(batch.ids, None)  # error
    buffer.shared_loader(64, readers=1).reader().update_priorities([1])  # error
    buffer.add(observation=[0.0], reward=1.0, terminated=False)  # error
    buffer.extend(observation=[[0.0]], terminated=[False], truncated=[False])  # error
    buffer.channel().writer().add(observation=[0.0], reward=1.0, truncated=False)  # error
    buffer.channel().writer().extend(observation=[[0.0]], reward=[1.0])  # error
    buffer.update_priorities(batch, [0.0])  # error
    buffer.update_priorities("all", [0.0])  # error
    buffer.get([0.5])  # error
    buffer.cut(["first"])  # error
    per.SumTree(4).update("all", [0.0])  # error
    buffer.sample(64, schme="stratified")  # error
    buffer.sample(64, scheme="stratifed")  # error
    buffer.sample(64, normalize_weights="max")  # error
    buffer.sample(64.0)  # error
    buffer.get_windows([1], scheme="stratified")  # error
    buffer.loader(64, betta=1.0)  # error
    per.ReplayBuffer(1e6, {"observation": per.Field(4)})  # error
    per.ReplayBuffer(100, {"observation": per.Field(4)}, alhpa=0.5)  # error
    per.ReplayBuffer(100, {"observation": per.Field(4)}, autoreset="nextstep")  # error
    per.ReplayBuffer(100, {"observation": per.Field(4)}, arrays="tensorflow")  # error
    per.ReplayBuffer.for_env(None, 100, alhpa=0.5)  # error
    per.ReplayBuffer.for_env(None, 100, prioritization="ranks")  # error
    per.ReplayBuffer.for_spaces(None, None, 100, gama=0.5)  # error
    per.ReplayBuffer.capacity_for(100, n_env=8)  # error
    per.Field(4, dtype="float23")  # error
    per.Field(4, role="obs")  # error
    per.Field(4, padding="zeros")  # error
    per.Field(4, compression="zstd")  # error
    per.Hindsight("observation", "goal", max, strategy="futur")  # error
    per.SumTree(4).sample(4, scheme="stratifed")  # error
    buffer.channel(when_full="wait")  # error
    print(next(named.loader(64)).reward.mena())  # error
    print(named.loader(64).take().rewards)  # error
    print(buffer.loader(64, arrays="torch").take().reward.astype(int))  # error
    print(next(buffer.shared_loader(64, readers=1).reader()).reward.square())  # error
    print(per.Reader("a path", arrays="torch").take().reward.astype(int))  # error
    print(buffer.stats().lives)  # error
    print(named.sample(8).reward.mena())  # error
    per.ReplayBuffer(100, {"observation": per.Field(4)}).sample(8).reward.mena()  # error
    per.ReplayBuffer.for_env(None, 100, gamma=0.5).sample(8).weights.mena()  # error
    next(per.ReplayBuffer.for_spaces(None, None, 100).epochs(1, 8)).discount.mena()  # error
    per.ReplayBuffer(100, {"observation": per.Field(4)}, arrays="torch").sample(8).reward.astype(int)  # error
    per.ReplayBuffer[torch.Tensor].load("a file", arrays="torch").sample(8).reward.astype(int)  # error
    per.ReplayBuffer.load("a file").sample(8).reward.mena()  # error
    per.ReplayBuffer.load("a file", arrays="torch").sample(8).reward.astype(int)  # error
    per.ReplayBuffer.from_bytes(b"").sample(8).reward.mena()  # error
    per.ReplayBuffer.from_bytes(b"", arrays="torch").sample(8).reward.astype(int)  # error
    per.ReplayBuffer[torch.Tensor].load("a file").sample(8).reward.square()  # error
    Mine.load("a file", arrays="torch").sample(8).reward.astype(int)  # error
    buffer.alpha = "0.3"  # error
    buffer.capacity = 3  # error
    buffer.n_step = 3.0  # error
    buffer.sample(np.float32(3))  # error
    buffer.sample(64, n_step=np.float64(3))  # error
    per.ReplayBuffer(100, {"observation": per.Field(4)}, n_step=np.float32(3))  # error
    buffer.beta_ = 1  # error
    buffer.vesion = 3  # error
    per.SumTree(4).capacity = 3  # error
    per.SumTree(4).seed_ = 3  # error
    batch.rewrad = batch.reward  # error
    batch.reward = batch.reward  # error
    buffer.loader(64).take().weight = 1.0  # error
    buffer.loader(64).slot = 3  # error
    buffer.stats().lives = 3  # error
    per.Field(4).dtpye = "float32"  # error
    buffer.options["alpha"] = 0.3  # error
    print(buffer.options["alhpa"])  # error
    buffer.fields["mine"] = per.Field()  # error
    per.Coordinator(40, 2, alhpa=0.5)  # error
    per.Coordinator(40, 2, scheme="stratifed")  # error
    per.coordinator.agree_on_scale(per.Coordinator(40, 2), 3)  # error
    per.Coordinator(40, 2).submit([0], object())  # error
    buffer.add(observation=[0.0], reward="1.0", terminated=False, truncated=False)  # error
    buffer.add(observation=[0.0], reward=1.0, terminated="no", truncated=False)  # error
    buffer.add(observation="a", reward=1.0, terminated=False, truncated=False)  # error
    buffer.update_priorities(batch.ids, "a")  # error
    buffer.update_priorities(batch.ids, ["a"])  # error
    per.SumTree(4).find("a")  # error
    per.SumTree(4).find(0.5).square()  # error
    per.Field(4, str)  # error
    per.ReplayBuffer.load(io.StringIO())  # error
    print(named.sample(4)["reward"].square())  # error
    print(named.get_units([0]).batch.reward.square())  # error
    ragged: per.Ragged[torch.Tensor] = per.Ragged(np.ones(2), [0, 2])  # error
    print(ragged)


def wrong_elsewhere(mixture: per.Mixture[torch.Tensor], tensors: per.ReplayBuffer[torch.Tensor]) -> None:
    mixture.update_priorities(mixture.sample(4))  # error
    mixture.shares["mine"] = 0.5  # error
    mixture.buffers["mine"] = tensors  # error
    groups: per.llm.Groups[torch.Tensor] = per.llm.Groups(4, capacity=4)  # error
    per.llm.Groups(4, capacity=4, oder="issued")  # error
    groups.sample()  # error
    groups.sample(3, tokens=5)  # error
    groups.reserve(3, keys=["a"])  # error
    print(groups.sample(3).batch.weights)  # error
    print(groups.sample(3).batch.observation)  # error
    groups.sample(3).batch.reward = torch.ones(3)  # error
    numpys = per.ReplayBuffer(100, {"observation": per.Field(4)})
    per.torch.Buffer(numpys)  # error
    per.torch.Buffer(tensors).add(observation=1.0, terminated=False, truncated=False)  # error
    per.torch.Buffer(tensors).update_priorities(torch.ones(4))  # error
    print(per.torch.Buffer(tensors).sample(4).reward.mena())  # error
    per.jax.make_flat_buffer(max_len=1000, min_length=32, sample_batch_size=32)  # error
    per.jax.make_prioritised_flat_buffer(1000, 32, 32, betaa=0.5)  # error
    print(per.plot.weights([1.0]).get_titel())  # error
