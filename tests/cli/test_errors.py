#!/usr/bin/env python3
"""Every mistake gives one line on stderr, its exit code, nothing on stdout and no file."""

import os
import resource
import signal
import struct
import subprocess
import time
import unittest

import numpy as np

from cli import ATTN, CliTest

USAGE, BAD_FILE, LIMIT = 2, 3, 4


class Usage(CliTest):
    def test_top_level(self):
        self.fails(
            USAGE,
            "rum",
            says="attn: no command 'rum'; did you mean 'run'? (explain lesson quiz run",
        )
        self.fails(USAGE, "qwertyuiop", says="no command 'qwertyuiop' (explain")
        self.fails(USAGE, "", says="no command ''")
        self.fails(USAGE, "--verbose", says="unknown option '--verbose'")
        self.fails(USAGE, "help", "leson", says="did you mean 'lesson'?")
        self.assertEqual(self.works("version"), self.works("--version"))
        for word in ("versoin", "explode"):  # more than a third is wrong
            self.assertNotIn("did you mean", self.fails(USAGE, word))
        for word in ("rnu", "urn", "ruun", "rn", "RUN"):  # one slip, or another case
            self.fails(USAGE, word, says="did you mean 'run'?")
        for word in ("xrn", "uxn"):  # one of the letters only, so two are wrong
            self.assertNotIn("did you mean", self.fails(USAGE, word))
        self.fails(USAGE, "help", "run", "bench", says="shows one command at a time")
        self.fails(USAGE, "help", "--man", "run", says="take no command")
        for name in ("plan", "dist", "serve"):
            self.fails(USAGE, name, says="%s comes in a later release" % name)

    def test_unknown_options(self):
        self.fails(
            USAGE,
            "run",
            "--causl",
            "3",
            says="attn run: unknown option '--causl'; did you mean '--causal'?",
        )
        self.fails(USAGE, "run", "--xyzzy", says="`attn help run`")
        self.fails(USAGE, "generate", "--top", "3",
                   says="--top is ambiguous; write one of --top-k --top-p")
        self.fails(USAGE, "run", "-x", says="unknown option '-x'")
        self.fails(USAGE, "run", "--s", "3", says="--scores --scores-stage --share --softcap")
        self.fails(USAGE, "run", "--json=3", says="--json takes no value")
        self.fails(USAGE, "run", "--q", says="--q needs a value: --q FILE")
        self.fails(USAGE, "explain", "text", "-o", says="--output needs a value")
        self.fails(USAGE, "lesson", "sky", "--code",
                   says="--code needs a value: c, numpy, torch, none or all")
        self.fails(USAGE, "run", "--" + "a" * 5000, says="unknown option")

    def test_one_line_whatever_is_typed(self):
        self.fails(USAGE, "run", "--threads", "a\nb\tc\x1b[31m", says="--threads a?b?c?[31m")
        self.fails(USAGE, "a\nb", says="no command 'a?b'")
        self.fails(USAGE, "run", "--out", "x" * 100000)

    def test_numbers_are_parsed_strictly(self):
        for bad in (
            "",
            "x",
            "3x",
            " 3",
            "0x3",
            "1e2",
            "3.5",
            "99999999999999999999",
            "0",
            "1025",
            "-1",
        ):
            self.fails(USAGE, "run", "--threads", bad, says="must be an integer from 1 to 1024")
        for bad in ("", "-1", "+1", "1.5", "18446744073709551616", "0x", "0xg", "1e3"):
            self.fails(
                USAGE,
                "explain",
                "--seed",
                bad,
                "a",
                says="must be an integer from 0 to 18446744073709551615",
            )
        for bad in ("", "nan", "inf", "1", "-0.1", "0x0p0", "0,5", "1e", "."):
            says = "--dropout %s: must be a number P with 0 <= P < 1" % bad
            self.fails(USAGE, "run", "--dropout", bad, says=says)
        for bad in ("1e999", "-inf", "one"):
            self.fails(USAGE, "run", "--scale", bad, says="must be a finite number")
        self.fails(USAGE, "run", "--dtype", "F32", says="must be f64, f32, f16 or bf16")
        self.fails(USAGE, "check", "--seed", "0", says="must be an integer from 1 to ")

    def test_explain(self):
        self.fails(USAGE, "explain", says="a sentence is missing")
        self.fails(USAGE, "explain", "", says="word")
        self.fails(USAGE, "explain", "... !", says="word")
        self.fails(USAGE, "explain", "--scale", "1", "--no-scale", "a b", says="exclude each other")
        self.fails(USAGE, "explain", "--scale", "0", "a b", says="must not be 0")
        self.fails(USAGE, "explain", "--json", "--quiz", "a b", says="--json and --quiz")
        self.fails(USAGE, "explain", "--json", "--full", "a b", says="--full")
        self.fails(USAGE, "explain", "--quiz", "-", says="standard input")
        self.fails(USAGE, "explain", "-o", "map.gif", "a b", says="must end with .html .svg")
        self.fails(USAGE, "explain", "-o", "map", "a b", says="map")
        self.fails(USAGE, "explain", "-o", "-", "a b", says="--json")
        self.fails(
            USAGE, "explain", "-o", "a.svg", "-o", "./a.svg", "a b", says="named for two outputs"
        )
        says = "must be an integer from 1 to 1024"
        self.fails(USAGE, "explain", "--heads", "0", "a b", says=says)
        self.fails(LIMIT, "explain", "-o", "none/map.svg", "a b", says="none/map.svg")
        self.fails(LIMIT, "explain", "-", stdin=b"a " * 5000, says="words")
        self.fails(LIMIT, "explain", "-", stdin=b"a" * 3000000, says="longer than")
        self.fails(BAD_FILE, "explain", "-", stdin=b"a\0b", says="zero byte")
        self.fails(USAGE, "explain", "-", stdin=b"\xff\xfe a", says="UTF-8")
        line = self.fails(USAGE, "explain", "--query", "sunset", "Life is short, eat dessert last")
        self.assertEqual(
            line,
            "attn explain: --query sunset: not a word of the sentence; words: Life is "
            "short eat dessert last\n",
        )

    def test_unknown_instruction_set(self):
        for command in ("explain", "a"), ("lesson", "sky"), ("lesson", "--all", "--check"):
            self.fails(USAGE, *command, env={"ATTN_ISA": "genric"}, says="'genric', which is not")

    def test_lesson(self):
        line = self.fails(USAGE, "lesson", "desert")
        self.assertEqual(
            line,
            "attn lesson: no lesson 'desert'; did you mean 'dessert'? (sky journey "
            "numpy dessert module)\n",
        )
        self.fails(USAGE, "lesson", "sky", "nunpy", says="did you mean 'numpy'?")
        self.fails(USAGE, "lesson", "--all", "sky", says="exclude each other")
        self.fails(USAGE, "lesson", "--check", says="name, or --all")
        self.fails(USAGE, "lesson", "--json", says="one lesson")
        self.fails(USAGE, "lesson", "--all", "--json", says="one lesson")
        self.fails(USAGE, "lesson", "sky", "numpy", "-o", "a.svg", says="one lesson")
        self.fails(USAGE, "lesson", "sky", "--check", "--json", says="--check")

    def test_bench_check_info(self):
        for bad in (
            "",
            "1",
            "1,2,3,4,5",
            "1,1,1,1,1,0",
            "1,1,1,1,1,1,1,1",
            "1,1,1,1,1,x",
            "1,1,1,1,1,1,",
        ):
            self.fails(USAGE, "bench", "--shape", bad, says="must be B,H,Hk,T,S,D")
        self.fails(USAGE, "bench", "--shape", "1,4,3,1,1,1", says="Hk=3 must divide H=4")
        self.fails(USAGE, "bench", "--shape", "1,1,1,1,1,1", "--shape", "1,4,3,1,1,1", says="Hk=3")
        self.fails(USAGE, "bench", "--pass", "sideways", says="must be forward, backward or both")
        self.fails(USAGE, "bench", "--causal", "maybe", says="must be none, top-left")
        self.fails(USAGE, "bench", "--seconds", "0", says="must be a number X with 0 < X <= 3600")
        self.fails(USAGE, "bench", "128", says="--shape")
        self.fails(LIMIT, "bench", "--shape", "1,1,1,2000000000,2000000000,2000000000")
        self.fails(USAGE, "check", "--op", "scors", says="did you mean 'scores'?")
        self.fails(USAGE, "check", "--record", "bits.txt", says="--bits")
        self.fails(USAGE, "check", "--bits", "--op", "scores", says="--op")
        self.fails(USAGE, "check", "--bits", "--cases", "3", says="--cases")
        self.fails(USAGE, "check", "--cases", "3", "--seconds", "1", says="exclude each other")
        self.fails(BAD_FILE, "check", "--bits", "--record", "none.txt", says="none.txt")
        self.write("empty.txt", b"# nothing\n")
        self.fails(BAD_FILE, "check", "--bits", "--record", "empty.txt", says="empty.txt")
        self.fails(USAGE, "check", "--isa", "avx3", says="no instruction set 'avx3'")
        self.fails(USAGE, "check", "scores", says="--op NAME")
        self.fails(USAGE, "info", "a", "b", says="one file at a time")
        self.fails(BAD_FILE, "info", "none.npy", says="none.npy")


