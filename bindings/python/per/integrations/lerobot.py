"""A prioritized buffer for LeRobot's online learner, which stores images once, as uint8.

    import lerobot.rl.learner
    from per.integrations.lerobot import ReplayBuffer

    lerobot.rl.learner.ReplayBuffer = ReplayBuffer
    lerobot.rl.learner.train_cli()

LeRobot's learner is unchanged: rewards of a batch carry its weights into the losses of the policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.rl import buffer as theirs
from lerobot.utils.constants import ACTION, DONE, OBS_IMAGE, REWARD

import per
from per.integrations._first_step import declared
from per.integrations._single_transitions import refuse_other_batches
from per.integrations._weighted_losses import WeightedRewards
from per.spaces import name_of

__all__ = ["ReplayBuffer"]

_INFO = "complementary_info."
_OWN_INFO = ("weights", "ids")  # entries of complementary_info that batches add


def _info(key: str) -> str:
    """The name of the field for an entry of complementary_info."""
    return name_of("complementary_info", key)


class _Rows:
    """One field of the live transitions in order of time, in the form that LeRobot's to_lerobot_dataset() reads."""

    def __init__(self, replay: per.ReplayBuffer, ids: Any, name: str) -> None:
        self._replay, self._ids, self._name = replay, ids, name

    def __getitem__(self, row: int) -> torch.Tensor:
        return self._replay.get(self._ids[row : row + 1], next_observations=False)[self._name][0]  # type: ignore[no-any-return]


