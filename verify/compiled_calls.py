"""What a compile record is made for: representative calls of the public functions, and what each would launch.

A public function is called on tensors of the meta device while the launcher records (kernels/launch.py): the kernels,
their arguments and constants are then those of a real call. Triton's own binder turns the arguments into a signature,
so a stride of 1 or a length divisible by 16 specialises a build as it would on a GPU. Kernels are reached by name
alone, in processes of their own: a process in which Triton interprets cannot compile.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from linattest.verify import registry
from linattest.verify.inputs import Structure, resolve_options
from linattest.verify.subjects import pack_state, resolve, spread
from linattest.verify.tolerance import TORCH_DTYPES, accumulation

ARCHITECTURES = (80, 90, 100)
"""Compute capabilities, times ten: A100, H100 and H200, B200."""

LENGTH, RAGGED, HEADS = 4096, 1000, 16
"""Tokens (divisible by 16, as in training, or not) and heads of a representative call."""


@dataclass(frozen=True)
class Call:
    """One call of one public function, on meta tensors: what is recorded of it is compiled."""

    operator: str
    function: str
    dtype: str
    structure: Structure
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The function, as "file.function"."""
        return self.function.rpartition(".")[2].replace(":", ".")

    @property
    def label(self) -> str:
        """What the call is, in one line: the builds that it needs are known by it."""
        s = self.structure
        extra = [f"{key}={value}" for key, value in self.options.items()]
        extra += ["packed"] if s.cu_seqlens else []
        return " ".join([self.name, self.dtype, f"{s.K}x{s.V}", *extra])


@dataclass(frozen=True)
class Plan:
    """One build to make: a kernel by name, and what Triton's binder made of the arguments. It can be sent anywhere."""

    kernel: str
    call: str
    arch: int
    signature: Mapping[str, str]
    constants: Mapping[tuple[int, ...], Any]
    attributes: Mapping[tuple[int, ...], Any]
    options: Mapping[str, Any]
    environment: Mapping[str, str]
    config: str

    @property
    def name(self) -> str:
        """The kernel, as "file.function"."""
        return self.kernel.rpartition(".")[2].replace(":", ".")

    @property
    def identity(self) -> str:
        """What makes it another build: everything but the call that asked for it."""
        parts = (self.signature, self.constants, self.attributes, self.options, self.environment)
        return repr((self.kernel, self.arch, *(sorted(part.items(), key=repr) for part in parts)))


# --- which calls ---------------------------------------------------------------------------------------------------


def calls(quick: bool = False) -> list[Call]:
    """The representative calls of every kernel variant in a record; ``quick``: bfloat16, 128 by 128, two settings."""
    return [
        Call(operator.name, variant.function, dtype, structure, options)
        for operator in registry.OPERATORS
        for variant in operator.variants
        if variant.kernel
        for options in operator.grid[: 2 if quick else None]
        if variant.takes(resolve_options(operator, options))
        for dtype, structure in _structures(decode=variant.kind == "step", quick=quick)
    ]


def _structures(*, decode: bool, quick: bool) -> list[tuple[str, Structure]]:
    def sized(K: int, V: int, T: int = LENGTH, **more: Any) -> Structure:
        return Structure(T=1 if decode else T, K=K, V=V, H=HEADS, **more)

    if quick:
        return [("bfloat16", sized(128, 128))]
    some = [(dtype, sized(128, 128)) for dtype in ("bfloat16", "float16", "float32")]
    for K, V, T in ((64, 64, LENGTH), (100, 60, RAGGED), (256, 256, LENGTH)):
        some += [(dtype, sized(K, V, T)) for dtype in ("bfloat16", "float32")]
    some.append(("float16", sized(256, 256)))  # staged in tf32: the most shared memory that half precision takes
    if not decode:
        some.append(("bfloat16", sized(128, 128, RAGGED, cu_seqlens=(0, 300, 300, RAGGED), initial_state=True)))
    return some


# --- what a call launches ------------------------------------------------------------------------------------------


def plans_of(call: Call, arch: int) -> list[Plan]:
    """What a call's launches, forward and backward, need compiled for an architecture; for a process of its own."""
    os.environ.pop("TRITON_INTERPRET", None)  # read when kernels are imported, which happens below
    return collect(lambda: _make(call), call.label, arch)


