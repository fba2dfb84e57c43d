"""Describes NumPy arrays to the library: an address, a type, four sizes and four strides."""

from ctypes import addressof, c_void_p
import operator
import struct
import sys
from typing import Any, Dict, Tuple

import numpy as np

from ._library import BF16, BOOL, F16, F32, F64, Tensor, packer

ndarray = np.ndarray

# dtype: attn_dtype, log2 of the element's bytes, and the bits that must be 0 in a stride.
_KINDS: Dict[Any, Tuple[int, int, int]] = {
    np.dtype(np.float64): (F64, 3, 7),
    np.dtype(np.float32): (F32, 2, 3),
    np.dtype(np.float16): (F16, 1, 1),
    np.dtype(np.bool_): (BOOL, 0, 0),
}
_ONES: Tuple[Tuple[int, ...], ...] = ((1, 1, 1, 1), (1, 1, 1), (1, 1), (1,))
_ZEROS: Tuple[Tuple[int, ...], ...] = ((0, 0, 0, 0), (0, 0, 0), (0, 0), (0,))
ABSENT = (0,) * 10  # an absent tensor
_pack = packer(Tensor)
# (dtype, shape, strides): all but the address of an attn_tensor
_described: Dict[Any, Tuple[int, ...]] = {}
MOST_KEPT = 1024  # most entries; then the table is emptied


def array(x: Any, name: str) -> Any:
    """x as an array, without a copy if possible: for an array, the buffer protocol,
    __array_interface__ or __array__, and DLPack. A list is copied."""
    if type(x) is ndarray:
        return x
    if not isinstance(x, ndarray) and hasattr(x, "__dlpack__") and not hasattr(x, "__array__"):
        return np.from_dlpack(x)
    try:
        a = np.asarray(x)
    except ValueError as error:
        raise ValueError("%s is not an array: %s" % (name, error)) from None
    if a.dtype.hasobject and a.ndim == 0:
        raise TypeError("%s is %s; it must be an array" % (name, type(x).__name__))
    if a.dtype.hasobject and isinstance(x, (list, tuple)):  # of lists of unequal length
        raise ValueError("%s is not an array of numbers; its rows must be equally long" % name)
    return a


def integer(x: Any, name: str) -> int:
    try:
        return operator.index(x)
    except TypeError:
        raise TypeError("%s is %r; it must be an integer" % (name, x)) from None


def _other_order(dtype: Any, name: str) -> ValueError:
    return ValueError(
        "%s has the other byte order (%s); use %s.astype(%s.dtype.newbyteorder('='))"
        % (name, dtype.str, name, name)
    )


def _kind(dtype: Any, name: str) -> Tuple[int, int, int]:
    if dtype.name == "bfloat16" and dtype.itemsize == 2:  # ml_dtypes'
        if not dtype.isnative:  # it has the same name
            raise _other_order(dtype, name)
        _KINDS[dtype] = BF16, 1, 1
        return _KINDS[dtype]
    if dtype.newbyteorder("=") in _KINDS:
        raise _other_order(dtype, name)
    raise TypeError(
        "%s is %s; it must be float64, float32, float16 or bfloat16 (a mask also bool)"
        % (name, dtype)
    )


def _slow_address(a: Any) -> int:
    return int(a.__array_interface__["data"][0])


# The address of the data is the first field after the object's head, in every version of NumPy's C
# interface (PyArrayObject_fields). Reading it directly takes a tenth of the time. _choose() tests
# this, and uses the slow way where it does not work.
_FIELD = object.__basicsize__
_read = c_void_p.from_address


def _fast_address(a: Any) -> int:
    return _read(id(a) + _FIELD).value or 0


def _choose() -> Any:
    if sys.implementation.name != "cpython":
        return _slow_address
    probes = [np.arange(24.0).reshape(4, 6)[1:, ::-2], np.ones(3, "u1"), np.ones((2, 0, 3))]
    probes.append(np.broadcast_to(np.float32(1), (2, 2)))
    right = all(_fast_address(a) == _slow_address(a) for a in probes)
    return _fast_address if right else _slow_address


