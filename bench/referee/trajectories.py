"""Checks of time: full rings, late updates, windows, stacks and sequences at ends, resets, environments, goals."""

from __future__ import annotations

import numpy as np
from contract import Array, Batch, Buffer, Library, NotClaimed, Options, check, expect, goal_reward
from scenes import World

DQN = "Mnih et al. 2015, doi:10.1038/nature14236, Methods"
PER = "Schaul et al. 2016, arXiv:1511.05952"
N_STEP = "Sutton 1988, doi:10.1007/BF00115009; Hessel et al. 2018 (Rainbow), arXiv:1710.02298"
TIME_LIMITS = "Pardo et al. 2018, arXiv:1712.00378, partial-episode bootstrapping"
R2D2 = "Kapturowski et al. 2019 (R2D2), section 2.3"
HER = "Andrychowicz et al. 2017, arXiv:1707.01495"
GYMNASIUM = "https://gymnasium.farama.org/main/api/vector/autoreset/"


def numbers(observations: Array) -> Array:
    """The numbers in observations [B, *shape] as [B, 1], in stacks as [B, frame_stack], in sequences as [B, T]."""
    return np.asarray(observations, np.float64).reshape(len(observations), -1).round().astype(np.int64)


def check_transition(world: World, batch: Batch, b: int) -> int:
    """Compares transition b of a batch with the steps of its environment. Returns the number of its step.

    At the write head a window may have fewer steps, as long as reward, discount and next observation agree. So it may
    before a truncation, where the library takes next observations from the next step and so has no final ones.
    """
    number = int(numbers(batch.observation)[b, -1])
    episode = world.episodes.get(number)
    expect(episode, f"drawn: observation {number}, which no environment showed")
    assert episode is not None
    gamma = world.options.gamma
    expect(number != episode.final, f"drawn: a step from a final observation; episode: steps {episode}")
    newest = world.steps[episode.env][-1]
    held = world.held if newest + 1 < episode.final else 0
    length = min(world.options.n_step, episode.final - number, newest + 1 - held - number)
    wrong = differences(world, batch, b, number, length)
    if wrong and world.held and length > 1 and number + length == episode.final and episode.end == "truncated":
        wrong = differences(world, batch, b, number, length - 1) and wrong
    lines = [f"drawn: step {number}, n_step {world.options.n_step}, gamma {gamma}; episode: steps {episode}", *wrong]
    if world.options.n_step > 1:
        lines.append(f"the reward of a step is its number; the newest step is {newest}")
    expect(not wrong, "\n".join(lines))
    return number


def differences(world: World, batch: Batch, b: int, number: int, length: int) -> list[str]:
    """What of transition b of a batch is not that of a window of so many steps from step `number`, in lines."""
    episode, gamma = world.episodes[number], world.options.gamma
    after = number + length
    bootstraps = after < episode.final or episode.end == "truncated"
    wanted = {
        "action": (batch.action, number % 4),
        "reward": (batch.reward, sum(gamma**k * (number + k) for k in range(length))),
        "next observation": (batch.next_observation, after),
        "discount": (batch.discount, gamma**length if bootstraps else 0.0),
    }
    lines = []
    for name, (array, value) in wanted.items():
        if array is not None and not (name == "next observation" and value == episode.final and not bootstraps):
            found = float(np.asarray(array)[b].reshape(-1)[-1])
            if abs(found - value) > 1e-5 * max(1, abs(value)):
                lines.append(f"{name} {found:g}, expected {value:g}")
    return lines


def check_transitions(world: World, buffer: Buffer, *, ends: bool = True) -> set[int]:
    """Compares the transitions of 50 batches with the steps of the environments. Returns the numbers drawn.

    Without `ends`, windows that reach the end of their episode are not compared.
    """
    found = set()
    for _ in range(50):
        batch = buffer.sample()
        for b, number in enumerate(numbers(batch.observation)[:, -1].tolist()):
            episode = world.episodes.get(number)
            if ends or episode is None or number + world.options.n_step < episode.final:
                found.add(check_transition(world, batch, b))
    return found


