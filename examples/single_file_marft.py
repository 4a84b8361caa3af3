"""MARFT in one file: a planner and a solver, two LoRA adapters on one small model, learn chained arithmetic together.

    python examples/single_file_marft.py --iterations 6

(On a busy machine say OMP_NUM_THREADS=1 in front: threads that wait for each other cost more than they bring.)

Needs torch and transformers only. Token-level MARFT (arXiv 2504.16129): every episode is one chain of tokens through
both agents; a central critic (a third adapter and a value head) says what each state is worth; advantages flow
backwards from the reward through the solver's tokens into the planner's; each adapter makes its own clipped PPO step.
Axis letters: N tokens of some turns end to end, D hidden width, V vocabulary.
"""

from __future__ import annotations

import argparse
import math
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer


@dataclass
class Args:
    model: str = "src/marft/models/nano"  # a folder or a name on the Hugging Face hub
    seed: int = 0
    iterations: int = 20
    tasks: int = 32  # per iteration
    samples: int = 4  # episodes per task
    level: int = 2  # a chain has level + 1 operations
    rank: int = 8
    alpha: float = 16.0
    lr: float = 3e-3
    grad_clip: float = 1.0
    epochs: int = 1
    minibatches: int = 4  # optimizer steps per epoch
    temperature: float = 1.0
    gamma: float = 1.0  # from turn to turn
    lam: float = 0.95
    token_gamma: float = 1.0  # inside a turn: a token is no step of the world
    token_lam: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.2


@dataclass(frozen=True)
class Profile:
    prompt: str
    max_tokens: int


AGENTS = {  # in order of play; each sees the task and what those before it said
    "planner": Profile("You are the planner. List the steps.", 24),
    "solver": Profile('You are the solver. Follow the plan and end with "Answer: N".', 48),
}
CRITIC = "critic"


# --- the game ---------------------------------------------------------------------------------------------------------
@dataclass
class Turn:
    agent: str
    prompt: list[int]  # what the agent saw
    state: list[int]  # what the critic sees: the task, all earlier turns, and whose turn it is
    action: list[int]  # what the agent said, its end-of-turn token included
    logprobs: list[float]  # of the action's tokens, when they were drawn
    text: str


@dataclass
class Episode:
    task: str
    answer: int
    turns: list[Turn] = field(default_factory=list)
    reward: float = 0.0


