import { useQuery, useQueryClient } from '@tanstack/react-query'
import { Suspense, useEffect, useState } from 'react'
import { getText, groupOf, objectPath, viewErrorOf, type ObjectRef } from '../../api/client'
import { withTimeout } from '../../api/kube'
import type { KubeObject } from '../../api/types'
import { useCanI } from '../../api/useCanI'
import { lazyPart } from '../../parts/LazyPart'
import { ActionButton } from '../../parts/ActionButton'
import { Loading } from '../../parts/Loading'
import { useTextOf } from '../../text'
import { objectText as texts } from '../../text/object'
import { describeError } from './describeError'
import { withoutManagedFields } from './manifest'
import { isSecret } from './objects'
import { Managed } from './Overview'
import { useViewParameters } from './state'

const Editor = lazyPart(() => import('../../parts/Editor'), (part) => part.Editor)
const Edit = lazyPart(() => import('./Edit'), (part) => part.Edit)
const Printed = lazyPart(() => import('./JsonAsYaml'), (part) => part.JsonAsYaml)

interface YamlTabProps {
  objectRef: ObjectRef
  object: KubeObject
  /** The user has requested a Secret's values. */
  isRevealed: boolean
  onReveal: (revealed: boolean) => void
}

/** YAML tab: the manifest as returned by the cluster. Values of a Secret are requested only if the user reveals them. */
export function YamlTab({ objectRef, object, isRevealed, onReveal }: YamlTabProps) {
  const t = useTextOf(texts)
  const [view, change] = useViewParameters()
  const [isSaved, setIsSaved] = useState(false)
  const client = useQueryClient()
  const showsManagedFields = view.managed === 'true'
  const isOfSecret = isSecret(objectRef)
  const isHidden = isOfSecret && !isRevealed
  const { cluster, namespace, name, resource } = objectRef
  const attributesFor = (verb: string) => ({ cluster, verb, group: groupOf(objectRef.apiVersion), resource, namespace, name })
  const mayUpdate = useCanI(attributesFor('update'))
  const mayGet = useCanI(attributesFor('get'))
  const text = useQuery({
    queryKey: ['yaml', objectRef, object.metadata],
    queryFn: ({ signal }) => withTimeout((timeoutSignal) => getText(objectPath(objectRef), 'application/yaml', timeoutSignal), signal),
    enabled: !isHidden,
    placeholderData: (previous) => previous,
    // Values of a Secret are not cached after the page is left.
    ...(isOfSecret && { gcTime: 0 }),
  })
  const scope = namespace ?? t.anyNamespace
  const editDisabledReason = isHidden ? t.revealFirst : mayUpdate ? undefined : t.mayNot('update', resource, scope, cluster)
  // The base of an edit is the object when the edit begins; it stays when the object changes.
  const [editBase, setEditBase] = useState<string>()
  const [editError, setEditError] = useState<unknown>()
  const isEditRequested = view.edit === 'true' && editDisabledReason === undefined
  const path = objectPath(objectRef)
  useEffect(() => {
    setEditBase(undefined)
    setEditError(undefined)
    if (!isEditRequested) return
    const abort = new AbortController()
    getText(path, 'application/yaml', abort.signal).then(
      (now) => setEditBase(withoutManagedFields(now)),
      (error: unknown) => !abort.signal.aborted && setEditError(error),
    )
    return () => abort.abort()
  }, [isEditRequested, path])
  const isEditing = isEditRequested && editBase !== undefined
  const shownText = text.data === undefined ? undefined : showsManagedFields ? text.data : withoutManagedFields(text.data)
  return (
    <>
      <Managed objectRef={objectRef} object={object} />
      {!isEditing && (
        <p className="tools">
          <ActionButton disabledReason={editDisabledReason} onClick={() => (setIsSaved(false), change({ edit: 'true' }, true))}>
            {t.edit}
          </ActionButton>
          {isOfSecret && (
            <ActionButton disabledReason={mayGet ? undefined : t.mayNot('get', resource, scope, cluster)} aria-pressed={isRevealed} onClick={() => onReveal(!isRevealed)}>
              {isRevealed ? t.hideValues : t.showValues}
            </ActionButton>
          )}
          {!isHidden && (
            <label className="option">
              <input type="checkbox" checked={showsManagedFields} onChange={(event) => change({ managed: event.target.checked ? 'true' : undefined })} /> {t.showManaged}
            </label>
          )}
          {isSaved && <span role="status">{t.saved}</span>}
        </p>
      )}
      {viewErrorOf(editError ?? text.error) !== undefined && <p role="alert">{describeError(editError ?? text.error, cluster, t)}</p>}
      <Suspense fallback={<Loading />}>
        {isHidden ? (
          <>
            <p className="notice">{t.valuesHidden}</p>
            <Printed value={object} label={t.manifest} />
          </>
        ) : isEditing ? (
          <Edit
            objectRef={objectRef}
            kind={object.kind}
            from={editBase}
            onDone={(isSaved) => {
              setIsSaved(isSaved)
              change({ edit: undefined })
              void client.invalidateQueries()
            }}
          />
        ) : (
          shownText !== undefined && <Editor value={shownText} label={t.manifest} height="calc(100vh - 300px)" find={view.find} onFind={(find) => change({ find: find || undefined })} />
        )}
      </Suspense>
    </>
  )
}
