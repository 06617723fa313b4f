// Actions on several hits: a dry run of each in its cluster, then, after a confirmation, the action itself.
import { useEffect, useRef, useState } from 'react'
import type { ObjectRef } from '../api/client'
import { readClusterNotes, type ClusterNotes } from '../api/clusterNotes'
import { mapConcurrently } from '../api/concurrency'
import { keyOf } from '../api/pages'
import type { Hit, KubeObject } from '../api/types'
import { KindIcon } from '../icons/Icon'
import { ClusterName } from '../parts/ClusterName'
import { ActionButton } from '../parts/ActionButton'
import { Modal } from '../parts/Modal'
import { Pill } from '../parts/Pill'
import type { Tone } from '../parts/status'
import { Table } from '../parts/Table'
import { parseYaml } from '../parts/yaml'
import { useTextOf } from '../text'
import { bulkText, type BulkAction } from '../text/bulk'
import { objectText as texts } from '../text/object'
import { copiesOfTemplates, MAX_OBJECTS } from './bulkSelection'
import { describeError } from './object/describeError'
import { canRestart } from './object/facts'
import { deleteObject, restartObject, type WriteMode } from './object/objects'
import { isManaged } from './object/Overview'

/** Maximum number of concurrent requests. */
const MAX_CONCURRENT_REQUESTS = 4

export type MarkedHits = ReadonlyMap<string, Hit>

interface BulkProps {
  marked: MarkedHits
  onClear: () => void
}

/** Number of marked hits, and the actions on them. */
export function Bulk({ marked, onClear }: BulkProps) {
  const t = useTextOf(bulkText)
  const [action, setAction] = useState<BulkAction>()
  const hits = [...marked.values()]
  const tooManyReason = hits.length > MAX_OBJECTS ? t.tooMany(MAX_OBJECTS) : undefined
  return (
    <section className="bulk" aria-label={t.selected(hits.length)}>
      <span role="status">{t.selected(hits.length)}</span>
      <ActionButton disabledReason={tooManyReason ?? (hits.every(canRestart) ? undefined : t.notRestartable)} onClick={() => setAction('restart')}>
        {t.start.restart}
      </ActionButton>
      <ActionButton disabledReason={tooManyReason} className="danger" onClick={() => setAction('delete')}>
        {t.start.delete}
      </ActionButton>
      <button type="button" className="quiet" onClick={onClear}>
        {t.clear}
      </button>
      {action && (
        <Confirm
          action={action}
          hits={hits}
          onClose={(isDone) => {
            setAction(undefined)
            if (isDone) onClear()
          }}
        />
      )}
    </section>
  )
}

type State = { status: 'checking' | 'accepted' | 'covered' | 'waiting' | 'running' | 'done' | 'notStarted' } | { status: 'refused'; reason: string }
const TONES: Record<State['status'], Tone> = { checking: 'busy', accepted: 'idle', covered: 'idle', waiting: 'idle', running: 'busy', done: 'good', notStarted: 'warn', refused: 'bad' }
type Phase = 'checking' | 'checked' | 'running' | 'stopping' | 'stopped' | 'done'

const run = (action: BulkAction, ref: ObjectRef, uid: string | undefined, mode: WriteMode) =>
  action === 'delete' ? deleteObject(ref, uid, mode) : restartObject(ref, new Date(), mode)

