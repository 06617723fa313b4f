import { Link } from 'wouter'
import type { ObjectRef } from '../../api/client'
import { useTextOf } from '../../text'
import { analysisText } from '../../text/analysis'
import { accessAddress, subjectAddress } from './access'

/** Links from an object to its access reviews: who may get it, and for a service account what it may do itself. */
export function AccessLink({ objectRef }: { objectRef: ObjectRef }) {
  const t = useTextOf(analysisText)
  const { cluster, apiVersion, resource, namespace, name } = objectRef
  return (
    <>
      <Link className="button" href={accessAddress(objectRef)}>
        {t.access}
      </Link>
      {apiVersion === 'v1' && resource === 'serviceaccounts' && (
        <Link className="button" href={subjectAddress({ kind: 'ServiceAccount', ...(namespace && { namespace }), name }, cluster)}>
          {t.subjectAccess}
        </Link>
      )}
    </>
  )
}
