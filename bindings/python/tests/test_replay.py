"""per.ReplayBuffer: each method and option in Python. test_replay_*.py tests the semantics of the buffer."""

import dataclasses
import inspect
import os
import pydoc
import re
import warnings

import cuda_switch
import numpy as np
import per
import pytest
from per import _library, _options
from per._library import ffi

pytestmark = pytest.mark.usefixtures("each_way")

FIELDS = {"observation": per.Field(2, "float32"), "action": per.Field((), "int64")}
WHERE = cuda_switch.said("in host memory", "on a CUDA device")  # arrays are


def filled(rows=10, **options):
    """A buffer with one environment's steps 0 .. rows - 1; observation [t, 1], the last step terminated."""
    buffer = per.ReplayBuffer(100, FIELDS, **options)
    for t in range(rows):
        buffer.add(
            observation=[t, 1.0],
            action=t,
            reward=0.5 * t,
            terminated=t == rows - 1,
            truncated=False,
            next_observation=[t + 1, 1.0],
        )
    return buffer


def test_defaults_that_the_signatures_show_are_those_of_the_library():
    options = _library.new("per_replay_options")
    unset = {"sequence_length": 0, "sequence_stride": 0, "half_life": 0.0, "max_age": -1, "max_heap_bytes": 0}
    unset["storage"] = ffi.NULL
    for name, parameter in inspect.signature(per.ReplayBuffer).parameters.items():
        if name in ("capacity", "fields", "arrays"):
            continue
        value = getattr(_options.holder(options, name), name)
        if isinstance(parameter.default, str):
            enum = {"normalize_weights": "per_normalization"}.get(name, f"per_{name}")
            value = _library.name_of(enum, value)
        assert parameter.default == value or (parameter.default is None and value == unset[name]), name
    tree_options = _library.new("per_tree_options")
    parameters = inspect.signature(per.SumTree).parameters
    assert parameters["seed"].default == tree_options.seed
    assert parameters["device"].default == _library.name_of("per_device", tree_options.device)


CHOICES = {
    "prioritization": "per_prioritization",
    "scheme": "per_scheme",
    "normalize_weights": "per_normalization",
    "max_priority": "per_max_priority",
    "on_invalid": "per_on_invalid",
    "on_gap": "per_on_gap",
    "on_nan": "per_on_nan",
    "autoreset": "per_autoreset",
    "age": "per_age",
    "critics": "per_critics",
}


def random_options(random):
    """Valid options of a buffer, each of them probably not the default."""
    stacked = random.random() < 0.5
    options = {name: str(random.choice(list(_library.choices(enum)))) for name, enum in CHOICES.items()}
    options |= {name: float(random.random()) for name in ("gamma", "alpha", "beta", "beta_final", "epsilon",
                                                          "sequence_eta", "uniform_fraction")}  # fmt: skip
    options |= {name: int(random.integers(1, 5)) for name in ("n_envs", "n_step", "beta_steps", "gather_threads")}
    options |= {"frame_stack": int(stacked) + 1, "seed": int(random.integers(2**64, dtype=np.uint64))}
    options["save_compression"] = 0
    options |= {"samples_per_insert": float(random.random()), "samples_tolerance": int(random.integers(5, 9))}
    options["min_size_to_sample"] = int(random.integers(9))
    options |= {"storage": None, "storage_preallocated": False}
    options["max_heap_bytes"] = int(random.integers(1, 2**62)) if random.random() < 0.5 else None
    options |= {name: bool(random.integers(2)) for name in ("overwrite", "store_next_observation")}
    has_half_life = options["prioritization"] == "proportional"
    options |= {"half_life": 3.5 if has_half_life else None, "max_age": 50 if random.random() < 0.5 else None}
    is_limited = options["scheme"] == "without_replacement"
    options |= {"keep_times_sampled": is_limited or bool(random.integers(2)), "max_times_sampled": 3 * is_limited}
    if random.random() < 0.5:
        options |= {name: int(random.integers(1, 5)) for name in ("sequence_length", "burn_in", "sequence_stride")}
    fields = {
        "observation.a": per.Field((2, 3), "uint8"),
        "observation.b": per.Field((), "bfloat16", stack=1, padding="zero"),
        "goal": per.Field(2, "float64", role="observation"),
        "state": per.Field(4, "float16", role="recurrent_state"),
        "action": per.Field((), "int64", stack=3, default=7),
        "advantage": per.Field((2, 2), "float32", default=[[1, 2], [3, 4]]),
    }
    names = [name for name in fields if name == "goal" or random.random() < 0.7]
    capacity, arrays = int(random.integers(200, 300)), str(random.choice(["numpy", "torch"]))
    return {"capacity": capacity, "fields": {name: fields[name] for name in names}, "arrays": arrays} | options


@pytest.mark.parametrize("seed", range(40))
def test_options_make_a_buffer_like_the_one_that_they_are_of(seed):
    pytest.importorskip("torch")
    random = np.random.default_rng(seed)
    given = random_options(random)
    buffer = per.ReplayBuffer(**given)
    resolved = given | {"fields": buffer.fields, "capacity": buffer.capacity}
    if "sequence_length" not in given:
        resolved |= {"sequence_length": None, "sequence_stride": None, "burn_in": 0}
    options = buffer.options
    assert options == resolved | {"device": options["device"]}
    assert list(inspect.signature(per.ReplayBuffer).parameters.keys() - options.keys()) == []
    assert all(isinstance(value, (str, int, float, dict, type(None))) for value in options.values())
    buffer.alpha, buffer.gamma, buffer.beta, buffer.n_step = 0.25, 0.5, 0.125, 1
    changed = options | {"alpha": 0.25, "gamma": 0.5, "beta": 0.125, "beta_steps": 0, "n_step": 1}
    assert buffer.options == changed
    assert per.ReplayBuffer(**buffer.options).options == changed


