import { useQuery } from '@tanstack/react-query'
import { useEffect, useState } from 'react'
import { ApiError, getText, objectPath, type ObjectRef } from '../../api/client'
import { printJson } from '../../api/json'
import { ClusterName } from '../../parts/ClusterName'
import { Editor } from '../../parts/Editor'
import { openApiOf, schemaOf } from '../../parts/schema'
import { parse, print } from '../../parts/yaml'
import { Table } from '../../parts/Table'
import { useTextOf } from '../../text'
import { object as texts } from '../../text/object'
import { explain } from './explain'
import { withoutManagedFields } from './manifest'
import { apply, compare, written, type Change, type Merged } from './merge'
import { replaceObject, type Earnest, type Written } from './objects'
import { TALL } from './Printed'

/** The object has changed in the cluster since the edit began. */
interface Met extends Merged {
  /** The current object. */
  text: string
  value: unknown
}

type Step = { at: 'edit' } | { at: 'preview'; answer: Written } | { at: 'conflict'; met: Met }

interface EditProps {
  refTo: ObjectRef
  kind: string
  /** The manifest that the edit is based on. */
  from: string
  onDone: (saved: boolean) => void
}

/** Whether the cluster provides a schema of the kind. */
async function isDescribed({ cluster, apiVersion }: ObjectRef, kind: string): Promise<boolean> {
  const api = await openApiOf(cluster, apiVersion)
  return api !== undefined && schemaOf(api, apiVersion, kind) !== undefined
}

/** Edits are previewed by a dry run before they are saved. */
export function Edit({ refTo, kind, from, onDone }: EditProps) {
  const t = useTextOf(texts)
  const [base, setBase] = useState(from)
  const [draft, setDraft] = useState(from)
  const [step, setStep] = useState<Step>({ at: 'edit' })
  const [asking, setAsking] = useState(false)
  const [problem, setProblem] = useState<string>()
  const [told, setTold] = useState<string>()
  const changed = draft !== base
  // Without completion, editing still works.
  const described = useQuery({ queryKey: ['kind', refTo.cluster, refTo.apiVersion, kind], queryFn: () => isDescribed(refTo, kind), staleTime: Infinity })

  useEffect(() => {
    if (!changed) return
    const warn = (event: BeforeUnloadEvent) => event.preventDefault()
    window.addEventListener('beforeunload', warn)
    return () => window.removeEventListener('beforeunload', warn)
  }, [changed])

  /** Rebases onto the changes; continues if no field needs a decision. */
  const meet = async (wanted: string): Promise<string | undefined> => {
    const text = withoutManagedFields(await getText(objectPath(refTo), 'application/yaml'))
    const [was, mine, value] = [base, wanted, text].map((one) => parse(one).value)
    const met: Met = { ...compare(was, mine, value), text, value }
    if (met.theirs.length > 0) {
      setStep({ at: 'conflict', met })
      return undefined
    }
    setTold(t.statusChanged)
    return reapply(met, met.mine)
  }

  const reapply = (met: Met, mine: Change[]) => {
    const again = print(apply(met.value, mine))
    setBase(met.text)
    setDraft(again)
    return again
  }

  const send = async (wanted: string, earnest: Earnest, again = true): Promise<void> => {
    try {
      const answer = await replaceObject(refTo, wanted, earnest)
      if (earnest === 'real') return onDone(true)
      setStep({ at: 'preview', answer: { ...answer, text: withoutManagedFields(answer.text) } })
    } catch (error) {
      if (!(error instanceof ApiError && error.code === 409 && again)) throw error
      const merged = await meet(wanted)
      // Another change in the meantime is shown, and needs a new confirmation.
      if (merged !== undefined) await send(merged, earnest, false)
    }
  }

  const ask = (earnest: Earnest) => {
    const [first] = parse(draft).problems
    setProblem(first?.message)
    setTold(undefined)
    if (first) return
    setAsking(true)
    send(draft, earnest)
      .catch((error: unknown) => setProblem(explain(error, refTo.cluster, t)))
      .finally(() => setAsking(false))
  }

  return (
    <section className="edit" aria-label={t.edit}>
      {problem && <p role="alert">{problem}</p>}
      {told && <p role="status">{told}</p>}
      {step.at === 'edit' && (
        <>
          <p className="tools">
            <button type="button" disabled={asking} onClick={() => ask('dry-run')}>
              {t.preview}
            </button>
            <button type="button" onClick={() => onDone(false)}>
              {t.discard}
            </button>
            <span className="notice">{t.previewFirst}</span>
          </p>
          <Editor value={draft} label={t.editManifest} cluster={refTo.cluster} height={TALL} onChange={setDraft} />
          <p className="notice">{described.data ? t.helpIsThere : described.isPending ? '' : t.noHelp}</p>
        </>
      )}
      {step.at === 'preview' && (
        <>
          <h2>
            {t.wouldChange} <ClusterName name={refTo.cluster} />
          </h2>
          {step.answer.warnings.map((warning) => (
            <p key={warning} className="notice">
              {warning}
            </p>
          ))}
          {step.answer.text === base && <p className="notice">{t.nothingWouldChange}</p>}
          <p className="tools">
            <button type="button" disabled={asking} onClick={() => ask('real')}>
              {t.saveIn(refTo.cluster)}
            </button>
            <button type="button" onClick={() => setStep({ at: 'edit' })}>
              {t.backToEdit}
            </button>
          </p>
          <Editor value={step.answer.text} original={base} label={t.previewed} height={TALL} />
        </>
      )}
      {step.at === 'conflict' && (
        <Conflict
          met={step.met}
          onReapply={(mine) => {
            reapply(step.met, mine)
            setStep({ at: 'edit' })
            setTold(t.reapplied)
          }}
          onDiscard={() => onDone(false)}
        />
      )}
    </section>
  )
}

