"""Random structured programs, each with a function that evaluates it on the host.

A program works on a pool of typed variables per work-item: assignments, nested conditionals and
loops whose conditions differ between lanes, private arrays, and at the outermost level exchanges
through LDS and across lanes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.emulator.fuzz.operators import DTYPES, OPERATORS, canonical

BLOCK, GROUPS = 64, 2
ITEMS = BLOCK * GROUPS
POOL = {"u32": 5, "u64": 2, "f32": 3, "f64": 1, "f16": 2}
ARRAY = 8

# Moves between the lanes of a wave: the text, and the lane that each lane reads for an amount.
LANE = np.arange(32)
ROW, QUAD = LANE // 16 * 16, LANE // 4 * 4
LANE_MOVES: tuple[tuple[str, Callable[[int], np.ndarray]], ...] = (
    ("__builtin_amdgcn_ds_bpermute((int)((t + {n}u) << 2), (int){x})", lambda n: (LANE + n) % 32),
    (
        "__builtin_amdgcn_update_dpp(0, (int){x}, {rotate}, 15, 15, false)",
        lambda n: ROW + (LANE - n) % 16,
    ),
    (
        "__builtin_amdgcn_update_dpp(0, (int){x}, 0x1b, 15, 15, false)",
        lambda n: QUAD + 3 - LANE % 4,
    ),
    ("__builtin_amdgcn_ds_swizzle((int){x}, {exchange})", lambda n: LANE ^ n),
    # NOTE: LLVM 15 moves permlane into conditional code, where the source lanes are off and may
    # have new values in its registers; `stay` holds it here.
    (
        "stay(__builtin_amdgcn_permlanex16(0u, {x}, 0x76543210u, 0xfedcba98u, false, false))",
        lambda n: LANE ^ 16,
    ),
    ("__builtin_amdgcn_readfirstlane({x})", lambda n: LANE * 0),
)

Variables = dict[str, np.ndarray]
Run = Callable[[Variables, np.ndarray], None]


@dataclass(frozen=True)
class Expression:
    type: str
    text: str
    value: Callable[[Variables], np.ndarray]


@dataclass
class Program:
    """C statements, and what they do to the variables of all work-items."""

    lines: list[str] = field(default_factory=list)
    steps: list[Run] = field(default_factory=list)

    def add(self, lines: list[str], run: Run) -> None:
        self.lines += lines
        self.steps.append(run)


def names(of: str) -> list[str]:
    return [f"{of}_{k}" for k in range(POOL[of])]


class Generator:
    """Makes one program from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._counter = 0

    def program(self, statements: int) -> Program:
        made = Program()
        for _ in range(statements):
            pick = self._random.random()
            if pick < 0.06:
                self._exchange(made)
            elif pick < 0.1:
                self._histogram(made)
            elif pick < 0.18:
                self._cross_lane(made)
            elif pick < 0.26:
                self._array(made)
            else:
                self._statement(made, 2)
        return made

    # Expressions.

    def _expression(self, of: str, depth: int) -> Expression:
        if depth == 0 or self._random.random() < 0.15:
            return self._leaf(of)
        choice = self._random.choice([op for op in OPERATORS if op.result == of])
        operands = [self._expression(t, depth - 1) for t in choice.operands]
        values = [operand.value for operand in operands]
        return Expression(
            of,
            choice.text.format(*(operand.text for operand in operands)),
            lambda v: choice.host(*(value(v) for value in values)),
        )

    def _leaf(self, of: str) -> Expression:
        if self._random.random() < 0.75:
            name = self._random.choice(names(of))
            return Expression(of, name, lambda v: v[name])
        text, value = self._constant(of)
        return Expression(of, text, lambda v: np.full(ITEMS, value, DTYPES[of]))

    def _constant(self, of: str) -> tuple[str, object]:
        if of in ("u32", "u64"):
            width = 32 if of == "u32" else 64
            value = self._random.choice(
                (
                    0,
                    1,
                    2,
                    31,
                    255,
                    0x8000,
                    (1 << width) - 1,
                    1 << (width - 1),
                    self._random.getrandbits(width),
                )
            )
            return f"{value:#x}{'u' if of == 'u32' else 'ull'}", value
        value = self._random.choice((0.0, 1.0, -1.0, 0.5, -2.0, 3.0, 1024.0, 0.0625))
        return {"f16": f"(f16){value}f", "f32": f"{value}f", "f64": f"{value}"}[of], value

    # Statements.

    def _statement(self, made: Program, nesting: int) -> None:
        pick = self._random.random()
        if nesting and pick < 0.18:
            self._conditional(made, nesting)
        elif nesting and pick < 0.32:
            self._loop(made, nesting)
        elif nesting and pick < 0.38:
            self._switch(made, nesting)
        else:
            self._assignment(made)

    def _assignment(self, made: Program) -> None:
        of = self._random.choice(("u32", "u32", "u32", "f32", "f32", "u64", "f16", "f64"))
        name, value = self._random.choice(names(of)), self._expression(of, 3)

        def run(v: Variables, mask: np.ndarray) -> None:
            v[name] = np.where(mask, value.value(v), v[name]).astype(DTYPES[of])

        made.add([f"{name} = {value.text};"], run)

    def _block(self, nesting: int) -> Program:
        inner = Program()
        for _ in range(self._random.randint(1, 3)):
            self._statement(inner, nesting - 1)
        return inner

    def _conditional(self, made: Program, nesting: int) -> None:
        condition, yes, no = self._expression("u32", 2), self._block(nesting), self._block(nesting)
        bit = self._random.randrange(4)

        def run(v: Variables, mask: np.ndarray) -> None:
            taken = condition.value(v) >> np.uint32(bit) & np.uint32(1) != 0
            for step in yes.steps:
                step(v, mask & taken)
            for step in no.steps:
                step(v, mask & ~taken)

        made.add(
            [f"if ({condition.text} >> {bit} & 1u) {{", *yes.lines, "} else {", *no.lines, "}"], run
        )

    def _switch(self, made: Program, nesting: int) -> None:
        """Three cases and a default, the second of which falls through."""
        choice, cases = self._expression("u32", 2), [self._block(nesting) for _ in range(4)]

        def run(v: Variables, mask: np.ndarray) -> None:
            chosen = choice.value(v) & np.uint32(7)
            taken = (chosen == 0, chosen == 1, (chosen == 1) | (chosen == 2), chosen > 2)
            for case, lanes in zip(cases, taken, strict=True):
                for step in case.steps:
                    step(v, mask & lanes)

        lines = [f"switch ({choice.text} & 7u) {{"]
        for label, case in zip(
            ("case 0u:", "case 1u:", "case 2u:", "default:"), cases, strict=True
        ):
            lines += [label, *case.lines] + ["break;"] * (label != "case 1u:")
        made.add([*lines, "}"], run)

    def _loop(self, made: Program, nesting: int) -> None:
        """A lane-dependent number of rounds, with an early exit."""
        rounds, leave = self._expression("u32", 1), self._expression("u32", 2)
        body, counter = self._block(nesting), self._fresh("i")

        def run(v: Variables, mask: np.ndarray) -> None:
            count = rounds.value(v) & np.uint32(7)
            for index in range(8):
                mask = mask & (index < count)
                if not mask.any():
                    break
                for step in body.steps:
                    step(v, mask)
                mask = mask & (leave.value(v) & np.uint32(3) != 2)

        made.add(
            [
                f"for (u32 {counter} = 0, n{counter} = {rounds.text} & 7u; "
                f"{counter} < n{counter}; ++{counter}) {{",
                *body.lines,
                f"if (({leave.text} & 3u) == 2u) break;",
                "}",
            ],
            run,
        )

    def _fresh(self, stem: str) -> str:
        self._counter += 1
        return f"{stem}{self._counter}"

    # Memory and other lanes; only where all lanes of the workgroup come by.

    def _exchange(self, made: Program) -> None:
        source, target = (self._random.choice(names("u32")) for _ in range(2))
        turn = self._random.randrange(1, BLOCK)

        def run(v: Variables, mask: np.ndarray) -> None:
            v[target] = np.roll(v[source].reshape(GROUPS, BLOCK), -turn, axis=1).ravel()

        made.add(
            [
                f"shared[t] = {source}; barrier();",
                f"{target} = shared[(t + {turn}u) & {BLOCK - 1}u]; barrier();",
            ],
            run,
        )

    def _histogram(self, made: Program) -> None:
        """LDS atomics whose order does not matter."""
        place, amount, target = (self._random.choice(names("u32")) for _ in range(3))
        name, ufunc = self._random.choice(
            (("add", np.add), ("xor", np.bitwise_xor), ("or", np.bitwise_or), ("max", np.maximum))
        )

        def run(v: Variables, mask: np.ndarray) -> None:
            totals = np.zeros((GROUPS, BLOCK), np.uint32)
            group = np.arange(ITEMS) // BLOCK
            ufunc.at(totals, (group, v[place] % BLOCK), v[amount])
            v[target] = totals.ravel()

        made.add(
            [
                "shared[t] = 0u; barrier();",
                f"__atomic_fetch_{name}(&shared[{place} % {BLOCK}u], {amount}, 0); barrier();",
                f"{target} = shared[t]; barrier();",
            ],
            run,
        )

    def _cross_lane(self, made: Program) -> None:
        source, target = (self._random.choice(names("u32")) for _ in range(2))
        amount = self._random.randrange(1, 16)
        text, from_lane = self._random.choice(LANE_MOVES)
        order = from_lane(amount)

        def run(v: Variables, mask: np.ndarray) -> None:
            v[target] = v[source].reshape(-1, 32)[:, order].ravel()

        rotate, exchange = 0x120 | amount, 0x1F | amount << 10
        moved = text.format(x=source, n=amount, rotate=rotate, exchange=exchange)
        made.add([f"{target} = (u32){moved};"], run)

    def _array(self, made: Program) -> None:
        """A private array with indices that only run time knows."""
        name, filler = self._fresh("a"), self._expression("u32", 2)
        at, read = self._expression("u32", 1), self._expression("u32", 1)
        target = self._random.choice(names("u32"))

        def run(v: Variables, mask: np.ndarray) -> None:
            items = np.arange(ITEMS)
            array = np.stack([v["u32_0"] + np.uint32(k) for k in range(ARRAY)])
            array[at.value(v) % ARRAY, items] = filler.value(v)
            v[target] = array[read.value(v) % ARRAY, items]

        made.add(
            [
                f"u32 {name}[{ARRAY}];",
                f"for (u32 k = 0; k < {ARRAY}u; ++k) {name}[k] = u32_0 + k;",
                f"{name}[{at.text} % {ARRAY}u] = {filler.text};",
                f"{target} = {name}[{read.text} % {ARRAY}u];",
            ],
            run,
        )


