"""What the dashboard shows, taken from the committed records: by GPU and setting, over the commits in their order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linattest.verify.bench.commits import Misfit, git
from linattest.verify.bench.sides import Key, Side, sides
from linattest.verify.crossover import OURS, crossovers

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """A commit on the axis: as records name it, its short name, its place among all of the repository (-1: none)."""

    commit: str
    label: str
    order: int


@dataclass(frozen=True)
class Setting:
    """All that was measured on one GPU with one dtype and one size.

    ``crossed`` and ``uncrossed`` are rows of `bench crossover`, each the newest of its commit; ``newest`` is, by
    operator and variant, the last commit that has it.
    """

    key: Key
    places: list[Place]
    crossed: list[Row]
    uncrossed: list[Row]
    sides: dict[str, Side]
    newest: dict[tuple[str, str], Side]

    @property
    def title(self) -> str:
        """In words."""
        gpu, dtype, B, H, D, _ = self.key
        return f"{'CPU' if gpu == 'none' else gpu}, {dtype}, B = {B}, H = {H}, D = {D}"


def places(root: Path, commits: Iterable[str]) -> list[Place]:
    """Commits in asv's order; one with changes comes behind the commit that it changes, one that is unknown first."""
    try:
        order = git(root, "rev-list", "--all", "--date-order", "--reverse").decode().split()
    except Misfit:
        order = []
    at = {commit: i for i, commit in enumerate(order)}
    found: list[Place] = []
    for commit in set(commits):
        known, _, changed = commit.partition("-")
        found.append(Place(commit, known[:8] + ("+" if changed else ""), at.get(known, -1)))
    return sorted(found, key=lambda place: (place.order, place.label))


def settings(root: Path, records: Sequence[Row]) -> list[Setting]:
    """Everything, one entry a GPU and setting; those with the most commits first."""
    by: dict[Key, dict[str, Side]] = {}
    for commit in sorted({str(record["commit"]) for record in records}):
        here = [record for record in records if record["commit"] == commit]
        for key, side in sides(commit, here).items():
            by.setdefault(key, {})[commit] = side
    made = [_setting(root, key, found) for key, found in by.items()]
    return sorted(made, key=lambda s: (-len(s.places), s.title))


def _setting(root: Path, key: Key, found: dict[str, Side]) -> Setting:
    order = places(root, found)
    crossed, uncrossed = list[Row](), list[Row]()
    newest: dict[tuple[str, str], Side] = {}
    for place in order:
        side = found[place.commit]
        for kept, rows in zip((crossed, uncrossed), crossovers(as_record(side)), strict=True):
            kept += rows
        newest |= {(k[0], k[1]): side for k in side.timings if k[2] == OURS}
    return Setting(key, order, crossed, uncrossed, found, newest)


def as_record(side: Side) -> dict[str, Any]:
    """The records of a commit as one, as far as crossovers need it."""
    gpu, dtype, B, H, D, _ = side.setting
    return {
        "environment": {"gpu": gpu}, "settings": {"dtype": dtype, "B": B, "H": H, "D": D}, "commit": side.commit,
        "started": side.started[-1], "timings": list(side.timings.values()),
    }  # fmt: skip


def curve(side: Side, workload: tuple[str, str], who: str, direction: str, *, graphed: bool) -> dict[int, float]:
    """Milliseconds by length with warm caches: of ours, of the fastest softmax ("softmax:"), or of "fla:"."""
    found: dict[int, float] = {}
    for (operator, variant, name, towards, tokens, graph, l2), row in side.timings.items():
        fits = (operator, variant) == workload and towards == direction and graph == graphed and l2 != "cold"
        if fits and (name == who or (who.endswith(":") and name.startswith(who))):
            found[tokens] = min(found.get(tokens, row["ms"]), row["ms"])
    return dict(sorted(found.items()))


def graphed(side: Side) -> bool:
    """Whether there are graphs: a CPU has none."""
    return any(key[5] for key in side.timings)


def floor(side: Side, workload: tuple[str, str], direction: str) -> dict[int, float]:
    """The memory floor by length."""
    return dict(
        sorted(
            (row["tokens"], row["floor_ms"]) for key, row in side.timings.items()
            if (key[0], key[1]) == workload and key[2] == OURS and key[3] == direction and "floor_ms" in row
        )
    )  # fmt: skip


def compiled(results: Path) -> list[tuple[str, dict[str, float]]]:
    """Most registers of each operator's function over the commits whose compile record was filed: (hash, by name)."""
    found: list[tuple[int, str, dict[str, float]]] = []
    for path in sorted(results.glob("*/*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        row = content.get("results", {}).get("harness.Builds.track_registers") if "commit_hash" in content else None
        if row:
            values, (operators, functions, arches), *_ = row
            names = [(o, f, a) for o in operators for f in functions for a in arches]
            at = {f"{o[1:-1]}.{f[1:-1]} sm_{a}": x for (o, f, a), x in zip(names, values, strict=True) if x is not None}
            found.append((content["date"], content["commit_hash"], at))
    return [(commit, at) for _, commit, at in sorted(found, key=lambda row: row[0])]
