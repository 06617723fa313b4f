// Actions on a result: live mode, columns, save, export.
import { memo, useEffect, useId, useState } from 'react'
import { exportCommand, downloadExport, type Format } from '../api/export'
import { isAboutPast } from '../api/query'
import { createSavedSearch } from '../api/saved'
import type { Facets } from '../api/types'
import type { Live } from '../api/searchState'
import { useText } from '../text'
import { TimeControl } from './time/TimeControl'
import { exportColumns, moveName, otherColumns, titleOf, type Column } from './columns'
import { ActionButton } from './ActionButton'
import { useCopied } from './flash'
import { useKeys, isTyping } from './keys'
import { Popover } from './Popover'

interface ToolsProps {
  q: string
  facets: Facets
  /** Number of results; undefined while it is unknown. */
  total: number | undefined
  /** The results are updated live. */
  isFollowing: boolean
  /** Number of live changes that are not shown yet. */
  pendingChanges: number
  columns: Column[]
  onColumns: (names: string[] | undefined) => void
  /** True if the table has all printed columns; undefined if the query matches several kinds. */
  isWide: boolean | undefined
  onWide: (isWide: boolean) => void
  live: Live
  onLive: (live: Live) => void
  /** Changes the query. */
  onQuery: (query: string) => void
  onSaved: () => void
  /** Selects all results for an action on several. */
  onSelectAll: () => void
  /** Maximum number of results that can be selected. */
  maxSelected: number
}

export const Tools = memo(function Tools({ q, facets, total, isFollowing, pendingChanges, columns, onColumns, isWide, onWide, live, onLive, onQuery, onSaved, onSelectAll, maxSelected }: ToolsProps) {
  const t = useText()
  return (
    <div className="tools">
      <TimeControl q={q} onQuery={onQuery} />
      <LiveTools q={q} isFollowing={isFollowing} pendingChanges={pendingChanges} live={live} onLive={onLive} />
      <ColumnChooser q={q} facets={facets} columns={columns} onColumns={onColumns} />
      <ActionButton disabledReason={isWide === undefined ? t.wideOneKind : undefined} title={t.wideTitle} aria-pressed={isWide === true} onClick={() => onWide(isWide !== true)}>
        {t.wideTable}
      </ActionButton>
      <SaveSearch q={q} onSaved={onSaved} />
      <Export q={q} total={total} columns={columns} />
      <CopyCommand q={q} />
      {total !== undefined && total > 0 && (
        <ActionButton disabledReason={total > maxSelected ? t.tooManyToSelect(maxSelected) : undefined} onClick={onSelectAll}>
          {t.selectAll}
        </ActionButton>
      )}
    </div>
  )
})

function LiveTools({ q, isFollowing, pendingChanges, live, onLive }: Pick<ToolsProps, 'q' | 'isFollowing' | 'pendingChanges' | 'live' | 'onLive'>) {
  const t = useText()
  const why = isAboutPast(q) ? t.livePast : undefined
  const pause = () => onLive(live === 'paused' ? 'on' : 'paused')
  useKeys((event) => {
    if (isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey || why) return
    if (event.key === 'L') onLive(live === 'off' ? 'on' : 'off')
    if (event.key === 'p' && live !== 'off') pause()
  })
  return (
    <>
      <ActionButton disabledReason={why} title={t.liveTitle} aria-pressed={live !== 'off'} className="live" onClick={() => onLive(live === 'off' ? 'on' : 'off')}>
        <i aria-hidden="true" className={live === 'on' && isFollowing ? 'beat' : undefined} /> {t.live}
      </ActionButton>
      {live !== 'off' && (
        <button type="button" onClick={pause}>
          {live === 'paused' ? t.resume : t.pause}
        </button>
      )}
      {live !== 'off' && (
        <span className="waiting" role="status">
          {live === 'paused' && pendingChanges > 0 ? t.waiting(pendingChanges) : live === 'on' && !isFollowing ? t.notFollowing : ''}
        </span>
      )}
    </>
  )
}

function ColumnChooser({ q, facets, columns, onColumns }: Pick<ToolsProps, 'q' | 'facets' | 'columns' | 'onColumns'>) {
  const t = useText()
  const names = columns.map(({ name }) => name)
  return (
    <Popover label={t.columns}>
      {() => (
        <>
          <ul className="chooser">
            {columns.map(({ name }, nth) => {
              const label = titleOf({ name }, t)
              const isLast = names.length === 1
              return (
                <li key={name}>
                  <label title={isLast ? t.lastColumn : undefined}>
                    <input type="checkbox" checked disabled={isLast} onChange={() => onColumns(names.filter((other) => other !== name))} /> {label}
                  </label>
                  <button type="button" aria-label={t.moveUp(label)} disabled={nth === 0} onClick={() => onColumns(moveName(names, name, -1))}>
                    ↑
                  </button>
                  <button type="button" aria-label={t.moveDown(label)} disabled={nth === names.length - 1} onClick={() => onColumns(moveName(names, name, 1))}>
                    ↓
                  </button>
                </li>
              )
            })}
            {otherColumns(columns).map(({ name }) => (
              <li key={name}>
                <label>
                  <input type="checkbox" checked={false} onChange={() => onColumns([...names, name])} /> {titleOf({ name }, t)}
                </label>
              </li>
            ))}
          </ul>
          <PrintedColumns q={q} facets={facets} names={names} onAdd={(name) => onColumns([...names, name])} />
          <LabelColumn keys={(facets.label ?? []).map(({ value }) => value)} onAdd={(name) => onColumns([...names, name])} />
          <button type="button" onClick={() => onColumns(undefined)}>
            {t.resetColumns}
          </button>
        </>
      )}
    </Popover>
  )
}

