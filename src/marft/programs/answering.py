"""One turn of an agent as an answer to a client."""

from __future__ import annotations

from marft.game.play import Game
from marft.game.tool_calls import Spoken, take_apart
from marft.programs.protocol import Answer, BadRequest, ChatRequest
from marft.types import ChatRefused, PromptTooLong


async def answer_chat(game: Game, request: ChatRequest) -> Answer:
    """The agent that the request names answers its messages; what ends the game is the caller's."""
    try:
        turn = await game.chat(
            request.model, request.messages, tools=request.tools, max_tokens=request.max_tokens, stop=request.stop,
            aside=True,
        )  # fmt: skip
    except PromptTooLong as error:
        raise BadRequest(str(error), code="context_length_exceeded") from None
    except ChatRefused as error:
        raise BadRequest(str(error)) from None
    written = game.team[request.model].call_format
    spoken = take_apart(turn.text, written if request.tools else None)
    return Answer(turn=turn, spoken=Spoken(content=turn.text) if spoken.malformed else spoken)