PRELUDE = """
typedef unsigned int u32; typedef unsigned long long u64; typedef _Float16 f16;
typedef f16 f16x2 __attribute__((ext_vector_type(2)));
#define DEVICE __attribute__((device)) static inline __attribute__((always_inline))
DEVICE float from_bits(u32 a) { return __builtin_bit_cast(float, a); }
DEVICE u32 to_bits(float a) { return a != a ? 0x7fc00000u : __builtin_bit_cast(u32, a); }
DEVICE float clip(float a, float low, float high) {
  return a > low ? (a < high ? a : high) : low;
}
DEVICE u32 stay(u32 a) { asm volatile("" : "+v"(a)); return a; }
DEVICE f16x2 pair(f16 low, f16 high) { f16x2 both; both[0] = low; both[1] = high; return both; }
DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
"""

TYPE_NAMES = {"u32": "u32", "u64": "u64", "f32": "float", "f64": "double", "f16": "f16"}
_STORE = {
    "u32": "out[at] = {0};",
    "u64": "out[at] = (u32){0}; out[at + 1] = (u32)({0} >> 32);",
    "f32": "out[at] = to_bits({0});",
    "f64": "{{ u64 b = {0} != {0} ? 0x7ff8000000000000ull : __builtin_bit_cast(u64, {0}); "
    "out[at] = (u32)b; out[at + 1] = (u32)(b >> 32); }}",
    "f16": "out[at] = {0} != {0} ? 0x7e00u : {0} == (f16)0.0f ? 0u : "
    "(u32)__builtin_bit_cast(unsigned short, {0});",
}
WORDS = {of: 2 if of in ("u64", "f64") else 1 for of in POOL}
TOTAL_WORDS = sum(POOL[of] * WORDS[of] for of in POOL)


