"""per.integrations.trl: TRL's GRPO trainer learns from the groups of a ledger, as often and as late as promised."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import per
import per.llm
import pytest
import tokenizers
import torch
import transformers
import trl
from datasets import Dataset
from per.integrations.trl import GRPOTrainer, Replay, fields, generate, load_groups

WORDS = ["<pad>", "<eos>", *"0123456789+="]
SIZE, LENGTH = 4, 8  # members of a group, tokens of an answer


@pytest.fixture(scope="module")
def tokenizer():
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>")
    by_character = tokenizers.Tokenizer(model)
    by_character.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    words = {"pad_token": "<pad>", "eos_token": "<eos>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=by_character, **words)


def new_model():
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = transformers.Qwen2Config(vocab_size=len(WORDS), **size, **heads, pad_token_id=0, eos_token_id=1)
    return transformers.Qwen2ForCausalLM(config)


def model_with_learned_positions():
    torch.manual_seed(0)
    size = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "initializer_range": 0.5}
    ends = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=len(WORDS), **size, **ends))  # dropout 0.1


def answer(prompts, trainer):
    """An answer gets a quarter of a point for each token "1"."""
    answers = generate(prompts, trainer)
    return {**answers, "reward": [ids.count(WORDS.index("1")) / 4 for ids in answers["completion_ids"]]}


class Recorded(Replay):
    """Keeps the leases that the ledger gave."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.leases, self.returned = [], []

    def rollout(self, prompts, trainer):
        known = {lease.number for lease in self.groups.leases()}
        returned = super().rollout(prompts, trainer)
        self.leases += [lease for lease in self.groups.leases() if lease.number not in known]
        self.returned.append(returned)
        return returned

    @property
    def drawn(self):
        return [lease.groups.tolist() for lease in self.leases]

    @property
    def ages(self):
        return [lease.ages.tolist() for lease in self.leases]


@pytest.fixture
def trainer_of(tmp_path, tokenizer):
    """A function that makes a trainer: two groups of four in each batch."""

    def make(replay, callbacks=None, dataset=None, model=None, **options):
        args = {"per_device_train_batch_size": 2 * SIZE, "num_generations": SIZE, "max_completion_length": LENGTH}
        args |= {"max_steps": 6, "learning_rate": 0.05, "temperature": 0.7, "save_strategy": "no", "seed": 3}
        args |= {"output_dir": str(tmp_path), "report_to": [], "use_cpu": True, "bf16": False, "disable_tqdm": True}
        if dataset is None:
            prompts = [f"{a}+{b}=" for a in range(20) for b in range(5)]  # of two lengths
            dataset = Dataset.from_list([{"prompt": prompt} for prompt in prompts])
        return GRPOTrainer(
            new_model() if model is None else model,
            replay=replay,
            callbacks=callbacks,
            args=trl.GRPOConfig(**{**args, **options}),
            train_dataset=dataset,
            eval_dataset=dataset,
            processing_class=tokenizer,
        )

    return make


def ledger(**options):
    return per.llm.Groups(SIZE, fields(16, LENGTH), **{"capacity": 8, **options})


