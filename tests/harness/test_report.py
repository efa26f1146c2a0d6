"""Every report says what the records say: counts, places, escaping, what is stale, how it ended."""

import json
import re
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from linattest.verify import registry
from linattest.verify.commands.report import report
from linattest.verify.environment import environment
from linattest.verify.examine import examine
from linattest.verify.grids import Job
from linattest.verify.inputs import Case, Structure
from linattest.verify.records import LOST, Record
from linattest.verify.report.github import MOST, errors
from linattest.verify.report.junit import junit
from linattest.verify.report.locations import find
from linattest.verify.report.markdown import markdown
from linattest.verify.report.page import page
from linattest.verify.report.sarif import sarif
from linattest.verify.report.summary import Summary, load

ROOT = Path(__file__).parents[2]
HOSTILE = "<script>alert(1)</script> | `x` & \x00\x1b[31m ]]> 100% a::b,c\r\n::error::@team \ud7ff\U0001f600"
SELFTEST = {"planted": 3, "missed": ["a<b"], "power": [{"dtype": "float32", "by": {"name": None, "seen": True}}]}
APP = typer.Typer()
APP.command()(report)
STATUSES = ("pass", "fail", "error", "known")


def record(status: str = "pass", ratio: float | None = 0.5, **changes: Any) -> Record:
    """One record of linear attention, with these fields of the record or of its case."""
    of_case = {name: changes.pop(name) for name in ("operator", "dtype", "seed") if name in changes}
    made: dict[str, Any] = {
        "case": Case(operator="linear", structure=Structure(T=2, K=2, V=2)), "variant": "chunk",
        "direction": "forward", "what": "o", "status": status, "ratio": ratio, "environment": environment(),
        "message": "" if status == "pass" else "o[0]: got 1, wanted 2",
    }  # fmt: skip
    made |= changes
    made["case"] = msgspec.structs.replace(made["case"], **of_case)
    return Record(**made)


def of(*records: Record) -> Summary:
    return Summary(list(records), 0, environment().source_hash)


def one_of_each() -> list[Record]:
    ratios = (0.5, 1e5, None, 99.0)
    return [record(s, x, seed=i) for i, (s, x) in enumerate(zip(STATUSES, ratios, strict=True))]


