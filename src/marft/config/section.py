"""What all parts of the config share: strictness, kinds of values, and a guess at what was meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """A part of the config: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def truth_is_no_number(cls, data: Any) -> Any:
        """`trust_region: true` would be read as 1."""
        for key, field in cls.model_fields.items() if isinstance(data, Mapping) else ():
            value, kind = data.get(key), field.annotation
            if isinstance(value, bool) and bool not in (kind, *get_args(kind)):
                raise ValueError(f"{key}: {str(value).lower()} has no meaning here; give a value, or null for none")
        return data


def check_name(name: str) -> str:
    """The name of an agent or adapter; ValueError where it could not be a folder, or is reserved."""
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,31}", name):  # it is also a folder's name
        raise ValueError("a name has small letters, digits, - and _, 32 at most, and begins with a letter; change it")
    if name == "base" or name.startswith("critic"):
        raise ValueError(f"{name!r} is reserved, as are all names that begin with 'critic'; choose another")
    return name


def check_function(name: str) -> str:
    """A name of the form `package.module:function`; ValueError for any other."""
    if not re.fullmatch(r"[^:\s]+:[^:\s]+", name):
        raise ValueError(f"{name!r} names no function; write package.module:function")
    return name


def check_class(*built_in: str) -> AfterValidator:
    """A validator: the name is one of `built_in`, or `package.module:Class`."""

    def check(name: str) -> str:
        if ":" in name:
            return check_function(name)
        if name not in built_in:
            raise ValueError(
                f"{name!r} is none of {', '.join(built_in)}{nearest(name, built_in)}; or give package.module:Class"
            )
        return name

    return AfterValidator(check)


Name = Annotated[str, AfterValidator(check_name)]  # of agents and adapters
Function = Annotated[str, AfterValidator(check_function)]
Text = Annotated[str, Field(min_length=1)]


def form(word: str) -> str:
    """What two spellings of one word have in common: GRPO and grpo, marft_token and marft-token."""
    return word.casefold().replace("-", "_")


def nearest(word: str, known: Sequence[str] | Mapping[str, Any], prefix: Sequence[str] = ()) -> str:
    """`; did you mean …?` for a word that nobody knows, or nothing."""
    forms = {form(each): each for each in known}
    found = difflib.get_close_matches(form(word), forms, n=1, cutoff=0.6)
    return f"; did you mean {'.'.join([*prefix, forms[found[0]]])!r}?" if found else ""
