// Page with the subjects that RBAC allows an action, in all clusters. See docs/ACCESS.md.
import type { FormEvent } from 'react'
import { useLocation, useSearch as useParameters } from 'wouter'
import { readAddress, writeAddress } from '../../api/address'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { ClusterName } from '../../parts/ClusterName'
import { skippedText } from '../../parts/skipped'
import { Table } from '../../parts/Table'
import { useText, useTextOf } from '../../text'
import { analysisText } from '../../text/analysis'
import { createAccessReview, referenceText, type AccessReview, type Action } from './access'

const VERBS = ['get', 'list', 'watch', 'create', 'update', 'patch', 'delete', 'deletecollection', 'impersonate', 'bind', 'escalate', 'approve', 'use']

export function WhoCan() {
  const t = useTextOf(analysisText)
  const [, navigate] = useLocation()
  const search = useParameters()
  const { verb = 'get', resource = '', namespace, name } = readAddress(search)
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault()
    const form = new FormData(event.currentTarget)
    const value = (field: string) => String(form.get(field) ?? '').trim() || undefined
    navigate(`/who-can${writeAddress({ verb: value('verb'), resource: value('resource'), name: value('name'), namespace: value('namespace') })}`)
  }
  return (
    <>
      <h1>{t.whoTitle}</h1>
      <p className="notice">{t.whoHint}</p>
      <form className="acts" role="search" key={search} onSubmit={submit}>
        <label>
          {t.verb} <input type="text" name="verb" list="verbs" defaultValue={verb} spellCheck={false} autoComplete="off" />
        </label>
        <datalist id="verbs">
          {VERBS.map((one) => (
            <option key={one} value={one} />
          ))}
        </datalist>
        <label>
          {t.resource} <input type="text" name="resource" defaultValue={resource} placeholder={t.resourceHint} required spellCheck={false} autoComplete="off" />
        </label>
        <label>
          {t.objectName} <input type="text" name="name" defaultValue={name} spellCheck={false} autoComplete="off" />
        </label>
        <label>
          {t.namespace} <input type="text" name="namespace" defaultValue={namespace} spellCheck={false} autoComplete="off" />
        </label>
        <button type="submit">{t.review}</button>
      </form>
      {resource !== '' && <ReviewResult key={JSON.stringify([verb, resource, namespace, name])} action={{ verb, resource, namespace, name }} />}
    </>
  )
}

function ReviewResult({ action }: { action: Action }) {
  const review = usePolledQuery(['access', action], (signal) => createAccessReview(action, signal), false)
  return <QueryResult query={review}>{(response) => <Grants status={response.status} />}</QueryResult>
}

function Grants({ status: { grants, clusters, warnings, remainingItemCount = 0 } }: { status: AccessReview['status'] }) {
  const t = useTextOf(analysisText)
  const common = useText()
  return (
    <>
      {warnings.map((warning) => (
        <p key={warning} className="notice">
          {warning}
        </p>
      ))}
      {clusters
        .filter(({ state }) => state !== 'Complete')
        .map(({ name, state, evaluationError, ageSeconds }) => (
          <p key={name} className="bad">
            <ClusterName name={name} /> {skippedText({ reason: [state, evaluationError].filter(Boolean).join(': '), ageSeconds }, common)}
          </p>
        ))}
      {grants.length === 0 && <p className="empty">{t.noGrants}</p>}
      {grants.length > 0 && (
        <Table label={t.grants} headers={t.grantHeads}>
          {grants.map(({ cluster, subject, namespace, binding, role }, nth) => (
            <tr key={nth}>
              <td>
                <ClusterName name={cluster} />
              </td>
              <th scope="row">{referenceText(subject)}</th>
              <td>{namespace ?? '*'}</td>
              <td>{referenceText(binding)}</td>
              <td>{referenceText(role)}</td>
            </tr>
          ))}
        </Table>
      )}
      {remainingItemCount > 0 && <p className="notice">{t.moreGrants(remainingItemCount)}</p>}
      <p className="notice">{t.rbacOnly}</p>
    </>
  )
}
