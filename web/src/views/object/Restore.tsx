// Restores an earlier version of an object: first as a dry run, then after a confirmation.
import { useEffect, useState } from 'react'
import { ApiError, getJson, objectPath, type ObjectRef } from '../../api/client'
import { printJson } from '../../api/json'
import { withTimeout } from '../../api/kube'
import type { Difference } from '../../api/propagation'
import type { KubeObject } from '../../api/types'
import { ClusterName } from '../../parts/ClusterName'
import { ActionButton } from '../../parts/ActionButton'
import { Differences } from '../../parts/Differences'
import { Modal } from '../../parts/Modal'
import { parseYaml, printYaml } from '../../parts/yaml'
import { useText, useTextOf } from '../../text'
import { historyText } from '../../text/history'
import { objectText as texts } from '../../text/object'
import { describeError } from './describeError'
import { computeChanges, isServerField, formatPath } from './merge'
import { createObject, readVersion, replaceObject } from './objects'
import { isManaged } from './Overview'
import { restoreVersion } from './restore'

interface RestoreProps {
  objectRef: ObjectRef
  seq: number
  onDone: () => void
  onClose: () => void
}

type DryRun = { status: 'checking' } | { status: 'refused'; reason: string } | { status: 'accepted'; text: string; current: KubeObject | undefined; differences: Difference[]; warnings: string[] }

/** The object in its cluster; undefined if it is deleted. */
async function currentOf(ref: ObjectRef): Promise<KubeObject | undefined> {
  try {
    return await withTimeout((timeoutSignal) => getJson<KubeObject>(objectPath(ref), timeoutSignal))
  } catch (error) {
    if (error instanceof ApiError && error.code === 404) return undefined
    throw error
  }
}

async function dryRunRestore(ref: ObjectRef, seq: number): Promise<DryRun> {
  const [current, version] = await Promise.all([currentOf(ref), readVersion(ref, seq)])
  const text = printYaml(restoreVersion(current, version))
  const response = await (current ? replaceObject : createObject)(ref, text, 'dry-run')
  const changed = computeChanges(current ?? {}, parseYaml(response.text).value).filter((change) => !isServerField(change))
  const differences = changed.map(({ path, before, after }) => ({ path: formatPath(path), before, after }))
  return { status: 'accepted', text, current, differences: current ? differences : [], warnings: response.warnings }
}

export function Restore({ objectRef, seq, onDone, onClose }: RestoreProps) {
  const t = useTextOf(historyText)
  const objectTexts = useTextOf(texts)
  const common = useText()
  const [dryRun, setDryRun] = useState<DryRun>({ status: 'checking' })
  const [isSending, setIsSending] = useState(false)
  const { cluster, name } = objectRef
  const refuse = (error: unknown) => setDryRun({ status: 'refused', reason: describeError(error, cluster, objectTexts) })
  useEffect(() => {
    let isCancelled = false
    dryRunRestore(objectRef, seq).then(
      (checked) => !isCancelled && setDryRun(checked),
      (error: unknown) => !isCancelled && refuse(error),
    )
    return () => {
      isCancelled = true
    }
  }, [seq])
  const accepted = dryRun.status === 'accepted' ? dryRun : undefined
  const isUnchanged = accepted?.current !== undefined && accepted.differences.length === 0
  const disabledReason = dryRun.status === 'checking' ? t.checking : dryRun.status === 'refused' ? dryRun.reason : isUnchanged ? t.unchanged : undefined
  const confirm = async () => {
    if (!accepted || isSending) return
    setIsSending(true)
    try {
      // If anything but the status has changed since the dry run, the new differences are shown and need another confirmation.
      const fresh = await dryRunRestore(objectRef, seq)
      const isSame = fresh.status === 'accepted' && printJson(fresh.differences) === printJson(accepted.differences)
      if (!isSame) return setDryRun(fresh)
      await (fresh.current ? replaceObject : createObject)(objectRef, fresh.text, 'real')
      onDone()
    } catch (error) {
      refuse(error)
    } finally {
      setIsSending(false)
    }
  }
  return (
    <Modal label={t.restoreTitle(name)} className="wide" onClose={onClose}>
      <div className="resource">
        <h2>{t.restoreTitle(name)}</h2>
        <p>
          <ClusterName name={cluster} />
        </p>
        <p>{t.restoreEffect}</p>
        {accepted && !accepted.current && <p>{t.recreated}</p>}
        {accepted?.current && isManaged(objectRef, accepted.current) && <p className="notice">{objectTexts.managed}</p>}
        <p role="status" className={dryRun.status === 'refused' ? 'bad' : 'notice'}>
          {disabledReason ?? t.accepted}
        </p>
        {accepted?.warnings.map((warning) => (
          <p key={warning} className="notice">
            {warning}
          </p>
        ))}
        {accepted && <Differences caption label={t.fields} differences={accepted.differences} />}
        <p className="tools">
          <ActionButton className="primary" disabledReason={disabledReason} onClick={() => void confirm()}>
            {t.restoreIn(cluster)}
          </ActionButton>
          <button type="button" onClick={onClose}>
            {common.cancel}
          </button>
        </p>
      </div>
    </Modal>
  )
}
