// Command palette (⌘K): short commands as in k9s, queries, saved searches, views, clusters and objects.
import { useId, useState, type KeyboardEvent } from 'react'
import { useLocation } from 'wouter'
import { clusterAddress, objectAddress, readSearch, searchAddress } from '../api/address'
import { CONTROL_PLANE } from '../api/client'
import { keyOf } from '../api/pages'
import { useSavedSearches } from '../api/saved'
import { fromShorthand, isShorthand } from '../api/shorthand'
import type { Hit } from '../api/types'
import { API } from '../api/searchApi'
import { useSuggestions } from '../api/useSuggestions'
import { useTypedRequest } from '../api/useTypeAhead'
import { KindIcon } from '../icons/Icon'
import { ClusterName } from '../parts/ClusterName'
import { ListOption } from '../parts/ListOption'
import { Modal } from '../parts/Modal'
import { pageCommands } from '../parts/pageCommands'
import { Query } from '../parts/Query'
import { addRecentQuery, favouritesFirst, recentQueriesOf, setPrefs, usePrefs } from '../prefs'
import { setLocale, useText, type Text } from '../text'
import { useSession } from './SignIn'

interface Entry {
  key: string
  text: string
  about?: string | undefined
  /** Format of the text if it is a query or the name of a cluster or an object. */
  format?: 'query' | 'cluster' | 'object'
  /** Kind of the object, and the apiVersion with its group. */
  kind?: string
  apiVersion?: string
  /** Action of Enter. Absent: Enter completes the text with `completed`. */
  run?: () => void
  completed?: string
}

/** Addresses of views that are found by name. */
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
  graphSinks: searchAddress({ q: 'kind:graphsink' }),
  newPolicy: '/plan?new=PropagationPolicy',
  newOverride: '/plan?new=OverridePolicy',
} satisfies Partial<Record<keyof Text['commandNames'], string>>

interface PaletteProps {
  initialText: string
  onClose: () => void
  onKeys: () => void
}

export function Palette({ initialText, onClose, onKeys }: PaletteProps) {
  const t = useText()
  const list = useId()
  const [text, setText] = useState(initialText)
  const [active, setActive] = useState(0)
  const entries = useEntries(text, onKeys)
  const at = Math.min(active, entries.length - 1)

  const runEntry = (entry: Entry | undefined) => {
    if (entry?.run) {
      onClose()
      entry.run()
    } else if (entry?.completed !== undefined) {
      setText(entry.completed)
      setActive(0)
    }
  }
  const handleKey = (event: KeyboardEvent) => {
    if (event.key === 'ArrowDown') setActive((at + 1) % entries.length)
    else if (event.key === 'ArrowUp') setActive((at - 1 + entries.length) % entries.length)
    else if (event.key === 'Enter' && !event.nativeEvent.isComposing) runEntry(entries[at])
    else if (event.key === 'Tab' && !event.shiftKey) runEntry(entries.slice(Math.max(at, 0)).find((entry) => entry.completed !== undefined))
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
        onKeyDown={handleKey}
      />
      <ul id={list} role="listbox" aria-label={t.commands}>
        {entries.map((entry, nth) => (
          <ListOption key={entry.key} id={`${list}-${nth}`} selected={nth === at} onClick={() => runEntry(entry)}>
            {entry.format === 'query' ? <Query text={entry.text} /> : entry.format === 'cluster' ? <ClusterName name={entry.text} /> : <ObjectName entry={entry} />}
            <small>{entry.about}</small>
          </ListOption>
        ))}
      </ul>
    </Modal>
  )
}

function ObjectName({ entry: { text, kind, apiVersion = '' } }: { entry: Entry }) {
  return (
    <span>
      {kind !== undefined && <KindIcon kind={kind} apiVersion={apiVersion} />}
      {kind !== undefined && ' '}
      {text}
    </span>
  )
}

/** Maximum number of objects that are offered. */
const MAX_OBJECTS = 6
const NO_HITS: Hit[] = []

/** The first hits of a query while it is typed; empty until they arrive, and on an error, since the other entries are still offered. */
function useMatchingObjects(q: string, enabled: boolean): Hit[] {
  const path = enabled ? `${API}/query?limit=${MAX_OBJECTS}&facets=&q=${encodeURIComponent(q)}` : undefined
  const response = useTypedRequest<{ hits: Hit[] }>(path)
  // Enter must not open a hit of the previous text.
  return response && response.path === path ? response.body.hits : NO_HITS
}

