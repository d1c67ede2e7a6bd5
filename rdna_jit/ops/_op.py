"""What every public op shares: planning once per kind of call, torch registration, the log.

An op is two functions with the same parameters. `plan` checks the contract and chooses kernels
from shapes, dtypes, strides, alignment and values alone, never from a tensor's content, so its
result is kept and found again. It gets every argument by name, and where there are many it writes
`**given` instead of listing them again. The decorated function gets the plan first, allocates or
takes `out`, launches, and returns:

    @public_op("scale(Tensor x, float a) -> Tensor", plan=_plan, fake=_fake)
    def scale(plan, x, a, *, out=None):
        y = torch.empty_like(x) if out is None else out
        plan.launches[0](x, y, a, x.numel())
        return y

Eager calls go straight to the function. Under torch.compile the call becomes
`torch.ops.rdna_jit.scale`, or its `.out` overload, so that a choice that depends on M is made at
run time and not frozen into the graph.
"""

from __future__ import annotations

import functools
import inspect
import re
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import torch

from rdna_jit import dispatch
from rdna_jit.config import config
from rdna_jit.dispatch import Candidate, Launch, Plan

__all__ = ["Candidate", "Launch", "Plan", "public_op"]

P = ParamSpec("P")
R = TypeVar("R")
_MOST_PLANS = 2048

_library = torch.library.Library("rdna_jit", "FRAGMENT")
_WRITTEN = re.compile(r",\s*Tensor\(\w!\)\?\s+(\w+)=None")  # optional arguments that an op writes

_TEXT = """\
def key_of({parameters}):
    return ({key},)


def plan_of({parameters}):
{find}
    return plan


def eager({parameters}):
{find}
{follow}


def call({parameters}):
    if is_compiling():
        return through_torch({arguments})
{find}
{follow}
"""
_FIND = """\
    try:
        plan = plans.get(({key},))
    except (AttributeError, TypeError, RuntimeError):
        plan = None
    if plan is None:
        plan = build({keywords})"""
_FOLLOW = """\
    result = run(plan, {arguments})
    note(plan)
    plan.counter[0] += 1
    return result"""
# Strides cost twice what is_contiguous() does, and most operands are contiguous.
_TENSOR_KEY = "{0}.shape, {0}.dtype, {0}.is_contiguous() or {0}.stride(), {0}.data_ptr() & 15"


def public_op(
    schema: str,
    *,
    plan: Callable[..., Plan],
    fake: Callable[..., Any],
    batch_invariant: bool = False,
) -> Callable[[Callable[Concatenate[Plan, P], R]], Callable[P, R]]:
    """Register the decorated function as a torch op and return what users call.

    `schema` is torch's, without namespace and without `out`: "scale(Tensor x, float a) -> Tensor".
    `fake` takes the schema's parameters and returns an empty result. An op that has no
    parameter `out` has no `.out` overload. `batch_invariant` declares
    that row i of a batch has the bits that it has alone. The returned function has `.plan` (same
    parameters), `.schema` and `.batch_invariant`.
    """

    def decorate(run: Callable[Concatenate[Plan, P], R]) -> Callable[P, R]:
        parsed = torch._C.parse_schema(f"rdna_jit::{schema}")
        name = parsed.name.removeprefix("rdna_jit::")
        parameters = list(inspect.signature(run).parameters.values())[1:]
        signature = inspect.Signature(parameters)
        takes_out = "out" in signature.parameters
        through_torch = _register(name, schema, fake, takes_out)
        made = _generate(run, plan, signature, parsed, through_torch)
        _implement(name, made["eager"], takes_out, bool(_WRITTEN.search(schema)))
        call = functools.wraps(run)(made["call"])
        call.__signature__ = signature  # type: ignore[attr-defined]
        made["plan_of"].__qualname__ = f"{name}.plan"  # what a wrong call's TypeError names
        call.plan = made["plan_of"]  # type: ignore[attr-defined]
        call.schema = schema  # type: ignore[attr-defined]
        call.batch_invariant = batch_invariant  # type: ignore[attr-defined]
        return cast(Callable[P, R], call)

    return decorate


