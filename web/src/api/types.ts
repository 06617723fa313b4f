// Types of search.crowsnest.io/v1alpha1 and of the parts of Kubernetes objects that the UI uses.

export interface Hit {
  cluster: string
  apiVersion: string
  kind: string
  resource: string
  namespace?: string
  name: string
  uid?: string
  status?: string
  ready?: string
  restarts?: number
  node?: string
  images?: string[]
  created?: string
  deleting?: string
  deleted?: string
  until?: string
  /** Number of the version in the history; only for a version that has ended. */
  seq?: number
  /** Additional columns that were requested: `changed`, `label:KEY`, `print:NAME`, `.PATH`. */
  columns?: Record<string, string>
  matched: MatchedField[]
}

export interface MatchedField {
  field: string
  text?: string
  /** Start and end of each match, in bytes of the text. */
  marks?: [number, number][]
}

export interface FacetValue {
  value: string
  count: number
}

/** A group of hits, with the sums of the requested fields; null if a sum is unknown. */
export interface Group extends FacetValue {
  sums?: Record<string, number | null>
}

export type Facets = Record<string, FacetValue[]>

/** Number of hits per group, if the query contains `group:`. */
export interface Groups {
  field: string
  values: Group[]
  more: number
}

/** A cluster whose data is missing or outdated in a response. */
export interface SkippedCluster {
  cluster: string
  reason: string
  ageSeconds?: number
  /** True if objects of the cluster are missing, not only outdated. */
  missing?: boolean
}

export interface Notice {
  message: string
  start?: number
  end?: number
}

export interface SearchDone {
  total: number
  totalRelation: 'eq' | 'gte'
  tookMs: number
  seq: number
  cursor?: string
  /** Number of changes in the cache that are not searchable yet. */
  behind?: number
  didYouMean?: string[]
  /** Alternative queries with matches, if this one has none. */
  wider?: { query: string; total: number }[]
}

/** Counts of a live search after changes. */
export interface LiveCounts {
  total: number
  totalRelation: 'eq' | 'gte'
  facets: Facets
  groups?: Groups
  /** All notices of the query and of the counts; they replace the previous ones. */
  notices: Notice[]
}

export interface Suggestions {
  start: number
  end: number
  field?: string
  items: Suggestion[]
  range?: [number, number]
  /** A limit was reached: values may be missing, and counts are lower bounds. */
  incomplete?: boolean
  notices?: string[]
}

export interface Suggestion {
  text: string
  about?: string
  count?: number
}

export interface SavedSearch {
  metadata: { name: string; resourceVersion?: string; creationTimestamp?: string }
  spec: { title: string; query: string; description?: string; shared: boolean; owner: string }
}

export interface ClusterStatus {
  name: string
  ready: 'True' | 'False' | 'Unknown'
  message?: string
  version?: string
  mode?: string
  provider?: string
  region?: string
  zones?: string[]
  nodes?: { total: number; ready: number }
  objects: number
  pods: number
  /** Seconds since the last event from the cluster. */
  ageSeconds?: number
}

export interface FleetStatus {
  clusters: ClusterStatus[]
  counts: { label: string; query: string; count: number }[]
  seq: number
  /** Search backend, and the number of changes that are not searchable yet. */
  search?: { backend: string; behind: number }
}

export interface KubeObject {
  apiVersion: string
  kind: string
  metadata: {
    name: string
    namespace?: string
    uid?: string
    creationTimestamp?: string
    deletionTimestamp?: string
    resourceVersion?: string
    generation?: number
    managedFields?: unknown
    labels?: Record<string, string>
    annotations?: Record<string, string>
    finalizers?: string[]
    ownerReferences?: { apiVersion: string; kind: string; name: string; controller?: boolean }[]
  }
  [field: string]: unknown
}

export interface KubeEvent extends KubeObject {
  type?: string
  reason?: string
  message?: string
  count?: number
  lastTimestamp?: string
  eventTime?: string
  firstTimestamp?: string
  source?: { component?: string }
  reportingComponent?: string
}
