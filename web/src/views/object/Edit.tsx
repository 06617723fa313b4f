import { useQuery } from '@tanstack/react-query'
import { useEffect, useState } from 'react'
import { ApiError, getText, objectPath, type ObjectRef } from '../../api/client'
import { printJson } from '../../api/json'
import { ClusterName } from '../../parts/ClusterName'
import { Editor } from '../../parts/Editor'
import { readOpenApi, findSchema } from '../../parts/schema'
import { parseYaml, printYaml } from '../../parts/yaml'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { objectText as texts } from '../../text/object'
import { describeError } from './describeError'
import { withoutManagedFields } from './manifest'
import { apply, mergeThreeWay, formatPath, type Change, type MergeResult } from './merge'
import { replaceObject, type WriteMode, type WriteResponse } from './objects'
import { EDITOR_HEIGHT } from './JsonAsYaml'

/** A change of the object in the cluster since the edit began. */
interface ConcurrentChange extends MergeResult {
  /** The current object. */
  text: string
  value: unknown
}

type Step = { phase: 'edit' } | { phase: 'preview'; response: WriteResponse } | { phase: 'conflict'; concurrent: ConcurrentChange }

interface EditProps {
  objectRef: ObjectRef
  kind: string
  /** The manifest that the edit is based on. */
  from: string
  onDone: (saved: boolean) => void
}

/** True if the cluster provides a schema of the kind. */
async function hasSchema({ cluster, apiVersion }: ObjectRef, kind: string): Promise<boolean> {
  const api = await readOpenApi(cluster, apiVersion)
  return api !== undefined && findSchema(api, apiVersion, kind) !== undefined
}

/** Editor of an object's manifest. An edit is previewed by a dry run before it is saved. */
export function Edit({ objectRef, kind, from, onDone }: EditProps) {
  const t = useTextOf(texts)
  const [base, setBase] = useState(from)
  const [draft, setDraft] = useState(from)
  const [step, setStep] = useState<Step>({ phase: 'edit' })
  const [pending, setPending] = useState(false)
  const [errorMessage, setErrorMessage] = useState<string>()
  const [notice, setNotice] = useState<string>()
  const changed = draft !== base
  // Provides completion in the editor. Editing works without it.
  const schema = useQuery({ queryKey: ['kind', objectRef.cluster, objectRef.apiVersion, kind], queryFn: () => hasSchema(objectRef, kind), staleTime: Infinity })

  useEffect(() => {
    if (!changed) return
    const warn = (event: BeforeUnloadEvent) => event.preventDefault()
    window.addEventListener('beforeunload', warn)
    return () => window.removeEventListener('beforeunload', warn)
  }, [changed])

  /** Rebases the edited manifest onto the current object. If fields other than server-maintained ones have changed, shows both sides and returns undefined. */
  const rebase = async (manifest: string): Promise<string | undefined> => {
    const text = withoutManagedFields(await getText(objectPath(objectRef), 'application/yaml'))
    const [original, mine, value] = [base, manifest, text].map((yaml) => parseYaml(yaml).value)
    const concurrent: ConcurrentChange = { ...mergeThreeWay(original, mine, value), text, value }
    if (concurrent.theirs.length > 0) {
      setStep({ phase: 'conflict', concurrent })
      return undefined
    }
    setNotice(t.statusChanged)
    return reapply(concurrent, concurrent.mine)
  }

  const reapply = (concurrent: ConcurrentChange, mine: Change[]) => {
    const rebased = printYaml(apply(concurrent.value, mine))
    setBase(concurrent.text)
    setDraft(rebased)
    return rebased
  }

  const send = async (manifest: string, mode: WriteMode, retry = true): Promise<void> => {
    try {
      const response = await replaceObject(objectRef, manifest, mode)
      if (mode === 'real') return onDone(true)
      setStep({ phase: 'preview', response: { ...response, text: withoutManagedFields(response.text) } })
    } catch (error) {
      if (!(error instanceof ApiError && error.code === 409 && retry)) throw error
      const rebased = await rebase(manifest)
      // A second conflict is reported as an error, and the user submits again.
      if (rebased !== undefined) await send(rebased, mode, false)
    }
  }

  const submit = (mode: WriteMode) => {
    const [first] = parseYaml(draft).problems
    setErrorMessage(first?.message)
    setNotice(undefined)
    if (first) return
    setPending(true)
    send(draft, mode)
      .catch((error: unknown) => setErrorMessage(describeError(error, objectRef.cluster, t)))
      .finally(() => setPending(false))
  }

  return (
    <section className="edit" aria-label={t.edit}>
      {errorMessage && <p role="alert">{errorMessage}</p>}
      {notice && <p role="status">{notice}</p>}
      {step.phase === 'edit' && (
        <>
          <p className="tools">
            <button type="button" disabled={pending} onClick={() => submit('dry-run')}>
              {t.preview}
            </button>
            <button type="button" onClick={() => onDone(false)}>
              {t.discard}
            </button>
            <span className="notice">{t.previewFirst}</span>
          </p>
          <Editor value={draft} label={t.editManifest} cluster={objectRef.cluster} height={EDITOR_HEIGHT} onChange={setDraft} />
          <p className="notice">{schema.data ? t.completionHint : schema.isPending ? '' : t.noSchema}</p>
        </>
      )}
      {step.phase === 'preview' && (
        <>
          <h2>
            {t.wouldChange} <ClusterName name={objectRef.cluster} />
          </h2>
          {step.response.warnings.map((warning) => (
            <p key={warning} className="notice">
              {warning}
            </p>
          ))}
          {step.response.text === base && <p className="notice">{t.nothingWouldChange}</p>}
          <p className="tools">
            <button type="button" disabled={pending} onClick={() => submit('real')}>
              {t.saveIn(objectRef.cluster)}
            </button>
            <button type="button" onClick={() => setStep({ phase: 'edit' })}>
              {t.backToEdit}
            </button>
          </p>
          <Editor value={step.response.text} original={base} label={t.previewed} height={EDITOR_HEIGHT} />
        </>
      )}
      {step.phase === 'conflict' && (
        <Conflict
          concurrent={step.concurrent}
          onReapply={(mine) => {
            reapply(step.concurrent, mine)
            setStep({ phase: 'edit' })
            setNotice(t.reapplied)
          }}
          onDiscard={() => onDone(false)}
        />
      )}
    </section>
  )
}

