"""ReplayBuffer.for_env with Gymnasium's environments, and with real vector environments in every autoreset mode."""

import contextlib
import json
import os
import sys
import warnings

import gymnasium
import numpy as np
import per
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import (
    Autoreset,
    DtypeObservation,
    FlattenObservation,
    FrameStackObservation,
    NormalizeObservation,
    RecordEpisodeStatistics,
    RescaleObservation,
    TimeLimit,
    TransformObservation,
)

pytestmark = [
    pytest.mark.usefixtures("each_way"),
    # AsyncVectorEnv forks, which JAX, loaded by other tests, warns about.
    pytest.mark.filterwarnings("ignore:.*fork.*"),
]

PLACE = spaces.Box(-1000, 1000, (3,), np.float64)
OBSERVATIONS = {
    "box": PLACE,
    "dict": spaces.Dict(
        {
            "image": spaces.Box(0, 255, (2, 2), np.uint8),
            "inner": spaces.Tuple((spaces.Discrete(1000), PLACE)),
        }
    ),
    "tuple": spaces.Tuple((PLACE, spaces.MultiBinary(4))),
    "discrete": spaces.Discrete(100_000),
}
ACTIONS = {
    "discrete": spaces.Discrete(5),
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "dict": spaces.Dict({"turn": spaces.Discrete(3), "push": spaces.Box(-1, 1, (2,), np.float32)}),
    "tuple": spaces.Tuple((spaces.MultiDiscrete([3, 4]), spaces.Discrete(2))),
}


def observed(kind, env, episode, step):
    place = np.array([env, episode, step], np.float64)
    if kind == "box":
        return place
    if kind == "dict":
        image = np.array([[env, episode], [step, 7]], np.uint8)
        return {"image": image, "inner": (10 * episode + step, place)}
    if kind == "tuple":
        return place, np.array([(env >> i) & 1 for i in range(2)] + [(step >> i) & 1 for i in range(2)], np.int8)
    return 10_000 * env + 100 * episode + step


class Toy(gymnasium.Env):
    """An environment that records every step it makes.

    Its observations encode environment, episode and step. Episodes last 1 to 4 steps; they end terminated, truncated or
    both.
    """

    def __init__(self, number, observations, actions, folder=None):
        self.number, self.kind = number, observations
        self.observation_space, self.action_space = OBSERVATIONS[observations], ACTIONS[actions]
        self.record = None if folder is None else folder / f"{number}.jsonl"
        self.episode, self.step_number = -1, 0

    def observed(self):
        return observed(self.kind, self.number, self.episode, self.step_number)

    def reset(self, *, seed=None, options=None):
        self.episode += 1
        self.step_number = 0
        return self.observed(), {}

    def step(self, action):
        before = [self.episode, self.step_number]
        self.step_number += 1
        reward = 100.0 * self.number + 10 * self.episode + self.step_number
        ends = self.step_number == 1 + (self.number + self.episode) % 4
        terminated, truncated = ends and self.episode % 3 != 1, ends and self.episode % 3 != 0
        parts = [np.asarray(part).tolist() for part in flat(action).values()]
        step = {"at": before, "action": parts, "reward": reward, "terminated": terminated, "truncated": truncated}
        with open(self.record, "a") as record:
            print(json.dumps(step), file=record)
        return self.observed(), reward, terminated, truncated, {"step": self.step_number}


def flat(value, name=""):
    """The parts of nested containers by dotted name."""
    if isinstance(value, (dict, tuple)):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return {full: part for key, child in parts for full, part in flat(child, f"{name}.{key}").items()}
    return {name: value}


def run(envs, buffer, mode, steps=40, **more):
    """Steps a vector environment as its users do. Returns the ids of add(), [steps, n]. `more` goes before the info."""
    observation, _ = envs.reset()
    envs.action_space.seed(5)
    ids = []
    for _ in range(steps):
        action = envs.action_space.sample()
        following, reward, terminated, truncated, info = envs.step(action)
        ids.append(
            buffer.add(
                observation=observation,
                action=action,
                reward=reward,
                terminated=terminated,
                truncated=truncated,
                next_observation=following,
                **({"info": info} | more),
            )
        )
        ended = terminated | truncated
        if mode == AutoresetMode.DISABLED and ended.any():
            following, _ = envs.reset(options={"reset_mask": ended})
        observation = following
    return np.array(ids)


def check_against_records(buffer, ids, kind, folder):
    """Compares the buffer's contents with the environments' records, value by value and in order."""
    total = 0
    for env in range(3):
        steps = [json.loads(line) for line in (folder / f"{env}.jsonl").read_text().splitlines()]
        own = ids[:, env][ids[:, env] >= 0]
        assert len(own) == len(steps)
        rows = buffer.get(own)
        for i, step in enumerate(steps):
            episode, at = step["at"]
            for name, place in (("observation", at), ("next_observation", at + 1)):
                for part, expected in flat(observed(kind, env, episode, place), name).items():
                    np.testing.assert_array_equal(rows[part][i], np.asarray(expected))
            for part, expected in zip(flat(rows.action).values(), step["action"], strict=True):
                np.testing.assert_array_equal(part[i], np.asarray(expected, part.dtype))
            assert rows.reward[i] == step["reward"]
            assert rows.terminated[i] == step["terminated"]
            assert rows.truncated[i] == (step["truncated"] and not step["terminated"])
        total += len(steps)
    stats = buffer.stats()
    assert (stats.live, stats.added, stats.cuts) == (total, total, 0)
    return total


