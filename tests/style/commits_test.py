# SPDX-License-Identifier: Apache-2.0
"""Tests commits.py: the rules of a subject, and which commits it checks."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import commits  # noqa: E402

MODULES = {"comm", "collector", "store", "docs"}
# Settings of this machine and of a calling hook must not reach the small repositories.
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
ENVIRONMENT |= {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b.c",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b.c",
}


class Subjects(unittest.TestCase):
    def assert_good(self, subject: str):
        self.assertEqual(commits.problems(subject, MODULES), [], subject)

    def assert_bad(self, subject: str, reason: str):
        self.assertIn(reason, "; ".join(commits.problems(subject, MODULES)), subject)

    def test_imperatives_pass(self):
        for text in (
            "add a deadline to every wait",
            "process frames in order",
            "bring back the log line",
            "embed the page",
            "pass the clock",
            "document the barrier",
            "share one parser",
        ):
            self.assert_good("comm: " + text)

    def test_several_modules_and_paths_pass(self):
        self.assert_good("comm, docs: describe the barrier")
        self.assert_good("collector/store: keep the index in memory")

    def test_length_is_at_most_72(self):
        self.assert_good("comm: add " + "x" * 62)
        self.assert_bad("comm: add " + "x" * 63, "73 characters, at most 72")

    def test_a_module_is_required_and_known(self):
        self.assert_bad("add a deadline", "module: imperative")
        self.assert_bad("garden: add a deadline", '"garden" is neither')
        self.assert_bad("comm:add a deadline", "module: imperative")
        self.assert_bad("Comm: add a deadline", "module: imperative")

    def test_other_forms_than_the_imperative_fail(self):
        for text, reason in (
            ("the barrier waits", "not an imperative"),
            ("a needle task", "not an imperative"),
            ("an index", "not an imperative"),
            ("adding an index", "a participle"),
            ("added an index", "in the past"),
            ("adds an index", "third person"),
            ("Add an index", "a capital"),
            ("whole expert layers", "not an imperative"),
            ("rotation of logs", "a noun"),
            ("42 cases", "must be an imperative"),
        ):
            self.assert_bad("comm: " + text, reason)

    def test_a_period_at_the_end_fails(self):
        self.assert_bad("comm: add an index.", "period")


class Repository:
    """A repository in a temporary folder, with a commit for each subject."""

    def __init__(self, *subjects: str):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name).resolve() / "origin"
        self.root.mkdir()
        self.git("init", "-q")
        (self.root / "comm").mkdir()
        (self.root / "comm/a.h").write_text("int x;\n")
        self.git("add", ".")
        for subject in subjects:
            self.git("commit", "-q", "--allow-empty", "-m", subject)

    def git(self, *words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(self.root), *words],
            check=True,
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
        ).stdout.strip()

    def base(self, commit: str):
        (self.root / ".ci").mkdir(exist_ok=True)
        (self.root / ".ci/base").write_text(commit + "\n")

    def check(self, *options: str, root: pathlib.Path | None = None) -> subprocess.CompletedProcess:
        return subprocess.run(
            [
                sys.executable,
                str(SCRIPTS / "commits.py"),
                "--root",
                str(root or self.root),
                *options,
            ],
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.folder.cleanup()


class History(unittest.TestCase):
    def test_only_commits_after_the_base_are_checked(self):
        with Repository("old ways", "comm: add an index") as repository:
            repository.base(repository.git("rev-parse", "HEAD~1"))
            run = repository.check()
            self.assertEqual(run.returncode, 0, run.stdout)
            self.assertIn("1 checked", run.stdout)

    def test_a_bad_subject_is_named(self):
        with Repository("old ways", "comm: the index") as repository:
            repository.base(repository.git("rev-parse", "HEAD~1"))
            run = repository.check()
            self.assertEqual(run.returncode, 1)
            self.assertIn('"comm: the index": "the" is not an imperative', run.stdout)

    def test_a_merge_is_skipped(self):
        with Repository("comm: add an index") as repository:
            repository.base(repository.git("rev-parse", "HEAD"))
            repository.git("checkout", "-q", "-b", "side")
            repository.git("commit", "-q", "--allow-empty", "-m", "comm: drop the index")
            repository.git("checkout", "-q", "-")
            repository.git("merge", "-q", "--no-ff", "-m", "Merge branch 'side'", "side")
            run = repository.check()
            self.assertEqual(run.returncode, 0, run.stdout)
            self.assertIn("1 checked", run.stdout)

    def test_a_folder_that_a_later_commit_removes_is_known(self):
        with Repository("comm: add an index") as repository:
            base = repository.git("rev-parse", "HEAD")
            (repository.root / "ep").mkdir()
            (repository.root / "ep/b.h").write_text("int y;\n")
            repository.git("add", ".")
            repository.git("commit", "-q", "-m", "ep: add a plan")
            repository.git("rm", "-q", "-r", "ep")
            repository.git("commit", "-q", "-m", "comm: move the plan")
            run = repository.check(base)
            self.assertEqual(run.returncode, 0, run.stdout)

    def test_a_shallow_clone_without_the_base_checks_what_is_there(self):
        with Repository("old ways", "comm: add an index", "comm: the index") as repository:
            base = repository.git("rev-parse", "HEAD~2")
            clone = repository.root.parent / "clone"
            subprocess.run(
                ["git", "clone", "-q", "--depth", "1", f"file://{repository.root}", str(clone)],
                check=True,
                capture_output=True,
                env=ENVIRONMENT,
            )
            run = repository.check(base, root=clone)
            self.assertEqual(run.returncode, 1)
            self.assertIn("shallow clone, which lacks the base", run.stdout)
            self.assertIn("1 checked", run.stdout)

    def test_an_unknown_base_in_a_whole_clone_fails(self):
        with Repository("comm: add an index") as repository:
            repository.base("0" * 40)
            run = repository.check()
            self.assertEqual(run.returncode, 1)
            self.assertIn("is not in this repository", run.stdout)

    def test_no_history_is_skipped_with_a_reason(self):
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run(
                [sys.executable, str(SCRIPTS / "commits.py"), "--root", folder],
                capture_output=True,
                text=True,
                env=ENVIRONMENT | {"GIT_CEILING_DIRECTORIES": str(pathlib.Path(folder).parent)},
            )
            self.assertEqual(run.returncode, commits.SKIPPED)
            self.assertIn("skipped", run.stdout)


class Messages(unittest.TestCase):
    def check(self, message: str) -> int:
        with Repository("comm: add an index") as repository:
            path = repository.root.parent / "message"
            path.write_text(message)
            return repository.check("--message", str(path)).returncode

    def test_a_message_is_checked_before_the_commit(self):
        self.assertEqual(self.check("comm: drop the index\n\nIt was slow.\n# comment\n"), 0)
        self.assertEqual(self.check("comm: the index\n"), 1)

    def test_the_second_line_must_be_empty(self):
        self.assertEqual(self.check("comm: drop the index\nIt was slow.\n"), 1)


if __name__ == "__main__":
    unittest.main()