def _generate(
    run: Callable[..., Any],
    plan: Callable[..., Plan],
    signature: inspect.Signature,
    schema: torch._C.FunctionSchema,
    through_torch: Callable[..., Any],
) -> dict[str, Any]:
    """The functions of _TEXT, written out for the op's parameters: 4 us less a call.

    Plans are kept by everything that they may depend on: settings, tensors' metadata, values.
    """
    plans: dict[object, Plan] = {}
    lock = threading.Lock()
    parameters, arguments = _parameter_text(signature)
    names: dict[str, Any] = {
        "plans": plans,
        "run": run,
        "note": dispatch.note,
        "version": functools.partial(getattr, config, "version"),
        "is_compiling": torch.compiler.is_compiling,
        "through_torch": through_torch,
        **{f"default_{name}": p.default for name, p in signature.parameters.items()},
    }
    key = _key_text(list(signature.parameters), schema)

    def build(**given: Any) -> Plan:
        made = dispatch.accept(plan(**given))
        try:
            found = names["key_of"](**given)
            with lock:
                if len(plans) >= _MOST_PLANS:
                    plans.clear()
                plans[found] = made
        except (AttributeError, TypeError, RuntimeError):
            pass  # an unhashable value, or a tensor without memory: planned at each call
        return made

    names["build"] = build
    keywords = ", ".join(f"{name}={name}" for name in signature.parameters)
    find = _FIND.format(key=key, keywords=keywords)
    follow = _FOLLOW.format(arguments=arguments)
    text = _TEXT.format(
        parameters=parameters, key=key, arguments=arguments, find=find, follow=follow
    )
    exec(compile(text, f"<call of {schema.name}>", "exec"), names)
    return names


def _key_text(parameters: list[str], schema: torch._C.FunctionSchema) -> str:
    """The memo's key as an expression of the parameters, flat where that is possible."""
    kinds = {argument.name: str(argument.type) for argument in schema.arguments}
    # The first tensor's device stands for all: a launch refuses tensors of several.
    first = next(name for name in parameters if kinds.get(name) == "Tensor")
    key = ["version()", f"{first}.get_device()"]
    for name in parameters:
        tensor, kind = _TENSOR_KEY.format(name), kinds.get(name, "Optional[Tensor]")  # else `out`
        if kind == "Tensor":
            key.append(tensor)
        elif "List[" in kind:  # torch makes lists of tuples, and a list is no key
            key.append(f"None if {name} is None else (*{name}, *map(type, {name}))")
        elif "Tensor" in kind:
            key.append(f"None if {name} is None else ({tensor})")
        else:
            # 32, 32.0 and True are equal keys, and not all of them are legal.
            key += [name, f"{name}.__class__"]
    return ", ".join(key)


def _parameter_text(signature: inspect.Signature) -> tuple[str, str]:
    """The parameters as a definition and as a call would write them."""
    parameters, arguments, starred = [], [], False
    for name, parameter in signature.parameters.items():
        keyword = parameter.kind is parameter.KEYWORD_ONLY
        if keyword and not starred:
            parameters.append("*")
            starred = True
        has_default = parameter.default is not parameter.empty
        parameters.append(f"{name}=default_{name}" if has_default else name)
        arguments.append(f"{name}={name}" if keyword else name)
    return ", ".join(parameters), ", ".join(arguments)


def _register(
    name: str, schema: str, fake: Callable[..., Any], takes_out: bool
) -> Callable[..., Any]:
    """Define the op and its `.out` overload; returns the call that torch.compile traces.

    torch's inductor fails on a call whose optional written arguments (a workspace) are all None, so
    an op that has some gets a `.fresh` overload without them.
    """
    written = _WRITTEN.findall(schema)
    if written:
        fresh = f"{name}.fresh{_WRITTEN.sub('', schema).removeprefix(name)}"
        _library.define(fresh)
        torch.library.register_fake(f"rdna_jit::{name}.fresh", fake, lib=_library)
    if not takes_out:
        _library.define(schema)
        torch.library.register_fake(f"rdna_jit::{name}", fake, lib=_library)
        return cast(Callable[..., Any], getattr(torch.ops.rdna_jit, name).default)
    head = schema.rpartition("->")[0]
    inner = head[head.index("(") + 1 : head.rindex(")")]
    separator = ", " if "*" in inner.replace("!*", "") else ", *, "
    _library.define(schema)
    _library.define(f"{name}.out({inner}{separator}Tensor(z!) out) -> ()")
    torch.library.register_fake(f"rdna_jit::{name}", fake, lib=_library)
    torch.library.register_fake(f"rdna_jit::{name}.out", lambda *a, **k: None, lib=_library)
    packet = getattr(torch.ops.rdna_jit, name)
    functional, with_out = packet.default, packet.out

    def through_torch(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        if out is None:
            if written and all(kwargs[n] is None for n in written):
                kept = {n: value for n, value in kwargs.items() if n not in written}
                return packet.fresh(*args, **kept)
            return functional(*args, **kwargs)
        with_out(*args, out=out, **kwargs)
        return out

    return through_torch


def _implement(name: str, eager: Callable[..., Any], takes_out: bool, has_written: bool) -> None:
    def into_out(*args: Any, **kwargs: Any) -> None:
        eager(*args, **kwargs)

    for key in ("CPU", "CUDA"):
        _library.impl(name, eager, key)
        if takes_out:
            _library.impl(f"{name}.out", into_out, key)
        if has_written:
            _library.impl(f"{name}.fresh", eager, key)
