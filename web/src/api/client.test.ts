import { afterEach, expect, test, vi } from 'vitest'
import { type ApiError, request } from './client'

afterEach(() => vi.unstubAllGlobals())

test.each([
  ['application/json', '{"reason": "BadRequest", "message": "no", "details": {"causes": [{"field": "spec"}]}}', 'BadRequest', 'no', 1],
  ['application/yaml', 'reason: BadRequest\nmessage: no\ndetails:\n  causes:\n  - field: spec\n', 'BadRequest', 'no', 1],
  ['text/plain', 'nobody is there', '', 'nobody is there', 0],
  ['application/yaml', '', '', 'Bad Request', 0],
])('a failure in %s says why', async (type, body, reason, message, causes) => {
  const answer = new Response(body, { status: 400, statusText: 'Bad Request', headers: { 'Content-Type': type } })
  vi.stubGlobal('fetch', () => Promise.resolve(answer))
  const error = (await request('/x').catch((error: unknown) => error)) as ApiError
  expect([error.code, error.reason, error.message, error.causes.length]).toEqual([400, reason, message, causes])
})
