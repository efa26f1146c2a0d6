"""The page in a browser: nothing on the console, figures drawn, readable wide and narrow, light and dark.

The page is put into frames of two widths (a window of Chromium is never narrower than about 500 pixels), and a script
in it sends what it measures to the page around it, which Chromium prints.
"""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from linattest.verify import registry
from linattest.verify.claims.record import Claims
from linattest.verify.drift import LENGTHS, Row, collect
from linattest.verify.environment import environment
from linattest.verify.experiments import recipe as recipes
from linattest.verify.experiments import results
from linattest.verify.experiments.judging import judge
from linattest.verify.inputs import Case, Structure
from linattest.verify.records import Record, Status
from linattest.verify.report.ledger_figures import CHARTS
from linattest.verify.report.page import page
from linattest.verify.report.summary import Summary
from linattest.verify.spec import DTYPES

WIDTHS = (1280, 400)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CONTRAST = 4.5
"""WCAG 2.2, success criterion 1.4.3: the least contrast of text."""
FONT, FIGURE = 12.0, 8.0
"""Pixels: the smallest text of the page, and the lowest line of text in a figure."""

MEASURE = """
const style = e => getComputedStyle(e), box = e => e.getBoundingClientRect();
const channel = x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
const light = rgb => rgb.map(x => channel(x / 255)).reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
const parse = text => text.match(/[\\d.]+/g).map(Number);
const contrast = (a, b) => {
  const [low, high] = [light(parse(a).slice(0, 3)), light(parse(b).slice(0, 3))].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
};
const behind = element => {
  for (let e = element; e; e = e.parentElement) {
    const colour = style(e).backgroundColor;
    if ((parse(colour)[3] ?? 1) > 0) return colour;
  }
  return "rgb(255, 255, 255)";
};
const worded = [...document.querySelectorAll("body *")].filter(e =>
  !e.closest("script, title") && e.checkVisibility() && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
const prose = worded.filter(e => e instanceof HTMLElement), drawn = worded.filter(e => e instanceof SVGElement);
const name = e => `${e.tagName.toLowerCase()} "${e.textContent.trim().slice(0, 40)}"`;
addEventListener("load", () => {
  const input = document.querySelector(".filter input");
  input.value = "float16 linear";
  input.dispatchEvent(new Event("input"));
  const cases = [...input.closest("section").querySelectorAll("[data-case]")];
  const kept = cases.filter(e => !e.hidden);
  const filtered = [kept.length, cases.length, kept.every(e => /float16/.test(e.textContent))];
  input.value = "";
  input.dispatchEvent(new Event("input"));
  parent.postMessage({
    width: innerWidth, page: document.documentElement.scrollWidth, filtered,
    ids: [...document.querySelectorAll("[id]")].map(e => e.id).filter((id, i, all) => all.indexOf(id) < i),
    dark: light(parse(style(document.body).backgroundColor)) < 0.1,
    figures: [...document.querySelectorAll("svg.heat, .charts figure > svg")].map(box).map(r => [r.width, r.height]),
    outside: prose.filter(e => !e.closest(".scroll") && box(e).right > innerWidth + 0.5).map(name),
    clipped: prose.filter(e => style(e).overflowX === "hidden" && e.scrollWidth > e.clientWidth + 1).map(name),
    font: Math.min(...prose.map(e => parseFloat(style(e).fontSize))),
    figure: Math.min(...drawn.map(e => box(e).height)),
    faint: [
      ...prose.map(e => [contrast(style(e).color, behind(e)), name(e)]),
      ...[...document.querySelectorAll("svg.heat g")].map(g =>
        [contrast(style(g.querySelector("text")).fill, style(g.querySelector("rect")).fill), name(g)]),
    ].sort((a, b) => a[0] - b[0])[0],
  }, "*");
});
"""

AROUND = """<!DOCTYPE html><body><script>
addEventListener("message", event => { document.body.append(Object.assign(
  document.createElement("pre"), {textContent: JSON.stringify(event.data)})); });
</script>""" + "".join(f'<iframe src="page.html" style="width:{w}px;height:900px;border:0"></iframe>' for w in WIDTHS)


@pytest.fixture(scope="module")
def browser() -> str:
    """Path of a Chromium; without one there is nothing to test with, which CI does not accept."""
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if found is None:
        say = pytest.fail if os.environ.get("CI") else pytest.skip
        say(f"no browser: none of {', '.join(BROWSERS)} is installed (Debian and Ubuntu: apt-get install chromium)")
    return found


def record(i: int, operator: str, variant: str, dtype: str, tokens: int) -> Record:
    """A record whose status and ratio depend on its number; texts as long as real ones."""
    status: Status = "fail" if i % 61 == 7 else "error" if i % 211 == 5 else "known" if i % 83 == 3 else "pass"
    ratio = {"fail": 10.0 ** (1.5 + i % 7), "error": None, "known": 99.0, "pass": 30.0 ** (i % 100 / 50 - 1)}[status]
    folder = "linattest-failures/" + "a-folder-whose-name-cannot-be-broken" * 2
    return Record(
        case=Case(operator=operator, structure=Structure(T=tokens, K=7, V=16, H=2), dtype=dtype), variant=variant,
        direction=("forward", "gradient")[i % 2], what="o", status=status, ratio=ratio, environment=environment(),
        message="" if status == "pass" else "o[0, 12, 0, 3]: got 0.45312, wanted 0.45191; error 0.0012 is 5e+05 times "
        "the unavoidable error (pointwise; at most 30), 1184 of 1280 beyond; <b>the implementation is wrong</b>",
        replay=f"linattest verify --replay {folder}/{i}.safetensors" if status == "fail" else "",
    )  # fmt: skip


