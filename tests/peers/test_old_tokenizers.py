"""Compares tokenisers of older files, without tokenizer.json, with transformers on the same folder:
the ids and types must be the same, or the program must refuse the folder and name the key.
Vocabularies are trained here."""

import functools
import json
import os
import random
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import test_tokenizers as base
import transformers
from transformers import AutoTokenizer

transformers.logging.set_verbosity_error()

# Added tokens: some have spaces or capitals, some are parts of others or of words, some are already
# in the vocabulary.
ADDED = ["<x>", "<X y>", "Tok\u00e9n", "new", "ewt", "<x><x>", "\u00e9\u00e9", "<fill>", "enk",
         "sky"]
NAMED = ["<cls>", "<sep>", "<unk>", "<mask>", "<gap>", "<bos>", "<eos>", "<s>", "[PAD]",
         "<|endoftext|>"]


@functools.lru_cache
def texts():
    """The 3,400 texts for all tokenisers, and 700 with added tokens in various surroundings."""
    pick = random.Random(5)
    around = ["", " ", "  ", "\n", "a", "B", "_", "1", ".", "\u00e9", "\u0301", "\u200d", "\u4e2d",
              "\u24b6", "s", "the ", " sky", "'s", "\u00a0", "\u2160", "\u00b2"]
    out = list(base.texts())
    for _ in range(700):
        text = ""
        for _ in range(pick.randrange(1, 5)):
            token = pick.choice(ADDED + NAMED)
            token = pick.choice([token, token, token, token.upper(), token.lower(), token[:-1]])
            text += pick.choice(around) + pick.choice(around) + token
        out.append(text + pick.choice(around) + pick.choice(around))
    return out


@functools.lru_cache
def model(name):
    made = {"bert": lambda: base.bert(True), "cased": lambda: base.bert(False),
            "gpt2": base.gpt2, "roberta": base.roberta}[name]()
    return made.model, made.get_vocab_size()


class Family:
    def __init__(self, name, vocabulary, kind, config=None, known=str):
        self.name, self.vocabulary, self.kind, self.known = name, vocabulary, kind, known
        self.config = config or {}

    @property
    def size(self):
        return model(self.vocabulary)[1]

    @property
    def tokenizer_class(self):
        return {"bert": "Bert", "roberta": "Roberta", "gpt2": "GPT2", "qwen2": "Qwen2"}[
            self.kind] + "Tokenizer"

    def write(self, folder, config=None, files=None):
        model(self.vocabulary)[0].save(folder)
        write(folder, "config.json", {"model_type": self.kind})
        write(folder, "tokenizer_config.json", {**self.config, **(config or {})})
        for name, content in (files or {}).items():
            write(folder, name, content)


BERT = Family("bert", "bert", "bert", known=base.without_newer)
CASED = Family("cased", "cased", "bert", {"do_lower_case": False}, base.without_newer)
ROBERTA = Family("roberta", "roberta", "roberta")
GPT2 = Family("gpt2", "gpt2", "gpt2")
QWEN2 = Family("qwen2", "gpt2", "qwen2", known=base.without_newer_forms)


def write(folder, name, content):
    path = os.path.join(folder, name)
    if content is None:
        os.unlink(path)
        return
    with open(path, "w", encoding="utf-8", newline="") as f:
        f.write(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))


def token(content, **manners):
    return {"__type": "AddedToken", "content": content, **manners}


def stated(size, *tokens):
    """added_tokens_decoder from the end of the vocabulary on."""
    return {str(size + i): t for i, t in enumerate(tokens)}