/** Changes on both sides; for conflicting fields the user selects a value. */
function Conflict({ concurrent, onReapply, onDiscard }: { concurrent: ConcurrentChange; onReapply: (mine: Change[]) => void; onDiscard: () => void }) {
  const t = useTextOf(texts)
  const [mineSelected, setMineSelected] = useState<ReadonlySet<Change>>(new Set())
  const conflicting = new Set(concurrent.conflicts.map(({ mine }) => mine))
  const show = (value: unknown) => (value === undefined ? <i>{t.absent}</i> : <code>{printJson(value)}</code>)
  return (
    <>
      <h2>{t.objectChanged}</h2>
      <p>{t.objectChangedHint}</p>
      <Table caption label={t.theirChanges} headers={t.changeColumns}>
        {concurrent.theirs.map((change) => (
          <tr key={formatPath(change.path)}>
            <th scope="row">{formatPath(change.path)}</th>
            <td>{show(change.before)}</td>
            <td>{show(change.after)}</td>
          </tr>
        ))}
      </Table>
      <Table caption label={t.myChanges} headers={[...t.changeColumns, t.decision]}>
        {concurrent.mine.map((change) => (
          <tr key={formatPath(change.path)}>
            <th scope="row">{formatPath(change.path)}</th>
            <td>{show(change.before)}</td>
            <td>{show(change.after)}</td>
            <td>
              {conflicting.has(change) ? (
                <label>
                  <input
                    type="checkbox"
                    checked={mineSelected.has(change)}
                    onChange={(event) => setMineSelected(new Set(event.target.checked ? [...mineSelected, change] : [...mineSelected].filter((other) => other !== change)))}
                  />{' '}
                  {t.useMine}
                </label>
              ) : (
                t.willBeApplied
              )}
            </td>
          </tr>
        ))}
      </Table>
      <p className="tools">
        <button type="button" onClick={() => onReapply(concurrent.mine.filter((change) => !conflicting.has(change) || mineSelected.has(change)))}>
          {t.reapply}
        </button>
        <button type="button" onClick={onDiscard}>
          {t.discard}
        </button>
      </p>
    </>
  )
}
