"""What the pages say of the command line; `make docs` runs their examples."""

import argparse
import importlib
import re
from importlib.util import find_spec
from pathlib import Path

from keras_seqconv_cli import COMMANDS, FAIRSEQ

ROOT = Path(__file__).parents[1]
PAGES = sorted(ROOT.glob("docs/*.md"))


def flags() -> set[str]:
    """All flags of all commands, those of commands of commands too."""
    from keras_seqconv_cli import Parser

    found, waiting = set(), []
    for command in COMMANDS:
        parser, name = Parser(), command.replace("-", "_")
        importlib.import_module(f"keras_seqconv_cli.{name}").add_arguments(parser)
        waiting.append(parser)
    while waiting:
        for action in waiting.pop()._actions:
            found |= set(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                waiting += action.choices.values()
    return found


def test_flags_of_the_fairseq_page_exist():
    """The right column names ours; where it says none, it may name fairseq's."""
    text = next(page for page in PAGES if page.name == "fairseq.md").read_text()
    ours = [row.split("|")[2] for row in text.splitlines() if row.startswith("| `--")]
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", " ".join(ours)))
    assert len(named) > 60
    assert named <= flags()
    for theirs, words in FAIRSEQ.items():
        assert f"`{theirs}" in text and set(words.split()) <= flags(), theirs


def test_flags_and_files_of_all_pages_exist():
    """In blocks and within lines; names of files end those of the repository."""
    known = "".join(f"{path}\n" for path in ROOT.glob("[!.]*/**/*.py"))
    more = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("benchmarks/*.md")]
    commands = r"^    keras-seqconv .*(?:\\\n.*)*|`keras-seqconv [^`]*"
    for page in [*PAGES, *more]:
        text = page.read_text()
        for command in re.findall(commands, text, re.MULTILINE):
            named = set(re.findall(r"--[a-z][\w-]+", command))
            assert named <= flags(), f"{page.name}: {command}"
        for name in re.findall(r"[`( ]((?:\w+/)*\w+\.py)\b", text):
            assert f"/{name}\n" in known, f"{page.name}: {name}"


def test_the_reference_has_every_public_module_and_command():
    import keras_seqconv as ks

    pages = "".join(page.read_text() for page in ROOT.glob("docs/reference/*.md"))
    modules = [name for name in ks.__all__ if find_spec(f"keras_seqconv.{name}")]
    assert len(modules) > 15
    for name in modules:
        assert f"keras_seqconv.{name}" in pages, name
    for name in COMMANDS:
        assert f'show("{name}")' in pages, name
