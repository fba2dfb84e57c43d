#!/usr/bin/env python3
# labels: slow
"""attn train: the model learns, the output shows it, and an interrupted and resumed run gives the
same bits as an uninterrupted one."""

import json
import os
import re
import signal
import subprocess
import time
import unittest

import numpy as np

from cli import ATTN, CliTest

SMALL = ["--embed", "16", "--batch", "4", "--length", "12", "--vocab", "9", "--unseen", "10"]


def tensors(data):
    """The arrays of a .safetensors file."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__")
    kinds = {"F32": "<f4", "F64": "<f8", "I64": "<i8"}
    return {
        name: np.frombuffer(
            data[8 + size :][slice(*e["data_offsets"])], kinds[e["dtype"]]
        ).reshape(e["shape"])
        for name, e in header.items()
    }


# Sanitizers make training ten times slower, and the other tests run the same code for fewer steps.
SANITIZED = os.environ.get("ATTN_SANITIZED") == "1"
learns = unittest.skipIf(SANITIZED, "takes minutes with sanitizers")


class Train(CliTest):
    def train(self, *args, **more):
        return self.works("train", *SMALL, *args, **more)

    def report(self, *args):
        report = json.loads(self.works("train", "--json", *args))
        self.assertEqual(report["schema"], "attn.train/1")
        return report, {s["name"]: s for s in report["steps"]}

    def steps(self, *args):
        return self.report(*args)[1]

    def array(self, step):
        return np.array(step["tensor"]["data"], "f8").reshape(step["tensor"]["shape"])

    @learns
    def test_induction_is_learned_and_seen(self):
        report, steps = self.report("--steps", "260", "-o", "curve.svg", "-o", "curve.png")
        self.assertGreaterEqual(self.array(steps["unseen_accuracy"]).item(), 0.99)
        self.assertEqual({name: steps[name]["section"] for name in ("loss", "heads", "layer_2")},
                         {"loss": "Training", "heads": "What attention does",
                          "layer_2": "What attention does"})
        notes = {n["label"]: n["text"] for n in report["notes"]}
        heads = self.array(steps["heads"])  # 2 layers of 2 heads
        for k, (label, what) in enumerate((("before", "the token before"),
                                           ("answer", "places that hold the answer"))):
            layer, head = divmod(int(heads[:, k].argmax()), 2)
            self.assertEqual(notes[label], "Layer %d, head %d gives %.0f %% of its weight to %s."
                             % (layer + 1, head + 1, 100 * heads[:, k].max(), what))
        loss = self.array(steps["loss"])
        self.assertEqual(loss.shape, (260, 2))
        self.assertLess(loss[-1, 1], 0.1)
        # A head of the second layer attends to the token after the previous occurrence of the same
        # token.
        words = steps["layer_2"]["rows"]
        weights = self.array(steps["layer_2"])
        shares = []
        for i, word in enumerate(words):
            if word in words[:i]:
                behind = max(j for j in range(i) if words[j] == word) + 1
                shares.append(weights[:, i, behind])
        self.assertGreaterEqual(len(shares), 8)
        self.assertGreater(np.mean(shares, 0).max(), 0.8)
        # In the first repetition it needs a head of the first layer that attends to the previous
        # token.
        first = self.array(steps["layer_1"])
        before = [first[:, i, i - 1] for i in range(1, len(words)) if words[i] not in words[:i]]
        self.assertGreater(np.mean(before, 0).max(), 0.5)
        svg = self.bytes("curve.svg").decode()
        for text in ("Loss of each step", "Accuracy on unseen", "step 130, layer 2, head 2"):
            self.assertIn(text, svg)
        self.assertEqual(self.bytes("curve.png")[:4], b"\x89PNG")

    @learns
    def test_other_tasks_are_learned(self):
        for task in ("copy", "reverse", "previous-token"):
            steps = self.steps("--task", task, "--steps", "150", "--length", "16")
            self.assertGreaterEqual(self.array(steps["unseen_accuracy"]).item(), 0.99, task)

    @learns
    def test_any_words_are_learned(self):
        steps = self.steps("--task", "any-words", "--steps", "700", "--heads", "1", "--length",
                           "16", "--vocab", "16", "--embed", "48", "--batch", "64")
        self.assertGreaterEqual(self.array(steps["unseen_accuracy"]).item(), 0.85)
        # One head looks at the word before, the other at what followed: it is a rule, because
        # these embeddings were never there in training.
        words = steps["layer_1"]["rows"]
        first, second = (self.array(steps[name])[0] for name in ("layer_1", "layer_2"))
        right = [i for i, w in enumerate(words) if w in words[:i]]
        followed = [max(j for j in range(i) if words[j] == words[i]) + 1 for i in right]
        self.assertGreaterEqual(len(right), 4)
        self.assertGreater(np.mean(second[right, followed]), 0.6)
        self.assertGreater(np.mean([first[i, i - 1] for i in range(1, 15)]), 0.6)

    @learns
    def test_the_same_word_is_found(self):
        steps = self.steps("--task", "same-word", "--steps", "1000", "--heads", "1", "--layers",
                           "1", "--length", "16", "--vocab", "16", "--embed", "32")
        self.assertGreaterEqual(self.array(steps["unseen_accuracy"]).item(), 0.85)
        words, weights = steps["layer_1"]["rows"], self.array(steps["layer_1"])[0]
        right = [i for i, w in enumerate(words) if w in words[:i]]
        last = [max(j for j in range(i) if words[j] == words[i]) for i in right]
        self.assertGreaterEqual(len(right), 4)
        self.assertGreater(np.mean(weights[right, last]), 0.6)
        # The report's column "answer" is the same mean.
        self.assertAlmostEqual(self.array(steps["heads"])[0, 1], np.mean(weights[right, last]),
                               places=5)

    def test_drawn_words_have_no_table(self):
        for task, head in (("any-words", (16, 16)), ("same-word", (12, 16))):
            self.train("--task", task, "--steps", "6", "--checkpoint", "c.st")
            names = {a["name"] for a in json.loads(self.works("info", "--json", "c.st"))["arrays"]}
            self.assertNotIn("tokens.weight", names)
            self.assertEqual(tensors(self.bytes("c.st"))["head.weight"].shape, head)
            for command in ("explain", "generate"):
                self.fails(3, command, "--model", "c.st", "a b a", says="was trained on " + task)

    def test_text(self):
        self.write("text.txt", "abc déf!\n".encode() * 60)
        options = ["--text", "text.txt", "--length", "10", "--mlp"]
        steps = self.steps(*options, "--steps", "12" if SANITIZED else "120")
        if not SANITIZED:
            self.assertGreaterEqual(self.array(steps["unseen_accuracy"]).item(), 0.8)
        self.assertIn("↵", steps["layer_1"]["rows"] + ["↵"])
        self.assertEqual(self.array(steps["heads"]).shape, (4, 2))

    def test_same_bits_on_any_number_of_threads(self):
        files = []
        for threads in (1, 2, 3):
            steps = ("--steps", "2", "--batch", "8", "--unseen", "4") if SANITIZED else (
                "--steps", "12")  # fmt: skip
            self.works("train", *steps, "--mlp", "--threads", threads, "--checkpoint", "t.st")
            files.append(self.bytes("t.st"))
        self.assertEqual(files[0], files[1])
        self.assertEqual(files[0], files[2])

    def test_text_and_mlp_on_any_number_of_threads(self):
        self.write("text.txt", "abc déf! ghi\n".encode() * 200)
        for options in (
            ["--text", "text.txt", "--length", "60", "--mlp"],
            ["--task", "copy", "--mlp", "--length", "40"],
            ["--task", "any-words", "--mlp", "--length", "40"],
            ["--task", "same-word", "--length", "40"],
        ):
            files = []
            for threads in (1, 2, 3, 8):
                more = ["--steps", "3", "--batch", "16", "--unseen", "4", "--embed", "64"]
                more += ["--threads", threads, "--checkpoint", "t.st"]
                self.works("train", *options, *more)
                files.append(self.bytes("t.st"))
            for other in files[1:]:
                self.assertEqual(files[0], other, options)

    def test_in_parts_is_in_one_go(self):
        for more in ([], ["--mlp", "--task", "copy"], ["--task", "any-words"],
                     ["--task", "same-word"]):
            self.train("--steps", "30", "--checkpoint", "one.st", *more)
            self.train("--steps", "11", "--checkpoint", "part.st", *more)
            self.works("train", "--resume", "part.st", "--steps", "23", "--checkpoint", "part.st")
            self.works("train", "--resume", "part.st", "--steps", "30", "--checkpoint", "part.st")
            one, part = tensors(self.bytes("one.st")), tensors(self.bytes("part.st"))
            self.assertEqual(list(one), list(part))
            for name in one:
                if not name.startswith(("history.map", "history.checks")):
                    self.assertEqual(one[name].tobytes(), part[name].tobytes(), name)

    def test_stopped_and_resumed_is_the_same_file(self):
        options = SMALL + ["--steps", "4000", "--every", "400", "--checkpoint"]
        self.works("train", *options, "one.st")
        process = subprocess.Popen(
            [ATTN, "train", *options, "two.st"],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(3):  # the heading, step 0, step 400
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1].decode()
        self.assertEqual(process.returncode, 130, said)
        self.assertRegex(said, r"^attn train: stopped after step \d+; saved in two.st; .*\n$")
        stopped = tensors(self.bytes("two.st"))
        self.assertLess(len(stopped["history.loss"]), 4000)
        self.works(
            "train", "--resume", "two.st", "--steps", "4000", "--every", "400",
            "--checkpoint", "two.st",
        )
        self.assertEqual(self.bytes("one.st"), self.bytes("two.st"))

    def test_resumed_without_a_step_left_is_saved_too(self):
        self.works("train", *SMALL, "--steps", "5", "--checkpoint", "one.st")
        self.works("train", "--resume", "one.st", "--steps", "5", "--checkpoint", "two.st")
        self.assertEqual(self.bytes("one.st"), self.bytes("two.st"))

    def test_resumed_report_is_of_the_last_step(self):
        """A run that was interrupted between two measurements is measured when it is resumed."""
        process = subprocess.Popen(
            [ATTN, "train", *SMALL, "--steps", "100000", "--every", "100000", "--save-every", "12",
             "--checkpoint", "cut.st"], cwd=self.folder, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE)  # fmt: skip
        while not os.path.exists(self.path("cut.st")):
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1].decode()
        step = re.search(r"after step (\d+)", said).group(1)
        self.assertIn("--resume cut.st --steps 100000", said)
        resumed = self.steps("--resume", "cut.st", "--steps", step)
        whole = self.steps(*SMALL, "--steps", step)
        for name in ("unseen_accuracy", "heads", "layer_2"):
            np.testing.assert_array_equal(self.array(resumed[name]), self.array(whole[name]))

    def test_checkpoint_with_a_colon_in_its_name(self):
        """It is not an array `b` in another file."""
        for seed, steps, name in (("1", "3", "run.safetensors"), ("2", "5", "run.safetensors:b")):
            self.works("train", *SMALL, "--seed", seed, "--steps", steps, "--checkpoint", name)
        self.fails(2, "train", "--resume", "run.safetensors:b", "--steps", "4", says="is at step 5")
        os.remove(self.path("run.safetensors"))
        self.works("train", "--resume", "run.safetensors:b", "--steps", "5")

    def test_divergence_in_the_last_step(self):
        done = self.attn("train", *SMALL, "--lr", "1e30", "--warmup", "0", "--steps", "1",
                         "--checkpoint", "none.st")  # fmt: skip
        self.assertEqual((done.returncode, os.listdir(self.folder)), (5, []))
        self.assertIn(b"after step 1; try a smaller --lr", done.stderr)

    def test_text_with_a_zero_byte(self):
        self.write("zero.txt", b"a text\0" * 400)
        self.fails(3, "train", *SMALL[:-4], "--task", "text", "--text", "zero.txt",
                   says="zero byte")  # fmt: skip

    def test_stopped_without_a_checkpoint(self):
        process = subprocess.Popen(
            [ATTN, "train", "--steps", "1000000", "--every", "1"],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1].decode()
        self.assertEqual(process.returncode, 128 + 15)
        self.assertIn("nothing was saved", said)
        self.assertEqual(os.listdir(self.folder), [])

    def test_text_output(self):
        text = self.train("--steps", "20", "--every", "5")
        table = re.findall(r"(?m)^ +(\d+) .*%", text)
        self.assertEqual(table, ["0", "5", "10", "15", "20"])
        for part in ("Training on induction", "Where each head looks", "L2 head 2"):
            self.assertIn(part, text)
        self.assertLessEqual(max(map(len, text.splitlines())), 80)
        self.assertGreater(len(self.train("--steps", "20", "--full").splitlines()), 300)
        ascii_only = self.train("--steps", "9", env={"LC_ALL": "C"})
        self.assertTrue(ascii_only.isascii())

    def test_every_map_says_its_layer_and_step(self):
        for name, s in self.steps(*SMALL, "--steps", "4", "--task", "previous-token").items():
            if name.startswith("layer_"):
                layer, moment = re.fullmatch(r"layer_(\d)(?:_step_(\d))?(?:_slope)?", name).groups()
                self.assertEqual((s["layer"], s["moment"]), (int(layer), int(moment or 4)), name)
                self.assertGreater(np.abs(self.array(s)).max(), 0, name)

    def test_maps_of_one_step_or_layer_are_in_a_row(self):
        for heads, layers, across in (1, 1, 4), (2, 2, 4), (3, 2, 6), (4, 3, 4):
            self.works("train", "--batch", 4, "--steps", 9, "--embed", 4 * heads, "--heads", heads,
                       "--layers", layers, "-o", "maps.svg")
            places = re.findall(r'<text x="(\d+)"[^>]*>step \d+',
                                self.bytes("maps.svg").decode())
            self.assertEqual(len(set(places)), across, (heads, layers))

    def test_weight_decay_makes_weights_smaller(self):
        sizes = []
        for decay in (0, 10):
            self.train("--steps", 20, "--warmup", 0, "--lr", 0.01, "--weight-decay", decay,
                       "--checkpoint", "c.st")
            sizes.append(sum((a.astype("f8") ** 2).sum() for n, a in tensors(
                self.bytes("c.st")).items() if n.endswith("_weight")))
        self.assertLess(sizes[1], 0.5 * sizes[0])

    def test_files(self):
        self.train("--steps", "6", "--checkpoint", "c.st", "--save-every", "2")
        arrays = json.loads(self.works("info", "--json", "c.st"))["arrays"]
        shapes = {a["name"]: a["shape"] for a in arrays}
        self.assertEqual(shapes["blocks.1.attention.in_proj_weight"], [48, 16])
        self.assertEqual(shapes["optimizer.v.tokens.weight"], [9, 16])
        self.assertEqual(shapes["random.state"], [624])
        self.assertEqual(sorted(os.listdir(self.folder)), ["c.st"])

    def test_errors(self):
        self.write("bad.txt", b"abc\xff" * 100)
        self.write("short.txt", b"abc")
        for says, *options in (
            ("not a multiple of --heads 3", "--heads", "3"),
            ("must be even", "--task", "copy", "--length", "7"),
            ("at least 6", "--length", "5"),
            ("at least 4", "--task", "any-words", "--length", "3"),
            ("at least 8", "--task", "any-words", "--embed", "6", "--heads", "1"),
            ("at least 4 for --task same-word", "--task", "same-word", "--length", "3"),
            ("needs --text", "--task", "text"),
            ("exclude each other", "--task", "copy", "--text", "short.txt"),
            ("--vocab does not go", "--text", "short.txt", "--vocab", "3"),
            ("has 3 characters", "--text", "short.txt"),
            ("needs --checkpoint", "--save-every", "3"),
            ("a task is given as --task copy", "copy"),
            ("did you mean", "--tsk", "copy"),
        ):
            self.fails(2, "train", *options, says=says)
        self.fails(3, "train", "--text", "bad.txt", says="bad.txt: byte 3: not UTF-8")
        self.fails(3, "train", "--text", "none.txt", says="none.txt: cannot open")
        self.fails(3, "train", "--resume", "none.st", says="none.st: cannot open")
        self.fails(4, "train", "--checkpoint", "no/c.st", says="no/c.st: cannot open its folder")
        self.fails(
            2, "train", "--text", "bad.txt", "--checkpoint", "bad.txt", says="is an input"
        )

    def test_a_loss_that_is_none_is_told(self):
        done = self.attn("train", *SMALL, "--lr", "1e30", "--warmup", "0", "--steps", "50")
        self.assertEqual(done.returncode, 5)
        self.assertIn(b"try a smaller --lr", done.stderr)

    def test_checkpoints_that_are_none(self):
        self.train("--steps", "3", "--checkpoint", "c.st")
        self.write("text.txt", b"one text" * 40)
        self.fails(2, "train", "--resume", "c.st", "--embed", "16", says="whose checkpoint sets it")
        self.fails(2, "train", "--resume", "c.st", "--steps", "2", says="is at step 3")
        self.fails(2, "train", "--resume", "c.st", "--text", "text.txt", says="on no text")
        whole = self.bytes("c.st")
        size = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8 : 8 + size])

        def changed(change, says, code=3):
            h = json.loads(json.dumps(header))
            change(h)
            text = json.dumps(h).encode()
            self.write("d.st", len(text).to_bytes(8, "little") + text + whole[8 + size :])
            self.fails(code, "train", "--resume", "d.st", "--steps", "5", says=says)

        def set_metadata(key, value):
            return lambda h: h["__metadata__"].update({key: value})

        changed(lambda h: h.pop("__metadata__"), "not a checkpoint")
        changed(set_metadata("format", "attn.train/9"), "not a checkpoint")
        changed(set_metadata("heads", "0"), "'heads' is 0")
        changed(set_metadata("heads", "two"), "'heads' is two")
        changed(set_metadata("heads", "3"), "contradict each other")
        changed(set_metadata("embed", "32"), "too short")
        changed(set_metadata("layers", "1024"), "too short")
        changed(set_metadata("vocabulary", "8"), "does not have the shape")
        changed(set_metadata("lr", "-1"), "'lr' is -1")
        for task in ("any-words", "same-word"):
            self.works("train", "--steps", "1", "--length", "8", "--vocab", "9", "--task", task,
                       "--embed", "16", "--batch", "2", "--unseen", "2", "--checkpoint", "w.st")
            words = self.bytes("w.st").replace(b'"vocabulary":"9"', b'"vocabulary":"1"')
            self.assertNotEqual(words, self.bytes("w.st"))
            self.write("d.st", words)
            self.fails(3, "train", "--resume", "d.st", "--steps", "3", says="contradict each other")
        changed(set_metadata("task", "sums"), "'task' is sums")
        changed(lambda h: h.update(renamed=h.pop("head.bias")), "no array 'head.bias'")
        changed(lambda h: h["random.state"].update(shape=[2, 312]), "random.state")
        words = 8 + size + header["random.state"]["data_offsets"][0]
        for word in (-1, 2**32):
            one = word.to_bytes(8, "little", signed=True)
            self.write("d.st", whole[: words + 80] + one + whole[words + 88 :])
            self.fails(3, "train", "--resume", "d.st", "--steps", "5",
                       says="its random state is not valid")
        for cut in (0, 100, len(whole) - 1):
            self.write("d.st", whole[:cut])
            self.fails(3, "train", "--resume", "d.st", says="d.st: ")

    def test_resume_of_a_text(self):
        self.write("a.txt", b"one text, " * 40)
        self.write("b.txt", b"another, " * 40)
        self.works(
            "train", "--text", "a.txt", "--length", "8", "--steps", "3", "--checkpoint", "c.st"
        )
        resume = ["train", "--resume", "c.st", "--steps", "5"]
        self.works(*resume, "--text", "a.txt")
        self.fails(2, *resume, says="was trained on a text; give it as --text")
        self.fails(2, *resume, "--text", "b.txt", says="another text")
        self.write("b.txt", b"text one, " * 40)  # of the same characters
        self.fails(2, *resume, "--text", "b.txt", says="another text")


if __name__ == "__main__":
    unittest.main()
