"""Runs tests for buffers in host memory on CUDA: changes the default device, and skips what cannot run there."""

from __future__ import annotations

import contextlib
import functools
import os
import re

import per
from device_memory import JaxStandIn, NumpyStandIn, TorchStandIn
from per import _device_arrays, _kinds, _library
from per._library import lib

IS_CUDA = os.environ.get("PER_TEST_DEVICE", "cpu") == "cuda"

CPU_ONLY = "this is said of the CPU, or of its device by name"
CHOOSES = "chooses its devices by itself"
PARTS = "on CUDA entries that are wrong are skipped and reported, and the others take effect"
NO_CHILD = "a handle on CUDA cannot be used in a forked child"
STAND_IN = "the arrays of numpy that stand in for a device's are known less well than a device's own"
SOURCES = "it looks at sources alone"

# Files, tests or cases (by their parameters) that cannot run on CUDA, with the reason.
REASONS = {
    "test_bad_arguments.py": PARTS,
    "test_batch_memory.py": "arrays on a device are made by their library",
    "test_shared_loader.py": CPU_ONLY,
    "test_cuda.py": CHOOSES,
    "test_device_arrays.py": CHOOSES,
    "test_docstrings.py": SOURCES,
    "test_typing.py": SOURCES,
    "test_library.py": CPU_ONLY,
    "test_messages.py": CPU_ONLY,
    "test_interrupts.py": "handles are owned alike wherever their memory is",
    "test_weighted_losses.py": "losses of torch, which know no buffer",
    "test_torch.py::test_tensors_without_numbers_are_refused_by_name_and_change_nothing": STAND_IN,
    "test_odd_arrays.py": STAND_IN,
    "test_package.py": CPU_ONLY,
    "test_command.py": CPU_ONLY,
    "test_examples.py": CPU_ONLY,
    "test_storage.py": "rows on the disk are for the CPU",
    "test_compression.py": "compressed fields are for the CPU",
    "test_ragged.py": "on CUDA all rows have one length",
    "test_llm.py": "ledgers are databases in host memory",
    "test_llm_kills.py": "ledgers are databases in host memory",
    "test_sources.py::test_examples_in_docstrings_work[per.llm.groups]": "ledgers are databases in host memory",
    "test_file_format.py": "files are the same bytes, which cuda.replay_checkpoint_test compares",
    "test_checkpoint.py::test_interpreter_that_exits_ends_the_saves_that_run": "a program of its own has no stand-ins",
    "test_loader.py::test_in_a_forked_child_the_loader_is_gone_and_the_buffer_is_not": NO_CHILD,
    "test_loader.py::test_in_a_forked_child_no_slot_is_waited_for": NO_CHILD,
    "test_on_policy_model.py::test_random_walks_agree_with_the_definitions[8-3-overwrite]": "it fills a lane: " + PARTS,
    "test_on_policy_model.py::test_random_walks_agree_with_the_definitions[19-3-overwrite]": "it fills a lane: "
    + PARTS,
    "test_replay.py::test_bad_argument_is_named_with_its_value_and_changes_nothing[<lambda>-priorities]": PARTS,
    "test_replay.py::test_buffer_in_which_most_steps_are_cuts_warns_once": "to look at the share of cuts would wait",
    "test_replay.py::test_buffer_on_a_missing_device_says_so": CPU_ONLY,
    "test_replay.py::test_defaults_that_the_signatures_show_are_those_of_the_library": CPU_ONLY,
    "test_replay.py::test_memory_is_what_a_buffer_takes_of_the_address_space": "the memory is the device's",
    "test_replay.py::test_out_that_does_not_fit_is_refused_and_is_no_draw": STAND_IN,
    "test_replay.py::test_repr_says_what_it_is": CPU_ONLY,
    "test_replay.py::test_warnings_name_the_line_that_adds": "to look at the share of resets would wait",
    "test_replay_lanes.py::test_error_in_a_later_step_adds_none_of_them": PARTS,
    "test_replay_model.py::test_walks_meet_ends_cuts_resets_late_updates_and_refusals": PARTS,
    "test_threads.py::test_the_interpreter_exits_while_daemon_threads_are_in_calls": CHOOSES,
    "test_threads.py::test_closing_a_buffer_in_use_waits_for_the_calls": "the report after each call finds it closed",
    "test_threads.py::test_forked_child_has_its_own_copy": NO_CHILD,
    "test_tree.py::test_repr_says_what_it_is": CPU_ONLY,
    "test_tree.py::test_tree_on_a_missing_device_says_so": CPU_ONLY,
}


def names_of(item):
    """The names of a test's file, of the test, and of its case, without the parameter of the fixture each_way."""
    name = item.nodeid.rpartition("/")[2]
    for way in ("bridge", "plain"):
        name = name.replace(f"[{way}-", "[").removesuffix(f"[{way}]")
    return name.partition("::")[0], name.partition("[")[0], name


def rounds(n):
    """As many of `n` rounds as a simulated GPU has time for."""
    return -(-n // 10) if IS_CUDA else n


def said(on_cpu, on_cuda):
    """The expected message: on CUDA it has the number of invalid entries of a kind, where the CPU names the first."""
    return on_cuda if IS_CUDA else on_cpu


def names_an_entry(words):
    return re.match(r"\w+\[\d+\] (is|gives)", words) is not None


def reason_to_skip(item):
    if not IS_CUDA:
        return None
    return next((REASONS[name] for name in names_of(item) if name in REASONS), None)


def reported(buffer, call):
    """The result of a call. Raises the errors that it left to be reported, but none of earlier calls."""
    if not IS_CUDA:
        return call()
    with contextlib.suppress(per.Error):
        buffer.synchronize()
    result = call()
    buffer.synchronize()
    return result


def run_on_cuda():
    """Makes CUDA the default device of buffers and trees, with numpy arrays and immediate errors."""
    _kinds.ON_DEVICE = ("numpy", "torch", "jax")
    _device_arrays.LIBRARIES = {"numpy": NumpyStandIn, "torch": TorchStandIn, "jax": JaxStandIn}
    loads = per.ReplayBuffer.load.__func__, per.ReplayBuffer.from_bytes.__func__
    for function in (per.ReplayBuffer.__init__, *loads, per.SumTree.__init__):
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
    """Whether the buffer is to skip invalid values on the CPU, too."""
    if isinstance(owner, per.SumTree):
        return False
    options = _library.new("per_replay_options")
    _library.check(lib.per_replay_describe(owner._handle, options))
    return _library.name_of("per_on_invalid", options.on_invalid) == "skip"