@pytest.fixture(scope="module")
def document(claims_record: Claims) -> str:
    """A page of every operator, with every status, stale records, drift, a self-test, claims and an experiment."""
    subjects = [(o.name, v.name) for o in registry.OPERATORS for v in o.variants]
    places = [(*s, d, n) for s in subjects for d in DTYPES for n in (0, 1, 2, 63, 64, 65, 127, 130, 257)]
    records = [record(i, *place) for i, place in enumerate(places) if i % 5]
    stale = msgspec.structs.replace(environment(), source_hash="0" * 16)
    records[::9] = [msgspec.structs.replace(r, environment=stale) for r in records[::9]]
    rows = [
        Row(operator=o, variant=v, dtype=d, tokens=n, error=0.4 + n / 3e4, state_error=0.5, truth="proved", seconds=0.1)
        for o, v in subjects for d in DTYPES[:3] for n in LENGTHS
    ]  # fmt: skip
    selftest = {"planted": 40, "caught": 39, "missed": ["vla: <one>"], "power": [{"operator": "vla", "smallest": 1e-3}]}
    recipe = recipes.read("vla.state-norm-table", quick=True)
    series = {f"{x}, T {T}": [1.0 * T, 2.0 * T] for x in ("linear", "vla") for T in (4, 250, 1000)}
    series |= {"linear over vla": [99.0], "delta_net, growth since T 250": [1.0]}
    verdict = judge(recipe, (), series)
    found = results.result(recipe, verdict, quick=False, seeds=2, device="cpu", seconds=1.0, series=series)
    summary = Summary(records, 3, environment().source_hash)
    return page(summary, collect(rows), selftest, {"grown": []}, claims_record, [found])


def look(browser: str, folder: Path, document: str, *flags: str) -> list[str]:
    """What is wrong with a page, at each width, in words."""
    assert document.count("</body>") == 1
    (folder / "page.html").write_text(document.replace("</body>", f"<script>{MEASURE}</script></body>"))
    (folder / "around.html").write_text(AROUND)
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command += [
        f"--user-data-dir={folder / 'profile'}",
        "--window-size=1400,1000",
        "--virtual-time-budget=5000",
        *flags,
    ]
    done = subprocess.run([*command, (folder / "around.html").as_uri()], capture_output=True, text=True, timeout=120)
    found = [f"console: {line}" for line in done.stderr.splitlines() if "CONSOLE" in line]
    seen = [json.loads(html.unescape(text)) for text in re.findall("<pre>(.*?)</pre>", done.stdout)]
    assert sorted(m["width"] for m in seen) == sorted(WIDTHS), done.stderr
    dark = any("preferredColorScheme" in flag for flag in flags)
    return found + [f"{m['width']} px: {problem}" for m in seen for problem in problems(m, dark)]


def problems(m: dict[str, Any], dark: bool) -> list[str]:
    """What a measurement says is wrong."""
    expected = 1 + len(registry.OPERATORS) + len(CHARTS) + 1
    kept, cases, right = m["filtered"]
    found = {
        f"the page is {m['page']} px wide": m["page"] > m["width"],
        f"outside: {m['outside']}": m["outside"],
        f"clipped: {m['clipped']}": m["clipped"],
        f"{len(m['figures'])} figures, expected {expected}": len(m["figures"]) != expected,
        f"a figure without size: {m['figures']}": any(w < 100 or h < 50 for w, h in m["figures"]),
        f"ids used twice: {m['ids']}": m["ids"],
        f"text of {m['font']} px": m["font"] < FONT,
        f"text of {m['figure']} px in a figure": m["figure"] < FIGURE,
        f"contrast {m['faint']}": m["faint"][0] < CONTRAST,
        f"dark is {m['dark']}": m["dark"] != dark,
        f"the filter keeps {kept} of {cases}": not (right and 0 < kept < cases),
    }
    return [text for text, wrong in found.items() if wrong]


@pytest.mark.parametrize("flags", [(), ("--blink-settings=preferredColorScheme=0",)], ids=["light", "dark"])
def test_page_is_readable(browser: str, document: str, tmp_path: Path, flags: tuple[str, ...]):
    assert look(browser, tmp_path, document, *flags) == []


def test_what_makes_a_page_unreadable_is_seen(browser: str, document: str, tmp_path: Path):
    style = ".scroll { overflow: visible } .quiet { color: #aaa } .small { font-size: 9px } h2 { width: 2000px }"
    style += " figcaption { overflow: hidden; width: 2em; white-space: nowrap } .charts figure > svg { width: 40px }"
    planted = document.replace("</style>", style + "</style>")
    planted = planted.replace(
        "</main>", "</main><p id='drift'></p><script>console.error('planted'); missing();</script>"
    )
    planted = planted.replace('<svg class="heat"', '<svg class="none"')
    found = "\n".join(look(browser, tmp_path, planted))
    expected = ("planted", "missing is not defined", "1280 px: the page is", "400 px: the page is", "outside: ['h2")
    expected += (
        "clipped: ['figcaption",
        "15 figures, expected 16",
        "a figure without size",
        " px: text of ",
        "contrast",
    )
    assert [word for word in (*expected, " px in a figure", "ids used twice: ['drift']") if word not in found] == [], (
        found
    )