function Confirm({ action, hits, onClose }: { action: BulkAction; hits: Hit[]; onClose: (done: boolean) => void }) {
  const t = useTextOf(bulkText)
  const object = useTextOf(texts)
  const [states, setStates] = useState<ReadonlyMap<string, State>>(new Map())
  const [typedCount, setTypedCount] = useState('')
  const [phase, setPhase] = useState<Phase>('checking')
  /** True after stopping or closing: no further request is sent. Requests in progress are not cancelled, because their effect would be unknown. */
  const stopped = useRef(false)
  /** Keys of hits that the dry run accepted, and of the propagated copies among them. */
  const acceptedKeys = useRef(new Set<string>())
  const copies = useRef(new Set<string>())
  const stateOf = (hit: Hit): State => states.get(keyOf(hit)) ?? { status: 'checking' }
  const setStateOf = (hit: Hit, state: State) => setStates((before) => new Map(before).set(keyOf(hit), state))
  /** Sends a request for each hit. The results are true for requests that were sent, false for those after the action was stopped. */
  const send = (targets: readonly Hit[], mode: WriteMode) =>
    mapConcurrently(targets, MAX_CONCURRENT_REQUESTS, async (hit) => {
      if (stopped.current) {
        setStateOf(hit, { status: 'notStarted' })
        return false
      }
      setStateOf(hit, { status: mode === 'real' ? 'running' : 'checking' })
      try {
        const { text } = await run(action, hit, hit.uid, mode)
        acceptedKeys.current.add(keyOf(hit))
        if (action === 'restart' && isManaged(hit, parseYaml(text).value as KubeObject)) copies.current.add(keyOf(hit))
        setStateOf(hit, { status: mode === 'real' ? 'done' : 'accepted' })
      } catch (error) {
        setStateOf(hit, { status: 'refused', reason: describeError(error, hit.cluster, object) })
      }
      return true
    })

  useEffect(() => {
    stopped.current = false
    const check = async () => {
      // Without an answer, the clusters' own permissions decide.
      const notes = await readClusterNotes().catch(() => new Map<string, ClusterNotes>())
      const isReadOnly = ({ cluster }: Hit) => notes.get(cluster)?.isReadOnly === true
      for (const hit of hits.filter(isReadOnly)) setStateOf(hit, { status: 'refused', reason: t.readOnly })
      await send(hits.filter((hit) => !isReadOnly(hit)), 'dry-run')
      if (stopped.current) return
      // The rollout of a template replaces the pods of its copies, whose own changes would be reverted.
      const acceptedHits = hits.filter((hit) => acceptedKeys.current.has(keyOf(hit)))
      for (const copy of copiesOfTemplates(acceptedHits, (key) => copies.current.has(key))) setStateOf(copy, { status: 'covered' })
      setPhase('checked')
    }
    void check()
    return () => {
      stopped.current = true
    }
  }, [])

  const accepted = hits.filter((hit) => stateOf(hit).status === 'accepted')
  const refused = hits.filter((hit) => stateOf(hit).status === 'refused').length
  const why = phase !== 'checked' ? t.dryRunRunning : accepted.length === 0 ? t.noneAccepted : accepted.length > 1 && typedCount.trim() !== String(accepted.length) ? t.typeFirst : undefined
  const label = t.title[action](hits.length)
  const start = () => {
    setPhase('running')
    accepted.forEach((hit) => setStateOf(hit, { status: 'waiting' }))
    void send(accepted, 'real').then((sent) => setPhase(sent.includes(false) ? 'stopped' : 'done'))
  }
  const stop = () => {
    stopped.current = true
    setPhase('stopping')
  }
  const isStarted = phase === 'running' || phase === 'stopping'
  const notStarted = hits.filter((hit) => stateOf(hit).status === 'notStarted').length
  return (
    // Escape stops a running action; the dialog stays open and shows the results.
    <Modal label={label} className="wide" onClose={() => (isStarted ? stop() : onClose(phase === 'done'))}>
      <h2>{label}</h2>
      {accepted.some((hit) => copies.current.has(keyOf(hit))) && <p className="notice">{t.copies}</p>}
      <Table label={label} headers={t.heads}>
        {hits.map((hit) => {
          const state = stateOf(hit)
          return (
            <tr key={keyOf(hit)} data-state={state.status}>
              <th scope="row">
                <KindIcon kind={hit.kind} apiVersion={hit.apiVersion} /> {hit.name}
              </th>
              <td>
                <ClusterName name={hit.cluster} />
              </td>
              <td>{hit.namespace}</td>
              <td>
                <Pill state={state.status === 'refused' ? state.reason : t[state.status]} tone={TONES[state.status]} />
              </td>
            </tr>
          )
        })}
      </Table>
      {phase === 'checked' && refused > 0 && <p className="bad">{t.refusedCount(refused)}</p>}
      <p role="status">{phase === 'stopped' ? t.stoppedEarly(notStarted) : ''}</p>
      {phase === 'done' || phase === 'stopped' ? (
        <button type="button" onClick={() => onClose(phase === 'done')}>
          {t.close}
        </button>
      ) : isStarted ? (
        <ActionButton disabledReason={phase === 'stopping' ? t.stopping : undefined} onClick={stop}>
          {t.stop}
        </ActionButton>
      ) : (
        <form
          className="tools"
          onSubmit={(event) => {
            event.preventDefault()
            if (why === undefined) start()
          }}
        >
          {accepted.length > 1 && (
            <label>
              {t.typeCount(accepted.length)} <input type="text" inputMode="numeric" size={6} autoComplete="off" value={typedCount} onChange={(event) => setTypedCount(event.target.value)} />
            </label>
          )}
          <ActionButton type="submit" disabledReason={why} className={action === 'delete' ? 'danger' : 'primary'}>
            {t.run[action]}
          </ActionButton>
          <button type="button" onClick={() => onClose(false)}>
            {t.cancel}
          </button>
        </form>
      )}
    </Modal>
  )
}
