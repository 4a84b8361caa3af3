"""A team plays with a known voice: who acts, what each one saw, and what a workflow can do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from voices import TASK, Script, Voice, by_luck, in_turn, prompt, run, team, views

from marft.game import play as playing
from marft.game.play import Game, seed_of
from marft.types import Completion, MarftError, Message, Request, Reward, SpeechError, Task, Turn


class Shows(toys.Echo):
    """Shows what it has heard."""

    def observe(self, state: str, agent: str) -> str:
        return f"The board: [{state}]"


# --- what an agent sees -----------------------------------------------------------------------------------------------
def test_defect_01_every_agent_is_told_its_own_role() -> None:
    """Each agent's own system prompt, and no other's, reaches the model: token for token what the turn records."""
    voice = Voice()
    agents = team("planner", "solver", "judge", voice=voice)
    episode = run(agents)
    for turn, request in zip(episode.turns, voice.requests, strict=True):
        own = agents[turn.agent].prompt
        assert own is not None
        assert turn.observation[0] == Message(role="system", content=own)
        assert turn.observation == request.messages
        assert turn.prompt_ids == request.prompt_ids == voice.encode(turn.observation)
        assert own in prompt(request)
        assert not any(str(a.prompt) in prompt(request) for name, a in agents.items() if name != turn.agent)
        assert request.adapter == turn.agent


def test_without_sees_everybody_sees_all_predecessors() -> None:
    voice = Voice()
    run(team("a", "b", "c", voice=voice))
    assert [re.findall(r"(\w): <\w>", text) for text in map(prompt, voice.requests)] == [[], ["a"], ["a", "b"]]


def test_what_the_dependency_function_hides_is_not_shown() -> None:
    voice = Voice()
    run(team("a", "b", "c", voice=voice, b=(), c=("a",)))
    [b], [c] = voice.heard("b"), voice.heard("c")
    assert "<a>" not in b
    assert "<a>" in c
    assert "<b>" not in c
    assert all(TASK.prompt in text for text in (b, c))


def test_a_workflow_can_override_who_is_seen() -> None:
    async def workflow(game: Game) -> None:
        await game.act("a")
        await game.act("b", sees=[])
        await game.act("b", sees=["b"])

    voice = Voice()
    run(team("a", "b", voice=voice), workflow)
    first, second = voice.heard("b")
    assert "<a>" not in first
    assert "<a>" not in second
    assert "<b>" in second


def test_the_environments_words_are_shown_and_recorded() -> None:
    episode = run(team("a", "b"), env=Shows())
    assert [turn.shown for turn in episode.turns] == ["The board: []", "The board: [<a>]"]
    assert "The board: [<a>]" in episode.turns[1].observation[1].content


def test_a_note_comes_after_what_the_environment_shows() -> None:
    async def workflow(game: Game) -> None:
        await game.act("a", note="Be brief.")
        await game.act("a")

    assert [turn.shown for turn in run(team("a"), workflow).turns] == ["Be brief.", ""]
    episode = run(team("a"), workflow, env=Shows())
    assert views(episode) == [
        ("a", "What is 2 + 2?\n\nThe board: []\n\nBe brief."),
        ("a", "What is 2 + 2?\n\nThe board: [<a>]\n\na: <a>"),
    ]
    assert [turn.shown for turn in episode.turns] == ["The board: []\n\nBe brief.", "The board: [<a>]"]


def test_an_aside_is_for_the_team_alone() -> None:
    async def workflow(game: Game) -> None:
        await game.act("a", aside=True)
        await game.act("b")

    episode = run(team("a", "b"), workflow, env=Shows())
    assert [turn.aside for turn in episode.turns] == [True, False]
    assert [turn.index for turn in episode.turns] == [0, 1]
    assert views(episode)[1] == ("b", "What is 2 + 2?\n\nThe board: []\n\na: <a>")
    assert episode.reward == toys.Echo().reward("<b>")


def test_defect_02_a_branch_never_contains_what_it_did_not_see() -> None:
    """Agents that act at once see the past, and nothing of each other: not even in the recorded prompt."""

    async def debate(game: Game) -> None:
        for _ in range(2):
            await game.act("pro", "con")
        await game.act("judge")

    counts: dict[str | None, int] = {}

    def script(request: Request) -> str:
        counts[request.adapter] = counts.get(request.adapter, 0) + 1
        return f"<{request.adapter}{counts[request.adapter]}>"

    episode = run(team("pro", "con", "judge", voice=Voice(script)), debate)
    seen = [set(re.findall(r"<(?:pro|con)\d>", turn.observation[1].content)) for turn in episode.turns]
    first = {"<pro1>", "<con1>"}
    assert seen == [set(), set(), first, first, first | {"<pro2>", "<con2>"}]
    for turn in episode.turns:
        assert bytes(turn.prompt_ids).decode() == "\n".join(f"<{m.role}> {m.content}" for m in turn.observation)


names = st.lists(st.sampled_from("abcd"), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(names, max_size=5),
    st.dictionaries(st.sampled_from("abcd"), st.lists(st.sampled_from("abcd"), max_size=3).map(tuple)),
)
def test_an_agent_sees_exactly_what_the_dependency_function_lets_through(
    plan: list[list[str]], sees: dict[str, tuple[str, ...]]
) -> None:
    given_back: list[tuple[Turn, ...]] = []

    async def workflow(game: Game) -> None:
        for together in plan:
            given_back.append(await game.act(*together))

    spoken = iter(range(100))
    episode = run(team(*"abcd", voice=Voice(lambda request: f"#{next(spoken)}#"), **sees), workflow)
    past: list[Any] = []
    left = list(episode.turns)
    for together, back in zip(plan, given_back, strict=True):
        now, left = left[: len(together)], left[len(together) :]
        assert [turn.agent for turn in now] == sorted(together)
        assert [turn.agent for turn in back] == together
        assert sorted(back, key=lambda turn: turn.index) == now
        for turn in now:
            visible = [t.text for t in past if turn.agent not in sees or t.agent in sees[turn.agent]]
            assert re.findall(r"#\d+#", turn.observation[1].content) == visible
        past += now
    assert left == []
    assert [turn.index for turn in episode.turns] == list(range(len(past)))
    for name in "abcd":
        assert [t.nth for t in past if t.agent == name] == list(range(sum(t.agent == name for t in past)))


# --- who acts when ----------------------------------------------------------------------------------------------------
def test_sequential_is_the_teams_order() -> None:
    assert [turn.agent for turn in run(team("z", "a", "m")).turns] == ["z", "a", "m"]


def test_parallel_turns_come_in_the_teams_order_whoever_is_first() -> None:
    class Slow(Voice):
        async def generate(self, request: Request) -> Completion:
            await asyncio.sleep(0.02 if request.adapter == "a" else 0)
            return await super().generate(request)

    async def workflow(game: Game) -> None:
        made = await game.act("c", "b", "a")
        assert [turn.agent for turn in made] == ["c", "b", "a"]  # as asked for

    voice = Slow()
    episode = run(team("a", "b", "c", voice=voice), workflow)
    assert [(turn.agent, turn.index) for turn in episode.turns] == [("a", 0), ("b", 1), ("c", 2)]
    assert [r.adapter for r in voice.requests] == ["b", "c", "a"]
    assert episode.reward == toys.Echo().reward("<a><b><c>")


def test_an_agent_may_speak_several_times_at_once() -> None:
    """Each is a turn of its own with its own luck, and comes back where it was named."""

    async def workflow(game: Game) -> None:
        made = await game.act("b", "a", "b")
        assert [(turn.agent, turn.nth, turn.index) for turn in made] == [("b", 0, 1), ("a", 0, 0), ("b", 1, 2)]

    voice = Voice(by_luck)
    episode = run(team("a", "b", voice=voice), workflow)
    assert [(turn.agent, turn.nth) for turn in episode.turns] == [("a", 0), ("b", 0), ("b", 1)]
    assert len({request.seed for request in voice.requests}) == 3
    assert len({turn.text for turn in episode.turns}) == 3
    assert {turn.observation[1].content for turn in episode.turns} == {TASK.prompt}


def test_nth_counts_each_agents_own_turns() -> None:
    async def workflow(game: Game) -> None:
        await game.act("a")
        await game.act("a", "b")
        await game.act("b", "b", "a")

    turns = run(team("a", "b"), workflow).turns
    assert [(t.agent, t.nth) for t in turns] == [("a", 0), ("a", 1), ("b", 0), ("a", 2), ("b", 1), ("b", 2)]


def test_each_agent_speaks_with_its_own_voice() -> None:
    one, other = Voice(lambda request: "one"), Voice(lambda request: "other")
    agents = team("a", "b", voice=one)
    agents["b"] = replace(agents["b"], engine=other)
    assert [turn.text for turn in run(agents).turns] == ["one", "other"]
    assert (len(one.requests), len(other.requests)) == (1, 1)


def test_an_episode_is_cut_off_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forever(game: Game) -> None:
        while True:
            await game.act("a")
            await game.act("c", "b", note="Go on.")

    monkeypatch.setattr(playing, "MAX_TURNS", 8)
    episode = run(team("a", "b", "c"), forever, env=Shows(), ended="cut_off")
    said = "".join(turn.text for turn in episode.turns)
    assert (episode.cut_before, len(episode.turns)) == ("b", 7)
    assert episode.cut_shown == f"The board: [{said}]\n\nGo on."
    assert episode.reward == toys.Echo().reward(said)


def test_a_full_length_episode_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "MAX_TURNS", 3)
    assert run(team("a", "b", "c")).cut_before is None


def test_two_acts_at_once_are_refused() -> None:
    async def overlapping(game: Game) -> None:
        await asyncio.gather(game.act("a"), game.act("b"))

    async def talking_over(game: Game) -> None:
        async def tool() -> None:
            await game.say("tool", "4")

        await asyncio.gather(game.act("a"), tool())

    class Slow(Voice):
        async def generate(self, request: Request) -> Completion:
            await asyncio.sleep(0)
            return await super().generate(request)

    with pytest.raises(MarftError, match=r"name both agents in one call"):
        run(team("a", "b", voice=Slow()), overlapping)
    with pytest.raises(MarftError, match=r"game\.say while an agent is asked"):
        run(team("a", "b", voice=Slow()), talking_over)


def test_seeing_somebody_who_is_not_on_the_team() -> None:
    async def workflow(game: Game) -> None:
        await game.act("a", sees=["plannr"])

    with pytest.raises(MarftError, match=r"names 'plannr' in game\.act"):
        run(team("a", "b"), workflow)


def test_an_agent_that_is_not_on_the_team() -> None:
    with pytest.raises(MarftError, match=r"names 'stranger' in game\.act; the team has a, b"):
        run(team("a", "b"), toys.stranger)


def test_whom_the_workflow_spoke_for_cannot_act() -> None:
    async def workflow(game: Game) -> None:
        await game.say("tool", "4")
        await game.act("tool", sees=["tool"])

    with pytest.raises(MarftError, match=r"names 'tool' in game\.act; the team has a"):
        run(team("a"), workflow)


def test_a_list_of_names_in_place_of_names() -> None:
    async def workflow(game: Game) -> None:
        await game.act(["a", "b"])  # type: ignore[arg-type]

    with pytest.raises(MarftError, match=r"names \['a', 'b'\] in game\.act; the team has a, b"):
        run(team("a", "b"), workflow)


# --- what a workflow can say, ask and count ---------------------------------------------------------------------------
def test_what_no_model_said() -> None:
    async def workflow(game: Game) -> None:
        await game.act("a")
        await game.say("tool", "4")
        made = await game.say("tool", "5")
        assert made is game.turns[-1]
        await game.act("a", sees=["tool"])

    episode = run(team("a"), workflow, env=Shows())
    _, first, second, last = episode.turns
    assert first == Turn(
        agent="tool", index=1, nth=0, shown="The board: [<a>]", observation=(), prompt_ids=(),
        completion=Completion(text="4", token_ids=(), logprobs=(), finish="stop", version=0), step="none",
    )  # fmt: skip
    assert (second.index, second.nth, second.text, second.aside) == (2, 1, "5", False)
    assert last.observation[1].content == "What is 2 + 2?\n\nThe board: [<a>45]\n\ntool: 4\n\ntool: 5"
    assert episode.reward == toys.Echo().reward("<a>45<a>")


@pytest.mark.parametrize(("name", "text", "line"), [("a", "4", "lets 'a' say"), ("tool", 4, "gives game.say int")])
def test_what_cannot_be_said(name: str, text: Any, line: str) -> None:
    async def workflow(game: Game) -> None:
        await game.say(name, text)

    with pytest.raises(MarftError, match=re.escape(line)):
        run(team("a"), workflow)


def test_saying_counts_toward_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forever(game: Game) -> None:
        while True:
            await game.say("clock", "tick")

    monkeypatch.setattr(playing, "MAX_TURNS", 5)
    episode = run(team("a"), forever, env=Shows(), ended="cut_off")
    assert (len(episode.turns), episode.cut_before) == (5, "clock")
    assert episode.cut_shown == "The board: [tickticktickticktick]"


class Thrice(toys.Echo):
    """Is done once it has heard three messages; the first letter is the answer."""

    def reward(self, state: str) -> Reward:
        return Reward(team=1.0, done=len(state) == 3)

    def answer(self, text: str) -> Any:
        return {"l": ["a list"], "n": None}.get(text, text[0])


def test_a_workflow_asks_whether_the_task_is_done() -> None:
    async def workflow(game: Game) -> None:
        while not await game.done():
            await game.act("a")

    assert len(run(team("a", voice=Voice(lambda request: "x")), workflow, env=Thrice()).turns) == 3


def test_a_workflow_asks_what_a_turn_answers() -> None:
    async def workflow(game: Game) -> None:
        made = await game.act("a", "a", "a")
        assert [await game.answer(turn) for turn in made] == ["y", None, "z"]
        [bad] = await game.act("a")
        await game.answer(bad)

    episode = run(team("a", voice=Voice(in_turn("yes", "n", "zero", "l"))), workflow, env=Thrice(), ended="failed")
    assert episode.error == "environment.answer returned list, which cannot be counted"


def test_a_workflow_counts() -> None:
    async def workflow(game: Game) -> None:
        for what in ("retry", "retry", "malformed"):
            game.count(what)
        await game.act("a")

    assert run(team("a"), workflow).counts == {"retry": 2, "malformed": 1}
    assert run(team("a")).counts == {}
    failed = run(team("a"), workflow, env=toys.Breaks("transition"), ended="failed")
    assert failed.counts == {"retry": 2, "malformed": 1}


# --- luck -------------------------------------------------------------------------------------------------------------
def test_every_turn_has_its_own_luck_and_keeps_it() -> None:
    def seeds(seed: str, sample: int, task: Task) -> Sequence[int]:
        voice = Voice()
        run(team("a", "b", voice=voice), seed=seed, sample=sample, task=task)
        return [request.seed for request in voice.requests]

    other = replace(TASK, id="u")
    drawn = [s for seed in "01" for sample in (0, 1, 2) for task in (TASK, other) for s in seeds(seed, sample, task)]
    assert len(set(drawn)) == len(drawn) == 24
    assert seeds("0", 1, TASK) == seeds("0", 1, TASK)


def test_seeds_are_the_same_on_every_machine() -> None:
    assert seed_of("0/train/0/t/0", 1) == 1568494074709915599
    assert all(0 <= seed_of(i) < 2**63 for i in range(100))


class Remembering(Voice):
    """An engine that keeps something of every episode."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.forgotten: list[object] = []

    def forget(self, episode: object) -> None:
        self.forgotten.append(episode)


@pytest.mark.parametrize("fails", [False, True])
def test_an_engine_is_told_once_that_an_episode_is_over(fails: bool) -> None:
    def speak(request: Request) -> str:
        if fails:
            raise SpeechError("no voice")
        return "yes"

    voice = Remembering(speak)
    run(team("a", "b", voice=voice), ended="failed" if fails else "terminated")
    assert voice.forgotten == [voice.requests[0].episode]
