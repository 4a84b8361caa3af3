"""What docs/performance.md says of aims that were missed and comparisons that are missing, from the recorded results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]
FOUR_OVER_NONE = 0.75  # speed with four adapters, of that with none
EPISODES = 5.0  # episodes a second, over a peer's
WHY = {
    "trl": " Both sides keep the processor busy and compute in large batches; marft's lead grows with the prompts that "
    "sequences share, which it computes once, and short prompts leave little to share."
}
NO_VLLM = "vLLM has not been compared on a GPU yet."
NO_ITERATION = "No whole iteration has been recorded on a GPU yet."


def shortfalls(found: Mapping[str, Sequence[Result]]) -> str:
    """The results of each benchmark → a paragraph for each thing."""
    said = [
        *map(adapters, found["generation"]),
        "" if any(on_gpu(each) and has_vllm(each) for each in found["generation"]) else NO_VLLM,
        "" if any(map(on_gpu, found["iteration"])) else NO_ITERATION,
        *(episodes(peer, found["episodes"]) for peer in ("trl", "comlrl")),
    ]
    return "\n\n".join(filter(None, said)) or "Nothing that is known."


def on_gpu(result: Result) -> bool:
    return "CPU" not in result["machine"]["device"]


def has_vllm(result: Result) -> bool:
    return any("vllm" in row for row in result["adapters"].values())


def adapters(result: Result) -> str:
    share = result["four_over_none"]
    if share is None or share >= FOUR_OVER_NONE:
        return ""
    four, none = (result["adapters"][count]["marft"] for count in ("4", "0"))
    given = result["settings"]
    rows = min(given["prompts"], given["slots"])
    return (
        f"Generation with four adapters on `{given['model']}` has {share} of the speed without, {FOUR_OVER_NONE} was aimed "
        f"at: runs of {listed(four['runs'])} tokens/s against {listed(none['runs'])}. Without adapters {rows} rows go "
        f"through a step in {1000 * rows / none['tokens_per_second']:.1f} ms, prompts and all, and LoRA's further kernels "
        "and wider products weigh on so short a time."
    )


def episodes(peer: str, results: Sequence[Result]) -> str:
    pairs = sorted(
        (result["against"][peer] for result in results if peer in result["against"]), key=lambda one: one["ratio"]
    )
    missed = [one for one in pairs if one["ratio"] < EPISODES]
    if not missed:
        return ""
    cases = listed(
        [
            f"{one['ratio']}× with prompts of {one['prompt_tokens']:.0f} tokens ({one['cpu_ratio']}× in processor time)"
            for one in missed
        ]
    )
    return f"Against {peer} {EPISODES:g}× the episodes a second was aimed at; it is {cases}.{WHY.get(peer, '')}"


def listed(things: Sequence[Any]) -> str:
    words = [f"{thing:,}" if isinstance(thing, int) else str(thing) for thing in things]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
