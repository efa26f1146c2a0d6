"""Ledgers of one's own: a row or a decorated function gets a verdict, and an ill-formed file is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from linattest.verify import cli
from linattest.verify.claims import ledger
from linattest.verify.claims.ledger import LedgerError, claim

pytestmark = pytest.mark.usefixtures("claims_here")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, ["claims", "--workers", "1", *arguments])


GOOD = 'id = "mine.a"\nstatement = "S."\nexpected = "untested"\nreason = "r"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[claim]]\n" + GOOD.replace("untested", "certain"), "claim 1 (mine.a)"),
        ("[[claim]]\n" + GOOD + 'check = "a:b"\n', "expected exactly one"),
        ("[[claim]]\n" + GOOD.replace('reason = "r"', 'check = "nowhere"'), "module:function"),
        ("[[claim]]\n" + GOOD + "colour = 1\n", "colour"),
        ("[[claim]]\n" + GOOD + "[[claim]]\n" + GOOD, "already"),
        ("[[claim]]\n" + GOOD + "[[claim]]\nid = 3\n", "claim 2 (3)"),
        ('id = "x"', "at least one [[claim]]"),
        ("[[claim]\n", "line 1"),
    ],
)
def test_ill_formed_ledger_is_refused_by_file_and_row(tmp_path: Path, text: str, words: str):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(LedgerError) as error:
        ledger.read([path])
    assert words in str(error.value) and "mine.toml" in str(error.value)
    assert run("--ledger", str(path)).exit_code == 2


OWN = """
from linattest.verify.claims.ledger import claim
from linattest.verify.claims.verdicts import measured, supported

@claim("mine.small", statement="Small numbers are small.", expected="supported")
def small():
    return supported(measured("numbers", [0.1, 0.2, 0.3], at_most={most}))
"""


@pytest.mark.parametrize(("most", "code"), [(1, 0), (0.1, 1)])
@pytest.mark.parametrize("form", ["py", "toml"])
def test_claim_of_a_user_gets_a_verdict(tmp_path: Path, most: float, code: int, form: str):
    name = f"own_claims_{form}_{code}"
    (tmp_path / f"{name}.py").write_text(OWN.replace("{most}", str(most)))
    row = GOOD.replace('reason = "r"', f'check = "{name}:small"').replace("untested", "supported")
    (tmp_path / f"{name}.toml").write_text("[[claim]]\n" + row)
    result = run("--ledger", str(tmp_path / f"{name}.{form}"), "--json")
    (found,) = json.loads(result.stdout)["claims"]
    assert result.exit_code == code and found["verdict"] == ("not reproduced" if code else "supported")
    assert found["id"] == ("mine.small" if form == "py" else "mine.a")
    assert found["ledger"] == str(tmp_path / f"{name}.{form}")


def test_decorator_refuses_a_word_that_is_no_verdict():
    wrong: Any = "certain"
    with pytest.raises(ValueError, match="certain"):
        claim("mine.a", statement="S.", expected=wrong)


def test_two_claims_of_one_function_name_are_refused(tmp_path: Path):
    path = tmp_path / "own_claims_twice.py"
    one = OWN.replace("{most}", "1")
    path.write_text(one + one.replace("mine.small", "mine.other"))
    with pytest.raises(LedgerError, match="are both functions named 'small'"):
        ledger.read([path])
    assert run("--ledger", str(path)).exit_code == 2