def initial(seed: int) -> np.ndarray:
    """The input words: one per work-item for each u32 variable, and a row of zeros."""
    source = np.random.default_rng(seed)
    words = source.integers(0, 2**32, (POOL["u32"] + 1, ITEMS), dtype=np.uint32)
    words[0] = np.arange(ITEMS)
    words[1] &= 0xFF
    words[-1] = 0
    return words


def source_text(program: Program) -> str:
    """The HIP source of a program."""
    declare = [
        f"u32 zero_u32 = in[{POOL['u32'] * ITEMS}u + g];",
        "u64 zero_u64 = (u64)zero_u32 << 32 | zero_u32;",
    ]
    store, at = [], 0
    for k, name in enumerate(names("u32")):
        declare.append(f"u32 {name} = in[{k * ITEMS}u + g];")
    for of in ("u64", "f32", "f64", "f16"):
        for k, name in enumerate(names(of)):
            declare.append(f"{TYPE_NAMES[of]} {name} = {_start(of, k)};")
    for of in POOL:
        for name in names(of):
            store.append(f"{{ u32 at = g * {TOTAL_WORDS}u + {at}u; {_STORE[of].format(name)} }}")
            at += WORDS[of]
    body = "\n".join([*declare, *program.lines, *store])
    return f"""{PRELUDE}
extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size({BLOCK}, {BLOCK})))
void k(const u32* in, u32* out) {{
__attribute__((shared)) static u32 shared[{BLOCK}];
u32 t = __builtin_amdgcn_workitem_id_x(), g = __builtin_amdgcn_workgroup_id_x() * {BLOCK}u + t;
{body}
}}
"""


