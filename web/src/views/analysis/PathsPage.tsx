// Paths between objects that match a pattern, as trees. See docs/PATHS.md.
import type { FormEvent } from 'react'
import { Link, useLocation, useSearch as useParameters } from 'wouter'
import { objectAddress, readAddress, writeAddress } from '../../api/address'
import { getJson } from '../../api/client'
import { API } from '../../api/useSearch'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { ClusterName } from '../../parts/ClusterName'
import { useTextOf } from '../../text'
import { analysisText } from '../../text/analysis'
import { TreeDrawing } from '../propagation/TreeDrawing'
import { pathTrees, type ObjectPaths } from './pathTrees'

const EXAMPLES = ['ingress -ROUTES_TO*-> pod', 'secret <-USES- deploy -OWNS*..3-> pod', 'sa <-SUBJECT- rolebinding -ROLE_REF-> role']
/** Maximum number of paths on the page. */
const MOST = 100

export function PathsPage() {
  const t = useTextOf(analysisText)
  const [, navigate] = useLocation()
  const { p = '', shortest } = readAddress(useParameters())
  const address = (pattern: string, isShortest: boolean) => `/paths${writeAddress({ p: pattern || undefined, shortest: isShortest || undefined })}`
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault()
    const form = new FormData(event.currentTarget)
    navigate(address(String(form.get('pattern') ?? '').trim(), form.get('shortest') !== null))
  }
  return (
    <>
      <h1>{t.pathsTitle}</h1>
      <p className="notice">{t.pathsHint}</p>
      <form className="acts" role="search" key={`${shortest} ${p}`} onSubmit={submit}>
        <label>
          {t.pattern} <input type="text" name="pattern" className="long" defaultValue={p} placeholder={EXAMPLES[0]} spellCheck={false} autoComplete="off" />
        </label>
        <label className="option">
          <input type="checkbox" name="shortest" defaultChecked={shortest === 'true'} /> {t.shortest}
        </label>
        <button type="submit">{t.find}</button>
      </form>
      {p === '' ? (
        <section aria-label={t.pathExamples}>
          <h2>{t.pathExamples}</h2>
          <ul className="plain">
            {EXAMPLES.map((pattern) => (
              <li key={pattern}>
                <Link href={address(pattern, true)}>
                  <code>{pattern}</code>
                </Link>
              </li>
            ))}
          </ul>
        </section>
      ) : (
        <Found key={`${shortest} ${p}`} pattern={p} shortest={shortest === 'true'} />
      )}
    </>
  )
}

function Found({ pattern, shortest }: { pattern: string; shortest: boolean }) {
  const t = useTextOf(analysisText)
  const parameters = writeAddress({ p: pattern, shortest, limit: MOST })
  const found = usePolledQuery(['paths', pattern, shortest], (signal) => getJson<ObjectPaths>(`${API}/paths${parameters}`, signal), false)
  return (
    <QueryResult of={found}>
      {(answer) => (
        <>
          <p className="notice" role="status">
            {answer.paths.length === 0 ? t.noPaths : t.pathCount(answer.paths.length, answer.total, answer.totalRelation === 'gte')}
          </p>
          {answer.notices.map((notice) => (
            <p key={notice} className="notice">
              {notice}
            </p>
          ))}
          {answer.skipped.map(({ cluster, reason }) => (
            <p key={cluster} className="bad">
              <ClusterName name={cluster} />: {reason}
            </p>
          ))}
          {answer.paths.length > 0 && (
            <TreeDrawing
              key={pattern}
              roots={pathTrees(answer)}
              label={t.pathTree(pattern)}
              objectOf={({ object }) => object}
              addressOf={({ object }) => object && objectAddress(object)}
            />
          )}
        </>
      )}
    </QueryResult>
  )
}
