// The drawer next to the results: the selected object in short, while the list keeps its place.
import { useEffect, useState } from 'react'
import { keyOf } from '../api/pages'
import type { Hit } from '../api/types'
import { Asking } from '../parts/Asking'
import { useText } from '../text'
import { Short } from './object/Short'

/** Milliseconds without a move after which the selected object is requested. */
const SETTLED = 120

export function Peek({ hit, onClose }: { hit: Hit | undefined; onClose: () => void }) {
  const t = useText()
  const settled = useSettled(hit)
  return (
    <section className="peek" aria-label={t.peek} onKeyDown={(event) => event.key === 'Escape' && onClose()}>
      <p className="acts">
        <button type="button" className="quiet" onClick={onClose}>
          {t.closePeek}
        </button>
      </p>
      {settled ? (
        <Asking>
          <Short key={keyOf(settled)} of={settled} />
        </Asking>
      ) : (
        <p className="empty">{t.nothingSelected}</p>
      )}
    </section>
  )
}

function useSettled(hit: Hit | undefined): Hit | undefined {
  const [settled, setSettled] = useState(hit)
  const key = hit && keyOf(hit)
  useEffect(() => {
    const timer = setTimeout(() => setSettled(hit), SETTLED)
    return () => clearTimeout(timer)
  }, [key])
  return settled
}
