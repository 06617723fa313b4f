import { Link, useLocation, useSearch as useParameters } from 'wouter'
import { readAddress, searchAddress, writeAddress } from '../../api/address'
import { qualifiedName } from '../../api/client'
import { findPolicyKind, POLICY_KINDS, type Policy, type Selector } from '../../api/karmada'
import { countObjects, queryObjects } from '../../api/kube'
import { policyAddress } from '../../api/propagation'
import { unknownClusters } from '../../api/unknownClusters'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { ClusterLink } from '../../parts/ClusterLink'
import { ClusterName } from '../../parts/ClusterName'
import { formatAgeSince } from '../../parts/format'
import { QueryFilter } from '../../parts/QueryFilter'
import { Table } from '../../parts/Table'
import { useKnownClusters } from '../../parts/useKnownClusters'
import { useTextOf } from '../../text'
import { propagationText, type PropagationText } from '../../text/propagation'
import { QueryNotice } from './QueryNotice'

/** Policies per page. */
const MAX_POLICIES = 200
/** Number of cluster names shown; more are counted. */
const MAX_NAMES = 6

/** Policies that the user may read, from the index: access to one namespace is sufficient. */
export function Policies() {
  const t = useTextOf(propagationText)
  const [, navigate] = useLocation()
  const { kind = '', q = '' } = readAddress(useParameters())
  const kinds = findPolicyKind(kind) ? kind : POLICY_KINDS.map((policyKind) => policyKind.kind).join()
  const query = `cluster:@control-plane kind:${kinds.toLowerCase()} ${q}`.trim()
  const policies = usePolledQuery(['policies', query], async (signal) => {
    const [items, count] = await Promise.all([queryObjects<Policy>(`${query} sort:kind,namespace,name`, MAX_POLICIES, signal), countObjects(query, [], signal)])
    return { items, total: count.total }
  })
  return (
    <>
      <h1>{t.tabs.policies}</h1>
      <div className="acts">
        <label>
          {t.kind}{' '}
          <select value={kind} onChange={(event) => navigate(`/steer${writeAddress({ kind: event.target.value || undefined, q: q || undefined })}`)}>
            <option value="">{t.everyKind}</option>
            {POLICY_KINDS.map((policyKind) => (
              <option key={policyKind.kind}>{policyKind.kind}</option>
            ))}
          </select>
        </label>
        <QueryFilter label={t.filter} path="/steer" q={q} parameters={{ kind: kind || undefined }} placeholder="ns:shop name:web*" />
        <Link href={`/plan${writeAddress({ new: kind || 'PropagationPolicy' })}`}>{t.createNew}</Link>
      </div>
      <QueryResult query={policies}>
        {({ items, total }) =>
          items.length === 0 ? (
            <p className="empty box">
              {t.noPolicies} <Link href={`/plan${writeAddress({ new: kind || 'PropagationPolicy' })}`}>{t.createFirst}</Link>
            </p>
          ) : (
            <>
              <QueryNotice shown={items.length} total={total} query={query} />
              <Table label={t.tabs.policies} headers={t.policyHeaders}>
                {items.map((policy) => (
                  <PolicyRow key={`${policy.kind}/${policy.metadata.namespace}/${policy.metadata.name}`} policy={policy} />
                ))}
              </Table>
            </>
          )
        }
      </QueryResult>
    </>
  )
}

function PolicyRow({ policy }: { policy: Policy }) {
  const { kind, metadata, spec } = policy
  const { namespace, name } = metadata
  return (
    <tr data-policy={`${namespace ?? ''}/${name}`}>
      <td>{kind}</td>
      <td>{namespace}</td>
      <th scope="row">
        <Link href={policyAddress({ kind, name, ...(namespace && { namespace }) })}>{name}</Link>
      </th>
      <td>
        <SelectorSummary selectors={spec.resourceSelectors} />
      </td>
      <td>
        <PlacementSummary policy={policy} />
      </td>
      <td>{spec.priority}</td>
      <td>{formatAgeSince(metadata.creationTimestamp)}</td>
    </tr>
  )
}

/** The query for the objects of a selector, in the control plane. */
function queryOf({ apiVersion, kind, name, namespace, labelSelector }: Selector): string {
  const labels = Object.entries(labelSelector?.matchLabels ?? {}).map(([key, value]) => ` label:"${key}=${value}"`)
  return `cluster:@control-plane kind:${qualifiedName(kind, apiVersion)}${namespace ? ` ns:${namespace}` : ''}${name ? ` name:=${name}` : ''}${labels.join('')}`
}

export function SelectorSummary({ selectors = [] }: { selectors?: Selector[] | undefined }) {
  const t = useTextOf(propagationText)
  return selectors.map((selector, nth) => (
    <Link key={nth} className="chip" href={searchAddress({ q: queryOf(selector) })}>
      {selector.name ? `${selector.kind}/${selector.name}` : selector.labelSelector ? `${selector.kind} ${labelRequirements(selector)}` : t.allOf(selector.kind)}
    </Link>
  ))
}

function labelRequirements({ labelSelector }: Selector): string {
  const equal = Object.entries(labelSelector?.matchLabels ?? {}).map(([key, value]) => `${key}=${value}`)
  const others = (labelSelector?.matchExpressions ?? []).map(({ key, operator, values }) => `${key} ${operator} ${values?.join() ?? ''}`.trim())
  return [...equal, ...others].join(', ')
}

/** A short description of a policy's placement. */
export function PlacementSummary({ policy: { spec } }: { policy: Policy }) {
  const t = useTextOf(propagationText)
  const unknown = unknownClusters({ spec }, useKnownClusters())
  const missing = unknown.map((name) => (
    <span key={name} className="chip missing" title={t.noSuchCluster(name)}>
      <span aria-hidden="true">⚠ </span>
      <ClusterName name={name} /> <span className="visually-hidden">{t.noSuchCluster(name)}</span>
    </span>
  ))
  if (spec.overrideRules) {
    return (
      <>
        {t.rules(spec.overrideRules.length)} {missing}
      </>
    )
  }
  const { placement } = spec
  if (!spec.resourceSelectors) return missing
  const division = placement?.replicaScheduling?.replicaSchedulingType
  return (
    <>
      {affinitySummary(placement, unknown, t)} {missing} {division && <span className="mid">{division === 'Divided' ? t.divided : t.duplicated}</span>}
    </>
  )
}

function affinitySummary(placement: Policy['spec']['placement'], unknown: string[], t: PropagationText) {
  if (placement?.clusterAffinities) return t.terms(placement.clusterAffinities.length)
  const affinity = placement?.clusterAffinity
  if (affinity?.clusterNames?.length) {
    const names = affinity.clusterNames.filter((name) => !unknown.includes(name))
    return (
      <>
        {names.slice(0, MAX_NAMES).map((name) => (
          <span key={name} className="chip">
            <ClusterLink name={name} />
          </span>
        ))}
        {names.length > MAX_NAMES && `+${names.length - MAX_NAMES}`}
      </>
    )
  }
  return affinity?.labelSelector || affinity?.fieldSelector ? t.selectedClusters : t.everyCluster
}
