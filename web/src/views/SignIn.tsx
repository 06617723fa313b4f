// Signing in: with a token from the address (as `crowsnest up` prints it) or typed by the user, which the server seals in an HttpOnly cookie;
// with an identity provider, whose token stays in the server; or with a kubeconfig, whose credentials stay in the server.
//
// An attacker could send a link with the attacker's own token, and the victim would work under the attacker's name. A token in the address
// therefore signs in only after the user has seen its identity and confirmed.
import { createContext, useContext, useEffect, useState, type ReactNode } from 'react'
import { ApiError, getJson, request, SESSION_PATH, SIGN_IN_PATH, SIGNED_OUT_EVENT } from '../api/client'
import { readSession, signIn, tokenFromFragment, type TokenOffer, type Identity } from '../api/session'
import { useText, type Text } from '../text'

interface Session extends Identity {
  signOut: () => void
}

const Context = createContext<Session>({ user: '', groups: [], signOut: () => undefined })
export const useSession = () => useContext(Context)

/** Returns the token of `#token=…` and removes it from the address, so that it is in no history and no referrer. */
function tokenFromAddress(): string | undefined {
  const token = tokenFromFragment(window.location.hash)
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

/** Shows its children with a session; without one, the sign-in form. */
export function SessionGate({ children }: { children: ReactNode }) {
  const t = useText()
  const [identity, setIdentity] = useState<Identity>()
  const [error, setError] = useState<unknown>()
  const [provider, setProvider] = useState<Provider>()
  const [endSession, setEndSession] = useState<string>()
  const [isFormShown, setIsFormShown] = useState(false)
  const [offer, setOffer] = useState<TokenOffer>()
  const endedSession = useEndedSession(identity !== undefined)

  useEffect(() => {
    let isUnmounted = false
    const token = tokenFromAddress()
    readSession(token)
      .then((session) => {
        if (isUnmounted) return
        if ('token' in session) setOffer(session)
        else setIdentity(session)
      })
      .catch((error: unknown) => {
        if (isUnmounted) return
        setIsFormShown(true)
        // Not signed in: no error, unless the response has details.
        if (token || !(error instanceof ApiError) || error.code !== 401 || hasDetails(error)) setError(error)
      })
    return () => {
      isUnmounted = true
    }
  }, [])

  useEffect(() => {
    if (!isFormShown) return
    getJson<{ oidc: Provider | null }>(SIGN_IN_PATH).then(
      (methods) => setProvider(methods.oidc ?? undefined),
      (error: unknown) => setError(error),
    )
  }, [isFormShown])

  if (identity !== undefined) {
    const signOut = () => {
      request(SESSION_PATH, { method: 'DELETE' })
        .then((response) => response.json() as Promise<{ endSession: string | null }>)
        .then((ended) => setEndSession(ended.endSession ?? undefined))
        .catch((error: unknown) => setError(error))
        .finally(() => {
          setIdentity(undefined)
          setIsFormShown(true)
        })
    }
    return (
      <Context value={{ ...identity, signOut }}>
        {endedSession && <SessionEndedBanner {...endedSession} onBack={setIdentity} />}
        {children}
      </Context>
    )
  }
  if (offer) {
    const resolveOffer = (identityRequest: Promise<Identity>) => {
      setOffer(undefined)
      identityRequest.then(setIdentity, (error: unknown) => {
        setIsFormShown(true)
        if (!(error instanceof ApiError) || error.code !== 401 || hasDetails(error)) setError(error)
      })
    }
    return (
      <Confirm
        offer={offer}
        onAccept={() => resolveOffer(signIn({ token: offer.token }))}
        onDecline={() => resolveOffer(getJson<Identity>(SESSION_PATH))}
      />
    )
  }
  // The page shows the outline of its HTML until the session is known.
  if (!isFormShown) return null
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
      {error !== undefined && <p role="alert">{describeError(error, t)}</p>}
      <form
        onSubmit={(event) => {
          event.preventDefault()
          const token = String(new FormData(event.currentTarget).get('token') ?? '')
          signIn({ token }).then(setIdentity, (error: unknown) => setError(error))
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
            setError(undefined)
            file
              .text()
              .then((kubeconfig) => signIn({ kubeconfig }))
              // Allows the same file to be selected again.
              .then(setIdentity, (error: unknown) => ((target.value = ''), setError(error)))
          }}
        />
        <small className="why">{t.kubeconfigHint}</small>
      </form>
    </main>
  )
}

/** Confirmation before signing in as the user of a token in the address. */
function Confirm({ offer, onAccept, onDecline }: { offer: TokenOffer; onAccept: () => void; onDecline: () => void }) {
  const t = useText()
  return (
    <main className="signin">
      <h1>Crowsnest</h1>
      <p>{t.addressSignsIn(offer.identity.user)}</p>
      {offer.replacedUser !== undefined && <p>{t.addressEnds(offer.replacedUser)}</p>}
      <button type="button" className="primary" onClick={onAccept}>
        {t.signInAs(offer.identity.user)}
      </button>
      <button type="button" onClick={onDecline}>
        {t.declineSignIn(offer.identity.user)}
      </button>
      <small className="why">{t.addressHint}</small>
    </main>
  )
}

interface EndedSession {
  reason: string
  dismiss: () => void
}

/** The error that ended the session while the page was in use. */
function useEndedSession(isSignedIn: boolean): EndedSession | undefined {
  const [reason, setReason] = useState<string>()
  useEffect(() => {
    if (!isSignedIn) return
    const handleSignedOut = (event: Event) => setReason((event as CustomEvent<ApiError>).detail.message)
    window.addEventListener(SIGNED_OUT_EVENT, handleSignedOut)
    return () => {
      window.removeEventListener(SIGNED_OUT_EVENT, handleSignedOut)
      setReason(undefined)
    }
  }, [isSignedIn])
  return reason === undefined ? undefined : { reason: reason, dismiss: () => setReason(undefined) }
}

/** Banner after the session has ended. The page keeps its input, so that the user can sign in in another tab and continue. */
function SessionEndedBanner({ reason, dismiss, onBack }: EndedSession & { onBack: (who: Identity) => void }) {
  const t = useText()
  const resume = () => {
    getJson<Identity>(SESSION_PATH).then(
      (who) => {
        dismiss()
        onBack(who)
      },
      () => undefined,
    )
  }
  return (
    <p role="alert" className="session-ended">
      {t.sessionOver(reason)}{' '}
      <a href="/" target="_blank" rel="noopener">
        {t.signInElsewhere}
      </a>{' '}
      <button type="button" onClick={resume}>
        {t.continueHere}
      </button>
    </p>
  )
}

/** True if a 401 response contains details. */
function hasDetails(error: ApiError): boolean {
  return error.message !== 'Unauthorized'
}

function describeError(error: unknown, t: Text): string {
  if (error instanceof ApiError && error.code === 401)
    return hasDetails(error) ? `${error.message} (401)` : t.unknownToken
  if (error instanceof ApiError) return `${error.message} (${error.code})`
  return error instanceof Error ? error.message : String(error)
}
