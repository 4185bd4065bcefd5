# SPDX-License-Identifier: Apache-2.0
"""A database of an older collector (tests/golden/store) opens and answers the same.

Usage: golden_store_test.py GOLDEN_FOLDER MUSTER
"""

import gzip
import json
import pathlib
import re
import subprocess
import sys
import tempfile

golden, muster = pathlib.Path(sys.argv[1]), sys.argv[2]
recorded = json.loads((golden / "status.json").read_text())
failures = 0
with tempfile.TemporaryDirectory(prefix="muster-golden-") as folder:
    database = pathlib.Path(folder) / "golden.db"
    database.write_bytes(gzip.decompress((golden / "golden.db.gz").read_bytes()))
    for name, arguments in {"all": [], "run": ["--run", "golden"]}.items():
        result = subprocess.run([muster, "status", "--db", database, *arguments],
                                capture_output=True, text=True, timeout=60)
        # Ages depend on the clock; columns are as wide as they are.
        lines = [" ".join(re.sub(r"\b\d+ (s|min|h|d)( ago)?(?=\s|$)", "AGE", line).split())
                 for line in result.stdout.splitlines()]
        good = result.returncode == 0 and lines == recorded[name]
        failures += 0 if good else 1
        print(("ok    " if good else "FAIL  ") + f"status of {name} is the recorded one")
        if not good:
            print(result.stdout + result.stderr)
print(f"{failures} failed")
sys.exit(1 if failures else 0)
