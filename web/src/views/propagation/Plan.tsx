// Page that previews changes: a draft of objects is validated while it is edited, previewed, and then applied.
import { useEffect, useState } from 'react'
import { Link, useLocation, useSearch as useParameters } from 'wouter'
import { readAddress, writeAddress } from '../../api/address'
import { ApiError, CONTROL_PLANE, type ObjectRef } from '../../api/client'
import { fromFragment, SKELETONS, titleOf, toFragment, withoutCluster, withRemovals } from '../../api/draft'
import { POLICY_KINDS, type Policy } from '../../api/karmada'
import { getObject, discoverRef, deleteObject, discoverResource, storeObject as store } from '../../api/kube'
import { createPlan, policyAddress, type PlanReport } from '../../api/propagation'
import type { KubeObject } from '../../api/types'
import { useCanI } from '../../api/useCanI'
import { QueryResult, ErrorMessage, usePolledQuery } from '../../parts/polledQuery'
import { ActionButton } from '../../parts/ActionButton'
import { Editor } from '../../parts/Editor'
import { useCopied } from '../../parts/flash'
import { locate, parseManifests, withoutServerFields, type Manifest } from '../../parts/manifest'
import { readSchemas, validate, type ValidationMessages } from '../../parts/validate'
import { printYaml, type Problem as Mark } from '../../parts/yaml'
import { useTextOf } from '../../text'
import { queryText } from '../../text/query'
import { propagationText } from '../../text/propagation'
import { needsDryRun, withVersions, type DraftState } from './draftChecks'
import { countLoss } from './loss'
import { PlanResult } from './PlanResult'

/** Debounce interval of the validation, in milliseconds. */
const VALIDATION_DEBOUNCE_MS = 600
const NO_MARKS: Mark[] = []
/** Maximum number of templates in the preview of a lost cluster, which is the API's. */
const MAX_LOSS_TEMPLATES = 500

export function Plan() {
  const search = useParameters()
  const parameters = readAddress(search)
  if (parameters.delete) return <Deletion key={search} parameters={parameters} />
  if (parameters.lost && parameters.kind === 'Cluster') return <Loss key={search} parameters={parameters} />
  return <DraftPage key={search} parameters={parameters} />
}

type Parameters = Record<string, string>

async function readRef({ apiVersion = '', kind = '', resource, namespace, name = '' }: Parameters): Promise<ObjectRef> {
  const resourceName = resource ?? (await discoverResource(apiVersion, kind))?.name
  if (!resourceName) throw new ApiError(404, 'NotFound', `no matches for kind "${kind}" in version "${apiVersion}"`)
  return { cluster: CONTROL_PLANE, apiVersion, resource: resourceName, namespace: namespace || undefined, name }
}

interface LoadedDraft {
  text: string
  stored: KubeObject | undefined
}

/**
 * The draft of an address: the text in its fragment, a stored object, the skeleton of a new one, or an empty text. With `leave`, it is a stored
 * propagation policy that excludes this cluster.
 */
async function loadDraft(parameters: Parameters, signal: AbortSignal): Promise<LoadedDraft> {
  const linked = await fromFragment(window.location.hash)
  if (!parameters.name) return { text: linked ?? SKELETONS[parameters.new ?? ''] ?? '', stored: undefined }
  const stored = await getObject<KubeObject>(await readRef(parameters), signal)
  const proposed = parameters.leave === undefined ? stored : withoutCluster(stored as Policy, parameters.leave)
  return { text: linked ?? printYaml(withoutServerFields(proposed, { version: true })), stored }
}

