"""Compares tokens with Hugging Face's tokenizers: the same ids, types and positions, on texts of
every kind. The vocabularies are trained here, so nothing is downloaded."""

import bisect
import functools
import itertools
import json
import os
import random
import shlex
import subprocess
import tempfile
import unicodedata
import unittest
from pathlib import Path

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Regex, Tokenizer, trainers

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ATTN_BUILD", ROOT / "build"))

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

# ------------------------------------------------------------------------------------- Texts

PROSE = """Life is short, eat dessert last. The sky is blue; your journey starts with one step.
Don't, I'LL, you've, THEY'RE, she'd, it's 1234567 times 0.5 — 3,141.59! "Quotes" (and) [brackets]
Où est-il? Là-bas, à l'hôtel. Größe, Straße, ÆØÅ, naïve, façade, ĲSSEL, İstanbul, ΣΊΣΥΦΟΣ, ﬁne
Привет, мир! Ещё ёлка. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया। สวัสดีชาวโลก 안녕하세요 세계
今天天气很好。東京タワー、ｶﾀｶﾅ。㐀㐁𠀀𠀁 豈 中a文b字 ①②③ ½ ² Ⅷ ٣٤٥ १२३
😀 👨‍👩‍👧 🇩🇪 🏳️‍🌈 e\u0301 a\u030a\u0323 o\u0323\u0302 \u1e69 q\u0307\u0323 \u0344 ﷽ x\u200dy z\u200cw
for (int i = 0; i < n; i++) { a[i] += b[i] * 2; }  // C\n\tdef f(x): return x**2\r\n\r\n  \n
https://example.org/a?b=c&d=%20 user@example.com #tag @name $5.00 €10 £3 50% 1st 2nd
[CLS] [MASK] <mask> </s> <|endoftext|> ##ing ## [UNK]x <|begin_of_text|>
"""

SPECIAL = [
    "", " ", "  ", "\n", "\t", "a", "'", "''", "'s", " 's", "'S", "'\u017f", "\u017f",
    "don\u2019t", "a\u00a0b", "a\u3000b", "a\u200bb", "\ufeffa", "a\u0085b", "a\u2028b\u2029c",
    "\u180e", "\x01\x7f", "\ufffd", "\x1c\x1d\x1e\x1f", "a\x0bb\x0cc", "   a", "a   ", " \n ",
    "a \n b", "\n\n\na", "\r\n\r\n", " \r\n x", "x \r", "...", "!?!?", " !", "a!\n\n\nb",
    " \u00a0 a", "1", "12", "123", "1234", "12a34", "\u0301", "\u0301\u0323\u0345",
    "a\u0345\u0301\u0323", "\u1100\u1161\u11a8", "\ud55c\uae00", "\u0130i\u0307", "x" * 99,
    "x" * 100, "x" * 101, "é" * 100, "e\u0301" * 100, "supercali" * 500, "中" * 150, "\U0010ffff",
    "\ue000", "\U000e0041", "\u0378", "[MASK]", "a[MASK]b", "[mask]", " <mask> x", "a <mask>",
    "<|endoftext|>", "x<|endoftext|>y", "<|endoftext|", "a b" * 400, "##ab", "a##b", "\u00ad",
    "co\u00adop", "ﬀ", "ŉ", "ǰ", "ẞ", "ß", "Ⅷⅷ", "①", "\u0e33", "\u0f73",
]


def texts():
    """At least 3,000: as written, cut out of prose, mixed from all scripts, random characters."""
    pick = random.Random(11)
    everything = list(PROSE + "".join(SPECIAL))
    blocks = [(0, 0x80), (0x80, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700),
              (0x900, 0xe80), (0x1e00, 0x2070), (0x2070, 0x2c00), (0x3000, 0x3400),
              (0x4e00, 0x4f00),
              (0xac00, 0xad00), (0xf900, 0xfb00), (0x1f300, 0x1f700), (0x20000, 0x20080)]
    out = SPECIAL + PROSE.splitlines() + [PROSE]
    for _ in range(900):
        a, n = pick.randrange(len(PROSE)), pick.randrange(1, 60)
        out.append(PROSE[a : a + n])
    for _ in range(1200):
        out.append("".join(pick.choice(everything) for _ in range(pick.randrange(1, 40))))
    while len(out) < 3400:
        low, high = pick.choice(blocks)
        chars = [chr(pick.randrange(low, high)) for _ in range(pick.randrange(1, 20))]
        chars += pick.choices(["", " ", "\n", "'s", "a", "7"], k=4)
        pick.shuffle(chars)
        out.append("".join(chars))
    return [t.replace("\0", " ") for t in out]


