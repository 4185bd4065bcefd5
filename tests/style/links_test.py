# SPDX-License-Identifier: Apache-2.0
"""Plants one broken link at a time in a small tree and checks that links.py names it."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import links  # noqa: E402

CLEAN = {
    "README.md": "# Top\n[a](docs/a.md#two-words) [self](#top) [web](https://x.y/z) "
    "`comm/src/a.cpp:12`\n"
    "![picture](docs/a.png) [folder](docs)\n",
    "docs/a.md": "# A\n\n## Two `words`\n\n[up](../README.md) [b]\n\n[b]: a.md\n"
    "```\n[no](nothing.md) `comm/no.h`\n```\n",
    "docs/a.png": "x",
    "comm/src/a.cpp": "// docs/a.md has the rest.\n",
    "comm/README.md": "`src/a.cpp`, `comm/src/*.cpp`, `comm/src/{a,a}.cpp`, "
    "`comm/src/<name>.cpp` and `[x](y.md)`\n",
}


class Links(unittest.TestCase):
    def check(self, files: dict[str, str]) -> subprocess.CompletedProcess:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            subprocess.run(["git", "init", "-q", folder], check=True)
            for name, text in {**CLEAN, **files}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return subprocess.run(
                [sys.executable, str(SCRIPTS / "links.py"), folder], capture_output=True, text=True
            )

    def test_a_clean_tree_passes(self):
        run = self.check({})
        self.assertEqual(run.returncode, 0, run.stdout)

    def test_broken_links_are_named(self):
        cases = {
            "a missing page": ({"docs/b.md": "[x](c.md)\n"}, "docs/b.md:1: c.md does not exist"),
            "a missing picture": (
                {"docs/b.md": "\n![x](images/x.png)\n"},
                "docs/b.md:2: images/x.png does not exist",
            ),
            "a missing picture in HTML": (
                {"docs/b.md": '<img src="x.png">\n'},
                "x.png does not exist",
            ),
            "a missing reference": (
                {"docs/b.md": "[x]\n\n[x]: c.md\n"},
                "docs/b.md:3: c.md does not exist",
            ),
            "a missing heading": (
                {"docs/b.md": "[x](a.md#three)\n"},
                "docs/a.md has no heading for #three",
            ),
            "a missing heading of the page": (
                {"docs/b.md": "[x](#three)\n"},
                "docs/b.md has no heading for #three",
            ),
            "a link to the root of the disk": (
                {"docs/b.md": "[x](/docs/a.md)\n"},
                "/docs/a.md does not exist",
            ),
            "a missing file in backticks": (
                {"docs/b.md": "`comm/src/b.cpp`\n"},
                "`comm/src/b.cpp` does not exist",
            ),
            "a missing test in backticks": (
                {"docs/b.md": "`comm/b_test.cpp:Suite.Name`\n"},
                "`comm/b_test.cpp` does not exist",
            ),
            "a wildcard without a match": (
                {"docs/b.md": "`comm/src/*.h`\n"},
                "`comm/src/*.h` does not exist",
            ),
            "one of two alternatives": (
                {"docs/b.md": "`comm/src/a.{h,cpp}`\n"},
                "`comm/src/a.h` does not exist",
            ),
            "a script in a command": (
                {"docs/b.md": "`bash comm/x.sh --all`\n"},
                "`comm/x.sh` does not exist",
            ),
            "a page that a source names": (
                {"comm/src/b.cpp": "\n// See docs/c.md.\n"},
                "comm/src/b.cpp:2: docs/c.md",
            ),
        }
        for title, (files, expected) in cases.items():
            with self.subTest(title):
                run = self.check(files)
                self.assertEqual(run.returncode, 1)
                self.assertIn(expected, run.stdout)

    def test_anchors_are_those_of_github(self):
        text = '# One, two & *three*\n## `code_name` 1.2\n## Same\n## Same\n<a id="given"></a>\n'
        self.assertEqual(
            links.anchors(text), {"one-two--three", "code_name-12", "same", "same-1", "given"}
        )


if __name__ == "__main__":
    unittest.main()
