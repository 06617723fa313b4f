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

export interface FileLoaders {
  importModule: (url: string) => Promise<unknown>
  /** Adds a style sheet to the page. */
  addStyleSheet: (url: string) => Promise<void>
}

const BROWSER: FileLoaders = {
  importModule: (url) => import(/* @vite-ignore */ url) as Promise<unknown>,
  addStyleSheet: (url) =>
    new Promise((resolve, reject) => {
      const link = document.createElement('link')
      link.rel = 'stylesheet'
      link.href = url
      link.onload = () => resolve()
      link.onerror = () => {
        link.remove()
        // The message of Vite, from which `failedFileOf` reads the URL.
        reject(new Error(`Unable to preload CSS for ${url}`))
      }
      document.head.append(link)
    }),
}

/** A function that loads a module with `load`, which imports it. After a failure, the next call requests the file that failed by another URL. */
export function moduleLoader<M>(load: () => Promise<M>, { importModule, addStyleSheet }: FileLoaders = BROWSER): () => Promise<M> {
  let failedFile: string | undefined
  let failures = 0
  const loadNext = async (): Promise<M> => {
    if (failedFile === undefined) return load()
    const url = urlOfAttempt(failedFile, failures)
    if (!isStyleSheet(failedFile)) return (await importModule(url)) as M
    await addStyleSheet(url)
    // Vite does not request a style sheet that failed again.
    return load()
  }
  return async () => {
    try {
      return await loadNext()
    } catch (error) {
      failures += 1
      failedFile = failedFileOf(error)
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
