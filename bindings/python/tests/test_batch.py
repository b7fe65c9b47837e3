"""per.Batch: attributes, Mapping, nested observations, devices."""

import re
import subprocess
import sys

import jax
import numpy as np
import per
import pytest
import torch
from torch.utils import _pytree

pytestmark = pytest.mark.usefixtures("each_way")

NESTED = {
    "observation.image": per.Field((2, 2), "uint8"),
    "observation.inner.0": per.Field((), "int32"),
    "observation.inner.1": per.Field(3, "float32"),
    "action.0": per.Field((), "int64"),
    "action.1": per.Field(2, "float32"),
}


def observed(t):
    return {"image": np.full((2, 2), t, np.uint8), "inner": (t, np.full(3, t + 0.5))}


def filled(kind="numpy"):
    buffer = per.ReplayBuffer(
        50, {**NESTED, "action.0": per.Field((), "int32")} if kind == "jax" else NESTED, arrays=kind
    )
    for t in range(6):
        buffer.add(
            observation=observed(t),
            action=(t, [t, -t]),
            reward=t,
            terminated=t == 5,
            truncated=False,
            next_observation=observed(t + 1),
        )
    return buffer


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_nested_fields_come_out_as_the_user_holds_them(kind):
    batch = filled(kind).get([1, 4])
    assert list(batch)[:3] == ["observation", "action", "next_observation"]
    assert isinstance(batch.observation, dict) and isinstance(batch.observation["inner"], tuple)
    np.testing.assert_array_equal(np.asarray(batch.observation["image"])[:, 0, 0], [1, 4])
    np.testing.assert_array_equal(np.asarray(batch.observation["inner"][0]), [1, 4])
    np.testing.assert_array_equal(np.asarray(batch.next_observation["inner"][1])[:, 0], [2.5, 5.5])
    np.testing.assert_array_equal(np.asarray(batch.action[1]), [[1, -1], [4, -4]])
    assert batch["observation"]["image"] is batch["observation.image"] is batch.observation["image"]
    assert batch["next_observation.inner.1"] is batch.next_observation["inner"][1]


def test_nested_batch_is_reused_as_out():
    buffer = filled()
    out = buffer.sample(4)
    image = out.observation["image"]
    image[...] = 99
    assert buffer.sample(4, out=out) is out
    assert out.observation["image"] is image
    np.testing.assert_array_equal(image[:, 0, 0], out.ids)


def test_nested_fields_can_be_given_by_their_full_names():
    buffer = filled()
    names = {
        "observation.image": np.full((2, 2), 9, np.uint8),
        "observation.inner.0": 9,
        "observation.inner.1": [9, 9, 9],
    }
    ids = buffer.add(**names, action=(9, [9, 9]), reward=9, terminated=False, truncated=False)
    buffer.cut()
    buffer.set([ids], **{"action.0": [7]})
    buffer.set([0], action=([8], [[1, 2]]))
    buffer.add(**names, action=(9, [9, 9]), reward=9, terminated=False, truncated=False)
    assert buffer.get([0]).action[0][0] == 8


@pytest.mark.parametrize(
    "observation, words",
    [
        ({"image": np.zeros((2, 2), np.uint8)}, "observation has image; allowed: image, inner, all of them"),
        ({**observed(0), "sound": 1}, "observation has image, inner, sound; allowed: image, inner"),
        ((1, 2), "observation is a tuple; allowed: a dict with image, inner"),
        ({"image": 0, "inner": {"0": 1}}, "observation.inner is a dict; allowed: a tuple of 2"),
        ({"image": np.zeros((2, 2), np.uint8), "inner": (1, "x")}, "observation.inner.1 has dtype str"),
    ],
)
def test_container_of_another_form_is_refused_by_name(observation, words):
    buffer = filled()
    with pytest.raises(per.InvalidArgument) as caught:
        buffer.add(observation=observation, action=(0, [0, 0]), reward=0, terminated=False, truncated=False)
    assert words in str(caught.value)
    assert len(buffer) == 6


def test_names_that_exclude_each_other_are_refused():
    for other in ("observation", "observation.image.left"):
        with pytest.raises(per.InvalidArgument, match=r"exclude each other|one or the other"):
            per.ReplayBuffer(10, {**NESTED, other: per.Field(2)})