def test_options_of_a_loaded_buffer_are_those_of_the_saved_one(tmp_path):
    buffer = filled(scheme="systematic", n_step=2, sequence_length=3)
    buffer.save(tmp_path / "buffer")
    assert per.ReplayBuffer.load(tmp_path / "buffer").options == buffer.options


def test_options_of_a_closed_buffer_are_an_error():
    buffer = filled()
    buffer.close()
    with pytest.raises(per.InvalidArgument, match="closed"):
        buffer.options  # noqa: B018


def test_options_of_a_tree_make_a_tree_like_it():
    tree = per.SumTree(10, seed=5)
    assert tree.options == {"capacity": 10, "device": tree.options["device"], "seed": 5, "arrays": "numpy"}
    again = per.SumTree(**tree.options)
    for each in (tree, again):
        each.update(np.arange(10), np.arange(10))
    assert tree.sample(100).indices.tolist() == again.sample(100).indices.tolist()


def test_help_says_what_each_statistic_means():
    names = [name for name, _ in ffi.typeof("per_replay_statistics").fields if name != "struct_size"]
    assert [field.name for field in dataclasses.fields(per.Statistics)] == names
    text = pydoc.render_doc(per.Statistics, renderer=pydoc.plaintext)
    for name in names:
        assert re.search(rf"^ *\|? +{name} : (int|float)\n *\|? +.* \w", text, re.MULTILINE), name


def test_every_option_of_the_header_is_an_argument():
    known = set(inspect.signature(per.ReplayBuffer).parameters) | {"struct_size", "n_fields", "field_size"}
    known |= {"device_index", "reserved", "allocate", "deallocate", "context"}  # functions that C and C++ give
    assert _options.places(ffi.typeof("per_replay_options")).keys() <= known
    in_n_step = "n_step_min"  # n_step takes both, as (least, most)
    sampled = set(inspect.signature(per.ReplayBuffer.sample).parameters) | {"struct_size", "reserved", in_n_step}
    assert {name for name, _ in ffi.typeof("per_sample_options").fields} <= sampled


def test_options_reach_the_library_as_given():
    given = {
        "n_envs": 3,
        "n_step": 2,
        "gamma": 0.5,
        "alpha": 0.0,
        "beta": 0.1,
        "beta_final": 0.9,
        "beta_steps": 7,
        "epsilon": 0.25,
        "max_priority": "now",
        "on_invalid": "skip",
        "on_gap": "error",
        "on_nan": "error",
        "autoreset": "next_step",
        "overwrite": False,
        "critics": "max",
        "gather_threads": 2,
        "save_compression": 0,
        "samples_per_insert": 0.5,
        "samples_tolerance": 7,
        "min_size_to_sample": 9,
        "keep_times_sampled": True,
        "max_times_sampled": 0,
        "seed": 2**64 - 1,
    }
    buffer = per.ReplayBuffer(10, FIELDS, **given)
    options = _library.new("per_replay_options")
    _library.check(_library.lib.per_replay_describe(buffer._handle, options))
    for name, value in given.items():
        found = getattr(_options.holder(options, name), name)
        assert (_library.name_of(f"per_{name}", found) if isinstance(value, str) else found) == value, name
    assert buffer.capacity == 12 and buffer.n_envs == 3


def test_fields_are_those_declared_with_roles_and_stacks_resolved():
    buffer = per.ReplayBuffer(10, {"observation": per.Field((2, 3), "uint8"), "action": per.Field(dtype="bool")})
    assert buffer.fields == {
        "observation": per.Field((2, 3), "uint8", "observation", 1, padding="repeat"),
        "action": per.Field((), "bool", "plain", 1, padding="repeat"),
    }


def test_add_gives_ids_in_the_shape_of_the_flags():
    step = {"observation": [0.0, 0.0], "action": 0, "reward": 0.0, "truncated": False}
    buffer = per.ReplayBuffer(10, FIELDS)
    single = buffer.add(**step, terminated=False)
    assert single.shape == () and single.dtype == np.int64 and int(single) == 0
    assert buffer.add(**step, terminated=[False]).tolist() == [1]
    two = per.ReplayBuffer(10, FIELDS, n_envs=2)
    arrays = {"observation": np.zeros((2, 2)), "action": [0, 1], "reward": [0.0, 1.0], "truncated": [False, False]}
    assert two.add(**arrays, terminated=[False, False]).tolist() == [0, 1]
    assert two.add(**arrays, terminated=[False, False], mask=[True, False]).tolist() == [2, -1]


def test_extend_gives_ids_in_the_shape_of_the_flags():
    buffer = per.ReplayBuffer(20, FIELDS, n_envs=2)
    flags = np.zeros((3, 2), bool)
    ids = buffer.extend(
        observation=np.zeros((3, 2, 2)), action=np.zeros((3, 2), int), reward=np.zeros((3, 2)), terminated=flags,
        truncated=flags,
    )  # fmt: skip
    assert ids.tolist() == [[0, 1], [2, 3], [4, 5]]
    one = per.ReplayBuffer(20, FIELDS)
    run = {"observation": np.zeros((3, 2)), "action": [0, 1, 2], "reward": [0.0] * 3, "truncated": [False] * 3}
    assert one.extend(**run, terminated=[False] * 3).tolist() == [0, 1, 2]
    some = {"observation": np.zeros((3, 1, 2)), "action": [[0], [1], [2]], "reward": [[0.0]] * 3}
    ids = buffer.extend(**some, terminated=flags[:, :1], truncated=flags[:, :1], env_ids=[1])
    assert ids.tolist() == [[7], [9], [11]]


def test_empty_arrays_change_nothing():
    buffer = filled()
    before = buffer.stats()
    none = np.zeros(0)
    assert buffer.extend(
        observation=np.zeros((0, 2)), action=none, reward=none, terminated=none, truncated=none
    ).shape == (0,)  # fmt: skip
    buffer.update_priorities([], [])
    buffer.update_priorities([], priorities=np.zeros(0, np.float32))
    buffer.set([], action=np.zeros(0, np.int64))
    assert buffer.stats() == before
    assert buffer.priorities([]).shape == (0,)
    assert buffer.get([]).observation.shape == (0, 2)