MARKS = "\u0300\u0301\u0302\u0303\u0304\u0307\u0308\u030a\u0315\u031b\u0323\u0327\u0328\u0331\u0334"
MARKS += "\u0338\u0345\u035c\u0360\u0591\u05b0\u05bc"
MARKS += "\u064b\u0651\u0654\u093c\u094d\u09be\u09d7\u0b3e"
MARKS += "\u0b57\u0bd7\u0cd5\u0dca\u0dcf\u0ddf\u0e38\u0f71"
MARKS += "\u0f72\u0f74\u0f80\u1037\u102e\u302a\u302e\u3099"
MARKS += "\u309a\u20d0\u20e3\ufe0f\U0001d165\U0001d16d\U0001d16e\U000110ba\U0001133e\U00011357"
BASES = "aAeEiIoOuUcnsyzÅé"
BASES += "ộốữ\u212b\u2126\u212a\u00b4\u1fef\u1f82\u1fb7<>=\u2203\u0915\u0958\u09c7\u09cb"
BASES += "\u0b47\u0b4b\u0b94\u0bc6\u0cc6\u0d46\u0dd9\u0f40"
BASES += "\u0f43\u0f73\u0f81\u1025\u1b05\u05d0\ufb1d\ufb2a"
BASES += "\u0627\u0622\u06d5\u304b\u304c\u30cf"
BASES += "\uff76\uff9e\u2adc\U0001d157\U0001d15e\U00011099\U00011347"
JAMO = "\u1100\u1112\u1161\u1175\u11a8\u11c2\u11a7\u1176\u1113\uac00\uac01\ud7a3\u3131\u314f\uffa1"
COMPATIBLE = "\uf900\ufa10\ufa70\U0002f800\U0002fa1d\u2f00"
COMPATIBLE += "\u3300\u32d0\u3392\ufdfa\ufb01\u017f\u00bd"
COMPATIBLE += "\u2460\u2163\uff21\uff10\u3000\u00a0"
COMPATIBLE += "\u2026\u2000\u2002\ufe70\U0001d400\U0001f100\u1d2c"
OTHERS = "\U0001f600\U0001f3f3\ufe0f\u200d\U0001f308\U0001f1e9\U0001f1ea\x01\x7f"
OTHERS += "\u0085\ufeff \n\t' 1x."


@functools.lru_cache
def form_texts():
    """Characters that Unicode's normal forms change, in every mixture: 2,400 texts."""
    pick = random.Random(23)
    out = []
    for _ in range(2400):
        text = ""
        for _ in range(pick.randrange(1, 9)):
            kind = pick.choices([BASES, JAMO, COMPATIBLE, OTHERS], [4, 2, 2, 2])[0]
            text += "".join(pick.choices(kind, k=pick.randrange(1, 4)))
            if kind in (BASES, COMPATIBLE):
                text += "".join(pick.choices(MARKS, k=pick.randrange(5)))
        out.append(text)
    return out


# ------------------------------------------------------------------------------- Tokenisers


def bert(lower):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=lower)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t.train_from_iterator(
        [PROSE] * 3,
        trainers.WordPieceTrainer(vocab_size=500, special_tokens=special, show_progress=False),
    )
    t.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(s, t.token_to_id(s)) for s in ("[CLS]", "[SEP]")],
    )
    return t


def byte_level(pre, special, template=None, normalizer=None):
    t = Tokenizer(models.BPE())
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(
        [PROSE] * 3,
        trainers.BpeTrainer(
            vocab_size=700,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    t.post_processor = template or processors.ByteLevel(trim_offsets=False)
    return t


def gpt2():
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|endoftext|>"])


def roberta():
    special = ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True, special=True)]
    t = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), special)
    t.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=False, add_prefix_space=True
    )
    return t