function DraftPage({ parameters }: { parameters: Parameters }) {
  const t = useTextOf(propagationText)
  const [, navigate] = useLocation()
  const draft = usePolledQuery(['draft', parameters], (signal) => loadDraft(parameters, signal), false)
  return (
    <>
      <h1>{t.planTitle}</h1>
      <p className="notice">{t.planHint}</p>
      {!parameters.name && (
        <p className="acts">
          <label>
            {t.format}{' '}
            <select value={parameters.new ?? ''} onChange={(event) => navigate(`/plan${writeAddress({ new: event.target.value || undefined })}`)}>
              <option value="">{t.startEmpty}</option>
              {POLICY_KINDS.map(({ kind }) => (
                <option key={kind}>{kind}</option>
              ))}
            </select>
          </label>
        </p>
      )}
      <QueryResult query={draft}>{({ text, stored }) => <DraftEditor initialText={text} stored={stored} startsWithPreview={parameters.leave !== undefined} />}</QueryResult>
    </>
  )
}

/** Validation results of the current draft. */
interface Validation {
  text: string
  marks: Mark[]
  manifestCount: number
  /** Fields that another manager owns. */
  hasConflict: boolean
}

interface DraftEditorProps {
  initialText: string
  stored: KubeObject | undefined
  /** Previews the initial draft without a click. */
  startsWithPreview: boolean
}

function DraftEditor({ initialText, stored, startsWithPreview }: DraftEditorProps) {
  const t = useTextOf(propagationText)
  const [text, setText] = useState(initialText)
  const [force, setForce] = useState(false)
  const [goTo, setGoTo] = useState<{ at: number }>()
  const [storedText, setStoredText] = useState<string>()
  const [preview, setPreview] = useState<{ report?: PlanReport; error?: unknown; busy?: boolean }>({})
  const [applyResult, setApplyResult] = useState<{ done?: KubeObject[]; error?: unknown; busy?: boolean }>({})
  const parsed = parseManifests(text)
  const validation = useValidation({ text, storedText, isApplying: applyResult.busy === true }, force)
  const isEmpty = parsed.manifests.length === 0
  const storedValidation = text === storedText ? { text, marks: NO_MARKS, manifestCount: parsed.manifests.length, hasConflict: force } : undefined
  const current = storedValidation ?? (validation?.text === text ? validation : undefined)
  const isParsed = parsed.problems.length + parsed.nonObjects.length === 0
  const previewDisabledReason = preview.busy ? t.planning : isEmpty ? t.emptyDraft : isParsed ? undefined : t.fixFirst
  const applyDisabledReason = applyResult.busy ? t.applying : isEmpty ? t.emptyDraft : !current ? t.notChecked : current.marks.length > 0 ? t.fixFirst : undefined

  const runPreview = async () => {
    setPreview({ busy: true })
    try {
      setPreview({ report: await createPlan({ objects: await proposedObjects(parsed.manifests, stored) }) })
    } catch (error) {
      setPreview({ error })
    }
  }
  useEffect(() => {
    if (startsWithPreview) void runPreview()
  }, [])
  const apply = async () => {
    setApplyResult({ busy: true })
    const storedObjects: KubeObject[] = []
    try {
      for (const { object } of parsed.manifests) storedObjects.push(await store(object, { dryRun: false, force }))
      setApplyResult({ done: storedObjects })
      setStoredText(withVersions(text, parsed.manifests, storedObjects))
    } catch (error) {
      setApplyResult({ done: storedObjects, error })
    }
    // Edits that were made during the write are kept.
    setText((edited) => withVersions(edited, parsed.manifests, storedObjects))
  }
  return (
    <>
      <Editor
        label={t.draft}
        value={text}
        onChange={(value) => {
          setText(value)
          setStoredText(undefined)
          // The result of a write in progress is still awaited.
          setApplyResult(({ busy }) => (busy ? { busy } : {}))
        }}
        problems={current?.marks ?? NO_MARKS}
        goTo={goTo}
        height="52vh"
      />
      <ValidationResult text={text} validation={current} isEmpty={isEmpty} onGo={(at) => setGoTo({ at })} />
      {current?.hasConflict && (
        <p>
          {t.conflict}{' '}
          <label>
            <input type="checkbox" checked={force} onChange={(event) => setForce(event.target.checked)} /> {t.force}
          </label>
        </p>
      )}
      <div className="acts">
        <ActionButton disabledReason={previewDisabledReason} onClick={() => void runPreview()}>
          {preview.busy ? t.planning : t.whatIf}
        </ActionButton>
        <ActionButton disabledReason={applyDisabledReason} className="primary" onClick={() => void apply()}>
          {applyResult.busy ? t.applying : t.apply}
        </ActionButton>
        <CopyLink text={text} />
      </div>
      {applyResult.done && applyResult.done.length > 0 && (
        <p role="status" className="good">
          {t.applied}{' '}
          {applyResult.done.map((object) => (
            <Link key={titleOf(object)} className="chip" href={addressOf(object)}>
              {titleOf(object)}
            </Link>
          ))}
        </p>
      )}
      <ErrorMessage error={applyResult.error} />
      <ErrorMessage error={preview.error} />
      {preview.report && <PlanResult report={preview.report} />}
    </>
  )
}

