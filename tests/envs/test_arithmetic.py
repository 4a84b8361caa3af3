"""Chained arithmetic: which tasks there are, what they are worth, and what hostile text can do to the grader: nothing."""

from __future__ import annotations

import ast
import inspect
import random
from dataclasses import replace
from typing import Any

import pytest
import toys
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marft.envs import arithmetic
from marft.envs.arithmetic import Arithmetic, Chain, apply_operator, draw_chain, split_of
from marft.types import Completion, Reward, Task, Turn

TASK = Task(id="t", prompt="Start with 17. Add 5. Multiply by 3. Subtract 4.", data={"answer": 62})


def turn(text: str, index: int = 0) -> Turn:
    done = Completion(text=text, token_ids=(1,), logprobs=(0.0,), finish="stop", version=0)
    return Turn(agent="solver", index=index, nth=0, shown="", observation=(), prompt_ids=(1,), completion=done)


def graded(text: str, task: Task = TASK) -> bool:
    env = Arithmetic()
    state, reward = env.step(env.reset(task), turn(text))
    assert reward == env.reward(state)
    assert reward.team == float(bool(reward.correct))
    return bool(reward.correct)


# --- tasks ------------------------------------------------------------------------------------------------------------
def test_a_chain_worked_by_hand() -> None:
    chain = Chain(start=17, steps=(("+", 5), ("*", 3), ("-", 4)))
    assert chain.values() == [17, 22, 66, 62]
    assert chain.prompt() == TASK.prompt
    assert (apply_operator("+", 2, 3), apply_operator("-", 2, 3), apply_operator("*", 2, 3)) == (5, -1, 6)
    with pytest.raises(ValueError, match="'/'"):
        apply_operator("/", 1, 1)


def test_the_first_tasks_never_change() -> None:
    tasks = Arithmetic(level=2).tasks("test")
    assert (tasks[0].prompt, tasks[0].data["answer"]) == ("Start with 38. Multiply by 2. Subtract 14. Add 32.", 94)
    assert (len(Arithmetic().tasks("train")), len(tasks)) == (100_000, 5_000)


@pytest.mark.parametrize("level", [1, 2, 8])
def test_splits_share_no_chain(level: int) -> None:
    env = Arithmetic(level=level)
    train = {task.prompt for task in env.tasks("train")[:1500]}
    test = {task.prompt for task in env.tasks("test")[:1500]}
    assert train
    assert test
    assert not train & test


def test_tasks_are_a_function_of_their_index() -> None:
    one, two = Arithmetic(level=3).tasks("train"), Arithmetic(level=3).tasks("train")
    indices = [5, 99_999, 0, 5]
    assert [one[i] for i in indices] == [two[i] for i in indices]
    assert one[5:8] == [one[5], one[6], one[7]]
    assert len({one[i].id for i in range(100)}) == 100
    for outside in (100_000, -1):
        with pytest.raises(IndexError):
            one[outside]


@pytest.mark.parametrize("level", range(1, 9))
def test_a_level_has_one_more_operations_and_small_numbers(level: int) -> None:
    for task in Arithmetic(level=level).tasks("test")[:50]:
        numbers = [int(word.strip(".")) for word in task.prompt.split() if word.strip(".").isdigit()]
        assert task.prompt.count(".") - 1 == len(numbers) - 1 == level + 1
        assert 0 <= task.data["answer"] <= 99


@settings(max_examples=200)
@given(st.integers(0, 2**32), st.integers(1, 9))
def test_every_chain_stays_between_0_and_99(seed: int, operations: int) -> None:
    chain = draw_chain(random.Random(seed), operations)
    assert all(0 <= value <= 99 for value in chain.values())
    assert all(operand >= 1 for _, operand in chain.steps)
    assert split_of(chain) in ("train", "test")


@pytest.mark.parametrize("level", [0, 9, 2.5, "2", None, True])
def test_levels_that_are_none(level: Any) -> None:
    with pytest.raises(ValueError, match="level must be a whole number"):
        Arithmetic(level=level)


# --- grading ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("17+5=22, 22*3=66, 66-4=62. Answer: 62", True),
        ("Answer: 62", True),
        ("Answer:62.", True),
        ("Answer:\n 62 apples", True),
        ("Answer: 062", True),
        ("Answer: 61", False),
        ("Answer: -62", False),
        ("Answer: 620", False),
        ("62", False),
        ("answer: 62", False),
        ("", False),
        ("Answer:", False),
        ("Answer: sixty-two", False),
        ("Answer: 61. Answer: 62", False),  # whoever bets on several numbers has none
        ("Answer: 62. Answer: 62", False),
        ("Answer: 62\nAnswer: 5", False),
        ("Answer: " + "0" * 100_000 + "62", False),
        ("Answer: " + "9" * 100_000, False),
        ("Answer: " * 100_000, False),
        ("Answer: 6\u0662", True),  # a digit is a digit in every script
        ("Answer: 60+2", False),
        ("Answer: __import__('os').getpid()", False),
        ("Answer: \x0062", False),
    ],
)
def test_grading(text: str, right: bool) -> None:
    assert graded(text) == right


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("17+5=22\nAnswer: 62", 62),
        ("Answer: -5", -5),
        ("Answer: 062", 62),
        ("62", None),
        ("", None),
        ("Answer: 61. Answer: 62", None),
        ("Answer: 62. Answer: 62", None),
        ("Answer: " + "9" * 100, None),
    ],
)
def test_what_a_message_answers(text: str, answer: int | None) -> None:
    assert Arithmetic().answer(text) == answer