def test_batch_has_all_arrays_with_their_dtypes_and_shapes():
    batch = filled().sample(7)
    expected = {
        "observation": ("float32", (7, 2)),
        "action": ("int64", (7,)),
        "next_observation": ("float32", (7, 2)),
        "reward": ("float32", (7,)),
        "discount": ("float32", (7,)),
        "n_steps": ("int32", (7,)),
        "terminated": ("bool", (7,)),
        "truncated": ("bool", (7,)),
        "weights": ("float32", (7,)),
        "ids": ("int64", (7,)),
        "priorities": ("float32", (7,)),
        "probabilities": ("float32", (7,)),
        "gamma_m": ("float32", (7,)),
    }
    assert {name: (array.dtype.name, array.shape) for name, array in batch.items()} == expected


def test_batch_holds_the_transitions_of_its_ids():
    batch = filled().sample(64)
    t = batch.ids
    np.testing.assert_array_equal(batch.observation, np.stack([t, np.ones(64)], 1))
    np.testing.assert_array_equal(batch.next_observation, np.stack([t + 1, np.ones(64)], 1))
    np.testing.assert_array_equal(batch.action, t)
    np.testing.assert_array_equal(batch.reward, 0.5 * t)
    np.testing.assert_array_equal(batch.terminated, t == 9)
    np.testing.assert_array_equal(batch.discount, np.where(t == 9, 0, np.float32(0.99)))
    np.testing.assert_array_equal(batch.gamma_m, np.float32(0.99))
    np.testing.assert_array_equal(batch.priorities, 1)
    np.testing.assert_allclose(batch.probabilities, 0.1, rtol=1e-6)
    np.testing.assert_array_equal(batch.weights, 1)


def test_options_of_one_batch_leave_the_buffer_as_it_is():
    buffer = filled(beta=0.4, beta_final=1.0, beta_steps=10, n_step=3)
    buffer.update_priorities(range(10), np.arange(1, 11))
    batch = buffer.sample(4, beta=2.0, n_step=1)
    weights = (10 * batch.probabilities.astype(float)) ** -2
    np.testing.assert_allclose(batch.weights, weights / weights.max(), rtol=1e-5)
    np.testing.assert_array_equal(batch.n_steps, 1)
    assert buffer.beta == 0.4 and buffer.n_step == 3
    assert buffer.sample(4).n_steps.max() == 3
    assert buffer.beta == pytest.approx(0.46)
    assert buffer.stats().samples == 2


def test_out_is_written_again_and_returned():
    buffer = filled()
    out = buffer.sample(6)
    arrays = dict(out)
    for value in arrays.values():
        value[...] = 0
    assert buffer.sample(6, out=out) is out
    for name, value in out.items():
        assert value is arrays[name]
    np.testing.assert_array_equal(out.action, out.ids)
    np.testing.assert_array_equal(out.weights, 1)
    twin = filled()
    twin.sample(6)
    np.testing.assert_array_equal(out.ids, twin.sample(6).ids)


def test_out_that_does_not_fit_is_refused_and_is_no_draw():
    buffer, twin = filled(), filled()
    other = per.ReplayBuffer(10, {"observation": per.Field(3), "action": per.Field((), "int32")})
    other.add(observation=[0, 0, 0], action=0, reward=0, terminated=True, truncated=False, next_observation=[0, 0, 0])
    frozen = buffer.sample(4)
    frozen.reward.flags.writeable = False
    twin.sample(4)
    cases = [
        (buffer.sample(5), r"out\.observation is float32\[5, 2\]; allowed: float32\[4, 2\]"),
        (other.sample(4), r"out\.observation is float32\[4, 3\]; allowed: float32\[4, 2\]"),
        (frozen, r"out\.reward is a ndarray; allowed: contiguous and writable"),
        (buffer.get([0, 1, 2, 3]), r"out\.weights"),
        ({"ids": 1}, r"out is a dict; allowed: a batch"),
    ]
    twin.sample(5)
    for out, words in cases:
        with pytest.raises(per.InvalidArgument, match=words):
            buffer.sample(4, out=out)
    np.testing.assert_array_equal(
        buffer.sample(64, scheme="independent").ids, twin.sample(64, scheme="independent").ids
    )


