import type { ComponentProps } from 'react'

type SearchFormProps = Omit<ComponentProps<'form'>, 'role' | 'onSubmit'> & { onSubmit: (fields: FormData) => void }

/** A search form that the page handles itself. */
export function SearchForm({ onSubmit, ...form }: SearchFormProps) {
  return (
    <form
      {...form}
      role="search"
      onSubmit={(event) => {
        event.preventDefault()
        onSubmit(new FormData(event.currentTarget))
      }}
    />
  )
}
