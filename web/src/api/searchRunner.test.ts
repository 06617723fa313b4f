// Races between the query of the page, the query that is being typed, and their answers.
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { hitAt, rowCount } from './pages'
import { SUMMARY_DELAY_MS, SHOW_DELAY_MS } from './preparedQuery'
import type { RequestedQuery } from './searchApi'
import { MAX_PENDING_CHANGES, MIN_RETRY_DELAY_MS, SearchRunner } from './searchRunner'
import { INITIAL_STATE, reduce, type ReducerState } from './searchState'
import type { ServerEvent } from './sse'
import type { Hit } from './types'

/** A request and its response, which the test sends. */
interface Exchange {
  path: string
  signal: AbortSignal
  onEvent: (event: ServerEvent) => void
  end: () => void
  fail: (error: unknown) => void
}

const { exchanges } = vi.hoisted(() => ({ exchanges: [] as Exchange[] }))
vi.mock('./sse', () => ({
  streamEvents: (path: string, signal: AbortSignal, onEvent: (event: ServerEvent) => void) =>
    new Promise<void>((end, fail) => {
      exchanges.push({ path, signal, onEvent, end: () => end(), fail })
      signal.addEventListener('abort', () => fail(signal.reason))
    }),
}))

let state: ReducerState
let runner: SearchRunner
/** Navigations that the page has not rendered yet. */
let navigations: (RequestedQuery | undefined)[]

const query = (q: string, more: Partial<RequestedQuery> = {}): RequestedQuery => ({ q, columns: '', isLive: false, ...more })
/** The page renders a query; undefined: the start page. */
function render(next: RequestedQuery | undefined): void {
  runner.stop()
  runner.show(next)
}
const renderNavigations = () => navigations.splice(0).forEach(render)
/** Types a query; the page navigates to it when it is shown. */
const typeQuery = (q: string, typed = query(q), shown = typed) => runner.prepare(typed, () => navigations.push(shown))
/** Runs the reactions to responses, then renders. */
async function settle(milliseconds = 0): Promise<void> {
  await vi.advanceTimersByTimeAsync(milliseconds)
  renderNavigations()
  await vi.advanceTimersByTimeAsync(0)
}

const hit = (name: string): Hit => ({ cluster: 'm1', apiVersion: 'v1', kind: 'Pod', resource: 'pods', namespace: 'shop', name, matched: [] })
const send = (nth: number, event: string, data: unknown) => exchanges[nth]!.onEvent({ event, data: JSON.stringify(data) })
/** Sends a complete answer with one hit. */
function answer(nth: number, name: string): void {
  send(nth, 'matches', [hit(name)])
  send(nth, 'done', { total: 1, totalRelation: 'eq', tookMs: 1, seq: 1 })
}
const isAborted = (nth: number) => exchanges[nth]!.signal.aborted
const queryOf = ({ path }: Exchange) => new URL(path, 'http://localhost').searchParams.get('q')
const names = () => Array.from({ length: rowCount(state.pages) }, (_, row) => hitAt(state.pages, row)?.name)
/** The query of the shown results, and the names of the hits. */
const shown = () => [state.query, ...names()]

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] })
  vi.stubGlobal('window', Object.assign(new EventTarget(), { innerHeight: 800 }))
  exchanges.length = 0
  navigations = []
  state = INITIAL_STATE
  const renderNow = (change: () => void) => {
    change()
    renderNavigations()
  }
  runner = new SearchRunner((action) => (state = reduce(state, action)), renderNow)
})
afterEach(() => {
  vi.useRealTimers()
  vi.unstubAllGlobals()
})

