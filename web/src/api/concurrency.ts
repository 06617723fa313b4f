/**
 * The results of a function for each item, in the order of the items; at most `limit` calls run at the same time. After a failure no
 * further call begins.
 */
export async function mapConcurrently<T, R>(items: readonly T[], limit: number, call: (item: T) => Promise<R>): Promise<R[]> {
  const results = new Array<R>(items.length)
  let next = 0
  const work = async () => {
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
  await Promise.all(Array.from({ length: Math.min(limit, items.length) }, work))
  return results
}
