"""Small games whose answer is known: `ann` speaks, then `bob`, one word each, for the team or (`Duel`) against each other."""

from __future__ import annotations

from dataclasses import dataclass

import marft
from marft.envs.base import Split


@dataclass(frozen=True)
class State:
    colour: str
    words: tuple[str, ...] = ()


class Words(marft.Environment[State]):
    """Pays for what `ann` and `bob` have said. The world's colour is shown to nobody but the first to speak."""

    light = True

    colours: tuple[str, ...] = ("",)

    def __init__(self, tasks: int = 1) -> None:
        self.count = tasks  # of each colour

    def tasks(self, split: Split) -> list[marft.Task]:
        return [
            marft.Task(id=f"{split}/{colour}/{i}", prompt="", data={"colour": colour})
            for i in range(self.count)
            for colour in self.colours
        ]

    def reset(self, task: marft.Task) -> State:
        return State(colour=task.data["colour"])

    def observe(self, state: State, agent: str) -> str:
        return "" if state.words else state.colour

    def transition(self, state: State, turn: marft.Turn) -> State:
        return State(colour=state.colour, words=(*state.words, turn.text))

    def reward(self, state: State) -> marft.Reward:
        ann, bob = (*state.words, "", "")[:2]
        own = {0: 0.2 * (ann == "1"), 1: 0.1 * (bob == "1")}
        return marft.Reward(team=self.pay(state.colour, ann, bob), turns={k: own[k] for k in range(len(state.words))})

    def pay(self, colour: str, ann: str, bob: str) -> float:
        raise NotImplementedError


class Follow(Words):
    """A matrix game in two steps: PAYOFF[a][b], where "1" is row or column 1 and all else is 0. Best: "1", "1"."""

    PAYOFF = ((0.2, 0.0), (0.4, 1.0))

    def pay(self, colour: str, ann: str, bob: str) -> float:
        return self.PAYOFF[ann == "1"][bob == "1"]


class Signal(Words):
    """`ann` sees the colour, `bob` must name it: "0" for red, "1" for blue. Who hears nothing is right half the time.

    With `clear` > 0 that part of the reward is for `ann` naming it too, so that one of the two codes is the language.
    """

    colours = ("red", "blue")

    def __init__(self, tasks: int = 1, clear: float = 0.0) -> None:
        super().__init__(tasks)
        self.clear = clear

    def pay(self, colour: str, ann: str, bob: str) -> float:
        name = str(self.colours.index(colour))
        return self.clear * (ann == name) + (1 - self.clear) * (bob == name)


class Alone(Words):
    """Only what `bob` says matters."""

    def pay(self, colour: str, ann: str, bob: str) -> float:
        return float(bob == "1")


class Own(Words):
    """Each has a word of its own and earns half: `ann` "1", `bob` "0". What one says means nothing for the other."""

    def pay(self, colour: str, ann: str, bob: str) -> float:
        return 0.5 * (ann == "1") + 0.5 * (bob == "0")


class Lengths(marft.Environment[str]):
    """One agent, whose turn ends where it would say "0". At once that pays 0.5; after "1" nothing; after "1" and "1" it pays
    1, however much is said then. The best answer is a long one."""

    light = True

    def tasks(self, split: Split) -> list[marft.Task]:
        return [marft.Task(id=f"{split}/0", prompt="")]

    def reset(self, task: marft.Task) -> str:
        return ""

    def transition(self, state: str, turn: marft.Turn) -> str:
        return turn.text.replace(" ", "")

    def reward(self, state: str) -> marft.Reward:
        return marft.Reward(team=1.0 if state.startswith("11") else 0.5 * (state == ""))


class Wordy(Follow):
    """The same where the first word counts, and more may be said."""

    def transition(self, state: State, turn: marft.Turn) -> State:
        return State(colour=state.colour, words=(*state.words, turn.text[:1]))


class Duel(marft.Environment[tuple[int, ...]]):
    """`ann`, `bob` and `ann` again say "1" or anything else, 0. What `ann` wins `bob` loses: `BAIT` at once for a first "1",
    and the rest at the end, so that she has WON[a][b][c] in all.

    By backward induction she ends with 1, so `bob` says 1, and so she begins with 0 and has 0.4. Whoever goes for what is
    paid at once begins with 1, and has −0.8.
    """

    light = True

    BAIT = 0.3
    WON = (((0.0, 1.0), (-0.2, 0.4)), ((0.1, 0.9), (-1.4, -0.8)))
    BEST = (0, 1, 1)

    def tasks(self, split: Split) -> list[marft.Task]:
        return [marft.Task(id=split, prompt="")]

    def reset(self, task: marft.Task) -> tuple[int, ...]:
        return ()

    def observe(self, state: tuple[int, ...], agent: str) -> str:
        return " ".join(map(str, state))

    def whose_turn(self, state: tuple[int, ...]) -> str | None:
        return ("ann", "bob", "ann", None)[len(state)]

    def transition(self, state: tuple[int, ...], turn: marft.Turn) -> tuple[int, ...]:
        return (*state, int(turn.text == "1"))

    def reward(self, state: tuple[int, ...]) -> marft.Reward:
        bait = self.BAIT * sum(state[:1])
        own = [bait, -bait, 0.0][: len(state)]
        if len(state) == 3:
            rest = self.WON[state[0]][state[1]][state[2]] - bait
            own = [bait, -bait - rest, rest]
        turns = dict(enumerate(own))
        return marft.Reward(team=0.0, turns=turns, correct=state == self.BEST, done=len(state) == 3, itemised=True)
