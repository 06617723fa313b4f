// Drafts of objects: initial content, and encoding in the fragment of an address, which is not sent to a server.
import type { Policy } from './karmada'
import type { KubeObject } from './types'

/** Maximum length of a draft's fragment in characters: mail and chat programs truncate longer addresses. */
const MAX_ADDRESS_LENGTH = 8_000

const POLICY_API_VERSION = 'policy.karmada.io/v1alpha1'

/** Metadata and first field of a policy in a namespace. */
const NAMESPACED_POLICY = `metadata:
  name: example
  namespace: default
spec:
  resourceSelectors:
  - apiVersion: apps/v1
    kind: Deployment
    name: example
`

/** Skeleton of a new object of a kind. */
export const SKELETONS: Record<string, string> = {
  PropagationPolicy: `apiVersion: ${POLICY_API_VERSION}
kind: PropagationPolicy
${NAMESPACED_POLICY}  placement:
    clusterAffinity:
      clusterNames: []
    replicaScheduling:
      replicaSchedulingType: Divided
      replicaDivisionPreference: Weighted
      weightPreference:
        dynamicWeight: AvailableReplicas
`,
  ClusterPropagationPolicy: `apiVersion: ${POLICY_API_VERSION}
kind: ClusterPropagationPolicy
metadata:
  name: example
spec:
  resourceSelectors:
  - apiVersion: v1
    kind: Namespace
    name: example
  placement:
    clusterAffinity:
      clusterNames: []
`,
  OverridePolicy: `apiVersion: ${POLICY_API_VERSION}
kind: OverridePolicy
${NAMESPACED_POLICY}  overrideRules:
  - targetCluster:
      clusterNames: []
    overriders:
      imageOverrider:
      - component: Tag
        operator: replace
        value: "1"
`,
  ClusterOverridePolicy: `apiVersion: ${POLICY_API_VERSION}
kind: ClusterOverridePolicy
metadata:
  name: example
spec:
  resourceSelectors:
  - apiVersion: apps/v1
    kind: Deployment
  overrideRules:
  - targetCluster:
      clusterNames: []
    overriders:
      labelsOverrider:
      - operator: add
        value:
          key: value
`,
  ClusterTaintPolicy: `apiVersion: ${POLICY_API_VERSION}
kind: ClusterTaintPolicy
metadata:
  name: example
spec:
  targetClusters:
    clusterNames: []
  addOnConditions:
  - conditionType: Ready
    operator: NotIn
    statusValues: ["True"]
  removeOnConditions:
  - conditionType: Ready
    operator: In
    statusValues: ["True"]
  taints:
  - key: not-ready
    effect: NoExecute
`,
  FederatedResourceQuota: `apiVersion: ${POLICY_API_VERSION}
kind: FederatedResourceQuota
metadata:
  name: example
  namespace: default
spec:
  overall:
    cpu: "10"
    memory: 20Gi
`,
  ResourceInterpreterCustomization: `apiVersion: config.karmada.io/v1alpha1
kind: ResourceInterpreterCustomization
metadata:
  name: example
spec:
  target:
    apiVersion: example.com/v1
    kind: Example
  customizations:
    replicaResource:
      luaScript: |
        function GetReplicas(obj)
          return obj.spec.replicas, nil
        end
`,
  WorkloadRebalancer: `apiVersion: apps.karmada.io/v1alpha1
kind: WorkloadRebalancer
metadata:
  name: example
spec:
  workloads:
  - apiVersion: apps/v1
    kind: Deployment
    name: example
    namespace: default
`,
}

async function transform(bytes: Uint8Array<ArrayBuffer>, stream: CompressionStream | DecompressionStream): Promise<Uint8Array<ArrayBuffer>> {
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer())
}

/** A draft as a fragment; undefined if it is too long for an address. */
export async function toFragment(text: string): Promise<string | undefined> {
  const packed = await transform(new TextEncoder().encode(text), new CompressionStream('deflate-raw'))
  const fragment = btoa(String.fromCharCode(...packed.subarray(0, MAX_ADDRESS_LENGTH))).replaceAll('+', '-').replaceAll('/', '_').replace(/=+$/, '')
  return fragment.length > MAX_ADDRESS_LENGTH || packed.length > MAX_ADDRESS_LENGTH ? undefined : `draft=${fragment}`
}

/** The draft of a fragment; undefined if there is none, or it cannot be decoded. */
export async function fromFragment(fragment: string): Promise<string | undefined> {
  const packed = /(?:^#?|&)draft=([\w-]+)/.exec(fragment)?.[1]
  if (packed === undefined) return undefined
  try {
    const bytes = Uint8Array.from(atob(packed.replaceAll('-', '+').replaceAll('_', '/')), (letter) => letter.charCodeAt(0))
    return new TextDecoder().decode(await transform(bytes, new DecompressionStream('deflate-raw')))
  } catch {
    return undefined
  }
}

/** Fields set by servers. Their absence in a draft does not mean removal. */
const SERVER_FIELDS = new Set(['status', 'managedFields', 'uid', 'creationTimestamp', 'generation', 'resourceVersion', 'selfLink', 'deletionTimestamp', 'ownerReferences', 'finalizers'])

/** An edited object in which each field that was removed from the stored object is null, so that applying it removes the field. */
export function withRemovals(stored: unknown, edited: unknown): unknown {
  if (!isMap(stored) || !isMap(edited)) return edited
  const merged = Object.entries(edited).map(([key, value]): [string, unknown] => [key, key in stored ? withRemovals(stored[key], value) : value])
  const removed = Object.keys(stored).filter((key) => !(key in edited) && !SERVER_FIELDS.has(key))
  return Object.fromEntries([...merged, ...removed.map((key): [string, unknown] => [key, null])])
}

/** A propagation policy that excludes a cluster in each of its affinity terms. */
export function withoutCluster<P extends Policy>(policy: P, cluster: string): P {
  const placement = policy.spec.placement ?? {}
  const exclude = <T extends { exclude?: string[] }>(term: T): T => ({ ...term, exclude: [...new Set([...(term.exclude ?? []), cluster])] })
  const affinity = placement.clusterAffinities ? { clusterAffinities: placement.clusterAffinities.map(exclude) } : { clusterAffinity: exclude(placement.clusterAffinity ?? {}) }
  return { ...policy, spec: { ...policy.spec, placement: { ...placement, ...affinity } } }
}

const isMap = (value: unknown): value is Record<string, unknown> => typeof value === 'object' && value !== null && !Array.isArray(value)

export const titleOf = ({ kind, metadata }: KubeObject) => `${kind} ${metadata.namespace ? `${metadata.namespace}/` : ''}${metadata.name}`
