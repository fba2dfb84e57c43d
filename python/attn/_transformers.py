"""The attention function that attn.torch.register() registers for Hugging Face's models."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from . import _torch_engine as engine
from . import _torch_plans as plans
from . import torch as attn_torch

_compiling = torch.compiler.is_compiling


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Optional[Tensor],
    dropout: float = 0.0,
    scaling: Optional[float] = None,
    is_causal: Optional[bool] = None,
    softcap: Optional[float] = None,
    position_bias: Optional[Tensor] = None,
    s_aux: Optional[Tensor] = None,
    cache: Any = None,
    **more: Any,
) -> Tuple[Tensor, None]:
    """The attention of a layer: query [B,H,T,D], key [B,Hk,S,D], value [B,Hk,S,Dv] to [B,T,H,Dv],
    and None for the weights, like transformers' "sdpa". attention_mask comes from sdpa_mask() and
    includes causality and windows. None: all keys are visible; in a causal layer with more than one
    query, keys j <= i. position_bias (T5) is added to the scores, s_aux (gpt-oss) are sinks.
    """
    # Between two calls a model reads its weights, which evicts code from the CPU caches. Then
    # query.device takes 15 microseconds, is_cpu 2.
    if not query.is_cpu:
        if softcap is not None or s_aux is not None:
            raise NotImplementedError(
                "query is on %s; attn computes on the CPU only, and transformers' sdpa supports "
                "neither softcap nor sinks; use another attn_implementation" % query.device
            )
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, position_bias,
            cache, **more,
        )  # fmt: skip
    if cache is not None:
        raise NotImplementedError(
            "attn does not support paged caches (continuous batching); use "
            "attn_implementation='sdpa'"
        )
    causal = False
    # As in sdpa_attention_forward: one query is the last one, which sees every key there is.
    if attention_mask is None and query.shape[2] > 1:
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    if position_bias is None and s_aux is None:
        out = None
        if not dropout and not _compiling():  # what the function below does first
            numbers = causal, scaling, True, softcap or 0.0, None, "top-left"
            out = plans.repeat(query, key, value, attention_mask, numbers)
        if out is None:
            out = attn_torch.scaled_dot_product_attention(
                query, key, value, attention_mask, dropout, causal, scaling, True,
                softcap=softcap or 0.0,
            )  # fmt: skip
    else:
        mask = attention_mask
        if position_bias is not None:
            mask = _biased(position_bias, attention_mask)
        o = engine.options(causal, None, scaling, None, softcap or 0.0, dropout)
        out, _ = attn_torch.attend(
            query, key, value, mask, True, o, None, s_aux, None, None, False
        )
    # The result is [B,T,H,Dv] in memory: nothing is copied.
    return out.transpose(1, 2).contiguous(), None


def _biased(bias: Tensor, mask: Optional[Tensor]) -> Tensor:
    """One mask that combines a position bias with the visible keys."""
    if mask is None:
        return bias
    if mask.dtype == torch.bool:
        return torch.where(mask, bias, float("-inf"))
    return bias + mask


def register(name: str) -> None:
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, sdpa_mask)
