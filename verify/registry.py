"""The operators the harness knows: one explicit tuple, nothing registers itself."""

from __future__ import annotations

from linattest.verify.operators import (
    ccq,
    covariance_contract,
    delta_net,
    delta_scan,
    gated_delta_net,
    gla,
    linear,
    log_linear,
    ridge_solve,
    softmax,
    vla,
)
from linattest.verify.properties.device import DEVICE
from linattest.verify.properties.handover import HANDOVER
from linattest.verify.properties.machine import MACHINE
from linattest.verify.properties.memory import MEMORY
from linattest.verify.properties.metamorphic import METAMORPHIC
from linattest.verify.properties.scaling import SCALING
from linattest.verify.properties.symmetry import BASIS, COMPANY
from linattest.verify.spec import Operator, Property

OPERATORS: tuple[Operator, ...] = (
    softmax.OPERATOR,
    linear.OPERATOR,
    gla.OPERATOR,
    delta_net.OPERATOR,
    gated_delta_net.OPERATOR,
    delta_scan.OPERATOR,
    ridge_solve.OPERATOR,
    vla.OPERATOR,
    covariance_contract.OPERATOR,
    ccq.OPERATOR,
    log_linear.OPERATOR,
)

GENERAL: tuple[Property, ...] = (*METAMORPHIC, SCALING, BASIS, COMPANY, *HANDOVER, *MEMORY, *MACHINE, *DEVICE)
"""Properties that are tried on every operator."""

BY_NAME: dict[str, Operator] = {operator.name: operator for operator in OPERATORS}


def operator(name: str) -> Operator:
    """The operator of that name.

    Raises:
        KeyError: no such operator; the message lists the known ones.
    """
    try:
        return BY_NAME[name]
    except KeyError:
        raise KeyError(f"no operator {name!r}; known: {', '.join(BY_NAME)}") from None


def properties(of: Operator) -> tuple[Property, ...]:
    """The properties tried on an operator: the general ones and those of its page."""
    return (*GENERAL, *of.properties)
