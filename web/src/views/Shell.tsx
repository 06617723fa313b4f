import { Link, Outlet } from '@tanstack/react-router'
import { useSession } from './SignIn'

export function Shell() {
  const session = useSession()
  return (
    <>
      <a className="skip" href="#main">
        Skip to content
      </a>
      <header className="top">
        <Link to="/" className="brand">
          <img src="/crowsnest.svg" alt="" width="22" height="22" /> Crowsnest
        </Link>
        <nav aria-label="Main">
          <Link to="/">Fleet</Link>
          <Link to="/search" search={{ q: '' }}>
            Search
          </Link>
        </nav>
        <span className="who">{session.user}</span>
        <button type="button" onClick={session.signOut}>
          Sign out
        </button>
      </header>
      <main id="main">
        <Outlet />
      </main>
    </>
  )
}
