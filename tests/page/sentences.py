"""Shared by the tests of the reader's own sentence: random sentences with random options, computed
in the page and by the program with the generic instruction set."""

import json
import random

WORDS = ("the cat saw dog and ran life is short eat dessert last naïve Straße 東京 मानव мир "
         "Ελλάδα שלום 👩‍🚀 🇫🇷 e\u0301te\u0301 don't well-known 3.14 C++ <b> & \"quoted\" "
         "it’s").split()
MARKS = [",", ".", "!", "?", "…", "«", "»", "(", ")", "—", "。", "،", "“", "”", ";", "'", "_", "@"]
SPACES = [" ", " ", " ", "  ", "\t", "\n", "\u00a0", "\u3000", "\u2028", "\x1c", "\x85", "\u2009"]


def character(rng):
    """Any character that an argument of a program may have."""
    while True:
        code = rng.choice([rng.randrange(1, 0x300), rng.randrange(1, 0x10000),
                           rng.randrange(1, 0x110000)])
        if not 0xD800 <= code < 0xE000:
            return chr(code)


def sentence(rng):
    text = ""
    for _ in range(rng.randint(1, 12)):
        word = rng.choice(WORDS) if rng.random() < 0.8 else "".join(
            character(rng) for _ in range(rng.randint(1, 5)))
        before, after = (rng.choice(MARKS) if rng.random() < 0.2 else "" for _ in range(2))
        text += before + word + after + rng.choice(SPACES)
    return text.strip("-") or "a"


def case(rng):
    """A sentence and the options of attn explain; `seed` is a string, because JSON's numbers have
    fewer bits in JavaScript."""
    scale = rng.choice([0, 0, 0.02, -1.5, 1e-7, 3, rng.gauss(0, 1)])
    return {"text": sentence(rng), "query": rng.choice(["", "", "1"]),
            "seed": str(rng.choice([123, rng.randrange(100), rng.randrange(2**64)])),
            "embed": rng.choice([16, rng.randint(1, 40)]),
            "qk": rng.choice([24, rng.randint(1, 70)]), "v": rng.choice([28, rng.randint(1, 40)]),
            "heads": rng.choice([1, 1, 2, 3, 5]),
            "causal": rng.random() < 0.4, "no_scale": scale == 0 and rng.random() < 0.3,
            "scale": scale}


def cases(seed, count):
    rng = random.Random(seed)
    return [case(rng) for _ in range(count)]


def options(c):
    given = ["--seed", c["seed"]]
    for name in ("embed", "qk", "v", "heads"):
        given += [f"--{name}", c[name]]
    given += ["--causal"] * c["causal"] + ["--no-scale"] * c["no_scale"]
    given += ["--scale", repr(c["scale"])] if c["scale"] else []
    return given + (["--query", c["query"]] if c["query"] else []) + ["--", c["text"]]


IN_PAGE = """
    return arguments[0].map(c => attn.explainByLibrary({...c, seed: BigInt(c.seed)}, arguments[1]));
"""


class Compares:
    """For tests of PageTest: compares what the open page computes with what the program prints."""

    def compare(self, some):
        """The JSON of each case, byte for byte; returns how many were computed, not refused."""
        computed = 0
        for at in range(0, len(some), 50):
            batch = some[at:at + 50]
            for c, own in zip(batch, self.js(IN_PAGE, batch, False)):
                done = self.attn("explain", "--json", *options(c), env={"ATTN_ISA": "generic"})
                self.assertEqual(own["code"], done.returncode, c)
                if done.returncode:
                    self.assertEqual(f"attn explain: {own['said']}\n", done.stderr.decode(), c)
                    continue
                self.assertEqual(own["said"], done.stdout.decode(), c)
                computed += 1
        return computed

    def compare_page(self, c):
        """The trace in a page that the program writes, byte for byte."""
        self.works("explain", "-o", "own.html", *options(c), env={"ATTN_ISA": "generic"})
        page = self.bytes("own.html").decode()
        data = page.split('id="data">', 1)[1].split("</script>", 1)[0]
        own = self.js(IN_PAGE, [c], True)[0]["said"]
        self.assertEqual(data.split('"trace": ', 1)[1], own + "\n}")
        return json.loads(own)