def split(pattern, normalizer=None):
    special = ["<|begin_of_text|>", "<|endoftext|>"]
    t = byte_level(
        pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]),
        special,
        normalizer=normalizer,
    )
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(
            single="<|begin_of_text|> $A",
            pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
            special_tokens=[("<|begin_of_text|>", 0)],
        ),
    ])
    return t


def sentence_piece():
    """A tokenizer.json like that of Llama 2 and the first Mistral models."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([
        normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")
    ])
    special = ["<unk>", "<s>", "</s>"]
    t.train_from_iterator(
        [line for line in PROSE.splitlines() for _ in range(3)],
        trainers.BpeTrainer(
            vocab_size=900, special_tokens=special + ["<0x%02X>" % b for b in range(256)],
            limit_alphabet=150, max_token_length=12, show_progress=False,
        ),
    )
    made = json.loads(t.to_str())
    made["added_tokens"] = made["added_tokens"][: len(special)]
    t = Tokenizer.from_str(json.dumps(made))
    t.decoder = decoders.Sequence([
        decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ])
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    return t


# ----------------------------------------------------------------------------------- Running


@functools.lru_cache
def program():
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "jansson", "libutf8proc", "libzip", "cairo"],
        check=True, capture_output=True, text=True,
    ).stdout
    out = BUILD / "tokenize"
    subprocess.run(
        ["cc", "-O1", "-o", out, ROOT / "tests/peers/tokenize.c", f"-I{ROOT}/kit",
         f"-I{ROOT}/include", BUILD / "libattn_kit.a", BUILD / "libattn.a", *shlex.split(flags),
         "-lm", "-lpthread"],
        check=True,
    )
    return out


def ours(folder, pairs):
    data = b""
    for a, b in pairs:
        a, b = a.encode(), None if b is None else b.encode()
        data += b"%d %d\n" % (len(a), -1 if b is None else len(b)) + a + (b or b"")
    done = subprocess.run([program(), folder], input=data, capture_output=True, check=True)
    lines = done.stdout.decode().split("\n")[:-1]
    assert len(lines) == len(pairs), (len(lines), len(pairs))
    return [
        line if line.startswith("!") else
        [tuple(int(x) for x in token.split(",")) for token in line.split()]
        for line in lines
    ]


def is_newer(c):
    """The tables of the BERT normaliser in tokenizers are those of Unicode 8 (2015): later
    punctuation, marks and format characters count as letters there. attn uses utf8proc's tables."""
    kind = unicodedata.category(c)
    alone = normalizers.BertNormalizer(lowercase=False, strip_accents=True).normalize_str("a" + c)
    if kind in ("Mn", "Cf"):
        return alone != "a"
    if kind[0] == "P":
        return len(pre_tokenizers.BertPreTokenizer().pre_tokenize_str("a" + c)) != 2
    return False


@functools.lru_cache
def without_newer(text):
    return "".join(c for c in text if not is_newer(c))


FORMS = {f: getattr(normalizers, f)() for f in ("NFC", "NFD", "NFKC", "NFKD")}


@functools.lru_cache(None)
def is_newer_in_forms(c):
    """The tables of the normal forms in tokenizers are those of Unicode 9 (2016): later marks have
    no class there, and later characters no decomposition. In Python and in attn they have."""
    return any(
        t.normalize_str(s) != unicodedata.normalize(form, s)
        for form, t in FORMS.items() for s in (c, "a" + c + "\u0316", "a\u0301" + c)
    )


@functools.lru_cache(None)
def is_newer_mark(c):
    """StripAccents in tokenizers has equally old tables of marks; a character that Python does not
    know may be a mark in attn."""
    strips = normalizers.StripAccents().normalize_str("a" + c) == "a"
    return unicodedata.category(c) == "Cn" or strips != (unicodedata.category(c)[0] == "M")


def without_newer_forms(text):
    return "".join(c for c in text if not is_newer_in_forms(c))


