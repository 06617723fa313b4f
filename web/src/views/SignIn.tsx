// The session: a token from the address (as `crowsnest up` prints it) or typed, kept by the server in an HttpOnly cookie.
import { createContext, useContext, useEffect, useState, type ReactNode } from 'react'
import { ApiError, getJson, request } from '../api/client'

interface Session {
  user: string
  signOut: () => void
}

const Context = createContext<Session>({ user: '', signOut: () => undefined })
export const useSession = () => useContext(Context)

/** Takes `#token=…` out of the address, so that it is in no history and no referrer. */
function tokenFromAddress(): string | undefined {
  const token = new URLSearchParams(window.location.hash.slice(1)).get('token')
  if (!token) return undefined
  window.history.replaceState(null, '', window.location.pathname + window.location.search)
  return token
}

async function signIn(token: string): Promise<string> {
  const response = await request('/ui/session', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ token }),
  })
  return ((await response.json()) as { user: string }).user
}

export function SignedIn({ children }: { children: ReactNode }) {
  const [user, setUser] = useState<string>()
  const [problem, setProblem] = useState<string>()
  const [asking, setAsking] = useState(false)

  useEffect(() => {
    let gone = false
    const token = tokenFromAddress()
    const known = token ? signIn(token) : getJson<{ user: string }>('/ui/session').then((s) => s.user)
    known
      .then((name) => !gone && setUser(name))
      .catch((error: unknown) => {
        if (gone) return
        setAsking(true)
        if (token || !(error instanceof ApiError) || error.code !== 401) setProblem(explain(error))
      })
    return () => {
      gone = true
    }
  }, [])

  if (user !== undefined) {
    const signOut = () => {
      void request('/ui/session', { method: 'DELETE' }).finally(() => {
        setUser(undefined)
        setAsking(true)
      })
    }
    return <Context value={{ user, signOut }}>{children}</Context>
  }
  if (!asking) return <p className="empty">Signing in…</p>
  return (
    <main className="signin">
      <h1>Crowsnest</h1>
      <form
        onSubmit={(event) => {
          event.preventDefault()
          const token = String(new FormData(event.currentTarget).get('token') ?? '')
          signIn(token).then(setUser, (error: unknown) => setProblem(explain(error)))
        }}
      >
        <label htmlFor="token">Token of the control plane</label>
        <input id="token" name="token" type="password" autoComplete="off" required autoFocus />
        <button type="submit">Sign in</button>
        {problem && <p role="alert">{problem}</p>}
      </form>
    </main>
  )
}

function explain(error: unknown): string {
  if (error instanceof ApiError && error.code === 401) return 'The control plane does not know this token (401).'
  if (error instanceof ApiError) return `${error.message} (${error.code})`
  return error instanceof Error ? error.message : String(error)
}
