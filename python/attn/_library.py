"""Loads libattn.so with ctypes, declares its functions, and raises its errors as exceptions."""

import ctypes
import os
from ctypes import c_char_p, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, NoReturn, Tuple

from ._structures import *  # noqa: F401,F403
from ._structures import BOTTOM_RIGHT, DIAGONALS, Error


WRITE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)  # of attn_sdpa_save


def _load() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            "libattn.so cannot be loaded (%s); install the package with `pip install ./python`, or "
            "set ATTN_LIBRARY to the path of a libattn.so" % error
        ) from None
    tensor = c_char_p  # the bytes that a packer returns
    for name, result, arguments in (
        ("attn_version", c_char_p, ()),
        ("attn_context_create", c_int, (c_void_p, c_void_p, c_void_p)),
        ("attn_context_threads", c_int, (c_void_p,)),
        ("attn_context_isa", c_char_p, (c_void_p,)),
        ("attn_sdpa_forward", c_int, (c_void_p, c_char_p, c_void_p)),
        ("attn_sdpa_backward", c_int, (c_void_p, c_char_p, c_char_p, c_void_p)),
        ("attn_sdpa_begin", c_int, (c_void_p, c_char_p, c_char_p, c_void_p, c_void_p)),
        ("attn_sdpa_next", c_int64, (c_void_p, c_void_p)),
        ("attn_sdpa_feed", c_int, (c_void_p, c_int64, tensor, tensor, c_void_p)),
        ("attn_sdpa_finish", c_int, (c_void_p, c_void_p)),
        ("attn_sdpa_save", c_int, (c_void_p, WRITE, c_void_p, c_void_p)),
        ("attn_sdpa_load", c_int, (c_void_p, *(c_char_p,) * 3, c_size_t, c_void_p, c_void_p)),
        ("attn_sdpa_state_bytes", c_size_t, (c_void_p,)),
        ("attn_sdpa_end", None, (c_void_p,)),
        ("attn_sdpa_backward_begin", c_int, (c_void_p, *(c_char_p,) * 3, c_void_p, c_void_p)),
        ("attn_sdpa_backward_next", c_int64, (c_void_p, c_int64, c_void_p)),
        ("attn_sdpa_backward_feed", c_int, (c_void_p, c_int64, *(tensor,) * 4, c_void_p)),
        ("attn_sdpa_backward_finish", c_int, (c_void_p, c_void_p)),
        ("attn_sdpa_backward_state_bytes", c_size_t, (c_void_p,)),
        ("attn_sdpa_backward_end", None, (c_void_p,)),
        ("attn_linear_forward", c_int, (c_void_p, tensor, tensor, tensor, tensor, c_void_p)),
        ("attn_linear_backward", c_int, (c_void_p, *(tensor,) * 6, c_void_p)),
        ("attn_dropout_mask", c_int, (c_uint64, c_double, tensor, c_void_p)),
        ("attn_mha_create", c_int, (c_void_p, c_char_p, c_void_p, c_void_p)),
        ("attn_mha_run", c_int, (c_void_p, c_void_p, c_char_p, c_void_p)),
        ("attn_mha_backward", c_int, (c_void_p, c_char_p, c_char_p, c_void_p)),
        ("attn_mha_destroy", None, (c_void_p,)),
        ("attn_cache_create", c_int, (c_char_p, c_void_p, c_void_p)),
        ("attn_cache_destroy", None, (c_void_p,)),
        ("attn_cache_append", c_int, (c_void_p, c_int64, tensor, tensor, c_void_p)),
        ("attn_cache_read", c_int, (c_void_p, c_int64, c_int64, tensor, tensor, c_void_p)),
        ("attn_cache_truncate", c_int, (c_void_p, c_int64, c_int64, c_void_p)),
        ("attn_cache_length", c_int64, (c_void_p, c_int64)),
        ("attn_cache_bytes", c_size_t, (c_void_p,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, list(arguments)
    return library


_beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libattn.so")
path = os.path.abspath(os.environ.get("ATTN_LIBRARY") or _beside)
library = _load()
version: str = library.attn_version().decode()


def diagonal_numbers(diagonal: Any, causal: int, offset: Any) -> Tuple[int, Any]:
    """The attn_diagonal for this argument, and the offset, in a call with this attn_causal."""
    number = DIAGONALS.get(diagonal) if isinstance(diagonal, str) else 2
    if number is None:
        raise ValueError(
            "diagonal is %r; it must be 'top-left', 'bottom-right' or an integer" % diagonal
        )
    if number and causal and (causal, number) != (BOTTOM_RIGHT, 1):
        raise ValueError(
            "diagonal is %r, but is_causal sets the diagonal; pass causal_offset=%r instead, or "
            "leave diagonal out" % (diagonal, diagonal)
        )
    return number, diagonal if number == 2 else offset


_EXCEPTIONS = {
    1: ValueError,  # ATTN_ERR_ARGUMENT
    2: ValueError,  # _SHAPE
    3: TypeError,  # _DTYPE
    4: ValueError,  # _STRIDE
    5: MemoryError,  # _MEMORY
    6: ValueError,  # _LIMIT
    7: RuntimeError,  # _UNSUPPORTED
    8: ValueError,  # _FULL
    9: ValueError,  # _FILE
}


def fail(error: Any) -> NoReturn:
    """Raises the exception of an attn_error."""
    message = error.message.decode("utf-8", "replace")
    if message.startswith("dropout "):  # which has another name in Python
        message = "dropout_p" + message[len("dropout") :]
    raise _EXCEPTIONS.get(error.status, RuntimeError)(message)


def refuse_copy(x: Any, instead: str) -> NoReturn:
    """For __reduce__, which copy and pickle call: a copy of the attributes would be a second owner
    of the library's memory, and free it twice."""
    name = type(x).__name__
    raise TypeError("a %s cannot be copied or pickled; %s" % (name, instead))


def check(function: Any, *arguments: Any) -> None:
    """Calls a function whose last parameter is an attn_error, and raises its error."""
    error = Error()
    if function(*arguments, ctypes.byref(error)):
        fail(error)
