import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { SUMMARY_DELAY_MS, PreparedQuery, ResultStream, SHOW_DELAY_MS } from './preparedQuery'

const realSetTimeout = setTimeout

let response: ReadableStreamDefaultController<Uint8Array>
let signal: AbortSignal
let shown: ResultStream[]

/** Sends events in one chunk of the response, and waits until the page has received them. */
async function send(...events: [string, unknown][]): Promise<void> {
  response.enqueue(new TextEncoder().encode(events.map(([event, data]) => `event: ${event}\ndata: ${JSON.stringify(data)}\n\n`).join('')))
  await received()
}
/** Chunks pass through several streams, without timers. */
const received = () => new Promise((done) => realSetTimeout(done, 0))

const prepare = () => new PreparedQuery('kind:pod', '/query', (stream) => shown.push(stream))

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
  shown = []
  vi.stubGlobal('fetch', (_path: string, init: RequestInit) => {
    signal = init.signal!
    const body = new ReadableStream<Uint8Array>({ start: (controller) => void (response = controller) })
    signal.addEventListener('abort', () => response.error(signal.reason))
    return Promise.resolve(new Response(body))
  })
})
afterEach(() => {
  vi.useRealTimers()
  vi.unstubAllGlobals()
})

test('a query is shown when its answer is complete, with all events that have arrived', async () => {
  prepare()
  await send(['notices', []], ['facets', { kind: [] }])
  expect(shown).toEqual([])
  await send(['matches', [1]], ['done', { total: 1 }])
  expect(shown.length).toBe(1)
  expect(shown[0]!.takeEvents().map(([event]) => event)).toEqual(['notices', 'facets', 'matches', 'done'])
  expect(shown[0]!.isShown).toBe(true)
})

test('a query is shown when its hits are complete; facets follow', async () => {
  prepare()
  await send(['notices', []], ['matches', [1]], ['summary', { total: 1 }])
  expect(shown[0]!.takeEvents().map(([event]) => event)).toEqual(['notices', 'matches', 'summary'])
})

test('the first hits of a long answer are shown before its end', async () => {
  prepare()
  await send(['matches', [1]])
  vi.advanceTimersByTime(SUMMARY_DELAY_MS - 1)
  expect(shown).toEqual([])
  vi.advanceTimersByTime(1)
  expect(shown[0]!.takeEvents()).toEqual([['matches', [1]]])
})

test('a query whose answer is late is shown without events; they follow', async () => {
  const query = prepare()
  await send(['notices', []])
  vi.advanceTimersByTime(SHOW_DELAY_MS)
  expect(shown.length).toBe(1)
  expect(shown[0]!.takeEvents()).toEqual([])
  expect(shown[0]!.isShown).toBe(false)
  const events: string[] = []
  void query.take('/query')!.read((event) => events.push(event))
  expect(events).toEqual([])
  await send(['matches', []], ['done', {}])
  expect(events).toEqual(['notices', 'matches', 'done'])
  expect(shown.length).toBe(1)
})

test('events after those that were taken are read, once', async () => {
  const query = prepare()
  await send(['matches', [1]], ['done', {}])
  shown[0]!.takeEvents()
  const events: string[] = []
  const end = query.take('/query')!.read((event) => events.push(event))
  await send(['changed', {}])
  response.close()
  await end
  expect(events).toEqual(['changed'])
})

test('a failed request is shown, and its reader gets the error', async () => {
  vi.stubGlobal('fetch', () => Promise.resolve(new Response('{"message":"too long"}', { status: 400 })))
  const query = prepare()
  await received()
  expect(shown.length).toBe(1)
  await expect(query.take('/query')!.read(() => undefined)).rejects.toThrow('too long')
})

test.each([
  { name: 'cancelled', end: (query: PreparedQuery) => query.cancel() },
  { name: 'taken', end: (query: PreparedQuery) => void query.take('/query') },
])('a query that was $name is no longer shown', async ({ name, end }) => {
  const query = prepare()
  end(query)
  vi.advanceTimersByTime(SHOW_DELAY_MS)
  if (name === 'taken') await send(['done', {}])
  await received()
  expect(shown).toEqual([])
  expect(signal.aborted).toBe(name === 'cancelled')
})

test('a page that needs another response does not take the query', () => {
  const query = prepare()
  expect(query.take('/query?columns=node')).toBeUndefined()
  vi.advanceTimersByTime(SHOW_DELAY_MS)
  expect(shown.length).toBe(1)
})

test('a cancelled stream delivers no further event', async () => {
  const stream = new ResultStream('/query')
  const events: string[] = []
  const end = stream.read((event) => events.push(event))
  await send(['matches', []])
  stream.cancel()
  vi.advanceTimersByTime(SUMMARY_DELAY_MS)
  await expect(end).rejects.toThrow()
  expect(events).toEqual([])
})

test('several chunks of hits start one timer, which ends when the answer begins', async () => {
  const stream = new ResultStream('/query')
  await send(['matches', [1]])
  await send(['matches', [2]])
  expect(vi.getTimerCount()).toBe(1)
  await send(['summary', { total: 3 }])
  await send(['matches', [3]])
  expect(vi.getTimerCount()).toBe(0)
  expect(stream.takeEvents().length).toBe(4)
})
