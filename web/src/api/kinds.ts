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

/** True if a value of `kind:` names this kind. */
export function isKindName(word: string, kind: string): boolean {
  const [name, expected] = [word.toLowerCase(), kind.toLowerCase()]
  return name === expected || SHORT_NAMES[name] === expected || name === plural(expected)
}
