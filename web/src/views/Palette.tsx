// ⌘K: short queries as in k9s, saved searches, objects, and everything else with a name.
import { useEffect, useId, useState, type KeyboardEvent } from 'react'
import { useLocation } from 'wouter'
import { clusterAddress, objectAddress, readSearch, searchAddress } from '../api/address'
import { CONTROL_PLANE, getJson } from '../api/client'
import { keyOf } from '../api/pages'
import { useSaved } from '../api/saved'
import { fromShorthand, isShorthand } from '../api/shorthand'
import type { Hit } from '../api/types'
import { API } from '../api/useSearch'
import { useSuggestions } from '../api/useSuggestions'
import { KindIcon } from '../icons/Icon'
import { ClusterName } from '../parts/ClusterName'
import { Modal } from '../parts/Modal'
import { Query } from '../parts/Query'
import { noteAsked, setPrefs, usePrefs } from '../prefs'
import { choose, useText, type Text } from '../text'
import { useSession } from './SignIn'

interface Entry {
  key: string
  text: string
  about?: string | undefined
  /** The text is a query, a cluster's name, or an object's name. */
  is?: 'query' | 'cluster' | 'object'
  /** Of an object. */
  kind?: string
  /** Action of Enter; absent: completes the text. */
  run?: () => void
  completed?: string
}

/** Views that are found by name. */
const VIEWS = {
  home: '/',
  saved: '/saved',
  fleet: '/fleet',
  nodes: '/fleet/nodes',
  events: '/fleet/events',
  join: '/fleet/join',
  policies: '/steer',
  bindings: '/steer/bindings',
  failover: '/steer/failover',
  quotas: '/steer/quotas',
  rebalance: '/steer/rebalance',
  plan: '/plan',
  paths: '/paths',
  whoCan: '/who-can',
  assistants: '/assistants',
  newPolicy: '/plan?new=PropagationPolicy',
  newOverride: '/plan?new=OverridePolicy',
} satisfies Partial<Record<keyof Text['commandNames'], string>>

interface PaletteProps {
  begin: string
  onClose: () => void
  onKeys: () => void
}

export function Palette({ begin, onClose, onKeys }: PaletteProps) {
  const t = useText()
  const list = useId()
  const [text, setText] = useState(begin)
  const [active, setActive] = useState(0)
  const entries = useEntries(text, onKeys)
  const at = Math.min(active, entries.length - 1)

  const take = (entry: Entry | undefined) => {
    if (entry?.run) {
      onClose()
      entry.run()
    } else if (entry?.completed !== undefined) {
      setText(entry.completed)
      setActive(0)
    }
  }
  const key = (event: KeyboardEvent) => {
    if (event.key === 'ArrowDown') setActive((at + 1) % entries.length)
    else if (event.key === 'ArrowUp') setActive((at - 1 + entries.length) % entries.length)
    else if (event.key === 'Enter' && !event.nativeEvent.isComposing) take(entries[at])
    else if (event.key === 'Tab' && !event.shiftKey) take(entries.slice(Math.max(at, 0)).find((entry) => entry.completed !== undefined))
    else return
    event.preventDefault()
  }
  return (
    <Modal label={t.palette} className="palette" onClose={onClose}>
      <input
        type="text"
        role="combobox"
        aria-label={t.palette}
        aria-autocomplete="list"
        aria-expanded="true"
        aria-controls={list}
        aria-activedescendant={`${list}-${at}`}
        placeholder={t.paletteHint}
        spellCheck={false}
        autoComplete="off"
        autoFocus
        value={text}
        onChange={(event) => {
          setText(event.target.value)
          setActive(0)
        }}
        onKeyDown={key}
      />
      <ul id={list} role="listbox" aria-label={t.commands}>
        {entries.map((entry, nth) => (
          <li
            key={entry.key}
            id={`${list}-${nth}`}
            role="option"
            aria-selected={nth === at}
            onPointerDown={(event) => event.preventDefault()}
            onClick={() => take(entry)}
          >
            {entry.is === 'query' ? <Query text={entry.text} /> : entry.is === 'cluster' ? <ClusterName name={entry.text} /> : <ObjectName of={entry} />}
            <small>{entry.about}</small>
          </li>
        ))}
      </ul>
    </Modal>
  )
}

function ObjectName({ of: { text, kind } }: { of: Entry }) {
  return (
    <span>
      {kind !== undefined && <KindIcon kind={kind} />}
      {kind !== undefined && ' '}
      {text}
    </span>
  )
}

/** Objects that are offered, and milliseconds without a key after which they are searched. */
const MOST_OBJECTS = 6
const SEARCH_AFTER = 150