/** Changes on both sides; for conflicting fields the user selects a value. */
function Conflict({ met, onReapply, onDiscard }: { met: Met; onReapply: (mine: Change[]) => void; onDiscard: () => void }) {
  const t = useTextOf(texts)
  const [kept, setKept] = useState<ReadonlySet<Change>>(new Set())
  const contested = new Set(met.conflicts.map(({ mine }) => mine))
  const show = (value: unknown) => (value === undefined ? <i>{t.absent}</i> : <code>{printJson(value)}</code>)
  return (
    <>
      <h2>{t.changedThere}</h2>
      <p>{t.changedThereHint}</p>
      <Table caption label={t.theirChanges} heads={t.changeColumns}>
        {met.theirs.map((change) => (
          <tr key={written(change.path)}>
            <th scope="row">{written(change.path)}</th>
            <td>{show(change.before)}</td>
            <td>{show(change.after)}</td>
          </tr>
        ))}
      </Table>
      <Table caption label={t.myChanges} heads={[...t.changeColumns, t.decision]}>
        {met.mine.map((change) => (
          <tr key={written(change.path)}>
            <th scope="row">{written(change.path)}</th>
            <td>{show(change.before)}</td>
            <td>{show(change.after)}</td>
            <td>
              {contested.has(change) ? (
                <label>
                  <input
                    type="checkbox"
                    checked={kept.has(change)}
                    onChange={(event) => setKept(new Set(event.target.checked ? [...kept, change] : [...kept].filter((other) => other !== change)))}
                  />{' '}
                  {t.takeMine}
                </label>
              ) : (
                t.goesOnTop
              )}
            </td>
          </tr>
        ))}
      </Table>
      <p className="tools">
        <button type="button" onClick={() => onReapply(met.mine.filter((change) => !contested.has(change) || kept.has(change)))}>
          {t.reapply}
        </button>
        <button type="button" onClick={onDiscard}>
          {t.discard}
        </button>
      </p>
    </>
  )
}
