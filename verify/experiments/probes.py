"""What a trained model's level weights depend on: the input at all, and the role of the token."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.stats import entropy
from torch import Tensor

from linattest.impls.lm import CausalLM
from linattest.verify.experiments.tasks import ROLES, Task, roles

MOST_ROWS = 256
BINS = 16
"""Quantiles into which the weights of a level are sorted before their information on roles is counted."""


@torch.no_grad()
def level_weights(model: CausalLM, task: Task, tokens: np.ndarray, device: str) -> dict[str, Any]:
    """Of every layer's level weights over these rows, nothing for models without any:

    input_spread      standard deviation over rows at a place, over the mean: 0 if the input does not matter
    role_information  information of a weight on its token's role, as a share of the role's entropy, 0 to 1
    heat_map          mean weight by role (``ROLES``) and level, over rows, heads and layers; null for a role not there
    """
    seen = _captured(model, torch.from_numpy(tokens).to(device))
    if not seen:
        return {}
    weights = np.stack(seen).astype(np.float64)  # [layers, rows, T, HV, L]
    kinds = roles(task, tokens)
    return {
        "input_spread": float((weights.std(1) / weights.mean(1).clip(1e-30)).mean()),
        "role_information": role_information(weights, kinds),
        "heat_map": [_mean_of(weights, kinds == n) for n in range(len(ROLES))],
        "roles": list(ROLES),
    }


def _captured(model: CausalLM, ids: Tensor) -> list[np.ndarray]:
    """What each module of level weights gave, in the order of the layers."""
    seen: list[np.ndarray] = []

    def keep(_module: Any, _inputs: Any, output: Tensor) -> None:
        seen.append(output.float().cpu().numpy())

    found = [m for name, m in model.named_modules() if name.endswith("operands.weights")]
    hooks = [module.register_forward_hook(keep) for module in found]
    try:
        model.eval()
        model(ids)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def role_information(weights: np.ndarray, kinds: np.ndarray) -> float:
    """Mean over layers, heads and levels of I(role; weight's quantile) / H(role); weights [layers, rows, T, HV, L]."""
    layers, _, _, HV, L = weights.shape
    role = kinds.flatten()
    of_role = entropy(np.bincount(role))
    if not of_role:
        return 0.0
    shares: list[float] = []
    for n, head, level in np.ndindex(layers, HV, L):
        x = weights[n, :, :, head, level].flatten()
        edges = np.unique(np.quantile(x, np.linspace(0, 1, BINS + 1)[1:-1]))
        joint = np.zeros((len(edges) + 1, len(ROLES)))
        np.add.at(joint, (np.searchsorted(edges, x, side="right"), role), 1)
        shared = entropy(joint.sum(1)) + of_role - entropy(joint.flatten())
        shares.append(float(max(shared, 0.0) / of_role))
    return float(np.mean(shares))


def _mean_of(weights: np.ndarray, where: np.ndarray) -> list[float] | None:
    if not where.any():
        return None
    return [float(x) for x in weights[:, where].mean((0, 1, 2))]
