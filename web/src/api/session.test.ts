import { afterEach, describe, expect, test, vi } from 'vitest'
import { begin, tokenOf } from './session'

/** Responds as for a user with this session, and for the bearer of any token. */
function server(session: string | undefined, bearer: string | undefined) {
  const asked: string[] = []
  const answer = (user: string | undefined) =>
    user === undefined ? new Response('{"message":"Unauthorized"}', { status: 401 }) : Response.json({ user, groups: [] })
  vi.stubGlobal('fetch', (path: string, init: RequestInit = {}) => {
    asked.push(`${init.method ?? 'GET'} ${path}`)
    return Promise.resolve(answer(path === '/ui/sign-in' ? bearer : session))
  })
  return asked
}

afterEach(() => vi.unstubAllGlobals())

test('the token is read from the fragment', () => {
  expect(tokenOf('#token=a.b.c')).toBe('a.b.c')
  expect(['', '#', '#token=', '#draft=x', '#Token=x'].map(tokenOf)).toEqual(Array(5).fill(undefined))
})

describe('an address with a token', () => {
  test.each([
    ['offers to sign in', undefined, 'mallory', { token: 't', who: { user: 'mallory', groups: [] }, instead: undefined }],
    ['says whose session it would end', 'alice', 'mallory', { token: 't', who: { user: 'mallory', groups: [] }, instead: 'alice' }],
    ['changes nothing for who is signed in as that user', 'alice', 'alice', { user: 'alice', groups: [] }],
  ])('%s', async (_, session, bearer, expected) => {
    const asked = server(session, bearer)
    expect(await begin('t')).toEqual(expected)
    // The session does not change before the user has confirmed.
    expect(asked.sort()).toEqual(['GET /ui/session', 'POST /ui/sign-in'])
  })

  test('that is not accepted reports it', async () => {
    server('alice', undefined)
    await expect(begin('t')).rejects.toThrow('Unauthorized')
  })
})

test('without a token the session is unchanged', async () => {
  const asked = server('alice', 'mallory')
  expect(await begin(undefined)).toEqual({ user: 'alice', groups: [] })
  expect(asked).toEqual(['GET /ui/session'])
})
