// Drafts: objects as text, validated while they are edited, previewed, and then applied.
import { useEffect, useState } from 'react'
import { Link, useLocation, useSearch as useParameters } from 'wouter'
import { readAddress, writeAddress } from '../../api/address'
import { ApiError, CONTROL_PLANE, type ObjectRef } from '../../api/client'
import { fromFragment, SKELETONS, titleOf, toFragment, withRemovals } from '../../api/draft'
import { KINDS } from '../../api/karmada'
import { getObject, refOf, remove, resourceOf, write as store } from '../../api/kube'
import { plan, policyAddress, type PlanReport } from '../../api/propagation'
import type { KubeObject } from '../../api/types'
import { useCanI } from '../../api/useCanI'
import { QueryResult, Problem, usePolledQuery } from '../../parts/polledQuery'
import { Control } from '../../parts/Control'
import { Editor } from '../../parts/Editor'
import { useCopied } from '../../parts/flash'
import { locate, read, withoutServerFields, type Manifest } from '../../parts/manifest'
import { schemasOf, validate, type Words } from '../../parts/validate'
import { print, type Problem as Mark } from '../../parts/yaml'
import { useTextOf } from '../../text'
import { queryText } from '../../text/query'
import { propagationText } from '../../text/propagation'
import { PlanResult } from './PlanResult'

/** Debounce interval of the validation, in milliseconds. */
const AFTER = 600
const NONE: Mark[] = []

export function Plan() {
  const search = useParameters()
  const given = readAddress(search)
  return given.delete ? <Deletion key={search} given={given} /> : <Beginning key={search} given={given} />
}

type Given = Record<string, string>

async function refGiven({ apiVersion = '', kind = '', resource, namespace, name = '' }: Given): Promise<ObjectRef> {
  const found = resource ?? (await resourceOf(apiVersion, kind))?.name
  if (!found) throw new ApiError(404, 'NotFound', `no matches for kind "${kind}" in version "${apiVersion}"`)
  return { cluster: CONTROL_PLANE, apiVersion, resource: found, namespace: namespace || undefined, name }
}

interface Begun {
  text: string
  stored: KubeObject | undefined
}

/** A draft from an address, a stored object, a new one, or an empty draft. */
async function begin(given: Given, signal: AbortSignal): Promise<Begun> {
  const sent = await fromFragment(window.location.hash)
  if (!given.name) return { text: sent ?? SKELETONS[given.new ?? ''] ?? '', stored: undefined }
  const stored = await getObject<KubeObject>(await refGiven(given), signal)
  return { text: sent ?? print(withoutServerFields(stored, { version: true })), stored }
}

function Beginning({ given }: { given: Given }) {
  const t = useTextOf(propagationText)
  const [, navigate] = useLocation()
  const begun = usePolledQuery(['draft', given], (signal) => begin(given, signal), false)
  return (
    <>
      <h1>{t.planTitle}</h1>
      <p className="notice">{t.planHint}</p>
      {!given.name && (
        <p className="acts">
          <label>
            {t.format}{' '}
            <select value={given.new ?? ''} onChange={(event) => navigate(`/plan${writeAddress({ new: event.target.value || undefined })}`)}>
              <option value="">{t.startEmpty}</option>
              {KINDS.map(({ kind }) => (
                <option key={kind}>{kind}</option>
              ))}
            </select>
          </label>
        </p>
      )}
      <QueryResult of={begun}>{({ text, stored }) => <Bench begun={text} stored={stored} />}</QueryResult>
    </>
  )
}

/** Validation results of the current draft. */
interface Checked {
  of: string
  marks: Mark[]
  count: number
  /** Fields that another manager owns. */
  conflict: boolean
}

