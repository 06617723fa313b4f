// Uses an API server with the JavaScript client and checks each response.
//
//     client.mjs MODULES KUBECONFIG NAMESPACE

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const [modules, kubeconfig, namespace] = process.argv.slice(2);
const k8s = createRequire(`${modules}/`)("@kubernetes/client-node");
const config = new k8s.KubeConfig();
config.loadFromFile(kubeconfig);
const core = config.makeApiClient(k8s.CoreV1Api);
const apps = config.makeApiClient(k8s.AppsV1Api);

const expectError = async (call, code, reason) => {
  const error = await call.then(() => assert.fail(`${reason} was not refused`), (error) => error);
  assert.equal(error.code, code);
  const body = typeof error.body === "string" ? JSON.parse(error.body) : error.body;
  assert.equal(body.reason, reason);
};

const configMap = (name, data) => ({ metadata: { name, labels: { of: "node" } }, data });

async function checkConfigMaps() {
  for (let n = 0; n < 7; n++) {
    await core.createNamespacedConfigMap({ namespace, body: configMap(`js-${n}`, { n: String(n) }) });
  }
  await expectError(core.createNamespacedConfigMap({ namespace, body: configMap("js-0", {}) }), 409, "AlreadyExists");
  await expectError(core.createNamespacedConfigMap({ namespace, body: configMap("No Name", {}) }), 422, "Invalid");
  await expectError(core.readNamespacedConfigMap({ namespace, name: "none" }), 404, "NotFound");

  const live = await core.readNamespacedConfigMap({ namespace, name: "js-1" });
  live.data.more = "x";
  const replaced = await core.replaceNamespacedConfigMap({ namespace, name: "js-1", body: live });
  assert.deepEqual({ ...replaced.data }, { n: "1", more: "x" });
  await expectError(core.replaceNamespacedConfigMap({ namespace, name: "js-1", body: live }), 409, "Conflict");
  const body = [{ op: "replace", path: "/data/n", value: "one" }];
  const patched = await core.patchNamespacedConfigMap({ namespace, name: "js-1", body });
  assert.equal(patched.data.n, "one");

  const names = [];
  let continueToken;
  do {
    const page = await core.listNamespacedConfigMap({ namespace, limit: 3, labelSelector: "of=node", _continue: continueToken });
    names.push(...page.items.map((item) => item.metadata.name));
    continueToken = page.metadata._continue;
  } while (continueToken);
  assert.deepEqual(names, [0, 1, 2, 3, 4, 5, 6].map((n) => `js-${n}`));
}

// An informer receives every change, and finally contains the existing objects.
async function checkInformer() {
  const path = `/api/v1/namespaces/${namespace}/configmaps`;
  const list = () => core.listNamespacedConfigMap({ namespace, labelSelector: "of=node" });
  const informer = k8s.makeInformer(config, path, list, "of=node");
  const eventCounts = { add: 0, update: 0, delete: 0 };
  const allReceived = new Promise((resolve, reject) => {
    for (const event of Object.keys(eventCounts)) {
      informer.on(event, () => {
        eventCounts[event] += 1;
        if (eventCounts.add === 27 && eventCounts.update === 20 && eventCounts.delete === 20) resolve();
      });
    }
    informer.on("error", reject);
    setTimeout(() => reject(new Error(`received ${JSON.stringify(eventCounts)}`)), 60_000).unref();
  });
  await informer.start();
  for (let n = 0; n < 20; n++) {
    await core.createNamespacedConfigMap({ namespace, body: configMap(`churn-${n}`, { n: "0" }) });
    const body = [{ op: "add", path: "/data/n", value: "1" }];
    await core.patchNamespacedConfigMap({ namespace, name: `churn-${n}`, body });
    await core.deleteNamespacedConfigMap({ namespace, name: `churn-${n}` });
  }
  await allReceived;
  const cached = informer.list(namespace).map((item) => item.metadata.name).sort();
  assert.deepEqual(cached, [0, 1, 2, 3, 4, 5, 6].map((n) => `js-${n}`));
  await informer.stop();
}

async function checkDeployments() {
  const labels = { app: "js" };
  const spec = { containers: [{ name: "main", image: "nginx" }] };
  const deployment = { metadata: { name: "js" }, spec: { selector: { matchLabels: labels }, template: { metadata: { labels }, spec } } };
  const created = await apps.createNamespacedDeployment({ namespace, body: deployment });
  assert.equal(created.spec.strategy.rollingUpdate.maxSurge, "25%");
  const objects = k8s.KubernetesObjectApi.makeApiClient(config);
  const applied = { apiVersion: "apps/v1", kind: "Deployment", metadata: { name: "js", namespace }, spec: { replicas: 3 } };
  const options = [undefined, undefined, "js-client", true, k8s.PatchStrategy.ServerSideApply];
  const response = await objects.patch(applied, ...options);
  assert.equal(response.spec.replicas, 3);
  assert.ok(response.metadata.managedFields.some((entry) => entry.manager === "js-client" && entry.operation === "Apply"));
  await apps.deleteNamespacedDeployment({ namespace, name: "js" });
}

await core.createNamespace({ body: { metadata: { name: namespace } } });
await checkConfigMaps();
await checkInformer();
await checkDeployments();
await core.deleteNamespace({ name: namespace });
console.log("ok");
process.exit(0);