def _start(of: str, k: int) -> str:
    if of == "u64":
        return f"(u64)u32_{k + 1} << 32 | u32_{k + 2}"
    return f"({TYPE_NAMES[of]})(float)(int)u32_{k}" if k else f"({TYPE_NAMES[of]})(float)u32_1"


def evaluate(program: Program, words: np.ndarray) -> np.ndarray:
    """The output words that the program must store, of shape (items, words)."""
    v: Variables = dict(zip(names("u32"), (row.copy() for row in words[:-1]), strict=True))
    for k, name in enumerate(names("u64")):
        v[name] = v[f"u32_{k + 1}"].astype(np.uint64) << np.uint64(32) | v[f"u32_{k + 2}"].astype(
            np.uint64
        )
    with np.errstate(all="ignore"):
        for of in ("f32", "f64", "f16"):
            for k, name in enumerate(names(of)):
                start = v[f"u32_{k}"].view(np.int32) if k else v["u32_1"]
                v[name] = start.astype(np.float32).astype(DTYPES[of])
        everyone = np.ones(ITEMS, bool)
        for step in program.steps:
            step(v, everyone)
    columns = []
    for of in POOL:
        for name in names(of):
            bits = canonical(of, v[name])
            columns.append(bits.astype(np.uint32))
            if WORDS[of] == 2:
                columns.append((bits >> np.uint64(32)).astype(np.uint32))
    return np.stack(columns, axis=1)
