// The time of a search: any, the last minutes or hours, or a moment of the past.
import { named, ofThePast, timeOf } from '../../api/query'
import { Popover } from '../Popover'
import { useTextOf } from '../../text'
import { resultsText } from '../../text/results'
import { asOf, lately, SPANS, spanOf, type Span } from './times'

export function TimeControl({ q, onAsk }: { q: string; onAsk: (query: string) => void }) {
  const t = useTextOf(resultsText)
  const span = spanOf(q)
  const past = ofThePast(q)
  const other = !past && span === undefined && (named(q, 'changed').length > 0 || named(q, 'last').length > 0)
  const now = past ? t.atTime(timeOf(q) ?? '') : span ? t.spans[span] : other ? t.range : t.anyTime
  return (
    <Popover label={t.time(now)}>
      {(close) => {
        const choose = (query: string) => {
          close()
          onAsk(query)
        }
        return (
          <>
            <button type="button" aria-pressed={!past && span === undefined && !other} onClick={() => choose(lately(q, undefined))}>
              {t.anyTime}
            </button>
            {(Object.keys(SPANS) as Span[]).map((one) => (
              <button key={one} type="button" aria-pressed={one === span} onClick={() => choose(lately(q, one))}>
                {t.spans[one]}
              </button>
            ))}
            <form
              className="labelled"
              onSubmit={(event) => {
                event.preventDefault()
                choose(asOf(q, String(new FormData(event.currentTarget).get('at') ?? '')))
              }}
            >
              <label>
                {t.asOf} <input name="at" placeholder={t.atHint} defaultValue={past ? timeOf(q) : ''} autoComplete="off" spellCheck={false} />
              </label>
              <button type="submit">{t.show}</button>
            </form>
          </>
        )
      }}
    </Popover>
  )
}
