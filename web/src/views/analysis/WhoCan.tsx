// Page with the subjects that RBAC allows an action, or the roles of a subject, in all clusters. See docs/ACCESS.md.
import { Link, useLocation, useSearch as useParameters } from 'wouter'
import { readAddress, writeAddress } from '../../api/address'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { ClusterName } from '../../parts/ClusterName'
import { SkippedClusters } from '../../parts/SkippedClusters'
import { SearchForm } from '../../parts/SearchForm'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { analysisText } from '../../text/analysis'
import { createAccessReview, createSubjectReview, incompleteClusters, referenceText, subjectAddress, subjectSpec, type AccessReview, type Action } from './access'

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
  const submit = (form: FormData, fields: readonly string[]) => {
    const value = (field: string) => String(form.get(field) ?? '').trim() || undefined
    // The form has no field for the scope. It belongs to the resource.
    const keptScope = value('resource') === resource && value('namespace') === undefined ? scope : undefined
    navigate(`/who-can${writeAddress({ ...Object.fromEntries(fields.map((field) => [field, value(field)])), scope: keptScope })}`)
  }
  return (
    <>
      <h1>{t.whoTitle}</h1>
      <p className="notice">{t.whoHint}</p>
      <SearchForm className="acts" aria-label={t.whoTitle} key={search} onSubmit={(form) => submit(form, ACTION_FIELDS)}>
        <Field label={t.verb} name="verb" list="verbs" value={verb} />
        <datalist id="verbs">
          {VERBS.map((verbOption) => (
            <option key={verbOption} value={verbOption} />
          ))}
        </datalist>
        <Field label={t.resource} name="resource" value={resource} placeholder={t.resourceHint} required />
        <Field label={t.objectName} name="name" value={name} />
        <Field label={t.namespace} name="namespace" value={namespace} />
        <Field label={t.cluster} name="cluster" value={cluster} />
        <button type="submit">{t.review}</button>
      </SearchForm>
      <SearchForm className="acts" aria-label={t.canTitle} key={`subject ${search}`} onSubmit={(form) => submit(form, SUBJECT_FIELDS)}>
        <Field label={t.subject} name="subject" value={subject} placeholder={t.subjectHint} required />
        <Field label={t.cluster} name="cluster" value={cluster} />
        <button type="submit">{t.reviewSubject}</button>
      </SearchForm>
      {subject !== '' ? (
        <SubjectResult key={`result ${search}`} subject={subject} cluster={cluster} />
      ) : (
        resource !== '' && <ReviewResult key={`result ${search}`} action={action} />
      )}
    </>
  )
}

interface FieldProps {
  label: string
  name: string
  value: string | undefined
  placeholder?: string
  required?: boolean
  /** ID of the suggestions. */
  list?: string
}

function Field({ label, value, ...input }: FieldProps) {
  return (
    <label>
      {label} <input type="text" defaultValue={value} spellCheck={false} autoComplete="off" {...input} />
    </label>
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
  return (
    <>
      {warnings.map((warning) => (
        <p key={warning} className="notice">
          {warning}
        </p>
      ))}
      <SkippedClusters skipped={incompleteClusters(clusters)} />
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
