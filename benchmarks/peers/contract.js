// The contract of contract.py for a system in Node: an object with open, close, setup, submit, submitMany, work, left.
'use strict';
const fs = require('node:fs');
const path = require('node:path');
const readline = require('node:readline');

const PAD = 'x'.repeat(64);
const CHUNK = 1000;
const BATCHES = 100;
const TICK = 0.002;
const HEAD = 24;

/** Atomics.wait on it pauses the thread exactly as long as asked; timers count whole milliseconds. */
const PAUSE = new Int32Array(new SharedArrayBuffer(4));

/** Seconds of the clock that Python's time.monotonic() reads. */
const now = () => Number(process.hrtime.bigint()) / 1e9;
const task = (i, t = 0) => ({ i, t, pad: PAD });
const range = (first, end, t) => Array.from({ length: end - first }, (_, index) => task(first + index, t));
const load = (name) => require(path.join(process.env.BENCH_NODE, 'node_modules', name));

/** The file of one worker. Its head is written every 5 ms, the rest at the end. */
class Record {
  constructor(name = process.env.BENCH_FILE) {
    this.file = fs.openSync(name, 'r+');
    this.data = fs.readFileSync(name);
    this.latencies = HEAD + (this.data.length - HEAD) / 9;
    this.starts = 0;
    setInterval(() => fs.writeSync(this.file, this.data, 0, HEAD, 0), 5);
  }

  add(i, t) {
    const at = now();
    if (!this.starts) {
      const { user, system } = process.cpuUsage();
      this.data.writeDoubleLE(at, 8);
      this.data.writeDoubleLE((user + system) / 1e6, 16);
    }
    this.starts += 1;
    this.data.writeBigUInt64LE(BigInt(this.starts), 0);
    this.data[HEAD + i] = Math.min(255, this.data[HEAD + i] + 1);
    if (t) this.data.writeDoubleLE(at - t, this.latencies + 8 * i);
  }

  close() { fs.writeSync(this.file, this.data, 0, this.data.length, 0); }
}

async function paced(peer, count, rate) {
  const size = Math.max(1, Math.floor(rate / BATCHES));
  const start = now();
  for (let first = 0; first < count; first += size) {
    const due = start + first / rate;
    if (due - TICK > now()) await new Promise((done) => setTimeout(done, (due - TICK - now()) * 1000));
    if (due > now()) Atomics.wait(PAUSE, 0, 0, (due - now()) * 1000);
    if (size === 1) await peer.submit(task(first, now()));
    else await peer.submitMany(range(first, Math.min(first + size, count), due));
  }
}

const VERBS = {
  setup: (peer) => peer.setup(),
  async one(peer, count) { for (let i = 0; i < count; i += 1) await peer.submit(task(i)); },
  async bulk(peer, count) {
    for (let first = 0; first < count; first += CHUNK) await peer.submitMany(range(first, Math.min(first + CHUNK, count)));
  },
  paced,
  async worker(peer) {
    const record = new Record();
    process.on('SIGTERM', () => { record.close(); process.exit(0); });
    await peer.work((i, t) => record.add(i, t));
    await new Promise(() => {});
  },
  async left(peer) {
    for await (const line of readline.createInterface({ input: process.stdin })) console.log(await peer.left(line));
  },
};

async function main(peer) {
  const [verb, ...numbers] = process.argv.slice(2);
  await peer.open();
  const start = now();
  await VERBS[verb](peer, ...numbers.map(Number));
  if (verb !== 'left') console.log(now() - start);
  await peer.close();
}

exports.load = load;
exports.run = (peer) => main(peer).then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