class ReplayBuffer(theirs.ReplayBuffer):
    """LeRobot's ReplayBuffer with prioritized draws.

    This class is enough to prioritize the learner's critics: mse_loss(), smooth_l1_loss() and huber_loss() of targets
    computed from a batch's reward are weighted, and their TD errors become priorities, also if an online and an offline
    batch are concatenated. Batches have "weights" and "ids" in their complementary_info, for learners that call
    update_priorities().

    Parameters
    ----------
    capacity : int
        Transitions. Each end of an episode takes the space of one more.
    device : str, default "cuda:0"
        As in LeRobot.
    state_keys : Sequence[str], optional
        As in LeRobot.
    image_augmentation_function : Callable[[torch.Tensor], torch.Tensor], optional
        As in LeRobot.
    use_drq : bool, default True
        As in LeRobot.
    storage_device : str, default "cpu"
        As in LeRobot.
    optimize_memory : bool, default False
        Has no effect; next states are always stored once.
    image_dtype : str, default "uint8"
        Dtype of stored images, the states whose name begins with "observation.image". "uint8" rounds floats from 0 to 1
        to the nearest multiple of 1 / 255, and keeps uint8 as it is; all images of a state must be of the same kind.
        "float32" keeps any number.
    weigh_losses : bool, default True
        False: rewards are a plain tensor, and losses are not weighted.
    **options : Any
        Options of per.ReplayBuffer, except those of sequences and n_step. The default seed comes from torch's
        generator.

    Notes
    -----
    The attribute `replay` is the libper buffer, after the first add.
    """

    replay: per.ReplayBuffer | None = None

    def __init__(
        self,
        capacity: int,
        device: str = "cuda:0",
        state_keys: Sequence[str] | None = None,
        image_augmentation_function: Callable[[torch.Tensor], torch.Tensor] | None = None,
        use_drq: bool = True,
        storage_device: str = "cpu",
        optimize_memory: bool = False,
        *,
        image_dtype: str = "uint8",
        weigh_losses: bool = True,
        **options: Any,
    ) -> None:
        if image_dtype not in ("uint8", "float32"):
            raise per.InvalidArgument(f"image_dtype is {image_dtype!r}; allowed: 'uint8', 'float32'")
        if options.get("arrays", "torch") != "torch":
            raise per.InvalidArgument(f"arrays is {options['arrays']!r}; allowed: 'torch', as batches hold tensors")
        refuse_other_batches(options, n_step="the targets of its algorithms are of one step")
        super().__init__(
            capacity, device, state_keys, image_augmentation_function, use_drq, storage_device, optimize_memory
        )
        self.image_dtype, self.weigh_losses = image_dtype, weigh_losses
        seed = int(torch.randint(2**63 - 1, ()))
        self._options = {"device": str(storage_device), "arrays": "torch", "seed": seed, **options}
        # By name, whether images were given as numbers from 0 to 1.
        self._are_fractions: dict[str, bool] = {}

    def __len__(self) -> int:
        return 0 if self.replay is None else len(self.replay)

    def _initialize_storage(self, state: Any, action: Any, complementary_info: Any = None) -> None:
        """Declares the fields from the first transition."""
        self._use(lambda: self._new_replay(state, action, complementary_info), lambda replay: None)

    def _use(self, declare: Callable[[], per.ReplayBuffer], use: Callable[[per.ReplayBuffer], None]) -> None:
        declared(self, "replay", declare, use)
        self.initialized = True

    def _new_replay(self, state: Any, action: Any, complementary_info: Any) -> per.ReplayBuffer:
        fields, are_fractions = {ACTION: per.Field(action.squeeze(0).shape)}, {}
        for key, value in state.items():
            dtype: Any = self.image_dtype if key.startswith(OBS_IMAGE) else "float32"
            are_fractions[key] = dtype == "uint8" and value.dtype != torch.uint8
            fields[key] = per.Field(value.squeeze(0).shape, dtype, role="observation")
        for key, value in (complementary_info or {}).items():
            fields[_info(key)] = per.Field(torch.as_tensor(value).squeeze(0).shape, default=0.0)
        self._are_fractions = are_fractions
        self.complementary_info_keys = list(complementary_info or ())
        self.states = list(state)
        rows = per.ReplayBuffer.capacity_for(self.capacity, fields=fields, **self._options)
        return per.ReplayBuffer(rows, fields, **self._options)

    def add(
        self,
        state: dict[str, torch.Tensor],
        action: torch.Tensor,
        reward: float,
        next_state: dict[str, torch.Tensor] | None,
        done: bool,
        truncated: bool,
        complementary_info: dict[str, Any] | None = None,
    ) -> None:
        """Adds a transition. If a state differs from the previous next_state, the trajectory is cut.

        A transition with next_state None can be drawn after the next add, or never if it is truncated.

        Raises
        ------
        InvalidArgument
            complementary_info has "weights" or "ids". Unless image_dtype is "float32": an image has numbers outside 0
            to 1, or is neither of floats nor, as all images before it, of uint8.
        """
        for key in _OWN_INFO:
            if key in (complementary_info or {}):
                raise per.InvalidArgument(
                    f"complementary_info has {key!r}; allowed: other names than {' and '.join(map(repr, _OWN_INFO))}, "
                    "which batches have there"
                )
        if next_state is None and done:
            next_state = state  # no target reads it

        def add_to(replay: per.ReplayBuffer) -> None:
            given: dict[str, Any] = {ACTION: action.squeeze(0), "reward": float(reward)}
            for prefix, values in (("", state), ("next_", next_state or {})):
                given |= {
                    prefix + key: self._stored(key, values[key].squeeze(0)) for key in self.states if key in values
                }
            for key in self.complementary_info_keys:
                if complementary_info is not None and key in complementary_info:
                    given[_info(key)] = torch.as_tensor(complementary_info[key], dtype=torch.float32).squeeze(0)
            given |= {"terminated": bool(done), "truncated": bool(truncated) and not done}
            replay.add(next_mask=next_state is not None, **given)

        self._use(lambda: self._new_replay(state, action, complementary_info), add_to)

    def _stored(self, key: str, value: torch.Tensor) -> torch.Tensor:
        if not self._are_fractions[key]:
            return value.detach()
        if not value.is_floating_point():
            dtype = str(value.dtype).removeprefix("torch.")
            raise per.InvalidArgument(f"{key} has dtype {dtype}; allowed: floats, or uint8 if the first image is uint8")
        least, largest = torch.aminmax(value.detach())
        if not (least >= 0 and largest <= 1):
            numbers = f"numbers from {least:g} to {largest:g}"
            raise per.InvalidArgument(f"{key} has {numbers}; allowed: 0 .. 1, or image_dtype='float32'")
        return (value.detach() * 255).round().to(torch.uint8)

    def sample(self, batch_size: int) -> theirs.BatchTransition:
        """Draws a prioritized batch, limited to the number of transitions. Raises per.Empty if there are none.

        Parameters
        ----------
        batch_size : int
            B, 1 to 2^24.
        """
        if self.replay is None:
            raise per.Empty("Cannot sample from an empty buffer: nothing was added yet")
        batch = self.replay.sample(min(batch_size, max(len(self), 1)))
        state, next_state = (
            {key: self._given_back(key, batch[prefix + key]) for key in self.states} for prefix in ("", "next_")
        )
        images = [key for key in self.states if key.startswith(OBS_IMAGE)] if self.use_drq else []
        if images:
            joined = torch.cat([states[key] for key in images for states in (state, next_state)])
            augmented = self.image_augmentation_function(joined).chunk(2 * len(images))
            state.update(zip(images, augmented[::2], strict=True))
            next_state.update(zip(images, augmented[1::2], strict=True))
        info = {"weights": batch.weights, "ids": batch.ids}
        info |= {key: batch[_info(key)] for key in self.complementary_info_keys}
        reward = batch.reward.to(self.device)
        if self.weigh_losses:
            weights = batch.weights.to(self.device)
            reward = WeightedRewards.of(reward, weights, self.replay, batch.ids, ("mean", "sum", "none"))
        return theirs.BatchTransition(
            state=state,
            action=batch[ACTION].to(self.device),
            reward=reward,
            next_state=next_state,
            done=batch.terminated.to(self.device).float(),
            truncated=batch.truncated.to(self.device).float(),
            complementary_info={key: value.to(self.device) for key, value in info.items()},
        )

    def _given_back(self, key: str, value: torch.Tensor) -> torch.Tensor:
        """A state on the device of batches, as float32."""
        value = value.to(self.device)
        return value / 255 if self._are_fractions[key] else value.float()

    def update_priorities(
        self, ids: torch.Tensor | npt.NDArray[Any], td_errors: torch.Tensor | npt.NDArray[Any]
    ) -> None:
        """Sets the priorities of the transitions of a batch by TD errors [B], or [n_critics, B].

        Parameters
        ----------
        ids : torch.Tensor | NDArray
            int64[n], from batches.
        td_errors : torch.Tensor | NDArray
            float32[n] of any sign.

        Raises
        ------
        InvalidArgument
            An id was never issued, or a TD error is not finite.
        """
        ids, td_errors = (
            value.detach().cpu() if isinstance(value, torch.Tensor) else value for value in (ids, td_errors)
        )
        if self.replay is not None:
            self.replay.update_priorities(ids, td_errors)
            return
        given = np.ravel(ids)
        unissued = np.flatnonzero(given != -1)  # -1 marks entries without a transition
        if unissued.size > 0:
            i = unissued[0]
            raise per.InvalidArgument(f"ids[{i}] is {given[i]}: never issued; no step was added yet")

    @classmethod
    def from_lerobot_dataset(  # type: ignore[override]
        cls,
        lerobot_dataset: LeRobotDataset,
        device: str = "cuda:0",
        state_keys: Sequence[str] | None = None,
        capacity: int | None = None,
        **options: Any,
    ) -> ReplayBuffer:
        """Creates a buffer from a dataset, read frame by frame; `options` are the class's other options.

        An episode whose last frame is not done is truncated there. Its last transition is not drawn, since a dataset
        does not have the observation after it; LeRobot's own buffer repeats the last state.

        Parameters
        ----------
        capacity : int, optional
            As in the class. None: the dataset's frames and ends.

        Raises
        ------
        ValueError
            The dataset has no frames, capacity is too small for its frames and ends, or state_keys are missing.
        """
        if state_keys is None:
            raise per.InvalidArgument("state_keys is None; allowed: the names of what belongs to a state")
        frames = len(lerobot_dataset)
        if frames == 0:
            raise per.InvalidArgument("lerobot_dataset has 0 frames; allowed: 1 and above")
        names = list(lerobot_dataset[0])
        if missing := [key for key in state_keys if key not in names]:
            raise per.InvalidArgument(f"state_keys has {missing[0]!r}; allowed: {', '.join(map(repr, names))}")
        ends = 0 if options.get("store_next_observation") else _terminal_frames(lerobot_dataset)
        buffer = cls(frames + ends if capacity is None else capacity, device, state_keys, **options)
        spare = per.ReplayBuffer.capacity_for(buffer.capacity, **buffer._options) - buffer.capacity
        if buffer.capacity < frames + ends - spare:
            raise per.InvalidArgument(
                f"capacity is {capacity}; allowed: {frames + ends - spare} and above, for {frames} frames and {ends} "
                "ends of episodes"
            )
        for transition in _transitions(lerobot_dataset, state_keys):
            buffer.add(**transition)
        return buffer

    def to_lerobot_dataset(
        self, repo_id: str, fps: int = 1, root: Any = None, task_name: str = "from_replay_buffer"
    ) -> Any:
        """Writes the transitions that can be drawn to a dataset, as LeRobot's buffer does, images exactly as stored."""
        if self.replay is None or len(self) == 0:
            raise ValueError("The replay buffer is empty. Cannot convert to a dataset.")
        ids = self.replay.live_ids()
        names = {"actions": ACTION, "rewards": "reward", "dones": "terminated", "truncateds": "truncated"}
        infos = self.complementary_info_keys
        self_of_theirs = SimpleNamespace(
            **dict.fromkeys(("size", "position", "capacity"), len(ids)),
            **{attribute: _Rows(self.replay, ids, name) for attribute, name in names.items()},
            states={key: _Rows(self.replay, ids, key) for key in self.states},
            has_complementary_info=bool(infos),
            complementary_info_keys=infos,
            complementary_info={key: _Rows(self.replay, ids, _info(key)) for key in infos},
        )
        return theirs.ReplayBuffer.to_lerobot_dataset(self_of_theirs, repo_id, fps, root, task_name)


