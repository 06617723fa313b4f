// Summary of an object. Pure; fields may be missing or of unexpected types.
import { groupOf, isKind } from '../../api/client'
import type { KubeObject } from '../../api/types'

export interface Condition {
  type: string
  status: string
  reason: string
  message: string
  since: string
  /** Undefined: not known to be good or bad. */
  good: boolean | undefined
}

export interface Container {
  name: string
  image: string
  /** An init container. */
  init: boolean
  ports: string[]
  /** The current state; absent in a template. */
  state?: string
  ready?: boolean
  restarts?: number
  requests: string
  limits: string
}

export interface Port {
  name: string
  port: string
  target: string
}

export interface Facts {
  conditions: Condition[]
  containers: Container[]
  ports: Port[]
  /** Numbers and strings of spec and status, by their field names. */
  fields: [string, string][]
}

type Loose = Record<string, unknown>

const loose = (value: unknown): Loose => (typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as Loose) : {})
const list = (value: unknown): Loose[] => (Array.isArray(value) ? value.map(loose) : [])
const text = (value: unknown): string => (typeof value === 'string' ? value : typeof value === 'number' || typeof value === 'bigint' || typeof value === 'boolean' ? String(value) : '')

/** Conditions for which True is bad. */
const BAD = /Pressure$|Unavailable$|Failed|Failure|Degraded|Stalled|Terminating|Disrupted|DisruptionTarget|Conflict|CompleteAPIEnablementsUnknown/

export function conditions(object: KubeObject): Condition[] {
  return list(loose(object.status).conditions).map((condition) => {
    const type = text(condition.type)
    const status = text(condition.status)
    const known = status === 'True' || status === 'False'
    return {
      type,
      status,
      good: known ? (status === 'True') !== BAD.test(type) : undefined,
      since: text(condition.lastTransitionTime),
      reason: text(condition.reason),
      message: text(condition.message),
    }
  })
}

/** The pod spec: the object's own, or its template's. */
export function podSpec(object: KubeObject): Loose {
  const spec = loose(object.spec)
  if (Array.isArray(spec.containers)) return spec
  const within = spec.jobTemplate === undefined ? spec : loose(loose(spec.jobTemplate).spec)
  return loose(loose(within.template).spec)
}

export function containers(object: KubeObject): Container[] {
  const spec = podSpec(object)
  const status = loose(object.status)
  const states = [...list(status.containerStatuses), ...list(status.initContainerStatuses)]
  const of = (init: boolean) => (container: Loose) => {
    const name = text(container.name)
    const now = states.find((state) => state.name === name)
    const resources = loose(container.resources)
    return {
      name,
      image: text(container.image),
      init,
      ports: list(container.ports).map((port) => `${text(port.name) && `${text(port.name)} `}${text(port.containerPort)}/${text(port.protocol) || 'TCP'}`),
      requests: amounts(resources.requests),
      limits: amounts(resources.limits),
      ...(now && { state: state(now.state), ready: now.ready === true, restarts: Number(now.restartCount ?? 0) }),
    }
  }
  return [...list(spec.containers).map(of(false)), ...list(spec.initContainers).map(of(true))]
}

const amounts = (value: unknown) =>
  Object.entries(loose(value))
    .map(([name, amount]) => `${name} ${text(amount)}`)
    .join(', ')

/** The state of a container, with a reason if it is not running. */
function state(value: unknown): string {
  const [name = '', more] = Object.entries(loose(value))[0] ?? []
  const { reason, exitCode } = loose(more)
  const why = [text(reason), exitCode === undefined ? '' : `exit ${text(exitCode)}`].filter(Boolean).join(', ')
  return why ? `${name} (${why})` : name
}

export function ports(object: KubeObject): Port[] {
  if (!isKind(object, '', 'Service')) return []
  return list(loose(object.spec).ports).map((port) => ({
    name: text(port.name),
    port: `${text(port.port)}/${text(port.protocol) || 'TCP'}${port.nodePort === undefined ? '' : ` (node ${text(port.nodePort)})`}`,
    target: text(port.targetPort) || text(port.port),
  }))
}

/** Important fields of status and spec. */
const FIELDS: [string, string][] = [
  ['status', 'phase'],
  ['status', 'reason'],
  ['spec', 'replicas'],
  ['status', 'readyReplicas'],
  ['status', 'updatedReplicas'],
  ['status', 'availableReplicas'],
  ['status', 'desiredNumberScheduled'],
  ['status', 'numberReady'],
  ['spec', 'schedule'],
  ['spec', 'suspend'],
  ['status', 'active'],
  ['status', 'succeeded'],
  ['status', 'failed'],
  ['spec', 'type'],
  ['spec', 'clusterIP'],
  ['spec', 'nodeName'],
  ['spec', 'serviceAccountName'],
  ['status', 'podIP'],
  ['status', 'hostIP'],
  ['status', 'qosClass'],
  ['spec', 'storageClassName'],
  ['spec', 'volumeName'],
  ['spec', 'providerID'],
]

export function facts(object: KubeObject): Facts {
  const fields = FIELDS.map(([part, name]): [string, string] => [name, text(loose(object[part])[name])])
  if (object.type !== undefined) fields.push(['type', text(object.type)])
  return {
    conditions: conditions(object),
    containers: containers(object),
    ports: ports(object),
    fields: fields.filter(([, value]) => value !== ''),
  }
}

/** Keys of a ConfigMap's or Secret's data. */
export function keys(object: KubeObject): string[] {
  return [object.data, object.binaryData].flatMap((data) => Object.keys(loose(data)))
}

/** Resources that create new pods when their template changes, by group. */
const RESTARTED: Record<string, string[]> = { apps: ['deployments', 'statefulsets', 'daemonsets'] }
/** Built-in resources with a scale subresource, by group. */
const SCALED: Record<string, string[]> = { '': ['replicationcontrollers'], apps: ['deployments', 'statefulsets', 'replicasets'] }

type Resource = { apiVersion: string; resource: string }
const isIn = (of: Record<string, string[]>, { apiVersion, resource }: Resource) => of[groupOf(apiVersion)]?.includes(resource) ?? false
/** Whether an object can be restarted by a change of its template. */
export const canRestart = (of: Resource) => isIn(RESTARTED, of)
/** Whether an object has a number of replicas to set. */
export const canScale = (of: Resource) => isIn(SCALED, of)
/** Kinds whose pods are known, with their group and query. */
const WITH_PODS: Record<string, [string, string]> = {
  pods: ['', 'pod'],
  deployments: ['apps', 'deployment'],
  replicasets: ['apps', 'replicaset'],
  statefulsets: ['apps', 'statefulset'],
  daemonsets: ['apps', 'daemonset'],
  jobs: ['batch', 'job'],
  replicationcontrollers: ['', 'replicationcontroller'],
  services: ['', 'service'],
}

/** The query for an object's pods; undefined: none are known. */
export function podsOf(ref: { apiVersion: string; resource: string; namespace?: string | undefined; name: string }, cluster: string | undefined): string | undefined {
  const known = WITH_PODS[ref.resource]
  if (!known || known[0] !== groupOf(ref.apiVersion)) return undefined
  const where = `${ref.namespace ? ` ns:=${ref.namespace}` : ''}${cluster ? ` cluster:=${cluster}` : ''}`
  return `kind:${known[1]} name:=${ref.name}${where}${known[1] === 'pod' ? '' : ' select:pod'}`
}
