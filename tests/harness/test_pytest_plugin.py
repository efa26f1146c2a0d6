"""The plugin: each case is a test, a wrong function fails with its diagnosis, and loading it costs nothing."""

import subprocess
import sys
from pathlib import Path

SUITE = """
import torch
from linattest.verify.pytest_plugin import linattest_cases

torch.set_num_threads(1)


def attention(q, k, v, scale):
    past = torch.ones(q.shape[1], q.shape[1], dtype=torch.float64).tril()
    o = torch.einsum("bthk,bshk,ts,bshv->bthv", q.double(), k.double(), past, v.double())
    return (o * scale).to(q.dtype)


def right(q, k, v):
    return attention(q, k, v, q.shape[-1] ** -0.5)


def wrong(q, k, v):
    return attention(q, k, v, 1.0)


knobs = {"dtypes": ("float32",), "only": {"normalizer": False}, "supports": ("rectangular",)}


@linattest_cases("linear", right, **knobs)
def test_right(linattest_case):
    linattest_case()


@linattest_cases("linear", wrong, **knobs)
def test_wrong(linattest_case):
    linattest_case()


def test_forgotten(linattest_case):
    pass
"""


def test_each_case_is_a_test_and_a_failure_has_its_diagnosis(tmp_path: Path):
    (tmp_path / "test_mine.py").write_text(SUITE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "forward or forgotten",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert failed and all("test_wrong[forward-float32-" in line for line in failed)
    assert "likely: wrong scale: every output is off by one and the same factor" in done.stdout
    assert "needs @linattest_cases(operator, function)" in done.stdout
    assert "passed" in done.stdout


def test_loading_it_imports_nothing_heavy():
    code = "import sys, linattest.verify.pytest_plugin; print(sorted({'torch', 'numpy', 'mpmath'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
