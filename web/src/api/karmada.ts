// Fields of Karmada's kinds that the fleet and propagation views use.
import type { KubeObject } from './types'

export interface Condition {
  type: string
  status: 'True' | 'False' | 'Unknown'
  reason?: string
  message?: string
  lastTransitionTime?: string
}

export interface Taint {
  key: string
  value?: string
  effect: string
  timeAdded?: string
}

export type Quantities = Record<string, string>

export interface Cluster extends KubeObject {
  spec: {
    syncMode: string
    apiEndpoint?: string
    provider?: string
    region?: string
    zone?: string
    zones?: string[]
    taints?: Taint[]
    resourceModels?: { grade: number; ranges: { name: string; min: string; max: string }[] }[]
  }
  status?: {
    kubernetesVersion?: string
    apiEnablements?: { groupVersion: string; resources?: { name: string; kind: string }[] }[]
    conditions?: Condition[]
    nodeSummary?: { totalNum?: number; readyNum?: number }
    resourceSummary?: {
      allocatable?: Quantities
      allocating?: Quantities
      allocated?: Quantities
      allocatableModelings?: { grade: number; count: number }[]
    }
    remedyActions?: string[]
  }
}

export interface ObjectReference {
  apiVersion: string
  kind: string
  namespace?: string
  name: string
}

export interface EvictionTask {
  fromCluster: string
  purgeMode?: string
  replicas?: number
  reason: string
  message?: string
  producer: string
  gracePeriodSeconds?: number
  suppressDeletion?: boolean
  creationTimestamp?: string
  clustersBeforeFailover?: string[]
}

export interface Binding extends KubeObject {
  spec: {
    resource: ObjectReference
    replicas?: number
    clusters?: { name: string; replicas?: number }[]
    gracefulEvictionTasks?: EvictionTask[]
    suspension?: { dispatching?: boolean; scheduling?: boolean }
  }
  status?: {
    conditions?: Condition[]
    aggregatedStatus?: { clusterName: string; applied?: boolean; appliedMessage?: string; health?: string }[]
  }
}

export interface Selector {
  apiVersion: string
  kind: string
  namespace?: string
  name?: string
  labelSelector?: { matchLabels?: Record<string, string>; matchExpressions?: { key: string; operator: string; values?: string[] }[] }
}

export interface Policy extends KubeObject {
  spec: {
    resourceSelectors?: Selector[]
    placement?: {
      clusterAffinity?: { clusterNames?: string[]; exclude?: string[]; labelSelector?: unknown; fieldSelector?: unknown }
      clusterAffinities?: { affinityName: string; clusterNames?: string[]; exclude?: string[] }[]
      replicaScheduling?: { replicaSchedulingType?: string; replicaDivisionPreference?: string }
      spreadConstraints?: { spreadByField?: string; spreadByLabel?: string; minGroups?: number; maxGroups?: number }[]
    }
    priority?: number
    overrideRules?: { targetCluster?: { clusterNames?: string[] }; overriders: Record<string, unknown> }[]
    [field: string]: unknown
  }
}

export interface Quota extends KubeObject {
  spec: { overall?: Quantities; staticAssignments?: { clusterName: string; hard: Quantities }[] }
  status?: {
    overall?: Quantities
    overallUsed?: Quantities
    aggregatedStatus?: { clusterName: string; hard?: Quantities; used?: Quantities }[]
  }
}

export interface Rebalancer extends KubeObject {
  spec: { workloads: ObjectReference[]; ttlSecondsAfterFinished?: number }
  status?: { observedWorkloads?: { workload: ObjectReference; result?: string; reason?: string }[]; finishTime?: string }
}

export interface Node extends KubeObject {
  spec?: { unschedulable?: boolean; taints?: Taint[] }
  status?: { capacity?: Quantities; allocatable?: Quantities; conditions?: Condition[]; nodeInfo?: { kubeletVersion?: string } }
}

/** Kinds of policies, in display order. */
export const POLICY_KINDS = [
  { kind: 'PropagationPolicy', apiVersion: 'policy.karmada.io/v1alpha1', resource: 'propagationpolicies', namespaced: true },
  { kind: 'ClusterPropagationPolicy', apiVersion: 'policy.karmada.io/v1alpha1', resource: 'clusterpropagationpolicies', namespaced: false },
  { kind: 'OverridePolicy', apiVersion: 'policy.karmada.io/v1alpha1', resource: 'overridepolicies', namespaced: true },
  { kind: 'ClusterOverridePolicy', apiVersion: 'policy.karmada.io/v1alpha1', resource: 'clusteroverridepolicies', namespaced: false },
  { kind: 'ClusterTaintPolicy', apiVersion: 'policy.karmada.io/v1alpha1', resource: 'clustertaintpolicies', namespaced: false },
  { kind: 'FederatedResourceQuota', apiVersion: 'policy.karmada.io/v1alpha1', resource: 'federatedresourcequotas', namespaced: true },
  { kind: 'ResourceInterpreterCustomization', apiVersion: 'config.karmada.io/v1alpha1', resource: 'resourceinterpretercustomizations', namespaced: false },
  { kind: 'WorkloadRebalancer', apiVersion: 'apps.karmada.io/v1alpha1', resource: 'workloadrebalancers', namespaced: false },
] as const

export type PolicyKind = (typeof POLICY_KINDS)[number]

export const findPolicyKind = (kind: string): PolicyKind | undefined => POLICY_KINDS.find((policyKind) => policyKind.kind === kind)

export const UNSCHEDULABLE: Taint = { key: 'cluster.karmada.io/unschedulable', effect: 'NoSchedule' }
/** Taint effects that Karmada accepts for a Cluster; it refuses PreferNoSchedule. */
export const TAINT_EFFECTS = ['NoSchedule', 'NoExecute']

export const isCordoned = (taints: Taint[] = []) => taints.some(({ key, effect }) => key === UNSCHEDULABLE.key && effect === UNSCHEDULABLE.effect)

export const conditionOf = (conditions: Condition[] | undefined, type: string) => conditions?.find((condition) => condition.type === type)