/** Printed columns that can be added, if all hits are of one kind. */
function PrintedColumns({ q, facets, names, onAdd }: Pick<ToolsProps, 'q' | 'facets'> & { names: string[]; onAdd: (name: string) => void }) {
  const t = useText()
  const [printed, setPrinted] = useState<string[]>([])
  const kinds = facets.kind ?? []
  const kind = kinds.length === 1 ? kinds[0]?.value : undefined
  useEffect(() => {
    setPrinted([])
    if (kind === undefined) return
    const abort = new AbortController()
    import('../api/printed')
      .then(({ readPrintedColumns }) => readPrintedColumns(q, abort.signal))
      // On an error no printed columns are offered.
      .then((names) => !abort.signal.aborted && setPrinted(names), () => undefined)
    return () => abort.abort()
  }, [q, kind])
  const others = printed.filter((name) => !names.includes(name))
  if (kind === undefined || others.length === 0) return null
  return (
    <fieldset>
      <legend>{t.printedOf(kind)}</legend>
      <ul className="chooser">
        {others.map((name) => (
          <li key={name}>
            <label>
              <input type="checkbox" checked={false} onChange={() => onAdd(name)} /> {titleOf({ name }, t)}
            </label>
          </li>
        ))}
      </ul>
    </fieldset>
  )
}

/** A column for a label, suggested from the hits, or for a path into manifests. */
function LabelColumn({ keys, onAdd }: { keys: string[]; onAdd: (name: string) => void }) {
  const t = useText()
  const list = useId()
  return (
    <form
      className="labelled"
      onSubmit={(event) => {
        event.preventDefault()
        const key = String(new FormData(event.currentTarget).get('key'))
        onAdd(key.startsWith('.') ? key : `label:${key}`)
        event.currentTarget.reset()
      }}
    >
      <label>
        {t.labelColumn} <input name="key" list={list} required pattern="[^,\s]+" autoComplete="off" spellCheck={false} />
      </label>
      <datalist id={list}>
        {keys.map((key) => (
          <option key={key} value={key} />
        ))}
      </datalist>
      <button type="submit">{t.addColumn}</button>
    </form>
  )
}

function SaveSearch({ q, onSaved }: Pick<ToolsProps, 'q' | 'onSaved'>) {
  const t = useText()
  const [errorMessage, setErrorMessage] = useState<string>()
  return (
    <Popover label={t.save} disabledReason={q.trim() === '' ? t.nothingToSave : undefined}>
      {(close) => (
        <form
          className="keep"
          onSubmit={(event) => {
            event.preventDefault()
            const form = new FormData(event.currentTarget)
            createSavedSearch({ title: String(form.get('title')), query: q, shared: form.get('shared') !== null }).then(
              () => {
                setErrorMessage(undefined)
                onSaved()
                close()
              },
              (error: unknown) => setErrorMessage(error instanceof Error ? error.message : String(error)),
            )
          }}
        >
          <label>
            {t.title} <input name="title" required maxLength={128} autoComplete="off" />
          </label>
          <label>
            <input name="shared" type="checkbox" /> {t.share}
          </label>
          {errorMessage && <p role="alert">{errorMessage}</p>}
          <button type="submit" className="primary">{t.saveTitle}</button>
        </form>
      )}
    </Popover>
  )
}

function Export({ q, total, columns }: Pick<ToolsProps, 'q' | 'total' | 'columns'>) {
  const t = useText()
  const [errorMessage, setErrorMessage] = useState<string>()
  const [busy, setBusy] = useState(false)
  const startExport = (format: Format) => {
    setBusy(true)
    setErrorMessage(undefined)
    downloadExport(q, format, exportColumns(columns))
      .catch((error: unknown) => setErrorMessage(error instanceof Error ? error.message : String(error)))
      .finally(() => setBusy(false))
  }
  return (
    <Popover label={t.export} disabledReason={total === 0 ? t.nothingToExport : undefined}>
      {() => (
        <>
          <button type="button" disabled={busy} onClick={() => startExport('csv')}>
            {t.exportCsv}
          </button>
          <button type="button" disabled={busy} onClick={() => startExport('jsonl')}>
            {t.exportJson}
          </button>
          <p role="status">{busy ? t.exporting : ''}</p>
          {errorMessage && <p role="alert">{t.exportFailed(errorMessage)}</p>}
        </>
      )}
    </Popover>
  )
}

function CopyCommand({ q }: { q: string }) {
  const t = useText()
  const [copied, copy] = useCopied()
  // Pages that are served over plain HTTP from another machine have no clipboard API.
  const clipboard = navigator.clipboard as Clipboard | undefined
  return (
    <ActionButton
      disabledReason={clipboard ? undefined : t.noClipboard}
      title={exportCommand(q)}
      onClick={() => void copy(exportCommand(q))}
    >
      {copied === exportCommand(q) ? t.copied : t.copyCommand}
    </ActionButton>
  )
}
