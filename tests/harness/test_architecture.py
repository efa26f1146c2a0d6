"""The house rules, read from the source: who imports whom, how long a file is, which links exist.

Each rule is a function from the repository's root to a list of violations, so that the same function
is run on the tree and on copies of it with a planted violation.
"""

import ast
import os
import shutil
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("impls", "kernels", "proofs_checks", "verify")
HARNESS = "linattest.verify"
OPERATORS = f"{HARNESS}.operators"

# What a module may import of ours, by the longest prefix that matches its name. The harness reaches an
# implementation by the name in a record, never by statement: so an oracle can reach none through its imports.
PAGE_IMPORTS = ("signature", "spec", "numbers", "tolerance", "operators", "properties")
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "linattest": (),
    "linattest.__main__": (f"{HARNESS}.cli",),
    "linattest.impls": ("linattest.impls",),
    "linattest.kernels": ("linattest.kernels", "linattest.impls.arguments", "linattest.impls.once"),
    f"{HARNESS}.signature": (),
    f"{HARNESS}.spec": (f"{HARNESS}.signature",),
    f"{HARNESS}.numbers": (f"{HARNESS}.spec",),
    f"{HARNESS}.tolerance": (f"{HARNESS}.spec", f"{HARNESS}.numbers"),
    OPERATORS: tuple(f"{HARNESS}.{module}" for module in PAGE_IMPORTS),
    HARNESS: (HARNESS, "linattest.__version__"),
    f"{HARNESS}.claims": (HARNESS, "linattest.impls", "linattest.kernels", "linattest.proofs_checks"),
    f"{HARNESS}.experiments": (HARNESS, "linattest.impls"),
    f"{HARNESS}.cli": (HARNESS, "linattest.__version__"),
    f"{HARNESS}.commands.prove": (HARNESS, "linattest.proofs_checks"),
    "linattest.proofs_checks": ("linattest",),
    "benchmarks": ("linattest", "benchmarks"),
    "tests": ("linattest", "benchmarks"),
}
# Only these may import the command line, the room's front door.
MAY_IMPORT_CLI = ("linattest.__main__", f"{HARNESS}.cli", "tests")
# Ways to import that a reader of import statements does not see; an oracle uses none.
DYNAMIC_IMPORTS = ("importlib", "runpy", "__import__")

LINES = {"kernels": 350, "tests": 250}
LINES_ELSEWHERE = 300
SKIPPED = {"__pycache__", "build", "dist"}


def source_files(root: Path) -> Iterator[Path]:
    """Yield every .py file git would track: not in links, hidden folders, environments or build outputs."""
    for folder, subfolders, files in os.walk(root):
        kept = (d for d in subfolders if d not in SKIPPED and not d.startswith("."))
        subfolders[:] = sorted(d for d in kept if not Path(folder, d, "pyvenv.cfg").exists())
        yield from (Path(folder, f) for f in sorted(files) if f.endswith(".py"))


def module_name(root: Path, file: Path) -> str:
    """Return the dotted name under which a file is imported: verify/spec.py is linattest.verify.spec."""
    parts = file.relative_to(root).with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else ("linattest", *parts) if parts[0] in ROOMS else parts
    return ".".join(part for part in parts if part != "__init__")


def within(name: str, prefixes: tuple[str, ...]) -> bool:
    """Whether a dotted name is one of these modules or lies in one of them."""
    return any(name == p or name.startswith(p + ".") for p in prefixes)


