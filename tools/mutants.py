"""Small mistakes, made one by one by Cosmic Ray, that the tests must notice.

    python tools/mutants.py [AREA ...] [--seed 0] [--each 20] [--jobs 2]

From every area, `--each` mutants are drawn; each is applied in a copy of the checkout
and must fail a test of its own area. Results are appended as they come, so a
stopped run goes on; the table and the survivors are printed at the end.
"""

import argparse
import ast
import concurrent.futures
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

CHECKOUT = Path(__file__).parents[1]

# Area: (its modules, its tests).
AREAS = {
    "ops": (["ops"], ["ops", "layers/test_adaptive.py"]),
    "layers": (["layers"], ["layers"]),
    "decoding": (["decoding"], ["decoding"]),
    "losses": (["losses.py"], ["test_losses.py"]),
    "optimizers": (
        ["optimizers"], ["test_optimizers.py", "models/test_token_training.py"],
    ),
    "checkpoints": (
        ["checkpoints.py"], ["test_checkpoints.py", "callbacks/test_fitting.py"],
    ),
    "batches": (
        ["translation/text_model.py", "data/batches.py", "data/ids.py"],
        [
            "test_text_model.py", "data/test_batches.py", "data/test_ids.py",
            "test_language_generator.py",
        ],
    ),
    "export": (["export"], ["export", "cli/test_export.py"]),
}  # fmt: skip

# What only slow tests see: a loader of the server's own, all kinds of models, replicas.
SLOW = {"export": ["export/test_kinds.py"], "optimizers": ["test_distributed.py"]}

# Of Cosmic Ray's operators those whose mutants still run: `a << b` of two tensors would
# fail any test, and say nothing about it.
OPERATORS = [
    f"core/{name}"
    for name in (
        *(f"ReplaceBinaryOperator_{pair}" for pair in (
            "Add_Sub", "Sub_Add", "Mul_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul",
            "Mod_Add", "Pow_Mul", "BitAnd_BitOr", "BitOr_BitAnd",
        )),
        *(f"ReplaceComparisonOperator_{pair}" for pair in (
            "Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Lt_Gt",
            "Gt_Lt", "Is_IsNot", "IsNot_Is",
        )),
        "ReplaceUnaryOperator_Delete_USub", "ReplaceUnaryOperator_Delete_Not", "AddNot",
        "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr",
        "ReplaceOrWithAnd", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak",
        "NumberReplacer", "ZeroIterationForLoop",
    )
]  # fmt: skip


def annotations(source: str) -> list[tuple]:
    """Where type annotations begin and end: a mutant there fails every test or none."""
    found = []
    for node in ast.walk(ast.parse(source)):
        for name in ("annotation", "returns"):
            part = getattr(node, name, None)
            if isinstance(part, ast.AST):
                start, end = (
                    (part.lineno, part.col_offset),
                    (part.end_lineno, part.end_col_offset),
                )
                found.append((start, end))
    return found


def mutants_of(module: Path) -> list[dict]:
    """All mutants of one module: its path, the operator, which occurrence, the line."""
    source = module.read_text()
    left_out = annotations(source)
    nodes = list(ast_nodes(get_ast(source)))
    found = []
    for name in OPERATORS:
        operator = get_operator(name)()
        positions = (
            position for node in nodes for position in operator.mutation_positions(node)
        )
        found += [
            {
                "module": str(module.relative_to(CHECKOUT)),
                "operator": name.removeprefix("core/"),
                "occurrence": occurrence,
                "line": start[0],
            }
            for occurrence, (start, _) in enumerate(positions)
            if not any(first <= start < last for first, last in left_out)
        ]
    return found


def drawn(areas: list[str], seed: int, each: int) -> list[dict]:
    """`each` mutants of every area, the same for the same seed and code."""
    found = []
    for area in areas:
        paths = [CHECKOUT / "keras_seqconv" / module for module in AREAS[area][0]]
        files = [
            file for path in paths for file in (sorted(path.glob("*.py")) or [path])
        ]
        mutants = [mutant for file in files for mutant in mutants_of(file)]
        chosen = random.Random(f"{seed} {area}").sample(
            mutants, min(each, len(mutants))
        )
        found += [{"area": area, **mutant} for mutant in chosen]
    return found


def copied(folder: Path) -> Path:
    """A copy of the checkout, with the shared material beside it."""
    copy = folder / "main"
    ignore = shutil.ignore_patterns(
        ".git", ".venv", "build", "runs", "*.egg-info", "__pycache__"
    )
    shutil.copytree(CHECKOUT, copy, ignore=ignore)
    (folder / "shared").symlink_to(CHECKOUT.parent / "shared")
    return copy


