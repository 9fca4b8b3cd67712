// Graphile Worker, with its fastest settings: a local queue of 500 jobs, and completions in batches without a delay.
'use strict';
const { load, run } = require('./contract.js');
const graphile = load('graphile-worker');

const connectionString = process.env.BENCH_URL;
const logger = new graphile.Logger(() => () => {});
const worker = {
  connectionString,
  concurrentJobs: 24,
  maxPoolSize: 10,
  pollInterval: 2000,
  localQueue: { size: 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};
let utils;

run({
  async open() { utils = await graphile.makeWorkerUtils({ connectionString, logger }); },
  async close() { await utils.release(); },
  async setup() { await utils.migrate(); },
  async submit(task) { await utils.addJob('noop', task); },
  async submitMany(tasks) { await utils.addJobs(tasks.map((payload) => ({ identifier: 'noop', payload }))); },
  async work(record) {
    const noop = async ({ i, t }) => record(i, t);
    await graphile.run({ connectionString, logger, preset: { worker }, noHandleSignals: true, taskList: { noop } });
  },
  async left() {
    const count = 'select count(*)::int as number from graphile_worker._private_jobs';
    return (await utils.withPgClient((client) => client.query(count))).rows[0].number;
  },
});
