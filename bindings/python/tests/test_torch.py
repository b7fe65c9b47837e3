"""per.torch: calls inside programs compiled by torch, compared with the same calls outside."""

import contextlib
import copy
import gc
import pathlib
import pickle
import re
import subprocess
import sys

import numpy as np
import per
import pytest
from cuda_switch import IS_CUDA, said

torch = pytest.importorskip("torch")

import per.torch  # noqa: E402  torch comes first

FIELDS = {"observation": per.Field(3), "action": per.Field((), "int64")}
NESTED = {
    "observation.image": per.Field((2, 2), "uint8"),
    "observation.position": per.Field(2, "float64"),
    "action": per.Field((), "bfloat16"),
    "value": per.Field((), default=0.0),
}
KINDS = {
    "plain": (FIELDS, {}),
    "nested": (NESTED, {}),
    "n_step": (FIELDS, {"n_step": 3, "gamma": 0.9}),
    "stacks": (FIELDS, {"frame_stack": 4}),
    "sequences": (FIELDS, {"sequence_length": 4, "burn_in": 2}),
    "lanes": (FIELDS, {"n_envs": 2, "scheme": "without_replacement"}),
}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def compiled(function, **options):
    return torch.compile(function, **{"backend": "aot_eager", "fullgraph": True, **options})


def buffer_of(kind="plain", **options):
    fields, choices = KINDS[kind]
    defaults = {"seed": 3, "alpha": 0.7, "beta": 0.5, "arrays": "torch"}
    return per.ReplayBuffer(200, fields, **{**defaults, **choices, **options})


def step_of(kind, t):
    """A step by the argument names of add(): episodes end after 7 and 11 steps, and values increase step by step."""
    fields, options = KINDS[kind]
    lanes = (options["n_envs"],) if "n_envs" in options else ()

    def ends(t):
        return t % 7 == 6 or t % 11 == 10

    number = t + sum(map(ends, range(t)))

    def observation(number):
        flat = {
            name: torch.full((*lanes, *field.shape), number).to(getattr(torch, field.dtype))
            for name, field in fields.items()
            if field.role == "observation" or name.startswith("observation")
        }
        nested = {name.partition(".")[2]: value for name, value in flat.items()}
        return nested if kind == "nested" else flat["observation"]

    return {
        "observation": observation(number),
        "next_observation": observation(number + 1),
        "action": torch.full(lanes, t % 5).to(getattr(torch, fields["action"].dtype)),
        "reward": torch.full(lanes, t / 4),
        "terminated": torch.full(lanes, t % 7 == 6),
        "truncated": torch.full(lanes, t % 11 == 10),
    }


def filled(kind="plain", steps=40, **options):
    buffer = buffer_of(kind, **options)
    for t in range(steps):
        buffer.add(**step_of(kind, t))
    return buffer


def leaves(value):
    return torch.utils._pytree.tree_leaves(value)


