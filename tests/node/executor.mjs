// Executor: pulls tasks from `runner serve`, runs their handlers, and settles them. Node 20 or newer, no packages.
// docs/http-executors.md describes the protocol.
import { hostname } from "node:os";
import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

const PULL_WAIT = 20;
const LONGEST_PAUSE = 15_000;

/** A handler throws an Outcome to end its attempt in another way than with a result or an error. */
export class Outcome {
  constructor(outcome, fields = {}) {
    this.ending = { outcome, ...fields };
  }
}

export const retry = (delay, why = "") => new Outcome("retry", { delay, why });
export const die = (why = "") => new Outcome("die", { why });
export const snooze = (delay, why = "") => new Outcome("snooze", { delay, why });

/** The server refused a request; to send it again would not help. */
class Refused extends Error {}

const keyOf = ({ shard, id, fence }) => ({ shard, id, fence });
const nameOf = ({ shard, id, fence }) => `${shard}:${id}/${fence}`;
const log = (text) => process.stderr.write(`${text}\n`);

/** What a handler receives beside its payload. */
class Attempt {
  #executor;
  #stop = new AbortController();

  constructor(executor, task) {
    this.#executor = executor;
    this.task = task;
    this.checkpointed = task.checkpoint;
    this.isAsked = this.isTerminated = false;
  }

  /** Aborts when the task was terminated or lost, its time is over, or the server stops. */
  get signal() {
    return this.#stop.signal;
  }

  stop() {
    this.#stop.abort();
  }

  async #note(path, body) {
    const { lost } = await this.#executor.post(path, body);
    if (lost.length > 0) {
      this.stop();
      throw new Error(`task ${this.task.id} is lost: nothing was stored`);
    }
  }

  checkpoint(state) {
    return this.#note("checkpoint", { ...keyOf(this.task), state });
  }

  progress(done, total = null, unit = "") {
    return this.#note("progress", { progress: [{ ...keyOf(this.task), done, total, unit }] });
  }

  log(text, level = 20) {
    return this.#note("log", { lines: [{ ...keyOf(this.task), level, text }] });
  }
}

export class Executor {
  #running = new Map();
  #endings = [];
  #lease = 15;
  #beat = 1;
  #isStopping = false;
  #stopping = new AbortController();
  #resting = new AbortController();
  #settling = null;
  #free = () => {};

  constructor({ server, token, handlers, slots = 10 }) {
    const { protocol, hostname: host } = new URL(server);
    if (protocol !== "https:" && !["127.0.0.1", "[::1]", "localhost"].includes(host)) {
      throw new Error(`${server} would send the token in the clear: use https://`);
    }
    Object.assign(this, { server: server.replace(/\/+$/, ""), token, handlers, slots });
    this.name = `${hostname().replace(/[^A-Za-z0-9_.-]/g, "-").slice(0, 60)}-${randomBytes(6).toString("hex")}`;
  }

  /** Send a request. It throws Refused, or another error if the server is away. */
  async post(path, body, signal = undefined) {
    const answer = await fetch(`${this.server}/v1/${path}`, {
      method: "POST",
      headers: { authorization: `Bearer ${this.token}`, "content-type": "application/json" },
      body: JSON.stringify({ executor: this.name, ...body }),
      signal,
    });
    const text = await answer.text();
    if (answer.status === 200) return JSON.parse(text);
    const problem = `${this.server} answered ${answer.status}: ${text.slice(0, 500)}`;
    throw answer.status >= 500 ? new Error(problem) : new Refused(problem);
  }

