"""Environments that break one promise each, for the checks to find; `Good` keeps them all."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Sequence
from typing import Any

import marft
from marft.envs.base import Split


class Good(marft.Environment[Any]):
    """The team must say the word."""

    def tasks(self, split: Split) -> Any:
        words = ["plan", "step", "add"] if split == "train" else ["slip", "start"]
        return [marft.Task(id=w, prompt=f"Say {w[::-1]} backwards.", data={"answer": w}) for w in words]

    def reset(self, task: marft.Task) -> Any:
        return (task, ())

    def transition(self, state: Any, turn: marft.Turn) -> Any:
        return (state[0], (*state[1], (turn.index, turn.text)))

    def reward(self, state: Any) -> Any:
        right = bool(state[1]) and state[1][-1][1] == state[0].data["answer"]
        return marft.Reward(team=float(right), correct=right)


class NoReward(marft.Environment[Any]):
    def tasks(self, split: Split) -> Any:
        return []

    def reset(self, task: marft.Task) -> Any: ...
    def transition(self, state: Any, turn: marft.Turn) -> Any: ...


class OldObserve(Good):
    def observe(self, state: Any) -> str:  # type: ignore[override]
        return ""


class Async(Good):
    async def transition(self, state: Any, turn: marft.Turn) -> Any:
        return state


class NumberGold(Good):
    def gold(self, task: marft.Task) -> Any:
        return 7


class TwoGolds(Good):
    def gold(self, task: marft.Task) -> str:
        return str(random.random())


class NoGold(Good):
    def gold(self, task: marft.Task) -> str:
        return str(task.data["solution"])


class NotAMethod(Good):
    observe = "nothing"  # type: ignore[assignment]


class BadSetting(Good):
    def __init__(self, level: int = 0) -> None:
        if level < 1:
            raise ValueError("level must be at least 1")


class Exits(Good):
    def __init__(self) -> None:
        sys.exit(3)


# --- tasks -----------------------------------------------------------------------------------------------------------
class Empty(Good):
    def tasks(self, split: Split) -> Any:
        return super().tasks(split) if split == "train" else []


class Yields(Good):
    def tasks(self, split: Split) -> Any:
        return (task for task in super().tasks(split))


class NotTasks(Good):
    def tasks(self, split: Split) -> Any:
        return [{"id": "a", "prompt": "b"}]


class NumberIds(Good):
    def tasks(self, split: Split) -> Any:
        return [marft.Task(id=i, prompt="a") for i in range(2)]  # type: ignore[arg-type]


class Blank(Good):
    def tasks(self, split: Split) -> Any:
        return [marft.Task(id=split, prompt="  ")]


class ListData(Good):
    def tasks(self, split: Split) -> Any:
        return [marft.Task(id=split, prompt=split, data=[1])]  # type: ignore[arg-type]


class Twins(Good):
    def tasks(self, split: Split) -> Any:
        return 2 * super().tasks(split)


class SharedIds(Good):
    def tasks(self, split: Split) -> Any:
        return [marft.Task(id="a", prompt=split)]


class SharedPrompts(Good):
    def tasks(self, split: Split) -> Any:
        return [marft.Task(id=split, prompt="the same", data={"answer": "42"})]


class SharedRules(SharedPrompts):
    """Tasks differ in what the environment shows."""

    def observe(self, state: Any, agent: str) -> str:
        return str(state[0].id)


class SlowThoughLight(Good):
    light = True

    def reward(self, state: Any) -> Any:
        time.sleep(0.004)
        return super().reward(state)


class OnlySolver(Good):
    def observe(self, state: Any, agent: str) -> str:
        return {"solver": "hello"}[agent]


class Leaks(Good):
    def tasks(self, split: Split) -> Any:
        return [marft.Task(id=t.id, prompt=f"Say {t.id}.", data=t.data) for t in super().tasks(split)]


class Draws(Good):
    def tasks(self, split: Split) -> Any:
        return [marft.Task(id=split, prompt=f"{split} {random.random()}", data={"answer": "a"})]


class FromSet(Good):
    """In one process always the same, in another in another order."""

    def tasks(self, split: Split) -> Any:
        return [marft.Task(id=f"{split}/{w}", prompt=f"{split} {w}") for w in {f"word{i}" for i in range(50)}]


class RaisingTasks(Sequence[marft.Task]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: Any) -> Any:
        raise OSError("disk gone")


class NeedsData(Good):
    def tasks(self, split: Split) -> Any:
        raise marft.MarftError("env.path: name the folder")


class LazyBroken(Good):
    def tasks(self, split: Split) -> Any:
        return RaisingTasks()


# --- states ----------------------------------------------------------------------------------------------------------
class Mutates(Good):
    def reset(self, task: marft.Task) -> Any:
        return [task]

    def transition(self, state: Any, turn: marft.Turn) -> Any:
        state.append((turn.index, turn.text))
        return state

    def reward(self, state: Any) -> Any:
        return marft.Reward(team=float(len(state)))


class SharesList(Good):
    """The list inside is the same in all states of a task; only a state that has heard something shows it."""

    def reset(self, task: marft.Task) -> Any:
        return (task, None)

    def transition(self, state: Any, turn: marft.Turn) -> Any:
        heard = [] if state[1] is None else state[1]
        if state[1] is not None and turn.index > 1:
            heard.append(turn.text)
        return (state[0], heard)

    def reward(self, state: Any) -> Any:
        return marft.Reward(team=0.0)


class CountsGames(Good):
    def __init__(self) -> None:
        self.games = 0

    def reset(self, task: marft.Task) -> Any:
        self.games += 1
        return (task, (), self.games)


class CountsTurns(Good):
    """Equal messages one after the other give equal states, but not when another message lies between."""

    def __init__(self) -> None:
        self.said: dict[str, int] = {}

    def transition(self, state: Any, turn: marft.Turn) -> Any:
        if turn.index == 2:
            self.said[turn.text] = self.said.get(turn.text, 0) + 1
        return (state[0], (*state[1], (turn.index, turn.text)), len(self.said))


class Chance(Good):
    def transition(self, state: Any, turn: marft.Turn) -> Any:
        return (state[0], (*state[1], (turn.index, turn.text, random.random())))


class KeepsOnSelf(Good):
    def __init__(self) -> None:
        self.said = ""

    def transition(self, state: Any, turn: marft.Turn) -> Any:
        self.said = turn.text
        return state

    def reward(self, state: Any) -> Any:
        return marft.Reward(team=float(len(self.said)))


class OpenFile(Good):
    def reset(self, task: marft.Task) -> Any:
        return open(os.devnull)


class Forgetful:
    """Loses what it holds on its way to another process, though it seems to be the same here."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce__(self) -> Any:
        return (Forgetful, (self.text + "!",))


