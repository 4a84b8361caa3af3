"""Work for `episodes.py` done by other trainers: TRL's GRPOTrainer and CoMLRL's MAGRPOTrainer. Needs them, and not marft.

python episode_peers.py trl|comlrl JOB.json: prints JSON, by the wall's clock and by the processor's when each optimizer step
ended.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any


def worth(text: str) -> float:
    """The reward of a text: cheap, the same everywhere, and different from sample to sample."""
    return len(set(text)) / 100


def load(job: dict[str, Any]) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32, attn_implementation="sdpa")
    return model, AutoTokenizer.from_pretrained(job["model"], padding_side="left")


def adapter(job: dict[str, Any]) -> Any:
    from peft import LoraConfig

    rank = job["rank"]
    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")


def trl(job: dict[str, Any]) -> dict[str, Any]:
    """Every step's episodes in one batch: one generation, one forward and backward, one optimizer step."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    ends: list[tuple[float, float]] = []
    made: list[int] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append((time.perf_counter(), time.process_time()))

    def reward(completions: Sequence[str], completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        made.extend(map(len, completion_ids))
        return [worth(text) for text in completions]

    model, tokenizer = load(job)
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,  # its default would compute every forward twice
            per_device_train_batch_size=job["prompts_a_step"] * job["group"],
            gradient_accumulation_steps=1,
            num_generations=job["group"],
            max_completion_length=job["tokens"],
            max_steps=job["steps"],
            learning_rate=job["lr"],
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            beta=0.0,
            num_iterations=1,
            report_to=[],
            save_strategy="no",
            logging_steps=job["steps"],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=settings,
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in job["prompts"][0]]),
            processing_class=tokenizer,
            peft_config=adapter(job),
            callbacks=[Clock()],
        )
        trainer.train()
    return {"ends": ends, "episodes": len(made), "completions": len(made), "tokens": sum(made)}


def comlrl(job: dict[str, Any]) -> dict[str, Any]:
    """Two models, each with its adapter. It generates prompt by prompt and learns sequence by sequence; gradients of a
    step's prompts add up to one optimizer step an agent."""
    from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer
    from datasets import Dataset
    from peft import get_peft_model

    ends: list[tuple[float, float]] = []
    made: list[int] = []

    class Timed(MAGRPOTrainer):  # type: ignore[misc]
        def _drain_ready_buffers(self, ready_agents: Any) -> None:
            super()._drain_ready_buffers(ready_agents)
            if ready_agents:
                ends.append((time.perf_counter(), time.process_time()))

        def _pack_completions_for_buffer(self, completions_data: Any) -> Any:
            made.extend(completions_data["response_lens"])
            return super()._pack_completions_for_buffer(completions_data)

    def reward(first: Sequence[str], second: Sequence[str]) -> list[float]:
        return [worth(one) + worth(other) for one, other in zip(first, second, strict=True)]

    prompts = list(zip(*job["prompts"], strict=True))
    agents, tokenizer = [], None
    for _ in job["prompts"]:
        model, tokenizer = load(job)
        agents.append(get_peft_model(model, adapter(job)))
    settings = MAGRPOConfig(
        num_train_epochs=1,
        agent_learning_rate=job["lr"],
        num_agents=len(agents),
        agent_devices="cpu",
        num_generations=job["group"],
        max_new_tokens=job["tokens"],
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        num_turns=1,
        eval_interval=0,
        rollout_buffer_size=job["prompts_a_step"],
        train_batch_size=job["prompts_a_step"],
    )
    trainer = Timed(
        agents=agents,
        num_agents=len(agents),
        tokenizer=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": one, "other": other} for one, other in prompts]),
        reward_func=reward,
        formatters=[lambda item: item["prompt"], lambda item: item["other"]],
        args=settings,
    )
    trainer.verbose = False
    trainer.train()
    return {"ends": ends, "episodes": len(made) // len(agents), "completions": len(made), "tokens": sum(made)}


def main(name: str, path: Path) -> None:
    job = json.loads(path.read_text())
    result = {"trl": trl, "comlrl": comlrl}[name](job)
    packages = {package: version(package) for package in (name, "torch", "transformers", "peft")}
    print("\n" + json.dumps({**result, "packages": packages}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
