# SPDX-License-Identifier: Apache-2.0
"""Tests spdx.py: the line of each file type, its place, and that a second run adds nothing."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/spdx.py"
APACHE = "  Apache License\n  Version 2.0, January 2004\n"
LINE = "SPDX-License-Identifier: Apache-2.0\n"
FILES = {
    "a/a.h": "#pragma once\n",
    "a/a.cpp": "// A file.\nint x;\n",
    "a/a.ts": "",
    "a/a.proto": "syntax;\n",
    "a/a.mjs": "#!/usr/bin/env node\nx\n",
    "a/a.py": "#!/usr/bin/env python3\nx\n",
    "a/a.sh": "#!/bin/sh\nx\n",
    "a/CMakeLists.txt": "x\n",
    "a/a.cmake": "x\n",
    "a/a.md": "x\n",
    "a/a.hex": "x\n",
}


class Spdx(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        subprocess.run(["git", "init", "-q", self.folder.name], check=True)
        (self.root / "a").mkdir()
        (self.root / "LICENSE").write_text(APACHE)
        for name, text in FILES.items():
            (self.root / name).write_text(text)

    def run_script(self, *options: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, str(SCRIPT), "--root", str(self.root), *options],
            capture_output=True,
            text=True,
        )

    def text(self, name: str) -> str:
        return (self.root / name).read_text()

    def test_missing_lines_are_named(self):
        run = self.run_script()
        self.assertEqual(run.returncode, 1)
        self.assertIn("a/a.h: must start with", run.stdout)
        self.assertIn("9 files, 9 without the line", run.stdout)

    def test_added_lines_satisfy_the_check(self):
        self.assertEqual(self.run_script("--add").returncode, 0)
        self.assertEqual(self.run_script().returncode, 0)

    def test_the_line_is_first_or_follows_the_interpreter(self):
        self.run_script("--add")
        self.assertEqual(self.text("a/a.cpp"), "// " + LINE + FILES["a/a.cpp"])
        self.assertEqual(self.text("a/a.ts"), "// " + LINE)
        self.assertEqual(self.text("a/CMakeLists.txt"), "# " + LINE + "x\n")
        self.assertEqual(self.text("a/a.sh"), "#!/bin/sh\n# " + LINE + "x\n")
        self.assertEqual(self.text("a/a.mjs"), "#!/usr/bin/env node\n// " + LINE + "x\n")

    def test_other_files_are_left_alone(self):
        self.run_script("--add")
        self.assertEqual((self.text("a/a.md"), self.text("a/a.hex")), ("x\n", "x\n"))

    def test_adding_twice_changes_nothing(self):
        self.run_script("--add")
        before = {name: self.text(name) for name in FILES}
        self.assertIn("0 lines added", self.run_script("--add").stdout)
        self.assertEqual(before, {name: self.text(name) for name in FILES})

    def test_another_license_is_corrected(self):
        (self.root / "a/a.h").write_text("// SPDX-License-Identifier: MIT\n#pragma once\n")
        self.assertEqual(self.run_script().returncode, 1)
        self.run_script("--add")
        self.assertEqual(self.text("a/a.h"), "// " + LINE + "#pragma once\n")

    def test_an_unknown_license_is_an_error(self):
        (self.root / "LICENSE").write_text("Do as you like.\n")
        self.assertEqual(self.run_script("--add").returncode, 2)
        self.assertEqual(self.text("a/a.h"), "#pragma once\n")


if __name__ == "__main__":
    unittest.main()
