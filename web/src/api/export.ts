// Exports all matches of a query as a file. The server generates it; the page does not buffer it.
import { request } from './client'
import { API } from './useSearch'

export type Format = 'jsonl' | 'csv'

export async function download(q: string, format: Format, columns: string[]): Promise<void> {
  const wanted = format === 'csv' ? `&columns=${encodeURIComponent(columns.join(','))}` : ''
  const response = await request(`${API}/export?format=${format}&q=${encodeURIComponent(q)}${wanted}`)
  // A blob is stored by the browser, not in the page's heap; an aborted one is discarded.
  const address = URL.createObjectURL(await response.blob())
  const link = document.createElement('a')
  link.href = address
  link.download = `crowsnest.${format}`
  link.click()
  URL.revokeObjectURL(address)
}

/** The same export as a terminal command. */
export function command(q: string): string {
  return `crowsnest search -- '${q.replaceAll("'", `'\\''`)}'`
}
