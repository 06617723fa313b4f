import type { ReactNode } from 'react'
import { Link, useLocation } from 'wouter'
import { QueryProvider } from './polledQuery'

interface SectionPageProps {
  label: string
  /** The views of this section, by label, with their addresses. */
  tabs: readonly (readonly [name: string, href: string])[]
  children: ReactNode
}

/** A section of the UI with several views and their navigation. */
export function SectionPage({ label, tabs, children }: SectionPageProps) {
  const [path] = useLocation()
  return (
    <QueryProvider>
      <div className="page">
        <nav className="subnav" aria-label={label}>
          {tabs.map(([name, href]) => (
            <Link key={href} href={href} aria-current={path === href ? 'page' : undefined}>
              {name}
            </Link>
          ))}
        </nav>
        {children}
      </div>
    </QueryProvider>
  )
}