describe('the query of the page', () => {
  it('an older answer that arrives after a newer one is ignored', async () => {
    render(query('old'))
    render(query('new'))
    answer(1, 'b')
    await settle()
    answer(0, 'a')
    await settle(SUMMARY_DELAY_MS)
    expect([isAborted(0), isAborted(1)]).toEqual([true, false])
    expect(shown()).toEqual(['new', 'b'])
  })

  it('an older answer whose beginning is shown gets no further hits', async () => {
    render(query('old'))
    send(0, 'matches', [hit('a')])
    await settle(SUMMARY_DELAY_MS)
    expect(shown()).toEqual(['old', 'a'])
    render(query('new'))
    answer(0, 'b')
    await settle(SUMMARY_DELAY_MS)
    expect(shown()).toEqual(['old', 'a'])
    answer(1, 'c')
    await settle()
    expect(shown()).toEqual(['new', 'c'])
  })

  it.each<[string, () => void]>([
    ['another query', () => render(query('new'))],
    ['the start page', () => render(undefined)],
    ['another view', () => runner.stop()],
  ])('a navigation to %s ends the request without an error', async (_, navigate) => {
    render(query('old'))
    navigate()
    await settle(MIN_RETRY_DELAY_MS)
    expect([isAborted(0), state.error]).toEqual([true, undefined])
    expect(exchanges.slice(1).map(queryOf)).not.toContain('old')
  })

  it('a failed request is shown, and is not repeated', async () => {
    render(query('old'))
    exchanges[0]!.fail(new Error('too long'))
    await settle(MIN_RETRY_DELAY_MS)
    expect([state.error, exchanges.length]).toEqual(['too long', 1])
  })
})

describe('the query that is being typed', () => {
  beforeEach(async () => {
    render(query('old'))
    answer(0, 'a')
    await settle()
  })

  it('its answer is shown at once, and used once', async () => {
    typeQuery('new')
    answer(1, 'b')
    await settle()
    expect(shown()).toEqual(['new', 'b'])
    expect(exchanges.map(queryOf)).toEqual(['old', 'new'])
    runner.restart()
    await settle()
    expect(exchanges.map(queryOf)).toEqual(['old', 'new', 'new'])
    expect([isAborted(1), isAborted(2)]).toEqual([true, false])
  })

  it('a late answer follows to the page that shows its query', async () => {
    typeQuery('new')
    await settle(SHOW_DELAY_MS)
    expect([state.startedQuery, ...shown()]).toEqual(['new', 'old', 'a'])
    answer(1, 'b')
    await settle()
    expect(shown()).toEqual(['new', 'b'])
    expect(exchanges.length).toBe(2)
  })

  it('the next key ends the previous request, whose answer is ignored', async () => {
    typeQuery('n')
    typeQuery('ne')
    answer(1, 'b')
    await settle(SUMMARY_DELAY_MS)
    expect([isAborted(1), ...shown()]).toEqual([true, 'old', 'a'])
    answer(2, 'c')
    await settle()
    expect(shown()).toEqual(['ne', 'c'])
    expect(state.error).toBeUndefined()
  })

  it.each<[string, () => void, unknown[]]>([
    ['another query', () => render(query('other')), ['other', 'old', 'a']],
    ['the start page', () => render(undefined), ['old', 'old', 'a']],
    ['the current page', () => runner.cancelPrepared(), ['old', 'old', 'a']],
  ])('a navigation to %s cancels it', async (_, navigate, expected) => {
    typeQuery('new')
    navigate()
    answer(1, 'b')
    await settle(SHOW_DELAY_MS)
    expect(isAborted(1)).toBe(true)
    expect([state.startedQuery, ...shown()]).toEqual(expected)
    expect(state.error).toBeUndefined()
  })

  it('it is not shown on the start page that the user did not leave', async () => {
    render(undefined)
    typeQuery('new')
    runner.cancelPrepared()
    answer(1, 'b')
    await settle(SHOW_DELAY_MS)
    expect([isAborted(1), state.query]).toEqual([true, 'old'])
  })

  it('a submitted query keeps its request', async () => {
    typeQuery('new')
    runner.cancelPrepared('new')
    render(query('new'))
    answer(1, 'b')
    await settle()
    expect(shown()).toEqual(['new', 'b'])
    expect(exchanges.length).toBe(2)
  })

  it('a return to the query of the page shows its new answer', async () => {
    typeQuery('old')
    answer(1, 'b')
    await settle()
    expect(shown()).toEqual(['old', 'b'])
    expect(exchanges.length).toBe(2)
  })

  it('a page that needs other columns sends its own request', async () => {
    typeQuery('new', query('new'), query('new', { columns: 'node' }))
    await settle(SHOW_DELAY_MS)
    expect([isAborted(1), isAborted(2)]).toEqual([true, false])
    answer(1, 'b')
    answer(2, 'c')
    await settle()
    expect(shown()).toEqual(['new', 'c'])
  })

  it('a restart of the previous query shows it', async () => {
    typeQuery('new')
    runner.restart()
    await settle()
    expect(exchanges.map(queryOf)).toEqual(['old', 'new', 'old'])
    expect([isAborted(1), isAborted(2)]).toEqual([false, true])
    answer(1, 'b')
    await settle()
    expect(shown()).toEqual(['new', 'b'])
  })

  it('its error is shown when it fails, and not after it was cancelled', async () => {
    typeQuery('new')
    runner.cancelPrepared()
    exchanges[1]!.fail(new Error('cancelled'))
    await settle(SHOW_DELAY_MS)
    expect(state.error).toBeUndefined()
    typeQuery('newer')
    exchanges[2]!.fail(new Error('too long'))
    await settle()
    expect([state.startedQuery, state.error]).toEqual(['newer', 'too long'])
  })
})

