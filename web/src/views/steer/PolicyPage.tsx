import { lazy } from 'react'
import { Link, useSearch as useParameters } from 'wouter'
import { objectAddress, readAddress, searchAddress, writeAddress } from '../../api/address'
import { CONTROL_PLANE, type ObjectRef } from '../../api/client'
import { kindNamed, type Kind, type Policy } from '../../api/karmada'
import { counted, getObject } from '../../api/kube'
import { useMay } from '../../api/useMay'
import { Answer, useAsk } from '../../parts/Asking'
import { Control } from '../../parts/Control'
import { withoutServers } from '../../parts/manifest'
import { number, since } from '../../parts/format'
import { print } from '../../parts/yaml'
import { useTextOf } from '../../text'
import { steerText } from '../../text/steer'
import { BindingTable } from './Bindings'
import { GoesTo, Selects } from './Policies'

const Editor = lazy(() => import('../../parts/Editor').then((part) => ({ default: part.Editor })))

/** One policy: selected and claimed objects, placement, and a link to edit it. */
export function PolicyPage() {
  const t = useTextOf(steerText)
  const { kind: word = '', namespace, name = '' } = readAddress(useParameters())
  const kind = kindNamed(word)
  if (!kind) return <p role="alert">{t.unknownKind(word)}</p>
  const ref = { cluster: CONTROL_PLANE, apiVersion: kind.apiVersion, resource: kind.resource, namespace: kind.namespaced ? namespace : undefined, name }
  return <Shown kind={kind} refTo={ref} key={`${word}/${namespace}/${name}`} />
}

function Shown({ kind, refTo }: { kind: Kind; refTo: ObjectRef }) {
  const t = useTextOf(steerText)
  const policy = useAsk(['policy', refTo], (signal) => getObject<Policy>(refTo, signal), 3_000)
  const { namespace, name } = refTo
  const qualified = namespace ? `${namespace}/${name}` : name
  const overrides = /OverridePolicy$/.test(kind.kind)
  return (
    <>
      <h1>
        <small>{kind.kind}</small> {name}
      </h1>
      <PolicyActions kind={kind} refTo={refTo} />
      <Answer of={policy}>
        {(policy) => (
          <>
            <p>
              {namespace && <>{namespace} · </>}
              {since(policy.metadata.creationTimestamp)} · <GoesTo policy={policy} />
            </p>
            {policy.spec.resourceSelectors && (
              <p>
                {t.selects} <Selects selectors={policy.spec.resourceSelectors} />
              </p>
            )}
            {overrides && <AppliedTo name={qualified} />}
            {/PropagationPolicy$/.test(kind.kind) && (
              <>
                <h2>{t.holds}</h2>
                <BindingTable q={`policy:${qualified}`} none={t.holdsNone} />
              </>
            )}
            <h2>{t.definition}</h2>
            <Editor label={t.definition} value={print(withoutServers(policy, { version: false }))} height="50vh" />
          </>
        )}
      </Answer>
    </>
  )
}

function PolicyActions({ kind, refTo: { namespace, name } }: { kind: Kind; refTo: ObjectRef }) {
  const t = useTextOf(steerText)
  const group = kind.apiVersion.replace(/\/.*/, '')
  const wish = { cluster: CONTROL_PLANE, group, resource: kind.resource, namespace, name }
  const mayDelete = useMay({ ...wish, verb: 'delete' })
  const where = namespace ? t.inNamespace(namespace) : t.inCluster
  const plan = (more: object) => `/plan${writeAddress({ apiVersion: kind.apiVersion, kind: kind.kind, namespace, name, ...more })}`
  return (
    <div className="acts">
      <Link href={plan({})}>{t.edit}</Link>
      {mayDelete ? <Link href={plan({ delete: true })}>{t.deleteIt}</Link> : <Control why={t.mayNot('delete', kind.resource, where)}>{t.deleteIt}</Control>}
      <Link href={objectAddress({ cluster: CONTROL_PLANE, apiVersion: kind.apiVersion, resource: kind.resource, namespace, name })}>{t.object}</Link>
    </div>
  )
}

function AppliedTo({ name }: { name: string }) {
  const t = useTextOf(steerText)
  const q = `kind:work override:${name}`
  const works = useAsk(['applied', name], (signal) => counted(q, [], signal))
  return (
    <p>
      <Link href={searchAddress({ q })}>{t.appliedTo}</Link> <b>{works.data && number(works.data.total)}</b>
    </p>
  )
}