def test_by_default_a_message_answers_with_its_text() -> None:
    env = toys.Echo()
    assert [env.answer(text) for text in (" yes\n", "yes", "", " \n")] == ["yes", "yes", None, None]


def test_only_the_last_message_counts() -> None:
    env = Arithmetic()
    state = env.transition(env.reset(TASK), turn("Answer: 62"))
    assert env.reward(state).correct
    assert not env.reward(env.transition(state, turn("Well done."))).correct
    assert not env.reward(env.reset(TASK)).correct


@settings(max_examples=200)
@given(st.text())
@example("Answer: ²")
@example("Answer: \ud800")
def test_no_text_breaks_the_grader(text: str) -> None:
    graded(text)
    graded(f"Answer: {text}")


@given(st.integers(-(10**9), 10**9), st.text(alphabet="abc. \n"))
def test_the_right_number_is_right_and_others_are_not(number: int, noise: str) -> None:
    task = Task(id="t", prompt="", data={"answer": number})
    inside = abs(number) < 10**9
    assert graded(f"{noise}Answer: {number}", task) == inside
    assert not graded(f"{noise}Answer: {number + 1}", task)


@given(st.text(), st.text())
def test_transition_is_pure(one: str, other: str) -> None:
    env = Arithmetic()
    start = env.reset(TASK)
    first = env.transition(start, turn(one))
    env.transition(start, turn(other))
    env.transition(first, turn(other))
    assert start == env.reset(TASK)
    assert first == env.transition(start, turn(one))


# --- feedback ---------------------------------------------------------------------------------------------------------
def told(env: Arithmetic, *texts: str) -> list[tuple[str, Reward]]:
    """What is shown and what it is all worth, after each message."""
    state, found = env.reset(TASK), []
    for index, text in enumerate(texts):
        state = env.transition(state, turn(text, 2 * index))  # every second turn is an aside and not heard
        found.append((env.observe(state, "solver"), env.reward(state)))
    return found


def test_feedback_step_by_step() -> None:
    env = Arithmetic(feedback=True)
    wrong, right = Reward(team=0.0, correct=False, done=False), Reward(team=1.0, correct=True, done=True)
    assert (env.observe(env.reset(TASK), "solver"), env.reward(env.reset(TASK))) == ("", wrong)
    texts = ["17+5", "Answer: 61", "Be careful.", "Answer: 60", "Answer: 62", "Well done.", "Answer: 7", "Answer: 62"]
    turns = {0: 0.0, 2: -0.1, 4: 0.0, 6: -0.1, 8: 0.0, 10: 0.0, 12: -0.1, 14: 0.0}
    expected = [
        ("", wrong),
        ("61 is wrong.", wrong),
        ("61 is wrong.", wrong),
        ("60 is wrong.", wrong),
        ("", right),
        ("", right),  # the latest answer counts, whatever was said after it
        ("7 is wrong.", wrong),
        ("", right),
    ]
    assert told(env, *texts) == [
        (shown, replace(reward, turns=dict(list(turns.items())[: i + 1]))) for i, (shown, reward) in enumerate(expected)
    ]


def test_several_answers_are_none() -> None:
    [_, (shown, reward)] = told(Arithmetic(feedback=True), "Answer: 61", "Answer: 62. Answer: 63")
    assert (shown, reward.done, reward.turns) == ("61 is wrong.", False, {0: -0.1, 2: 0.0})


@given(st.lists(st.sampled_from(["Answer: 62", "Answer: 61", "Hm."]), max_size=4))
def test_without_feedback_nothing_is_shown_and_no_turn_is_priced(texts: list[str]) -> None:
    for text, (shown, reward) in zip(texts, told(Arithmetic(), *texts), strict=True):
        right = text == "Answer: 62"
        assert (shown, reward) == ("", Reward(team=float(right), correct=right))
        assert (reward.turns, reward.done) == ({}, True)


@pytest.mark.parametrize("feedback", [1, 0, "true", None])
def test_feedback_is_true_or_false(feedback: Any) -> None:
    with pytest.raises(ValueError, match=f"^feedback must be true or false, not {feedback!r}$"):
        Arithmetic(feedback=feedback)


def test_defect_14_no_text_is_ever_run() -> None:
    """Neither the graders nor anything they import from this room may evaluate a model's text."""
    import marft.envs.math

    for module in (arithmetic, marft.envs.math):
        called = {
            node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            for node in ast.walk(ast.parse(inspect.getsource(module)))
            if isinstance(node, ast.Call)
        } - {"compile"}
        assert not called & {"eval", "exec", "literal_eval", "system", "run", "Popen", "__import__", "loads_pickle"}
    assert not graded("Answer: (lambda: 62)()")
    assert not graded("Answer: 31*2")
