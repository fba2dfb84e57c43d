"""Loads libattn-mpi.so, attention over many ranks, with ctypes. It is found beside libattn.so, or
by ATTN_MPI_LIBRARY."""

import ctypes
import os
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_size_t, c_void_p

from . import _library

# The functions of an attn_comm: send and receive, test and cancel.
START = ctypes.CFUNCTYPE(
    c_int, c_void_p, c_int, c_int, c_void_p, c_size_t, POINTER(c_void_p)
)  # fmt: skip
ASK = ctypes.CFUNCTYPE(c_int, c_void_p, POINTER(c_void_p))


def _load() -> ctypes.CDLL:
    beside = os.path.join(os.path.dirname(_library.path), "libattn-mpi.so")
    path = os.path.abspath(os.environ.get("ATTN_MPI_LIBRARY") or beside)
    try:
        found = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            "libattn-mpi.so cannot be loaded (%s); `make build` puts it beside libattn.so, `pip "
            "install ./python` into the package, and ATTN_MPI_LIBRARY can name it" % error
        ) from None
    comm, options, error_at = c_void_p, c_char_p, c_void_p
    for name, result, arguments in (
        ("attn_mpi_rows", c_int64, (c_int64, c_int, c_int)),
        ("attn_mpi_positions", None, (c_int64, c_int, c_int, c_void_p)),
        ("attn_mpi_all_gather", c_int, (comm, c_void_p, c_size_t, c_void_p, c_double, error_at)),
        ("attn_mpi_sdpa_forward", c_int, (comm, c_void_p, c_char_p, options, error_at)),
        ("attn_mpi_sdpa_backward", c_int, (comm, c_void_p, c_char_p, c_char_p, options, error_at)),
    ):
        try:
            function = getattr(found, name)
        except AttributeError:
            raise ImportError(
                "%s has no function %s; it must be of libattn's version, %s"
                % (path, name, _library.version)
            ) from None
        function.restype, function.argtypes = result, list(arguments)
    return found


library = _load()
