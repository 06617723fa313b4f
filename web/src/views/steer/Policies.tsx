import { Link, useLocation, useSearch as useParameters } from 'wouter'
import { readAddress, searchAddress, writeAddress } from '../../api/address'
import { kindNamed, KINDS, type Policy, type Selector } from '../../api/karmada'
import { counted, objectsOf } from '../../api/kube'
import { policyAddress } from '../../api/propagation'
import { unknownClusters } from '../../api/unknownClusters'
import { Answer, useAsk } from '../../parts/Asking'
import { ClusterName } from '../../parts/ClusterName'
import { since } from '../../parts/format'
import { Narrow } from '../../parts/Narrow'
import { Table } from '../../parts/Table'
import { useKnownClusters } from '../../parts/useKnownClusters'
import { useTextOf } from '../../text'
import { steerText, type SteerText } from '../../text/steer'

/** Policies per page. */
const MOST = 200
/** Number of cluster names shown; more are counted. */
const NAMES = 6

/** Policies that the user may read, from the index: access to one namespace is sufficient. */
export function Policies() {
  const t = useTextOf(steerText)
  const [, navigate] = useLocation()
  const { kind = '', q = '' } = readAddress(useParameters())
  const kinds = kindNamed(kind) ? kind : KINDS.map((one) => one.kind).join()
  const query = `cluster:@control-plane kind:${kinds.toLowerCase()} ${q}`.trim()
  const policies = useAsk(['policies', query], async (signal) => {
    const [found, count] = await Promise.all([objectsOf<Policy>(`${query} sort:kind,namespace,name`, MOST, signal), counted(query, [], signal)])
    return { found, total: count.total }
  })
  return (
    <>
      <h1>{t.tabs.policies}</h1>
      <div className="acts">
        <label>
          {t.kind}{' '}
          <select value={kind} onChange={(event) => navigate(`/steer${writeAddress({ kind: event.target.value || undefined, q: q || undefined })}`)}>
            <option value="">{t.everyKind}</option>
            {KINDS.map((one) => (
              <option key={one.kind}>{one.kind}</option>
            ))}
          </select>
        </label>
        <Narrow label={t.filter} path="/steer" q={q} of={{ kind: kind || undefined }} placeholder="ns:shop name:web*" />
        <Link href={`/plan${writeAddress({ new: kind || 'PropagationPolicy' })}`}>{t.newOne}</Link>
      </div>
      <Answer of={policies}>
        {({ found, total }) =>
          found.length === 0 ? (
            <p className="empty box">
              {t.noPolicies} <Link href={`/plan${writeAddress({ new: kind || 'PropagationPolicy' })}`}>{t.createFirst}</Link>
            </p>
          ) : (
            <>
              <p className="notice">
                {found.length < total && `${t.firstOf(found.length, total)} `}
                <Link href={searchAddress({ q: query })}>{t.asQuery}</Link>
              </p>
              <Table label={t.tabs.policies} heads={t.policyHeads}>
                {found.map((policy) => (
                  <PolicyRow key={`${policy.kind}/${policy.metadata.namespace}/${policy.metadata.name}`} policy={policy} />
                ))}
              </Table>
            </>
          )
        }
      </Answer>
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
        <Selects selectors={spec.resourceSelectors} />
      </td>
      <td>
        <GoesTo policy={policy} />
      </td>
      <td>{spec.priority}</td>
      <td>{since(metadata.creationTimestamp)}</td>
    </tr>
  )
}

/** The query for the objects of a selector, in the control plane. */
function queryOf({ kind, name, namespace, labelSelector }: Selector): string {
  const labels = Object.entries(labelSelector?.matchLabels ?? {}).map(([key, value]) => ` label:"${key}=${value}"`)
  return `cluster:@control-plane kind:${kind}${namespace ? ` ns:${namespace}` : ''}${name ? ` name:=${name}` : ''}${labels.join('')}`
}

export function Selects({ selectors = [] }: { selectors?: Selector[] | undefined }) {
  const t = useTextOf(steerText)
  return selectors.map((selector, nth) => (
    <Link key={nth} className="chip" href={searchAddress({ q: queryOf(selector) })}>
      {selector.name ? `${selector.kind}/${selector.name}` : selector.labelSelector ? `${selector.kind} ${labels(selector)}` : t.allOf(selector.kind)}
    </Link>
  ))
}

function labels({ labelSelector }: Selector): string {
  const equal = Object.entries(labelSelector?.matchLabels ?? {}).map(([key, value]) => `${key}=${value}`)
  const others = (labelSelector?.matchExpressions ?? []).map(({ key, operator, values }) => `${key} ${operator} ${values?.join() ?? ''}`.trim())
  return [...equal, ...others].join(', ')
}

/** A short description of a policy's placement. */
export function GoesTo({ policy: { spec } }: { policy: Policy }) {
  const t = useTextOf(steerText)
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
      {affinity(placement, unknown, t)} {missing} {division && <span className="mid">{division === 'Divided' ? t.divided : t.duplicated}</span>}
    </>
  )
}

function affinity(placement: Policy['spec']['placement'], unknown: string[], t: SteerText) {
  if (placement?.clusterAffinities) return t.terms(placement.clusterAffinities.length)
  const one = placement?.clusterAffinity
  if (one?.clusterNames?.length) {
    const names = one.clusterNames.filter((name) => !unknown.includes(name))
    return (
      <>
        {names.slice(0, NAMES).map((name) => (
          <span key={name} className="chip">
            <ClusterName name={name} />
          </span>
        ))}
        {names.length > NAMES && `+${names.length - NAMES}`}
      </>
    )
  }
  return one?.labelSelector || one?.fieldSelector ? t.selectedClusters : t.everyCluster
}
