"""The running covariance keeps its digits where the difference of two moments loses them."""

from __future__ import annotations

import pytest
import torch

from linattest.impls import covariance_contract


def far_keys(T: int = 4096, K: int = 8, mean: float = 1e4) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries, and float32 keys of unit spread around a mean of 1e4 in each channel."""
    generator = torch.Generator().manual_seed(11)
    signs = torch.randint(0, 2, (K,), generator=generator) * 2.0 - 1
    k = torch.randn(1, T, 1, K, generator=generator) + mean * signs
    return torch.randn(1, T, 1, K, generator=generator), k


def exact(q: torch.Tensor, k: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """Sigma_t q_t in two passes, in float64: the mean first, then the spread about it."""
    rows = []
    for t in tokens:
        seen = k[0, : t + 1, 0].double()
        centred = seen - seen.mean(0)
        rows.append(centred.T @ (centred @ q[0, t, 0].double()) / (t + 1))
    return torch.stack(rows)


def naive(q: torch.Tensor, k: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """The difference of two moments, in float32: E[k (k . q)] - E[k] (E[k] . q)."""
    rows = []
    for t in tokens:
        seen, query = k[0, : t + 1, 0], q[0, t, 0]
        mean = seen.mean(0)
        rows.append((seen.T @ (seen @ query)) / (t + 1) - mean * (mean @ query))
    return torch.stack(rows)


@pytest.mark.parametrize("form", ["recurrent", "chunk", "step"])
def test_keys_far_from_zero_lose_no_digits(form: str):
    """|mean| = 1e4, unit spread, float32, T = 4096: relative error of Sigma q at most 1e-5; the two-term formula is
    off by more than the answer."""
    q, k = far_keys()
    tokens = [64, 1000, 4095]
    wanted = exact(q, k, tokens)
    lam = torch.ones(1, k.shape[1], 1)
    if form == "step":  # the state passes through float32 between the pieces and before each single step
        rows, state, start = [], None, 0
        for t in tokens:
            _, state = covariance_contract.chunk(
                q[:, start:t], k[:, start:t], lam[:, start:t], initial_state=state, output_final_state=True
            )
            clean, state = covariance_contract.step(
                q[:, t : t + 1], k[:, t : t + 1], lam[:, t : t + 1], initial_state=state
            )
            rows.append(clean[0, 0, 0])
            start = t + 1
        clean = torch.stack(rows)
    else:
        clean = getattr(covariance_contract, form)(q, k, lam)[0][0, tokens, 0]
    got = q[0, tokens, 0].double() - clean.double()
    error = ((got - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max()
    lost = ((naive(q, k, tokens).double() - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max()
    print(f"{form}: relative error {float(error):.2e}; difference of two moments {float(lost):.2e}")
    assert error <= 1e-5 and lost > 1


def test_a_query_that_asks_nothing_keeps_its_bits_and_lam_its_gradient():
    """lam = 0: q comes back bit for bit, -0.0 and beside an overflow too; the slope in lam is that of the formula."""
    q = torch.tensor([1.5, -0.0]).view(1, 1, 1, 2).repeat(1, 3, 1, 1)
    k = torch.tensor([[3e38, 1.0], [-3e38, 2.0], [1.0, 1.0]]).view(1, 3, 1, 2)
    clean, _ = covariance_contract.chunk(q, k, torch.zeros(1, 3, 1))
    assert torch.equal(clean.view(torch.int32), q.view(torch.int32))
    lam = torch.zeros(1, 3, 1, requires_grad=True)
    calm = k.clamp(-2, 2)
    covariance_contract.chunk(q, calm, lam)[0].sum().backward()
    ones, _ = covariance_contract.chunk(q, calm, torch.ones(1, 3, 1))
    assert lam.grad is not None
    torch.testing.assert_close(lam.grad, (ones - q).sum(-1))


@pytest.mark.parametrize("form", ["recurrent", "chunk"])
def test_keys_that_all_weigh_nothing_leave_an_empty_covariance(form: str):
    """Sigma is 0 and the state that of no token but for its reference, so that what follows is as from the start."""
    q, k, lam = torch.randn(1, 5, 1, 3), torch.randn(1, 5, 1, 3) + 100, torch.ones(1, 5, 1)
    run = getattr(covariance_contract, form)
    o, state = run(q, k, lam, weight=torch.zeros(1, 5, 1), output_final_state=True)
    assert torch.equal(o, q)
    assert not state.count.any() and not state.mean.any() and not state.scatter.any()
    later = [torch.randn(1, 7, 1, 3), torch.randn(1, 7, 1, 3), torch.rand(1, 7, 1)]
    after, whole = (run(*later, initial_state=x, output_final_state=True) for x in (state, None))
    torch.testing.assert_close(after[0], whole[0], rtol=1e-4, atol=1e-4)  # the far reference costs digits in float32
    assert after[1].count == whole[1].count == 7
