// Restores an earlier version of an object: first as a dry run, then after a confirmation.
import { useEffect, useState } from 'react'
import { ApiError, getJson, objectPath, type ObjectRef } from '../../api/client'
import { printJson } from '../../api/json'
import { withTimeout } from '../../api/kube'
import type { Difference } from '../../api/propagation'
import type { KubeObject } from '../../api/types'
import { ClusterName } from '../../parts/ClusterName'
import { Control } from '../../parts/Control'
import { Differences } from '../../parts/Differences'
import { Modal } from '../../parts/Modal'
import { parse, print } from '../../parts/yaml'
import { useTextOf } from '../../text'
import { historyText } from '../../text/history'
import { object as texts } from '../../text/object'
import { explain } from './explain'
import { changes, isOwn, formatPath } from './merge'
import { createObject, readVersion, replaceObject } from './objects'
import { isManaged } from './Overview'
import { restored } from './restore'

interface RestoreProps {
  refTo: ObjectRef
  seq: number
  onDone: () => void
  onClose: () => void
}

type Checked = { at: 'checking' } | { at: 'refused'; why: string } | { at: 'accepted'; text: string; current: KubeObject | undefined; differences: Difference[]; warnings: string[] }

/** The object in its cluster; undefined if it is deleted. */
async function currentOf(ref: ObjectRef): Promise<KubeObject | undefined> {
  try {
    return await withTimeout((patience) => getJson<KubeObject>(objectPath(ref), patience))
  } catch (error) {
    if (error instanceof ApiError && error.code === 404) return undefined
    throw error
  }
}

async function check(ref: ObjectRef, seq: number): Promise<Checked> {
  const [current, version] = await Promise.all([currentOf(ref), readVersion(ref, seq)])
  const text = print(restored(current, version))
  const answer = await (current ? replaceObject : createObject)(ref, text, 'dry-run')
  const found = changes(current ?? {}, parse(answer.text).value).filter((change) => !isOwn(change))
  const differences = found.map(({ path, before, after }) => ({ path: formatPath(path), before, after }))
  return { at: 'accepted', text, current, differences: current ? differences : [], warnings: answer.warnings }
}

export function Restore({ refTo, seq, onDone, onClose }: RestoreProps) {
  const t = useTextOf(historyText)
  const own = useTextOf(texts)
  const [checked, setChecked] = useState<Checked>({ at: 'checking' })
  const [sending, setSending] = useState(false)
  const { cluster, name } = refTo
  const refused = (error: unknown) => setChecked({ at: 'refused', why: explain(error, cluster, own) })
  useEffect(() => {
    let over = false
    check(refTo, seq).then(
      (found) => !over && setChecked(found),
      (error: unknown) => !over && refused(error),
    )
    return () => {
      over = true
    }
  }, [seq])
  const accepted = checked.at === 'accepted' ? checked : undefined
  const unchanged = accepted?.current !== undefined && accepted.differences.length === 0
  const why = checked.at === 'checking' ? t.checking : checked.at === 'refused' ? checked.why : unchanged ? t.unchanged : undefined
  const confirm = async () => {
    if (!accepted || sending) return
    setSending(true)
    try {
      // The status may have changed since; any other change is shown, and needs a new confirmation.
      const fresh = await check(refTo, seq)
      const isSame = fresh.at === 'accepted' && printJson(fresh.differences) === printJson(accepted.differences)
      if (!isSame) return setChecked(fresh)
      await (fresh.current ? replaceObject : createObject)(refTo, fresh.text, 'real')
      onDone()
    } catch (error) {
      refused(error)
    } finally {
      setSending(false)
    }
  }
  return (
    <Modal label={t.restoreTitle(name)} className="wide" onClose={onClose}>
      <div className="resource">
        <h2>{t.restoreTitle(name)}</h2>
        <p>
          <ClusterName name={cluster} />
        </p>
        <p>{t.whatIsRestored}</p>
        {accepted && !accepted.current && <p>{t.recreated}</p>}
        {accepted?.current && isManaged(refTo, accepted.current) && <p className="notice">{own.managed}</p>}
        <p role="status" className={checked.at === 'refused' ? 'bad' : 'notice'}>
          {why ?? t.accepted}
        </p>
        {accepted?.warnings.map((warning) => (
          <p key={warning} className="notice">
            {warning}
          </p>
        ))}
        {accepted && <Differences caption label={t.fields} of={accepted.differences} />}
        <p className="tools">
          <Control className="primary" why={why} onClick={() => void confirm()}>
            {t.restoreIn(cluster)}
          </Control>
          <button type="button" onClick={onClose}>
            {own.cancel}
          </button>
        </p>
      </div>
    </Modal>
  )
}
