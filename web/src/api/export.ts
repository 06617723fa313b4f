// Exports all hits of a query as a file, which the server generates.
import { request } from './client'
import { API } from './searchApi'

export type Format = 'jsonl' | 'csv'

export async function downloadExport(q: string, format: Format, columns: string[]): Promise<void> {
  const columnParameter = format === 'csv' ? `&columns=${encodeURIComponent(columns.join(','))}` : ''
  const response = await request(`${API}/export?format=${format}&q=${encodeURIComponent(q)}${columnParameter}`)
  // The browser stores a blob outside of the page's heap.
  const address = URL.createObjectURL(await response.blob())
  const link = document.createElement('a')
  link.href = address
  link.download = `crowsnest.${format}`
  link.click()
  URL.revokeObjectURL(address)
}

/** The same export as a terminal command. */
export function exportCommand(q: string): string {
  return `crowsnest search -- '${q.replaceAll("'", `'\\''`)}'`
}
