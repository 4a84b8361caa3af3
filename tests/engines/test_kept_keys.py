"""Keys kept for later prompts: what is said is what it would be without, and what may not be kept never is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from asking import (
    FREE,
    RANKS,
    STRANGE,
    WILD,
    ask,
    check_each_version,
    flat,
    publish_between_bursts,
    random_policy,
    recomputed,
    request,
    same,
    tokens_read,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from teams import team_of

from marft.engines.eager import COPIED_TOKENS
from marft.engines.kept_keys import KeptKeys, Owner, Prefix, Prompt, Sides
from marft.engines.local import LocalEngine
from marft.models.team import TeamModel
from marft.types import Completion, Request, Sampling

KEEP = 64
NEWS = (60, 61, 62, 63, 64)  # what is read between two turns
GREEDY = replace(FREE, temperature=0.0)


@pytest.fixture(scope="module")
def team() -> TeamModel:
    return team_of(RANKS, std=0.01)


def keeping(team: TeamModel, slots: int = 16, keep: int = KEEP) -> LocalEngine:
    return LocalEngine(team, slots, keep=keep)


def first_turn(
    number: int, *, adapter: str | None = "planner", sampling: Sampling = FREE, seed: int | None = None
) -> Request:
    """Of an episode of its own."""
    made = request(number, adapter=adapter, sampling=sampling, seed=number if seed is None else seed)
    return replace(made, episode=object())


def next_turn(before: Request, said: Completion, news: Sequence[int] = NEWS) -> Request:
    return replace(before, prompt_ids=(*before.prompt_ids, *said.token_ids, *news), seed=before.seed + 1000)


def talk(engine: LocalEngine, asked: Sequence[Request], turns: int = 4) -> list[list[Completion]]:
    """Conversations side by side, turn by turn."""
    said: list[list[Completion]] = []
    for _ in range(turns):
        said.append(ask(engine, *asked))
        asked = [next_turn(one, other) for one, other in zip(asked, said[-1], strict=True)]
    return said


def mixed(count: int, sampling: Sampling) -> list[Request]:
    adapters = ("planner", "solver", None)
    return [
        first_turn(i // 2, adapter=adapters[i % 3], sampling=replace(sampling, max_tokens=3 + i * 7 % 20), seed=i)
        for i in range(count)
    ]


@pytest.mark.parametrize("sampling", [FREE, WILD, GREEDY])
@pytest.mark.parametrize("slots", [3, 16])
def test_conversations_are_what_they_would_be_without(team: TeamModel, sampling: Sampling, slots: int) -> None:
    asked = mixed(14, sampling)
    for turn, without in zip(talk(keeping(team, slots), asked), talk(LocalEngine(team, slots), asked), strict=True):
        for one, other in zip(turn, without, strict=True):
            same(one, other, STRANGE)


def test_a_turn_reads_only_what_is_new(team: TeamModel) -> None:
    """The last token that was drawn has no key yet."""
    engine, asked = keeping(team), [first_turn(i, adapter="solver" if i % 2 else "planner") for i in range(6)]
    said = ask(engine, *asked)
    for _ in range(3):
        asked = [next_turn(one, other) for one, other in zip(asked, said, strict=True)]
        seen, said = tokens_read(team, engine, *asked)
        assert seen[0] == len(asked) * (1 + len(NEWS))
        torch.testing.assert_close(flat(said), recomputed(team, asked, said), atol=STRANGE, rtol=0)
    assert len(engine.kept) == len(asked)  # a turn takes the place of the one that it goes on from


def test_a_prompt_may_leave_what_was_read_in_the_middle(team: TeamModel) -> None:
    """As where a template drops earlier thoughts; and what it goes on from stays for others."""
    engine, first = keeping(team), first_turn(0, sampling=WILD)
    [said] = ask(engine, first)
    common = len(first.prompt_ids) + 2
    changed = replace(first, prompt_ids=(*first.prompt_ids, *said.token_ids[:2], 90, 91), seed=5)
    seen, other = tokens_read(team, engine, changed)
    assert seen[0] == len(changed.prompt_ids) - common
    torch.testing.assert_close(flat(other), recomputed(team, [changed], other), atol=STRANGE, rtol=0)
    seen, _ = tokens_read(team, engine, next_turn(first, said))
    assert seen[0] == 1 + len(NEWS)


def test_the_very_same_prompt_reads_one_token(team: TeamModel) -> None:
    engine, first = keeping(team), first_turn(1)
    [said] = ask(engine, first)
    seen, [again] = tokens_read(team, engine, first)
    assert seen[0] == 1
    same(said, again)


def test_samples_that_fork_from_one_turn_read_it_once(team: TeamModel) -> None:
    """Equal prompts are one, and what others have in common beyond the turn is read once too."""
    engine, first = keeping(team), first_turn(2)
    [said] = ask(engine, first)
    longer = next_turn(first, said)
    asked = [replace(longer, sampling=WILD, seed=i) for i in range(5)]
    asked += [replace(each, prompt_ids=(*each.prompt_ids, 80 + i)) for i, each in enumerate(asked[:3])]
    seen, found = tokens_read(team, engine, *asked)
    assert seen[0] == 1 + len(NEWS) + 3
    torch.testing.assert_close(flat(found), recomputed(team, asked, found), atol=STRANGE, rtol=0)


def test_who_knows_less_of_a_beginning_reads_it_beside_who_knows_more(team: TeamModel) -> None:
    """Three episodes with the same text: one knows it, one only its beginning, and one nothing."""
    engine, first = keeping(team), first_turn(3)
    [said] = ask(engine, first)
    longer = next_turn(first, said)
    shorter = replace(first, episode=object(), sampling=replace(FREE, max_tokens=1), prompt_ids=first.prompt_ids[:-4])
    ask(engine, shorter)
    asked = [
        longer,
        replace(longer, episode=shorter.episode, prompt_ids=(*longer.prompt_ids, 81)),
        replace(longer, episode=object(), prompt_ids=(*longer.prompt_ids, 82)),
    ]
    seen, found = tokens_read(team, engine, *asked)
    reads = [1 + len(NEWS), len(asked[1].prompt_ids) - len(shorter.prompt_ids), len(asked[2].prompt_ids)]
    assert sum(seen[:2]) == sum(reads)
    torch.testing.assert_close(flat(found), recomputed(team, asked, found), atol=STRANGE, rtol=0)


@pytest.mark.parametrize("change", [{"adapter": "solver"}, {"adapter": None}, {"episode": 1}, {"episode": None}])
def test_other_adapters_and_episodes_find_nothing(team: TeamModel, change: dict[str, object]) -> None:
    engine, first = keeping(team), first_turn(1)
    [said] = ask(engine, first)
    other = replace(next_turn(first, said), **change)  # type: ignore[arg-type]
    seen, found = tokens_read(team, engine, other)
    assert seen[0] == len(other.prompt_ids)
    torch.testing.assert_close(flat(found), recomputed(team, [other], found), atol=STRANGE, rtol=0)


def test_in_no_episode_nothing_is_kept(team: TeamModel) -> None:
    engine = keeping(team)
    for _ in range(2):
        seen, _ = tokens_read(team, engine, request(1))
        assert seen[0] == len(request(1).prompt_ids)
    assert len(engine.kept) == 0


def test_nothing_outlives_its_episode(team: TeamModel) -> None:
    engine, one, other = keeping(team), first_turn(1), first_turn(2)
    said, _ = ask(engine, one, other)
    engine.forget(one.episode)
    assert len(engine.kept) == 1
    assert tokens_read(team, engine, next_turn(one, said))[0][0] == len(next_turn(one, said).prompt_ids)
    engine.forget(other.episode)
    engine.forget(one.episode)
    assert (len(engine.kept), engine.kept.nbytes) == (0, 0)


def test_prompts_that_go_on_are_cut_by_what_they_copy(team: TeamModel) -> None:
    """256 prompts of 3,030 tokens, of which 3,000 are known."""
    sides = (torch.zeros(0), torch.zeros(0))
    prompts = [Prompt(tokens=(0, (1,) * 3030), prefix=Prefix(length=3000, sides=sides)) for _ in range(256)]
    passes = keeping(team).stepper.passes(prompts)
    assert sorted(i for each in passes for i in each) == list(range(256))
    assert max(map(len, passes)) == COPIED_TOKENS // 3030


def publish(engine: LocalEngine) -> None:
    engine.publish(engine.version + 1, random_policy(engine.team, 1))


def publish_a_version(engine: LocalEngine) -> None:
    """Whatever it holds, it is another."""
    engine.publish(engine.version + 1)


def change_in_place(engine: LocalEngine) -> None:
    with torch.no_grad():
        for parameter in engine.team.trainable_parameters("planner").values():
            parameter.mul_(-2)


def change_and_read_elsewhere(engine: LocalEngine) -> None:
    """The learner, say, has met the change first."""
    change_in_place(engine)
    engine.team.refresh()


@pytest.mark.parametrize("change", [publish, publish_a_version, change_in_place, change_and_read_elsewhere])
def test_no_keys_outlive_their_weights(change: Callable[[LocalEngine], None]) -> None:
    team = team_of(RANKS, std=0.05)
    engine, first = keeping(team), first_turn(1)
    [said] = ask(engine, first)
    change(engine)
    after = next_turn(first, said)
    seen, found = tokens_read(team, engine, after)
    assert seen[0] == len(after.prompt_ids)
    torch.testing.assert_close(flat(found), recomputed(team, [after], found), atol=STRANGE, rtol=0)


@pytest.mark.parametrize("slots", [2, 16])
def test_turns_that_a_swap_went_through_are_gone_on_from(slots: int) -> None:
    """Versions enter in the middle of turns and between them; each token's log-prob is its own version's."""
    team = team_of(RANKS, std=0.01)
    policies = {version: random_policy(team, version) for version in (1, 2, 3)}
    engine = keeping(team, slots)
    asked = mixed(8, WILD)
    for at in ({0: 1, 6: 2}, {3: 3}, {0: 1}, {}):
        publish_between_bursts(engine, policies, at)
        said = ask(engine, *asked)
        check_each_version(team, policies, asked, said)
        team.load_adapters(policies[engine.version])
        asked = [next_turn(one, other) for one, other in zip(asked, said, strict=True)]


def test_a_row_that_ends_as_the_weights_change_leaves_nothing(team: TeamModel) -> None:
    """It was read by the old ones, and is answered after the new ones have come."""
    own = team_of(RANKS, std=0.01)
    engine, first = keeping(own), first_turn(1, sampling=replace(WILD, max_tokens=3))
    publish_between_bursts(engine, {1: random_policy(own, 1)}, {2: 1})
    ask(engine, first)
    assert engine.version == 1
    assert len(engine.kept) == 0


def test_who_gives_up_leaves_nothing_and_others_go_on(team: TeamModel) -> None:
    engine = keeping(team, 2)
    firsts = [first_turn(i) for i in range(5)]

    async def play() -> list[Completion]:
        tasks = [asyncio.create_task(engine.generate(each)) for each in firsts]
        while not engine.live:
            await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[4].cancel()
        async with asyncio.timeout(20):
            return await asyncio.gather(*tasks[1:4])

    said = asyncio.run(play())
    assert len(engine.kept) == 3
    asked = [next_turn(one, other) for one, other in zip(firsts[1:4], said, strict=True)]
    for one, other in zip(ask(engine, *asked), ask(LocalEngine(team, 2), *asked), strict=True):
        same(one, other, STRANGE)


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_turns_that_there_is_no_room_for_are_read_again(team: TeamModel, keep: int) -> None:
    engine, asked = keeping(team, keep=keep), mixed(8, FREE)
    for turn, without in zip(talk(engine, asked, 3), talk(LocalEngine(team, 16), asked, 3), strict=True):
        for one, other in zip(turn, without, strict=True):
            same(one, other, STRANGE)
    assert len(engine.kept) == keep


def test_what_was_played_before_changes_not_a_bit(team: TeamModel) -> None:
    """With too little room for all: turns of an earlier play go first."""
    used = keeping(team, keep=5)
    talk(used, [replace(each, episode=object()) for each in mixed(9, WILD)], 3)
    assert len(used.kept) == 5
    asked = mixed(7, WILD)
    assert talk(used, asked) == talk(keeping(team, keep=5), asked)


def test_a_failure_leaves_nothing(team: TeamModel, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, first = keeping(team), first_turn(1)
    [said] = ask(engine, first)
    asked = next_turn(first, said)
    with monkeypatch.context() as patch:
        patch.setattr(team, "logits", lambda hidden: hidden[:, :0].max(1))
        with pytest.raises(IndexError):
            ask(engine, asked)
    seen, [found] = tokens_read(team, engine, asked)
    assert seen[0] == len(asked.prompt_ids)
    same(found, ask(LocalEngine(team, 1), asked)[0])


# --- the pool by itself -----------------------------------------------------------------------------------------------
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)
OWNERS: list[Owner] = [("a", 0), ("a", None), ("b", 0)]
ROOM = 12 * 4 * 2  # bytes of twelve tokens


def sides_of(ids: Sequence[int]) -> Sides:
    """Each token's number is its key."""
    return torch.tensor(ids, dtype=torch.int32), torch.tensor(ids, dtype=torch.int32)


