"""The documentation: `make docs` builds it, runs it, and fails on a warning."""

import dataclasses
import inspect
import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
# Of the notebooks' kernels as well.
os.environ["PYTHONPATH"] = f"{HERE.parent}:{HERE}"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# What examples write: one folder, so that a model is trained once for all pages.
os.environ["DOCS_WORK"] = str(HERE / "_build" / "work")

import keras  # noqa: E402

from keras_seqconv import __version__  # noqa: E402
from keras_seqconv.training_options import TrainingOptions  # noqa: E402

project = "keras_seqconv"
author = "the keras_seqconv developers"
copyright = author
version = release = __version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = project
html_copy_source = False
html_show_copyright = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

highlight_language = "text"
nb_execution_mode = "force"
nb_execution_timeout = 900  # of a cell, on the slowest machine seen
nb_execution_in_temp = True
# Of pages that were not run (`make docs EXECUTE=off`) no kernel tells the language.
suppress_warnings = ["myst-nb.lexer"]
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_output_stderr = "remove"
nb_merge_streams = True
nb_render_markdown_format = "gfm"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Call arguments", "params_style")]


def _margin(line: str) -> int:
    return len(line) - len(line.lstrip())


def _code(match):
    """`name` of Markdown, of which the plural may follow: `name`s."""
    return f"``{match[1]}``" + (f"\\ {match[2]}" if match[2] else "")


def markdown_to_rst(app, what, name, obj, options, lines):
    """Fenced code and tables of a docstring, which Sphinx would take for text."""
    text = "\n".join(lines)

    def fence(match):
        indent, body = match[1], match[2]
        body = "\n".join(
            f"    {line}" if line.strip() else "" for line in body.split("\n")
        )
        return f"{indent}.. code-block:: python\n\n{body}\n"

    text = re.sub(
        r"^( *)```(?:py(?:thon)?)?\n(.*?)^ *```$", fence, text, flags=re.M | re.S
    )

    def table(match):
        indent = re.match(" *", match[0])[0]
        rows = [
            [cell.strip() for cell in line.strip().strip("|").split("|")]
            for line in match[0].rstrip("\n").split("\n")
        ]
        out = [f"{indent}.. list-table::", f"{indent}   :header-rows: 1", ""]
        for head, *cells in [row for row in rows if set(row[0]) - set("-:")]:
            out.append(f"{indent}   * - {head}")
            out += [f"{indent}     - {cell}" for cell in cells]
        return "\n" + "\n".join(out) + "\n\n"

    text = re.sub(r"(?:^ *\|.*\|$\n?){2,}", table, text, flags=re.M)

    # A paragraph that is further in than the one above it is a formula or code.
    paragraphs = text.split("\n\n")
    for place in range(1, len(paragraphs)):
        above, below = (
            paragraphs[place - 1].rstrip("\n"),
            paragraphs[place].lstrip("\n"),
        )
        margin = _margin(above.split("\n")[-1])
        literal = above.lstrip().startswith((".. ", "::"))
        if below and not literal and _margin(below.split("\n")[0]) >= margin + 4:
            paragraphs[place - 1] = f"{above}\n\n{' ' * margin}::"
    text = "\n\n".join(paragraphs)
    # Names that begin with stars or end in an underscore are no markup.
    text = re.sub(
        r"(?<![\w*`])(\*\*?)(?=\w)", lambda stars: "\\*" * len(stars[1]), text
    )
    text = re.sub(r"(?<=\w)_(?![\w`])", r"\\_", text)
    text = re.sub(r"(?<!`)`([^`]+)`(\w?)", _code, text)
    lines[:] = text.split("\n")


def real_signature(app, what, name, obj, options, signature, returns):
    """Of the constructor: Keras' classes hide it behind `__new__(*args, **kwargs)`."""
    if what == "class" and issubclass(obj, (keras.Layer, keras.Model)):
        parameters = list(inspect.signature(obj.__init__).parameters.values())
        return str(inspect.Signature(parameters[1:])), returns
    if obj is TrainingOptions:  # listed below
        return "(**options)", None
    return None


def options_of(app, what, name, obj, options, lines):
    """The options of training with their texts."""
    if obj is TrainingOptions:
        for field in dataclasses.fields(obj):
            lines += ["", f"- ``{field.name}``: {field.metadata['help']}"]


def is_left_out(app, what, name, obj, skip, options):
    """Fields of a named tuple stand in the docstring of its class."""
    return skip or (getattr(obj, "__doc__", "") or "").startswith("Alias for field")


def setup(app):
    app.connect("autodoc-process-docstring", options_of, priority=900)
    app.connect("autodoc-skip-member", is_left_out)
    app.connect("autodoc-process-signature", real_signature)
    app.connect("autodoc-process-docstring", markdown_to_rst, priority=400)
