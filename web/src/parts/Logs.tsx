import { useEffect, useMemo, useRef, useState } from 'react'
import { objectPath, request, type ObjectRef } from '../api/client'
import { readText } from '../api/sse'
import type { KubeObject } from '../api/types'
import { useText, type Text } from '../text'

/** Lines kept; older ones leave, so that a tab never dies of a chatty pod. */
const KEPT = 5_000

type LogState = keyof Text['logStates']

interface PodSpec {
  containers?: { name: string }[]
  initContainers?: { name: string }[]
}

/** Follows a container's log. */
export function Logs({ refTo, pod }: { refTo: ObjectRef; pod: KubeObject }) {
  const t = useText()
  const names = useMemo(() => {
    const spec = (pod.spec ?? {}) as PodSpec
    return [...(spec.containers ?? []), ...(spec.initContainers ?? [])].map((c) => c.name)
  }, [pod])
  const [container, setContainer] = useState(names[0] ?? '')
  const [previous, setPrevious] = useState(false)
  const { lines, state } = useLog(objectPath(refTo), container, previous)
  const box = useRef<HTMLPreElement>(null)
  const [atEnd, setAtEnd] = useState(true)

  useEffect(() => {
    if (atEnd && box.current) box.current.scrollTop = box.current.scrollHeight
  }, [lines, atEnd])

  return (
    <>
      <p className="option">
        <label>
          {t.container}{' '}
          <select value={container} onChange={(event) => setContainer(event.target.value)}>
            {names.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>{' '}
        <label>
          <input type="checkbox" checked={previous} onChange={(event) => setPrevious(event.target.checked)} /> {t.previousRun}
        </label>{' '}
        <span role="status">{state in t.logStates ? t.logStates[state as LogState] : state}</span>
      </p>
      <pre
        className="log"
        ref={box}
        tabIndex={0}
        aria-label={t.log}
        onScroll={(event) => {
          const { scrollTop, scrollHeight, clientHeight } = event.currentTarget
          setAtEnd(scrollHeight - scrollTop - clientHeight < 20)
        }}
      >
        {lines.join('\n')}
      </pre>
    </>
  )
}

function useLog(path: string, container: string, previous: boolean) {
  const [lines, setLines] = useState<string[]>([])
  const [state, setState] = useState('')
  useEffect(() => {
    const abort = new AbortController()
    setLines([])
    setState('connecting')
    let rest = ''
    const query = `container=${encodeURIComponent(container)}&tailLines=1000&follow=${!previous}&previous=${previous}`
    request(`${path}/log?${query}`, { signal: abort.signal })
      .then(async (response) => {
        setState(previous ? '' : 'following')
        await readText(response, (chunk) => {
          const parts = (rest + chunk).split('\n')
          rest = parts.pop() ?? ''
          if (parts.length > 0) setLines((old) => [...old, ...parts].slice(-KEPT))
        })
        setState('ended')
      })
      .catch((error: unknown) => {
        if (!abort.signal.aborted) setState(error instanceof Error ? error.message : String(error))
      })
    return () => abort.abort()
  }, [path, container, previous])
  return { lines, state }
}
