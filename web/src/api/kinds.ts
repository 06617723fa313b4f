// Names of kinds in the query language, which accepts the kind, its plural and its short names, as kubectl does.

/** Short names of built-in kinds and of Karmada's. */
const SHORT_NAMES: Record<string, string> = {
  cm: 'configmap', cs: 'componentstatus', ep: 'endpoints', ev: 'event', limits: 'limitrange', no: 'node', ns: 'namespace', po: 'pod', pv: 'persistentvolume',
  pvc: 'persistentvolumeclaim', quota: 'resourcequota', rc: 'replicationcontroller', sa: 'serviceaccount', svc: 'service', ds: 'daemonset', deploy: 'deployment',
  rs: 'replicaset', sts: 'statefulset', cj: 'cronjob', hpa: 'horizontalpodautoscaler', ing: 'ingress', netpol: 'networkpolicy', pdb: 'poddisruptionbudget',
  pc: 'priorityclass', sc: 'storageclass', csr: 'certificatesigningrequest', crd: 'customresourcedefinition', crds: 'customresourcedefinition',
  pp: 'propagationpolicy', cpp: 'clusterpropagationpolicy', op: 'overridepolicy', cop: 'clusteroverridepolicy', rb: 'resourcebinding', crb: 'clusterresourcebinding',
  wk: 'work', ric: 'resourceinterpretercustomization', frq: 'federatedresourcequota',
}

/** The plural as API servers derive it, in lower case. */
function plural(kind: string): string {
  if (kind === 'endpoints') return kind
  if (/(s|x|ch|sh)$/.test(kind)) return `${kind}es`
  return /[^aeiou]y$/.test(kind) ? `${kind.slice(0, -1)}ies` : `${kind}s`
}

/** Group versions whose plurals are regular. */
const KNOWN_GROUP_VERSIONS = /^(v1|(apps|batch|networking\.k8s\.io|storage\.k8s\.io|(policy|work|cluster)\.karmada\.io)\/.*)$/

/** The resource of a kind, if known without discovery. */
export function resourceOf(apiVersion: string, kind: string): string | undefined {
  return KNOWN_GROUP_VERSIONS.test(apiVersion) ? plural(kind.toLowerCase()) : undefined
}

/** Splits a kind with its group at the first dot: `deployments.apps`. The group is undefined if there is none. */
function splitGroup(word: string): [name: string, group: string | undefined] {
  const [name = '', ...labels] = word.toLowerCase().split('.')
  return [name, labels.length > 0 ? labels.join('.') : undefined]
}

/**
 * True if a value of `kind:` names this kind. Results have a kind with its group (`Deployment.apps`) if several groups have a kind of that name,
 * and only a value with that group names it. With `anyGroup`, a value with a group also names the kind without one (`Deployment`).
 */
export function isKindName(word: string, kind: string, anyGroup = true): boolean {
  const [[name, group], [expected, expectedGroup]] = [splitGroup(word), splitGroup(kind)]
  const isSameGroup = group === expectedGroup || (anyGroup && expectedGroup === undefined)
  return isSameGroup && (name === expected || SHORT_NAMES[name] === expected || name === plural(expected))
}