/** The best matches of a query, while it is typed. */
function useObjects(q: string, enabled: boolean): Hit[] {
  const [found, setFound] = useState<Hit[]>([])
  useEffect(() => {
    setFound([])
    if (!enabled) return
    const abort = new AbortController()
    const timer = setTimeout(() => {
      getJson<{ hits: Hit[] }>(`${API}/query?limit=${MOST_OBJECTS}&facets=&q=${encodeURIComponent(q)}`, abort.signal).then(
        ({ hits }) => setFound(hits),
        // The other entries are still offered.
        () => undefined,
      )
    }, SEARCH_AFTER)
    return () => {
      clearTimeout(timer)
      abort.abort()
    }
  }, [q, enabled])
  return found
}

function useEntries(text: string, onKeys: () => void): Entry[] {
  const t = useText()
  const [path, navigate] = useLocation()
  const session = useSession()
  const prefs = usePrefs()
  const { searches = [] } = useSaved()
  const short = isShorthand(text)
  const query = short ? fromShorthand(text) : text.trim()
  const completing = short && !/\s$/.test(text) && query !== ''
  // Clusters have pages of their own; the text is matched with their names.
  const naming = !short && /^[\w.-]+$/.test(query)
  const asked = naming ? `cluster:${query}` : query
  const found = useSuggestions(asked, asked.length, completing || naming)

  const objects = useObjects(query, !short && query.length > 1)

  const search = (q: string) => () => {
    noteAsked(session.user, q)
    navigate(searchAddress({ q }))
  }
  const asking: Entry = { key: 'ask', text: query, is: 'query', about: t.search, run: search(query) }
  if (short) {
    const items = completing && found?.field !== undefined ? found.items : []
    return [
      asking,
      ...items.slice(0, 10).map((item) => ({
        key: `complete ${item.text}`,
        text: item.text,
        about: item.count === undefined ? undefined : t.objects(item.count),
        completed: complete(text, item.text),
      })),
    ]
  }
  const view = path === '/search' ? readSearch(window.location.search) : undefined
  const runs: Partial<Record<keyof Text['commandNames'], () => void>> = {
    ...Object.fromEntries(Object.entries(VIEWS).map(([name, href]) => [name, () => navigate(href)])),
    ...(view && { live: () => navigate(searchAddress({ ...view, live: !view.live }), { replace: true }) }),
    dark: () => setPrefs({ theme: 'dark' }),
    light: () => setPrefs({ theme: 'light' }),
    auto: () => setPrefs({ theme: 'auto' }),
    en: () => void choose('en'),
    zh: () => void choose('zh-CN'),
    keys: onKeys,
    signOut: session.signOut,
  }
  const named = Object.entries(runs).map(([name, run]): Entry => ({ key: name, text: t.commandNames[name as keyof typeof runs], run }))
  const clusters = (named.length > 0 && found?.field === 'cluster' ? found.items : []).map((item): Entry => {
    const name = item.text.replace(/^cluster:|^"|"$/g, '')
    return { key: `cluster ${name}`, text: name, is: 'cluster', about: t.clusterPage, run: () => navigate(clusterAddress(name)) }
  })
  const kept = searches.map(({ metadata, spec }): Entry => ({ key: metadata.name, text: spec.title, about: t.saved, run: search(spec.query) }))
  const before = (prefs.asked[session.user] ?? []).map((q): Entry => ({ key: `asked ${q}`, text: q, is: 'query', about: t.recent, run: search(q) }))
  const wanted = text.trim().toLowerCase()
  const fits = [...kept, ...named, ...clusters, ...before.slice(0, 10)].filter((entry) => entry.text.toLowerCase().includes(wanted))
  const hits = objects.map((hit): Entry => ({
    key: `object ${keyOf(hit)}`,
    text: hit.name,
    is: 'object',
    kind: hit.kind,
    about: [hit.kind, hit.namespace, hit.cluster === CONTROL_PLANE ? t.controlPlane : hit.cluster].filter(Boolean).join(' · '),
    run: () => navigate(objectAddress(hit)),
  }))
  return wanted === '' ? fits : [...fits, asking, ...hits]
}

/** Completes the last word of a short command. */
function complete(text: string, value: string): string {
  const last = /\S+$/.exec(text)
  const word = last?.[0] ?? ''
  const begin = text.slice(0, text.length - word.length)
  if (word.startsWith(':')) return `${begin}:${value.toLowerCase()} `
  if (word.startsWith('@')) return `${begin}@${value.replace(/^@/, '')} `
  return `${begin}${value} `
}
