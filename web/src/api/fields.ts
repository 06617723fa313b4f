// Fields of the query language that the page needs for syntax highlighting and facets. The language itself is
// implemented by the server (index/query/src/fields.rs); a test compares both.

/** Each field with its aliases. */
const FIELDS = `kind,k group apiVersion name namespace,ns uid owner node ip label,labels,l ann,annotation,annotations status reason phase
condition exit restarts replicas ready age created changed deleted cpu.req cpu.limit mem.req mem.limit image image.tag digest cluster,c
cluster.label region zone provider policy override binding work on health quota evicting is type about cause count last related uses
usedby reaches reachedby changed.field content message select depth scope at during sort group-by,groupby limit timeout`

const CANONICAL = new Map(
  FIELDS.split(/\s+/).flatMap((entry) => {
    const names = entry.split(',')
    return names.map((name): [string, string] => [name.toLowerCase(), names[0]!])
  }),
)

/** The field with a name or alias, ignoring case; a path into the manifest such as `.spec.replicas` is a field itself. */
export function canonicalField(name: string): string | undefined {
  return /^\.[^.]/.test(name) ? name : CANONICAL.get(name.toLowerCase())
}

export const fieldNames = (): string[] => [...CANONICAL.keys()]

/** Fields that control the result. They apply to the complete query, not to one branch of an OR. */
export const RESULT_FIELDS = new Set(['select', 'depth', 'scope', 'at', 'during', 'sort', 'group-by', 'limit', 'timeout'])