def played(library: Library, world: World, n: int) -> Buffer:
    """A buffer with n steps of each environment."""
    buffer = library.create(world.options)
    world.held = int(library.holds_back)
    world.play(buffer, n)
    return buffer


# ---- rings


@check("trajectories", f"{DQN}: the memory stores the last N transitions")
def exactly_full_ring_has_every_step(library: Library) -> None:
    """With capacity 50 and 50 steps of a running episode, each step is drawn: 1,600 draws, false alarms 1e-12."""
    world = World(Options(capacity=50))
    found = check_transitions(world, played(library, world, 50))
    missing = sorted(set(world.steps[0][: 50 - world.held]) - found)
    expect(not missing, f"added: steps 1 .. 50, capacity 50; never drawn in 1,600 draws: {missing}")


@check("trajectories", f"{DQN}: the memory stores the last N transitions")
def wrapped_ring_has_the_last_steps(library: Library) -> None:
    """With capacity 50 and 130 steps in episodes of 7 the last 50 are drawn, unmixed, and no others. A library that
    evicts whole episodes may lack the oldest, of which a part is left."""
    world = World(Options(capacity=50), lengths=[7])
    found = check_transitions(world, played(library, world, 130))
    last = set(world.steps[0][: 130 - world.held][-50:])
    shown = f"added: 130 steps, the newest number {world.steps[0][-1]}, capacity 50"
    expect(not found - last, f"{shown}; drawn all the same: {sorted(found - last)}")
    missing = sorted(number for number in last - found if world.episodes[number].first in last)
    expect(not missing, f"{shown}; never drawn in 1,600 draws: {missing}")


@check("trajectories", f"{PER}, algorithm 1, line 12: the update sets the priority of the transition that was drawn")
def late_updates_do_not_reach_newer_steps(library: Library) -> None:
    """An update of a transition that was overwritten since its draw is an error, or changes no newer one's priority."""
    world = World(Options(capacity=50), lengths=[1])
    buffer = played(library, world, 50)
    old = buffer.sample()
    world.play(buffer, 50)
    steps = numbers(old.observation)[:, -1]
    try:
        buffer.update(old.handle, np.where(steps == steps[0], 1e6, 1.0))
    except NotClaimed:
        raise
    except Exception:  # an error does not change a newer one either, if draws go on
        pass
    counts = np.bincount(np.concatenate([numbers(buffer.sample().observation)[:, -1] for _ in range(50)]))
    most = int(counts.argmax())
    expect(
        counts[most] < 400,
        f"drawn: step {steps[0]}; then 50 steps overwrote all; then the priority of step {steps[0]} was set to 1e6\n"
        f"now step {most}, whose priority nobody set, makes {counts[most]} of 1,600 draws; expected 32 for each step",
    )


# ---- n-step windows


@check("trajectories", f"{N_STEP}: the return ends with the episode")
def n_step_windows_end_at_terminal_states(library: Library) -> None:
    """With n = 3 rewards are summed up to a terminal state, where the discount is 0."""
    world = World(Options(n_step=3, capacity=60), lengths=[5, 1, 2, 7], ends=["terminated"])
    check_transitions(world, played(library, world, 45))


@check("trajectories", f"{DQN}, algorithm 1: the target at a terminal state is the reward; {N_STEP}")
def n_step_windows_reach_every_terminal_state(library: Library) -> None:
    """With n = 3 and episodes of 5, 1, 2 and 7 steps some window ends at each terminal state, also where the episode is
    shorter than n: 1,600 draws of 49 steps, false alarms 1e-12. The newest 3 steps may be missing."""
    world = World(Options(n_step=3, capacity=60), lengths=[5, 1, 2, 7], ends=["terminated"])
    buffer = played(library, world, 49)
    found = {int(number) for _ in range(50) for number in numbers(buffer.sample().observation)[:, -1]}
    for number, episode in world.episodes.items():
        if number == episode.final and number < world.steps[0][-3]:
            reaching = set(range(max(episode.first, number - 3), number))
            expect(found & reaching, f"n_step 3: in 1,600 draws no window reaches the end of steps {episode}")


