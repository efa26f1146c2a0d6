"""Constants and curves of the papers, enclosed: the start of the level weights, sigma(c), the cubic remainder."""

from __future__ import annotations

import msgspec

from linattest.proofs_checks.enclosures.balls import encloses, nonnegative
from linattest.proofs_checks.proof import Answer, Statement

SOFTPLUS = "log(1 + exp({}))"
EXACT = "log(exp(1) - 1)"
"""Where softplus is 1."""

SIGMA = "((1 + sqrt(5 - 4*c)) / 2)"
GOLDEN = "((1 + sqrt(5)) / 2)"


def _softplus(x: str, shift: str, low: str, high: str) -> Answer:
    return encloses(f"{SOFTPLUS.format(x)} - {shift}", low, high)


def _at_least(least: str) -> Answer:
    return nonnegative(f"{SIGMA} - {least}", "c", "-1", "1")


def _at_most(most: str) -> Answer:
    return nonnegative(f"{most} - {SIGMA}", "c", "0", "1")


def _norm(scale: str) -> Answer:
    """sigma(c)^2 is the larger root of z^2 - (3 - 2c) z + (1 - c)^2: at z = (scale * sigma)^2, which is right of the
    vertex (3 - 2c)/2, the polynomial is >= 0, so it is from there on."""
    z = f"({SIGMA} * {scale})**2"
    right = nonnegative(f"2*{z} - (3 - 2*c)", "c", "-1", "0.999")
    there = nonnegative(f"({z})**2 - (3 - 2*c)*{z} + (1 - c)**2", "c", "-1", "0.999")
    first = next((x for x in (right, there) if x.status != "proved"), there)
    return msgspec.structs.replace(first, asked=f"{right.asked}\n{there.asked}")


def _cumulant(bound: str) -> Answer:
    """|third central moment| of a two-point distribution p, 1 - p on {0, 1} is p (1 - p) |1 - 2p|."""
    return nonnegative(f"{bound} - abs(p*(1 - p)*(1 - 2*p))", "p", "0", "1")


STATEMENTS = (
    Statement(
        id="lam.init.enclosure", method="enclosure", assumptions="none",
        statement="softplus(0.54) lies in (0.99916273, 0.99916274): near 1, and not 1",
        ask=_softplus, right=("0.54", "0", "0.99916273", "0.99916274"),
        twin="softplus(0.54) lies in (0.9999, 1.0001)",
        wrong=("0.54", "0", "0.9999", "1.0001"),
    ),
    Statement(
        id="lam.init.exact-constant", method="enclosure", assumptions="none",
        statement="|softplus(ln(e - 1)) - 1| < 1e-50",
        ask=_softplus, right=(EXACT, "1", "-1e-50", "1e-50"),
        twin="|softplus(ln(e - 1) + 2e-50) - 1| < 1e-50",
        wrong=(f"({EXACT} + 2e-50)", "1", "-1e-50", "1e-50"),
    ),
    Statement(
        id="lam.init.constant-near", method="enclosure", assumptions="none",
        statement="ln(e - 1) lies in (0.541324, 0.541325): the paper's 0.54 is it, rounded",
        ask=encloses, right=(EXACT, "0.541324", "0.541325"),
        twin="ln(e - 1) lies in (0.5399, 0.5401)",
        wrong=(EXACT, "0.5399", "0.5401"),
    ),
    Statement(
        id="vla.sigma.at-least-one", method="enclosure", assumptions="c in [-1, 1], covered by boxes",
        statement="sigma(c) >= 1 - 1e-12",
        ask=_at_least, right=("(1 - 1e-12)",),
        twin="sigma(c) >= 1 + 1e-9", wrong=("(1 + 1e-9)",),
    ),
    Statement(
        id="vla.sigma.golden", method="enclosure", assumptions="c in [0, 1], covered by boxes",
        statement="sigma(c) is at most the golden ratio (to 1e-12), which it approaches as c -> 0",
        ask=_at_most, right=(f"({GOLDEN} + 1e-12)",),
        twin="it is at most the golden ratio less 1e-9", wrong=(f"({GOLDEN} - 1e-9)",),
    ),
    Statement(
        id="vla.sigma.largest", method="enclosure",
        assumptions="c in [-1, 0.999], covered by boxes; J^T J of trace 3 - 2c and determinant (1 - c)^2, which "
        "vla.singular-values proves",
        statement="no eigenvalue of J^T J exceeds sigma(c)^2 by a factor 1.001001: its characteristic polynomial is "
        "not negative there, right of its vertex",
        ask=_norm, right=("1.0005",),
        twin="the same of 0.98 sigma(c)^2", wrong=("0.99",),
    ),
    Statement(
        id="ccq.taylor.constant", method="enclosure", assumptions="k . q takes two values at a distance of 1",
        statement="the third central moment is at most 0.0962251 (sqrt(3)/18 = 0.09622504...): so is 6 times the cubic "
        "remainder's constant",
        ask=_cumulant, right=("0.0962251",),
        twin="it is at most 0.096", wrong=("0.096",),
    ),
)  # fmt: skip
