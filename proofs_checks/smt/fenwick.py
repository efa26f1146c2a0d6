"""Index laws of the Fenwick partition on 32-bit positions, proved for all of them at once (log-linear attention).

Token s < t lies in the bucket of level bit_length(t xor s) as seen from token t; the token itself is level 0.
"""

from __future__ import annotations

import itertools

import z3

from linattest.proofs_checks.proof import Answer, Statement
from linattest.proofs_checks.smt.solver import always

BITS = 32
LEVELS = range(1, BITS + 1)
t, s, n, N = z3.BitVecs("t s n N", BITS)
PAST = z3.ULT(s, t)
POSITIONS = f"0 <= s < t < 2^{BITS}"


def shifted(x: z3.BitVecRef, count: int) -> z3.BitVecRef:
    return z3.LShR(x, count) if count < BITS else z3.BitVecVal(0, BITS)


def has_level(late: z3.BitVecRef, early: z3.BitVecRef, level: int) -> z3.BoolRef:
    """bit_length(late xor early) == level."""
    difference = late ^ early
    return difference == 0 if level == 0 else shifted(difference, level - 1) == 1


def in_block(late: z3.BitVecRef, early: z3.BitVecRef, level: int) -> z3.BoolRef:
    """Bit level - 1 of `late` is set, and `early` lies in the aligned block of 2^(level - 1) just before it ends."""
    j = level - 1
    return z3.And(z3.Extract(j, j, late) == 1, shifted(early, j) == shifted(late, j) - 1)


def _blocks(shift: int) -> Answer:
    same = [has_level(t, s, level) == in_block(t, s, level - shift) for level in LEVELS if level > shift]
    return always(PAST, then=z3.And(same))


def _exactly_one(levels: range) -> Answer:
    """Some level holds the token, and no two do; a level is a block by `_blocks`."""
    held = [has_level(t, s, level) for level in levels]
    apart = [z3.Not(z3.And(a, b)) for a, b in itertools.combinations(held, 2)]
    return always(PAST, then=z3.And(z3.Or(held), *apart))


def _carry(reach: int) -> Answer:
    """Which level a token has one step later; `reach` moves the level up to which buckets are merged."""
    later, laws = t + 1, []
    for zeros in range(BITS):  # trailing zeros of t + 1
        carries = z3.Extract(zeros, 0, later) == (1 << zeros)
        merged = z3.Or([has_level(t, s, level) for level in range(max(zeros + 1 - reach, 0))])
        kept = z3.And([has_level(later, s, level) == has_level(t, s, level) for level in LEVELS if level > zeros + 1])
        laws.append(z3.Implies(z3.And(carries, merged), has_level(later, s, zeros + 1)))
        laws.append(z3.Implies(z3.And(carries, z3.Not(merged)), z3.And(kept, z3.Not(has_level(later, s, zeros + 1)))))
    return always(z3.ULE(s, t), later != 0, then=z3.And(laws))


def _tree(offset: int) -> Answer:
    """Chunk n of N reads, for each set bit j, node (n >> j) - 1 of the N >> j whole nodes at height j."""
    laws = []
    for j in range(BITS):
        node = shifted(n, j) - 1 + offset
        reads = z3.Extract(j, j, n) == 1
        ends_before = z3.ULE((node + 1) << j, n)
        laws.append(z3.Implies(reads, z3.And(z3.ULT(node, shifted(N, j)), ends_before)))
    return always(z3.ULT(n, N), then=z3.And(laws))


def _most_levels(fewer: int) -> Answer:
    """Below T tokens no level above bit_length(T - 1) occurs; N stands for T."""
    laws = [
        z3.Implies(has_level(t, s, level), z3.UGE(N - 1, 1 << (level - 1 + fewer)))
        for level in LEVELS
        if level - 1 + fewer < BITS
    ]
    return always(PAST, z3.ULT(t, N), then=z3.And(laws))


STATEMENTS = (
    Statement(
        id="lam.fenwick.blocks", method="smt", assumptions=POSITIONS,
        statement="bit_length(t xor s) = l exactly if bit l-1 of t is set and s lies in the aligned block of 2^(l-1) "
        "tokens before it",
        ask=_blocks, right=(0,),
        twin="the same with the block of 2^(l-2) tokens", wrong=(1,),
    ),
    Statement(
        id="lam.fenwick.partition", method="smt", assumptions=POSITIONS,
        statement="every earlier token has exactly one level, hence lies in exactly one block (lam.fenwick.blocks)",
        ask=_exactly_one, right=(LEVELS,),
        twin="the same without the level of one token", wrong=(LEVELS[1:],),
    ),
    Statement(
        id="lam.fenwick.carry", method="smt", assumptions=f"0 <= s <= t < 2^{BITS} - 1",
        statement="from t to t + 1 the levels up to z = trailing zeros of t + 1 merge into level z + 1; the rest stay",
        ask=_carry, right=(0,),
        twin="the same with the levels below z", wrong=(1,),
    ),
    Statement(
        id="lam.fenwick.tree", method="smt", assumptions=f"0 <= n < N < 2^{BITS}",
        statement="for each set bit j of chunk n, node (n >> j) - 1 is one of the N >> j whole nodes of height j and "
        "ends at or before chunk n",
        ask=_tree, right=(0,),
        twin="the same of node n >> j", wrong=(1,),
    ),
    Statement(
        id="lam.fenwick.levels", method="smt", assumptions=f"0 <= s < t < T < 2^{BITS}",
        statement="no level above bit_length(T - 1) occurs among T tokens",
        ask=_most_levels, right=(0,),
        twin="no level above bit_length(T - 1) - 1 occurs", wrong=(1,),
    ),
)  # fmt: skip