def layouts(family):
    """name: (tokenizer_config.json, other files)."""
    n = family.size
    own = "<|endoftext|>" if family.kind in ("gpt2", "qwen2") else (
        "[SEP]" if family.kind == "bert" else "</s>")
    manner = {"content": "<x>", "lstrip": True, "special": True}
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>",
             "pad_token": "<fill>", "mask_token": "<mask>", "cls_token": "<cls>",
             "sep_token": "<sep>"}
    if family.kind == "bert":
        del names["unk_token"]
    out = {
        "plain": ({}, {}),
        "no tokenizer_config.json": ({}, {"tokenizer_config.json": None}),
        "class": ({"tokenizer_class": family.tokenizer_class}, {}),
        "class Fast": ({"tokenizer_class": family.tokenizer_class + "Fast"}, {}),
        "class in config.json": ({}, {"config.json": {
            "model_type": family.kind, "tokenizer_class": family.tokenizer_class}}),
        "no longest text": ({"model_max_length": 10**30}, {}),
        "no config.json": ({"tokenizer_class": family.tokenizer_class}, {"config.json": None}),
        "added": ({}, {"added_tokens.json": {"<x>": n, "Tok\u00e9n": n + 1, "<X y>": n + 2}}),
        "added in any order": ({}, {"added_tokens.json": {"new": n + 2, "<x>": n, "ewt": n + 1}}),
        "added in the vocabulary": ({}, {"added_tokens.json": {own: model(family.vocabulary)[
            0].token_to_id(own), "<x>": n}}),
        "added and special": ({"pad_token": "<fill>", "additional_special_tokens": ["<x>"]},
                              {"added_tokens.json": {"<fill>": n, "<x>": n + 1, "enk": n + 2}}),
        "added, special by the map": ({}, {
            "added_tokens.json": {"<fill>": n, "<x>": n + 1, "enk": n + 2},
            "special_tokens_map.json": {"pad_token": {"content": "<fill>", "lstrip": True},
                                        "extra_special_tokens": [{"content": "<x>"}],
                                        }}),
        "added, additional by the map": ({}, {
            "added_tokens.json": {"\u00e9\u00e9": n, "<x>": n + 1},
            "special_tokens_map.json": {"additional_special_tokens": ["<x>", "\u00e9\u00e9"]}}),
        "added, special by an object": ({"pad_token": token("Tok\u00e9n", rstrip=True)},
                                        {"added_tokens.json": {"Tok\u00e9n": n}}),
        "decoder": ({"added_tokens_decoder": stated(
            n, {"content": "<x>"}, {"content": "Tok\u00e9n", "normalized": False},
            {"content": "enk", "special": True})}, {}),
        "decoder and files": ({"added_tokens_decoder": stated(n, {"content": "<x>"})}, {
            "added_tokens.json": {"new": n},
            "special_tokens_map.json": {"pad_token": "enk", "additional_special_tokens": ["ewt"]}}),
        "decoder, empty": ({"added_tokens_decoder": {}}, {"added_tokens.json": {"new": n}}),
        "decoder in any order": ({"added_tokens_decoder": {
            str(n + 1): {"content": "<x>"}, str(n): {"content": "<x><x>"}}}, {}),
        "decoder, named": ({"pad_token": "<fill>", "mask_token": token("<gap>", lstrip=True),
                            "added_tokens_decoder": stated(
                                n, {"content": "<fill>", "rstrip": True}, {"content": "<gap>"})},
                           {}),
        "decoder of the vocabulary": ({"added_tokens_decoder": {
            str(model(family.vocabulary)[0].token_to_id(own)):
                {"content": own, "lstrip": True, "rstrip": True, "special": True}}}, {}),
        "additional": ({"additional_special_tokens": ["<x>", "enk", "<X y>"]}, {}),
        "additional, objects": ({"additional_special_tokens": [
            token("<x>", lstrip=True), token("Tok\u00e9n", special=True), "enk"]}, {}),
        "additional by the map": ({}, {"special_tokens_map.json": {
            "additional_special_tokens": ["<x>", token("new", single_word=True)]}}),
        "additional of both": ({"additional_special_tokens": ["<x>"]}, {
            "special_tokens_map.json": {"additional_special_tokens": ["enk"]}}),
        "additional, none, and the map's": ({"additional_special_tokens": []}, {
            "special_tokens_map.json": {"additional_special_tokens": ["enk"]}}),
        "extra": ({"extra_special_tokens": ["<x>", "enk"]}, {}),
        "extra before additional": ({"extra_special_tokens": ["<x>"],
                                     "additional_special_tokens": ["enk"]}, {}),
        "extra, empty": ({"extra_special_tokens": {}, "additional_special_tokens": ["enk"]}, {
            "special_tokens_map.json": {"additional_special_tokens": ["<x>"]}}),
        "extra, empty, and the map's": ({"extra_special_tokens": {}}, {
            "special_tokens_map.json": {"additional_special_tokens": ["<x>"]}}),
        "extra of both": ({"extra_special_tokens": ["<x>"]}, {
            "special_tokens_map.json": {"extra_special_tokens": ["<x>", {
                "content": "enk", "rstrip": True, "lstrip": True}]}}),
        "names": (names, {}),
        "names by the map": ({}, {"special_tokens_map.json": {
            k: {"content": v, "single_word": False, "lstrip": True, "rstrip": False,
                "normalized": True} for k, v in names.items()}}),
        "names of both": ({"pad_token": "enk"}, {"special_tokens_map.json": {
            "pad_token": "<fill>", "mask_token": {"content": "<mask>", "lstrip": True}}}),
        "names of the vocabulary": ({"pad_token": "sky", "mask_token": "the"}, {}),
        "names, objects": ({k: token(v, lstrip=k[0] in "bmp", rstrip=k[0] in "se",
                                     normalized=k[0] in "bcu", special=True)
                            for k, v in names.items()}, {}),
        "one name, two manners": ({"pad_token": token("<x>", lstrip=True), "mask_token": "<x>",
                                   "extra_special_tokens": [token("<x>", rstrip=True), "<x>"]}, {}),
        "no names": ({"pad_token": None, "mask_token": None, "bos_token": None, "eos_token": None},
                     {}),
        "a pad": ({"pad_token": "<fill>"}, {}),
        "single word": ({"added_tokens_decoder": stated(
            n, {"content": "new", "single_word": True}, {"content": "enk", "single_word": True,
                                                       "lstrip": True, "special": True},
            {"content": "<x>", "single_word": True, "rstrip": True})}, {}),
        "a token that begins with a space": ({"added_tokens_decoder": stated(
            n, {"content": " sky", "normalized": False}, {"content": "<x>", "rstrip": True,
                                                        "normalized": False})}, {}),
        "add_bos_token": ({"add_bos_token": True}, {}),
        "add_eos_token": ({"add_eos_token": True}, {}),
        "both ends": ({"add_bos_token": True, "add_eos_token": True, "bos_token": "<bos>"}, {}),
        "neither end": ({"add_bos_token": False, "add_eos_token": False}, {}),
        "no token for the end": ({"add_bos_token": True, "bos_token": None}, {}),
        "a bos of the map": ({"add_bos_token": True}, {"special_tokens_map.json": {
            "bos_token": "<bos>"}}),
    }
    if family.kind == "bert":
        out.update({
            "accents stay": ({"strip_accents": False}, {}),
            "accents go": ({"strip_accents": True}, {}),
            "upper": ({"do_lower_case": False}, {}),
            "lower": ({"do_lower_case": True}, {}),
            "ideographs stay": ({"tokenize_chinese_chars": False}, {}),
            "unknown of the vocabulary": ({"unk_token": "[PAD]"}, {}),
            "DistilBERT": ({}, {"config.json": {"model_type": "distilbert"}}),
            "class DistilBERT": ({"tokenizer_class": "DistilBertTokenizer"}, {}),
            "white space in vocab.txt": ({}, {"vocab.txt": "[PAD]\n[UNK]\n[CLS] \n[SEP]\u3000\r\n\n"
                                              "a\t\n##b\n\nthe\u00a0\n[MASK]\nx"}),
            "few": ({}, {"vocab.txt": "[UNK]\n[CLS]\n[SEP]\na\n##b\n"}),
        })
    else:
        out.update({
            "no first space": ({"add_prefix_space": False}, {}),
            "class GPT-2": ({"tokenizer_class": "GPT2Tokenizer"}, {}),
            "class RoBERTa": ({"tokenizer_class": "RobertaTokenizer"}, {}),
            "class Qwen 2": ({"tokenizer_class": "Qwen2Tokenizer"}, {}),
            "class in config.json, other": ({}, {"config.json": {
                "model_type": family.kind, "tokenizer_class": "Qwen2Tokenizer"}}),
            "class of both": ({"tokenizer_class": "GPT2TokenizerFast"}, {"config.json": {
                "model_type": family.kind, "tokenizer_class": "Qwen2Tokenizer"}}),
            "llama": ({"tokenizer_class": "GPT2Tokenizer"}, {"config.json": {
                "model_type": "llama"}}),
            "few": ({"unk_token": "a"}, {"vocab.json": {"a": 2, "b": 0, "ab": 1, "\u0120": 4,
                                                        "<x y>": 40, "c": 3},
                                        "merges.txt": "#version: 0.2\na b\n",
                                        "added_tokens.json": {"<x y>": 40}}),
        })
    if family.name == "cased":
        some = ("plain", "added", "decoder", "names")
        return {k: v for k, v in out.items() if k.split()[0] in some}
    if family.kind in ("roberta", "gpt2"):
        out["first space"] = ({"add_prefix_space": True}, {})
    return out


