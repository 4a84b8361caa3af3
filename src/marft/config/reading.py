"""From YAML files, recipes and dotted overrides to one checked `Config`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from marft.config.choices import class_of
from marft.config.earlier_versions import with_present_keys
from marft.config.error_messages import explain_error
from marft.config.hints import hint_for_recipe
from marft.config.overrides import SHORTHANDS, read_override, read_yaml
from marft.config.safe_yaml import parse_yaml
from marft.config.schema import Config
from marft.config.team import WORKFLOWS
from marft.files import Damaged, Missing, is_there, read_text
from marft.import_paths import NotImportable, is_importable, is_moved
from marft.types import MarftError
from marft.untrusted_values import escaped, flaw_of, shortened

SUFFIXES = (".yaml", ".yml")
LARGEST = 1 << 20  # bytes of a config: PyYAML reads about as many in a few seconds
SPELLED_OUT = 4 * LARGEST  # of one that a run has written
WORKFLOW_SETTINGS = frozenset({"options"}).union(*WORKFLOWS.values())


def recipes() -> dict[str, str]:
    """Every embedded recipe: its name, and the first line of its file, which says what it is."""
    folder = resources.files("marft") / "recipes"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    return {
        f.name.removesuffix(".yaml"): f.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for f in files
    }


def load_config(source: str | None = None, overrides: Sequence[str] = ()) -> Config:
    """The config of a YAML file or a recipe (default: `duo`), with `key.path=value` overrides on top."""
    return parse(merge(read_source(source or "duo"), overrides))


def read_config(path: Path) -> Config:
    """The config that a run has written, perhaps of an earlier version. Unlike a user's file it is whole, and a prompt in it
    may hold "${"."""
    data = with_present_keys(parse_yaml(read_text(path, SPELLED_OUT), str(path)))
    try:
        return parse(data)
    except NotImportable as error:
        module = error.name.partition(":")[0]
        remedy = (
            f"; give the command in the folder where {module} lies, or install it" if is_importable(error.name) else ""
        )
        raise NotImportable(error.name, f"{path} needs code of yours: {error}{remedy}") from error
    except MarftError as error:
        raise MarftError(f"{path} is not a config of this version: {error}") from error


def read_source(source: str, below: tuple[str, ...] = ()) -> dict[str, Any]:
    """A file's or a recipe's settings; one that `extends` another is laid over it."""
    data = read_layer(source)
    other = data.pop("extends", None)
    if other is None:
        return data
    if not isinstance(other, str):
        raise MarftError(f"extends: in {source}: name a recipe or a .yaml file")
    if Path(other).suffix in SUFFIXES and not Path(other).is_absolute():
        other = str(Path(source).parent / other)  # beside the file that names it
    if other in (source, *below):
        raise MarftError(f"extends: {' → '.join([*below, source, other])} never ends; drop one of them")
    return merge_settings(read_source(other, (*below, source)), data)


def read_layer(source: str) -> dict[str, Any]:
    """The data of one recipe or file, without what it extends; raises a MarftError where there is none."""
    path = Path(source)
    if path.suffix in SUFFIXES:
        try:
            return parse_yaml(read_text(path, LARGEST), str(path))
        except Damaged as error:
            recipe = isinstance(error, Missing) and path.stem in recipes()
            remedy = f"did you mean the recipe {path.stem!r}?" if recipe else "give a file in YAML, saved as UTF-8"
            raise MarftError(f"cannot read {path}: it {error.reason}; {remedy}") from None
    known = recipes()
    if source not in known and is_there(path / "config.yaml"):
        raise MarftError(
            f"{source} is a run: go on with it by --resume --run {source}, or begin anew with its settings in "
            f"{path / 'config.yaml'}"
        )
    if source not in known and os.sep in source:
        raise MarftError(f"there is no run and no config in {source}; give a run's folder, a .yaml file or a recipe")
    if source not in known:
        raise MarftError(
            f"unknown recipe {source!r}{hint_for_recipe(source, known)}; 'marft recipes' lists them, or give a .yaml file"
        )
    return parse_yaml((resources.files("marft") / "recipes" / f"{source}.yaml").read_text(encoding="utf-8"), source)


def merge(base: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """`key.path=value` overrides on top of a base."""
    on_top: dict[str, Any] = {}
    for override in overrides:  # one by one: `env=math` and `env.data=gsm8k` add up, in either order
        on_top = merge_mappings(on_top, expand_shorthands(read_override(override)))
    return merge_settings(base, on_top)


def free_settings(overrides: Sequence[str]) -> dict[str, Any]:
    """`key.path=value` words that no schema knows: settings of somebody's own environment."""
    settings: dict[str, Any] = {}
    for override in overrides:
        settings = merge_mappings(settings, read_yaml(override))
    return settings


