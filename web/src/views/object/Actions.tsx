import { useQueryClient } from '@tanstack/react-query'
import { useEffect, useState } from 'react'
import { objectAddress, writeAddress } from '../../api/address'
import { groupOf, type ObjectRef } from '../../api/client'
import type { KubeObject } from '../../api/types'
import { useCanI } from '../../api/useCanI'
import { ClusterName } from '../../parts/ClusterName'
import { ActionButton } from '../../parts/ActionButton'
import { FormDialog } from '../../parts/FormDialog'
import { usePageCommands } from '../../parts/pageCommands'
import { useTextOf } from '../../text'
import { objectText as texts } from '../../text/object'
import { describeError } from './describeError'
import { canRestart, canScale } from './facts'
import { deleteObject, restartObject, scaleObject, type WriteMode, type WriteResponse } from './objects'
import { isManaged } from './Overview'
import { useViewParameters } from './state'
import { allowedActions } from './viewCommands'

type Action = 'scale' | 'restart' | 'delete'

interface ActionsProps {
  objectRef: ObjectRef
  object: KubeObject
  /** The values of a Secret are hidden, so it cannot be edited. */
  isHidden: boolean
}

/** Buttons for actions on an object; a forbidden action is disabled with a reason, and the palette does not offer it. */
export function Actions({ objectRef, object, isHidden }: ActionsProps) {
  const t = useTextOf(texts)
  const [view, changeView] = useViewParameters()
  // The shortcut key in the search results and the palette open the object page with `do=scale`.
  const requestedAction = view.do === 'scale' && canScale(objectRef) ? 'scale' : view.do === 'restart' && canRestart(objectRef) ? 'restart' : undefined
  const [action, setAction] = useState<Action | undefined>(requestedAction)
  useEffect(() => {
    if (requestedAction) setAction(requestedAction)
  }, [requestedAction])
  const [result, setResult] = useState<ActionResult>()
  const client = useQueryClient()
  const { cluster, resource, namespace, name } = objectRef
  const attributes = { cluster, group: groupOf(objectRef.apiVersion), resource, namespace, name }
  const mayDelete = useCanI({ ...attributes, verb: 'delete' })
  const mayUpdate = useCanI({ ...attributes, verb: 'update' })
  const mayPatch = useCanI({ ...attributes, verb: 'patch' })
  const mayScale = useCanI({ ...attributes, verb: 'patch', subresource: 'scale' })
  usePageCommands(
    allowedActions(objectRef, { mayEdit: mayUpdate && !isHidden, mayScale, mayPatch }).map((actionName) => ({
      text: t[actionName],
      about: `${object.kind} ${name}`,
      href: actionName === 'edit' ? objectAddress(objectRef, 'yaml', { edit: 'true' }) : `/object${writeAddress({ ...view, do: actionName })}`,
    })),
  )
  const scope = namespace ?? t.anyNamespace
  const deniedReason = (isAllowed: boolean, verb: string, resourceName: string) => (isAllowed ? undefined : t.mayNot(verb, resourceName, scope, cluster))
  const undo = (replicas: number) => {
    setResult(undefined)
    scaleObject(objectRef, replicas, 'real').then(
      () => setResult({ message: t.actionDone.scale(replicas) }),
      (error: unknown) => setResult({ message: describeError(error, cluster, t), isFailed: true }),
    ).finally(() => void client.invalidateQueries())
  }
  const close = () => {
    setAction(undefined)
    if (view.do !== undefined) changeView({ do: undefined })
  }
  return (
    <>
      {canScale(objectRef) && (
        <ActionButton disabledReason={deniedReason(mayScale, 'patch', `${resource}/scale`)} onClick={() => setAction('scale')}>
          {t.scale}
        </ActionButton>
      )}
      {canRestart(objectRef) && (
        <ActionButton disabledReason={deniedReason(mayPatch, 'patch', resource)} onClick={() => setAction('restart')}>
          {t.restart}
        </ActionButton>
      )}
      <ActionButton disabledReason={deniedReason(mayDelete, 'delete', resource)} className="danger" onClick={() => setAction('delete')}>
        {t.delete}
      </ActionButton>
      <span role="status" className={result?.isFailed ? 'bad' : undefined}>
        {result?.message}
      </span>
      {result?.previousReplicas !== undefined && (
        <button type="button" onClick={() => undo(result.previousReplicas ?? 0)}>
          {t.undo}
        </button>
      )}
      {action && (
        <Confirm
          key={action}
          action={action}
          objectRef={objectRef}
          object={object}
          onClose={close}
          onDone={(actionResult) => {
            close()
            setResult(actionResult)
            void client.invalidateQueries()
          }}
        />
      )}
    </>
  )
}

