"""GRPO of TRL with replay: groups of completions are learned from several times, or later than they were generated.

    from per.integrations.trl import GRPOTrainer, Replay, fields, generate

    groups = per.llm.Groups(8, fields(512, 1024), capacity=64, uses=4, max_age=8, order="priority")
    trainer = GRPOTrainer(model, replay=Replay(groups, answer, fresh=2), args=args, train_dataset=dataset)

docs/integrations/trl.md has the rollout function `answer`, checkpoints, and the hooks of TRL that are used.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trl
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

import per
from per import _options
from per._errors import Busy, InvalidArgument
from per.llm import Groups, Lease

__all__ = ["GRPOTrainer", "Replay", "fields", "generate", "load_groups"]

_FILE = "groups.pt"  # in the trainer's checkpoints
_COLUMNS = ("reward", "prompt_ids", "completion_ids", "logprobs")  # returned by every rollout function


def fields(max_prompt_length: int, max_completion_length: int) -> dict[str, per.Field]:
    """The fields of a ledger for TRL: tokens of prompts and completions, and the log-probabilities of the latter."""
    return {
        "prompt_ids": per.Field(None, "int32", max_length=max_prompt_length),
        "completion_ids": per.Field(None, "int32", max_length=max_completion_length),
        "logprobs": per.Field(None, "float32", max_length=max_completion_length),
    }


class Replay(TrainerCallback):
    """Groups of completions between TRL's generation and its optimizer steps.

    Versions of the ledger are the trainer's global steps. A lease is acknowledged after the last optimizer step that
    uses it, and the ledger is saved in each checkpoint.

    Parameters
    ----------
    groups : Groups
        A ledger with fields(), and any other fields that rollout_func returns, such as env_mask. Its group_size is
        num_generations.
    rollout_func : Callable
        One of TRL, which also returns "reward", a list[float]. It gets each prompt num_generations times in a row.
    fresh : int, optional
        Number of new groups per batch, limited by the ledger's room. More are generated if too few can be drawn. None:
        a whole batch.
    """

    def __init__(self, groups: Groups[Any], rollout_func: Callable[..., Any], *, fresh: int | None = None) -> None:
        self.groups, self._rollout_func = groups, rollout_func
        self._fresh = None if fresh is None else _options.at_least("fresh", fresh, 0)
        self._leases: list[Lease[Any]] = []  # TRL uses the last one, and has used the others
        self._n_left = 0  # micro-steps that will use the last lease

    def rollout(self, prompts: Sequence[Any], trainer: trl.GRPOTrainer) -> dict[str, list[Any]]:
        """The rollout_func for TRL: generates new groups, and returns those that the ledger draws."""
        if not trainer.model.training:
            answers = dict(self._rollout_func(prompts, trainer))
            _check(answers, len(prompts), are_stored=False)
            return answers | {"reward": list(answers["reward"])}  # TRL does not split other sequences
        size = trainer.num_generations
        n = len(prompts) // size
        counts = self.groups.counts()
        wanted = min(n if self._fresh is None else self._fresh, n, self.groups.room)
        wanted = max(wanted, n - counts.sealed - counts.open)
        keys = [json.dumps(prompt) for prompt in prompts[::size]]
        self.groups.reserve(keys=keys[:wanted])
        self._answer(trainer)
        try:
            lease = self.groups.sample(n)
        except Busy:  # groups of priority 0 cannot be drawn
            self.groups.reserve(keys=keys[wanted:][: self.groups.room])
            self._answer(trainer)
            lease = self.groups.sample(n)
        self._leases.append(lease)
        self._n_left = trainer.args.steps_per_generation * trainer.num_iterations
        names = set(lease.batch) - {"version_first", "version_last"}
        return {name: _rows(lease.batch[name]) for name in names} | {"age": np.repeat(lease.ages, size).tolist()}

    def reward(
        self, reward: list[float], log_metric: Any = None, age: Sequence[int] = (), **others: Any
    ) -> list[float]:
        """The reward function for TRL: returns rewards of the ledger, and logs the mean age of the batch."""
        if log_metric is not None and len(age) > 0:
            log_metric("replay/age", float(np.mean(age)))
        return reward

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Checks that the ledger has the trainer's group size and step."""
        if args.world_size > 1:
            raise InvalidArgument(f"world_size is {args.world_size}; allowed: 1")
        if args.num_generations != (size := self.groups._options["group_size"]):
            raise InvalidArgument(
                f"num_generations is {args.num_generations}; allowed: {size}, the group_size of groups"
            )
        while self._leases:  # of a training that an error ended
            self.groups.release(self._leases.pop())
        if self.groups.version != state.global_step:
            raise InvalidArgument(
                f"groups has version {self.groups.version}; needed: {state.global_step}, the trainer's global step. "
                "load_groups() reads the ledger of a checkpoint"
            )

    def on_substep_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Counts a micro-step. The last one of an optimizer step ends with on_step_end() instead."""
        self._n_left -= 1

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Advances the version, and acknowledges the leases that are used up."""
        self._n_left -= 1
        n_in_use = 1 if self._n_left > 0 else 0
        while len(self._leases) > n_in_use:
            self.groups.ack(self._leases.pop(0), version=state.global_step)
        self.groups.advance(state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Saves the ledger in the checkpoint."""
        folder = Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
        saved = {name: torch.as_tensor(value) for name, value in self.groups.state_dict().items()}
        torch.save(saved, folder / _FILE)

    def _answer(self, trainer: trl.GRPOTrainer) -> None:
        """Has completions generated for all open groups, and adds them."""
        missing, size = self.groups.missing(), trainer.num_generations
        if len(missing) == 0:
            return
        prompts = [json.loads(str(key)) for key in missing.values() for _ in range(size)]
        answers = dict(self._rollout_func(prompts, trainer))
        try:
            _check(answers, len(prompts), are_stored=True)
            rewards = answers.pop("reward")
            for i, (group, member) in enumerate(itertools.product(missing, range(size))):
                values = {name: column[i] for name, column in answers.items()}
                self.groups.close(group, member, rewards[i], n_tokens=len(values["completion_ids"]), **values)
        except BaseException:  # Ctrl-C, too: closed members cannot be closed again
            for group in self.groups.missing():
                self.groups.fail(group)
            raise


class GRPOTrainer(trl.GRPOTrainer):
    """TRL's trainer with replay. Importance ratios are relative to the policy that generated a group.

    Parameters
    ----------
    model, **options
        As in TRL, without reward_funcs and rollout_func.
    replay : Replay
    """

    def __init__(self, model: Any, *, replay: Replay, callbacks: Sequence[Any] | None = None, **options: Any) -> None:
        hooks = {
            "reward_funcs": replay.reward,
            "rollout_func": replay.rollout,
            "callbacks": [*(callbacks or ()), replay],
        }
        args = options.get("args")
        if args is not None and args.use_vllm and args.vllm_importance_sampling_correction:
            raise InvalidArgument("vllm_importance_sampling_correction is True; allowed: False, as ratios do the same")
        for name in ("tools", "environment_factory"):
            if options.get(name):
                raise InvalidArgument(f"{name} is given; allowed: None, since rollout_func has the whole answers")
        super().__init__(model, **hooks, **options)

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **options: Any) -> Any:
        """As in TRL, with the log-probabilities of the ledger as the old ones."""
        old = {"old_per_token_logps": inputs["sampling_per_token_logps"]}
        return super().compute_loss(model, {**inputs, **old}, *args, **options)


def load_groups(checkpoint: str | os.PathLike[str]) -> Groups[Any]:
    """The ledger in a checkpoint of a trainer, for a new Replay and train(resume_from_checkpoint=checkpoint)."""
    return Groups.load(torch.load(Path(checkpoint, _FILE), weights_only=True))


def generate(prompts: Sequence[Any], trainer: trl.GRPOTrainer) -> dict[str, list[Any]]:
    """Generates completions by transformers. Returns the dict of a rollout_func, without rewards.

    Raises InvalidArgument if there are no prompts, or one has no tokens.
    """
    if len(prompts) == 0:
        raise InvalidArgument("prompts has 0 entries; allowed: 1 and above")
    tokenizer, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
    if isinstance(prompts[0], str):
        prompt_ids = tokenizer(list(prompts))["input_ids"]
    else:
        chats = tokenizer.apply_chat_template(list(prompts), add_generation_prompt=True, return_dict=True)
        prompt_ids = chats["input_ids"]
    for i, ids in enumerate(prompt_ids):
        if len(ids) == 0:
            raise InvalidArgument(f"prompts[{i}] has 0 tokens; allowed: 1 and above")
    left = tokenizer.pad({"input_ids": prompt_ids}, padding_side="left", return_tensors="pt").to(model.device)
    n_padded = left["input_ids"].shape[1]
    ends = torch.tensor(np.ravel(trainer.generation_config.eos_token_id), device=model.device)
    rows: dict[str, list[Any]] = {"prompt_ids": prompt_ids, "completion_ids": [], "logprobs": []}
    with torch.no_grad(), _without_dropout(model):
        tokens = model.generate(**left, generation_config=trainer.generation_config)
        is_end = torch.isin(tokens[:, n_padded:], ends)
        lengths = torch.where(is_end.any(1), is_end.int().argmax(1) + 1, is_end.shape[1]).tolist()
        for i, length in enumerate(lengths):
            # Padding would shift the positions of models that count them from the first token.
            row = tokens[i, None, n_padded - len(prompt_ids[i]) : n_padded + length]
            logits = model(row, attention_mask=torch.ones_like(row), logits_to_keep=length + 1).logits[0, :-1]
            logs = torch.log_softmax(logits.float() / trainer.temperature, -1).gather(1, row[0, -length:, None])[:, 0]
            rows["completion_ids"].append(row[0, -length:].tolist())
            rows["logprobs"].append(logs.tolist())
    return rows


@contextlib.contextmanager
def _without_dropout(model: torch.nn.Module) -> Iterator[None]:
    """Puts a model into its evaluation mode, so that its log-probabilities are those that tokens are drawn from."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def _check(answers: Mapping[str, Any], n_prompts: int, *, are_stored: bool) -> None:
    """Raises InvalidArgument unless a rollout function returned all columns, with an entry for each prompt.

    If answers are not stored, further columns may be other objects than lists: TRL hands them on unchanged.
    """
    if missing := [name for name in _COLUMNS if name not in answers]:
        returned = ", ".join(sorted(answers))
        raise InvalidArgument(f"rollout_func has returned {returned}; needed: also {', '.join(missing)}")
    for name, column in answers.items():
        is_split = are_stored or isinstance(column, list) or name in (*_COLUMNS, "env_mask")
        if is_split and (n := _length(column)) != n_prompts:
            raise InvalidArgument(f"{name} of rollout_func has {n} entries; allowed: {n_prompts}, one for each prompt")
    for i in range(n_prompts):
        for name in ("prompt_ids", "completion_ids"):
            if (n := _length(answers[name][i])) in (0, "no"):
                raise InvalidArgument(f"{name}[{i}] of rollout_func has {n} tokens; allowed: 1 and above")
        n_tokens = len(answers["completion_ids"][i])
        for name in ("logprobs", "env_mask"):
            if name in answers and (n := _length(answers[name][i])) != n_tokens:
                raise InvalidArgument(
                    f"{name}[{i}] of rollout_func has {n} values; allowed: {n_tokens}, one for each token of "
                    f"completion_ids[{i}]"
                )


def _length(value: Any) -> int | str:
    """The number of entries for errors, "no" for an object without any, such as an array without axes."""
    return len(value) if isinstance(value, Sized) and getattr(value, "ndim", 1) > 0 else "no"


def _rows(column: Any) -> list[Any]:
    """The rows of a column of a batch [groups, members] as lists."""
    if isinstance(column, per.Ragged):
        return [column.values[begin:end].tolist() for begin, end in itertools.pairwise(column.offsets.tolist())]
    return [row.tolist() for row in column.reshape(-1, *column.shape[2:])]