def tested(copy: Path, area: str, module: str, timeout: float | None) -> str:
    """How the area's tests end: "passed", "failed" or "too slow".

    The quick ones on TensorFlow, then on JAX: some lines run on one of them only.
    """
    tests = [copy / "tests" / test for test in AREAS[area][1]]
    slow = [copy / "tests" / test for test in SLOW.get(area, [])]
    # What has the module's name comes first: most mutants die there.
    namesakes = [
        file for test in tests for file in test.glob(f"test_{Path(module).stem}*.py")
    ]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    for backend, marks, files in (
        ("tensorflow", "not slow", [*namesakes, *tests]),
        ("jax", "not slow and not tensorflow", [*namesakes, *tests]),
        ("tensorflow", "slow", slow),
    ):
        if not files:
            continue
        environment = {
            "PYTHONPATH": str(copy),
            "PYTHONDONTWRITEBYTECODE": "1",
            "KERAS_BACKEND": backend,
        }
        try:
            done = subprocess.run(
                [*command, "-m", marks, *files],
                cwd=copy,
                env={**os.environ, **environment},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            return "too slow"
        if done.returncode not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
            return "failed"
    return "passed"


def judged(copy: Path, mutant: dict, timeout: float) -> dict:
    """The mutant with the end of its tests; the copy is as before afterwards."""
    file = copy / mutant["module"]
    source = file.read_text()
    operator = get_operator(f"core/{mutant['operator']}")()
    begun = time.monotonic()
    try:
        file.write_text(mutate_code(source, operator, mutant["occurrence"]))
        end = tested(copy, mutant["area"], mutant["module"], timeout)
        changed = [
            f"{old.strip()}  ->  {new.strip()}"
            for old, new in zip(
                source.splitlines(), file.read_text().splitlines(), strict=True
            )
            if old != new
        ]
    finally:
        file.write_text(source)
    seconds = round(time.monotonic() - begun)
    return {**mutant, "change": "; ".join(changed), "end": end, "seconds": seconds}


def say(*words) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def run(mutants: list[dict], results: Path, jobs: int, timeout: float) -> None:
    """Judges what has no result yet, `jobs` at a time, each in a copy of its own."""
    with tempfile.TemporaryDirectory() as folder:
        copies = [copied(Path(folder) / str(job)) for job in range(jobs)]
        with (
            concurrent.futures.ThreadPoolExecutor(jobs) as pool,
            results.open("a") as file,
        ):

            def in_a_copy(function, *arguments):
                copy = copies.pop()
                try:
                    return function(copy, *arguments)
                finally:
                    copies.append(copy)

            def unchanged(area):
                if in_a_copy(tested, area, "", timeout) != "passed":
                    raise SystemExit(f"the tests of {area} fail without a mutant")

            def work(mutant):
                result = in_a_copy(judged, mutant, timeout)
                say(*(result[key] for key in ("area", "module", "line", "end")))
                file.write(json.dumps(result) + "\n")
                file.flush()

            list(pool.map(unchanged, {mutant["area"] for mutant in mutants}))
            list(pool.map(work, mutants))


def table(results: list[dict]) -> str:
    """Markdown: by area the mutants, those that died, and the survivors below."""
    lines = ["| area | mutants | died | share |", "|---|---|---|---|"]
    for area in [*AREAS, "all"]:
        ends = [result["end"] for result in results if area in ("all", result["area"])]
        if ends:
            died = sum(end != "passed" for end in ends)
            lines.append(f"| {area} | {len(ends)} | {died} | {died / len(ends):.0%} |")
    lines += ["", "Survivors:"]
    lines += [
        f"- {result['module']}:{result['line']}: `{result['change']}`"
        for result in results
        if result["end"] == "passed"
    ]
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "areas", nargs="*", metavar="AREA", help=f"of {', '.join(AREAS)}"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default 0)")
    parser.add_argument(
        "--each", type=int, default=20, help="mutants of an area (default 20)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="at a time (default 2)")
    parser.add_argument(
        "--timeout", type=float, default=900, help="seconds a mutant (default 900)"
    )
    parser.add_argument(
        "--results", type=Path, default=CHECKOUT / "build/mutants.jsonl"
    )
    options = parser.parse_args()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.touch()
    keys = ("module", "operator", "occurrence")

    def known():
        lines = options.results.read_text().splitlines()
        return {
            tuple(result[key] for key in keys): result
            for result in map(json.loads, lines)
        }

    mutants = drawn(options.areas or list(AREAS), options.seed, options.each)
    done = known()
    left = [
        mutant for mutant in mutants if tuple(mutant[key] for key in keys) not in done
    ]
    say(f"{len(mutants)} mutants with seed {options.seed}, {len(left)} to judge")
    run(left, options.results, options.jobs, options.timeout)
    done = known()
    say(table([done[tuple(mutant[key] for key in keys)] for mutant in mutants]))


if __name__ == "__main__":
    main()
