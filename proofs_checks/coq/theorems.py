"""What Coq proves of VLA and of Fenwick buckets: for every width over every ordered field, every number of tokens,
and positions of any size.

A statement is a ``Theorem`` of a file beside this one, and its twin a theorem that says "not for all". Both are about
the same hypotheses where the twin changes the conclusion, so that a twin also shows these hypotheses to be satisfiable.
"""

from __future__ import annotations

from linattest.proofs_checks.coq.compiler import proved, refuted
from linattest.proofs_checks.proof import Answer, Statement

FIELD = "every width, every ordered field"
ROOTS = "every width, every real closed field (the reals are one)"
DEFINITE = f"M symmetric positive definite, {FIELD}"
GAIN = "J = I - k a^T, a = A k / n, A = M^{-1}, c = a . k"
KEYS = f"keys of length 1, a_t = A_t k_t / |A_t k_t|, lam0 > 0, any number of tokens, {ROOTS}"
POSITIONS = "natural numbers of any size"


def theorem(identity: str, at: str, assumptions: str, statement: str, twin: str, twin_file: str = "") -> Statement:
    """A statement that the theorem at "file.name" proves, and "file.twin_name" refutes a wrong variant of."""
    file, name = at.split(".")
    rejected = f"{twin_file or file}.twin_{name}"
    return Statement(
        id=identity, method="coq", assumptions=assumptions, statement=statement, ask=_ask, right=(at,),
        twin=twin, wrong=(rejected, at),
    )  # fmt: skip


def _ask(at: str, twin_of: str = "") -> Answer:
    return refuted(at, twin_of=twin_of) if twin_of else proved(at)


