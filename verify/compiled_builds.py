"""Compiling without a GPU, and reading what a binary needs: in processes of their own, each with a fresh cache."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from linattest.verify.compiled import Build
from linattest.verify.compiled_calls import Call, Plan, plans_of, target
from linattest.verify.subjects import resolve

SHARED_LIMIT = {80: 166_912, 90: 232_448, 100: 232_448}
"""Bytes of shared memory that one block may have (CUDA programming guide, "Technical Specifications")."""

MESSAGE = 300
"""Characters of an error that are kept."""

INSTRUCTIONS = re.compile(
    r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+\s+)?(HGMMA|HMMA|UTCHMMA|FFMA2?|FMUL2?|FADD2?|MUFU|LDL|STL)\b"
)
"""The mnemonics that are counted in a disassembly: tensor cores, float32 arithmetic, local memory (spills)."""


def build(plan: Plan) -> Build:
    """Compile a plan from nothing, and read what it needs; an error of the compiler is in the answer, not raised.

    For a process of its own: it changes settings of Triton.
    """
    os.environ.pop("TRITON_INTERPRET", None)  # this process compiles; the kernel is imported below
    os.environ.pop("DISABLE_MMA_V3", None)  # a build before this one may have set it
    os.environ.update(plan.environment)
    try:
        begin = time.perf_counter()
        compiled, log = _compile(plan)
        seconds = time.perf_counter() - begin
        return Build(
            name=plan.name, call=plan.call, arch=plan.arch, config=plan.config, shared=compiled.metadata.shared,
            seconds=round(seconds, 1), instructions=_census(compiled.asm["cubin"]), **_said_by_ptxas(log),
        )  # fmt: skip
    except Exception as error:
        return failed(plan, error)


def failed(plan: Plan, error: Exception) -> Build:
    """The build that came to nothing."""
    return Build(name=plan.name, call=plan.call, arch=plan.arch, config=plan.config, error=_said(error))


def _said(error: Exception) -> str:
    """The line of an error that says what it is: that of ptxas, whose listing follows it, or the last."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [""]
    line = next((line for line in lines if line.startswith("ptxas fatal")), lines[-1])
    return f"{type(error).__name__}: {line}"[:MESSAGE]


def _said_by_ptxas(log: str) -> dict[str, Any]:
    """Registers, and bytes of spills and of the stack.

    Raises:
        ValueError: it does not say.
    """
    match = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores.*?Used (\d+) registers", log, re.DOTALL)
    if match is None:
        raise ValueError(f"no registers in what ptxas said: {log!r}")
    return {"stack": int(match[1]), "spills": int(match[2]), "registers": int(match[3])}


def _compile(plan: Plan) -> tuple[Any, str]:
    """The compiled kernel, and what ptxas said of it. The cache is a folder of its own: nothing was compiled before."""
    from triton import compile, knobs  # pyright: ignore[reportAttributeAccessIssue]  (a lazy attribute)
    from triton.compiler import ASTSource

    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, knobs.cache.scope(), knobs.nvidia.scope():
        knobs.cache.dir = folder
        knobs.nvidia.dump_ptxas_log = True
        source = ASTSource(resolve(plan.kernel), dict(plan.signature), dict(plan.constants), dict(plan.attributes))
        with contextlib.redirect_stdout(said):
            compiled = compile(source, target=target(plan.arch), options=dict(plan.options))
        compiled.asm["cubin"]  # read, not a path, before the folder goes
    return compiled, said.getvalue()


def _census(cubin: bytes) -> dict[str, int]:
    """How many instructions of each counted kind a binary has; none where there is no disassembler."""
    from triton import knobs  # pyright: ignore[reportAttributeAccessIssue]

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [knobs.nvidia.nvdisasm.path, "-c", str(path)]
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = Counter(match[1] for line in text.splitlines() if (match := INSTRUCTIONS.match(line)))
    return dict(sorted(found.items()))


# --- many of them --------------------------------------------------------------------------------------------------


def plan_all(executor: Executor, calls: Iterable[tuple[Call, int]]) -> tuple[list[Plan], list[Build]]:
    """Each distinct build that calls need, for the first that needs it; and the calls that failed, as builds."""
    first, errors = dict[str, Plan](), list[Build]()
    asked = [(call, arch, executor.submit(plans_of, call, arch)) for call, arch in calls]
    for call, arch, future in asked:
        try:
            for plan in future.result():
                first.setdefault(plan.identity, plan)
        except Exception as error:
            errors.append(Build(name=call.name, call=call.label, arch=arch, config="", error=_said(error)))
    return list(first.values()), errors


def build_all(executor: Executor, plans: Iterable[Plan]) -> Iterator[Build]:
    """Builds as they come. A compiler that kills its process takes the others of the pool along: these are made
    again, one at a time, so that only the guilty one fails."""
    running = {executor.submit(build, plan): plan for plan in plans}
    lost: list[Plan] = []
    for future in as_completed(running):
        try:
            yield future.result()
        except BrokenProcessPool:
            lost.append(running[future])
    for plan in lost:
        try:
            yield executor.submit(build, plan).result()
        except BrokenProcessPool:
            yield failed(plan, RuntimeError("the compiler ended its process"))
