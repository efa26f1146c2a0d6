"""The claims' table in a browser: at 400 pixels nothing of it lies beyond an edge, and every part has its heading."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from linattest.verify.claims.record import Claims
from linattest.verify.report.page import ledger_page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTHS = (400, 900, 1280)
MEASURE = """
addEventListener("load", () => {
  const table = document.querySelector("table.claims"), area = table.closest(".scroll");
  const shown = e => e.checkVisibility() && e.getBoundingClientRect().height > 1;
  const cells = [...table.querySelectorAll("td")].filter(shown);
  const head = e => getComputedStyle(e, "::before").content.replaceAll('"', "");
  parent.postMessage({
    width: innerWidth, hidden: area.scrollWidth - area.clientWidth, page: document.documentElement.scrollWidth,
    heads: shown(table.querySelector("thead")) ? ["column"] : [...new Set(cells.map(head))].sort(),
    beyond: [...table.querySelectorAll("*")].filter(e => shown(e) && e.getBoundingClientRect().right > innerWidth + 1)
      .length,
    claims: [...table.querySelectorAll("[data-case]")].filter(shown).length,
  }, "*");
});
"""


@pytest.fixture(scope="module")
def browser() -> str:
    """Path of a Chromium, without which CI fails."""
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no browser: none of {', '.join(BROWSERS)}")
    return found


def look(browser: str, folder: Path, document: str) -> dict[int, dict[str, Any]]:
    """What is measured at each width."""
    (folder / "page.html").write_text(document.replace("</body>", f"<script>{MEASURE}</script></body>"))
    frames = "".join(f'<iframe src="page.html" style="width:{w}px;height:900px;border:0"></iframe>' for w in WIDTHS)
    script = "addEventListener('message', e => document.body.append(Object.assign(document.createElement('pre'), "
    script += "{textContent: JSON.stringify(e.data)})))"
    (folder / "around.html").write_text(f"<!DOCTYPE html><body><script>{script}</script>{frames}")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=5000"]
    command += [f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000", (folder / "around.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    seen = [json.loads(html.unescape(text)) for text in re.findall("<pre>(.*?)</pre>", done.stdout)]
    assert sorted(m["width"] for m in seen) == sorted(WIDTHS), done.stderr
    return {m["width"]: m for m in seen}


def test_no_part_of_a_claim_is_out_of_sight_without_a_sign(browser: str, claims_record: Claims, tmp_path: Path):
    seen = look(browser, tmp_path, ledger_page(claims_record))
    for width, m in seen.items():
        assert (m["hidden"], m["beyond"], m["page"] <= width) == (0, 0, True), m
        assert m["claims"] == len(claims_record.claims)
    assert seen[1280]["heads"] == ["column"] and {"evidence", "verdict"} <= set(seen[400]["heads"])
    assert "none" not in seen[400]["heads"]


def test_a_table_that_scrolls_is_seen(browser: str, claims_record: Claims, tmp_path: Path):
    document = ledger_page(claims_record)
    planted = document.replace("</style>", "table.claims { display: table; min-width: 54rem }</style>")
    assert planted != document and look(browser, tmp_path, planted)[400]["hidden"] > 100