  /** Receive no more tasks; `run` returns when the running ones are settled. */
  stop() {
    this.#isStopping = true;
    this.#resting.abort();
    this.#free();
    // A later pull ends the one that waits, and no reply is lost. Without the server, no reply comes.
    const noMore = { handlers: Object.keys(this.handlers), free: 0, wait: 0 };
    this.post("pull", noMore).catch(() => this.#stopping.abort());
  }

  async run() {
    const beating = setInterval(() => this.#heartbeat(), 200);
    let pause = 500;
    try {
      while (!this.#isStopping) {
        const free = this.slots - this.#running.size;
        if (free <= 0) { // below 0: the slots of tasks whose settle is on its way have new tasks already
          await new Promise((resolve) => (this.#free = resolve));
          continue;
        }
        try {
          const handlers = Object.keys(this.handlers);
          const reply = await this.post("pull", { handlers, free, wait: PULL_WAIT }, this.#stopping.signal);
          pause = 500;
          this.#lease = reply.lease;
          this.#beat = reply.heartbeat;
          reply.tasks.forEach((task) => this.#start(task));
          if (reply.draining) await this.#rest(1_000);
        } catch (error) {
          if (error instanceof Refused) throw error;
          if (this.#isStopping) break;
          log(`${error.message} (${error.cause?.code ?? "no code"}); trying again in ${pause / 1_000} s`);
          await this.#rest(pause);
          pause = Math.min(LONGEST_PAUSE, 2 * pause);
        }
      }
    } finally {
      while (this.#running.size > 0) await new Promise((resolve) => (this.#free = resolve));
      clearInterval(beating);
    }
  }

  #rest(milliseconds) {
    return sleep(milliseconds, undefined, { signal: this.#resting.signal }).catch(() => {});
  }

  async #start(task) {
    const attempt = new Attempt(this, task);
    this.#running.set(nameOf(task), attempt);
    const timer = task.timeout === null ? null : setTimeout(() => attempt.stop(), 1_000 * Math.min(task.timeout, 2e6));
    let ending;
    try {
      if (this.#isStopping) throw new Outcome("release", { why: "its executor stopped before the task started" });
      const result = await this.handlers[task.handler](task.payload, attempt);
      ending = { outcome: "succeed", result: result ?? null };
    } catch (error) {
      ending = endingOf(error, attempt);
    }
    clearTimeout(timer);
    this.#endings.push({ ...keyOf(task), ...ending });
    this.#settling ??= this.#settleAll();
  }

  /** Settle all endings in batches; again while the server is away, until their leases have run out. */
  async #settleAll() {
    while (this.#endings.length > 0) {
      const batch = this.#endings.splice(0, 500);
      await this.#settle(batch);
      batch.forEach((ending) => this.#running.delete(nameOf(ending)));
      this.#free();
    }
    this.#settling = null;
  }

  async #settle(batch) {
    const end = Date.now() + 4_000 * this.#lease;
    let left = batch;
    for (let pause = 100; left.length > 0 && Date.now() < end; ) {
      try {
        const { endings } = await this.post("settle", { endings: left });
        for (const { id, status, why } of endings) if (status === "refused") log(`task ${id}: ${why}`);
        left = left.filter((_, place) => endings[place].status === "pending");
      } catch (error) {
        log(error.message);
        if (error instanceof Refused) return;
        await sleep(pause);
        pause = Math.min(LONGEST_PAUSE, 2 * pause);
      }
    }
  }

  #beatenAt = 0;

  async #heartbeat() {
    if (this.#running.size === 0 || Date.now() < this.#beatenAt + 1_000 * this.#beat) return;
    this.#beatenAt = Date.now();
    try {
      const tasks = [...this.#running.values()].map(({ task }) => keyOf(task));
      const { stop, lost } = await this.post("heartbeat", { tasks });
      for (const key of [...stop, ...lost]) {
        const attempt = this.#running.get(nameOf(key));
        if (attempt === undefined) continue;
        attempt.isAsked = true;
        attempt.stop();
      }
    } catch (error) {
      log(`no heartbeat: ${error.message}`);
    }
  }
}

/** The ending of an attempt whose handler threw something. */
function endingOf(thrown, attempt) {
  if (thrown instanceof Outcome) return thrown.ending;
  if (attempt.isAsked) return { outcome: "stopped" };
  const error = thrown instanceof Error ? thrown : new Error(String(thrown));
  const type = error.name.replace(/[^A-Za-z0-9_.$]/g, "_").replace(/^[^A-Za-z_]/, "_").slice(0, 200) || "Error";
  const [message, traceback] = [error.message.slice(0, 65_536), (error.stack ?? "").slice(-65_536)];
  return { outcome: "retry", error: { type, message, traceback } };
}
