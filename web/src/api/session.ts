// Signs in and reads the session. A token in the address (`#token=…`, as `crowsnest up` prints it) does not sign in by itself: an attacker
// could send a link with the attacker's own token, and the victim would work under the attacker's name and be observed.
import { getJson, request, SESSION_PATH, SIGN_IN_PATH } from './client'

/** An identity, as authenticated by the control plane. */
export interface Identity {
  user: string
  groups: string[]
}

/** A token from the address that awaits the user's confirmation, with its identity and the user whose session it would replace. */
export interface TokenOffer {
  token: string
  identity: Identity
  replacedUser: string | undefined
}

/** The token in the fragment of an address. */
export function tokenFromFragment(fragment: string): string | undefined {
  return new URLSearchParams(fragment.replace(/^#/, '')).get('token') || undefined
}

async function postCredentials(path: string, credentials: object): Promise<Identity> {
  const response = await request(path, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(credentials),
  })
  return (await response.json()) as Identity
}

export const signIn = (credentials: { token: string } | { kubeconfig: string }): Promise<Identity> => postCredentials(SESSION_PATH, credentials)

/** The current user, or an offer to sign in with another user's token from the address. Does not change the session. */
export async function readSession(token: string | undefined): Promise<Identity | TokenOffer> {
  if (!token) return getJson<Identity>(SESSION_PATH)
  const sessionRequest = getJson<Identity>(SESSION_PATH).catch(() => undefined)
  const [identity, current] = await Promise.all([postCredentials(SIGN_IN_PATH, { token }), sessionRequest])
  return current?.user === identity.user ? current : { token, identity, replacedUser: current?.user }
}
