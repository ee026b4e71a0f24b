"""Which model directory is meant, told without reading one (or loading Keras)."""

import os
from pathlib import Path


def model_folder(path: str | os.PathLike) -> Path:
    """The model directory: `path` itself, or `model` in the folder of a run.

    Raises:
        FileNotFoundError: there is none; says which file is missing, and what to do.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder} with a saved model.")
    if (folder / "run.json").is_file():
        if not (folder / "model").is_dir():
            raise FileNotFoundError(
                f"The run {folder} has no model yet: `keras-seqconv train` makes it at "
                f"its end, `keras-seqconv average {folder}` makes one of what is there."
            )
        folder = folder / "model"
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"{folder / 'config.json'} is missing: {folder} is no model directory, and "
            "no folder of a run."
        )
    return folder
