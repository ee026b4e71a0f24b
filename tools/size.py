"""Size of the package with its limits: `make size`.

Lines are all lines of Python files. Imports count wherever they are, at the top of a
module or in a function. The path from text to op has the modules of `TEXT_TO_OP` that
`training.train` reaches by imports.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIBRARY = ("keras_seqconv", "keras_seqconv_cli")
LONGEST = 500
# Packages and modules between a text and a convolution.
TEXT_TO_OP = {
    "data", "layers", "losses", "metrics", "models", "ops", "optimizers", "presets",
    "schedules", "support", "tokenizers", "training",
}  # fmt: skip


def files_of(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def module_of(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def definitions(path: Path) -> int:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return sum(isinstance(n, kinds) for n in ast.walk(ast.parse(path.read_text())))


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """Modules of the package that a file imports, wherever in the file."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                imported.add(name if name in modules else node.module)
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    return imported & modules


def reached(start: str, graph: dict[str, set[str]]) -> set[str]:
    seen, waiting = set(), [start]
    while waiting:
        if (module := waiting.pop()) not in seen:
            seen.add(module)
            waiting += graph[module]
    return seen


def main():
    paths = [path for folder in LIBRARY for path in files_of(folder)]
    tests = files_of("tests")
    modules = {module_of(path) for path in paths}
    graph = {module_of(path): imports_of(path, modules) for path in paths}
    cycles = {m for m in modules if any(m in reached(n, graph) for n in graph[m])}
    train = reached("keras_seqconv.training.train", graph)
    path_to_op = {m for m in train if {*m.split(".")[1:2]} & TEXT_TO_OP}
    long = [
        f"{path.relative_to(ROOT)} {lines_of(path)}"
        for path in paths
        if lines_of(path) > LONGEST and path.name != "presets.py"
    ]
    rows = [
        ("library and command line, lines", sum(map(lines_of, paths)), 22_500),
        ("library and command line, files", len(paths), 92),
        (f"files above {LONGEST} lines but presets.py", len(long), 0),
        ("`def` and `class`, nested ones counted", sum(map(definitions, paths)), 1_280),
        ("tests, lines", sum(map(lines_of, tests)), 17_000),
        ("modules in an import cycle", len(cycles), 0),
        ("modules from text to op in `training`", len(path_to_op), 35),
        ("README, lines", len((ROOT / "README.md").read_text().splitlines()), 150),
    ]
    print(f"| {'':52} |    now | at most |\n|{'-' * 54}|-------:|--------:|")
    for name, value, limit in rows:
        print(f"| {name:52} | {value:6,} | {limit:7,} |")
    for line in long:
        print(f"above {LONGEST}: {line}")
    packages: dict[str, list[int]] = {}
    for path in paths:
        parts = path.relative_to(ROOT).parts
        package = parts[0] if parts[0] != LIBRARY[0] else "/".join(parts[1:-1]) or "/"
        packages.setdefault(package, []).append(lines_of(path))
    print("\n| package | files | lines |\n|---|--:|--:|")
    for package, lines in sorted(packages.items(), key=lambda item: -sum(item[1])):
        print(f"| {package} | {len(lines)} | {sum(lines):,} |")


if __name__ == "__main__":
    main()
