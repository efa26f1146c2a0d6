"""A user's claims: modules of any name and layout, checks that end the process, and hints that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from linattest.verify import cli
from linattest.verify.claims import ledger
from linattest.verify.claims.record import Claims
from linattest.verify.claims.verdicts import counted, measured, supported

HEAD = """
from linattest.verify.claims.ledger import claim
from linattest.verify.claims.verdicts import counted, measured, supported
"""
CLAIM = """
@claim("mine.{name}", statement="S.", expected="supported")
def {name}():
    {body}
"""
pytestmark = pytest.mark.usefixtures("claims_here")


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(cli.app, list(map(str, arguments)), env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"})


def written(path: Path, head: str = "", **bodies: str) -> Path:
    """A ledger with a claim for each body."""
    path.write_text(head + HEAD + "".join(CLAIM.format(name=name, body=body) for name, body in bodies.items()))
    return path


ONE = "return supported(counted('n', {} == 1))"


# --- a check that ends the process -------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_a_check_that_exits_is_an_error_beside_the_others(workers: int, tmp_path: Path):
    path = written(tmp_path / "exits.py", a="import sys; sys.exit()", b=ONE.format(1), c="raise GeneratorExit")
    result = run("claims", "--ledger", path, "--json", "--workers", str(workers))
    assert result.exit_code == 1
    a, b, c = json.loads(result.stdout)["claims"]
    assert a["verdict"] is None and "SystemExit" in a["error"] and "exits.py:" in a["error"]
    assert b["verdict"] == "supported" and "GeneratorExit" in c["error"]


def test_a_module_of_a_check_that_exits_when_it_is_imported_is_an_error(tmp_path: Path):
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)\n")
    row = '[[claim]]\nid = "mine.a"\nstatement = "S."\nexpected = "supported"\ncheck = "leaves:f"\n'
    (tmp_path / "mine.toml").write_text(row)
    result = run("claims", "--ledger", tmp_path / "mine.toml", "--workers", "1")
    assert result.exit_code == 1 and "SystemExit" in result.stdout and "1 error" in result.stdout


def test_a_ledger_that_exits_when_it_is_imported_is_refused_by_name(tmp_path: Path):
    path = written(tmp_path / "exits.py", "import sys; sys.exit(0)\n", a=ONE.format(1))
    result = run("claims", "--ledger", path, "--workers", "1")
    assert result.exit_code == 2 and "SystemExit" in result.stderr and "exits.py" in result.stderr


def test_an_interruption_stays_one(tmp_path: Path):
    path = written(tmp_path / "stops.py", a="raise KeyboardInterrupt")
    result = run("claims", "--ledger", path, "--workers", "1")
    assert result.exit_code == 130 and f"linattest claims ID --ledger {path}" in result.stdout


# --- names and packages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "workers"), [("json", 1), ("numpy", 1), ("numpy", 2), ("torch", 1), ("claims", 1)])
def test_a_ledger_may_have_the_name_of_another_module(name: str, workers: int, tmp_path: Path):
    path = written(tmp_path / f"{name}.py", "LIMIT = 1\n", a=ONE.format("LIMIT"), b=ONE.format(1))
    result = run("claims", "--ledger", path, "--json", "--workers", str(workers))
    assert result.exit_code == 0, result.output
    assert [x["verdict"] for x in json.loads(result.stdout)["claims"]] == ["supported"] * 2
    assert str(path) in json.loads(result.stdout)["claims"][0]["sources"]


def test_ledgers_of_one_name_in_two_folders_are_two(tmp_path: Path):
    for n in (1, 2):
        (tmp_path / str(n)).mkdir()
        written(tmp_path / str(n) / "same.py", **{f"a{n}": ONE.format(n)})
    found = ledger.run(ledger.read(tmp_path / str(n) / "same.py" for n in (1, 2)), workers=1)
    assert [(o.id, o.verdict) for o in found] == [("mine.a1", "supported"), ("mine.a2", "not reproduced")]


FILES = {
    "pkg/__init__.py": "from .deep import LIMIT\nfrom . import beside\n",
    "pkg/deep.py": "import pkg.inner.far\nfrom .inner import near\nLIMIT = 1\n",
    "pkg/beside.py": "", "pkg/inner/__init__.py": "", "pkg/inner/far.py": "from ..up import x\n",
    "pkg/inner/near.py": "", "pkg/up.py": "x = 1\n", "plain.py": "from pkg.inner import other\n",
    "pkg/inner/other.py": "import plainer\n", "plainer.py": "",
}  # fmt: skip


@pytest.fixture
def package(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, str]:
    """A ledger that imports a package of many layouts, under a name that no other test's has."""
    name = f"pkg_{abs(hash(request.node.name))}"
    for file, text in FILES.items():
        path = tmp_path / file.replace("pkg", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("pkg", name).replace("plainer", f"plainer_{name}"))
    (tmp_path / "plain.py").rename(tmp_path / f"plain_{name}.py")
    (tmp_path / "plainer.py").rename(tmp_path / f"plainer_{name}.py")
    head = f"from {name} import LIMIT\nimport plain_{name}\n"
    return written(tmp_path / "with_package.py", head, a=ONE.format("LIMIT")), name


