"""The checks of ``linattest check`` as tests of your own suite. Loaded by pytest wherever linattest is installed.

    from linattest.verify.pytest_plugin import linattest_cases

    @linattest_cases("gla", my_function, rename={"gk": "g"})
    def test_my_function(linattest_case):
        linattest_case()

Each case is a test of its own: an input in one dtype and direction, or a property. Calling it judges the function and
fails with the message of the worst element and the likely fault in words. Nothing heavy is imported before
``linattest_cases`` is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from linattest.verify.cases import CaseCheck


def linattest_cases(
    operator: str, function: Callable[..., Any] | str, *, full: bool = False, quick: bool = True, seed: int = 0,
    **description: Any,
) -> pytest.MarkDecorator:  # fmt: skip
    """A ``parametrize`` mark with a case for each thing to judge of a function, as argument ``linattest_case``.

    Args:
        operator: the operator's name, as ``linattest info`` lists them.
        function: the function, or "module:function"; small calls of it are made here, to learn what it takes.
        full, quick, seed: as ``linattest check``.
        description: as ``linattest.verify.check.check``: ``rename``, ``fixed``, ``only``, ``dtypes``, ``strict``, ...

    Raises:
        SubjectError: the signature does not fit the operator; pytest shows it as an error of collection.
    """
    from linattest.verify.cases import cases

    found = cases(operator, function, full=full, quick=quick, seed=seed, **description)
    return pytest.mark.parametrize("linattest_case", found, ids=[case.id for case in found])


@pytest.fixture
def linattest_case(request: pytest.FixtureRequest) -> CaseCheck:
    """The case of this test; ``linattest_cases`` gives it."""
    raise pytest.UsageError(f"{request.node.nodeid} needs @linattest_cases(operator, function)")