class Run(CliTest):
    def setUp(self):
        super().setUp()
        self.save("q", np.ones((2, 4, 7, 64), np.float32))
        self.save("k", np.ones((2, 2, 8, 64), np.float32))
        self.save("v", np.ones((2, 2, 8, 5), np.float32))
        np.savez(self.path("a.npz"), one=np.ones((3, 4), np.float32))

    def save(self, name, array):
        np.save(self.path(name + ".npy"), array)

    def bad(self, code, *args, says, **more):
        """Runs with q.npy, k.npy and v.npy, unless args name others; the result must not be
        written."""
        given = [
            x for name in "qkv" if "--" + name not in args for x in ("--" + name, name + ".npy")
        ]
        return self.fails(code, "run", *given, "--out", "out.npy", *args, says=says, **more)

    def test_options(self):
        self.fails(USAGE, "run", says="--q is missing")
        self.fails(USAGE, "run", "--q", "q.npy", "--v", "v.npy", says="--k is missing")
        self.fails(USAGE, "run", "q.npy", says="--q FILE")
        self.bad(USAGE, "--q", "q.npy", "--q", "q.npy", says="--q is given twice")
        self.bad(USAGE, "--causal", "left", says="must be top-left, bottom-right or an integer")
        self.bad(USAGE, "--causal", "9" * 18, says="must be top-left")
        for window in ("3", "1,2,3", "-2,0", "a,b", ",", "", "1,"):
            self.bad(USAGE, "--window", window, says="must be L,R")
        self.bad(USAGE, "--scale", "0", says="must not be 0")
        self.bad(USAGE, "--seed", "1", says="--dropout")
        self.bad(USAGE, "--scores-stage", "raw", says="--scores")
        self.bad(
            USAGE,
            "--scores-stage",
            "row",
            "--scores",
            "s.npy",
            says="raw, softcap, biased or weights",
        )
        self.bad(USAGE, "--precision", "high", says="default or accurate")
        self.bad(USAGE, "--isa", "avx511", says="did you mean 'avx512'?")
        for name in ("q", "k", "v", "mask"):
            says = "--grad-%s needs --grad-out FILE" % name
            self.bad(USAGE, "--grad-" + name, "x.npy", says=says)
        self.bad(USAGE, "--grad-out", "x.npy", says="--grad-out has no effect alone")
        gradient = ["--grad-out", "x.npy", "--grad-mask", "dm.npy"]
        self.bad(USAGE, *gradient, says="--grad-mask needs --mask FILE")
        self.bad(BAD_FILE, *gradient[:2], "--grad-q", "dq.npy", says="x.npy")
        np.save(self.path("x.npy"), np.zeros((9, 9), np.float32))
        self.bad(BAD_FILE, *gradient[:2], "--grad-q", "dq.npy", says="must be that of the output")
        np.save(self.path("x.npy"), np.load(self.path("q.npy"))[..., :5])
        np.save(self.path("b.npy"), np.ones((1, 1), bool))
        self.bad(BAD_FILE, *gradient, "--mask", "b.npy", says="only a float mask has a gradient")

    def test_files_do_not_collide(self):
        os.symlink("q.npy", self.path("link.npy"))
        os.link(self.path("k.npy"), self.path("hard.npy"))
        for path in ("q.npy", "./q.npy", "link.npy", "hard.npy", self.path("v.npy")):
            self.bad(USAGE, "--lse", path, says="is an input")
        self.bad(USAGE, "--q", "a.npz:one", "--lse", "a.npz", says="is an input")
        self.bad(USAGE, "--lse", "out.npy", says="named for two outputs")
        self.bad(USAGE, "--lse", self.path("out.npy"), says="named for two outputs")
        self.bad(USAGE, "--lse", "-", "--json", says="standard output")
        self.bad(USAGE, "--lse", "-", "--weights", "-", says="named for two outputs")
        for name in "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1":
            self.bad(USAGE, "--lse", name, "--json", says="standard output")
            self.bad(USAGE, "--lse", name, "--weights", "-", says="named for two outputs")
            self.bad(USAGE, "--lse", name, "--weights", name, says="named for two outputs")
            self.bad(USAGE, "--pieces", 256, "--checkpoint", name, says="standard output")
            self.fails(USAGE, "train", "--checkpoint", name, says="standard output")
        self.bad(USAGE, "--q", "-", "--k", "-", says="standard input")

    def test_shapes(self):
        self.save("k128", np.ones((2, 2, 8, 128), np.float32))
        line = self.bad(BAD_FILE, "--k", "k128.npy", says="")
        self.assertEqual(
            line, "attn run: k128.npy: K has D=128 but q.npy has D=64; q and k must share D\n"
        )
        self.save("mask", np.ones((7, 9), bool))
        line = self.bad(BAD_FILE, "--mask", "mask.npy", says="")
        self.assertEqual(
            line,
            "attn run: mask.npy: shape [7, 9] does not broadcast to [B=2, H=4, T=7, S=8]; "
            "the last dimension must be 8 or 1\n",
        )
        cases = [
            ("k", (1, 2, 8, 64), "K has B=1 but q.npy has B=2"),
            ("k", (2, 3, 8, 64), "Hk must divide H"),
            ("k", (2, 2, 9, 64), "V has S=8 but x.npy has S=9"),
            ("v", (2, 4, 8, 5), "V has Hk=4"),
            ("v", (8,), "has rank 1"),
            ("v", (1,) * 5, "has rank 5"),
            ("k", (8, 64), "K has B=1"),
            ("mask", (3, 7, 8), "dimension H must be 4 or 1"),
            ("mask", (6, 8), "dimension T must be 7 or 1"),
            ("mask", (1,) * 5, "at most 4"),
            ("alibi", (2,), "[H=4]"),
            ("alibi", (4, 1), "[H=4]"),
            ("sinks", (), "[H=4]"),
        ]
        for name, shape, says in cases:
            self.save("x", np.ones(shape, np.float32))
            self.bad(BAD_FILE, "--" + name, "x.npy", says=says)

    def test_types(self):
        for kind in (np.int64, np.int8, np.uint32):
            self.save("x", np.ones((2, 4, 7, 64), kind))
            self.bad(
                BAD_FILE, "--q", "x.npy", "--dtype", "f32", says="attention needs floating point"
            )
        self.save("x", np.ones((2, 4, 7, 64), bool))
        self.bad(BAD_FILE, "--q", "x.npy", says="an array of bool")
        self.save("x", np.ones((2, 2, 8, 64), np.float64))
        self.bad(BAD_FILE, "--k", "x.npy", says="x.npy: is f64 but q.npy is f32; give --dtype")
        self.save("x", np.ones((7, 8), int))
        self.bad(BAD_FILE, "--mask", "x.npy", says="bool (true = attend) or float")
        self.save("x", np.ones(4, int))
        self.bad(BAD_FILE, "--alibi", "x.npy", says="floating point of shape [H=4]")

    def test_key_lengths(self):
        for values, says in (
            ([1, 2, 3], "[B=2] or one number"),
            ([1, 9], "element 1 is 9; must be 0 to S=8"),
            ([-1, 1], "element 0 is -1"),
            ([[1, 2]], "[B=2]"),
            (9, "element 0 is 9"),
        ):
            self.save("n", np.array(values))
            self.bad(BAD_FILE, "--key-lengths", "n.npy", says=says)
        self.save("n", np.array([1.0, 2.0]))
        self.bad(BAD_FILE, "--key-lengths", "n.npy", says="integers")

    def test_outputs_that_cannot_be(self):
        os.mkdir(self.path("folder"))
        for path in ("none/o.npy", "folder", "folder/", "x" * 300):
            self.bad(LIMIT, "--lse", path, says=path[:20])
        if os.geteuid() != 0:
            os.chmod(self.path("folder"), 0o500)
            self.bad(LIMIT, "--lse", "folder/o.npy", says="folder/o.npy")

    def test_full_device(self):
        for args in (["--lse", "/dev/full"], ["--json"]):
            with open("/dev/full", "wb") as full:
                done = self.attn(
                    "run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", *args, stdout=full
                )
            self.assertEqual(
                (done.returncode, done.stderr.decode().count("\n")), (LIMIT, 1), done.stderr
            )
            self.assertIn(b"No space left", done.stderr)

    def test_file_size_limit(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

        self.bad(LIMIT, "--weights", "w.npy", "--scores", "s.npy", says="", preexec_fn=limit)

    def test_no_descriptors_left(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))

        done = self.attn("run", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", preexec_fn=limit)
        self.assertNotEqual(done.returncode, 0)
        self.assertGreater(done.returncode, 0)


class Files(CliTest):
    """Broken inputs."""

    def setUp(self):
        super().setUp()
        np.save(self.path("good.npy"), np.ones((3, 4), np.float32))

    def refused(self, name, says=""):
        for option in ("--q", "--k", "--v"):
            args = [
                x for o in ("--q", "--k", "--v") for x in (o, name if o == option else "good.npy")
            ]
            self.fails(BAD_FILE, "run", *args, "--out", "o.npy", says=says or name)
        self.fails(BAD_FILE, "info", name, says=name)

    def npy(self, name, header, data=b"\0" * 48, version=1, length=None):
        text = header.encode() + b"\n"
        length = len(text) if length is None else length
        prefix = (
            b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", length)
        )
        self.write(name, prefix + text + data)

    def header(self, shape="(3, 4)", descr="'<f4'", order="False", more=""):
        return "{'descr': %s, 'fortran_order': %s, 'shape': %s, %s}" % (descr, order, shape, more)

    def test_not_a_file(self):
        os.mkdir(self.path("folder.npy"))
        os.symlink("loop.npy", self.path("loop.npy"))
        for name in ("none.npy", "folder.npy", "loop.npy"):
            self.refused(name)
        self.refused("n" * 300 + ".npy")

    def test_truncated_at_every_byte(self):
        data = self.bytes("good.npy")
        for size in list(range(0, 12)) + list(range(12, len(data), 7)) + [len(data) - 1]:
            self.write("cut.npy", data[:size])
            self.fails(
                BAD_FILE,
                "run",
                "--q",
                "cut.npy",
                "--k",
                "good.npy",
                "--v",
                "good.npy",
                "--out",
                "o.npy",
                says="cut.npy",
            )

    def test_trailing_bytes(self):
        self.write("long.npy", self.bytes("good.npy") + b"x")
        self.refused("long.npy")

    def test_F03_products_that_wrap(self):
        for shape in (
            "(9223372036854775807, 2)",
            "(4294967296, 4294967296)",
            "(-1, 4)",
            "(-4,)",
            "(4194305, 4194305, 211106198978564)",
            "(99999999999999999999, 1)",
        ):
            self.npy("wrap.npy", self.header(shape))
            self.refused("wrap.npy")

    def test_F08_duplicate_keys(self):
        self.npy("twice.npy", self.header(more="'shape': (3, 4)"))
        self.refused("twice.npy")

    def test_F09_objects_are_not_read(self):
        for descr in ("'|O'", "'<M8[s]'", "[('a', '<f4')]", "'<c8'", "'<U4'", "'|V4'"):
            self.npy("object.npy", self.header(descr=descr))
            self.refused("object.npy")

    def test_F10_header_lengths(self):
        self.npy("head.npy", "", b"", version=2, length=0xFFFFFFFF)
        self.refused("head.npy")
        self.npy("head.npy", self.header(), version=1, length=65535)
        self.refused("head.npy")

    def test_F13_npz(self):
        np.savez(self.path("a.npz"), x=np.ones((3, 4), np.float32), y=np.ones(2))
        data = self.bytes("a.npz")
        for size in (0, 3, 30, len(data) // 2, len(data) - 1):
            self.write("cut.npz", data[:size])
            self.fails(BAD_FILE, "info", "cut.npz", says="cut.npz")
        flipped = bytearray(data)
        flipped[data.index(b"\x93NUMPY") + 140] ^= 1
        self.write("crc.npz", flipped)
        self.fails(
            BAD_FILE,
            "run",
            "--q",
            "crc.npz:x",
            "--k",
            "good.npy",
            "--v",
            "good.npy",
            says="crc.npz",
        )
        self.fails(
            BAD_FILE, "run", "--q", "a.npz:z", "--k", "good.npy", "--v", "good.npy", says="'z'"
        )
        self.fails(
            BAD_FILE, "run", "--q", "a.npz", "--k", "good.npy", "--v", "good.npy", says="a.npz"
        )

    def test_text_is_no_array(self):
        self.write("text.npy", b"hello, world\n" * 20)
        self.refused("text.npy")


class Interrupt(CliTest):
    def test_ctrl_c_is_130(self):
        with subprocess.Popen(
            [ATTN, "bench", "--seconds", "60"],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as p:
            time.sleep(0.5)
            p.send_signal(signal.SIGINT)
            _, errors = p.communicate(timeout=60)
        self.assertEqual((p.returncode, errors), (130, b""))

    def test_ctrl_c_leaves_no_file(self):
        x = np.ones((1, 8, 4096, 64), np.float32)
        np.save(self.path("x.npy"), x)
        with subprocess.Popen(
            [ATTN, "run", "--q", "x.npy", "--k", "x.npy", "--v", "x.npy", "--out", "o.npy"],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as p:
            try:
                p.wait(0.15)
            except subprocess.TimeoutExpired:
                pass
            p.send_signal(signal.SIGINT)
            p.communicate(timeout=60)
        self.assertIn(p.returncode, (0, 130))
        found = sorted(os.listdir(self.folder))
        if "o.npy" in found or p.returncode == 0:  # it may have arrived after everything was done
            self.assertEqual(np.load(self.path("o.npy")).shape, x.shape)
            found.remove("o.npy")
        self.assertEqual(found, ["x.npy"])

    def test_ctrl_c_while_a_file_is_written(self):
        """The program is stopped while the temporary file has some bytes. Then the signal comes,
        and it must wait until this file is gone."""
        np.save(self.path("x.npy"), np.ones((1, 1, 2, 1 << 21), np.float32))
        for _ in range(100):
            with subprocess.Popen(
                [ATTN, "run", "--q", "x.npy", "--k", "x.npy", "--v", "x.npy", "--out", "o.npy"],
                cwd=self.folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            ) as p:
                part = lambda: [f.name for f in os.scandir(self.folder)
                                if f.name not in ("x.npy", "o.npy") and f.stat().st_size]
                seen = False
                while p.poll() is None and not seen:
                    try:
                        seen = bool(part())
                    except FileNotFoundError:  # it went meanwhile
                        continue
                p.send_signal(signal.SIGSTOP)
                seen = seen and bool(part())
                p.send_signal(signal.SIGINT)
                p.send_signal(signal.SIGCONT)
                _, errors = p.communicate(timeout=60)
            self.assertLessEqual(set(os.listdir(self.folder)), {"x.npy", "o.npy"})
            if seen:
                self.assertEqual((p.returncode, errors), (130, b""))
                return
        self.fail("never seen while it writes")


if __name__ == "__main__":
    unittest.main()
