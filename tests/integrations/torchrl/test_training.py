"""TorchRL's losses learn from batches of libper."""

import importlib.util
import pathlib
import re

import pytest
import torch
from per.integrations.torchrl import ReplayBuffer
from torchrl.envs import GymEnv
from torchrl.modules import MLP, QValueActor
from torchrl.objectives import DQNLoss

PROGRAM = pathlib.Path(__file__).resolve().parents[3] / "examples" / "integrations" / "torchrl_dqn.py"


@pytest.fixture(scope="module")
def program():
    spec = importlib.util.spec_from_file_location("torchrl_dqn", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def loss_and_batch(n_step=1):
    env = GymEnv("CartPole-v1")
    actor = QValueActor(MLP(in_features=4, out_features=2, num_cells=[8]), spec=env.action_spec)
    loss = DQNLoss(actor, delay_value=False)
    loss.make_value_estimator(gamma=0.5)
    buffer = ReplayBuffer(200, alpha=1.0, beta=1.0, epsilon=0.0, n_step=n_step, gamma=0.5, seed=1)
    ids = buffer.extend(env.rollout(50, break_when_any_done=False))
    buffer.update_priority(ids, torch.arange(1.0, len(ids) + 1))
    return actor, loss, buffer.sample(32)


def test_weights_change_the_gradient_and_errors_come_back():
    _, loss, batch = loss_and_batch()
    gradients = []
    for weights in (batch["priority_weight"], torch.ones(32)):
        loss.zero_grad()
        loss(batch.clone().set("priority_weight", weights))["loss"].backward()
        gradients.append(
            torch.cat([parameter.grad.flatten() for parameter in loss.parameters() if parameter.requires_grad])
        )
    assert not torch.allclose(*gradients, rtol=1e-2)
    loss(batch)
    assert batch["td_error"].shape == (32, 1)


def test_losses_discount_returns_over_several_steps_by_their_length():
    # The target is R + 0.5^m max Q with m = steps_to_next_obs, or R after a terminal step.
    actor, loss, batch = loss_and_batch(n_step=3)
    steps = batch["steps_to_next_obs"]
    assert set(steps.flatten().tolist()) > {3}
    with torch.no_grad():
        value = actor(batch["next"].exclude("reward").clone())["action_value"].max(-1, keepdim=True).values
        target = batch["next", "reward"] + 0.5**steps * value * ~batch["next", "terminated"]
        chosen = (actor(batch.clone())["action_value"] * batch["action"]).sum(-1, keepdim=True)
    loss(batch)
    torch.testing.assert_close(batch["td_error"], (chosen - target) ** 2, rtol=1e-4, atol=1e-5)


def test_an_agent_trains_with_each_and_torchrls_own_sees_the_same_frames(program):
    frames = {}
    for kind in ("buffer", "sampler", "theirs"):
        best, _, replay = program.train(kind, seed=3, max_steps=640)
        assert best >= 8
        batch = replay.sample()
        assert batch["priority_weight"].min() < batch["priority_weight"].max() <= 1
        data = replay.buffer.get(replay.buffer.live_ids()[:256]) if kind == "buffer" else replay[:256]
        frames[kind] = data["observation.observation" if kind == "buffer" else "observation"]
    # Until the first batch is drawn, the seeds determine everything.
    assert torch.equal(frames["sampler"], frames["theirs"])
    assert torch.equal(frames["buffer"][:100], frames["theirs"][:100])


def test_the_program_runs(output_of_example):
    said = output_of_example("torchrl_dqn", "--short", "--replay", "sampler")
    assert re.search(r"sampler: return \d+ after \d+ steps", said)
