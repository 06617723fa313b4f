import { useTextOf } from '../../text'
import { object as texts } from '../../text/object'
import { Table } from './Table'

export interface Difference {
  /** A JSON pointer. */
  path: string
  before?: unknown
  after?: unknown
}

export interface Diff {
  differences: Difference[]
  more: boolean
}

/** Parts that change by themselves all the time. */
const NOISE = /^\/(status|metadata\/(resourceVersion|generation|managedFields))(\/|$)/

interface DifferencesProps {
  diff: Diff
  noise: boolean
  heads: [string, string]
  /** Values of its data are not to be seen. */
  secret: boolean
}

export function Differences({ diff: { differences, more }, noise, heads, secret }: DifferencesProps) {
  const t = useTextOf(texts)
  const shown = noise ? differences : differences.filter(({ path }) => !NOISE.test(path))
  const left = differences.length - shown.length
  const value = (of: unknown, path: string) => (of === undefined ? <i>{t.absent}</i> : secret && /^\/(data|stringData)\//.test(path) ? t.hidden : <pre>{readable(of)}</pre>)
  return (
    <>
      {shown.length === 0 && <p className="empty">{t.noDifference}</p>}
      {left > 0 && <p className="notice">{t.leftOut(left)}</p>}
      {more && <p className="notice">{t.moreDifferences}</p>}
      {shown.length > 0 && (
        <Table caption={t.differences} heads={[t.field, ...heads]}>
          {shown.map(({ path, before, after }) => (
            <tr key={path}>
              <th scope="row">{dotted(path)}</th>
              <td className="before">{value(before, path)}</td>
              <td className="after">{value(after, path)}</td>
            </tr>
          ))}
        </Table>
      )}
    </>
  )
}

const readable = (value: unknown) => (typeof value === 'string' ? value : JSON.stringify(value, null, 2))

/** A JSON pointer as people write paths: `spec.containers[0].image`. */
export function dotted(pointer: string): string {
  const parts = pointer.split('/').slice(1).map((part) => part.replaceAll('~1', '/').replaceAll('~0', '~'))
  return parts.reduce((path, part) => {
    if (/^\d+$/.test(part)) return `${path}[${part}]`
    if (!/^[\w-]+$/.test(part)) return `${path}["${part}"]`
    return path ? `${path}.${part}` : part
  }, '')
}
