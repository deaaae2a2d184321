"""Builds the programs once for each version of their source, and talks to them over pipes."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, Final

import msgspec

HERE: Final = Path(__file__).parent
JARS: Final = Path("/usr/share/java")
JACKSON: Final = [JARS / f"jackson-{part}.jar" for part in ("annotations", "core", "databind")]


class Program(msgspec.Struct, frozen=True):
    """One program: how it is built (`OUT` is the file that is made, none for what needs no build) and run.

    `needs`: files without which it cannot be built, apart from the tool itself.
    """

    source: str
    run: tuple[str, ...]
    build: tuple[str, ...] = ()
    needs: tuple[Path, ...] = ()

    def missing(self) -> str:
        """Return what this machine lacks for the program; empty where it has everything."""
        tools = [command[0] for command in (self.build, self.run) if command and command[0] != "OUT"]
        lacking = [tool for tool in tools if shutil.which(tool) is None]
        return ", ".join(lacking + [str(path) for path in self.needs if not path.exists()])


PROGRAMS: Final = {
    "Python": Program("decode.py", (sys.executable, "SOURCE")),
    # Where Go compiled nothing before, its library is compiled, too, which takes half as long without optimization.
    "Go": Program(
        "decode.go", ("OUT",), ("go", "build", "-gcflags=all=-N -l", "-ldflags=-s -w", "-o", "OUT", "SOURCE")
    ),
    "JavaScript": Program("decode.mjs", ("node", "SOURCE")),
    "C++": Program(
        "decode.cpp", ("OUT",), ("g++", "-O0", "-o", "OUT", "SOURCE"), (Path("/usr/include/nlohmann/json.hpp"),)
    ),
    "C": Program("decode.c", ("OUT",), ("cc", "-o", "OUT", "SOURCE", "-lcjson"), (Path("/usr/include/cjson/cJSON.h"),)),
    "Java": Program(
        "Decode.java",
        ("java", "-XX:TieredStopAtLevel=1", "-cp", ":".join(map(str, ["OUT", *JACKSON])), "Decode"),
        ("javac", "-cp", ":".join(map(str, JACKSON)), "-d", "OUT", "SOURCE"),
        tuple(JACKSON),
    ),
}
"""Rust's serde_json is missing: it is no part of a standard library, and tests use no network."""


class Decoder:
    """A running program."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def understand(self, body: bytes) -> dict[str, Any]:
        """Return what the program understands, or its `error`. Line ends in valid JSON are white space."""
        stdin, stdout = self._pipes()
        stdin.write(body.replace(b"\r", b" ").replace(b"\n", b" ") + b"\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(stdout.readline())
        return answer

    def stop(self) -> None:
        """End the program."""
        stdin, stdout = self._pipes()
        stdin.close()
        self._process.wait(10)
        stdout.close()

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process.stdin is not None and self._process.stdout is not None
        return self._process.stdin, self._process.stdout


def start(program: Program, cache: Path) -> Decoder:
    """Build the program, unless `cache` has it, and start it."""
    source = HERE / program.source
    made = cache / f"{source.name}-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"
    if program.build:
        with (cache / f"{source.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes that run these tests, one builds it
            if not made.exists():
                building = made.with_name(f"{made.name}.building")
                run = subprocess.run(_filled(program.build, source, building), capture_output=True, text=True)
                assert run.returncode == 0, run.stderr
                building.rename(made)
    command = _filled(program.run, source, made)
    return Decoder(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))


def _filled(command: tuple[str, ...], source: Path, made: Path) -> list[str]:
    return [word.replace("SOURCE", str(source)).replace("OUT", str(made)) for word in command]
