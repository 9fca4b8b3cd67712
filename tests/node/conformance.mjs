// The handlers of tests/engine/conformance_handlers.py in Node.
import { appendFileSync, existsSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { die, Executor, snooze } from "./executor.mjs";

const LATER = 0.01;

const handlers = {
  "conform.echo": ({ value }) => value,
  "conform.fail": () => {
    throw new TypeError("no luck");
  },
  "conform.die": () => {
    throw die("not today");
  },
  "conform.snooze": async (_, attempt) => {
    if (attempt.checkpointed !== null) return attempt.task.attempt;
    await attempt.checkpoint({ slept: true });
    throw snooze(LATER, "too early");
  },
  "conform.steps": async (_, attempt) => {
    if (attempt.checkpointed !== null) return attempt.checkpointed.step;
    await attempt.checkpoint({ step: 7 });
    throw new TypeError("after the checkpoint");
  },
  "conform.notes": async (_, attempt) => {
    await attempt.progress(3, 4, "pages");
    await attempt.log("slow relay", 30);
  },
  "conform.gate": async ({ begun, gate }, attempt) => {
    appendFileSync(begun, `${attempt.task.attempt}\n`);
    while (!existsSync(gate)) await sleep(20, undefined, { signal: attempt.signal });
    return attempt.task.attempt;
  },
};

const executor = new Executor({
  server: process.argv[2],
  token: process.env.TASKTUI_SERVER_TOKEN,
  slots: Number(process.env.TASKTUI_THREADS ?? 10),
  handlers,
});
for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, () => executor.stop());
await executor.run();
