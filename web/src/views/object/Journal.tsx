// The journal of one object: all entries, or those around a time.
import { CONTROL_PLANE, type ObjectRef } from '../../api/client'
import { readJournal, WITHIN_OPTIONS } from '../../api/journal'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { formatAge } from '../../parts/format'
import { JournalTable } from '../../parts/Journal'
import { SkippedClusters } from '../../parts/SkippedClusters'
import { useDraft } from '../../parts/useDraft'
import { useTextOf } from '../../text'
import { journalText } from '../../text/journal'
import { useViewParameters } from './state'

export function Journal({ objectRef, about }: { objectRef: ObjectRef; about: string }) {
  const t = useTextOf(journalText)
  const [view, change] = useViewParameters()
  const journal = usePolledQuery(['journal', about, view.at, view.within], (signal) => readJournal(about, { at: view.at, within: view.within }, signal))
  return (
    <>
      <p className="notice">{objectRef.cluster === CONTROL_PLANE ? t.hint : t.templateHint}</p>
      <TimeRangeForm at={view.at ?? ''} within={view.within ?? '5m'} onSubmit={(at, within) => change({ at: at || undefined, within: at ? within : undefined, entry: undefined }, true)} />
      <QueryResult query={journal}>
        {({ entries, total, keptForSeconds, skipped, notices }) => (
          <>
            <SkippedClusters skipped={skipped} />
            {notices.map(({ message }) => (
              <p key={message} className="notice">
                {message}
              </p>
            ))}
            {entries.length === 0 ? <p className="empty">{t.noEntries}</p> : <JournalTable entries={entries} chosen={view.entry} onChoose={(entry) => change({ entry })} />}
            <p className="notice">
              {t.retention(formatAge(keptForSeconds))} {entries.filter(({ isCause }) => !isCause).length < total && t.newestOf(entries.filter(({ isCause }) => !isCause).length, total)}
            </p>
          </>
        )}
      </QueryResult>
    </>
  )
}

/** Form for a time in the syntax of the query language, and for the range around it. */
function TimeRangeForm({ at, within, onSubmit }: { at: string; within: string; onSubmit: (at: string, within: string) => void }) {
  const t = useTextOf(journalText)
  const [text, setText] = useDraft(at)
  return (
    <form
      className="tools"
      onSubmit={(event) => {
        event.preventDefault()
        onSubmit(text.trim(), within)
      }}
    >
      <label>
        {t.at} <input type="text" placeholder={t.atHint} title={t.atHint} spellCheck={false} size={28} value={text} onChange={(event) => setText(event.target.value)} />
      </label>
      <label>
        {t.within}{' '}
        <select value={within} onChange={(event) => onSubmit(text.trim(), event.target.value)}>
          {WITHIN_OPTIONS.map((span) => (
            <option key={span}>{span}</option>
          ))}
        </select>
      </label>
      <button type="submit">{t.show}</button>
      {at !== '' && (
        <button type="button" onClick={() => onSubmit('', within)}>
          {t.all}
        </button>
      )}
    </form>
  )
}