function addressOf(object: KubeObject): string {
  const { kind, apiVersion, metadata } = object
  if (POLICY_KINDS.some((policyKind) => policyKind.kind === kind)) return policyAddress({ kind, name: metadata.name, ...(metadata.namespace && { namespace: metadata.namespace }) })
  return `/why${writeAddress({ apiVersion, kind, namespace: metadata.namespace, name: metadata.name })}`
}

/** Objects for the plan, with the default namespace where needed and with the removals relative to the stored object. */
async function proposedObjects(manifests: Manifest[], stored: KubeObject | undefined): Promise<unknown[]> {
  const propose = async ({ object }: Manifest) => {
    const ref = await discoverRef(object)
    const ownFields = withoutServerFields(object, { version: false })
    const withNamespace = ref?.namespace ? { ...ownFields, metadata: { ...ownFields.metadata, namespace: ref.namespace } } : ownFields
    const isStored = stored?.kind === object.kind && stored.metadata.name === object.metadata.name && stored.metadata.namespace === withNamespace.metadata.namespace
    return isStored ? withRemovals(stored, withNamespace) : withNamespace
  }
  return Promise.all(manifests.map(propose))
}

/** Validates each object by a dry run after a pause in typing, if the draft needs one. */
function useValidation({ text, storedText, isApplying }: DraftState, force: boolean): Validation | undefined {
  const { noObject } = useTextOf(propagationText)
  const messages = useTextOf(queryText)
  const [validation, setValidation] = useState<Validation>()
  const isNeeded = needsDryRun({ text, storedText, isApplying })
  useEffect(() => {
    if (!isNeeded) return
    let isCancelled = false
    const timer = setTimeout(() => {
      validateDraft(text, force, noObject, messages).then(
        (result) => !isCancelled && setValidation(result),
        (error: unknown) => !isCancelled && setValidation({ text: text, marks: [{ from: 0, to: 0, message: error instanceof Error ? error.message : String(error) }], manifestCount: 0, hasConflict: false }),
      )
    }, VALIDATION_DEBOUNCE_MS)
    return () => {
      isCancelled = true
      clearTimeout(timer)
    }
  }, [text, isNeeded, force, noObject, messages])
  return validation
}

