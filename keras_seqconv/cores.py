"""The processor's cores that this process may use."""

import os


def available_cores() -> int:
    mine = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(mine(0)) if mine else os.cpu_count() or 1