def write(path: Path, *records: Record) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(r) + b"\n" for r in records))
    return path


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(APP, list(map(str, arguments)), env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"})


class Text(HTMLParser):
    """The text of a page outside its style and script, and its tags."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.text, self.tags, self.open = "", list[str](), list[str]()
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open += [tag] if tag in ("style", "script") else []

    def handle_endtag(self, tag: str) -> None:
        self.open = [t for t in self.open if t != tag]

    def handle_data(self, data: str) -> None:
        self.text += "" if self.open else data


# --- what goes in -----------------------------------------------------------------------------------------------


def test_the_later_of_two_records_of_a_case_stands(tmp_path: Path):
    first = write(tmp_path / "a", record("fail", 99.0), record(seed=1))
    second = write(tmp_path / "b", record("pass", 0.25))
    found = load([first, second])
    assert sorted(r.ratio or 0 for r in found.records) == [0.25, 0.5] and found.replaced == 1 and not found.failed
    assert load([second, first]).failed


def test_records_of_other_sources_are_stale():
    there = msgspec.structs.replace(environment(), source_hash="0" * 16)
    mixed = of(record(), record(environment=there, seed=1), record(environment=None, seed=2))
    assert len(mixed.stale) == 2
    assert "2 of 3 records are stale" in Text(page(mixed)).text and "†" in page(mixed)
    assert "2 records made from other sources" in markdown(mixed)
    assert "stale" not in Text(page(of(record()))).text


@pytest.mark.parametrize("line", [b"garbage", b'{"schema": 1}', b"{}"])
def test_a_bad_line_is_named_with_its_file(tmp_path: Path, line: bytes):
    path = write(tmp_path / "records.jsonl", record())
    path.write_bytes(path.read_bytes() + line + b"\n" + msgspec.json.encode(record()) + b"\n")
    result = run("--records", path, "--markdown", "-")
    assert result.exit_code == 2 and str(path) in result.stderr and "line 2" in result.stderr


def test_another_schema_is_refused(tmp_path: Path):
    result = run("--records", write(tmp_path / "r", msgspec.structs.replace(record(), schema=99)), "--markdown", "-")
    assert result.exit_code == 2 and "schema" in result.stderr and "99" in result.stderr


def test_nothing_to_report_is_no_success(tmp_path: Path):
    for given in ([], ["--records", write(tmp_path / "empty")]):
        result = run(*given, "--html", tmp_path / "page.html")
        assert result.exit_code == 3 and "nothing to report" in result.stderr and not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(("status", "code"), [("pass", 0), ("fail", 1), ("error", 1), ("known", 0)])
def test_exit_code_is_that_of_the_records(tmp_path: Path, status: str, code: int):
    result = run("--records", write(tmp_path / "r", record(status, 99.0)), "--markdown", "-")
    assert result.exit_code == code, result.output


def test_usage_errors_name_the_option(tmp_path: Path):
    records = write(tmp_path / "r", record())
    (tmp_path / "list").write_text("[]")
    for given, named in (
        ([], "--html"),
        (["--html", tmp_path / "no" / "page.html"], "--html"),
        (["--markdown", "-", "--drift", records], "--drift"),
        (["--markdown", "-", "--selftest", tmp_path / "list"], "--selftest"),
        (["--markdown", "-", "--diff", tmp_path / "none"], "--diff"),
    ):
        result = run("--records", records, *given)
        assert result.exit_code == 2 and named in result.stderr, result.output


# --- what comes out ---------------------------------------------------------------------------------------------


def test_a_real_campaign_in_every_format(tmp_path: Path):
    found = examine(Job(Case(operator="linear", structure=Structure(T=3, K=2, V=2, H=2)), properties=True))
    records = write(tmp_path / "r", *found)
    outputs = {name: tmp_path / name for name in ("html", "junit", "sarif", "markdown")}
    result = run("--records", records, "--github", *(x for name, p in outputs.items() for x in (f"--{name}", p)))
    assert result.exit_code == 0 and result.stdout == "", result.output
    assert ET.parse(outputs["junit"]).getroot().attrib["tests"] == str(len(found)) != "0"
    assert json.loads(outputs["sarif"].read_text())["runs"][0]["results"] == []
    text = Text(outputs["html"].read_text()).text
    for shown in (f"All {len(found)} cases passed", "recurrent", environment().source_hash, environment().torch):
        assert shown in text
    assert f"**{len(found)} cases**" in outputs["markdown"].read_text()


def test_each_status_is_counted_and_told_apart():
    found = of(*one_of_each())
    suite = ET.fromstring(junit(found))[0]
    assert [suite.attrib[k] for k in ("tests", "failures", "errors", "skipped")] == ["4", "1", "1", "1"]
    assert [[e.tag for e in case] for case in suite.iter("testcase")] == [[], ["failure"], ["error"], ["skipped"]]
    results = json.loads(sarif(found))["runs"][0]["results"]
    assert sorted(r["level"] for r in results) == ["error", "error", "note"]
    assert len({r["partialFingerprints"]["linattestCase/v1"] for r in results}) == 3
    assert [line.split("::")[1].split(",")[0] for line in errors(found)] == ["error file=impls/linear.py"]
    assert "1 failed, 1 errors, 1 known failure" in markdown(found)
    assert "❌ ⚠️ error" in markdown(found)
    text = Text(page(found)).text
    assert "2 cases of 4 failed" in text and "✗ error" in text and " !" in text


def test_text_of_a_record_stays_text():
    found = of(record("fail", 99.0, message=HOSTILE, replay="linattest verify --replay `a|b`<i>"))
    shown = Text(page(found))
    assert shown.tags.count("script") == 1 and "i" not in shown.tags
    assert "<script>alert(1)</script>" in shown.text and "`a|b`<i>" in shown.text
    (failure,) = ET.fromstring(junit(found)).iter("failure")
    assert failure.attrib["message"].startswith("<script>alert(1)</script> | `x` & \ufffd\ufffd[31m ]]>")
    assert json.loads(sarif(found))["runs"][0]["results"][0]["message"]["text"].count("]]>") == 1
    (line,) = errors(found)
    assert "\n" not in line and "\r" not in line and "100%25 a::b,c%0D%0A::error::" in line
    body = markdown(found)
    assert "<script>" not in body and "@team" not in body and "\x60a|b\x60<i>" in body
    assert "\\| \\`x\\`" in body and not any(row.startswith("::") for row in body.splitlines())


def test_failures_point_at_the_function_that_failed():
    for operator in registry.OPERATORS:
        for variant in operator.variants:
            place = find(variant.function)
            assert place is not None, variant.function
            line = (ROOT / place.path).read_text().splitlines()[place.line - 1]
            assert line.startswith((f"def {variant.function.split(':')[1]}", "class ")), (variant.function, line)
    result = json.loads(sarif(of(record("fail", 99.0))))["runs"][0]["results"][0]
    place = result["locations"][0]["physicalLocation"]
    lines = (ROOT / place["artifactLocation"]["uri"]).read_text().splitlines()
    assert lines[place["region"]["startLine"] - 1].startswith("def chunk(")
    assert find("linattest.impls.none:chunk") is None and find("json:loads") is None


def test_what_is_unknown_here_is_reported_without_a_place():
    lost, foreign = record("error", None, variant=LOST, what="harness"), record("fail", 99.0, operator="gone")
    found = json.loads(sarif(of(lost, foreign)))["runs"][0]["results"]
    assert found[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "verify/operators/linear.py"
    assert "locations" not in found[1] and found[0]["ruleId"] == "harness"
    assert "gone" in Text(page(of(lost, foreign))).text and len(list(errors(of(lost, foreign)))) == 2


def test_many_failures_are_counted_where_not_all_are_shown():
    found = of(*(record("fail", 99.0, variant=f"v{i}", direction="property", what=f"p{i}") for i in range(30)))
    lines = list(errors(found))
    assert len(lines) == MOST + 1 and lines[-1].startswith("::notice") and "20 more" in lines[-1]
    assert "... and 10 more." in markdown(found) and len(markdown(found)) < 65_536


def test_the_page_needs_nothing_from_outside():
    document = page(of(*one_of_each()), None, SELFTEST, {"x": 1})
    assert not re.findall(r'(?:src|href)="(?!#|data:,)|url\((?!#)|@import|https?://(?!www\.w3\.org)', document)
    assert "default-src 'none'" in document and "a&lt;b" in document
    assert "name: none; seen: yes" in Text(document).text


def test_known_failures_say_why():
    limited = next(o for o in registry.OPERATORS if o.limitations)
    assert limited.limitations[0].why in Text(page(of(record(operator=limited.name, variant="step")))).text


def test_only_the_page_needs_the_extra_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "linattest.verify.report.page", None)  # as if its imports failed
    records = write(tmp_path / "r", record())
    assert run("--records", records, "--markdown", "-", "--junit", tmp_path / "j", "--github").exit_code == 0
    result = run("--records", records, "--html", tmp_path / "page.html")
    assert result.exit_code == 3 and "linattest[report]" in result.stderr