def draw_task(rng: random.Random, operations: int) -> Episode:
    """ "Start with 17. Add 5. Multiply by 3." → 66; every intermediate result lies in 0…99."""
    value = rng.randint(2, 60)
    parts = [f"Start with {value}."]
    for _ in range(operations):
        possible = {"Add": value < 99, "Subtract": value > 0, "Multiply by": 0 < value < 50}
        verb = rng.choice([verb for verb, allowed in possible.items() if allowed])
        if verb == "Add":
            value += (operand := rng.randint(1, min(40, 99 - value)))
        elif verb == "Subtract":
            value -= (operand := rng.randint(1, min(40, value)))
        else:
            value *= (operand := rng.randint(2, min(9, 99 // value)))
        parts.append(f"{verb} {operand}.")
    return Episode(" ".join(parts), value)


def reward(episode: Episode) -> float:
    """1 when the last message holds exactly one "Answer: N" and N is right."""
    answers = re.findall(r"Answer:\s*(-?\d{1,9})(?!\d)", episode.turns[-1].text)
    return float(len(answers) == 1 and int(answers[0]) == episode.answer)


def chat(tokenizer: Any, system: str, episode: Episode) -> list[int]:
    """The prompt that asks for the next turn: a system text, then the task and what was said so far."""
    said = [episode.task, *(f"{turn.agent}: {turn.text}" for turn in episode.turns)]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "\n\n".join(said)}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer.encode(text, add_special_tokens=False))


def play(team: Team, episodes: Sequence[Episode], temperature: float) -> None:
    """All episodes at once, agent after agent."""
    for agent, profile in AGENTS.items():
        prompts = [chat(team.tokenizer, profile.prompt, episode) for episode in episodes]
        critic_prompt = f"Judge how likely the team is to succeed. Next: {agent}."
        states = [chat(team.tokenizer, critic_prompt, episode) for episode in episodes]
        drawn = sample(team, agent, prompts, profile.max_tokens, temperature)
        for episode, prompt, state, (action, logprobs) in zip(episodes, prompts, states, drawn, strict=True):
            text = team.tokenizer.decode(action[:-1] if action[-1] == team.end else action, skip_special_tokens=True)
            episode.turns.append(Turn(agent, prompt, state, action, logprobs, text))
    for episode in episodes:
        episode.reward = reward(episode)


# --- the team: one frozen model, an adapter for each agent and for the critic -----------------------------------------
class LoraLinear(nn.Module):
    """y = W x + (α/r) · B A x with the adapter that is switched on; none: the base alone."""

    def __init__(self, base: nn.Linear, adapters: Sequence[str], rank: int, alpha: float) -> None:
        super().__init__()
        self.base, self.scaling, self.active = base, alpha / rank, ""
        self.a = nn.ParameterDict({name: nn.Parameter(torch.empty(rank, base.in_features)) for name in adapters})
        self.b = nn.ParameterDict({name: nn.Parameter(torch.zeros(base.out_features, rank)) for name in adapters})
        for a in self.a.values():
            nn.init.kaiming_uniform_(a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x)
        return y + self.scaling * (x @ self.a[self.active].T @ self.b[self.active].T) if self.active else y


class Team:
    def __init__(self, args: Args) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(args.model)
        self.model: Any = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
        self.model.requires_grad_(False).eval()
        self.end = self.tokenizer.eos_token_id  # chat models end a turn with it
        self.head = self.model.get_output_embeddings()
        self.layers: dict[str, LoraLinear] = {}
        for name, module in list(self.model.named_modules()):
            if isinstance(module, nn.Linear) and module is not self.head:
                self.layers[name] = LoraLinear(module, [*AGENTS, CRITIC], args.rank, args.alpha)
                self.model.set_submodule(name, self.layers[name])
        self.value_head = nn.Linear(self.model.config.hidden_size, 1)
        nn.init.zeros_(self.value_head.weight)  # an untrained critic expects nothing
        nn.init.zeros_(self.value_head.bias)

    def parameters(self, adapter: str) -> list[nn.Parameter]:
        own = [side[adapter] for layer in self.layers.values() for side in (layer.a, layer.b)]
        return own + (list(self.value_head.parameters()) if adapter == CRITIC else [])

    @contextmanager
    def switched_on(self, adapter: str) -> Iterator[None]:
        for layer in self.layers.values():
            layer.active = adapter
        yield
        for layer in self.layers.values():
            layer.active = ""


@torch.no_grad()
def sample(
    team: Team, agent: str, prompts: Sequence[list[int]], max_tokens: int, temperature: float
) -> list[tuple[list[int], list[float]]]:
    """An action for each prompt, and its log-probs: prompts padded on the left, one token a step for all rows."""
    width = max(map(len, prompts))
    ids = torch.tensor([[team.end] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    drawn: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
    cache = None
    with team.switched_on(agent):
        for _ in range(max_tokens):
            out = team.model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            logprobs = (out.logits[:, -1] / temperature).log_softmax(-1)
            ids = torch.multinomial(logprobs.exp(), 1)
            for (action, own), token, logprob in zip(drawn, ids[:, 0], logprobs.gather(1, ids)[:, 0], strict=True):
                if not action or action[-1] != team.end:
                    action.append(int(token))
                    own.append(float(logprob))
            if all(action[-1] == team.end for action, _ in drawn):
                break
            mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
            positions = positions[:, -1:] + 1
    return drawn


def hidden_states(team: Team, adapter: str, prompts: Sequence[list[int]], actions: Sequence[list[int]]) -> Tensor:
    """Hidden states [N, D] that predict each action token. Right-padding needs no mask: attention is causal."""
    rows = [prompt + action[:-1] for prompt, action in zip(prompts, actions, strict=True)]
    width = max(map(len, rows))
    with team.switched_on(adapter):
        hidden = team.model.base_model(torch.tensor([row + [team.end] * (width - len(row)) for row in rows]))[0]
    return torch.cat([hidden[i, len(row) - len(actions[i]) : len(row)] for i, row in enumerate(rows)])


def action_logprobs(team: Team, turns: Sequence[Turn], temperature: float) -> Tensor:
    """Log-probs [N] of what was said in turns of one agent, at the temperature it was sampled with."""
    hidden = hidden_states(team, turns[0].agent, [turn.prompt for turn in turns], [turn.action for turn in turns])
    tokens = torch.tensor([token for turn in turns for token in turn.action])
    return (team.head(hidden) / temperature).log_softmax(-1).gather(1, tokens[:, None])[:, 0]


def state_values(team: Team, turns: Sequence[Turn]) -> Tensor:
    """V(s_k, a_k^{<t}) [N]: what the critic expects before each token of each turn."""
    hidden = hidden_states(team, CRITIC, [turn.state for turn in turns], [turn.action for turn in turns])
    return team.value_head(hidden)[:, 0]


# --- advantages -------------------------------------------------------------------------------------------------------
def gae(episode: Episode, values: Sequence[float], args: Args) -> list[float]:
    """Advantages of all tokens of an episode, through both agents, from the last token to the first.

    δ = r + γ V' − V; A = δ + γ λ A'. Inside a turn γ_w and λ_w, from a turn's last token to the next agent's first γ
    and λ. The team's reward is earned on the last token of all, after which there is nothing: V' = A' = 0.
    """
    ends = [i == len(turn.action) - 1 for turn in episode.turns for i in range(len(turn.action))]
    advantages = [0.0] * len(ends)
    next_value = next_advantage = 0.0
    for t in reversed(range(len(ends))):
        gamma, lam = (args.gamma, args.lam) if ends[t] else (args.token_gamma, args.token_lam)
        earned = episode.reward if t == len(ends) - 1 else 0.0
        delta = earned + gamma * next_value - values[t]
        advantages[t] = next_advantage = delta + gamma * lam * next_advantage
        next_value = values[t]
    return advantages


def estimate(team: Team, episodes: Sequence[Episode], args: Args) -> tuple[Tensor, Tensor]:
    """Advantages [N], whitened for each agent over its own tokens, and the returns [N] that the critic should learn.

    Advantages that spread further than the rewards are mostly the critic's errors, so they are made smaller, not blown up.
    """
    turns = [turn for episode in episodes for turn in episode.turns]
    with torch.no_grad():
        values = state_values(team, turns)
    sizes = [sum(len(turn.action) for turn in episode.turns) for episode in episodes]
    pairs = zip(episodes, values.split(sizes), strict=True)
    advantages = torch.tensor([a for episode, own in pairs for a in gae(episode, own.tolist(), args)]).double()
    speaker = [turn.agent for turn in turns for _ in turn.action]
    rewards = torch.tensor([e.reward for e, size in zip(episodes, sizes, strict=True) for _ in range(size)]).double()
    whitened = torch.zeros_like(advantages)
    for agent in AGENTS:
        own = torch.tensor([name == agent for name in speaker])
        entries, deviation, spread = advantages[own], *(float(x[own].std(correction=0)) for x in (advantages, rewards))
        if min(deviation, spread) > 1e-5:  # less is rounding: nothing can be learnt from it
            whitened[own] = (entries - entries.mean()) / max(deviation, deviation**2 / spread)
    return whitened.float(), advantages.float() + values


# --- losses -----------------------------------------------------------------------------------------------------------
def policy_loss(team: Team, turns: Sequence[Turn], advantages: Sequence[Tensor], args: Args) -> Tensor:
    """PPO's clipped loss of one agent's turns: the mean over all their tokens."""
    old = torch.tensor([logprob for turn in turns for logprob in turn.logprobs])
    ratio = (action_logprobs(team, turns, args.temperature) - old).exp()
    clipped = ratio.clamp(1 - args.clip_low, 1 + args.clip_high)
    flat = torch.cat(list(advantages))
    loss = -torch.minimum(ratio * flat, clipped * flat)
    return loss.mean()


def critic_loss(team: Team, turns: Sequence[Turn], returns: Sequence[Tensor]) -> Tensor:
    """½(V − R)², the mean over all tokens."""
    return 0.5 * (state_values(team, turns) - torch.cat(list(returns))).square().mean()


def losses(team: Team, episodes: Sequence[Episode], whitened: Tensor, returns: Tensor, args: Args) -> dict[str, Tensor]:
    """The loss of each adapter on these episodes. None depends on another's parameters, so one backward serves all."""
    turns = [turn for episode in episodes for turn in episode.turns]
    sizes = [len(turn.action) for turn in turns]
    advantages_of, returns_of = whitened.split(sizes), returns.split(sizes)
    found = {CRITIC: critic_loss(team, turns, returns_of)}
    for agent in AGENTS:
        own = [i for i, turn in enumerate(turns) if turn.agent == agent]
        found[agent] = policy_loss(team, [turns[i] for i in own], [advantages_of[i] for i in own], args)
    return found


# --- training ---------------------------------------------------------------------------------------------------------
def update(team: Team, optimizers: dict[str, torch.optim.AdamW], episodes: list[Episode], args: Args) -> None:
    whitened, returns = estimate(team, episodes, args)
    sizes = [sum(len(turn.action) for turn in episode.turns) for episode in episodes]
    whitened_of, returns_of = whitened.split(sizes), returns.split(sizes)
    for _ in range(args.epochs):
        for tasks in torch.randperm(args.tasks).tensor_split(args.minibatches):  # a task's samples stay together
            picked = [args.samples * task + sample for task in tasks.tolist() for sample in range(args.samples)]
            cut = torch.cat([whitened_of[i] for i in picked]), torch.cat([returns_of[i] for i in picked])
            torch.stack([*losses(team, [episodes[i] for i in picked], *cut, args).values()]).sum().backward()
            for adapter, optimizer in optimizers.items():
                nn.utils.clip_grad_norm_(team.parameters(adapter), args.grad_clip)
                optimizer.step()
                optimizer.zero_grad()


def main(args: Args) -> None:
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    team = Team(args)
    optimizers = {
        adapter: torch.optim.AdamW(team.parameters(adapter), lr=args.lr, weight_decay=0.0)
        for adapter in (*AGENTS, CRITIC)
    }
    for iteration in range(1, args.iterations + 1):
        tasks = [draw_task(rng, args.level + 1) for _ in range(args.tasks)]
        episodes = [Episode(task.task, task.answer) for task in tasks for _ in range(args.samples)]
        play(team, episodes, args.temperature)
        update(team, optimizers, episodes, args)
        print(f"iteration {iteration}: reward {sum(e.reward for e in episodes) / len(episodes):.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option in fields(Args):
        parser.add_argument(f"--{option.name.replace('_', '-')}", type=type(option.default), default=option.default)
    main(Args(**vars(parser.parse_args())))
