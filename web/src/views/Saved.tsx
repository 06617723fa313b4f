import { useState } from 'react'
import { Link } from 'wouter'
import { searchAddress } from '../api/address'
import { deleteSavedSearch, replaceSavedSearch, useSavedSearches } from '../api/saved'
import type { SavedSearch } from '../api/types'
import { ActionButton } from '../parts/ActionButton'
import { FormDialog } from '../parts/FormDialog'
import { Query } from '../parts/Query'
import { Skeleton } from '../parts/Skeleton'
import { Table } from '../parts/Table'
import { useText } from '../text'
import { useSession } from './SignIn'

type OpenDialog = { action: 'change' | 'delete'; search: SavedSearch }

/** Saved searches of the user and shared ones. Only their owner can change them. */
export function Saved() {
  const t = useText()
  const session = useSession()
  const { searches, error, reload } = useSavedSearches()
  const [dialog, setDialog] = useState<OpenDialog>()
  if (error) return <p role="alert">{error}</p>
  if (!searches) return <Skeleton />
  // The server allows administrators to change shared ones as well.
  const why = (search: SavedSearch) =>
    search.spec.owner === session.user || session.groups.includes('system:masters') ? undefined : t.ownerOnly(search.spec.owner)
  return (
    <>
      <h1>{t.savedSearches}</h1>
      {searches.length === 0 ? (
        <p className="empty box">
          {t.noSavedSearches} <Link href="/search">{t.search}</Link>
        </p>
      ) : (
        <Table label={t.savedSearches} headers={[t.title, t.query, t.owner, <span className="visually-hidden">{t.change}</span>]}>
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
                <ActionButton disabledReason={why(search)} onClick={() => setDialog({ action: 'change', search })}>
                  {t.change}
                </ActionButton>{' '}
                <ActionButton disabledReason={why(search)} onClick={() => setDialog({ action: 'delete', search })}>
                  {t.delete}
                </ActionButton>
              </td>
            </tr>
          ))}
        </Table>
      )}
      <p className="notice">{t.scopeHint}</p>
      {dialog && (
        <ChangeDialog
          dialog={dialog}
          onDone={() => {
            setDialog(undefined)
            reload()
          }}
          onClose={() => setDialog(undefined)}
        />
      )}
    </>
  )
}

function ChangeDialog({ dialog: { action, search }, onDone, onClose }: { dialog: OpenDialog; onDone: () => void; onClose: () => void }) {
  const t = useText()
  const [errorMessage, setErrorMessage] = useState<string>()
  const { title, query, shared } = search.spec
  const label = action === 'change' ? t.change : t.confirmDelete(title)
  return (
    <FormDialog
      title={label}
      className="keep"
      submitButton={<button type="submit" className={action === 'change' ? 'primary' : 'danger'}>{action === 'change' ? t.save : t.delete}</button>}
      onSubmit={(element) => {
        const form = new FormData(element)
        const draft = { title: String(form.get('title')), query: String(form.get('query')), shared: form.get('shared') !== null }
        const request = action === 'change' ? replaceSavedSearch(search, draft) : deleteSavedSearch(search)
        request.then(onDone, (error: unknown) => setErrorMessage(error instanceof Error ? error.message : String(error)))
      }}
      onClose={onClose}
    >
      {action === 'change' && (
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
      {errorMessage && <p role="alert">{errorMessage}</p>}
    </FormDialog>
  )
}