@pytest.mark.parametrize("edited", FILES)
def test_a_verdict_is_stale_when_a_file_of_a_user_s_package_is_another(edited: str, package: tuple[Path, str]):
    path, name = package
    (outcome,) = ledger.run(ledger.read([path]), workers=1)
    assert outcome.verdict == "supported", outcome.error
    assert ledger.outdated([outcome]) == []
    where = edited.replace("pkg", name) if "/" in edited else edited.replace(".py", f"_{name}.py")
    (path.parent / where).write_text("edited = 1\n")
    assert ledger.outdated([outcome]) == ["mine.a"]


def test_a_check_in_a_package_depends_on_it(tmp_path: Path):
    name = "pkg_of_a_check"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("from .checks import f\n")
    (tmp_path / name / "checks.py").write_text(HEAD + "def f():\n    " + ONE.format(1) + "\n")
    row = f'[[claim]]\nid = "mine.a"\nstatement = "S."\nexpected = "supported"\ncheck = "{name}:f"\n'
    (tmp_path / "mine.toml").write_text(row)
    (outcome,) = ledger.run(ledger.read([tmp_path / "mine.toml"]), workers=1)
    assert outcome.verdict == "supported" and str(tmp_path / name / "checks.py") in outcome.sources


# --- what is said ------------------------------------------------------------------------------------------------


def test_hints_name_the_ledger(tmp_path: Path):
    path = written(tmp_path / "hints.py", a=ONE.format(1))
    record = tmp_path / "claims.json"
    result = run("claims", "--ledger", path, "--workers", "1", "--output", record)
    assert f"all the evidence of one: linattest claims ID --ledger {path}" in result.stdout
    path.write_text(path.read_text() + "# edited\n")
    result = run("report", "--claims", record, "--html", tmp_path / "page.html")
    assert result.exit_code == 3 and f"(linattest claims --ledger {path} --output FILE)" in result.stderr


def test_the_papers_hints_name_no_ledger(claims_record: Claims, tmp_path: Path):
    stale = [msgspec.structs.replace(o, hash="0" * 16) for o in claims_record.claims[:1]]
    record = tmp_path / "claims.json"
    record.write_text(json.dumps(msgspec.structs.replace(claims_record, claims=stale).to_json()))
    result = run("report", "--claims", record, "--html", tmp_path / "page.html")
    assert result.exit_code == 3 and "(linattest claims --output FILE)" in result.stderr


def test_a_figure_out_of_its_range_says_the_limit_and_by_how_much(tmp_path: Path):
    body = "return supported(measured('x', [0.5, 0.5, 0.5], at_most=0.2), counted('n', False, found=7))"
    result = run("claims", "--ledger", written(tmp_path / "beyond.py", a=body), "--workers", "1")
    assert "does not stand: x (0.5, expected at most 0.2, which 0.5 misses by 0.3)" in result.stdout
    assert "does not stand: n (found 7)" in result.stdout
    assert measured("x", [1.0, 1.0], at_least=2).broken_limit == "1, expected at least 2, which 1 misses by 1"
    assert measured("x", [1.0, 1.0], at_least=0).broken_limit == ""
    assert "no number" in measured("x", [float("nan"), 1.0]).broken_limit


def test_figures_without_a_limit_support_nothing(tmp_path: Path):
    with pytest.raises(ValueError, match="no figure has a limit"):
        supported(measured("x", [0.5, 0.6]))
    assert supported(measured("x", [0.5, 0.6]), counted("n", True)).word == "supported"
    body = "return supported(measured('x', [0.5, 0.6]))"
    result = run("claims", "--ledger", written(tmp_path / "limits.py", a=body), "--workers", "1")
    assert result.exit_code == 1 and "at_least" in result.stdout


def test_one_value_has_no_interval_and_none_has_no_mean(tmp_path: Path):
    one = measured("x", [0.5], at_most=1)
    assert one.stands and not {"low", "high"} & set(one.values) and not measured("x", [2.0], at_most=1).stands
    with pytest.raises(ValueError, match=r"measured\('x'\): no samples"):
        measured("x", [], at_most=1)
    body = "return supported(measured('x', [0.5], at_most=1))"
    result = run("claims", "--ledger", written(tmp_path / "single.py", a=body), "--workers", "1")
    assert result.exit_code == 0 and "x: 0.5 (one value, no interval)" in result.stdout
