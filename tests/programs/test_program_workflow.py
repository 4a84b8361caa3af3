"""Programs that play: what they return, how they run, and what hostile ones come to."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import toys
from voices import Voice, run, team

from marft.config.team import ProgramConfig
from marft.game.endings import EpisodeFailed
from marft.programs.running import PlainFunction
from marft.programs.workflow import ProgramWorkflow
from marft.types import Completion, Episode, MarftError, Request, Reward, Task

APP = """
import json, os, sys, time, urllib.request

def ask(model, base_url, api_key, text="2 + 2?"):
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}]}).encode()
    headers = {"Authorization": "Bearer " + api_key, "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(base_url + "/chat/completions", body, headers)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

def plain(task, base_url, api_key):
    ask("planner", base_url, api_key, task["prompt"])
    return ask("solver", base_url, api_key)

async def later(agents):
    import signal
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # which only a process's main thread may
    return {"answer": " ".join(agents), "reward": 0.5, "parts": {"a": 0.75, "b": -0.25}, "agents": {"program": 2}}

def returns_a_coroutine(agents):
    return later(agents)

def raises(task):
    raise ValueError("no idea")

def never(task):
    time.sleep(1000)

async def leaves(task):
    import asyncio
    await asyncio.sleep(0.5)
    sys.exit("enough")

async def stays(task):
    import asyncio
    await asyncio.sleep(1.5)
    return "done"

seen = []

def one_leaves(task):
    seen.append(task)
    return leaves(task) if len(seen) == 1 else stays(task)

def exits(task):
    os._exit(3)

def odd(task, wish):
    pass

if __name__ == "__main__":
    task = json.load(sys.stdin)
    how = sys.argv[1]
    url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    if how == "answer":
        print("thinking ...")
        print(ask("solver", url, key, task["prompt"]))
    elif how == "reward":
        ask("solver", url, key)
        print(0.25)
    elif how == "posts":
        ask("solver", url, key)
        request = urllib.request.Request(url + "/reward", b\'{"reward": 0.75}\', {"Authorization": "Bearer " + key})
        urllib.request.urlopen(request)
    elif how == "fails":
        sys.exit("cannot go on")
    elif how == "never":
        time.sleep(1000)
    elif how == "floods":
        while True:
            print("x" * 1000)
    elif how == "leaves":
        import subprocess
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
        print(child.pid)
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "their_app.py").write_text(APP)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_app", raising=False)
    return f"{sys.executable} {tmp_path / 'their_app.py'}"


def play(ended: Any = "terminated", deadline: float = 30.0, **program: str) -> Episode:
    workflow = ProgramWorkflow(ProgramConfig(deadline=deadline, **program))  # type: ignore[arg-type]
    try:
        return run(team("planner", "solver"), workflow, env=toys.Echo(), ended=ended)
    finally:
        workflow.close()


async def asks_twice(task: dict[str, Any], base_url: str, api_key: str) -> str:
    import aiohttp

    async def ask(http: aiohttp.ClientSession, model: str) -> str:
        headers = {"Authorization": f"Bearer {api_key}"}
        body = {"model": model, "messages": [{"role": "user", "content": task["prompt"]}]}
        async with http.post(f"{base_url}/chat/completions", json=body, headers=headers) as answer:
            return str((await answer.json())["choices"][0]["message"]["content"])

    async with aiohttp.ClientSession() as http:
        await ask(http, "planner")
        return "final: " + await ask(http, "solver")


def test_an_async_function() -> None:
    episode = play(function="test_program_workflow:asks_twice")
    assert [(turn.agent, turn.text) for turn in episode.turns] == [
        ("planner", "<planner>"), ("solver", "<solver>"), ("program", "final: <solver>"),
    ]  # fmt: skip
    assert episode.reward.team > 0  # the environment has heard the answer


async def drops_its_client(task: dict[str, Any], base_url: str, api_key: str) -> str:
    """Whatever was opened after the garbage collector found a client is still heard."""
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=base_url, api_key=api_key)
    asked: Any = [{"role": "user", "content": task["prompt"]}]
    said = await client.chat.completions.create(model="solver", messages=asked)
    text = str(said.choices[0].message.content)
    del client, said
    gc.collect()
    loop, heard = asyncio.get_running_loop(), set[int]()
    ends = [end for _ in range(16) for end in socket.socketpair()]  # one of them has the descriptor that is free by now
    for end in ends:
        loop.add_reader(end, lambda end=end: (end.recv(1), heard.add(end.fileno())))
    await asyncio.sleep(0.2)  # the client's finalizer has asked the loop to close it
    for end in ends:
        end.send(b"x")
    await asyncio.sleep(0.2)
    descriptors = {end.fileno() for end in ends}
    for end in ends:
        loop.remove_reader(end)
        end.close()
    assert heard == descriptors
    return text


def test_a_client_that_nobody_closes_costs_nobody_its_connection() -> None:
    assert play(function="test_program_workflow:drops_its_client").turns[-1].text == "<solver>"