def collect(function: Callable[[], object], label: str, arch: int) -> list[Plan]:
    """What is launched (not in fact) while a function runs.

    Raises:
        RuntimeError: Triton interprets in this process, or the function launches nothing.
    """
    interpreted: Any = resolve("linattest.kernels.launch:INTERPRETED")
    if interpreted:
        raise RuntimeError("TRITON_INTERPRET=1: interpreted kernels cannot be compiled; unset it")
    with _assumed(arch), resolve("linattest.kernels.building:recording")() as launches:
        function()
    if not launches:
        raise RuntimeError(f"{label}: launched no kernel on meta tensors")
    return list({plan.identity: plan for plan in (_plan(launch, label, arch) for launch in launches)}.values())


@contextlib.contextmanager
def _assumed(arch: int) -> Iterator[None]:
    """The launcher chooses configurations as on a GPU of this architecture, whatever the device of the tensors."""
    choose: Any = resolve("linattest.kernels.configs:choose")
    module = sys.modules[choose.__module__]
    before = vars(module)["capability"]
    try:
        vars(module)["capability"] = lambda device: divmod(arch, 10)
        choose.cache_clear()
        yield
    finally:
        vars(module)["capability"] = before
        choose.cache_clear()


def _make(call: Call) -> None:
    """The call on meta tensors, and its backward where there is one."""
    operator, s = registry.operator(call.operator), call.structure
    options = resolve_options(operator, call.options)
    dtype, wide = TORCH_DTYPES[call.dtype], TORCH_DTYPES[accumulation(call.dtype)]
    decode = call.function.endswith(":step")

    def tensor(shape: str, of: torch.dtype) -> torch.Tensor:
        return torch.empty(s.shape(shape), dtype=of, device="meta", requires_grad=of.is_floating_point and not decode)

    tensors = {x.name: tensor(x.shape, dtype) for x in operator.inputs_of(options)}
    positional, keywords = spread(operator, tensors)
    axes = {option.name for option in operator.options if not option.passed}
    function = resolve(call.function)
    needed = {x.name for x in inspect.signature(function).parameters.values() if x.default is x.empty}
    said = {name: value for name, value in options.items() if name in needed or name in call.options}
    keywords: dict[str, Any] = keywords | {name: value for name, value in said.items() if name not in axes}
    if decode or s.initial_state:
        states = {x.name: tensor(x.shape, torch.int64 if x.whole else wide) for x in operator.states_of(options)}
        keywords["initial_state"] = pack_state(operator, states, options)
    if not decode:
        keywords["output_final_state"] = True
    if s.cu_seqlens is not None:
        keywords["cu_seqlens"] = torch.tensor(s.cu_seqlens, dtype=torch.int32, device="meta")
    o, _ = function(*positional, **keywords)
    if o.requires_grad:
        o.backward(torch.empty_like(o))


def _plan(launch: Any, label: str, arch: int) -> Plan:
    """A recorded launch, bound by Triton as if it were made on a GPU of the architecture."""
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    kernel, backend, options = launch.kernel, make_backend(target(arch)), launch.config.options
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    args = resolve("linattest.kernels.building:general")(kernel, launch.args)
    bound, specialisation, _ = binder(*args, **launch.constants, **options)
    given = {**launch.constants, **options, "debug": False}
    parsed, signature, constants, attributes = kernel._pack_args(backend, given, bound, specialisation, options)
    shown = [f"{name}={value}" for name, value in launch.constants.items()]
    shown += [f"warps={launch.config.warps}", f"stages={launch.config.stages}"]
    return Plan(
        kernel=f"{kernel.__module__}:{kernel.__name__}", call=label, arch=arch, signature=signature,
        constants=constants, attributes=attributes, config=" ".join(shown),
        options={name: getattr(parsed, name) for name in {**options, "maxnreg": None}},
        environment=resolve("linattest.kernels.building:environment")(launch.constants, launch.config),
    )  # fmt: skip


def target(arch: int) -> Any:
    """Triton's name of an architecture."""
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", arch, 32)
