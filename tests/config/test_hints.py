"""What a newcomer writes, and what the one line says instead."""

from __future__ import annotations

import pytest
from mistakes import mistake, read

from marft.config import ALGORITHMS, load_config, recipes
from marft.config.hints import KEYS, NAMES, OTHER_KEYS, hint_for_recipe
from marft.config.schema_keys import NAME, kinds_at, schema_keys
from marft.types import MarftError


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("lr=1e-3", "did you mean 'optimizer.lr', 'critic.lr' or 'team.agents.NAME.lr'?"),
        ("LR=1e-3", "did you mean 'optimizer.lr', "),
        ("learning_rate=1e-3", "did you mean 'optimizer.lr'?"),
        ("optimizer.learning_rate=1e-3", "did you mean 'optimizer.lr'?"),
        ("train.learning-rate=1e-3", "did you mean 'optimizer.lr'?"),
        ("leraning_rate=1e-3", "did you mean 'optimizer.lr'?"),
        ("iterations=5", "did you mean 'train.iterations'?"),
        ("iteratoins=5", "did you mean 'train.iterations'?"),
        ("SEED=5", "did you mean 'seed'?"),
        ("batch_size=4", "here it is train.tasks × train.samples"),
        ("train.batch_size=4", "here it is train.tasks × train.samples"),
        ("epochs=3", "here it is train.iterations (how long) or train.epochs"),
        ("num_train_epochs=3", "here it is train.iterations (how long) or train.epochs"),
        ("max_tokens=9", "did you mean 'team.agents.NAME.max_tokens'?"),
        ("max_new_tokens=9", "did you mean 'team.agents.NAME.max_tokens'?"),
        ("max_length=9", "did you mean 'team.agents.NAME.max_tokens'?"),
        ("team.agents.a.max_new_tokens=9", "did you mean 'team.agents.a.max_tokens'?"),
        ("temperature=0.7", "did you mean 'team.agents.NAME.temperature' or 'eval.temperature'?"),
        ("tasks=3", "did you mean 'train.tasks' or 'eval.tasks'?"),
        ("lora_r=4", "did you mean 'lora.rank'?"),
        ("rank=4", "did you mean 'lora.rank' or 'team.agents.NAME.rank'?"),
        ("gpu=0", "here it is device=cuda"),
        ("bf16=true", "here it is dtype=bfloat16"),
        ("fp16=true", "here it is dtype=float16"),
        ("load_in_4bit=true", "here it is quantize=nf4"),
        ("load_in_8bit=true", "here it is quantize=int8"),
        ("quantization=nf4", "did you mean 'quantize'?"),
        ("agents.a.prompt=x", "did you mean 'team.agents'?"),
        ("a.prompt=x", "did you mean 'team.agents.a'?"),
        ("team.a.prompt=x", "did you mean 'team.agents.a'?"),
        ("workflow=debate", "did you mean 'team.workflow'?"),
        ("output_dir=x", "here it is --run DIR"),
        ("algorithm.std_floor=1", "it is for grpo and gspo"),
        ("credit.beta=1", "credit.name is missing"),
    ],
)
def test_a_key_of_another_place_or_framework(override: str, hint: str) -> None:
    assert hint in mistake(override)


def test_every_key_that_the_table_names_exists() -> None:
    paths = {str(key) for key in schema_keys()}
    settings = {"env.data", "env.level", "env.reward"}  # of environments
    for ours in KEYS:
        for word in ours.replace("=", " ").replace("(", " ").replace(")", " ").replace(",", " ").split():
            assert "." not in word or word.strip(".") in paths | settings, ours
    assert len(OTHER_KEYS) == sum(len(others.split()) for others in KEYS.values())  # no name stands twice
    top = {key.path[0] for key in schema_keys()}
    assert not top & {other for other in OTHER_KEYS if "_" not in other} - {"env"}


@pytest.mark.parametrize("key", [key for key in schema_keys() if len(key.path) > 1], ids=str)
def test_the_last_name_of_any_key_leads_to_it(key: object) -> None:
    """Given alone, at the top: the line names the full path, or what the table knows better."""
    word = str(key).rpartition(".")[2]
    if word in {str(each) for each in schema_keys()}:  # a key at the top as well
        return
    line = mistake(f"{word}=1")
    assert str(key) in line or OTHER_KEYS.get(word, "?") in line or line.count("'") == 8  # three of more


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("algorithm=ppo", "our two forms of PPO are marft-token (a ratio a token) and marft-action (a ratio a turn)"),
        ("algorithm=PPO", "our two forms of PPO are marft-token"),
        ("algorithm=GRPO", "did you mean 'grpo'?"),
        ("algorithm=MARFT-TOKEN", "did you mean 'marft-token'?"),
        ("algorithm=marft_token", "did you mean 'marft-token'?"),
        ("algorithm=a2c", "train.epochs=1"),
        ("algorithm=reinforce", "reinforce++"),
        ("algorithm=mappo", "critic=shared"),
        ("algorithm=happo", "schedule=sequential"),
        ("algorithm=trpo", "say marft-token or marft-action"),
        ("credit=Tree", "did you mean 'tree'?"),
        ("credit=coma", "say difference"),
        ("schedule=happo", "say sequential"),
        ("schedule=Joint", "did you mean 'joint'?"),
        ("critic=SHARED", "did you mean 'shared'?"),
        ("dtype=bf16", "say bfloat16"),
        ("dtype=fp16", "say float16"),
        ("dtype=nf4", "say quantize=nf4"),
        ("quantize=int4", "say nf4"),
        ("dtype=BFloat16", "did you mean 'bfloat16'?"),
        ("engine=vLLM", "did you mean 'vllm'?"),
        ("optimizer.decay=cosine", "say linear"),
        ("team.workflow=Debate", "did you mean 'debate'?"),
        ("team.agents.a.sees=[B]", "did you mean 'b'?"),
        ("team.agents.bb.temperature=0.5", "did you mean 'team.agents.b'?"),
    ],
)
def test_a_name_that_is_another_frameworks_or_in_capitals(override: str, hint: str) -> None:
    assert hint in mistake(override)


def test_what_a_hint_says_works() -> None:
    assert kinds_at(["team", "agents", NAME, "max_tokens"]) == [int]
    assert read(["algorithm=marft-token", "schedule=sequential"]).schedule.mode == "sequential"
    assert read(["algorithm=marft-token", "train.epochs=1", "train.minibatches=1"]).train.epochs == 1
    assert read(["algorithm=grpo", "algorithm.clip_high=0.28", "algorithm.aggregation=token"])
    assert read(["algorithm=marft-token", "critic=per_agent"]).critics == "per_agent"
    assert not set(NAMES["algorithm"]) & set(ALGORITHMS)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("Duo", "did you mean 'duo'?"),
        ("gsm8k", "did you mean 'gsm8k-duo-action', 'gsm8k-duo-token' or 'gsm8k-single-action'?"),
        ("GSM8K-Duo-Token", "did you mean 'gsm8k-duo-token'?"),
        ("grpo", "did you mean 'algorithm=grpo'?"),
        ("sequential", "did you mean 'team.workflow=sequential'?"),
        ("train.tasks", "a setting is written key=value"),
        ("duoo", "did you mean 'duo'?"),
    ],
)
def test_a_word_that_is_no_recipe(word: str, hint: str) -> None:
    assert hint in hint_for_recipe(word, recipes())
    with pytest.raises(MarftError, match="unknown recipe"):
        load_config(word)
