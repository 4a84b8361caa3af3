"""Episodes are played again and forked: the record is repeated, and only what comes after it is new."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from voices import TASK, Voice, by_luck, run, team

from marft.game.play import Game
from marft.game.workflows import Workflow, find_workflow
from marft.types import Episode, MarftError, Turn


class Shows(toys.Echo):
    """Shows what it has heard, and is never done."""

    def observe(self, state: str, agent: str) -> str:
        return f"The board: [{state}]"

    def reward(self, state: str) -> Any:
        return replace(super().reward(state), done=False, turns={0: 0.5})


async def mixed(game: Game) -> None:
    """Everything at once: asides, notes, parallel and repeated turns, a tool, and a choice that hangs on what was said."""
    await game.act("a", aside=True, note="Begin.")
    await game.act("c", "b", "b")
    await game.say("tool", str(len("".join(turn.text for turn in game.turns))))
    game.count("seen")
    if int(game.turns[0].text[1], 16) % 2:
        await game.act("a")
    await game.act("c", sees=["tool", "a"])


WORKFLOWS: dict[str, Workflow] = {
    "mixed": mixed,
    "sequential": find_workflow("sequential"),
    "dag": find_workflow("dag"),
    "debate": find_workflow("debate"),
    "vote": find_workflow("vote", {"votes": 2}),
    "orchestrated": find_workflow("orchestrated", {"steps": 3}),
    "rounds": find_workflow("rounds"),
}
SEES = {"a": (), "b": ("a",), "c": ("a", "b")}


def played(workflow: Workflow, voice: Voice, **how: Any) -> Episode:
    return run(team("a", "b", "c", voice=voice, **SEES), workflow, env=Shows(), **how)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(WORKFLOWS)), sample=st.integers(0, 20), data=st.data())
def test_an_episode_played_again_is_the_same_episode(name: str, sample: int, data: st.DataObject) -> None:
    """From every cut, parallel ones too, the same luck gives the same end, and only new turns are generated."""
    original = played(WORKFLOWS[name], Voice(by_luck), sample=sample)
    cut = data.draw(st.integers(0, len(original.turns)))
    voice = Voice(by_luck)
    again = played(WORKFLOWS[name], voice, sample=sample, replayed=original.turns[:cut], trunk=sample)
    assert again == replace(original, forked_at=cut, trunk=sample)
    assert len(voice.requests) == sum(turn.observation != () for turn in original.turns[cut:])


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(WORKFLOWS)), data=st.data())
def test_a_fork_differs_only_after_the_fork(name: str, data: st.DataObject) -> None:
    original = played(WORKFLOWS[name], Voice(by_luck))
    cut = data.draw(st.integers(0, len(original.turns)))
    voice = Voice(by_luck)
    fork = played(WORKFLOWS[name], voice, sample=1, replayed=original.turns[:cut], trunk=0)
    assert fork.turns[:cut] == original.turns[:cut]
    assert (fork.forked_at, fork.trunk, fork.sample) == (cut, 0, 1)
    new = [turn for turn in fork.turns[cut:] if turn.observation]
    assert not {turn.text for turn in new} & {turn.text for turn in original.turns}
    assert len(voice.requests) == len(new)
    assert [turn.index for turn in fork.turns] == list(range(len(fork.turns)))


def test_a_parallel_act_may_straddle_the_end_of_the_record() -> None:
    async def workflow(game: Game) -> None:
        made = await game.act("c", "b", "a")
        assert [turn.agent for turn in made] == ["c", "b", "a"]

    original = played(workflow, Voice(by_luck))
    voice = Voice(by_luck)
    fork = played(workflow, voice, sample=1, replayed=original.turns[:2])
    assert fork.turns[:2] == original.turns[:2]
    assert [request.adapter for request in voice.requests] == ["c"]
    assert fork.turns[2].text != original.turns[2].text
    assert fork.turns[2].observation == original.turns[2].observation  # neither saw what was said beside it


def test_what_is_said_without_a_model_is_worked_out_again() -> None:
    async def workflow(game: Game) -> None:
        await game.act("a")
        await game.say("tool", f"{len(game.turns)} turns")
        await game.act("b", sees=["tool"])

    original = played(workflow, Voice(by_luck))
    forged = replace(original.turns[1], completion=replace(original.turns[1].completion, text="forged"))
    again = played(workflow, Voice(by_luck), replayed=(original.turns[0], forged))
    assert again.turns == original.turns


def test_the_untrained_base_speaks_at_one_turn() -> None:
    def base_is_known(request: Any) -> str:
        return by_luck(request) if request.adapter else "base"

    original = played(WORKFLOWS["sequential"], Voice(base_is_known))
    voice = Voice(base_is_known)
    fork = played(WORKFLOWS["sequential"], voice, replayed=original.turns[:1], base_at=1)
    assert [request.adapter for request in voice.requests] == [None, "c"]
    assert fork.turns[0] == original.turns[0]
    assert (fork.turns[1].agent, fork.turns[1].text) == ("b", "base")
    assert fork.turns[1].observation == original.turns[1].observation
    assert "b: base" in fork.turns[2].observation[1].content


def test_an_aside_is_no_more_heard_the_second_time() -> None:
    original = played(mixed, Voice(by_luck))
    again = played(mixed, Voice(by_luck), replayed=original.turns)
    assert original.turns[0].aside
    assert original.turns[0].text not in again.turns[1].shown
    assert again.reward == original.reward
    assert again.counts == original.counts == {"seen": 1}


@pytest.mark.parametrize(
    ("order", "line"),
    [
        ("ac", "turn 1 was b's and is now c's"),
        ("a!", "turn 1 was b's and is now tool's"),
        ("a", "turn 1 was b's and is now nobody's"),
    ],
)
def test_a_workflow_that_does_not_repeat_itself(order: str, line: str) -> None:
    async def another(game: Game) -> None:
        for name in order:
            if name == "!":
                await game.say("tool", "x")
            else:
                await game.act(name)

    original = played(WORKFLOWS["sequential"], Voice(by_luck))
    voice = Voice(by_luck)
    with pytest.raises(
        MarftError, match=rf"^the workflow did not repeat itself: {line}; it must depend on game\.turns"
    ):
        played(another, voice, replayed=original.turns[:2])
    assert voice.requests == []


def test_a_team_mate_where_a_tool_spoke() -> None:
    async def tool_first(game: Game) -> None:
        await game.say("tool", "x")

    original = played(tool_first, Voice(by_luck))
    with pytest.raises(MarftError, match="turn 0 was tool's and is now a's"):
        played(WORKFLOWS["sequential"], Voice(by_luck), replayed=original.turns)


def test_a_failure_while_playing_again_is_data() -> None:
    original = run(team("a", "b"))
    episode = run(team("a", "b"), env=toys.Breaks("transition", 1, "oh no"), replayed=original.turns, ended="failed")
    assert episode.error == "environment.transition raised RuntimeError: oh no"
    assert episode.turns == original.turns[:1]


def test_an_episode_that_is_no_fork() -> None:
    episode = run(team("a"))
    assert (episode.forked_at, episode.trunk) == (0, None)
    assert episode.task == TASK
    assert isinstance(episode.turns[0], Turn)
