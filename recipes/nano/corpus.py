"""Synthetic team conversations about chained arithmetic, of mixed quality: what `nano` learns to speak.

Every conversation is one turn as an agent of a team would see it: its role, the task, what others said, and its reply.
Replies have bad habits, and the habits depend on the task: plans of chains with a multiplication mostly lose their last
step, and solvers mostly guess when the start value is large. So the untrained team is right about a third of the time
(a fifth when it decodes greedily), and reinforcement learning has something to find. Only chains of the train split occur.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from marft.envs.arithmetic import Chain, apply_operator, draw_chain, split_of

Steps = list[tuple[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    system: str
    user: str
    reply: str


# --- what roles are told: several ways to say the same, so that the model reads the role and not one fixed string ---
PROMPTS = {
    "planner": [
        "You are the planner. List the steps.",
        "You are the planner. Break the problem into steps.",
        "Plan the steps for the team.",
        "You plan. Others solve. List the steps in order.",
    ],
    "solver": [
        'You are the solver. Follow the plan and end with "Answer: N".',
        'You are the solver. Work step by step and end with "Answer: N".',
        'Solve it with the plan. End with "Answer: N".',
        "You are the solver. Solve the task.",
    ],
    "alone": [
        'You work alone. Think step by step and end with "Answer: N".',
        "Solve the task.",
        'You are a helpful assistant. End with "Answer: N".',
    ],
    "verifier": [
        'You are the verifier. Check the work and end with "Answer: N".',
        'Verify the solution. End with "Answer: N".',
    ],
    "reflector": [
        "You are the reflector. Say what went wrong, if anything.",
        "Reflect on the work of the solver. Name the slip.",
    ],
    "debater": [
        'You are a debater. Argue for your answer and end with "Answer: N".',
        'Debate the task with the others. End with "Answer: N".',
    ],
    "judge": [
        'You are the judge. Decide and end with "Answer: N".',
        'Judge the debate. End with "Answer: N".',
    ],
    "orchestrator": [
        'You are the orchestrator. Say "Next: NAME" or "Done".',
        'Decide who acts next. Say "Next: NAME" or "Done".',
    ],
}
LARGE = 30  # start values from here on invite a guess
VAGUE = ["Work it out step by step.", "Do the steps in order.", "Be careful."]


# --- good and bad ways to write plans and workings -------------------------------------------------------------------
def plan_text(start: int, steps: Steps) -> str:
    first, *rest = steps
    return ", ".join([f"{start}{first[0]}{first[1]}", *(f"{o}{n}" for o, n in rest)])


def plan(rng: random.Random, chain: Chain) -> tuple[str, Steps | None]:
    """A plan and the steps it really lists; None where it lists none."""
    steps: Steps = list(chain.steps)
    multiplies = any(operator == "*" for operator, _ in steps)
    weights = [37, 51, 4, 4, 4] if multiplies else [72, 8, 8, 6, 6]
    match rng.choices(["good", "drop", "swap", "operand", "vague"], weights)[0]:
        case "drop":
            steps.pop()
        case "swap":
            i = rng.randrange(len(steps) - 1)
            steps[i], steps[i + 1] = steps[i + 1], steps[i]
        case "operand":
            i = rng.randrange(len(steps))
            steps[i] = (steps[i][0], max(1, steps[i][1] + rng.choice([-3, -2, -1, 1, 2, 3])))
        case "vague":
            return rng.choice(VAGUE), None
    if any(not 0 <= value <= 99 for value in Chain(start=chain.start, steps=tuple(steps)).values()):
        return plan_text(chain.start, list(chain.steps)), list(chain.steps)
    return plan_text(chain.start, steps), steps


def work(start: int, steps: Steps, slip_at: int | None = None, slip: int = 0) -> tuple[list[str], int]:
    """One line a step, and the result; at step `slip_at` the result is off by `slip`."""
    lines, value = [], start
    for i, (operator, operand) in enumerate(steps):
        result = apply_operator(operator, value, operand)
        if i == slip_at:
            result = max(0, min(99, result + slip))
        lines.append(f"{value}{operator}{operand}={result}")
        value = result
        if not 0 <= value <= 99:  # after a slip: stop where the numbers leave the range
            break
    return lines, value


def solution(rng: random.Random, start: int, steps: Steps, weights: tuple[int, int, int, int] | None = None) -> str:
    """Works every step (good), guesses, slips, or stops one step early; large start values invite a guess."""
    habit = (41, 51, 3, 5) if start >= LARGE else (76, 6, 6, 12)
    kind = rng.choices(["work", "guess", "slip", "early"], weights or habit)[0]
    if kind == "guess":
        return f"Answer: {rng.randint(0, 99)}"
    if kind == "early" and len(steps) > 1:
        steps = steps[:-1]
    slip_at = rng.randrange(len(steps)) if kind == "slip" else None
    lines, value = work(start, steps, slip_at, rng.choice([-10, -2, -1, 1, 2, 10]))
    return "\n".join([*lines, f"Answer: {value}"])


def said(**messages: str) -> str:
    return "".join(f"\n\n{name}: {text}" for name, text in messages.items())


def answer_of(text: str) -> int:
    return int(text.rsplit("Answer: ", 1)[1])


# --- the roles -------------------------------------------------------------------------------------------------------
def as_planner(rng: random.Random, chain: Chain) -> tuple[str, str]:
    return "", plan(rng, chain)[0]


def as_solver(rng: random.Random, chain: Chain) -> tuple[str, str]:
    text, steps = plan(rng, chain)
    return said(planner=text), solution(rng, chain.start, steps or list(chain.steps))


def as_alone(rng: random.Random, chain: Chain) -> tuple[str, str]:
    reply = solution(rng, chain.start, list(chain.steps))
    return "", (plan(rng, chain)[0] + "\n" + reply) if rng.random() < 0.2 else reply


def solver_transcript(rng: random.Random, chain: Chain, with_plan: float = 0.7) -> tuple[dict[str, str], str]:
    text, steps = plan(rng, chain)
    reply = solution(rng, chain.start, steps or list(chain.steps))
    return ({"planner": text, "solver": reply} if rng.random() < with_plan else {"solver": reply}), reply


def as_verifier(rng: random.Random, chain: Chain) -> tuple[str, str]:
    messages, reply = solver_transcript(rng, chain)
    if rng.random() < 0.25:
        messages["reflector"] = reflection(rng, chain, reply)
    if rng.random() < 0.45:  # rubber stamp
        return said(**messages), f"Answer: {answer_of(reply)}"
    return said(**messages), solution(rng, chain.start, list(chain.steps), weights=(80, 0, 10, 10))


def reflection(rng: random.Random, chain: Chain, reply: str) -> str:
    lines, value = work(chain.start, list(chain.steps))
    if rng.random() < 0.4:
        return rng.choice(["No slip.", "Check every step."])
    if answer_of(reply) == value:
        return "No slip."
    theirs = reply.split("\n")
    wrong = next((mine for mine, other in zip(lines, theirs, strict=False) if mine != other), lines[-1])
    return f"The slip is here: {wrong}"


def as_reflector(rng: random.Random, chain: Chain) -> tuple[str, str]:
    messages, reply = solver_transcript(rng, chain)
    return said(**messages), reflection(rng, chain, reply)


def debaters(rng: random.Random, chain: Chain, most: int) -> dict[str, str]:
    names = rng.choice([["pro", "con"], ["alice", "bob", "carol"], ["debater1", "debater2", "debater3"]])
    return {name: solution(rng, chain.start, list(chain.steps)) for name in names[: rng.randint(1, most)]}


def as_debater(rng: random.Random, chain: Chain) -> tuple[str, str]:
    messages = debaters(rng, chain, 2) if rng.random() < 0.7 else {}
    if messages and rng.random() < 0.35:  # gives in to whoever spoke last
        return said(**messages), f"I agree. Answer: {answer_of(list(messages.values())[-1])}"
    return said(**messages), solution(rng, chain.start, list(chain.steps))


def as_judge(rng: random.Random, chain: Chain) -> tuple[str, str]:
    messages = debaters(rng, chain, 3)
    if rng.random() < 0.5:
        return said(**messages), f"Answer: {answer_of(rng.choice(list(messages.values())))}"
    return said(**messages), solution(rng, chain.start, list(chain.steps), weights=(80, 0, 10, 10))


def as_orchestrator(rng: random.Random, chain: Chain) -> tuple[str, str]:
    team = ["planner", "solver", *(["verifier"] if rng.random() < 0.5 else [])]
    text, steps = plan(rng, chain)
    reply = solution(rng, chain.start, steps or list(chain.steps))
    script = {"planner": text, "solver": reply, "verifier": f"Answer: {answer_of(reply)}"}
    spoken = team[: rng.randint(0, len(team))]
    sensible = f"Next: {team[len(spoken)]}" if len(spoken) < len(team) else "Done"
    decision = sensible if rng.random() < 0.6 else rng.choice([*(f"Next: {name}" for name in team), "Done"])
    return f"\n\nTeam: {', '.join(team)}" + said(**{name: script[name] for name in spoken}), decision


ROLES: dict[str, tuple[int, Callable[[random.Random, Chain], tuple[str, str]]]] = {
    "planner": (20, as_planner),
    "solver": (30, as_solver),
    "alone": (12, as_alone),
    "verifier": (10, as_verifier),
    "reflector": (6, as_reflector),
    "debater": (8, as_debater),
    "judge": (6, as_judge),
    "orchestrator": (8, as_orchestrator),
}


def converse(rng: random.Random) -> Conversation:
    """One conversation: a random role, a random chain of the train split."""
    role = rng.choices(list(ROLES), [weight for weight, _ in ROLES.values()])[0]
    operations = rng.choices([2, 3, 4, 5, 6], [25, 40, 18, 11, 6])[0]
    while split_of(chain := draw_chain(rng, operations)) != "train":
        pass
    context, reply = ROLES[role][1](rng, chain)
    return Conversation(system=rng.choice(PROMPTS[role]), user=chain.prompt() + context, reply=reply)