function useEntries(text: string, onKeys: () => void): Entry[] {
  const t = useText()
  const [path, navigate] = useLocation()
  const session = useSession()
  const prefs = usePrefs()
  const { searches = [] } = useSavedSearches()
  const isShort = isShorthand(text)
  const query = isShort ? fromShorthand(text) : text.trim()
  const isCompleting = isShort && !/\s$/.test(text) && query !== ''
  // A single word can be the name of a cluster, which has a page of its own.
  const isName = !isShort && /^[\w.-]+$/.test(query)
  const suggestionQuery = isName ? `cluster:${query}` : query
  const suggestions = useSuggestions(suggestionQuery, suggestionQuery.length, isCompleting || isName)

  const objects = useMatchingObjects(query, !isShort && query.length > 1)

  const search = (q: string) => () => {
    addRecentQuery(session.user, q)
    navigate(searchAddress({ q }))
  }
  const searchEntry: Entry = { key: 'ask', text: query, format: 'query', about: t.search, run: search(query) }
  if (isShort) {
    const items = isCompleting && suggestions?.field !== undefined ? suggestions.items : []
    return [
      searchEntry,
      ...items.slice(0, 10).map((item) => ({
        key: `complete ${item.text}`,
        text: item.text,
        about: item.count === undefined ? undefined : t.objects(item.count),
        completed: complete(text, item.text),
      })),
    ]
  }
  const view = path === '/search' ? readSearch(window.location.search) : undefined
  const commands: Partial<Record<keyof Text['commandNames'], () => void>> = {
    ...Object.fromEntries(Object.entries(VIEWS).map(([name, href]) => [name, () => navigate(href)])),
    ...(view && { live: () => navigate(searchAddress({ ...view, live: !view.live }), { replace: true }) }),
    dark: () => setPrefs({ theme: 'dark' }),
    light: () => setPrefs({ theme: 'light' }),
    auto: () => setPrefs({ theme: 'auto' }),
    en: () => void setLocale('en'),
    zh: () => void setLocale('zh-CN'),
    keys: onKeys,
    signOut: session.signOut,
  }
  const commandEntries = Object.entries(commands).map(([name, run]): Entry => ({ key: name, text: t.commandNames[name as keyof typeof commands], run }))
  const pageEntries = pageCommands().map(({ text, about, href }): Entry => ({ key: `page ${href}`, text, about, run: () => navigate(href) }))
  const suggestedClusters = (commandEntries.length > 0 && suggestions?.field === 'cluster' ? suggestions.items : []).map((item): Entry => {
    const name = item.text.replace(/^cluster:|^"|"$/g, '')
    return { key: `cluster ${name}`, text: name, format: 'cluster', about: t.clusterPage, run: () => navigate(clusterAddress(name)) }
  })
  const clusters = favouritesFirst(suggestedClusters, prefs.favouriteClusters, (entry) => entry.text)
  const savedEntries = searches.map(({ metadata, spec }): Entry => ({ key: metadata.name, text: spec.title, about: t.saved, run: search(spec.query) }))
  const recentEntries = recentQueriesOf(prefs, session.user).map((q): Entry => ({ key: `asked ${q}`, text: q, format: 'query', about: (prefs.starred[session.user] ?? []).includes(q) ? t.starredQuery : t.recent, run: search(q) }))
  const typedText = text.trim().toLowerCase()
  const matching = [...pageEntries, ...savedEntries, ...commandEntries, ...clusters, ...recentEntries.slice(0, 10)].filter((entry) => entry.text.toLowerCase().includes(typedText))
  const objectEntries = objects.map((hit): Entry => ({
    key: `object ${keyOf(hit)}`,
    text: hit.name,
    format: 'object',
    kind: hit.kind,
    apiVersion: hit.apiVersion,
    about: [hit.kind, hit.namespace, hit.cluster === CONTROL_PLANE ? t.controlPlane : hit.cluster].filter(Boolean).join(' · '),
    run: () => navigate(objectAddress(hit)),
  }))
  return typedText === '' ? matching : [...matching, searchEntry, ...objectEntries]
}

/** Completes the last word of a short command. */
function complete(text: string, value: string): string {
  const last = /\S+$/.exec(text)
  const word = last?.[0] ?? ''
  const prefix = text.slice(0, text.length - word.length)
  if (word.startsWith(':')) return `${prefix}:${value.toLowerCase()} `
  if (word.startsWith('@')) return `${prefix}@${value.replace(/^@/, '')} `
  return `${prefix}${value} `
}
