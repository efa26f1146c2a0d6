"""The ledger on the page: every claim with its verdict and evidence, figures in words and numbers, what is stale."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from markupsafe import Markup
from typer.testing import CliRunner

from linattest.verify import cli
from linattest.verify.claims import dependence, ledger, trained
from linattest.verify.claims.record import Claims, Figure, Outcome, read
from linattest.verify.claims.verdicts import Evidence, measured
from linattest.verify.environment import environment
from linattest.verify.experiments import recipe as recipes
from linattest.verify.experiments import results
from linattest.verify.experiments.judging import judge
from linattest.verify.inputs import Case, Structure
from linattest.verify.records import Record
from linattest.verify.report.ledger_figures import CHARTS, chart
from linattest.verify.report.page import ledger_page, page
from linattest.verify.report.summary import Summary


def run(*arguments: str | Path) -> Any:
    given = list(map(str, arguments))
    return CliRunner().invoke(cli.app, given, env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"})


def text_of(document: str) -> str:
    return Markup(document.partition("<body>")[2].replace("<", " <")).striptags()


def changed(found: Claims, identity: str, **changes: Any) -> Claims:
    """The record with another outcome for one claim."""
    claims = [msgspec.structs.replace(o, **changes) if o.id == identity else o for o in found.claims]
    return msgspec.structs.replace(found, claims=claims)


def write(folder: Path, found: Claims) -> Path:
    path = folder / "claims.json"
    path.write_text(json.dumps(found.to_json(), allow_nan=False))
    return path


def records(folder: Path, status: Any = "pass") -> Path:
    record = Record(
        case=Case(operator="linear", structure=Structure(T=2, K=2, V=2)), variant="chunk", direction="forward",
        what="o", status=status, ratio=0.5, environment=environment(), message="",
    )  # fmt: skip
    (path := folder / "records.jsonl").write_bytes(msgspec.json.encode(record) + b"\n")
    return path


# --- what stands on the page -------------------------------------------------------------------------------------


def test_every_claim_has_its_verdict_its_place_and_its_command(claims_record: Claims):
    text = text_of(ledger_page(claims_record))
    for o in claims_record.claims:
        assert f"linattest claims {o.id} " in text and " ".join(o.statement.split()) in text and o.where in text
    for word, count in claims_record.counts.items():
        assert word in ("different", "errors") or f"{word} {count} " in text, word
    assert "all as the ledger says" in text and "differs" not in text and "Stale:" not in text
    assert "<b>markup</b>" in text, "evidence is text, not markup"


def test_proofs_are_named_and_a_difference_is_said(claims_record: Claims):
    evidence = (Evidence(kind="proof", text="vla.energy: it shrinks"), measured("ratio", [9.0], at_most=1.0))
    found = changed(claims_record, "vla.plateau", verdict="not reproduced", evidence=evidence)
    text = text_of(ledger_page(found))
    assert "1 not as the ledger says" in text and "vla.energy" in text
    assert "'not reproduced', the ledger says 'supported'; does not stand: ratio" in text
    raised = text_of(ledger_page(changed(claims_record, "vla.plateau", verdict=None, error="ValueError: planted")))
    assert "the check raised ValueError: planted" in raised and "of which 1 check raised" in raised


def test_a_verdict_of_other_sources_is_stale(claims_record: Claims, monkeypatch: pytest.MonkeyPatch):
    content = dependence.content
    monkeypatch.setattr(dependence, "content", lambda name: b"another" if name.endswith("ccq.py") else content(name))
    stale = ledger.outdated(claims_record.claims)
    assert "ccq.identity" in stale and "vla.shrinking" not in stale
    document = ledger_page(claims_record)
    text = text_of(document)
    assert f"Stale: {len(stale)} verdicts of {len(claims_record.claims)} came of another" in text
    assert f"{len(stale)} stale, to be" in text
    assert all(f'href="#claim-{x}"' in document for x in stale) and '<p class="verdict bad">' in document
    assert document.count('<span class="tag stale">') == len(stale)


def test_a_claim_of_a_user_is_on_the_page(claims_record: Claims):
    own = msgspec.structs.replace(claims_record.claims[0], id="mine.a", paper="", ledger="my claims.toml")
    text = text_of(ledger_page(msgspec.structs.replace(claims_record, claims=[own])))
    assert "linattest claims mine.a --ledger 'my claims.toml'" in text and "no paper: 1 claim" in text


# --- figures -----------------------------------------------------------------------------------------------------


def figures_of(found: Claims) -> dict[str, Figure]:
    return {o.figure.name: o.figure for o in found.claims if o.figure is not None}


def test_the_three_figures_have_words_marks_and_numbers(claims_record: Claims):
    document = ledger_page(claims_record)
    assert set(figures_of(claims_record)) == set(CHARTS) and document.count("<figcaption>") == 3
    for figure in figures_of(claims_record).values():
        made = chart(figure)
        assert made["svg"].count("<svg") == 1 and made["says"] in made["svg"] and "currentColor" in made["svg"]
        assert made["legend"] and all(table.rows and table.caption for table in made["tables"])
        assert all(len(row) == len(table.heads) for table in made["tables"] for row in table.rows)
    norms = chart(figures_of(claims_record)["state-norms"])["tables"][0]
    assert [row[0] for row in norms.rows] == ["8", "16", "32"] and norms.rows[2][1] == ""


def test_the_words_are_those_of_the_numbers(claims_record: Claims):
    """A figure whose points are off the curve, or on the wrong side of the line, does not say that they are not."""
    figures = figures_of(claims_record)
    assert "every point lies on its side" in chart(figures["contraction"])["says"]
    assert "e-16" in chart(figures["sigma"])["says"]
    tables = msgspec.to_builtins(figures["contraction"].tables)
    tables["measured"]["factor"][0] -= 5
    assert "on the wrong side" in chart(Figure(name="contraction", tables=tables))["says"]
    tables = msgspec.to_builtins(figures["sigma"].tables)
    tables["random"]["norm"][0] += 0.128
    assert "within 1.3e-01" in chart(Figure(name="sigma", tables=tables))["says"]


def test_a_figure_of_another_name_has_its_table(claims_record: Claims):
    own = Figure(name="mine", tables={"t": {"x": [1.0, 2.0], "y": [None, 0.5]}})
    text = text_of(ledger_page(changed(claims_record, "vla.plateau", figure=own)))
    assert "vla.plateau numbers t x y 1 2 0.5" in text


# --- the command -------------------------------------------------------------------------------------------------


def test_what_the_command_wrote_comes_back(tmp_path: Path):
    path = tmp_path / "claims.json"
    result = run("claims", "ccq.contraction", "vla.speedup", "--workers", "1", "--output", path, "--json")
    assert result.exit_code == 0 and json.loads(path.read_text()) == json.loads(result.stdout)
    found = read(path)
    assert [o.id for o in found.claims] == ["vla.speedup", "ccq.contraction"]
    assert found.claims[1].figure is not None and found.claims[1].figure.name == "contraction"
    assert ledger.outdated(found.claims) == []


def test_numbers_that_json_has_no_word_for_are_null(tmp_path: Path, claims_record: Claims):
    evidence = (measured("x", [float("nan"), float("inf")], worst={1: float("-inf")}),)
    path = write(tmp_path, changed(claims_record, "vla.plateau", evidence=evidence))
    strict = json.loads(path.read_text(), parse_constant=lambda word: pytest.fail(word))
    values = next(c for c in strict["claims"] if c["id"] == "vla.plateau")["evidence"][0]["values"]
    assert values["mean"] is None and values["worst"] == {"1": None}
    assert ledger_page(read(path)).count("</html>") == 1


@pytest.mark.parametrize(
    ("changes", "code"),
    [({}, 0), ({"verdict": "refuted"}, 1), ({"verdict": "refuted", "excused": True, "lacks": ("z3",)}, 3)],
)
def test_the_page_alone_ends_as_the_claims_did(tmp_path: Path, claims_record: Claims, changes: Any, code: int):
    path = write(tmp_path, changed(claims_record, "vla.plateau", **changes))
    result = run("report", "--claims", path, "--html", tmp_path / "page.html")
    assert result.exit_code == code and "vla.plateau" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(("verdict", "status", "code"), [("supported", "pass", 0), ("refuted", "pass", 1)])
def test_beside_records_it_is_a_section(tmp_path: Path, claims_record: Claims, verdict: str, status: str, code: int):
    path = write(tmp_path, changed(claims_record, "vla.plateau", verdict=verdict))
    given = ("--records", records(tmp_path, status), "--claims", path, "--html", tmp_path / "page.html")
    assert run("report", *given).exit_code == code
    document = (tmp_path / "page.html").read_text()
    assert 'href="#claims"' in document and 'id="claims"' in document and 'id="matrix"' in document


def test_without_claims_there_is_no_section():
    assert 'id="claims"' not in page(Summary([], 0, environment().source_hash))


@pytest.mark.parametrize(
    ("content", "extra", "named"),
    [
        ("garbage", (), "claims.json"),
        ('{"schema": 1}', (), "claims --output"),
        ('{"schema": 99, "claims": [], "seconds": 1, "environment": ENV}', (), "schema=99"),
        (None, ("--junit", "x"), "--html FILE and nothing else"),
        (None, ("--drift", "gone"), "gone"),
    ],
)
def test_a_wrong_use_is_named(
    tmp_path: Path, claims_record: Claims, content: str | None, extra: tuple[str, ...], named: str
):
    path = write(tmp_path, claims_record)
    if content is not None:
        path.write_text(content.replace("ENV", msgspec.json.encode(environment()).decode()))
    result = run("report", "--claims", path, "--html", tmp_path / "page.html", *extra)
    assert result.exit_code == 2 and named in result.stderr and not (tmp_path / "page.html").exists()


def test_no_folder_to_write_to_is_said_before_anything_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ledger, "run", lambda *_: pytest.fail("computed"))
    result = run("claims", "vla.speedup", "--output", tmp_path / "none" / "claims.json")
    assert result.exit_code == 2 and "no folder" in result.stderr


def test_a_claim_with_a_committed_result_leads_to_its_figures(
    tmp_path: Path, claims_record: Claims, monkeypatch: pytest.MonkeyPatch
):
    given = ("report", "--claims", write(tmp_path, claims_record), "--html", tmp_path / "page.html")
    monkeypatch.setattr(trained, "FOLDER", tmp_path)
    run(*given)
    assert 'id="experiments"' not in (tmp_path / "page.html").read_text()
    kinds = ("orthogonal keys, u = k", "random keys", "coherent keys")
    series = {f"{kind}, n {n}": [1.0] * 8 for kind in kinds for n in (8, 16)}
    recipe = recipes.read("vla.capacity")
    for quick in (True, False):  # no check takes a quick form
        found = results.result(
            recipe, judge(recipe, (), series), quick=quick, seeds=8, device="cpu", seconds=1.0, series=series
        )
        (tmp_path / "vla.capacity.json").write_text(results.text_of(found))
        run(*given)
        assert ('<a href="#experiment-vla.capacity">' in (tmp_path / "page.html").read_text()) is not quick
    assert "recall against n" in (tmp_path / "page.html").read_text()


def test_a_row_with_a_figure_that_breaks_is_an_error_that_keeps_its_verdict(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("linattest.verify.claims.figures.contraction_region", lambda: [])
    (row,) = (row for row in ledger.read() if row.id == "ccq.contraction")
    found: Outcome = ledger.compute(row)
    assert found.verdict == "corrected" and found.differs and "expected a Figure" in (found.error or "")
