import { Link } from 'wouter'
import { searchAddress } from '../../api/address'
import { useTextOf } from '../../text'
import { propagationText } from '../../text/propagation'

/** Notice with the number of objects of a query that a table shows, and a link to all of them. */
export function QueryNotice({ shown, total, query }: { shown: number; total: number; query: string }) {
  const t = useTextOf(propagationText)
  return (
    <p className="notice">
      {shown < total && `${t.firstOf(shown, total)} `}
      <Link href={searchAddress({ q: query })}>{t.asQuery}</Link>
    </p>
  )
}
