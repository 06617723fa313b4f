// Control for the time of a query: any time, a recent span, a range, or a moment of the past.
import { fieldValues, isAboutPast, timeOf } from '../../api/query'
import { Popover } from '../Popover'
import { useTextOf } from '../../text'
import { resultsText } from '../../text/results'
import { queryAtTime, queryForSpan, queryForTypedRange, SPANS, spanOf, typedRangeOf, type Span } from './times'

export function TimeControl({ q, onQuery }: { q: string; onQuery: (query: string) => void }) {
  const t = useTextOf(resultsText)
  const span = spanOf(q)
  const isPast = isAboutPast(q)
  const isOtherTime = !isPast && span === undefined && (fieldValues(q, 'changed').length > 0 || fieldValues(q, 'last').length > 0)
  const [begin, end] = typedRangeOf(q) ?? ['', '']
  const label = isPast ? t.atTime(timeOf(q) ?? '') : span ? t.spans[span] : isOtherTime ? t.range : t.anyTime
  return (
    <Popover label={t.time(label)}>
      {(close) => {
        const choose = (query: string) => {
          close()
          onQuery(query)
        }
        return (
          <>
            <button type="button" aria-pressed={!isPast && span === undefined && !isOtherTime} onClick={() => choose(queryForSpan(q, undefined))}>
              {t.anyTime}
            </button>
            {(Object.keys(SPANS) as Span[]).map((option) => (
              <button key={option} type="button" aria-pressed={option === span} onClick={() => choose(queryForSpan(q, option))}>
                {t.spans[option]}
              </button>
            ))}
            <form
              className="labelled"
              // A corrected time is valid until it is submitted.
              onInput={(event) => event.currentTarget.querySelector('input')?.setCustomValidity('')}
              onSubmit={(event) => {
                event.preventDefault()
                const form = new FormData(event.currentTarget)
                const query = queryForTypedRange(q, String(form.get('from') ?? ''), String(form.get('to') ?? ''), Date.now() / 1000)
                if (query !== undefined) return choose(query)
                const input = event.currentTarget.querySelector('input')
                input?.setCustomValidity(t.invalidTime)
                input?.reportValidity()
              }}
            >
              <label>
                {t.from} <input name="from" placeholder={t.fromHint} defaultValue={begin} size={14} autoComplete="off" spellCheck={false} />
              </label>
              <label>
                {t.to} <input name="to" placeholder={t.toHint} defaultValue={end} size={14} autoComplete="off" spellCheck={false} />
              </label>
              <button type="submit">{t.showRange}</button>
            </form>
            <form
              className="labelled"
              onSubmit={(event) => {
                event.preventDefault()
                choose(queryAtTime(q, String(new FormData(event.currentTarget).get('at') ?? '')))
              }}
            >
              <label>
                {t.asOf} <input name="at" placeholder={t.atHint} defaultValue={fieldValues(q, 'at')[0] ?? ''} autoComplete="off" spellCheck={false} />
              </label>
              <button type="submit">{t.show}</button>
            </form>
          </>
        )
      }}
    </Popover>
  )
}
