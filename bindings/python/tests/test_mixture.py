"""Mixtures: batches of several buffers, against the same buffers drawn by themselves."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import per
import pytest
from cuda_switch import IS_CUDA

SHARES = {"online": 0.5, "demonstrations": 0.3, "replayed": 0.2}
LIVE = {"online": 120, "demonstrations": 40, "replayed": 9}


def buffer_of(name, fields=None, **options):
    """A buffer with rows and priorities that differ from buffer to buffer."""
    number = list(SHARES).index(name)
    numbers = np.random.default_rng(number)
    n = LIVE[name] + 1
    observations = numbers.normal(size=(n, 2)).astype(np.float32)
    fields = {"observation": per.Field(2), "action": per.Field(dtype="int64")} if fields is None else fields
    buffer = per.ReplayBuffer(200, fields, **{"seed": number, "alpha": 0.4 + 0.1 * number} | options)
    flags = np.zeros(n, bool)
    given = {"observation": observations, "action": numbers.integers(0, 9, n)}
    if "observation.image" in fields:
        given["observation"] = {"image": observations, "speed": observations[:, 0]}
    ids = buffer.extend(**given, reward=numbers.normal(size=n), terminated=flags, truncated=flags)
    buffer.update_priorities(ids[:-1], priorities=numbers.exponential(size=n - 1))
    return buffer


def mixture_of(shares=SHARES, **options):
    """Returns a mixture, and a second set of the same buffers."""
    sources = {name: (buffer_of(name, **options), share) for name, share in shares.items()}
    return per.Mixture(sources), [buffer_of(name, **options) for name in shares]


def parts_of(batch, twins, **choices):
    """Lets each twin draw its rows of this batch. Returns their batches, and P(i) by the definition of a mixture."""
    counts = np.bincount(batch.sources, minlength=len(twins))
    parts = [
        twin.sample(int(n), normalize_weights="none", **choices) for twin, n in zip(twins, counts, strict=True) if n
    ]
    shares = np.array(list(SHARES.values()))[: len(twins)]
    alone = np.concatenate([np.asarray(part.probabilities, np.float64) for part in parts])
    return parts, (shares / shares.sum())[np.asarray(batch.sources)] * alone


@pytest.mark.parametrize("scheme", ["stratified", "independent", "systematic", "without_replacement"])
@pytest.mark.parametrize("normalize_weights", ["batch_max", "none"])
def test_rows_are_those_of_the_buffers_and_weights_those_of_the_union(scheme, normalize_weights):
    mixture, twins = mixture_of()
    for size in (33, 33, 16, 1):
        batch = mixture.sample(size, scheme=scheme, beta=0.7, normalize_weights=normalize_weights)
        parts, probabilities = parts_of(batch, twins, scheme=scheme, beta=0.7)
        for name in parts[0]:
            if name not in ("weights", "probabilities"):
                np.testing.assert_array_equal(batch[name], np.concatenate([part[name] for part in parts]))
        weights = (sum(LIVE.values()) * probabilities) ** -0.7
        weights /= weights.max() if normalize_weights == "batch_max" else 1
        np.testing.assert_allclose(batch.probabilities, probabilities, rtol=1e-6)
        np.testing.assert_allclose(batch.weights, weights, rtol=3e-6)


def test_updates_find_their_buffers():
    mixture, twins = mixture_of()
    for round in range(4):
        batch = mixture.sample(32)
        parts_of(batch, twins)
        given = {"td_errors" if round % 2 else "priorities": np.random.default_rng(round).random(32)}
        mixture.update_priorities(batch, **given)
        for number, twin in enumerate(twins):
            own = np.asarray(batch.sources) == number
            twin.update_priorities(batch.ids[own], **{name: values[own] for name, values in given.items()})
    for buffer, twin in zip(mixture.buffers.values(), twins, strict=True):
        assert bytes(buffer) == bytes(twin)


def test_shares_are_exact_in_the_long_run_and_may_change():
    mixture, _ = mixture_of()
    counts = sum(np.bincount(mixture.sample(7).sources, minlength=3) for _ in range(100))
    assert (abs(counts - 700 * np.array([0.5, 0.3, 0.2])) < 1).all()
    mixture.shares = {"online": 0, "demonstrations": 3, "replayed": 1}
    assert mixture.shares == {"online": 0.0, "demonstrations": 0.75, "replayed": 0.25}
    counts = sum(np.bincount(mixture.sample(7).sources, minlength=3) for _ in range(100))
    assert (abs(counts - 700 * np.array([0, 0.75, 0.25])) < 2).all()
    halves = per.Mixture({"a": (buffer_of("online"), 1), "b": (buffer_of("demonstrations"), 1)})
    assert [np.bincount(halves.sample(33).sources).tolist() for _ in range(4)] == [[17, 16], [16, 17]] * 2


def test_a_mixture_continues_from_its_state():
    mixture, _ = mixture_of()
    mixture.sample(7)
    state = pickle.loads(pickle.dumps(mixture.state_dict()))
    saved = {name: bytes(buffer) for name, buffer in mixture.buffers.items()}
    resumed = per.Mixture({name: (per.ReplayBuffer.from_bytes(data), 1) for name, data in saved.items()})
    resumed.load_state_dict(state)
    for _ in range(3):
        expected, batch = mixture.sample(7), resumed.sample(7)
        for name in expected:
            np.testing.assert_array_equal(batch[name], expected[name])


def test_an_empty_buffer_gives_its_share_to_the_others():
    buffers = {name: buffer_of(name) for name in SHARES}
    buffers["demonstrations"].clear()
    sources = {name: (buffers[name], share) for name, share in SHARES.items()}
    if not IS_CUDA:  # where only the device knows
        with pytest.raises(per.Empty, match=r"sources\['demonstrations'\]: no transition is live"):
            per.Mixture(sources).sample(70)
    mixture = per.Mixture(sources, when_empty="others")
    for again in (mixture, pickle.loads(pickle.dumps(mixture))):
        batch = again.sample(70)
        assert np.bincount(batch.sources, minlength=3).tolist() == [50, 0, 20]
        assert again.state_dict()["carries"]["demonstrations"] == 0
    two = {"action": [0, 0], "reward": [0, 0], "terminated": [0, 0], "truncated": [0, 0]}
    buffers["demonstrations"].extend(observation=[[0, 0]] * 2, **two)
    assert np.bincount(mixture.sample(70).sources).tolist() == [35, 21, 14]
    with pytest.raises(per.InvalidArgument, match="when_empty is 'drops'; allowed: 'error', 'others'"):
        per.Mixture(sources, when_empty="drops")


def test_a_pickled_mixture_continues_with_its_buffers():
    mixture, _ = mixture_of()
    mixture.sample(7)
    resumed, online = pickle.loads(pickle.dumps((mixture, mixture.buffers["online"])))
    assert resumed.buffers["online"] is online
    for _ in range(3):
        expected, batch = mixture.sample(7), resumed.sample(7)
        for name in expected:
            np.testing.assert_array_equal(batch[name], expected[name])
        for of, drawn in ((mixture, expected), (resumed, batch)):
            of.update_priorities(drawn, np.arange(7))


class Named(per.Mixture):
    """Its constructor takes other arguments than that of Mixture."""

    def __init__(self, name, sources):
        super().__init__(sources, when_empty="others")
        self.name = name


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda mixture: pickle.loads(pickle.dumps(mixture))])
def test_a_copied_mixture_keeps_its_class_its_attributes_and_every_digit_of_its_shares(copied):
    sources = dict(zip(("a", "b", "c"), mixture_of()[0].buffers.values(), strict=False))
    mixture = Named("mine", {name: (buffer, 0.1 + i / 7) for i, (name, buffer) in enumerate(sources.items())})
    mixture.sample(7)
    twin = copied(mixture)
    assert (type(twin), twin.name, repr(twin)) == (Named, "mine", repr(mixture))
    assert [source.share for source in twin._sources] == [source.share for source in mixture._sources]
    assert twin.state_dict() == mixture.state_dict()
    assert (twin.buffers["a"] is mixture.buffers["a"]) == (copied is copy.copy)


def test_a_batch_without_ids_is_refused():
    mixture, _ = mixture_of()
    with pytest.raises(per.InvalidArgument, match=r"^batch is a Batch; allowed: a batch that sample\(\)"):
        mixture.update_priorities(per.Batch({"sources": mixture.sample(3).sources}), np.ones(3))


@pytest.mark.parametrize("options", [{"sequence_length": 4, "burn_in": 2, "n_step": 2}, {"keep_times_sampled": True}])
def test_sequences_and_times_sampled(options):
    mixture, twins = mixture_of(**options)
    batch = mixture.sample(20)
    parts, _ = parts_of(batch, twins)
    assert set(batch) == set(parts[0]) | {"sources"}
    for name in parts[0]:
        if name not in ("weights", "probabilities"):
            np.testing.assert_array_equal(batch[name], np.concatenate([part[name] for part in parts]))
    errors = np.ones((20, 6) if "burn_in" in options else 20)
    mixture.update_priorities(batch, errors)


def test_batches_have_times_sampled_if_all_buffers_keep_them():
    sources = {"a": (buffer_of("online", keep_times_sampled=True), 1), "b": (buffer_of("demonstrations"), 1)}
    for mixture in (per.Mixture(sources), per.Mixture(dict(reversed(sources.items())))):
        batch = mixture.sample(6)
        assert "times_sampled" not in batch and mixture.sample(6, out=batch) is batch
    counting = per.Mixture({name: (buffer_of(name, keep_times_sampled=True), 1) for name in ("online", "replayed")})
    assert "times_sampled" in counting.sample(6)
    counting.buffers["replayed"].load_state_dict(buffer_of("replayed").state_dict())
    assert "times_sampled" not in counting.sample(6)
    counting.buffers["replayed"].load_state_dict(buffer_of("replayed", keep_times_sampled=True).state_dict())
    assert "times_sampled" in counting.sample(6)


def test_batches_have_the_containers_and_arrays_of_the_buffers():
    fields = {"observation.image": per.Field(2), "observation.speed": per.Field(), "action": per.Field(dtype="int64")}
    mixture, _ = mixture_of(fields=fields, arrays="torch")
    batch = mixture.sample(8)
    assert set(batch.observation) == {"image", "speed"} and batch.observation["image"].shape == (8, 2)
    assert type(batch.sources) is type(batch.weights) and tuple(batch.sources.shape) == (8,)
    again = mixture.sample(8, out=batch)
    assert again is batch and "sources" in repr(batch)
    mixture.update_priorities(batch, batch.weights)


def test_batches_are_overwritten_in_place():
    mixture, _ = mixture_of()
    other, _ = mixture_of()
    batch, address = mixture.sample(8), None
    address = batch.reward.ctypes.data
    expected = [other.sample(8) for _ in range(2)][1]
    assert mixture.sample(8, out=batch) is batch and batch.reward.ctypes.data == address
    for name in expected:
        np.testing.assert_array_equal(batch[name], expected[name])
    of_buffer = mixture.buffers["online"].sample(8)
    with pytest.raises(per.InvalidArgument, match=r"^out.sources is "):
        mixture.sample(8, out=of_buffer)
    with pytest.raises(AttributeError, match=r"has no sources; those of a per.Mixture do"):
        _ = of_buffer.sources


def test_threads_take_turns():
    mixture, _ = mixture_of()
    reverse = per.Mixture({name: (buffer, 1) for name, buffer in reversed(mixture.buffers.items())})
    counts = []

    def draw(of):
        for _ in range(50):
            batch = of.sample(7)
            of.update_priorities(batch, np.ones(7))
        counts.append(len(batch.ids))

    threads = [threading.Thread(target=draw, args=(of,)) for of in (mixture, reverse, mixture, reverse)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [7] * 4
    assert sum(buffer.stats().updates for buffer in mixture.buffers.values()) == sum(LIVE.values()) + 4 * 50 * 7 - sum(
        buffer.stats().stale_updates for buffer in mixture.buffers.values()
    )


def test_a_buffer_that_is_closed_during_a_draw_lives_until_its_end():
    for _ in range(5):
        mixture, _ = mixture_of()
        sizes = []

        def draw(mixture=mixture, sizes=sizes):
            with pytest.raises(per.InvalidArgument, match="the buffer is closed"):
                while True:
                    sizes.append(mixture.sample(2**16).size)

        thread = threading.Thread(target=draw)
        thread.start()
        while not sizes:
            pass
        mixture.buffers["online"].close()
        thread.join()
        assert set(sizes) == {2**16}


def online(**options):
    return buffer_of("online", **options)


BAD = {
    "no sources": (lambda: per.Mixture({}), "sources is {}; allowed: a dict of (buffer, share) by name, not empty"),
    "a list": (lambda: per.Mixture([online()]), "allowed: a dict of (buffer, share) by name"),
    "no share": (
        lambda: per.Mixture({"a": online()}),
        "sources['a'] is a ReplayBuffer; allowed: (ReplayBuffer, share)",
    ),
    "a negative share": (
        lambda: per.Mixture({"a": (online(), -1)}),
        "sources['a'].share is -1: must be finite and >= 0",
    ),
    "a share of text": (lambda: per.Mixture({"a": (online(), "1")}), "shares['a'] is '1', a str; allowed: a number"),
    "shares of zero": (lambda: per.Mixture({"a": (online(), 0)}), "the shares of all sources add up to 0"),
    "other shares": (
        lambda: setattr(mixture_of()[0], "shares", {"online": 1}),
        "shares has 'online'; allowed: 'online', 'demonstrations', 'replayed', all of them",
    ),
    "a state of another": (
        lambda: mixture_of()[0].load_state_dict({"shares": {}}),
        "state is {'shares': {}}; allowed: what state_dict() returned",
    ),
    "a carry out of range": (
        lambda: mixture_of()[0].load_state_dict({"shares": SHARES, "carries": dict.fromkeys(SHARES, 2**41)}),
        "sources['online'].carry is 2199023255552: allowed are",
    ),
    "the same twice": (
        lambda: [per.Mixture({"a": (one, 1), "b": (one, 1)}) for one in [online()]],
        "sources['b'] is that of sources['a']: each source needs its own buffer",
    ),
    "other fields": (
        lambda: per.Mixture({"a": (online(), 1), "b": (per.ReplayBuffer(9, {"observation": per.Field(2)}), 1)}),
        "sources['b'] has 1 fields, and that of sources['a'] has 2: all must have the same",
    ),
    "other lengths": (
        lambda: per.Mixture({"a": (online(), 1), "b": (online(sequence_length=3), 1)}),
        "sequence_length of sources['b'] is 3, and of sources['a'] 0: must be the same",
    ),
    "a field named sources": (
        lambda: per.Mixture({"a": (per.ReplayBuffer(9, {"observation": per.Field(), "sources": per.Field()}), 1)}),
        "field sources has the name of an array of a mixture's batches",
    ),
    "max_times_sampled": (
        lambda: per.Mixture(
            {"a": (online(max_times_sampled=1, keep_times_sampled=True, scheme="without_replacement"), 1)}
        ),
        "max_times_sampled of sources['a'] is 1: allowed in a mixture is 0",
    ),
    "buffer_max": (lambda: mixture_of()[0].sample(2, normalize_weights="buffer_max"), "normalize_weights is"),
    "a misspelt option": (
        lambda: mixture_of()[0].sample(2, bata=1),
        "unexpected keyword argument 'bata'; did you mean",
    ),
    "batch_size": (lambda: mixture_of()[0].sample(0), "batch_size is 0: allowed are 1 .. 16777216"),
    "ids in place of a batch": (
        lambda: mixture_of()[0].update_priorities([1], [1.0]),
        "batch is a list; allowed: a batch that sample() of a mixture gave",
    ),
    "a batch of a buffer": (
        lambda: mixture_of()[0].update_priorities(online().sample(2), [1, 1]),
        "batch is a Batch; allowed: a batch that sample() of a mixture gave",
    ),
    "too few errors": (
        lambda: [mixture.update_priorities(mixture.sample(3), [1, 1]) for mixture in [mixture_of()[0]]],
        "td_errors has shape [2]; allowed: [3]",
    ),
    "sources of another": (
        lambda: [
            mixture.update_priorities(per.Batch({"ids": [0, 1], "sources": [0, 3]}), [1, 1])
            for mixture in [mixture_of()[0]]
        ],
        "batch.sources[1] is 3: allowed are 0 .. 2",
    ),
    "neither": (
        lambda: [mixture.update_priorities(mixture.sample(3)) for mixture in [mixture_of()[0]]],
        "update_priorities needs td_errors or priorities, one of the two",
    ),
    "a closed buffer": (
        lambda: [(mixture.buffers["online"].close(), mixture.sample(3)) for mixture in [mixture_of()[0]]],
        "sources['online']: the buffer is closed",
    ),
    "n_step of a later buffer": (
        lambda: per.Mixture({"a": (online(n_step=2), 1), "b": (online(), 1)}).sample(3, n_step=2),
        "sources['b']: n_step is 2: allowed is 1, as n_step of the buffer is 1",
    ),
    "sequences of different lengths": (
        lambda: per.Mixture(
            {"a": (online(sequence_length=3), 1), "b": (online(sequence_length=3, n_step=2), 1)}
        ).sample(2),
        "n_step of 'b' is 2, and of 'a' 1; allowed for sequences: the same for all, or n_step as an argument",
    ),
    "a huge n_step of sequences": (
        lambda: mixture_of(sequence_length=3)[0].sample(2, n_step=2**31),
        "n_step is 2147483648: allowed is 1, as n_step of the buffer is 1",
    ),
    "a misspelt method": (lambda: mixture_of()[0].smaple, "has no attribute 'smaple'; did you mean sample?"),
    "a misspelt setting": (
        lambda: setattr(mixture_of()[0], "share", SHARES),
        "share cannot be set; of a mixture these can: shares; did you mean shares?",
    ),
}


if IS_CUDA:  # the device counts such entries
    del BAD["sources of another"]


@pytest.mark.parametrize("case", BAD)
def test_errors_say_what_is_allowed(case):
    call, message = BAD[case]
    with pytest.raises((per.Error, TypeError, AttributeError)) as caught:
        call()
    assert message in str(caught.value)


@pytest.mark.skipif(IS_CUDA, reason="only the device knows that nothing is live")
def test_a_call_that_fails_changes_no_buffer():
    empty = per.ReplayBuffer(9, {"observation": per.Field(2), "action": per.Field(dtype="int64")})
    buffer = online()
    mixture = per.Mixture({"a": (buffer, 1), "b": (empty, 1)})
    before, state = bytes(buffer), mixture.state_dict()
    with pytest.raises(per.Empty, match=r"^sources\['b'\]: no transition is live: no step was added yet"):
        mixture.sample(5)
    with pytest.raises(per.InvalidArgument):
        mixture.load_state_dict({"shares": {"a": 3, "b": 1}, "carries": {"a": 0, "b": 2**41}})
    assert bytes(buffer) == before and mixture.state_dict() == state
    with pytest.raises(per.InvalidArgument, match=r"arrays of 'b' is 'torch', and of 'a' 'numpy'"):
        per.Mixture({"a": (buffer, 1), "b": (buffer_of("replayed", arrays="torch"), 1)})
