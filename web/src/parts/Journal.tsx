// Journal entries by time, each with its chain of causes.
import { useEffect, useRef } from 'react'
import { Link } from 'wouter'
import { clusterAddress } from '../api/address'
import type { Entry, Subject } from '../api/journal'
import { policyAddress, templateAddress } from '../api/propagation'
import { useTextOf } from '../text'
import { journalText } from '../text/journal'
import { ClusterName } from './ClusterName'
import { Table } from './Table'

interface JournalTableProps {
  entries: Entry[]
  /** The entry whose causes are marked. */
  chosen: string | undefined
  onChoose: (id: string | undefined) => void
}

export function JournalTable({ entries, chosen, onChoose }: JournalTableProps) {
  const t = useTextOf(journalText)
  const known = new Map(entries.map((entry) => [entry.id, entry]))
  const causes = new Set(chosen === undefined ? [] : known.get(chosen)?.causes)
  return (
    <Table label={t.title} heads={t.heads}>
      {entries.map((entry) => (
        <Row key={entry.id} entry={entry} known={known} chosen={entry.id === chosen} isCause={causes.has(entry.id)} onChoose={onChoose} />
      ))}
    </Table>
  )
}

interface RowProps {
  entry: Entry
  known: ReadonlyMap<string, Entry>
  chosen: boolean
  isCause: boolean
  onChoose: (id: string | undefined) => void
}

function Row({ entry: { id, at, action, type, subject, message, cause, causes }, known, chosen, isCause, onChoose }: RowProps) {
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
        <SubjectLink of={subject} />
      </td>
      <td>{message}</td>
      <td>
        {causes.length === 0 && <span className="why">{cause.event === undefined ? t.root : t.unknown}</span>}
        {causes.length > 0 && (
          <ol className="causes">
            {causes.map((before) => {
              const one = known.get(before)
              return (
                one && (
                  <li key={before}>
                    <button type="button" className="chip" aria-label={t.follow(one.action, subjectText(one.subject))} onClick={() => onChoose(before)}>
                      {one.action}
                    </button>{' '}
                    {subjectText(one.subject)}
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

/** The link of an entry's object: a cluster's page, a policy's, or a template's explanation. */
function SubjectLink({ of }: { of: Subject }) {
  const { apiVersion, kind, namespace, name } = of
  if (!kind || !name) return null
  if (kind === 'Cluster') {
    return (
      <Link href={clusterAddress(name)}>
        <ClusterName name={name} />
      </Link>
    )
  }
  const named = { name, ...(namespace && { namespace }) }
  if (kind.endsWith('Policy') || kind === 'FederatedResourceQuota') return <Link href={policyAddress({ kind, ...named })}>{subjectText(of)}</Link>
  if (!apiVersion) return <>{subjectText(of)}</>
  return <Link href={templateAddress('why', { apiVersion, kind, ...named })}>{subjectText(of)}</Link>
}
