"""Constants and curves of the papers, enclosed: the start of the level weights, sigma(c), the cubic remainder."""

from __future__ import annotations

import flint

from linattest.proofs_checks.enclosures.balls import encloses, nonnegative
from linattest.proofs_checks.proof import Answer, Statement

arb = flint.arb


def softplus(x: flint.arb) -> flint.arb:
    return (1 + x.exp()).log()


def sigma(c: flint.arb) -> flint.arb:
    return (1 + (5 - 4 * c).sqrt()) / 2


def golden() -> flint.arb:
    return (1 + arb(5).sqrt()) / 2


def _norm(scale: str) -> Answer:
    """sigma(c)^2 is the larger root of z^2 - (3 - 2c) z + (1 - c)^2: the polynomial is >= 0 from scale * sigma^2 on."""

    def beyond(c: flint.arb) -> flint.arb:
        z = (sigma(c) * arb(scale)) ** 2
        return z * z - (3 - 2 * c) * z + (1 - c) ** 2

    return nonnegative(beyond, "-1", "0.999")


def _cumulant(bound: str) -> Answer:
    """|third central moment| of a two-point distribution p, 1 - p on {0, 1} is p (1 - p) |1 - 2p|."""
    return nonnegative(lambda p: arb(bound) - (p * (1 - p) * (1 - 2 * p)).abs_upper(), "0", "1")


STATEMENTS = (
    Statement(
        id="lam.init.enclosure", method="enclosure", assumptions="none",
        statement="softplus(0.54) lies in (0.99916273, 0.99916274): near 1, and not 1",
        check=lambda: encloses(lambda: softplus(arb("0.54")), "0.99916273", "0.99916274"),
        twin="softplus(0.54) lies in (0.9999, 1.0001)",
        twin_check=lambda: encloses(lambda: softplus(arb("0.54")), "0.9999", "1.0001"),
    ),
    Statement(
        id="lam.init.exact-constant", method="enclosure", assumptions="none",
        statement="|softplus(ln(e - 1)) - 1| < 1e-50",
        check=lambda: encloses(lambda: softplus((arb(1).exp() - 1).log()) - 1, "-1e-50", "1e-50"),
        twin="|softplus(0.541325) - 1| < 1e-50",
        twin_check=lambda: encloses(lambda: softplus(arb("0.541325")) - 1, "-1e-50", "1e-50"),
    ),
    Statement(
        id="lam.init.constant-near", method="enclosure", assumptions="none",
        statement="ln(e - 1) lies in (0.541324, 0.541325): the paper's 0.54 is it, rounded",
        check=lambda: encloses(lambda: (arb(1).exp() - 1).log(), "0.541324", "0.541325"),
        twin="ln(e - 1) lies in (0.5399, 0.5401)",
        twin_check=lambda: encloses(lambda: (arb(1).exp() - 1).log(), "0.5399", "0.5401"),
    ),
    Statement(
        id="vla.sigma.at-least-one", method="enclosure", assumptions="c in [-1, 1], covered by boxes",
        statement="sigma(c) >= 1 - 1e-12",
        check=lambda: nonnegative(lambda c: sigma(c) - 1 + arb("1e-12"), "-1", "1"),
        twin="sigma(c) >= 1.01", twin_check=lambda: nonnegative(lambda c: sigma(c) - arb("1.01"), "-1", "1"),
    ),
    Statement(
        id="vla.sigma.golden", method="enclosure", assumptions="c in [0, 1], covered by boxes",
        statement="sigma(c) is at most the golden ratio (to 1e-12), which it approaches as c -> 0",
        check=lambda: nonnegative(lambda c: golden() + arb("1e-12") - sigma(c), "0", "1"),
        twin="sigma(c) <= 1.6", twin_check=lambda: nonnegative(lambda c: arb("1.6") - sigma(c), "0", "1"),
    ),
    Statement(
        id="vla.sigma.largest", method="enclosure", assumptions="c in [-1, 0.999], covered by boxes",
        statement="no eigenvalue of J^T J exceeds sigma(c)^2 by a factor 1.001001: its characteristic polynomial is "
        "positive there",
        check=lambda: _norm("1.0005"),
        twin="the same of 0.98 sigma(c)^2", twin_check=lambda: _norm("0.99"),
    ),
    Statement(
        id="ccq.taylor.constant", method="enclosure", assumptions="k . q takes two values at a distance of 1",
        statement="the third central moment is at most 0.0962251 (sqrt(3)/18 = 0.09622504...): so is 6 times the cubic "
        "remainder's constant",
        check=lambda: _cumulant("0.0962251"),
        twin="it is at most 0.096", twin_check=lambda: _cumulant("0.096"),
    ),
)  # fmt: skip