def test_groups_are_used_as_often_and_at_the_ages_that_the_ledger_promises(trainer_of):
    """Each step has one new group, or two if none is left. They are drawn by id, twice each."""
    replay = Recorded(ledger(uses=2), answer, fresh=1)
    trainer_of(replay).train()
    assert replay.drawn == [[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [4, 5]]
    assert replay.ages == [[0, 0], [1, 1], [1, 0], [2, 1], [1, 0], [2, 1]]
    counts = replay.groups.counts()
    assert (counts.issued, counts.consumed, counts.sealed) == (7, 6, 1)
    assert (replay.groups.version, replay.groups.leases()) == (6, [])


@pytest.mark.parametrize("order", ["sealed", "priority"])
def test_groups_are_never_used_more_often_or_later_than_promised(trainer_of, order):
    replay = Recorded(ledger(uses=3, max_age=2, order=order, seed=1), answer, fresh=1)
    trainer_of(replay, max_steps=12).train()
    uses = Counter(group for groups in replay.drawn for group in groups)
    ages = [age for ages in replay.ages for age in ages]
    assert (max(uses.values()), max(ages), sum(uses.values())) == (3, 2, 24)
    counts = replay.groups.counts()
    assert counts.consumed + counts.retired + counts.sealed == counts.issued


def test_without_replay_it_is_trls_trainer(trainer_of, tokenizer):
    """Groups are used once, in the step that generated them. Then losses and weights are those of TRL alone."""
    losses, weights = [], []
    replay = Replay(ledger(), answer)
    ours = trainer_of(replay, logging_steps=1)
    reward = {"reward_funcs": lambda reward, **_: reward, "rollout_func": answer}
    theirs = trl.GRPOTrainer(
        new_model(), **reward, args=ours.args, train_dataset=ours.train_dataset, processing_class=tokenizer
    )
    for trainer in (ours, theirs):
        transformers.set_seed(3)
        trainer.train()
        losses.append([line["loss"] for line in trainer.state.log_history if "loss" in line])
        weights.append(torch.cat([weight.flatten() for weight in trainer.model.parameters()]).detach())
    assert len(losses[0]) == 6
    np.testing.assert_allclose(losses[0], losses[1], atol=1e-6)
    torch.testing.assert_close(*weights, rtol=0, atol=1e-4)


def test_advantages_and_old_log_probabilities_are_those_of_the_ledger(trainer_of, monkeypatch):
    """Advantages are (r - mean) / (std + 1e-4) of a group, as in TRL. Old log-probabilities are of the generation."""
    seen = []
    compute_loss = trl.GRPOTrainer.compute_loss

    def recorded(trainer, model, inputs, *args, **options):
        seen.append(inputs)
        return compute_loss(trainer, model, inputs, *args, **options)

    def with_mask(prompts, trainer):
        answers = answer(prompts, trainer)
        return {**answers, "env_mask": [[1] * (len(ids) - 1) + [0] for ids in answers["completion_ids"]]}

    monkeypatch.setattr(trl.GRPOTrainer, "compute_loss", recorded)
    mask = {"env_mask": per.Field(None, "uint8", max_length=LENGTH)}
    groups = per.llm.Groups(SIZE, {**fields(16, LENGTH), **mask}, capacity=8, uses=3)
    replay = Recorded(groups, with_mask, fresh=1)
    trainer_of(replay).train()
    assert max(age for ages in replay.ages for age in ages) == 4
    for inputs, rows, lease in zip(seen, replay.returned, replay.leases, strict=True):
        rewards = np.reshape(rows["reward"], (2, SIZE))
        scale = rewards.std(1, ddof=1, keepdims=True) + 1e-4
        advantages = ((rewards - rewards.mean(1, keepdims=True)) / scale).ravel()
        assert rows["age"] == np.repeat(lease.ages, SIZE).tolist()
        expected = [
            (*map(tuple, (rows["prompt_ids"][i], rows["completion_ids"][i])), rows["logprobs"][i], advantages[i])
            for i in range(2 * SIZE)
        ]
        found = []
        for i in range(2 * SIZE):  # TRL shuffles them
            prompt = inputs["prompt_ids"][i][inputs["prompt_mask"][i] == 1].tolist()
            n = int(inputs["completion_mask"][i].sum())
            assert inputs["tool_mask"][i, :n].tolist() == [1] * (n - 1) + [0]
            old = inputs["old_per_token_logps"][i, :n].tolist()
            ids = inputs["completion_ids"][i, :n].tolist()
            found.append((tuple(prompt), tuple(ids), old, float(inputs["advantages"][i])))
        for ours, theirs in zip(sorted(expected), sorted(found), strict=True):
            assert ours[:2] == theirs[:2]
            assert ours[2] == theirs[2]
            assert ours[3] == pytest.approx(theirs[3], abs=1e-5)
    by_group = {}
    for lease, rows in zip(replay.leases, replay.returned, strict=True):
        for place, group in enumerate(lease.groups.tolist()):
            part = slice(place * SIZE, (place + 1) * SIZE)
            content = [rows[name][part] for name in ("prompt_ids", "completion_ids", "logprobs", "reward")]
            assert by_group.setdefault(group, content) == content  # in each draw the same
    assert len(by_group) < 2 * len(replay.leases)


@pytest.mark.parametrize("made", [new_model, model_with_learned_positions])
@pytest.mark.parametrize("is_training", [True, False])
def test_log_probabilities_are_those_of_the_model_without_padding_and_dropout(trainer_of, made, is_training):
    """Prompts of two lengths, at temperature 0.7, against the model's own output for each answer by itself."""
    trainer = trainer_of(Replay(ledger(), answer), model=made())
    prompts = ["1+1=", "12+3="] * 8
    trainer.model.train(is_training)
    answers = generate(prompts, trainer)
    assert [module.training for module in trainer.model.modules()] == [is_training] * len([*trainer.model.modules()])
    trainer.model.eval()
    lengths = [len(ids) for ids in answers["completion_ids"]]
    assert min(lengths) < max(lengths) == LENGTH
    for i, prompt in enumerate(prompts):
        assert answers["prompt_ids"][i] == [WORDS.index(word) for word in prompt]
        ids = answers["completion_ids"][i]
        assert WORDS.index("<eos>") not in ids[:-1]
        assert ids[-1] == WORDS.index("<eos>") or len(ids) == LENGTH
        with torch.no_grad():
            logits = trainer.model(torch.tensor([answers["prompt_ids"][i] + ids])).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits / 0.7, -1)[range(len(ids)), ids]
        np.testing.assert_allclose(answers["logprobs"][i], expected, atol=1e-5)