@check("trajectories", f"{TIME_LIMITS}; {N_STEP}")
def n_step_windows_end_at_truncations(library: Library) -> None:
    """With n = 3 a window that ends after m steps at a truncation bootstraps there, with the final observation and
    gamma^m. One that ends a step before, as the library has no final observations, bootstraps with gamma^(m - 1)."""
    world = World(Options(n_step=3, capacity=60), lengths=[5, 1, 2, 7], ends=["truncated"])
    check_transitions(world, played(library, world, 45))


@check("trajectories", f"{N_STEP}: the return is of steps that were taken")
def n_step_windows_end_at_the_write_head(library: Library) -> None:
    """With n = 3, capacity 60 and 20 steps of a running episode no window has rows that were never written."""
    world = World(Options(n_step=3, capacity=60))
    check_transitions(world, played(library, world, 20))


@check("trajectories", f"{N_STEP}: the return is of consecutive steps")
def n_step_windows_end_at_the_write_head_of_a_wrapped_ring(library: Library) -> None:
    """With n = 3, capacity 60 and 140 steps in episodes of 37 no window reaches from the newest step to the oldest.
    Windows that end with an episode do not count."""
    world = World(Options(n_step=3, capacity=60), lengths=[37])
    check_transitions(world, played(library, world, 140), ends=False)


# ---- stacks and sequences


def check_stacks(world: World, buffer: Buffer) -> None:
    """Compares stacks with what an agent saw: the last frames; before the episode's start, the first one or 0."""
    for _ in range(50):
        for stack in numbers(buffer.sample().observation).tolist():
            newest = stack[-1]
            episode = world.episodes.get(newest)
            expect(episode, f"drawn: observation {newest}, which no environment showed")
            assert episode is not None
            frames = list(range(newest - len(stack) + 1, newest + 1))
            allowed = [[frame if frame >= episode.first else pad for frame in frames] for pad in (episode.first, 0)]
            expect(
                stack in allowed,
                f"drawn: step {newest}, frame_stack {len(stack)}; episode: steps {episode}\n"
                f"frames {stack}, expected {allowed[0]}",
            )


@check("trajectories", f"{DQN}: the state is made of the last 4 frames that the agent saw")
def stacks_do_not_join_episodes(library: Library) -> None:
    """A stack of 4 frames has frames of one episode; at its start the first one repeated, or zeros."""
    world = World(Options(frame_stack=4, capacity=60), lengths=[6, 2, 9], ends=["terminated", "truncated"])
    check_stacks(world, played(library, world, 45))


@check("trajectories", f"{DQN}: the state is made of the last 4 frames that the agent saw")
def stacks_do_not_reach_over_the_write_head(library: Library) -> None:
    """With capacity 60 and 140 steps of a running episode the oldest steps, which have lost earlier frames, are drawn
    with the frames that the agent saw, or not at all."""
    world = World(Options(frame_stack=4, capacity=60), lengths=[200])
    check_stacks(world, played(library, world, 140))


@check("trajectories", f"{DQN}, algorithm 1: the next state is the state with the next frame appended")
def next_stacks_have_one_frame_more(library: Library) -> None:
    """A stack of the next observation has the newest 3 frames of the stack before it and the next frame. Ends of
    episodes and the newest step do not count."""
    world = World(Options(frame_stack=4, capacity=60), lengths=[6, 2, 9], ends=["terminated", "truncated"])
    buffer = played(library, world, 45)
    for _ in range(50):
        batch = buffer.sample()
        if batch.next_observation is None or batch.next_observation.shape != batch.observation.shape:
            raise NotClaimed("batches do not have stacks of next observations")
        pairs = zip(numbers(batch.observation).tolist(), numbers(batch.next_observation).tolist(), strict=True)
        for stack, after in pairs:
            expect(
                after == [*stack[1:], stack[-1] + 1] or stack[-1] + 1 not in world.steps[0],
                f"drawn: step {stack[-1]}, frame_stack 4; episode: steps {world.episodes[stack[-1]]}\n"
                f"frames {stack}; of the next observation {after}, expected {[*stack[1:], stack[-1] + 1]}",
            )


