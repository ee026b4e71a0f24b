"""What a table was measured on, for the line above it."""

import datetime
import os
import platform
from importlib.metadata import version
from pathlib import Path


def machine() -> str:
    """Date, processor, cores, and the versions that matter."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    name = names[0] if names else platform.machine()
    return (
        f"{datetime.date.today()}, {name}, {os.cpu_count()} cores, Linux "
        f"{platform.release()}, Python {platform.python_version()}, TensorFlow "
        f"{version('tensorflow')}, Keras {version('keras')}"
    )
