"""The structures and numbers of attn.h, the headers it includes and attn_mpi.h, by ctypes; needs
no library.

Each structure is declared once, with ctypes. From this declaration `packer` creates a function that
writes the structure's bytes from numbers in one step. Filling ctypes objects field by field takes
ten times as long.
"""

import ctypes
import struct
from ctypes import c_char, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, Callable, Optional

F64, F32, F16, BF16, BOOL, I64, I8 = range(1, 8)  # attn_dtype
TOP_LEFT, BOTTOM_RIGHT, OFFSET = 1, 2, 3  # attn_causal
DIAGONALS = {"top-left": 0, "bottom-right": 1}  # attn_diagonal; 2: an offset
STAGE_WEIGHTS = 3  # attn_stage
AGAIN = 10  # attn_status: not an error


class Error(ctypes.Structure):
    _fields_ = [("status", c_int), ("argument", c_char * 24), ("message", c_char * 232)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int),
        ("shape", c_int64 * 4),
        ("stride", c_int64 * 4),
    ]


class ContextOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("threads", c_int),
        ("isa", c_char_p),
        ("allocate", c_void_p),
        ("release", c_void_p),
        ("memory_user", c_void_p),
        ("parallel_for", c_void_p),
        ("parallel_user", c_void_p),
    ]


class SdpaArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("out", Tensor),
        ("scale", c_double),
        ("causal", c_int),
        ("causal_offset", c_int64),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("mask", c_void_p),
        ("key_lengths", c_void_p),
        ("cu_seqlens_q", c_void_p),
        ("cu_seqlens_k", c_void_p),
        ("sequences", c_int64),
        ("alibi_slopes", c_void_p),
        ("sink_logits", c_void_p),
        ("softcap", c_double),
        ("dropout", c_double),
        ("dropout_seed", c_uint64),
        ("precision", c_int),
        ("lse", c_void_p),
        ("scores", c_void_p),
        ("scores_stage", c_int),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("cache", c_void_p),
        ("diagonal", c_int),
        ("alibi_form", c_int),
    ]


class SdpaGrads(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("dout", Tensor),
        ("dlse", c_void_p),
        ("dq", Tensor),
        ("dk", Tensor),
        ("dv", Tensor),
        ("dmask", c_void_p),
        ("dalibi_slopes", c_void_p),
        ("dsink_logits", c_void_p),
    ]


class MhaArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("x", Tensor),
        ("source", Tensor),
        ("w_q", Tensor),
        ("w_k", Tensor),
        ("w_v", Tensor),
        ("b_q", Tensor),
        ("b_k", Tensor),
        ("b_v", Tensor),
        ("w_o", Tensor),
        ("b_o", Tensor),
        ("out", Tensor),
        ("attention", c_void_p),
        ("output_dropout", c_double),
        ("output_dropout_seed", c_uint64),
    ]


class MhaGrads(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("dout", Tensor),
        ("dx", Tensor),
        ("dsource", Tensor),
        ("dw_q", Tensor),
        ("dw_k", Tensor),
        ("dw_v", Tensor),
        ("db_q", Tensor),
        ("db_k", Tensor),
        ("db_v", Tensor),
        ("dw_o", Tensor),
        ("db_o", Tensor),
        ("dmask", c_void_p),
        ("dalibi_slopes", c_void_p),
        ("dsink_logits", c_void_p),
    ]


class CacheOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("B", c_int64),
        ("Hk", c_int64),
        ("D", c_int64),
        ("Dv", c_int64),
        ("dtype", c_int),
        ("max_keys", c_int64),
        ("page_keys", c_int64),
        ("pages", c_int64),
        ("allocate", c_void_p),
        ("release", c_void_p),
        ("memory_user", c_void_p),
    ]


class PiecesOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("q_positions", c_void_p),
        ("whole_T", c_int64),
        ("head_offset", c_int64),
        ("whole_H", c_int64),
        ("sums_in", c_int),
        ("sums_out", c_int),
    ]


class Comm(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("user", c_void_p),
        ("rank", c_int),
        ("size", c_int),
        ("send", c_void_p),
        ("receive", c_void_p),
        ("test", c_void_p),
        ("cancel", c_void_p),
    ]


class MpiOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("T", c_int64),
        ("S", c_int64),
        ("segment_keys", c_int64),
        ("deadline", c_double),
        ("report", c_void_p),
        ("checkpoint", c_void_p),
        ("mode", c_int),
    ]


STRUCTURES = {
    "attn_error": Error,
    "attn_tensor": Tensor,
    "attn_context_options": ContextOptions,
    "attn_sdpa_args": SdpaArgs,
    "attn_sdpa_grads": SdpaGrads,
    "attn_mha_args": MhaArgs,
    "attn_mha_grads": MhaGrads,
    "attn_cache_options": CacheOptions,
    "attn_pieces_options": PiecesOptions,
    "attn_comm": Comm,
    "attn_mpi_options": MpiOptions,
}


def _codes(structure: Any, last: Optional[str] = None) -> str:
    codes = ""
    for name, kind in structure._fields_:
        if issubclass(kind, ctypes.Structure):
            codes += _codes(kind)
        elif issubclass(kind, ctypes.Array):
            codes += "%d%s" % (kind._length_, kind._type_._type_)
        else:
            codes += kind._type_
        if name == last:
            break
    return codes


def packer(structure: Any, last: Optional[str] = None) -> Callable[..., bytes]:
    """A function that takes the structure's numbers, in order, and returns its bytes. With `last`,
    the name of a field, it takes the numbers up to this field; all later fields are 0."""
    if struct.calcsize("@" + _codes(structure) + "0q") != ctypes.sizeof(structure):
        raise ImportError("%s has an unexpected layout on this platform" % structure.__name__)
    codes = "@" + _codes(structure, last)
    zeros = ctypes.sizeof(structure) - struct.calcsize(codes)
    return struct.Struct("%s%dx" % (codes, zeros)).pack


def framed(structure: Any, embedded: int) -> Callable[..., bytes]:
    """For a structure that begins with its size and `embedded` tensors: a function that takes the
    size, for each tensor its address and the bytes of its other members, and then the bytes of all
    later members."""
    rest = ctypes.sizeof(Tensor) - ctypes.sizeof(c_void_p)
    tail = ctypes.sizeof(structure) - ctypes.sizeof(c_size_t) - embedded * ctypes.sizeof(Tensor)
    packed = struct.Struct("@N" + "P%ds" % rest * embedded + "%ds" % tail)
    if packed.size != ctypes.sizeof(structure):
        raise ImportError("%s has an unexpected layout on this platform" % structure.__name__)
    return packed.pack