STATEMENTS = (
    theorem(
        "vla.cauchy-schwarz", "forms.cauchy_schwarz", f"M symmetric positive semidefinite, {FIELD}",
        "(x^T M y)^2 <= (x^T M x) (y^T M y)",
        twin="2 (x^T M y)^2 <= (x^T M x) (y^T M y)",
    ),
    theorem(
        "vla.sherman-morrison", "penalty.sherman_morrison", f"M invertible, 1 + v^T A u not 0, A = M^{{-1}}, {FIELD}",
        "(M + u v^T) (A - A u v^T A / (1 + v^T A u)) = I",
        twin="the same with + A u v^T A",
    ),
    theorem(
        "vla.sherman-morrison.recursion", "penalty.symmetric_sherman_morrison", DEFINITE,
        "(M + u u^T)^{-1} = A - z z^T / (1 + u . z), A = M^{-1}, z = A u",
        twin="the same with z z^T not divided",
    ),
    theorem(
        "vla.sherman-morrison.denominator", "penalty.denominator_at_least_one", f"A positive semidefinite, {FIELD}",
        "1 + u^T A u >= 1: what the recursion divides by is never small",
        twin="1 + u^T A u >= 2",
    ),
    theorem(
        "vla.sherman-morrison.shrinks", "penalty.inverse_shrinks", DEFINITE,
        "x^T (M + u u^T)^{-1} x <= x^T M^{-1} x: the inverse only shrinks",
        twin="the same with >=",
    ),
    theorem(
        "vla.determinant", "penalty.determinant_lemma", f"M invertible, A = M^{{-1}}, {FIELD}",
        "det(M + u v^T) = det M (1 + v^T A u)",
        twin="det(M + u v^T) = det M (1 + 2 v^T A u)",
    ),
    theorem(
        "vla.determinant.growth", "sequence.growth_is_determinant", f"M_t = lam0 I + sum of u u^T, lam0 > 0, {FIELD}",
        "the product over t of 1 + u_t^T A_{t-1} u_t is det M_T / det M_0, for any number of tokens",
        twin="the same with A_t",
    ),
    theorem(
        "vla.determinant.hadamard", "determinant.hadamard", DEFINITE,
        "0 < det M <= the product of M's diagonal",
        twin="det M < the product of M's diagonal",
    ),
    theorem(
        "vla.determinant.one-plus", "determinant.det_one_plus", f"X symmetric positive semidefinite, {FIELD}",
        "det(I + X) <= the product of 1 + X_ii",
        twin="det(I + X) <= 1 + tr X",
    ),
    theorem(
        "vla.energy", "energy.energy_identity", f"M symmetric and invertible, n not 0, {GAIN}, {FIELD}",
        "M - J M J^T = ((2 - c) / n) k k^T",
        twin="the same with 1 - c", twin_file="plane",
    ),
    theorem(
        "vla.energy.contraction", "energy.energy_contraction", f"{DEFINITE}, n > 0, c <= 2, {GAIN}",
        "tr(S J M J^T S^T) <= tr(S M S^T) for every S: J does not expand in the norm of M",
        twin="tr(S J J^T S^T) <= tr(S S^T): nor in the Euclidean norm", twin_file="plane",
    ),
    theorem(
        "vla.energy.attained", "energy.energy_attained", f"d >= 2, any M and n, {GAIN}",
        "tr(s J M J^T s^T) = s M s^T for some row s that is not 0: the norm of J is not less than 1",
        twin="the same for d >= 1, M positive definite", twin_file="plane",
    ),
    theorem(
        "vla.energy.cosine", "energy.cosine_range", f"{DEFINITE}, |k| = 1, n = |A k|, c = k^T A k / n",
        "0 < c <= 1",
        twin="0 < c < 1", twin_file="plane",
    ),
    theorem(
        "vla.energy.lyapunov-step", "energy.lyapunov_step", f"{DEFINITE}, N = M + u u^T in M's place in {GAIN}; c <= 2",
        "tr(S J N J^T S^T) <= (1 + u^T M^{-1} u) tr(S M S^T): V_t <= V_{t-1} (1 + u^T A_{t-1} u)",
        twin="V_t <= V_{t-1}", twin_file="plane",
    ),
    theorem(
        "vla.energy.lyapunov", "products.lyapunov_determinant",
        f"M_t = lam0 I + sum of u u^T, lam0 > 0, gains A_t k_t / n_t with n_t > 0 and c_t <= 2, {FIELD}",
        "V_T <= V_0 det M_T / det M_0, V_t = tr(S J_1 .. J_t M_t (S J_1 .. J_t)^T), for any number of tokens",
        twin="V_T <= V_0",
    ),
    theorem(
        "vla.energy.products", "products.vla_jacobians_bounded", KEYS,
        "|S J_1 .. J_T|_F^2 <= (1 + sum of |u_t|^2 / (d lam0))^d |S|_F^2 for every S: no exponential growth",
        twin="|S J_1 .. J_T|_F <= |S|_F",
    ),
    theorem(
        "vla.least-squares.any-length", "sequence.least_squares",
        f"u = k, gain A_t k_t not normalised, lam0 > 0, {FIELD}",
        "S_T = (sum of v k^T) (lam0 I + sum of k k^T)^{-1}, for any number of tokens",
        twin="the same with the gain normalised", twin_file="certificate",
    ),
    theorem(
        "vla.certificate", "certificate.certificate_holds",
        f"M_t = lam0 I + sum of u u^T, lam0 > 0, gains A_t k_t / n_t with n_t > 0 and c_t <= 2, {ROOTS}",
        "|S_t|_M <= B_t = sqrt(1 + u_t^T A_{t-1} u_t) B_{t-1} + |v_t| sqrt(c_t / n_t), B_0 = |S_0|_M, for every t",
        twin="the same without sqrt(1 + u^T A u)",
    ),
    theorem(
        "vla.certificate.state", "certificate.vla_state_bounded", KEYS,
        "|S_t|_F <= B_t / sqrt(lam0) for every sequence",
        twin="|S_t|_F <= B_t",
    ),
    theorem(
        "vla.certificate.floor", "certificate.vla_state_bounded_below",
        f"{KEYS}; mu > 0, mu |x|^2 <= x^T M_t x for every x",
        "|S_t|_F <= B_t / sqrt(mu), so with the least eigenvalue of M_t in mu's place",
        twin="|S_t|_F <= B_t / (2 sqrt(mu))",
    ),
    theorem(
        "linear.state-bound", "certificate.linear_attention_bound", f"any number of tokens, {ROOTS}",
        "|sum of v_t k_t^T|_F <= sum of |v_t| |k_t|",
        twin="|sum of v_t k_t^T|_F <= the largest |v_t| |k_t|",
    ),
    theorem(
        "lam.fenwick.coq-blocks", "fenwick.level_is_block", f"s < t, {POSITIONS}",
        "bit_length(t xor s) = j + 1 exactly if bit j of t is set and s lies in the aligned block of 2^j before it",
        twin="the same with bit_length(t xor s) = j + 2",
    ),
    theorem(
        "lam.fenwick.coq-partition", "fenwick.blocks_partition", f"s < t, {POSITIONS}",
        "s lies in the block of exactly one set bit of t",
        twin="the same for s <= t",
    ),
    theorem(
        "lam.fenwick.coq-extent", "fenwick.block_extent", f"bit j of t is set, {POSITIONS}",
        "the block of bit j is the 2^j tokens from ((t >> j) - 1) 2^j on, all of them before t",
        twin="it is 2^(j + 1) tokens",
    ),
    theorem(
        "lam.fenwick.coq-carry", "fenwick.carry", f"s <= t, t + 1 = odd 2^z, {POSITIONS}",
        "from t to t + 1 the levels up to z merge into level z + 1; the others stay",
        twin="they merge into level z",
    ),
    theorem(
        "lam.fenwick.coq-tree", "fenwick.tree_node", f"n < N, bit j of n is set, {POSITIONS}",
        "node (n >> j) - 1 is one of the N >> j whole nodes of height j, and ends at or before chunk n",
        twin="node n >> j is one of them",
    ),
    theorem(
        "lam.fenwick.coq-levels", "fenwick.most_levels", f"s <= t < T, {POSITIONS}",
        "no level above bit_length(T - 1) occurs among T tokens",
        twin="no level above bit_length(T - 1) - 1 occurs",
    ),
)  # fmt: skip
