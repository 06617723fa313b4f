import { useMemo, useState } from 'react'
import { useText } from '../text'

/** YAML with managedFields folded away and keys set apart. */
export function Yaml({ text }: { text: string }) {
  const t = useText()
  const [managed, setManaged] = useState(false)
  const lines = useMemo(() => (managed ? text : withoutManagedFields(text)).replace(/\n$/, '').split('\n'), [text, managed])
  return (
    <>
      <label className="option">
        <input type="checkbox" checked={managed} onChange={(event) => setManaged(event.target.checked)} /> {t.showManaged}
      </label>
      <pre className="yaml" tabIndex={0} aria-label="YAML">
        {lines.map((line, index) => (
          <Line key={index} text={line} />
        ))}
      </pre>
    </>
  )
}

function Line({ text }: { text: string }) {
  const parts = /^(\s*(?:- )*)([\w./$-]+|"[^"]*"):(\s.*)?$/.exec(text)
  return (
    <code>
      {parts ? (
        <>
          {parts[1]}
          <b>{parts[2]}</b>:{parts[3]}
        </>
      ) : (
        text
      )}
      {'\n'}
    </code>
  )
}

/** Drops the block of `metadata.managedFields` from a manifest's text. */
export function withoutManagedFields(text: string): string {
  const kept: string[] = []
  let inside = false
  let metadata = false
  for (const line of text.split('\n')) {
    if (/^\S/.test(line)) metadata = line.startsWith('metadata:')
    if (inside && (/^ {2}[^\s-]/.test(line) || /^\S/.test(line))) inside = false
    if (metadata && /^ {2}managedFields:/.test(line)) inside = true
    if (!inside) kept.push(line)
  }
  return kept.join('\n')
}
