import { useState } from 'react'
import { parse } from 'yaml'
import { CONTROL_PLANE } from '../../api/client'
import { readClusterInfo, agentKubeconfig, createAgentAccount } from '../../api/joining'
import { useFleet } from '../../api/useFleet'
import { useCanI } from '../../api/useCanI'
import { ErrorMessage } from '../../parts/polledQuery'
import { Command } from '../../parts/Command'
import { ActionButton } from '../../parts/ActionButton'
import { useTextOf } from '../../text'
import { fleetText } from '../../text/fleet'

/** Cluster names that Karmada accepts: DNS labels of at most 48 characters. */
const NAME = /^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$/

interface AgentAccount {
  name: string
  kubeconfig: string
  hasServerAddress: boolean
}

/** Instructions to join a cluster: by a direct connection, or by an agent's tunnel. */
export function Join() {
  const t = useTextOf(fleetText)
  const { fleet } = useFleet()
  const [name, setName] = useState('')
  const [account, setAccount] = useState<AgentAccount>()
  const [error, setError] = useState<unknown>()
  const mayAccount = useCanI({ cluster: CONTROL_PLANE, verb: 'create', resource: 'serviceaccounts', namespace: 'karmada-cluster' })
  const mayRoles = useCanI({ cluster: CONTROL_PLANE, verb: 'create', group: 'rbac.authorization.k8s.io', resource: 'clusterroles' })
  const isTaken = fleet?.clusters.some((cluster) => cluster.name === name)
  const disabledReason = !mayAccount ? t.mayNotAccount : !mayRoles ? t.mayNotRoles : isTaken ? t.nameInUse(name) : NAME.test(name) ? undefined : t.invalidName
  const shownName = NAME.test(name) ? name : 'NAME'

  const createAccount = async () => {
    setError(undefined)
    setAccount(undefined)
    const info = await readClusterInfo()
    const token = await createAgentAccount(name)
    setAccount({ name, hasServerAddress: info !== undefined, kubeconfig: agentKubeconfig(name, info === undefined ? undefined : (parse(info) as Record<string, unknown>), token) })
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
      <Command text={`crowsnest join ${shownName} --cluster-kubeconfig ${shownName}.kubeconfig`} />
      <h2>{t.joinPull}</h2>
      <p>{t.joinPullHow}</p>
      <p className="acts">
        <ActionButton disabledReason={disabledReason} onClick={() => void createAccount().catch(setError)}>
          {t.createAccount}
        </ActionButton>
      </p>
      <ErrorMessage error={error} />
      {account && <AccountResult account={account} />}
      <p>{t.joinNextStep}</p>
      <Command text={`crowsnest agent --cluster-name ${shownName} --control-plane-kubeconfig agent-${shownName}.kubeconfig --kubeconfig ${shownName}.kubeconfig`} />
    </>
  )
}

/** Kubeconfig of the created account. Its token is kept in the page's memory only. */
function AccountResult({ account }: { account: AgentAccount }) {
  const t = useTextOf(fleetText)
  const download = () => {
    const address = URL.createObjectURL(new Blob([account.kubeconfig], { type: 'application/yaml' }))
    const link = document.createElement('a')
    link.href = address
    link.download = `agent-${account.name}.kubeconfig`
    link.click()
    URL.revokeObjectURL(address)
  }
  return (
    <section aria-live="polite">
      <p>{t.accountCreated(account.name)}</p>
      {!account.hasServerAddress && <p role="alert">{t.noClusterInfo}</p>}
      <Command text={account.kubeconfig} />
      <p className="acts">
        <button type="button" onClick={download}>
          {t.download}
        </button>
        <span className="notice">{t.accountNote}</span>
      </p>
    </section>
  )
}