def merge_settings(base: Mapping[str, Any], on_top: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings on top of a base. A new credit, environment, schedule or workflow drops the old one's own settings;
    one that has only moved into a file keeps them. A new algorithm keeps what it knows too: λ of one critic's is λ of the
    other's."""
    below, above = expand_shorthands(base), expand_shorthands(on_top)
    for section in ("env", "credit", "schedule"):
        if names_other_thing(below.get(section), above.get(section), SHORTHANDS[section]):
            del below[section]
    if names_other_thing(below.get("algorithm"), above.get("algorithm"), "name"):
        chosen = class_of("algorithm", above["algorithm"]["name"])
        known = {} if chosen is None else chosen.model_fields
        below["algorithm"] = {key: value for key, value in below["algorithm"].items() if key in known}
    if names_other_thing(below.get("engine"), above.get("engine"), "name"):
        below["engine"] = {key: value for key, value in below["engine"].items() if key != "options"}
    if names_other_thing(below.get("team"), above.get("team"), "workflow"):
        below["team"] = {key: value for key, value in below["team"].items() if key not in WORKFLOW_SETTINGS}
    return merge_mappings(below, above)


def names_other_thing(old: Any, new: Any, key: str) -> bool:
    """Whether `new` names another class or function under `key`, not the same one in a new place."""
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return False
    before, after = old.get(key), new.get(key, old.get(key))
    return bool(after != before) and not is_moved(before, after)


def merge_mappings(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings merged at every depth; where both have a value, the one above wins."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge_mappings(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def expand_shorthands(data: Mapping[str, Any]) -> dict[str, Any]:
    """`algorithm: grpo` → `algorithm: {name: grpo}`, and the like; an agent given as a string is its prompt, a KL given
    as a number its weight, benchmarks given as a list are those data sets."""
    spelled: dict[str, Any] = {
        k: {SHORTHANDS[k]: v} if k in SHORTHANDS and isinstance(v, str) else v for k, v in data.items()
    }
    team = spelled.get("team")
    if isinstance(team, dict) and isinstance(team.get("agents"), dict):
        agents = {name: {"prompt": a} if isinstance(a, str) else a for name, a in team["agents"].items()}
        spelled["team"] = {**team, "agents": agents}
    match spelled.get("eval"):
        case {"benchmarks": [*names], **rest} if all(isinstance(n, str) and names.count(n) == 1 for n in names):
            spelled["eval"] = {**rest, "benchmarks": {name: {"data": name} for name in names}}
    match spelled.get("algorithm"):
        case {"kl": str() | float() | int() as weight, **rest} if not isinstance(weight, bool):
            spelled["algorithm"] = {**rest, "kl": {"weight": weight}}
    return spelled


def parse(data: Mapping[str, Any]) -> Config:
    """Check plain data; the first mistake becomes one line."""
    check_texts(data, (), set())
    spelled = expand_shorthands(data)
    try:
        return Config.model_validate(spelled)
    except ValidationError as error:
        raise MarftError(explain_error(error, spelled)) from None


def check_texts(value: Any, path: tuple[str, ...], seen: set[int]) -> None:
    """Half a surrogate pair, which YAML may spell as "\\ud800", can neither be written into the run nor read by a model."""
    if isinstance(value, str):
        if (flaw := flaw_of(value)) is not None:
            raise MarftError(f"{escaped('.'.join(path))}: this text {flaw}; write other characters")
    elif isinstance(value, Mapping | list | tuple) and id(value) not in seen:  # aliases may name one thing many times
        seen.add(id(value))
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, part in pairs:
            below = (*path, shortened(str(key), 100))
            check_texts(key, below, seen)
            check_texts(part, below, seen)


def to_yaml(config: Config) -> str:
    """The whole config as a text that reads back as the same config."""
    data = config.model_dump(mode="json")
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    # PyYAML reads U+0085 back as a line break unless it is written as an escape
    return yaml.safe_dump(data, sort_keys=False) if "\x85" in text else text