class Tokens(unittest.TestCase):
    def compare(self, t, places=True, folder=None, known=str, more=()):
        """places: compares the byte positions, too. In tokenizers, a character that several tokens
        share has its whole range. known: removes known differences from a text."""
        with tempfile.TemporaryDirectory() as made:
            if folder is None:
                t.save(os.path.join(made, "tokenizer.json"))
            all_texts = [known(text) for text in [*texts(), *more]]
            pairs = [(a, None) for a in all_texts]
            pairs += list(zip(all_texts[::7], all_texts[3::7]))
            found = ours(folder or made, pairs)
        self.assertGreater(len(pairs), 3400)
        for (a, b), got in zip(pairs, found):
            want = t.encode(a) if b is None else t.encode(a, b)
            self.assertNotIsInstance(got, str, (a, b))
            self.assertEqual([k[0] for k in got], want.ids, (a, b))
            self.assertEqual([k[1] for k in got], want.type_ids, (a, b))
            # Characters that a step changed have their whole range in attn, and in tokenizers that
            # of the first character.
            if places and (not t.normalizer or all(
                    t.normalizer.normalize_str(x) == x for x in (a, b) if x)):
                self.compare_places(a, b, got, want)

    def compare_places(self, a, b, got, want):
        at = [
            list(itertools.accumulate((len(c.encode()) for c in text or ""), initial=0))
            for text in (a, b)
        ]
        for k, places, which in zip(got, want.offsets, want.sequence_ids):
            if which is not None:
                here = bisect.bisect(at[which], k[3]) - 1, bisect.bisect_left(at[which], k[4])
                self.assertEqual((k[2], here), (which, places), (a, b, k))

    def test_bert_uncased(self):
        self.compare(bert(True), places=False, known=without_newer)

    def test_newer_characters_are_few(self):
        newer = {c for text in texts() for c in text if is_newer(c)}
        self.assertLess(len(newer), 40)
        self.assertTrue(all(unicodedata.category(c)[0] in "PMC" for c in newer))

    def test_bert_cased(self):
        self.compare(bert(False), places=False, known=without_newer)

    def test_gpt2(self):
        self.compare(gpt2())

    def test_roberta(self):
        self.compare(roberta(), places=False)

    def test_llama3(self):
        self.compare(split(LLAMA3))

    def test_qwen2(self):
        self.compare(split(QWEN2))

    # ------------------------------------------------------------------------------- Normalizers

    def compare_normalized(self, normalizer, known=without_newer_forms):
        self.compare(split(QWEN2, normalizer), known=known, more=form_texts())

    def test_qwen2_with_nfc(self):
        changed = sum(unicodedata.normalize("NFC", x) != x for x in form_texts())
        self.assertGreater(changed, 1500)
        self.compare_normalized(normalizers.NFC())

    def test_other_forms(self):
        for form in ("NFD", "NFKC", "NFKD"):
            self.compare_normalized(FORMS[form])

    def test_forms_of_every_character(self):
        """Each character alone, after an accent, and before a mark of another class, compared with
        Python's tables."""
        every = [
            c for c in map(chr, range(1, 0x110000)) if unicodedata.category(c) not in ("Cn", "Cs")
        ]
        marked = [c for c in every if unicodedata.combining(c) or unicodedata.decomposition(c)]
        some = every + ["a\u0301" + c for c in marked] + ["a" + c + "\u0316" for c in marked]
        some += [c + d for c in marked for d in "\u0301\u0338\u3099\u09be\u11a7\u11a8"]
        some = ["\n".join(some[i : i + 2000]) for i in range(0, len(some), 2000)]
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        t = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        for form in FORMS:
            t.normalizer = FORMS[form]
            with tempfile.TemporaryDirectory() as folder:
                t.save(os.path.join(folder, "tokenizer.json"))
                found = ours(folder, [(x, None) for x in some])
            t.normalizer = normalizers.Sequence([])
            for text, got in zip(some, found):
                want = t.encode(unicodedata.normalize(form, text)).ids
                self.assertEqual([k[0] for k in got], want, (form, text))

    def test_newer_forms_are_few(self):
        newer = [
            c for c in map(chr, range(0x110000))
            if (unicodedata.combining(c) or unicodedata.decomposition(c)) and is_newer_in_forms(c)
        ]
        self.assertLess(len(newer), 200)
        self.assertTrue(all(ord(c) > 0x7f0 for c in newer))

    def test_steps(self):
        n = normalizers
        self.compare_normalized(
            n.Sequence([n.NFD(), n.Lowercase(), n.StripAccents()]),
            lambda text: "".join(c for c in without_newer_forms(text) if not is_newer_mark(c)))
        self.compare_normalized(
            n.Sequence([n.Strip(), n.Replace("a", "\u2581xy"), n.Replace("\u2581x", "")]))
        self.compare_normalized(
            n.Sequence([n.Sequence([n.Prepend("e")]), n.Strip(left=False), n.NFC()]))

    def test_bert_after_nfc(self):
        t = bert(True)
        t.normalizer = normalizers.Sequence([normalizers.NFKC(), t.normalizer])
        self.compare(t, places=False, more=form_texts(),
                     known=lambda text: without_newer(without_newer_forms(text)))

    def test_sentence_piece(self):
        t = sentence_piece()
        pieces = t.encode("Life is short, \ua66e </s>x").tokens
        self.assertIn("</s>", pieces)
        self.assertIn("<0xEA>", pieces)
        self.assertTrue(any(len(p) > 4 and p[0] == "\u2581" for p in pieces))
        self.compare(t, places=False, more=form_texts())

    def test_whole_words_before_merges(self):
        t = json.loads(split(LLAMA3).to_str())
        t["model"]["ignore_merges"] = True
        t["model"]["vocab"]["dessert"] = 900
        t["model"]["vocab"]["Ġis"] = t["model"]["vocab"].get("Ġis", 901)
        self.compare(Tokenizer.from_str(json.dumps(t)))

    def test_old_files_of_bert(self):
        t = bert(True)
        with tempfile.TemporaryDirectory() as folder:
            t.model.save(folder)
            Path(folder, "config.json").write_text('{"model_type": "bert"}')
            self.compare(t, places=False, folder=folder, known=without_newer)

    def test_old_files_of_gpt2(self):
        t = gpt2()
        with tempfile.TemporaryDirectory() as folder:
            t.model.save(folder)
            Path(folder, "config.json").write_text('{"model_type": "gpt2"}')
            self.compare(t, folder=folder)

    # --------------------------------------------------------------- Options of tokenizer.json

    def test_unknown_bytes(self):
        """Byte-level BPE whose alphabet lacks bytes, alone and in runs."""
        for fuse in (False, True):
            t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse))
            t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            t.train_from_iterator([PROSE[:200]] * 3, trainers.BpeTrainer(
                vocab_size=200, special_tokens=["<unk>"], show_progress=False))
            self.assertIn("<unk>", t.encode("\u4e2d").tokens)
            self.compare(t)

    def test_dropout_of_0(self):
        t = json.loads(gpt2().to_str())
        t["model"]["dropout"] = 0.0
        self.compare(Tokenizer.from_str(json.dumps(t)))

    def test_single_words(self):
        t = gpt2()
        t.add_tokens([AddedToken("day", single_word=True), AddedToken("es", single_word=True),
                      AddedToken(" x", single_word=True, lstrip=True, rstrip=True)])
        t.add_special_tokens([AddedToken("\u00e9", single_word=True, rstrip=True)])
        words = ["day", "es", " x", "\u00e9", "days", "xes"]
        pick = random.Random(3)
        around = "aZ9_\u0301\u200d\u200c\u2160\u24b6\U0001f130\u203f\u00b2\u4e2d .-\n"
        around += "\u00a0\u0e33\U0001f600"
        more = ["".join(pick.choice(words) + pick.choice(around)
                        for _ in range(pick.randrange(1, 6))) for _ in range(600)]
        more += [c + "day" + d for c in around for d in around]
        self.compare(t, more=more)

    def test_word_characters(self):
        """Next to every character: whether it is a part of a word."""
        t = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(
            pre_tokenizers.ByteLevel.alphabet()))}, []))
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        t.add_tokens([AddedToken("day", single_word=True)])
        every = [c for c in map(chr, range(1, 0x110000))
                 if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
        some = ["".join(c + "day\n" for c in every[i : i + 500]) for i in range(0, len(every), 500)]
        with tempfile.TemporaryDirectory() as folder:
            t.save(os.path.join(folder, "tokenizer.json"))
            found = ours(folder, [(x, None) for x in some])
        for text, got in zip(some, found):
            self.assertEqual([k[0] for k in got], t.encode(text).ids, text[:50])


if __name__ == "__main__":
    unittest.main()
