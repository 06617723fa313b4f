// Facts about an object for its overview. Has no side effects; fields may be missing or of unexpected types.
import { groupOf, isKind, qualifiedName, type ObjectRef } from '../../api/client'
import type { KubeObject } from '../../api/types'
import { toneOfContainer, type Tone } from '../../parts/status'

export interface Condition {
  type: string
  status: string
  reason: string
  message: string
  since: string
  /** True if the status is the desired one; undefined for the status Unknown. */
  good: boolean | undefined
}

export interface Container {
  name: string
  image: string
  /** True for an init container. */
  init: boolean
  ports: string[]
  /** The current state; absent in a pod template. */
  state?: string
  /** Tone of the state. */
  tone?: Tone
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
  /** Names and values of important fields of status and spec. */
  fields: [string, string][]
}

type UntypedFields = Record<string, unknown>

const fieldsOf = (value: unknown): UntypedFields => (typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as UntypedFields) : {})
const fieldsOfItems = (value: unknown): UntypedFields[] => (Array.isArray(value) ? value.map(fieldsOf) : [])
const textOf = (value: unknown): string => (typeof value === 'string' ? value : typeof value === 'number' || typeof value === 'bigint' || typeof value === 'boolean' ? String(value) : '')

/** Types of conditions that should be False. */
const BAD = /Pressure$|Unavailable$|Failed|Failure|Degraded|Stalled|Terminating|Disrupted|DisruptionTarget|Conflict|CompleteAPIEnablementsUnknown/

export function conditions(object: KubeObject): Condition[] {
  return fieldsOfItems(fieldsOf(object.status).conditions).map((condition) => {
    const type = textOf(condition.type)
    const status = textOf(condition.status)
    const isKnown = status === 'True' || status === 'False'
    return {
      type,
      status,
      good: isKnown ? (status === 'True') !== BAD.test(type) : undefined,
      since: textOf(condition.lastTransitionTime),
      reason: textOf(condition.reason),
      message: textOf(condition.message),
    }
  })
}

/** The pod spec: the object's own, or its template's. */
export function podSpec(object: KubeObject): UntypedFields {
  const spec = fieldsOf(object.spec)
  if (Array.isArray(spec.containers)) return spec
  const jobSpec = spec.jobTemplate === undefined ? spec : fieldsOf(fieldsOf(spec.jobTemplate).spec)
  return fieldsOf(fieldsOf(jobSpec.template).spec)
}

export function containers(object: KubeObject): Container[] {
  const spec = podSpec(object)
  const status = fieldsOf(object.status)
  const states = [...fieldsOfItems(status.containerStatuses), ...fieldsOfItems(status.initContainerStatuses)]
  const toContainer = (init: boolean) => (container: UntypedFields) => {
    const name = textOf(container.name)
    const containerStatus = states.find((state) => state.name === name)
    const resources = fieldsOf(container.resources)
    return {
      name,
      image: textOf(container.image),
      init,
      ports: fieldsOfItems(container.ports).map((port) => `${textOf(port.name) && `${textOf(port.name)} `}${textOf(port.containerPort)}/${textOf(port.protocol) || 'TCP'}`),
      requests: formatQuantities(resources.requests),
      limits: formatQuantities(resources.limits),
      ...(containerStatus && { ...stateOf(containerStatus, init), ready: containerStatus.ready === true, restarts: Number(containerStatus.restartCount ?? 0) }),
    }
  }
  return [...fieldsOfItems(spec.containers).map(toContainer(false)), ...fieldsOfItems(spec.initContainers).map(toContainer(true))]
}

const formatQuantities = (value: unknown) =>
  Object.entries(fieldsOf(value))
    .map(([name, amount]) => `${name} ${textOf(amount)}`)
    .join(', ')

/** The state of a container, with a reason if it is not running, and its tone. */
function stateOf({ state, ready }: UntypedFields, init: boolean): { state: string; tone: Tone } {
  const [name = '', details] = Object.entries(fieldsOf(state))[0] ?? []
  const { reason, exitCode } = fieldsOf(details)
  const why = [textOf(reason), exitCode === undefined ? '' : `exit ${textOf(exitCode)}`].filter(Boolean).join(', ')
  const tone = toneOfContainer({ name, reason: textOf(reason), exitCode: exitCode === undefined ? undefined : Number(exitCode), ready: ready === true, init })
  return { state: why ? `${name} (${why})` : name, tone }
}

