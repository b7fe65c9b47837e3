"""Runs tests that were written for buffers in host memory on CUDA: what is the default there, and what cannot be."""

from __future__ import annotations

import contextlib
import functools
import os

import per
from device_memory import JaxStandIn, NumpyStandIn, TorchStandIn
from per import _device_arrays, _kinds, _library
from per._library import lib

IS_CUDA = os.environ.get("PER_TEST_DEVICE", "cpu") == "cuda"

CPU_ONLY = "this is said of the CPU, or of its device by name"
CHOOSES = "chooses its devices by itself"
PARTS = "on CUDA entries that are wrong are skipped and reported, and the others take effect"
WHICH = "CUDA says how many entries were wrong, not which"
NO_CHILD = "a handle on CUDA cannot be used in a forked child"
STAND_IN = "the arrays of numpy that stand in for a device's are known less well than a device's own"

# Words of a test's name, and why it cannot run on CUDA.
REASONS = {
    "test_cuda.py": CHOOSES,
    "test_device_arrays.py": CHOOSES,
    "test_library.py": CPU_ONLY,
    "test_package.py": CPU_ONLY,
    "test_examples.py": CPU_ONLY,
    "missing_device_says_so": CPU_ONLY,
    "test_repr_says_what_it_is": CPU_ONLY,
    "test_defaults_that_the_signatures_show": CPU_ONLY,
    "-arrays is '": CPU_ONLY,
    "most_steps_are_cuts_warns_once": "to look at the share of cuts would wait for the device",
    "test_forked_child_has_its_own_copy": NO_CHILD,
    "test_in_a_forked_child_the_loader_is_gone_and_the_buffer_is_not": NO_CHILD,
    "test_memory_is_what_a_buffer_takes_of_the_address_space": "the memory is the device's",
    "test_out_that_does_not_fit_is_refused": STAND_IN,
    "test_closing_a_buffer_in_use_waits_for_the_calls": "each call asks for a report here, and finds the buffer closed",
    "test_error_message_is_that_of_the_own_thread": WHICH,
    "those_out_of_range_are_refused": WHICH,
    "test_draws_without_replacement_are_distinct_and_no_more": WHICH,
    "test_steps_added_while_values_are_computed": WHICH,
    "bootstrap_values": WHICH,
    "] is": WHICH,
    "] gives the priority": WHICH,
    "<lambda>-99": WHICH,
    "<lambda>-priorities]": PARTS,
    "test_what_died_meanwhile_is_an_error": PARTS,
    "test_error_in_a_later_step_adds_none_of_them": PARTS,
    "test_nan_is_refused_and_changes_nothing": PARTS,
    "test_ids_that_were_never_issued_are_an_error_and_change_nothing": PARTS,
    "test_without_replacement_no_more_can_be_drawn_than_there_are": PARTS,
    "test_several_critics_count_by_the_largest": PARTS,
    "test_walks_meet_ends_cuts_resets_late_updates_and_refusals": PARTS,
    "walks_agree_with_the_definitions[8-3-overwrite]": PARTS,  # these two fill a lane
    "walks_agree_with_the_definitions[19-3-overwrite]": PARTS,
}


def reason_to_skip(item):
    if not IS_CUDA:
        return None
    return next((reason for words, reason in REASONS.items() if words in item.nodeid), None)


def reported(buffer, call):
    """What a call gives; what it left to be reported is raised, and nothing of calls before."""
    if not IS_CUDA:
        return call()
    with contextlib.suppress(per.Error):
        buffer.synchronize()
    result = call()
    buffer.synchronize()
    return result


def run_on_cuda():
    """Makes buffers and trees whose device is not said CUDA's, with arrays of numpy, and their errors known at once."""
    _kinds.ON_DEVICE = ("numpy", "torch", "jax")
    _device_arrays.LIBRARIES = {"numpy": NumpyStandIn, "torch": TorchStandIn, "jax": JaxStandIn}
    for function in (per.ReplayBuffer.__init__, per.ReplayBuffer.load.__func__, per.SumTree.__init__):
        function.__kwdefaults__["device"] = "cuda"
    queued = ("add", "extend", "cut", "sample", "update_priorities", "priorities", "get", "set", "advantages")
    for name in queued:
        setattr(per.ReplayBuffer, name, _reporting(getattr(per.ReplayBuffer, name)))
    for name in ("update", "sample", "find", "find_mass", "priorities"):
        setattr(per.SumTree, name, _reporting(getattr(per.SumTree, name)))


def _reporting(method):
    @functools.wraps(method)
    def call(self, *args, **kwargs):
        result = method(self, *args, **kwargs)
        if not _skips(self):
            self.synchronize()
        return result

    return call


def _skips(owner):
    """Whether the buffer is to skip on the CPU, too, what is not allowed."""
    if isinstance(owner, per.SumTree):
        return False
    options = _library.new("per_replay_options")
    _library.check(lib.per_replay_describe(owner._handle, options))
    return _library.name_of("per_on_invalid", options.on_invalid) == "skip"
