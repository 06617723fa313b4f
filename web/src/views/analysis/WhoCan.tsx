// Page with the subjects that RBAC allows an action, or the roles of a subject, in all clusters. See docs/ACCESS.md.
import type { FormEvent } from 'react'
import { Link, useLocation, useSearch as useParameters } from 'wouter'
import { readAddress, writeAddress } from '../../api/address'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { ClusterName } from '../../parts/ClusterName'
import { skippedText } from '../../parts/skipped'
import { Table } from '../../parts/Table'
import { useText, useTextOf } from '../../text'
import { analysisText } from '../../text/analysis'
import { createAccessReview, createSubjectReview, referenceText, subjectAddress, subjectSpec, type AccessReview, type Action } from './access'

const VERBS = ['get', 'list', 'watch', 'create', 'update', 'patch', 'delete', 'deletecollection', 'impersonate', 'bind', 'escalate', 'approve', 'use']
/** Fields of the two forms, in the order of the address. */
const ACTION_FIELDS = ['verb', 'resource', 'name', 'namespace', 'cluster'] as const
const SUBJECT_FIELDS = ['subject', 'cluster'] as const

export function WhoCan() {
  const t = useTextOf(analysisText)
  const [, navigate] = useLocation()
  const search = useParameters()
  const { verb = 'get', resource = '', namespace, name, cluster, scope, subject = '' } = readAddress(search)
  const action: Action = { verb, resource, namespace, name, cluster, scope }
  const submit = (event: FormEvent<HTMLFormElement>, fields: readonly string[]) => {
    event.preventDefault()
    const form = new FormData(event.currentTarget)
    const value = (field: string) => String(form.get(field) ?? '').trim() || undefined
    // The form has no field for the scope. It belongs to the resource.
    const keptScope = value('resource') === resource && value('namespace') === undefined ? scope : undefined
    navigate(`/who-can${writeAddress({ ...Object.fromEntries(fields.map((field) => [field, value(field)])), scope: keptScope })}`)
  }
  return (
    <>
      <h1>{t.whoTitle}</h1>
      <p className="notice">{t.whoHint}</p>
      <form className="acts" role="search" aria-label={t.whoTitle} key={search} onSubmit={(event) => submit(event, ACTION_FIELDS)}>
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
        <label>
          {t.cluster} <input type="text" name="cluster" defaultValue={cluster} spellCheck={false} autoComplete="off" />
        </label>
        <button type="submit">{t.review}</button>
      </form>
      <form className="acts" role="search" aria-label={t.canTitle} key={`subject ${search}`} onSubmit={(event) => submit(event, SUBJECT_FIELDS)}>
        <label>
          {t.subject} <input type="text" name="subject" defaultValue={subject} placeholder={t.subjectHint} required spellCheck={false} autoComplete="off" />
        </label>
        <label>
          {t.cluster} <input type="text" name="cluster" defaultValue={cluster} spellCheck={false} autoComplete="off" />
        </label>
        <button type="submit">{t.reviewSubject}</button>
      </form>
      {subject !== '' ? (
        <SubjectResult key={`result ${search}`} subject={subject} cluster={cluster} />
      ) : (
        resource !== '' && <ReviewResult key={`result ${search}`} action={action} />
      )}
    </>
  )
}

function ReviewResult({ action }: { action: Action }) {
  const review = usePolledQuery(['access', action], (signal) => createAccessReview(action, signal), false)
  return <QueryResult query={review}>{(response) => <Grants status={response.status} />}</QueryResult>
}

function SubjectResult({ subject, cluster }: { subject: string; cluster: string | undefined }) {
  const t = useTextOf(analysisText)
  const spec = subjectSpec(subject, cluster)
  return spec === undefined ? <p role="alert">{t.invalidSubject}</p> : <SubjectRoles spec={spec} />
}

function SubjectRoles({ spec }: { spec: Record<string, unknown> }) {
  const review = usePolledQuery(['access', spec], (signal) => createSubjectReview(spec, signal), false)
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
        <Table label={t.grants} headers={t.grantHeaders}>
          {grants.map(({ cluster, subject, namespace, binding, role }, nth) => (
            <tr key={nth}>
              <td>
                <ClusterName name={cluster} />
              </td>
              <th scope="row">
                <Link href={subjectAddress(subject)}>{referenceText(subject)}</Link>
              </th>
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
