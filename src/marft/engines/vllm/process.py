"""vLLM in this process, stepped by whoever waits for it: no second process, no thread."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

from marft.engines.vllm.adapter_versions import AdapterVersion
from marft.engines.vllm.engine import SampledTokens
from marft.models.registry import resolve
from marft.models.team import TeamModel
from marft.types import MarftError, Request

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM can make room for
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # another process would import the user's script a second time
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
# vLLM's process groups are the whole process's, so one engine at most lives in it. Runs of a comparison come one after the
# other; the engine of the last would keep its memory, because vLLM's import leaves traces that hold whatever called it.
RUNNING: list[Any] = []


class Process:
    """The backend in this process. Its adapters have a slot each, and the base alone has one too."""

    def __init__(self, team: TeamModel, *, slots: int, memory: float, settled: Callable[[], Awaitable[None]]) -> None:
        self.longest = team.longest
        self.settled = settled
        self.ends = sorted(team.end_ids)
        self.engine = start_engine(team, slots=slots, memory=memory)
        self.asked: dict[str, asyncio.Future[SampledTokens]] = {}
        self.ids = map(str, count())
        self.driver: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Shuts vLLM down, which fails whoever still waits for it."""
        if self.engine in RUNNING:
            RUNNING.remove(self.engine)
            self.engine.engine_core.shutdown()
        waiting, self.asked = self.asked, {}
        for asked in waiting.values():
            if not asked.done():
                asked.set_exception(RuntimeError("the engine is closed"))

    async def load(self, adapter_version: AdapterVersion) -> None:
        """Have vLLM read the adapter into one of its slots."""
        self.engine.add_lora(lora_request(adapter_version))

    async def drop(self, adapter_version: AdapterVersion) -> None:
        """Free the adapter's slot."""
        self.engine.remove_lora(adapter_version.number)

    async def complete(self, request: Request, adapter_version: AdapterVersion | None, limit: int) -> SampledTokens:
        """Add the request to vLLM's batch and wait for its output."""
        asked: asyncio.Future[SampledTokens] = asyncio.get_running_loop().create_future()
        name = next(self.ids)
        [prompt] = self.engine.renderer.render_cmpl([{"prompt_token_ids": list(request.prompt_ids)}])
        adapter = None if adapter_version is None else lora_request(adapter_version)
        self.engine.add_request(name, prompt, self._params(request, limit), lora_request=adapter)
        self.asked[name] = asked
        if self.driver is None or self.driver.done():
            self.driver = asyncio.create_task(self._drive())
        try:
            return await asked
        finally:
            if self.asked.pop(name, None) is not None:  # whoever asked has gone
                self.engine.abort_request([name])

    async def _drive(self) -> None:
        """One step after another, as long as somebody waits. Before each, what callers expect from elsewhere must have
        come, so that who is in a batch does not depend on anybody's speed."""
        try:
            while self.asked:
                await asyncio.sleep(0)  # let those who were answered ask again, so that they enter together
                await self.settled()
                for answer in self.engine.step():
                    asked = self.asked.pop(answer.request_id, None)
                    if asked is not None and not asked.done():
                        asked.set_result(read_output(answer.outputs[0]))
        except BaseException as error:
            waiting, self.asked = self.asked, {}
            self.engine.abort_request(list(waiting))
            for asked in waiting.values():
                if not asked.done():
                    asked.set_exception(error)
            if not isinstance(error, Exception):  # an exception has reached those who wait
                raise

    def _params(self, request: Request, limit: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = request.sampling
        return SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            max_tokens=limit,
            seed=request.seed,
            stop=list(sampling.stop),
            stop_token_ids=self.ends,
            ignore_eos=True,  # a turn ends at the tokens above, whatever vLLM takes for the end
            logprobs=0,  # of the drawn tokens alone
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


def start_engine(team: TeamModel, *, slots: int, memory: float) -> Any:
    """vLLM's engine on the team's base model; one that runs already is shut down."""
    device = team.device
    if device.type == "mps":
        raise MarftError("engine.name: vLLM does not run on Apple's GPU: use engine.name=local, or device=cpu")
    if device.type == "cuda" and device.index:
        raise MarftError(
            f"engine.name: vLLM in this process takes the first GPU; say CUDA_VISIBLE_DEVICES={device.index} and device=cuda"
        )
    while RUNNING:
        RUNNING.pop().engine_core.shutdown()
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    if device.type == "cpu":
        import torch

        os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))  # else it takes all but one from us
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        from vllm import EngineArgs, LLMEngine

        try:
            RUNNING.append(
                LLMEngine.from_engine_args(
                    EngineArgs(
                        model=model_folder(team.name),
                        dtype=str(team.dtype).removeprefix("torch."),
                        max_model_len=team.longest,
                        max_num_seqs=slots,
                        gpu_memory_utilization=memory,
                        enable_prefix_caching=True,
                        logprobs_mode="processed_logprobs",  # of the distribution that was drawn from
                        disable_log_stats=True,
                        use_tqdm_on_load=False,
                        **lora_options(team),
                    )
                )
            )
        except (ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise MarftError(f"vLLM did not start with engine.memory={memory:g}: {reason}") from error
    return RUNNING[-1]


def lora_options(team: TeamModel) -> dict[str, Any]:
    """Slots for the adapters, and one more for the base alone."""
    room: dict[str, Any] = {}
    if team.agents:
        ranks = [team.lora.specs[name].rank for name in team.agents]
        room = {"enable_lora": True, "max_loras": len(ranks) + 1, "max_lora_rank": padded_rank(max(ranks))}
    if team.device.type == "cpu":  # a seeded request whose prompt is read in two parts fails there
        room |= {"enable_chunked_prefill": False, "max_num_batched_tokens": max(2048, team.longest)}
    return room


def model_folder(model: str) -> str:
    """Where the base was read from, so that vLLM reads the very same files, with or without a connection."""
    source = resolve(model)
    if Path(source).is_dir():
        return source
    from huggingface_hub import snapshot_download

    return str(snapshot_download(source, local_files_only=True))


def padded_rank(rank: int) -> int:
    """The smallest of vLLM's ranks that is enough."""
    fitting = [room for room in RANKS if room >= rank]
    if not fitting:
        raise MarftError(
            f"lora.rank: vLLM has no adapters of rank {rank}; use {RANKS[-1]} at most, or engine.name=local"
        )
    return fitting[0]


def lora_request(adapter_version: AdapterVersion) -> Any:
    """vLLM's name for an adapter version."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(
        lora_name=adapter_version.name, lora_int_id=adapter_version.number, lora_path=str(adapter_version.folder)
    )


def read_output(output: Any) -> SampledTokens:
    """The sampled tokens of a finished request."""
    ids = tuple(int(token) for token in output.token_ids)
    return SampledTokens(
        token_ids=ids,
        logprobs=tuple(float(found[token].logprob) for token, found in zip(ids, output.logprobs, strict=True)),
        stop=output.stop_reason if isinstance(output.stop_reason, str) else None,
    )
