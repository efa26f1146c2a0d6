"""What can be filed: the records of five commands, told apart by what they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linattest.verify.bench.gpu_records import checked, read_json

Content = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """Of one file: what kind it is, where and with what it was made, and of which sources.

    ``folders`` are those whose hash ``source_hash`` is; empty where the file has none. ``facts`` are asv's parameters
    of the environment: what makes another series.
    """

    kind: str
    content: Content
    machine: str
    facts: dict[str, str]
    details: dict[str, str]
    commit: str | None
    source_hash: str
    folders: tuple[str, ...]


def read(path: Path) -> Source:
    """A file that can be filed.

    Raises:
        ValueError: it is no JSON, or none of these.
        OSError: it cannot be read.
    """
    content = read_json(path)
    for kind, (marks, make) in KINDS.items():
        if isinstance(content, dict) and marks <= content.keys():
            if content.get("schema") != 1:
                raise ValueError(f"{path}: schema={content.get('schema')!r} of a {kind}, expected 1")
            return make(kind, checked(content, path) if kind == "gpu_run" else content)
    known = "gpu_run, selftest --json, claims --output, diff --output, compile --json"
    raise ValueError(f"{path}: what no known command writes, expected that of {known}")


def slug(name: str) -> str:
    """A name for a folder: lower case, without the maker of a GPU."""
    words = "".join(c if c.isalnum() or c in "._" else " " for c in name.lower()).split()
    return "-".join(word for word in words if word != "nvidia") or "unknown"


def text(facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts as asv keeps them."""
    return {name: "none" if x is None else str(x) for name, x in facts.items()}


def _gpu_run(kind: str, content: Content) -> Source:
    if given := content["settings"].get("functions"):
        raise ValueError(
            f"it measured {given}, which no commit of this repository has: `linattest bench compare` takes it"
        )
    here = content["environment"]
    gpu = str(here["gpu"])
    return Source(
        kind, content, "cpu" if gpu == "none" else slug(gpu),
        text({"gpu": gpu, "torch": here["torch"], "triton": here.get("triton")}), text(here), content["commit"],
        content["source_hash"], ("impls", "kernels", "benchmarks"),
    )  # fmt: skip


def _judged(kind: str, content: Content) -> Source:
    """Of a self-test or of claims: they carry the environment of the harness."""
    here = content["environment"]
    return Source(
        kind, content, slug(f"{here['system']} {here['cpu']}"),
        text({"torch": here["torch"], "triton": here["triton"]}), text(here), here["commit"], here["source_hash"],
        ("impls", "kernels", "verify"),
    )  # fmt: skip


def _snapshot(kind: str, content: Content) -> Source:
    here = content["fingerprint"]
    made = content["made"].values()
    machine = slug(f"{here['arch']} {here['cpu']}" if here["device"] == "cpu" else here["device"])
    one = {
        key: next(iter(some)) if len(some := {str(m[key]) for m in made}) == 1 else ""
        for key in ("commit", "source_hash")
    }
    return Source(
        kind, content, machine, text({"torch": here["torch"], "triton": here["triton"]}), text(here), one["commit"],
        one["source_hash"], ("impls", "kernels", "verify") if one["source_hash"] else (),
    )  # fmt: skip


def _compiled(kind: str, content: Content) -> Source:
    facts = text({"triton": content["triton"]})
    return Source(kind, content, "compiler", facts, facts, None, "", ())


KINDS: dict[str, tuple[set[str], Callable[[str, Content], Source]]] = {
    "gpu_run": ({"kind", "timings"}, _gpu_run),
    "selftest": ({"planted", "caught"}, _judged),
    "claims": ({"claims", "counts"}, _judged),
    "snapshot": ({"fingerprint", "entries"}, _snapshot),
    "compiled": ({"triton", "kernels"}, _compiled),
}
"""By name, as the suite's classes have it: the keys that tell it, and how it is read."""
