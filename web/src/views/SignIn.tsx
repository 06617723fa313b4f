// The session: a token from the address (as `crowsnest up` prints it) or typed, kept by the server in an HttpOnly cookie; or one
// that the server got from an identity provider and keeps to itself.
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

/** An identity provider that people can sign in at. */
interface Provider {
  name: string | null
  login: string
}

/** Where the browser goes to sign in there, and comes back to this page. */
function loginAddress(provider: Provider): string {
  return `${provider.login}?return=${encodeURIComponent(window.location.pathname + window.location.search)}`
}

export function SignedIn({ children }: { children: ReactNode }) {
  const [user, setUser] = useState<string>()
  const [problem, setProblem] = useState<string>()
  const [provider, setProvider] = useState<Provider>()
  const [endSession, setEndSession] = useState<string>()
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
        // Nobody was signed in: no problem, unless there is more to say.
        if (token || !(error instanceof ApiError) || error.code !== 401 || hasReason(error)) setProblem(explain(error))
      })
    return () => {
      gone = true
    }
  }, [])

  useEffect(() => {
    if (!asking) return
    getJson<{ oidc: Provider | null }>('/ui/sign-in').then(
      (ways) => setProvider(ways.oidc ?? undefined),
      (error: unknown) => setProblem(explain(error)),
    )
  }, [asking])

  if (user !== undefined) {
    const signOut = () => {
      request('/ui/session', { method: 'DELETE' })
        .then((response) => response.json() as Promise<{ endSession: string | null }>)
        .then((ended) => setEndSession(ended.endSession ?? undefined))
        .catch((error: unknown) => setProblem(explain(error)))
        .finally(() => {
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
      {endSession && (
        <p role="status">
          You are signed out here. <a href={endSession}>Sign out of {provider?.name ?? 'the identity provider'}, too</a>
        </p>
      )}
      {provider && (
        <a className="button" href={loginAddress(provider)}>
          Sign in with {provider.name ?? 'your identity provider'}
        </a>
      )}
      {problem && <p role="alert">{problem}</p>}
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
      </form>
    </main>
  )
}

/** True of a 401 that says more than its name. */
function hasReason(error: ApiError): boolean {
  return error.message !== 'Unauthorized'
}

function explain(error: unknown): string {
  if (error instanceof ApiError && error.code === 401)
    return hasReason(error) ? `${error.message} (401)` : 'The control plane does not know this token (401).'
  if (error instanceof ApiError) return `${error.message} (${error.code})`
  return error instanceof Error ? error.message : String(error)
}
