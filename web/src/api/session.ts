// Starts a session. A token in the address (`#token=…`, as `crowsnest up` prints it) does not sign in by itself: an
// attacker could send a link with the attacker's own token, and the victim would work under the attacker's name and be
// observed.
import { getJson, request, SESSION, SIGN_IN } from './client'

/** An identity, as authenticated by the control plane. */
export interface Who {
  user: string
  groups: string[]
}

/** A token of the address: the identity it would sign in, and the session that it would replace. */
export interface Offer {
  token: string
  who: Who
  instead: string | undefined
}

/** The token in an address' fragment. */
export function tokenOf(fragment: string): string | undefined {
  return new URLSearchParams(fragment.replace(/^#/, '')).get('token') || undefined
}

async function post(path: string, by: object): Promise<Who> {
  const response = await request(path, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(by),
  })
  return (await response.json()) as Who
}

export const signIn = (by: { token: string } | { kubeconfig: string }): Promise<Who> => post(SESSION, by)

/** The current user, or the identity that a token in the address offers; does not change the session. */
export async function begin(token: string | undefined): Promise<Who | Offer> {
  if (!token) return getJson<Who>(SESSION)
  const session = getJson<Who>(SESSION).catch(() => undefined)
  const [who, current] = await Promise.all([post(SIGN_IN, { token }), session])
  return current?.user === who.user ? current : { token, who, instead: current?.user }
}
