"""What may change without changing a result: the axes that keys and values are written in, the company of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from linattest.verify.inputs import Batch, generator
from linattest.verify.probe import Finding, Probe
from linattest.verify.properties.pieces import brief, rows
from linattest.verify.spec import Operator, Property
from linattest.verify.values import FINITE

CROWD = 24
"""Rows of a larger batch, each a copy of one of ours."""

Turn = tuple[torch.Tensor, torch.Tensor]
"""Channel numbers in their new order, and the sign of each."""


def _turn(batch: Batch, letter: str, width: int) -> Turn:
    """A signed permutation: an orthogonal change of axes that rounds nothing."""
    rng = generator(batch.case, f"axes {letter}")
    return torch.from_numpy(rng.permutation(width)), torch.from_numpy(1.0 - 2 * rng.integers(0, 2, width))


def _turned(x: torch.Tensor, shape: str, turns: dict[str, Turn], *, signs: bool = True) -> torch.Tensor:
    """The tensor with every key and every value axis turned (a rate a channel only moves along)."""
    for axis, letter in enumerate(shape.split()):
        if letter in turns:
            order, sign = turns[letter]
            x = x.index_select(axis, order)
            if signs:
                x = x * sign.to(x.dtype).view(-1, *[1] * (x.dim() - axis - 1))
    return x


def _back(turn: Turn) -> Turn:
    order, sign = turn
    inverse = torch.argsort(order)
    return inverse, sign[inverse]


def axes_turned(operator: Operator, batch: Batch, turns: dict[str, Turn]) -> Batch:
    """The batch with keys, values and the state's axes in other orthogonal axes."""
    inputs = {x.name: x for x in operator.inputs_of(batch.options)}
    states = {x.name: x for x in operator.states_of(batch.options)}
    return batch.with_(
        tensors={
            name: _turned(x, inputs[name].shape, turns, signs=inputs[name].domain not in FINITE)
            for name, x in batch.tensors.items()
        },
        state=None
        if batch.state is None
        else {name: _turned(x, states[name].shape, turns) for name, x in batch.state.items()},
    )


def basis(probe: Probe) -> Iterator[Finding]:
    """Keys and values in other orthogonal axes: the same results, in these axes, within the same budget."""
    batch, s = probe.batch, probe.batch.case.structure
    if s.K == 1 and s.V == 1:
        return
    turns = {letter: _turn(batch, letter, width) for letter, width in (("K", s.K), ("V", s.V))}
    back = {letter: _back(turn) for letter, turn in turns.items()}
    outcome = probe.run(axes_turned(probe.operator, batch, turns))
    shapes = {"o": probe.operator.output}
    shapes |= {f"state.{x.name}": x.shape for x in probe.operator.states_of(batch.options)}
    for name, x in outcome.values.items():
        yield probe.judge(name, _turned(x, shapes[name], back), "in other orthogonal axes")


def company(probe: Probe) -> Iterator[Finding]:
    """Each row alone, and among 24, gives the bits that it gives in its batch; forward and backward."""
    batch = brief(probe)
    if batch.cu_seqlens is not None or not batch.case.structure.B:
        return
    backward = "gradient" in probe.variant.supports
    summed = {f"d {option.name}" for option in probe.operator.options}  # over the rows of a batch
    B = batch.case.structure.B
    together = probe.run(batch, backward=backward)
    for b in range(B) if B > 1 else ():
        alone = probe.run(rows(batch, [b]), backward=backward)
        for name in together.values.keys() - summed:
            yield probe.same_bits(alone[name], together[name][b : b + 1], f"{name} of row {b} alone")
    crowd = probe.run(rows(batch, [i % B for i in range(CROWD)]))
    for name, x in crowd.values.items():
        for b in (0, CROWD - 1):
            wanted = together[name][b % B : b % B + 1]
            yield probe.same_bits(x[b : b + 1], wanted, f"{name} of row {b} among {CROWD}")


# --- planted faults ----------------------------------------------------------------------------------------------


def prefers_the_first_channel(right: Callable[..., Any]) -> Callable[..., Any]:
    """The first channel of what asks counts a thousandth more."""

    def wrong(q: torch.Tensor, *x: torch.Tensor, **given: Any) -> Any:
        weights = torch.ones(q.shape[-1], dtype=q.dtype)
        weights[0] += 1e-3
        return right(q * weights, *x, **given)

    return wrong


def adds_up_in_another_order(right: Callable[..., Any]) -> Callable[..., Any]:
    """A batch of more than eight rows takes another path, which rounds once more."""

    def wrong(q: torch.Tensor, *x: torch.Tensor, **given: Any) -> Any:
        o, state = right(q, *x, **given)
        return (o * 3 / 3 * (1 + torch.finfo(o.dtype).eps) if len(q) > 8 else o), state

    return wrong


def depends_on_the_number_of_rows(right: Callable[..., Any]) -> Callable[..., Any]:
    """A mean over the batch is added and taken away again."""

    def wrong(q: torch.Tensor, *x: torch.Tensor, **given: Any) -> Any:
        o, state = right(q, *x, **given)
        return (o + o.mean(0, keepdim=True)) - o.mean(0, keepdim=True), state

    return wrong


BASIS = Property(
    name="key-basis",
    promise=True,
    statement="an orthogonal change of the axes of keys and values changes nothing but the axes",
    check=basis,
    faults=(prefers_the_first_channel,),
)
COMPANY = Property(
    name="batch-invariance",
    promise=True,
    statement="a row has the same bits alone, in its batch and among 24",
    check=company,
    faults=(adds_up_in_another_order, depends_on_the_number_of_rows),
)
