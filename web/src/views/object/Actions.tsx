import { useQueryClient } from '@tanstack/react-query'
import { useEffect, useState } from 'react'
import { groupOf, type ObjectRef } from '../../api/client'
import type { KubeObject } from '../../api/types'
import { useCanI } from '../../api/useCanI'
import { ClusterName } from '../../parts/ClusterName'
import { Control } from '../../parts/Control'
import { Modal } from '../../parts/Modal'
import { useTextOf } from '../../text'
import { object as texts } from '../../text/object'
import { explain } from './explain'
import { canRestart, canScale } from './facts'
import { removeObject, restartObject, scaleObject, type WriteMode, type WriteResponse } from './objects'
import { isManaged } from './Overview'
import { useView } from './state'

type Action = 'scale' | 'restart' | 'delete'

/** Actions on an object; forbidden ones explain why. */
export function Actions({ refTo, object }: { refTo: ObjectRef; object: KubeObject }) {
  const t = useTextOf(texts)
  const [view, change] = useView()
  // The address may name the action, so that a key in the results opens it.
  const [doing, setDoing] = useState<Action | undefined>(view.do === 'scale' && canScale(refTo) ? 'scale' : undefined)
  const [done, setDone] = useState<Done>()
  const client = useQueryClient()
  const { cluster, resource, namespace, name } = refTo
  const wish = { cluster, group: groupOf(refTo.apiVersion), resource, namespace, name }
  const mayDelete = useCanI({ ...wish, verb: 'delete' })
  const mayPatch = useCanI({ ...wish, verb: 'patch' })
  const mayScale = useCanI({ ...wish, verb: 'patch', subresource: 'scale' })
  const where = namespace ?? t.everywhere
  const why = (may: boolean, verb: string, what: string) => (may ? undefined : t.mayNot(verb, what, where, cluster))
  const undo = (replicas: number) => {
    setDone(undefined)
    scaleObject(refTo, replicas, 'real').then(
      () => setDone({ said: t.didDo.scale(replicas) }),
      (error: unknown) => setDone({ said: explain(error, cluster, t), failed: true }),
    ).finally(() => void client.invalidateQueries())
  }
  const close = () => {
    setDoing(undefined)
    if (view.do !== undefined) change({ do: undefined })
  }
  return (
    <>
      {canScale(refTo) && (
        <Control why={why(mayScale, 'patch', `${resource}/scale`)} onClick={() => setDoing('scale')}>
          {t.scale}
        </Control>
      )}
      {canRestart(refTo) && (
        <Control why={why(mayPatch, 'patch', resource)} onClick={() => setDoing('restart')}>
          {t.restart}
        </Control>
      )}
      <Control why={why(mayDelete, 'delete', resource)} className="danger" onClick={() => setDoing('delete')}>
        {t.delete}
      </Control>
      <span role="status" className={done?.failed ? 'bad' : undefined}>
        {done?.said}
      </span>
      {done?.undo !== undefined && (
        <button type="button" onClick={() => undo(done.undo ?? 0)}>
          {t.undo}
        </button>
      )}
      {doing && (
        <Confirm
          key={doing}
          action={doing}
          refTo={refTo}
          object={object}
          onClose={close}
          onDone={(after) => {
            close()
            setDone(after)
            void client.invalidateQueries()
          }}
        />
      )}
    </>
  )
}

/** The last action. */
interface Done {
  said: string
  /** The number of replicas before it: scaling can be undone, since nothing else has changed. */
  undo?: number
  failed?: boolean
}

interface ConfirmProps {
  action: Action
  refTo: ObjectRef
  object: KubeObject
  onDone: (done: Done) => void
  onClose: () => void
}

type Asked = { at: 'asking' } | { at: 'agreed'; warnings: string[] } | { at: 'refused'; why: string }

/** Describes the action and its target; the action is enabled after a dry run in the cluster. */
function Confirm({ action, refTo, object, onDone, onClose }: ConfirmProps) {
  const t = useTextOf(texts)
  const now = Number((object.spec as { replicas?: number } | undefined)?.replicas ?? 0)
  const [replicas, setReplicas] = useState(now)
  const [asked, setAsked] = useState<Asked>({ at: 'asking' })
  const [problem, setProblem] = useState<string>()
  const [sending, setSending] = useState(false)
  const { cluster, namespace, name } = refTo
  const uid = object.metadata.uid
  const run = (mode: WriteMode): Promise<WriteResponse> =>
    action === 'delete' ? removeObject(refTo, uid, mode) : action === 'scale' ? scaleObject(refTo, replicas, mode) : restartObject(refTo, new Date(), mode)

  useEffect(() => {
    let gone = false
    setAsked({ at: 'asking' })
    // Waits until the number is typed completely.
    const timer = setTimeout(() => {
      run('dry-run').then(
        ({ warnings }) => !gone && setAsked({ at: 'agreed', warnings }),
        (error: unknown) => !gone && setAsked({ at: 'refused', why: explain(error, cluster, t) }),
      )
    }, action === 'scale' ? 300 : 0)
    return () => {
      gone = true
      clearTimeout(timer)
    }
  }, [replicas])

  const title = t.reallyDo[action](`${object.kind} ${name}`)
  return (
    <Modal label={title} onClose={onClose}>
      <form
        className="confirm"
        onSubmit={(event) => {
          event.preventDefault()
          if (asked.at !== 'agreed' || sending) return
          setSending(true)
          run('real').then(
            () => onDone({ said: t.didDo[action](replicas), ...(action === 'scale' && replicas !== now && { undo: now }) }),
            (error: unknown) => {
              setSending(false)
              setProblem(explain(error, cluster, t))
            },
          )
        }}
      >
        <h2>{title}</h2>
        <p>
          <ClusterName name={cluster} />
          {namespace && <> · {t.namespaceIs(namespace)}</>}
        </p>
        {isManaged(refTo, object) && <p className="notice">{t.managed}</p>}
        {action === 'scale' && (
          <p>
            <label>
              {t.replicas} <input type="number" min="0" max="100000" required value={replicas} onChange={(event) => setReplicas(event.target.valueAsNumber || 0)} />
            </label>{' '}
            <span className="notice">{t.replicasNow(now)}</span>
          </p>
        )}
        {action !== 'scale' && <p>{t.whatHappens[action]}</p>}
        <p role="status" className={asked.at === 'refused' ? 'bad' : 'notice'}>
          {asked.at === 'asking' ? t.asking : asked.at === 'agreed' ? t.agreed : asked.why}
        </p>
        {asked.at === 'agreed' &&
          asked.warnings.map((warning) => (
            <p key={warning} className="notice">
              {warning}
            </p>
          ))}
        {problem && <p role="alert">{problem}</p>}
        <p className="tools">
          <Control type="submit" className={action === 'delete' ? 'danger' : 'primary'} why={asked.at === 'agreed' ? undefined : asked.at === 'asking' ? t.asking : asked.why}>
            {t.doIt[action]}
          </Control>
          <button type="button" onClick={onClose}>
            {t.cancel}
          </button>
        </p>
      </form>
    </Modal>
  )
}
