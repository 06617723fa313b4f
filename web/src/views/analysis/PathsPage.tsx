// Page of the paths in the object graph that match a pattern, drawn as trees. See docs/PATHS.md.
import { useState } from 'react'
import { Link, useLocation, useSearch as useParameters } from 'wouter'
import { objectAddress, readAddress, writeAddress } from '../../api/address'
import { getJson } from '../../api/client'
import { API } from '../../api/searchApi'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { SearchForm } from '../../parts/SearchForm'
import { SkippedClusters } from '../../parts/SkippedClusters'
import { useTextOf } from '../../text'
import { analysisText } from '../../text/analysis'
import { TreeDrawing } from '../propagation/TreeDrawing'
import { pathTrees, type ObjectPaths } from './pathTrees'

const EXAMPLES = ['ingress -ROUTES_TO*-> pod', 'secret <-USES- deploy -OWNS*..3-> pod', 'sa <-SUBJECT- rolebinding -ROLE_REF-> role']
/** Maximum number of paths on the page. */
const MAX_PATHS = 100

export function PathsPage() {
  const t = useTextOf(analysisText)
  const [, navigate] = useLocation()
  const { p = '', shortest } = readAddress(useParameters())
  const pageAddress = (pattern: string, onlyShortest: boolean) => `/paths${writeAddress({ p: pattern || undefined, shortest: onlyShortest || undefined })}`
  const submit = (form: FormData) => navigate(pageAddress(String(form.get('pattern') ?? '').trim(), form.get('shortest') !== null))
  return (
    <>
      <h1>{t.pathsTitle}</h1>
      <p className="notice">{t.pathsHint}</p>
      <SearchForm className="acts" key={`${shortest} ${p}`} onSubmit={submit}>
        <label>
          {t.pattern} <input type="text" name="pattern" className="long" defaultValue={p} placeholder={EXAMPLES[0]} spellCheck={false} autoComplete="off" />
        </label>
        <label className="option">
          <input type="checkbox" name="shortest" defaultChecked={shortest === 'true'} /> {t.shortest}
        </label>
        <button type="submit">{t.find}</button>
      </SearchForm>
      {p === '' ? (
        <section aria-label={t.pathExamples}>
          <h2>{t.pathExamples}</h2>
          <ul className="plain">
            {EXAMPLES.map((pattern) => (
              <li key={pattern}>
                <Link href={pageAddress(pattern, true)}>
                  <code>{pattern}</code>
                </Link>
              </li>
            ))}
          </ul>
        </section>
      ) : (
        <PathResults key={`${shortest} ${p}`} pattern={p} shortest={shortest === 'true'} />
      )}
    </>
  )
}

function PathResults({ pattern, shortest }: { pattern: string; shortest: boolean }) {
  const t = useTextOf(analysisText)
  const [shownId, setShownId] = useState<string>()
  const parameters = writeAddress({ p: pattern, shortest, limit: MAX_PATHS })
  const result = usePolledQuery(['paths', pattern, shortest], (signal) => getJson<ObjectPaths>(`${API}/paths${parameters}`, signal), false)
  return (
    <QueryResult query={result}>
      {(response) => (
        <>
          <p className="notice" role="status">
            {response.paths.length === 0 ? t.noPaths : t.pathCount(response.paths.length, response.total, response.totalRelation === 'gte')}
          </p>
          {response.notices.map((notice) => (
            <p key={notice} className="notice">
              {notice}
            </p>
          ))}
          <SkippedClusters skipped={response.skipped} />
          {response.paths.length > 0 && (
            <TreeDrawing
              roots={pathTrees(response)}
              label={t.pathTree(pattern)}
              objectOf={({ object }) => object}
              addressOf={({ object }) => object && objectAddress(object)}
              shownId={shownId}
              onShow={setShownId}
            />
          )}
        </>
      )}
    </QueryResult>
  )
}