describe('live changes', () => {
  beforeEach(async () => {
    render(query('old', { isLive: true }))
    answer(0, 'a')
    await settle()
  })

  it('they are applied while a query is being typed, and dropped with their query', async () => {
    expect(state.isFollowing).toBe(true)
    typeQuery('new', query('new', { isLive: true }))
    send(0, 'changed', hit('b'))
    runner.showChanges()
    expect(shown()).toEqual(['old', 'b', 'a'])
    send(0, 'changed', hit('c'))
    answer(1, 'd')
    await settle()
    send(0, 'changed', hit('e'))
    runner.showChanges()
    expect(shown()).toEqual(['new', 'd'])
    send(1, 'left', hit('d'))
    runner.showChanges()
    expect(shown()).toEqual(['new'])
  })

  it('they are queued while paused', async () => {
    runner.setPaused(true)
    send(0, 'changed', hit('b'))
    runner.showChanges()
    expect([state.pendingChanges, ...shown()]).toEqual([1, 'old', 'a'])
    runner.setPaused(false)
    runner.showChanges()
    expect([state.pendingChanges, ...shown()]).toEqual([0, 'old', 'b', 'a'])
  })

  it('after too many while paused, the search runs again when it is resumed', async () => {
    runner.setPaused(true)
    for (let nth = 0; nth <= MAX_PENDING_CHANGES; nth++) send(0, 'changed', hit(`b${nth}`))
    runner.showChanges()
    expect([isAborted(0), state.pendingChanges]).toEqual([true, Infinity])
    await settle(MIN_RETRY_DELAY_MS)
    expect(exchanges.length).toBe(1)
    runner.setPaused(false)
    answer(1, 'c')
    await settle()
    expect([state.pendingChanges, ...shown()]).toEqual([0, 'old', 'c'])
  })

  it.each<[string, () => void]>([
    ['an end of the stream', () => exchanges[0]!.end()],
    ['too many changes for the server', () => send(0, 'behind', {})],
  ])('after %s, the search runs again', async (_, end) => {
    end()
    await settle(MIN_RETRY_DELAY_MS - 1)
    expect(exchanges.length).toBe(1)
    await settle(1)
    expect(exchanges.map(queryOf)).toEqual(['old', 'old'])
    expect(state.error).toBeUndefined()
  })

  it('a navigation ends the delay before the search runs again', async () => {
    exchanges[0]!.end()
    await settle()
    render(undefined)
    await settle(MIN_RETRY_DELAY_MS)
    expect(exchanges.length).toBe(1)
  })
})
