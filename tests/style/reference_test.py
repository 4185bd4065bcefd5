# SPDX-License-Identifier: Apache-2.0
"""Checks that reference.py reads the help texts of every CLI11 that a release of Debian has."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import reference  # noqa: E402

OLD = """Does it.
Usage: prog [OPTIONS]

Options:
  -h,--help                   Print this help message and exit
  --a-long-name INT=3         A number
  --mode TEXT:{x,y}=x (Env:MUSTER_MODE)
                              One of two
  --db TEXT REQUIRED          A file

Subcommands:
  sub                         Does more

Examples:
  prog --db FILE
"""
NEW = OLD.replace("INT=3  ", "INT [3] ").replace("=x (Env", " [x]  (Env")
ROWS = [
    ["`-h`, `--help`", "", "", "Print this help message and exit"],
    ["`--a-long-name`", "INT", "`3`", "A number"],
    ["`--mode`", "`x`, `y`", "`x` (MUSTER_MODE)", "One of two"],
    ["`--db`", "TEXT", "required", "A file"],
]


class Help(unittest.TestCase):
    def test_options_subcommands_and_defaults_are_found(self):
        self.assertEqual(reference.parse_help(OLD), ("Does it.", [("Options", ROWS)], ["sub"]))

    def test_newer_versions_give_the_same(self):
        self.assertEqual(reference.parse_help(NEW), reference.parse_help(OLD))


if __name__ == "__main__":
    unittest.main()
