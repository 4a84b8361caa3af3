"""Ways to damage the files of a run, an evaluation, a comparison and a checkpoint."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from marft.runs.checkpoints import MANIFEST, seal

Damage = Callable[[Path], None]


def replace(text: str | bytes) -> Damage:
    def damage(path: Path) -> None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)

    return damage


def missing(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def instead(make: Callable[[Path], None]) -> Damage:
    def damage(path: Path) -> None:
        missing(path)
        make(path)

    return damage


def huge(path: Path) -> None:
    os.truncate(path, 70 << 20)  # takes no disk


def edit(change: Callable[[Any], Any]) -> Damage:
    """Of a JSON file."""

    def damage(path: Path) -> None:
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return damage


def edit_line(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Of the first line of a JSONL file."""

    def damage(path: Path) -> None:
        first, *others = path.read_text().splitlines()
        path.write_text("\n".join([json.dumps(change(json.loads(first))), *others]) + "\n")

    return damage


def put(*keys: str, value: Any) -> Callable[[Any], Any]:
    def change(data: Any) -> Any:
        inner = data
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        return data

    return change


def drop(key: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda data: {name: value for name, value in data.items() if name != key}


def torn_within(path: Path) -> None:
    text = path.read_text()
    path.write_text(text.replace("}\n", "\n", 1) + text)


NODES: dict[str, Damage] = {
    "a FIFO": instead(os.mkfifo),
    "a folder": instead(Path.mkdir),
    "a device": instead(lambda path: path.symlink_to("/dev/zero")),
    "a dangling link": instead(lambda path: path.symlink_to("nowhere")),
    "a link to itself": instead(lambda path: path.symlink_to(path.name)),
}
TEXTS: dict[str, Damage] = {
    "not UTF-8": replace(b'{"iteration": "\xff\xfe"}\n{"iteration": 1}\n'),
    "deep": replace("[" * 50_000),
    "a list": replace("[1, 2]\n"),
    "a number": replace("3\n"),
    "a text": replace('"iteration"\n'),
    "null": replace("null\n"),
    "garbage": replace("\x00\x01 garbage {\nmore\n"),
    "many values": replace("[" + "a, " * 200_000 + "]\n"),
    "huge": huge,
}
OBJECTS: dict[str, Damage] = {**NODES, **TEXTS, "empty": replace(""), "an empty object": replace("{}"), "truncated": lambda p: os.truncate(p, p.stat().st_size // 2)}  # fmt: skip
LINES: dict[str, Damage] = {
    **NODES,
    **TEXTS,
    "no iteration": edit_line(drop("iteration")),
    "an iteration of text": edit_line(put("iteration", value="1")),
    "an iteration of truth": edit_line(put("iteration", value=True)),
    "a negative iteration": edit_line(put("iteration", value=-1)),
    "an iteration in parts": edit_line(put("iteration", value=1.5)),
    "an endless iteration": edit_line(put("iteration", value=float("inf"))),
    "a nested iteration": edit_line(put("iteration", value={"of": 1})),
    "a torn line within": torn_within,
}
FIGURES = {
    "no agents": edit_line(drop("agents")),
    "agents in a list": edit_line(put("agents", value=["ann"])),
    "a stranger": edit_line(lambda row: put("agents", "zed", value=row["agents"]["ann"])(row)),
    "an agent without figures": edit_line(put("agents", "ann", value={})),
    "a reward of text": edit_line(put("reward", value="high")),
    "a reward that is no number": edit_line(put("reward", value=float("nan"))),
    "no episodes": edit_line(put("episodes", value=0)),
}
SUMMARIES = {
    "iterations of text": edit(put("iterations", value="2")),
    "no tokens": edit(drop("tokens")),
    "null after": edit(put("after", value=None)),
    "a list before": edit(put("before", value=[])),
    "after without a reward": edit(put("after", value={"iteration": 2, "settings": {}})),
    "settings in a list": edit(put("after", "settings", value=[])),
    "seconds of text": edit(put("seconds", value="long")),
    "tokens that are no number": edit(put("tokens", value={"generated": float("nan"), "trained": 1})),
}
MANIFESTS = {
    "no model": edit(drop("model")),
    "a model of text": edit(put("model", value="nano")),
    "no fingerprint": edit(put("model", value={"name": "nano"})),
    "leaks in a list": edit(put("leaks", value=[1])),
    "a leak without examples": edit(put("leaks", value={"gsm8k": {"tasks": 1, "of": 2}})),
}
CONFIGS = {
    **NODES,
    **TEXTS,
    "an unknown key": replace("colour: red\n"),
    "wrong types": replace("team: 3\n"),
    "a bomb of aliases": replace("a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )),
    "a bomb of merges": replace("a: &a {x: 1}\n" + "".join(
        f"{new}: &{new} {{<<: [{', '.join([f'*{old}'] * 9)}], {new}: 1}}\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )),
    "a circle": replace("a: &a [*a]\n"),
}  # fmt: skip
TRANSCRIPTS = {
    "no turns": edit_line(drop("turns")),
    "turns of text": edit_line(put("turns", value=["hello"])),
    "no benchmark": edit_line(drop("benchmark")),
    "an odd moment": edit_line(put("when", value={"then": 1})),
}
EVALUATED = {
    "no sample": edit_line(drop("sample")),
    "a reward of text": edit_line(put("reward", value="1")),
    "turns of numbers": edit_line(put("turns", value=[1, 2])),
    "tokens of text": edit_line(put("tokens", value={"ann": "many"})),
    "another task": edit_line(put("task", value="elsewhere")),
}
CELLS = {
    "no cells": edit(drop("cells")),
    "a cell of text": edit(put("cells", value=["team"])),
    "a cell without figures": edit(put("cells", value=[{"name": "team", "seed": 0}])),
    "no question": edit(drop("question")),
    "seeds of text": edit(put("question", "seeds", value="one")),
}


# --- checkpoints that are sealed anew: their hashes are right, and what they hold is not -------------------------------
def sealed(name: str, damage: Damage) -> Damage:
    """Of a run: in each of its checkpoints."""

    def everywhere(run: Path) -> None:
        for folder in sorted((run / "checkpoints").iterdir()):
            damage(folder / name)
            (folder / MANIFEST).unlink()
            seal(folder, int(folder.name))

    return everywhere


def tensors(change: Callable[[dict[str, torch.Tensor]], Mapping[str, torch.Tensor]]) -> Damage:
    """Of a file of safetensors."""

    def damage(path: Path) -> None:
        save_file(dict(change(load_file(path))), path)

    return damage


def first(change: Callable[[torch.Tensor], torch.Tensor]) -> Damage:
    def of(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: change(each) if i == 0 else each for i, (name, each) in enumerate(sorted(found.items()))}

    return tensors(of)


ADAPTER = "agents/ann"
SCALINGS: dict[str, Damage] = {
    **TEXTS,
    "a folder": instead(Path.mkdir),
    "empty": replace(""),
    **{f"r: {json.dumps(r)}": edit(put("r", value=r)) for r in (0, -1, 1.5, True, None, "8", {"of": 8}, [8], 10**9, 10**30)},
    **{f"alpha: {a}": edit(put("lora_alpha", value=a)) for a in (0, -4, float("nan"), float("inf"), "16", {"of": 1}, None)},
    "no r": edit(drop("r")),
    "no alpha": edit(drop("lora_alpha")),
}  # fmt: skip
WEIGHTS: dict[str, Damage] = {
    **{kind: TEXTS[kind] for kind in ("not UTF-8", "a list", "garbage", "huge")},
    "empty": replace(""),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "missing": missing,
    "a number that is none": first(lambda each: torch.full_like(each, float("nan"))),
    "an infinite number": first(lambda each: torch.full_like(each, float("-inf"))),
    "another shape": first(lambda each: each.new_zeros(3, 5, 7)),
    "whole numbers": first(lambda each: each.long()),
    "one too few": tensors(lambda found: dict(sorted(found.items())[1:])),
    "one too many": tensors(lambda found: {**found, "more": torch.zeros(2)}),
}
MOMENTS = {kind: damage for kind, damage in WEIGHTS.items() if kind != "one too few"} | {
    "a moment too few": tensors(lambda found: {name: each for name, each in found.items() if "exp_avg_sq" not in name}),
}
STATES: dict[str, Damage] = {
    **TEXTS,
    "empty": replace(""),
    "another iteration": edit(put("iteration", value=77)),
    "an iteration of text": edit(put("iteration", value="2")),
    "a negative version": edit(put("version", value=-1)),
    "a rate that is no number": edit(put("rates", value={"ann": float("nan")})),
    "rates in a list": edit(put("rates", value=[1])),
    "a key of a later version": edit(put("momentum", value=1)),
}
for kinds in (STATES, SCALINGS, WEIGHTS, MOMENTS):
    kinds.pop("huge", None)  # hashing it takes long
SEALED: dict[str, Mapping[str, Damage]] = {
    "state.json": STATES,
    f"{ADAPTER}/adapter_config.json": SCALINGS,
    f"{ADAPTER}/adapter_model.safetensors": WEIGHTS,
    "critics/critic/value_head.safetensors": WEIGHTS,
    "optimizers/ann.safetensors": MOMENTS,
    ADAPTER: {"missing": missing, "a file": instead(Path.touch)},
}


# --- checkpoints whose hashes are wrong --------------------------------------------------------------------------------
def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


BROKEN: dict[str, Damage] = {
    "a flipped bit": lambda folder: flipped(folder / ADAPTER / "adapter_model.safetensors"),
    "no manifest": lambda folder: missing(folder / MANIFEST),
    "an empty manifest": lambda folder: replace("")(folder / MANIFEST),
    "a manifest that is a list": lambda folder: replace("[]")(folder / MANIFEST),
    "a deep manifest": lambda folder: TEXTS["deep"](folder / MANIFEST),
    "hashes in a list": lambda folder: edit(put("files", value=[1]))(folder / MANIFEST),
    "a manifest of another iteration": lambda folder: edit(put("iteration", value=9))(folder / MANIFEST),
    "a FIFO for a manifest": lambda folder: NODES["a FIFO"](folder / MANIFEST),
    "a FIFO for weights": lambda folder: NODES["a FIFO"](folder / ADAPTER / "adapter_model.safetensors"),
    "a device for a state": lambda folder: NODES["a device"](folder / "state.json"),
    "a folder for a state": lambda folder: NODES["a folder"](folder / "state.json"),
    "a dangling link for an adapter": lambda folder: NODES["a dangling link"](folder / ADAPTER),
    "a file for the folder": lambda folder: instead(Path.touch)(folder),
    "a FIFO for the folder": lambda folder: NODES["a FIFO"](folder),
    "a dangling link for the folder": lambda folder: NODES["a dangling link"](folder),
    "nothing in it": lambda folder: instead(Path.mkdir)(folder),
}
