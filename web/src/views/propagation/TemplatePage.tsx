// Redirects addresses of a template by kind to the tabs of its object, after discovering the resource.
import { Redirect, useSearch as useParameters } from 'wouter'
import { objectAddress, readAddress } from '../../api/address'
import { CONTROL_PLANE } from '../../api/client'
import { discoverResource } from '../../api/kube'
import { PAGE_TABS, type TemplatePage as Page } from '../../api/propagation'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { useTextOf } from '../../text'
import { propagationText } from '../../text/propagation'

export function TemplatePage({ page }: { page: Page }) {
  const t = useTextOf(propagationText)
  const { apiVersion = '', kind = '', namespace, name = '', resource, cluster } = readAddress(useParameters())
  const isComplete = name !== '' && apiVersion !== '' && (kind !== '' || resource !== undefined)
  const served = usePolledQuery(['resource', apiVersion, kind, resource], async () => resource ?? (await discoverResource(apiVersion, kind))?.name ?? '', false, isComplete)
  if (!isComplete) return <p role="alert">{t.noTemplate}</p>
  return (
    <QueryResult query={served}>
      {(served) =>
        served === '' ? (
          <p role="alert">{t.notServed(kind, apiVersion)}</p>
        ) : (
          <Redirect to={objectAddress({ cluster: CONTROL_PLANE, apiVersion, resource: served, namespace, name }, PAGE_TABS[page], { in: cluster })} replace />
        )
      }
    </QueryResult>
  )
}
