"""Judging one edit: what a process does that was forked for it, with everything imported but the implementations.

The harness itself names implementations and imports none, so a process that has it loaded can be pointed to another
copy of them. ``serve`` is the entry point; it answers with one ``Judgement`` and ends.
"""

from __future__ import annotations

import importlib
import os
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from linattest.verify import registry
from linattest.verify.examine import judged
from linattest.verify.faults.aim import PACKAGE, jobs_of, operators_of, quick_jobs
from linattest.verify.faults.bank import Fault
from linattest.verify.faults.tests import run_tests
from linattest.verify.grids import Job
from linattest.verify.inputs import Case
from linattest.verify.records import Record
from linattest.verify.subjects import resolve

ROOMS = ("impls", "kernels")
"""Where faults are planted: what the harness judges."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The check that failed: a case (operator, variant, dtype, direction, what), or a test of the repository."""

    operator: str = ""
    variant: str = ""
    dtype: str = ""
    direction: str = ""
    what: str = ""
    ratio: float | None = None
    input: str = ""
    case: Case | None = None
    properties: bool = False
    test: str = ""
    message: str = ""

    @property
    def name(self) -> str:
        """One line for a table."""
        return self.test or " ".join((self.operator, self.variant, self.dtype, self.direction, self.what))


class Judgement(msgspec.Struct, kw_only=True):
    """What was found: the first failing check, the first run that raised, and how much was looked at."""

    by: Evidence | None = None
    raised: str = ""
    checks: int = 0
    worst: float = 0.0
    seconds: float = 0.0


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A tree, the edit in it (``None``: none), and what to try.

    ``purpose``: "catch" stops at the first failing check of the fault's own; "neutral" runs the quick grid of
    ``operators`` and the tests of ``checks``; "confirm" runs the very checks of ``evidence``.
    """

    tree: str
    purpose: Literal["catch", "neutral", "confirm"]
    fault: Fault | None = None
    operators: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()


def serve(task: Task, answer: Any) -> None:
    """Do a task and send the ``Judgement``, or the words for why there is none, through a pipe's end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means
    torch.set_num_threads(1)
    sys.dont_write_bytecode = True
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    try:
        started = time.process_time()
        redirect(Path(task.tree))
        found = {"catch": catch, "neutral": neutral, "confirm": confirm}[task.purpose](task)
        found.seconds = round(time.process_time() - started, 2)
        answer.send(found)
    except BaseException as error:  # a process that dies silently would look like a hang
        answer.send(f"{type(error).__name__}: {error}")


def redirect(tree: Path) -> None:
    """From now on this process imports implementations and kernels from ``tree``.

    Raises:
        RuntimeError: one is imported already.
    """
    for room in ROOMS:
        name = f"{PACKAGE}.{room}"
        early = sorted(module for module in sys.modules if module.startswith(f"{name}."))
        if early:
            raise RuntimeError(f"{early} are imported already, expected none before the edit is in place")
        importlib.import_module(name).__path__ = [str(tree / PACKAGE / room)]


def check_in_place(fault: Fault, tree: Path) -> None:
    """Stop unless the edited module is the one that ran.

    Raises:
        RuntimeError: it was not imported, or from elsewhere: nothing found is about the edit.
    """
    name = f"{PACKAGE}." + fault.file.removesuffix(".py").replace("/", ".")
    wanted = tree / PACKAGE / fault.file
    module = sys.modules.get(name)
    if module is None:
        raise RuntimeError(f"nothing that was tried imports {name}")
    if Path(module.__file__ or "") != wanted:
        raise RuntimeError(f"{name} was imported from {module.__file__}, expected {wanted}")


def catch(task: Task) -> Judgement:
    """The fault's test files, then the cases of its operators, until one fails."""
    fault = task.fault
    assert fault is not None
    for name in operators_of(fault):
        for variant in registry.operator(name).variants:
            resolve(variant.function)  # an edit that cannot be imported is no fault that a check has caught
    found = Judgement()
    if fault.checks:
        _run_checks(found, fault.checks)
    if found.by is None:
        _run_jobs(found, jobs_of(fault))
    if found.by is not None or not found.raised:
        check_in_place(fault, Path(task.tree))
    return found


def neutral(task: Task) -> Judgement:
    """Everything that must stay green: quick grid of the operators, and the edit's test files."""
    found = Judgement()
    _run_jobs(found, quick_jobs(task.operators))
    if task.fault is not None:
        if found.by is None and task.fault.checks:
            _run_checks(found, task.fault.checks)
        if not found.raised:
            check_in_place(task.fault, Path(task.tree))
    return found


def confirm(task: Task) -> Judgement:
    """The checks that failed with a fault, without one: the first that fails is named, since it proves nothing."""
    found = Judgement()
    wanted: dict[tuple[str, bool], tuple[Job, set[tuple[str, str, str]]]] = {}
    for by in task.evidence:
        if by.case is not None:
            job, keys = wanted.setdefault((by.case.key, by.properties), (Job(by.case, by.properties), set()))
            keys.add(_key(by.variant, by.direction, by.what))
    for job, keys in wanted.values():
        variants = tuple({variant for variant, _, _ in keys})
        for record in judged(job, variants):
            if _key(record.variant, record.direction, record.what) in keys and not _note(found, record, job):
                return found
    tests = sorted({shlex.quote(by.test) for by in task.evidence if by.test})  # an id may have spaces
    if tests:
        _run_checks(found, tests)
    return found


def _key(variant: str, direction: str, what: str) -> tuple[str, str, str]:
    """What a failing output was is part of the finding; of a property, it names the check."""
    return variant, direction, what if direction == "property" else ""


def _run_jobs(found: Judgement, jobs: Iterable[Job]) -> None:
    for job in jobs:
        try:
            for record in judged(job):
                if not _note(found, record, job):
                    return
        except Exception as error:  # the exact answer, or the unavoidable error, could not be had
            found.raised = found.raised or f"{type(error).__name__}: {error}"


def _note(found: Judgement, record: Record, job: Job) -> bool:
    """Count a record; False if it failed. One that raised is remembered: it shows a broken edit, not a wrong number."""
    found.checks += 1
    if record.status == "error":
        found.raised = found.raised or f"{record.case.operator} {record.variant}: {record.message}"
    elif record.status == "pass":
        found.worst = max(found.worst, record.ratio or 0.0)
    if record.status != "fail":
        return True
    found.by = Evidence(
        operator=record.case.operator, variant=record.variant, dtype=record.case.dtype, direction=record.direction,
        what=record.what, ratio=record.ratio, input=record.case.describe(), case=record.case,
        properties=job.properties, message=record.message,
    )  # fmt: skip
    return False


def _run_checks(found: Judgement, checks: Iterable[str]) -> None:
    with warnings.catch_warnings():
        ran = run_tests(checks)
    found.checks += ran.count
    if ran.failed:
        found.by = Evidence(test=ran.failed, message=ran.message)
    elif ran.broken:
        found.raised = found.raised or ran.broken