def assert_equal(first, second):
    assert len(leaves(first)) == len(leaves(second))
    for one, other in zip(leaves(first), leaves(second), strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


# ---------------------------------------------------------------------------------------------------------- the same


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_step_gives_what_the_buffer_gives_bit_for_bit(kind):
    def program(buffer, step):
        ids = buffer.add(**step)
        first = buffer.sample(8, beta=0.75)
        td_errors = first.reward * 0.5 + first.weights.reshape(-1, *[1] * (first.reward.ndim - 1))
        buffer.update_priorities(first.ids, td_errors)
        return ids.flatten(), tuple(first), tuple(buffer.sample(8, normalize_weights="none"))

    outside, inside = filled(kind), filled(kind)
    replay = per.torch.Buffer(inside)
    step = compiled(lambda arrays: program(replay, arrays))

    class Batches:  # the buffer's own calls, with batches as tuples
        add, update_priorities = outside.add, outside.update_priorities

        def sample(self, *arguments, **options):
            return Batch(outside.sample(*arguments, **options))

    class Batch(tuple):
        def __new__(cls, batch):
            made = super().__new__(cls, batch.values())
            made.batch = batch
            return made

        def __getattr__(self, name):
            return getattr(self.batch, name)

    for t in range(40, 46):
        expected, found = program(Batches(), step_of(kind, t)), step(step_of(kind, t))
        assert_equal(tuple(map(torch.as_tensor, leaves(expected))), found)
    assert bytes(outside) == bytes(inside)


def test_a_batch_is_named_as_outside():
    replay = per.torch.Buffer(filled("nested"))
    batch = compiled(lambda: replay.sample(4))()
    assert list(batch._asdict()) == list(filled("nested").sample(4))
    assert batch.observation["image"].dtype == torch.uint8 and batch.next_observation["position"].shape == (4, 2)


def test_runs_of_steps_and_single_numbers():
    outside, inside = buffer_of("lanes"), buffer_of("lanes")
    replay = per.torch.Buffer(inside)
    observation = torch.arange(5.0)[:, None, None].expand(5, 2, 3)
    arrays = {"observation": observation, "action": torch.ones(5, 2, dtype=torch.int64), "reward": 0.5}
    flags = {"terminated": torch.zeros(5, 2, dtype=torch.bool), "truncated": False}
    expected = outside.extend(**arrays, **flags)
    found = compiled(lambda arrays, flags: replay.extend(**arrays, **flags))(arrays, flags)
    assert_equal(torch.as_tensor(expected), found)
    one = {"observation": torch.zeros(1, 3), "action": torch.ones(1, dtype=torch.int64), "env_ids": torch.tensor([1])}
    one |= {"reward": 1.0, "terminated": True, "truncated": False, "next_observation": torch.zeros(1, 3)}
    expected = outside.add(**one)
    assert_equal(torch.as_tensor(expected).reshape(1), compiled(lambda arrays: replay.add(**arrays))(one))
    assert bytes(outside) == bytes(inside)


def test_a_tree_in_a_program():
    outside, inside = per.SumTree(100, seed=2), per.SumTree(100, seed=2)
    tree = per.torch.Tree(inside)

    @compiled
    def step(indices, priorities):
        tree.update(indices, priorities)
        first = tree.sample(16, beta=0.5, scheme="independent")
        tree.update(first.indices, first.priorities * 2)
        return first, tree.sample(16)

    for t in range(3):
        indices, priorities = torch.arange(20) + t, torch.arange(20.0) + 1
        outside.update(indices, priorities)
        first = outside.sample(16, beta=0.5, scheme="independent")
        outside.update(first.indices, first.priorities * 2)
        expected = [torch.as_tensor(array) for draw in (first, outside.sample(16)) for array in draw]
        assert_equal(expected, step(indices, priorities))


# --------------------------------------------------------------------------------------------------------- the order


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_draw_sees_the_updates_before_it_and_no_later_ones(backend):
    buffer = filled(steps=6)
    ids = torch.as_tensor(buffer.live_ids())
    replay = per.torch.Buffer(buffer)

    @torch.compile(backend=backend, fullgraph=True)
    def program():
        found = []
        for chosen in (1, 4, 2):
            replay.update_priorities(
                ids, priorities=torch.nn.functional.one_hot(torch.tensor(chosen), len(ids)).float()
            )
            found.append(replay.sample(8).ids)
        return found

    for _ in range(2):
        assert [draw.unique().tolist() for draw in program()] == [[ids[chosen]] for chosen in (1, 4, 2)]


def test_calls_whose_results_nobody_uses_are_made():
    buffer = filled()
    replay = per.torch.Buffer(buffer)

    @compiled
    def program(step):
        replay.sample(4)
        replay.add(**step)
        replay.sample(4)

    before = buffer.stats()
    program(step_of("plain", 40))
    assert buffer.stats().samples - before.samples == 2
    assert buffer.stats().added - before.added == 1


def test_programs_and_calls_outside_of_them_take_turns():
    first, second = filled(), filled()
    replay = per.torch.Buffer(first)
    draws = [
        compiled(lambda: replay.sample(8).ids),
        lambda: first.sample(8).ids,
        compiled(lambda: replay.sample(8).ids),
    ]
    for draw in draws * 2:
        assert_equal(second.sample(8).ids, draw())


def test_two_buffers_in_one_program():
    pairs = [(filled(seed=seed), filled(seed=seed)) for seed in (1, 2)]
    replays = [per.torch.Buffer(inside) for _, inside in pairs]
    found = compiled(lambda: [replay.sample(8).ids for replay in replays])()
    assert_equal([outside.sample(8).ids for outside, _ in pairs], found)


# ---------------------------------------------------------------------------------------------------------- learning


def train(replay, backend):
    """Steps of Q-learning with weights, momentum and new priorities, all of a step in one graph."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(3, 5, generator=generator) / 10
    momentum = torch.zeros(3, 5)

    def step(t):
        batch = replay.sample(16)

        def loss_of(weight):
            value = (batch.observation @ weight).gather(1, batch.action[:, None])[:, 0]
            following = (batch.next_observation @ weight).amax(1).detach()
            errors = batch.reward + batch.discount * following - value
            return (batch.weights * errors**2).mean(), errors

        gradient, (loss, errors) = torch.func.grad_and_value(loss_of, has_aux=True)(weight)
        replay.update_priorities(batch.ids, errors)
        momentum.mul_(0.9).add_(gradient)
        weight.sub_(momentum, alpha=1e-4)
        return loss

    if backend is not None:
        step = torch.compile(step, backend=backend, fullgraph=True)
    return torch.stack([step(t) for t in range(5)]), weight


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_whole_training_step_is_one_graph(backend):
    if backend == "inductor" and (IS_CUDA or not has_compiler()):
        pytest.skip("inductor compiles C++ here, for tensors in host memory")
    outside, inside = filled(), filled()
    expected = train(per.torch.Buffer(outside), None)
    found = train(per.torch.Buffer(inside), backend)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other)
    assert outside.stats().samples == inside.stats().samples == 5
    assert_equal(outside.sample(8).ids, inside.sample(8).ids)


def has_compiler():
    from torch._inductor import cpp_builder, exc

    with contextlib.suppress(exc.InvalidCxxCompiler):
        return bool(cpp_builder.get_cpp_compiler())
    return False


@pytest.mark.skipif(IS_CUDA, reason="the program looks for a device of torch")
def test_the_example_runs():
    program = pathlib.Path(__file__).resolve().parents[3] / "examples" / "integrations" / "torch_compile.py"
    command = [sys.executable, program, "--short", "--backend", "aot_eager"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert re.search(r"700 steps, \d+ us a training step \(aot_eager\)", result.stdout)


def test_errors_that_carry_a_gradient_set_priorities_and_leave_it_alone():
    buffer = filled()
    replay = per.torch.Buffer(buffer)
    scale = torch.tensor(2.0, requires_grad=True)

    @compiled
    def loss_of():
        batch = replay.sample(8)
        errors = batch.reward * scale
        replay.update_priorities(batch.ids, errors)
        return batch.ids, (batch.weights * errors).sum(), (batch.weights * batch.reward).sum()

    for _ in range(2):
        ids, loss, expected = loss_of()
        loss.backward()
        torch.testing.assert_close(scale.grad, expected)
        scale.grad = None
        assert not replay._turn.requires_grad
        assert torch.as_tensor(buffer.priorities(ids)).min() >= 0


# ------------------------------------------------------------------------------------------------------------ errors


def test_errors_come_out_of_the_program_and_change_nothing():
    buffer = filled()
    replay = per.torch.Buffer(buffer)
    update = compiled(replay.update_priorities)
    before = buffer.priorities(buffer.live_ids())
    with pytest.raises(per.InvalidArgument, match=said("99999", "1 of ids|skipped")):
        update(torch.tensor([99999]), torch.ones(1))
        buffer.synchronize()
    assert_equal(torch.as_tensor(before), torch.as_tensor(buffer.priorities(buffer.live_ids())))


def test_tensors_without_numbers_are_refused_by_name_and_change_nothing():
    buffer = filled()
    replay, tree = per.torch.Buffer(buffer), per.torch.Tree(per.SumTree(10))
    before, step = bytes(buffer), step_of("plain", 40)
    ids, one, meta = torch.zeros(1, dtype=torch.int64), torch.ones(1), torch.ones(1, device="meta")
    calls = {
        "observation": lambda: replay.add(**step | {"observation": torch.zeros(3, device="meta")}),
        "reward": lambda: replay.extend(**{name: value[None] for name, value in step.items()} | {"reward": meta}),
        "ids": lambda: replay.update_priorities(ids.to("meta"), one),
        "td_errors": lambda: replay.update_priorities(ids, meta),
        "priorities": lambda: replay.update_priorities(ids, priorities=meta),
        "indices": lambda: tree.update(ids.to("meta"), one),
    }
    for name, call in calls.items():
        with pytest.raises(
            per.InvalidArgument, match=f"^{name} is on the meta device, .*; allowed: {buffer.options['device']}"
        ):
            call()
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match="td_errors is on the meta device"):
        compiled(replay.update_priorities)(ids, meta)
    assert bytes(buffer) == before


def test_calls_are_made_where_the_buffer_is_whatever_the_default_device():
    outside, inside = filled(), filled()
    expected = outside.sample(8)
    trees = [per.SumTree(10, seed=2) for _ in range(2)]
    for tree in trees:
        tree.update(torch.arange(10), torch.ones(10))
    with torch.device("meta"):
        found = per.torch.Buffer(inside).sample(8)
        draw = per.torch.Tree(trees[1]).sample(4)
    assert_equal(tuple(expected.values()), tuple(found))
    assert_equal([torch.as_tensor(array) for array in trees[0].sample(4)], draw)


@pytest.mark.parametrize("wrap", [lambda program: program, compiled])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_function_that_a_backward_pass_computes_again_draws_nothing_else(wrap, use_reentrant):
    from torch.utils.checkpoint import checkpoint

    if use_reentrant and wrap is compiled:
        pytest.skip("torch compiles the other kind only")
    buffer = filled()
    replay, weight = per.torch.Buffer(buffer), torch.ones(3, requires_grad=True)
    observation = replay.sample(8).observation

    def program(weight, observation=None):
        drawn = replay.sample(8).observation if observation is None else observation
        return (drawn @ weight).sin().sum()

    with pytest.raises(per.InvalidArgument, match=r"sample\(\) is called inside of backward\(\)"):
        wrap(lambda weight: checkpoint(program, weight, use_reentrant=use_reentrant))(weight).backward()
    assert buffer.stats().samples == 2
    wrap(lambda weight: checkpoint(program, weight, observation, use_reentrant=use_reentrant))(weight).backward()
    torch.testing.assert_close(weight.grad, observation.T @ (observation @ weight.detach()).cos())

    step = step_of("plain", 40)
    hooked = torch.ones((), requires_grad=True)
    hooked.register_hook(lambda _: replay.add(**step))
    with pytest.raises(per.InvalidArgument, match=r"add\(\) is called inside of backward\(\)"):
        hooked.backward()
    assert buffer.stats().added == 40


def test_a_batch_of_no_transitions_is_refused_as_outside():
    buffer = filled()
    for call in (buffer.sample, per.torch.Buffer(buffer).sample, per.torch.Tree(per.SumTree(10)).sample):
        for size in (0, -1):
            with pytest.raises(per.InvalidArgument, match=rf"^batch_size is {size}: allowed are 1"):
                call(size)
    empty = {name: array[:0] for name, array in buffer.sample(4).items()}
    with pytest.raises(per.InvalidArgument, match=r"^batch_size is 0: allowed are 1"):
        buffer.sample(0, out=per.Batch(empty))


def test_a_buffer_that_is_gone_or_closed_is_refused_by_name():
    buffer = filled()
    replay = per.torch.Buffer(buffer)
    number, turn = replay._number, replay._turn
    ids = torch.zeros(1, dtype=torch.int64)

    def update(turn, ids):
        torch.ops.libper.update(turn, number, ids, None, torch.ones(1))

    program = compiled(update)
    program(turn, ids)
    buffer.close()
    with pytest.raises(per.InvalidArgument, match="closed"):
        program(turn, ids)
    del buffer, replay
    gc.collect()
    with pytest.raises(per.InvalidArgument, match=rf"buffer or tree {number} of per.torch, which is gone"):
        program(turn, ids)
    fresh = per.torch.Buffer(filled())
    assert fresh._number != number


def test_a_copy_calls_its_own_buffer():
    program = per.torch.Buffer(buffer_of())
    program.add(**step_of("plain", 0))
    others = copy.deepcopy(program), pickle.loads(pickle.dumps(program))
    for other in others:
        compiled(other.add)(**step_of("plain", 1))
    copy.copy(program).add(**step_of("plain", 1))  # of the same buffer
    assert [each._of.stats().added for each in (program, *others)] == [2, 2, 2]
    assert len({id(each._of) for each in (program, *others)}) == 3


def test_sequences_of_another_n_step_are_refused_by_name():
    buffer = buffer_of("sequences")
    program = per.torch.Buffer(buffer)
    for t in range(30):
        buffer.add(**step_of("sequences", t))
    before = buffer.n_step
    buffer.n_step = 3
    draws = buffer.stats().samples
    with pytest.raises(per.InvalidArgument, match=r"^batches of the buffer are others .* n_step, which is 3;"):
        program.sample(2)
    assert buffer.stats().samples == draws
    assert per.torch.Buffer(buffer).sample(2).observation.shape == buffer.sample(2).observation.shape
    buffer.n_step = before
    assert program.sample(2).observation.shape == buffer.sample(2).observation.shape


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda replay, ids: replay.sample(2.5), "batch_size is 2.5, a float; allowed: an int"),
        (lambda replay, ids: replay.update_priorities(ids, np.ones(2)), "td_errors is a ndarray; allowed: tensors"),
        (lambda replay, ids: replay.update_priorities(ids.numpy(), ids), "ids is a ndarray; allowed: tensors"),
        (
            lambda replay, ids: replay.add(**{**step_of("plain", 40), "observation": np.ones(2)}),
            "observation is a ndarray; allowed: tensors and numbers",
        ),
        (
            lambda replay, ids: replay.add(**{**step_of("plain", 40), "reward": {1.0}}),
            "reward is a set; allowed: tensors and numbers",
        ),
        (lambda replay, ids: replay.update_priorities(None, priorities=ids), "ids is None; allowed: tensors"),
        (lambda replay, ids: per.torch.Buffer(None), "buffer is None; allowed: a per.ReplayBuffer"),
    ],
)
def test_what_is_no_tensor_is_refused_in_words_of_libper(call, message):
    buffer = filled()
    before = buffer.stats()
    with pytest.raises(per.InvalidArgument, match=f"^{re.escape(message)}"):
        call(per.torch.Buffer(buffer), torch.as_tensor(buffer.live_ids())[:2])
    assert buffer.stats() == before


@pytest.mark.parametrize("kind", [int, np.int64, torch.tensor])
def test_a_size_of_any_kind_draws_once(kind):
    buffer, twin = filled(), filled()
    program = per.torch.Buffer(buffer)
    for _ in range(2):
        assert torch.equal(program.sample(kind(4)).ids, twin.sample(4).ids)
    assert buffer.stats() == twin.stats()
    tree, other = (per.SumTree(8, seed=3) for _ in range(2))
    tree.update(range(8), np.ones(8, np.float32))
    other.update(range(8), np.ones(8, np.float32))
    for _ in range(2):
        assert per.torch.Tree(tree).sample(kind(3)).indices.tolist() == other.sample(3).indices.tolist()


@pytest.mark.parametrize("default", [torch.float32, torch.bfloat16])
def test_numbers_are_read_as_outside_of_a_program(default):
    fields = {"observation": per.Field((), "float64"), "n": per.Field((), "uint8"), "of": per.Field((), "uint64")}
    buffer, twin = (per.ReplayBuffer(20, fields, n_envs=2, arrays="torch") for _ in range(2))
    program = per.torch.Buffer(buffer)
    flags = {"terminated": True, "truncated": False}
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        for env_ids in (torch.tensor([[1]]), 1, torch.tensor(0)):
            step = {"observation": 0.1, "n": 5, "of": 2**40 + 1, "reward": 1001.0, "td_errors": 0.3, **flags}
            arrays = {"env_ids": env_ids, "next_observation": 0.2, **step}
            assert torch.equal(program.add(**arrays), torch.as_tensor(twin.add(**arrays)).reshape(-1))
    finally:
        torch.set_default_dtype(before)
    assert bytes(buffer) == bytes(twin)
    for name, value in (("n", 256), ("n", -1), ("of", 2**70), ("observation", 2**70)):
        with pytest.raises(per.InvalidArgument, match=rf"^{name} is {value}; allowed: "):
            program.add(**{**arrays, name: value})
    assert bytes(buffer) == bytes(twin)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda program, tree: program.sample(2, beta="x"), "beta is 'x'; allowed: a number"),
        (lambda program, tree: program.sample(2, scheme=3), "scheme is 3; allowed: str"),
        (lambda program, tree: program.sample(2**40), "batch_size is 1099511627776"),
        (lambda program, tree: tree.sample(2, beta=None), "beta is None, scheme is 'stratified'; allowed"),
        (lambda program, tree: tree.sample(2, scheme=3), "scheme is 3; allowed: str"),
        (
            lambda program, tree: program.extend(reward=1.0, terminated=False, truncated=False),
            "terminated is a bool; allowed: a tensor of K rows",
        ),
    ],
)
def test_what_torch_would_refuse_is_refused_in_words_of_libper(call, message):
    buffer = filled()
    before = buffer.stats()
    tree = per.SumTree(8)
    tree.update([1], np.ones(1, np.float32))
    with pytest.raises(per.InvalidArgument, match=f"^{re.escape(message)}"):
        call(per.torch.Buffer(buffer), per.torch.Tree(tree))
    assert buffer.stats() == before


def test_batches_that_a_state_changed_are_refused():
    buffer = filled()
    program = per.torch.Buffer(buffer)
    other = per.ReplayBuffer(buffer.capacity, buffer.fields, n_envs=buffer.n_envs, keep_times_sampled=True)
    buffer.load_state_dict(other.state_dict())
    with pytest.raises(per.InvalidArgument, match=r"^batches of the buffer are others than when"):
        program.sample(2)


def test_arrays_of_another_library_are_refused():
    with pytest.raises(per.InvalidArgument, match="buffer has arrays='numpy'; allowed: 'torch'"):
        per.torch.Buffer(per.ReplayBuffer(10, FIELDS, arrays="numpy"))


def test_operators_are_what_torch_asks_of_them():
    buffer = filled()
    replay = per.torch.Buffer(buffer)
    tree = per.torch.Tree(per.SumTree(10))
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
    ids = torch.as_tensor(buffer.live_ids())[:4]
    arrays = [replay._new((4, *shape), dtype) for _, shape, dtype in replay._outputs]
    step = step_of("plain", 40)
    new_ids = torch.zeros(1, dtype=torch.int64)
    calls = {
        "sample": (replay, (arrays, 0.5, "systematic", None, None, None)),
        "update": (replay, (ids, torch.ones(4), None)),
        "add": (replay, (new_ids, False, list(step), list(step.values()))),
        "tree_update": (tree, (torch.arange(10), torch.ones(10))),
        "tree_sample": (tree, ([torch.zeros(4, dtype=torch.int64), torch.zeros(4), torch.zeros(4)], 0.5, "stratified")),
    }
    for name, (holder, arguments) in calls.items():
        operator = getattr(torch.ops.libper, name).default
        if name in ("update", "tree_update"):  # the results of the others differ from call to call
            torch.library.opcheck(operator, (holder._turn, holder._number, *arguments), test_utils=tests)
        else:
            torch.library.opcheck(operator, (holder._turn, holder._number, *arguments), test_utils=tests[:2])


@pytest.mark.parametrize("name", ["agent-pos", "class", "_log"])
def test_field_that_is_no_attribute_of_a_named_tuple_is_refused(name):
    fields = {"observation": per.Field(), name: per.Field()}
    with pytest.raises(per.Unsupported, match=f"^field {name} is no attribute of a named tuple"):
        per.torch.Buffer(per.ReplayBuffer(10, fields, arrays="torch"))


def test_keys_of_dicts_are_those_of_the_user_in_a_program():
    buffer = per.ReplayBuffer(10, {r"observation.a\.b": per.Field(), r"observation.\0": per.Field()}, arrays="torch")
    replay = per.torch.Buffer(buffer)

    @compiled
    def step(observation):
        replay.add(observation=observation, reward=0.0, terminated=True, truncated=False, next_observation=observation)
        return replay.sample(2).observation

    found = step({"a.b": torch.tensor(3.0), "0": torch.tensor(4.0)})
    assert {key: array.tolist() for key, array in found.items()} == {"a.b": [3, 3], "0": [4, 4]}