class Pool(RuleBasedStateMachine):
    """Against a list of everything that is there, used last at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = KeptKeys(4)
        self.model: list[tuple[Owner, tuple[int, ...]]] = []

    def of(self, owner: Owner) -> Iterator[tuple[int, ...]]:
        return (ids for other, ids in self.model if other == owner)

    @rule(owner=st.sampled_from(OWNERS), ids=TOKENS)
    def keep(self, owner: Owner, ids: tuple[int, ...]) -> None:
        self.kept.keep(owner, ids, lambda: sides_of(ids), len(ids) * 8, ROOM)
        longer = [old for old in self.of(owner) if old[: len(ids)] == ids]
        self.model = [
            (other, old) for other, old in self.model if (other, old[: len(ids)]) == (owner, ids) or
            other != owner or ids[: len(old)] != old
        ]  # fmt: skip
        if longer:
            self.model.remove((owner, max(longer)))
            self.model.append((owner, max(longer)))
            return
        self.model.append((owner, ids))
        while len(self.model) > 4 or sum(len(old) * 8 for _, old in self.model) > ROOM:
            self.model.pop(0)

    @rule(owner=st.sampled_from(OWNERS), ids=TOKENS)
    def find(self, owner: Owner, ids: tuple[int, ...]) -> None:
        found = self.kept.find(owner, ids)
        lengths = [
            next((n for n in range(min(len(old), len(ids))) if old[n] != ids[n]), min(len(old), len(ids)))
            for old in self.of(owner)
        ]
        longest = min(max(lengths, default=0), len(ids) - 1)
        assert (0 if found is None else found.length) == longest
        if found is not None:
            assert found.sides[0][:longest].tolist() == list(ids[:longest])
            used = found.sides[0].tolist()
            self.model.remove((owner, tuple(used)))
            self.model.append((owner, tuple(used)))

    @rule(room=st.integers(0, ROOM))
    def shrink(self, room: int) -> None:
        self.kept.shrink(room)
        while self.model and sum(len(old) * 8 for _, old in self.model) > room:
            self.model.pop(0)

    @rule(policy=st.integers(0, 3))
    def change_policy(self, policy: int) -> None:
        if policy != self.kept.policy:
            self.model.clear()
        self.kept.change_policy(policy)

    @invariant()
    def is_the_model(self) -> None:
        assert len(self.kept) == len(self.model)
        assert self.kept.nbytes == sum(len(old) * 8 for _, old in self.model) <= ROOM


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=100, deadline=None)
