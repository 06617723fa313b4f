// Addresses of views, by the section of the UI that they belong to.

export type Section = 'home' | 'search' | 'object' | 'fleet' | 'propagation' | 'analysis' | 'saved'

const SECTIONS: readonly (readonly [Section, RegExp])[] = [
  ['home', /^\/$/],
  ['search', /^\/search$/],
  ['object', /^\/object$/],
  ['saved', /^\/saved$/],
  ['fleet', /^\/(fleet(\/(nodes|events|join))?|cluster\/[^/]+)$/],
  ['analysis', /^\/(paths|who-can|assistants)$/],
  ['propagation', /^\/(steer(\/(bindings|failover|quotas|rebalance))?|policy|why|topology|drift|plan)$/],
]

/** The section of a view; undefined: there is no such view. */
export function partOf(path: string): Section | undefined {
  return SECTIONS.find(([, paths]) => paths.test(path))?.[0]
}
