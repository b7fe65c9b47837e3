"""skrl's agents learn from the memory; DQN and DDQN use weights and priorities."""

from __future__ import annotations

import re

import gymnasium
import pytest
import skrl.agents.torch.ddqn
import skrl.agents.torch.dqn
import torch
from per.integrations.skrl import DDQN, DQN, PrioritizedMemory
from skrl.envs.wrappers.torch import wrap_env
from skrl.models.torch import DeterministicMixin, Model
from skrl.trainers.torch import SequentialTrainer

SPACES = {
    "observation_space": gymnasium.spaces.Box(-1, 1, (3,)),
    "action_space": gymnasium.spaces.Discrete(2),
    "device": "cpu",
}


class Network(DeterministicMixin, Model):
    def __init__(self, **spaces):
        Model.__init__(self, **(spaces or SPACES))
        DeterministicMixin.__init__(self)
        self.layer = torch.nn.Linear(3, self.num_actions)

    def compute(self, inputs, role):
        return self.layer(inputs["observations"]), {}


def agent_of(kind, folder, *, beta=0.0, alpha=0.6):
    torch.manual_seed(0)
    models = {name: Network() for name in ("q_network", "target_q_network")}
    settings = {
        "batch_size": 32,
        "learning_rate": 0.01,
        "experiment": {"write_interval": 0, "checkpoint_interval": 0, "directory": str(folder)},
    }
    memory = PrioritizedMemory(memory_size=50, num_envs=2, device="cpu", alpha=alpha, beta=beta, seed=1)
    agent = kind(models=models, memory=memory, cfg=settings, **SPACES)
    agent.init()
    agent.enable_training_mode(True)
    random = torch.Generator().manual_seed(2)
    for _ in range(40):
        observations, after = torch.rand(2, 2, 3, generator=random)
        memory.add_samples(
            observations=observations,
            next_observations=after,
            actions=torch.randint(2, (2, 1), generator=random),
            rewards=torch.rand(2, 1, generator=random) * 5,
            terminated=torch.rand(2, 1, generator=random) < 0.1,
        )
    return agent


def parameters_after_updates(agent, updates):
    for _ in range(updates):
        agent.update(timestep=0, timesteps=1)
    return torch.cat([parameter.detach().ravel() for parameter in agent.q_network.parameters()])


@pytest.mark.parametrize(
    ("ours", "theirs"), [(DQN, skrl.agents.torch.dqn.DQN), (DDQN, skrl.agents.torch.ddqn.DDQN)], ids=["DQN", "DDQN"]
)
def test_with_equal_priorities_an_update_is_skrls(ours, theirs, tmp_path):
    """With alpha = 0 both agents draw the same rows, and all weights are 1."""
    found, expected = (parameters_after_updates(agent_of(kind, tmp_path, alpha=0.0), 25) for kind in (ours, theirs))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [DQN, DDQN])
def test_errors_become_priorities_and_weights_enter_the_gradient(kind, tmp_path):
    found = []
    for beta in (0.0, 1.0):
        agent = agent_of(kind, tmp_path, beta=beta)
        agent.update(timestep=0, timesteps=1)
        rows = agent.memory.get_sampling_indexes().unique()
        assert len(set(agent.memory.tree.priorities(rows))) > len(rows) // 2
        found.append(parameters_after_updates(agent, 1))
    assert not torch.equal(*found)


def test_the_example_trains(output_of_example):
    output = output_of_example("skrl_cartpole", "--short")
    assert re.search(r"mean return of the latest [0-9]+ episodes with libper: [0-9.]+", output)
    assert re.search(r"priorities from [0-9.]+ to [0-9.]+", output)


def collected(env, folder, **options):
    """A memory filled by skrl's trainer: 100 steps of each environment, by a DQN that acts at random."""
    env = wrap_env(env)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": "cpu"}
    memory = PrioritizedMemory(memory_size=300, num_envs=env.num_envs, device="cpu", seed=1, **options)
    settings = {
        "random_timesteps": 100,
        "learning_starts": 100,
        "experiment": {"write_interval": 0, "checkpoint_interval": 0, "directory": str(folder)},
    }
    models = {name: Network(**spaces) for name in ("q_network", "target_q_network")}
    agent = DQN(models=models, memory=memory, cfg=settings, **spaces)
    trainer = {"timesteps": 100, "headless": True, "disable_progressbar": True, "close_environment_at_exit": False}
    SequentialTrainer(env=env, agents=agent, cfg=trainer).train()
    return memory


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_the_true_transitions_are_drawn_however_environments_reset(mode, counting, tmp_path, recwarn):
    """skrl resets single environments only. A vector environment must reset itself."""
    env = counting.environment() if mode == "disabled" else counting.vector(mode)
    memory = collected(env, tmp_path, autoreset=mode)
    names = ["observations", "actions", "rewards", "next_observations", "terminated"]
    rows = memory.sample(names, batch_size=1000)[0]
    assert counting.drawn(*rows) == set(counting.transitions)
    sequences = memory.sample(["observations"], batch_size=1000, sequence_length=4)[0][0].reshape(1000, 4, 3)
    assert (sequences[:, 1:] - sequences[:, :-1] == torch.tensor([0, 0, 1])).all()
    assert [warning.message for warning in recwarn if "autoreset" in str(warning.message)] == []


def test_environments_that_reset_in_the_next_step_are_noticed_where_the_memory_is_told_nothing(counting, tmp_path):
    with pytest.warns(UserWarning, match="After 3 of 3 ends .* autoreset='next_step'"):
        collected(counting.vector("next_step"), tmp_path)
