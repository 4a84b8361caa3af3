"""The data that crosses room boundaries: frozen, slotted, keyword-only, and checked where it is made."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

MAX_TURNS = 256  # of one episode; a workflow that goes on past it is cut off
# overflow: what the team said has outgrown what an agent can read; it is learnt from, as a failure of the team
Ended = Literal["terminated", "cut_off", "overflow", "failed"]
# what a turn is to time: it begins the next step, is said at once with the turn before it, or no agent said it
Step = Literal["next", "same", "none"]
Finish = Literal["stop", "length"]
# why an episode failed: its environment raised or missed a deadline, its workflow raised, an agent could not speak; or
# it was given up because another episode of its task was late
FaultKind = Literal["raised", "late", "workflow", "speech", "discarded"]


class MarftError(Exception):
    """A user's mistake or a hostile surrounding: one line that says what to do.

    `trace` is where the user's own code failed, to be shown above the line; our own code is never in it.
    """

    def __init__(self, line: str, trace: str = "") -> None:
        super().__init__(line)
        self.trace = trace


class Collapse(MarftError):
    """A run that stopped itself, because going on would only have ruined it further."""


class Interrupted(KeyboardInterrupt):
    """Somebody stopped us: one line that says what is kept and how to go on."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C while a team plays. A KeyboardInterrupt of any other class was raised by the user's code itself."""


class SpeechError(Exception):
    """An agent could not speak: its endpoint is away, its script failed. Recorded on the episode it happened in."""


class ChatRefused(MarftError):
    """Messages that a model's chat template does not take."""


class PromptTooLong(SpeechError):
    """A prompt has outgrown what the model can read: `longest` tokens, an answer of one included."""

    def __init__(self, tokens: int, longest: int, reader: str = "the model") -> None:
        super().__init__(f"the prompt has {tokens} tokens, {reader} reads {longest}")
        self.longest = longest


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCall:
    """A tool that an assistant calls; `arguments` is JSON, and `id` what the answer refers to."""

    id: str
    name: str
    arguments: str

    def plain(self) -> dict[str, Any]:
        """In the form of OpenAI's chat completions."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message, as chat templates want it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    calls: tuple[FunctionCall, ...] = ()  # of an assistant
    answers: str | None = None  # of a tool: the id of the call
    open: bool = field(default=False, repr=False)  # the last, an assistant's, which goes on in the middle of it


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What a chat template is told beside the messages: tools, each as JSON, and arguments of its own."""

    tools: tuple[str, ...] = ()
    arguments: tuple[tuple[str, Any], ...] = ()


PLAIN_CHAT = ChatOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem of an environment. `data` is what grading needs and no agent sees."""

    id: str
    prompt: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadTask(Task):
    """A task that cannot be played: its episodes fail, and say why."""

    flaw: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How one agent's tokens are drawn. Temperature 0 is greedy; top_k 0 and top_p 1 truncate nothing.

    A turn also ends where its text first holds one of `stop`; the text ends before it.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_tokens: int = 64
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must be a finite number of at least 0, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], not {self.top_p}; 1 truncates nothing")
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0, not {self.top_k}; 0 truncates nothing")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if "" in self.stop:
            raise ValueError("stop holds an empty text, which would end every turn at once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One generation: which adapter continues which tokens, and how. The seed alone decides the draws.

    `messages` are what `prompt_ids` spell, for those who speak without our tokens: scripts and remote endpoints. A
    prompt may go on from what was read and said in the same `episode`.
    """

    adapter: str | None
    messages: tuple[Message, ...] = ()
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    episode: Hashable = None  # None: in none, and nothing goes on from it


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What an engine sampled: ids as drawn (end-of-turn included) and each one's log-prob when it was drawn.

    Text that no model of ours sampled (a script's, a remote endpoint's) has no ids and cannot be trained on.
    The policy may change while tokens are drawn: `version` is the oldest that drew one, and `versions` are the runs of
    tokens, each a version and how many it drew.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    version: int
    stop: str | None = None  # the stop string that ended it, where one did
    versions: tuple[tuple[int, int], ...] = ()  # unless given, one run: `version` drew all of it

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.token_ids)} token ids but {len(self.logprobs)} log-probs")
        if len(self.versions) < 2:  # also of a copy with other tokens
            object.__setattr__(self, "versions", ((self.version, len(self.token_ids)),))
        if sum(count for _, count in self.versions) != len(self.token_ids):
            raise ValueError(f"{len(self.token_ids)} token ids, and versions {self.versions} say who drew how many")
        if min(version for version, _ in self.versions) != self.version:
            raise ValueError(f"version {self.version} is not the oldest of {self.versions}")

    @property
    def newest(self) -> int:
        """The newest version that drew a token."""
        return max(version for version, _ in self.versions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One action a_k of an episode: who acted, what it saw, what it said."""

    agent: str
    index: int  # k, in order of play
    nth: int  # which of this agent's turns, from 0
    shown: str  # what the environment and the workflow showed at that moment
    observation: tuple[Message, ...]
    prompt_ids: tuple[int, ...]
    completion: Completion
    aside: bool = False  # said to the team alone: the environment does not hear it
    to: str | None = None  # whom alone it is for: an agent that calls a tool, and the tool's answer to it
    step: Step = "next"
    sees: tuple[str, ...] | None = None  # whose turns it saw; None: everyone's
    heard: str | None = None  # what others read of it, where its thoughts are left out
    chat: ChatOptions = PLAIN_CHAT  # what the chat template was told beside the observation

    @property
    def text(self) -> str:
        """What team-mates and the environment read."""
        return self.completion.text if self.heard is None else self.heard


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """What a state is worth: the team's reward, rewards of single turns by index, and whether the task is over.

    In a game of several players `players` says by index which of them a turn was, where that is not its agent.
    """

    team: float
    turns: Mapping[int, float] = field(default_factory=dict)
    correct: bool | None = None  # for tasks with a right answer
    done: bool = True
    itemised: bool = False  # `team` sums up what `turns` hold: a credit that uses these does not pay it once more
    players: Mapping[int, str] = field(default_factory=dict)
    parts: Mapping[str, float] = field(default_factory=dict)  # what `team` is the sum of, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A team's play on one task. A failed episode says why and is never trained on.

    A fork shares its first `forked_at` turns with the episode of sample `trunk` of the same task, where they count.
    """

    task: Task
    sample: int
    turns: tuple[Turn, ...]
    reward: Reward
    ended: Ended = "terminated"
    error: str | None = None  # why it failed or what overflowed, in one line
    fault: FaultKind | None = None  # and in one word
    trace: str = ""  # and where, should it be the environment
    cut_before: str | None = None  # who would have acted next, had the limit of turns not cut it off
    cut_shown: str = ""  # and what the environment would have shown then
    counts: Mapping[str, int] = field(default_factory=dict)  # what the workflow counted
    calls: Mapping[str, Mapping[str, int]] = field(
        default_factory=dict
    )  # of tools, by agent: all, and kinds of failures
    trunk: int | None = None
    forked_at: int = 0
    credits: tuple[float, ...] | None = None  # of each turn, where they were worked out by playing on from it
