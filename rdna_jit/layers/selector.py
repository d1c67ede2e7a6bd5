"""Which kernel class serves a layer's call, and why the others do not."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from rdna_jit import dispatch
from rdna_jit.config import config
from rdna_jit.dispatch import Candidate, Plan
from rdna_jit.errors import ContractError
from rdna_jit.layers import crossover, kernels
from rdna_jit.layers.form import Form, Tensors
from rdna_jit.layers.kernels import Call, LinearKernel

Tensor = torch.Tensor
_log = logging.getLogger("rdna_jit")
_MOST_CHOICES = 1024
_OP = "quantized_linear"
# Classes of vLLM itself, which people disable to get at ours.
_VLLM_NAMES = frozenset(
    f"{name}LinearKernel"
    for name in (
        "AllSpark", "Conch", "CutlassW4A8", "Exllama", "Machete", "Marlin", "RDNA3W4A16",
        "TritonW4A16", "XPUwNa16",
    )
)  # fmt: skip


class NoKernelError(ContractError):
    """No kernel class serves a layer's call; the message has every class's reason."""


@dataclass(frozen=True)
class Selection:
    """The class that serves a kind of call, and what became of the others.

    `plan` is the log's entry where no op of ours makes one: for torch.matmul, and for classes that
    compute by themselves.
    """

    kernel: type[LinearKernel]
    candidates: tuple[Candidate, ...]
    fallback: str = ""
    plan: Plan | None = None


class LayerKind:
    """What all layers of one form share: the choices made so far."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.text = form.text
        self.choices: dict[tuple[object, ...], Selection] = {}
        self.offered: list[type[LinearKernel]] = []  # the classes they were made among

    def __reduce__(self) -> tuple[Callable[[Form], LayerKind], tuple[Form]]:
        return kind_of, (self.form,)


_kinds: dict[Form, LayerKind] = {}
_logged: set[tuple[str, str]] = set()
_warned: set[str] = set()


def kind_of(form: Form) -> LayerKind:
    """The kind of all layers of this form."""
    found = _kinds.get(form)
    return found if found is not None else _kinds.setdefault(form, LayerKind(form))


def serving(form: Form) -> list[type[LinearKernel]]:
    """The classes that are meant for a format, in order of preference."""
    asked = form.activation_bits == 8
    return [k for k in kernels.KERNELS if form.format in k.formats and (asked or not k.opt_in)]


def run(kind: LayerKind, x: Tensor, t: Tensors, bias: Tensor | None) -> Tensor:
    """`[M, N]`: the layer's result, by the kernel class that serves this number of rows."""
    index = x.get_device()
    if kind.offered != kernels.KERNELS:
        kind.choices.clear()
        kind.offered = [*kernels.KERNELS]
    key = (x.shape[0], index, config.version, crossover.version)
    chosen = kind.choices.get(key)
    if chosen is None:
        chosen = _choose(kind, key, x, t, bias)
    y = chosen.kernel.apply(x, kind.form, t, bias)
    if chosen.plan is not None:
        dispatch.note(chosen.plan)
        chosen.plan.counter[0] += 1
    return y


def plan(kind: LayerKind, x: Tensor, t: Tensors, bias: Tensor | None) -> Plan:
    """The plan of what `run` would do, with the classes among its candidates."""
    chosen = select(kind.form, x, t, bias)
    if chosen.plan is not None:
        return chosen.plan
    inner = chosen.kernel.plan(x, kind.form, t, bias)
    return Plan(
        inner.op, inner.kernel, inner.values, inner.launches,
        (*chosen.candidates, *inner.candidates), inner.notes, inner.shape, inner.fallback,
        inner.extra,
    )  # fmt: skip


def _choose(
    kind: LayerKind, key: tuple[object, ...], x: Tensor, t: Tensors, bias: Tensor | None
) -> Selection:
    form, index = kind.form, x.get_device()
    if crossover.to_measure(form, index, x.shape[0]):
        _measure(form, index, x, t, bias)
        key = (*key[:-1], crossover.version)
    chosen = select(form, x, t, bias)
    if chosen.plan is not None:
        dispatch.accept(chosen.plan)
    name = chosen.kernel.__name__
    if (name, str(form)) not in _logged:
        _logged.add((name, str(form)))
        _log.info("Using %s for QuantizedLinear (%s), %d rows", name, form, x.shape[0])
    if len(kind.choices) >= _MOST_CHOICES:
        kind.choices.clear()
    kind.choices[key] = chosen
    return chosen


def _measure(form: Form, index: int, x: Tensor, t: Tensors, bias: Tensor | None) -> None:
    """Time the first class that can serve many rows against torch.matmul."""
    many = x.new_ones((crossover.measured_rows(form)[-1], form.K))
    most = Call(form, many.shape[0], _arch())
    for kernel in serving(form):
        if kernel.uses_matmul(most) or not kernel.can_implement(most)[0]:
            continue
        run_ours, run_matmul = (
            partial(_first_rows, apply, many, form, t, bias)
            for apply in (kernel.apply, kernels.matmul)
        )
        crossover.measure(form, index, run_ours, run_matmul)
        return


def _first_rows(
    apply: Callable[..., Tensor], x: Tensor, form: Form, t: Tensors, bias: Tensor | None, rows: int
) -> Tensor:
    return apply(x[:rows], form, t, bias)


