// Everything that a query finds, as a file. The server writes it; the browser keeps none of it in memory.
import { request } from './client'
import { API } from './useSearch'

export type Format = 'jsonl' | 'csv'

export async function download(q: string, format: Format, columns: string[]): Promise<void> {
  const wanted = format === 'csv' ? `&columns=${encodeURIComponent(columns.join(','))}` : ''
  const response = await request(`${API}/export?format=${format}&q=${encodeURIComponent(q)}${wanted}`)
  // A blob lies with the browser, not in the page's heap; one that is broken off is none.
  const address = URL.createObjectURL(await response.blob())
  const link = document.createElement('a')
  link.href = address
  link.download = `crowsnest.${format}`
  link.click()
  URL.revokeObjectURL(address)
}

/** The same question in a terminal. */
export function command(q: string): string {
  return `crowsnest search -- '${q.replaceAll("'", `'\\''`)}'`
}
