// Addresses of a template by its kind: they lead to the tabs of its object.
import { Redirect, useSearch as useParameters } from 'wouter'
import { objectAddress, readAddress } from '../../api/address'
import { CONTROL_PLANE } from '../../api/client'
import { resourceOf } from '../../api/kube'
import { TAB_OF, type TemplatePage as Page } from '../../api/propagation'
import { QueryResult, usePolledQuery } from '../../parts/polledQuery'
import { useTextOf } from '../../text'
import { propagationText } from '../../text/propagation'

export function TemplatePage({ page }: { page: Page }) {
  const t = useTextOf(propagationText)
  const { apiVersion = '', kind = '', namespace, name = '', resource, cluster } = readAddress(useParameters())
  const complete = name !== '' && apiVersion !== '' && (kind !== '' || resource !== undefined)
  const served = usePolledQuery(['resource', apiVersion, kind, resource], async () => resource ?? (await resourceOf(apiVersion, kind))?.name ?? '', false, complete)
  if (!complete) return <p role="alert">{t.noTemplate}</p>
  return (
    <QueryResult of={served}>
      {(served) =>
        served === '' ? (
          <p role="alert">{t.notServed(kind, apiVersion)}</p>
        ) : (
          <Redirect to={objectAddress({ cluster: CONTROL_PLANE, apiVersion, resource: served, namespace, name }, TAB_OF[page], { in: cluster })} replace />
        )
      }
    </QueryResult>
  )
}
