"""How a team is evaluated: on which tasks, how often, and with which sampling."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, field_validator, model_validator

from marft.config.section import Section, Text
from marft.config.team import truncations


class BenchmarkConfig(Section):
    """An environment to be evaluated on: settings laid over those of `env`; None: as there."""

    model_config = ConfigDict(extra="allow")
    name: Text | None = None
    deadline: Annotated[float, Field(gt=0)] | None = None
    tasks_deadline: Annotated[float, Field(gt=0)] | None = None
    workers: Annotated[int, Field(ge=1)] | None = None

    @property
    def given(self) -> dict[str, Any]:
        """What differs from `env`."""
        extra = self.model_extra or {}
        return {key: value for key, value in self if value is not None or key in extra}


class EvalConfig(Section):
    """On which held-out tasks a team is evaluated, how often, and how it samples there."""

    tasks: Annotated[int, Field(ge=0)] = 512  # 0: no evaluation
    every: Annotated[int, Field(ge=0)] = 0  # iterations between evaluations; 0: only before and after
    temperature: Annotated[float, Field(ge=0)] | None = None  # None: each agent's own
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    samples: Annotated[int, Field(ge=1, le=1024)] = 1  # episodes per task, of marft eval
    k: tuple[Annotated[int, Field(ge=1)], ...] = ()  # of pass@k and maj@k; empty: 1 and samples
    benchmarks: dict[Text, BenchmarkConfig] = Field(
        default_factory=dict
    )  # by name; empty: the run's own held-out tasks alone
    ablate: bool = False  # also with each agent silent, of marft eval

    @property
    def ks(self) -> tuple[int, ...]:
        """The k of pass@k and maj@k, spelled out."""
        return tuple(sorted(set(self.k or (1, self.samples))))

    @field_validator("benchmarks", mode="before")
    @classmethod
    def expand_names(cls, given: Any) -> Any:
        """`[aime-2024]` is short for `{aime-2024: {data: aime-2024}}`."""
        if isinstance(given, list | tuple):
            found = {name: {"data": name} for name in given if isinstance(name, str)}
            if len(found) != len(given):
                raise ValueError("a list holds names of data sets, each once; or give {NAME: {KEY: VALUE}}")
            return found
        if not isinstance(given, dict):
            raise ValueError("it names no benchmarks; give [NAME, NAME], or {NAME: {KEY: VALUE}} with keys of env")
        return given

    @model_validator(mode="after")
    def check(self) -> EvalConfig:
        """Raise a ValueError where settings contradict one another."""
        for key in truncations(self.top_p, self.top_k) if self.temperature == 0 else ():
            raise ValueError(f"{key}: temperature 0 takes the likeliest token and would ignore it; drop {key}")
        if self.temperature == 0 and self.samples > 1:
            raise ValueError("samples: at temperature 0 they are all the same; drop samples or temperature")
        for k in self.k:
            if k > self.samples:
                raise ValueError(f"k: there are no {k} among {self.samples} samples; raise samples or drop {k}")
        for name in self.benchmarks:
            if not name.isprintable():
                raise ValueError("benchmarks: a name is one line of a table; drop the line break from it")
        return self
