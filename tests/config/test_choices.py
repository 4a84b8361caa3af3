"""Every algorithm and every credit that a config can name becomes the thing it names, with its settings; also the user's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from experience import Experience
from mistakes import DUO, mistake, read
from quick import config_of, start
from toys import rows

from marft.algorithms.base import Algorithm
from marft.config import ALGORITHMS, CREDITS, Config, merge, parse, parse_yaml, to_yaml
from marft.config.choices import BASES, classes
from marft.import_paths import look_up
from marft.rollouts.credit import Credit
from marft.types import Completion, Episode, Reward, Task, Turn

CLIPPED = {"clip_low": 0.11, "clip_high": 0.33, "dual_clip": 2.5}
GAE = {**CLIPPED, "lam": 0.44, "whiten": False}
GIVEN: dict[str, dict[str, Any]] = {
    "marft-token": {**GAE, "aggregation": "agent", "token_gamma": 0.55, "token_lam": 0.66},
    "marft-action": {**GAE, "aggregation": "agent", "normalise": "word"},
    "grpo": {**CLIPPED, "aggregation": "token", "std_floor": 0.77},
    "dr_grpo": {**CLIPPED, "aggregation": "agent"},
    "rloo": {**CLIPPED, "aggregation": "token"},
    "gspo": {**CLIPPED, "aggregation": "agent", "std_floor": 0.77},
    "reinforce++": {**CLIPPED, "aggregation": "agent"},
    "rae": {**CLIPPED, "aggregation": "token", "decay": 0.88},
}
KINDS = {
    "marft-token": "MarftToken", "marft-action": "MarftAction", "grpo": "Grpo", "dr_grpo": "DrGrpo", "rloo": "Rloo",
    "gspo": "Gspo", "reinforce++": "ReinforcePP", "rae": "Rae",
}  # fmt: skip


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_made_with_its_settings(name: str) -> None:
    made: Any = config_of(algorithm={"name": name, **GIVEN[name]}).algorithm
    assert type(made).__name__ == KINDS[name]
    assert isinstance(made, Algorithm)
    assert made.model_dump(exclude_unset=True) == {"name": name, **GIVEN[name]}
    assert {key: getattr(made, key) for key in GIVEN[name]} == GIVEN[name]
    if name == "gspo":
        assert made.normalised_by == "token"
    if name == "marft-action":
        assert made.normalised_by == "word"
    assert made.values_at == {"marft-token": "token", "marft-action": "turn"}.get(name)


# a turn each, worth 1 and 2 in itself, and 4 to the team; played on, they were worth ¼ and ½
EPISODE = Episode(
    task=Task(id="t", prompt=""),
    sample=0,
    turns=tuple(
        Turn(
            agent=name, index=k, nth=0, shown="", observation=(), prompt_ids=(),
            completion=Completion(text="", token_ids=(5,), logprobs=(0.0,), finish="stop", version=0),
        )
        for k, name in enumerate("ab")
    ),
    reward=Reward(team=4.0, turns={0: 1.0, 1: 2.0}),
    credits=(0.25, 0.5),
)  # fmt: skip
STREAMS: dict[str, tuple[dict[str, Any], tuple[float, ...], float]] = {
    "equal": ({}, (0, 4), 1),
    "step_discounted": ({"beta": 0.5}, (0, 4), 0.5),
    "per_step": ({"gamma": 0.25}, (1, 6), 0.25),
    "per_player": ({"gamma": 0.25}, (5, 6), 0.25),
    "difference": ({}, (0.25, 0.5), 0),
    "tree": ({}, (0.25, 0.5), 0),
}


@pytest.mark.parametrize("name", CREDITS)
def test_every_credit_is_made_with_its_settings(name: str) -> None:
    settings, rewards, gamma = STREAMS[name]
    credit = config_of(credit={"name": name, **settings}).credit
    assert isinstance(credit, Credit)
    stream = credit.assign(EPISODE)
    assert (stream.rewards, stream.discounts) == (rewards, (gamma, gamma))


@pytest.mark.parametrize("key", ["algorithm", "credit"])
def test_a_table_holds_classes_that_know_their_names(key: str) -> None:
    for name, found in classes(key).items():
        assert found.model_fields["name"].default == name
        assert issubclass(found, look_up(BASES[key]))


# --- the user's own ---------------------------------------------------------------------------------------------------
OWN = """
from typing import Annotated, Literal