async def with_openai(task: dict[str, Any], base_url: str, api_key: str) -> str:
    """As most programs ask: chat completions, streamed and not, tools, and responses."""
    from openai import AsyncOpenAI, NotFoundError

    client = AsyncOpenAI(base_url=base_url, api_key=api_key)
    asked: Any = [{"role": "user", "content": task["prompt"]}]
    said = await client.chat.completions.create(model="planner", messages=asked, logprobs=True, temperature=0.0)
    assert said.choices[0].message.content == "<planner>"
    stream = await client.chat.completions.create(model="solver", messages=asked, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    response = await client.responses.create(model="solver", input=task["prompt"], instructions="Answer.")
    assert response.output_text == text == "<solver>"
    async with client.responses.stream(model="planner", input=task["prompt"]) as events:
        assert [event.delta async for event in events if event.type == "response.output_text.delta"] == ["<planner>"]
        assert (await events.get_final_response()).output_text == "<planner>"
    assert [model.id async for model in client.models.list()] == ["planner", "solver"]
    try:
        await client.chat.completions.create(model="gpt-4o", messages=asked)
    except NotFoundError as error:
        return str(error)
    return "an unknown model was taken"


def test_openai_s_own_client() -> None:
    episode = play(function="test_program_workflow:with_openai")
    assert [turn.agent for turn in episode.turns] == ["planner", "solver", "solver", "planner", "program"]
    assert "no agent is called" in episode.turns[-1].text


def test_a_plain_function(app: str) -> None:
    episode = play(function="their_app:plain")
    assert [turn.agent for turn in episode.turns] == ["planner", "solver", "program"]


def test_a_coroutine_that_a_plain_function_returns_is_awaited_on_the_main_thread(app: str) -> None:
    episode = play(function="their_app:returns_a_coroutine")
    assert episode.turns[-1].text == "planner solver"
    assert episode.reward == Reward(team=0.5, parts={"a": 0.75, "b": -0.25}, turns={0: 2.0}, itemised=True)


def test_a_plain_function_of_the_folder_in_which_the_command_is_given(
    app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", ["", *(folder for folder in sys.path if folder != str(tmp_path))])
    monkeypatch.chdir(tmp_path)
    assert len(play(function="their_app:plain").turns) == 3


def test_a_command_answers_with_its_last_line(app: str) -> None:
    episode = play(cmd=f"{app} answer")
    assert [(turn.agent, turn.text) for turn in episode.turns] == [("solver", "<solver>"), ("program", "<solver>")]


def test_a_reward_that_the_program_posts(app: str) -> None:
    episode = play(cmd=f"{app} posts")
    assert episode.reward.team == 0.75
    assert episode.turns[-1].text == "<solver>"  # what was said last is the answer where none is given


def test_what_a_command_prints_is_never_its_reward(app: str) -> None:
    """It may be an agent's own words."""
    episode = play(cmd=f"{app} reward")
    assert episode.turns[-1].text == "0.25"
    assert episode.reward.team != 0.25


async def posts_nan(task: dict[str, Any]) -> float:
    return float("nan")


async def asks_too_much(task: dict[str, Any]) -> float:
    return 1e30


async def gives_parts_that_are_no_numbers(task: dict[str, Any]) -> dict[str, Any]:
    return {"reward": 1, "parts": {"a": "much"}}


async def gives_parts_without_names(task: dict[str, Any]) -> dict[str, Any]:
    return {"reward": 1, "parts": [1]}


async def gives_parts_of_another_sum(task: dict[str, Any]) -> dict[str, Any]:
    return {"reward": 1, "parts": {"a": 0.5, "b": 0.4}}


async def gives_parts_of_nothing(task: dict[str, Any]) -> dict[str, Any]:
    return {"answer": "4", "parts": {"a": 1}}


async def pays_agents_of_nothing(task: dict[str, Any]) -> dict[str, Any]:
    return {"answer": "4", "agents": {"solver": 1}}


async def pays_strangers(task: dict[str, Any]) -> dict[str, Any]:
    return {"reward": 1, "agents": {"solver": 1, "slover": 1}}


async def gives_a_list(task: dict[str, Any]) -> list[int]:
    return [1]


async def leaves(task: dict[str, Any]) -> None:
    raise SystemExit("enough")


async def sleeps(task: dict[str, Any]) -> None:
    await asyncio.sleep(1000)


@pytest.mark.parametrize(
    ("program", "fault", "line"),
    [
        ({"function": "their_app:raises"}, "workflow", "the program raised ValueError: no idea"),
        ({"function": "their_app:never"}, "late", "has not ended after 1 s"),
        ({"function": "their_app:exits"}, "workflow", "process has ended"),
        ({"function": "test_program_workflow:leaves"}, "workflow", "the program raised SystemExit: enough"),
        ({"function": "test_program_workflow:sleeps"}, "late", "has not ended after 1 s"),
        ({"function": "test_program_workflow:posts_nan"}, "workflow", "not a finite number"),
        ({"function": "test_program_workflow:asks_too_much"}, "workflow", "rewards lie within"),
        ({"function": "test_program_workflow:gives_a_list"}, "workflow", "the program returned list"),
        ({"function": "test_program_workflow:gives_parts_that_are_no_numbers"}, "workflow", "not a finite number"),
        ({"function": "test_program_workflow:gives_parts_without_names"}, "workflow", "`parts` is not a mapping"),
        (
            {"function": "test_program_workflow:gives_parts_of_another_sum"},
            "workflow",
            "`parts` that sum up to 0.9, and",
        ),
        ({"function": "test_program_workflow:gives_parts_of_nothing"}, "workflow", "`parts` without a `reward`"),
        ({"function": "test_program_workflow:pays_agents_of_nothing"}, "workflow", "`agents` without a `reward`"),
        (
            {"function": "test_program_workflow:pays_strangers"},
            "workflow",
            "with 'slover'; the team has planner, solver",
        ),
        ({"cmd": "APP fails"}, "workflow", "ended with 1: 'cannot go on'"),
        ({"cmd": "APP never"}, "late", "has not ended after 1 s"),
        ({"cmd": "APP floods"}, "workflow", "printed more than 1 MiB"),
    ],
)
def test_what_a_program_does_wrong_is_one_failure(app: str, program: dict[str, str], fault: str, line: str) -> None:
    program = {key: value.replace("APP", app) for key, value in program.items()}
    slow = "never" in str(program) or "sleeps" in str(program)
    episode = play("failed", 1.0 if slow else 30.0, **program)
    assert episode.fault == fault
    assert line in str(episode.error)


def test_nothing_is_left_running(app: str) -> None:
    episode = play(cmd=f"{app} leaves")
    pid = int(episode.turns[-1].text)
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            return
        time.sleep(0.02)
    pytest.fail("what the program started is still there")


def test_a_function_process_in_which_one_was_given_up_takes_no_more(app: str) -> None:
    workflow = ProgramWorkflow(ProgramConfig(function="their_app:never", deadline=0.5))
    try:
        for _ in range(2):
            run(team("planner", "solver"), workflow, env=toys.Echo(), ended="failed")
            process = workflow.program._process  # type: ignore[attr-defined]
            assert process.spoilt
            assert process.process.poll() is not None
    finally:
        workflow.close()


def test_an_awaited_program_that_exits_ends_no_other_episode(app: str) -> None:
    """They share a process, and its loop."""
    program = PlainFunction("their_app:one_leaves")
    session: Any = SimpleNamespace(base_url="", api_key="", game=SimpleNamespace(team={}))
    task = Task(id="t", prompt="")

    async def both() -> list[Any]:
        first = asyncio.ensure_future(program.run(task, session))
        await asyncio.sleep(0.2)
        return await asyncio.wait_for(
            asyncio.gather(first, program.run(task, session), return_exceptions=True), timeout=60
        )

    try:
        left, stayed = asyncio.run(both())
    finally:
        program.close()
    assert isinstance(left, EpisodeFailed)
    assert str(left) == "the program raised SystemExit: enough"
    assert stayed == "done"


async def returns_early(task: dict[str, Any], base_url: str, api_key: str) -> str:
    import aiohttp

    async def ask(text: str) -> None:
        body = {"model": "solver", "messages": [{"role": "user", "content": text}]}
        headers = {"Authorization": f"Bearer {api_key}"}
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{base_url}/chat/completions", json=body, headers=headers),
        ):
            pass

    await ask("quick")
    LEFT.append(asyncio.gather(ask("slow"), return_exceptions=True))
    await asyncio.sleep(0.2)
    return "done"


LEFT: list[asyncio.Future[Any]] = []


def test_what_is_still_asked_when_the_program_has_returned_is_given_up() -> None:
    class Waits(Voice):
        async def generate(self, request: Request) -> Completion:
            if request.messages[-1].content == "slow":
                await asyncio.sleep(1000)
            return await super().generate(request)

    workflow = ProgramWorkflow(ProgramConfig(function="test_program_workflow:returns_early"))
    episode = run(team("solver", voice=Waits()), workflow, env=toys.Echo())
    assert [(turn.agent, turn.index) for turn in episode.turns] == [("solver", 0), ("program", 1)]


def test_a_command_s_time_begins_when_it_does(app: str) -> None:
    workflow = ProgramWorkflow(ProgramConfig(cmd=f"{app} answer", deadline=20.0))

    async def wait_for_a_place() -> None:
        async with workflow.program.place():
            pass

    asyncio.run(wait_for_a_place())
    assert run(team("solver"), workflow, env=toys.Echo()).turns[-1].text == "<solver>"


def test_programs_that_cannot_be_run(app: str) -> None:
    with pytest.raises(MarftError, match="there is no command 'nonesuch'"):
        ProgramWorkflow(ProgramConfig(cmd="nonesuch x"))
    with pytest.raises(MarftError, match="asks for 'wish'; a program is given task, base_url, api_key"):
        ProgramWorkflow(ProgramConfig(function="their_app:odd"))
    with pytest.raises(ValueError, match="give one of them"):
        ProgramConfig()