def test_updates_take_td_errors_of_any_sign_or_several_critics_or_priorities():
    buffer = filled(epsilon=0.5)
    buffer.update_priorities([0, 1], [-2.0, 3.0])
    np.testing.assert_array_equal(buffer.priorities([0, 1, 2]), np.array([2.5, 3.5, 1], np.float32))
    buffer.update_priorities([0, 1], np.array([[1.0, -1.0], [-3.0, 5.0]], np.float32))
    np.testing.assert_array_equal(buffer.priorities([0, 1]), np.array([2.5, 3.5], np.float32))
    buffer.update_priorities([0, 1], priorities=[7.0, 0.0])
    np.testing.assert_array_equal(buffer.priorities([0, 1]), np.array([7, 0], np.float32))
    buffer.update_priorities(np.array([[0, 1], [2, 3]]), np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
    np.testing.assert_array_equal(buffer.priorities([0, 1, 2, 3]), np.array([1.5, 2.5, 3.5, 4.5], np.float32))
    buffer.update_priorities(4, 8.0)
    buffer.update_priorities([5, 6], np.array([[8.0], [9.0]]))
    np.testing.assert_array_equal(buffer.priorities([4, 5, 6]), np.array([8.5, 8.5, 9.5], np.float32))


def test_errors_that_broadcast_to_a_square_are_refused():
    buffer = per.ReplayBuffer(64, {"observation": per.Field()})
    numbers, no = np.arange(32.0), np.zeros(32, bool)
    ids = buffer.extend(observation=numbers, reward=numbers, terminated=no, truncated=no, next_observation=numbers + 1)
    targets, values = np.ones(32, np.float32), np.zeros((32, 1), np.float32)
    with pytest.raises(per.InvalidArgument, match="32 critics for as many ids"):
        buffer.update_priorities(ids, targets - values)
    np.testing.assert_array_equal(buffer.priorities(ids), 1)
    buffer.update_priorities(ids[:16], np.ones((16, 16)))


def test_get_gives_rows_as_added_whatever_the_windows():
    buffer = filled(n_step=3, frame_stack=2)
    rows = buffer.get([4, 9, 4])
    assert "weights" not in rows and "probabilities" not in rows
    np.testing.assert_array_equal(rows.observation, [[4, 1], [9, 1], [4, 1]])
    np.testing.assert_array_equal(rows.next_observation, [[5, 1], [10, 1], [5, 1]])
    np.testing.assert_array_equal(rows.reward, np.array([2, 4.5, 2], np.float32))
    np.testing.assert_array_equal(rows.n_steps, 1)
    assert buffer.sample(3).observation.shape == (3, 2, 2)


def test_get_reads_rows_whose_next_observation_is_unknown():
    fields = {"observation.image": per.Field((2,), "float32"), "observation.speed": per.Field((), "float32")}
    buffer = per.ReplayBuffer(20, fields)
    for t in range(3):  # the last step is truncated, with an unknown final observation
        observation = {"image": np.full(2, t, np.float32), "speed": np.float32(10 * t)}
        buffer.add(observation=observation, reward=float(t), terminated=False, truncated=t == 2, next_mask=False)
    assert buffer.get([0]).next_observation["speed"][0] == 10
    on_cpu = r"ids\[1\] is 2: .* must be read with next_observations=False"
    with pytest.raises(per.InvalidArgument, match=cuda_switch.said(on_cpu, "1 ids named no row that could be had")):
        buffer.get([1, 2])
    rows = buffer.get([1, 2], next_observations=False)
    assert "next_observation" not in rows and "observation" in rows
    np.testing.assert_array_equal(rows.observation["image"], [[1, 1], [2, 2]])
    np.testing.assert_array_equal(rows.observation["speed"], [10, 20])
    np.testing.assert_array_equal(rows.reward, [1, 2])
    np.testing.assert_array_equal(rows.truncated, [False, True])


def test_set_writes_fields_back():
    buffer = filled()
    buffer.set([3, 5, 3], action=[30, 50, 31])
    np.testing.assert_array_equal(buffer.get([3, 4, 5]).action, [31, 4, 50])
    with pytest.raises(per.InvalidArgument, match=r"^action has shape \(2, 2\): expected is \(2,\)$"):
        buffer.set([3, 5], action=[[1, 2], [3, 4]])  # no step is added


def test_options_are_read_and_set_in_a_running_buffer():
    buffer = filled(alpha=0.5, beta=0.3, gamma=0.9, n_step=2)
    assert (buffer.alpha, buffer.beta, buffer.gamma, buffer.n_step) == (0.5, 0.3, 0.9, 2)
    buffer.update_priorities([0], priorities=[4.0])
    assert buffer.stats().total == pytest.approx(11.0)
    buffer.alpha, buffer.beta, buffer.gamma, buffer.n_step = 1, 0.7, 0.8, 1
    assert (buffer.alpha, buffer.beta, buffer.gamma, buffer.n_step) == (1.0, 0.7, 0.8, 1)
    assert buffer.stats().total == pytest.approx(13.0)


def test_stats_have_every_field_of_the_header():
    names = [name for name, _ in ffi.typeof("per_replay_statistics").fields if name != "struct_size"]
    stats = filled().stats()
    assert list(vars(stats)) == names
    assert (stats.capacity, stats.live, stats.added, stats.episodes, stats.samples) == (100, 10, 10, 1, 0)
    with pytest.raises(AttributeError):
        stats.live = 3


def test_stats_go_to_a_tensorboard_writer_in_one_call():
    class Writer:
        def __init__(self):
            self.scalars = {}

        def add_scalar(self, tag, scalar_value, global_step=None):
            self.scalars[tag] = (scalar_value, global_step)

    buffer, writer = filled(), Writer()
    buffer.sample(20, scheme="systematic")
    buffer.stats().log_to(writer, 7)
    assert writer.scalars["replay/live"] == (10.0, 7)
    assert writer.scalars["replay/last_duplicates"] == (0.5, 7)
    assert writer.scalars["replay/last_effective_size"] == (pytest.approx(20), 7)
    assert all(type(value) is float for value, _ in writer.scalars.values())
    assert list(buffer.stats().scalars("a ")) == [f"a {name}" for name in vars(buffer.stats())]


def test_clear_empties_the_buffer_and_ids_go_on():
    buffer = filled()
    buffer.clear()
    assert len(buffer) == 0
    with pytest.raises(per.Empty) as caught:
        buffer.sample(2)
    assert caught.value.status == 3 and isinstance(caught.value, RuntimeError)
    step = {"observation": [0, 0], "action": 0, "reward": 0, "terminated": False, "truncated": False}
    assert int(buffer.add(**step)) > 9


def test_full_lane_is_an_error_where_nothing_may_be_overwritten():
    buffer = per.ReplayBuffer(4, FIELDS, overwrite=False)
    step = {"observation": [0, 0], "action": 0, "reward": 0, "terminated": False, "truncated": False}
    with pytest.raises(per.Full) as caught:
        for _ in range(5):
            buffer.add(**step)
    assert caught.value.status == 4 and isinstance(caught.value, RuntimeError)


STEP = {"observation": [0.0, 0.0], "action": 0, "reward": 0.0, "terminated": False, "truncated": False}


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda b: b.add(**STEP, done=True),
            "done is no field of this buffer; its fields: observation, action, next_observation; "
            "did you mean terminated and truncated?",
        ),
        (
            lambda b: b.add(**STEP, speed=1.0),
            "speed is no field of this buffer; its fields: observation, action, next_obs",
        ),
        (lambda b: b.set([0], actoin=[0]), "actoin is no field of this buffer; allowed: action; did you mean action?"),
        (lambda b: b.add(**{**STEP, "action": None}), "action"),
        (lambda b: b.add(**{**STEP, "reward": None}), "reward"),
        (lambda b: b.add(**{**STEP, "terminated": None}), "terminated"),
        (lambda b: b.add(**{**STEP, "truncated": None}), "truncated"),
        (lambda b: b.add(**{**STEP, "observation": [0.0, 0.0, 0.0]}), "observation"),
        (lambda b: b.add(**{**STEP, "observation": "here"}), "observation has dtype str; allowed: bool, uint8, "),
        (lambda b: b.add(**{**STEP, "observation": {"a": 1}}), "observation is a dict; allowed: arrays, numbers"),
        (
            lambda b: b.add(**{**STEP, "observation": [[0], [1, 2]]}),
            "observation is a list that is no array of numbers",
        ),
        (
            lambda b: b.add(**{**STEP, "observation": np.zeros(2, complex)}),
            "observation has dtype complex128; allowed: ",
        ),
        (lambda b: b.add(**{**STEP, "action": 0.5}), "action"),
        (lambda b: b.add(**{**STEP, "action": 2**80}), "action"),
        (lambda b: b.add(**STEP, env_ids=[1]), "env_ids"),
        (lambda b: b.add(**STEP, env_ids=[0.0]), "env_ids has dtype float64; allowed: whole numbers"),
        (lambda b: b.add(**STEP, priorities=1.0, td_errors=1.0), "td_errors"),
        (lambda b: b.add(**STEP, priorities=float("nan")), "priorities"),
        (lambda b: b.extend(**STEP), "terminated and truncated have no axis of time"),
        (lambda b: b.cut([7]), "env_ids"),
        (lambda b: b.sample(0), "batch_size is 0"),
        (lambda b: b.sample(-1), "batch_size is -1"),
        (lambda b: b.sample(2**24 + 1), "batch_size is 16777217"),
        (lambda b: b.sample(8.0), "batch_size is 8.0"),
        (lambda b: b.sample("8"), "batch_size is '8'"),
        (lambda b: b.sample(8, beta=-0.1), "beta is -0.1"),
        (lambda b: b.sample(8, beta=float("nan")), "beta is nan; allowed: a number"),
        (lambda b: b.sample(8, n_step=0), "n_step is 0; allowed: 1 to the buffer's n_step"),
        (lambda b: b.sample(8, n_step=2), "n_step is 2"),
        (lambda b: b.sample(8, n_step=1.5), "n_step is 1.5"),
        (lambda b: b.sample(8, uniform_fraction=1.5), "uniform_fraction is 1.5"),
        (lambda b: b.sample(8, scheme=1), "scheme is 1; allowed: 'stratified', "),
        (
            lambda b: b.sample(8, prioritization="best"),
            "prioritization is 'best'; allowed: 'proportional', 'rank', 'uniform'",
        ),
        (
            lambda b: b.sample(8, normalize_weights="max"),
            "normalize_weights is 'max'; allowed: 'batch_max', 'buffer_max', ",
        ),
        (lambda b: b.update_priorities([0]), "update_priorities needs td_errors or priorities"),
        (
            lambda b: b.update_priorities([0], [1.0], priorities=[1.0]),
            "update_priorities needs td_errors or priorities",
        ),
        (lambda b: b.update_priorities([0, 1], [1.0]), "td_errors has shape [1]; allowed: [2] or [n_critics, 2]"),
        (lambda b: b.update_priorities([0, 1, 2], np.ones((3, 2))), "td_errors has shape [3, 2]; allowed: [3]"),
        (
            lambda b: b.update_priorities([0, 1], priorities=np.ones((2, 2))),
            "priorities has shape [2, 2]; allowed: [2]",
        ),
        (lambda b: b.update_priorities([], [1.0]), "td_errors has shape [1]; allowed: [0]"),
        (lambda b: b.update_priorities([0.0], [1.0]), "ids has dtype float64; allowed: whole numbers"),
        (lambda b: b.update_priorities([99], [1.0]), "ids[0] is 99"),
        (lambda b: b.update_priorities([0], [float("nan")]), "td_errors[0] gives the priority nan"),
        (lambda b: b.update_priorities([0], [1e39]), "td_errors[0] gives the priority inf"),
        (lambda b: b.update_priorities([0], priorities=[-1.0]), "priorities[0] is -1"),
        (lambda b: b.priorities([99]), "99"),
        (lambda b: b.get([99]), "99"),
        (lambda b: b.set([0], observation=[[0, 0]]), "observation"),
        (lambda b: b.set([0], next_observation=[[0, 0]]), "next_observation cannot be set; allowed: action"),
        (lambda b: b.set([0], speed=[1]), "speed is no field"),
        (lambda b: b.set([0], action=[1, 2]), "action"),
        (lambda b: setattr(b, "alpha", -1), "alpha is -1"),
        (lambda b: setattr(b, "alpha", "big"), "alpha is 'big'; allowed: a number"),
        (lambda b: setattr(b, "alpha", "0.5"), "alpha is '0.5'; allowed: a number"),
        (lambda b: b.sample(8, beta="0.5"), "beta is '0.5'; allowed: a number"),
        (lambda b: b.save("a file", wait="no"), "wait is 'no'; allowed: True or False"),
        (lambda b: b.epochs(1, 2, drop_last="no"), "drop_last is 'no'; allowed: True or False"),
        (lambda b: b.get([0], next_observations="no"), "next_observations is 'no'; allowed: True or False"),
        (lambda b: setattr(b, "alpha", float("nan")), "alpha is nan; allowed: 0 and above"),
        (lambda b: setattr(b, "beta", float("inf")), "beta is inf"),
        (lambda b: setattr(b, "gamma", 1.5), "gamma is 1.5"),
        (lambda b: setattr(b, "n_step", 0), "n_step is 0"),
        (lambda b: setattr(b, "n_step", 2.5), "n_step is 2.5"),
    ],
)
def test_bad_argument_is_named_with_its_value_and_changes_nothing(call, words):
    buffer, twin = filled(), filled()
    is_counted = cuda_switch.IS_CUDA and cuda_switch.names_an_entry(words)
    if is_counted and not words.endswith("99"):
        words = "1 priorities or td_errors gave no finite priority"
    elif words.endswith("99"):
        words = cuda_switch.said(words, "1 ids named no row that could be had")
    with pytest.raises(per.InvalidArgument) as caught:
        call(buffer)
    assert words in str(caught.value)
    assert buffer.stats() == dataclasses.replace(twin.stats(), rejected_updates=int(is_counted))
    batch, same = buffer.sample(32, scheme="independent"), twin.sample(32, scheme="independent")
    for name in batch:
        np.testing.assert_array_equal(batch[name], same[name])


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"capacity": 0}, "capacity is 0"),
        ({"capacity": "big"}, "capacity is 'big', a str; allowed: an int"),
        ({"fields": [per.Field(2)]}, "fields is a list; allowed: a dict of names and per.Field"),
        ({"fields": {"observation": (2, "float32")}}, "fields has 'observation': (2, 'float32')"),
        ({"fields": {}}, "the number of fields is 0"),
        ({"capacity": 1e5}, "capacity is 100000.0, a float; allowed: an int"),
        ({"n_step": np.float32(2.5)}, "n_step is np.float32(2.5), a float32; allowed: an int"),
        ({"sequence_length": 0}, "sequence_length is 0; allowed: None, or 1 and above"),
        ({"sequence_length": False}, "sequence_length is False; allowed: None, or 1 and above"),
        ({"sequence_length": -2}, "sequence_length is -2: allowed are None and 1 .. 1099511627776"),
        ({"sequence_length": 5, "sequence_stride": 0}, "sequence_stride is 0; allowed: None, or 1 and above"),
        ({"sequence_stride": 3}, "sequence_stride is 3: must be None where sequence_length is not given"),
        ({"half_life": 0}, "half_life is 0; allowed: None, or 0.01 and above"),
        ({"half_life": -0.0}, "half_life is -0.0; allowed: None, or 0.01 and above"),
        ({"half_life": 1e-3}, "half_life is 0.001: allowed are None and 0.01 .. 1e+12"),
        ({"max_age": -1}, "max_age is -1; allowed: None, or 0 and above"),
        ({"max_age": -2}, "max_age is -2: allowed are None and 0 .. 1099511627776"),
        ({"overwrite": "no"}, "overwrite is 'no'; allowed: True or False"),
        ({"store_next_observation": 2}, "store_next_observation is 2; allowed: True or False"),
        ({"burn_in": 3}, "burn_in is 3: must be 0 where sequence_length is not given"),
        ({"fields": {"action": per.Field(2)}}, "observation"),
        ({"fields": {**FIELDS, "weights": per.Field(2)}}, "weights"),
        ({"fields": {**FIELDS, "next_x": per.Field(2)}}, "next_x"),
        ({"fields": {**FIELDS, "my\tfield": per.Field(2)}}, "my?field"),
        ({"fields": {**FIELDS, "keys": per.Field(1)}}, "field keys has the name of a method of per.Batch"),
        ({"fields": {**FIELDS, "action.x": per.Field(1)}}, "action.x and action are both fields"),
        ({"gamma": 1.01}, "gamma is 1.01"),
        ({"gamma": "0.9"}, "gamma is '0.9', a str; allowed: a number"),
        ({"alpha": -1}, "alpha is -1"),
        ({"beta": float("nan")}, "beta is nan"),
        ({"n_envs": 0}, "n_envs is 0"),
        ({"n_step": 65}, "n_step is 65"),
        ({"capacity": 3, "n_step": 3}, "5"),
        (
            {"scheme": "fast"},
            "scheme is 'fast'; allowed: 'stratified', 'independent', 'systematic', 'without_replacement'",
        ),
        ({"max_priority": "always"}, "max_priority is 'always'; allowed: 'ever', 'now'"),
        ({"on_invalid": "ignore"}, "on_invalid is 'ignore'; allowed: 'error', 'skip'"),
        ({"autoreset": "NextStep"}, "autoreset is 'NextStep'; allowed: 'disabled', 'next_step', 'same_step'"),
        ({"seed": -1}, "seed is -1; allowed: whole numbers from 0 to 2^64 - 1"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"arrays": "tensorflow"}, f"arrays is 'tensorflow'; allowed {WHERE}: 'numpy', 'torch', 'jax'"),
        ({"arrays": "cupy"}, f"arrays is 'cupy'; allowed {WHERE}: 'numpy', 'torch', 'jax'"),
    ],
)
def test_bad_option_is_named_with_its_value(arguments, words):
    with pytest.raises(per.InvalidArgument) as caught:
        per.ReplayBuffer(**{"capacity": 100, "fields": FIELDS, **arguments})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"shape": (-1,)}, "shape is (-1,): allowed are axes of 1 and above"),
        ({"shape": (3, 0)}, "shape is (3, 0): allowed are axes of 1 and above"),
        ({"shape": (1,) * 9}, "ndim is 9: allowed are 0 .. 8"),
        ({"shape": 2**70}, "shape is (1180591620717411303424,); allowed: whole numbers"),
        ({"role": "obs"}, "role is 'obs'; allowed: 'plain', 'observation', 'recurrent_state'"),
        ({"stack": 65}, "stack is 65: allowed are None and 1 .. 64"),
        ({"stack": 0}, "stack is 0; allowed: None, or 1 and above"),
        ({"role": "default"}, "role is 'default'; allowed: 'plain', 'observation', 'recurrent_state'"),
        ({"stack": 1.5}, "stack is 1.5, a float; allowed: an int"),
        ({"stack": 2**40}, "stack is 1099511627776; allowed: whole numbers from -2^31 to 2^31 - 1"),
        ({"dtype": "complex64"}, "dtype is 'complex64'"),
    ],
)
def test_field_that_cannot_be_fails_where_it_is_made(arguments, words):
    with pytest.raises(per.InvalidArgument) as caught:
        per.Field(**arguments)
    assert words in str(caught.value)