async function validateDraft(text: string, force: boolean, noObject: string, messages: ValidationMessages): Promise<Validation> {
  const { manifests, problems, nonObjects } = parseManifests(text)
  const validation: Validation = { text: text, marks: [...problems, ...nonObjects.map((range) => ({ ...range, message: noObject }))], manifestCount: manifests.length, hasConflict: force }
  for (const manifest of manifests) {
    const missingField = (['apiVersion', 'kind'] as const).find((field) => typeof manifest.object[field] !== 'string') ?? (manifest.object.metadata?.name ? undefined : 'metadata.name')
    if (missingField) {
      validation.marks.push({ ...locate(manifest, missingField), message: `${missingField}: Required value` })
      continue
    }
    try {
      await store(manifest.object, { dryRun: true, force })
    } catch (error) {
      if (!(error instanceof ApiError)) throw error
      validation.hasConflict ||= error.causes.some(({ reason }) => reason === 'FieldManagerConflict')
      const marks = marksOf(error, manifest)
      // If the server's error names no field, errors of the schema locate the value.
      const isUnlocated = marks.every(({ message }) => message === wholeMessage(error))
      const locatedMarks = isUnlocated ? validate(text, await readSchemas(CONTROL_PLANE, text), messages).filter(({ from }) => from >= manifest.from && from <= manifest.to) : []
      validation.marks.push(...(locatedMarks.length > 0 ? locatedMarks : marks))
    }
  }
  return validation
}

/** Messages of an error at the positions of their fields. */
export function marksOf(error: ApiError, manifest: Manifest): Mark[] {
  const fieldCauses = error.causes.filter(({ field }) => field)
  if (fieldCauses.length > 0) return fieldCauses.map(({ field = '', message = '' }) => ({ ...locate(manifest, field), message: `${field}: ${message || error.message}` }))
  const fields = [...error.message.matchAll(/(?:unknown|duplicate) field "([^"]+)"/g)]
  if (fields.length > 0) return fields.map(([match, field = '']) => ({ ...locate(manifest, field), message: match }))
  // Format of unknown fields in server-side apply.
  const undeclared = [...error.message.matchAll(/\.(\S+): field not declared in schema/g)]
  if (undeclared.length > 0) return undeclared.map(([match, field = '']) => ({ ...locate(manifest, field), message: match.slice(1) }))
  return [{ ...locate(manifest, 'kind'), message: wholeMessage(error) }]
}

/** The message of an error that names no field. */
const wholeMessage = ({ message, code }: ApiError) => `${message} (${code})`

function ValidationResult({ text, validation, isEmpty, onGo }: { text: string; validation: Validation | undefined; isEmpty: boolean; onGo: (at: number) => void }) {
  const t = useTextOf(propagationText)
  const line = (at: number) => text.slice(0, at).split('\n').length
  if (isEmpty && validation?.marks.length === 0) return null
  if (!validation) return <p role="status">{t.checking}</p>
  if (validation.marks.length === 0) {
    return (
      <p role="status" className="good">
        {t.checked(validation.manifestCount)}
      </p>
    )
  }
  return (
    <div className="problems" role="alert">
      <p>{t.refused(validation.marks.length)}</p>
      <ul className="plain">
        {validation.marks.map(({ from, message }, nth) => (
          <li key={nth}>
            <button type="button" onClick={() => onGo(from)}>
              {t.line(line(from))}
            </button>
            {message}
          </li>
        ))}
      </ul>
    </div>
  )
}

/** Copies a link with the draft in its fragment, which is not sent to a server. */
function CopyLink({ text }: { text: string }) {
  const t = useTextOf(propagationText)
  const [isTooLong, setIsTooLong] = useState(false)
  const [copied, copyText] = useCopied()
  const copy = async () => {
    const fragment = await toFragment(text)
    setIsTooLong(fragment === undefined)
    if (fragment === undefined) return
    window.history.replaceState(window.history.state, '', `#${fragment}`)
    await copyText(window.location.href)
  }
  return (
    <>
      <ActionButton disabledReason={navigator.clipboard === undefined ? t.noClipboard : text.trim() === '' ? t.emptyDraft : undefined} onClick={() => void copy()}>
        {copied !== undefined ? t.linkCopied : t.copyLink}
      </ActionButton>
      {isTooLong && <span role="alert">{t.tooLong}</span>}
    </>
  )
}

