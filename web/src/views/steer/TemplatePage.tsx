// Addresses of a template by its kind: they lead to the tabs of its object.
import { Redirect, useSearch as useParameters } from 'wouter'
import { objectAddress, readAddress } from '../../api/address'
import { CONTROL_PLANE } from '../../api/client'
import { resourceOf } from '../../api/kube'
import { TAB_OF, type TemplatePage as Page } from '../../api/propagation'
import { Answer, useAsk } from '../../parts/Asking'
import { useTextOf } from '../../text'
import { steerText } from '../../text/steer'

export function TemplatePage({ page }: { page: Page }) {
  const t = useTextOf(steerText)
  const { apiVersion = '', kind = '', namespace, name = '', resource, cluster } = readAddress(useParameters())
  const complete = name !== '' && apiVersion !== '' && (kind !== '' || resource !== undefined)
  const served = useAsk(['resource', apiVersion, kind, resource], async () => resource ?? (await resourceOf(apiVersion, kind))?.name ?? '', false, complete)
  if (!complete) return <p role="alert">{t.noTemplate}</p>
  return (
    <Answer of={served}>
      {(served) =>
        served === '' ? (
          <p role="alert">{t.notServed(kind, apiVersion)}</p>
        ) : (
          <Redirect to={objectAddress({ cluster: CONTROL_PLANE, apiVersion, resource: served, namespace, name }, TAB_OF[page], { in: cluster })} replace />
        )
      }
    </Answer>
  )
}
