/**
 * Calls a function for each item, with at most `limit` concurrent calls. Returns the results in the order of the items. After the first
 * failure, which it throws, no further call begins.
 */
export async function mapConcurrently<T, R>(items: readonly T[], limit: number, call: (item: T) => Promise<R>): Promise<R[]> {
  const results = new Array<R>(items.length)
  let next = 0
  const runWorker = async () => {
    while (next < items.length) {
      const nth = next++
      try {
        results[nth] = await call(items[nth] as T)
      } catch (error) {
        next = items.length
        throw error
      }
    }
  }
  await Promise.all(Array.from({ length: Math.min(limit, items.length) }, runWorker))
  return results
}
