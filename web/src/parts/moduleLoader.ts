// Loads the code of a part of the page, again after a failure.

/** URL of the file that an error of a dynamic import names, in the words of Chromium, Firefox and Vite. Safari names none, and requests a file again by itself. */
export function failedFileOf(error: unknown): string | undefined {
  const message = error instanceof Error ? error.message : ''
  return /(?:dynamically imported module: |preload CSS for )(https?:\/\/\S+)$/.exec(message)?.[1]
}

/** The URL of a file in an attempt to load it again. Browsers keep the failure of a module by its URL until the page is closed. */
export function urlOfAttempt(file: string, attempt: number): string {
  const url = new URL(file)
  url.searchParams.set('retry', String(attempt))
  return url.href
}

const isStyleSheet = (file: string) => new URL(file).pathname.endsWith('.css')

/** The message of Vite, from which `failedFileOf` reads the URL. */
const styleSheetError = (url: string) => new Error(`Unable to preload CSS for ${url}`)

export interface PageFiles {
  importModule: (url: string) => Promise<unknown>
  /** Adds a style sheet to the page. */
  addStyleSheet: (url: string) => Promise<void>
  /** URLs of the style sheets that failed. All parts share them: Vite requests each style sheet once, and several parts can need it. */
  missingStyleSheets: Set<string>
}

const BROWSER: PageFiles = {
  importModule: (url) => import(/* @vite-ignore */ url) as Promise<unknown>,
  addStyleSheet: (url) =>
    new Promise((resolve, reject) => {
      const link = document.createElement('link')
      link.rel = 'stylesheet'
      link.href = url
      link.onload = () => resolve()
      link.onerror = () => {
        link.remove()
        reject(styleSheetError(url))
      }
      document.head.append(link)
    }),
  missingStyleSheets: new Set(),
}

/**
 * Records the style sheets that fail, from Vite's events. Without `preventDefault`, Vite throws the error of the first and does not report the others
 * of its import.
 */
export function recordMissingStyleSheets(events: EventTarget, { missingStyleSheets }: Pick<PageFiles, 'missingStyleSheets'> = BROWSER): void {
  events.addEventListener('vite:preloadError', (event) => {
    const file = failedFileOf((event as VitePreloadErrorEvent).payload)
    if (file === undefined || !isStyleSheet(file)) return
    missingStyleSheets.add(file)
    event.preventDefault()
  })
}

/** Adds all missing style sheets to the page. Throws the error of the first that fails again. */
async function addMissingStyleSheets({ addStyleSheet, missingStyleSheets }: PageFiles, attempt: number): Promise<void> {
  const add = async (file: string) => {
    await addStyleSheet(urlOfAttempt(file, attempt))
    missingStyleSheets.delete(file)
  }
  const results = await Promise.allSettled([...missingStyleSheets].map(add))
  const failure = results.find((result): result is PromiseRejectedResult => result.status === 'rejected')
  if (failure) throw failure.reason
}

/**
 * A function that loads a module with `load`, which imports it. After a failure, the next call requests the files that failed by other URLs. It fails
 * while any style sheet is missing, since the style sheets of a module are unknown here.
 */
export function moduleLoader<M>(load: () => Promise<M>, files: PageFiles = BROWSER): () => Promise<M> {
  let failedModule: string | undefined
  let failures = 0
  const loadNext = async (): Promise<M> => {
    await addMissingStyleSheets(files, failures)
    if (failedModule !== undefined) return (await files.importModule(urlOfAttempt(failedModule, failures))) as M
    const module = await load()
    const [missing] = files.missingStyleSheets
    if (missing !== undefined) throw styleSheetError(missing)
    return module
  }
  return async () => {
    try {
      return await loadNext()
    } catch (error) {
      failures += 1
      const file = failedFileOf(error)
      // After a failure of a style sheet, a module that failed before still needs another URL.
      if (file === undefined || !isStyleSheet(file)) failedModule = file
      throw error
    }
  }
}

/** True if the server responds that it has no such file, which is so after it was replaced by another version. */
export function isFileMissing(file: string): Promise<boolean> {
  return fetch(file, { method: 'HEAD', cache: 'no-store' }).then(
    ({ status }) => status === 404,
    () => false,
  )
}
