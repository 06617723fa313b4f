import { useState } from 'react'
import { Link } from 'wouter'
import { searchAddress } from '../api/address'
import { remove, replace, useSaved } from '../api/saved'
import type { SavedSearch } from '../api/types'
import { Control } from '../parts/Control'
import { Modal } from '../parts/Modal'
import { Query } from '../parts/Query'
import { Skeleton } from '../parts/Skeleton'
import { Table } from '../parts/Table'
import { useText } from '../text'
import { useSession } from './SignIn'

type Doing = { what: 'change' | 'delete'; search: SavedSearch }

/** Saved searches: own ones can be changed, shared ones used. */
export function Saved() {
  const t = useText()
  const session = useSession()
  const { searches, error, reload } = useSaved()
  const [doing, setDoing] = useState<Doing>()
  if (error) return <p role="alert">{error}</p>
  if (!searches) return <Skeleton />
  // The server allows administrators to change shared ones as well.
  const why = (search: SavedSearch) =>
    search.spec.owner === session.user || session.groups.includes('system:masters') ? undefined : t.notYours(search.spec.owner)
  return (
    <>
      <h1>{t.savedSearches}</h1>
      {searches.length === 0 ? (
        <p className="empty box">
          {t.noneSaved} <Link href="/search">{t.search}</Link>
        </p>
      ) : (
        <Table label={t.savedSearches} heads={[t.title, t.query, t.owner, <span className="visually-hidden">{t.change}</span>]}>
          {searches.map((search) => (
            <tr key={search.metadata.name}>
              <th scope="row">
                <Link href={searchAddress({ q: search.spec.query })}>{search.spec.title}</Link>
              </th>
              <td>
                <Query text={search.spec.query} />
              </td>
              <td>
                {search.spec.owner} {search.spec.shared && <small>· {t.shared}</small>}
              </td>
              <td className="actions">
                <Control why={why(search)} onClick={() => setDoing({ what: 'change', search })}>
                  {t.change}
                </Control>{' '}
                <Control why={why(search)} onClick={() => setDoing({ what: 'delete', search })}>
                  {t.delete}
                </Control>
              </td>
            </tr>
          ))}
        </Table>
      )}
      <p className="notice">{t.scopeHint}</p>
      {doing && (
        <Ask
          doing={doing}
          onDone={() => {
            setDoing(undefined)
            reload()
          }}
          onClose={() => setDoing(undefined)}
        />
      )}
    </>
  )
}

function Ask({ doing: { what, search }, onDone, onClose }: { doing: Doing; onDone: () => void; onClose: () => void }) {
  const t = useText()
  const [problem, setProblem] = useState<string>()
  const { title, query, shared } = search.spec
  const label = what === 'change' ? t.change : t.reallyDelete(title)
  return (
    <Modal label={label} onClose={onClose}>
      <form
        className="keep"
        onSubmit={(event) => {
          event.preventDefault()
          const form = new FormData(event.currentTarget)
          const draft = { title: String(form.get('title')), query: String(form.get('query')), shared: form.get('shared') !== null }
          const done = what === 'change' ? replace(search, draft) : remove(search)
          done.then(onDone, (error: unknown) => setProblem(error instanceof Error ? error.message : String(error)))
        }}
      >
        <h2>{label}</h2>
        {what === 'change' && (
          <>
            <label>
              {t.title} <input name="title" defaultValue={title} required maxLength={128} autoComplete="off" />
            </label>
            <label>
              {t.query} <input name="query" defaultValue={query} autoComplete="off" spellCheck={false} />
            </label>
            <label>
              <input name="shared" type="checkbox" defaultChecked={shared} /> {t.share}
            </label>
          </>
        )}
        {problem && <p role="alert">{problem}</p>}
        <p>
          <button type="submit" className={what === 'change' ? 'primary' : 'danger'}>{what === 'change' ? t.save : t.delete}</button>{' '}
          <button type="button" onClick={onClose}>
            {t.cancel}
          </button>
        </p>
      </form>
    </Modal>
  )
}