class Crash(transformers.TrainerCallback):
    """Ends the training once, before a step of the optimizer."""

    def __init__(self, step):
        self.step = step

    def on_pre_optimizer_step(self, args, state, control, **others):
        if state.global_step == self.step:
            self.step = None
            raise InterruptedError


def test_a_resumed_trainer_continues_as_one_that_was_not_interrupted(trainer_of, tmp_path):
    """The trainer that crashes has used groups after its checkpoint. The resumed one uses them again, once."""
    options = {"max_steps": 8, "save_strategy": "steps", "save_steps": 3}
    whole = Recorded(ledger(uses=2, order="priority", seed=5), answer, fresh=1)
    uninterrupted = trainer_of(whole, **options, output_dir=str(tmp_path / "whole"))
    uninterrupted.train()
    first = Recorded(ledger(uses=2, order="priority", seed=5), answer, fresh=1)
    with pytest.raises(InterruptedError):
        trainer_of(first, [Crash(5)], **options).train()
    checkpoint = tmp_path / "checkpoint-3"
    second = Recorded(load_groups(checkpoint), answer, fresh=1)
    resumed = trainer_of(second, **options)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert first.drawn == whole.drawn[:6]
    assert second.drawn == whole.drawn[3:]
    assert second.groups.counts() == whole.groups.counts()
    assert second.returned == whole.returned[3:]
    for expected, found in zip(uninterrupted.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(found, expected)


def test_a_lease_ends_after_the_last_step_that_uses_it(trainer_of, tmp_path):
    """A batch is used in two steps. The checkpoint between them has its groups as stored, the one after as consumed."""
    replay = Recorded(ledger(), answer)
    options = {"num_iterations": 2, "save_strategy": "steps", "save_steps": 1, "max_steps": 4}
    trainer_of(replay, **options).train()
    assert replay.drawn == [[0, 1], [2, 3]]
    counts = [load_groups(tmp_path / f"checkpoint-{step}").counts() for step in (1, 2, 3, 4)]
    assert [(each.issued, each.sealed, each.consumed) for each in counts] == [
        (2, 2, 0),
        (2, 0, 2),
        (4, 2, 2),
        (4, 0, 4),
    ]
    assert load_groups(tmp_path / "checkpoint-3").version == 3


def test_leases_end_with_the_step_if_one_step_uses_several(trainer_of):
    """A step accumulates two batches of two groups, each generated for itself."""
    replay = Recorded(ledger(), answer)
    trainer_of(replay, gradient_accumulation_steps=2, steps_per_generation=1, max_steps=2).train()
    assert replay.drawn == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert replay.ages == [[0, 0]] * 4
    assert replay.groups.counts().consumed == 8


def test_leases_end_after_their_last_micro_step(trainer_of, tmp_path):
    """Steps have 4 micro-steps, and each batch of 3 groups is used in 3, such as the second one in steps 0 and 1."""
    replay = Recorded(ledger(capacity=12), answer)
    options = {"per_device_train_batch_size": SIZE, "gradient_accumulation_steps": 4, "steps_per_generation": 3}
    trainer_of(replay, **options, save_strategy="steps", save_steps=1, max_steps=3).train()
    counts = [load_groups(tmp_path / f"checkpoint-{step}").counts() for step in (1, 2, 3)]
    assert [(each.issued, each.sealed, each.consumed) for each in counts] == [(6, 3, 3), (9, 3, 6), (12, 0, 12)]


def test_more_groups_are_generated_if_the_stored_ones_have_priority_0(trainer_of):
    class Unwanted(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **others):
            groups.update_priorities(range(groups.counts().issued), np.zeros(groups.counts().issued))

    groups = ledger(uses=2, order="priority")
    replay = Recorded(groups, answer, fresh=1)
    with pytest.raises(per.Busy, match=r"groups is 2; too few groups are ready .* 8 sealed"):  # no room is left
        trainer_of(replay, [Unwanted()], max_steps=5).train()
    assert [sorted(drawn) for drawn in replay.drawn] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_groups_that_were_open_are_answered_first(trainer_of):
    asked = []

    def noting(prompts, trainer):
        asked.append(prompts)
        return answer(prompts, trainer)

    groups = ledger()
    groups.reserve(keys=[json.dumps("1+1=")])
    replay = Recorded(groups, noting, fresh=0)
    trainer_of(replay, max_steps=1).train()
    assert asked[0][:SIZE] == ["1+1="] * SIZE
    assert len(asked[0]) == 2 * SIZE
    assert replay.drawn == [[0, 1]]


def test_a_batch_that_an_error_interrupted_is_drawn_again(trainer_of):
    replay = Recorded(ledger(), answer, fresh=0)
    trainer = trainer_of(replay, [Crash(0)], max_steps=2)
    with pytest.raises(InterruptedError):
        trainer.train()
    trainer.train()
    assert replay.drawn == [[0, 1], [0, 1], [2, 3]]
    assert replay.groups.counts().consumed == 4


def test_an_interrupt_between_answers_leaves_no_group_half_answered(trainer_of, monkeypatch):
    groups = ledger()
    replay, close = Recorded(groups, answer, fresh=1), groups.close

    def interrupted(group, member, *given, **values):
        if (group, member) == (1, 2):
            raise KeyboardInterrupt
        return close(group, member, *given, **values)

    trainer = trainer_of(replay, max_steps=1)
    with monkeypatch.context() as patched:
        patched.setattr(groups, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
    trainer.train()
    assert replay.drawn == [[0, 2]]
    assert groups.counts().retired_by == {("failed", ""): 1}


def test_prompts_can_be_conversations(trainer_of, tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", "{% for turn in messages %}{{ turn.content }}{% endfor %}")
    conversations = [{"prompt": [{"role": "user", "content": f"{a}+{a}="}]} for a in range(10)]
    replay = Recorded(ledger(uses=2), answer, fresh=1)
    trainer_of(replay, dataset=Dataset.from_list(conversations), max_steps=2).train()
    asked = {tuple(WORDS.index(word) for word in example["prompt"][0]["content"]) for example in conversations}
    assert {tuple(ids) for rows in replay.returned for ids in rows["prompt_ids"]} <= asked
    assert replay.drawn == [[0, 1], [0, 1]]


def test_evaluation_leaves_the_ledger_alone(trainer_of):
    replay = Replay(ledger(), answer)
    trainer = trainer_of(replay, per_device_eval_batch_size=100, num_generations_eval=1)
    metrics = trainer.evaluate()
    assert metrics["eval_reward"] >= 0
    assert replay.groups.counts().issued == 0


def test_evaluation_hands_columns_that_are_no_lists_to_reward_functions_as_trl_does(trainer_of, tokenizer):
    """TRL's own trainer, without a ledger, gets the same from the same rollout function."""
    extra = {"note": "whole", "scale": 2.0, "table": {"a": 1}, "pair": (1, 2), "numbers": np.arange(3)}
    replay, seen = Replay(ledger(), lambda *given: {**answer(*given), **extra}), []

    def reward(reward, **columns):
        seen.append({name: columns[name] for name in extra})
        return reward

    args = trainer_of(replay, per_device_eval_batch_size=100, num_generations_eval=1).args
    dataset = Dataset.from_list([{"prompt": "1+1="}] * 4)
    for rollout in (replay.rollout, replay._rollout_func):
        options = {"reward_funcs": reward, "rollout_func": rollout, "processing_class": tokenizer}
        trl.GRPOTrainer(new_model(), args=args, train_dataset=dataset, eval_dataset=dataset, **options).evaluate()
    assert len(seen) == 2
    for columns in seen:
        for name, value in extra.items():
            assert len(columns[name]) == 4
            assert all(each is value for each in columns[name])


@pytest.mark.parametrize("kind", [np.array, torch.tensor, tuple])
def test_rewards_may_be_any_sequence(trainer_of, kind):
    def rewarded(prompts, trainer):
        answers = answer(prompts, trainer)
        return {**answers, "reward": kind([i / 4 for i in range(len(prompts))])}

    trainer = trainer_of(Replay(ledger(), rewarded), per_device_eval_batch_size=100, num_generations_eval=1)
    assert trainer.evaluate()["eval_reward"] == pytest.approx(99 / 8)
    trainer_of(Replay(ledger(), rewarded), max_steps=1).train()


def test_prompts_without_tokens_are_refused_by_name(trainer_of):
    trainer = trainer_of(Replay(ledger(), answer))
    for prompts, message in (
        (["1+1=", ""], r"prompts\[1\] has 0 tokens; allowed: 1 and above"),
        ([""], r"prompts\[0\] has 0 tokens; allowed: 1 and above"),
        ([], "prompts has 0 entries; allowed: 1 and above"),
    ):
        with pytest.raises(per.InvalidArgument, match=message):
            generate(prompts, trainer)


def test_rewards_and_ages_are_logged(trainer_of):
    replay = Recorded(ledger(uses=2), answer, fresh=1)
    trainer = trainer_of(replay, logging_steps=1, max_steps=2)
    trainer.train()
    logged = [line for line in trainer.state.log_history if "reward" in line]
    assert [line["replay/age"] for line in logged] == [0, 1]
    assert [line["reward"] for line in logged] == pytest.approx([np.mean(rows["reward"]) for rows in replay.returned])


def test_errors_name_the_argument_and_leave_no_group_open(trainer_of):
    with pytest.raises(per.InvalidArgument, match="fresh is -1; allowed: 0 and above"):
        Replay(ledger(), answer, fresh=-1)

    groups = ledger()
    groups.advance(2)
    with pytest.raises(per.InvalidArgument, match="groups has version 2; needed: 0, the trainer's global step"):
        trainer_of(Replay(groups, answer)).train()

    groups = per.llm.Groups(SIZE, fields(16, 1), capacity=4)
    with pytest.raises(per.InvalidArgument, match="values; allowed: up to 1, its max_length"):
        trainer_of(Replay(groups, answer)).train()
    assert groups.counts().retired_by == {("failed", ""): 2}

    for size in (SIZE - 1, SIZE + 1):
        groups = per.llm.Groups(size, fields(16, LENGTH), capacity=4)
        with pytest.raises(
            per.InvalidArgument, match=f"num_generations is 4; allowed: {size}, the group_size of groups"
        ):
            trainer_of(Replay(groups, pytest.fail)).train()
        assert groups.counts().issued == 0

    with pytest.raises(per.Busy, match=r"k is 2; allowed at this moment: up to 1"):
        trainer_of(Replay(ledger(per_version=1), answer)).train()

    with pytest.raises(per.InvalidArgument, match="vllm_importance_sampling_correction is True; allowed: False"):
        trainer_of(Replay(ledger(), answer), use_vllm=True)
    with pytest.raises(per.InvalidArgument, match="tools is given; allowed: None"):
        GRPOTrainer(new_model(), replay=Replay(ledger(), answer), tools=[print])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            lambda answers: {name: [*column, *column] for name, column in answers.items()},
            "prompt_ids of rollout_func has 16 entries; allowed: 8, one for each prompt",
        ),
        (
            lambda answers: {**answers, "reward": answers["reward"][:-1]},
            "reward of rollout_func has 7 entries; allowed: 8, one for each prompt",
        ),
        (
            lambda answers: {**answers, "logprobs": None},
            "logprobs of rollout_func has no entries; allowed: 8, one for each prompt",
        ),
        (
            lambda answers: {**answers, "logprobs": [*answers["logprobs"][:-1], answers["logprobs"][-1][:-1]]},
            r"logprobs\[7\] of rollout_func has \d values; allowed: \d, one for each token of completion_ids\[7\]",
        ),
        (
            lambda answers: {name: column for name, column in answers.items() if name != "reward"},
            "rollout_func has returned completion_ids, logprobs, prompt_ids; needed: also reward",
        ),
        (
            lambda answers: {**answers, "reward": torch.tensor(1.0)},
            "reward of rollout_func has no entries; allowed: 8, one for each prompt",
        ),
        (
            lambda answers: {**answers, "prompt_ids": [[], *answers["prompt_ids"][1:]]},
            r"prompt_ids\[0\] of rollout_func has 0 tokens; allowed: 1 and above",
        ),
        (
            lambda answers: {
                **answers,
                **{name: [*answers[name][:-1], []] for name in ("completion_ids", "logprobs")},
            },
            r"completion_ids\[7\] of rollout_func has 0 tokens; allowed: 1 and above",
        ),
        (
            lambda answers: {**answers, "completion_ids": answers["completion_ids"][0][:1] * 8},
            r"completion_ids\[0\] of rollout_func has no tokens; allowed: 1 and above",
        ),
        (
            lambda answers: {**answers, "env_mask": [[1] * (len(ids) + 1) for ids in answers["completion_ids"]]},
            r"env_mask\[0\] of rollout_func has \d values; allowed: \d, one for each token of completion_ids\[0\]",
        ),
        (
            lambda answers: {**answers, "note": ["one"]},
            "note of rollout_func has 1 entries; allowed: 8, one for each prompt",
        ),
    ],
)
@pytest.mark.parametrize("is_training", [True, False])
def test_answers_that_do_not_fit_the_prompts_are_errors_before_any_is_stored(trainer_of, changed, message, is_training):
    groups = ledger()
    replay = Replay(groups, lambda prompts, trainer: changed(answer(prompts, trainer)))
    trainer = trainer_of(replay, per_device_eval_batch_size=2 * SIZE, num_generations_eval=1)
    with pytest.raises(per.InvalidArgument, match=message):
        (trainer.train if is_training else trainer.evaluate)()
    assert groups.missing() == {}
    counts = groups.counts()
    assert counts.issued == counts.retired == 2 * is_training