def test_batch_is_a_mapping_of_its_arrays():
    batch = filled().sample(3)
    assert len(batch) == len(list(batch)) == len(dict(batch)) == 13
    assert "reward" in batch and "speed" not in batch
    assert batch["reward"] is batch.reward is batch.get("reward")
    assert batch.get("speed") is None
    for key in ("speed", "observation.speed", "observation.inner.7", "reward.x"):
        with pytest.raises(
            KeyError, match=r"^this batch has no .*; (it has observation, action|did you mean (observation|reward)\?)"
        ):
            batch[key]
    with pytest.raises(AttributeError):
        batch.speed  # noqa: B018
    assert batch == batch and batch != filled().sample(3) and hash(batch)


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_size_of_a_batch_is_the_number_of_its_transitions(kind):
    buffer = filled(kind)
    assert [batch.size for batch in (buffer.sample(3), buffer.get([1, 4]), next(buffer.epochs(1, 4)))] == [3, 2, 4]
    fields = {"observation": per.Field(), "size": per.Field()}
    other = per.ReplayBuffer(20, fields, arrays=kind, sequence_length=2)
    steps = {name: np.full(9, 5.0) for name in (*fields, "reward")}
    other.extend(**steps, terminated=np.zeros(9), truncated=np.zeros(9))
    assert np.asarray(other.sample(3).size).tolist() == [[5.0, 5.0]] * 3


NAMES_OF_ARRAYS = (
    "observation, action, next_observation, reward, discount, n_steps, terminated, truncated, weights, ids, "
    "priorities, probabilities, gamma_m"
)


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_asked_for_what_is_no_array_a_batch_lists_those_that_it_has(kind):
    batch = filled(kind).sample(3)
    assert 0 not in batch
    with pytest.raises(KeyError, match=f"^this batch has no 0; it has {NAMES_OF_ARRAYS}$"):
        batch[0]
    with pytest.raises(KeyError, match=f"^this batch has no speed; it has {NAMES_OF_ARRAYS}$"):
        batch["speed"]
    with pytest.raises(AttributeError, match=f"^this batch has no speed; it has {NAMES_OF_ARRAYS}$"):
        batch.speed  # noqa: B018
    for given, name in (("rewrd", "reward"), ("obs", "observation"), ("indices", "ids")):
        with pytest.raises(KeyError, match=rf"^this batch has no {given}; did you mean {name}\?$"):
            batch[given]
        with pytest.raises(AttributeError, match=rf"^this batch has no {given}; did you mean {name}\?$"):
            getattr(batch, given)
        with pytest.raises(AttributeError, match=rf"^this batch has no {given}; did you mean {name}\?$"):
            setattr(batch, given, 0)


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
@pytest.mark.parametrize(
    ("options", "name", "hint"),
    [
        (
            {"sequence_length": 4},
            "next_observation",
            "in sequences the next observation of step t is entry t + n_steps[t] of observation",
        ),
        ({}, "mask", "only those of sequences have one"),
        ({}, "times_sampled", "those of a buffer with keep_times_sampled=True do"),
    ],
)
def test_asked_for_what_other_batches_have_a_batch_says_which(kind, options, name, hint):
    buffer = per.ReplayBuffer(20, {"observation": per.Field()}, arrays=kind, **options)
    buffer.extend(observation=range(9), reward=np.zeros(9), terminated=np.zeros(9), truncated=np.zeros(9))
    batch = buffer.sample(3)
    for read, error in ((lambda: batch[name], KeyError), (lambda: getattr(batch, name), AttributeError)):
        with pytest.raises(error, match=f"^{re.escape(f'this batch has no {name}; {hint}')}$"):
            read()


def test_rows_that_were_read_without_next_observations_say_so():
    rows = filled().get([1], next_observations=False)
    with pytest.raises(KeyError, match=r"^this batch has no next_observation; next_observations=True reads it$"):
        rows["next_observation"]
    with pytest.raises(KeyError, match=r"^this batch has no next_action; it has observation, action, reward"):
        rows["next_action"]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_asked_for_what_it_has_no_more_a_released_batch_says_so(kind):
    with filled(kind).loader(3) as loader:
        batch = loader.take()
        with pytest.raises(KeyError, match=f"^this batch has no speed; it has {NAMES_OF_ARRAYS}$"):
            batch["speed"]
        with pytest.raises(AttributeError, match=f"^this batch has no speed; it has {NAMES_OF_ARRAYS}$"):
            batch.speed  # noqa: B018
        batch.release()
        with pytest.raises(KeyError, match=r"^this batch has no reward; it was released$"):
            batch["reward"]
        with pytest.raises(AttributeError, match=r"^this batch has no reward; it was released$"):
            batch.reward  # noqa: B018


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_arrays_of_a_batch_are_written_but_not_exchanged(kind):
    batch = filled(kind).sample(3)
    with pytest.raises(AttributeError, match="arrays are not exchanged"):
        batch.reward = batch.discount
    if kind != "jax":
        batch.reward[:] = 7
        assert batch["reward"].tolist() == [7, 7, 7]


def test_torch_batch_goes_to_a_device():
    batch = filled("torch").sample(3)
    moved = batch.to("meta")
    assert moved.observation["image"].device.type == "meta" and moved.reward.device.type == "meta"
    assert batch.to(torch.device("cpu")).reward.tolist() == batch.reward.tolist()


def test_torch_batch_on_another_device_is_refused_as_out():
    buffer = filled("torch")
    with pytest.raises(per.InvalidArgument, match=r"out\.observation"):
        buffer.sample(3, out=buffer.sample(3).to("meta"))


