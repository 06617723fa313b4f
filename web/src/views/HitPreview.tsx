// Drawer beside the search results with a summary of the selected hit; the list keeps its scroll position.
import { useEffect, useState } from 'react'
import { keyOf } from '../api/pages'
import type { Hit } from '../api/types'
import { QueryProvider } from '../parts/polledQuery'
import { useText } from '../text'
import { versionOfHit } from './object/objects'
import { ObjectSummary } from './object/ObjectSummary'

/** Time in milliseconds for which a selection must not change before its object is requested. */
const DEBOUNCE_MS = 120

interface HitPreviewProps {
  hit: Hit | undefined
  /** Time of the query in Unix seconds; undefined: the present. */
  moment: number | undefined
  onClose: () => void
}

export function HitPreview({ hit, moment, onClose }: HitPreviewProps) {
  const t = useText()
  const debounced = useDebouncedHit(hit)
  return (
    <section className="peek" aria-label={t.preview} onKeyDown={(event) => event.key === 'Escape' && onClose()}>
      <p className="acts">
        <button type="button" className="quiet" onClick={onClose}>
          {t.closePreview}
        </button>
      </p>
      {debounced ? (
        <QueryProvider>
          <ObjectSummary key={keyOf(debounced)} object={debounced} past={versionOfHit(debounced, moment)} />
        </QueryProvider>
      ) : (
        <p className="empty">{t.nothingSelected}</p>
      )}
    </section>
  )
}

function useDebouncedHit(hit: Hit | undefined): Hit | undefined {
  const [debounced, setDebounced] = useState(hit)
  const key = hit && `${keyOf(hit)} ${hit.seq ?? ''}`
  useEffect(() => {
    const timer = setTimeout(() => setDebounced(hit), DEBOUNCE_MS)
    return () => clearTimeout(timer)
  }, [key])
  return debounced
}