def refused(family):
    """name: (tokenizer_config.json, other files, what the message must name). transformers raises
    an error for some of them, gives other ids than the files for some, and accepts others."""
    n = family.size
    return {
        "a key": ({"foo": 1}, {}, "foo"),
        "a token's key": ({"image_token": "<x>"}, {}, "image_token"),
        "a key of the map": ({}, {"special_tokens_map.json": {"foo_token": "<x>"}}, "foo_token"),
        "a manner": ({"pad_token": token("<x>", foo=True)}, {}, "foo"),
        "split": ({"split_special_tokens": True}, {}, "split_special_tokens"),
        "program": ({"auto_map": {"AutoTokenizer": ["a.B", None]}}, {}, "auto_map"),
        "object": ({"pad_token": {"content": "<x>"}}, {}, "pad_token"),
        "object in a list": ({"additional_special_tokens": [{"content": "<x>"}]}, {},
                             "additional_special_tokens"),
        "names of extras": ({"extra_special_tokens": {"foo": "<x>"}}, {}, "extra_special_tokens"),
        "number": ({"pad_token": 7}, {}, "pad_token"),
        "id behind a hole": ({}, {"added_tokens.json": {"<x>": n + 5}}, "'<x>' has the id"),
        "id of another": ({}, {"added_tokens.json": {"<x>": 9}}, "'<x>' has the id"),
        "id in the decoder": ({"added_tokens_decoder": {"9": {"content": "<x>"}}}, {},
                              "'<x>' has the id"),
        "id that is a text": ({}, {"added_tokens.json": {"<x>": str(n)}},
                              "id of token '<x>' must be an integer"),
        "decoder of texts": ({"added_tokens_decoder": {str(n): "<x>"}}, {}, "added_tokens_decoder"),
        "empty": ({}, {"added_tokens.json": {"": n}}, "empty"),
        **({"first space": ({"add_prefix_space": True}, {}, "add_prefix_space")}
           if family.kind == "qwen2" else {
            "class of Japanese": ({"tokenizer_class": "BertJapaneseTokenizer"}, {},
                                  "BertJapaneseTokenizer"),
            "class unknown": ({"tokenizer_class": "FooTokenizer"}, {}, "FooTokenizer"),
            "class PreTrainedTokenizerFast": ({"tokenizer_class": "PreTrainedTokenizerFast"}, {},
                                              "PreTrainedTokenizerFast")}),
        "no vocabulary": ({}, {"vocab.txt" if family.kind == "bert" else "merges.txt": None},
                          "vocab"),
    }


