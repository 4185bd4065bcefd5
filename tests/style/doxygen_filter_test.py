# SPDX-License-Identifier: Apache-2.0
"""Checks that doxygen_filter.py turns the comments of headers into those that doxygen reads."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import doxygen_filter  # noqa: E402


class Filter(unittest.TestCase):
    def check(self, header: str, expected: str):
        lines = doxygen_filter.filtered(header.split("\n"))
        self.assertEqual("\n".join(lines), expected)

    def test_the_first_comment_describes_the_file(self):
        self.check("// Types.\n#pragma once", "/// \\file\n/// Types.\n#pragma once")

    def test_a_license_line_is_not_a_description(self):
        license_line = "// SPDX-License-Identifier: Apache-2.0"
        self.check(
            f"{license_line}\n// Types.", f"{license_line}\n/// \\file\n/// Types."
        )

    def test_a_comment_above_describes_what_follows_and_is_plain_text(self):
        self.check("  // Returns <x>.\n  int f();", "  /// Returns \\<x\\>.\n  int f();")

    def test_a_comment_after_code_describes_the_code_and_may_go_on(self):
        self.check(
            "  int x;  // steps\n          // or none",
            "  int x;  ///< steps\n          ///< or none",
        )

    def test_code_in_backticks_is_not_escaped(self):
        self.check("  // `a<b>` or a<b>", "  /// `a<b>` or a\\<b\\>")

    def test_ends_of_scopes_and_switches_of_tools_are_left_alone(self):
        self.check("}  // namespace muster", "}  // namespace muster")
        self.check("int x;  // NOLINT(a)", "int x;  // NOLINT(a)")


if __name__ == "__main__":
    unittest.main()
