"""The examples for clusters are well formed, and what they run is understood by marft."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from marft.arguments import parse_arguments, split_words
from marft.config import Config, load_config
from marft.distributed.ray_connection import HEALTH

CLUSTER = Path(__file__).parents[2] / "docs" / "cluster"
JOB, SCRIPT = CLUSTER / "rayjob.yaml", CLUSTER / "slurm.sbatch"


def config_of(command: str) -> Config:
    arguments = parse_arguments(shlex.split(command)[1:])
    source, overrides = split_words(arguments.words)
    return load_config(source, overrides)


def job() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(JOB.read_text())
    return read


def test_the_job_trains_on_its_own_cluster() -> None:
    [line] = re.findall(r"else (marft train .*?);", job()["spec"]["entrypoint"])
    config = config_of(line)
    cluster = job()["spec"]["rayClusterSpec"]
    [players] = cluster["workerGroupSpecs"]
    [player] = players["template"]["spec"]["containers"]
    assert config.cluster.address == "auto"
    assert config.workers == players["replicas"]
    assert config.rollout.threads == int(player["resources"]["limits"]["cpu"])
    assert player["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0", "num-gpus": "0"}


def test_the_script_is_bash_and_trains_on_its_own_cluster() -> None:
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    text = SCRIPT.read_text()
    [words] = re.findall(r"words=\((gsm8k.*?)\)", text, re.DOTALL)
    filled = words.replace('"$players"', "7").replace('"$threads"', "4").replace('"$address"', "10.0.0.1:6379")
    config = config_of(f"marft train {' '.join(filled.split())} --run RUN")
    assert (config.workers, config.rollout.threads, config.cluster.address) == (7, 4, "10.0.0.1:6379")
    assert "RAY_AUTH_MODE=token" in text


@pytest.mark.parametrize("path", [JOB, SCRIPT, CLUSTER.parent / "ray.md"], ids=lambda path: path.name)
def test_they_check_health_as_often_as_we_do(path: Path) -> None:
    text = re.sub(r'", value: "|, value: "', "=", path.read_text())
    for name, value in HEALTH.items():
        assert f"{name}={value}" in text