function Bench({ begun, stored }: { begun: string; stored: KubeObject | undefined }) {
  const t = useTextOf(propagationText)
  const [text, setText] = useState(begun)
  const [force, setForce] = useState(false)
  const [place, setPlace] = useState<{ at: number }>()
  const checked = useChecked(text, force)
  const [asked, setAsked] = useState<{ report?: PlanReport; error?: unknown; busy?: boolean }>({})
  const [applied, setApplied] = useState<{ done?: KubeObject[]; error?: unknown; busy?: boolean }>({})
  const parsed = read(text)
  const empty = parsed.manifests.length === 0
  const current = checked?.of === text ? checked : undefined
  const readable = parsed.problems.length + parsed.others.length === 0
  const whyNotAsk = asked.busy ? t.asking : empty ? t.emptyDraft : readable ? undefined : t.fixFirst
  const whyNotApply = applied.busy ? t.applying : empty ? t.emptyDraft : !current ? t.notChecked : current.marks.length > 0 ? t.fixFirst : undefined

  const ask = async () => {
    setAsked({ busy: true })
    try {
      setAsked({ report: await plan({ objects: await proposed(parsed.manifests, stored) }) })
    } catch (error) {
      setAsked({ error })
    }
  }
  const apply = async () => {
    setApplied({ busy: true })
    const done: KubeObject[] = []
    try {
      for (const { object } of parsed.manifests) done.push(await store(object, { dryRun: false, force }))
      setApplied({ done })
    } catch (error) {
      setApplied({ done, error })
    }
    setText(withVersions(text, parsed.manifests, done))
  }
  return (
    <>
      <Editor
        label={t.draft}
        value={text}
        onChange={(value) => {
          setText(value)
          setApplied({})
        }}
        problems={current?.marks ?? NONE}
        goTo={place}
        height="52vh"
      />
      <Verdict text={text} checked={current} empty={empty} onGo={(at) => setPlace({ at })} />
      {current?.conflict && (
        <p>
          {t.conflict}{' '}
          <label>
            <input type="checkbox" checked={force} onChange={(event) => setForce(event.target.checked)} /> {t.force}
          </label>
        </p>
      )}
      <div className="acts">
        <Control why={whyNotAsk} onClick={() => void ask()}>
          {asked.busy ? t.asking : t.ask}
        </Control>
        <Control why={whyNotApply} className="primary" onClick={() => void apply()}>
          {applied.busy ? t.applying : t.apply}
        </Control>
        <CopyLink text={text} />
      </div>
      {applied.done && applied.done.length > 0 && (
        <p role="status" className="good">
          {t.applied}{' '}
          {applied.done.map((object) => (
            <Link key={titleOf(object)} className="chip" href={placeOf(object)}>
              {titleOf(object)}
            </Link>
          ))}
        </p>
      )}
      <Problem error={applied.error} />
      <Problem error={asked.error} />
      {asked.report && <PlanResult report={asked.report} />}
    </>
  )
}

function placeOf(object: KubeObject): string {
  const { kind, apiVersion, metadata } = object
  if (KINDS.some((one) => one.kind === kind)) return policyAddress({ kind, name: metadata.name, ...(metadata.namespace && { namespace: metadata.namespace }) })
  return `/why${writeAddress({ apiVersion, kind, namespace: metadata.namespace, name: metadata.name })}`
}

/** Objects for the plan: with a namespace where needed, and with removals relative to the object that was read. */
async function proposed(manifests: Manifest[], stored: KubeObject | undefined): Promise<unknown[]> {
  const one = async ({ object }: Manifest) => {
    const ref = await refOf(object)
    const own = withoutServerFields(object, { version: false })
    const named = ref?.namespace ? { ...own, metadata: { ...own.metadata, namespace: ref.namespace } } : own
    const same = stored?.kind === object.kind && stored.metadata.name === object.metadata.name && stored.metadata.namespace === named.metadata.namespace
    return same ? withRemovals(stored, named) : named
  }
  return Promise.all(manifests.map(one))
}

/** The stored version becomes the base of the next change. */
function withVersions(text: string, manifests: Manifest[], done: KubeObject[]): string {
  return done.reduce((changed, stored, nth) => {
    const before = manifests[nth]?.object.metadata.resourceVersion
    const after = stored.metadata.resourceVersion
    if (!before || !after) return changed
    return changed.replace(new RegExp(`(resourceVersion: )"?${before}"?`), `$1"${after}"`)
  }, text)
}

/** Validates each object by a dry run after a pause in typing. */
function useChecked(text: string, force: boolean): Checked | undefined {
  const { noObject } = useTextOf(propagationText)
  const words = useTextOf(queryText)
  const [checked, setChecked] = useState<Checked>()
  useEffect(() => {
    let over = false
    const timer = setTimeout(() => {
      check(text, force, noObject, words).then(
        (found) => !over && setChecked(found),
        (error: unknown) => !over && setChecked({ of: text, marks: [{ from: 0, to: 0, message: error instanceof Error ? error.message : String(error) }], count: 0, conflict: false }),
      )
    }, AFTER)
    return () => {
      over = true
      clearTimeout(timer)
    }
  }, [text, force, noObject, words])
  return checked
}

async function check(text: string, force: boolean, noObject: string, words: Words): Promise<Checked> {
  const { manifests, problems, others } = read(text)
  const found: Checked = { of: text, marks: [...problems, ...others.map((place) => ({ ...place, message: noObject }))], count: manifests.length, conflict: force }
  for (const manifest of manifests) {
    const lacks = (['apiVersion', 'kind'] as const).find((field) => typeof manifest.object[field] !== 'string') ?? (manifest.object.metadata?.name ? undefined : 'metadata.name')
    if (lacks) {
      found.marks.push({ ...locate(manifest, lacks), message: `${lacks}: Required value` })
      continue
    }
    try {
      await store(manifest.object, { dryRun: true, force })
    } catch (error) {
      if (!(error instanceof ApiError)) throw error
      found.conflict ||= error.causes.some(({ reason }) => reason === 'FieldManagerConflict')
      const marks = marksOf(error, manifest)
      // The server decides what is wrong; where it does not name the field, the schema locates the value.
      const unlocated = marks.every(({ message }) => message === wholeMessage(error))
      const located = unlocated ? validate(text, await schemasOf(CONTROL_PLANE, text), words).filter(({ from }) => from >= manifest.from && from <= manifest.to) : []
      found.marks.push(...(located.length > 0 ? located : marks))
    }
  }
  return found
}