def test_the_checkpoint_lines_of_the_page_run_before_and_after_the_first_checkpoint(trainer_of, tmp_path):
    page = Path(__file__).resolve().parents[3] / "docs" / "integrations" / "trl.md"
    (lines,) = [code for code in re.findall("```python\n(.*?)```", page.read_text(), re.S) if "resume_from" in code]
    folder, trainers = tmp_path / "out", []

    def made(model, *, replay, args, train_dataset):
        options = {"max_steps": args.max_steps, "save_strategy": "steps", "save_steps": 1}
        trainers.append(trainer_of(replay, output_dir=str(folder), **options))
        return trainers[-1]

    for n_steps in (1, 2):
        args = trl.GRPOConfig(output_dir=str(folder), num_generations=SIZE, max_steps=n_steps, use_cpu=True, bf16=False)
        exec(lines, {"args": args, "answer": answer, "model": None, "dataset": None, "GRPOTrainer": made})
    assert [trainer.state.global_step for trainer in trainers] == [1, 2]


def test_a_rollout_function_can_ask_prompts_by_pass_rate(trainer_of):
    """It answers other prompts than those that it is given. Prompts that always fail are hardly asked again."""
    keys = [f"{a}+{b}=" for a in range(10) for b in range(2)]
    prompts, asked = per.llm.Prompts(keys, epsilon=1e-6), []

    def choosing(given, trainer):
        keys = prompts.sample(len(given) // SIZE)
        rewards = [float(key[0] == "7") * (member % 2) for key in keys for member in range(SIZE)]
        prompts.update(keys, np.reshape(rewards, (-1, SIZE)).mean(1))
        asked.extend(keys)
        return {**generate([key for key in keys for _ in range(SIZE)], trainer), "reward": rewards}

    replay = Recorded(ledger(), choosing)
    trainer_of(replay, max_steps=40).train()
    assert len(asked) == 80
    assert {*asked} == {*keys}
    assert {*asked[-20:]} == {"7+0=", "7+1="}
    first = [[WORDS.index(word) for word in key] for key in asked[:2] for _ in range(SIZE)]
    assert replay.returned[0]["prompt_ids"] == first
