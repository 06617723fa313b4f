import { Link, useLocation, useSearch as useParameters } from 'wouter'
import { ClusterName } from '../parts/ClusterName'
import { Query } from '../parts/Query'
import { useText } from '../text'
import { crumbsOf, type Crumb } from './crumbs'

/** The place of the current view, each part a link. */
export function Crumbs() {
  const t = useText()
  const [path] = useLocation()
  const crumbs = crumbsOf(path, useParameters())
  if (crumbs.length === 0) return <span className="crumbs" />
  return (
    <nav className="crumbs" aria-label={t.breadcrumbs}>
      <ol>
        {crumbs.map((crumb, nth) => (
          <li key={nth}>
            {crumb.href === undefined ? (
              <span aria-current="page">
                <Label of={crumb} />
              </span>
            ) : (
              <Link href={crumb.href}>
                <Label of={crumb} />
              </Link>
            )}
          </li>
        ))}
      </ol>
    </nav>
  )
}

function Label({ of: { page, text = '', is } }: { of: Crumb }) {
  const t = useText()
  if (page === 'search' || page === 'fleet' || page === 'steering' || page === 'savedSearches') return <>{t[page]}</>
  if (page) return <>{t.pages[page]}</>
  if (is === 'cluster') return <ClusterName name={text} />
  return is === 'query' ? <Query text={text} /> : <>{text}</>
}
