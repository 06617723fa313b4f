import { Link, useLocation, useSearch as useParameters } from 'wouter'
import { ClusterName } from '../parts/ClusterName'
import { Query } from '../parts/Query'
import { useText } from '../text'
import { breadcrumbsOf, type Breadcrumb } from './breadcrumbsOf'

/** Breadcrumbs of the current view. */
export function Breadcrumbs() {
  const t = useText()
  const [path] = useLocation()
  const crumbs = breadcrumbsOf(path, useParameters())
  if (crumbs.length === 0) return <span className="crumbs" />
  return (
    <nav className="crumbs" aria-label={t.breadcrumbs}>
      <ol>
        {crumbs.map((crumb, nth) => (
          <li key={nth}>
            {crumb.href === undefined ? (
              <span aria-current="page">
                <Label crumb={crumb} />
              </span>
            ) : (
              <Link href={crumb.href}>
                <Label crumb={crumb} />
              </Link>
            )}
          </li>
        ))}
      </ol>
    </nav>
  )
}

function Label({ crumb: { page, text = '', format } }: { crumb: Breadcrumb }) {
  const t = useText()
  if (page === 'search' || page === 'fleet' || page === 'propagation' || page === 'savedSearches') return <>{t[page]}</>
  if (page) return <>{t.pages[page]}</>
  if (format === 'cluster') return <ClusterName name={text} />
  return format === 'query' ? <Query text={text} /> : <>{text}</>
}
