// Actions on several results: a dry run of each in its cluster, then the confirmed action.
import { useEffect, useRef, useState } from 'react'
import { CONTROL_PLANE, type ObjectRef } from '../api/client'
import { mapConcurrently } from '../api/concurrency'
import { keyOf } from '../api/pages'
import type { Hit } from '../api/types'
import { KindIcon } from '../icons/Icon'
import { ClusterName } from '../parts/ClusterName'
import { Control } from '../parts/Control'
import { Modal } from '../parts/Modal'
import { Pill } from '../parts/Pill'
import type { Tone } from '../parts/status'
import { Table } from '../parts/Table'
import { useTextOf } from '../text'
import { bulkText, type BulkAction } from '../text/bulk'
import { object as texts } from '../text/object'
import { explain } from './object/explain'
import { canRestart } from './object/facts'
import { removeObject, restartObject, type WriteMode } from './object/objects'

/** Objects of one action, and requests at the same time. */
const MOST = 100
const AT_ONCE = 4

export type Marked = ReadonlyMap<string, Hit>

interface BulkProps {
  marked: Marked
  onClear: () => void
}

/** The selection and what can be done with it. */
export function Bulk({ marked, onClear }: BulkProps) {
  const t = useTextOf(bulkText)
  const [action, setAction] = useState<BulkAction>()
  const hits = [...marked.values()]
  const many = hits.length > MOST ? t.tooMany(MOST) : undefined
  return (
    <section className="bulk" aria-label={t.selected(hits.length)}>
      <span role="status">{t.selected(hits.length)}</span>
      <Control why={many ?? (hits.every(canRestart) ? undefined : t.notRestartable)} onClick={() => setAction('restart')}>
        {t.start.restart}
      </Control>
      <Control why={many} className="danger" onClick={() => setAction('delete')}>
        {t.start.delete}
      </Control>
      <button type="button" className="quiet" onClick={onClear}>
        {t.clear}
      </button>
      {action && (
        <Confirm
          action={action}
          hits={hits}
          onClose={(done) => {
            setAction(undefined)
            if (done) onClear()
          }}
        />
      )}
    </section>
  )
}

type State = { at: 'checking' | 'accepted' | 'waiting' | 'running' | 'done' | 'notStarted' } | { at: 'refused'; why: string }
const TONES: Record<State['at'], Tone> = { checking: 'busy', accepted: 'idle', waiting: 'idle', running: 'busy', done: 'good', notStarted: 'warn', refused: 'bad' }
type Phase = 'checking' | 'checked' | 'running' | 'stopping' | 'stopped' | 'done'

const run = (action: BulkAction, ref: ObjectRef, uid: string | undefined, mode: WriteMode) =>
  action === 'delete' ? removeObject(ref, uid, mode) : restartObject(ref, new Date(), mode)

function Confirm({ action, hits, onClose }: { action: BulkAction; hits: Hit[]; onClose: (done: boolean) => void }) {
  const t = useTextOf(bulkText)
  const object = useTextOf(texts)
  const [states, setStates] = useState<ReadonlyMap<string, State>>(new Map())
  const [typed, setTyped] = useState('')
  const [phase, setPhase] = useState<Phase>('checking')
  /** Set on stopping and closing: no further request is sent. Requests in progress are completed, since their effect would be unknown. */
  const stopped = useRef(false)
  const stateOf = (hit: Hit): State => states.get(keyOf(hit)) ?? { at: 'checking' }
  const put = (hit: Hit, state: State) => setStates((before) => new Map(before).set(keyOf(hit), state))
  /** Sends the requests; for each, true if it was sent before the action was stopped. */
  const send = (targets: readonly Hit[], mode: WriteMode) =>
    mapConcurrently(targets, AT_ONCE, async (hit) => {
      if (stopped.current) {
        put(hit, { at: 'notStarted' })
        return false
      }
      put(hit, { at: mode === 'real' ? 'running' : 'checking' })
      try {
        await run(action, hit, hit.uid, mode)
        put(hit, { at: mode === 'real' ? 'done' : 'accepted' })
      } catch (error) {
        put(hit, { at: 'refused', why: explain(error, hit.cluster, object) })
      }
      return true
    })

  useEffect(() => {
    stopped.current = false
    void send(hits, 'dry-run').then(() => !stopped.current && setPhase('checked'))
    return () => {
      stopped.current = true
    }
  }, [])

  const accepted = hits.filter((hit) => stateOf(hit).at === 'accepted')
  const refused = hits.filter((hit) => stateOf(hit).at === 'refused').length
  const why = phase !== 'checked' ? t.wait : accepted.length === 0 ? t.nothing : accepted.length > 1 && typed.trim() !== String(accepted.length) ? t.typeFirst : undefined
  const label = t.title[action](hits.length)
  const start = () => {
    setPhase('running')
    accepted.forEach((hit) => put(hit, { at: 'waiting' }))
    void send(accepted, 'real').then((sent) => setPhase(sent.includes(false) ? 'stopped' : 'done'))
  }
  const stop = () => {
    stopped.current = true
    setPhase('stopping')
  }
  const isStarted = phase === 'running' || phase === 'stopping'
  const notStarted = hits.filter((hit) => stateOf(hit).at === 'notStarted').length
  return (
    // Escape stops the action first, so that its results are seen.
    <Modal label={label} className="wide" onClose={() => (isStarted ? stop() : onClose(phase === 'done'))}>
      <h2>{label}</h2>
      {action === 'restart' && hits.some(({ cluster }) => cluster !== CONTROL_PLANE) && <p className="notice">{t.copies}</p>}
      <Table label={label} heads={t.heads}>
        {hits.map((hit) => {
          const state = stateOf(hit)
          return (
            <tr key={keyOf(hit)} data-state={state.at}>
              <th scope="row">
                <KindIcon kind={hit.kind} /> {hit.name}
              </th>
              <td>
                <ClusterName name={hit.cluster} />
              </td>
              <td>{hit.namespace}</td>
              <td>
                <Pill state={state.at === 'refused' ? state.why : t[state.at]} tone={TONES[state.at]} />
              </td>
            </tr>
          )
        })}
      </Table>
      {phase === 'checked' && refused > 0 && <p className="bad">{t.refusedSome(refused)}</p>}
      <p role="status">{phase === 'stopped' ? t.stoppedEarly(notStarted) : ''}</p>
      {phase === 'done' || phase === 'stopped' ? (
        <button type="button" onClick={() => onClose(phase === 'done')}>
          {t.close}
        </button>
      ) : isStarted ? (
        <Control why={phase === 'stopping' ? t.stopping : undefined} onClick={stop}>
          {t.stop}
        </Control>
      ) : (
        <p className="tools">
          {accepted.length > 1 && (
            <label>
              {t.type(accepted.length)} <input type="text" inputMode="numeric" size={6} autoComplete="off" value={typed} onChange={(event) => setTyped(event.target.value)} />
            </label>
          )}
          <Control why={why} className={action === 'delete' ? 'danger' : 'primary'} onClick={start}>
            {t.run[action]}
          </Control>
          <button type="button" onClick={() => onClose(false)}>
            {t.cancel}
          </button>
        </p>
      )}
    </Modal>
  )
}
