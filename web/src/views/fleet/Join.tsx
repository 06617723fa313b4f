import { useState } from 'react'
import { parse } from 'yaml'
import { CONTROL_PLANE } from '../../api/client'
import { clusterInfo, kubeconfig, makeAccount } from '../../api/joining'
import { useFleet } from '../../api/useFleet'
import { useCanI } from '../../api/useCanI'
import { Problem } from '../../parts/polledQuery'
import { Command } from '../../parts/Command'
import { Control } from '../../parts/Control'
import { useTextOf } from '../../text'
import { fleetText } from '../../text/fleet'

/** Karmada's rules for cluster names. */
const NAME = /^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$/

interface Account {
  name: string
  config: string
  known: boolean
}

/** Joining a cluster: by a direct connection, or by an agent's tunnel. */
export function Join() {
  const t = useTextOf(fleetText)
  const { fleet } = useFleet()
  const [name, setName] = useState('')
  const [account, setAccount] = useState<Account>()
  const [error, setError] = useState<unknown>()
  const mayAccount = useCanI({ cluster: CONTROL_PLANE, verb: 'create', resource: 'serviceaccounts', namespace: 'karmada-cluster' })
  const mayRoles = useCanI({ cluster: CONTROL_PLANE, verb: 'create', group: 'rbac.authorization.k8s.io', resource: 'clusterroles' })
  const taken = fleet?.clusters.some((cluster) => cluster.name === name)
  const why = !mayAccount ? t.mayNotAccount : !mayRoles ? t.mayNotRoles : taken ? t.taken(name) : NAME.test(name) ? undefined : t.badName
  const shown = NAME.test(name) ? name : 'NAME'

  const make = async () => {
    setError(undefined)
    setAccount(undefined)
    const info = await clusterInfo()
    const token = await makeAccount(name)
    setAccount({ name, known: info !== undefined, config: kubeconfig(name, info === undefined ? undefined : (parse(info) as Record<string, unknown>), token) })
  }
  return (
    <>
      <h1>{t.joinTitle}</h1>
      <p className="acts">
        <label>
          {t.joinName} <input type="text" value={name} autoComplete="off" spellCheck={false} onChange={(event) => setName(event.target.value.trim())} />
        </label>
      </p>
      <h2>{t.joinPush}</h2>
      <p>{t.joinPushHow}</p>
      <Command text={`crowsnest join ${shown} --cluster-kubeconfig ${shown}.kubeconfig`} />
      <h2>{t.joinPull}</h2>
      <p>{t.joinPullHow}</p>
      <p className="acts">
        <Control why={why} onClick={() => void make().catch(setError)}>
          {t.makeAccount}
        </Control>
      </p>
      <Problem error={error} />
      {account && <Shown account={account} />}
      <p>{t.joinThen}</p>
      <Command text={`crowsnest agent --cluster-name ${shown} --control-plane-kubeconfig agent-${shown}.kubeconfig --kubeconfig ${shown}.kubeconfig`} />
    </>
  )
}

/** The token is kept in the page's memory only. */
function Shown({ account }: { account: Account }) {
  const t = useTextOf(fleetText)
  const download = () => {
    const address = URL.createObjectURL(new Blob([account.config], { type: 'application/yaml' }))
    const link = document.createElement('a')
    link.href = address
    link.download = `agent-${account.name}.kubeconfig`
    link.click()
    URL.revokeObjectURL(address)
  }
  return (
    <section aria-live="polite">
      <p>{t.accountMade(account.name)}</p>
      {!account.known && <p role="alert">{t.noInfo}</p>}
      <Command text={account.config} />
      <p className="acts">
        <button type="button" onClick={download}>
          {t.download}
        </button>
        <span className="notice">{t.accountNote}</span>
      </p>
    </section>
  )
}
