import { afterEach, expect, test, vi } from 'vitest'
import { type ApiError, viewErrorOf, request, UnreachableError } from './client'
import { UNREACHABLE_EVENT } from './connection'

afterEach(() => vi.unstubAllGlobals())

test.each([
  ['application/json', '{"reason": "BadRequest", "message": "no", "details": {"causes": [{"field": "spec"}]}}', 'BadRequest', 'no', 1],
  ['application/yaml', 'reason: BadRequest\nmessage: no\ndetails:\n  causes:\n  - field: spec\n', 'BadRequest', 'no', 1],
  ['text/plain', 'nobody is there', '', 'nobody is there', 0],
  ['application/yaml', '', '', 'Bad Request', 0],
])('an error response in %s becomes an ApiError with reason and causes', async (type, body, reason, message, causes) => {
  const response = new Response(body, { status: 400, statusText: 'Bad Request', headers: { 'Content-Type': type } })
  vi.stubGlobal('fetch', () => Promise.resolve(response))
  const error = (await request('/x').catch((error: unknown) => error)) as ApiError
  expect([error.code, error.reason, error.message, error.causes.length]).toEqual([400, reason, message, causes])
})

test('a lost connection is reported to the page, and an aborted request is not', async () => {
  const window = new EventTarget()
  let announced = 0
  window.addEventListener(UNREACHABLE_EVENT, () => announced++)
  vi.stubGlobal('window', window)
  vi.stubGlobal('fetch', () => Promise.reject(new TypeError('Failed to fetch')))
  const lost = await request('/x').catch((error: unknown) => error)
  expect(lost).toBeInstanceOf(UnreachableError)
  expect(viewErrorOf(lost)).toBeUndefined()
  const abort = new DOMException('aborted', 'AbortError')
  vi.stubGlobal('fetch', () => Promise.reject(abort))
  const aborted = await request('/x').catch((error: unknown) => error)
  expect(aborted).toBe(abort)
  expect(viewErrorOf(aborted)).toBe(abort)
  expect(announced).toBe(1)
})
