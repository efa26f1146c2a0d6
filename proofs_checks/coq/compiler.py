"""Coq's word on a theorem: its file compiles, it rests on no axiom, and this is what it says.

A file is compiled in a cache folder that belongs to the text of every file of the room, to Coq and to its libraries
(under ``$LINATTEST_CACHE``, or ~/.cache/linattest): once for all its theorems, and again when any of these change.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

from linattest.proofs_checks import pins
from linattest.proofs_checks.coq import sentences
from linattest.proofs_checks.proof import Answer, Status

ROOM = Path(__file__).parent
LIBRARY = "Linattest"
PINS = "types.toml"
HEAD = """\
# What Coq prints of each theorem, so that none says less under the same name; compared where coqc is this version.
# Written by `linattest prove --update-pins ID`, read by people beside the words in theorems.py.
"""
INSTALL = "apt-get install coq libcoq-mathcomp-algebra libcoq-mathcomp-algebra-tactics"
RESTORE = "restore it (for instance with git), or take its theorems from theorems.py"
SECONDS = 300
CLOSED = "Closed under the global context"
IMPORTS = re.compile(rf"From {LIBRARY} Require Import ([\w ]+)\.")
THEOREM = re.compile(r"^Theorem (\w+)", re.MULTILINE)
ABSENT = re.compile(r"logical path\s+(\w+)\s+with\s+prefix\s+mathcomp")
NEEDED = {"all_ssreflect", "all_algebra", "ring"}
"""Libraries of mathcomp that the files import: to lack another one is a wrong file, not a missing installation."""
NEGATION = re.compile(r"(forall R : \w+, )?~ ")
UNPROVED = re.compile(
    r"\b(?:Admitted|admit|give_up|Axioms?|Parameters?|Conjectures?|bypass_check"
    r"|Unset (?:Guard|Positivity|Universe) Checking)\b"
)
"""What leaves a proof open or adds an assumption. `Print Assumptions` finds these too: two nets, not one."""


class CoqError(Exception):
    """coqc did not accept a file, or a file has words that leave a proof open."""


class Missing(Exception):
    """Coq or the library that a file needs is not installed."""


def proved(theorem: str, room: Path = ROOM) -> Answer:
    """Whether the theorem, "file.name", is proved without axioms; its type as Coq prints it is the evidence."""
    return _answer(theorem, room, "proved")


def refuted(theorem: str, room: Path = ROOM, *, twin_of: str = "") -> Answer:
    """Whether Coq refutes a statement: the theorem "file.name" is its negation, and proved without axioms.

    ``twin_of``: the theorem of which that statement is a wrong variant; what it says may not be what is negated.
    """
    return _answer(theorem, room, "refuted", twin_of)


def _answer(theorem: str, room: Path, status: Status, twin_of: str = "") -> Answer:
    file, name = theorem.split(".")
    evidence, changed = {"theorem": f"{file}.v: {name}"}, ""
    try:
        changed = _defined_otherwise(file, room)
        found = report(file, room)
        if name not in found:
            raise CoqError(f"no Theorem {name} in {file}.v, which has {sorted(found)}")
        evidence |= {"type": found[name], "assumptions": found["assumptions"]}
        if room == ROOM or (room / PINS).exists():
            says = _change(theorem, found[name], room / PINS, evidence)
            changed = "; ".join(x for x in (says, changed) if x)
        if found["assumptions"] != CLOSED:
            raise CoqError(f"the theorems of {file}.v rest on more than Coq's logic")
        if status == "refuted" and not NEGATION.match(found[name]):
            raise CoqError(f"{name} is no negation")
        if twin_of:
            _is_another(found[name], twin_of, room)
    except Missing as missing:
        return Answer(
            status="skipped", evidence={"skipped": f"{missing}: {INSTALL}"}, asked=theorem, changed=changed
        )  # fmt: skip
    except CoqError as error:
        return Answer(
            status="unknown", evidence=evidence | {"error": str(error)}, tool=f"coqc {version()}", asked=theorem
        )
    return Answer(status=status, evidence=evidence, tool=f"coqc {version()}", asked=theorem, changed=changed)


def _defined_otherwise(file: str, room: Path) -> str:
    """What the file of a theorem, or one that it imports, defines otherwise than is pinned. Raises ``CoqError``."""
    if room != ROOM and not (room / sentences.PINS).exists():
        return ""
    try:
        return sentences.difference(file, room)
    except OSError as error:
        raise CoqError(f"coq/{Path(error.filename).name}: {error.strerror}; {RESTORE}") from error
    except ValueError as error:
        raise CoqError(str(error)) from error


def _change(theorem: str, says: str, file: Path, evidence: dict[str, str]) -> str:
    """In what a theorem is another than when its statement was written down in words; empty if in nothing.

    Without this a theorem of the same name that says less, or nothing, would pass. Another Coq may print the same in
    other words: where it does, the evidence has ``not compared``.
    """
    coqc, types = read_types(file)
    if says == (pinned := types.get(theorem)):
        return ""
    if pinned is None:
        return f"{file.name} has no {theorem!r}"
    if coqc == version():
        return f"{theorem} {pins.apart(says, pinned, file.name)}"
    evidence["not compared"] = (
        f"coqc {version()} prints {theorem} in other words than coqc {coqc}, of which {file.name} is: compare the type "
        f"here with that file, or install coqc {coqc}"
    )
    return ""


def read_types(file: Path) -> tuple[str, dict[str, str]]:
    """The version of Coq that a file of types is of, and what it says of each theorem. Raises ``CoqError``."""
    renew = "restore it (for instance with git), or delete it and run `linattest prove --method coq --update-pins`"
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CoqError(f"coq/{file.name}: {error}; {renew}") from error
    coqc, types = table.get("coqc"), table.get("types")
    if not isinstance(coqc, str):
        raise CoqError(f"coq/{file.name} has no key `coqc`, the version of Coq that printed its types; {renew}")
    if not isinstance(types, dict):
        raise CoqError(f"coq/{file.name} has no table `types`; {renew}")
    return coqc, types


def write_types(says: dict[str, str], gone: set[str], file: Path = ROOM / PINS) -> int:
    """Write down what these theorems say now, and drop those that are gone; how many are others than before.

    Types by another Coq than the file's are not mixed with it: then all that are there must be given, else
    ``CoqError``.
    """
    coqc, before = read_types(file) if file.exists() else (version(), {})
    left = {name: text for name, text in before.items() if name not in gone}
    if coqc != version() and set(left) - set(says):
        raise CoqError(f"{file.name} is of coqc {coqc}: only all of it can be renewed with {version()} (--method coq)")
    after = {name: says.get(name, text) for name, text in left.items()} | says
    for name, text in after.items():
        if "'''" in text:
            raise CoqError(f"the type of {name} has three quotes in a row, expected none")
    lines = "".join(f"\"{name}\" = '''{text}'''\n" for name, text in after.items())
    if after != before or coqc != version():
        file.write_text(f'{HEAD}coqc = "{version()}"\n\n[types]\n{lines}', encoding="utf-8")
    return sum(before.get(name) != text for name, text in after.items())


def _is_another(twin: str, theorem: str, room: Path) -> None:
    """Raise ``CoqError`` unless what a twin negates is another statement than the theorem, and no part of it."""
    file, name = theorem.split(".")
    wrong = twin.partition("~ (")[2].removesuffix(")")
    if not wrong or wrong in report(file, room).get(name, ""):
        raise CoqError(f"what the twin of {theorem} negates, {wrong!r}, is no variant of the theorem")


def report(file: str, room: Path = ROOM) -> dict[str, str]:
    """The type of every ``Theorem`` of a file, and its "assumptions". Raises ``CoqError`` or ``Missing``."""
    printed = _compiled(file, room, _folder(room))
    parts = re.split(r"^== (\w+)$", printed, flags=re.MULTILINE)[1:]
    said = zip(parts[::2], parts[1::2], strict=True)
    return {title: " ".join(text.split()).removeprefix(f"{title} : ") for title, text in said}


def _compiled(file: str, room: Path, folder: Path) -> str:
    """Compile a file after those it imports, unless the folder has it, and return what Coq printed of its theorems."""
    try:
        text = (room / f"{file}.v").read_text(encoding="utf-8")
    except OSError as error:
        raise CoqError(f"coq/{file}.v: {error.strerror}; {RESTORE}") from error
    code = sentences.without_comments(text)
    if open_ := UNPROVED.findall(code):
        raise CoqError(f"{file}.v has {sorted(set(open_))}")
    for needed in IMPORTS.findall(code):
        for name in needed.split():
            _compiled(name, room, folder)
    with (folder / f"{file}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the processes of one run want the same files
        printed = folder / f"{file}.printed"
        if not printed.exists():
            _compile(file, f"{text}\n{_questions(code)}", folder)
        return printed.read_text(encoding="utf-8")


def _compile(file: str, text: str, folder: Path) -> None:
    source, printed = folder / f"{file}.v", folder / f"{file}.printed"
    source.write_text(text, encoding="utf-8")
    command = ["coqc", "-q", "-w", "none", "-Q", ".", LIBRARY, source.name]
    try:  # in the folder: lia and nia leave caches where they run
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False,
            preexec_fn=_end_with_worker if sys.platform == "linux" else None,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise CoqError(f"{file}.v: coqc took more than {SECONDS} s") from error
    if done.returncode:
        if set(ABSENT.findall(done.stderr)) & NEEDED:
            raise Missing("Coq's library mathcomp is not installed")
        raise CoqError(done.stderr.strip() or f"coqc exited with {done.returncode}")
    whole = printed.with_suffix(".part")
    whole.write_text(done.stdout, encoding="utf-8")
    whole.replace(printed)


def _end_with_worker() -> None:
    """coqc ends with the process that started it, however that ends (PR_SET_PDEATHSIG of Linux)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _questions(code: str) -> str:
    """What is asked at the end of a file: what its theorems rest on (all at once, for time's sake), and their types."""
    if not (names := THEOREM.findall(code)):
        return ""
    together = f"Definition all_theorems := ({', '.join(f'@{name}' for name in names)}).\n"
    asked = [("assumptions", "Print Assumptions all_theorems"), *((name, f"Check {name}") for name in names)]
    return together + "".join(f'Goal True. idtac "== {title}". Abort.\n{question}.\n' for title, question in asked)


def _folder(room: Path) -> Path:
    digest = hashlib.sha256(version().encode() + _library())
    for file in sorted(room.glob("*.v")):
        digest.update(f"{file.name}\0".encode() + file.read_bytes() + b"\0")
    digest.update(Path(__file__).read_bytes())
    root = Path(os.environ.get("LINATTEST_CACHE") or Path.home() / ".cache" / "linattest")
    folder = root / f"coq-{digest.hexdigest()[:40]}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _ask_coqc(option: str) -> str:
    if not shutil.which("coqc"):
        raise Missing("coqc is not installed")
    return subprocess.run(["coqc", option], capture_output=True, text=True, timeout=SECONDS, check=True).stdout.strip()


@cache
def version() -> str:
    return _ask_coqc("-print-version").split()[0]


@cache
def _library() -> bytes:
    """What mathcomp is installed: a compiled file holds the digests of those that it was compiled with."""
    mathcomp = Path(_ask_coqc("-where")) / "user-contrib" / "mathcomp"
    return b"".join(hashlib.sha256(file.read_bytes()).digest() for file in sorted(mathcomp.rglob("all_*.vo")))
