import { useState } from 'react'
import { useLocation } from 'wouter'
import { writeAddress } from '../api/address'

interface NarrowProps {
  label: string
  path: string
  q: string
  /** Other parameters of the view's address. */
  of: Record<string, unknown>
  placeholder: string
}

/** A query that filters a view; it is part of the address. */
export function Narrow({ label, path, q, of, placeholder }: NarrowProps) {
  const [, navigate] = useLocation()
  const [text, setText] = useState(q)
  const [was, setWas] = useState(q)
  if (was !== q) {
    setWas(q)
    setText(q)
  }
  return (
    <form
      className="acts"
      role="search"
      onSubmit={(event) => {
        event.preventDefault()
        navigate(`${path}${writeAddress({ ...of, q: text.trim() || undefined })}`)
      }}
    >
      <input type="search" aria-label={label} placeholder={placeholder} title={label} spellCheck={false} value={text} onChange={(event) => setText(event.target.value)} />
    </form>
  )
}