@pytest.mark.parametrize("shape, dtype", [("2", "float32"), (2.0, "float32"), ((1, None), "float32")])
def test_field_of_no_shape_is_refused(shape, dtype):
    with pytest.raises(per.InvalidArgument, match="shape is"):
        per.Field(shape, dtype)


@pytest.mark.parametrize("dtype", ["float8", "complex64", "str", object, "U3", None, 3])
def test_field_of_no_dtype_is_refused(dtype):
    with pytest.raises(per.InvalidArgument, match="dtype is"):
        per.Field(2, dtype)


def test_buffer_on_a_missing_device_says_so():
    with pytest.raises(per.NoDevice) as caught:
        per.ReplayBuffer(10, FIELDS, device="cuda")
    assert caught.value.status == 7 and str(caught.value)


def test_use_after_close_is_an_error():
    buffer = filled()
    batch = buffer.sample(2)
    with buffer as same:
        assert same is buffer
    buffer.close()
    calls = [
        lambda: buffer.add(**STEP),
        lambda: buffer.extend(**{name: [value] for name, value in STEP.items()}),
        lambda: buffer.cut(),
        lambda: buffer.sample(2),
        lambda: buffer.sample(2, out=batch),
        lambda: buffer.update_priorities(np.array([0]), np.ones(1, np.float32)),
        lambda: buffer.update_priorities([0], priorities=[1]),
        lambda: buffer.priorities([0]),
        lambda: buffer.get([0]),
        lambda: buffer.set([0], action=[0]),
        lambda: buffer.clear(),
        lambda: buffer.stats(),
        lambda: len(buffer),
        lambda: buffer.alpha,
        lambda: setattr(buffer, "beta", 1.0),
        lambda: buffer.save("x"),
        lambda: buffer.__enter__(),
    ]
    for call in calls:
        with pytest.raises(per.InvalidArgument, match="the buffer is closed"):
            call()
    np.testing.assert_array_equal(batch.action, batch.ids)
    assert repr(buffer).endswith("closed)")