export function ports(object: KubeObject): Port[] {
  if (!isKind(object, '', 'Service')) return []
  return fieldsOfItems(fieldsOf(object.spec).ports).map((port) => ({
    name: textOf(port.name),
    port: `${textOf(port.port)}/${textOf(port.protocol) || 'TCP'}${port.nodePort === undefined ? '' : ` (node ${textOf(port.nodePort)})`}`,
    target: textOf(port.targetPort) || textOf(port.port),
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

/** Objects that fields of `spec` name, by the field. */
const NAMED_OBJECTS: Record<string, { apiVersion: string; resource: string; isNamespaced?: boolean }> = {
  nodeName: { apiVersion: 'v1', resource: 'nodes' },
  serviceAccountName: { apiVersion: 'v1', resource: 'serviceaccounts', isNamespaced: true },
  storageClassName: { apiVersion: 'storage.k8s.io/v1', resource: 'storageclasses' },
  volumeName: { apiVersion: 'v1', resource: 'persistentvolumes' },
}

/** The object that a field of another object names; undefined for other fields. */
export function objectOfField({ cluster, namespace }: Pick<ObjectRef, 'cluster' | 'namespace'>, field: string, name: string): ObjectRef | undefined {
  const named = NAMED_OBJECTS[field]
  if (!named) return undefined
  const { apiVersion, resource, isNamespaced } = named
  return { cluster, apiVersion, resource, name, ...(isNamespaced && { namespace }) }
}

export function factsOf(object: KubeObject): Facts {
  const fields = FIELDS.map(([part, name]): [string, string] => [name, textOf(fieldsOf(object[part])[name])])
  if (object.type !== undefined) fields.push(['type', textOf(object.type)])
  return {
    conditions: conditions(object),
    containers: containers(object),
    ports: ports(object),
    fields: fields.filter(([, value]) => value !== ''),
  }
}

/** Keys of a ConfigMap's or Secret's data. */
export function dataKeys(object: KubeObject): string[] {
  return [object.data, object.binaryData].flatMap((data) => Object.keys(fieldsOf(data)))
}

/** Resources that create new pods when their template changes, by group. */
const RESTARTABLE: Record<string, string[]> = { apps: ['deployments', 'statefulsets', 'daemonsets'] }
/** Built-in resources with a scale subresource, by group. */
const SCALABLE: Record<string, string[]> = { '': ['replicationcontrollers'], apps: ['deployments', 'statefulsets', 'replicasets'] }

type Resource = { apiVersion: string; resource: string }
const isIn = (groups: Record<string, string[]>, { apiVersion, resource }: Resource) => groups[groupOf(apiVersion)]?.includes(resource) ?? false
/** True for resources that are restarted by a change of their pod template. */
export const canRestart = (resource: Resource) => isIn(RESTARTABLE, resource)
/** True for built-in resources with a scale subresource. */
export const canScale = (resource: Resource) => isIn(SCALABLE, resource)
/** Resources whose pods a query finds, with their group and their kind in the query. */
const WITH_PODS: Record<string, [string, string]> = {
  pods: ['', 'pod'],
  deployments: ['apps', 'deployment'],
  replicasets: ['apps', 'replicaset'],
  statefulsets: ['apps', 'statefulset'],
  daemonsets: ['apps', 'daemonset'],
  jobs: ['batch', 'job'],
  cronjobs: ['batch', 'cronjob'],
  replicationcontrollers: ['', 'replicationcontroller'],
  services: ['', 'service'],
}

/** Query for an object's pods, in one cluster or in all; undefined for resources without pods. */
export function podsOf(ref: { apiVersion: string; resource: string; namespace?: string | undefined; name: string }, cluster: string | undefined): string | undefined {
  const podSource = WITH_PODS[ref.resource]
  if (!podSource || podSource[0] !== groupOf(ref.apiVersion)) return undefined
  const where = `${ref.namespace ? ` ns:=${ref.namespace}` : ''}${cluster ? ` cluster:=${cluster}` : ''}`
  return `kind:${qualifiedName(podSource[1], ref.apiVersion)} name:=${ref.name}${where}${podSource[1] === 'pod' ? '' : ' select:pod'}`
}
