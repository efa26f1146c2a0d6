"""Asking z3: a statement for all values is proved when its negation has no model, and a model refutes it."""

from __future__ import annotations

import z3

from linattest.proofs_checks.proof import Answer

TOOL = f"z3 {z3.get_version_string()}"
SECONDS = 60
"""After this z3 gives up on a question, and the answer is unknown."""


def always(*assumptions: z3.BoolRef, then: z3.BoolRef) -> Answer:
    """Whether ``then`` holds wherever the assumptions do; a counterexample is the evidence of a refutation."""
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
    if model is None:
        return Answer(status="unknown", tool=TOOL, evidence={"z3": f"no answer in {SECONDS} s"})
    return Answer(status="proved" if model else "refuted", tool=TOOL, evidence=model)


def _model(*conditions: z3.BoolRef) -> dict[str, str] | None:
    """A model by name, empty if there is none; ``None`` if z3 does not know. A model is checked by substitution."""
    solver = z3.Solver()
    solver.set("timeout", 1000 * SECONDS)
    solver.add(*conditions)
    found = solver.check()
    if found == z3.unknown:
        return None
    if found == z3.unsat:
        return {}
    model = solver.model()
    for condition in conditions:
        if not z3.is_true(model.eval(condition, model_completion=True)):
            raise ArithmeticError(f"z3's model does not meet {condition}")
    return {str(name): str(model[name]) for name in model.decls()} or {"model": "any values"}