def test_repr_says_what_it_is():
    assert repr(filled()) == (
        "per.ReplayBuffer(100, {'observation': float32[2], 'action': int64[]}, n_envs=1, device='cpu', "
        "arrays='numpy', live=10)"
    )


def test_buffer_in_which_most_steps_are_cuts_warns_once():
    buffer = per.ReplayBuffer(5000, FIELDS)
    with pytest.warns(UserWarning, match="were cut off from the one before") as caught:
        for t in range(1200):
            buffer.add(**{**STEP, "observation": [t, 0]}, next_observation=[-1, 0])
    assert len(caught) == 1


def test_warnings_name_the_line_that_adds():
    for verb in ("add", "extend"):
        buffer = per.ReplayBuffer(5000, FIELDS)
        step = {**STEP, "terminated": True, "next_observation": [1, 1], "observation": [1, 1]}
        if verb == "extend":
            step = {name: np.array(value)[None] for name, value in step.items()}
        with pytest.warns(UserWarning, match="After 3 of 4 ends") as caught:
            for _ in range(5):
                getattr(buffer, verb)(**step)
        assert [warning.filename for warning in caught] == [__file__]


def test_episodes_of_which_some_begin_where_the_last_one_ended_do_not_warn():
    buffer = per.ReplayBuffer(5000, FIELDS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for t in range(1200):
            first = [0, 0] if t % 3 == 1 else [t, 1]
            buffer.add(**{**STEP, "terminated": True, "observation": first}, next_observation=[0, 0])
        assert buffer.stats().suspected_resets == 400


def test_buffer_with_some_cuts_does_not_warn():
    buffer = per.ReplayBuffer(5000, FIELDS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for t in range(1200):
            following = -1 if t % 3 == 0 else t + 1
            buffer.add(**{**STEP, "observation": [t, 0]}, next_observation=[following, 0])
    assert buffer.stats().cuts == 400


def test_memory_is_what_a_buffer_takes_of_the_address_space():
    def address_space():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    for options in ({}, {"prioritization": "rank", "max_priority": "now"}, {"store_next_observation": True}):
        before = address_space()
        buffer = per.ReplayBuffer(1_000_000, {"observation": per.Field(100), "action": per.Field(50)}, **options)
        # The tolerance covers the rest of each array's last huge page.
        assert buffer.stats().memory_bytes == pytest.approx(address_space() - before, rel=0.02), options
        buffer.close()


@pytest.mark.parametrize("name", ["epsilon", "beta_steps", "apha", "beta_", "capacity", "fields", "sample"])
def test_what_is_no_setting_cannot_be_set(name):
    buffer = per.ReplayBuffer(10, {"observation": per.Field()})
    words = rf"{name} cannot be set; of a buffer these can: alpha, beta, gamma, n_step, save_compression"
    words += {"apha": r"; did you mean alpha\?", "beta_": r"; did you mean beta\?"}.get(name, "") + "$"
    with pytest.raises(AttributeError, match=words):
        setattr(buffer, name, 3)
    assert name not in vars(buffer)
    with pytest.raises(AttributeError, match=rf"{name} cannot be set; of a tree nothing can"):
        setattr(per.SumTree(4), name, 3)


def test_subclasses_have_attributes_of_their_own():
    class Named(per.ReplayBuffer):
        def __init__(self, name):
            super().__init__(10, {"observation": per.Field()})
            self.name = name

    assert Named("mine").name == "mine"


def test_rows_in_no_order_of_time_are_told_of_by_one_call():
    steps = np.random.default_rng(3).permutation(600)
    data = {"observation": steps, "next_observation": steps + 1, "reward": np.zeros(600)}
    flags = {"terminated": np.zeros(600, bool), "truncated": np.zeros(600, bool)}
    fields = {"observation": per.Field((), "int64")}
    buffer = per.ReplayBuffer(2000, fields)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        buffer.extend(**data, **flags)
    assert len(caught) == (0 if cuda_switch.IS_CUDA else 1)
    assert all("store_next_observation=True" in str(warning.message) for warning in caught)
    exact = per.ReplayBuffer(600, fields, store_next_observation=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exact.extend(**data, **flags)
    assert len(exact) == 600


def test_capacity_for_keeps_so_many_live():
    options = {"n_envs": 2, "n_step": 3, "frame_stack": 4}
    capacity = per.ReplayBuffer.capacity_for(1000, 10, **options)
    assert capacity == 2 * (500 + 49 + 3 + 4)  # by the formula of per.h
    stacked = {"observation": per.Field((), "int64", stack=5)}
    assert per.ReplayBuffer.capacity_for(1000, 10, fields=stacked, **options) == capacity + 2
    buffer = per.ReplayBuffer(capacity, {"observation": per.Field((), "int64")}, **options)
    for t in range(capacity):
        ends = t % 10 == 9
        buffer.add(observation=[t, t], reward=[0, 0], terminated=[ends, ends], truncated=[False, False],
                   next_observation=[t + 1, t + 1])  # fmt: skip
        assert 2 * t <= capacity or len(buffer) >= 1000
    with pytest.raises(per.InvalidArgument, match="colour is no option of a buffer; allowed: "):
        per.ReplayBuffer.capacity_for(10, colour=1)
    with pytest.raises(per.InvalidArgument, match=r"n_steps is no option .* seed, .*; did you mean n_step\?$"):
        per.ReplayBuffer.capacity_for(10, n_steps=3)
    with pytest.raises(per.InvalidArgument, match="transitions is 0"):
        per.ReplayBuffer.capacity_for(0)


def test_scalar_rewards_and_flags_are_those_of_every_environment():
    fields = {"observation": per.Field((), "int64")}
    options = {"n_envs": 3, "seed": 1}
    given, twin = per.ReplayBuffer(30, fields, **options), per.ReplayBuffer(30, fields, **options)
    for t in range(3):
        step = {"observation": [t, t, t], "next_observation": [t + 1] * 3, "reward": 0.5}
        assert given.add(**step, terminated=t == 2, truncated=False, mask=True).tolist() == [
            3 * t,
            3 * t + 1,
            3 * t + 2,
        ]
        twin.add(**{**step, "reward": [0.5] * 3}, terminated=[t == 2] * 3, truncated=np.zeros(3, bool))
    run = {"observation": np.full((2, 3), 9), "next_observation": np.full((2, 3), 9)}
    flags = np.array([[False] * 3, [True] * 3])
    assert given.extend(**run, reward=np.float32(2), terminated=False, truncated=flags).shape == (2, 3)
    twin.extend(**run, reward=np.full((2, 3), 2.0), terminated=np.zeros((2, 3)), truncated=flags)
    batch, same = given.sample(64), twin.sample(64)
    for name in batch:
        np.testing.assert_array_equal(batch[name], same[name])
    ids = given.add(
        observation=[1, 1], next_observation=[2, 2], reward=0, terminated=False, truncated=False, env_ids=[0, 2]
    )
    assert ids.shape == (2,)
    with pytest.raises(per.InvalidArgument, match="reward, terminated and truncated have no axis of time"):
        given.extend(**run, reward=0.0, terminated=False, truncated=False)


def test_key_of_a_draw_is_a_seed_and_a_number_of_draws():
    def filled(seed):
        buffer = per.ReplayBuffer(100, {"observation": per.Field()}, seed=seed, n_step=3)
        buffer.extend(observation=np.arange(60), reward=np.ones(60), terminated=np.zeros(60), truncated=np.zeros(60))
        return buffer

    twin, buffer = filled(2**62), filled(1)
    expected = [twin.sample(16, n_step=(1, 3)) for _ in range(3)]
    batch = buffer.sample(16)
    for number in (2, 0, 1, 1):
        key = np.array([2**62, number], np.uint64)
        assert buffer.sample(16, n_step=(1, 3), key=key, out=batch) is batch
        np.testing.assert_array_equal(batch.ids, expected[number].ids)
        np.testing.assert_array_equal(batch.n_steps, expected[number].n_steps)
    np.testing.assert_array_equal(buffer.sample(16, n_step=(1, 3), key=(2**62, 2)).ids, expected[2].ids)
    large = filled(2**64 - 1).sample(16)
    np.testing.assert_array_equal(filled(1).sample(16, key=(2**64 - 1, 0)).ids, large.ids)
    assert buffer.stats().samples == 6
    for key, message in [
        (7, r"key has shape \[1\]; allowed: \[2\]"),
        ((1, 2, 3), r"key has shape \[3\]; allowed: \[2\]"),
        ((1, -2), "key has -2; allowed: 0 to 18446744073709551615"),
        ((1.5, 2), "key has dtype float64; allowed: whole numbers"),
        ((2**64, 2), "key .*; allowed: "),
    ]:
        with pytest.raises(per.InvalidArgument, match=message):
            buffer.sample(4, key=key)
    her = per.Hindsight("observation", "goal", lambda achieved, goal: np.ones(len(goal)))
    goals = per.ReplayBuffer(9, {"observation": per.Field(), "goal": per.Field()})
    with pytest.raises(per.InvalidArgument, match=r"key is not NULL: must be NULL where hindsight is given"):
        goals.sample(4, key=(1, 2), hindsight=her)
