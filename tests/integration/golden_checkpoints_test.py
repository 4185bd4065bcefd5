# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of an older muster (tests/golden/checkpoints) verify, load and continue bit for bit.

Usage: golden_checkpoints_test.py GOLDEN_FOLDER MUSTER MOE_LM
"""

import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

golden, muster, moe_lm = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
recorded = json.loads((golden / "cases.json").read_text())
failures = 0


def check(title, good, detail=""):
    global failures
    failures += 0 if good else 1
    print(("ok    " if good else "FAIL  ") + title + ("" if good else f"\n{detail}"))


def this_platform():
    """Properties that decide the last bit of libm's results, in the form of cases.json."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    found = re.search(r"^flags\s*:(.*)$", cpuinfo.read_text(), re.M) if cpuinfo.exists() else None
    flags = set(found.group(1).split()) if found else set()
    return {"machine": platform.machine(), "libc": os.confstr("CS_GNU_LIBC_VERSION"),
            "cpu": sorted(flags & {"avx2", "fma", "avx512f"})}


def resume(name, case, steps, scratch):
    """Restarts `name` in a copy of its files. Returns the digest per rank, and the output."""
    root = scratch / f"{name}-{steps}"
    shutil.copytree(golden / name, root / "checkpoints" / name)
    (root / "checkpoints" / name / "GENERATION").write_text("1\n")
    result = subprocess.run(
        [muster, "run", "--nproc-per-node", "2", "--run-id", name, "--checkpoint-root",
         root / "checkpoints", "--", moe_lm, "--data", golden / "text.txt",
         *recorded["common_flags"], *case["flags"], "--steps", str(steps), "--dump-params",
         root / "dump"],
        capture_output=True, text=True, timeout=120,
        env={**os.environ, "MUSTER_KERNELS_ISA": "baseline"})
    output = result.stdout + result.stderr
    check(f"{name}: a restart from step 4 to step {steps} succeeds",
          result.returncode == 0 and "from step-4.gen-1" in output, output)
    dumps = [root / f"dump.rank-{rank}" for rank in range(2)]
    return [hashlib.sha256(dump.read_bytes()).hexdigest() if dump.exists() else None
            for dump in dumps], output


def check_case(name, case, scratch):
    verified = subprocess.run([muster, "ckpt", "verify", golden / name / "step-4.gen-1"],
                              capture_output=True, text=True, timeout=60)
    check(f"{name}: every byte matches its hash", verified.returncode == 0,
          verified.stdout + verified.stderr)
    loaded, _ = resume(name, case, 4, scratch)
    check(f"{name}: the loaded parameters are those that were saved", loaded == case["loaded"],
          loaded)
    continued, output = resume(name, case, 8, scratch)
    loss = re.search(r"step 7 loss ([\d.]+)", output)
    check(f"{name}: the loss of step 7 is the recorded one",
          loss is not None and abs(float(loss.group(1)) - case["loss"]) < 0.001, output)
    if this_platform() == recorded["platform"]:
        check(f"{name}: the parameters after step 7 are the recorded ones, bit for bit",
              continued == case["continued"], continued)
    else:
        print(f"skip  {name}: digests were recorded on another platform, {recorded['platform']}")


with tempfile.TemporaryDirectory(prefix="muster-golden-") as folder:
    for case_name, entry in recorded["cases"].items():
        check_case(case_name, entry, pathlib.Path(folder))
print(f"{failures} failed")
sys.exit(1 if failures else 0)
