"""What a table was measured on, for the line above it; lines of text; processes."""

import datetime
import os
import platform
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

# Of the Python that runs the script.
PROGRAM = str(Path(sys.executable).with_name("keras-seqconv"))


def lines_of(path: Path) -> list[str]:
    """Lines by LF alone: a text may hold the other ends of `splitlines`."""
    return path.read_bytes().decode().removesuffix("\n").split("\n")


def in_a_process(function, *arguments):
    """The result in a new process, which has its own peak memory and settings."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def machine() -> str:
    """Date, processor, cores, and the versions that matter."""
    info = Path("/proc/cpuinfo")  # of Linux
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    name = names[0] if names else platform.machine()
    if "jax" in sys.modules:
        name += f", {sys.modules['jax'].devices()[0].device_kind}"
    versions = [
        f"{package} {version(package)}"
        for package in ("tensorflow", "jax", "keras")
        if find_spec(package)
    ]
    return (
        f"{datetime.date.today()}, {name}, {os.cpu_count()} cores, {platform.system()} "
        f"{platform.release()}, Python {platform.python_version()}, "
        f"{', '.join(versions)}"
    )