class Changes(Good):
    def reset(self, task: marft.Task) -> Any:
        return (task, (), Forgetful("a"))

    def transition(self, state: Any, turn: marft.Turn) -> Any:
        return (state[0], (*state[1], (turn.index, turn.text)), state[2])


class Huge(Good):
    def reset(self, task: marft.Task) -> Any:
        return (task, (), bytes(2 << 20))

    def transition(self, state: Any, turn: marft.Turn) -> Any:
        return (state[0], (*state[1], (turn.index, turn.text)), state[2])


# --- rewards ---------------------------------------------------------------------------------------------------------
class Rewards(Good):
    """Gives a reward with these fields in every state that has heard something."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def reward(self, state: Any) -> Any:
        return marft.Reward(**{"team": 0.0, **self.fields}) if state[1] else super().reward(state)


class Float(Good):
    def reward(self, state: Any) -> Any:
        return 1.0


class Nan(Rewards):
    def __init__(self) -> None:
        super().__init__(team=float("nan"))


class TurnNan(Rewards):
    def __init__(self) -> None:
        super().__init__(turns={0: float("inf")})


class Maybe(Rewards):
    def __init__(self) -> None:
        super().__init__(correct="yes")


class DoneText(Rewards):
    def __init__(self) -> None:
        super().__init__(done="no")


class ItemisedText(Rewards):
    def __init__(self) -> None:
        super().__init__(itemised="no")


class NumberedPlayers(Rewards):
    def __init__(self) -> None:
        super().__init__(players={0: 1})


class TurnList(Rewards):
    def __init__(self) -> None:
        super().__init__(turns=[0.5])


class TurnOne(Rewards):
    def __init__(self) -> None:
        super().__init__(turns={1: 0.5})


class Sometimes(Good):
    def reward(self, state: Any) -> Any:
        turns = {index: 1.0 for index, text in state[1] if "4" in text}
        return marft.Reward(team=0.0, turns=turns)


class Dice(Good):
    def reward(self, state: Any) -> Any:
        return marft.Reward(team=random.random())


class SpoilsInReward(Mutates):
    def transition(self, state: Any, turn: marft.Turn) -> Any:
        return [*state, turn.text]

    def reward(self, state: Any) -> Any:
        state[:] = [*state[:1], "judged"]
        return marft.Reward(team=0.0)


class Constant(Good):
    def reward(self, state: Any) -> Any:
        return marft.Reward(team=0.5)


class Generous(Good):
    def reward(self, state: Any) -> Any:
        return marft.Reward(team=100.0 * super().reward(state).team)


class LikesEcho(Good):
    def reward(self, state: Any) -> Any:
        return marft.Reward(team=float(bool(state[1]) and "backwards" in state[1][-1][1]))


# --- messages --------------------------------------------------------------------------------------------------------
class ShowsNone(Good):
    def observe(self, state: Any, agent: str) -> Any:
        return None


class ShowsTime(Good):
    def observe(self, state: Any, agent: str) -> str:
        return str(time.perf_counter_ns())


class NumbersTurns(Good):
    def whose_turn(self, state: Any) -> Any:
        return len(state[1])


class Alternates(Good):
    def whose_turn(self, state: Any) -> str | None:
        return ("ann", "bob", None)[min(len(state[1]), 2)]


class ListAnswer(Good):
    def answer(self, text: str) -> Any:
        return [text]


class Brittle(Good):
    """Cannot take half a surrogate pair."""

    def transition(self, state: Any, turn: marft.Turn) -> Any:
        turn.text.encode()
        return super().transition(state, turn)


class Boxed(Good):
    def answer(self, text: str) -> str:
        return text.split("\\boxed{")[1].split("}")[0] if "\\boxed{" * 2 in text else self.first(text)

    def first(self, text: str) -> str:
        return "" if text.startswith("{") and [][1] else text


# --- those who must be stopped from outside --------------------------------------------------------------------------
class Hangs(Good):
    def observe(self, state: Any, agent: str) -> str:
        while True:
            time.sleep(1)


class HangsOnLong(Good):
    def transition(self, state: Any, turn: marft.Turn) -> Any:
        while len(turn.text) > 100_000:
            pass
        return super().transition(state, turn)


class HangsInConstructor(Good):
    def __init__(self) -> None:
        time.sleep(1000)


class HangsInTasks(Good):
    def tasks(self, split: Split) -> Any:
        time.sleep(1000)


class Dies(Good):
    def answer(self, text: str) -> Any:
        os._exit(7)


class Prints(Good):
    def transition(self, state: Any, turn: marft.Turn) -> Any:
        print('{"finding": "forged"}')
        print("noise", file=sys.stderr)
        return super().transition(state, turn)


class StartsOthers(Good):
    def reset(self, task: marft.Task) -> Any:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        return super().reset(task)
