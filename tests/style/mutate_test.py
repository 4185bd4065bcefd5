#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Changes that scripts/mutate.py makes to a line, which ones it draws, and its report."""

import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import mutate  # noqa: E402


def changes(line: str, previous: str = "") -> list[tuple[str, str]]:
    return mutate.changes_of(line, previous)


class Changes(unittest.TestCase):
    def test_operators_numbers_and_conditions_change(self):
        made = changes("  if (a + 1 <= b && c) {")
        for change in (("arithmetic", "  if (a - 1 <= b && c) {"), ("off by one", "  if (a + 1 < b && c) {"),
                       ("logic", "  if (a + 1 <= b || c) {"), ("constant", "  if (a + 2 <= b && c) {"),
                       ("constant", "  if (a + 0 <= b && c) {"),
                       ("negated condition", "  if (!(a + 1 <= b && c)) {")):
            self.assertIn(change, made)

    def test_extremes_and_fractions_change(self):
        made = changes("  return std::min(x, 0.5F);", "  f();")
        self.assertIn(("min/max", "  return std::max(x, 0.5F);"), made)
        self.assertIn(("constant", "  return std::min(x, 2.0F);"), made)

    def test_a_whole_statement_is_removed_but_not_the_rest_of_one(self):
        self.assertIn(("removed statement", "  ;"), changes("  seen.clear();", "  f();"))
        self.assertEqual(changes("      seen.clear();", "  const auto x ="), [])

    def test_a_declaration_and_a_return_are_not_removed(self):
        for line in ("  const auto x = f();", "  return f();", "  auto x = f();"):
            self.assertEqual(changes(line, "  g();"), [])

    def test_strings_comments_and_directives_stay(self):
        for line in ('  fail("a + 1 < 2");', "  // a + 1 < 2", "#if A + 1", "  static_assert(a + 1 < 2);"):
            self.assertFalse([name for name, _ in changes(line, "  const auto x =")], line)

    def test_templates_pointers_and_hexadecimal_numbers_stay(self):
        self.assertEqual(changes("  std::vector<int> one(const T&& x, T* y, 0x7F) const", ""), [])


class Choice(unittest.TestCase):
    FILES = {f"m/src/{name}.cpp": mutate.mutants_of("m", f"m/src/{name}.cpp", "int a = 1;\nint b = 2 + 3;\n")
             for name in "abc"}

    def test_a_seed_repeats_itself_and_another_differs(self):
        def draw(seed):
            return mutate.choose(self.FILES, 4, random.Random(seed))
        self.assertEqual(draw(1), draw(1))
        self.assertNotEqual(draw(1), draw(2))

    def test_no_line_is_drawn_twice(self):
        chosen = mutate.choose(self.FILES, 100, random.Random(1))
        self.assertEqual(len(chosen), 6)
        self.assertEqual(len({(mutant.source, mutant.line) for mutant in chosen}), 6)

    def test_a_key_names_one_change(self):
        keys = [mutant.key() for mutants in self.FILES.values() for mutant in mutants]
        self.assertEqual(len(keys), len(set(keys)))


class Survivors(unittest.TestCase):
    def test_are_judged_again_while_their_line_is_the_same(self):
        def result(line: int, verdict: str) -> dict:
            return {"module": "m", "source": "m/a.cpp", "line": line, "name": "logic", "before": "a && b",
                    "after": "a || b", "verdict": verdict, "key": "", "test": ""}
        results = [result(1, mutate.SURVIVED), result(2, mutate.SURVIVED), result(3, mutate.KILLED)]
        again = mutate.survivors_of(results, lambda source, line: "a && b" if line != 2 else "a && c")
        self.assertEqual([mutant.line for mutant in again], [1])


class Report(unittest.TestCase):
    def test_counts_by_module_and_file_and_lists_survivors(self):
        text = mutate.report([
            {"module": "m", "source": "m/a.cpp", "line": 1, "name": "logic", "before": " a && b", "after": " a || b",
             "verdict": mutate.SURVIVED},
            {"module": "m", "source": "m/b.cpp", "line": 2, "name": "order", "before": "x", "after": "y",
             "verdict": mutate.KILLED}], 7)
        for part in ("seed 7", "| m | 1 | 0 | 1 | 0 | 0 |", "| m/b.cpp | 1 |", "- m/a.cpp:1, logic", "`a || b`"):
            self.assertIn(part, text)


if __name__ == "__main__":
    unittest.main()
