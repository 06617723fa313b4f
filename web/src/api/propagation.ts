// Client of propagation.crowsnest.io/v1alpha1: explanations and plans. See docs/EXPLAIN.md.
import { objectAddress, writeAddress, type Tab } from './address'
import { CONTROL_PLANE, getJson } from './client'
import { readJson } from './json'
import type { ObjectReference } from './karmada'
import { resourceOf } from './kinds'
import { send } from './kube'
import type { KubeObject } from './types'

const ROOT = '/apis/propagation.crowsnest.io/v1alpha1'

export interface PolicyName {
  kind: string
  namespace?: string
  name: string
}

export interface PolicyReport extends PolicyName {
  priority: number
  selectsBy: string
  outcome: string
  message: string
}

export interface Difference {
  path: string
  before?: unknown
  after?: unknown
}

export interface OverrideReport extends PolicyName {
  overriders: Record<string, unknown>
  differences: Difference[]
}

export interface ClusterReport {
  name: string
  rejected?: { filter: string; reason: string }
  /** The untolerated NoExecute taint of a current target: no filter rejects it, but it will be evicted. */
  evictedBy?: string
  score: number
  estimate?: { replicas: number; boundBy?: string }
  selected: boolean
  replicas?: number
}

export interface Scheduling {
  decision: string
  trigger?: string
  reason?: string
  message?: string
  terms: { affinity?: string; message?: string; clusters: ClusterReport[] }[]
}

export interface Blocker {
  cause: string
  cluster?: string
  message: string
}

export interface Target {
  cluster: string
  placed: 'Scheduled' | 'Required' | 'Evicting'
  replicas?: number
  overrides: OverrideReport[]
  work?: ObjectReference
  applied: boolean
  health?: string
}

export interface Explanation {
  template: ObjectReference
  policy?: PolicyName
  policies: PolicyReport[]
  binding?: ObjectReference & { replicas: number; scheduledAt?: string; message?: string; requiredBy?: ObjectReference[] }
  scheduling?: Scheduling
  targets: Target[]
  waiting: Blocker[]
}

export type Change = 'Added' | 'Changed' | 'Removed' | 'Unchanged'

export interface ClusterPlan {
  name: string
  change: Change
  replicasBefore?: number
  replicas?: number
  overrides: OverrideReport[]
  manifestBefore?: KubeObject
  manifest?: KubeObject
  differences: Difference[]
  message?: string
}

export interface TemplatePlan {
  template: ObjectReference
  change: Change
  policyBefore?: PolicyName
  policy?: PolicyName
  policies: PolicyReport[]
  scheduling?: Scheduling
  clusters: ClusterPlan[]
  dependencies: ObjectReference[]
  requiredBy?: ObjectReference[]
  waiting: Blocker[]
  message?: string
}

export interface PlanReport {
  objects: (ObjectReference & { change: Change; differences: Difference[] })[]
  templates: TemplatePlan[]
  more: number
  withheld: number
  notices: string[]
}

/** Identifies a template by its resource. */
export interface Template {
  apiVersion: string
  resource: string
  namespace?: string | undefined
  name: string
}

/** Name of a template's explanation in the API: `deployments.apps:web`. */
export function templateName({ apiVersion, resource, name }: Template): string {
  const group = apiVersion.includes('/') ? `.${apiVersion.replace(/\/.*/, '')}` : ''
  return `${resource}${group}:${name}`
}

export function explanationPath(template: Template): string {
  const path = template.namespace ? `namespaces/${encodeURIComponent(template.namespace)}/explanations` : 'clusterexplanations'
  return `${ROOT}/${path}/${encodeURIComponent(templateName(template))}`
}

export function readExplanation(template: Template, signal?: AbortSignal): Promise<Explanation> {
  return getJson<Explanation>(explanationPath(template), signal)
}

export interface PlanSpec {
  objects?: unknown[]
  deletions?: unknown[]
  /** Clusters that become unreachable, and stay so. */
  losses?: unknown[]
  manifests?: boolean
  limit?: number
}

/** Previews the effect of changes; nothing is stored. */
export async function createPlan(spec: PlanSpec, signal?: AbortSignal): Promise<PlanReport> {
  const response = await send('POST', `${ROOT}/plans`, { apiVersion: 'propagation.crowsnest.io/v1alpha1', kind: 'Plan', spec }, { signal })
  return (await readJson<{ status: PlanReport }>(response)).status
}

/** Pages of one template. */
export type TemplatePage = 'why' | 'topology' | 'drift'
/** The tab of the object page that shows a template's page. */
export const PAGE_TABS = { why: 'placement', topology: 'topology', drift: 'drift' } as const satisfies Record<TemplatePage, Tab>

/** The address of a template's page: a tab of its object, or an address that first discovers the resource of an unknown kind. */
export function templateAddress(page: TemplatePage, { apiVersion, kind, namespace, name }: ObjectReference): string {
  const resource = resourceOf(apiVersion, kind)
  if (resource === undefined) return `/${page}${writeAddress({ apiVersion, kind, namespace, name })}`
  return objectAddress({ cluster: CONTROL_PLANE, apiVersion, resource, namespace, name }, PAGE_TABS[page])
}

export function policyAddress({ kind, namespace, name }: PolicyName): string {
  return `/policy${writeAddress({ kind, namespace, name })}`
}