def check_sequences(world: World, buffer: Buffer, *, ends: bool = True) -> None:
    """The steps of a sequence, except those that the mask leaves out, are consecutive ones of an episode.

    Without `ends`, a sequence may go on with the next episode.
    """
    for _ in range(50):
        batch = buffer.sample()
        steps = numbers(batch.observation)
        mask = np.ones(steps.shape, bool) if batch.mask is None else np.asarray(batch.mask, bool).reshape(steps.shape)
        for row, kept in zip(steps, mask, strict=True):
            valid = row[kept].tolist()
            episodes = [world.episodes.get(number) for number in valid]
            shown = f"drawn: a sequence of steps {row.tolist()}" + ("" if kept.all() else f", mask {kept.astype(int)}")
            for number, episode in zip(valid, episodes, strict=True):
                shown += f"\nstep {number}: " + (f"of the episode {episode}" if episode else "no environment made it")
            expect(valid, f"{shown}: the mask leaves out every step")
            expect(None not in episodes, f"{shown}\nsome steps are of no episode")
            between = np.diff(valid)  # 2 over an end, because of the final observation
            expect(((between == 1) | (between == 2)).all(), f"{shown}\nthe steps are not consecutive")
            expect(not ends or len(set(episodes)) == 1, f"{shown}\nno mask separates the episodes")


@check("trajectories", f"{R2D2}: sequences never cross episode boundaries")
def sequences_do_not_join_episodes(library: Library) -> None:
    """Sequences of 5 steps, from episodes of 7, 3 and 12, have steps of one episode, or a mask for the others."""
    world = World(Options(sequence_length=5, capacity=60), lengths=[7, 3, 12], ends=["terminated", "truncated"])
    check_sequences(world, played(library, world, 50))


@check("trajectories", f"{R2D2}: sequences are of consecutive steps")
def sequences_do_not_reach_over_the_write_head(library: Library) -> None:
    """With capacity 60 and 140 steps in episodes of 37 no sequence of 5 steps joins the newest to the oldest.
    Sequences over ends of episodes do not count."""
    world = World(Options(sequence_length=5, capacity=60), lengths=[37])
    check_sequences(world, played(library, world, 140), ends=False)


# ---- ends of episodes


@check("trajectories", TIME_LIMITS)
def truncations_bootstrap_and_terminations_do_not(library: Library) -> None:
    """The discount is gamma at a truncation, 0 at a termination, and 0 where both come in one step."""
    world = World(Options(capacity=60), lengths=[4], ends=["truncated", "terminated", "both"])
    buffer = played(library, world, 48)
    if buffer.sample().discount is None:
        raise NotClaimed("batches do not say which steps bootstrap")
    check_transitions(world, buffer)


def check_final_observations(library: Library, options: Options) -> None:
    """Draws from truncated episodes. Some of their last steps must be among the draws."""
    world = World(options, lengths=[4, 3, 5], ends=["truncated"])
    found = check_transitions(world, played(library, world, 24))
    ended = [episode for number, episode in world.episodes.items() if number == episode.final]
    expect(
        any(episode.final - 1 in found for episode in ended),
        f"the last steps of truncated episodes are never drawn; the first: steps {ended[0]}",
    )


@check("trajectories", f"{TIME_LIMITS}: a truncated step bootstraps with the value of its final observation")
def final_observations_without_autoreset(library: Library) -> None:
    """If the caller resets, a truncated step bootstraps with the final observation, not with the next episode's."""
    check_final_observations(library, Options(capacity=60))


