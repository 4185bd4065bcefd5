// SPDX-License-Identifier: Apache-2.0
// Real processes: the collector with its dashboard, and a training job under the launcher.
import { execFile, spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";

import { eventually } from "./fixture.mjs";

const PATIENCE_MS = 120_000;

function programOf(variable) {
  const path = process.env[variable];
  if (!path) throw new Error(`${variable} must name an executable`);
  return path;
}

// A child process with its output. `end` makes sure that it has ended.
class Child {
  constructor(program, args) {
    this.output = "";
    this.process = spawn(program, args, {
      stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, OPENBLAS_NUM_THREADS: "1" } });
    for (const stream of [this.process.stdout, this.process.stderr]) {
      stream.on("data", (data) => { this.output += data; });
    }
    this.exited = new Promise((resolve) => this.process.once("exit", (code, signal) => resolve(code ?? signal)));
  }

  printed(pattern) {
    const read = () => this.output.match(pattern) ?? (this.process.exitCode !== null ? "ended" : null);
    return eventually(read, (found) => found !== null, `output ${pattern}`, PATIENCE_MS).then((found) => {
      if (found === "ended") throw new Error(`no ${pattern} before the end:\n${this.output}`);
      return found;
    });
  }

  // The exit code, or the name of the signal.
  async ended() {
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`still running:\n${this.output.slice(-4000)}`)), PATIENCE_MS);
    });
    return Promise.race([this.exited, late]).finally(() => clearTimeout(timer));
  }

  async end() {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    this.process.kill("SIGTERM");
    await this.ended().catch(() => this.process.kill("SIGKILL"));
    await this.exited;
  }
}

export class Collector extends Child {
  static async start(folder) {
    // No rules: the built-in policy would save a checkpoint at a spike of the loss, which is near 0 soon.
    const policy = join(folder, "policy.yaml");
    await writeFile(policy, "version: 1\nrules: []\n");
    const collector = new Collector(programOf("MUSTER_PROGRAM"), [
      "collector", "--db", join(folder, "muster.db"), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
      "--policy", policy]);
    collector.address = (await collector.printed(/^collector {2}(\S+)$/m))[1];
    collector.url = (await collector.printed(/^dashboard {2}(\S+)$/m))[1];
    return collector;
  }
}

// Four ranks of a small model that would train for hours and save checkpoints only on command.
export class Job extends Child {
  static async start(folder, collector, runId) {
    const text = join(folder, "text.txt");
    await writeFile(text, Array.from({ length: 400 }, (_, i) =>
      `Line ${i}: the white whale rose ${(i * i) % 101} fathoms under the keel, and the watch sang out.\n`).join(""));
    return new Job(programOf("MUSTER_PROGRAM"), [
      "run", "--nproc-per-node", "4", "--run-id", runId, "--collector", collector.address,
      "--checkpoint-root", join(folder, "checkpoints"), "--log-dir", join(folder, "logs"),
      "--spool", join(folder, "spool"), "--", programOf("MOE_LM_PROGRAM"), "--data", text,
      "--steps", "1000000", "--checkpoint-interval", "0", "--batch", "8", "--seq", "32", "--layers", "2",
      "--d-model", "32", "--heads", "2", "--experts", "4", "--seed", "7"]);
  }

  // "[muster] ranks 0..3 run as pids 4711 4712 4713 4714", once per launch; the newest counts.
  async pids() {
    await this.printed(/run as pids [\d ]+\n/);
    const launches = [...this.output.matchAll(/run as pids ([\d ]+)\n/g)];
    return launches.at(-1)[1].trim().split(" ").map(Number);
  }

  // A killed launcher may have left ranks behind.
  async end() {
    await super.end();
    if (this.process.signalCode === null) return;
    for (const pid of await this.pids().catch(() => [])) {
      try {
        process.kill(pid, "SIGKILL");
      } catch (error) {
        if (error.code !== "ESRCH") throw error;
      }
    }
  }
}

// `muster ckpt verify FOLDER`: rejects with its output if the checkpoint is incomplete.
export function verifyCheckpoint(folder) {
  return promisify(execFile)(programOf("MUSTER_PROGRAM"), ["ckpt", "verify", folder]);
}

export async function withFolder(use) {
  const folder = await mkdtemp(join(tmpdir(), "muster-browser-"));
  try {
    return await use(folder);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
