"""Private functions of PyTorch that tell whether the dispatcher would do nothing and can be
bypassed. They are looked up when this module is imported, and each is tested in a case whose answer
is known. If one is missing or behaves differently, `known` is False and only the public interface
is used: every call goes through the dispatcher, which costs a few microseconds.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, List

import torch
from torch import Tensor
from torch.autograd import forward_ad


def _look_up() -> SimpleNamespace:
    C = torch._C
    return SimpleNamespace(
        functorch=C._are_functorch_transforms_active,  # torch.func's transforms of this thread
        modes=C._len_torch_dispatch_stack,  # TorchDispatchMode: fake tensors, profilers, ...
        autocasting=C._is_any_autocast_enabled,
        tracing=getattr(C, "_is_tracing", torch.jit.is_tracing),  # torch.jit.trace
        forward_mode=forward_ad,  # forward-mode derivatives, if its _current_level >= 0
        keys=lambda t: C._dispatch_keys(t).raw_repr(),
        wrapped=C._functorch.is_functorch_wrapped_tensor,
    )


def _usual_keys(f: SimpleNamespace) -> Any:
    with torch.inference_mode():
        inference = torch.empty(0)
    return frozenset(f.keys(t) for t in (torch.empty(0), inference))


def _tried(f: SimpleNamespace) -> bool:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), more: Any = None):
            return function(*args, **(more or {}))

    x = torch.zeros(2, 2)
    yes: List[bool] = []

    def transformed(y: Tensor) -> Tensor:
        yes.extend((bool(f.functorch()), bool(f.wrapped(y)), f.keys(y) not in f.usual))
        return y

    torch.func.vmap(transformed)(x)
    with Mode():
        yes.append(bool(f.modes()))
    with torch.autocast("cpu"):
        yes.append(bool(f.autocasting()))
    with forward_ad.dual_level():
        yes.append(f.forward_mode._current_level >= 0)
    negated = torch.zeros(2, dtype=torch.complex64).conj().imag
    yes.extend(f.keys(t) not in f.usual for t in (negated, x.to("meta"), x.to_sparse()))
    return len(yes) == 9 and all(yes)


def _known() -> SimpleNamespace:
    try:
        f = _look_up()
        f.usual = _usual_keys(f)
        f.known = _tried(f)
    except Exception:  # changed internals may raise anything
        f = SimpleNamespace(known=False)
    return f


_found = _known()
known: bool = _found.known
if known:
    functorch, modes, autocasting = _found.functorch, _found.modes, _found.autocasting
    forward_mode, tracing = _found.forward_mode, _found.tracing
    _keys, _usual, _wrapped = _found.keys, _found.usual, _found.wrapped
else:
    # A mode or autocast may always be active.
    functorch = modes = autocasting = tracing = lambda: True
    forward_mode = SimpleNamespace(_current_level=-1)


def ordinary(t: Any) -> bool:
    """Whether it is a dense tensor on the CPU whose memory holds its numbers. Fake, sparse, nested,
    quantised, batched and negated tensors, zeros without memory, most subclasses, and tensors of
    other devices have other dispatch keys. If the keys are not known: whether the operator's kernel
    will get such a tensor."""
    if known:
        return isinstance(t, Tensor) and _keys(t) in _usual
    return (
        type(t) in (Tensor, torch.nn.Parameter)
        and t.device.type == "cpu"
        and t.layout == torch.strided
        and not (t.is_nested or t.is_quantized)
    )


def transformed(t: Tensor) -> bool:
    """Whether the tensor has a transform or a tangent, which the operator would ignore."""
    return (known and _wrapped(t)) or forward_ad.unpack_dual(t).tangent is not None


def scripted_as(function: Any, other: Any) -> None:
    """Makes torch.jit.script, which compiles functions from their source, use PyTorch's own
    function in place of this one. If that is not possible, torch.jit.script raises an error."""
    try:
        from torch.jit import _builtins

        known = _builtins._find_builtin(other)
        if known is not None:
            _builtins._register_builtin(function, known)
    except Exception:  # changed internals may raise anything
        pass