/** Error messages, each with its field. */
export function marksOf(error: ApiError, manifest: Manifest): Mark[] {
  const named = error.causes.filter(({ field }) => field)
  if (named.length > 0) return named.map(({ field = '', message = '' }) => ({ ...locate(manifest, field), message: `${field}: ${message || error.message}` }))
  const fields = [...error.message.matchAll(/(?:unknown|duplicate) field "([^"]+)"/g)]
  if (fields.length > 0) return fields.map(([said, field = '']) => ({ ...locate(manifest, field), message: said }))
  // The format of conflicts in server-side apply.
  const undeclared = [...error.message.matchAll(/\.(\S+): field not declared in schema/g)]
  if (undeclared.length > 0) return undeclared.map(([said, field = '']) => ({ ...locate(manifest, field), message: said.slice(1) }))
  return [{ ...locate(manifest, 'kind'), message: wholeMessage(error) }]
}

/** The message of an error that names no field. */
const wholeMessage = ({ message, code }: ApiError) => `${message} (${code})`

function Verdict({ text, checked, empty, onGo }: { text: string; checked: Checked | undefined; empty: boolean; onGo: (at: number) => void }) {
  const t = useTextOf(propagationText)
  const line = (at: number) => text.slice(0, at).split('\n').length
  if (empty && checked?.marks.length === 0) return null
  if (!checked) return <p role="status">{t.checking}</p>
  if (checked.marks.length === 0) {
    return (
      <p role="status" className="good">
        {t.checked(checked.count)}
      </p>
    )
  }
  return (
    <div className="problems" role="alert">
      <p>{t.refused(checked.marks.length)}</p>
      <ul className="plain">
        {checked.marks.map(({ from, message }, nth) => (
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

/** The draft is in the fragment of the address, which is not sent to a server. */
function CopyLink({ text }: { text: string }) {
  const t = useTextOf(propagationText)
  const [long, setLong] = useState(false)
  const [copied, copyText] = useCopied()
  const copy = async () => {
    const fragment = await toFragment(text)
    setLong(fragment === undefined)
    if (fragment === undefined) return
    window.history.replaceState(window.history.state, '', `#${fragment}`)
    await copyText(window.location.href)
  }
  return (
    <>
      <Control why={navigator.clipboard === undefined ? t.noClipboard : text.trim() === '' ? t.emptyDraft : undefined} onClick={() => void copy()}>
        {copied !== undefined ? t.linked : t.copyLink}
      </Control>
      {long && <span role="alert">{t.tooLong}</span>}
    </>
  )
}

/** Previews the deletion of an object, and then allows it. */
function Deletion({ given }: { given: Given }) {
  const t = useTextOf(propagationText)
  const { apiVersion = '', kind = '', namespace, name = '' } = given
  const planned = usePolledQuery(['deletion', given], () => plan({ deletions: [{ apiVersion, kind, metadata: { name, ...(namespace && { namespace }) } }], manifests: false }), false)
  const found = usePolledQuery(['ref', given], () => refGiven(given), false)
  return (
    <>
      <h1>{t.deletionOf(kind, namespace ? `${namespace}/${name}` : name)}</h1>
      <QueryResult of={planned}>{(report) => <PlanResult report={report} />}</QueryResult>
      <Problem error={found.error} />
      {found.data && <ForGood refTo={found.data} kind={kind} />}
    </>
  )
}

function ForGood({ refTo, kind }: { refTo: ObjectRef; kind: string }) {
  const t = useTextOf(propagationText)
  const [typed, setTyped] = useState('')
  const [gone, setGone] = useState(false)
  const [error, setError] = useState<unknown>()
  const group = refTo.apiVersion.includes('/') ? refTo.apiVersion.replace(/\/.*/, '') : ''
  const may = useCanI({ cluster: CONTROL_PLANE, verb: 'delete', group, resource: refTo.resource, namespace: refTo.namespace, name: refTo.name })
  const where = refTo.namespace ? t.inNamespace(refTo.namespace) : t.inCluster
  if (gone) {
    return (
      <p role="status" className="good">
        {t.deleted(kind, refTo.name)}
      </p>
    )
  }
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault()
        if (typed === refTo.name && may) remove(refTo).then(() => setGone(true), setError)
      }}
    >
      {kind === 'Cluster' && <p className="notice">{t.clusterStays}</p>}
      <p className="acts">
        <label>
          {t.typeName(refTo.name)} <input type="text" autoComplete="off" spellCheck={false} value={typed} onChange={(event) => setTyped(event.target.value)} />
        </label>
        <Control type="submit" className="danger" why={may ? (typed === refTo.name ? undefined : t.typeFirst) : t.mayNot('delete', refTo.resource, where)}>
          {t.deleteFor}
        </Control>
      </p>
      <Problem error={error} />
    </form>
  )
}
