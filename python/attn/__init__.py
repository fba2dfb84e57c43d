"""attn: exact self-attention on the CPU, on NumPy arrays, computed by libattn.

    import attn
    out = attn.scaled_dot_product_attention(q, k, v, is_causal=True)     # as PyTorch's
    dq, dk, dv, *_ = attn.grad(q, k, v, dout, is_causal=True)
    cache = attn.KVCache(B, Hk, D, max_keys=4096)                        # for decoding
    out = attn.Pieces(q, S, is_causal=True).run(k, v)                    # keys beyond memory
    module = attn.MultiHeadAttention(H, in_proj_weight=w, w_o=w_o)       # projections and all
    attn.explain("Life is short, eat dessert last")                      # a picture, and how
"""

from ._cache import KVCache
from ._context import isa, num_threads, set_num_threads
from ._explain import Explanation, Lesson, explain, lesson
from ._library import version as __version__
from ._mha import MultiHeadAttention, MultiHeadGradients
from ._pieces import Pieces
from ._pieces_grad import PiecesGrad
from ._sdpa import Gradients, grad, scaled_dot_product_attention
from ._threadpool import register_threadpoolctl

__all__ = [
    "__version__",
    "Explanation",
    "Gradients",
    "KVCache",
    "Lesson",
    "MultiHeadAttention",
    "MultiHeadGradients",
    "Pieces",
    "PiecesGrad",
    "explain",
    "grad",
    "isa",
    "lesson",
    "num_threads",
    "register_threadpoolctl",
    "scaled_dot_product_attention",
    "set_num_threads",
]
