"""A channel to a child process: what it says is heard, also its end; and whoever is silent is found out."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Iterator

import pytest

from marft import channels
from marft.channels import ALIVE, PipeChannel, Silence, Unreachable

Heard = queue.SimpleQueue  # of messages, and None at the end


@pytest.fixture
def heard() -> Heard[bytes | None]:
    return queue.SimpleQueue()


@pytest.fixture
def channel(heard: Heard[bytes | None]) -> Iterator[PipeChannel]:
    opened = PipeChannel("echo_process", heard.put, patience=2.0)
    yield opened
    opened.end()


def next_of(heard: Heard[bytes | None]) -> bytes | None:
    """But for signs of life."""
    while (message := heard.get(timeout=30)) == ALIVE:
        pass
    return message


def test_messages_come_whole_and_in_order(channel: PipeChannel, heard: Heard[bytes | None]) -> None:
    sent = [b"a", b"", os.urandom(1 << 20), b"\n"]
    for message in sent:
        channel.send(message)
    assert [next_of(heard) for _ in sent] == sent
    assert channel.host == "127.0.0.1"


@pytest.mark.parametrize(("harm", "reason"), [("exit", "ended with exit code 3"), ("kill", "ended by signal 9")])
def test_its_end_is_heard(channel: PipeChannel, heard: Heard[bytes | None], harm: str, reason: str) -> None:
    if harm == "exit":
        channel.send(b"exit")
    else:
        os.kill(channel.pid, signal.SIGKILL)
    assert next_of(heard) is None
    assert channel.end_reason() == reason
    with pytest.raises(Unreachable, match="ended while it was spoken to"):
        channel.send(b"a" * (1 << 20))


def test_who_has_done_its_work_waits_to_be_ended(channel: PipeChannel, heard: Heard[bytes | None]) -> None:
    channel.send(b"return")
    assert heard.get(timeout=30) == ALIVE
    channel.end()
    channel.end()
    while heard.get(timeout=30) is not None:
        pass


def test_who_takes_no_message_is_killed(channel: PipeChannel, heard: Heard[bytes | None]) -> None:
    assert heard.get(timeout=30) == ALIVE
    os.kill(channel.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(Unreachable):
        channel.send(b"a" * (1 << 20))  # more than a pipe holds
    assert time.monotonic() - began < 20


def test_what_does_not_move_on_gives_no_sign_of_life(channel: PipeChannel, heard: Heard[bytes | None]) -> None:
    assert heard.get(timeout=30) == ALIVE
    channel.send(b"hang")
    time.sleep(3 * channels.BEAT_S)
    while not heard.empty():
        heard.get()
    with pytest.raises(queue.Empty):
        heard.get(timeout=2 * channels.BEAT_S)


def test_silence_is_found_at_the_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    silence = Silence()
    now = 5.0
    assert not silence.exceeds(4)
    assert silence.exceeds(4)
    silence.end()
    assert not silence.exceeds(4)
    now = 10.0
    assert not silence.exceeds(4)
    silence.end()
    now = 15.0
    assert not silence.exceeds(4)  # it was heard between the looks, and is suspected anew