def imports(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield (line, dotted name, local name) of each import, at any depth; a relative one keeps its dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            base = "" if isinstance(node, ast.Import) else f"{'.' * node.level}{node.module or ''}."
            for alias in node.names:
                yield node.lineno, base + alias.name, alias.asname or alias.name


def import_violations(root: Path) -> list[str]:
    """List imports against the direction, relative ones, and ones by a folder's bare name."""
    files = ((module_name(root, file), file) for file in source_files(root))
    return [v for m, f in files for v in _violations_of(m, str(f.relative_to(root)), f.read_text(encoding="utf-8"))]


@cache  # by a file's text: a planted violation is one file among hundreds that are as they were
def _violations_of(module: str, path: str, text: str) -> list[str]:
    found: list[str] = []
    rule = max((p for p in MAY_IMPORT if within(module, (p,))), key=len, default=None)
    tree = ast.parse(text, path)
    for line, name, _ in imports(tree):
        top = name.split(".")[0]
        allowed = MAY_IMPORT[rule] if rule else ()
        if name.startswith("."):
            why = "write the absolute name, linattest.*"
        elif top in ROOMS:
            why = f"write linattest.{name}: a bare {top!r} can be another project's package"
        elif top in ("tests", "conftest"):
            why = "nothing imports tests: share by a fixture or a module of the harness"
        elif name == "linattest" and "linattest.__version__" in allowed:
            continue  # the package's own attributes
        elif top in ("linattest", "benchmarks") and not within(name, allowed):
            why = f"{rule or path} may import {', '.join(allowed) or 'nothing of ours'}"
        elif within(name, (f"{HARNESS}.cli",)) and not within(module, MAY_IMPORT_CLI):
            why = f"only {', '.join(MAY_IMPORT_CLI)} may"
        else:
            continue
        found.append(f"{path}:{line}: imports {name}; {why}")
    if within(module, (OPERATORS,)):
        names = [(n.lineno, n.id) for n in ast.walk(tree) if isinstance(n, ast.Name)]
        for line, name in [*names, *((line, name) for line, name, _ in imports(tree))]:
            if within(name, DYNAMIC_IMPORTS):
                found.append(f"{path}:{line}: uses {name}; a page imports by statement only")
    return found


def link_violations(root: Path) -> list[str]:
    """List disagreements between the folders, the links to them and the list pyright checks."""
    links = {p.name: p for p in (root / "src" / "linattest").iterdir() if p.is_symlink()}
    missing = (room for room in ROOMS if room not in links)
    found = [f"src/linattest/{room}: no link; ln -s ../../{room} src/linattest/{room}" for room in missing]
    found += [f"src/linattest/{name}: a link, but {name} is no room" for name in links if name not in ROOMS]
    for name in sorted(links.keys() & set(ROOMS)):
        if links[name].resolve() != (root / name).resolve():
            found.append(f"src/linattest/{name}: links to {os.readlink(links[name])}, expected ../../{name}")
    for room in ROOMS:
        for file in (root / room).rglob("__init__.py"):
            found.append(f"{file.relative_to(root)}: rooms have no __init__.py (README.md of each says why)")
    checked = set(tomllib.loads((root / "pyproject.toml").read_text())["tool"]["pyright"]["include"])
    expected = {"src/linattest", "tests", "benchmarks", *(f"src/linattest/{room}" for room in ROOMS)}
    for path in sorted(checked ^ expected):
        action = "remove it from" if path in checked else "add it to"
        found.append(f"{path}: {action} [tool.pyright] include: src/linattest, each link, tests, benchmarks")
    return found


def length_violations(root: Path) -> list[str]:
    """List files longer than their room's budget."""
    found: list[str] = []
    for file in source_files(root):
        path = file.relative_to(root)
        budget = LINES.get(path.parts[0], LINES_ELSEWHERE)
        lines = len(file.read_text(encoding="utf-8").splitlines())
        if lines > budget:
            found.append(f"{path}: {lines} lines, at most {budget} in {path.parts[0]}/; split it by subject")
    return found


def registry_violations(root: Path) -> list[str]:
    """List pages in verify/operators that no tuple of verify/registry.py mentions."""
    registry, pages = root / "verify" / "registry.py", sorted((root / "verify" / "operators").glob("*.py"))
    tree = ast.parse(registry.read_text(encoding="utf-8") if registry.exists() else "")
    page_of = {
        local: name.removeprefix(f"{OPERATORS}.").split(".")[0]
        for _, name, local in imports(tree)
        if within(name, (OPERATORS,))
    }
    values = (n.value for n in tree.body if isinstance(n, ast.Assign | ast.AnnAssign))
    names = (n for v in values if isinstance(v, ast.Tuple) for n in ast.walk(v) if isinstance(n, ast.Name))
    registered = {page_of.get(name.id) for name in names}
    missing = (page.name for page in pages if page.stem not in registered)
    return [f"verify/operators/{name}: in no tuple of verify/registry.py; add it there" for name in missing]


RULES = [import_violations, link_violations, length_violations, registry_violations]


@pytest.mark.parametrize("rule", RULES)
def test_tree_keeps_rule(rule: Callable[[Path], list[str]]):
    assert not (found := rule(ROOT)), "\n" + "\n".join(found)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of what the rules read: the sources, the links and pyproject.toml."""
    for file in source_files(ROOT):
        target = tmp_path / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    for room in ROOMS:
        (tmp_path / room).mkdir(exist_ok=True)
        (tmp_path / "src" / "linattest" / room).symlink_to(f"../../{room}")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


PLANTED = [
    (import_violations, "impls/planted.py", f"from {HARNESS} import spec\n", "linattest.impls may import"),
    (import_violations, "impls/planted.py", f"def f():\n    import {HARNESS}.spec\n", "planted.py:2"),
    (import_violations, "kernels/planted.py", "from linattest.impls import gla\n", "linattest.impls.arguments"),
    (import_violations, "verify/operators/planted.py", "from linattest.impls import gla\n", "may import"),
    (import_violations, "verify/operators/planted.py", f"from {HARNESS} import measure\n", "may import"),
    (import_violations, "verify/properties/planted.py", "import linattest.impls.gla\n", "may import"),
    (import_violations, "verify/operators/planted.py", "import importlib\n", "by statement only"),
    (import_violations, "verify/operators/planted.py", "m = __import__('x')\n", "by statement only"),
    (import_violations, "verify/signature.py", f"from {HARNESS} import numbers\n", "nothing of ours"),
    (import_violations, "verify/spec.py", f"from {HARNESS} import numbers\n", "may import linattest.verify.signature"),
    (import_violations, "verify/planted.py", "from linattest.proofs_checks import smt\n", "may import"),
    (
        import_violations,
        "proofs_checks/planted.py",
        f"from {HARNESS}.cli import main\n",
        "only linattest.__main__",
    ),
    (import_violations, "benchmarks/planted.py", "import tests.conftest\n", "nothing imports tests"),
    (import_violations, "benchmarks/planted.py", "import kernels\n", "another project's package"),
    (import_violations, "tests/planted.py", "from verify import spec\n", "write linattest.verify"),
    (import_violations, "impls/planted.py", "from . import gla\n", "absolute name"),
    (length_violations, "verify/planted.py", "\n" * 301, "301 lines, at most 300"),
    (length_violations, "kernels/planted.py", "\n" * 351, "351 lines, at most 350"),
    (length_violations, "tests/planted.py", "\n" * 251, "251 lines, at most 250"),
    (link_violations, "kernels/__init__.py", "", "no __init__.py"),
    (registry_violations, "verify/operators/planted.py", "", "planted.py"),
]


@pytest.mark.parametrize(("rule", "path", "text", "expected"), PLANTED, ids=[f"{p[1]}-{p[3]}" for p in PLANTED])
def test_planted_violation_is_reported(
    copy: Path, rule: Callable[[Path], list[str]], path: str, text: str, expected: str
):
    before = set(rule(copy))
    (copy / path).parent.mkdir(parents=True, exist_ok=True)
    (copy / path).write_text(text)
    new = [violation for violation in rule(copy) if violation not in before]
    assert len(new) == 1 and expected in new[0], new


def test_planted_links_are_reported(copy: Path):
    (copy / "src/linattest/kernels").unlink()
    (copy / "src/linattest/extra").symlink_to("../../tests")
    pyproject = copy / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('  "src/linattest/verify",\n', ""))
    assert [v.split(":")[0] for v in link_violations(copy)] == [
        "src/linattest/kernels",
        "src/linattest/extra",
        "src/linattest/verify",
    ]


@pytest.mark.parametrize("lines", [299, 300])
def test_length_within_budget_passes(copy: Path, lines: int):
    before = length_violations(copy)
    (copy / "verify/planted.py").write_text("\n" * lines)
    assert length_violations(copy) == before
