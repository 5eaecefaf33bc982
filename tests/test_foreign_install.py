"""``foreign/install.py``, which installs packages of npm for the tests of `McpToolset`.

Its npm and Node.js are small scripts here: nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

HERE = Path(__file__).parent
#: Seconds after which a test takes something for hanging.
LONG: Final = 60.0


def fake_npm(folder: Path, script: str) -> dict[str, str]:
    """An environment whose npm is ``script``, and whose Node.js says that it is new enough."""
    programs = {"node": "echo v22.0.0", "npm": script}
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def install(folder: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / "foreign" / "install.py"), str(folder)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def test_two_runs_at_once_install_once(tmp_path: Path) -> None:
    env = fake_npm(tmp_path / "bin", f"echo x >> {tmp_path}/runs; sleep 0.5; mkdir node_modules")
    runs = [install(tmp_path / "cache", env) for _ in range(2)]
    said = [json.loads(run.communicate(timeout=LONG)[0]) for run in runs]
    assert said[0] == said[1]
    assert Path(said[0]["modules"]).is_dir()
    assert (tmp_path / "runs").read_text() == "x\n"


def test_an_npm_that_fails_gives_the_reason_and_leaves_nothing(tmp_path: Path) -> None:
    env = fake_npm(tmp_path / "bin", "echo no network >&2; exit 1")
    run = install(tmp_path / "cache", env)
    assert run.communicate(timeout=LONG)[0] == "npm install failed: no network\n"
    assert run.returncode == 3
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"]
