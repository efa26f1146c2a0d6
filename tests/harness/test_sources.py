"""A hash of what a result is made of: it follows imports, and nothing else moves it."""

from __future__ import annotations

from pathlib import Path

import pytest

from linattest.verify.sources import ROOT, hash_of, imported

TREE = {
    "top.py": "def f():\n    from linattest.rooms import inner\n",
    "rooms/__init__.py": "",
    "rooms/inner.py": "import numpy, linattest.far as far\n",
    "far.py": "x = 1\n",
    "aside.py": "y = 1\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "moves"),
    [("top.py", True), ("rooms/__init__.py", True), ("rooms/inner.py", True), ("far.py", True), ("aside.py", False)],
)
def test_what_is_imported_moves_it_however_far_away(tree: Path, name: str, moves: bool):
    before = hash_of("linattest.top", root=tree)
    (tree / name).write_text(TREE[name] + "# changed\n")
    hash_of.cache_clear()
    assert (hash_of("linattest.top", root=tree) != before) == moves


def test_a_module_that_is_not_there_is_named(tree: Path):
    with pytest.raises(ImportError, match="no module linattest.nowhere"):
        hash_of("linattest.top", "linattest.nowhere", root=tree)


def test_the_package_itself_is_followed():
    assert {"linattest.impls.arguments", "linattest.impls.bound"} <= set(imported(ROOT / "impls" / "gla.py"))
    assert len({hash_of(f"linattest.kernels.{name}") for name in ("gla", "vla", "delta_channels")}) == 3
