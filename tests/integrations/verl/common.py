"""The rollouts, buffers and trainers of the tests: verl's own, with a few lines in place of models and data sets."""

from __future__ import annotations

import types
import uuid

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from per.integrations import verl as ours
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.ppo.v1 import replay_buffer as theirs
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync


def clear():
    for name, keys in tq.kv_list().items():
        if keys:
            tq.kv_clear(keys=[*keys], partition_id=name)


class Blocked(Exception):
    """Raised where a buffer would wait for rollouts."""


class Rollouts:
    """The prompts of a partition, and their generation, step by step."""

    def __init__(self, partition_id="train"):
        self.partition_id = partition_id
        self.running = {}  # uid: step, in the order of dispatch

    def dispatch(self, n, step):
        uids = [uuid.uuid4().hex for _ in range(n)]
        tags = [{"is_prompt": True, "status": "pending", "global_steps": step} for _ in uids]
        tq.kv_batch_put(keys=uids, partition_id=self.partition_id, tags=tags)
        self.running.update(dict.fromkeys(uids, step))
        return uids

    def end(self, uid, status="finished", rewards=(0.0, 1.0)):
        step = self.running.pop(uid)
        for session, reward in enumerate(rewards):
            fields = {"rm_scores": torch.tensor([0.0, reward]), "extra_fields": {"reward_extra_info": {"acc": reward}}}
            tag = {"seq_len": 3 + session, "global_steps": step}
            tq.kv_put(key=f"{uid}_{session}_0", partition_id=self.partition_id, fields=fields, tag=tag)
        tq.kv_put(key=uid, partition_id=self.partition_id, tag={"status": status})


def buffer_of(kind, mode="separate_async", threshold=8, strategy="drop", refill_fn=None, **options):
    """A buffer of per.integrations.verl, or of verl. Options are those of sampler_kwargs."""
    given = {"trainer_mode": mode, "trainer_config": {}, "max_off_policy_threshold": threshold}
    given |= {"max_off_policy_strategy": strategy, "poll_interval": 0.0, "refill_fn": refill_fn}
    if kind == "ours":
        return ours.ReplayBuffer(sampler_kwargs=options, **given)
    made = theirs.ReplayBuffer if mode == "sync" else theirs.ReplayBufferAsync
    sizes = {"train_batch_size": 4, "gen_batch_size": 1} if mode == "sync" else {}
    return made(sampler_kwargs={}, **given, **sizes, **options)


class Trainer(PPOTrainerColocateAsync):
    """verl's trainer with its data loader, checkpoints and buffer, but without models."""

    def __init__(self, folder, kind="ours", size=4, **options):
        own = {"path": "pkg://per.integrations.verl", "name": "ReplayBuffer"} if kind == "ours" else None
        sampler = {"max_off_policy_threshold": 3, "max_off_policy_strategy": "drop", "custom_sampler": own}
        v1 = {"colocate_async": {"num_warmup_batches": 1}, "sampler": {**sampler, "sampler_kwargs": options}}
        files = {"default_local_dir": str(folder), "default_hdfs_dir": None, "del_local_ckpt_after_load": False}
        trainer = {"v1": v1, "resume_mode": "auto", **files}
        data = {"train_batch_size": size, "gen_batch_size": 1}
        self.config = OmegaConf.create(
            {
                "trainer": trainer,
                "data": data,
                "algorithm": {},
                "reward": {},
                "skip": {"rollout_tq": {"enable": False}},
                "actor_rollout_ref": {"actor": {}},
            }
        )
        self.trainer_mode, self.use_critic, self._restored_tq_prompt_count = "colocate_async", False, 0
        self.replay_buffer = self._build_replay_buffer()
        self.replay_buffer.poll_interval = 0.0
        rows = [{"raw_prompt": k, "index": k} for k in range(1000)]

        def together(rows):
            return {
                "raw_prompt": np.array([row["raw_prompt"] for row in rows], dtype=object),
                "index": torch.tensor([row["index"] for row in rows]),
            }

        self.train_dataloader, self.train_dataloader_it = StatefulDataLoader(rows, 1, collate_fn=together), None
        self.actor_rollout_wg = types.SimpleNamespace(save_checkpoint=self._nothing, load_checkpoint=self._nothing)
        self.checkpoint_callback = types.SimpleNamespace(on_save=self._nothing)
        self.agent_loop_manager = types.SimpleNamespace(generate_sequences=self._generate)
        self._load_checkpoint()
        tags = tq.kv_list("train").get("train", {})
        self.rollouts, self.index = Rollouts(), {uid: tag["index"] for uid, tag in tags.items() if "index" in tag}
        self.global_steps += 1
        self._reissue_inflight_prompts()
        self.on_train_begin()

    def _nothing(self, *arguments, **named):
        pass

    def _generate(self, batch):
        for uid, index in zip(batch["uid"], batch["index"].tolist(), strict=True):
            self.rollouts.running[uid], self.index[uid] = self.global_steps, index
            tq.kv_put(key=uid, partition_id="train", tag={"status": "running", "index": index})

    def learn(self, draws):
        """A step: rollouts end in random order, some fail, until a batch can be drawn. Returns its data."""
        self.prepare_step()
        while True:
            try:
                self.batch, _ = self.replay_buffer.sample(self.global_steps, "train", self.config.data.train_batch_size)
            except Blocked:
                uid = draws.choice([*self.rollouts.running])
                self.rollouts.end(uid, "failure" if draws.random() < 0.1 else "finished")
            else:
                return [self.index[uid] for uid in dict.fromkeys(key.split("_")[0] for key in self.batch.keys)]

    def end_step(self, save):
        if save:
            self._save_checkpoint()
        tq.kv_clear(keys=self.batch.keys, partition_id="train")
        self.global_steps += 1
