// Parameters of an address are plain text: a query in quotes, or one that is a number, is no JSON.

export function readAddress(search: string): Record<string, string> {
  return Object.fromEntries(new URLSearchParams(search))
}

export function writeAddress(search: Record<string, unknown>): string {
  const given = Object.entries(search).filter(([, value]) => value !== undefined)
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString()
  return text === '' ? '' : `?${text}`
}