/** Previews the deletion of an object, and deletes it after a confirmation. */
function Deletion({ parameters }: { parameters: Parameters }) {
  const t = useTextOf(propagationText)
  const { apiVersion = '', kind = '', namespace, name = '' } = parameters
  // A deleted object is not requested again when the connection is restored.
  const [isDeleted, setIsDeleted] = useState(false)
  const plan = usePolledQuery(['deletion', parameters], (signal) => createPlan({ deletions: [{ apiVersion, kind, metadata: { name, ...(namespace && { namespace }) } }], manifests: false }, signal), false, !isDeleted)
  const ref = usePolledQuery(['ref', parameters], () => readRef(parameters), false, !isDeleted)
  return (
    <>
      <h1>{t.deletionOf(kind, namespace ? `${namespace}/${name}` : name)}</h1>
      <QueryResult query={plan}>{(report) => <PlanResult report={report} />}</QueryResult>
      <ErrorMessage error={ref.error} />
      {ref.data && <ConfirmDeletion objectRef={ref.data} kind={kind} isDeleted={isDeleted} onDeleted={() => setIsDeleted(true)} />}
    </>
  )
}

/** Previews the loss of a cluster. */
function Loss({ parameters }: { parameters: Parameters }) {
  const t = useTextOf(propagationText)
  const { apiVersion = '', kind = '', name = '' } = parameters
  const losses = [{ apiVersion, kind, metadata: { name } }]
  const plan = usePolledQuery(['loss', name], (signal) => createPlan({ losses, manifests: false, limit: MAX_LOSS_TEMPLATES }, signal), false)
  return (
    <>
      <h1>{t.lossOf(name)}</h1>
      <p className="notice">{t.lossHint}</p>
      <QueryResult query={plan}>
        {(report) => (
          <>
            <LossSummary report={report} name={name} />
            <PlanResult report={report} />
          </>
        )}
      </QueryResult>
    </>
  )
}

function LossSummary({ report, name }: { report: PlanReport; name: string }) {
  const t = useTextOf(propagationText)
  const { leaving, unplaced, staying, isLowerBound } = countLoss(report, name)
  return (
    <ul className="plain" aria-label={t.lossSummary}>
      <li>{t.leaving(leaving, isLowerBound)}</li>
      <li className={unplaced > 0 ? 'bad' : undefined}>{t.unplaced(unplaced, isLowerBound)}</li>
      <li>{t.staying(staying, isLowerBound)}</li>
    </ul>
  )
}

interface ConfirmDeletionProps {
  objectRef: ObjectRef
  kind: string
  isDeleted: boolean
  onDeleted: () => void
}

function ConfirmDeletion({ objectRef, kind, isDeleted, onDeleted }: ConfirmDeletionProps) {
  const t = useTextOf(propagationText)
  const [typedName, setTypedName] = useState('')
  const [error, setError] = useState<unknown>()
  const group = objectRef.apiVersion.includes('/') ? objectRef.apiVersion.replace(/\/.*/, '') : ''
  const mayDelete = useCanI({ cluster: CONTROL_PLANE, verb: 'delete', group, resource: objectRef.resource, namespace: objectRef.namespace, name: objectRef.name })
  const scope = objectRef.namespace ? t.inNamespace(objectRef.namespace) : t.inCluster
  if (isDeleted) {
    return (
      <p role="status" className="good">
        {t.deleted(kind, objectRef.name)}
      </p>
    )
  }
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault()
        if (typedName === objectRef.name && mayDelete) deleteObject(objectRef).then(onDeleted, setError)
      }}
    >
      {kind === 'Cluster' && <p className="notice">{t.clusterStays}</p>}
      <p className="acts">
        <label>
          {t.typeName(objectRef.name)} <input type="text" autoComplete="off" spellCheck={false} value={typedName} onChange={(event) => setTypedName(event.target.value)} />
        </label>
        <ActionButton type="submit" className="danger" disabledReason={mayDelete ? (typedName === objectRef.name ? undefined : t.typeFirst) : t.mayNot('delete', objectRef.resource, scope)}>
          {t.deletePermanently}
        </ActionButton>
      </p>
      <ErrorMessage error={error} />
    </form>
  )
}
