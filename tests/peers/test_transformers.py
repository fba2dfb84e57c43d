"""Hugging Face's models with attn, compared with their own eager attention. The models are small
and have random weights; nothing is downloaded. Logits and gradients in float differ only by the
order of sums. The tolerance comes from the model itself: the error of attn, relative to the same
model in double precision with attention by its definition, may be twice that of eager plus two
roundings (6e-8 each) of the largest value.
"""

import copy
import os
import unittest
from unittest import mock

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import torch.nn.functional as F
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

import attn
import attn._transformers
import attn.torch

ROUNDINGS = 1.2e-7
transformers.logging.set_verbosity_error()
SMALL = {"vocab_size": 99, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
COMMON = {
    **SMALL, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96,
    "num_attention_heads": 4,
}  # fmt: skip
GQA = {**COMMON, "num_key_value_heads": 2, "head_dim": 16}
MODELS = {
    "BertForMaskedLM": transformers.BertConfig(**COMMON),
    "GPT2LMHeadModel": transformers.GPT2Config(**SMALL, n_embd=64, n_layer=2, n_head=4),
    "LlamaForCausalLM": transformers.LlamaConfig(**GQA),
    "MistralForCausalLM": transformers.MistralConfig(**GQA, sliding_window=6),
    "Gemma2ForCausalLM": transformers.Gemma2Config(
        **GQA, sliding_window=6, attn_logit_softcapping=2.0, query_pre_attn_scalar=16
    ),
    "T5ForConditionalGeneration": transformers.T5Config(
        **SMALL, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, decoder_start_token_id=0
    ),
    "GptOssForCausalLM": transformers.GptOssConfig(
        **GQA, sliding_window=6, num_local_experts=2, num_experts_per_tok=1
    ),
}


def exact_attention(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, softcap=None,
    position_bias=None, s_aux=None, **more,
):  # fmt: skip
    """The definition (docs/NUMERICS.md), for a model in double precision; eager would round weights
    to float."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    s = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if position_bias is not None:
        s = s + position_bias
    visible = attention_mask
    if visible is None:
        visible = torch.ones(s.shape[-2:], dtype=torch.bool)
        if module.is_causal and query.shape[2] > 1:
            visible = visible.tril()
    s = s.masked_fill(~visible, -1e300)
    if s_aux is not None:
        s = torch.cat([s, s_aux.reshape(1, -1, 1, 1).expand(*s.shape[:-1], 1)], -1)
    weights = s.softmax(-1)[..., : key.shape[2]] * visible
    return (weights @ value).transpose(1, 2).contiguous(), None


attn.torch.register()
transformers.AttentionInterface.register("exact", exact_attention)
AttentionMaskInterface.register("exact", sdpa_mask)


def make(name, implementation):
    torch.manual_seed(3)
    config = copy.deepcopy(MODELS[name])
    for dropout in ("dropout_rate", "attn_pdrop", "embd_pdrop", "resid_pdrop"):
        if hasattr(config, dropout):
            setattr(config, dropout, 0.0)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    config._experts_implementation = "eager"  # the other supports no double
    model = getattr(transformers, name)._from_config(config, attn_implementation=implementation)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(("q_proj.weight", "k_proj.weight", "sinks")):
                parameter.normal_(std=0.3)  # so that attention matters
    return model.eval()


class Transformers(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(5)
        self.ids = torch.randint(5, 99, (2, 11))
        self.padding = torch.ones_like(self.ids)
        self.padding[1, :4] = 0
        self.asked = 0
        whole = attn._transformers.attention

        def count(*args, **options):
            self.asked += 1
            return whole(*args, **options)

        transformers.AttentionInterface.register("attn", count)
        self.addCleanup(attn.torch.register)

    def as_near(self, got, eager, exact, what):
        """Compares lists of tensors by their combined errors."""
        errors = [
            max((a.double() - b).abs().max().item() for a, b in zip(some, exact))
            for some in (got, eager)
        ]
        largest = max(x.abs().max().item() for x in exact)
        self.assertGreater(largest, 0)
        self.assertLessEqual(errors[0], 2 * errors[1] + ROUNDINGS * largest, what)

    def arguments(self, padded):
        """Labels only where a token and the one before it are not padding: the output of a padded
        query, which sees no key, is undefined."""
        if not padded:
            return {"input_ids": self.ids, "labels": self.ids}
        hidden = (self.padding == 0) | (self.padding.roll(1, 1) == 0)
        labels = self.ids.masked_fill(hidden, -100)
        return {"input_ids": self.ids, "attention_mask": self.padding, "labels": labels}

    def exact(self, model):
        exact = copy.deepcopy(model).double()
        exact.set_attn_implementation("exact")
        return exact

    def compare(self, name, padded, patched=False):
        eager = make(name, "eager")
        mine = make(name, "sdpa" if patched else "attn")
        mine.load_state_dict(eager.state_dict())
        exact = self.exact(eager)
        seen = self.padding.bool() if padded and not name.startswith("T5") else self.ids > 0
        logits, grads = [], []
        for model in (mine, eager, exact):
            out = model(**self.arguments(padded))
            out.loss.backward()
            logits.append([out.logits.detach()[seen]])
            grads.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
        self.assertEqual(list(grads[0]), list(grads[1]))
        self.as_near(*logits, "logits")
        self.as_near(*(list(g.values()) for g in grads), "gradients")
        return eager, mine

    def test_models(self):
        """Compares logits, gradients of all parameters, and tokens, with and without padding."""
        for name in MODELS:
            for padded in (False, True):
                with self.subTest(model=name, padded=padded):
                    self.asked = 0
                    eager, mine = self.compare(name, padded)
                    self.assertGreaterEqual(self.asked, 2)
                    if eager.can_generate() and not name.startswith("Bert"):
                        self.generate(eager, mine, padded)

    def generate(self, eager, mine, padded, **options):
        inputs = {"input_ids": self.ids}
        if padded:
            inputs["attention_mask"] = self.padding
        want, got = (
            model.generate(
                **inputs, max_new_tokens=20, min_new_tokens=20, do_sample=False, **options
            )
            for model in (eager, mine)
        )
        self.assertEqual(got.tolist(), want.tolist())
        self.assertGreaterEqual(got.shape[1], 21)

    def test_caches(self):
        """A cache of full size from the beginning, and no cache."""
        for name in ("LlamaForCausalLM", "Gemma2ForCausalLM"):
            eager, mine = make(name, "eager"), make(name, "attn")
            for padded in (False, True):
                for options in ({"cache_implementation": "static"}, {"use_cache": False}):
                    with self.subTest(model=name, padded=padded, options=options):
                        self.generate(eager, mine, padded, **options)

    def test_patched(self):
        """For models that call PyTorch's function the patch is enough."""
        for name in ("BertForMaskedLM", "LlamaForCausalLM", "T5ForConditionalGeneration"):
            with self.subTest(model=name), attn.torch.patch():
                asked = []
                whole = attn.torch.attend

                def count(*args, whole=whole, asked=asked):
                    asked.append(1)
                    return whole(*args)

                attn.torch.attend = count
                try:
                    eager, mine = self.compare(name, True, patched=True)
                finally:
                    attn.torch.attend = whole
                self.assertGreaterEqual(len(asked), 2)
                if eager.can_generate() and not name.startswith("Bert"):
                    self.generate(eager, mine, True)
        self.assertEqual(self.asked, 0)

    def test_switch(self):
        """An existing model can switch to attn."""
        model = make("LlamaForCausalLM", "eager")
        eager, exact = model(self.ids).logits, self.exact(model)(self.ids).logits
        model.set_attn_implementation("attn")
        self.as_near([model(self.ids).logits], [eager], [exact], "logits")
        self.assertEqual(self.asked, 2)

    def test_train(self):
        """Dropout in attention: reproducible by torch.manual_seed, and the weights get
        gradients."""
        config = transformers.LlamaConfig(**GQA, attention_dropout=0.3)
        torch.manual_seed(3)
        model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="attn")
        losses = []
        for _ in range(2):
            torch.manual_seed(9)
            losses.append(model(self.ids, labels=self.ids).loss.item())
        self.assertEqual(losses[0], losses[1])
        self.assertNotEqual(losses[0], model(self.ids, labels=self.ids).loss.item())
        optimiser = torch.optim.AdamW(model.parameters(), 1e-2)
        for _ in range(20):
            loss = model(self.ids, labels=self.ids).loss
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        self.assertLess(loss.item(), losses[0] / 2)

    def test_types(self):
        """bfloat16, in which models are loaded: the logits are as near to float32's as PyTorch's
        own."""
        want = make("LlamaForCausalLM", "eager")(self.ids).logits
        errors = []
        for implementation in ("sdpa", "attn"):
            model = make("LlamaForCausalLM", implementation).bfloat16()
            errors.append((model(self.ids).logits.float() - want).norm().item())
        self.assertLess(errors[1], 1.2 * errors[0])

    def test_other_devices(self):
        """Tensors that are not on the CPU get transformers' own attention, or a one-line error."""
        q = torch.empty(1, 4, 3, 16, device="meta")
        module = torch.nn.Module()
        args = module, q, q, q, None
        got, _ = attn._transformers.attention(*args)
        self.assertEqual(got.shape, sdpa_attention_forward(*args)[0].shape)
        with self.assertRaisesRegex(NotImplementedError, "query is on meta"):
            attn._transformers.attention(*args, softcap=2.0)
        with self.assertRaisesRegex(NotImplementedError, "paged caches"):
            q = torch.zeros(1, 4, 3, 16)
            attn._transformers.attention(module, q, q, q, None, cache=object())

    def test_repeated_calls_are_fast(self):
        """A second call finds the plan of the first, without the checks of attn.torch."""
        module, q = torch.nn.Identity(), torch.randn(1, 2, 5, 8)
        with torch.no_grad():
            want, _ = attn._transformers.attention(module, q, q, q, None)
            with mock.patch.object(attn.torch, "scaled_dot_product_attention") as slow:
                got, _ = attn._transformers.attention(module, q, q, q, None)
        slow.assert_not_called()
        self.assertTrue(torch.equal(got, want))

    def test_shared_keys(self):
        """Key/value heads are not repeated; the library gets the original number."""
        heads = []
        whole = F.scaled_dot_product_attention
        engine = attn.torch.engine
        forward = engine.forward

        def look(q, k, *rest):
            heads.append((q.shape[1], k.shape[1]))
            return forward(q, k, *rest)

        engine.forward = look
        self.addCleanup(setattr, engine, "forward", forward)
        attn.torch.plans._plans.clear()
        with torch.no_grad():
            make("LlamaForCausalLM", "attn")(self.ids)
        self.assertEqual(set(heads), {(4, 2)})
        self.assertIs(F.scaled_dot_product_attention, whole)


if __name__ == "__main__":
    unittest.main()
