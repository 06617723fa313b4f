// WorkloadRebalancers: reschedules selected workloads after a preview.
import { useState } from 'react'
import { Link, useSearch as useParameters } from 'wouter'
import { readAddress } from '../../api/address'
import { CONTROL_PLANE } from '../../api/client'
import type { Binding, Named, Rebalancer } from '../../api/karmada'
import { objectsOf, write } from '../../api/kube'
import { plan, policyAddress, type PlanReport } from '../../api/propagation'
import type { KubeObject } from '../../api/types'
import { useCanI } from '../../api/useCanI'
import { QueryResult, Problem, usePolledQuery } from '../../parts/polledQuery'
import { Control } from '../../parts/Control'
import { since } from '../../parts/format'
import { QueryFilter } from '../../parts/QueryFilter'
import { Pill } from '../../parts/Pill'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { propagationText } from '../../text/propagation'
import { TemplateLink, useBindings } from './Bindings'
import { PlanResult } from './PlanResult'

const keyOf = ({ apiVersion, kind, namespace = '', name }: Named) => `${apiVersion} ${kind} ${namespace} ${name}`

function fromKey(key: string): Named {
  const [apiVersion = '', kind = '', namespace = '', name = ''] = key.split(' ')
  return { apiVersion, kind, name, ...(namespace && { namespace }) }
}

export function Rebalance() {
  const t = useTextOf(propagationText)
  const { q = '', chosen: given } = readAddress(useParameters())
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set(given ? [given] : []))
  const results = usePolledQuery(['rebalancers'], (signal) => objectsOf<Rebalancer>('kind:workloadrebalancer sort:-created', 50, signal), 3_000)
  const toggle = (key: string) => {
    const next = new Set(chosen)
    if (!next.delete(key)) next.add(key)
    setChosen(next)
  }
  return (
    <>
      <h1>{t.tabs.rebalance}</h1>
      <p className="notice">{t.rebalanceHint}</p>
      <h2>{t.choose}</h2>
      <QueryFilter label={t.filter} path="/steer/rebalance" q={q} parameters={{ chosen: given }} placeholder="ns:shop on:member1" />
      <Choice q={q} chosen={chosen} onToggle={toggle} />
      <Create workloads={[...chosen].map(fromKey)} onDone={() => void results.refetch()} />
      <h2>{t.results}</h2>
      <QueryResult of={results}>{(found) => <Results found={found} />}</QueryResult>
    </>
  )
}

function Choice({ q, chosen, onToggle }: { q: string; chosen: ReadonlySet<string>; onToggle: (key: string) => void }) {
  const t = useTextOf(propagationText)
  const bindings = useBindings(q, 200)
  const keys = (found: Binding[]) => [...new Set([...chosen, ...found.map(({ spec }) => keyOf(spec.resource))])]
  return (
    <QueryResult of={bindings}>
      {({ bindings }) => (
        <ul className="plain choosing" aria-label={t.choose}>
          {keys(bindings).map((key) => {
            const { kind, namespace, name } = fromKey(key)
            return (
              <li key={key}>
                <label>
                  <input type="checkbox" checked={chosen.has(key)} onChange={() => onToggle(key)} /> {kind} {namespace ? `${namespace}/` : ''}
                  {name}
                </label>
              </li>
            )
          })}
        </ul>
      )}
    </QueryResult>
  )
}

function Create({ workloads, onDone }: { workloads: Named[]; onDone: () => void }) {
  const t = useTextOf(propagationText)
  const [name, setName] = useState('rebalance')
  const [ttl, setTtl] = useState('')
  const [report, setReport] = useState<PlanReport>()
  const [done, setDone] = useState<string>()
  const [error, setError] = useState<unknown>()
  const may = useCanI({ cluster: CONTROL_PLANE, verb: 'create', group: 'apps.karmada.io', resource: 'workloadrebalancers' })
  const object = {
    apiVersion: 'apps.karmada.io/v1alpha1',
    kind: 'WorkloadRebalancer',
    metadata: { name },
    spec: { workloads, ...(ttl !== '' && { ttlSecondsAfterFinished: Number(ttl) }) },
  } as KubeObject
  const none = workloads.length === 0 ? t.chooseFirst : undefined
  const begin = () => {
    setError(undefined)
    setReport(undefined)
    setDone(undefined)
  }
  const ask = () => {
    begin()
    plan({ objects: [object], manifests: false }).then(setReport, setError)
  }
  const create = () => {
    begin()
    write(object, { dryRun: false }).then(() => {
      setDone(name)
      onDone()
    }, setError)
  }
  return (
    <>
      <div className="acts">
        <span role="status">{t.chosen(workloads.length)}</span>
        <label>
          {t.name} <input type="text" value={name} autoComplete="off" spellCheck={false} onChange={(event) => setName(event.target.value.trim())} />
        </label>
        <label>
          {t.ttl} <input type="number" min={0} value={ttl} onChange={(event) => setTtl(event.target.value)} />
        </label>
        <Control why={none} onClick={ask}>
          {t.ask}
        </Control>
        <Control why={may ? none : t.mayNotRebalance} className="primary" onClick={create}>
          {t.create}
        </Control>
      </div>
      {done && (
        <p role="status" className="good">
          {t.rebalanced(done)}
        </p>
      )}
      <Problem error={error} />
      {report && <PlanResult report={report} />}
    </>
  )
}

function Results({ found }: { found: Rebalancer[] }) {
  const t = useTextOf(propagationText)
  if (found.length === 0) return <p className="empty">{t.noResults}</p>
  return (
    <Table label={t.results} heads={t.resultHeads}>
      {found.flatMap(({ metadata, spec, status }) =>
        spec.workloads.map((workload) => {
          const seen = status?.observedWorkloads?.find((one) => keyOf(one.workload) === keyOf(workload))
          return (
            <tr key={`${metadata.name} ${keyOf(workload)}`} data-rebalancer={metadata.name}>
              <th scope="row">
                <Link href={policyAddress({ kind: 'WorkloadRebalancer', name: metadata.name })}>{metadata.name}</Link>
              </th>
              <td>
                <TemplateLink of={workload} />
              </td>
              <td>
                <Pill state={seen?.result ?? t.running} tone={seen?.result === 'Failed' ? 'bad' : seen?.result ? 'good' : 'busy'} /> {seen?.reason}
              </td>
              <td>{since(status?.finishTime)}</td>
            </tr>
          )
        }),
      )}
    </Table>
  )
}
