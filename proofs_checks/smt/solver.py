"""Asking z3: a statement for all values is proved when its negation has no model, and a model refutes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import z3

from linattest.proofs_checks.pins import shortened
from linattest.proofs_checks.proof import Answer

TOOL = f"z3 {z3.get_version_string()}"
SECONDS = 60
"""After this z3 gives up on a question, and the answer is unknown."""


def always(*assumptions: z3.BoolRef, then: z3.BoolRef) -> Answer:
    """Whether ``then`` holds wherever the assumptions do; a counterexample is the evidence of a refutation."""
    return _asked(_always(assumptions, then), "every", assumptions, then)


def _always(assumptions: tuple[z3.BoolRef, ...], then: z3.BoolRef) -> Answer:
    model = _model(*assumptions, z3.Not(then))
    if model is None:
        return Answer(status="unknown", tool=TOOL, evidence={"z3": f"no answer in {SECONDS} s"})
    if model:
        return Answer(status="refuted", tool=TOOL, evidence=model)
    if not _model(*assumptions):  # from assumptions that nothing meets anything follows
        return Answer(status="unknown", tool=TOOL, evidence={"z3": "nothing meets the assumptions"})
    return Answer(status="proved", tool=TOOL, evidence={"z3": "the negation is unsatisfiable"})


def exists(*conditions: z3.BoolRef) -> Answer:
    """Whether some values meet every condition; they are the evidence."""
    model = _model(*conditions)
    status = "unknown" if model is None else "proved" if model else "refuted"
    evidence = {"z3": f"no answer in {SECONDS} s"} if model is None else model
    return _asked(Answer(status=status, tool=TOOL, evidence=evidence), "some", conditions, None)


def _model(*conditions: z3.BoolRef) -> dict[str, str] | None:
    """A model by name, empty if there is none; ``None`` if z3 does not know. A model is checked by substitution."""
    solver = z3.Solver()
    solver.set("timeout", 1000 * SECONDS)
    solver.add(*conditions)
    found = solver.check()
    if found == z3.unknown:
        if "interrupted" in solver.reason_unknown():  # z3 takes Ctrl-C for itself
            raise KeyboardInterrupt
        return None
    if found == z3.unsat:
        return {}
    model = solver.model()
    for condition in conditions:
        if not z3.is_true(model.eval(condition, model_completion=True)):
            raise ArithmeticError(f"z3's model does not meet {condition}")
    return {str(name): str(model[name]) for name in model.decls()} or {"model": "any values"}


def _asked(answer: Answer, how_many: str, conditions: Iterable[z3.BoolRef], then: z3.BoolRef | None) -> Answer:
    """The answer, with the question: a line for the values, one for each condition, and one for what follows."""
    texts: dict[int, str] = {}
    names: set[str] = set()
    lines = [f"  with {_written(x, texts, names)}" for x in conditions]
    lines += [] if then is None else [f"  holds {_written(then, texts, names)}"]
    return msgspec.structs.replace(
        answer, asked=shortened("\n".join([f"for {how_many} {', '.join(sorted(names))}", *lines]))
    )


def _written(x: Any, texts: dict[int, str], names: set[str]) -> str:
    """An expression as z3 holds it, in prefix form: unlike z3's own printing, the same in every version and length.

    ``texts``: those that are known by their number in z3; the variables are added to ``names``, with their sorts.
    """
    if (known := texts.get(x.get_id())) is not None:
        return known
    if x.num_args():
        head = " ".join(map(str, (x.decl().name(), *x.decl().params())))
        text = f"({' '.join([head, *(_written(y, texts, names) for y in x.children())])})"
    else:
        text = x.sexpr()
        if z3.is_const(x) and x.decl().kind() == z3.Z3_OP_UNINTERPRETED:
            names.add(f"{text} : {x.sort()}")
    texts[x.get_id()] = text
    return text