def test_numpy_batch_stays_in_host_memory():
    batch = filled().sample(3)
    assert batch.to("cpu").reward is batch.reward
    with pytest.raises(per.InvalidArgument, match="device is 'cuda'; allowed for numpy arrays: 'cpu'"):
        batch.to("cuda")


@pytest.mark.parametrize("kind", ["torch", "jax"])
@pytest.mark.parametrize("device", ["foo", [1], np.float16])
def test_what_is_no_device_here_is_an_error(kind, device):
    batch = filled(kind).sample(3)
    with pytest.raises(per.InvalidArgument, match=r"^device is "):
        batch.to(device)


def test_torch_batch_goes_to_no_dtype():
    with pytest.raises(per.InvalidArgument, match=r"^device is torch.float16: "):
        filled("torch").sample(3).to(torch.float16)


def test_jax_batch_goes_to_a_device():
    import jax

    batch = filled("jax").sample(3)
    for device in ("cpu", jax.devices("cpu")[0]):
        moved = batch.to(device)
        assert moved.reward.devices() == {jax.devices("cpu")[0]}
        np.testing.assert_array_equal(np.asarray(moved.reward), np.asarray(batch.reward))


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
def test_repr_names_arrays_with_dtype_and_shape(kind):
    text = repr(filled(kind).sample(3))
    assert text.startswith(
        "per.Batch(observation {image: uint8[3, 2, 2], inner: (int32[3], float32[3, 3])}, action (int"
    )
    assert "reward float32[3], " in text


def test_batch_that_is_kept_is_not_changed_by_later_ones():
    buffer = filled()
    first = buffer.sample(4)
    copy = {name: np.copy(first[name]) for name in ("ids", "reward", "observation.image")}
    for _ in range(20):
        buffer.sample(4)
    for name, value in copy.items():
        np.testing.assert_array_equal(first[name], value)


@pytest.mark.parametrize("kind", ["numpy", "jax"])
def test_batches_are_pytrees_of_jax(kind):
    batch = filled(kind).sample(4)
    doubled = jax.tree.map(lambda array: 2 * array, batch)
    returned = jax.jit(lambda given: given)(batch)
    assert type(batch) is type(doubled) is type(returned)
    assert list(batch) == list(doubled) == list(returned)
    for name in ("reward", "observation.inner.1", "next_observation.image", "action.0", "weights"):
        np.testing.assert_array_equal(np.asarray(returned[name]), np.asarray(batch[name]))
        np.testing.assert_array_equal(np.asarray(doubled[name]), 2 * np.asarray(batch[name]))
    summed = jax.jit(lambda given: given.reward + given.observation["inner"][1].sum(1))(batch)
    each = jax.vmap(lambda given: given.reward + given.observation["inner"][1].sum())(batch)
    np.testing.assert_allclose(each, np.asarray(batch.reward) + np.asarray(batch.observation["inner"][1]).sum(1))
    np.testing.assert_allclose(summed, each)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(batch)[0]]
    assert ".observation['inner'][1]" in paths and ".reward" in paths


def test_ids_that_went_through_jax_are_those_of_the_batch():
    buffer = filled("jax")
    batch = buffer.sample(4)
    ids = jax.jit(lambda given: given.ids)(batch)
    buffer.update_priorities(ids, np.full(4, 9.0, np.float32))
    np.testing.assert_allclose(buffer.priorities(batch.ids), 9 + 1e-6)


def test_batches_are_pytrees_of_torch():
    buffer = filled("torch")
    batch = buffer.sample(4)
    doubled = _pytree.tree_map(lambda array: 2 * array, batch)
    assert type(doubled) is per.Batch and list(doubled) == list(batch)
    assert torch.equal(doubled.observation["inner"][1], 2 * batch.observation["inner"][1])
    expected = batch.reward + batch.observation["inner"][1].sum(1)
    vmapped = torch.func.vmap(lambda given: (given, given.reward + given.observation["inner"][1].sum()))(batch)
    assert type(vmapped[0]) is per.Batch and torch.equal(vmapped[0].ids, batch.ids)
    assert torch.equal(vmapped[1], expected)
    compiled = torch.compile(
        lambda given: (given, given.reward + given.observation["inner"][1].sum(1)), backend="eager", fullgraph=True
    )(batch)
    assert type(compiled[0]) is per.Batch and torch.equal(compiled[1], expected)
    with buffer.loader(4) as batches:
        loaded = batches.take()
        copy = _pytree.tree_map(lambda array: array.clone(), loaded)
        ids = loaded.ids.tolist()
        loaded.release()
        assert type(copy) is per.Batch and copy.ids.tolist() == ids


def test_pytrees_import_no_library():
    program = """
import sys, numpy as np, per
buffer = per.ReplayBuffer(10, {"observation": per.Field(2)})
buffer.add(observation=[1, 2], reward=1, terminated=True, truncated=False, next_observation=[3, 4])
batch = buffer.sample(2)
assert not {"jax", "torch"} & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
