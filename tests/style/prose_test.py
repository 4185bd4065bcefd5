# SPDX-License-Identifier: Apache-2.0
"""Tests prose.py: what it extracts, what it flags, and how it holds a folder to its limit."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import prose  # noqa: E402
import prose_extract  # noqa: E402
import prose_markers  # noqa: E402

CLEAN = "// Returns the number of rows that fit in one block.\nint f();\n"
PLANTED = "// What the layer says of its own rows in a step.\nint f();\n"

# One passage per marker.
FLAGGED = {
    "clause as a title": "What one pass reports to its observer",
    "'Of' without its noun": "Of the passes that follow this one",
    "'0: none' shorthand": "sequence to begin after this step; 0: none",
    "things that say": "a header says how many records follow",
    "things that tell": "the leader tells its peers the address",
    "things that hear": "a peer hears about the failure first",
    "'knows nothing'": "the kernel knows nothing of the ranks",
    "nobody": "so that nobody waits for the peer",
    "whoever": "whoever arrives last frees the memory",
    "lies": "head_dim is 4, it must lie in 8 to 256",
    "stands": "the value that stands in the header",
    "goes on": "a warning is logged and training goes on",
    "comes home": "their gradients come home after the step",
    "of its own": "the writer has a thread of its own",
    "is none": "type is none of fp32, bf16 and fp64",
    "is no X": "a process of the job that is no rank",
    "worked out": "an empty span is not worked out",
    "spent": "the argument is spent after the call",
    "mend": "a restart mends the broken connection",
    "foreign": "plans with more foreign experts than slots",
    "the same for": "The same for the gradients of the rows",
    "clause as an object": "what of it is left is written later",
    "nothing of": "nothing of a later row is read",
    "ours, theirs": "the peer's deadline is later than ours",
    "on its way": "a command that is on its way to the rank",
}

NATIVE = [
    "Returns the number of bytes written, or an error if the file is not open.",
    "The standard says that the objects are passed by reference.",
    "This overload is provided for types that have no default constructor.",
    "Where the lock is already held, this function does nothing.",
    "There is no guarantee that the callback runs on the same thread.",
    "If null, the default allocator is used.",
    "Of course, the buffer must outlive the call.",
    "Must be called before the first step. Not thread-safe.",
    "Stands for the type of the elements.",
    "Shape must be [rows, cols]; `what of` is only code here.",
]


class Tree:
    """A small tree in a temporary folder."""

    def __init__(self, files: dict[str, str]):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        subprocess.run(["git", "init", "-q", self.folder.name], check=True)
        for name, text in files.items():
            self.write(name, text)

    def write(self, name: str, text: str):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def run(self, *options: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, str(ROOT / "scripts/prose.py"), "--root", str(self.root), *options],
            capture_output=True,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.folder.cleanup()


class Markers(unittest.TestCase):
    def test_every_marker_flags_its_example(self):
        self.assertEqual(set(FLAGGED), {marker.name for marker in prose_markers.MARKERS})
        for name, text in FLAGGED.items():
            with self.subTest(name):
                self.assertIn(name, [marker.name for marker, _ in prose_markers.find(text)])

    def test_native_sentences_pass(self):
        for text in NATIVE:
            with self.subTest(text):
                self.assertEqual(prose_markers.find(text), [])

    def test_a_question_is_not_a_title(self):
        self.assertEqual(prose_markers.find("Where does the time of a step go?"), [])

    def test_every_marker_has_advice(self):
        self.assertTrue(all(marker.hint for marker in prose_markers.MARKERS))


class Extraction(unittest.TestCase):
    def comments(self, name: str, text: str) -> list[tuple[int, str]]:
        return [tuple(comment) for comment in prose_extract.source(name, text)[0]]

    def messages(self, text: str) -> list[str]:
        return [message.text for message in prose_extract.source("a.cpp", text)[1]]

    def test_a_run_of_comment_lines_is_one_comment(self):
        text = "int x;\n// One rank\n// per process.\nint y;  // Another.\n"
        self.assertEqual(
            self.comments("a.cpp", text), [(2, "One rank per process."), (4, "Another.")]
        )

    def test_a_trailing_comment_continues_in_its_column(self):
        self.assertEqual(
            self.comments("a.h", "int y;  // One rank\n        // per process.\n"),
            [(1, "One rank per process.")],
        )

    def test_block_comments_lose_their_stars(self):
        self.assertEqual(
            self.comments("a.ts", "/**\n * One rank\n * per process.\n */\n"),
            [(1, "One rank per process.")],
        )

    def test_slashes_in_a_string_are_no_comment(self):
        self.assertEqual(
            self.comments("a.cpp", 'f("http://x", \'"\', R"(// no)"); // Yes.\n'), [(1, "Yes.")]
        )

    def test_a_digit_separator_opens_no_literal(self):
        self.assertEqual(
            self.comments("a.cpp", "int x = 1'000'000;  // Yes.\nint y = 1'0;\n"), [(1, "Yes.")]
        )

    def test_license_lines_and_suppressions_are_left_out(self):
        text = (
            "// SPDX-License-Identifier: MIT\n// One rank.\n\nint x;  // NOLINT(cert-err58-cpp)\n"
        )
        self.assertEqual(self.comments("a.cpp", text), [(1, "One rank.")])

    def test_hash_comments_and_docstrings(self):
        self.assertEqual(
            self.comments("a.py", '"""A page."""\nx = "# no"  # Yes.\n'),
            [(1, "A page."), (2, "Yes.")],
        )
        self.assertEqual(self.comments("a.sh", "#!/bin/sh\necho $# '# no' # Yes.\n"), [(2, "Yes.")])
        self.assertEqual(self.comments("CMakeLists.txt", '# Yes.\nset(x "# no")\n'), [(1, "Yes.")])
        self.assertEqual(self.comments("a.css", "/* Yes. */\na { color: #fff }\n"), [(1, "Yes.")])

    def test_a_message_is_the_text_of_one_statement(self):
        text = (
            'return bad("head_dim is " + std::to_string(d) + ", must be "\n  "8");\nlog("other");\n'
        )
        self.assertEqual(self.messages(text), ["head_dim is {} , must be 8", "other"])

    def test_queries_are_no_messages(self):
        self.assertEqual(self.messages('f("SELECT * FROM runs WHERE id = 0");'), [])

    def test_pages_yield_sentences_with_their_lines(self):
        text = "# A title\n\nFirst one. Second\none.\n\n```\ncode here\n```\n"
        text += "- An [item](x.md).\n\n| a | b |\n"
        self.assertEqual(
            [tuple(sentence) for sentence in prose_extract.sentences(text)],
            [
                (1, "# A title"),
                (3, "First one."),
                (3, "Second one."),
                (9, "An item."),
                (11, "a"),
                (11, "b"),
            ],
        )


class Limits(unittest.TestCase):
    def test_a_clean_tree_passes(self):
        with Tree({"comm/src/a.cpp": CLEAN, "comm/include/muster/a.h": CLEAN}) as tree:
            self.assertEqual(tree.run().returncode, 0)

    def test_a_planted_marker_raises_the_exit_code(self):
        planted = {
            "comm/src/a.cpp": PLANTED,
            "comm/include/muster/a.h": PLANTED,
            "tests/unit/x/a_test.cpp": PLANTED,
            "docs/a.md": "Nobody waits for the peer here.\n",
            "comm/README.md": "A thread of its own does this.\n",
            "comm/src/b.cpp": 'void f() { fail("the type is none of fp32 and bf16"); }\n',
        }
        for name, text in planted.items():
            with self.subTest(name), Tree({"comm/src/c.cpp": CLEAN, name: text}) as tree:
                run = tree.run()
                self.assertEqual(run.returncode, 1, run.stdout)
                self.assertIn("above", run.stdout)

    def test_classes_have_their_targets(self):
        self.assertEqual(
            [prose.target(key) for key in ("comm/include", "messages/cli", "docs", "readme")],
            [2.0] * 4,
        )
        self.assertEqual([prose.target(key) for key in ("comm", "tests/unit")], [5.9] * 2)

    def test_the_ratchet_allows_what_it_lists(self):
        with Tree({"comm/src/a.cpp": PLANTED, prose.RATCHET: "comm 100.0\n"}) as tree:
            self.assertEqual(tree.run().returncode, 0)

    def test_update_lowers_the_ratchet_and_never_raises_it(self):
        with Tree(
            {"comm/src/a.cpp": PLANTED + "\n" + CLEAN, prose.RATCHET: "comm 100.0\n"}
        ) as tree:
            self.assertEqual(tree.run("--update").returncode, 0)
            self.assertEqual(prose.read_ratchet(tree.root / prose.RATCHET), {"comm": 50.0})
            tree.write("comm/src/a.cpp", PLANTED)
            self.assertEqual(tree.run("--update").returncode, 1)
            self.assertEqual(prose.read_ratchet(tree.root / prose.RATCHET), {"comm": 50.0})

    def test_update_removes_a_folder_at_its_target(self):
        with Tree({"comm/src/a.cpp": CLEAN, prose.RATCHET: "comm 50.0\ngone 9.0\n"}) as tree:
            tree.run("--update")
            self.assertEqual(prose.read_ratchet(tree.root / prose.RATCHET), {})

    def test_only_adopt_enters_a_new_folder(self):
        with Tree({"parallel/a.cpp": PLANTED}) as tree:
            self.assertEqual(tree.run("--update").returncode, 1)
            self.assertEqual(tree.run("--update", "--adopt").returncode, 0)
            self.assertEqual(prose.read_ratchet(tree.root / prose.RATCHET), {"parallel": 100.0})


class Listing(unittest.TestCase):
    def test_list_names_place_marker_text_and_advice(self):
        with Tree({"comm/src/a.cpp": PLANTED, "wire/src/a.cpp": PLANTED}) as tree:
            output = tree.run("--list", "comm", "--fix-hints").stdout
        self.assertIn("comm/src/a.cpp:1: [clause as a title: What] What the layer says", output)
        self.assertIn("Counters of one pass", output)
        self.assertNotIn("wire/", output)

    def test_messages_are_listed_alone(self):
        source = PLANTED + 'void f() { fail("the type is none of fp32 and bf16"); }\n'
        with Tree({"comm/src/a.cpp": source}) as tree:
            output = tree.run("--messages", "--list", "comm").stdout
        self.assertIn("[is none: is none]", output)
        self.assertNotIn("What the layer", output)


if __name__ == "__main__":
    unittest.main()