def select(form: Form, x: Tensor, t: Tensors, bias: Tensor | None) -> Selection:
    """The first class of `KERNELS` that may and can serve the call.

    Classes that settings disable are passed over. Ours are passed over above the crossover to
    torch.matmul, unless nothing else is left. NoKernelError lists every reason.
    """
    call = Call(form, x.shape[0], _arch())
    limit = crossover.crossover(form, x.get_device())
    check_names()
    probe = partial(_kernel_of, x=x, form=form, t=t, bias=bias)
    refusals = {k: _refusal(k, call, probe) for k in kernels.KERNELS}
    able = [k for k, reason in refusals.items() if not reason]
    fast = [k for k in able if not _too_slow(k, call, limit)]
    if not able:
        reasons = "".join(f"\n  {k.__name__}: {reason}" for k, reason in refusals.items())
        raise NoKernelError(
            f"no kernel serves QuantizedLinear ({form}) N={form.N} K={form.K} with {call.rows} "
            f"rows on {call.arch}:{reasons}",
            name="format",
            expected="a kernel that serves the layer",
            got=str(form),
        )
    taken = (fast or able)[0]
    candidates, seen = [], False
    for kernel, reason in refusals.items():
        if kernel is taken:
            seen = True
            reason = kernel.can_implement(call)[1]
        elif not reason and _too_slow(kernel, call, limit):
            reason = f"torch.matmul is faster {limit}"
        elif not reason and seen:
            reason = f"comes after {taken.__name__}"
        candidates.append(Candidate(kernel.__name__, kernel is taken, reason))
    fallback = _fallback(taken, refusals, call)
    entry = None
    if taken.uses_matmul(call) or not taken.has_op():
        shape = {"M": call.rows, "N": form.N, "K": form.K}
        kernel_name = _kernel_of(taken, x=x, form=form, t=t, bias=bias)
        entry = Plan(_OP, kernel_name, candidates=tuple(candidates), shape=shape, fallback=fallback)
    return Selection(taken, tuple(candidates), fallback, entry)


def _too_slow(kernel: type[LinearKernel], call: Call, limit: crossover.Crossover) -> bool:
    above = limit.rows is not None and call.rows > limit.rows
    return above and not kernel.uses_matmul(call)


def _fallback(
    taken: type[LinearKernel], refusals: dict[type[LinearKernel], str], call: Call
) -> str:
    """Why torch.matmul is a makeshift here: a class of ours is meant to serve it and cannot."""
    if not taken.uses_matmul(call) or call.form.format == "f16":
        return ""
    for kernel in serving(call.form):
        if not kernel.can_implement(call)[0]:
            return f"{kernel.__name__} {refusals[kernel]}"
    return ""


def _refusal(
    kernel: type[LinearKernel], call: Call, probe: Callable[[type[LinearKernel]], str]
) -> str:
    """Why this class may not or cannot serve the call; empty when it does."""
    form, name = call.form, kernel.__name__
    if form.format not in kernel.formats:
        return f"serves {', '.join(kernel.formats)}"
    for setting, names in _disabled():
        if name in names:
            return f"{setting} names it"
    able, reason = kernel.can_implement(call)
    if not able:
        return reason
    wanted = _forced(form)
    if wanted and wanted != name and (wanted in _class_names() or probe(kernel) != wanted):
        return f"RDNA_JIT_FORCE_KERNEL asks for {wanted}"
    for setting, names in _disabled():
        if names and not kernel.uses_matmul(call) and (inner := probe(kernel)) in names:
            return f"{setting} names its kernel {inner}"
    return ""


def _kernel_of(
    kernel: type[LinearKernel], *, x: Tensor, form: Form, t: Tensors, bias: Tensor | None
) -> str:
    """The kernel that the class's op would launch."""
    if kernel.uses_matmul(Call(form, x.shape[0], _arch())):
        return "torch.matmul"
    return kernel.plan(x, form, t, bias).kernel if kernel.has_op() else kernel.__name__


def _disabled() -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (
        ("VLLM_DISABLED_KERNELS", config.disabled_kernels),
        ("RDNA_JIT_DISABLED_KERNELS", config.own_disabled_kernels),
    )


def _forced(form: Form) -> str:
    """The class or kernel that RDNA_JIT_FORCE_KERNEL asks for, for layers of this format."""
    ops = {_OP, *(kernel.op for kernel in serving(form))}
    for pair in config.force_kernel:
        op, _, wanted = pair.partition(":")
        if op in ops:
            return wanted
    return ""


def _class_names() -> set[str]:
    return {kernel.__name__ for kernel in kernels.KERNELS}


def check_names() -> None:
    """Warn once about each name in a setting that no class and no kernel has."""
    named = [(setting, name) for setting, names in _disabled() for name in names]
    for pair in config.force_kernel:
        named.append(("RDNA_JIT_FORCE_KERNEL", pair.partition(":")[2]))
    for setting, name in named:
        if name in _warned or name in _VLLM_NAMES or name in _class_names():
            continue
        from rdna_jit.spec import registry

        known = [*sorted(_class_names()), *registry(), "torch.matmul"]
        if name in known:
            continue
        _warned.add(name)
        nearest = difflib.get_close_matches(name, known, 1, cutoff=0.0)[0]
        _log.warning("%s names %r, which is no kernel; the nearest is %s", setting, name, nearest)


def _arch() -> str:
    from rdna_jit.device import device

    return device().arch
