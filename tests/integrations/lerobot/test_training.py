from __future__ import annotations

import queue
import re
import threading

import lerobot.rl.learner as learner
import pytest
import torch
from lerobot.configs.train import TrainRLServerPipelineConfig
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.envs.configs import HILSerlRobotEnvConfig
from lerobot.policies.sac.configuration_sac import SACConfig
from lerobot.policies.sac.modeling_sac import SACPolicy
from lerobot.rl.buffer import random_shift
from lerobot.transport.utils import transitions_to_bytes
from per.integrations.lerobot import ReplayBuffer

STATE = "observation.state"


def configuration(**inputs: PolicyFeature) -> SACConfig:
    return SACConfig(
        device="cpu",
        input_features={f"observation.{name}": feature for name, feature in inputs.items()},
        output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(2,))},
        online_step_before_learning=20,
        online_buffer_capacity=100,
        num_discrete_actions=3,
        use_torch_compile=False,
        push_to_hub=False,
    )


NUMBERS = PolicyFeature(type=FeatureType.STATE, shape=(2,))


def test_sac_descends_the_weighted_loss_and_its_td_errors_become_priorities():
    torch.manual_seed(0)
    policy = SACPolicy(configuration(state=NUMBERS))
    buffer = ReplayBuffer(50, "cpu", [STATE], use_drq=False, seed=0, beta=1.0)
    for t in range(40):
        state, following = ({STATE: torch.tensor([[n / 40, 1.0]])} for n in (t, t + 1))
        buffer.add(state, torch.rand(1, 3), float(t == 7), following, t == 39, False)
    buffer.update_priorities(torch.tensor(buffer.replay.live_ids()), torch.linspace(0.1, 2.0, 40))
    batch = buffer.sample(16)
    weights = batch["complementary_info"]["weights"]
    assert weights.unique().numel() > 1

    def gradient(rewards: torch.Tensor, dones: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)  # each call draws the next actions
        policy.zero_grad()
        policy.forward({**batch, "reward": rewards, "done": dones}, model="critic")["loss_critic"].backward()
        return torch.cat([parameter.grad.flatten() for parameter in policy.critic_ensemble.critics.parameters()])

    rewards = batch["reward"].as_subclass(torch.Tensor)
    weighted, plain = gradient(batch["reward"], batch["done"]), gradient(rewards, batch["done"])
    assert (weighted - plain).norm() > 0.01 * plain.norm()
    # The same by hand: the loss is a mean over transitions.
    torch.manual_seed(1)
    policy.zero_grad()
    with torch.no_grad():
        actions, log_probs, _ = policy.actor(batch["next_state"])
        least = policy.critic_forward(batch["next_state"], actions, use_target=True).min(0).values
        targets = rewards + (1 - batch["done"]) * 0.99 * (least - policy.temperature * log_probs)
    errors = targets - policy.critic_forward(batch["state"], batch["action"][:, :2])
    (weights * errors**2).mean(1).sum().backward()
    by_hand = torch.cat([parameter.grad.flatten() for parameter in policy.critic_ensemble.critics.parameters()])
    torch.testing.assert_close(weighted, by_hand)
    ids = batch["complementary_info"]["ids"]
    given = dict(zip(ids.tolist(), (errors.detach().abs().mean(0) + 1e-6).tolist(), strict=True))
    assert buffer.replay.priorities(list(given)) == pytest.approx(list(given.values()), rel=1e-4)


def test_lerobots_learner_trains_on_it_as_it_is(monkeypatch, tmp_path):
    made = []

    class Buffer(ReplayBuffer):
        def __init__(self, *args, **options):
            # The default augmentation is compiled, which takes longer than the rest of the test.
            super().__init__(*args, image_augmentation_function=random_shift, seed=0, **options)
            made.append(self)

    torch.manual_seed(0)
    image = PolicyFeature(type=FeatureType.VISUAL, shape=(3, 64, 64))
    policy = configuration(image=image, state=NUMBERS)
    env = HILSerlRobotEnvConfig(features={**policy.input_features, **policy.output_features})
    env.features_map = {name: name for name in env.features}
    config = TrainRLServerPipelineConfig(policy=policy, env=env, batch_size=8, save_checkpoint=False)
    config.output_dir = tmp_path
    transitions = []
    observations = [{"observation.image": torch.rand(1, 3, 64, 64), STATE: torch.rand(1, 2)} for _ in range(41)]
    for t in range(40):
        transitions.append(
            {
                "state": observations[t],
                "action": torch.rand(1, 3),
                "reward": float(t % 10 == 9),
                "next_state": observations[t + 1],
                "done": t % 10 == 9,
                "truncated": False,
                "complementary_info": {"discrete_penalty": torch.zeros(1)},
            }
        )
    sent: queue.Queue[bytes] = queue.Queue()
    sent.put(transitions_to_bytes(transitions))
    stop = threading.Event()

    # The learner checks once a step whether it shall stop.
    steps = iter(range(30))
    monkeypatch.setattr(stop, "is_set", lambda: next(steps, None) is None)
    monkeypatch.setattr(learner, "ReplayBuffer", Buffer)
    learner.add_actor_information_and_train(config, None, stop, sent, queue.Queue(), queue.Queue())
    (buffer,) = made
    assert len(buffer) == 40
    priorities = buffer.replay.priorities(buffer.replay.live_ids())
    assert len(set(priorities.tolist())) > 20


def test_the_example_trains(output_of_example):
    assert re.search(r"priorities from [0-9.]+ to [0-9.]+", output_of_example("lerobot_sac", "--short"))
