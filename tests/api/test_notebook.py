"""Notebooks in a real kernel, where an event loop is running: the README's Python, and the one in examples."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat, nbclient and ipykernel (the extra dev)")
nbclient = pytest.importorskip("nbclient", reason="notebooks need nbformat, nbclient and ipykernel (the extra dev)")
pytest.importorskip("ipykernel", reason="notebooks need nbformat, nbclient and ipykernel (the extra dev)")

README = Path(__file__).parents[2] / "README.md"
QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"
SMALLER = {
    'train={"iterations": 5}': 'train={"iterations": 2, "tasks": 2, "samples": 2}, eval={"tasks": 4}, device="cpu"',
    "tasks=128": "tasks=4",
}


def code() -> str:
    """The README's block, with settings that take seconds."""
    [block] = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    for old, new in SMALLER.items():
        assert block.count(old) == 1
        block = block.replace(old, new)
    return str(block)


def execute(folder: Path, *cells: str) -> list[list[Any]]:
    """The outputs of each cell."""
    return execute_notebook(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]), folder)


def execute_notebook(notebook: Any, folder: Path) -> list[list[Any]]:
    """The outputs of each cell with code."""
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def texts(outputs: list[Any]) -> str:
    return "".join(each["text"] if "text" in each else each["data"]["text/plain"] for each in outputs)


def test_the_readme_in_a_notebook(tmp_path: Path) -> None:
    last = "await asyncio.sleep(0)\nmarft.train(resume=True, run='runs/mine', train={'iterations': 3})['iterations']"
    first, second = execute(tmp_path, code(), f"import asyncio\n{last}")
    told = texts(first)
    assert "run directory: runs/mine" in told
    assert re.search(r"iteration +2/2 ", told)
    assert "after training: held-out accuracy" in told
    assert "see runs/eval-mine-1/results.md" in told
    assert re.search(r"iteration +3/3 ", texts(second))
    assert texts(second).splitlines()[-1] == "3"
    assert len(first) + len(second) < 60  # lines, not a flood
    for output in (*first, *second):
        assert output["output_type"] in ("stream", "display_data", "execute_result")
        # tqdm's own remark where ipywidgets are missing, which comes with the libraries of Hugging Face
        assert output.get("name") != "stderr" or "IProgress not found" in output["text"], output
    assert (tmp_path / "runs" / "mine" / "summary.json").is_file()


def test_the_quickstart_in_examples(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the notebook draws a curve")
    notebook = nbformat.read(QUICKSTART, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # figures that nobody has measured again
    assert not re.search(r'["\'](/|~|[A-Z]:)', QUICKSTART.read_text(encoding="utf-8").replace("\\", ""))
    trained, curve, episodes, mine, played = execute_notebook(notebook, tmp_path)
    assert re.search(r"iteration +4/4 ", texts(trained))
    assert re.search(r"held out: 0\.\d\d before, \d\.\d\d after", texts(trained))
    assert any("image/png" in each.get("data", {}) for each in curve)
    assert texts(episodes).count("  solver: ") == 2
    assert re.search(r"calls of the solver: \{'calls': \d+", texts(mine))
    assert "  on_the_dial: '" in texts(played) or "  solver: 'Answer" in texts(played)
    assert (tmp_path / "runs" / "dial" / "summary.json").is_file()
