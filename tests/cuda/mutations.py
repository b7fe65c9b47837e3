#!/usr/bin/env python3
"""Plants faults in copies of the CUDA sources and of their PTX, and shows that the tests on the simulated GPU see each.

    mutations.py BUILD [--tsan BUILD] [--pitfalls] [--unseen] [--jobs N] [NAME...]

    BUILD       a build folder in which the target `simulated` has been built; --tsan: another one, with ThreadSanitizer
    --pitfalls  only one or two of each kind that CUDA kernels of sum trees have had: a minute, the gate
    --unseen    only faults that BUILD has not seen caught since they, their sources or their tests last changed
    NAME        only faults with this in their names

A fault is compiled with BUILD's own commands - the file it is in, or those that include it - into a test program of its
own. It is caught if that program fails, or does not end. Exits with 1 if one is not caught, does not compile, or has no
place in the sources any more. A fault for another file is a line more in FAULTS; name the test that is to see it. One
in PTX_FAULTS is planted in the PTX that nvcc has made in BUILD, which is translated anew (tests/ptx), and stands for
what nvcc could do to a kernel whose source is right.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
SOURCES = REPOSITORY / "src"
TESTS = REPOSITORY / "tests" / "cuda"
TRANSLATE = REPOSITORY / "tests" / "ptx" / "translate.py"
TIME_LIMIT_S = 60  # of a processor: a busy machine is no catch
WAIT_LIMIT_S = 600

# The source whose kernels a test mostly runs. A fault in a header is planted there first, and in the other sources
# only if the test does not see it there.
MAIN_SOURCES = {
    "add_calls_test": "cuda/add/add_kernels.cu",
    "add_test": "cuda/add/add_kernels.cu",
    "clusters_test": "cuda/draw/live_draw.cu",
    "drawn_loader_test": "cuda/draw/live_draw.cu",
    "loader_test": "cuda/runtime/device.cu",
    "priorities_test": "cuda/replay/priorities.cu",
    "rated_adds_test": "cuda/add/add_kernels.cu",
    "replay_calls_test": "cuda/replay/priorities.cu",
    "replay_graphs_test": "cuda/draw/live_draw.cu",
    "sample_test": "cuda/draw/live_draw.cu",
    "times_sampled_test": "cuda/add/add_kernels.cu",
    "units_test": "cuda/replay/priorities.cu",
}


@dataclasses.dataclass
class Fault:
    name: str
    file: str
    original: str
    planted: str
    test: str = "tree_model_test"
    is_pitfall: bool = False  # one of those that the gate plants
    needs_tsan: bool = False  # a race that other schedules and ThreadSanitizer see, but not every build
    environment: dict[str, str] = dataclasses.field(default_factory=dict)  # of the test


@dataclasses.dataclass
class PtxFault:
    """A fault in the PTX of the last architecture: in one place of a function, or in all of them."""

    name: str
    file: str  # of the PTX, without its suffix
    function: str  # part of the mangled name
    original: str  # a regular expression; names of registers change with the sources
    planted: str
    test: str = "tree_model_test"
    place: int | None = 0  # which match in the function; None: all
    is_pitfall: bool = False
    needs_tsan: bool = False
    environment: dict[str, str] = dataclasses.field(default_factory=dict)

    def plant(self, ptx: str) -> str | None:
        """The file with the fault; None where it has no place there."""
        for header in re.finditer(r"^\.(?:entry|func)[^;{]*\{", ptx, re.MULTILINE):
            if self.function not in header[0]:
                continue
            end = ptx.index("\n}", header.end())
            body = ptx[header.end() : end]
            found = list(re.finditer(self.original, body))
            chosen = found if self.place is None else found[self.place :][:1]
            for match in reversed(chosen):
                body = body[: match.start()] + match.expand(self.planted) + body[match.end() :]
            return ptx[: header.end()] + body + ptx[end:] if chosen else None
        return None


FAULTS = [
    Fault(
        "full mask after an early return",
        "cuda/tree/tree_update.cu",
        "    n_bad = sum_of_warp(n_bad);",
        "    if (span.first >= batch.count) return;\n    n_bad = sum_of_warp(n_bad);",
        is_pitfall=True,
    ),
    Fault(
        "warp sum without one of its steps",
        "cuda/tree/sum_tree.h",
        "for (int bits = warp_size / 2; bits != 0; bits /= 2) value += __shfl_xor_sync(all_lanes, value, bits);",
        "for (int bits = warp_size / 4; bits != 0; bits /= 2) value += __shfl_xor_sync(all_lanes, value, bits);",
        is_pitfall=True,
    ),
    Fault(
        "a sum in shared memory that wraps does not carry",
        "cuda/runtime/dialect.h",
        "const uint32_t carry = before + low < before;",
        "const uint32_t carry = 0;",
    ),
    Fault(
        "a sum in shared memory is one of 64 bits",
        "cuda/runtime/dialect.h",
        "    const uint32_t low = static_cast<uint32_t>(value);\n",
        "    return (void)atomic_add(reinterpret_cast<uint64_t*>(&sum), value);\n"
        "    const uint32_t low = static_cast<uint32_t>(value);\n",
    ),
    Fault(
        "duplicates race: no claims",
        "cuda/tree/tree_update.cu",
        "if (atomicCAS(&tree.claims[entry.index], claim, 0u) == claim)",
        "atomicExch(&tree.claims[entry.index], 0u);",
        is_pitfall=True,
    ),
    Fault(
        "the first duplicate wins",
        "cuda/tree/tree_update.cu",
        "atomicMax(&tree.claims[index], static_cast<uint32_t>(i + 1));",
        "atomicCAS(&tree.claims[index], 0u, static_cast<uint32_t>(i + 1));",
    ),
    Fault("x <= sum in the descent", "cuda/tree/sum_tree.h", "rest < up_to)", "rest <= up_to)", is_pitfall=True),
    Fault(
        "x <= sum in the top row",
        "cuda/tree/sum_tree.h",
        "unit < row.prefix[chunk * fan_out + lane])",
        "unit <= row.prefix[chunk * fan_out + lane])",
        is_pitfall=True,
    ),
    Fault(
        "x <= sum in the chunks of the top row",
        "cuda/tree/sum_tree.h",
        "unit < row.prefix[lane",
        "unit <= row.prefix[lane",
    ),
    Fault(
        "targets in float32",
        "cuda/draw/tree_draw.cu",
        "draw_target(request, static_cast<uint64_t>(i), width, total)",
        "static_cast<uint64_t>(static_cast<float>(draw_target(request, static_cast<uint64_t>(i), width, total)))",
        is_pitfall=True,
    ),
    Fault(
        "the count of draws on the host's side of a graph",
        "cuda/draw/tree_draw.cu",
        "++state.n_empty_draws;\n    else\n        state.batches = batches + 1;",
        "++state.n_empty_draws;\n    else\n        state.batches = 0;",
        "tree_calls_test",
        is_pitfall=True,
    ),
    Fault(
        "a wait of the host in a draw",
        "cuda/tree/tree_backend.cu",
        "        queue_draw(tree_, sample, seed_, cluster_blocks_, call.stream());",
        "        queue_draw(tree_, sample, seed_, cluster_blocks_, call.stream()), "
        "cudaStreamSynchronize(order_.own_stream());",
        "tree_calls_test",
        is_pitfall=True,
    ),
    Fault(
        "an allocation in an update",
        "cuda/tree/tree_backend.cu",
        "    queue_update(tree_, count, indices, priorities, entries_for(count, call), call.stream());",
        "    DeviceMemory scratch(8);\n"
        "    queue_update(tree_, count, indices, priorities, entries_for(count, call), call.stream());",
        "tree_calls_test",
        is_pitfall=True,
    ),
    Fault(
        "work on the default stream",
        "cuda/tree/tree_backend.cu",
        "    queue_update(tree_, count, indices, priorities, entries_for(count, call), call.stream());",
        "    queue_update(tree_, count, indices, priorities, entries_for(count, call), nullptr);",
        "tree_calls_test",
        is_pitfall=True,
    ),
    Fault(
        "streams of one handle without an event between them",
        "cuda/runtime/stream_order.cu",
        'check(cudaStreamWaitEvent(stream_, order_.event_.get(), 0), "waiting for the stream of the last call");',
        ";",
        is_pitfall=True,
    ),
    Fault(
        "an event recorded before the work",
        "cuda/runtime/stream_order.cu",
        "const cudaError_t error = cudaEventRecord(order_.event_.get(), stream_);",
        "const cudaError_t error = order_.has_last_ ? cudaSuccess : cudaEventRecord(order_.event_.get(), stream_);",
    ),
    Fault(
        "indices are not checked",
        "cuda/tree/tree_update.cu",
        "return static_cast<uint64_t>(index) < static_cast<uint64_t>(tree.capacity);",
        "return index < tree.capacity;",
        "tree_calls_test",
        is_pitfall=True,
    ),
    Fault(
        "an index one too large is let through",
        "cuda/tree/tree_update.cu",
        "return static_cast<uint64_t>(index) < static_cast<uint64_t>(tree.capacity);",
        "return static_cast<uint64_t>(index) <= static_cast<uint64_t>(tree.capacity);",
        "tree_calls_test",
    ),
    Fault("infinity is let through", "cuda/tree/tree_update.cu", "priority <= FLT_MAX", "true", "tree_calls_test"),
    Fault(
        "NaN is let through",
        "cuda/tree/tree_update.cu",
        "priority >= 0.0f && priority <= FLT_MAX;",
        "!(priority < 0.0f) && !(priority > FLT_MAX);",
        "tree_calls_test",
        is_pitfall=True,
    ),
    Fault(
        "an index in 32 bits",
        "cuda/tree/sum_tree.h",
        "return {static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x,",
        "return {static_cast<int8_t>(blockIdx.x * blockDim.x + threadIdx.x),",
        is_pitfall=True,
    ),
    Fault(
        "a launch whose error is not looked at",
        "cuda/runtime/dialect.h",
        'check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "launching a kernel");',
        "static_cast<void>(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));",
        "tree_calls_test",
        is_pitfall=True,
    ),
    Fault(
        "a block comes to a meeting before all of its threads have",
        "cuda/runtime/dialect.h",
        "    __syncthreads();\n    if (threadIdx.x == 0) {\n        const Meeting before",
        "    if (threadIdx.x == 0) {\n        const Meeting before",
        needs_tsan=True,
    ),
    Fault(
        "a thread leaves a meeting before its block does",
        "cuda/runtime/dialect.h",
        "atomicOr(&meeting.ended, 1u);\n    }\n    __syncthreads();\n",
        "atomicOr(&meeting.ended, 1u);\n    }\n",
        needs_tsan=True,
    ),
    Fault(
        "a meeting ends one block too early",
        "cuda/runtime/dialect.h",
        "arrive(&meeting.n_arrived) == gridDim.x - 1;",
        "arrive(&meeting.n_arrived) == gridDim.x - 2;",
        is_pitfall=True,
    ),
    Fault(
        "a meeting ends before what it ends with is done",
        "cuda/runtime/dialect.h",
        "        if (is_last) at_end();\n        if (is_last && gridDim.x != 1) {\n            meeting.n_arrived = 0;\n"
        "            arrive(&meeting.ended, 2);\n        }\n",
        "        if (is_last && gridDim.x != 1) {\n            meeting.n_arrived = 0;\n"
        "            arrive(&meeting.ended, 2);\n        }\n        simulator::yield();\n"
        "        if (is_last) at_end();\n",
    ),
    Fault(
        "a meeting does not forget who came",
        "cuda/runtime/dialect.h",
        "            meeting.n_arrived = 0;\n",
        "",
    ),
    Fault(
        "a context is taken to have all multiprocessors of its device",
        "cuda/runtime/device.cu",
        "return std::min(of_device, static_cast<int>(resource.sm.smCount));",
        "return of_device;",
        "tree_calls_test",
    ),
    Fault(
        "a block waits for ever for one that does not come",
        "cuda/runtime/dialect.h",
        "if (++n_polls == PER_MAX_POLLS) atomicOr",
        "if (++n_polls == 0 && false) atomicOr",
        "tree_calls_test",
    ),
    Fault(
        "a tree keeps to itself that blocks have waited in vain",
        "cuda/tree/tree_backend.cu",
        "    require_ordered(copy->meeting);\n",
        "",
        "tree_calls_test",
    ),
    Fault(
        "a buffer keeps to itself that blocks have waited in vain",
        "cuda/replay/replay_backend.cu",
        "    cuda::require_ordered(copy.tree.meeting);\n",
        "",
        "replay_graphs_test",
    ),
    Fault(
        "blocks meet that do not run together",
        "cuda/runtime/dialect.h",
        "launch_with(&together, 1, stream",
        "launch_with(&together, 0, stream",
    ),
    Fault(
        "more blocks meet than run together",
        "cuda/tree/tree_update.cu",
        "blocks_for(count, n_threads, tree.max_blocks);",
        "blocks_for(count, n_threads);",
    ),
    Fault(
        "a draw's first block weighs, not its last",
        "cuda/draw/tree_draw.cu",
        "shared.is_last = arrive(&n_arrived) == gridDim.x - 1;",
        "shared.is_last = arrive(&n_arrived) == 0;",
    ),
    Fault(
        "a draw of many leaves is weighed twice",
        "cuda/draw/tree_draw.cu",
        "    if (!last_block_weighs) return;\n",
        "",
    ),
    Fault(
        "a thread's other entries are its first",
        "cuda/tree/sum_tree.h",
        "return i == first_ ? first_entry_ : others_[i];",
        "return first_entry_;",
    ),
    Fault(
        "a rebuild stops at eight of 32 nodes",
        "cuda/tree/tree_change.h",
        "        while (left != 0) {",
        "        if (left != 0) {",
    ),
    Fault(
        "a large tree is never rebuilt",
        "cuda/tree/tree_update.cu",
        "    if (!rebuilds) queue_rebuild(tree, stream);\n",
        "",
        "tree_calls_test",
    ),
    Fault(
        "a large buffer's tree is never rebuilt",
        "cuda/replay/leaf_change.h",
        "    if (!rebuilds) queue_rebuild(priorities.tree, priorities.ranks.tree, stream);\n",
        "",
        "replay_calls_test",
    ),
    Fault(
        "no barrier between levels of maxima",
        "cuda/replay/leaf_change.h",
        "        meet(meeting);\n        refresh_maxima(replay, slots, level);\n",
        "        refresh_maxima(replay, slots, level);\n",
        "priorities_test",
        needs_tsan=True,
    ),
    Fault(
        "no barrier before the claims are looked at",
        "cuda/draw/distinct_draw.h",
        "    if (is_drawn) atomicMax(&out.claims[index], claim);\n    __syncthreads();\n",
        "    if (is_drawn) atomicMax(&out.claims[index], claim);\n",
    ),
    Fault(
        "no rescale when the total falls",
        "cuda/tree/tree_change.h",
        "has_too_large, state.low_water);",
        "has_too_large, 0);",
    ),
    Fault("a carry is lost", "cuda/tree/sum_tree.h", "before + value.low < before;", "0;"),
    Fault("-0 is kept", "cuda/tree/tree_update.cu", "priority + 0.0f});  // -0", "priority});  // -0"),
    Fault(
        "an update reads an index twice",
        "cuda/tree/tree_update.cu",
        "        if (entry.index < 0) continue;",
        "        if (entry.index < 0 || !is_index(tree, batch.indices[i])) continue;",
        "tree_calls_test",
    ),
    Fault(
        "no rescale when a leaf is too large",
        "cuda/tree/tree_change.h",
        "        has_too_large |= change.is_too_large;\n",
        "",
    ),
    Fault(
        "a leaf that was too large is so for ever",
        "cuda/tree/tree_change.h",
        "    state.has_too_large = 0;\n",
        "",
    ),
    Fault(
        "differences below 0 are large",
        "cuda/tree/tree_change.h",
        "{change.difference, change.difference >> 63 != 0 ? ~uint64_t{0} : 0}",
        "{change.difference, 0}",
    ),
    Fault(
        "no rescale when the total is beyond 64 bits",
        "cuda/tree/tree_change.h",
        "const WideSum total = add_wide({state.total, 0}, state.sum);",
        "const WideSum total = {add_wide({state.total, 0}, state.sum).low, 0};",
    ),
    Fault(
        "a rebuild goes by the sums that it is to make",
        "cuda/tree/tree_change.h",
        "for_each_node(tree, 1, tree.state->plan == plan_rebuild,",
        "for_each_node(tree, 1, false,",
        "priorities_test",
    ),
    Fault(
        "without replacement: draws are left out where there are fewer warps than lanes",
        "cuda/draw/distinct_draw.h",
        "i < n; i += distinct_warps)",
        "i < n; i += warp_size)",
    ),
    Fault(
        "the top row without its last node",
        "cuda/tree/sum_tree.h",
        "if (first < tree.n_nodes[level])",
        "if (first < tree.n_nodes[level] - fan_out)",
    ),
    Fault(
        "the sum before a thread has that of its own warp",
        "cuda/tree/sum_tree.h",
        "i < warp ? sums[i] : 0",
        "i <= warp ? sums[i] : 0",
    ),
    Fault(
        "ranks: rows that die are counted as live",
        "cuda/replay/ranks.h",
        "(before != 0 ? 1 : 0))};",
        "0)};",
        "priorities_test",
    ),
    Fault(
        "claims are not given back",
        "cuda/draw/distinct_draw.h",
        "out.claims[out.indices[i]] = 0;",
        "static_cast<void>(i);",
    ),
    Fault(
        "what was taken out is not put back",
        "cuda/draw/distinct_draw.h",
        "source.put_back(out.indices[i]);",
        "{}",
    ),
    Fault(
        "the smallest mass of one block only",
        "cuda/draw/tree_draw.cu",
        "tree.smallest_masses[blockIdx.x] = smallest;",
        "tree.smallest_masses[blockIdx.x] = blockIdx.x == 0 ? smallest : ~uint64_t{0};",
    ),
    Fault(
        "the block with the largest number weighs, not the one that ends last",
        "cuda/draw/live_draw.cu",
        "arrive(&memory.facts->n_arrived) == gridDim.x - 1;",
        "blockIdx.x == gridDim.x - 1;",
        "sample_test",
    ),
    Fault(
        "blocks are counted on from draw to draw",
        "cuda/draw/live_draw.cu",
        "    if (threadIdx.x == 0) memory.facts->n_arrived = 0;\n",
        "",
        "sample_test",
    ),
    Fault(
        "threads read what a draw has counted while one counts it",
        "cuda/draw/live_draw.cu",
        "    if (ends_draw && threadIdx.x == 0) counts = counts_of(*replay.state);\n    // The first",
        "    counts = counts_of(*replay.state);\n    // The first",
        "sample_test",
        needs_tsan=True,
    ),
    Fault(
        "frames stay where a window within an episode would have them",
        "cuda/batch/write_rows.h",
        "const bool has_frames = has_same_frames(row, guess);",
        "const bool has_frames = true;",
        "sample_test",
    ),
    Fault(
        "the second of two draws at a time is that of the first",
        "cuda/draw/live_draw.cu",
        "const DrawnSlot of_two = k == 0 ? drawn[0] : drawn[1];",
        "const DrawnSlot of_two = drawn[0];",
        "sample_test",
    ),
    Fault(
        "the second of two draws at a time goes on from the node of the first",
        "cuda/tree/sum_tree.h",
        "nodes[k] = nodes[k] * fan_out + find_child(masses[k], units[k], lane);",
        "nodes[k] = nodes[0] * fan_out + find_child(masses[k], units[k], lane);",
        "sample_test",
    ),
    Fault(
        "two draws at a time where there is one left",
        "cuda/draw/live_draw.cu",
        "const int n = first + span.step < plan.rows.n ? n_at_once : 1;",
        "const int n = n_at_once;",
        "sample_test",
    ),
    Fault(
        "no live rows to draw from where all priorities are 0",
        "cuda/draw/live_draw.cu",
        " || start.mass == 0)",
        ")",
        "sample_test",
    ),
    Fault(
        "a draw does not wait for the work before it",
        "cuda/draw/tree_draw.cu",
        "    wait_for_work_before();\n    PER_SHARED(DrawShared, shared);\n",
        "    PER_SHARED(DrawShared, shared);\n",
        environment={"PER_EARLY_LAUNCHES": "1"},
    ),
    Fault(
        "weights do not wait for the draw",
        "cuda/draw/live_draw.cu",
        "const __grid_constant__ DrawPlan plan, int64_t n_draw_blocks) {\n    wait_for_work_before();\n",
        "const __grid_constant__ DrawPlan plan, int64_t n_draw_blocks) {\n",
        "sample_test",
        environment={"PER_EARLY_LAUNCHES": "1"},
    ),
    Fault(
        "an update does not wait for the work before it",
        "cuda/tree/tree_update.cu",
        "    wait_for_work_before();\n",
        "",
        environment={"PER_EARLY_LAUNCHES": "1"},
    ),
    Fault(
        "no barrier of the cluster before blocks read what others wrote to them",
        "cuda/draw/live_draw.cu",
        "    await_cluster();\n    const double reference",
        "    const double reference",
        "clusters_test",
        is_pitfall=True,
    ),
    Fault(
        "no barrier of the cluster after blocks have written to others",
        "cuda/draw/live_draw.cu",
        "    arrive_in_cluster();\n    const bool ends_draw = blockIdx.x == 0 && threadIdx.x == 0;\n"
        "    DrawCounts counts = {};\n    if (ends_draw) counts = counts_of(*replay.state);\n    await_cluster();\n",
        "    const bool ends_draw = blockIdx.x == 0 && threadIdx.x == 0;\n"
        "    DrawCounts counts = {};\n    if (ends_draw) counts = counts_of(*replay.state);\n",
        "clusters_test",
    ),
    Fault(
        "no barrier of the cluster before blocks write to others",
        "cuda/draw/tree_draw.cu",
        "    await_cluster();  // all blocks have begun\n",
        "",
        "clusters_test",
    ),
    Fault(
        "blocks write to others that may not have begun",
        "cuda/draw/live_draw.cu",
        "    await_cluster();  // all blocks have begun\n    if (threadIdx.x < gridDim.x) "
        "in_block(shared.of_block[blockIdx.x], threadIdx.x) = smallest;\n    arrive_in_cluster();\n",
        "    if (threadIdx.x < gridDim.x) in_block(shared.of_block[blockIdx.x], threadIdx.x) = smallest;\n",
        "clusters_test",
    ),
    Fault(
        "a block returns while others write to it",
        "cuda/draw/tree_draw.cu",
        "    await_cluster();  // all blocks have begun\n",
        "    await_cluster();\n    if (span.first - threadIdx.x / warp_size >= request.batch_size) return;\n",
        "clusters_test",
    ),
    Fault(
        "no barrier of the cluster before a block returns",
        "cuda/draw/tree_draw.cu",
        "    arrive_in_cluster();\n    const int k",
        "    const int k",
        "clusters_test",
    ),
    Fault(
        "the barrier of the cluster behind what blocks of a tree write to each other orders nothing",
        "cuda/draw/tree_draw.cu",
        "    arrive_in_cluster();\n    const int k",
        "    begin_in_cluster();\n    const int k",
        "clusters_test",
    ),
    Fault(
        "the barrier of the cluster behind what blocks of a buffer write to each other orders nothing",
        "cuda/draw/live_draw.cu",
        "    arrive_in_cluster();\n    const bool ends_draw",
        "    begin_in_cluster();\n    const bool ends_draw",
        "clusters_test",
    ),
    Fault(
        "a block writes to the place of the wrong rank",
        "cuda/draw/live_draw.cu",
        "in_block(shared.of_block[blockIdx.x], threadIdx.x) = smallest;",
        "in_block(shared.of_block[threadIdx.x], blockIdx.x) = smallest;",
        "clusters_test",
    ),
    Fault(
        "a block keeps its smallest share to itself",
        "cuda/runtime/dialect.h",
        "__cluster_map_shared_rank(&variable, block)",
        "__cluster_map_shared_rank(&variable, blockIdx.x)",
        "clusters_test",
    ),
    Fault(
        "a cluster draws more than its warps make",
        "cuda/draw/live_draw.cu",
        "    if (n <= most_in_cluster)\n",
        "    if (n <= 2 * most_in_cluster)\n",
        "clusters_test",
    ),
    Fault(
        "a cluster of a device that has none",
        "cuda/runtime/dialect.h",
        "    if (!has_clusters()) return 0;\n",
        "    if (!has_clusters()) return portable_cluster_blocks;\n",
        "clusters_test",
    ),
    Fault(
        "a cluster larger than the device has",
        "cuda/runtime/dialect.h",
        "        if (n_clusters > 0) return n_blocks;\n",
        "        return n_blocks;\n",
        "clusters_test",
    ),
    Fault(
        "no cluster where the device has one",
        "cuda/draw/tree_draw.cu",
        "if (cluster_blocks != 0 && n <= max_draws_of_cluster)",
        "if (cluster_blocks > 8 && n <= max_draws_of_cluster)",
        "clusters_test",
    ),
    Fault(
        "the second draw of a warp is that of another one",
        "cuda/draw/live_draw.cu",
        "const int64_t i = (int64_t{k} * gridDim.x + blockIdx.x) * cluster_warps + warp;",
        "const int64_t i = (int64_t{k} + n_at_once * blockIdx.x) * cluster_warps + warp;",
        "clusters_test",
    ),
    Fault(
        "a draw in a cluster does not wait for the work before it",
        "cuda/draw/tree_draw.cu",
        "    wait_for_work_before();\n    PER_SHARED(ClusterDrawShared, shared);\n",
        "    PER_SHARED(ClusterDrawShared, shared);\n",
        environment={"PER_EARLY_LAUNCHES": "1", "PER_SIMULATOR_CLUSTERS": "8"},
    ),
    Fault(
        "code for an older architecture is taken for that of the device",
        "cuda/runtime/device.cu",
        "    if (ptx_version >= ptx_of_clusters) return;\n",
        "    return;\n",
        "devices_test",
        environment={"PER_EARLY_LAUNCHES": "1"},
    ),
    Fault(
        "code for an older architecture runs in clusters",
        "cuda/runtime/device.cu",
        "return !is_refused && has_code_of_clusters() &&",
        "return !is_refused &&",
        "devices_test",
    ),
    Fault(
        "a buffer draws by clusters whatever its code is for",
        "cuda/batch/batch_queue.cu",
        "cluster_blocks_ = blocks_of_sample_cluster(memory.device().has_sequences);",
        "cluster_blocks_ = portable_cluster_blocks;",
        "devices_test",
    ),
    Fault(
        "an add forgets what a call that failed left behind",
        "cuda/add/step_queue.cu",
        "if (!is_settled_) settle(window_rows_, call);",
        "",
        "replay_calls_test",
    ),
    Fault(
        "work whose event could not be recorded is not waited for",
        "cuda/runtime/stream_order.cu",
        "    // If that fails, the destructor tries again: the work is queued.\n",
        "    is_finished_ = true;\n",
        "replay_calls_test",
    ),
    Fault(
        "a buffer whose copy has no event is filled again",
        "cuda/runtime/staging.cu",
        "    if (error != cudaSuccess) wait_for(stream, std::nothrow);",
        "    //",
        "copied_slots_test",
    ),
    Fault(
        "rows of a draw that fails become the last batch",
        "cuda/draw/live_draw.h",
        "const bool has_rows = plan.is_distinct() ? n_found == plan.rows.n : n_found != 0;",
        "const bool has_rows = n_found != 0;",
        "sample_test",
    ),
    Fault(
        "a live row is not put back",
        "cuda/draw/distinct_draw.h",
        "        toggle_leaf(tree, index, factor);\n        insert(live, index);",
        "        toggle_leaf(tree, index, factor);",
        "sample_test",
    ),
    Fault(
        "flags of other lanes beyond 32 rows",
        "cuda/batch/write_rows.h",
        "if (distance >= n || distance < -n)",
        "if (distance < -n)",
        "sample_test",
    ),
    Fault(
        "no gamma^m for the steps of a sequence after a terminal state",
        "cuda/batch/write_rows.h",
        "batch.gamma_m[at] = static_cast<float>(gamma_m);",
        "batch.gamma_m[at] = terminated ? 0.0f : static_cast<float>(gamma_m);",
        "sample_test",
    ),
    Fault(
        "gamma^m of what is no step is left as it was",
        "cuda/batch/write_rows.h",
        "    if (batch.gamma_m != nullptr) batch.gamma_m[at] = 0.0f;\n",
        "",
        "sample_test",
    ),
    Fault(
        "all windows of a batch have the n_step of its first",
        "cuda/batch/write_rows.h",
        "key.seed, key.batch_number}.of_place(i);",
        "key.seed, key.batch_number}.of_place(0 * i);",
        "sample_test",
    ),
    Fault(
        "the same n_steps in each launch of a graph",
        "cuda/batch/write_rows.h",
        "key.seed, key.batch_number}.of_place(i);",
        "key.seed, 0}.of_place(i);",
        "sample_test",
    ),
    Fault(
        "sequences have the observations of the longest n_step",
        "cuda/batch/copy_frames.h",
        "has_observation(span, entry, row.n_step)",
        "has_observation(span, entry, rules.n_step)",
        "sample_test",
    ),
    Fault(
        "steps of a sequence have the longest n_step",
        "cuda/batch/write_rows.h",
        "span, t, n_step, gamma, {replay",
        "span, t, rules.n_step, gamma, {replay",
        "sample_test",
    ),
    Fault(
        "a chunk runs past the end of its frame",
        "cuda/batch/copy_frames.h",
        "first + n_each < array.n_pieces ? first + n_each : array.n_pieces;",
        "first + n_each;",
        "sample_test",
    ),
    Fault(
        "pieces larger than their array is aligned to",
        "cuda/batch/copy_frames.h",
        "static_cast<uint64_t>(frame_bytes) | reinterpret_cast<uintptr_t>(array);",
        "static_cast<uint64_t>(frame_bytes); static_cast<void>(array);",
        "sample_test",
    ),
    Fault(
        "the unknown observation after the end is not repeated",
        "cuda/batch/copy_frames.h",
        "        if (row.repeats_last) {",
        "        if (false) {",
        "sample_test",
    ),
    Fault(
        "observations that no step bootstraps from",
        "cuda/batch/copy_frames.h",
        "copy.is_observation ? has_observation(span, entry, row.n_step) :",
        "copy.is_observation ? entry <= row.n_transitions :",
        "sample_test",
    ),
    Fault(
        "the first frame in the place of zeros",
        "cuda/batch/copy_frames.h",
        "if (row.slot < 0 || (copy.pads_with_zeros && is_padding(row, copy.is_next, age))) return nullptr;",
        "if (row.slot < 0) return nullptr;",
        "sample_test",
    ),
    Fault(
        "the first frame of a sequence in the place of zeros",
        "cuda/batch/copy_frames.h",
        "if (copy.pads_with_zeros) return nullptr;",
        "",
        "sample_test",
    ),
    Fault(
        "windows: of a row that is not live",
        "cuda/draw/windows.cu",
        "has_all && found.is_there && is_live(replay.priorities.live, found.slot);",
        "has_all && found.is_there;",
        "rows_by_id_test",
    ),
    Fault(
        "windows: longer than those of the buffer now",
        "cuda/draw/windows.cu",
        "const bool has_all = has_windows(replay, plan.draw);",
        "const bool has_all = true;",
        "replay_graphs_test",
    ),
    Fault(
        "windows: what is skipped counts as bad",
        "cuda/draw/windows.cu",
        "if (has_all && !is_written && !plan.skips_dead)",
        "if (has_all && !is_written)",
        "rows_by_id_test",
    ),
    Fault(
        "windows: what cannot be drawn has the smallest share",
        "cuda/draw/windows.cu",
        "return share > 0.0 ? share : no_share();",
        "return share;",
        "rows_by_id_test",
    ),
    Fault(
        "windows: what is not there has a weight",
        "cuda/draw/windows.cu",
        "weights[i] = share == no_share() ? 0.0f : static_cast<float>(weight);",
        "weights[i] = static_cast<float>(weight);",
        "rows_by_id_test",
    ),
    Fault(
        "windows: those of a walk are drawn from what is live",
        "cuda/draw/windows.cu",
        "    if (plan.n_of_epoch != 0) law.n_live = static_cast<double>(plan.n_of_epoch);\n",
        "",
        "rows_by_id_test",
    ),
    Fault(
        "windows: goals of the last draw",
        "cuda/batch/batch_queue.h",
        "return sample.is_drawn() ? memory_.slots : memory_.found;",
        "return memory_.slots;",
        "replay_walks_test",
    ),
    Fault(
        "windows: a goal for what is not there",
        "cuda/batch/hindsight.cu",
        "    if (slot < 0) return none;\n",
        "",
        "replay_walks_test",
    ),
    Fault(
        "of equal ids another value is written",
        "cuda/batch/rows_by_id.cu",
        "atomicMax(&claims[slots[i]], static_cast<uint32_t>(i + 1));",
        "atomicCAS(&claims[slots[i]], 0u, static_cast<uint32_t>(i + 1));",
        "rows_by_id_test",
    ),
    Fault(
        "an entry with a value that does not fit is written",
        "cuda/batch/rows_by_id.cu",
        "        slots[i] = -1;\n",
        "",
        "rows_by_id_test",
    ),
    Fault(
        "larger memory takes the place of the smaller",
        "cuda/batch/batch_queue.cu",
        "    Layout layout(blocks_.back().data());",
        "    if (blocks_.size() > 1) DeviceMemory lost(std::move(blocks_.front()));\n"
        "    Layout layout(blocks_.back().data());",
        "sample_calls_test",
    ),
    Fault(
        "the device count is not set to 0 first",
        "cuda/runtime/device.cu",
        "int n_devices = 0;\n    const cudaError_t error = cudaGetDeviceCount(&n_devices);\n"
        "    if (error != cudaSuccess) throw_no_device(error);",
        "int n_devices = 7;\n    cudaGetDeviceCount(&n_devices);",
        "tree_calls_test",
    ),
    Fault(
        "the current device is left changed",
        "cuda/runtime/device.cu",
        "    static_cast<void>(driver().pop(&context));",
        "    static_cast<void>(&context);",
        "tree_calls_test",
    ),
    Fault(
        "the device that was current gets a context",
        "cuda/runtime/device.cu",
        "    static_cast<void>(driver().pop(&context));",
        "    static_cast<void>(driver().pop(&context)), static_cast<void>(cudaSetDevice(current_device()));",
        "devices_test",
    ),
    Fault(
        "what is given back is so on whichever device is current",
        "cuda/runtime/device.cu",
        "    const CurrentDevice current(device_, std::nothrow);\n",
        "",
        "devices_test",
    ),
    Fault(
        "a loader that ends waits on whichever device is current",
        "cuda/runtime/device_slots.h",
        "        const CurrentDevice current(device_, std::nothrow);\n",
        "",
        "devices_test",
    ),
    Fault(
        "a stream is looked at before its device is current",
        "cuda/replay/replay_backend.cu",
        "    StreamOrder::Call call(order_, order_.own_stream());\n    require_no_capture(stream);\n"
        "    const uint64_t first",
        "    require_no_capture(stream);\n    StreamOrder::Call call(order_, order_.own_stream());\n"
        "    const uint64_t first",
        "devices_test",
    ),
    Fault(
        "arrays of another device are taken",
        "cuda/runtime/device.cu",
        "attributes.device != device)",
        "attributes.device < 0)",
        "devices_test",
    ),
    Fault(
        "threads that wait for an event spin",
        "cuda/runtime/device.cu",
        "cudaEventDisableTiming | cudaEventBlockingSync)",
        "cudaEventDisableTiming)",
        "loader_test",
    ),
    Fault(
        "an event that only streams wait for interrupts the host",
        "cuda/runtime/device.cu",
        "new_event_with<Kind::event>(cudaEventDisableTiming)",
        "new_event_with<Kind::event>(cudaEventDisableTiming | cudaEventBlockingSync)",
        "loader_test",
    ),
    Fault(
        "copies of memory that is not pinned spoil captures",
        "cuda/runtime/device.cu",
        "    const ApartFromCaptures apart;\n    check(cudaMemcpyAsync(",
        "    check(cudaMemcpyAsync(",
        "replay_graphs_test",
    ),
    Fault(
        "priorities are copied to pinned memory as if to that of the device",
        "cuda/tree/tree_backend.cu",
        "cudaMemcpyDefault",
        "cudaMemcpyDeviceToDevice",
        "host_arrays_test",
    ),
    Fault(
        "an announced observation keeps the flags of the step before it in its slot",
        "cuda/add/add_lane.h",
        "        replay.flags[task.slot(outcome.next_row)] = 0;\n",
        "",
        "add_test",
    ),
    Fault(
        "frames of rows that are gone are copied",
        "cuda/add/store_frames.h",
        "if (row < used_end(replay.lanes[env], rules) - rules.ring.rows) return;",
        "",
        "add_test",
    ),
    Fault(
        "a row too many is taken for gone",
        "cuda/add/store_frames.h",
        "if (row < used_end(replay.lanes[env], rules) - rules.ring.rows) return;",
        "if (row <= used_end(replay.lanes[env], rules) - rules.ring.rows) return;",
        "add_test",
    ),
    Fault(
        "an announced observation is compared with what lies in memory, though its entry came in this call",
        "cuda/add/add_lane.h",
        "if (step.next_known) task.announcing = group.first + first + run.count - 1;",
        "",
        "add_test",
    ),
    Fault(
        "an observation is taken to be the one announced by the step before, though that one was not taken",
        "cuda/add/read_steps.h",
        "if (is_in_launch && task.announcing == step - 1 && next_takes_row(task.rules))",
        "if (is_in_launch && next_takes_row(task.rules))",
        "add_test",
    ),
    Fault(
        "the first of 32 steps is not compared with what the step before them announced",
        "cuda/add/read_steps.h",
        "(is_first_announced ? 1 : 0)",
        "0",
        "add_test",
    ),
    Fault(
        "frames that a warp looks at: the first of 32 steps only",
        "cuda/add/given_steps.h",
        "left = has_thread_each ? 0 : left & (left - 1)",
        "left = 0",
        "add_test",
    ),
    Fault(
        "a run goes on over a gap",
        "cuda/add/read_steps.h",
        "running &= group.is_same | 1u << i;",
        "static_cast<void>(i);",
        "add_test",
    ),
    Fault(
        "a run goes on over the end of an episode",
        "cuda/add/read_steps.h",
        "group.without_nan & ~(group.terminated | group.truncated);",
        "group.without_nan;",
        "add_test",
    ),
    Fault(
        "a run goes on over steps whose next observation is known and not",
        "cuda/add/read_steps.h",
        "    running &= next_known ? group.next_known : ~group.next_known;\n",
        "",
        "add_test",
    ),
    Fault(
        "a run is as long as the lane has rows",
        "cuda/add/read_steps.h",
        "const int64_t most = longest_run(task.lane, task.rules, task.replay.overwrite);",
        "const int64_t most = task.rules.ring.rows;",
        "add_test",
    ),
    Fault(
        "rows of a run become live at its last step",
        "cuda/add/add_lane.h",
        "(steps_before > 0 ? steps_before : 0)",
        "(steps_before > 0 ? run.count - 1 : 0)",
        "add_test",
    ),
    Fault(
        "in a run all steps start sequences or none does",
        "cuda/add/add_lane.h",
        "own == 0 ? outcome.flags : flags_of_step(task.lane, task.rules, row);",
        "own == 0 ? outcome.flags : outcome.flags & ~row_starts_episode;",
        "add_test",
    ),
    Fault(
        "a given priority counts within its own step",
        "cuda/add/add_kernels.cu",
        "uint32_t before = lane > 0 ? below : 0;",
        "uint32_t before = up_to + 0 * below;",
        "rated_adds_test",
    ),
    Fault(
        "a priority given with the only step of a call counts within it",
        "cuda/add/change_lanes.h",
        "atomicMax(&state.pending.largest_bits, sums.largest_bits);",
        "atomicMax(&state.largest_bits, sums.largest_bits);",
        "add_test",
    ),
    Fault(
        "at once: blocks do not wait for the lanes of others",
        "cuda/add/add_kernels.cu",
        "meet(replay.priorities.tree.state->meeting, [&] { apply_pending(*replay.state); });",
        "if (grid_span().first == 0) apply_pending(*replay.state);\n    __syncthreads();",
        "add_test",
    ),
    Fault(
        "at once: what lanes have changed is not ended",
        "cuda/add/add_kernels.cu",
        "    lanes.end(replay);\n",
        "",
        "add_test",
    ),
    Fault(
        "at once: the first threads copy no frames",
        "cuda/add/add_kernels.cu",
        "{span.step - 1 - span.first, span.step}",
        "{span.step - span.first, span.step}",
        "add_test",
    ),
    Fault(
        "at once: also where rows wait for their priority",
        "cuda/add/add_kernels.cu",
        "return !steps.rows_wait() && steps.length",
        "return steps.length",
        "add_test",
    ),
    Fault(
        "at once: a graph keeps n_step",
        "cuda/add/add_lane.h",
        "    rules.n_step = replay.state->rules.n_step;\n",
        "",
        "add_test",
    ),
    Fault(
        "at once: large trees are never rebuilt, as their change does not",
        "cuda/replay/leaf_change.h",
        "launch_together(stream, n_blocks, kernel, replay, arguments..., rebuilds);",
        "launch_together(stream, n_blocks, kernel, replay, arguments..., !rebuilds);",
        "priorities_test",
    ),
    Fault(
        "lanes of a block: sums that begin as they were left",
        "cuda/add/change_lanes.h",
        "    clear(sums.live_top);\n",
        "",
        "add_test",
    ),
    Fault(
        "lanes of a block: fewer live rows are many more",
        "cuda/add/change_lanes.h",
        "static_cast<int32_t>(sums.n_live)",
        "sums.n_live",
        "add_test",
    ),
    Fault(
        "lanes of a block: written before the last of them",
        "cuda/add/change_lanes.h",
        "    __syncthreads();\n    write_top(replay.priorities.live, sums.live_top);",
        "    write_top(replay.priorities.live, sums.live_top);",
        "add_test",
    ),
    Fault(
        "the top row of a change: begins as it was left",
        "cuda/tree/tree_update.cu",
        "    clear(shared.top);\n",
        "",
    ),
    Fault(
        "the top row of a change: written before the last leaf",
        "cuda/tree/tree_update.cu",
        "    __syncthreads();\n    write_top(tree, top);",
        "    write_top(tree, top);",
        needs_tsan=True,
    ),
    Fault(
        "the top row of a buffer's change: written before the last leaf",
        "cuda/replay/leaf_change.h",
        "    __syncthreads();\n    write_top(priorities.tree, top);",
        "    write_top(priorities.tree, top);",
        "priorities_test",
        needs_tsan=True,
    ),
    Fault(
        "the top row of a change: a thread writes one entry",
        "cuda/tree/sum_tree.h",
        "i < sums.n_nodes[level]; i += blockDim.x)\n        add_if_any(",
        "i < sums.n_nodes[level]; i += max_top)\n        add_if_any(",
        "priorities_test",
    ),
    Fault(
        "ids of a walk overtake those before them in the ring",
        "cuda/runtime/staging.cu",
        "    is_sent_[next_] = true;\n    next_ =",
        "    next_ =",
        "replay_walks_test",
    ),
    Fault(
        "a given priority counts from the next call on only",
        "cuda/add/given_steps.h",
        "return length > 1 && priorities.are_given();",
        "return length == 0;",
        "rated_adds_test",
    ),
    Fault(
        "what warps before were given is not counted",
        "cuda/add/add_kernels.cu",
        "        if (warp < threadIdx.x / warp_size) before = larger(before, shared.largest_of_warp[warp]);\n",
        "",
        "add_test",
    ),
    Fault(
        "what was given 256 steps before is not counted",
        "cuda/add/add_kernels.cu",
        "        largest = larger(largest, of_all);\n",
        "",
        "add_test",
    ),
    Fault(
        "what was written down by step is kept for the next call",
        "cuda/add/add_kernels.cu",
        "            scratch.largest_of_step[step] = 0;\n",
        "",
        "rated_adds_test",
    ),
    Fault(
        "the block with the largest number ends the launch, not the one that ends last",
        "cuda/add/add_kernels.cu",
        "arrive(&scratch.facts->n_arrived) == gridDim.x - 1;",
        "blockIdx.x == gridDim.x - 1;",
        "add_test",
    ),
    Fault(
        "a block of an add says that it has ended before its warps have",
        "cuda/add/change_lanes.h",
        "    __syncthreads();\n    write_top(replay.priorities.live",
        "    write_top(replay.priorities.live",
        "rated_adds_test",
    ),
    Fault(
        "no barrier between the priorities of a run and those that take them",
        "cuda/add/add_lane.h",
        "    __syncwarp();\n    if (task.steps.priorities",
        "    if (task.steps.priorities",
        "add_test",
        needs_tsan=True,
    ),
    Fault(
        "blocks are counted on from add to add",
        "cuda/add/add_kernels.cu",
        "    if (threadIdx.x == 0) scratch.facts->n_arrived = 0;\n",
        "",
        "add_test",
    ),
    Fault(
        "the largest live priority is that before the call",
        "cuda/add/step_queue.cu",
        "const int64_t longest = takes_steps_apart ? 1 : max_steps_of_ring(rules_);",
        "const int64_t longest = max_steps_of_ring(rules_);",
        "add_test",
    ),
    Fault(
        "steps are one change, whatever that does to the scale",
        "cuda/add/change_steps.h",
        "if (bounds.are_met != 0) break;",
        "break;",
        "rated_adds_test",
    ),
    Fault(
        "what is lost between two steps asks for no scale",
        "cuda/replay/leaf_change.h",
        "lost = add_wide(lost, {limited_mass_of(tree.leaves[slot], factor), 0});",
        "lost = add_wide(lost, {0 * limited_mass_of(tree.leaves[slot], factor), 0});",
        "rated_adds_test",
    ),
    Fault(
        "a leaf that is too large between two steps asks for no scale",
        "cuda/replay/leaf_change.h",
        "has_too_large |= is_too_large(leaf, factor) ? 1u : 0u;",
        "has_too_large |= is_too_large(leaf, factor) ? 0u : 0u;",
        "rated_adds_test",
    ),
    Fault(
        "the rows of a run all die with its last step",
        "cuda/add/add_lane.h",
        "count_of({died.first, tail < died.end ? tail : died.end})",
        "count_of({died.first, tail < died.end ? died.end : died.end})",
        "rated_adds_test",
    ),
    Fault(
        "the rows of a run are all born with its last step",
        "cuda/add/add_lane.h",
        "const int64_t end = outcome.completed.end - (run.count - 1 - own);",
        "const int64_t end = outcome.completed.end - (run.count - 1 - own > 0 ? 0 : 0);",
        "rated_adds_test",
    ),
    Fault(
        "a row that dies is written over the next of its slot",
        "cuda/add/change_steps.h",
        "if (next_row < change.born.first || next_row >= born_end)",
        "if (next_row < change.born.first || next_row >= 0 * born_end)",
        "rated_adds_test",
    ),
    Fault(
        "rows that die keep their bit",
        "cuda/add/change_lanes.h",
        "task.sums.n_live -= erase(task.replay.priorities.live, task.slot(row), task.of_block.live_top);",
        "task.sums.n_live -= 0;",
        "add_test",
    ),
    Fault(
        "all rows start sequences",
        "cuda/add/change_lanes.h",
        "if (!starts_sequence(task.rules, task.replay.flags[slot]) || is_used_up(task.replay, slot)) continue;",
        "if (is_used_up(task.replay, slot)) continue;",
        "add_test",
    ),
    Fault(
        "the range of dead rows forgets those of steps before",
        "cuda/add/change_lanes.h",
        "    if (range.end <= range.first) range.first = by.first;\n",
        "    range.first = by.first;\n",
        "add_test",
    ),
    Fault(
        "words of 16 bytes whatever the alignment",
        "cuda/add/given_arrays.cu",
        "frames.word_bytes = piece_bytes_of(frames.stride | field.bytes, frames.data);",
        "frames.word_bytes = 16;",
        "add_test",
    ),
    Fault(
        "a default that has another value for each step",
        "cuda/add/given_arrays.cu",
        "frames.data = default_value;",
        "frames.data = default_value, frames.stride = field.bytes;",
        "replay_walks_test",
    ),
    Fault(
        "the oldest of stacked frames is taken",
        "cuda/add/given_arrays.cu",
        "(array.frames - 1) * array.kept_bytes();",
        "0 * array.kept_bytes();",
        "add_test",
    ),
    Fault(
        "next frames under the mask instead of the next mask",
        "cuda/add/given_arrays.cu",
        "array.mask = has_next_mask ? &next_mask_ : &mask_;",
        "array.mask = &mask_;",
        "add_test",
    ),
    Fault(
        "a staging buffer that is filled while the device reads it",
        "cuda/runtime/staging.cu",
        'wait_for(events_[next_], "waiting for a copy to the device");',
        "",
        "add_calls_test",
    ),
    Fault(
        "a long call that is refused half-way",
        "cuda/add/step_queue.cu",
        "        arrays_.check_values(piece);",
        "",
        "add_calls_test",
    ),
    Fault(
        "host memory in a captured call",
        "cuda/add/step_queue.cu",
        "if (call.is_captured() && !arrays_.host_array().empty())",
        "if (call.is_captured() && arrays_.host_array().size() == 1000)",
        "add_calls_test",
    ),
    Fault(
        "env_ids by way of memory of the host in a captured call",
        "cuda/add/step_queue.cu",
        "if (call.is_captured() || count <= max_ids_by_value) return",
        "if (count <= max_ids_by_value) return",
        "add_calls_test",
    ),
    Fault(
        "a step is taken though a value does not fit",
        "cuda/add/add_lane.h",
        "StepRefusal refusal = has_bit(group.fits, first) ? StepRefusal::none : StepRefusal::value;",
        "StepRefusal refusal = StepRefusal::none;",
        "add_calls_test",
    ),
    Fault(
        "a step is refused for another reason than is reported",
        "cuda/add/add_lane.h",
        "return StepRefusal::next_observation;",
        "return StepRefusal::final_observation;",
        "add_calls_test",
    ),
    Fault(
        "a bad priority of a tree is reported as a bad index",
        "cuda/tree/tree_update.cu",
        "n_bad += is_index(tree, index) ? one_bad_priority : one_bad_index;",
        "n_bad += one_bad_index;",
        "tree_calls_test",
    ),
    Fault(
        "a run goes on over a value that does not fit",
        "cuda/add/read_steps.h",
        "group.given & group.fits & group.without_nan & ~",
        "group.given & group.without_nan & ~",
        "add_calls_test",
    ),
    Fault(
        "a run goes on over a NaN",
        "cuda/add/read_steps.h",
        "group.given & group.fits & group.without_nan & ~",
        "group.given & group.fits & ~",
        "add_calls_test",
    ),
    Fault(
        "a step is taken though it has a NaN",
        "cuda/add/add_lane.h",
        "!has_bit(group.without_nan, first)) refusal = StepRefusal::nan;",
        "false) refusal = StepRefusal::nan;",
        "add_calls_test",
    ),
    Fault(
        "a reward may be a NaN",
        "cuda/add/read_steps.h",
        "__ballot_sync(all_lanes, !(task.replay.refuses_nan && is_nan(group.reward)));",
        "all_lanes;",
        "add_calls_test",
    ),
    Fault(
        "NaN is looked for in fields that are no observations, and not in others",
        "cuda/add/read_steps.h",
        "return field.is_observation() && is_floating(frames.dtype);",
        "return !field.is_observation() && is_floating(frames.dtype);",
        "add_calls_test",
    ),
    Fault(
        "suspected resets are not counted",
        "cuda/add/add_lane.h",
        "    if (outcome.is_suspect) add_up(task.of_block.suspected_resets);\n",
        "",
        "add_calls_test",
    ),
    Fault(
        "a reset step is told by the reward of another step",
        "cuda/add/add_lane.h",
        "__shfl_sync(all_lanes, group.reward, first) != 0.0f",
        "__shfl_sync(all_lanes, group.reward, 0) != 0.0f",
        "add_calls_test",
    ),
    Fault(
        "a step that is refused moves its lane",
        "cuda/add/add_lane.h",
        "    Lane lane = task.lane;\n    StepOutcome",
        "    Lane& lane = task.lane;\n    StepOutcome",
        "add_calls_test",
    ),
    Fault(
        "sums that are not added atomically",
        "cuda/tree/sum_tree.h",
        "atomic_add(&sums.sums[level][leaf], difference);",
        "{ uint64_t* const at = &sums.sums[level][leaf]; const uint64_t sum = *at; simulator::yield(); "
        "*at = sum + difference; }",
    ),
    Fault(
        "sums in float32",
        "cuda/tree/sum_tree.h",
        "atomic_add(&sums.sums[level][leaf], difference);",
        "sums.sums[level][leaf] = static_cast<uint64_t>(static_cast<float>(sums.sums[level][leaf] + difference));",
        is_pitfall=True,
    ),
    Fault(
        "nodes are counted down, not up",
        "cuda/tree/layout.cu",
        "return (n + fan_out - 1) / fan_out;",
        "return n / fan_out + (n < fan_out);",
        is_pitfall=True,
    ),
    Fault(
        "a top row as large as any",
        "cuda/tree/layout.cu",
        "} while (sums.n_nodes[sums.n_levels - 1] > max_top);",
        "} while (sums.n_nodes[sums.n_levels - 1] > max_top + fan_out);",
    ),
    Fault(
        "updates: the first of equal ids wins",
        "cuda/replay/priorities.cu",
        "atomicMax(&replay.priorities.tree.claims[entry.slot], static_cast<uint32_t>(i + 1));",
        "atomicCAS(&replay.priorities.tree.claims[entry.slot], 0u, static_cast<uint32_t>(i + 1));",
        "priorities_test",
    ),
    Fault(
        "updates: claims are kept",
        "cuda/replay/priorities.cu",
        "atomicCAS(&replay.priorities.tree.claims[entry.index], claim, 0u) != claim",
        "replay.priorities.tree.claims[entry.index] != claim",
        "priorities_test",
    ),
    Fault(
        "updates: ids are read twice",
        "cuda/replay/priorities.cu",
        "    change_leaves(replay, ClaimedSlots{",
        "    claim_entries(replay, given, entries);\n    change_leaves(replay, ClaimedSlots{",
        "replay_calls_test",
    ),
    Fault(
        "updates: the largest priority is raised by what is overwritten at once",
        "cuda/replay/priorities.cu",
        "        const uint32_t claim = static_cast<uint32_t>(i + 1);",
        "        atomicMax(&replay.state->largest_bits, bits_in_order(entry.priority));\n"
        "        const uint32_t claim = static_cast<uint32_t>(i + 1);",
        "priorities_test",
    ),
    Fault(
        "updates: pending rows are refused",
        "cuda/replay/priorities.cu",
        "is_pending(replay.lanes[row.env], rules, row.k)",
        "false",
        "priorities_test",
    ),
    Fault(
        "updates: the burn-in counts",
        "cuda/replay/priorities.cu",
        "if (n_steps <= sequence.burn_in) return {0.0f, false};",
        "if (n_steps == 0) return {0.0f, false};",
        "priorities_test",
    ),
    Fault(
        "updates: a burn-in that was left out is looked for",
        "cuda/replay/priorities.cu",
        "{sequence.burn_in - given.n_left_out, n_steps - given.n_left_out}",
        "{sequence.burn_in, n_steps}",
        "priorities_test",
    ),
    Fault(
        "updates: sequences without a burn-in are as far apart as those with one",
        "cuda/replay/priorities.cu",
        "n_given = sequence.steps - given.n_left_out;",
        "n_given = sequence.steps;",
        "priorities_test",
    ),
    Fault(
        "updates: overwritten rows are there",
        "cuda/replay/replay_state.h",
        "    return find_row(id, rules, [&](int64_t env) -> const Lane& { return replay.lanes[env]; });\n",
        "    RowOfId row = find_row(id, rules, [&](int64_t env) -> const Lane& { return replay.lanes[env]; });\n"
        "    row.is_there = row.is_issued && id >= 0;\n"
        "    return row;\n",
        "priorities_test",
    ),
    Fault(
        "leaves: read and written, not exchanged",
        "cuda/tree/tree_change.h",
        "const float before = atomicExch(&tree.leaves[index], leaf);",
        "const float before = tree.leaves[index]; simulator::yield(); tree.leaves[index] = leaf;",
        "priorities_test",
    ),
    Fault(
        "leaves: of rows that are not live, with alpha 0",
        "cuda/replay/leaf_change.h",
        "may_be_live && is_live(priorities.live, slot) ? priority_to_alpha(priorities.given[slot], alpha) : 0.0f;",
        "priority_to_alpha(may_be_live && is_live(priorities.live, slot) ? priorities.given[slot] : 0.0f, alpha);",
        "priorities_test",
    ),
    Fault(
        "lanes: dead rows keep their leaves",
        "cuda/replay/changed_lanes.h",
        "            visit_rows(change.died);\n",
        "            visit_rows(change.born);\n",
        "priorities_test",
    ),
    Fault(
        "lanes: the thread's number is not within its lane",
        "cuda/replay/changed_lanes.h",
        "const int64_t thread = i % threads_per_lane;",
        "const int64_t thread = i;",
        "priorities_test",
    ),
    Fault(
        "maxima: a run's first group only",
        "cuda/replay/changed_lanes.h",
        "if (is_first || slot % fan_out == 0) visit(slot);",
        "if (is_first) visit(slot);",
        "priorities_test",
    ),
    Fault(
        "maxima: of rows that are not live",
        "cuda/replay/leaf_change.h",
        "return is_live(priorities.live, slot) ? bits_in_order(priorities.given[slot]) : 0;",
        "return priorities.given[slot] < 0.0f ? 0 : bits_in_order(priorities.given[slot]);",
        "priorities_test",
    ),
    Fault(
        "ranks: a row that stays in its bucket has changed",
        "cuda/replay/ranks.h",
        "if (bucket == before) return {false, 0};",
        "",
        "priorities_test",
    ),
    Fault(
        "ranks: counted from the warp's first bucket on",
        "cuda/replay/ranks.cu",
        "sum_before<n_threads>(count, row.warp_sums)",
        "prefix_sum(count, lane_of_thread()) - count",
        "priorities_test",
    ),
    Fault(
        "ranks: taken before every block knows that they are due",
        "cuda/replay/ranks.cu",
        "    if (blockIdx.x == 0) weigh_buckets(ranks, state.alpha, row);\n",
        "    if (grid_span().first == 0) ranks.state->n_changes = 0;\n"
        "    if (blockIdx.x == 0) weigh_buckets(ranks, state.alpha, row);\n",
        "replay_calls_test",
    ),
    Fault(
        "ranks: taken whether due or not",
        "cuda/replay/ranks.cu",
        "if (!ranks_are_due(ranks.state->n_changes, ranks.state->n_live)) return;",
        "",
        "priorities_test",
    ),
    Fault(
        "ranks: the smallest mass is that of priority 0",
        "cuda/draw/draw_law.h",
        "bucket = 1 + threadIdx.x;",
        "bucket = threadIdx.x;",
        "sample_test",
    ),
    Fault(
        "ranks: no smallest mass where all priorities are 0",
        "cuda/draw/draw_law.h",
        "return smallest < n_rank_buckets ? smallest : 0;",
        "return smallest < n_rank_buckets ? smallest : n_rank_buckets - 1;",
        "sample_test",
    ),
    Fault(
        "ranks: taken by a draw without replacement of more than are live",
        "cuda/replay/ranks.cu",
        "state.n_live < least.live || ",
        "",
        "replay_walks_test",
    ),
    Fault(
        "ranks: kept from a draw that was taken back",
        "cuda/replay/replay_backend.cu",
        "    if (relabelling.took_ranks) queue_forget_ranks(memory_.device(), call.stream());\n",
        "",
        "replay_walks_test",
    ),
    Fault(
        "alpha: ranks are kept",
        "cuda/replay/all_priorities.cu",
        "    if (has_ranks(priorities)) priorities.ranks.state->n_changes = ranks_never_taken;\n",
        "",
        "priorities_test",
    ),
    Fault(
        "alpha: smallest leaves are kept",
        "cuda/replay/all_priorities.cu",
        "    queue_rebuild(replay.priorities.tree, stream);\n    queue_smallest_leaves(replay, stream);",
        "    queue_rebuild(replay.priorities.tree, stream);",
        "priorities_test",
    ),
    Fault(
        "a batch handed out before it is copied",
        "cuda/runtime/device_slots.h",
        'check(cudaStreamWaitEvent(target, slots_[slot].sent.get(), 0), "waiting for a batch");',
        "",
        "copied_slots_test",
    ),
    Fault(
        "a copy over a batch that is still read",
        "cuda/runtime/device_slots.h",
        "        await_release(slot);\n        check(cudaMemcpyAsync(",
        "        check(cudaMemcpyAsync(",
        "copied_slots_test",
    ),
    Fault(
        "a draw over a batch that is still copied",
        "cuda/runtime/device_slots.h",
        "        wait_until_sent(slot);\n        copies_",
        "        copies_",
        "copied_slots_test",
    ),
    Fault(
        "a release on another stream than the consumer's",
        "cuda/runtime/device_slots.h",
        "check(cudaEventRecord(slots_[slot].released.get(), require_no_capture(stream))",
        "check(cudaEventRecord(slots_[slot].released.get(), stream_.get())",
        "copied_slots_test",
    ),
    Fault(
        "a consumer that waits for the copy",
        "cuda/runtime/device_slots.h",
        'check(cudaStreamWaitEvent(target, slots_[slot].sent.get(), 0), "waiting for a batch");',
        "wait_until_sent(slot);",
        "loader_test",
    ),
    Fault(
        "a copy that failed is taken for made",
        "cuda/runtime/device_slots.h",
        "        if (!copies_[slot].is_sent) copy(slot);\n",
        "",
        "copied_slots_test",
    ),
    Fault(
        "captures are not refused",
        "cuda/runtime/loader_slots.cu",
        "if (!is_captured(target)) return target;",
        "return target;",
        "loader_test",
    ),
    Fault(
        "a wait that spoils the captures of others",
        "cuda/runtime/device.h",
        "mode_ = cudaStreamCaptureModeRelaxed;",
        "mode_ = cudaStreamCaptureModeGlobal;",
        "loader_test",
    ),
    Fault(
        "ids that were never issued do not count",
        "cuda/replay/replay_state.h",
        "    atomic_add(&state.counters.rejected_updates, static_cast<int64_t>(n));\n",
        "",
        "priorities_test",
    ),
    Fault(
        "a draw over a batch that is still read",
        "cuda/runtime/loader_slots.cu",
        "        await_release(slot);\n        return {",
        "        return {",
        "drawn_loader_test",
    ),
    Fault(
        "a batch handed out before it is drawn",
        "cuda/runtime/loader_slots.cu",
        "        wait_until_sent(slot);\n        require_drawn",
        "        require_drawn",
        "drawn_loader_test",
    ),
    Fault(
        "gather: over a batch that is still read",
        "cuda/batch/gathered_slots.cu",
        "            await_release(open_);\n",
        "",
        "gathered_loader_test",
    ),
    Fault(
        "gather: rows are overwritten before they are read",
        "cuda/batch/gathered_slots.cu",
        "        wait_until_sent(latest);\n",
        "",
        "gathered_loader_test",
    ),
    Fault(
        "gather: nobody knows which slot a gather is for",
        "cuda/batch/gathered_slots.cu",
        "            numbers_[open_] = n_queued_;\n",
        "",
        "gathered_loader_test",
    ),
    Fault(
        "gather: sent before the kernel is queued",
        "cuda/batch/gathered_slots.cu",
        "            queue_kernels(open_);\n            record_sent(open_);\n",
        "            record_sent(open_);\n            queue_kernels(open_);\n",
        "gathered_loader_test",
    ),
    Fault(
        "gather: every array has the chunks of the first",
        "cuda/batch/gathered_slots.cu",
        "            chunk -= n_chunks;\n",
        "",
        "gathered_loader_test",
    ),
    Fault(
        "gather: a loader that ends leaves gathers behind",
        "cuda/batch/gathered_slots.cu",
        "            for (std::size_t slot = 0; slot < slots_.size(); ++slot) wait_until_sent(slot);\n",
        "",
        "gathered_loader_test",
    ),
    Fault(
        "gather: what fails is sent as it is",
        "cuda/batch/gathered_slots.cu",
        "            gather_on_host(open_);\n",
        "",
        "gathered_loader_test",
    ),
    Fault(
        "gather: zeros are what was there before",
        "cuda/batch/gathered_slots.cu",
        "                    std::memset(out, 0, bytes);",
        "                    static_cast<void>(bytes);",
        "gathered_loader_test",
    ),
    Fault(
        "gather: the batch is copied as well",
        "cuda/batch/gathered_slots.cu",
        "        if (!copies_[slot].is_sent) CopiedSlots::send(slot);",
        "        CopiedSlots::send(slot);",
        "gathered_loader_test",
    ),
    Fault(
        "gather: next observations are not pinned",
        "cuda/batch/gathered_slots.cu",
        "{rows_.fields, rows_.next_fields})",
        "{rows_.fields, {}})",
        "gathered_loader_test",
    ),
    Fault(
        "gather: rows stay pinned",
        "cuda/batch/gathered_slots.cu",
        "        pinned_.clear();\n",
        "",
        "gathered_loader_test",
    ),
    Fault(
        "gather: a forked child waits for its parent's device",
        "cuda/batch/gathered_slots.cu",
        "        if (process_number() != process_) return;\n",
        "",
        "gathered_loader_test",
    ),
    Fault(
        "gather: any device will do",
        "cuda/batch/gathered_slots.cu",
        "        if (!reaches_pinned_pages())",
        "        if (false)",
        "gathered_loader_test",
    ),
    Fault(
        "a draw between those that are ahead counts them for beta",
        "cuda/replay/replay_state.h",
        "return beta.step - n_ahead;",
        "return beta.step;",
        "drawn_loader_test",
    ),
    Fault(
        "draws ahead count for beta when they are drawn",
        "cuda/draw/live_draw.cu",
        "    if (plan.beta != plan.beta && plan.is_ahead()) state.n_ahead = before.n_ahead + 1;\n",
        "",
        "drawn_loader_test",
    ),
    Fault(
        "what was never handed out counts for beta",
        "cuda/replay/replay_backend.cu",
        "    state->beta.step -= state->n_ahead;\n",
        "",
        "drawn_loader_test",
    ),
    Fault(
        "a draw ahead that fails is reported, too",
        "cuda/draw/live_draw.cu",
        "    else if (replay.state->n_live == 0)\n",
        "    if (replay.state->n_live == 0)\n",
        "drawn_loader_test",
    ),
    Fault(
        "a loader's memory is made when it first draws",
        "cuda/replay/replay_backend.cu",
        "    batches_.prepare(sample, call);\n",
        "    static_cast<void>(sample);\n",
        "drawn_loader_test",
    ),
    Fault(
        "windows longer than those of the buffer",
        "cuda/draw/live_draw.h",
        "return plan.rows.rules.n_step <= replay.state->rules.n_step;",
        "return plan.rows.rules.n_step != 0 || replay.state == nullptr;",
        "replay_graphs_test",
    ),
    Fault(
        "times sampled: said before all have counted",
        "cuda/draw/count_draws.cu",
        "    // A row may occur several times in the batch.\n    meet(replay.priorities.tree.state->meeting);\n",
        "",
        "times_sampled_test",
    ),
    Fault(
        "times sampled: leaves change while rows are taken out of the live ones",
        "cuda/draw/count_draws.cu",
        "    // Several rows share a word of live bits.\n    meet(replay.priorities.tree.state->meeting);\n",
        "",
        "times_sampled_test",
        needs_tsan=True,
    ),
    Fault(
        "times sampled: draws that find too few count",
        "cuda/draw/count_draws.cu",
        "const int64_t n = is_drawn ? plan.rows.n : 0;",
        "const int64_t n = is_drawn ? plan.rows.n : plan.rows.n - 1;",
        "times_sampled_test",
    ),
    Fault(
        "times sampled: live rows that are used up are counted",
        "cuda/draw/count_draws.cu",
        "        ++n_used_up;\n",
        "",
        "times_sampled_test",
    ),
    Fault(
        "times sampled: rows that are used up become live again",
        "cuda/add/change_lanes.h",
        " || is_used_up(task.replay, slot)",
        "",
        "times_sampled_test",
    ),
    Fault(
        "times sampled: rows that are written anew keep their number",
        "cuda/add/add_lane.h",
        "        replay.rewards[slot] = group.reward;\n        forget_draws(replay, slot);\n",
        "        replay.rewards[slot] = group.reward;\n",
        "times_sampled_test",
    ),
    Fault(
        "times sampled: maxima forget rows that are used up",
        "cuda/draw/count_draws.cu",
        "        for_each(replay, visit);\n",
        "        if (replay.state == nullptr) for_each(replay, visit);\n",
        "times_sampled_test",
    ),
    Fault(
        "memory that graphs do not know",
        "cuda/runtime/stream_order.h",
        "bool has_captures() const { return order_.last_capture_ != 0; }",
        "bool has_captures() const { return is_captured_; }",
        "replay_graphs_test",
    ),
    Fault(
        "a wait for the staging ring that spoils the captures of others",
        "cuda/runtime/device.cu",
        "    const ApartFromCaptures apart;\n    check(cudaEventSynchronize(",
        "    check(cudaEventSynchronize(",
        "replay_graphs_test",
    ),
    Fault(
        "waits that spoil captures",
        "cuda/runtime/device.cu",
        "    const ApartFromCaptures apart;\n    check(cudaStreamSynchronize(",
        "    check(cudaStreamSynchronize(",
        "replay_graphs_test",
    ),
    Fault(
        "memory whose freeing spoils captures",
        "cuda/runtime/device.cu",
        "    const ApartFromCaptures apart(std::nothrow);\n    // After",
        "    // After",
        "replay_graphs_test",
    ),
    Fault(
        "the default streams of two threads taken for one",
        "cuda/runtime/stream_order.cu",
        "order_.last_stream_ != identity_",
        "order_.last_stream_.handle != identity_.handle",
        "tree_calls_test",
    ),
    Fault(
        "streams told apart by their handles",
        "cuda/runtime/stream_order.cu",
        "return {stream, id};",
        "return {stream, 0};",
        "stream_order_test",
    ),
    Fault(
        "threads told apart by what the next one may have",
        "cuda/runtime/stream_order.cu",
        "    return number;",
        "    return reinterpret_cast<uint64_t>(&number);",
        "stream_order_test",
    ),
    Fault(
        "a wait between calls on one stream",
        "cuda/runtime/stream_order.cu",
        "order_.has_last_ && order_.last_stream_ != identity_",
        "order_.has_last_",
        "stream_order_test",
    ),
    Fault(
        "bootstraps are counted from each lane's own first",
        "cuda/replay/on_policy.cu",
        "        replay.bootstraps[env] = static_cast<int64_t>(before);",
        "        replay.bootstraps[env] = 0;",
        "replay_walks_test",
    ),
    Fault(
        "advantages take bootstrap values in order of time",
        "cuda/replay/on_policy.cu",
        "        int64_t n_left = replay.bootstraps[env + 1];",
        "        int64_t n_left = replay.bootstraps[env] + 1;",
        "replay_walks_test",
    ),
    Fault(
        "ids of bootstraps are not looked at",
        "cuda/replay/on_policy.cu",
        "advantages.ids[i] == replay.state->rules.ring.id(env, row) &&",
        "",
        "replay_walks_test",
    ),
    Fault(
        "too many bootstrap values are allowed",
        "cuda/replay/on_policy.cu",
        "    n_bad += is_first && replay.bootstraps[replay.n_envs] < advantages.count;\n",
        "",
        "replay_walks_test",
    ),
    Fault(
        "windows that get a goal have the longest n_step",
        "cuda/batch/hindsight.cu",
        "NSteps{question.n_step, question.n_step_min, replay.seed, question.batch_number}.of_place(i);",
        "question.n_step;",
        "replay_walks_test",
    ),
    Fault(
        "a draw has the numbers of the buffer in place of its key's",
        "cuda/batch/write_rows.h",
        "    if (plan.key != nullptr) return {plan.key[0], plan.key[1]};\n",
        "",
        "sample_test",
    ),
    Fault(
        "the first unit of a leaf without what the top row has before it",
        "cuda/draw/units.cu",
        "(node != 0 ? row.prefix[node - 1] : 0)",
        "(node == 0 ? row.prefix[node] : 0)",
        "units_test",
    ),
    Fault(
        "the first unit of a leaf counts the leaf",
        "cuda/draw/units.cu",
        "lane < leaf % fan_out ?",
        "lane <= leaf % fan_out ?",
        "units_test",
    ),
    Fault(
        "a rank is one too large",
        "cuda/draw/units.cu",
        "static_cast<uint64_t>(-1 - unit)",
        "static_cast<uint64_t>(-unit)",
        "units_test",
    ),
    Fault(
        "the unit after the last is there",
        "cuda/draw/units.cu",
        "unit < n_units;",
        "unit <= n_units;",
        "units_test",
    ),
    Fault(
        "a scale that was set is chosen anew by an empty buffer",
        "cuda/tree/tree_change.h",
        "state.is_scale_fixed != 0 ? plan_at_fixed_scale",
        "state.is_scale_fixed > 1 ? plan_at_fixed_scale",
        "units_test",
    ),
    Fault(
        "a scale that was left is said to be fixed",
        "cuda/tree/tree_change.h",
        "    state.is_scale_fixed = 0;\n",
        "",
        "units_test",
    ),
    Fault(
        "the largest priority is lowered",
        "cuda/replay/replay_backend.cu",
        "atomicMax(&state->largest_bits, __float_as_uint(priority + 0.0f));",
        "atomicExch(&state->largest_bits, __float_as_uint(priority + 0.0f));",
        "units_test",
    ),
    Fault(
        "windows by id of a range are not counted",
        "cuda/replay/replay_backend.cu",
        "if (!sample.is_drawn() && sample.n_step_min != 0)",
        "if (false)",
        "replay_graphs_test",
    ),
    Fault(
        "a goal of an earlier step",
        "cuda/batch/hindsight.cu",
        "if (ends != 0) return first + __ffs(static_cast<int>(ends));",
        "if (ends != 0) return first + __ffs(static_cast<int>(ends)) - 1;",
        "replay_walks_test",
    ),
    Fault(
        "the episode of a goal begins a step late",
        "cuda/batch/hindsight.cu",
        "if (starts != 0) return last - (__ffs(static_cast<int>(starts)) - 1);",
        "if (starts != 0) return last - (__ffs(static_cast<int>(starts)) - 2);",
        "replay_walks_test",
    ),
    Fault(
        "a goal in the place of zeros",
        "cuda/batch/hindsight.cu",
        "goal_frames(stack, goal_field.pads_with_zeros, before, distance);",
        "goal_frames(stack, false, before, distance);",
        "replay_walks_test",
    ),
    Fault(
        "a goal in the place of zeros where a window ends early",
        "cuda/batch/hindsight.cu",
        "if (field.pads_with_zeros && is_padding(row, true, age)) from = nullptr;",
        "",
        "replay_walks_test",
    ),
    Fault(
        "the goal pursued where a window ends early",
        "cuda/batch/hindsight.cu",
        "from = goal != nullptr ? goal : from + place.slot * field.bytes;",
        "from = from + place.slot * field.bytes;",
        "replay_walks_test",
    ),
    Fault(
        "inner next observations in reverse",
        "cuda/batch/hindsight.cu",
        "field.stack + field.stack - 1 - age;",
        "field.stack + age;",
        "replay_walks_test",
    ),
    Fault(
        "a draw that is taken back keeps beta's step",
        "cuda/replay/replay_backend.cu",
        "    if (by_schedule) --state->beta.step;\n",
        "",
        "replay_walks_test",
    ),
    Fault(
        "figures of a batch that was taken back",
        "cuda/replay/replay_backend.cu",
        "    state->last.size = 0;\n",
        "",
        "replay_walks_test",
    ),
    Fault(
        "clear leaves the tail where it was",
        "cuda/replay/replay_backend.cu",
        "        lane.tail = lane.head;\n",
        "",
        "replay_checkpoint_test",
    ),
    Fault(
        "a file's batches are forgotten",
        "cuda/replay/checkpoint.cu",
        "    state.batches = static_cast<uint64_t>(numbers.batches);\n",
        "",
        "replay_checkpoint_test",
    ),
    Fault(
        "ranks of a file are those of an empty buffer",
        "cuda/replay/checkpoint.cu",
        "    queue_ranks(replay, call.stream());\n",
        "",
        "replay_checkpoint_test",
    ),
    Fault(
        "errors are reported again",
        "cuda/replay/replay_backend.cu",
        '    check(cudaMemsetAsync(errors, 0, sizeof *errors, call.stream()), "ending the report");\n',
        "",
        "replay_calls_test",
    ),
]

BARRIER = r"bar\.sync \t0;"
CLUSTERS = {"PER_SIMULATOR_CLUSTERS": "8"}
TREE_UPDATE = ("tree_update", "13update_kernel")
TREE_DRAW = ("tree_draw", "11draw_kernel")
PTX_FAULTS = [
    PtxFault("PTX: a claim is taken by any entry", *TREE_UPDATE, r"(cas\.b32 \t%r\d+, \[%rd\d+\], )%r\d+", r"\g<1>0"),
    PtxFault(
        "PTX: a word of shared memory that is not aligned",
        *TREE_DRAW,
        r"(st\.shared\.u64 \t\[%r\d+)\]",
        r"\1+4]",
        is_pitfall=True,
    ),
    PtxFault(
        "PTX: beyond the end of shared memory",
        *TREE_DRAW,
        r"(st\.shared\.u64 \t\[%r\d+)\]",
        r"\1+16384]",
    ),
    PtxFault(
        "PTX: a parameter is read eight bytes too far",
        *TREE_DRAW,
        r"(ld\.param\.u64 \t%rd\d+, \[\w+_param_2)\]",
        r"\1+8]",
        is_pitfall=True,
    ),
    PtxFault(
        "PTX: the leaf after the one that was drawn",
        *TREE_DRAW,
        r"(shl\.b64 \t(%rd\d+), %rd\d+, 5;)",
        r"\1 add.s64 \2, \2, 1;",
        place=None,
    ),
    PtxFault(
        "PTX: the sum of a warp lacks a step",
        *TREE_UPDATE,
        r"(shfl\.sync\.bfly\.b32\t%r\d+\|%p\d+, %r\d+, )16",
        r"\g<1>0",
        place=None,
    ),
    PtxFault(
        "PTX: a lane is left out of a vote",
        *TREE_DRAW,
        r"(vote\.sync\.ballot\.b32 \t%r\d+, %p\d+, )%r\d+",
        r"\g<1>-2",
        is_pitfall=True,
    ),
    PtxFault(
        "PTX: <= in the descent",
        "tree_draw",
        "11find_kernelIdE",
        r"setp\.lt\.u64",
        "setp.le.u64",
        place=None,
        is_pitfall=True,
    ),
    PtxFault("PTX: products without their high half", *TREE_DRAW, r"mul\.hi\.u64", "mul.lo.s64", place=None),
    PtxFault(
        "PTX: the last of equal indices does not win",
        *TREE_UPDATE,
        r"atom\.global\.max\.u32",
        "atom.global.min.u32",
        place=None,
        is_pitfall=True,
    ),
    PtxFault(
        "PTX: a draw does not wait for the work before it",
        *TREE_DRAW,
        r"griddepcontrol\.wait;",
        "",
        environment={"PER_EARLY_LAUNCHES": "1"},
    ),
    PtxFault(
        "PTX: a cluster does not wait",
        "tree_draw",
        "22draw_in_cluster_kernel",
        r"barrier\.cluster\.wait;",
        "",
        environment=CLUSTERS,
        is_pitfall=True,
    ),
    PtxFault(
        "PTX: the shared memory of the wrong block",
        "tree_draw",
        "22draw_in_cluster_kernel",
        r"(mapa\.u64\s+%rd\d+, %rd\d+, )%r\d+",
        r"\g<1>0",
        environment=CLUSTERS,
    ),
    PtxFault(
        "PTX: a block's arrival orders nothing",
        *TREE_UPDATE,
        r"\.acq_rel\.gpu",
        ".relaxed.gpu",
        place=None,
        needs_tsan=True,
    ),
    PtxFault("PTX: no barrier after the largest weights of warps", *TREE_DRAW, BARRIER, "", place=4, needs_tsan=True),
    PtxFault("PTX: no barrier before a block has claimed its leaves", *TREE_UPDATE, BARRIER, "", place=0),
    PtxFault("PTX: no barrier after all blocks have claimed theirs", *TREE_UPDATE, BARRIER, "", place=1),
    PtxFault("PTX: no barrier before the tree is made anew", *TREE_UPDATE, BARRIER, "", place=4, needs_tsan=True),
    PtxFault("PTX: no barrier before the top row is written", *TREE_UPDATE, BARRIER, "", place=2, needs_tsan=True),
    PtxFault("PTX: no barrier after the sums of warps", *TREE_DRAW, BARRIER, "", place=1, needs_tsan=True),
    PtxFault("PTX: no barrier after the top row is stored", *TREE_DRAW, BARRIER, "", place=2, needs_tsan=True),
    PtxFault(
        "PTX: no barrier before a block knows that it is the last", *TREE_DRAW, BARRIER, "", place=5, needs_tsan=True
    ),
]


class Build:
    """The compile and link commands of the tests, for sources with a fault."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.commands = {}
        for entry in json.loads((folder / "compile_commands.json").read_text()):
            if "per_simulated_objects" in entry["command"] or "/per_ptx_" in entry["command"]:
                self.commands[pathlib.Path(entry["file"])] = shlex.split(entry["command"])

    def link_command(self, target: str) -> list[str]:
        listed = subprocess.run(
            ["ninja", "-C", str(self.folder), "-t", "commands", "-s", target],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        return shlex.split(listed.strip().splitlines()[-1].removeprefix(": && ").removesuffix(" && :"))

    @functools.cached_property
    def ptx_folder(self) -> pathlib.Path | None:
        """The PTX of the last architecture that this build translates; None where it has no nvcc."""
        libraries = (self.folder / "tests" / "ptx").glob("libper_ptx_*.so")
        architectures = [int(library.stem.removeprefix("libper_ptx_")) for library in libraries]
        return self.folder / "tests" / "ptx" / str(max(architectures)) if architectures else None

    def ptx_of(self, fault: PtxFault) -> pathlib.Path:
        assert self.ptx_folder is not None
        return self.ptx_folder / f"{fault.file}.ptx"

    def run(self, fault: Fault | PtxFault, work: pathlib.Path) -> str:
        """How the test failed, or "" if it passed."""
        return self.run_ptx(fault, work) if isinstance(fault, PtxFault) else self.run_source(fault, work)

    def run_ptx(self, fault: PtxFault, work: pathlib.Path) -> str:
        original = self.ptx_of(fault)
        planted = fault.plant(original.read_text())
        assert planted is not None
        ptx, translated, target = (work / f"{fault.file}.{suffix}" for suffix in ("ptx", "cpp", "o"))
        library = work / "kernels.so"
        ptx.write_text(planted)
        subprocess.run([sys.executable, TRANSLATE, ptx, translated], check=True, capture_output=True)
        source = original.with_suffix(".cpp")
        compiler = self.commands[source]
        built = compiler[compiler.index("-o") + 1]
        replaced = {str(source): str(translated), built: str(target)}
        command = [replaced.get(word, word) for word in compiler]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)
        link = self.link_command(f"tests/ptx/libper_ptx_{original.parent.name}.so")
        command = [replaced.get(word, word) for word in link]
        command[command.index("-o") + 1] = str(library)
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)
        program = self.folder / "tests" / "simulator" / f"cuda_{fault.test}"
        return self.run_test(program, {**fault.environment, "PER_SIMULATOR_KERNELS": str(library)})

    def run_source(self, fault: Fault, work: pathlib.Path) -> str:
        shutil.copytree(SOURCES / "cuda", work / "src" / "cuda")
        path = work / "src" / fault.file
        path.write_text(path.read_text().replace(fault.original, fault.planted, 1))
        sources = sources_of(fault)
        main = SOURCES / MAIN_SOURCES.get(fault.test, fault.file)
        recompiled: dict[str, str] = {}
        if main in sources:
            sources.remove(main)
            self.compile(main, work, recompiled)
            if seen := self.run_linked(fault, work, recompiled):
                return seen
        for source in sources:
            self.compile(source, work, recompiled)
        return self.run_linked(fault, work, recompiled) if sources else ""

    def compile(self, source: pathlib.Path, work: pathlib.Path, recompiled: dict[str, str]) -> None:
        command = self.commands[source]
        built = command[command.index("-o") + 1]
        target = work / f"{source.name}.o"
        copy = work / "src" / source.relative_to(SOURCES)
        changed = [str(copy) if word == str(source) else word for word in command]
        changed[changed.index("-o") + 1] = str(target)
        # Headers with the fault come before those without.
        changed[1:1] = [f"-I{work / 'src'}"]
        changed += ["-w", "-O1", "-g0"]  # a variable that only the fault leaves unused is no catch
        subprocess.run(changed, cwd=self.folder, check=True, capture_output=True)
        recompiled[built] = str(target)

    def run_linked(self, fault: Fault, work: pathlib.Path, recompiled: dict[str, str]) -> str:
        program = work / "program"
        # Of functions that several objects have, such as those out of line, the linker takes the first: the fault must
        # not lose to a source that was not compiled anew.
        link = [word for word in self.link_command(f"tests/simulator/cuda_{fault.test}") if word not in recompiled]
        first = next(i for i, word in enumerate(link) if word.endswith(".o"))
        link[first:first] = recompiled.values()
        link[link.index("-o") + 1] = str(program)
        link.append("-Wl,--strip-debug")
        subprocess.run(link, cwd=self.folder, check=True, capture_output=True)
        return self.run_test(program, fault.environment)

    def run_test(self, program: pathlib.Path, added: dict[str, str]) -> str:
        environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1", **added}
        try:
            result = subprocess.run(
                ["sh", "-c", f'ulimit -c 0; ulimit -t {TIME_LIMIT_S}; exec "$0" --gtest_fail_fast', program],
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=WAIT_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return "waits for ever"
        if result.returncode == 0:
            return ""
        if result.returncode == -signal.SIGXCPU:
            return "does not end"
        printed = (result.stdout + result.stderr).splitlines()
        said = [line for line in printed if "simulator:" in line or "WARNING: ThreadSanitizer" in line]
        failed = [line for line in printed if line.startswith("[  FAILED  ]")]
        return (said or failed or [f"exits with {result.returncode}"])[0]


@functools.cache
def with_headers(path: pathlib.Path) -> set[pathlib.Path]:
    """A source, and the headers of the library and of its tests that it reads, those of headers included."""
    found = {path}
    left = [path]
    while left:
        for name in re.findall(r'^#include "(.+)"$', left.pop().read_text(), re.MULTILINE):
            for header in (SOURCES / name, TESTS / name):
                if header not in found and header.exists():
                    found.add(header)
                    left.append(header)
    return found


def sources_of(fault: Fault) -> list[pathlib.Path]:
    """What must be compiled anew. A test of the tree runs no kernels but those of the tree's own files."""
    found = []
    for source in sorted((SOURCES / "cuda").rglob("*.cu")):
        is_run = not fault.test.startswith("tree_") or source.name.startswith("tree_")
        if source == SOURCES / fault.file or (is_run and SOURCES / fault.file in with_headers(source)):
            found.append(source)
    return found


def digest_of(fault: Fault | PtxFault, build: Build) -> str:
    """Another one once the fault, what it is planted in or its test has changed."""
    digest = hashlib.sha256(repr(fault).encode())
    read = with_headers(TESTS / f"{fault.test}.cpp")
    if isinstance(fault, PtxFault):
        read = read | {TRANSLATE, TRANSLATE.with_name("ptx.h"), build.ptx_of(fault)}
    else:
        read = read.union(*map(with_headers, sources_of(fault)))
    for path in sorted(read):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class SeenFaults:
    """The faults that a build folder has seen caught, by name, each with its digest of that time."""

    def __init__(self, build: Build) -> None:
        self.build = build
        self.file = build.folder / "faults_seen.json"
        self.digests = json.loads(self.file.read_text()) if self.file.exists() else {}

    def has(self, fault: Fault | PtxFault) -> bool:
        return fault.name in self.digests and self.digests[fault.name] == digest_of(fault, self.build)

    def note(self, fault: Fault | PtxFault, is_caught: bool) -> None:
        self.digests.pop(fault.name, None)
        if is_caught:
            self.digests[fault.name] = digest_of(fault, self.build)
        self.file.write_text(json.dumps(self.digests, indent=1))


def has_place(fault: Fault | PtxFault, build: Build) -> bool:
    if isinstance(fault, PtxFault):
        return fault.plant(build.ptx_of(fault).read_text()) is not None
    return fault.original in (SOURCES / fault.file).read_text()


def outcome(fault: Fault | PtxFault, build: Build) -> tuple[bool, str]:
    """Whether the fault was caught, and how."""
    if not has_place(fault, build):
        return False, f"{fault.file} has no longer the text that the fault replaces"
    with tempfile.TemporaryDirectory() as work:
        try:
            seen = build.run(fault, pathlib.Path(work))
        except subprocess.CalledProcessError as error:
            lines = error.stderr.decode(errors="replace").splitlines()
            return False, next((line for line in lines if "error:" in line), "it does not compile or link")
    return bool(seen), seen or "the test passes"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--tsan", type=pathlib.Path)
    parser.add_argument("--pitfalls", action="store_true")
    parser.add_argument("--unseen", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_intermixed_args()
    build = Build(arguments.build.resolve())
    tsan = Build(arguments.tsan.resolve()) if arguments.tsan else None

    seen = SeenFaults(build)

    def is_chosen(fault: Fault | PtxFault) -> bool:
        is_named = not arguments.names or any(name in fault.name for name in arguments.names)
        is_asked = is_named and (fault.is_pitfall or not arguments.pitfalls)
        return is_asked and not (arguments.unseen and seen.has(fault))

    chosen = [fault for fault in [*FAULTS, *PTX_FAULTS] if is_chosen(fault)]

    def why_left_out(fault: Fault | PtxFault) -> str:
        if fault.needs_tsan and tsan is None:
            return "needs --tsan"
        chosen_build = tsan if fault.needs_tsan and tsan else build
        return "needs nvcc" if isinstance(fault, PtxFault) and chosen_build.ptx_folder is None else ""

    left_out = [fault for fault in chosen if why_left_out(fault)]
    planted = [fault for fault in chosen if fault not in left_out]
    n_caught = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        builds = [tsan if fault.needs_tsan and tsan else build for fault in planted]
        for fault, (is_caught, how) in zip(planted, pool.map(outcome, planted, builds), strict=True):
            print(f"{'caught' if is_caught else 'MISSED'}: {fault.name}: {how}", flush=True)
            n_caught += is_caught
            seen.note(fault, is_caught)
    for fault in left_out:
        print(f"left out, as it {why_left_out(fault)}: {fault.name}")
    print(f"mutations: {n_caught} of {len(planted)} caught")
    return 0 if n_caught == len(planted) and (planted or arguments.unseen) else 1


if __name__ == "__main__":
    sys.exit(main())
