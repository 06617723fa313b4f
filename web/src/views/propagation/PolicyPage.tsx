import { Link, useSearch as useParameters } from 'wouter'
import { objectAddress, readAddress, searchAddress, writeAddress } from '../../api/address'
import { CONTROL_PLANE, type ObjectRef } from '../../api/client'
import { findPolicyKind, type PolicyKind, type Policy } from '../../api/karmada'
import { countObjects, getObject } from '../../api/kube'
import { useCanI } from '../../api/useCanI'
import { lazyPart } from '../../parts/LazyPart'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { ActionButton } from '../../parts/ActionButton'
import { withoutServerFields } from '../../parts/manifest'
import { formatNumber, formatAgeSince } from '../../parts/format'
import { printYaml } from '../../parts/yaml'
import { useTextOf } from '../../text'
import { propagationText } from '../../text/propagation'
import { BindingTable } from './Bindings'
import { PlacementSummary, SelectorSummary } from './Policies'

const Editor = lazyPart(() => import('../../parts/Editor'), (part) => part.Editor)

/** Page of one policy: its selectors, claimed templates, placement and actions. */
export function PolicyPage() {
  const t = useTextOf(propagationText)
  const { kind: kindParameter = '', namespace, name = '' } = readAddress(useParameters())
  const kind = findPolicyKind(kindParameter)
  if (!kind) return <p role="alert">{t.unknownKind(kindParameter)}</p>
  const ref = { cluster: CONTROL_PLANE, apiVersion: kind.apiVersion, resource: kind.resource, namespace: kind.namespaced ? namespace : undefined, name }
  return <PolicyDetails kind={kind} objectRef={ref} key={`${kindParameter}/${namespace}/${name}`} />
}

function PolicyDetails({ kind, objectRef }: { kind: PolicyKind; objectRef: ObjectRef }) {
  const t = useTextOf(propagationText)
  const policy = usePolledQuery(['policy', objectRef], (signal) => getObject<Policy>(objectRef, signal), 3_000)
  const { namespace, name } = objectRef
  const qualified = namespace ? `${namespace}/${name}` : name
  const overrides = /OverridePolicy$/.test(kind.kind)
  return (
    <>
      <h1>
        <small>{kind.kind}</small> {name}
      </h1>
      <PolicyActions kind={kind} objectRef={objectRef} />
      <QueryResult query={policy}>
        {(policy) => (
          <>
            <p>
              {namespace && <>{namespace} · </>}
              {formatAgeSince(policy.metadata.creationTimestamp)} · <PlacementSummary policy={policy} />
            </p>
            {policy.spec.resourceSelectors && (
              <p>
                {t.selects} <SelectorSummary selectors={policy.spec.resourceSelectors} />
              </p>
            )}
            {overrides && <AppliedTo name={qualified} />}
            {/PropagationPolicy$/.test(kind.kind) && (
              <>
                <h2>{t.claimedTemplates}</h2>
                <BindingTable q={`policy:${qualified}`} emptyText={t.noneReadable} />
              </>
            )}
            <h2>{t.definition}</h2>
            <Editor label={t.definition} value={printYaml(withoutServerFields(policy, { version: false }))} height="50vh" />
          </>
        )}
      </QueryResult>
    </>
  )
}

function PolicyActions({ kind, objectRef: { namespace, name } }: { kind: PolicyKind; objectRef: ObjectRef }) {
  const t = useTextOf(propagationText)
  const group = kind.apiVersion.replace(/\/.*/, '')
  const attributes = { cluster: CONTROL_PLANE, group, resource: kind.resource, namespace, name }
  const mayDelete = useCanI({ ...attributes, verb: 'delete' })
  const scope = namespace ? t.inNamespace(namespace) : t.inCluster
  const plan = (parameters: object) => `/plan${writeAddress({ apiVersion: kind.apiVersion, kind: kind.kind, namespace, name, ...parameters })}`
  return (
    <div className="acts">
      <Link href={plan({})}>{t.edit}</Link>
      {mayDelete ? <Link href={plan({ delete: true })}>{t.deleteObject}</Link> : <ActionButton disabledReason={t.mayNot('delete', kind.resource, scope)}>{t.deleteObject}</ActionButton>}
      <Link href={objectAddress({ cluster: CONTROL_PLANE, apiVersion: kind.apiVersion, resource: kind.resource, namespace, name })}>{t.object}</Link>
    </div>
  )
}

function AppliedTo({ name }: { name: string }) {
  const t = useTextOf(propagationText)
  const q = `kind:work override:${name}`
  const works = usePolledQuery(['applied', name], (signal) => countObjects(q, [], signal))
  return (
    <p>
      <Link href={searchAddress({ q })}>{t.appliedTo}</Link> <b>{works.data && formatNumber(works.data.total)}</b>
    </p>
  )
}
