import { useLocation } from 'wouter'
import { writeAddress } from '../api/address'
import { SearchForm } from './SearchForm'
import { useDraft } from './useDraft'

interface QueryFilterProps {
  label: string
  path: string
  q: string
  /** Other parameters of the view's address. */
  parameters: Record<string, unknown>
  placeholder: string
}

/** A query that filters a view; it is part of the address. */
export function QueryFilter({ label, path, q, parameters, placeholder }: QueryFilterProps) {
  const [, navigate] = useLocation()
  const [text, setText] = useDraft(q)
  return (
    <SearchForm className="acts" onSubmit={() => navigate(`${path}${writeAddress({ ...parameters, q: text.trim() || undefined })}`)}>
      <input type="search" aria-label={label} placeholder={placeholder} title={label} spellCheck={false} value={text} onChange={(event) => setText(event.target.value)} />
    </SearchForm>
  )
}