address = _choose()


def _describe(a: Any, name: str) -> Tuple[int, ...]:
    dtype = a.dtype
    code, shift, odd = _KINDS.get(dtype) or _kind(dtype, name)
    shape, strides = a.shape, a.strides
    n = len(shape)
    if n < 4:
        shape, strides = _ONES[n] + shape, _ZEROS[n] + strides
    elif n > 4:
        raise ValueError("%s has %d dimensions; at most 4 are possible, so reshape it" % (name, n))
    s0, s1, s2, s3 = strides
    if (s0 | s1 | s2 | s3) & odd:
        raise ValueError(
            "%s has strides of %s bytes, which are not multiples of its elements' %d; use "
            "numpy.ascontiguousarray(%s)" % (name, a.strides, dtype.itemsize, name)
        )
    rest = (code, *shape, s0 >> shift, s1 >> shift, s2 >> shift, s3 >> shift)
    if len(_described) >= MOST_KEPT:
        _described.clear()
    _described[dtype, a.shape, a.strides] = rest
    return rest


def view(a: Any, name: str) -> Tuple[int, ...]:
    """The ten numbers of an attn_tensor. Fewer than four dimensions are preceded by ones. `a` must
    live for as long as they are used."""
    try:
        rest = _described[a.dtype, a.shape, a.strides]
    except KeyError:
        rest = _describe(a, name)
    return (address(a),) + rest


def tensor(a: Any, name: str) -> Tuple[Any, int]:
    """An attn_tensor in memory, for a pointer to it, and that pointer."""
    memory = Tensor.from_buffer_copy(_pack(*view(a, name)))
    return memory, addressof(memory)


def tensor_bytes(a: Any, name: str) -> bytes:
    """An attn_tensor's bytes, for an argument that is a pointer to one."""
    return _pack(*view(a, name))


def output(a: Any, name: str, *inputs: Any) -> None:
    """Checks that `a` is writable and shares no memory with the inputs."""
    if not isinstance(a, ndarray):
        raise TypeError("%s is %s; it must be a NumPy array" % (name, type(a).__name__))
    if not a.flags.writeable:
        raise ValueError("%s is read-only; it must be writable" % name)
    for x in inputs:
        if np.may_share_memory(a, x):  # by their bounds; then exactly, within limits
            try:
                shared = np.shares_memory(a, x, max_work=100000)  # type: ignore[arg-type]
            except Exception:
                shared = True
            if shared:
                raise ValueError("%s shares memory with an input; give it memory of its own" % name)


def vector(x: Any, name: str, n: int, dtype: Any, letter: str) -> Tuple[Any, int]:
    """A dense array [n] of numbers, converted to dtype; one number stands for n equal ones. Always
    a copy: the library checks the numbers and then uses them as indices, and another thread may
    change the original in between."""
    a = array(x, name)
    real = a.dtype.kind == "f" and (dtype != np.int64 or a.size == 0)  # [] is float64
    if a.dtype.kind not in "iu" and not real:
        raise TypeError("%s is %s; it must be %s" % (name, a.dtype, np.dtype(dtype)))
    if not a.dtype.isnative:
        raise _other_order(a.dtype, name)
    if a.dtype.kind == "u" and a.size and a.max() > _LARGEST:
        raise ValueError("%s has %d; a length must be at most 2^63-1" % (name, a.max()))
    if a.ndim == 0:
        a = np.broadcast_to(a, (n,))
    if a.shape != (n,):
        raise ValueError("%s has shape %s; it must be (%s,) = (%d,)" % (name, a.shape, letter, n))
    a = np.array(a, dtype, order="C")
    return a, address(a)


_LARGEST = (1 << 63) - 1
bad_number = struct.error