# ----------------------------------------------------------------------------------- Running


def theirs(folder, pairs):
    """ids and types, or the error."""
    try:
        t = AutoTokenizer.from_pretrained(folder)
        out = [None] * len(pairs)
        for alone in (True, False):
            some = [i for i, (a, b) in enumerate(pairs) if (b is None) == alone]
            if some:
                second = [] if alone else [[pairs[i][1] for i in some]]
                found = t([pairs[i][0] for i in some], *second).encodings
                for i, e in zip(some, found):
                    out[i] = list(zip(e.ids, e.type_ids))
        return out
    except Exception as e:  # transformers may raise anything
        return f"{type(e).__name__}: {e}"


def ours(folder, pairs):
    data = b""
    for a, b in pairs:
        a, b = a.encode(), None if b is None else b.encode()
        data += b"%d %d\n" % (len(a), -1 if b is None else len(b)) + a + (b or b"")
    done = subprocess.run([base.program(), folder], input=data, capture_output=True)
    if done.returncode:
        return done.stderr.decode()
    lines = done.stdout.decode().split("\n")[:-1]
    return [line if line.startswith("!") else
            [tuple(map(int, k.split(",")[:2])) for k in line.split()] for line in lines]


# Each key of the tables of kit/text/tokenizer_keys.c, with unusual values.
VALUES = [True, False, None, 1, "", "x", ["x"], {"x": 1}, token("x", lstrip=True)]


