import { useQuery, useQueryClient } from '@tanstack/react-query'
import { lazy, Suspense, useEffect, useState } from 'react'
import { getText, groupOf, objectPath, reported, type ObjectRef } from '../../api/client'
import { withTimeout } from '../../api/kube'
import type { KubeObject } from '../../api/types'
import { useCanI } from '../../api/useCanI'
import { Control } from '../../parts/Control'
import { useTextOf } from '../../text'
import { object as texts } from '../../text/object'
import { explain } from './explain'
import { withoutManagedFields } from './manifest'
import { isSecret } from './objects'
import { Managed } from './Overview'
import { useView } from './state'

const Editor = lazy(() => import('../../parts/Editor').then((part) => ({ default: part.Editor })))
const Edit = lazy(() => import('./Edit').then((part) => ({ default: part.Edit })))
const Printed = lazy(() => import('./JsonAsYaml').then((part) => ({ default: part.JsonAsYaml })))

interface YamlTabProps {
  refTo: ObjectRef
  object: KubeObject
  /** The user has requested a Secret's values. */
  revealed: boolean
  onReveal: (revealed: boolean) => void
}

/** The manifest as returned by its cluster; a Secret's values only on request. */
export function YamlTab({ refTo, object, revealed, onReveal }: YamlTabProps) {
  const t = useTextOf(texts)
  const [view, change] = useView()
  const [saved, setSaved] = useState(false)
  const client = useQueryClient()
  const managed = view.managed === 'true'
  const secret = isSecret(refTo)
  const hidden = secret && !revealed
  const { cluster, namespace, name, resource } = refTo
  const may = (verb: string) => ({ cluster, verb, group: groupOf(refTo.apiVersion), resource, namespace, name })
  const mayUpdate = useCanI(may('update'))
  const mayGet = useCanI(may('get'))
  const text = useQuery({
    queryKey: ['yaml', refTo, object.metadata],
    queryFn: ({ signal }) => withTimeout((patience) => getText(objectPath(refTo), 'application/yaml', patience), signal),
    enabled: !hidden,
    placeholderData: (previous) => previous,
    // Displayed values are discarded with the page.
    ...(secret && { gcTime: 0 }),
  })
  const where = namespace ?? t.everywhere
  const whyNot = hidden ? t.revealFirst : mayUpdate ? undefined : t.mayNot('update', resource, where, cluster)
  // An edit starts from the current object and keeps it when the object changes.
  const [begun, setBegun] = useState<string>()
  const [problem, setProblem] = useState<unknown>()
  const wanted = view.edit === 'true' && whyNot === undefined
  const path = objectPath(refTo)
  useEffect(() => {
    setBegun(undefined)
    setProblem(undefined)
    if (!wanted) return
    const abort = new AbortController()
    getText(path, 'application/yaml', abort.signal).then(
      (now) => setBegun(withoutManagedFields(now)),
      (error: unknown) => !abort.signal.aborted && setProblem(error),
    )
    return () => abort.abort()
  }, [wanted, path])
  const editing = wanted && begun !== undefined
  const shown = text.data === undefined ? undefined : managed ? text.data : withoutManagedFields(text.data)
  return (
    <>
      <Managed refTo={refTo} object={object} />
      {!editing && (
        <p className="tools">
          <Control why={whyNot} onClick={() => (setSaved(false), change({ edit: 'true' }, true))}>
            {t.edit}
          </Control>
          {secret && (
            <Control why={mayGet ? undefined : t.mayNot('get', resource, where, cluster)} aria-pressed={revealed} onClick={() => onReveal(!revealed)}>
              {revealed ? t.hideValues : t.showValues}
            </Control>
          )}
          {!hidden && (
            <label className="option">
              <input type="checkbox" checked={managed} onChange={(event) => change({ managed: event.target.checked ? 'true' : undefined })} /> {t.showManaged}
            </label>
          )}
          {saved && <span role="status">{t.saved}</span>}
        </p>
      )}
      {reported(problem ?? text.error) !== undefined && <p role="alert">{explain(problem ?? text.error, cluster, t)}</p>}
      <Suspense fallback={<p className="empty">{t.loading}</p>}>
        {hidden ? (
          <>
            <p className="notice">{t.valuesHidden}</p>
            <Printed value={object} label={t.manifest} />
          </>
        ) : editing ? (
          <Edit
            refTo={refTo}
            kind={object.kind}
            from={begun}
            onDone={(isSaved) => {
              setSaved(isSaved)
              change({ edit: undefined })
              void client.invalidateQueries()
            }}
          />
        ) : (
          shown !== undefined && <Editor value={shown} label={t.manifest} height="calc(100vh - 300px)" find={view.find} onFind={(find) => change({ find: find || undefined })} />
        )}
      </Suspense>
    </>
  )
}
