// Journal entries by time, each with its chain of causes.
import { useEffect, useRef } from 'react'
import { Link } from 'wouter'
import type { Entry, Subject } from '../api/journal'
import { policyAddress, templateAddress } from '../api/propagation'
import { useTextOf } from '../text'
import { journalText } from '../text/journal'
import { ClusterLink } from './ClusterLink'
import { Table } from './Table'

interface JournalTableProps {
  entries: Entry[]
  /** The entry whose causes are marked. */
  chosen: string | undefined
  onChoose: (id: string | undefined) => void
}

export function JournalTable({ entries, chosen, onChoose }: JournalTableProps) {
  const t = useTextOf(journalText)
  const entriesById = new Map(entries.map((entry) => [entry.id, entry]))
  const causes = new Set(chosen === undefined ? [] : entriesById.get(chosen)?.causes)
  return (
    <Table label={t.title} headers={t.heads}>
      {entries.map((entry) => (
        <Row key={entry.id} entry={entry} entriesById={entriesById} chosen={entry.id === chosen} isCause={causes.has(entry.id)} onChoose={onChoose} />
      ))}
    </Table>
  )
}

interface RowProps {
  entry: Entry
  entriesById: ReadonlyMap<string, Entry>
  chosen: boolean
  isCause: boolean
  onChoose: (id: string | undefined) => void
}

function Row({ entry: { id, at, action, type, subject, message, cause, causes }, entriesById, chosen, isCause, onChoose }: RowProps) {
  const t = useTextOf(journalText)
  const row = useRef<HTMLTableRowElement>(null)
  useEffect(() => {
    if (chosen) row.current?.scrollIntoView({ block: 'nearest' })
  }, [chosen])
  return (
    <tr ref={row} data-entry={action} data-cause={isCause || undefined} aria-current={chosen || undefined}>
      <td>
        <time dateTime={at} title={at}>
          {at.slice(0, 19).replace('T', ' ')}
        </time>
      </td>
      <th scope="row" className={type === 'Warning' ? 'bad' : undefined}>
        <button type="button" className="chip" aria-pressed={chosen} onClick={() => onChoose(chosen ? undefined : id)}>
          {action}
        </button>
      </th>
      <td>
        <SubjectLink subject={subject} />
      </td>
      <td>{message}</td>
      <td>
        {causes.length === 0 && <span className="why">{cause.event === undefined ? t.rootCause : t.unknownCause}</span>}
        {causes.length > 0 && (
          <ol className="causes">
            {causes.map((causeId) => {
              const causeEntry = entriesById.get(causeId)
              return (
                causeEntry && (
                  <li key={causeId}>
                    <button type="button" className="chip" aria-label={t.follow(causeEntry.action, subjectText(causeEntry.subject))} onClick={() => onChoose(causeId)}>
                      {causeEntry.action}
                    </button>{' '}
                    {subjectText(causeEntry.subject)}
                  </li>
                )
              )
            })}
          </ol>
        )}
      </td>
    </tr>
  )
}

const subjectText = ({ kind, namespace, name }: Subject) => `${kind ?? ''} ${namespace ? `${namespace}/` : ''}${name ?? ''}`.trim()

/** Link to an entry's object: the page of a cluster or a policy, or the explanation of a template. */
function SubjectLink({ subject }: { subject: Subject }) {
  const { apiVersion, kind, namespace, name } = subject
  if (!kind || !name) return null
  if (kind === 'Cluster') return <ClusterLink name={name} />
  const reference = { name, ...(namespace && { namespace }) }
  if (kind.endsWith('Policy') || kind === 'FederatedResourceQuota') return <Link href={policyAddress({ kind, ...reference })}>{subjectText(subject)}</Link>
  if (!apiVersion) return <>{subjectText(subject)}</>
  return <Link href={templateAddress('why', { apiVersion, kind, ...reference })}>{subjectText(subject)}</Link>
}
