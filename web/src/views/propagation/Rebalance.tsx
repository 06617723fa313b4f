// Rebalance page: creates a WorkloadRebalancer for selected workloads after a preview.
import { useState } from 'react'
import { Link, useSearch as useParameters } from 'wouter'
import { readAddress } from '../../api/address'
import { CONTROL_PLANE } from '../../api/client'
import type { Binding, ObjectReference, Rebalancer } from '../../api/karmada'
import { queryObjects, storeObject } from '../../api/kube'
import { createPlan, policyAddress, type PlanReport } from '../../api/propagation'
import type { KubeObject } from '../../api/types'
import { useCanI } from '../../api/useCanI'
import { QueryResult, ErrorMessage, usePolledQuery } from '../../parts/polledQuery'
import { ActionButton } from '../../parts/ActionButton'
import { formatAgeSince } from '../../parts/format'
import { QueryFilter } from '../../parts/QueryFilter'
import { Pill } from '../../parts/Pill'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { propagationText } from '../../text/propagation'
import { TemplateLink, useBindings } from './Bindings'
import { PlanResult } from './PlanResult'

const keyOf = ({ apiVersion, kind, namespace = '', name }: ObjectReference) => `${apiVersion} ${kind} ${namespace} ${name}`

function fromKey(key: string): ObjectReference {
  const [apiVersion = '', kind = '', namespace = '', name = ''] = key.split(' ')
  return { apiVersion, kind, name, ...(namespace && { namespace }) }
}

export function Rebalance() {
  const t = useTextOf(propagationText)
  const { q = '', chosen: preselected } = readAddress(useParameters())
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set(preselected ? [preselected] : []))
  const results = usePolledQuery(['rebalancers'], (signal) => queryObjects<Rebalancer>('kind:workloadrebalancer sort:-created', 50, signal), 3_000)
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
      <QueryFilter label={t.filter} path="/steer/rebalance" q={q} parameters={{ chosen: preselected }} placeholder="ns:shop on:member1" />
      <WorkloadChooser q={q} chosen={chosen} onToggle={toggle} />
      <CreateRebalancer workloads={[...chosen].map(fromKey)} onDone={() => void results.refetch()} />
      <h2>{t.results}</h2>
      <QueryResult query={results}>{(items) => <Results rebalancers={items} />}</QueryResult>
    </>
  )
}

function WorkloadChooser({ q, chosen, onToggle }: { q: string; chosen: ReadonlySet<string>; onToggle: (key: string) => void }) {
  const t = useTextOf(propagationText)
  const bindings = useBindings(q, 200)
  const keys = (bindings: Binding[]) => [...new Set([...chosen, ...bindings.map(({ spec }) => keyOf(spec.resource))])]
  return (
    <QueryResult query={bindings}>
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

function CreateRebalancer({ workloads, onDone }: { workloads: ObjectReference[]; onDone: () => void }) {
  const t = useTextOf(propagationText)
  const [name, setName] = useState('rebalance')
  const [ttl, setTtl] = useState('')
  const [report, setReport] = useState<PlanReport>()
  const [createdName, setCreatedName] = useState<string>()
  const [error, setError] = useState<unknown>()
  const mayCreate = useCanI({ cluster: CONTROL_PLANE, verb: 'create', group: 'apps.karmada.io', resource: 'workloadrebalancers' })
  const object = {
    apiVersion: 'apps.karmada.io/v1alpha1',
    kind: 'WorkloadRebalancer',
    metadata: { name },
    spec: { workloads, ...(ttl !== '' && { ttlSecondsAfterFinished: Number(ttl) }) },
  } as KubeObject
  const disabledReason = workloads.length === 0 ? t.chooseFirst : undefined
  const reset = () => {
    setError(undefined)
    setReport(undefined)
    setCreatedName(undefined)
  }
  const runPreview = () => {
    reset()
    createPlan({ objects: [object], manifests: false }).then(setReport, setError)
  }
  const create = () => {
    reset()
    storeObject(object, { dryRun: false }).then(() => {
      setCreatedName(name)
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
        <ActionButton disabledReason={disabledReason} onClick={runPreview}>
          {t.whatIf}
        </ActionButton>
        <ActionButton disabledReason={mayCreate ? disabledReason : t.mayNotRebalance} className="primary" onClick={create}>
          {t.create}
        </ActionButton>
      </div>
      {createdName && (
        <p role="status" className="good">
          {t.rebalanced(createdName)}
        </p>
      )}
      <ErrorMessage error={error} />
      {report && <PlanResult report={report} />}
    </>
  )
}

function Results({ rebalancers }: { rebalancers: Rebalancer[] }) {
  const t = useTextOf(propagationText)
  if (rebalancers.length === 0) return <p className="empty">{t.noResults}</p>
  return (
    <Table label={t.results} headers={t.resultHeaders}>
      {rebalancers.flatMap(({ metadata, spec, status }) =>
        spec.workloads.map((workload) => {
          const observed = status?.observedWorkloads?.find((observedWorkload) => keyOf(observedWorkload.workload) === keyOf(workload))
          return (
            <tr key={`${metadata.name} ${keyOf(workload)}`} data-rebalancer={metadata.name}>
              <th scope="row">
                <Link href={policyAddress({ kind: 'WorkloadRebalancer', name: metadata.name })}>{metadata.name}</Link>
              </th>
              <td>
                <TemplateLink template={workload} />
              </td>
              <td>
                <Pill state={observed?.result ?? t.running} tone={observed?.result === 'Failed' ? 'bad' : observed?.result ? 'good' : 'busy'} /> {observed?.reason}
              </td>
              <td>{formatAgeSince(status?.finishTime)}</td>
            </tr>
          )
        }),
      )}
    </Table>
  )
}
