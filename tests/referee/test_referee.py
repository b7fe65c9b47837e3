"""The referee sees a fault planted for each check, and raises no false alarm on a buffer that is right."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "referee"))
import runner
from contract import Library
from naive import Naive
from naive_tree import NaiveTree, TreeBuffer

# The fault of naive.py that each check must see.
FAULTS = {
    "draws_follow_equation_1": "ignores_alpha",
    "priority_0_is_never_drawn": "draws_priority_0",
    "every_positive_priority_is_drawn": "forgets_small_priorities",
    "no_drift_after_many_updates": "drifts",
    "weights_follow_section_3_4": "weights_without_beta",
    "weights_are_at_most_1": "weights_not_normalised",
    "beta_rises_linearly_to_1": "beta_stays",
    "last_of_equal_indices_wins": "first_of_equal_wins",
    "without_replacement_all_differ": "ignores_replacement",
    "each_stratum_is_drawn_once": "ignores_strata",
    "new_ones_have_the_maximum": "new_ones_have_priority_1",
    "alpha_0_is_uniform": "ignores_alpha",
    "one_transition_fills_the_batch": "needs_two_transitions",
    "same_seed_same_batches": "ignores_seed",
    "exactly_full_ring_has_every_step": "lacks_the_newest_step_if_full",
    "wrapped_ring_has_the_last_steps": "keeps_the_first_step",
    "late_updates_do_not_reach_newer_steps": "late_updates_reach_newer_steps",
    "n_step_windows_end_at_terminal_states": "windows_cross_terminal_states",
    "n_step_windows_reach_every_terminal_state": "drops_short_windows",
    "n_step_windows_end_at_truncations": "windows_cross_truncations",
    "n_step_windows_end_at_the_write_head": "windows_reach_unwritten_rows",
    "n_step_windows_end_at_the_write_head_of_a_wrapped_ring": "windows_reach_over_the_write_head",
    "stacks_do_not_join_episodes": "stacks_join_episodes",
    "stacks_do_not_reach_over_the_write_head": "stacks_repeat_the_oldest_frame",
    "next_stacks_have_one_frame_more": "next_stacks_repeat_the_next_frame",
    "sequences_do_not_join_episodes": "sequences_join_episodes",
    "sequences_do_not_reach_over_the_write_head": "sequences_reach_over_the_write_head",
    "truncations_bootstrap_and_terminations_do_not": "truncations_do_not_bootstrap",
    "final_observations_without_autoreset": "takes_the_next_row_for_the_next_observation",
    "final_observations_with_autoreset_in_the_next_step": "keeps_reset_steps",
    "final_observations_with_autoreset_in_the_same_step": "takes_reset_for_final_observation",
    "environments_are_not_mixed": "takes_observations_of_other_environments",
    "n_step_windows_do_not_mix_environments": "windows_mix_environments",
    "hindsight_goals_come_from_later_in_the_episode": "takes_goals_of_other_episodes",
    "hindsight_rewards_are_those_of_the_goal": "keeps_rewards_of_the_pursued_goal",
    "a_nan_priority_does_no_harm": "takes_any_priority",
    "a_negative_priority_does_no_harm": "takes_any_priority",
    "an_infinite_priority_does_no_harm": "takes_any_priority",
    "a_huge_priority_does_no_harm": "adds_up_differences",
    "a_wrong_number_of_priorities_is_an_error": "takes_any_number_of_priorities",
    "sampling_an_empty_buffer_is_an_error": "makes_up_rows",
    "a_row_of_a_wrong_shape_is_an_error": "broadcasts_rows",
    "values_that_a_dtype_cannot_hold_are_errors": "casts_unsafely",
    "integers_of_64_bits_are_stored_exactly": "stores_integers_as_float",
    "a_loaded_buffer_has_the_same_rows": "files_lack_the_newest_row",
    "a_loaded_buffer_overwrites_the_oldest_rows": "files_lose_the_order",
    "a_loaded_buffer_has_the_same_priorities": "files_lack_priorities",
    "a_loaded_buffer_continues_bit_for_bit": "files_lack_the_generator",
    "a_pickled_buffer_is_the_same": "copies_lack_priorities",
    "a_forked_child_has_its_own_copy": "hangs_after_fork",
    "rows_are_never_torn": "tears_rows",
    "a_kill_during_a_save_leaves_a_whole_file": "saves_in_place",
    "memory_stays_once_the_ring_is_full": "keeps_overwritten_rows",
    "batches_of_10_000": "computes_all_probabilities",
    "batches_of_100_000": "computes_all_probabilities",
    "batches_of_1_000_000": "computes_all_probabilities",
    "bytes_of_an_atari_transition": "stores_twice",
}


def buffer_for(check, fault: str | None = None) -> Library:
    """The naive buffer for a check: those of cost need one that can be large."""
    return (NaiveTree if check.group == "cost" else Naive)(fault)


@pytest.fixture(autouse=True)
def time_is_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs are counted in nodes of the tree, not in time, which depends on what else the machine does."""
    monkeypatch.setattr("cost.clock", lambda: 1e-6 * TreeBuffer.work)


def test_every_check_has_a_fault() -> None:
    assert [check.name for check in runner.checks()] == list(FAULTS)


@pytest.mark.parametrize("check", runner.checks(), ids=lambda check: check.name)
def test_a_buffer_that_is_right_passes(check) -> None:
    result = runner.try_check(check, buffer_for(check))
    assert result.outcome == runner.HOLDS, result.shown


@pytest.mark.parametrize("check", runner.checks(), ids=lambda check: check.name)
def test_the_planted_fault_is_seen(check) -> None:
    result = runner.try_check(check, buffer_for(check, FAULTS[check.name]))
    assert result.outcome == runner.FAILS and result.shown