def _terminal_frames(dataset: LeRobotDataset) -> int:
    """The number of frames whose transitions are done, as in _transitions(). Of a LeRobotDataset no image is read."""
    name = DONE if DONE in dataset[0] else "episode_index"
    if hasattr(dataset, "hf_dataset"):
        column = np.asarray(dataset.hf_dataset.with_format("numpy", columns=[name])[:][name])
    else:
        column = np.array([int(dataset[i][name]) for i in range(len(dataset))])
    return int(np.count_nonzero(column) if name == DONE else 1 + np.count_nonzero(np.diff(column.reshape(-1))))


def _transitions(dataset: LeRobotDataset, state_keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The arguments of add() for each frame, which has no axis of a batch."""

    def rows_of(values: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {key: torch.as_tensor(value).unsqueeze(0) for key, value in values.items()}

    frame = dataset[0]
    for i in range(len(dataset)):
        following = dataset[i + 1] if i + 1 < len(dataset) else None
        is_last = following is None or following["episode_index"] != frame["episode_index"]
        done = bool(frame[DONE]) if DONE in frame else is_last
        yield {
            "state": rows_of({key: frame[key] for key in state_keys}),
            "action": frame[ACTION].unsqueeze(0),
            "reward": float(frame[REWARD]),
            "next_state": rows_of({key: following[key] for key in state_keys}) if following and not is_last else None,
            "done": done,
            "truncated": is_last and not done,
            "complementary_info": rows_of({key[len(_INFO) :]: frame[key] for key in frame if key.startswith(_INFO)}),
        }
        frame = following
