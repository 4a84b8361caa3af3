from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from teams import fill_b, team_of

from marft.models.loading import load
from marft.models.peft_format import CONFIG, VALUE_HEAD, WEIGHTS, load_adapter, read_scaling, save_adapter
from marft.models.scoring import Span, hidden_states
from marft.models.team import TeamModel
from marft.types import MarftError

IDS = (1, 40, 41, 42, 43, 44, 45)


def make(rank: int = 4, **options: object) -> TeamModel:
    return team_of({"first": rank, "planner": rank, "critic": 3}, critics=["critic"], **options)  # type: ignore[arg-type]


def error_of(folder: Path, *, team: TeamModel | None = None, name: str = "planner") -> str:
    with pytest.raises(MarftError) as caught:
        load_adapter(team or make(), name, folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    return str(caught.value)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_adapter(make(), "planner", tmp_path / "planner")
    return tmp_path / "planner"


@pytest.fixture
def saved_critic(tmp_path: Path) -> Path:
    team = make()
    with torch.no_grad():
        team.value_heads["critic"].weight.normal_()
        team.value_heads["critic"].bias.fill_(0.25)
    save_adapter(team, "critic", tmp_path / "critic")
    return tmp_path / "critic"


@pytest.mark.parametrize("targets", ["all-linear", ("q_proj", "up_proj")])
def test_peft_loads_what_we_write(tmp_path: Path, targets: str | tuple[str, ...]) -> None:
    team = make(targets=targets)
    save_adapter(team, "planner", tmp_path)
    base = load("nano", "cpu", "float32").model
    ids = torch.tensor([IDS])
    alone = base(input_ids=ids).logits
    theirs = PeftModel.from_pretrained(base, tmp_path)(input_ids=ids).logits
    ours = team.logits(hidden_states(team, [Span(adapter="planner", ids=IDS, asked=len(IDS))]))
    assert (theirs - alone).abs().max() > 0.01
    torch.testing.assert_close(ours, theirs[0], atol=3e-5, rtol=0)  # logits reach 30


def test_a_round_trip_keeps_every_byte(saved: Path, tmp_path: Path) -> None:
    team = make()
    fill_b(team, 0.3, seed=9)
    load_adapter(team, "planner", saved)
    save_adapter(team, "planner", tmp_path / "again")
    for name in (WEIGHTS, CONFIG):
        assert (saved / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert not (saved / VALUE_HEAD).exists()


def test_the_config_says_on_which_base_and_how_it_scales(saved: Path) -> None:
    config = json.loads((saved / CONFIG).read_text())
    assert (config["base_model_name_or_path"], config["peft_type"]) == ("nano", "LORA")
    assert read_scaling(saved / CONFIG) == (9.0, 4)  # alpha, rank


def test_loading_changes_no_other_adapter(saved: Path) -> None:
    team = make()
    fill_b(team, 0.3, seed=9)
    before = {key: p.detach().clone() for key, p in team.trainable_parameters("critic").items()}
    planner = team.trainable_parameters("planner")
    load_adapter(team, "planner", saved)
    assert all(torch.equal(p, before[key]) for key, p in team.trainable_parameters("critic").items())
    assert all(p is planner[key] and p.requires_grad for key, p in team.trainable_parameters("planner").items())


def test_a_critic_keeps_its_value_head(saved_critic: Path, tmp_path: Path) -> None:
    team = make()
    load_adapter(team, "critic", saved_critic)
    hidden = torch.randn(5, 128)
    assert team.values("critic", hidden).abs().min() > 0
    save_adapter(team, "critic", tmp_path / "again")
    for name in (WEIGHTS, CONFIG, VALUE_HEAD):
        assert (saved_critic / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_another_rank_is_one_line(saved: Path) -> None:
    message = error_of(saved, team=make(rank=5))
    assert "lora.rank" in message
    assert "[4, 128] instead of [5, 128]" in message


def test_another_alpha_is_one_line(saved: Path) -> None:
    config = json.loads((saved / CONFIG).read_text())
    (saved / CONFIG).write_text(json.dumps({**config, "lora_alpha": 64}))
    assert "lora.alpha" in error_of(saved)


def test_other_targets_are_one_line(saved: Path) -> None:
    assert "lora.targets" in error_of(saved, team=make(targets=["q_proj"]))


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"spoilt"])
def test_a_missing_or_spoilt_file_is_one_line(saved: Path, name: str, content: bytes | None) -> None:
    if content is None:
        (saved / name).unlink()
    else:
        (saved / name).write_bytes(content)
    team = make()
    before = [p.detach().clone() for p in team.trainable_parameters("planner").values()]
    assert name in error_of(saved, team=team)
    assert all(torch.equal(a, b) for a, b in zip(before, team.trainable_parameters("planner").values(), strict=True))


def test_a_critic_without_its_value_head_is_one_line(saved_critic: Path) -> None:
    (saved_critic / VALUE_HEAD).unlink()
    team = make()
    fill_b(team, 0.3, seed=9)
    before = {key: p.detach().clone() for key, p in team.trainable_parameters("critic").items()}
    assert VALUE_HEAD in error_of(saved_critic, team=team, name="critic")
    assert all(
        torch.equal(p, before[key]) for key, p in team.trainable_parameters("critic").items()
    )  # nothing half done


@pytest.mark.parametrize("spoil", ["names", "shapes"])
def test_a_value_head_of_another_model_is_one_line(saved_critic: Path, spoil: str) -> None:
    head = load_file(saved_critic / VALUE_HEAD)
    other = {"weight": head["weight"]} if spoil == "names" else {**head, "weight": torch.zeros(1, 64)}
    save_file(other, saved_critic / VALUE_HEAD)
    assert VALUE_HEAD in error_of(saved_critic, name="critic")
