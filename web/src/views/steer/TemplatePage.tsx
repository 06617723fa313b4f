// A template: explanation, topology, and desired and live state.
import { Link, useSearch as useParameters } from 'wouter'
import { objectAddress, readAddress, writeAddress } from '../../api/address'
import { CONTROL_PLANE } from '../../api/client'
import { resourceOf } from '../../api/kube'
import { templateAddress, type Template, type TemplatePage as Page } from '../../api/propagation'
import type { Named } from '../../api/karmada'
import { Answer, useAsk } from '../../parts/Asking'
import { useTextOf } from '../../text'
import { journalText } from '../../text/journal'
import { steerText } from '../../text/steer'
import { Drift } from './Drift'
import { Topology } from './Topology'
import { Why } from './Why'

const PAGES: Page[] = ['why', 'topology', 'drift']

interface Address {
  named: Named
  resource: string | undefined
  cluster: string | undefined
}

function readTemplate(search: string): Address {
  const { apiVersion = '', kind = '', namespace, name = '', resource, cluster } = readAddress(search)
  return { named: { apiVersion, kind, name, ...(namespace && { namespace }) }, resource, cluster }
}

export function TemplatePage({ page }: { page: Page }) {
  const { named, resource, cluster } = readTemplate(useParameters())
  // Keyed by template, so that no state is carried over.
  return <Shown key={[named.apiVersion, named.kind, resource, named.namespace, named.name].join(' ')} page={page} named={named} resource={resource} cluster={cluster} />
}

function Shown({ page, named, resource, cluster }: Address & { page: Page }) {
  const t = useTextOf(steerText)
  const journal = useTextOf(journalText)
  const { apiVersion, kind, namespace, name } = named
  const complete = name !== '' && apiVersion !== '' && (kind !== '' || resource !== undefined)
  const served = useAsk(
    ['resource', apiVersion, kind, resource],
    async () => (resource ? { name: resource, kind: kind || resource } : await resourceOf(apiVersion, kind)) ?? { name: '', kind },
    false,
    complete,
  )
  if (!complete) return <p role="alert">{t.noTemplate}</p>
  return (
    <>
      <h1>
        <small>{kind || resource}</small> {namespace ? `${namespace}/` : ''}
        {name}
      </h1>
      <nav className="tabs" aria-label={t.templateViews}>
        {PAGES.map((one) => (
          <Link key={one} href={kind ? templateAddress(one, named) : `/${one}${writeAddress({ apiVersion, resource, namespace, name })}`} replace aria-current={one === page ? 'page' : undefined}>
            {t.templateTabs[one]}
          </Link>
        ))}
        {served.data?.name && <Link href={objectAddress({ cluster: CONTROL_PLANE, apiVersion, resource: served.data.name, namespace, name })}>{t.object}</Link>}
        {served.data?.name && <Link href={objectAddress({ cluster: CONTROL_PLANE, apiVersion, resource: served.data.name, namespace, name }, 'journal')}>{journal.title}</Link>}
        <Link href={`/plan${writeAddress({ apiVersion, kind: kind || undefined, resource, namespace, name })}`}>{t.tabs.plan}</Link>
        <Link href={`/steer/rebalance${writeAddress({ chosen: `${apiVersion} ${kind} ${namespace ?? ''} ${name}` })}`}>{t.tabs.rebalance}</Link>
      </nav>
      <Answer of={served}>
        {({ name: resource }) => {
          if (resource === '') return <p role="alert">{t.notServed(kind, apiVersion)}</p>
          const template: Template = { apiVersion, resource, namespace, name }
          if (page === 'topology') return <Topology template={template} />
          if (page === 'drift') return <Drift template={template} named={named} cluster={cluster} />
          return <Why template={template} />
        }}
      </Answer>
    </>
  )
}
