"""Engines, tools and workflows of the user's own, from a folder outside the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from quick import config_of, seated, start
from toys import rows

from marft.game.lockstep import Lockstep
from marft.game.tools import ToolFailure
from marft.rollouts.event_loop import run_async
from marft.runs.directory import RunDirectory
from marft.training.agents import OpenTools
from marft.types import MarftError

CODE = """
from dataclasses import replace

from marft.algorithms.grpo import Grpo
from marft.algorithms.marft_token import MarftToken
from marft.engines.local import LocalEngine

class Mine(LocalEngine):
    made = []

    def __init__(self, team, *, slots: int = 3):
        super().__init__(team, slots)
        Mine.made.append(slots)

class Clock:
    name = "clock"
    help = "<clock>CITY</clock> gives the time there"

    def use(self, text):
        if text == "Atlantis":
            raise KeyError(text)
        return "12:00 " * 1000

class OtherClock(Clock):
    pass

class Liar(LocalEngine):
    def __init__(self, team):
        super().__init__(team, 3)

    async def generate(self, request):
        return replace(await super().generate(request), token_ids=(1,), logprobs=(0.5,))

class Short(Grpo):
    def estimate(self, batch, scores):
        found = super().estimate(batch, scores)
        return replace(found, advantages_N=found.advantages_N[1:])

class NoReturns(MarftToken):
    def estimate(self, batch, scores):
        return replace(super().estimate(batch, scores), returns=None)

class Nameless:
    def use(self, text):
        return text

class Shouting(Clock):
    name = "Clock!"

class Needy(Clock):
    def __init__(self, key):
        pass

class NoEngine:
    def __init__(self, team):
        pass

async def relay(game, laps: int = 1, names: tuple[str, ...] = ("ann",)):
    for _ in range(laps):
        await game.act(*names)

async def plain(game):
    await game.act("ann")
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_parts.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))


def turns_of(run: Path) -> list[list[str]]:
    return [[turn["agent"] for turn in row["turns"]] for row in rows(run / "episodes.jsonl")]


def test_an_engine_with_settings_trains_a_team(tmp_path: Path) -> None:
    run = start(tmp_path / "run", engine={"name": "own_parts:Mine", "options": {"slots": 5}}, train={"iterations": 1})
    import own_parts  # type: ignore[import-not-found]

    assert own_parts.Mine.made[-1] == 5
    [row] = RunDirectory(run).metrics()
    assert row["mismatch"]["mean"] < 1e-4  # compared, as that of every engine which is not ours


def test_a_workflow_takes_its_settings(tmp_path: Path) -> None:
    options = {"laps": 3, "names": ["bob", "ann"]}
    team = {"workflow": "own_parts:relay", "options": options}
    run = start(tmp_path / "run", team=team, train={"iterations": 1})
    assert turns_of(run)[0] == ["ann", "bob"] * 3  # at once, in the team's order
    assert RunDirectory(run).config().team.options == options


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"team": {"workflow": "own_parts:relay", "options": {"lap": 3}}}, "team.options.lap: the workflow has no such argument; did you mean 'laps'?; it has laps, names"),
        ({"team": {"workflow": "own_parts:plain", "options": {"laps": 3}}}, "team.options.laps: the workflow has no such argument; it has none"),
        ({"team": {"workflow": "own_parts:relay", "options": {"laps": "many"}}}, "team.options.laps: input should be a valid integer, unable to parse string as an integer, not 'many'"),
        ({"engine": {"name": "own_parts:NoEngine"}}, "engine.name: 'own_parts:NoEngine' is no engine, it has no encode; see marft.engines.base.Engine"),
        ({"engine": {"name": "own_parts:Mine", "options": {"rows": 3}}}, "engine.name: 'own_parts:Mine' cannot be made: Mine.__init__() got an unexpected keyword argument 'rows'"),
        ({"engine": {"name": "own_parts:Nothing"}}, "engine.name: cannot import 'own_parts:Nothing': module 'own_parts' has no attribute 'Nothing'"),
        ({"team": {"agents": {"ann": {"tools": ["own_parts:Nameless"]}}}}, "tools: 'own_parts:Nameless' needs a `name` and a line of `help`, both texts"),
        ({"team": {"agents": {"ann": {"tools": ["own_parts:Shouting"]}}}}, "tools: 'own_parts:Shouting' is named 'Clock!'; a name has small letters, digits, - and _"),
        ({"team": {"agents": {"ann": {"tools": ["own_parts:Needy"]}}}}, "tools: 'own_parts:Needy' cannot be made: Needy.__init__() missing 1 required positional argument: 'key'; write a class without arguments"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(MarftError) as caught:
        seated(**changes)
    assert str(caught.value) == line


def test_what_a_tool_says_is_short_and_what_it_raises_is_a_failure_of_the_call() -> None:
    [agent] = [config_of(team={"agents": {"ann": {"tools": ["own_parts:Clock"]}}}).team.agents["ann"]]
    tools = OpenTools({"ann": agent}, Lockstep())
    [(name, tool)] = tools.by_agent["ann"].by_name.items()
    assert name == "clock"
    assert len(run_async(tool.use("Paris"))) == 1000
    with pytest.raises(ToolFailure, match="KeyError: 'Atlantis'"):  # which the game turns into an answer
        run_async(tool.use("Atlantis"))


def test_an_engine_that_gives_no_probabilities_fails_its_episodes(tmp_path: Path) -> None:
    with pytest.raises(MarftError, match=r"own_parts:Liar gives 0\.5 for the log-prob of a token"):
        start(tmp_path / "run", engine="own_parts:Liar", train={"iterations": 1})


def test_tools_of_one_name_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(MarftError, match=r"^tools: two of them are called 'clock'; give one of them another name$"):
        seated(team={"agents": {"ann": {"tools": ["own_parts:Clock", "own_parts:OtherClock"]}}})


def test_a_tool_that_has_an_agent_s_name_is_one_line() -> None:
    with pytest.raises(MarftError, match=r"^tools: 'clock' is also an agent's name; give one of them another$"):
        seated(team={"agents": {"ann": {"tools": ["own_parts:Clock"]}, "clock": {"prompt": ""}}})


def test_an_algorithm_that_gives_too_little_is_one_line(tmp_path: Path) -> None:
    for name, line in (("Short", "gives advantages of shape"), ("NoReturns", "gives no returns")):
        with pytest.raises(MarftError, match=rf"^algorithm 'own_parts:{name}' .*{line}"):
            start(tmp_path / name, algorithm=f"own_parts:{name}", train={"iterations": 1})
