"""Flashbax's own tests, run with the buffers of per.jax.

Tests of its sum tree and of pmap are left out; test_jax_buffer.py covers both. Our states do not contain the rows, so
tests that check whether the rows changed are given the ticket instead.
"""

from __future__ import annotations

import flashbax.buffers.flat_buffer_test as uniform
import flashbax.buffers.prioritised_flat_buffer_test as prioritised
import per.jax
import pytest
from flashbax.buffers.prioritised_flat_buffer_test import priority_exponent as priority_exponent


@pytest.fixture(autouse=True)
def ours_in_their_place(monkeypatch):
    monkeypatch.setattr(prioritised, "prioritised_flat_buffer", per.jax)
    monkeypatch.setattr(uniform, "flat_buffer", per.jax)
    monkeypatch.setattr(per.jax.State, "experience", property(lambda state: state._ticket), raising=False)


test_prioritised_add_and_can_sample = prioritised.test_add_and_can_sample
test_prioritised_sample = prioritised.test_sample
test_prioritised_add_batch_size_none = prioritised.test_add_batch_size_none
test_prioritised_add_sequences = prioritised.test_add_sequences
test_prioritised_add_sequences_and_batches = prioritised.test_add_sequences_and_batches
test_uniform_add_and_can_sample = uniform.test_add_and_can_sample
test_uniform_sample = uniform.test_sample
test_uniform_add_batch_size_none = uniform.test_add_batch_size_none
test_uniform_add_sequences = uniform.test_add_sequences
test_uniform_add_sequences_and_batches = uniform.test_add_sequences_and_batches
