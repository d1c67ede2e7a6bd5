"""Which kernel ran, which would run, and why: the dispatch log, `explain` and `warm`."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rdna_jit.config import config
from rdna_jit.errors import ContractError, RdnaJitError

if TYPE_CHECKING:
    from rdna_jit.kernel import Kernel
    from rdna_jit.runtime.base import Extent
    from rdna_jit.template import Value

_log = logging.getLogger("rdna_jit")
_LATEST = 1000
_MOST_COUNTED = 4096


@dataclass(frozen=True)
class Candidate:
    """A kernel that could serve a call; `reason` says why it does or does not."""

    kernel: str
    taken: bool
    reason: str = ""


@dataclass(frozen=True)
class Launch:
    """One kernel launch of a plan; calling it with the kernel's arguments launches."""

    kernel: Kernel
    grid: Extent
    block: Extent
    dynamic_lds: int = 0

    def __call__(self, *args: object) -> None:
        if self.dynamic_lds:
            self.kernel.launch(self.grid, self.block, *args, dynamic_lds=self.dynamic_lds)
        else:  # 0.2 us less
            self.kernel.launch(self.grid, self.block, *args)


@dataclass
class Plan:
    """How one op serves one kind of call: a pure function of shapes, dtypes, layouts and arch.

    `kernel` names the choice, `values` are its template values, `shape` the sizes that identify
    the call in the log ({"M": 1, "N": 4096, "K": 4096}). `launches` is empty when there is
    nothing to compute. `fallback` is the reason when a slower way than the intended one is taken.
    `extra` keeps what the op's run function wants to find again (sizes, strides, sub-plans).
    """

    op: str
    kernel: str
    values: dict[str, Value] = field(default_factory=dict)
    launches: tuple[Launch, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    notes: tuple[str, ...] = ()
    shape: dict[str, int] = field(default_factory=dict)
    fallback: str = ""
    extra: Any = None
    counter: list[int] = field(default_factory=lambda: [0], repr=False)

    def __str__(self) -> str:
        return str(Explanation(self))


class Explanation:
    """Prints which kernel runs, with which template values, and why the others do not."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __str__(self) -> str:
        plan = self.plan
        lines = [f"{plan.op}({_sizes(plan.shape)}) runs {_chosen(plan)}"]
        for launch in plan.launches:
            lds = f", {launch.dynamic_lds} bytes of dynamic LDS" if launch.dynamic_lds else ""
            lines.append(
                f"  launch   {launch.kernel.name}: grid {launch.grid}, block {launch.block}{lds}"
            )
        for candidate in plan.candidates:
            verdict = "taken" if candidate.taken else "not taken"
            reason = f": {candidate.reason}" if candidate.reason else ""
            lines.append(f"  {verdict:<8} {candidate.kernel}{reason}")
        if plan.fallback:
            lines.append(f"  fallback {plan.fallback}")
        return "\n".join(lines + [f"  note     {note}" for note in plan.notes])

    __repr__ = __str__


@dataclass(frozen=True)
class Dispatch:
    """One op call in the log."""

    op: str
    kernel: str
    values: dict[str, Value]
    shape: dict[str, int]
    fallback: str

    def __str__(self) -> str:
        return f"{self.op}({_sizes(self.shape)}) -> {_chosen(self)}"


class DispatchLog(list[Dispatch]):
    """The latest dispatches, oldest first; `counts` has calls per (op, kernel, shape)."""

    def __init__(self, dispatches: list[Dispatch], counts: dict[tuple[str, str, str], int]) -> None:
        super().__init__(dispatches)
        self.counts = counts

    def __str__(self) -> str:
        rows = sorted(self.counts.items(), key=lambda item: -item[1])
        return "\n".join(f"{n:>8}  {op}({shape}) -> {kernel}" for (op, kernel, shape), n in rows)


_latest: deque[Plan] = deque(maxlen=_LATEST)
_counters: dict[tuple[str, str, str], list[int]] = {}
_warned: set[tuple[str, str]] = set()


note = _latest.append
"""Puts one call that followed a plan into the log; the caller counts in `plan.counter`."""


def dispatch_log(*, clear: bool = False) -> DispatchLog:
    """The latest 1,000 op calls, and counts of all calls per (op, kernel, shape)."""
    dispatches = [
        Dispatch(p.op, p.kernel, dict(p.values), dict(p.shape), p.fallback) for p in tuple(_latest)
    ]
    counts = Counter({key: cell[0] for key, cell in tuple(_counters.items()) if cell[0]})
    if clear:
        _latest.clear()
        for cell in _counters.values():
            cell[0] = 0
    return DispatchLog(dispatches, dict(counts))


def accept(plan: Plan) -> Plan:
    """A new plan enters the log; a fallback warns once per (op, reason), or raises when strict."""
    if plan.fallback:
        message = (
            f"{plan.op}({_sizes(plan.shape)}) falls back to {plan.kernel}: {plan.fallback}; "
            "rdna_jit.explain shows the alternatives"
        )
        if config.strict:
            raise FallbackError(f"{message} (RDNA_JIT_STRICT forbids it)")
        if (plan.op, plan.fallback) not in _warned:
            _warned.add((plan.op, plan.fallback))
            _log.warning(message)
    key = (plan.op, plan.kernel, _sizes(plan.shape))
    if key not in _counters and len(_counters) >= _MOST_COUNTED:
        key = (plan.op, plan.kernel, "other shapes")
    plan.counter = _counters.setdefault(key, [0])
    return plan


class FallbackError(RdnaJitError):
    """RDNA_JIT_STRICT is set and an op would take a slower kernel than the intended one."""


def explain(op: Callable[..., Any], *args: object, **kwargs: object) -> Explanation:
    """Which kernel `op` would run for these arguments; launches and compiles nothing."""
    return Explanation(plan_of(op, *args, **kwargs))


def warm(op: Callable[..., Any] | Kernel, *args: object, **kwargs: object) -> Plan | Kernel:
    """Compile and load what this call would need, on the arguments' device; launches nothing.

    Call it before a graph capture, with arguments of the shapes to be captured. A Kernel is
    accepted too, with its launch arguments or without.
    """
    from rdna_jit import runtime
    from rdna_jit.kernel import Kernel

    index = runtime.current().index_of([*args, *kwargs.values()])
    if isinstance(op, Kernel):
        return op.warm(index)
    plan = plan_of(op, *args, **kwargs)
    for launch in plan.launches:
        launch.kernel.warm(index)
    return plan


def plan_of(op: Callable[..., Any], *args: object, **kwargs: object) -> Plan:
    """The plan of a public op for these arguments."""
    make = getattr(op, "plan", None)
    if make is None:
        raise ContractError(f"{op!r} is no op of rdna_jit.ops", name="op", got=op)
    plan: Plan = make(*args, **kwargs)
    return plan


def _sizes(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _chosen(what: Plan | Dispatch) -> str:
    """The kernel with its template values; torch.matmul has none."""
    return what.kernel + (f"[{_sizes(what.values)}]" if what.values else "")