def place_of(kind, observation):
    """Environment, episode and step of observations, [B, 3]."""
    if kind == "discrete":
        return np.stack([observation // 10_000, observation // 100 % 100, observation % 100], 1)
    return {"box": lambda: observation, "dict": lambda: observation["inner"][1], "tuple": lambda: observation[0]}[
        kind
    ]()


def check_batches(buffer, kind):
    """Each sampled transition leads one step on within its episode."""
    batch = buffer.sample(200)
    before, after = place_of(kind, batch.observation), place_of(kind, batch.next_observation)
    np.testing.assert_array_equal(np.subtract(after, before), np.tile([0, 0, 1], (200, 1)))
    np.testing.assert_array_equal(batch.reward, after @ [100, 10, 1])


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("vector", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("kinds", [("box", "discrete"), ("dict", "tuple"), ("tuple", "dict"), ("discrete", "box")])
def test_transitions_are_those_that_the_environments_made(mode, vector, kinds, tmp_path):
    observations, actions = kinds
    makers = [lambda number=number: Toy(number, observations, actions, tmp_path) for number in range(3)]
    envs = vector(makers, autoreset_mode=mode)
    buffer = per.ReplayBuffer.for_env(envs, 600)
    try:
        ids = run(envs, buffer, mode)
    finally:
        envs.close()
    total = check_against_records(buffer, ids, observations, tmp_path)
    assert buffer.stats().dropped == ids.size - total
    assert (buffer.stats().dropped > 0) == (mode == AutoresetMode.NEXT_STEP)
    check_batches(buffer, observations)


@pytest.mark.parametrize("kind", ["torch", "jax"])
def test_transitions_come_out_as_other_libraries_arrays(kind, tmp_path):
    makers = [lambda number=number: Toy(number, "dict", "box", tmp_path) for number in range(3)]
    envs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    buffer = per.ReplayBuffer.for_env(envs, 600, arrays=kind)
    ids = run(envs, buffer, AutoresetMode.SAME_STEP)
    envs.close()
    batch = buffer.get(ids[:, 1])
    place = np.asarray(batch.observation["inner"][1])
    following = np.asarray(batch.next_observation["inner"][1])
    np.testing.assert_array_equal(following - place, np.tile([0, 0, 1], (len(place), 1)))
    np.testing.assert_array_equal(np.asarray(batch.observation["image"])[:, 1, 0], place[:, 2])


def test_single_environment_is_stepped_and_reset_by_hand(tmp_path):
    env = Toy(0, "dict", "discrete", tmp_path)
    buffer = per.ReplayBuffer.for_env(env, 200)
    env.action_space.seed(1)
    observation, _ = env.reset()
    ids = []
    for _ in range(30):
        action = env.action_space.sample()
        following, reward, terminated, truncated, info = env.step(action)
        ids.append(
            buffer.add(
                observation=observation, action=action, reward=reward, terminated=terminated, truncated=truncated,
                next_observation=following, info=info,
            )
        )  # fmt: skip
        observation = env.reset()[0] if terminated or truncated else following
    rows = buffer.get(ids)
    np.testing.assert_array_equal(rows.next_observation["inner"][0], rows.observation["inner"][0] + 1)
    assert buffer.stats().cuts == 0 and len(buffer) == 30


class Spaces(gymnasium.Env):
    def __init__(self, observation_space, action_space=ACTIONS["discrete"]):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.mark.parametrize(
    "space, fields",
    [
        (spaces.Box(0, 1, (4, 5), np.float64), {"observation": per.Field((4, 5), "float32")}),
        (spaces.Box(0, 1, (4,), np.float16), {"observation": per.Field((4,), "float16")}),
        (spaces.Box(0, 255, (3, 8, 8), np.uint8), {"observation": per.Field((3, 8, 8), "uint8")}),
        (spaces.Box(0, 1, ()), {"observation": per.Field((), "float32")}),
        (spaces.Discrete(7, start=-3), {"observation": per.Field((), "int64")}),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), {"observation": per.Field((2, 2), "int64")}),
        (spaces.MultiBinary((2, 3)), {"observation": per.Field((2, 3), "int8")}),
        (
            OBSERVATIONS["dict"],
            {
                "observation.image": per.Field((2, 2), "uint8"),
                "observation.inner.0": per.Field((), "int64"),
                "observation.inner.1": per.Field((3,), "float32"),
            },
        ),
    ],
)
def test_spaces_become_fields(space, fields):
    for parts in (Spaces(space), Spaces(spaces.Discrete(2), space)):
        name = "observation" if parts.observation_space is space else "action"
        found = per.ReplayBuffer.for_env(parts, 100).fields
        expected = {key.replace("observation", name): field for key, field in fields.items()}
        for key, field in expected.items():
            assert (found[key].shape, found[key].dtype) == (field.shape, field.dtype)
            assert found[key].role == ("observation" if name == "observation" else "plain")
        assert sum(key.partition(".")[0] == name for key in found) == len(expected)


@pytest.mark.parametrize(
    "space, words",
    [
        (spaces.Text(5), "observation is a Text space, which no field can hold: its values are strings"),
        (
            spaces.Sequence(PLACE),
            "observation is a Sequence space, which no field can hold: its values differ in length",
        ),
        (
            spaces.Graph(PLACE, None),
            "observation is a Graph space, which no field can hold: its values differ in shape",
        ),
        (
            spaces.OneOf((PLACE, PLACE)),
            "observation is a OneOf space, which no field can hold: its values differ in kind",
        ),
        (spaces.Dict({"a": PLACE, "b": spaces.Text(3)}), "observation.b is a Text space"),
        (spaces.Tuple((PLACE, spaces.Text(3))), "observation.1 is a Text space"),
        (spaces.Dict({}), "observation is an empty Dict space"),
        (spaces.Dict({("a", 1): PLACE}), "('a', 1) is a key of a Dict; allowed: strings and whole numbers"),
    ],
)
def test_space_without_arrays_of_one_shape_is_refused_with_the_reason(space, words):
    with pytest.raises(per.Unsupported) as caught:
        per.ReplayBuffer.for_env(Spaces(space), 100)
    assert words in str(caught.value)


# Names follow per.spaces. Those of ordinary keys, and of places in Tuples, must not change: saved buffers have them.
KEYS = {
    "image": "image",
    "walker/joints_pos": "walker/joints_pos",
    "agent-pos": "agent-pos",
    "camera 1": "camera 1",
    "größe": "größe",
    "": "",
    "k" * 200: "k" * 200,
    "007": "007",
    "#7": "#7",
    "a.b": r"a\.b",
    "a": "a",
    "b": "b",
    "..": r"\.\.",
    "a\\": r"a\\",
    r"\.": r"\\\.",
    r"\7": r"\\7",
    "0": r"\0",
    "1": r"\1",
    "17": r"\17",
    0: r"\#0",
    -1: r"\#-1",
    "\n": r"\u000a",
    "\x7f\x9f": r"\u007f\u009f",
    "\udc80": r"\udc80",
}


@pytest.mark.parametrize("arrays", ["numpy", "torch", "jax"])
def test_any_key_of_a_dict_is_a_key_of_batches_and_stays_one_in_a_file(arrays, tmp_path):
    space = spaces.Dict({key: spaces.Dict({"0": PLACE, "inner": spaces.Tuple((PLACE,))}) for key in KEYS})
    buffer = per.ReplayBuffer.for_env(Spaces(space, spaces.Dict({"0": PLACE, "1": PLACE})), 20, arrays=arrays)
    names = [f"observation.{name}.{part}" for name in KEYS.values() for part in (r"\0", "inner.0")]
    assert sorted(buffer.fields) == sorted([*names, r"action.\0", r"action.\1"])
    number = {key: i for i, key in enumerate(KEYS)}
    seen = {
        t: {key: {"0": np.full(3, 10 * i + t), "inner": (np.full(3, -i - t),)} for key, i in number.items()}
        for t in (0, 1)
    }
    actions = {"0": [1, 2, 3], "1": [4, 5, 6]}
    buffer.add(
        observation=seen[0], action=actions, reward=0, terminated=False, truncated=True, next_observation=seen[1]
    )
    buffer.save(tmp_path / "buffer.per")
    for again in (buffer, per.ReplayBuffer.load(tmp_path / "buffer.per", arrays=arrays)):
        batch = again.sample(1)
        assert batch.observation.keys() == batch.next_observation.keys() == KEYS.keys()
        assert {type(key) for key in batch.observation} == {int, str}
        for t, found in ((0, batch.observation), (1, batch.next_observation)):
            for key, name in KEYS.items():
                np.testing.assert_array_equal(np.asarray(found[key]["0"]), seen[t][key]["0"][None])
                np.testing.assert_array_equal(np.asarray(found[key]["inner"][0]), seen[t][key]["inner"][0][None])
                assert batch[("next_" if t else "") + rf"observation.{name}.\0"] is found[key]["0"]
        assert {key: np.asarray(array).tolist() for key, array in batch.action.items()} == {
            "0": [[1, 2, 3]],
            "1": [[4, 5, 6]],
        }


def test_any_key_of_a_dict_goes_through_channels_loaders_and_final_observations():
    space = spaces.Dict({key: spaces.Discrete(100) for key in KEYS})
    buffer = per.ReplayBuffer.for_spaces(space, spaces.Discrete(2), 20, autoreset="same_step")

    def seen(t):
        return {key: t + i for i, key in enumerate(KEYS)}

    def check(batch):
        assert {key: array.tolist() for key, array in batch.observation.items()} == {k: [n] for k, n in seen(0).items()}
        following = {key: array.tolist() for key, array in batch.next_observation.items()}
        assert following == {key: [number] for key, number in seen(7).items()}

    info = {"final_obs": np.array([seen(7)], object), "_final_obs": np.array([True])}
    with buffer.channel() as channel, channel.writer() as writer:
        writer.add(
            observation=seen(0), action=1, reward=0, terminated=False, truncated=True, next_observation=seen(3),
            info=info,
        )  # fmt: skip
        writer.flush()
    with buffer.loader(1) as batches:
        check(next(batches))
    with buffer.shared_loader(1, readers=1) as shared, shared.reader() as batches:
        check(next(batches))


def test_key_that_makes_too_long_a_name_is_refused_and_the_name_is_told():
    with pytest.raises(
        per.InvalidArgument, match=r'^name of a field is "observation\.ä+"\.\.\.: allowed are 1 to 255 '
    ):
        per.ReplayBuffer.for_env(Spaces(spaces.Dict({"ä" * 122: PLACE})), 100)


@pytest.mark.parametrize("name", ["a\0b", "\udc80"])
def test_field_name_that_is_no_text_of_c_is_refused(name):
    with pytest.raises(per.InvalidArgument, match=r"^name of a field is '"):
        per.ReplayBuffer(20, {"observation": per.Field(), name: per.Field()})


def test_field_whose_name_is_no_name_of_python_is_given_and_found_by_its_name():
    buffer = per.ReplayBuffer(20, {"observation": per.Field(), "log-prob 1": per.Field()})
    buffer.add(**{"log-prob 1": 0.25}, observation=1, reward=0, terminated=False, truncated=True, next_observation=2)
    assert buffer.sample(1)["log-prob 1"].tolist() == [0.25]


def test_dtypes_go_by_whole_keys():
    env = Spaces(spaces.Dict({"a.b": PLACE, "a": spaces.Dict({"b": PLACE, "c": PLACE})}))
    buffer = per.ReplayBuffer.for_env(env, 100, dtypes={"observation.a": "float64"})
    assert {name: field.dtype for name, field in buffer.fields.items() if name != "action"} == {
        "observation.a.b": "float64",
        "observation.a.c": "float64",
        r"observation.a\.b": "float32",
    }
    with pytest.raises(per.InvalidArgument, match=r"dtypes has observation\.a\\;"):
        per.ReplayBuffer.for_env(env, 100, dtypes={"observation.a\\": "float64"})


def test_axis_without_elements_is_refused_with_the_name_of_the_field():
    with pytest.raises(per.InvalidArgument, match=r"^field observation\.pixels: shape is \(0, 3\): allowed are axes"):
        per.ReplayBuffer.for_env(Spaces(spaces.Dict({"pixels": spaces.Box(0, 1, (0, 3))})), 100)


def test_what_is_no_environment_is_refused():
    with pytest.raises(per.InvalidArgument, match=r"env is an int; allowed: gymnasium\.Env"):
        per.ReplayBuffer.for_env(3, 100)


def test_dtypes_and_further_fields_are_those_asked_for():
    env = Spaces(OBSERVATIONS["dict"])
    buffer = per.ReplayBuffer.for_env(
        env,
        100,
        dtypes={"observation.inner": "float64", "observation.image": np.float16, "action": "uint8"},
        fields={"log_probability": per.Field(())},
        n_step=2,
        arrays="torch",
    )
    assert {name: field.dtype for name, field in buffer.fields.items()} == {
        "observation.image": "float16",
        "observation.inner.0": "float64",
        "observation.inner.1": "float64",
        "action": "uint8",
        "log_probability": "float32",
    }
    assert buffer.n_step == 2
    with pytest.raises(per.InvalidArgument, match=r"dtypes has reward; allowed: observation\.image"):
        per.ReplayBuffer.for_env(env, 100, dtypes={"reward": "float64"})


def test_jax_without_64_bits_stores_whole_numbers_in_32():
    buffer = per.ReplayBuffer.for_env(Spaces(PLACE), 100, arrays="jax")
    assert buffer.fields["action"].dtype == "int32"
    buffer.add(
        observation=np.zeros(3), action=np.int64(4), reward=0.0, terminated=True, truncated=False,
        next_observation=np.zeros(3),
    )  # fmt: skip
    assert buffer.sample(2).action.tolist() == [4, 4]


@pytest.mark.parametrize("observations", OBSERVATIONS)
@pytest.mark.parametrize("actions", ACTIONS)
def test_spaces_alone_give_the_fields_that_their_environment_gives(observations, actions):
    pair = OBSERVATIONS[observations], ACTIONS[actions]
    extra = {"fields": {"log_prob": per.Field(())}, "dtypes": {"observation": "float32"}}
    buffer = per.ReplayBuffer.for_spaces(*pair, 90, n_envs=3, autoreset="next_step", **extra)
    assert buffer.fields == per.ReplayBuffer.for_env(Spaces(*pair), 90, **extra).fields
    assert buffer.n_envs == 3 and buffer._autoreset == "next_step"
    rows = [pair[0].sample() for _ in range(3)]
    batched = gymnasium.vector.utils.concatenate(pair[0], rows, gymnasium.vector.utils.create_empty_array(pair[0], 3))
    action = gymnasium.vector.utils.create_empty_array(pair[1], 3)
    flags = np.zeros(3, bool)
    ids = buffer.add(
        observation=batched, action=action, reward=np.ones(3), terminated=flags, truncated=flags, log_prob=flags
    )
    assert ids.tolist() == [0, 1, 2]


def test_spaces_are_of_one_frame_where_the_buffer_stacks_them():
    box = spaces.Box(0, 255, (4, 4), np.uint8)
    field = per.ReplayBuffer.for_spaces(box, ACTIONS["discrete"], 100, frame_stack=3).fields["observation"]
    assert (field.shape, field.stack) == ((4, 4), 3)


@pytest.mark.parametrize(
    "pair, words",
    [
        ((spaces.Text(5), spaces.Discrete(2)), "observation is a Text space, which no field can hold"),
        ((spaces.Discrete(2), 5), "action is a int space, which no field can hold"),
    ],
)
def test_spaces_that_no_field_can_hold_are_refused_by_name(pair, words):
    with pytest.raises(per.Unsupported, match=words):
        per.ReplayBuffer.for_spaces(*pair, 100)


def test_number_and_autoreset_mode_of_environments_are_read():
    def autoreset_of(env, **options):
        return per.ReplayBuffer.for_env(env, 100, **options)._autoreset

    makers = [lambda: Spaces(PLACE)] * 2
    for mode, name in zip(AutoresetMode, ("next_step", "same_step", "disabled"), strict=True):
        envs = SyncVectorEnv(makers, autoreset_mode=mode)
        assert autoreset_of(envs) == name
        assert per.ReplayBuffer.for_env(envs, 100).n_envs == 2
        envs.close()
    assert autoreset_of(Spaces(PLACE)) == "disabled"
    assert autoreset_of(Autoreset(Spaces(PLACE))) == "next_step"
    assert autoreset_of(Spaces(PLACE), autoreset="next_step") == "next_step"


def test_vector_environment_without_an_autoreset_mode_is_refused_with_the_cure():
    envs = SyncVectorEnv([lambda: Spaces(PLACE)])
    envs.metadata = {}
    assert per.ReplayBuffer.for_env(envs, 30, autoreset="disabled").options["autoreset"] == "disabled"
    for name in ("fields", "dtypes"):
        with pytest.raises(per.InvalidArgument, match=rf"^{name} is a list; allowed: a dict by names of fields"):
            per.ReplayBuffer.for_env(envs, 30, autoreset="disabled", **{name: ["observation"]})
    with pytest.raises(per.InvalidArgument, match=r"env\.metadata has autoreset_mode None; allowed.*Set it"):
        per.ReplayBuffer.for_env(envs, 100)
    envs.close()


def test_environment_that_stacks_frames_is_seen_and_its_newest_frame_stored():
    env = FrameStackObservation(Toy(0, "box", "discrete"), 3)
    buffer = per.ReplayBuffer.for_env(env, 100)
    assert buffer.fields["observation"].shape == (3,) and buffer.fields["observation"].stack == 3
    frames = np.arange(27.0).reshape(9, 3)
    for t in range(4):
        buffer.add(
            observation=frames[t : t + 3], action=0, reward=0.0, terminated=t == 3, truncated=False,
            next_observation=frames[t + 1 : t + 4],
        )  # fmt: skip
    np.testing.assert_array_equal(buffer.get([0, 1]).observation, frames[2:4])
    batch = buffer.sample(50)
    row = int(np.flatnonzero(batch.ids == 2)[0])
    np.testing.assert_array_equal(batch.observation[row], frames[2:5])


@pytest.mark.parametrize("vector", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("kind", ["box", "dict"])
def test_vector_environment_whose_parts_stack_frames_is_seen(vector, kind):
    envs = vector([lambda: FrameStackObservation(Toy(0, kind, "discrete"), 4)] * 2)
    buffer = per.ReplayBuffer.for_env(envs, 200)
    place = buffer.fields["observation" if kind == "box" else "observation.inner.1"]
    assert (place.shape, place.stack) == ((3,), 4)
    envs.reset()
    envs.close()


def test_stacks_of_the_vector_environment_of_ale():
    gymnasium.register_envs(pytest.importorskip("ale_py"))
    envs = gymnasium.make_vec("ALE/Pong-v5", num_envs=2, vectorization_mode="vector_entry_point", noop_max=0)
    buffer = per.ReplayBuffer.for_env(envs, 40, seed=1)
    assert buffer.fields["observation"].shape == (84, 84)
    observation, _ = envs.reset(seed=1)
    stacks = {}
    for _ in range(6):
        next_observation, reward, terminated, truncated, _ = envs.step(np.zeros(2, np.int64))
        ids = buffer.add(
            observation=observation,
            action=np.zeros(2, np.int64),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            next_observation=next_observation,
        )
        stacks.update(zip(ids.tolist(), zip(observation, next_observation, strict=True), strict=True))
        observation = next_observation
    batch = buffer.sample(64)
    assert set(batch.ids.tolist()) == set(stacks)
    for row, number in enumerate(batch.ids.tolist()):
        assert np.array_equal(batch.observation[row], stacks[number][0])
        assert np.array_equal(batch.next_observation[row], stacks[number][1])
    envs.close()


def test_environment_whose_stack_was_flattened_is_taken_as_it_is():
    buffer = per.ReplayBuffer.for_env(FlattenObservation(FrameStackObservation(Toy(0, "box", "discrete"), 3)), 100)
    assert buffer.fields["observation"] == per.Field((9,), "float32", "observation", 1, padding="repeat")


def told_apart(space_low, padding):
    """An environment whose stacks begin with `padding`, and whose observations are 1 or more."""
    env = Toy(0, "box", "discrete")
    env.observation_space = spaces.Box(space_low, 1000, (3,), np.float64)
    env.observed = lambda: np.array([1, env.episode, env.step_number], np.float64)
    env.record = os.devnull
    return FrameStackObservation(env, 3, padding_type=padding)


@pytest.mark.parametrize("padding, word", [("reset", "repeat"), ("zero", "zero"), (np.zeros(3), "zero")])
def test_batches_have_the_stacks_that_the_agent_saw(padding, word):
    env = told_apart(-1000, padding)
    buffer = per.ReplayBuffer.for_env(env, 200, n_step=2)
    assert (buffer.fields["observation"].padding, buffer.fields["observation"].stack) == (word, 3)
    seen = {}
    for _ in range(8):
        observation, ends = env.reset()[0], False
        while not ends:
            following, reward, terminated, truncated, _ = env.step(0)
            step = {"observation": observation, "next_observation": following}
            ends = terminated or truncated
            id = buffer.add(**step, action=0, reward=reward, terminated=terminated, truncated=truncated)
            seen[int(id)] = step
            observation = following
    batch = buffer.sample(200)
    assert set(batch.ids.tolist()) == set(seen)
    for i, id in enumerate(batch.ids.tolist()):
        np.testing.assert_array_equal(batch.observation[i], seen[id]["observation"])
        last = id + int(batch.n_steps[i]) - 1
        np.testing.assert_array_equal(batch.next_observation[i], seen[last]["next_observation"])


@pytest.mark.parametrize("vector", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("kind", ["box", "dict", "tuple"])
def test_padding_is_taken_from_the_parts_of_a_vector_environment(vector, kind):
    envs = vector([lambda: FrameStackObservation(Toy(0, kind, "discrete"), 4, padding_type="zero")] * 2)
    fields = per.ReplayBuffer.for_env(envs, 200).fields
    envs.close()
    paddings = {name: field.padding for name, field in fields.items() if name.startswith("observation")}
    assert set(paddings.values()) == {"zero"} and fields["action"].padding == "repeat"


# For a space without zeros, Gymnasium's zero is the nearest number.
@pytest.mark.parametrize("low, padding", [(-1000, np.ones(3)), (1, "zero")])
def test_padding_that_is_neither_the_first_frame_nor_zeros_is_refused_by_name(low, padding):
    with pytest.raises(per.Unsupported, match="padding_type"):
        per.ReplayBuffer.for_env(told_apart(low, padding), 200)
    single = FrameStackObservation(told_apart(low, padding).env, 1, padding_type=padding)
    assert per.ReplayBuffer.for_env(single, 200).fields["observation"].stack == 1  # no frame is padding


@pytest.mark.parametrize("vector", [None, SyncVectorEnv, AsyncVectorEnv])
def test_wrapper_that_changes_the_zeros_before_the_first_frame_is_refused_by_name(vector):
    def part(padding, wrap):
        return wrap(FrameStackObservation(Toy(0, "box", "discrete"), 3, padding_type=padding))

    def rescaled(env):
        return RescaleObservation(env, np.float32(-1), np.float32(1))

    def buffer_of(padding, wrap):
        env = part(padding, wrap) if vector is None else vector([lambda: part(padding, wrap)] * 2)
        with contextlib.closing(env):
            return per.ReplayBuffer.for_env(env, 200)

    with pytest.raises(per.Unsupported, match="RescaleObservation outside of the stack may change the zeros"):
        buffer_of("zero", rescaled)
    assert buffer_of("reset", rescaled).fields["observation"].padding == "repeat"
    as_floats = buffer_of("zero", lambda env: DtypeObservation(env, np.float32))
    assert as_floats.fields["observation"].padding == "zero"
    if vector is not None:
        stacks = vector([lambda: part("zero", lambda env: env)] * 2)
        with contextlib.closing(stacks), pytest.raises(per.Unsupported, match="RescaleObservation"):
            per.ReplayBuffer.for_env(gymnasium.wrappers.vector.RescaleObservation(stacks, -1, 1), 200)


class Shaped(gymnasium.RewardWrapper):
    def reward(self, reward):
        return reward + 1


class Skipping(gymnasium.Wrapper):
    def step(self, action):
        self.env.step(action)
        return self.env.step(action)


@pytest.mark.parametrize("vector", [None, SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize(
    "wrap, is_alike",
    [
        (Shaped, True),
        (lambda env: TimeLimit(RecordEpisodeStatistics(env), 50), True),
        (lambda env: RescaleObservation(env, np.float32(-1), np.float32(1)), True),
        (NormalizeObservation, False),
        (Skipping, False),
        (lambda env: TransformObservation(env, lambda observation: observation / 2, env.observation_space), False),
    ],
)
def test_stacks_that_a_wrapper_changes_are_stored_whole(wrap, is_alike, vector):
    def part():
        return wrap(FrameStackObservation(gymnasium.make("Pendulum-v1"), 3))

    env = part() if vector is None else vector([part])
    if vector is AsyncVectorEnv and wrap is Shaped:
        is_alike = False  # in another process only its name is known
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", per.PerWarning)
        buffer = per.ReplayBuffer.for_env(env, 200)
    assert [warning.filename for warning in warned if warning.category is per.PerWarning] == [__file__] * (not is_alike)
    assert buffer.fields["observation"].stack == (3 if is_alike else 1)
    (observation, _), seen = env.reset(seed=1), {}
    for _ in range(6):
        action = env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        ends = {"terminated": terminated, "truncated": truncated}
        id = buffer.add(observation=observation, action=action, reward=reward, next_observation=following, **ends)
        seen[int(np.ravel(id)[0])] = np.array(observation).reshape(3, 3)
        observation = following
    batch = buffer.sample(50)
    assert set(batch.ids.tolist()) == set(seen)
    for i, id in enumerate(batch.ids.tolist()):
        np.testing.assert_allclose(batch.observation[i], seen[id], rtol=1e-4, atol=1e-6)
    env.close()


def test_vector_wrappers_that_change_stacks_are_seen():
    envs = SyncVectorEnv([lambda: FrameStackObservation(Toy(0, "box", "discrete"), 3)] * 2)
    alike = gymnasium.wrappers.vector.RecordEpisodeStatistics(gymnasium.wrappers.vector.ClipReward(envs, 0, 1))
    assert per.ReplayBuffer.for_env(alike, 200).fields["observation"].stack == 3
    with pytest.warns(per.PerWarning, match="NormalizeObservation is outside of the stack .* 3 times the memory"):
        buffer = per.ReplayBuffer.for_env(gymnasium.wrappers.vector.NormalizeObservation(envs), 200)
    assert buffer.fields["observation"].shape == (3, 3)


def test_vector_environment_of_ale_that_ends_without_resetting_is_refused():
    gymnasium.register_envs(pytest.importorskip("ale_py"))
    options = {"num_envs": 1, "vectorization_mode": "vector_entry_point"}
    envs = gymnasium.make_vec("ALE/Pong-v5", life_loss_info=True, **options)
    with pytest.raises(per.Unsupported, match="life_loss_info"):
        per.ReplayBuffer.for_env(envs, 200)
    envs.close()


def test_environments_that_pad_differently_are_refused():
    parts = [
        lambda padding=padding: FrameStackObservation(Toy(0, "box", "discrete"), 4, padding_type=padding)
        for padding in ("zero", "reset")
    ]
    with pytest.raises(per.Unsupported, match="padding_type"):
        per.ReplayBuffer.for_env(SyncVectorEnv(parts), 200)


def same_step(n=2):
    return per.ReplayBuffer(100, {"observation": per.Field(2)}, n_envs=n, autoreset="same_step")


STEP = {"observation": np.zeros((2, 2)), "reward": [0, 0], "truncated": [False, False]}
FINAL = np.array([None, np.array([5.0, 6.0])], object)


def test_final_observations_take_the_place_of_first_ones():
    buffer = same_step()
    info = {"final_obs": FINAL, "_final_obs": np.array([False, True])}
    following = np.ones((2, 2), np.float32)
    ids = buffer.add(**STEP, terminated=[False, True], next_observation=following, info=info)
    np.testing.assert_array_equal(buffer.get(ids).next_observation, [[1, 1], [5, 6]])
    np.testing.assert_array_equal(following, 1)


@pytest.mark.parametrize("shape", [(), (1,), (2,), (1, 2)])
@pytest.mark.parametrize("has_axis", [False, True])
def test_one_environment_may_give_its_observations_without_an_axis(shape, has_axis):
    buffer = per.ReplayBuffer(100, {"observation": per.Field(shape)}, autoreset="same_step")
    first, final = np.full(shape, 3.0), np.full(shape, 7.0)
    given = [np.array([each]) if has_axis else each for each in (first, first)]
    step = {"observation": given[0], "next_observation": given[1], "reward": 0, "terminated": True, "truncated": False}
    id = buffer.add(**step, info={"final_obs": [final], "_final_obs": [True]})
    np.testing.assert_array_equal(buffer.get(np.ravel(id)).next_observation, [final])


PIXELS = {"pixels": per.Field((), role="observation")}
CAMERAS = {f"cameras.{name}": per.Field((), role="observation") for name in ("left", "right")}


@pytest.mark.parametrize(
    "fields, final, known",
    [
        (PIXELS, 7.0, {"pixels": 7}),
        (PIXELS, {"pixels": 7.0}, {"pixels": 7}),
        (CAMERAS, {"left": 7.0, "right": 8.0}, {"cameras": {"left": 7, "right": 8}}),
        (CAMERAS, {"cameras": {"left": 7.0, "right": 8.0}}, {"cameras": {"left": 7, "right": 8}}),
        (PIXELS | {"observation": per.Field()}, {"observation": 5.0, "pixels": 7.0}, {"observation": 5, "pixels": 7}),
    ],
)
def test_every_observation_gets_its_part_of_the_final_one(fields, final, known):
    buffer = per.ReplayBuffer(100, fields, autoreset="same_step")
    step = {name: {"left": 1.0, "right": 1.0} if name == "cameras" else 1.0 for name in known}
    step |= {f"next_{name}": value for name, value in step.items()}
    info = {"final_obs": [final], "_final_obs": [True]}
    buffer.add(**step, reward=0, terminated=False, truncated=True, info=info)
    batch = buffer.get(buffer.live_ids())
    for name, value in known.items():
        given = batch[f"next_{name}"]
        assert (dict(given) if name == "cameras" else given) == value


def test_several_observations_need_a_final_one_each():
    buffer = per.ReplayBuffer(100, PIXELS | {"observation": per.Field()}, autoreset="same_step")
    step = {"reward": 0, "terminated": [False], "truncated": [True], "observation": [1], "next_observation": [2]}
    with pytest.raises(
        per.InvalidArgument, match=r"info\['final_obs'\]\[0\] has no pixels; allowed: dicts with pixels, obs"
    ):
        buffer.add(**step, pixels=[1], next_pixels=[2], info={"final_obs": [7.0], "_final_obs": [True]})
    assert len(buffer) == 0


def test_final_observations_are_taken_where_no_next_ones_are_given():
    buffer = same_step()
    info = {"final_obs": FINAL, "_final_obs": np.array([False, True])}
    ids = buffer.add(**STEP, terminated=[False, True], info=info)
    assert len(buffer) == 1
    np.testing.assert_array_equal(buffer.get(ids[1:]).next_observation, [[5, 6]])


def test_end_without_its_final_observation_in_info_is_an_unknown_one():
    buffer = same_step()
    info = {"final_obs": FINAL, "_final_obs": np.array([False, True])}
    step = {**STEP, "truncated": [True, True]}
    ids = buffer.add(**step, terminated=[False, False], next_observation=np.ones((2, 2)), info=info)
    assert len(buffer) == 1
    np.testing.assert_array_equal(buffer.priorities(ids), [0, 1])


@pytest.mark.parametrize(
    "change, words",
    [
        ({"next_mask": [True, True]}, "next_mask is given beside info with final_obs"),
        ({"terminated": None}, "terminated is not given"),
        ({"info": {"final_obs": FINAL[:1], "_final_obs": np.array([True])}}, r"info\['_final_obs'\] has shape \[1\]"),
        (
            {"info": {"final_obs": [None, np.zeros(3)], "_final_obs": np.array([False, True])}},
            r"is float64\[3\], next_observation of one",
        ),
        ({"info": {"final_obs": [None, {"a": 1}], "_final_obs": np.array([False, True])}}, r"info\['final_obs'\]\[1\]"),
    ],
)
def test_info_that_does_not_fit_is_refused_by_name(change, words):
    buffer = same_step()
    info = {"final_obs": FINAL, "_final_obs": np.array([False, True])}
    step = {**STEP, "terminated": [False, True], "next_observation": np.ones((2, 2)), "info": info, **change}
    with pytest.raises(per.InvalidArgument, match=words):
        buffer.add(**step)
    assert buffer.stats().added == 0


def test_info_with_final_observations_is_refused_by_buffers_of_another_mode():
    buffer = per.ReplayBuffer(100, {"observation": per.Field(2)}, n_envs=2)
    info = {"final_obs": FINAL, "_final_obs": np.array([False, True])}
    with pytest.raises(per.InvalidArgument, match="'same_step' give it; this buffer has 'disabled'"):
        buffer.add(**STEP, terminated=[False, True], next_observation=np.ones((2, 2)), info=info)


def test_final_observations_are_also_known_by_their_older_name():
    buffer = same_step()
    info = {"final_observation": FINAL, "_final_observation": np.array([False, True])}
    ids = buffer.add(**STEP, terminated=[False, True], next_observation=np.ones((2, 2)), info=info)
    np.testing.assert_array_equal(buffer.get(ids).next_observation, [[1, 1], [5, 6]])
    other = per.ReplayBuffer(100, {"observation": per.Field(2)}, n_envs=2, autoreset="next_step")
    with pytest.raises(per.InvalidArgument, match=r"info has final_observation, .* this buffer has 'next_step'"):
        other.add(**STEP, terminated=[False, True], next_observation=np.ones((2, 2)), info=info)


def test_array_of_final_observations_alone_counts_where_an_episode_ended():
    buffer = same_step()
    following = np.ones((2, 2), np.float32)
    info = {"final_obs": np.array([[3, 4], [5, 6]], np.float32)}
    ids = buffer.add(**STEP, terminated=[False, True], next_observation=following, info=info)
    np.testing.assert_array_equal(buffer.get(ids).next_observation, [[1, 1], [5, 6]])
    with pytest.raises(per.InvalidArgument, match=r"info\['final_obs'\] has 1 observations; allowed: 2"):
        buffer.add(**STEP, terminated=[False, True], next_observation=following, info={"final_obs": np.zeros((1, 2))})


@pytest.mark.parametrize("name, other", [("final_obs", "_final_obs"), ("_final_obs", "final_obs")])
def test_info_with_final_observations_but_not_whose_they_are_is_refused(name, other):
    info = {name: [False, True]}
    with pytest.raises(per.InvalidArgument, match=f"info has {name}, but no {other}"):
        same_step().add(**STEP, terminated=[False, True], next_observation=np.ones((2, 2)), info=info)
    with pytest.raises(per.InvalidArgument, match="this buffer has 'disabled'"):
        per.ReplayBuffer(100, {"observation": per.Field(2)}, n_envs=2).add(
            **STEP, terminated=[False, True], next_observation=np.ones((2, 2)), info=info
        )


# ---- real environments in every mode, and buffers created by hand for them

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
CARTPOLE = {"observation": per.Field(4), "action": per.Field((), "int64")}


def run_cartpole(mode, autoreset, **more):
    """The contents of a buffer with an autoreset mode after 300 steps of three environments; it may warn."""
    envs = gymnasium.make_vec(
        "CartPole-v1", num_envs=3, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}
    )
    buffer = per.ReplayBuffer(3000, CARTPOLE, n_envs=3, autoreset=autoreset)
    try:
        run(envs, buffer, mode, steps=300, **more)
        return buffer.stats()
    finally:
        envs.close()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "mode, autoreset",
    [
        (NEXT_STEP, "next_step"),
        (SAME_STEP, "same_step"),
        (DISABLED, "disabled"),
        (DISABLED, "next_step"),  # whose resets by hand are no steps: nothing looks like one
    ],
)
def test_buffer_that_knows_how_its_environments_reset_suspects_nothing(mode, autoreset):
    stats = run_cartpole(mode, autoreset)
    assert stats.suspected_resets == 0 and stats.cuts == 0 and stats.episodes > 9
    assert (stats.dropped > 9) == (mode is NEXT_STEP)


@pytest.mark.filterwarnings("error")
def test_environment_that_is_a_vector_by_itself_is_seen_to_reset_as_it_says():
    envs = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")
    buffer = per.ReplayBuffer.for_env(envs, 3000)
    run(envs, buffer, NEXT_STEP, steps=300)
    stats = buffer.stats()
    assert stats.suspected_resets == 0 and stats.cuts == 0 and stats.dropped > 9


@pytest.mark.parametrize(
    "mode, autoreset, more, words",
    [
        (NEXT_STEP, "disabled", {}, "way than autoreset='disabled': pass"),
        (NEXT_STEP, "same_step", {"info": None, "next_mask": [True] * 3}, "way than autoreset='same_step': pass"),
        (SAME_STEP, "disabled", {"info": None}, "way than autoreset='disabled': pass"),
        (SAME_STEP, "next_step", {"info": None}, "the step that was dropped for a reset .* had a reward"),
    ],
)
def test_buffer_that_was_told_another_way_of_resets_warns_once_and_names_the_cure(mode, autoreset, more, words):
    with pytest.warns(UserWarning, match=words) as caught:
        stats = run_cartpole(mode, autoreset, **more)
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "autoreset='same_step' with add(..., info=info)" in message
    assert ("observation, info = env.reset()" in message) == (autoreset != "next_step")
    assert ("autoreset='next_step'" in message) == (autoreset != "next_step")
    # The latest end of each environment may not be followed by a step yet.
    assert 9 < stats.episodes - 3 <= stats.suspected_resets <= stats.episodes


@pytest.mark.parametrize(
    "mode, autoreset, more, words",
    [
        (SAME_STEP, "disabled", {}, "info has final_obs, .* this buffer has 'disabled'"),
        (SAME_STEP, "next_step", {}, "info has final_obs, .* this buffer has 'next_step'"),
        (SAME_STEP, "same_step", {"info": None}, "ends an episode|ending an episode"),
        (NEXT_STEP, "same_step", {}, "ends an episode|ending an episode"),
        (DISABLED, "same_step", {}, "ends an episode|ending an episode"),
    ],
)
def test_buffer_whose_autoreset_the_steps_contradict_refuses_them(mode, autoreset, more, words):
    with pytest.raises(per.InvalidArgument, match=words):
        run_cartpole(mode, autoreset, **more)


def test_info_without_final_observations_is_not_looked_at():
    buffer = per.ReplayBuffer(100, {"observation": per.Field(2)}, n_envs=2)
    buffer.add(**STEP, terminated=[False, True], next_observation=np.ones((2, 2)), info={"episode": object()})
    assert len(buffer) == 2


def test_without_gymnasium_the_error_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(per.Unsupported, match=r"for_env\(\) needs gymnasium, which cannot be imported"):
        per.ReplayBuffer.for_env(None, 10)