@check("trajectories", f"{GYMNASIUM}: the step after an end only resets, its action is ignored")
def final_observations_with_autoreset_in_the_next_step(library: Library) -> None:
    """Truncated steps bootstrap with the final observation; no transition leads from there to the next episode."""
    check_final_observations(library, Options(capacity=120, n_envs=2, autoreset="next_step"))


@check("trajectories", f'{GYMNASIUM}: info["final_obs"] has the final observation')
def final_observations_with_autoreset_in_the_same_step(library: Library) -> None:
    """Truncated steps bootstrap with the final observation from the info, not with the next episode's first one."""
    check_final_observations(library, Options(capacity=120, n_envs=2, autoreset="same_step"))


# ---- several environments


@check("trajectories", "a transition is (s, a, r, s') of one environment")
def environments_are_not_mixed(library: Library) -> None:
    """With 3 environments, capacity 60 and 50 steps of each, transitions are of one environment, and all are drawn."""
    world = World(Options(n_envs=3, capacity=60), lengths=[5, 3, 8])
    found = check_transitions(world, played(library, world, 50))
    drawn = sorted({world.episodes[number].env for number in found})
    expect(drawn == [0, 1, 2], f"added: 50 steps of 3 environments; in 1,600 draws only steps of {drawn}")


@check("trajectories", f"{N_STEP}: the return is of consecutive steps of one environment")
def n_step_windows_do_not_mix_environments(library: Library) -> None:
    """With n = 3, 3 environments, capacity 90 and 50 steps of each, windows have steps of one environment. Windows that
    end with an episode do not count."""
    world = World(Options(n_envs=3, n_step=3, capacity=90), lengths=[5, 6, 8], ends=["terminated", "truncated"])
    check_transitions(world, played(library, world, 50), ends=False)


# ---- hindsight


def relabelled(library: Library, options: Options) -> tuple[World, list[tuple[int, int, float, int]]]:
    """Step, next observation, reward and goal of 1,600 draws; the ring is wrapped, the last episode runs."""
    world = World(options, lengths=[6, 3, 9], ends=["truncated"])
    buffer = played(library, world, 130)
    found: list[tuple[int, int, float, int]] = []
    for _ in range(50):
        batch = buffer.sample()
        assert batch.goal is not None and batch.reward is not None and batch.next_observation is not None
        steps, after, goals = (
            numbers(a)[:, -1].tolist() for a in (batch.observation, batch.next_observation, batch.goal)
        )
        rewards = np.asarray(batch.reward, np.float64).reshape(-1).tolist()
        found += zip(steps, after, rewards, goals, strict=True)
    return world, found


@check(
    "trajectories", f"{HER}, section 4.5, strategy future: states of the same episode, observed after the transition"
)
def hindsight_goals_come_from_later_in_the_episode(library: Library) -> None:
    """Goals are the pursued one or states of the episode that follow the step, in a wrapped ring and a running
    episode."""
    world, draws = relabelled(library, Options(capacity=60, goals="future"))
    expect(any(goal != -1 for *_, goal in draws), "1,600 draws, none with another goal than the pursued one")
    for step, _, _, goal in draws:
        episode = world.episodes[step]
        last = min(episode.final, world.steps[0][-1] + 1)
        expect(
            goal == -1 or step < goal <= last,
            f"drawn: step {step}, goal: the state of observation {goal}; episode: steps {episode}\n"
            f"expected: one of {step + 1} .. {last}",
        )


@check("trajectories", f"{HER}, algorithm 1: r' = r(s, a, g')")
def hindsight_rewards_are_those_of_the_goal(library: Library) -> None:
    """The reward of each transition is 0 if its next state achieves its goal, otherwise -1."""
    _, draws = relabelled(library, Options(capacity=60, goals="future"))
    for step, after, reward, goal in draws:
        wanted = float(goal_reward(np.array([after]), np.array([goal]))[0])
        expect(
            reward == wanted,
            f"drawn: step {step}, next state {after}, goal {goal}: reward {reward:g}, expected {wanted:g}",
        )
