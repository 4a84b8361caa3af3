"""What `coordination.py` plays: a game in which two may not switch at once, and a language model of ten words to play it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import marft
from marft.envs.base import Split
from marft.game.play import Game
from marft.models.loading import silence_transformers

MARKS = ("<end>", "<system>", "<user>", "<assistant>")
WORDS = ("stay", "switch", "yes", "no", "left", "right")
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
PAYOFF = ((0.0, 1.0), (1.0, -2.0))


class Switch(marft.Environment[tuple[int, ...]]):
    """0 if both stay, 1 if one says "switch" first, −2 if both do. What else they say means nothing."""

    light = True

    def tasks(self, split: Split) -> Sequence[marft.Task]:
        return [marft.Task(id=f"{split}/{i}", prompt="") for i in range(128 if split == "test" else 1)]

    def reset(self, task: marft.Task) -> tuple[int, ...]:
        return ()

    def transition(self, state: tuple[int, ...], turn: marft.Turn) -> tuple[int, ...]:
        return (*state, int(turn.text.startswith("switch")))

    def reward(self, state: tuple[int, ...]) -> marft.Reward:
        one, other = state
        return marft.Reward(team=PAYOFF[one][other])


async def together(game: Game) -> None:
    """Nobody sees anybody."""
    await game.act(*game.team)


def write_model(folder: Path) -> None:
    """A random Llama of one layer. It thinks in one half of its hidden state, and its head listens to the other half, where
    it is silent: without an adapter every token is as likely as the other."""
    vocabulary = {word: i for i, word in enumerate((*MARKS, *WORDS))}
    spelled = Tokenizer(models.WordLevel(vocabulary, unk_token=MARKS[0]))
    # what it has no word for it does not read
    spelled.pre_tokenizer = pre_tokenizers.Split(Regex(rf"\b({'|'.join(WORDS)})\b"), behavior="removed", invert=True)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=spelled, eos_token=MARKS[0], extra_special_tokens=list(MARKS[1:]), chat_template=TEMPLATE
    )
    width = 16
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=2 * width, intermediate_size=width, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=0,
        pad_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                weight.normal_(std=1 if "embed" in name else width**-0.5)
        model.model.embed_tokens.weight[:, width:] = 0
        model.model.layers[0].self_attn.o_proj.weight[width:] = 0
        model.model.layers[0].mlp.down_proj.weight[width:] = 0
        model.lm_head.weight *= 2
        model.lm_head.weight[:, :width] = 0
    with silence_transformers():
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
