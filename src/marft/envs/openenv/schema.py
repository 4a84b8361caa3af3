"""Which field of a server's actions is a text, by the schema that it gives."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from marft.types import MarftError
from marft.untrusted_values import described

LONGEST_SCHEMA = 1 << 20  # bytes


def read_action_schema(url: str, seconds: float, headers: Mapping[str, str]) -> Mapping[str, Any]:
    """The JSON schema of a server's actions; MarftError, in one line, where it gives none within the time."""
    import httpx2

    end, content = time.monotonic() + seconds, b""
    try:
        with httpx2.stream("GET", f"{url}/schema", timeout=seconds, headers=dict(headers)) as response:
            response.raise_for_status()
            for part in response.iter_bytes():
                content += part
                if len(content) > LONGEST_SCHEMA or time.monotonic() > end:
                    raise ValueError(f"its /schema is longer than 1 MiB or took more than {seconds:g} s")
        schema = json.loads(content)["action"]
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, LookupError, TypeError) as error:
        said = " ".join(described(error).split())
        raise MarftError(f"env.url: {url} does not answer as a server of OpenEnv does: {said}") from None
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        raise MarftError(f"env.url: {url} gives no schema of its actions")
    return schema


def text_field(schema: Mapping[str, Any], named: str | None) -> str:
    """The field `named`, or else the one text of an action; those with a default may be left out."""
    fields = {key: value for key, value in schema["properties"].items() if key != "metadata"}
    known = ", ".join(fields) or "none"
    if named is not None:
        if named not in fields:
            raise MarftError(f"env.action: actions have no field {named!r}, but {known}")
        return named
    needed = [key for key in schema.get("required", fields) if key in fields] or list(fields)
    texts = [key for key in needed if isinstance(fields[key], dict) and fields[key].get("type") == "string"]
    if len(texts) != 1:
        raise MarftError(f"env.action: say which field of an action a message goes into: {known}")
    return str(texts[0])