from pydantic import Field

from marft.algorithms.base import Algorithm
from marft.algorithms.credit import RewardStream
from marft.rollouts.credit import Credit


class Scaled(Algorithm):
    \"\"\"Scores, times a factor.\"\"\"

    factor: Annotated[float, Field(gt=0, le=10)] = 1.0
    sign: Literal["plus", "minus"] = "plus"

    def estimate(self, batch, scores):
        from marft.algorithms.batch import Estimate

        factor = self.factor if self.sign == "plus" else -self.factor
        return Estimate(advantages_N=factor * batch.returns_to_go(scores.penalty_N)[batch.turn_N])


class LastWord(Credit):
    \"\"\"The last turn alone earns, times a share.\"\"\"

    share: Annotated[float, Field(ge=0, le=1)] = 1.0

    @property
    def chained(self):
        return False

    def assign(self, episode):
        rewards = [0.0] * (len(episode.turns) - 1) + [self.share * episode.reward.team]
        return RewardStream(rewards=tuple(rewards), discounts=(0.0,) * len(rewards))


class Unfinished(Algorithm):
    pass


class Unfinished2(Credit):
    pass


class Stranger:
    pass


def function():
    pass
"""
SCALED = {"name": "somebodys_own:Scaled", "factor": 2.5, "sign": "minus", "clip_low": 0.1, "entropy": 0.01}
LAST_WORD = {"name": "somebodys_own:LastWord", "share": 0.5}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module in a folder that is not part of the package."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "somebodys_own.py").write_text(OWN)
    monkeypatch.syspath_prepend(folder)
    yield
    sys.modules.pop("somebodys_own", None)


def own_config(**changes: Any) -> Config:
    return config_of(**{"algorithm": SCALED, "credit": LAST_WORD, **changes})


@pytest.mark.usefixtures("own")
def test_a_class_of_the_user_s_is_made_with_its_settings() -> None:
    config = own_config()
    algorithm, credit = config.algorithm, config.credit
    assert (type(algorithm).__name__, type(credit).__name__) == ("Scaled", "LastWord")
    assert algorithm.model_dump(exclude_unset=True) == SCALED
    assert credit.model_dump(exclude_unset=True) == LAST_WORD
    assert (algorithm.clip_high, algorithm.trust_region, algorithm.values_at) == (0.2, 0.5, None)  # as of any other
    assert isinstance(algorithm, Algorithm)
    assert isinstance(credit, Credit)
    assert (credit.assign(EPISODE).rewards, credit.assign(EPISODE).discounts) == ((0.0, 2.0), (0.0, 0.0))
    one = Experience(
        episode_K=torch.tensor([0]), agent_K=torch.tensor([0]), group_K=torch.tensor([0]), task_K=torch.tensor([0]),
        play_K=torch.tensor([0]), length_K=torch.tensor([2]), reward_K=torch.tensor([3.0]), discount_K=torch.ones(1),
        final_E=torch.zeros(1), values=None,
    )  # fmt: skip
    assert algorithm.estimate(one.batch, one.scores).advantages_N.tolist() == [-7.5, -7.5]


@pytest.mark.usefixtures("own")
def test_it_is_the_same_after_it_was_written_down() -> None:
    config = own_config()
    again = parse(parse_yaml(to_yaml(config), "a file"))
    assert again == config
    assert (type(again.algorithm), type(again.credit)) == (type(config.algorithm), type(config.credit))
    assert again.algorithm.model_dump() == config.algorithm.model_dump()
    assert again.credit.model_dump() == config.credit.model_dump()


@pytest.mark.usefixtures("own")
def test_overrides_reach_its_settings() -> None:
    words = [
        "algorithm=somebodys_own:Scaled",
        "algorithm.factor=4",
        "credit=somebodys_own:LastWord",
        "credit.share=0.25",
    ]
    config: Any = read(words, {**DUO, "algorithm": {"name": "marft-token", "lam": 0.5, "clip_low": 0.3}})
    assert (config.algorithm.factor, config.algorithm.clip_low, config.credit.share) == (4.0, 0.3, 0.25)
    assert not hasattr(config.algorithm, "lam")  # what the new one does not know is dropped


@pytest.mark.usefixtures("own")
def test_a_run_learns_with_them(tmp_path: Path) -> None:
    run = start(tmp_path / "run", algorithm=SCALED, credit=LAST_WORD, train={"iterations": 1})
    for row in rows(run / "episodes.jsonl"):
        *_, last = row["turns"]
        assert last["reward"] == pytest.approx(0.5 * row["reward"])
        assert last["advantages"] == pytest.approx([-2.5 * 0.5 * row["reward"]] * len(last["token_ids"]))
        assert all(set(turn["advantages"]) == {0.0} for turn in row["turns"][:-1])


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["algorithm=nowhere_at_all:Mine"], "algorithm.name: cannot import 'nowhere_at_all:Mine': No module named"),
        (["credit=nowhere_at_all:Mine"], "credit.name: cannot import 'nowhere_at_all:Mine': No module named"),
        (["algorithm=somebodys_own:Mine"], "algorithm.name: cannot import 'somebodys_own:Mine': module"),
        (['algorithm="somebodys_own:"'], "algorithm.name: cannot import 'somebodys_own:'"),
        (
            ["algorithm=somebodys_own:Stranger"],
            "algorithm.name: 'somebodys_own:Stranger' is no class derived from marft.algorithms.base:Algorithm",
        ),
        (["algorithm=somebodys_own:function"], "'somebodys_own:function' is no class derived from"),
        (["algorithm=somebodys_own:LastWord"], "is no class derived from marft.algorithms.base:Algorithm"),
        (["algorithm=marft.config:AlgorithmConfig"], "is no class derived from marft.algorithms.base:Algorithm"),
        (
            ["credit=somebodys_own:Scaled"],
            "credit.name: 'somebodys_own:Scaled' is no class derived from marft.rollouts.credit:Credit",
        ),
        (["algorithm=somebodys_own:Unfinished"], "algorithm.name: 'somebodys_own:Unfinished' lacks estimate"),
        (["credit=somebodys_own:Unfinished2"], "credit.name: 'somebodys_own:Unfinished2' lacks assign"),
        (
            ["algorithm=somebodys_own:Scaled", "algorithm.facter=1"],
            "unknown key 'algorithm.facter'; did you mean 'algorithm.factor'?",
        ),
        (
            ["algorithm=somebodys_own:Scaled", "algorithm.std_floor=0.1"],
            "unknown key 'algorithm.std_floor'",
        ),
        (["credit=somebodys_own:LastWord", "credit.shape=1"], "unknown key 'credit.shape'"),
        (["algorithm=somebodys_own:Scaled", "algorithm.factor=11"], "algorithm.factor: input should be less than or equal to 10"),
        (["algorithm=somebodys_own:Scaled", "algorithm.factor=much"], "algorithm.factor: input should be a valid number"),
        (["algorithm=somebodys_own:Scaled", "algorithm.sign=times"], "algorithm.sign: 'times' is none of plus, minus"),
        (["algorithm=somebodys_own:Scaled", "algorithm.clip_low=2"], "algorithm.clip_low: input should be less than 1"),
        (["credit=somebodys_own:LastWord", "credit.share=-1"], "credit.share: input should be greater than or equal to 0"),
    ],
)  # fmt: skip
def test_a_mistake_with_one_s_own_class_is_one_line(words: list[str], expected: str) -> None:
    assert expected in mistake(*words, base={**DUO, "algorithm": "rae"})


def test_what_is_derived_from_a_built_in_one_has_its_settings_and_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "derived.py").write_text(
        "from marft.algorithms.grpo import Grpo\nfrom marft.rollouts.credit import PerStep\n"
        "class Mine(Grpo):\n    tau: float = 1.0\n\n\nclass Own(PerStep):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    algorithm, credit = {"name": "derived:Mine", "std_floor": 0.5, "tau": 2.0}, {"name": "derived:Own", "gamma": 0.5}
    found = config_of(algorithm=algorithm, credit=credit)
    assert {key: found.model_dump()["algorithm"][key] for key in algorithm} == algorithm
    assert found.model_dump()["credit"] == credit
    assert parse(found.model_dump(mode="json")) == found


def test_another_engine_leaves_the_options_of_ones_own_behind() -> None:
    below = {"engine": {"name": "mine:E", "options": {"x": 1}, "slots": 7}}
    assert merge(below, ["engine.name=local"])["engine"] == {"name": "local", "slots": 7}