def keys_of(kind):
    """key: its use for this class, from the table."""
    source = (base.ROOT / "kit/text/tokenizer_keys.c").read_text()
    table = source[source.index("define TOKEN_NAMES") : source.index("map_keys[]")]
    bits = {"ALL": "bert roberta gpt2 qwen2", "BYTES": "roberta gpt2 qwen2", "BERT": "bert",
            "ROBERTA": "roberta", "GPT2": "gpt2", "QWEN2": "qwen2"}
    rows = re.findall(r'\{\s*"(\w+)", ([\w |]+), (\w+)\s*\}', table.replace("\\", ""))
    return {key: rule for key, classes, rule in rows
            if any(kind in bits[x].split() for x in classes.split(" | "))}


class OldFiles(unittest.TestCase):
    def try_one(self, family, config, files, pairs):
        with tempfile.TemporaryDirectory() as folder:
            family.write(folder, config, files)
            got = ours(folder, pairs)
            return got, None if isinstance(got, str) else theirs(folder, pairs)

    def compare(self, family):
        some = [family.known(x) for x in texts()]
        pairs = [(a, None) for a in some] + list(zip(some[::9], some[4::9]))
        self.assertGreater(len(some), 3000)
        for name, (config, files) in layouts(family).items():
            with self.subTest(family=family.name, layout=name):
                got, want = self.try_one(family, config, files, pairs)
                self.assertNotIsInstance(got, str, got)
                self.assertNotIsInstance(want, str, want)
                wrong = [(p, g, w) for p, g, w in zip(pairs, got, want)
                         if g != w and not (isinstance(g, str) and name == "few")]
                self.assertFalse(wrong, f"{len(wrong)} of {len(pairs)}: {wrong[:1]}")

    def every_key(self, family):
        """For any value of any key the result is that of transformers, or the key is refused by its
        name."""
        some = [family.known(x) for x in texts()[::60]] + [family.known(x) for x in texts()[-60:]]
        pairs = [(a, None) for a in some] + list(zip(some[::9], some[4::9]))
        same = refused = 0
        keys = keys_of(family.kind)
        self.assertGreater(len(keys), 40)
        for key, rule in keys.items():
            for value in VALUES:
                with self.subTest(family=family.name, key=key, value=value):
                    got, want = self.try_one(family, {key: value}, {}, pairs)
                    if isinstance(got, str):
                        self.assertNotEqual(rule, "IDLE")
                        self.assertIn(key, got)
                        refused += 1
                    elif not isinstance(want, str):
                        self.assertEqual(got, want)
                        same += 1
        self.assertGreater(same, 200)
        self.assertGreater(refused, 100)

    def refuse(self, family):
        for name, (config, files, says) in refused(family).items():
            with self.subTest(family=family.name, layout=name):
                got, _ = self.try_one(family, config, files, [("a", None)])
                self.assertIsInstance(got, str)
                self.assertIn(says, got)
                self.assertEqual(got.count("\n"), 1, got)

    def test_bert(self):
        self.compare(BERT)

    def test_bert_cased(self):
        self.compare(CASED)

    def test_roberta(self):
        self.compare(ROBERTA)

    def test_gpt2(self):
        self.compare(GPT2)

    def test_qwen2(self):
        self.compare(QWEN2)

    def test_keys_of_bert(self):
        self.every_key(BERT)

    def test_keys_of_roberta(self):
        self.every_key(ROBERTA)

    def test_keys_of_gpt2(self):
        self.every_key(GPT2)

    def test_keys_of_qwen2(self):
        self.every_key(QWEN2)

    def test_beside_tokenizer_json(self):
        """Folders that transformers saves. If an option of tokenizer_config.json contradicts
        tokenizer.json it is refused, because transformers uses the one for some classes and the
        other for others."""
        said = {"do_lower_case": True, "strip_accents": True, "tokenize_chinese_chars": True,
                "add_prefix_space": False}
        for family, keys in ((BERT, list(said)[:3]), (ROBERTA, list(said)[3:]),
                             (GPT2, list(said)[3:]), (QWEN2, [])):
            some = [family.known(x) for x in texts()]
            pairs = [(a, None) for a in some[::5]] + list(zip(some[::9], some[4::9]))
            with tempfile.TemporaryDirectory() as old, tempfile.TemporaryDirectory() as folder:
                family.write(old, *layouts(family)["added and special"])
                AutoTokenizer.from_pretrained(old).save_pretrained(folder)
                write(folder, "config.json", {"model_type": family.kind})
                self.assertTrue(os.path.exists(os.path.join(folder, "tokenizer.json")))
                self.assertEqual(ours(folder, pairs), theirs(folder, pairs))
                path = Path(folder, "tokenizer_config.json")
                config = json.loads(path.read_text())
                for key in keys:
                    path.write_text(json.dumps({**config, key: not said[key]}))
                    self.assertIn(key + " is", ours(folder, pairs))
                    self.assertNotEqual(theirs(folder, pairs), theirs(old, pairs))
                    path.write_text(json.dumps({**config, key: said[key]}))
                    self.assertEqual(ours(folder, pairs), theirs(folder, pairs))

    def test_tokens_beside_tokenizer_json(self):
        """The layouts that name tokens, beside the tokenizer.json of a folder without them: the
        ids are those of transformers, or the folder is refused."""
        first = ("added", "decoder", "additional", "extra", "names", "no names", "a pad",
                 "one name")
        for family in (BERT, ROBERTA, GPT2, QWEN2):
            some = [family.known(x) for x in texts()[::60]] + [family.known(x)
                                                               for x in texts()[-60:]]
            pairs = [(a, None) for a in some] + list(zip(some[::9], some[4::9]))
            same = refused = 0
            with tempfile.TemporaryDirectory() as old, tempfile.TemporaryDirectory() as folder:
                family.write(old)
                AutoTokenizer.from_pretrained(old).save_pretrained(folder)
                json_file = Path(folder, "tokenizer.json").read_text()
            for name, (config, files) in layouts(family).items():
                if not name.startswith(first):
                    continue
                with self.subTest(family=family.name, layout=name):
                    files = {**files, "tokenizer.json": json_file}
                    got, want = self.try_one(family, config, files, pairs)
                    if isinstance(got, str):
                        self.assertIn("tokenizer", got)
                        refused += 1
                    else:
                        self.assertEqual(got, want)
                        same += 1
            self.assertGreater(same, 1)
            self.assertGreater(refused, 15)

    def test_class_beside_tokenizer_json(self):
        """transformers builds a tokeniser of a class that it knows from the vocabulary alone. A
        tokenizer.json that such a class does not fit is refused; any other gives the same ids."""
        names = ["BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer", "RobertaTokenizer",
                 "GPT2Tokenizer", "GPT2TokenizerFast", "Qwen2Tokenizer", "FooTokenizer",
                 "PreTrainedTokenizerFast", None]
        # A folder of type qwen2 is always read by Qwen2Tokenizer.
        refused_names = {"bert": names[3:7], "roberta": names[:3] + names[4:7],
                         "gpt2": names[:4] + names[6:7], "qwen2": []}
        same = refused = 0
        for family in (BERT, ROBERTA, GPT2, QWEN2):
            some = [family.known(x) for x in texts()[::60]] + ["[CLS] a", "a<|endoftext|>", "<s>"]
            pairs = [(a, None) for a in some] + list(zip(some[::9], some[4::9]))
            with tempfile.TemporaryDirectory() as old, tempfile.TemporaryDirectory() as folder:
                family.write(old)
                AutoTokenizer.from_pretrained(old).save_pretrained(folder)
                saved = json.loads(Path(folder, "tokenizer.json").read_text())
                os.unlink(os.path.join(folder, "tokenizer_config.json"))
                write(folder, "config.json", {"model_type": family.kind})
                for added in (saved["added_tokens"], []):  # []: those of the class, all the same
                    write(folder, "tokenizer.json", {**saved, "added_tokens": added})
                    for name in names:
                        with self.subTest(family=family.name, name=name, added=len(added)):
                            write(folder, "tokenizer_config.json",
                                  {"tokenizer_class": name} if name else {})
                            got = ours(folder, pairs)
                            if name in refused_names[family.kind]:
                                self.assertIn(f"tokenizer_class '{name}' does not fit", got)
                                refused += 1
                            else:
                                self.assertEqual(got, theirs(folder, pairs))
                                same += 1
        self.assertEqual((same, refused), (2 * (6 + 4 + 5 + 10), 2 * (4 + 6 + 5)))

    def test_what_is_refused(self):
        for family in (BERT, ROBERTA, GPT2, QWEN2):
            self.refuse(family)


if __name__ == "__main__":
    unittest.main()
