"""DQN of TorchRL on CartPole, with prioritized replay: the buffer is one line.

    .venvs/torchrl/bin/python examples/integrations/torchrl_dqn.py [--short] [--seed S] [--replay KIND]

KIND is "sampler", TorchRL's buffer and storage with libper's sampler; "buffer", libper's own buffer; or "theirs",
TorchRL's own, which needs the version of torch that its wheel was built for.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from per.integrations import torchrl as libper
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, PrioritizedSampler, TensorDictReplayBuffer
from torchrl.envs import ExplorationType, GymEnv, StepCounter, TransformedEnv, set_exploration_type
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

CAPACITY, BATCH_SIZE, STEPS_OF_A_PIECE, ALPHA, BETA = 20_000, 128, 16, 0.6, 0.4


def replay_of(kind: str, seed: int) -> Any:
    if kind == "buffer":
        return libper.ReplayBuffer(CAPACITY, batch_size=BATCH_SIZE, alpha=ALPHA, beta=BETA, seed=seed)
    if kind == "sampler":
        sampler = libper.PrioritizedSampler(CAPACITY, ALPHA, BETA, seed=seed)
    else:
        sampler = PrioritizedSampler(CAPACITY, ALPHA, BETA)
    return TensorDictReplayBuffer(storage=LazyTensorStorage(CAPACITY), sampler=sampler, batch_size=BATCH_SIZE)


def train(kind: str, seed: int, max_steps: int) -> tuple[float, int, Any]:
    """The best mean return of 10 greedy episodes, the number of steps until then, and the replay buffer."""
    torch.manual_seed(seed)
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
    env.set_seed(seed)
    actor = QValueActor(MLP(in_features=4, out_features=2, num_cells=[128, 128]), spec=env.action_spec)
    explore = EGreedyModule(env.action_spec, eps_init=1.0, eps_end=0.05, annealing_num_steps=3000)
    loss_of = DQNLoss(actor, double_dqn=True, delay_value=True)
    loss_of.make_value_estimator(gamma=0.99)
    target = SoftUpdate(loss_of, eps=0.99)
    optimizer = torch.optim.Adam(loss_of.parameters(), lr=1e-3)
    replay = replay_of(kind, seed)
    collector = Collector(
        env, TensorDictSequential(actor, explore), frames_per_batch=STEPS_OF_A_PIECE, total_frames=max_steps
    )

    best, best_at = 0.0, 0
    for piece, data in enumerate(collector, start=1):
        explore.step(STEPS_OF_A_PIECE)
        replay.extend(data)
        steps = piece * STEPS_OF_A_PIECE
        if steps < 512:
            continue
        for _ in range(STEPS_OF_A_PIECE // 2):
            batch = replay.sample()
            loss = loss_of(batch)["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            target.step()
            replay.update_tensordict_priority(batch)
        if steps % 1024 == 0 or steps >= max_steps:
            with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
                episodes = [env.rollout(500, actor)["next", "reward"].sum() for _ in range(10)]
            if (found := float(torch.stack(episodes).mean())) > best:
                best, best_at = found, steps
            print(f"{steps} steps: return {found:.0f}", flush=True)
            if best >= 475:
                break
    collector.shutdown()
    return best, best_at, replay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="768 steps")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replay", choices=("sampler", "buffer", "theirs"), default="buffer")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    best, steps, replay = train(arguments.replay, arguments.seed, 768 if arguments.short else 30_000)
    weights = replay.sample()["priority_weight"]
    print(f"{arguments.replay}: return {best:.0f} after {steps} steps, weights from {weights.min():.2f} to 1")


if __name__ == "__main__":
    main()