/** Result of the last action. */
interface ActionResult {
  message: string
  /** Number of replicas before the object was scaled; present only if scaling can be undone. */
  previousReplicas?: number
  isFailed?: boolean
}

interface ConfirmProps {
  action: Action
  objectRef: ObjectRef
  object: KubeObject
  onDone: (result: ActionResult) => void
  onClose: () => void
}

type DryRun = { status: 'running' } | { status: 'accepted'; warnings: string[] } | { status: 'refused'; reason: string }

/** Confirmation of an action. Its button is enabled after a successful dry run in the cluster. */
function Confirm({ action, objectRef, object, onDone, onClose }: ConfirmProps) {
  const t = useTextOf(texts)
  const currentReplicas = Number((object.spec as { replicas?: number } | undefined)?.replicas ?? 0)
  const [replicas, setReplicas] = useState(currentReplicas)
  const [dryRun, setDryRun] = useState<DryRun>({ status: 'running' })
  const [errorMessage, setErrorMessage] = useState<string>()
  const [isSending, setIsSending] = useState(false)
  const { cluster, namespace, name } = objectRef
  const uid = object.metadata.uid
  const run = (mode: WriteMode): Promise<WriteResponse> =>
    action === 'delete' ? deleteObject(objectRef, uid, mode) : action === 'scale' ? scaleObject(objectRef, replicas, mode) : restartObject(objectRef, new Date(), mode)

  useEffect(() => {
    let isCancelled = false
    setDryRun({ status: 'running' })
    // Delays the dry run until the user has stopped changing the number.
    const timer = setTimeout(() => {
      run('dry-run').then(
        ({ warnings }) => !isCancelled && setDryRun({ status: 'accepted', warnings }),
        (error: unknown) => !isCancelled && setDryRun({ status: 'refused', reason: describeError(error, cluster, t) }),
      )
    }, action === 'scale' ? 300 : 0)
    return () => {
      isCancelled = true
      clearTimeout(timer)
    }
  }, [replicas])

  const title = t.actionTitles[action](`${object.kind} ${name}`)
  return (
    <FormDialog
      title={title}
      className="confirm"
      buttonsClassName="tools"
      submitButton={
        <ActionButton type="submit" className={action === 'delete' ? 'danger' : 'primary'} disabledReason={dryRun.status === 'accepted' ? undefined : dryRun.status === 'running' ? t.dryRunRunning : dryRun.reason}>
          {t.actionButtons[action]}
        </ActionButton>
      }
      onSubmit={() => {
        if (dryRun.status !== 'accepted' || isSending) return
        setIsSending(true)
        run('real').then(
          () => onDone({ message: t.actionDone[action](replicas), ...(action === 'scale' && replicas !== currentReplicas && { previousReplicas: currentReplicas }) }),
          (error: unknown) => {
            setIsSending(false)
            setErrorMessage(describeError(error, cluster, t))
          },
        )
      }}
      onClose={onClose}
    >
      <p>
        <ClusterName name={cluster} />
        {namespace && <> · {t.namespaceIs(namespace)}</>}
      </p>
      {isManaged(objectRef, object) && <p className="notice">{t.managed}</p>}
      {action === 'scale' && (
        <p>
          <label>
            {t.replicas} <input type="number" min="0" max="100000" required readOnly={isSending} value={replicas} onChange={(event) => setReplicas(event.target.valueAsNumber || 0)} />
          </label>{' '}
          <span className="notice">{t.currentReplicas(currentReplicas)}</span>
        </p>
      )}
      {action !== 'scale' && <p>{t.actionEffects[action]}</p>}
      <p role="status" className={dryRun.status === 'refused' ? 'bad' : 'notice'}>
        {dryRun.status === 'running' ? t.dryRunRunning : dryRun.status === 'accepted' ? t.dryRunAccepted : dryRun.reason}
      </p>
      {dryRun.status === 'accepted' &&
        dryRun.warnings.map((warning) => (
          <p key={warning} className="notice">
            {warning}
          </p>
        ))}
      {errorMessage && <p role="alert">{errorMessage}</p>}
    </FormDialog>
  )
}
