"""Episodes per second on a CPU against TRL's GRPOTrainer (one agent) and CoMLRL's MAGRPOTrainer (two agents).

    python benchmarks/speed/episodes.py --peers PYTHON      # of an environment with trl, comlrl, peft and torch

Everybody trains LoRA adapters of one rank on all linear layers of one model from the same prompts, with groups of the same
size, completions of the same number of tokens and the same number of optimizer steps. The model has random weights, nano's
tokenizer and an end of turn that is never drawn, so that every completion is as long as allowed. Each contender is its own
process with the same number of threads; they take turns, and a round's figure is that of its steps after the first. Ratios are
those of medians: of episodes a second, and of processor time an episode, which a busy machine disturbs less. Prints JSON; `--out FILE` also writes it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # benchmarks is a package of the repository's root

HERE = Path(__file__).parent
SIZES = {  # hidden, layers, heads, kv heads, feed-forward
    "nano": (128, 4, 4, 2, 384),
    "135m": (576, 30, 9, 3, 1536),
}
SPECIAL = 3  # the first tokens of nano's vocabulary mark padding and turns
EQUAL = (
    "model and its weights, fp32, prompts to the token, group size, tokens of every completion, episodes and "
    "optimizer steps, LoRA rank and layers, temperature 1 without truncation, no KL to a reference, no evaluation, "
    "threads and how they wait for one another"
)
UNEQUAL = {
    "trl": "its own GRPO loss; it generates and learns in one padded batch a step; its adapter is the only one of its "
    "model, and gradient checkpointing, on by default, is off",
    "comlrl": "policy gradient without a ratio; it generates prompt by prompt and learns sequence by sequence, as it "
    "always does; each agent has a model of its own, where marft's share one",
    "marft": "GRPO with the log-probs of sampling; attention of a drawn token as two products, of all else by SDPA, which the "
    "others have everywhere; metrics are written to a run's folder at every step",
}


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder / "model", options.size)
        pairs = {peer: measure(peer, folder, options) for peer in options.against}
    result = {
        "benchmark": "episodes",
        "settings": {key: value for key, value in vars(options).items() if key not in ("out", "peers")},
        "cpu": f"{os.cpu_count()} cores",
        "equal": EQUAL,
        "unequal": UNEQUAL,
        "against": pairs,
    }
    text = json.dumps(result, indent=2)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")
    print(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=sys.executable, help="the python of an environment with trl and comlrl")
    parser.add_argument("--against", nargs="+", choices=["trl", "comlrl"], default=["trl", "comlrl"])
    parser.add_argument("--size", choices=list(SIZES), default="nano")
    parser.add_argument("--prompts", type=int, default=16, help="of a step")
    parser.add_argument("--instructions", type=int, default=0, help="more words in every agent's system prompt")
    parser.add_argument("--group", type=int, default=8, help="episodes of a prompt")
    parser.add_argument("--tokens", type=int, default=32, help="of a completion")
    parser.add_argument("--steps", type=int, default=4, help="of the optimizer; the first is not counted")
    parser.add_argument("--rounds", type=int, default=3, help="of every contender")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    return parser.parse_args()


def write_model(folder: Path, size: str) -> None:
    """A random Llama. Its first dimension is the same for every token and untouched by the layers, and the head of the
    special tokens is far below zero there: they are never drawn."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from marft.models.loading import silence_transformers
    from marft.models.registry import NANO

    hidden, layers, heads, groups, ffn = SIZES[size]
    with silence_transformers():
        tokenizer = AutoTokenizer.from_pretrained(NANO)
        config = LlamaConfig(
            vocab_size=448, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
            num_key_value_heads=groups, intermediate_size=ffn, max_position_embeddings=1024, bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, tie_word_embeddings=False,
        )  # fmt: skip
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        with torch.no_grad():
            model.model.embed_tokens.weight[:, 0] = 1.0
            for layer in model.model.layers:
                layer.self_attn.o_proj.weight[0] = 0
                layer.mlp.down_proj.weight[0] = 0
            model.lm_head.weight[:SPECIAL, 0] = -1000.0
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def make_job(agents: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Tasks, and the prompts that marft makes of them for each agent."""
    from transformers import AutoTokenizer

    from benchmarks.speed.episode_work import told
    from marft.envs import make_env
    from marft.models.chat import fill_template
    from marft.types import Message

    tasks = make_env("arithmetic", {}).tasks("train")[: options.prompts * options.steps]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = [
        [
            fill_template(
                tokenizer, [Message(role="system", content=prompt), Message(role="user", content=task.prompt)]
            )
            for task in tasks
        ]
        for prompt in told(agents, options.instructions).values()
    ]
    return {
        "model": str(folder),
        "tasks": [task.prompt for task in tasks],
        "prompts": prompts,
        "prompt_tokens": statistics.mean(len(tokenizer.encode(text)) for texts in prompts for text in texts),
        "prompts_a_step": options.prompts,
        **{key: getattr(options, key) for key in ("instructions", "group", "tokens", "steps", "rank", "lr")},
    }


def measure(peer: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    agents = {"trl": 1, "comlrl": 2}[peer]
    path = folder / f"{peer}.json"
    job = make_job(agents, folder / "model", options)
    path.write_text(json.dumps(job))
    commands = {
        "marft": [sys.executable, str(HERE / "episode_work.py"), str(path)],
        peer: [options.peers, str(HERE / "episode_peers.py"), peer, str(path)],
    }
    rates: dict[str, list[float]] = {name: [] for name in commands}
    busy: dict[str, list[float]] = {name: [] for name in commands}  # processor's milliseconds an episode
    found: dict[str, Any] = {"agents": agents, "prompt_tokens": round(job["prompt_tokens"], 1)}
    for _ in range(options.rounds):
        for name, command in commands.items():
            done = run(command, options.threads)
            ends = done["ends"]
            assert len(ends) == options.steps, f"{name} made {len(ends)} optimizer steps, not {options.steps}"
            counted = options.prompts * options.group * (options.steps - 1)
            wall, processor = (last - first for first, last in zip(ends[0], ends[-1], strict=True))
            rates[name].append(counted / wall)
            busy[name].append(1000 * processor / counted)
            found[name] = {
                "tokens_per_completion": done["tokens"] / done["completions"],
                "completions": done["completions"],
                "packages": done["packages"],
            }
    for name in commands:
        found[name] |= {
            "episodes_per_second": round(statistics.median(rates[name]), 2),
            "runs": [round(rate, 2) for rate in rates[name]],
            "cpu_ms_per_episode": round(statistics.median(busy[name]), 2),
        }
    ours, theirs = found["marft"], found[peer]
    return {
        **found,
        "ratio": round(ours["episodes_per_second"] / theirs["episodes_per_second"], 2),
        "cpu_ratio": round(theirs["cpu_ms_per_episode"] / ours["cpu_ms_per_episode"], 2),
    }


def run(command: list[str], threads: int) -> dict[str, Any]:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "GOMP_SPINCOUNT": "5000",  # what marft's command line sets
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "disabled",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


if __name__ == "__main__":
    main()
