import { afterEach, describe, expect, test, vi } from 'vitest'
import { readSession, tokenFromFragment } from './session'

/** Responds as for a user with this session, and for the bearer of any token. */
function stubServer(session: string | undefined, bearer: string | undefined) {
  const requests: string[] = []
  const respond = (user: string | undefined) =>
    user === undefined ? new Response('{"message":"Unauthorized"}', { status: 401 }) : Response.json({ user, groups: [] })
  vi.stubGlobal('fetch', (path: string, init: RequestInit = {}) => {
    requests.push(`${init.method ?? 'GET'} ${path}`)
    return Promise.resolve(respond(path === '/ui/sign-in' ? bearer : session))
  })
  return requests
}

afterEach(() => vi.unstubAllGlobals())

test('the token is read from the fragment', () => {
  expect(tokenFromFragment('#token=a.b.c')).toBe('a.b.c')
  expect(['', '#', '#token=', '#draft=x', '#Token=x'].map(tokenFromFragment)).toEqual(Array(5).fill(undefined))
})

describe('an address with a token', () => {
  test.each([
    ['offers to sign in', undefined, 'mallory', { token: 't', identity: { user: 'mallory', groups: [] }, replacedUser: undefined }],
    ['names the user whose session it would replace', 'alice', 'mallory', { token: 't', identity: { user: 'mallory', groups: [] }, replacedUser: 'alice' }],
    ['keeps the session of the same user', 'alice', 'alice', { user: 'alice', groups: [] }],
  ])('%s', async (_, session, bearer, expected) => {
    const requests = stubServer(session, bearer)
    expect(await readSession('t')).toEqual(expected)
    // The session does not change before the user has confirmed.
    expect(requests.sort()).toEqual(['GET /ui/session', 'POST /ui/sign-in'])
  })

  test('that is not accepted is an error', async () => {
    stubServer('alice', undefined)
    await expect(readSession('t')).rejects.toThrow('Unauthorized')
  })
})

test('without a token the session is unchanged', async () => {
  const requests = stubServer('alice', 'mallory')
  expect(await readSession(undefined)).toEqual({ user: 'alice', groups: [] })
  expect(requests).toEqual(['GET /ui/session'])
})
