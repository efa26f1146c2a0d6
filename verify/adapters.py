"""Foreign subjects under our calling convention: other people's kernels on our inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from linattest.verify.returns import NotDue, described, hold_output, hold_state, parts
from linattest.verify.spec import Operator
from linattest.verify.subject import Subject, SubjectError

BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}

STATE = ("initial_state", "output_final_state")
NAMED = frozenset({inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD,
                   inspect.Parameter.KEYWORD_ONLY})  # fmt: skip


def sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float | None = None, backend: str
) -> tuple[torch.Tensor, None]:
    """PyTorch's causal ``scaled_dot_product_attention`` on one backend.

    Args:
        q, k: ``[B, T, H, K]``; v: ``[B, T, H, V]`` (the flash backend wants V = K).
        backend: "math" or "flash" (CPU has these two), "efficient", "cudnn".

    Raises:
        RuntimeError: PyTorch's own, when the backend cannot run these inputs.
    """
    if not q.shape[1]:  # nothing to attend to; the flash backend of some versions of PyTorch refuses it
        return v + 0 * (q.sum() + k.sum()), None  # of v's shape, and differentiable
    with sdpa_kernel(BACKENDS[backend]):
        # the flash backend wants a dense last axis
        heads_first = [x.contiguous().transpose(1, 2) for x in (q, k, v)]
        o = scaled_dot_product_attention(heads_first[0], heads_first[1], heads_first[2], is_causal=True, scale=scale)
    return o.transpose(1, 2), None


@dataclass(frozen=True)
class Adapter:
    """A function under test, called by our convention: ``(o, state)`` for our inputs, options and keywords."""

    subject: Subject
    operator: Operator
    function: Callable[..., Any]

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter] | None:
        """Their named parameters; ``None`` for a function that takes anything by position, or has no signature."""
        try:
            found = inspect.signature(self.function).parameters
        except (TypeError, ValueError):
            return None
        return None if self._kind(found, inspect.Parameter.VAR_POSITIONAL) else found

    @property
    def __signature__(self) -> inspect.Signature:
        """What ``inspect`` shows, which properties ask for optional keywords: theirs, under our names."""
        hidden = {*self.subject.fixed, *(("chunk_size",) if self.subject.multiple > 1 else ())}
        names = {self._source(name)[0] for name in self.parameters or {} if name not in hidden}
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Signature([inspect.Parameter(x, kind) for x in sorted(names) if x.isidentifier()])

    @staticmethod
    def _kind(parameters: Mapping[str, inspect.Parameter], kind: Any) -> bool:
        return any(p.kind is kind for p in parameters.values())

    def _source(self, theirs: str) -> tuple[str, int]:
        """Which argument of ours feeds one of theirs, and its sign."""
        ours = self.subject.rename.get(theirs, theirs)
        return ours.removeprefix("-"), -1 if ours.startswith("-") else 1

    def takes(self, ours: str) -> bool:
        """Whether an argument of ours reaches the function."""
        if ours in {x.removeprefix("-") for x in self.subject.rename.values()}:
            return True
        if self.parameters is None:
            try:
                return self._kind(inspect.signature(self.function).parameters, inspect.Parameter.VAR_KEYWORD)
            except (TypeError, ValueError):
                return False
        named = self.parameters.get(ours)
        if named is not None and named.kind in NAMED:
            return ours not in self.subject.rename and ours not in self.subject.fixed
        return self._kind(self.parameters, inspect.Parameter.VAR_KEYWORD) and ours not in self.subject.fixed

    def check(self, inputs: list[str]) -> None:
        """Refuse a signature that these inputs of ours do not fill.

        Raises:
            SubjectError: names what is left over on either side and proposes ``--map``.
        """
        if self.parameters is None:
            return
        unknown = sorted((set(self.subject.rename) | set(self.subject.fixed)) - set(self.parameters))
        if unknown and not self._kind(self.parameters, inspect.Parameter.VAR_KEYWORD):
            raise SubjectError(
                f"{self.subject.name} has no argument {', '.join(unknown)}, named before the = of --map or --set; "
                f"it has ({', '.join(self.parameters)})"
            )
        optional = {option.name for option in self.operator.options if option.passed} | {*STATE, "cu_seqlens"}
        known = {x.name for x in self.operator.inputs} | optional
        odd = sorted({self._source(x)[0] for x in self.subject.rename} - known)
        if odd:
            raise SubjectError(
                f"{self.operator.name} has no argument {', '.join(odd)}; it has "
                f"({', '.join([*dict.fromkeys(x.name for x in self.operator.inputs), *sorted(optional)])})"
            )
        unfed = [name for name in inputs if not self.takes(name)]
        empty = [
            name for name, p in self.parameters.items()
            if p.default is p.empty and p.kind in NAMED and name not in self.subject.fixed
            and self._source(name)[0] not in {*inputs, *optional}
        ]  # fmt: skip
        if not unfed and not empty:
            return
        free = empty or [name for name in self.parameters if self._source(name)[0] not in known]
        proposal = " ".join(
            f"--map {theirs}={ours}" for ours in unfed for theirs in free if theirs.lower().startswith(ours)
        )
        raise SubjectError(
            f"{self.subject.name}({', '.join(self.parameters)}) does not fit {self.operator.name}"
            f"({', '.join(inputs)}): "
            + "; ".join(
                [f"it has no argument for {', '.join(unfed)}"] * bool(unfed)
                + [f"nothing is passed for {', '.join(empty)}"] * bool(empty)
            )
            + (f". Perhaps {proposal}" if proposal else ". Name it with --map theirs=ours, or --set theirs=value")
        )

    def __call__(self, *tensors: torch.Tensor, **given: Any) -> tuple[torch.Tensor, Any]:
        """Run it. Raises ``NotDue`` that says what came back instead of ``o`` or ``(o, state)``."""
        required = [x.name for x in self.operator.inputs if x.when is None]
        usual = {x.name: x.default for x in self.operator.options if x.name not in self.subject.only}
        idle = [name for name in usual if name in given and not self.takes(name) and given[name] != usual[name]]
        if idle:  # to ignore it would give the answer to another question
            raise TypeError(f"{self.subject.name} has no argument {', '.join(idle)}")
        if given.get("cu_seqlens") is None and self.packs_alone:
            return self._folded(tensors, given)
        ours: dict[str, Any] = {name: self._tensor(x) for name, x in zip(required, tensors, strict=True)}
        for name, value in given.items():
            tensor = isinstance(value, torch.Tensor) and any(x.name == name for x in self.operator.inputs)
            ours[name] = self._tensor(value) if tensor else value
        if self.subject.kind == "step":
            ours.setdefault("output_final_state", True)
        if "initial_state" in ours:
            ours["initial_state"] = self._state(ours["initial_state"])
        if isinstance(ours.get("cu_seqlens"), torch.Tensor):
            ours["cu_seqlens"] = ours["cu_seqlens"].to(self.subject.device)
        arguments, keywords = self._arguments(ours, required, tensors[0].shape[-1])
        try:
            returned = self.function(*arguments, **keywords)
        except SystemExit as error:  # it would end the campaign, with its own exit code
            raise RuntimeError(f"{self.subject.name} ended the process: sys.exit({error.code!r})") from error
        return self._returned(returned, tensors, given)

    def _arguments(self, ours: dict[str, Any], required: list[str], width: int) -> tuple[list[Any], dict[str, Any]]:
        if self.parameters is None:
            rest = {name: x for name, x in ours.items() if name not in required and self.takes(name)}
            return [ours[name] for name in required], rest | dict(self.subject.fixed)
        keywords: dict[str, Any] = {}
        for theirs, parameter in self.parameters.items():
            name, sign = self._source(theirs)
            if theirs in self.subject.fixed:
                keywords[theirs] = self.subject.fixed[theirs]
            elif name in ours:
                keywords[theirs] = -ours[name] if sign < 0 else ours[name]
            elif self._derived(name) and parameter.default is not None:
                keywords[theirs] = width**-0.5  # their default is another than ours
        if self._kind(self.parameters, inspect.Parameter.VAR_KEYWORD):
            used = {self._source(theirs)[0] for theirs in keywords}
            keywords |= {name: x for name, x in ours.items() if name not in used}
            keywords |= dict(self.subject.fixed)
        first = [x for x, p in self.parameters.items() if p.kind is inspect.Parameter.POSITIONAL_ONLY and x in keywords]
        return [keywords.pop(x) for x in first], keywords

    def _derived(self, name: str) -> bool:
        return any(option.name == name and option.derived for option in self.operator.options)

    def _tensor(self, x: torch.Tensor) -> torch.Tensor:
        x = x.transpose(1, 2) if self.subject.layout == "head-first" else x
        return (x.contiguous() if self.subject.contiguous else x).to(self.subject.device)

    def _state(self, state: Any) -> Any:
        if isinstance(state, torch.Tensor):
            state = state.mT if self.subject.transpose_state and state.dim() >= 4 else state
            return (state.contiguous() if self.subject.contiguous else state).to(self.subject.device)
        if state is None:
            return None
        parts = [self._state(part) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)

    def _returned(
        self, result: Any, tensors: tuple[torch.Tensor, ...], given: Mapping[str, Any]
    ) -> tuple[torch.Tensor, Any]:
        o, rest = parts(self.subject, self.operator, result)
        sizes = self._sizes(tensors, given)
        hold_output(self.subject, self.operator, o, rest, sizes, tensors[0].dtype)
        state = None
        if given.get("output_final_state") or self.subject.kind == "step":
            state = rest[0] if len(rest) == 1 else tuple(rest) or None
            if state is None and self.operator.states:
                raise NotDue(f"{self.subject.name} returned {described(result)}, expected (o, final state)")
            hold_state(self.subject, self.operator, state, sizes)
            state = _cpu(self._back(state))
        o = o.transpose(1, 2) if self.subject.layout == "head-first" else o
        return o.to("cpu", tensors[0].dtype), state

    def _sizes(self, tensors: tuple[torch.Tensor, ...], given: Mapping[str, Any]) -> dict[str, int]:
        """The sizes behind the letters of the operator's shapes; N counts sequences."""
        sizes: dict[str, int] = {}
        for x, tensor in zip((x for x in self.operator.inputs if x.when is None), tensors, strict=True):
            sizes |= zip(x.shape.split(), tensor.shape, strict=True)
        offsets = given.get("cu_seqlens")
        return sizes | {"N": sizes["B"] if offsets is None else len(offsets) - 1}

    def _folded(self, tensors: tuple[torch.Tensor, ...], given: Mapping[str, Any]) -> tuple[torch.Tensor, Any]:
        """A call of a function that takes packed sequences alone: each row of the batch is a sequence of the pack."""
        B, T = tensors[0].shape[:2]
        inputs = {x.name for x in self.operator.inputs}
        named = {name: x.flatten(0, 1)[None] if name in inputs else x for name, x in given.items()}
        named["cu_seqlens"] = torch.arange(B + 1, dtype=torch.int32) * T
        o, state = self(*(x.flatten(0, 1)[None] for x in tensors), **named)
        return o[0].unflatten(0, (B, T)), state

    @property
    def packs_alone(self) -> bool:
        """Whether its argument for ``cu_seqlens`` has no default: it is given one where nothing is packed, too."""
        return any(
            self._source(theirs)[0] == "cu_seqlens" and p.default is p.empty and p.kind in NAMED
            for theirs, p in (self.parameters or {}).items() if theirs not in self.subject.fixed
        )  # fmt: skip

    def _back(self, state: Any) -> Any:
        if isinstance(state, torch.Tensor):
            return state.mT if self.subject.transpose_state and state.dim() >= 4 else state
        return None if state is None else tuple(self._back(part) for part in state)


def _cpu(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.cpu()
    return None if state is None else tuple(_cpu(part) for part in state)
