// Sessions: with a token from the address (as `crowsnest up` prints it) or typed by the user, sealed by the server in an
// HttpOnly cookie; a token from an identity provider, which stays in the server; or a kubeconfig's user, whose
// certificate stays in the server.
//
// An attacker could send a link with the attacker's own token, and the victim would work under the attacker's name. A
// token in the address therefore signs in only after the user has seen its identity and confirmed.
import { createContext, useContext, useEffect, useState, type ReactNode } from 'react'
import { ApiError, getJson, request, SESSION, SIGN_IN, SIGNED_OUT } from '../api/client'
import { begin, signIn, tokenOf, type Offer, type Who } from '../api/session'
import { useText, type Text } from '../text'

interface Session extends Who {
  signOut: () => void
}

const Context = createContext<Session>({ user: '', groups: [], signOut: () => undefined })
export const useSession = () => useContext(Context)

/** Removes `#token=…` from the address, so that it is in no history and no referrer. */
function tokenFromAddress(): string | undefined {
  const token = tokenOf(window.location.hash)
  if (!token) return undefined
  window.history.replaceState(null, '', window.location.pathname + window.location.search)
  return token
}

/** An identity provider for signing in. */
interface Provider {
  name: string | null
  login: string
}

/** The sign-in address at the provider, which returns to this page. */
function loginAddress(provider: Provider): string {
  return `${provider.login}?return=${encodeURIComponent(window.location.pathname + window.location.search)}`
}

export function SignedIn({ children }: { children: ReactNode }) {
  const t = useText()
  const [who, setWho] = useState<Who>()
  const [problem, setProblem] = useState<unknown>()
  const [provider, setProvider] = useState<Provider>()
  const [endSession, setEndSession] = useState<string>()
  const [asking, setAsking] = useState(false)
  const [offer, setOffer] = useState<Offer>()
  const over = useSignedOut(who !== undefined)

  useEffect(() => {
    let gone = false
    const token = tokenFromAddress()
    begin(token)
      .then((begun) => {
        if (gone) return
        if ('token' in begun) setOffer(begun)
        else setWho(begun)
      })
      .catch((error: unknown) => {
        if (gone) return
        setAsking(true)
        // Not signed in: no error, unless the response has details.
        if (token || !(error instanceof ApiError) || error.code !== 401 || hasReason(error)) setProblem(error)
      })
    return () => {
      gone = true
    }
  }, [])

  useEffect(() => {
    if (!asking) return
    getJson<{ oidc: Provider | null }>(SIGN_IN).then(
      (ways) => setProvider(ways.oidc ?? undefined),
      (error: unknown) => setProblem(error),
    )
  }, [asking])

  if (who !== undefined) {
    const signOut = () => {
      request(SESSION, { method: 'DELETE' })
        .then((response) => response.json() as Promise<{ endSession: string | null }>)
        .then((ended) => setEndSession(ended.endSession ?? undefined))
        .catch((error: unknown) => setProblem(error))
        .finally(() => {
          setWho(undefined)
          setAsking(true)
        })
    }
    return (
      <Context value={{ ...who, signOut }}>
        {over && <SignedOut {...over} onBack={setWho} />}
        {children}
      </Context>
    )
  }
  if (offer) {
    const answered = (known: Promise<Who>) => {
      setOffer(undefined)
      known.then(setWho, (error: unknown) => {
        setAsking(true)
        if (!(error instanceof ApiError) || error.code !== 401 || hasReason(error)) setProblem(error)
      })
    }
    return (
      <Confirm
        offer={offer}
        onAccept={() => answered(signIn({ token: offer.token }))}
        onDecline={() => answered(getJson<Who>(SESSION))}
      />
    )
  }
  if (!asking) return <p className="empty">{t.signingIn}</p>
  return (
    <main className="signin">
      <h1>Crowsnest</h1>
      {endSession && (
        <p role="status">
          {t.signedOut} <a href={endSession}>{t.signOutOf(provider?.name ?? t.identityProvider)}</a>
        </p>
      )}
      {provider && (
        <a className="button" href={loginAddress(provider)}>
          {t.signInWith(provider.name ?? t.yourIdentityProvider)}
        </a>
      )}
      {problem !== undefined && <p role="alert">{explain(problem, t)}</p>}
      <form
        onSubmit={(event) => {
          event.preventDefault()
          const token = String(new FormData(event.currentTarget).get('token') ?? '')
          signIn({ token }).then(setWho, (error: unknown) => setProblem(error))
        }}
      >
        <label htmlFor="token">{t.token}</label>
        <input id="token" name="token" type="password" autoComplete="off" required autoFocus />
        <button type="submit" className="primary">{t.signIn}</button>
      </form>
      <form>
        <label htmlFor="kubeconfig">{t.kubeconfig}</label>
        <input
          id="kubeconfig"
          type="file"
          onChange={({ target }) => {
            const [file] = target.files ?? []
            if (!file) return
            setProblem(undefined)
            file
              .text()
              .then((kubeconfig) => signIn({ kubeconfig }))
              // Allows the same file to be selected again.
              .then(setWho, (error: unknown) => ((target.value = ''), setProblem(error)))
          }}
        />
        <small className="why">{t.kubeconfigHint}</small>
      </form>
    </main>
  )
}

/** Asks whether to sign in as the user of a token in the address. */
function Confirm({ offer, onAccept, onDecline }: { offer: Offer; onAccept: () => void; onDecline: () => void }) {
  const t = useText()
  return (
    <main className="signin">
      <h1>Crowsnest</h1>
      <p>{t.addressSignsIn(offer.who.user)}</p>
      {offer.instead !== undefined && <p>{t.addressEnds(offer.instead)}</p>}
      <button type="button" className="primary" onClick={onAccept}>
        {t.signInAs(offer.who.user)}
      </button>
      <button type="button" onClick={onDecline}>
        {t.notAs(offer.who.user)}
      </button>
      <small className="why">{t.addressHint}</small>
    </main>
  )
}

interface Over {
  why: string
  forget: () => void
}

/** The error that ended the session while the page was in use. */
function useSignedOut(signedIn: boolean): Over | undefined {
  const [why, setWhy] = useState<string>()
  useEffect(() => {
    if (!signedIn) return
    const heard = (event: Event) => setWhy((event as CustomEvent<ApiError>).detail.message)
    window.addEventListener(SIGNED_OUT, heard)
    return () => {
      window.removeEventListener(SIGNED_OUT, heard)
      setWhy(undefined)
    }
  }, [signedIn])
  return why === undefined ? undefined : { why, forget: () => setWhy(undefined) }
}

/** The page and its input stay: the user signs in in another tab and continues. */
function SignedOut({ why, forget, onBack }: Over & { onBack: (who: Who) => void }) {
  const t = useText()
  const back = () => {
    getJson<Who>(SESSION).then(
      (who) => {
        forget()
        onBack(who)
      },
      () => undefined,
    )
  }
  return (
    <p role="alert" className="over">
      {t.sessionOver(why)}{' '}
      <a href="/" target="_blank" rel="noopener">
        {t.signInBeside}
      </a>{' '}
      <button type="button" onClick={back}>
        {t.goOn}
      </button>
    </p>
  )
}

/** True of a 401 with details. */
function hasReason(error: ApiError): boolean {
  return error.message !== 'Unauthorized'
}

function explain(error: unknown, t: Text): string {
  if (error instanceof ApiError && error.code === 401)
    return hasReason(error) ? `${error.message} (401)` : t.unknownToken
  if (error instanceof ApiError) return `${error.message} (${error.code})`
  return error instanceof Error ? error.message : String(error)
}
