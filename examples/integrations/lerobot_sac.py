"""A short online run of LeRobot's SAC policy on images; half of each batch are demonstrations, as in its learner.

The task is to push a dot on a line to the middle; the policy sees images of it. The buffers are libper's or LeRobot's
own; the loop is that of lerobot/rl/learner.py for both.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.sac.configuration_sac import SACConfig
from lerobot.policies.sac.modeling_sac import SACPolicy
from lerobot.rl import buffer
from per.integrations.lerobot import ReplayBuffer
from tqdm import tqdm

IMAGE, SIZE, EPISODE = "observation.image", 64, 10


class Line:
    """A dot at x, -1 to 1. An action of -1 to 1 moves it by up to 0.4; the middle has reward 1 and ends the episode."""

    def reset(self) -> dict[str, torch.Tensor]:
        self.x = float(torch.rand(()) * 2 - 1)
        self.steps = 0
        return self.picture()

    def picture(self) -> dict[str, torch.Tensor]:
        image = torch.zeros(1, 3, SIZE, SIZE)
        column = round((self.x + 1) / 2 * (SIZE - 8))
        image[:, :, 28:36, column : column + 8] = 1
        return {IMAGE: image}

    def step(self, action: torch.Tensor) -> tuple[dict[str, torch.Tensor], float, bool, bool]:
        self.x = min(max(self.x + 0.4 * float(action[0, 0]), -1.0), 1.0)
        self.steps += 1
        done = abs(self.x) < 0.15
        return self.picture(), float(done), done, self.steps == EPISODE and not done


def train(library: str, seed: int, steps: int):
    """The online and the offline buffer, and the success rates of the first and second half of the episodes."""
    torch.manual_seed(seed)
    policy = SACPolicy(
        SACConfig(
            device="cpu",
            input_features={IMAGE: PolicyFeature(type=FeatureType.VISUAL, shape=(3, SIZE, SIZE))},
            output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(1,))},
            use_torch_compile=False,
            temperature_init=0.1,
        )
    )
    optimizers = {
        name: torch.optim.Adam([parameters] if isinstance(parameters, torch.Tensor) else list(parameters), 1e-3)
        for name, parameters in policy.get_optim_params().items()
    }
    kind = ReplayBuffer if library == "libper" else buffer.ReplayBuffer
    online, offline = (
        kind(2000, "cpu", [IMAGE], image_augmentation_function=buffer.random_shift, optimize_memory=True)
        for _ in range(2)
    )
    env, ends = Line(), []
    state = env.reset()
    for t in tqdm(range(-200, steps), unit="step", mininterval=0.5):
        if t < 0:  # demonstrations, into the offline buffer
            action = torch.tensor([[max(-1.0, min(1.0, -env.x / 0.4))]])
        else:
            with torch.no_grad():
                action = policy.select_action(state).clamp(-1, 1)
        next_state, reward, done, truncated = env.step(action)
        (offline if t < 0 else online).add(state, action, reward, next_state, done, truncated)
        state = env.reset() if done or truncated else next_state
        if t >= 0 and (done or truncated):
            ends.append(done)
        if t < 20:
            continue
        batch = buffer.concatenate_batch_transitions(online.sample(16), offline.sample(16))
        for model in ("critic", "actor", "temperature"):
            loss = policy.forward(batch, model=model)[f"loss_{model}"]
            optimizers[model].zero_grad()
            loss.backward()
            optimizers[model].step()
        policy.update_target_networks()
    half = len(ends) // 2
    return online, offline, [sum(part) / max(len(part), 1) for part in (ends[:half], ends[half:])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--buffer", choices=["libper", "lerobot"], default="libper")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--short", action="store_true", help="40 steps")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    online, offline, parts = train(arguments.buffer, arguments.seed, 40 if arguments.short else arguments.steps)
    print(f"episodes that ended well with {arguments.buffer}: {parts[0]:.0%} of the first half, {parts[1]:.0%} after")
    if arguments.buffer == "libper":
        for name, one in (("online", online), ("offline", offline)):
            priorities = one.replay.priorities(one.replay.live_ids())
            print(f"{name}: priorities from {priorities.min():.3f} to {priorities.max():.3f}")


if __name__ == "__main__":
    main()
